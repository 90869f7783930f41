//! Hibernation, and waking from it. If the backend can save a sandbox on disk, the session has no sandbox until it is
//! used again.

use std::time::{Duration, Instant};

use futures::FutureExt;
use link::Link;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};

use super::{
    super::{
        command::Command,
        events::{SandboxStart, SessionEvent},
        phase::Phase,
        reply::Reply,
        sandbox,
        truncated::TruncatedRuns,
    },
    Driver, Finished,
    ending::Ending,
};
use crate::error::Result;

/// Longest time that saving a sandbox on disk may take.
const KEEP_TIMEOUT: Duration = Duration::from_secs(60);

/// How often, every 25 ms, the memory of a sandbox that has just hibernated is checked until it is small.
const MEMORY_LOOKS: u32 = 20;

/// Divides a sandbox's memory limit: the most that a session without a permit may use.
const SMALL: u64 = 2;

impl Driver {
    /// Gives up what only makes runs faster, or the whole sandbox if it can be saved. A run that arrives meanwhile
    /// waits for milliseconds. Returns the ending if this ends the session.
    pub(super) async fn hibernate(&mut self) -> Option<Ending> {
        if self.setup.usage.is_being_read() {
            self.state.touch(Instant::now());
            return None;
        }
        self.state.hibernation_began();
        if self.setup.spec.saved_as.is_none() {
            self.work.push(hibernated(self.link.clone()).boxed());
            return None;
        }
        // The remaining work belongs to no caller, and is short.
        self.finish_work().await;
        // The sandbox's process ends after it has reported that everything is written; otherwise it stays as it is.
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
        // A sandbox that does not end keeps its file, and nothing can resume from that.
        if timeout(KEEP_TIMEOUT, self.sandbox.gone.clone()).await.is_err() {
            return Some(Ending::Died);
        }
        self.asleep = true;
        // Only the sandbox had these outputs.
        self.truncated = TruncatedRuns::default();
        self.setup.observers.notify(&SessionEvent::Slept);
        None
    }

    /// Hibernates at once and gives up the permit, unless the session is in use or still uses much memory. Returns the
    /// ending if this ends the session.
    pub(super) async fn rest(
        &mut self,
        reply: Reply<Option<OwnedSemaphorePermit>>,
    ) -> Option<Ending> {
        self.setup.usage.set(self.state.unused_since());
        let is_idle = self.setup.usage.idle_since().is_some();
        // A caller that no longer waits needs no permit, and a command that has arrived meanwhile needs it here.
        if !is_idle || reply.is_closed() || !self.setup.commands.is_empty() {
            let _ = reply.send(Ok(None));
            return None;
        }
        // If it hibernates already, the kernel has taken back its memory: one check is enough.
        let looks = if self.state.phase() == Phase::Hibernating { 1 } else { MEMORY_LOOKS };
        if looks > 1
            && let Some(ending) = self.hibernate().await
        {
            drop(reply);
            return Some(ending);
        }
        // A live sandbox counts as at least one byte, as 0 means that there is no sandbox.
        let held =
            if self.asleep { Some(0) } else { self.small_memory(looks).await.map(|it| it.max(1)) };
        let held = held.filter(|_| self.setup.commands.is_empty());
        let permit = held.and_then(|_| self.setup.lease.take_permit());
        // Without a permit, the session hibernates without one already, or is about to get one.
        if permit.is_some() {
            self.setup.usage.set_resting(held);
        }
        let _ = reply.send(Ok(permit));
        None
    }

    /// Bytes of memory that a hibernating sandbox uses, 0 if unknown; `None` if they are too many. The kernel needs a
    /// moment to take back the memory of processes that have just ended.
    async fn small_memory(&mut self, looks: u32) -> Option<u64> {
        // The remaining work belongs to no caller, and is short.
        self.finish_work().await;
        let most = self.setup.spec.limits.memory / SMALL;
        for _ in 0..looks {
            self.link.ping().await.ok()?;
            let bytes = self.link.vitals().memory().unwrap_or(0);
            if bytes <= most {
                return Some(bytes);
            }
            sleep(Duration::from_millis(25)).await;
        }
        None
    }

    /// Whether this command cannot be carried out without a sandbox.
    pub(super) fn needs_sandbox(&self, command: &Command) -> bool {
        match command {
            Command::Run { .. } | Command::Operate(_) | Command::Check { .. } => true,
            Command::View { .. } => !self.view.has(self.files),
            Command::Touch { .. }
            | Command::Remember { .. }
            | Command::Cancel { .. }
            | Command::Close { .. }
            | Command::Rest { .. }
            | Command::Wake { .. }
            | Command::Evict { .. } => false,
        }
    }

    /// Starts a sandbox that resumes from the saved state.
    pub(super) async fn wake(&mut self) -> Result<()> {
        let (sandbox, link, owner) =
            sandbox::start_or_give_up(&self.setup, SandboxStart::Woken).await?;
        (self.sandbox, self.link, self.link_owner) = (sandbox, link, owner);
        self.questions.replace(&mut self.link_owner);
        self.asleep = false;
        // A viewer's look is no use: without it the session would stay in memory until its next use.
        self.state.woke();
        Ok(())
    }
}

/// Waits until runs start warm, or will not.
pub(super) async fn warmed(link: Link) -> Finished {
    let begun = Instant::now();
    match link.warm().await {
        // If the session hibernates already, there is nothing to report.
        Ok(done) if done.ready || !done.problems.is_empty() => {
            Finished::Warmed(done, begun.elapsed())
        }
        _ => Finished::Upkeep,
    }
}

/// Gives up what makes runs start warm.
async fn hibernated(link: Link) -> Finished {
    // If the link fails, it ends, and the loop notices that.
    let _ = link.hibernate(false).await;
    Finished::Upkeep
}
