//! How a session's task is reached from outside.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use model::{OwnSettings, SessionId};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    History,
    archiving::Archived,
    beginning::Beginning,
    command::Command,
    reply::{Reply, received},
    usage::Usage,
};
use crate::{
    backend::CallerKey,
    error::{Error, Result},
    packages::Present,
};

/// Commands that may wait for a session that is still starting.
const QUEUED_COMMANDS: usize = 64;

/// Reaches a session's task. Clones reach the same.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    /// Its name.
    pub(crate) id: SessionId,
    /// Tells it from every other session of this server, whatever its name.
    pub(crate) number: u64,
    /// When somebody asked for it.
    pub(crate) since: Timestamp,
    /// For how long it may be unused.
    pub(crate) ttl: Duration,
    /// It ends with the call that it was started for.
    pub(crate) is_stateless: bool,
    /// It goes on from what another server has kept of it, as far as was known before it began.
    pub(crate) is_kept: bool,
    /// What the archive has to know of it.
    pub(crate) archived: Arc<Archived>,
    /// What it has instead of what the server's settings say.
    pub(crate) own: OwnSettings,
    /// What its sandbox was made from, if it was made here and that is known.
    pub(crate) image: Option<Arc<str>>,
    /// What became of that.
    pub(crate) beginning: Beginning,
    /// What it has done.
    pub(crate) history: watch::Receiver<History>,
    /// Whether it is in use.
    pub(crate) usage: Usage,
    /// Cancelled when it is left to another server.
    pub(crate) let_go: CancellationToken,
    /// Packages that were installed. Held while one is.
    pub(crate) packages: Arc<tokio::sync::Mutex<Present>>,
    commands: mpsc::Sender<Command>,
}

impl Handle {
    /// One for a new session, and where its task receives what it is asked.
    pub(crate) fn new(
        id: &SessionId,
        number: u64,
        ttl: Duration,
        history: watch::Receiver<History>,
        usage: Usage,
    ) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(QUEUED_COMMANDS);
        let (id, since) = (id.clone(), Timestamp::now());
        (
            Self {
                id,
                number,
                since,
                ttl,
                is_stateless: false,
                is_kept: false,
                archived: Arc::default(),
                own: OwnSettings::default(),
                image: None,
                beginning: Beginning::default(),
                history,
                usage,
                let_go: CancellationToken::new(),
                packages: Arc::default(),
                commands,
            },
            receiver,
        )
    }

    /// One whose session has no task, for tests of what only looks at it.
    #[cfg(test)]
    pub(crate) fn detached(id: SessionId, number: u64, usage: Usage) -> Self {
        Self::new(&id, number, Duration::from_secs(60), watch::channel(History::default()).1, usage)
            .0
    }

    /// The same, for whoever asks for it now.
    pub(crate) fn asked_for_now(self) -> Self {
        Self { since: Timestamp::now(), ..self }
    }

    /// The same, for a call that it ends with.
    pub(crate) fn stateless(self) -> Self {
        Self { is_stateless: true, ..self }
    }

    /// Its task takes no more commands.
    pub(crate) fn is_ended(&self) -> bool {
        self.commands.is_closed()
    }

    /// Hands a command over, or gives it back if the session has ended.
    pub(crate) async fn send(&self, command: Command) -> std::result::Result<(), Command> {
        self.commands.send(command).await.map_err(|mpsc::error::SendError(unsent)| unsent)
    }

    /// Asks for something and waits until it is done.
    ///
    /// # Errors
    /// Whatever was asked for may fail; a session that has ended is not found.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.send(command(reply)).await;
        sent.map_err(|_| Error::SessionNotFound(self.id.clone()))?;
        received(answer).await
    }

    /// Ends it. Its sandbox is gone and its permit free when this returns.
    ///
    /// # Errors
    /// It has died meanwhile, or was gone already.
    pub(crate) async fn close(&self) -> Result<()> {
        self.ask(|reply| Command::Close { reply }).await
    }

    /// Has its sandbox keep a note for the next server, and waits for nothing. One that has more to do than it can
    /// be told goes without.
    pub(crate) fn remember(&self, note: Bytes, caller: Option<CallerKey>) {
        let _ = self.commands.try_send(Command::Remember { note, caller });
    }

    /// Asks it to end, and waits for nothing. One that has more to do than it can be told ends unused.
    pub(crate) fn close_unheard(&self) {
        let (reply, _) = oneshot::channel();
        let _ = self.commands.try_send(Command::Close { reply });
    }

    /// Whether its sandbox answers, once it has started. Does not count as use.
    pub(crate) async fn is_well(&self) -> bool {
        self.ask(|reply| Command::Check { reply }).await.is_ok()
    }

    /// Ends it if nobody has used it for so long, and yields its permit; none if somebody has.
    ///
    /// # Errors
    /// It has ended by itself.
    pub(crate) async fn evict(&self, idle: Duration) -> Result<Option<OwnedSemaphorePermit>> {
        self.ask(|reply| Command::Evict { idle, reply }).await
    }

    /// Has it hibernate if nobody uses it, and yields its permit; none if somebody does, or if it would hold much
    /// memory even so.
    ///
    /// # Errors
    /// It has ended by itself.
    pub(crate) async fn rest(&self) -> Result<Option<OwnedSemaphorePermit>> {
        self.ask(|reply| Command::Rest { reply }).await
    }

    /// When it ends if nobody uses it from now on.
    pub(crate) fn expires(&self) -> Timestamp {
        let idle = self.idle_for(Instant::now()).unwrap_or_default();
        let left = SignedDuration::try_from(self.ttl.saturating_sub(idle));
        Timestamp::now()
            .saturating_add(left.unwrap_or(SignedDuration::MAX))
            .unwrap_or(Timestamp::MAX)
    }

    /// For how long nobody has used it; `None` while somebody does.
    pub(crate) fn idle_for(&self, now: Instant) -> Option<Duration> {
        self.usage.idle_for(now)
    }
}
