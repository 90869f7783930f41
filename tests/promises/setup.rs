//! From a program that was just installed to a client that can start the server.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Output, Stdio},
};

use axum::{Router, extract::Path as InUrl, http::header::CONTENT_TYPE, routing::get};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{on_docker, program};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::task::AbortOnDropHandle;

async fn run(home: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
    let child = program(home, settings)
        .args(arguments)
        .env("HOME", home)
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::null())
        .output();
    timeout(support::PATIENCE, child).await.expect("ends in time").expect("starts")
}

async fn run_to(code: i32, home: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> String {
    let output = run(home, settings, arguments).await;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.code(), Some(code), "{settings:?} {arguments:?}: {said}");
    said
}

mod wasm {
    use super::*;

    /// A home folder, and the settings of a machine without Docker.
    fn machine() -> (tempfile::TempDir, [(&'static str, String); 3]) {
        let home = tempfile::tempdir().unwrap();
        let claude = home.path().join("bin");
        fs::create_dir(&claude).unwrap();
        let runtime = support::runtime_folder().display().to_string();
        let settings = [
            ("DOCKER_HOST", "unix:///nowhere/docker.sock".to_owned()),
            ("SANDBOX_RUNTIME_DIR", runtime),
            ("PATH", claude.display().to_string()),
        ];
        (home, settings)
    }

    fn borrowed<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
        settings.iter().map(|(name, value)| (*name, &**value)).collect()
    }

    #[tokio::test]
    async fn without_docker_the_embedded_engine_is_set_up() {
        let (home, settings) = machine();
        let said = run_to(0, home.path(), &borrowed(&settings), &["setup"]).await;
        for part in ["Engine: wasm (Docker cannot be used", "is up to date", "No client was found"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(said.contains(support::binary().to_str().unwrap()), "{said}");
    }

    #[tokio::test]
    async fn each_client_on_the_machine_is_told_how_to_start_the_server() {
        let (home, settings) = machine();
        for folder in [".cursor", ".config/Claude", ".config/Code/User"] {
            fs::create_dir_all(home.path().join(folder)).unwrap();
        }
        let claude = home.path().join("bin/claude");
        fs::write(&claude, "#!/bin/sh\nfor word; do echo \"$word\"; done >>\"$HOME/said\"\n")
            .unwrap();
        fs::set_permissions(&claude, fs::Permissions::from_mode(0o755)).unwrap();
        let settings = borrowed(&settings);

        let said = run_to(0, home.path(), &settings, &["setup"]).await;
        for part in
            ["claude mcp add --scope user sandbox", ".cursor/mcp.json", "Code/User/mcp.json"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!home.path().join(".cursor/mcp.json").exists(), "nothing is written unasked");

        let said = run_to(0, home.path(), &settings, &["setup", "--write"]).await;
        assert_eq!(said.matches(": added").count(), 4, "{said}");
        let read = |file: &str| -> Value {
            serde_json::from_slice(&fs::read(home.path().join(file)).unwrap()).unwrap()
        };
        let program = support::binary();
        let desktop = read(".config/Claude/claude_desktop_config.json");
        let desktop = &desktop["mcpServers"]["sandbox"];
        assert_eq!(desktop["command"], program.to_str().unwrap());
        assert_eq!(desktop["env"]["SANDBOX_EXEC_TIMEOUT_S"], "50", "it ends longer calls");
        assert_eq!(
            desktop["env"]["SANDBOX_RUNTIME_DIR"], settings[1].1,
            "it starts what was checked"
        );
        assert_eq!(read(".config/Code/User/mcp.json")["servers"]["sandbox"]["type"], "stdio");
        let told = fs::read_to_string(home.path().join("said")).unwrap();
        assert!(told.starts_with("mcp\nadd\n--scope\nuser\nsandbox\n"), "{told}");

        let cursor = fs::read(home.path().join(".cursor/mcp.json")).unwrap();
        let said = run_to(0, home.path(), &settings, &["setup", "--write"]).await;
        assert_eq!(said.matches("it has the server").count(), 3, "{said}");
        assert_eq!(fs::read(home.path().join(".cursor/mcp.json")).unwrap(), cursor);
    }

    #[tokio::test]
    async fn a_clients_file_that_has_another_server_of_the_name_is_not_changed() {
        let (home, settings) = machine();
        fs::create_dir(home.path().join(".cursor")).unwrap();
        let file = home.path().join(".cursor/mcp.json");
        let text = r#"{ "mcpServers": { "sandbox": { "command": "docker" } } }"#;
        fs::write(&file, text).unwrap();
        let said = run_to(1, home.path(), &borrowed(&settings), &["setup", "--write"]).await;
        assert!(said.contains("Cursor: not added") && said.contains("another server"), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

on_docker! {
    an_image_is_pulled_from_a_registry_and_used,
    an_image_of_another_program_is_not_used,
}

/// A registry with one image of one small layer.
struct Registry {
    reference: String,
    _serving: AbortOnDropHandle<()>,
}

impl Registry {
    async fn start(labels: Value) -> Self {
        let mut layer = tar::Builder::new(vec![]);
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        layer.append_data(&mut header, "file", &b"1"[..]).unwrap();
        let layer = layer.into_inner().unwrap();
        let digest = |bytes: &[u8]| format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": { "Labels": labels },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        });
        let config = config.to_string().into_bytes();
        let oci = |kind: &str| format!("application/vnd.oci.image.{kind}");
        let part = |kind: &str, bytes: &[u8]| json!({ "mediaType": oci(kind), "digest": digest(bytes), "size": bytes.len() });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": oci("manifest.v1+json"),
            "config": part("config.v1+json", &config),
            "layers": [part("layer.v1.tar", &layer)],
        });
        let manifest = manifest.to_string().into_bytes();
        let kind = oci("manifest.v1+json");
        let blobs = [(digest(&config), config), (digest(&layer), layer)];
        let blob = async move |InUrl(wanted): InUrl<String>| {
            let found = blobs.iter().find(|(digest, _)| *digest == wanted);
            found.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
        };
        let manifest = async move || ([(CONTENT_TYPE, kind)], manifest);
        let router = Router::new()
            .route("/v2/", get(async || "{}"))
            .route("/v2/own/manifests/{tag}", get(manifest))
            .route("/v2/own/blobs/{digest}", get(blob));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reference = format!("{}/own:1", listener.local_addr().unwrap());
        let serving = async move { axum::serve(listener, router).await.unwrap() };
        Self { reference, _serving: AbortOnDropHandle::new(tokio::spawn(serving)) }
    }
}

/// The version of the protocol that the program's images must have.
async fn protocol(home: &Path) -> String {
    let doctor = run(home, &[], &["doctor"]).await.stdout;
    let doctor = String::from_utf8(doctor).unwrap();
    let line = doctor.lines().next().unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

/// Removes images when a test ends.
struct Images<'a>(&'a [&'a str]);

impl Drop for Images<'_> {
    fn drop(&mut self) {
        let remove = std::process::Command::new("docker").args(["rmi", "-f"]).args(self.0).output();
        drop(remove);
    }
}

async fn an_image_is_pulled_from_a_registry_and_used() {
    let home = tempfile::tempdir().unwrap();
    let version = protocol(home.path()).await;
    let labels = json!({ "llm-sandbox.protocol": version });
    let registry = Registry::start(labels).await;
    let _images = Images(&[&registry.reference, "llm-sandbox-test-pulled:1"]);
    let settings = [("SANDBOX_IMAGE", "llm-sandbox-test-pulled:1")];
    let said = run_to(0, home.path(), &settings, &["image", "pull", &registry.reference]).await;
    assert!(said.contains("llm-sandbox-test-pulled:1 is this image now"), "{said}");
    let doctor = run(home.path(), &settings, &["doctor"]).await.stdout;
    let doctor = String::from_utf8(doctor).unwrap();
    assert!(doctor.contains(&format!("llm-sandbox-test-pulled:1, protocol {version}")), "{doctor}");
}

async fn an_image_of_another_program_is_not_used() {
    let home = tempfile::tempdir().unwrap();
    for (labels, why) in [
        (json!({}), "it is not a sandbox image"),
        (json!({ "llm-sandbox.protocol": "1" }), "built for another version"),
    ] {
        let registry = Registry::start(labels).await;
        let _images = Images(&[&registry.reference]);
        let settings = [("SANDBOX_IMAGE", "llm-sandbox-test-unchanged:1")];
        let said =
            run_to(69, home.path(), &settings, &["image", "pull", &registry.reference]).await;
        assert!(said.contains(why), "{said}");
        let doctor = run(home.path(), &settings, &["doctor"]).await.stdout;
        let doctor = String::from_utf8(doctor).unwrap();
        assert!(doctor.contains("llm-sandbox-test-unchanged:1 does not exist"), "{doctor}");
    }
    let said = run_to(64, home.path(), &[], &["image", "pull"]).await;
    assert!(said.contains("Name the image"), "{said}");
    let nowhere = ["image", "pull", "127.0.0.1:1/own:1"];
    let said = run_to(69, home.path(), &[], &nowhere).await;
    assert!(said.contains("127.0.0.1:1/own:1 could not be pulled"), "{said}");
}
