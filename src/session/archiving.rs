//! A session and the archive: the restore before its first command, and the save when it ends.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use link::{Link, LinkError};
use model::{Artifact, DataPath, SessionRecord};
use parking_lot::Mutex;
use protocol::message::RuntimeName;
use tokio::{sync::watch, time::Instant as Deadline};

use super::{
    History,
    events::{EndReason, SessionEvent},
    history::{MAX_RECORD_BYTES, Recorded},
    results::Results,
    setup::Setup,
};
use crate::archive::{Archive, Brought, Manifest, Restored, Save, SaveError, Saving};

/// Longest time that saving a session may take while the server runs.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// The part of the server's time to end that is reserved for ending its sandboxes.
const DISPOSE_TIME: Duration = Duration::from_secs(3);

/// The note that a session was restored, until a result has reached its caller.
#[derive(Debug, Default)]
pub(crate) struct News(Mutex<Option<Restored>>);

impl News {
    /// The note that has not reached the caller yet.
    pub(crate) fn get(&self) -> Option<Restored> {
        self.0.lock().clone()
    }

    /// Records that the note has reached the caller.
    pub(crate) fn told(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn set(&self, restored: Restored) {
        *self.0.lock() = Some(restored);
    }
}

/// Facts about a session that may be archived.
#[derive(Debug, Default)]
pub(crate) struct Archived {
    /// Whether the archive may have a version of the session, although the session began without one.
    pub(crate) may_be: bool,
    /// Whether the session began without its archived version, or with a part of it, because the archive did not
    /// answer.
    pub(crate) began_without: AtomicBool,
    /// The note for the session's caller, if the session was restored.
    pub(crate) news: News,
    /// Packages that were installed in the session.
    pub(crate) packages: Mutex<Vec<String>>,
}

/// A session's connection to the archive.
pub(crate) struct Archiving {
    pub(crate) archive: Archive,
    pub(crate) of: Arc<Archived>,
    /// The session's runs and their results, which are saved with it.
    pub(crate) history: watch::Receiver<History>,
    pub(crate) results: Results,
    /// The archived version that the session begins with.
    pub(crate) restore: Option<Box<Manifest>>,
    /// Time that the server has to end.
    pub(crate) shutdown_timeout: Duration,
}

/// The result of a restore, for the driver.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Languages that have variables.
    pub(super) remembering: Vec<RuntimeName>,
}

/// Copies an exact state to where the backend finds it, before the sandbox starts. Returns whether it is there.
pub(super) async fn bring_state(setup: &Setup) -> bool {
    let Some(Archiving { archive, restore: Some(manifest), .. }) = &setup.archiving else {
        return false;
    };
    let (Some((saved, saved_as)), Some(record)) = (setup.saved(), setup.record.get()) else {
        return false;
    };
    let (key, path) = (record.key(), saved.path(saved_as));
    let brought = archive.restore_state(&key, manifest, &path);
    let brought = setup.shutdown.run_until_cancelled(brought).await.unwrap_or_default();
    if brought && saved.has(saved_as) {
        return true;
    }
    saved.forget(saved_as);
    false
}

/// Restores the rest over the link, and returns the result.
///
/// # Errors
/// If the sandbox has ended.
pub(super) async fn bring(setup: &Setup, link: &Link, has_state: bool) -> Result<Begun, LinkError> {
    let Some(archiving) = &setup.archiving else { return Ok(Begun::default()) };
    let (Some(manifest), Some(record)) = (&archiving.restore, setup.record.get()) else {
        return Ok(Begun::default());
    };
    let begun = Instant::now();
    let brought = if has_state {
        Brought { files: manifest.files.len(), is_exact: true, ..Brought::default() }
    } else {
        let key = record.key();
        let restore = archiving.archive.restore(&key, manifest, link);
        setup.shutdown.run_until_cancelled(restore).await.unwrap_or(Err(LinkError::Closed))?
    };
    archiving.of.began_without.store(brought.unreachable, Ordering::Relaxed);
    recall(setup, archiving, manifest, link, has_state).await;
    let outcome = match &brought {
        it if it.unreachable => "unreachable",
        it if it.files_lost > 0 || it.variables_damaged => "damaged",
        _ => "ok",
    };
    let bytes = manifest.files.iter().map(|file| file.size).sum();
    let took = begun.elapsed();
    setup.observers.notify(&SessionEvent::Archived { action: "restore", outcome, bytes, took });
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let variables =
        brought.variables.as_ref().map_or(0, |it| it.variables.len() + it.imports.len());
    tracing::info!(
        session_id = %setup.id, outcome, files = brought.files, variables, bytes, took_ms,
        "session restored from the archive"
    );
    let has_variables = variables > 0 || brought.is_exact && manifest.variables.is_some();
    let remembering = if has_variables { vec![RuntimeName::PYTHON] } else { vec![] };
    archiving.of.news.set(Restored::new(manifest, brought));
    Ok(Begun { remembering })
}

/// Restores the runs of a session. Without them, the session is as good as with them, so that a failure is only logged.
async fn recall(
    setup: &Setup,
    archiving: &Archiving,
    manifest: &Manifest,
    link: &Link,
    has_state: bool,
) {
    let Some(record) = setup.record.get() else { return };
    let key = record.key();
    let runs = archiving.archive.runs(&key, manifest, MAX_RECORD_BYTES);
    let Some(Some(runs)) = setup.shutdown.run_until_cancelled(runs).await else { return };
    let mut recorded = Recorded::read(&runs);
    if !has_state && let Ok((entries, _)) = link.list(None).await {
        // A file that was restored is the one that its run has made, at a new time.
        let saved: HashMap<_, _> =
            manifest.artifacts().into_iter().map(|it| (it.path.clone(), it)).collect();
        let now = entries.into_iter().filter_map(|entry| {
            let was = saved.get(&DataPath::relative(&entry.path).ok()?)?;
            (was.size_bytes == entry.stamp.size).then(|| (was.clone(), entry.stamp.mtime_ns))
        });
        recorded.adjust(&now.collect::<HashMap<Artifact, i64>>());
    }
    let max_bytes = archiving.history.borrow().max_bytes();
    recorded.add_results(&archiving.results, max_bytes);
    setup.observers.notify(&SessionEvent::Recalled(&recorded));
}

/// A session that is being saved.
pub(super) struct Ending {
    save: Result<Save, SaveError>,
    begun: Instant,
    wants_state: bool,
    /// Held until the save is over: calls for the session wait for it.
    _saving: Saving,
}

/// Begins to save a session, if it is saved when it ends for this reason. Must be called before its name is free.
pub(super) fn announce(setup: &Setup, reason: EndReason) -> Option<Announced> {
    let archiving = setup.archiving.as_ref()?;
    let record = setup.record.get()?.clone();
    let limit = match reason {
        EndReason::Expired | EndReason::Evicted => SAVE_TIMEOUT,
        EndReason::Shutdown => archiving.shutdown_timeout.saturating_sub(DISPOSE_TIME),
        // A closed session is deleted, and the state of a dead one is lost.
        EndReason::Closed | EndReason::Died => return None,
    };
    let saving = archiving.archive.begin_saving(&record);
    Some((saving, record, Deadline::now() + limit))
}

/// A session that is to be saved, and the deadline.
pub(super) type Announced = (Saving, SessionRecord, Deadline);

/// Saves what comes over the link. `languages` are those that are known to have variables; a session with `had_state`
/// may have others.
pub(super) async fn save(
    setup: &Setup,
    (saving, record, deadline): Announced,
    link: Option<&Link>,
    (languages, had_state): (Vec<String>, bool),
) -> Option<Ending> {
    let archiving = setup.archiving.as_ref()?;
    let begun = Instant::now();
    let path = setup.saved().map(|(saved, key)| saved.path(key));
    let wants_state = path.is_some() && (had_state || !languages.is_empty());
    let save = async {
        let mut save = archiving.archive.save(record, deadline).await?;
        let saved = async {
            if let Some(link) = link {
                save.files(link).await?;
                // If the backend saves the sandbox's state, variables are not saved one by one.
                if path.is_none() && languages.iter().any(|it| it == RuntimeName::PYTHON.as_str()) {
                    save.variables(link).await?;
                }
            }
            save.packages(archiving.of.packages.lock().clone());
            let history = archiving.history.borrow().clone();
            if let Some(runs) = Recorded::write(&history, &archiving.results) {
                save.runs(runs).await?;
            }
            if path.is_none() {
                let others = languages.into_iter();
                save.lose(others.filter(|it| it != RuntimeName::PYTHON.as_str()).collect());
            }
            Ok::<_, SaveError>(())
        }
        .await;
        match saved {
            Ok(()) => Ok(save),
            Err(error) => {
                save.give_up().await;
                Err(error)
            }
        }
    }
    .await;
    Some(Ending { save, begun, wants_state, _saving: saving })
}

impl Ending {
    /// Whether the state that the sandbox saves when it ends goes to the archive as well.
    pub(super) fn wants_state(&self) -> bool {
        self.wants_state && self.save.is_ok()
    }

    /// Deletes the session's data, because the session was closed meanwhile.
    pub(super) async fn forget(self, setup: &Setup) {
        if let Ok(save) = self.save {
            save.give_up().await;
        }
        forget(setup).await;
    }

    /// Saves the state that the ended sandbox has left, and commits the save.
    pub(super) async fn finish(self, setup: &Setup) {
        let Self { save, begun, wants_state, _saving } = self;
        let Some(archiving) = &setup.archiving else { return };
        let done = async {
            let mut save = save?;
            if wants_state
                && let Some((saved, key)) = setup.saved().filter(|(saved, key)| saved.has(key))
                && let Err(error) = save.state(&saved.path(key)).await
            {
                save.give_up().await;
                return Err(error);
            }
            if save.is_empty() {
                save.give_up().await;
                return Ok(None);
            }
            if archiving.of.began_without.load(Ordering::Relaxed)
                && let Some(record) = setup.record.get()
                && archiving.archive.may_have(record).await
            {
                // The archived version must not be replaced because a store was unreachable for a while.
                tracing::warn!(session_id = %setup.id, "session not archived, because its archived version could not be restored");
                save.give_up().await;
                return Ok(None);
            }
            save.commit().await.map(Some)
        }
        .await;
        let (took, id) = (begun.elapsed(), &setup.id);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let notify = |outcome, bytes| {
            setup.observers.notify(&SessionEvent::Archived {
                action: "save",
                outcome,
                bytes,
                took,
            });
        };
        match done {
            Ok(Some(bytes)) => {
                notify("ok", bytes);
                tracing::info!(session_id = %id, bytes, took_ms, "session archived");
            }
            Ok(None) => {
                // The session is empty now, so its archived version is outdated.
                let began_without = archiving.of.began_without.load(Ordering::Relaxed);
                if archiving.restore.is_some() && !began_without {
                    forget(setup).await;
                }
            }
            Err(error) => {
                if let Some(record) = setup.record.get() {
                    archiving.archive.mark_failed(record).await;
                }
                notify("failed", 0);
                tracing::error!(session_id = %id, %error, took_ms, "failed to archive the session");
            }
        }
    }
}

/// Deletes a session from the archive.
async fn forget(setup: &Setup) {
    if let Some(archiving) = &setup.archiving
        && let Some(record) = setup.record.get()
    {
        // A failure is in the log.
        let _ = archiving.archive.forget_now(record).await;
    }
}
