//! Files of the host that a client over stdio may upload: those in the folders that the settings or
//! the client itself name (its roots), links resolved, and nothing else.
//!
//! ```text
//! in a folder of the settings? -- yes --> open
//!            | no
//! clients up to 2025-11-25 are asked; later ones are told to ask themselves and to call again
//! ```

#![expect(deprecated, reason = "clients have roots, and nothing else that says the same")]

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use rmcp::model::{
    InputRequest, InputRequiredResult, ListRootsRequest, ListRootsResult, ProtocolVersion,
};
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use super::call::Call;
use crate::error::{Error, Result};

/// Time that a client has to say what its roots are. It may ask a person.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Where files are not data but what the system reports, such as the settings of this very process.
const SYSTEM_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Names our question among those that a client is asked at once.
const QUESTION: &str = "roots";

/// What came of a path.
pub(super) enum Found {
    /// It may be read, and is open.
    File(LocalFile),
    /// Its client has to say first which folders are its roots.
    AskClient(InputRequiredResult),
}

/// A file of the host that is open.
#[derive(Debug)]
pub(super) struct LocalFile {
    file: File,
    /// In bytes, when it was opened.
    pub(super) size: u64,
}

impl LocalFile {
    /// Its content, which must not have grown beyond the limit meanwhile.
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
        return Err(Error::InvalidPath("local_path must be absolute.".into()));
    }
    let listed = &call.services.sessions.config().upload_roots;
    match open_within(path, listed) {
        Err(Refused::Outside) => {}
        done => return done.map(Found::File).map_err(|why| why.explain(path)),
    }
    let roots = match ask(call).await {
        Asked::Roots(roots) => roots,
        Asked::Later(question) => return Ok(Found::AskClient(question)),
    };
    open_within(path, &roots).map(Found::File).map_err(|why| why.explain(path))
}

enum Asked {
    Roots(Vec<PathBuf>),
    Later(InputRequiredResult),
}

/// The folders that the client has open. One that has none to name has none.
async fn ask(call: &Call) -> Asked {
    let has_roots = call.context.client_capabilities().is_some_and(|client| client.roots.is_some());
    if !has_roots {
        return Asked::Roots(vec![]);
    }
    let answer = if call.context.protocol_version() >= Some(ProtocolVersion::V_2026_07_28) {
        let Some(answer) = call.answers.as_ref().and_then(|answers| answers.get(QUESTION)) else {
            let question = InputRequest::ListRoots(ListRootsRequest::default());
            let questions = [(QUESTION.to_owned(), question)].into();
            return Asked::Later(InputRequiredResult::from_input_requests(questions));
        };
        serde_json::from_value::<ListRootsResult>(answer.clone()).ok()
    } else {
        let asked = timeout(ANSWER_TIMEOUT, call.context.peer.list_roots());
        tokio::select! {
            // An answer that comes later belongs to a call that nobody waits for any more.
            biased;
            () = call.context.ct.cancelled() => None,
            answer = asked => answer.ok().and_then(std::result::Result::ok),
        }
    };
    let roots = answer.map(|answer| answer.roots).unwrap_or_default();
    let folders =
        roots.iter().filter_map(|root| url::Url::parse(&root.uri).ok()?.to_file_path().ok());
    Asked::Roots(folders.filter_map(|folder| folder.canonicalize().ok()).collect())
}

#[derive(Debug)]
enum Refused {
    /// Whether a file outside the roots exists is not revealed.
    Outside,
    NotAFile,
    System(io::Error),
}

impl Refused {
    fn explain(self, path: &Path) -> Error {
        let shown = crate::text::printable(&path.to_string_lossy());
        match self {
            Self::Outside => Error::InvalidPath(format!(
                "{shown} is not within the client's roots or the folders in SANDBOX_UPLOAD_ROOTS, \
                 or does not exist. Send its content instead, or omit it and send the file to the \
                 returned upload_url."
            )),
            Self::NotAFile => Error::InvalidPath(format!("{shown} is not a file.")),
            Self::System(error) => {
                Error::InvalidPath(format!("{shown} cannot be read: {}.", error.kind()))
            }
        }
    }
}

/// The roots are canonical. What was opened is looked at, not only what was to be: a link may have
/// been put in its place in between.
fn open_within(path: &Path, roots: &[PathBuf]) -> std::result::Result<LocalFile, Refused> {
    let is_file = |path: &Path| !SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder));
    let is_within = |path: &Path| is_file(path) && roots.iter().any(|root| path.starts_with(root));
    let real = path.canonicalize().map_err(|_| Refused::Outside)?;
    if !is_within(&real) {
        return Err(Refused::Outside);
    }
    // A pipe that nobody writes to would be waited for.
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
    Ok(LocalFile { file, size: metadata.len() })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

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
        for wrong in [
            outside.join("secret"),
            root.join("link"),
            root.join("folder/secret"),
            root.join("../outside/secret"),
            root.join("loop"),
            root.join("none"),
            PathBuf::from("/etc/passwd"),
            base.join("root2"),
        ] {
            assert!(matches!(open(wrong.clone()), Err(Refused::Outside)), "{}", wrong.display());
        }
        for no_file in [root.clone(), root.join("sub")] {
            assert!(matches!(open(no_file), Err(Refused::NotAFile)));
        }
        assert!(open_within(&root.join("sub/in.csv"), &[]).is_err());
        assert!(open_within(Path::new("/dev/zero"), &["/".into()]).is_err());
    }
}
