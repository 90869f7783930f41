//! The sandbox image: its files, which are embedded in this program, and the build context made of them. Pure.

use std::io;

use sha2::{Digest, Sha256};

use super::{
    recipes::Recipes,
    template::{Library, Runtime, Template},
};

/// The agent, a static program for Linux.
pub(crate) const AGENT: &[u8] = include_bytes!(env!("AGENT_BINARY"));

/// Protocol version of [`AGENT`]. An image has it as a label.
pub(crate) const PROTOCOL: u32 = protocol::frame::PROTOCOL_VERSION;

/// Label: the protocol version of the image's agent.
pub(crate) const LABEL_PROTOCOL: &str = "llm-sandbox.protocol";

/// Label: [`content_id`] of the files that the image was built from.
pub(crate) const LABEL_CONTENT: &str = "llm-sandbox.content";

/// Label: [`libraries_id`] of the contents of an image besides the agent, the fork server and the kernels.
pub(crate) const LABEL_LIBRARIES: &str = "llm-sandbox.libraries";

/// Label: the names of an image's [`Recipes`].
pub(crate) const LABEL_RECIPES: &str = "llm-sandbox.recipes";

/// Label: the contents of an image, from which a [`Template`] is made.
pub(crate) const LABEL_TEMPLATE: &str = "llm-sandbox.template";

/// The stage of the Dockerfile on which its last stage is based.
pub(crate) const LIBRARIES: &str = "libraries";

/// The fork server, the Python kernel and the modules that programs can import: path in the build context and content.
/// They are in the last stage, as is the agent.
pub(crate) const FORK_SERVER: [(&str, &[u8]); 8] = [
    (
        "runtimes/python/zygote.py",
        include_bytes!("../../../sandbox-image/runtimes/python/zygote.py"),
    ),
    ("runtimes/python/facts.py", include_bytes!("../../../sandbox-image/runtimes/python/facts.py")),
    (
        "runtimes/python/kernel.py",
        include_bytes!("../../../sandbox-image/runtimes/python/kernel.py"),
    ),
    ("runtimes/python/shell.py", include_bytes!("../../../sandbox-image/runtimes/python/shell.py")),
    (
        "runtimes/python/summary.py",
        include_bytes!("../../../sandbox-image/runtimes/python/summary.py"),
    ),
    ("runtimes/python/page.py", include_bytes!("../../../sandbox-image/runtimes/python/page.py")),
    ("runtimes/python/carry.py", include_bytes!("../../../sandbox-image/runtimes/python/carry.py")),
    (
        "runtimes/python/modules/tools.py",
        include_bytes!("../../../sandbox-image/runtimes/python/modules/tools.py"),
    ),
];

/// The JavaScript kernel, and the modules of all code in the image's Node: path in the build context and content. They
/// are in the last stage, too.
pub(crate) const JAVASCRIPT: [(&str, &[u8]); 3] = [
    (
        "runtimes/javascript/kernel.cjs",
        include_bytes!("../../../sandbox-image/runtimes/javascript/kernel.cjs"),
    ),
    (
        "runtimes/javascript/calls.cjs",
        include_bytes!("../../../sandbox-image/runtimes/javascript/calls.cjs"),
    ),
    (
        "runtimes/javascript/tools.cjs",
        include_bytes!("../../../sandbox-image/runtimes/javascript/tools.cjs"),
    ),
];

const DOCKERFILE: &str = include_str!("../../../sandbox-image/Dockerfile");

/// The libraries that clients see, one name to a line.
const LIBRARIES_ON_PURPOSE: &str =
    include_str!("../../../sandbox-image/runtimes/python/requirements.in");

/// These libraries and all their dependencies, as `name==version`.
const PINNED: &str = include_str!("../../../sandbox-image/runtimes/python/requirements.txt");

/// The version of Node, as `name==version`.
const NODE: &str = include_str!("../../../sandbox-image/runtimes/javascript/requirements.txt");

/// Files of the build context except for the agent and the certificates: name and content.
const FILES: &[(&str, &[u8])] = &[
    ("Dockerfile", DOCKERFILE.as_bytes()),
    ("runtimes/python/requirements.in", LIBRARIES_ON_PURPOSE.as_bytes()),
    ("runtimes/python/requirements.txt", PINNED.as_bytes()),
    ("runtimes/javascript/requirements.txt", NODE.as_bytes()),
    JAVASCRIPT[0],
    JAVASCRIPT[1],
    JAVASCRIPT[2],
    FORK_SERVER[0],
    FORK_SERVER[1],
    FORK_SERVER[2],
    FORK_SERVER[3],
    FORK_SERVER[4],
    FORK_SERVER[5],
    FORK_SERVER[6],
    FORK_SERVER[7],
    (
        "runtimes/python/matplotlibrc",
        include_bytes!("../../../sandbox-image/runtimes/python/matplotlibrc"),
    ),
    ("runtimes/python/pip.py", include_bytes!("../../../sandbox-image/runtimes/python/pip.py")),
    (
        "runtimes/python/sandbox_figures.py",
        include_bytes!("../../../sandbox-image/runtimes/python/sandbox_figures.py"),
    ),
    (
        "runtimes/python/sandbox_fonts.py",
        include_bytes!("../../../sandbox-image/runtimes/python/sandbox_fonts.py"),
    ),
    (
        "runtimes/python/sandbox_tqdm.py",
        include_bytes!("../../../sandbox-image/runtimes/python/sandbox_tqdm.py"),
    ),
];

/// A hash of everything that this program would build an image from, except for build arguments. An image with
/// another hash is out of date.
pub(crate) fn content_id(base_image: Option<&str>, recipes: &Recipes) -> String {
    let mut hash = Sha256::new();
    let of_recipes = recipes.iter().flat_map(|recipe| recipe.files);
    for (name, content) in FILES.iter().chain(&[("agent", AGENT)]).chain(of_recipes) {
        hash.update(name);
        hash.update(content.len().to_le_bytes());
        hash.update(content);
    }
    hash.update(base_image.unwrap_or_default());
    hex::encode(&hash.finalize()[..8])
}

/// A hash of everything that the libraries of an image are built from: the files except for those of the last stage,
/// the base image and the build arguments.
pub(crate) fn libraries_id<'a>(
    base_image: Option<&str>,
    build_args: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &[u8]| {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    };
    add(stages().0.as_bytes());
    let is_of_the_last_stage = |file| FORK_SERVER.contains(file) || JAVASCRIPT.contains(file);
    let files = FILES.iter().filter(|file| file.0 != "Dockerfile" && !is_of_the_last_stage(file));
    for (name, content) in files {
        add(name.as_bytes());
        add(content);
    }
    add(base_image.unwrap_or_default().as_bytes());
    for (name, value) in build_args {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    hex::encode(&hash.finalize()[..8])
}

/// The Python that this program builds into an image, with this version if it is known.
pub(crate) fn python(version: Option<&str>) -> Runtime {
    let lines = LIBRARIES_ON_PURPOSE.lines().map(str::trim);
    let names = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.split(['=', '<', '>', '~', ' ', ';', '[']).next());
    let pinned = |name: &str| {
        let version = |line: &'static str| line.strip_prefix(name)?.strip_prefix("==");
        let rest = PINNED.lines().find_map(version)?;
        rest.split([' ', ';']).next().map(str::to_owned)
    };
    let library = |name: &str| Library { name: name.to_owned(), version: pinned(name) };
    Runtime {
        name: "python".into(),
        version: version.map(str::to_owned),
        libraries: names.map(library).collect(),
        ..Runtime::default()
    }
}

/// The runtimes that this program builds into an image: Python with this version if it is known, Node, and the
/// shell.
pub(crate) fn runtimes(python_version: Option<&str>) -> Vec<Runtime> {
    let node = NODE.lines().find_map(|line| line.split_once("=="));
    let node = node.and_then(|(_, rest)| rest.split([' ', ';']).next());
    let without_libraries = |name: &str, version: Option<&str>| Runtime {
        name: name.into(),
        version: version.map(str::to_owned),
        ..Runtime::default()
    };
    vec![
        python(python_version),
        without_libraries("javascript", node),
        without_libraries("bash", None),
    ]
}

impl Template {
    /// The template of an image that this program would build, for images without a valid label.
    pub fn built_in(id: impl Into<String>) -> Self {
        Self { id: id.into(), runtimes: runtimes(None), world: model::World::System }
    }
}

/// The base image if the caller does not choose another one.
pub(crate) fn default_base() -> &'static str {
    let base = DOCKERFILE.lines().find_map(|line| line.strip_prefix("ARG BASE_IMAGE="));
    base.expect("the Dockerfile in this program has the line ARG BASE_IMAGE")
}

/// The Dockerfile up to its last stage, and that stage without its first line.
fn stages() -> (&'static str, &'static str) {
    let (before, last) = DOCKERFILE
        .rsplit_once("\nFROM libraries\n")
        .expect("the Dockerfile in this program has the stage FROM libraries");
    (before, last)
}

/// The build context as a tar archive: for the whole image, or for its last stage on the libraries image with this
/// id.
///
/// `certificates` is a PEM bundle that the build trusts in addition to its own, for networks that inspect TLS. It is
/// used to fetch packages and does not stay in the image.
///
/// # Errors
/// If a name or size does not fit into an archive, which is never the case for these files.
pub(crate) fn context(libraries: Option<&str>, certificates: &[u8]) -> io::Result<Vec<u8>> {
    let last = libraries.map(|id| format!("FROM {id}\n{}", stages().1));
    let dockerfile = last.as_deref().unwrap_or(DOCKERFILE);
    // Readable, because gVisor loads programs as the container's user. An unreadable program would not be dumpable
    // from its first instruction on; the agent makes itself undumpable instead, before it runs any user code.
    archived(dockerfile, FILES, &[(CERTIFICATES, certificates, 0o644), ("agent", AGENT, 0o555)])
}

/// The file of a build context with the extra certificates.
pub(crate) const CERTIFICATES: &str = "ca-certificates.crt";

/// A build context with this Dockerfile, these files instead of the one of theirs, and more files with their modes.
///
/// # Errors
/// If a name or size does not fit into an archive, which is never the case for files of this program.
pub(crate) fn archived(
    dockerfile: &str,
    files: &[(&str, &[u8])],
    more: &[(&str, &[u8], u32)],
) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let files = files.iter().filter(|file| !file.0.ends_with("Dockerfile"));
    let files = files.map(|(name, content)| (*name, *content, 0o644));
    let dockerfile = ("Dockerfile", dockerfile.as_bytes(), 0o644);
    for (name, content, mode) in [dockerfile].into_iter().chain(files).chain(more.iter().copied()) {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        // A constant time, so that the same files make the same layers.
        header.set_mtime(1);
        archive.append_data(&mut header, name, content)?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{from_label, to_label};

    #[test]
    fn the_context_holds_every_file_that_the_dockerfile_copies() {
        let tar = context(None, b"PEM").expect("archived");
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
        let joined = dockerfile.replace("\\\n", " ");
        for line in
            joined.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from"))
        {
            for source in
                line.split_whitespace().skip(1).filter(|word| !word.starts_with(['/', '-']))
            {
                assert!(names.iter().any(|name| name == source), "{source} in {names:?}");
            }
        }
    }

    #[test]
    fn the_last_stage_holds_all_that_changes_with_the_server() {
        let (before, last) = stages();
        assert!(before.contains("FROM runtime AS libraries\n") && !last.contains("FROM "));
        for ours in [
            "COPY agent ",
            "COPY runtimes/python/zygote.py runtimes/python/facts.py runtimes/python/kernel.py ",
            "COPY runtimes/javascript/kernel.cjs ",
            "USER 1000:1000",
            "ENTRYPOINT",
        ] {
            assert!(last.contains(ours) && !before.contains(ours), "{ours}");
        }
        let tar = context(Some("sha256:0123"), b"").expect("archived");
        let mut archive = tar::Archive::new(&tar[..]);
        let mut first =
            archive.entries().expect("readable").next().expect("one").expect("readable");
        let mut dockerfile = String::new();
        io::Read::read_to_string(&mut first, &mut dockerfile).expect("text");
        assert_eq!(dockerfile, format!("FROM sha256:0123\n{last}"));
    }

    #[test]
    fn other_libraries_are_a_matter_of_base_and_arguments() {
        let id = |base, args: &[(&'static str, &'static str)]| libraries_id(base, args.to_vec());
        assert_eq!(id(None, &[]), id(None, &[]));
        let others = [
            id(None, &[]),
            id(Some("python:3.12-slim"), &[]),
            id(None, &[("A", "b")]),
            id(None, &[("A", "c")]),
            id(None, &[("Ab", "")]),
        ];
        let different: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(different.len(), others.len());
        assert_eq!(default_base(), "debian:trixie-slim");
    }

    #[test]
    fn the_agent_is_a_static_program() {
        assert_eq!(&AGENT[..4], b"\x7fELF");
        // A dynamic program names its loader in PT_INTERP.
        let has_loader = AGENT.windows(8).any(|bytes| bytes == b"/ld-linu" || bytes == b"/ld-musl");
        assert!(!has_loader);
    }

    #[test]
    fn another_base_is_another_image() {
        assert_ne!(
            content_id(None, &Recipes::default()),
            content_id(Some("python:3.12-slim"), &Recipes::default())
        );
        assert_eq!(content_id(None, &Recipes::default()), content_id(None, &Recipes::default()));
    }

    #[test]
    fn what_is_built_in_are_the_pinned_libraries() {
        let built = python(None);
        let pandas = &built.libraries[0];
        assert_eq!(pandas.name, "pandas");
        for library in &built.libraries {
            let version = library.version.as_deref().unwrap_or_default();
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{library:?}");
        }
    }

    #[test]
    fn every_language_is_told_with_its_version_if_that_is_pinned() {
        let built = runtimes(Some("3.13.5"));
        let names: Vec<_> = built.iter().map(|runtime| &*runtime.name).collect();
        assert_eq!(names, ["python", "javascript", "bash"]);
        assert!(built[1].version.as_deref().is_some_and(|version| version.starts_with("24.")));
        assert_eq!(built[2].version, None);
    }

    #[test]
    fn a_label_is_read_as_it_is_written() {
        let runtimes = runtimes(Some("3.13.5"));
        assert_eq!(from_label(&to_label(runtimes.clone())), Ok(runtimes));
    }
}
