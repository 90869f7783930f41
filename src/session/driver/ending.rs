//! The end of a session: the task stops the run in progress, answers every caller, and removes the sandbox before it
//! frees the permit. If the sandbox outlives this server, the task leaves it to the next server instead.

use std::time::Duration;

use backend::CallerKey;
use bytes::Bytes;
use futures::StreamExt;
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::{
    super::{
        archiving,
        command::Command,
        events::{EndReason, SessionEvent},
        explain,
        hold::{HoldNote, LastRun},
        reply::Reply,
        sandbox,
    },
    Driver,
};
use crate::error::Error;

/// Longest time that a run which is being killed may delay the end of its session.
const STOP_TIMEOUT: Duration = Duration::from_millis(1500);

/// Longest time that a sandbox may take to save itself on disk.
const KEEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the loop ends.
pub(super) enum Ending {
    Closed(Option<Reply<()>>),
    Died,
    Expired,
    /// The session's permit goes to the caller that waits for it.
    Evicted(Reply<Option<OwnedSemaphorePermit>>),
    Shutdown,
}

impl Driver {
    pub(super) async fn end(mut self, ending: Ending) {
        let died = matches!(ending, Ending::Died);
        let is_left = matches!(ending, Ending::Shutdown) && self.outlives_server();
        let (mut closers, mut evictor) = (vec![], None);
        let reason = match ending {
            Ending::Closed(reply) => {
                closers.extend(reply);
                EndReason::Closed
            }
            Ending::Died => EndReason::Died,
            Ending::Expired => EndReason::Expired,
            Ending::Evicted(reply) => {
                evictor = Some(reply);
                EndReason::Evicted
            }
            Ending::Shutdown => EndReason::Shutdown,
        };
        // Both before any caller learns of the end: its name is free at once, and calls for it wait for what it saves.
        let saved = archiving::announce(&self.setup, reason);
        self.setup.lease.release_name(reason);
        self.setup.commands.close();
        let next_run = self
            .next_run
            .take()
            .map(|(program, reply, _)| Command::Run { program: Box::new(program), reply });
        if is_left {
            self.explainer.left.cancel();
        } else if !died {
            self.stop_run().await;
        }
        let saved = match saved {
            Some(announced) => self.save(announced).await,
            None => None,
        };
        // Closing the link ends all other work in progress.
        self.link.close();
        self.finish_work().await;
        let gone = match reason {
            EndReason::Died => Error::SandboxDied(self.setup.id.clone()),
            EndReason::Evicted => Error::SessionEvicted(self.setup.id.clone()),
            _ if is_left => explain::left(),
            _ => Error::SessionNotFound(self.setup.id.clone()),
        };
        if let Some(run) = next_run {
            run.refuse(gone.clone());
        }
        while let Some((command, _)) = self.setup.commands.recv().await {
            match command {
                Command::Close { reply } if !died => closers.push(reply),
                other => other.refuse(gone.clone()),
            }
        }
        drop(self.link_owner);
        if let Some(saved) = saved {
            if saved.wants_state() {
                let _ = timeout(KEEP_TIMEOUT, self.sandbox.gone.clone()).await;
            }
            if closers.is_empty() {
                saved.finish(&self.setup).await;
            } else {
                saved.forget(&self.setup).await;
            }
        }
        if is_left {
            tracing::info!(session_id = %self.setup.id, "session left to the next server");
        } else if !sandbox::dispose(&self.setup, self.sandbox, reason).await {
            self.setup.lease.sandbox_may_be_left();
        }
        self.setup.observers.notify(&SessionEvent::Ended(reason));
        drop(self.setup.observers);
        if let Some(evictor) = evictor {
            let _ = evictor.send(Ok(self.setup.lease.take_permit()));
        }
        // A caller that closes a session to open another finds the permit free, and nothing of the closed session.
        drop(self.setup.lease);
        for reply in closers {
            let _ = reply.send(Ok(()));
        }
    }

    /// Stores a note in the sandbox that says whose session it is. The command waits for it, so that no caller gets a
    /// session that the next server could not take over. A new caller is announced to the other servers.
    pub(super) async fn leave_note(&mut self, caller: Option<CallerKey>) {
        if let Some(note) = self.notes() {
            self.is_remembered = self.link.remember(note(None)).await.is_ok();
        }
        if let Some(caller) = caller.filter(|it| Some(it) != self.setup.spec.caller.as_ref()) {
            self.setup.spec.caller = Some(caller.clone());
            let (backend, id) = (self.setup.backend.clone(), self.sandbox.id.clone());
            tokio::spawn(async move {
                if let Some(shared) = backend.abilities().shared {
                    shared.assign(id, caller).await;
                }
            });
        }
    }

    /// Makes notes for the next server; `None` if there will be none that could take over the session.
    pub(super) fn notes(&self) -> Option<impl Fn(Option<LastRun>) -> Bytes + Send + use<>> {
        let hold = self.setup.hold.clone().filter(|hold| hold.outlives_server)?;
        let (session, sandbox) = (self.setup.record.get().cloned(), self.sandbox.id.clone());
        session.is_some().then_some(move |last_run| {
            let note = HoldNote { session: session.clone(), last_run };
            let note = serde_json::to_vec(&note).expect("a note is texts and numbers");
            hold.seal(&sandbox, &note)
        })
    }

    /// Whether the next server can take over the session.
    fn outlives_server(&self) -> bool {
        let hold = self.setup.hold.as_ref();
        self.is_remembered && !self.asleep && hold.is_some_and(|hold| hold.outlives_server)
    }

    /// Saves what comes over the link. If the session has no sandbox, one is started for that.
    async fn save(&mut self, announced: archiving::Announced) -> Option<archiving::Ending> {
        if self.asleep
            && let Ok((sandbox, link, owner)) = sandbox::start_to_save(&self.setup).await
        {
            (self.sandbox, self.link, self.link_owner) = (sandbox, link, owner);
            self.asleep = false;
        }
        let link = (!self.asleep).then_some(&self.link);
        let mut languages: Vec<_> =
            self.remembering.iter().map(|it| it.as_str().to_owned()).collect();
        languages.sort();
        archiving::save(&self.setup, announced, link, (languages, self.had_state)).await
    }

    /// Kills the run in progress, and answers it with the output so far.
    async fn stop_run(&mut self) {
        self.stop.cancel();
        let stopped = async {
            while self.state.is_running()
                && let Some(finished) = self.work.next().await
            {
                self.finish(finished);
            }
        };
        let _ = timeout(STOP_TIMEOUT, stopped).await;
    }
}
