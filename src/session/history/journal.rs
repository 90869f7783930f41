//! Writing the history of a session down as its events arrive, and telling its viewers.

use std::{path::Path, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;

use super::History;
use crate::session::{
    Phase,
    events::{Observer, SandboxStart, SessionEvent},
    spill::SpillFile,
};

/// The observer that writes a session's history.
#[derive(Debug)]
pub(crate) struct Journal {
    history: watch::Sender<History>,
    /// Notified of every change in any session.
    changes: Changes,
}

/// Notifies all viewers of a change. Clones notify the same viewers.
#[derive(Debug, Clone)]
pub(crate) struct Changes(Arc<watch::Sender<()>>);

impl Journal {
    /// The empty history of one of so many sessions, and its reader. Texts that do not fit into memory go to the
    /// folder.
    pub(crate) fn new(
        changes: Changes,
        sessions: usize,
        folder: Option<&Path>,
        min_free: u64,
    ) -> (Self, watch::Receiver<History>) {
        let spill_file = folder.and_then(|folder| match SpillFile::new(folder, min_free) {
            Ok(spill_file) => Some(spill_file),
            Err(error) => {
                let folder = folder.display();
                tracing::warn!(%error, %folder, "runs are stored in memory only, because the folder cannot be used");
                None
            }
        });
        let (history, reader) = watch::channel(History::of(sessions, spill_file));
        (Self { history, changes }, reader)
    }

    /// The journal of a session that has had runs before, of which this server knows nothing.
    pub(crate) fn lacking_earlier(self, lacks_earlier: bool) -> Self {
        self.note_unseen(|history| history.lacks_earlier = lacks_earlier);
        self
    }

    /// Changes the history without telling viewers.
    fn note_unseen(&self, change: impl FnOnce(&mut History)) {
        self.history.send_if_modified(|history| {
            change(history);
            false
        });
    }

    fn note(&self, change: impl FnOnce(&mut History)) {
        self.history.send_modify(|history| {
            change(history);
            history.version += 1;
        });
        self.changes.tell();
    }
}

impl Observer for Journal {
    fn observe(&self, event: &SessionEvent<'_>) {
        match event {
            SessionEvent::Started { start, vitals, .. } => {
                self.note_unseen(|history| history.replace_sandbox(Some(vitals.clone())));
                if matches!(start, SandboxStart::New | SandboxStart::Resumed) {
                    self.note(|history| history.phase = Phase::Idle);
                }
            }
            SessionEvent::Slept => self.note_unseen(|history| history.replace_sandbox(None)),
            SessionEvent::RunBegan { run_id, program } => {
                self.note(|history| history.begin((*run_id).clone(), program));
            }
            SessionEvent::Wrote { run_id, newest } => {
                self.history.send_modify(|history| history.wrote(run_id, newest));
                self.changes.tell();
            }
            SessionEvent::Waiting { run_id, approvals } => {
                self.note(|history| history.wait(run_id, approvals));
            }
            // Viewers see it when the run ends, or with its next output.
            SessionEvent::Called { run_id, called } => {
                self.history.send_modify(|history| history.called(run_id, called));
            }
            SessionEvent::RunFailed { run_id } => self.note(|history| history.fail(run_id)),
            SessionEvent::RunEnded { report, .. } => self.note(|history| history.end(report)),
            // Viewers see it only when they ask.
            SessionEvent::Drawn { run_id, pictures } => {
                self.history.send_modify(|history| history.draw(run_id, pictures));
            }
            SessionEvent::Undone { language, cells } => {
                self.note(|history| history.undo(language, *cells));
            }
            SessionEvent::Recalled(recorded) => self.note(|history| history.recall(recorded)),
            SessionEvent::FileAdded { .. } => {
                self.note(|history| history.changed = Some(Timestamp::now()));
            }
            // Viewers have been notified by the events above.
            SessionEvent::Phase(phase) => {
                self.history.send_if_modified(|history| {
                    history.phase = *phase;
                    false
                });
            }
            SessionEvent::NotStarted
            | SessionEvent::Warmed { .. }
            | SessionEvent::FileRead { .. }
            | SessionEvent::Archived { .. } => {}
            // The session may be in the archive from now on.
            SessionEvent::Ended(_) => self.changes.tell(),
        }
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(())))
    }
}

impl Changes {
    pub(crate) fn tell(&self) {
        self.0.send_replace(());
    }

    pub(crate) fn listen(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}
