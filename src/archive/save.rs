//! Saving a session: its objects first, its manifest last. Until the manifest is replaced, the archive has the session
//! as it was before.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use link::{Link, LinkError};
use model::{DataPath, SessionKey, SessionRecord};
use protocol::{
    frame::MAX_BODY,
    message::{CarryLimits, RuntimeName},
};
use sha2::{Digest, Sha256};
use tokio::{
    io::AsyncReadExt,
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};

use super::{
    Archive, Lookup,
    manifest::{self, FileRecord, Manifest, ObjectRecord, VariablesRecord, object_name},
    store::{StoreError, Writer},
};
use crate::marks::Mark;

/// Limits for exporting variables.
pub(super) const CARRY: CarryLimits =
    CarryLimits { each_bytes: 64 << 20, total_bytes: 128 << 20, each_ms: 3000, total_ms: 15_000 };

/// The number of pieces of files that are read ahead.
const AHEAD: usize = 4;

/// Why a session was not saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// The store failed.
    #[error("the archive: {0}")]
    Store(#[from] StoreError),
    /// The sandbox failed.
    #[error("the sandbox: {0}")]
    Link(#[from] LinkError),
    /// A file of this server could not be read.
    #[error("the state: {0}")]
    State(#[from] std::io::Error),
    /// The deadline has passed.
    #[error("there was not the time")]
    Late,
    /// The session is larger than all archived sessions of a caller may be.
    #[error("it has {bytes} bytes, and one client may have {most} (SANDBOX_ARCHIVE_CLIENT_LIMIT)")]
    TooLarge {
        /// Size of the session.
        bytes: u64,
        /// Limit of a caller.
        most: u64,
    },
    /// The disk of the archive's folder is nearly full.
    #[error("the disk has {free} bytes free, and {least} stay free (SANDBOX_MIN_FREE)")]
    DiskFull {
        /// Free bytes of the disk.
        free: u64,
        /// Bytes that stay free.
        least: u64,
    },
}

/// Marks a session and its workspace as being saved, until it is dropped. Callers of the session wait meanwhile.
pub(crate) type Saving = Vec<Mark<SessionKey>>;

/// A session that is being saved.
pub(crate) struct Save {
    archive: Archive,
    record: SessionRecord,
    key: SessionKey,
    manifest: Manifest,
    deadline: Instant,
    /// Objects that were begun, to be deleted if the save fails.
    written: Vec<String>,
    pub(crate) bytes: u64,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Archive {
    /// Marks a session as being saved: its callers wait until the returned value is dropped.
    pub(crate) fn begin_saving(&self, record: &SessionRecord) -> Saving {
        let keys = std::iter::once(record.key()).chain(record.workspace_key());
        keys.map(|key| self.0.saving.mark(key)).collect()
    }

    /// Begins to save a session, after waiting for its turn.
    ///
    /// # Errors
    /// If its turn does not come in time, or the disk is nearly full.
    pub(crate) async fn save(
        &self,
        record: SessionRecord,
        deadline: Instant,
    ) -> Result<Save, SaveError> {
        let turn = timeout_at(deadline, self.0.saves.clone().acquire_owned()).await;
        let permit = turn.map_err(|_| SaveError::Late)?.ok();
        self.check_free()?;
        let generation = uuid::Uuid::new_v4().simple().to_string();
        let (numbers_of, keep) = (self.numbers_of(), self.0.keep.as_secs());
        Ok(Save {
            archive: self.clone(),
            key: record.key(),
            manifest: Manifest::new(&record, &numbers_of, keep, generation),
            record,
            deadline,
            written: vec![],
            bytes: 0,
            _permit: permit,
        })
    }
}

impl Save {
    fn writer(&mut self, what: &str) -> Writer {
        let name = object_name(&self.key, &self.manifest.generation, what);
        self.written.push(name.clone());
        self.archive.store().write(&name)
    }

    async fn in_time<T, E: Into<SaveError>>(
        deadline: Instant,
        act: impl Future<Output = Result<T, E>>,
    ) -> Result<T, SaveError> {
        timeout_at(deadline, act).await.map_err(|_| SaveError::Late)?.map_err(Into::into)
    }

    /// Finishes an object if all of it was copied; otherwise discards it.
    async fn finish(
        deadline: Instant,
        writer: Writer,
        copied: Result<(), SaveError>,
    ) -> Result<(), SaveError> {
        match copied {
            Ok(()) => Self::in_time(deadline, writer.finish()).await,
            Err(error) => {
                writer.abandon().await;
                Err(error)
            }
        }
    }

    /// Saves all files.
    ///
    /// # Errors
    /// If the sandbox does not send a file, or the store does not accept it.
    pub(crate) async fn files(&mut self, link: &Link) -> Result<(), SaveError> {
        let deadline = self.deadline;
        let (entries, more) = Self::in_time(deadline, link.list(None)).await?;
        self.manifest.more_files = more;
        let paths = entries
            .into_iter()
            .filter_map(|entry| Some((DataPath::relative(&entry.path).ok()?, entry.stamp)));
        let paths: Vec<_> = paths.collect();
        if paths.is_empty() {
            return Ok(());
        }
        let mut writer = self.writer("files");
        let mut records = Vec::with_capacity(paths.len());
        let copied = Self::in_time(deadline, async {
            // In order, some ahead: a small file costs a round trip to the sandbox, and little else.
            let pieces = paths.clone().into_iter().enumerate().flat_map(|(n, (path, stamp))| {
                let starts = (0..stamp.size.max(1)).step_by(MAX_BODY);
                starts.map(move |at| (n, path.clone(), at, stamp.size))
            });
            let link = link.clone();
            let mut pieces = stream::iter(pieces)
                .map(move |(n, path, at, size)| {
                    let link = link.clone();
                    async move { Ok::<_, SaveError>((n, piece(&link, &path, at, size).await?)) }
                })
                .buffered(AHEAD)
                .boxed();
            let mut current: Option<(usize, Sha256, u64)> = None;
            while let Some(next) = pieces.next().await {
                let (n, bytes): (usize, Bytes) = next?;
                if current.as_ref().is_none_or(|(of, ..)| *of != n) {
                    records.extend(current.take().map(|it| record(&paths, it)));
                    current = Some((n, Sha256::new(), 0));
                }
                let (_, hash, size) = current.as_mut().expect("set above if it was `None`");
                hash.update(&bytes);
                *size += bytes.len() as u64;
                if !bytes.is_empty() {
                    writer.write(bytes).await?;
                }
            }
            records.extend(current.take().map(|it| record(&paths, it)));
            Ok::<_, SaveError>(())
        })
        .await;
        Self::finish(deadline, writer, copied).await?;
        self.bytes += records.iter().map(|file| file.size).sum::<u64>();
        self.manifest.files = records;
        Ok(())
    }

    /// Saves the Python variables that can be saved; none if the sandbox cannot export variables.
    ///
    /// # Errors
    /// If the store does not accept them, or the sandbox has ended.
    pub(crate) async fn variables(&mut self, link: &Link) -> Result<(), SaveError> {
        let deadline = self.deadline;
        let left = deadline.saturating_duration_since(Instant::now());
        let total = Duration::from_millis(CARRY.total_ms).min(left / 2);
        let limits = CarryLimits {
            total_ms: u64::try_from(total.as_millis()).unwrap_or(CARRY.total_ms),
            ..CARRY
        };
        let begun = Self::in_time(deadline, link.export(RuntimeName::PYTHON, limits)).await;
        let (done, carried) = match begun {
            Ok(begun) => begun,
            Err(SaveError::Link(LinkError::Refused(_))) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !done.live {
            return Ok(());
        }
        let mut writer = self.writer("variables");
        let (mut hash, mut at) = (Sha256::new(), 0);
        let copied = Self::in_time(deadline, async {
            while at < done.total {
                let bytes = link.exported(RuntimeName::PYTHON, at).await?;
                at += bytes.len() as u64;
                hash.update(&bytes);
                writer.write(bytes).await?;
            }
            Ok::<_, SaveError>(())
        })
        .await;
        Self::finish(deadline, writer, copied).await?;
        self.bytes += at;
        let object = ObjectRecord { size: at, sha256: hex::encode(hash.finalize()) };
        self.manifest.variables = Some(VariablesRecord { object, count: done.count, carried });
        Ok(())
    }

    /// Saves the session's runs.
    ///
    /// # Errors
    /// If the store does not accept them.
    pub(crate) async fn runs(&mut self, runs: Vec<u8>) -> Result<(), SaveError> {
        let (deadline, mut writer) = (self.deadline, self.writer("runs"));
        let size = runs.len() as u64;
        let object = ObjectRecord { size, sha256: hex::encode(Sha256::digest(&runs)) };
        let copied = Self::in_time(deadline, writer.write(runs.into())).await;
        Self::finish(deadline, writer, copied).await?;
        self.bytes += size;
        self.manifest.runs = Some(object);
        Ok(())
    }

    /// Records the languages whose variables are not saved.
    pub(crate) fn lose(&mut self, languages: Vec<String>) {
        self.manifest.languages_lost = languages;
    }

    /// Records the packages that were installed.
    pub(crate) fn packages(&mut self, packages: Vec<String>) {
        self.manifest.packages = packages;
    }

    /// Saves the exact state of a sandbox, which its backend has in this file.
    ///
    /// # Errors
    /// If the file cannot be read, or the store does not accept it.
    pub(crate) async fn state(&mut self, path: &Path) -> Result<(), SaveError> {
        let deadline = self.deadline;
        let file = std::fs::File::open(path)?;
        // The sandbox has locked the file until it has written it.
        let locked = tokio::task::spawn_blocking(move || file.lock_shared().map(|()| file));
        let file = Self::in_time(deadline, async { Ok::<_, SaveError>(locked.await) }).await?;
        let mut file = tokio::fs::File::from_std(file.map_err(std::io::Error::other)??);
        let mut writer = self.writer("state");
        let (mut hash, mut size) = (Sha256::new(), 0);
        let copied = Self::in_time(deadline, async {
            loop {
                let mut piece = Vec::with_capacity(MAX_BODY);
                let read = (&mut file).take(MAX_BODY as u64).read_to_end(&mut piece).await?;
                if read == 0 {
                    return Ok::<_, SaveError>(());
                }
                size += read as u64;
                hash.update(&piece);
                writer.write(piece.into()).await?;
            }
        })
        .await;
        Self::finish(deadline, writer, copied).await?;
        self.bytes += size;
        self.manifest.state = Some(ObjectRecord { size, sha256: hex::encode(hash.finalize()) });
        Ok(())
    }

    /// Whether there is nothing that a restore could restore or report as lost.
    pub(crate) fn is_empty(&self) -> bool {
        let Manifest { files, variables, state, runs, .. } = &self.manifest;
        let none = |object: &ObjectRecord| object.size == 0;
        files.is_empty()
            && runs.is_none()
            && state.as_ref().is_none_or(none)
            && variables.as_ref().is_none_or(|it| {
                it.carried.variables.is_empty()
                    && it.carried.imports.is_empty()
                    && it.carried.lost.is_empty()
            })
    }

    /// Writes the manifest in place of the previous one, and deletes the previous save's objects.
    ///
    /// # Errors
    /// If the caller's limit is exceeded, or the store fails. The previous save is still there then.
    pub(crate) async fn commit(mut self) -> Result<u64, SaveError> {
        let (archive, deadline, key) = (self.archive.clone(), self.deadline, self.key.clone());
        let done = Self::in_time(deadline, async {
            let before = archive.manifest(&key).await;
            archive.make_room(&self.record, self.bytes).await?;
            let store = archive.store();
            let url = archive.url_name(&self.record.session, self.record.number);
            store.put(&url, key.as_str().into()).await?;
            if let Some(workspace) = &self.record.workspace_key() {
                let name = format!("workspaces/{}", workspace.as_str());
                store.put(&name, self.record.session.as_str().into()).await?;
            }
            store.put(&manifest::name(&key), self.manifest.to_bytes(archive.key())).await?;
            archive.add_listed(&self.record).await;
            Ok::<_, SaveError>(before)
        })
        .await;
        match done {
            Ok(before) => {
                self.written.clear();
                if let Lookup::Found(before) = before {
                    // The sweep deletes the objects that cannot be deleted now.
                    for what in manifest::OBJECTS {
                        let name = object_name(&self.key, &before.generation, what);
                        let _ = Self::in_time(self.deadline, archive.store().delete(&name)).await;
                    }
                    let failed = manifest::failed_name(&self.key);
                    let _ = Self::in_time(self.deadline, archive.store().delete(&failed)).await;
                }
                Ok(self.bytes)
            }
            Err(error) => {
                self.give_up().await;
                Err(error)
            }
        }
    }

    /// Deletes the objects that were written.
    pub(crate) async fn give_up(mut self) {
        for name in std::mem::take(&mut self.written) {
            let _ = self.archive.store().delete(&name).await;
        }
    }
}

fn record(
    paths: &[(DataPath, protocol::message::Stamp)],
    (n, hash, size): (usize, Sha256, u64),
) -> FileRecord {
    let (path, stamp) = &paths[n];
    FileRecord {
        path: path.as_str().to_owned(),
        size,
        sha256: hex::encode(hash.finalize()),
        modified_ns: stamp.mtime_ns,
    }
}

/// Reads a piece of a file of this size; empty if the file no longer exists, or is no file any more.
async fn piece(link: &Link, path: &DataPath, at: u64, size: u64) -> Result<Bytes, SaveError> {
    if size == 0 {
        return Ok(Bytes::new());
    }
    match link.get(&path.clone().into(), at, MAX_BODY).await {
        Ok((_, bytes)) => Ok(bytes),
        Err(LinkError::Refused(_)) => Ok(Bytes::new()),
        Err(error) => Err(error.into()),
    }
}
