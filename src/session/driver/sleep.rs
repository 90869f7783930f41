//! Hibernation. Where a sandbox can be kept on disk, the session has none until somebody uses it again.

use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};

use super::{
    super::{
        command::Command,
        events::{Origin, SessionEvent},
        phase::Phase,
        reply::Reply,
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

/// How often, every 25 ms, the memory of a sandbox that has just hibernated is looked at until it is small.
const MEMORY_LOOKS: u32 = 20;

/// Largest part of a sandbox's memory that a session without a permit may hold: one in so many.
const SMALL: u64 = 2;

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
        if let Command::Rest { reply } = command {
            return self.rest(reply).await;
        }
        self.begin(command)
    }

    /// Hibernates at once and gives the permit away, unless the session is in use or holds much memory even so. Says
    /// so if that is the end.
    async fn rest(&mut self, reply: Reply<Option<OwnedSemaphorePermit>>) -> Option<Ending> {
        self.setup.usage.set(self.state.unused_since());
        let is_idle = self.setup.usage.idle_since().is_some();
        // A caller that no longer waits needs no permit, and one that has come meanwhile needs it here.
        if !is_idle || reply.is_closed() || !self.setup.commands.is_empty() {
            let _ = reply.send(Ok(None));
            return None;
        }
        // The memory of one that has hibernated before is no longer on its way back to the kernel.
        let looks = if self.state.phase() == Phase::Hibernating { 1 } else { MEMORY_LOOKS };
        if looks > 1
            && let Some(ending) = self.hibernate().await
        {
            drop(reply);
            return Some(ending);
        }
        // A sandbox that is there holds at least a byte: none at all says that there is no sandbox.
        let held =
            if self.asleep { Some(0) } else { self.small_memory(looks).await.map(|it| it.max(1)) };
        let held = held.filter(|_| self.setup.commands.is_empty());
        let permit = held.and_then(|_| self.setup.lease.take_permit());
        // Without a permit it rests already, or is about to get one.
        if permit.is_some() {
            self.setup.usage.set_resting(held);
        }
        let _ = reply.send(Ok(permit));
        None
    }

    /// Bytes of memory that the sandbox, which hibernates, holds, as far as that is known; `None` if that is much. The
    /// kernel needs a moment to take back the memory of processes that have just ended.
    async fn small_memory(&mut self, looks: u32) -> Option<u64> {
        // What is still under way is no caller's, and short.
        while let Some(finished) = self.work.next().await {
            self.finish(finished);
        }
        let most = self.setup.spec.limits.memory / SMALL;
        for _ in 0..looks {
            self.link.ping().await.ok()?;
            let bytes = self.link.memory().get().unwrap_or(0);
            if bytes <= most {
                return Some(bytes);
            }
            sleep(Duration::from_millis(25)).await;
        }
        None
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
            | Command::Rest { .. }
            | Command::Wake { .. }
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
