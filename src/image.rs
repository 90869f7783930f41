//! The sandbox image: its files, which this program carries in itself, and what they make. Pure.

use std::io;

use sha2::{Digest, Sha256};

/// The agent, a static program for Linux.
pub const AGENT: &[u8] = include_bytes!(env!("AGENT_BINARY"));

/// Protocol version of [`AGENT`], which an image carries as a label.
pub const PROTOCOL: u32 = protocol::frame::PROTOCOL_VERSION;

/// Label: the protocol version of the image's agent.
pub const LABEL_PROTOCOL: &str = "llm-sandbox.protocol";

/// Label: [`content_id`] of the files that the image was built from.
pub const LABEL_CONTENT: &str = "llm-sandbox.content";

/// The fork server, a program for the image's Python.
pub const ZYGOTE: &[u8] = include_bytes!("../sandbox-image/zygote.py");

/// Files of the build context besides the agent and the certificates: name and content.
const FILES: &[(&str, &[u8])] = &[
    ("Dockerfile", include_bytes!("../sandbox-image/Dockerfile")),
    ("requirements.txt", include_bytes!("../sandbox-image/requirements.txt")),
    ("zygote.py", ZYGOTE),
    ("matplotlibrc", include_bytes!("../sandbox-image/matplotlibrc")),
];

/// Tells whether an image was built from what this program would build it from.
pub fn content_id(base_image: Option<&str>) -> String {
    let mut hash = Sha256::new();
    for (name, content) in FILES.iter().chain(&[("agent", AGENT)]) {
        hash.update(name);
        hash.update(content.len().to_le_bytes());
        hash.update(content);
    }
    hash.update(base_image.unwrap_or_default());
    hex::encode(&hash.finalize()[..8])
}

/// The build context as a tar archive.
///
/// `certificates` is a PEM bundle that the build trusts beside its own, for networks that inspect
/// TLS; it is used to fetch packages and does not stay in the image.
pub fn context(certificates: &[u8]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8], mode: u32| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        // The same files make the same layers, whenever they are built.
        header.set_mtime(1);
        archive.append_data(&mut header, name, content)
    };
    for (name, content) in FILES {
        add(name, content, 0o644)?;
    }
    add("ca-certificates.crt", certificates, 0o644)?;
    // Readable, although it would be undumpable from its first instruction on if it were not: gVisor
    // loads programs as the container's user. The agent sees to it itself, long before there is
    // any code beside it that could look.
    add("agent", AGENT, 0o555)?;
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_holds_every_file_that_the_dockerfile_copies() {
        let tar = context(b"PEM").expect("archived");
        let mut names = vec![];
        for entry in tar::Archive::new(&tar[..]).entries().expect("readable") {
            let entry = entry.expect("readable");
            let mode = entry.header().mode().expect("set");
            names.push(entry.path().expect("set").to_string_lossy().into_owned());
            assert_eq!(
                mode,
                if names.last().is_some_and(|n| n == "agent") { 0o555 } else { 0o644 }
            );
        }
        let dockerfile = std::str::from_utf8(FILES[0].1).expect("text");
        for line in
            dockerfile.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from"))
        {
            for source in
                line.split_whitespace().skip(1).filter(|word| !word.starts_with(['/', '-']))
            {
                assert!(names.iter().any(|name| name == source), "{source} in {names:?}");
            }
        }
    }

    #[test]
    fn the_agent_is_a_static_program() {
        assert_eq!(&AGENT[..4], b"\x7fELF");
        // PT_INTERP names the loader of a dynamic one.
        let has_loader = AGENT.windows(8).any(|bytes| bytes == b"/ld-linu" || bytes == b"/ld-musl");
        assert!(!has_loader);
    }

    #[test]
    fn another_base_is_another_image() {
        assert_ne!(content_id(None), content_id(Some("python:3.12-slim")));
        assert_eq!(content_id(None), content_id(None));
    }
}
