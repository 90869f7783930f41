//! Saving a session: its objects first, its manifest last.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use model::{DataPath, SessionKey};
use protocol::{
    frame::MAX_BODY,
    message::{CarryLimits, RuntimeName},
};
use sha2::{Digest, Sha256};
use tokio::{
    io::AsyncReadExt,
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, timeout_at},
};

use super::{
    Archive, Lookup,
    manifest::{self, FileRecord, Identity, Manifest, ObjectRecord, VariablesRecord, object_name},
    store::{StoreError, Writer},
};
use crate::link::{Link, LinkError};

/// What writing variables down may take.
pub(super) const CARRY: CarryLimits =
    CarryLimits { each_bytes: 64 << 20, total_bytes: 128 << 20, each_ms: 3000, total_ms: 15_000 };

/// Pieces of a file that are on their way at a time.
const AHEAD: usize = 4;

/// Why a session was not saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// The store did not take it.
    #[error("the archive: {0}")]
    Store(#[from] StoreError),
    /// The sandbox did not give it.
    #[error("the sandbox: {0}")]
    Link(#[from] LinkError),
    /// A file of this server could not be read.
    #[error("the state: {0}")]
    State(#[from] std::io::Error),
    /// There was not the time.
    #[error("there was not the time")]
    Late,
    /// It is more than its caller may have there.
    #[error("it has {bytes} bytes, and one client may have {most} (SANDBOX_ARCHIVE_CLIENT_LIMIT)")]
    TooLarge {
        /// Of the session.
        bytes: u64,
        /// Of a caller.
        most: u64,
    },
    /// The disk of its folder is nearly full.
    #[error("the disk has {free} bytes free, and {least} stay free (SANDBOX_MIN_FREE)")]
    DiskFull {
        /// Bytes.
        free: u64,
        /// Bytes.
        least: u64,
    },
}

/// Says that a session is being saved, until it is dropped: whoever comes for it meanwhile waits.
pub(crate) struct Saving {
    archive: Archive,
    keys: Vec<SessionKey>,
    _ends: watch::Sender<()>,
}

impl Drop for Saving {
    fn drop(&mut self) {
        let mut saving = self.archive.0.saving.lock();
        for key in &self.keys {
            saving.remove(key);
        }
    }
}

/// A session on its way into the archive.
pub(crate) struct Save {
    archive: Archive,
    identity: Identity,
    key: SessionKey,
    manifest: Manifest,
    deadline: Instant,
    /// Objects that were begun, to be deleted if it comes to nothing.
    written: Vec<String>,
    pub(crate) bytes: u64,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Archive {
    /// Has others wait for this session from now on.
    pub(crate) fn begin_saving(&self, identity: &Identity) -> Saving {
        let keys: Vec<_> =
            std::iter::once(identity.key()).chain(identity.workspace.clone()).collect();
        let (ends, receiver) = watch::channel(());
        let mut saving = self.0.saving.lock();
        for key in &keys {
            saving.insert(key.clone(), receiver.clone());
        }
        drop(saving);
        Saving { archive: self.clone(), keys, _ends: ends }
    }

    /// Begins to save a session; waits for its turn.
    ///
    /// # Errors
    /// If that does not come in time.
    pub(crate) async fn save(
        &self,
        identity: Identity,
        deadline: Instant,
    ) -> Result<Save, SaveError> {
        let turn = timeout_at(deadline, self.0.saves.clone().acquire_owned()).await;
        let permit = turn.map_err(|_| SaveError::Late)?.ok();
        self.check_free()?;
        let generation = uuid::Uuid::new_v4().simple().to_string();
        let (numbers_of, keep) = (self.numbers_of(), self.0.keep.as_secs());
        Ok(Save {
            archive: self.clone(),
            key: identity.key(),
            manifest: Manifest::new(&identity, &numbers_of, keep, generation),
            identity,
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

    /// The object is there when this returns; nothing of it, if not all of it was copied.
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
    /// If the sandbox does not give one, or the store does not take it.
    pub(crate) async fn files(&mut self, link: &Link) -> Result<(), SaveError> {
        let deadline = self.deadline;
        let (entries, more) = Self::in_time(deadline, link.list()).await?;
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
            // In order, some ahead: small files cost the way to the sandbox and back, and little else.
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
                let (_, hash, size) = current.as_mut().expect("just made");
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

    /// Saves what can be saved of Python's variables. A sandbox that cannot write them down has none that are kept.
    ///
    /// # Errors
    /// If the store does not take them, or the sandbox has gone.
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

    /// Says which languages there are variables of that are not saved.
    pub(crate) fn lose(&mut self, languages: Vec<String>) {
        self.manifest.languages_lost = languages;
    }

    /// Says which packages were installed.
    pub(crate) fn packages(&mut self, packages: Vec<String>) {
        self.manifest.packages = packages;
    }

    /// Saves exactly what a sandbox was, as its backend keeps it in this file.
    ///
    /// # Errors
    /// If the file cannot be read, or the store does not take it.
    pub(crate) async fn state(&mut self, path: &Path) -> Result<(), SaveError> {
        let deadline = self.deadline;
        let mut file = tokio::fs::File::open(path).await?;
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

    /// There is nothing that anybody would miss.
    pub(crate) fn is_empty(&self) -> bool {
        let Manifest { files, variables, state, .. } = &self.manifest;
        let none = |object: &ObjectRecord| object.size == 0;
        files.is_empty()
            && state.as_ref().is_none_or(none)
            && variables.as_ref().is_none_or(|it| {
                it.carried.variables.is_empty()
                    && it.carried.imports.is_empty()
                    && it.carried.lost.is_empty()
            })
    }

    /// Puts the manifest in the place of the one before, whose objects are deleted.
    ///
    /// # Errors
    /// If the store does not take it: then what was there before is still there.
    pub(crate) async fn commit(mut self) -> Result<u64, SaveError> {
        let (archive, deadline, key) = (self.archive.clone(), self.deadline, self.key.clone());
        let done = Self::in_time(deadline, async {
            let before = archive.manifest(&key).await;
            archive.make_room(&self.identity, self.bytes).await?;
            let store = archive.store();
            let url = archive.url_name(&self.identity.session, self.identity.number);
            store.put(&url, key.as_str().into()).await?;
            if let Some(workspace) = &self.identity.workspace {
                let name = format!("workspaces/{}", workspace.as_str());
                store.put(&name, self.identity.session.as_str().into()).await?;
            }
            store.put(&manifest::name(&key), self.manifest.to_bytes(archive.key())).await?;
            archive.add_listed(&self.identity).await;
            Ok::<_, SaveError>(before)
        })
        .await;
        match done {
            Ok(before) => {
                self.written.clear();
                if let Lookup::Found(before) = before {
                    // What cannot be deleted now, the sweep finds.
                    for what in ["files", "variables", "state"] {
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

    /// Leaves nothing of it.
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

/// A piece of a file of this size; nothing of one that is gone by now, or is no file any more.
async fn piece(link: &Link, path: &DataPath, at: u64, size: u64) -> Result<Bytes, SaveError> {
    if size == 0 {
        return Ok(Bytes::new());
    }
    match link.get(path, at, MAX_BODY).await {
        Ok((_, bytes)) => Ok(bytes),
        Err(LinkError::Refused(_)) => Ok(Bytes::new()),
        Err(error) => Err(error.into()),
    }
}
