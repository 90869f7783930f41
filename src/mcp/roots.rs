//! Files of the host that a client over stdio may upload: those in the folders that the settings or
//! the client itself name (its roots), links resolved, and nothing else.
//!
//! ```text
//! in a folder of the settings? -- yes --> open
//!            | no
//! clients up to 2025-11-25 are asked; later ones get the question as result, and call again with the answer
//! ```
//!
//! Models are told of it only if it can work: the settings name a folder, or the client says that it has roots and has
//! not answered that there are none.

#![expect(deprecated, reason = "clients have roots, and nothing else that says the same")]

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use config::Transport;
use futures::{Stream, TryStreamExt};
use model::{
    Dataset, DatasetName, DatasetSource,
    text::{nearest, printable, quoted, quoted_path},
};
use rmcp::{
    Peer, RoleServer,
    model::{
        ClientCapabilities, InputRequest, InputRequiredResult, ListRootsRequest, ListRootsResult,
        ProtocolVersion,
    },
    service::RequestContext,
};
use sandbox_container::dataset_folder;
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use super::{call::Call, services::Services};
use crate::error::{Error, Result};

/// Time within which a client has to name its roots. It may ask a person.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Folders whose files are not data but reports of the system, such as the settings of this very process.
const SYSTEM_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Folders that are no dataset if a client names them, nor any folder beneath them.
const SYSTEM_ROOTS: [&str; 12] = [
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib64",
    "/run",
    "/sbin",
    "/usr",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/spool",
];

/// Folders that are no dataset if a client names them, though folders beneath them may be.
const WIDE_ROOTS: [&str; 9] =
    ["/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var/tmp", "/Users"];

/// Name of the question for roots, as a client may get several questions at once.
const QUESTION: &str = "roots";

/// Maximum number of characters of a root's name that are in the name of its dataset, and of its path in the description.
const MAX_ROOT_NAME: usize = 40;
const MAX_ROOT_PATH: usize = 100;

/// Maximum number of names of a folder that are compared with a missing one, and that an error names.
const MAX_NAMES: usize = 1000;
const MAX_NEAREST: usize = 3;

/// The answer of the client over stdio to the question for its roots. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Answered {
    /// Whether the client has no roots that exist.
    none: Arc<AtomicBool>,
    /// Whether the roots are datasets, if they are to be.
    mounted: Arc<AtomicBool>,
}

impl Answered {
    /// Stores an answer. Returns true if the descriptions of tools change by it.
    fn is_news(&self, roots: &[PathBuf]) -> bool {
        self.none.swap(roots.is_empty(), Ordering::Relaxed) != roots.is_empty()
    }
}

/// Whether `local_path` can work for the client that sent this request.
pub(super) fn are_offered(services: &Services, context: &RequestContext<RoleServer>) -> bool {
    let Services { sessions, transport, roots, .. } = services;
    let has_roots = || {
        let has_any = is_modern(context) || !roots.none.load(Ordering::Relaxed);
        has_any && context.client_capabilities().is_some_and(|client| client.roots.is_some())
    };
    *transport == Transport::Stdio && (!sessions.config().upload_roots.is_empty() || has_roots())
}

/// Whether the result of [`are_offered`] may change for a client with these capabilities.
pub(super) fn may_come_and_go(services: &Services, client: &ClientCapabilities) -> bool {
    let Services { sessions, transport, .. } = services;
    let config = sessions.config();
    *transport == Transport::Stdio
        && (config.upload_roots.is_empty() || config.mount_roots)
        && client.roots.is_some()
}

/// Asks a client that has just introduced itself, if its roots are to be datasets.
pub(super) async fn initialized(services: &Services, peer: &Peer<RoleServer>) {
    if services.sessions.config().mount_roots {
        changed(services, peer).await;
    }
}

/// Makes the roots of the client datasets before the first call, if they are to be. Returns the question that the client
/// has to answer first, if there is one.
pub(super) async fn mount(call: &Call) -> Option<InputRequiredResult> {
    let Services { sessions, transport, roots, .. } = &call.services;
    let is_to_be = sessions.config().mount_roots && *transport == Transport::Stdio;
    if !is_to_be || roots.mounted.load(Ordering::Acquire) {
        return None;
    }
    match ask(call).await {
        Asked::Roots(folders) => {
            set(&call.services, &folders);
            None
        }
        Asked::Later(question) => Some(question),
    }
}

/// Makes these roots the client's datasets, if they are to be. Returns whether they are others than before.
fn set(services: &Services, roots: &[PathBuf]) -> bool {
    let sessions = &services.sessions;
    if !sessions.config().mount_roots {
        return false;
    }
    let is_news = sessions.host().set_roots(datasets(roots, &sessions.config().own_places));
    services.roots.mounted.store(true, Ordering::Release);
    is_news
}

/// The datasets of roots, each with the name of its folder. A root with a file of the server's `own` is none.
fn datasets(roots: &[PathBuf], own: &[PathBuf]) -> Vec<Arc<Dataset>> {
    let mut all: Vec<Arc<Dataset>> = vec![];
    let home = std::env::var_os("HOME").map(|home| real(Path::new(&home)));
    for root in roots {
        let danger = dataset_folder(&real(root).to_string_lossy()).err();
        let danger = danger.or_else(|| root_danger(&real(root), home.as_deref()));
        let has_own = || own.iter().any(|own| real(own).starts_with(real(root)));
        let danger = danger.or_else(|| has_own().then_some("has a file of the server's own"));
        if let Some(why) = danger {
            tracing::warn!(root = %root.display(), "a root of the client is no dataset: it {why}");
            continue;
        }
        let file_name = root.file_name().unwrap_or_default().to_string_lossy();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let name: String = file_name.chars().map(plain).take(MAX_ROOT_NAME).collect();
        let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let name = if name.is_empty() { "project" } else { name };
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let is_free = |name: &DatasetName| all.iter().all(|it| it.name != *name);
        let names = std::iter::once(name.to_owned()).chain(numbered);
        let Some(name) = names.filter_map(|name| name.parse().ok()).find(is_free) else { continue };
        let source = DatasetSource::Root(root.clone());
        // A model knows the folder by this path.
        let description = printable(&root.to_string_lossy()).chars().take(MAX_ROOT_PATH).collect();
        all.push(Arc::new(Dataset { name, source, description }));
    }
    all
}

/// A path with its links resolved, if it exists.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Why a folder that an operator may name is no dataset if a client names it: a predicate, to follow the path.
fn root_danger(root: &Path, home: Option<&Path>) -> Option<&'static str> {
    if SYSTEM_ROOTS.iter().any(|folder| root.starts_with(folder)) {
        return Some("is a folder of the system");
    }
    if WIDE_ROOTS.iter().any(|folder| root == Path::new(folder)) {
        return Some("has the files of several persons or programs");
    }
    if root.parent() == Some(Path::new("/home")) || home.is_some_and(|home| home.starts_with(root))
    {
        return Some("is or has the home of a person");
    }
    let home = home?;
    let within = root.strip_prefix(home).ok()?.components().next()?;
    let is_hidden = within.as_os_str().as_encoded_bytes().starts_with(b".");
    is_hidden.then_some("has settings and keys of a person")
}

/// Asks a client whose roots have changed, if descriptions of tools depend on them.
pub(super) async fn changed(services: &Services, peer: &Peer<RoleServer>) {
    let client = peer.peer_info();
    if client.is_some_and(|client| may_come_and_go(services, &client.capabilities)) {
        let answer = timeout(ANSWER_TIMEOUT, peer.list_roots()).await;
        let roots = folders(answer.ok().and_then(std::result::Result::ok));
        tell(services, peer, &roots).await;
    }
}

/// Stores the roots of a client over stdio. If that changes the descriptions of tools, the client is notified before
/// this returns.
async fn tell(services: &Services, peer: &Peer<RoleServer>, roots: &[PathBuf]) {
    let is_settled = !services.sessions.config().upload_roots.is_empty();
    let are_other_datasets = set(services, roots);
    if services.roots.is_news(roots) && !is_settled || are_other_datasets {
        // A client that does not get the notification lists the tools again when it needs to.
        let _ = peer.notify_tool_list_changed().await;
    }
}

/// Whether the client speaks 2026-07-28 or later, in which there are no MCP sessions.
pub(super) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version() >= Some(ProtocolVersion::V_2026_07_28)
}

/// The result of opening a path.
pub(super) enum Found {
    /// The file may be read, and is open.
    File(LocalFile),
    /// The client has to name its roots first.
    AskClient(InputRequiredResult),
}

/// An open file of the host.
#[derive(Debug)]
pub(super) struct LocalFile {
    file: File,
    /// Size in bytes, when it was opened.
    pub(super) size: u64,
    /// Its path, links resolved.
    real: PathBuf,
}

impl LocalFile {
    /// The file's path in a sandbox that can read these datasets, if one of them has the file.
    pub(super) fn in_datasets(&self, datasets: &[Arc<Dataset>]) -> Option<String> {
        datasets.iter().find_map(|dataset| {
            let (DatasetSource::Folder(folder) | DatasetSource::Root(folder)) = &dataset.source
            else {
                return None;
            };
            let below = self.real.strip_prefix(folder.canonicalize().ok()?).ok()?;
            Some(format!("{}/{}", dataset.folder(), below.to_str()?))
        })
    }

    /// The content of the file, which must not have grown beyond the limit meanwhile.
    pub(super) fn pieces(self, limit: u64) -> impl Stream<Item = Result<Bytes>> + Send {
        let file = tokio::fs::File::from_std(self.file);
        let mut size_bytes = 0;
        ReaderStream::with_capacity(file, 128 << 10)
            .map_err(|error| Error::InvalidArgument(format!("local_path cannot be read: {error}.")))
            .and_then(move |piece| {
                size_bytes += piece.len() as u64;
                let fits = size_bytes <= limit;
                async move {
                    if fits { Ok(piece) } else { Err(Error::UploadTooLarge { size_bytes, limit }) }
                }
            })
    }
}

/// Opens a file, if the client may have it uploaded.
///
/// # Errors
/// If the path is not absolute, is outside all roots, or is not a file that can be read.
pub(super) async fn open(call: &Call, path: &str) -> Result<Found> {
    let path = Path::new(path);
    if !path.is_absolute() {
        return Err(Error::InvalidPath(
            "local_path must be an absolute path, such as /home/ann/sales.csv.".into(),
        ));
    }
    let sessions = &call.services.sessions;
    let mut listed = sessions.config().upload_roots.clone();
    // A file of a dataset is there already, and the answer says where.
    listed.extend(sessions.datasets().iter().filter_map(|dataset| match &dataset.source {
        DatasetSource::Folder(folder) => folder.canonicalize().ok(),
        _ => None,
    }));
    let missing = match open_within(path, &listed) {
        Err(Refused::Outside) => None,
        Err(missing @ Refused::Missing(_)) => Some(missing),
        done => return done.map(Found::File).map_err(|why| why.explain(path)),
    };
    let roots = match ask(call).await {
        Asked::Roots(roots) => roots,
        Asked::Later(question) => return Ok(Found::AskClient(question)),
    };
    if listed.is_empty() && roots.is_empty() {
        return Err(Error::InvalidPath(format!(
            "local_path cannot be used here: this client has no roots, and SANDBOX_UPLOAD_ROOTS is \
             not set. {INSTEAD}"
        )));
    }
    open_within(path, &roots).map(Found::File).map_err(|why| match why {
        Refused::Outside => missing.unwrap_or(Refused::Outside).explain(path),
        why => why.explain(path),
    })
}

/// Advice for a model if a file of the host cannot be read.
const INSTEAD: &str = "Give the content as text or content_base64, or leave it out and send the file to the upload_url \
     that is returned.";

enum Asked {
    Roots(Vec<PathBuf>),
    Later(InputRequiredResult),
}

/// The roots of the client. A client that cannot name roots has none.
async fn ask(call: &Call) -> Asked {
    let has_roots = call.context.client_capabilities().is_some_and(|client| client.roots.is_some());
    if !has_roots {
        return Asked::Roots(vec![]);
    }
    if is_modern(&call.context) {
        let Some(answer) = call.answers.as_ref().and_then(|answers| answers.get(QUESTION)) else {
            let question = InputRequest::ListRoots(ListRootsRequest::default());
            let questions = [(QUESTION.to_owned(), question)].into();
            return Asked::Later(InputRequiredResult::from_input_requests(questions));
        };
        return Asked::Roots(folders(serde_json::from_value(answer.clone()).ok()));
    }
    let asked = timeout(ANSWER_TIMEOUT, call.context.peer.list_roots());
    tokio::select! {
        // An answer that comes later belongs to a call that was cancelled.
        biased;
        () = call.context.ct.cancelled() => Asked::Roots(vec![]),
        answer = asked => {
            let roots = folders(answer.ok().and_then(std::result::Result::ok));
            tell(&call.services, &call.context.peer, &roots).await;
            Asked::Roots(roots)
        }
    }
}

/// The roots that exist, links resolved.
fn folders(answer: Option<ListRootsResult>) -> Vec<PathBuf> {
    let roots = answer.map(|answer| answer.roots).unwrap_or_default();
    let folders =
        roots.iter().filter_map(|root| url::Url::parse(&root.uri).ok()?.to_file_path().ok());
    folders.filter_map(|folder| folder.canonicalize().ok()).collect()
}

#[derive(Debug)]
enum Refused {
    /// The file is outside the roots. Whether it exists is not revealed.
    Outside,
    /// There is no such file in a root; these names are similar.
    Missing(Vec<String>),
    NotAFile,
    System(io::Error),
}

impl Refused {
    fn explain(self, path: &Path) -> Error {
        let shown = quoted_path(&path.to_string_lossy());
        Error::InvalidPath(match self {
            Self::Outside => format!(
                "local_path {shown} is outside the folders that may be read: the client's roots and \
                 those in SANDBOX_UPLOAD_ROOTS. {INSTEAD}"
            ),
            Self::Missing(near) if near.is_empty() => {
                format!("There is no file at local_path {shown}. Check the path and call again.")
            }
            Self::Missing(near) => format!(
                "There is no file at local_path {shown}. That folder has {}.",
                near.join(", ")
            ),
            Self::NotAFile => {
                format!("local_path {shown} is not a file. Name one file, and call once for each.")
            }
            Self::System(error) => {
                format!("local_path {shown} cannot be read: {}. {INSTEAD}", error.kind())
            }
        })
    }
}

/// Opens a file within the roots, which are canonical. The opened file is checked, and not only its path: a link may
/// have replaced it in between.
fn open_within(path: &Path, roots: &[PathBuf]) -> std::result::Result<LocalFile, Refused> {
    let is_file = |path: &Path| !SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder));
    let is_within = |path: &Path| is_file(path) && roots.iter().any(|root| path.starts_with(root));
    let Ok(real) = path.canonicalize() else {
        return Err(missing(path, is_within).unwrap_or(Refused::Outside));
    };
    if !is_within(&real) {
        return Err(Refused::Outside);
    }
    // Opening a pipe without a writer would block.
    if !real.metadata().map_err(Refused::System)?.is_file() {
        return Err(Refused::NotAFile);
    }
    let file = File::open(&real).map_err(Refused::System)?;
    let metadata = file.metadata().map_err(Refused::System)?;
    if !metadata.is_file() {
        return Err(Refused::NotAFile);
    }
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if !is_within(&opened.map_err(Refused::System)?) {
            return Err(Refused::Outside);
        }
    }
    Ok(LocalFile { file, size: metadata.len(), real })
}

/// The refusal that there is no such file, if its folder, or the nearest existing one above it, may be read. Targets of
/// links outside the roots are not revealed: a dangling link counts as existing.
fn missing(path: &Path, is_within: impl Fn(&Path) -> bool) -> Option<Refused> {
    let (folder, name) =
        path.ancestors().zip(path.ancestors().skip(1)).find_map(|(below, above)| {
            let folder = above.canonicalize().ok()?;
            Some((folder, below.file_name()?.to_owned()))
        })?;
    let entry = folder.join(&name);
    let is_missing = matches!(
        entry.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound
    );
    if !is_missing || !is_within(&folder) || !folder.is_dir() {
        return None;
    }
    let names = folder.read_dir().ok()?.take(MAX_NAMES);
    let names: Vec<_> =
        names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let name = name.to_string_lossy();
    let near = nearest(&name, names.iter().map(|name| &**name), MAX_NEAREST);
    Some(Refused::Missing(near.map(quoted).collect()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn no_folder_of_the_system_and_no_home_is_a_dataset() {
        let home = Some(Path::new("/home/ann"));
        let danger = |path: &str| {
            let path = Path::new(path);
            let folder = dataset_folder(&path.to_string_lossy()).err();
            folder.or_else(|| root_danger(path, home)).is_some()
        };
        for bad in [
            "/",
            "/etc",
            "/etc/ssh",
            "/usr/bin",
            "/boot",
            "/home",
            "/home/ann",
            "/home/ann/.ssh",
            "/tmp",
            "/opt",
            "/srv",
            "/var/log/app",
            "/proc/1",
            "/run/user",
            "/root",
        ] {
            assert!(danger(bad), "{bad}");
        }
        for good in
            ["/home/ann/work", "/home/ann/a/.b", "/srv/sales", "/tmp/x", "/workspace", "/root/work"]
        {
            assert!(!danger(good), "{good}");
        }
    }

    #[test]
    fn only_files_within_the_roots_are_opened_links_resolved() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().canonicalize().expect("there");
        let (root, outside) = (base.join("root"), base.join("outside"));
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::create_dir(&outside).expect("made");
        fs::write(root.join("sub/in.csv"), "in").expect("written");
        fs::write(outside.join("secret"), "out").expect("written");
        symlink(outside.join("secret"), root.join("link")).expect("linked");
        symlink(&outside, root.join("folder")).expect("linked");
        symlink(root.join("sub/in.csv"), outside.join("back")).expect("linked");
        symlink(root.join("loop"), root.join("loop")).expect("linked");
        let open = |path: PathBuf| open_within(&path, std::slice::from_ref(&root));

        assert_eq!(open(root.join("sub/in.csv")).expect("within").size, 2);
        assert_eq!(open(root.join("sub/../sub/in.csv")).expect("within").size, 2);
        assert_eq!(open(outside.join("back")).expect("leads within").size, 2);
        symlink(outside.join("none"), root.join("dangling")).expect("linked");
        for wrong in [
            outside.join("secret"),
            outside.join("none"),
            root.join("link"),
            root.join("folder/secret"),
            root.join("folder/none"),
            root.join("folder/none/none"),
            root.join("../outside/secret"),
            root.join("../outside/none"),
            root.join("loop"),
            root.join("loop/none"),
            root.join("dangling"),
            root.join("dangling/none"),
            PathBuf::from("/etc/passwd"),
            base.join("root2"),
        ] {
            assert!(matches!(open(wrong.clone()), Err(Refused::Outside)), "{}", wrong.display());
        }
        for (name, near) in [("sub/In.csv", &["\"in.csv\""][..]), ("none", &[]), ("none/../x", &[])]
        {
            let Err(Refused::Missing(named)) = open(root.join(name)) else { panic!("{name}") };
            assert_eq!(named, near, "{name}");
        }
        for no_file in [root.clone(), root.join("sub")] {
            assert!(matches!(open(no_file), Err(Refused::NotAFile)));
        }
        assert!(open_within(&root.join("sub/in.csv"), &[]).is_err());
        assert!(open_within(Path::new("/dev/zero"), &["/".into()]).is_err());
    }
}
