//! Builds the agent as a static Linux program, which is embedded in the server, so that the server can build the
//! sandbox image without other files.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    for package in ["protocol", "sandbox-files", "agent-core", "agent"] {
        for path in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed=../{package}/{path}");
        }
    }
    let var = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let host = var("TARGET");
    let target = if host.contains("-linux-") {
        host
    } else {
        format!("{}-unknown-linux-musl", var("CARGO_CFG_TARGET_ARCH"))
    };
    // Beside this build's own folder rather than in it, so that all profiles share one agent.
    let target_dir = Path::new(&var("OUT_DIR"))
        .ancestors()
        .nth(4)
        .expect("OUT_DIR is four levels below the target folder")
        .join("agent");
    // Paths are replaced in the agent as well if they are in the program, so that it is the same from every folder.
    let outer = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let replaced = outer.split('\u{1f}').filter(|flag| flag.starts_with("--remap-path-prefix="));
    let flags: Vec<_> = ["-Ctarget-feature=+crt-static"].into_iter().chain(replaced).collect();
    let mut build = Command::new(var("CARGO"));
    build
        .args(["build", "--package=agent", "--bin=agent", "--profile=agent", "--locked"])
        .arg(format!("--target={target}"))
        .arg("--target-dir")
        .arg(&target_dir)
        .current_dir(var("CARGO_MANIFEST_DIR"))
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    // Set for this build by cargo or clippy; not meant for the build that this script starts.
    for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "RUSTFLAGS"] {
        build.env_remove(name);
    }
    // Zig links against old versions of the C library, but none statically.
    let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    if env::var(&linker).is_ok_and(|path| path.contains("zigcc")) {
        build.env_remove(linker);
    }
    let status = build.status().expect("cargo can be started");
    assert!(status.success(), "the agent could not be built for {target}");
    let agent: PathBuf = target_dir.join(target).join("agent/agent");
    println!("cargo::rustc-env=AGENT_BINARY={}", agent.display());
}
