//! Artifacts as files of the host, for clients that run there.
//!
//! Files from a sandbox are not trusted on the host either: [`rule`] says which names may be written at all, [`folder`]
//! follows no link, no file is executable, and their total size is limited.

mod folder;
mod rule;

use std::{
    fmt, io,
    path::{self, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use config::Config;
use futures::TryStreamExt;
use model::{Artifact, SessionId};
use tokio::io::AsyncWriteExt;

use self::folder::Folder;
use crate::{
    session::FileReader,
    sessions::{Open, Sessions},
};

/// The folder that a server writes artifacts to, and the bytes that it may still write.
#[derive(Debug)]
pub(crate) struct Export {
    /// The folder as it is set, and as an absolute path for clients.
    setting: PathBuf,
    folder: PathBuf,
    /// Bytes that the whole server may still write until it ends.
    left: AtomicU64,
    /// Maximum number of bytes of a file: no file in a sandbox has more, whatever size is reported.
    longest: u64,
}

/// Why a file was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotExported {
    /// A part of its path begins with a dot.
    Hidden,
    /// A part of its path is not the same name on every file system.
    Name,
    /// The file's type is not one that people view.
    Type,
    /// A folder on its path is a link.
    Link,
    /// The limit of the settings is reached.
    Limit,
    /// The file could not be read or written.
    Failed,
}

impl fmt::Display for NotExported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hidden => "hidden files and folders are not exported",
            Self::Name => "names with unusual characters are not exported",
            Self::Type => "files of this type are not exported",
            Self::Link => "the export folder, or a folder in it, is a link",
            Self::Limit => "the limit of exported files (SANDBOX_EXPORT_LIMIT) is reached",
            Self::Failed => "the file could not be written",
        })
    }
}

/// Bytes that a file or a folder uses on a disk besides its content.
const BLOCK: u64 = 4096;

impl Export {
    /// The export to the folder of these settings, if they name one.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let setting = config.export_dir.clone()?;
        Some(Self {
            folder: path::absolute(&setting).ok()?,
            setting,
            left: AtomicU64::new(config.export_limit),
            longest: config.data_limit,
        })
    }

    /// Writes the files below `folder/<session>`. Returns the path of each file, or why it was not written, in the
    /// order of the artifacts.
    ///
    /// The session's folder separates files that a program has named from the user's own files.
    pub(crate) async fn all(
        &self,
        sessions: &Sessions,
        id: &SessionId,
        artifacts: &[Artifact],
    ) -> Vec<Result<PathBuf, NotExported>> {
        let mut written = vec![];
        for artifact in artifacts {
            written.push(self.one(sessions, id, artifact).await);
        }
        written
    }

    async fn one(
        &self,
        sessions: &Sessions,
        id: &SessionId,
        artifact: &Artifact,
    ) -> Result<PathBuf, NotExported> {
        let path = artifact.path.as_str();
        rule::allows(path)?;
        let parts = 1 + u64::try_from(path.split('/').count()).unwrap_or(u64::MAX);
        self.take(BLOCK.saturating_mul(parts))?;
        let to = Path::new(id.as_str()).join(path);
        let mut taken = 0;
        let written = async {
            let opened = sessions.perform(id, Open { path: artifact.path.clone().into() }).await;
            self.write(opened.map_err(io::Error::other)?, &to, &mut taken).await
        };
        let written = written.await;
        if written.is_err() {
            // The file was removed, so its bytes are returned to the limit.
            self.left.fetch_add(taken, Ordering::Relaxed);
        }
        match written {
            Ok(()) => Ok(self.folder.join(to)),
            Err(Failure::Limit) => Err(NotExported::Limit),
            Err(Failure::Link) => Err(NotExported::Link),
            Err(Failure::Io(error)) => {
                // Without the message, which names files.
                tracing::warn!(session_id = %id, error = %error.kind(), "artifact not exported");
                Err(NotExported::Failed)
            }
        }
    }

    /// `taken` counts the bytes that were taken from the limit.
    async fn write(&self, reader: FileReader, to: &Path, taken: &mut u64) -> Result<(), Failure> {
        // Counts the bytes that arrive, not the reported size.
        write_whole(reader, &self.setting, to, |bytes| {
            if *taken + bytes > self.longest {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
            }
            self.take(bytes).map_err(|_| Failure::Limit)?;
            *taken += bytes;
            Ok(())
        })
        .await
    }

    fn take(&self, bytes: u64) -> Result<(), NotExported> {
        let less = |left: u64| left.checked_sub(bytes);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(drop).map_err(|_| NotExported::Limit)
    }
}

/// Writes a file of a session to this path below a folder of the host: completely or not at all, and through no link
/// below the folder.
///
/// # Errors
/// If the file cannot be read or written, or a folder on its path is a link.
pub(crate) async fn save(reader: FileReader, folder: &Path, to: &Path) -> io::Result<()> {
    let written = write_whole(reader, &path::absolute(folder)?, to, |_| Ok(())).await;
    written.map_err(|failure| match failure {
        Failure::Io(error) => error,
        Failure::Link => io::Error::other("a folder on its path is a link"),
        Failure::Limit => io::ErrorKind::FileTooLarge.into(),
    })
}

/// Writes the file under a temporary name first. `allow` is called with the number of bytes of each piece.
async fn write_whole(
    reader: FileReader,
    folder: &Path,
    to: &Path,
    mut allow: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (folder, below) = (folder.to_owned(), to.parent().unwrap_or(to).to_owned());
    let made = move || Folder::of_setting(&folder)?.enter(&below)?.file();
    let (file, passing) = tokio::task::spawn_blocking(made).await.map_err(io::Error::other)??;
    let mut file = tokio::fs::File::from_std(file);
    let mut pieces = std::pin::pin!(reader.stream());
    while let Some(piece) = pieces.try_next().await.map_err(io::Error::other)? {
        allow(piece.len() as u64)?;
        file.write_all(&piece).await?;
    }
    file.flush().await?;
    passing.keep(Path::new(to.file_name().unwrap_or_default()))?;
    Ok(())
}

#[derive(Debug)]
enum Failure {
    Limit,
    Link,
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}
