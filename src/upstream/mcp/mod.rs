//! Clients of servers of MCP, one for each upstream, which all sessions share.
//!
//! ```text
//!           first call                answers
//!    off ---------------> starting -------------> on
//!     ^                      |                    | died        | unused for idle_s
//!     |      not before      v                    v             v
//!     '------------------ waiting <---------------'            off
//!            1 s, then twice as long each time, up to 60 s
//! ```
//!
//! While an upstream waits, calls fail at once with the reason. A connection is watched by a task of its own, which ends
//! with the connection or with [`Upstreams`](super::Upstreams). Both generations of the protocol are spoken: the newest
//! version first, and `initialize` with a server that does not know it.

mod http;
mod lines;
mod list;
mod open;
mod process;

pub(super) use self::process::end_all;

use std::{
    borrow::Cow,
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use config::upstreams::Upstream as Settings;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{CallToolRequestParams, CallToolResponse, ErrorCode, ErrorData},
    service::RunningService,
};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    list::Listing,
    open::Handler,
    process::{Process, Words},
};
use super::{CallError, CallErrorKind, Item, answer, catalogue::MAX_BYTES, net};

/// Time limit for a start: a package may have to be fetched first.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The waiting time after a first death, and the longest.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A connection that lasts this long makes former deaths forgotten.
const LONG: Duration = Duration::from_secs(60);

/// Time that a server has to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// The code of an error that stands for an answer that is too large, and for one that is no answer. Servers do not use
/// them; if one did, an error would only have another kind.
const TOO_LARGE: ErrorCode = ErrorCode(-31_998);
const NONSENSE: ErrorCode = ErrorCode(-31_999);

/// The begin of the message about a server that is not available.
const NOT_AVAILABLE: &str = "not available: ";

type Started = Result<Arc<Connection>, CallError>;

/// The client of one server.
pub(super) struct Client {
    settings: Arc<Settings>,
    /// Cancelled when the program ends.
    end: CancellationToken,
    state: Mutex<State>,
    /// Whether the server knows only the older generation of the protocol.
    is_old: AtomicBool,
    listing: Mutex<Listing>,
    /// Counts the changes of the list that the server reported, and starts.
    changes: Arc<AtomicU64>,
    /// The lines of its last process besides messages.
    words: Arc<Mutex<Words>>,
}

enum State {
    Off(Failures),
    Starting(Failures, Shared<BoxFuture<'static, Started>>),
    On(Failures, Arc<Connection>),
}

/// The deaths in a row, and when the next start may be.
#[derive(Debug, Clone, Default)]
struct Failures {
    count: u32,
    wait: Option<(Instant, String)>,
}

impl Failures {
    /// These, and one more now.
    fn and(&self, why: String) -> Self {
        let factor = 2_u32.saturating_pow(self.count.min(16));
        let wait = MIN_WAIT.saturating_mul(factor).min(MAX_WAIT);
        Self { count: self.count.saturating_add(1), wait: Some((Instant::now() + wait, why)) }
    }

    /// Why there can be no attempt yet, and the number of seconds until there can be one.
    fn left(&self) -> Option<(&str, u64)> {
        let (until, why) = self.wait.as_ref()?;
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some((why, left.as_secs() + 1))
    }
}

/// A connection to a server.
#[derive(Debug)]
struct Connection {
    peer: Peer<RoleClient>,
    usage: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    calls: usize,
    last: Instant,
}

/// A call in progress, which keeps its connection from being stopped.
struct Using(Arc<Connection>);

impl Using {
    fn new(connection: &Arc<Connection>) -> Self {
        connection.usage.lock().calls += 1;
        Self(connection.clone())
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        usage.calls -= 1;
        usage.last = Instant::now();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.settings.name).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(settings: Arc<Settings>, end: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            settings,
            end,
            state: Mutex::new(State::Off(Failures::default())),
            is_old: AtomicBool::new(false),
            listing: Mutex::default(),
            words: Arc::default(),
            changes: Arc::default(),
        })
    }

    /// Calls a tool. If the future is dropped, the call is cancelled at the server.
    pub(super) async fn call(
        self: &Arc<Self>,
        tool: String,
        arguments: Map<String, Value>,
        read_only: bool,
    ) -> Result<Vec<Item>, CallError> {
        let using = self.connection().await?;
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        match using.0.peer.call_tool_once(params).await {
            Ok(CallToolResponse::Complete(result)) => answer::of_tool(result),
            Ok(_) => {
                let why =
                    "the tool asks for input or begins a task, which calls from code cannot do";
                Err(CallError::new(CallErrorKind::Upstream, why))
            }
            Err(error) => {
                let may_be_made = !read_only && matches!(error, ServiceError::TransportClosed);
                let mut error = self.failed(error);
                if may_be_made {
                    error.kind = CallErrorKind::UnknownOutcome;
                    error.message += "; the call may have been made";
                }
                Err(error)
            }
        }
    }

    /// The connection, which is opened if there is none.
    async fn connection(self: &Arc<Self>) -> Result<Using, CallError> {
        loop {
            let starting = {
                let mut state = self.state.lock();
                match &*state {
                    State::On(_, connection) => return Ok(Using::new(connection)),
                    State::Starting(_, starting) => starting.clone(),
                    State::Off(failures) => {
                        if let Some((why, left)) = failures.left() {
                            let why = format!("{why}; it is started again in {left} s");
                            return Err(unavailable(&why));
                        }
                        let failures = failures.clone();
                        // A task of its own: the first call that waits may be cancelled.
                        let task = tokio::spawn(self.clone().start());
                        let client = self.clone();
                        let starting = async move {
                            task.await.unwrap_or_else(|_| {
                                let why = "its start failed".to_owned();
                                let error = unavailable(&why);
                                *client.state.lock() = State::Off(Failures::default().and(why));
                                Err(error)
                            })
                        };
                        let starting = starting.boxed().shared();
                        *state = State::Starting(failures, starting.clone());
                        starting
                    }
                }
            };
            let connection = starting.await?;
            // It may have ended since.
            if let State::On(_, current) = &*self.state.lock()
                && Arc::ptr_eq(current, &connection)
            {
                return Ok(Using::new(current));
            }
        }
    }

    /// Opens a connection, and changes the state accordingly.
    async fn start(self: Arc<Self>) -> Started {
        let opened = tokio::select! {
            opened = timeout(START_TIMEOUT, self.open()) => {
                opened.unwrap_or_else(|_| Err("it did not start in time".into()))
            }
            () = self.end.cancelled() => Err("the server ends".into()),
        };
        let mut state = self.state.lock();
        let failures = match &*state {
            State::Starting(failures, _) | State::Off(failures) | State::On(failures, _) => {
                failures.clone()
            }
        };
        let name = &self.settings.name;
        match opened {
            Ok((running, process)) => {
                info!(upstream = %name, "connected");
                let usage = Mutex::new(Usage { calls: 0, last: Instant::now() });
                let peer = running.peer().clone();
                let connection = Arc::new(Connection { peer, usage });
                if failures.count > 0 {
                    // It may be another version.
                    self.changes.fetch_add(1, Ordering::Relaxed);
                }
                *state = State::On(failures, connection.clone());
                tokio::spawn(self.clone().watch(connection.clone(), running, process));
                Ok(connection)
            }
            Err(mut why) => {
                answer::remove_from(&mut why, &self.settings.secrets());
                warn!(upstream = %name, why, "cannot be started or reached");
                *state = State::Off(failures.and(why.clone()));
                Err(unavailable(&why))
            }
        }
    }

    /// Waits for the end of a connection: its death, the program's end, or that it is unused.
    async fn watch(
        self: Arc<Self>,
        connection: Arc<Connection>,
        running: Running,
        mut process: Option<Process>,
    ) {
        let began = Instant::now();
        let stop = running.cancellation_token();
        let mut ended = pin!(running.waiting());
        let mut has_ended = false;
        let died = loop {
            let idle_at = connection.usage.lock().last + self.settings.idle;
            tokio::select! {
                _ = &mut ended => {
                    has_ended = true;
                    let status = match &mut process {
                        Some(process) => process.status(GRACE).await,
                        None => None,
                    };
                    break Some(status.unwrap_or_else(|| "the connection ended".into()));
                }
                status = exited(&mut process) => break Some(status),
                () = self.end.cancelled() => break None,
                () = sleep_until(idle_at) => {
                    if self.stop_if_unused(&connection) {
                        break None;
                    }
                    // A call is in progress, and no end of it is signalled here.
                    sleep(self.settings.idle.min(GRACE)).await;
                }
            }
        };
        let name = &self.settings.name;
        if let Some(why) = died {
            warn!(upstream = %name, why, "ended");
            let mut state = self.state.lock();
            if let State::On(failures, current) = &*state
                && Arc::ptr_eq(current, &connection)
            {
                let is_long = began.elapsed() >= LONG;
                let former = if is_long { Failures::default() } else { failures.clone() };
                *state = State::Off(former.and(why));
            }
        } else {
            info!(upstream = %name, "disconnected: it is unused, or this program ends");
        }
        stop.cancel();
        if !has_ended {
            let _ = timeout(GRACE, ended).await;
        }
        if let Some(process) = process {
            process.end(GRACE).await;
        }
    }

    /// Forgets a connection if no call uses it and none did for long.
    fn stop_if_unused(&self, connection: &Arc<Connection>) -> bool {
        // Calls begin under this lock.
        let mut state = self.state.lock();
        let is_unused = {
            let usage = connection.usage.lock();
            usage.calls == 0 && usage.last.elapsed() >= self.settings.idle
        };
        if is_unused {
            *state = State::Off(Failures::default());
        }
        is_unused
    }

    fn failed(&self, error: ServiceError) -> CallError {
        match error {
            ServiceError::McpError(ErrorData { code: TOO_LARGE, .. }) => {
                answer::too_large(self.settings.max_answer)
            }
            ServiceError::McpError(ErrorData { code: NONSENSE, message, .. }) => {
                unavailable(&message)
            }
            ServiceError::McpError(error) => {
                CallError::new(CallErrorKind::Upstream, error.message.into_owned())
            }
            ServiceError::TransportClosed => unavailable("it ended during the call"),
            ServiceError::TransportSend(error) => {
                let told = http::told(&error);
                unavailable(&told.unwrap_or_else(|| error.error.to_string()))
            }
            other => unavailable(&net::chain(&other)),
        }
    }

    /// The last lines of standard error of its process, for people.
    pub(super) fn last_words(&self) -> Vec<String> {
        let mut lines = self.words.lock().of_errors();
        for line in &mut lines {
            answer::remove_from(line, &self.settings.secrets());
        }
        lines
    }
}

fn unavailable(why: &str) -> CallError {
    CallError::new(CallErrorKind::Unavailable, format!("{NOT_AVAILABLE}{why}"))
}

type Running = RunningService<RoleClient, Handler>;

/// Waits for the end of a process, if there is one.
async fn exited(process: &mut Option<Process>) -> String {
    match process {
        Some(process) => process.exited().await,
        None => std::future::pending().await,
    }
}

/// The error that stands for an answer that is too large.
fn too_large() -> ErrorData {
    ErrorData::new(TOO_LARGE, Cow::Borrowed("the answer is too large"), None)
}

/// The error that stands for something that is no answer.
fn nonsense() -> ErrorData {
    ErrorData::new(NONSENSE, Cow::Borrowed("it answered with something that is no answer"), None)
}

/// The largest message of a server, in bytes: an answer, or a page of its list of tools.
fn max_message(settings: &Settings) -> usize {
    /// Bytes of a message around its answer.
    const AROUND: usize = 64 << 10;

    usize::try_from(settings.max_answer).unwrap_or(usize::MAX).max(MAX_BYTES).saturating_add(AROUND)
}
