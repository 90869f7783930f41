//! The interface of a session's task for other tasks.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use backend::CallerKey;
use jiff::{SignedDuration, Timestamp};
use model::{Dataset, OwnSettings, SessionId, SessionRecord};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    History,
    archiving::Archived,
    beginning::Beginning,
    command::Command,
    label::SessionLabel,
    origin::Origin,
    reply::{Reply, received},
    results::Results,
    usage::Usage,
};
use crate::{
    error::{Error, Result},
    packages::Present,
    trace::Parent,
};

/// Maximum number of commands that may wait for a session that is still starting.
const QUEUED_COMMANDS: usize = 64;

/// The record of a session. Clones share it.
pub(crate) type Record = Arc<OnceLock<SessionRecord>>;

/// The interface of a session's task. Clones reach the same task.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    /// The session's name.
    pub(crate) id: SessionId,
    /// Distinguishes the session from every other session of this server, whatever its name.
    pub(crate) number: u64,
    /// When a caller asked for the session.
    pub(crate) since: Timestamp,
    /// How long the session may be unused.
    pub(crate) ttl: Duration,
    /// Whether the session ends with the call that it was started for.
    pub(crate) is_stateless: bool,
    /// How the session began, if that was known before its task began.
    pub(crate) origin: Origin,
    /// The session's record; not set while it waits in the pool, and never if it ends with its call.
    pub(crate) record: Record,
    /// Facts about the session for the archive.
    pub(crate) archived: Arc<Archived>,
    /// The session's own settings, which override the server's.
    pub(crate) own: OwnSettings,
    /// The datasets that its sandbox can read.
    pub(crate) datasets: Vec<Arc<Dataset>>,
    /// The image of the session's sandbox, if the sandbox was started here and the image is known.
    pub(crate) image: Option<Arc<str>>,
    /// The program that its caller used last, if it said which.
    pub(crate) client: Arc<Mutex<Option<Arc<str>>>>,
    /// How the session resumed from saved state.
    pub(crate) beginning: Beginning,
    /// The session's runs so far.
    pub(crate) history: watch::Receiver<History>,
    /// The results of these runs.
    pub(crate) results: Results,
    /// Whether the session is in use.
    pub(crate) usage: Usage,
    /// Cancelled when the session is left to another server.
    pub(crate) let_go: CancellationToken,
    /// Packages that were installed. Locked while one is being installed.
    pub(crate) packages: Arc<tokio::sync::Mutex<Present>>,
    /// The session's caller in metrics.
    pub(crate) label: SessionLabel,
    commands: mpsc::Sender<(Command, Parent)>,
}

impl Handle {
    /// A handle for a new session, and the receiver of its commands.
    pub(crate) fn new(
        id: &SessionId,
        number: u64,
        ttl: Duration,
        history: watch::Receiver<History>,
        usage: Usage,
    ) -> (Self, mpsc::Receiver<(Command, Parent)>) {
        let (commands, receiver) = mpsc::channel(QUEUED_COMMANDS);
        let (id, since) = (id.clone(), Timestamp::now());
        (
            Self {
                id,
                number,
                since,
                ttl,
                is_stateless: false,
                origin: Origin::New,
                record: Record::default(),
                archived: Arc::default(),
                own: OwnSettings::default(),
                datasets: vec![],
                image: None,
                client: Arc::default(),
                beginning: Beginning::default(),
                history,
                results: Results::default(),
                usage,
                let_go: CancellationToken::new(),
                packages: Arc::default(),
                label: SessionLabel::default(),
                commands,
            },
            receiver,
        )
    }

    /// A handle without a task, for tests that only read it.
    #[cfg(test)]
    pub(crate) fn detached(id: SessionId, number: u64, usage: Usage) -> Self {
        Self::new(&id, number, Duration::from_secs(60), watch::channel(History::default()).1, usage)
            .0
    }

    /// Sets the present time as the time at which a caller asked for the session.
    pub(crate) fn asked_for_now(self) -> Self {
        Self { since: Timestamp::now(), ..self }
    }

    /// Makes this the handle of a session that ends with its call.
    pub(crate) fn stateless(self) -> Self {
        Self { is_stateless: true, ..self }
    }

    /// Notes the program that the caller of the session uses, if it says which.
    pub(crate) fn is_used_with(&self, client: Option<&Arc<str>>) {
        if let Some(client) = client {
            *self.client.lock() = Some(client.clone());
        }
    }

    /// Whether the session's task takes no more commands.
    pub(crate) fn is_ended(&self) -> bool {
        self.commands.is_closed()
    }

    /// Sends a command, or returns it if the session has ended.
    pub(crate) async fn send(&self, command: Command) -> std::result::Result<(), Command> {
        let sent = self.commands.send((command, Parent::current())).await;
        sent.map_err(|mpsc::error::SendError((unsent, _))| unsent)
    }

    /// Sends a command and waits for the answer.
    ///
    /// # Errors
    /// If the command fails. If the session has ended, it is not found.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.send(command(reply)).await;
        sent.map_err(|_| Error::SessionNotFound(self.id.clone()))?;
        received(answer).await
    }

    /// Ends the session. Its sandbox has been removed and its permit is free when this returns.
    ///
    /// # Errors
    /// If it has died meanwhile, or had ended already.
    pub(crate) async fn close(&self) -> Result<()> {
        self.ask(|reply| Command::Close { reply }).await
    }

    /// Makes the session's sandbox store a note for the next server, without waiting. If the queue of commands is full,
    /// the note is not stored.
    pub(crate) fn remember(&self, caller: Option<CallerKey>) {
        let _ = self.commands.try_send((Command::Remember { caller }, Parent::default()));
    }

    /// Asks the session to end, without waiting. If the queue of commands is full, the session expires later.
    pub(crate) fn close_unheard(&self) {
        let (reply, _) = oneshot::channel();
        let _ = self.commands.try_send((Command::Close { reply }, Parent::default()));
    }

    /// Whether the session's sandbox answers, once it has started. Does not count as use.
    pub(crate) async fn is_well(&self) -> bool {
        self.ask(|reply| Command::Check { reply }).await.is_ok()
    }

    /// Ends the session if it has been unused for this long, and returns its permit; `None` if it has been used.
    ///
    /// # Errors
    /// If it has ended by itself.
    pub(crate) async fn evict(&self, idle: Duration) -> Result<Option<OwnedSemaphorePermit>> {
        self.ask(|reply| Command::Evict { idle, reply }).await
    }

    /// Makes the session hibernate if it is unused, and returns its permit; `None` if it is in use, or would still use
    /// much memory.
    ///
    /// # Errors
    /// If it has ended by itself.
    pub(crate) async fn rest(&self) -> Result<Option<OwnedSemaphorePermit>> {
        self.ask(|reply| Command::Rest { reply }).await
    }

    /// When the session expires if it is not used until then.
    pub(crate) fn expires(&self) -> Timestamp {
        let idle = self.idle_for(Instant::now()).unwrap_or_default();
        let left = SignedDuration::try_from(self.ttl.saturating_sub(idle));
        Timestamp::now()
            .saturating_add(left.unwrap_or(SignedDuration::MAX))
            .unwrap_or(Timestamp::MAX)
    }

    /// When the session was last used.
    pub(crate) fn used(&self) -> Timestamp {
        let idle = self.idle_for(Instant::now()).unwrap_or_default();
        let idle = SignedDuration::try_from(idle).unwrap_or(SignedDuration::MAX);
        Timestamp::now().saturating_sub(idle).unwrap_or(Timestamp::MIN)
    }

    /// How long the session has been unused; `None` while it is in use.
    pub(crate) fn idle_for(&self, now: Instant) -> Option<Duration> {
        self.usage.idle_for(now)
    }
}
