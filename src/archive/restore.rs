//! Restoring a session: its files and variables into a new sandbox, or its exact state into a file for an engine. It
//! changes nothing in the archive. Each object is compared with its hash in the manifest.

use std::{path::Path, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream::FuturesUnordered};
use link::{Link, LinkError};
use model::{DataPath, Existing, SessionKey};
use protocol::{
    frame::MAX_BODY,
    message::{Carried, CarryLimits, RuntimeName},
};
use sha2::{Digest, Sha256};
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Archive,
    manifest::{Manifest, ObjectRecord},
    save::CARRY,
    store::StoreError,
};

/// Time limit for restoring a session.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for reading the runs of a session: a caller or viewer waits for them.
const RUNS_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of small files that are sent at a time.
const AHEAD: usize = 8;

/// The result of restoring a session into a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    pub(crate) files: usize,
    /// Files that are missing, or differ from what was saved.
    pub(crate) files_lost: usize,
    /// The variables, if any were saved.
    pub(crate) variables: Option<Carried>,
    /// Whether the saved variables are damaged.
    pub(crate) variables_damaged: bool,
    /// Whether the exact state was restored.
    pub(crate) is_exact: bool,
    /// Whether the archive could not be read to the end.
    pub(crate) unreachable: bool,
}

/// The outcome of restoring a session, for its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Restored {
    /// The session was restored, to this extent.
    Brought {
        /// Time of the save, in seconds since the epoch.
        saved_at: i64,
        /// Files that were restored.
        files: usize,
        /// Files that were lost.
        files_lost: usize,
        /// Python variables that were restored, and those that were lost.
        variables: Carried,
        /// Whether the saved variables are damaged.
        variables_damaged: bool,
        /// Whether the exact state was restored.
        is_exact: bool,
        /// Whether the archive could not be read to the end.
        unreachable: bool,
        /// Whether a later save failed.
        is_outdated: bool,
        /// Languages whose variables were lost.
        languages_lost: Vec<String>,
        /// Packages that were installed, and are not restored.
        packages_lost: Vec<String>,
    },
    /// The archived data cannot be used.
    Damaged,
    /// The archive could not be reached.
    Unreachable,
}

impl Restored {
    pub(crate) fn new(manifest: &Manifest, brought: Brought) -> Self {
        // Variables that could not be saved are lost, too.
        let mut variables = brought.variables.unwrap_or_default();
        if !brought.is_exact
            && let Some(saved) = &manifest.variables
        {
            variables.lost.extend(saved.carried.lost.iter().cloned());
            variables.more_lost = variables.more_lost.saturating_add(saved.carried.more_lost);
        }
        Self::Brought {
            saved_at: manifest.saved_at,
            files: brought.files,
            files_lost: brought.files_lost + usize::from(manifest.more_files),
            variables,
            variables_damaged: brought.variables_damaged,
            is_exact: brought.is_exact,
            unreachable: brought.unreachable,
            is_outdated: manifest.is_outdated,
            languages_lost: if brought.is_exact { vec![] } else { manifest.languages_lost.clone() },
            packages_lost: if brought.is_exact { vec![] } else { manifest.packages.clone() },
        }
    }
}

/// Why a part of a session was not restored.
enum Failed {
    /// The archived data differs from what was saved.
    Damaged,
    Unreachable,
    /// The sandbox has ended.
    Link(LinkError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Missing | StoreError::TooLarge => Self::Damaged,
            StoreError::Slow | StoreError::Failed(_) => Self::Unreachable,
        }
    }
}

impl From<LinkError> for Failed {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl Archive {
    /// Restores files and variables over the link to a new sandbox. Files and variables that cannot be restored are
    /// left out and counted.
    ///
    /// # Errors
    /// If the sandbox has ended.
    pub(crate) async fn restore(
        &self,
        key: &SessionKey,
        manifest: &Manifest,
        link: &Link,
    ) -> Result<Brought, LinkError> {
        let deadline = Instant::now() + RESTORE_TIMEOUT;
        let mut brought = Brought::default();
        let files = self.restore_files(key, manifest, link, &mut brought);
        match timeout_at(deadline, files).await {
            Ok(Ok(()) | Err(Failed::Damaged)) => {}
            Ok(Err(Failed::Link(error))) => return Err(error),
            Ok(Err(Failed::Unreachable)) | Err(_) => brought.unreachable = true,
        }
        brought.files_lost = manifest.files.len().saturating_sub(brought.files);
        if brought.unreachable {
            return Ok(brought);
        }
        let variables = self.restore_variables(key, manifest, link);
        match timeout_at(deadline, variables).await {
            Ok(Ok(variables)) => brought.variables = variables,
            Ok(Err(Failed::Damaged)) => brought.variables_damaged = true,
            Ok(Err(Failed::Link(error))) => return Err(error),
            Ok(Err(Failed::Unreachable)) | Err(_) => brought.unreachable = true,
        }
        Ok(brought)
    }

    async fn restore_files(
        &self,
        key: &SessionKey,
        manifest: &Manifest,
        link: &Link,
        brought: &mut Brought,
    ) -> Result<(), Failed> {
        let all: u64 = manifest.files.iter().map(|file| file.size).sum();
        let mut source = if all > 0 {
            let stream = self.store().stream(&manifest.object(key, "files"), 0..all).await?;
            Some(Source { stream, rest: Bytes::new() })
        } else {
            None
        };
        let mut small = FuturesUnordered::new();
        for file in &manifest.files {
            let Ok(path) = DataPath::relative(&file.path) else { return Err(Failed::Damaged) };
            let mut left = usize::try_from(file.size).map_err(|_| Failed::Damaged)?;
            let (mut hash, mut upload) = (Sha256::new(), link.upload(&path, Existing::Replace));
            loop {
                let piece = match &mut source {
                    Some(source) if left > 0 => source.take(left.min(MAX_BODY)).await,
                    _ => Ok(Bytes::new()),
                };
                let piece = match piece {
                    Ok(piece) => piece,
                    Err(error) => {
                        if upload.sent() > 0 {
                            upload.abandon().await?;
                        }
                        return Err(error);
                    }
                };
                left -= piece.len();
                hash.update(&piece);
                if left > 0 {
                    if refused(upload.put(piece, false).await)? {
                        // There is no room for the file: skip the rest of its bytes.
                        while left > 0
                            && let Some(source) = &mut source
                        {
                            left -= source.take(left.min(MAX_BODY)).await?.len();
                        }
                        break;
                    }
                    continue;
                }
                if hex::encode(hash.finalize()) != file.sha256 {
                    if upload.sent() > 0 {
                        upload.abandon().await?;
                    }
                } else if upload.sent() == 0 {
                    small.push(async move { upload.put(piece, true).await });
                } else if !refused(upload.put(piece, true).await)? {
                    brought.files += 1;
                }
                break;
            }
            while small.len() >= AHEAD {
                let Some(done) = small.next().await else { break };
                brought.files += usize::from(!refused(done)?);
            }
        }
        while let Some(done) = small.next().await {
            brought.files += usize::from(!refused(done)?);
        }
        Ok(())
    }

    async fn restore_variables(
        &self,
        key: &SessionKey,
        manifest: &Manifest,
        link: &Link,
    ) -> Result<Option<Carried>, Failed> {
        let Some(saved) = manifest.variables.as_ref().filter(|saved| saved.object.size > 0) else {
            return Ok(None);
        };
        let bytes = self
            .whole(&manifest.object(key, "variables"), &saved.object, CARRY.total_bytes)
            .await?;
        let limits = CarryLimits { total_ms: CARRY.total_ms * 2, ..CARRY };
        match link.import(RuntimeName::PYTHON, bytes, saved.count, limits).await {
            Ok(carried) => Ok(Some(carried)),
            Err(LinkError::Refused(_)) => Err(Failed::Damaged),
            Err(error) => Err(error.into()),
        }
    }

    /// The runs of a session, of at most `most` bytes; `None` if none were saved, or those that were cannot be used.
    pub(crate) async fn runs(
        &self,
        key: &SessionKey,
        manifest: &Manifest,
        most: u64,
    ) -> Option<Bytes> {
        let object = manifest.runs.as_ref()?;
        let name = manifest.object(key, "runs");
        match timeout(RUNS_TIMEOUT, self.whole(&name, object, most)).await {
            Ok(Ok(runs)) => return Some(runs),
            Ok(Err(Failed::Damaged)) => tracing::warn!("archived runs are damaged, and left out"),
            _ => tracing::warn!("archived runs cannot be read now, and are left out"),
        }
        None
    }

    /// Reads a whole object, if it is what was saved and has at most `most` bytes.
    async fn whole(&self, name: &str, object: &ObjectRecord, most: u64) -> Result<Bytes, Failed> {
        if object.size > most {
            return Err(Failed::Damaged);
        }
        let mut stream = self.store().stream(name, 0..object.size).await?;
        let mut bytes = BytesMut::new();
        while let Some(piece) = stream.next().await {
            bytes.extend_from_slice(&piece?);
        }
        let is_it = bytes.len() as u64 == object.size
            && hex::encode(Sha256::digest(&bytes)) == object.sha256;
        if is_it { Ok(bytes.freeze()) } else { Err(Failed::Damaged) }
    }

    /// Restores an exact state into this file. Returns false if that fails; then the file does not exist.
    pub(crate) async fn restore_state(
        &self,
        key: &SessionKey,
        manifest: &Manifest,
        to: &Path,
    ) -> bool {
        let Some(object) = &manifest.state else { return false };
        let fetched = timeout_at(Instant::now() + RESTORE_TIMEOUT, async {
            let mut stream =
                self.store().stream(&manifest.object(key, "state"), 0..object.size).await?;
            let mut file = tokio::fs::File::create(to).await.map_err(StoreError::from)?;
            let (mut hash, mut size) = (Sha256::new(), 0);
            while let Some(piece) = stream.next().await {
                let piece = piece?;
                hash.update(&piece);
                size += piece.len() as u64;
                file.write_all(&piece).await.map_err(StoreError::from)?;
            }
            file.flush().await.map_err(StoreError::from)?;
            Ok::<_, StoreError>(
                size == object.size && hex::encode(hash.finalize()) == object.sha256,
            )
        });
        let is_whole = matches!(fetched.await, Ok(Ok(true)));
        if !is_whole {
            let _ = tokio::fs::remove_file(to).await;
        }
        is_whole
    }
}

/// Returns true if the agent refused the request: for example a file for which there is no room.
fn refused<T>(done: Result<T, LinkError>) -> Result<bool, Failed> {
    match done {
        Ok(_) => Ok(false),
        Err(LinkError::Refused(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// An object's bytes, in pieces of any size.
struct Source<S> {
    stream: S,
    rest: Bytes,
}

impl<S: Stream<Item = Result<Bytes, StoreError>> + Unpin> Source<S> {
    /// Takes the next `len` bytes. Fails if the object ends before.
    async fn take(&mut self, len: usize) -> Result<Bytes, Failed> {
        if self.rest.len() >= len {
            return Ok(self.rest.split_to(len));
        }
        let mut bytes = BytesMut::with_capacity(len);
        bytes.extend_from_slice(&std::mem::take(&mut self.rest));
        while bytes.len() < len {
            let piece = self.stream.next().await.ok_or(Failed::Damaged)?;
            let mut piece = piece?;
            let wanted = (len - bytes.len()).min(piece.len());
            bytes.extend_from_slice(&piece.split_to(wanted));
            self.rest = piece;
        }
        Ok(bytes.freeze())
    }
}
