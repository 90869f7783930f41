//! Hibernation. Where a sandbox can be kept on disk, the session has none until somebody uses it again.

use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use tokio::time::timeout;

use super::{
    super::{
        command::Command,
        events::{Origin, SessionEvent},
        sandbox,
        truncated::TruncatedRuns,
    },
    Driver,
    ending::Ending,
    work::{Finished, hibernated},
};
use crate::error::{Error, Result};

/// Longest that it may take to write a sandbox to disk.
const KEEP_TIMEOUT: Duration = Duration::from_secs(60);

impl Driver {
    /// Gives up what only makes runs faster, or the whole sandbox if it can be kept. A run that comes meanwhile
    /// waits for milliseconds. Says so if that is the end.
    pub(super) async fn hibernate(&mut self) -> Option<Ending> {
        if self.setup.usage.is_being_read() {
            self.state.touch(Instant::now());
            return None;
        }
        self.state.hibernation_began();
        if self.setup.spec.kept_as.is_none() {
            self.work.push(hibernated(self.link.clone()).map(Finished::Upkeep).boxed());
            return None;
        }
        // What is still under way is no caller's, and short.
        while let Some(finished) = self.work.next().await {
            self.finish(finished);
        }
        // Its process goes when it has said that all of it is written, and stays with what it has otherwise.
        match timeout(KEEP_TIMEOUT, self.link.hibernate(true)).await {
            Ok(Ok(true)) => {}
            Ok(Err(_)) => return Some(Ending::Died),
            Ok(Ok(false)) | Err(_) => {
                tracing::warn!(
                    session_id = %self.setup.id,
                    "a session that hibernates could not be written to SANDBOX_STATE_DIR, and stays in memory"
                );
                return None;
            }
        }
        self.link.close();
        // One that does not go keeps its file, and nothing can go on from that.
        if timeout(KEEP_TIMEOUT, self.sandbox.gone.clone()).await.is_err() {
            return Some(Ending::Died);
        }
        self.asleep = true;
        // The outputs that only the sandbox had.
        self.truncated = TruncatedRuns::default();
        self.setup.observers.notify(&SessionEvent::Slept);
        None
    }

    /// Begins what is asked for, after there is a sandbox if it needs one. Says so if that is the end.
    pub(super) async fn begin_awake(&mut self, command: Command) -> Option<Ending> {
        if self.is_to_wake_for(&command)
            && let Err(error) = self.wake().await
        {
            let is_lost = matches!(error, Error::SandboxDied(_));
            command.refuse(error);
            return is_lost.then_some(Ending::Died);
        }
        if let Command::Remember { note, caller } = &command {
            self.leave_note(note).await;
            if let Some(caller) =
                caller.clone().filter(|it| Some(it) != self.setup.spec.caller.as_ref())
            {
                self.setup.spec.caller = Some(caller.clone());
                let (backend, id) = (self.setup.backend.clone(), self.sandbox.id.clone());
                tokio::spawn(async move { backend.give(id, caller).await });
            }
        }
        self.begin(command)
    }

    /// Has the sandbox keep whose session it is. Nothing else is done before: nobody hears of a session that the next
    /// server would know nothing of.
    async fn leave_note(&mut self, note: &[u8]) {
        if let Some(hold) = &self.setup.hold {
            let note = hold.seal(&self.sandbox.id, note);
            self.is_remembered = self.link.remember(note).await.is_ok();
        }
    }

    /// Whether the sandbox has to be woken for this.
    fn is_to_wake_for(&self, command: &Command) -> bool {
        let needs_sandbox = match command {
            Command::Run { .. } | Command::Operate(_) | Command::Check { .. } => true,
            Command::View { .. } => !self.view.has(self.files),
            Command::Touch { .. }
            | Command::Remember { .. }
            | Command::Cancel { .. }
            | Command::Close { .. }
            | Command::Evict { .. } => false,
        };
        self.asleep && needs_sandbox
    }

    /// Starts a sandbox that goes on from what was kept.
    async fn wake(&mut self) -> Result<()> {
        let (sandbox, link, owner) = sandbox::start_or_give_up(&self.setup, Origin::Woken).await?;
        (self.sandbox, self.link, self.link_owner) = (sandbox, link, owner);
        self.asleep = false;
        Ok(())
    }
}
