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
mod open;
mod process;

pub(super) use self::process::kill_all;

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
    model::{
        CallToolRequestParams, CallToolResponse, ErrorCode, ErrorData, PaginatedRequestParams,
    },
    service::RunningService,
};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{open::Handler, process::Process};
use super::{
    CallError, CallErrorKind, Item, answer,
    catalogue::{Catalogue, MAX_BYTES, MAX_TOOLS, Tool, size},
    net,
};

/// Time limit for a start: a package may have to be fetched first.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for a list of tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a list is asked for again, though nothing is said to have changed.
const LIST_AGE: Duration = Duration::from_secs(300);

/// The maximum number of pages of a list.
const MAX_PAGES: usize = 200;

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

type Started = Result<Arc<Connection>, CallError>;

/// The client of one server.
pub(super) struct Client {
    settings: Arc<Settings>,
    /// Cancelled when the program ends.
    end: CancellationToken,
    state: Mutex<State>,
    /// Whether the server knows only the older generation of the protocol.
    is_old: AtomicBool,
    listed: Mutex<Option<Listed>>,
    /// Held while a list is asked for, so that calls that come together ask once.
    listing: tokio::sync::Mutex<()>,
    /// Counts the changes of the list that the server reported, and starts.
    changes: Arc<AtomicU64>,
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
}

/// A list of tools.
struct Listed {
    catalogue: Arc<Catalogue>,
    at: Instant,
    /// The count of changes before it was asked for.
    change: u64,
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
            listed: Mutex::new(None),
            listing: tokio::sync::Mutex::new(()),
            changes: Arc::default(),
        })
    }

    /// Calls a tool. If the future is dropped, the call is cancelled at the server.
    pub(super) async fn call(
        self: &Arc<Self>,
        tool: String,
        arguments: Map<String, Value>,
    ) -> Result<Vec<Item>, CallError> {
        let using = self.connection().await?;
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        match using.0.peer.call_tool_once(params).await {
            Ok(CallToolResponse::Complete(result)) => answer::of_tool(&self.settings.name, result),
            Ok(_) => {
                let why =
                    "the tool asks for input or begins a task, which calls from code cannot do";
                Err(CallError::new(CallErrorKind::Upstream, why))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The tools, as they were listed last unless that was long ago or the server reported a change.
    pub(super) async fn catalogue(self: &Arc<Self>) -> Result<Arc<Catalogue>, CallError> {
        if let Some(catalogue) = self.known() {
            return Ok(catalogue);
        }
        let _one = self.listing.lock().await;
        if let Some(catalogue) = self.known() {
            return Ok(catalogue);
        }
        let using = self.connection().await?;
        // Read before the request: a change during it makes the list old.
        let change = self.changes.load(Ordering::Relaxed);
        let catalogue = timeout(LIST_TIMEOUT, self.list(&using.0.peer)).await;
        let catalogue = catalogue
            .unwrap_or_else(|_| Err(self.unavailable("it did not list its tools in time")))?;
        let catalogue = Arc::new(catalogue);
        let listed = Listed { catalogue: catalogue.clone(), at: Instant::now(), change };
        *self.listed.lock() = Some(listed);
        Ok(catalogue)
    }

    /// The tools as they were listed last, unless the server reported a change since.
    pub(super) fn last(&self) -> Option<Arc<Catalogue>> {
        let listed = self.listed.lock();
        let change = self.changes.load(Ordering::Relaxed);
        listed.as_ref().filter(|listed| listed.change == change).map(|it| it.catalogue.clone())
    }

    fn known(&self) -> Option<Arc<Catalogue>> {
        let is_new = self.listed.lock().as_ref()?.at.elapsed() < LIST_AGE;
        self.last().filter(|_| is_new)
    }

    /// Asks for all pages of the list.
    async fn list(&self, peer: &Peer<RoleClient>) -> Result<Catalogue, CallError> {
        let (mut tools, mut bytes, mut cursor) = (vec![], 0, None);
        let mut is_cut = false;
        for page in 0.. {
            let params = PaginatedRequestParams::default().with_cursor(cursor.take());
            let listed = peer.list_tools(Some(params)).await.map_err(|error| self.failed(error))?;
            for tool in listed.tools {
                let schemas = [Some(&tool.input_schema), tool.output_schema.as_ref()];
                let schemas = schemas.into_iter().flatten().map(|schema| size(schema));
                let description = tool.description.as_deref();
                bytes += tool.name.len() + description.map_or(0, str::len) + schemas.sum::<usize>();
                if tools.len() == MAX_TOOLS || bytes > MAX_BYTES {
                    is_cut = true;
                    break;
                }
                let hints = tool.annotations.as_ref();
                let listed = Tool::listed(
                    &tool.name,
                    tool.title.as_deref().or(hints.and_then(|it| it.title.as_deref())),
                    description,
                    tool.input_schema.clone(),
                    tool.output_schema.clone(),
                    hints.is_some_and(|it| it.read_only_hint == Some(true)),
                );
                tools.extend(listed);
            }
            is_cut |= page == MAX_PAGES && listed.next_cursor.is_some();
            cursor = listed.next_cursor;
            if cursor.is_none() || is_cut {
                break;
            }
        }
        if is_cut {
            warn!(upstream = %self.settings.name, tools = tools.len(), "its list of tools is cut: it is too long");
        }
        Ok(Catalogue::new(tools))
    }

    /// The connection, which is opened if there is none.
    async fn connection(self: &Arc<Self>) -> Result<Using, CallError> {
        loop {
            let starting = {
                let mut state = self.state.lock();
                match &*state {
                    State::On(_, connection) => return Ok(Using::new(connection)),
                    State::Starting(_, starting) => starting.clone(),
                    State::Off(Failures { wait: Some((until, why)), .. })
                        if *until > Instant::now() =>
                    {
                        let left = (*until - Instant::now()).as_secs() + 1;
                        return Err(
                            self.unavailable(&format!("{why}; it is started again in {left} s"))
                        );
                    }
                    State::Off(failures) => {
                        let failures = failures.clone();
                        // A task of its own: the first call that waits may be cancelled.
                        let task = tokio::spawn(self.clone().start());
                        let client = self.clone();
                        let starting = async move {
                            task.await.unwrap_or_else(|_| {
                                let why = "its start failed".to_owned();
                                let error = client.unavailable(&why);
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
                Err(self.unavailable(&why))
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
                answer::too_large(&self.settings.name, self.settings.max_answer)
            }
            ServiceError::McpError(ErrorData { code: NONSENSE, message, .. }) => {
                self.unavailable(&message)
            }
            ServiceError::McpError(error) => {
                CallError::new(CallErrorKind::Upstream, error.message.into_owned())
            }
            ServiceError::TransportClosed => self.unavailable("it ended during the call"),
            ServiceError::TransportSend(error) => {
                let told = http::told(&error);
                self.unavailable(&told.unwrap_or_else(|| error.error.to_string()))
            }
            other => self.unavailable(&net::chain(&other)),
        }
    }

    fn unavailable(&self, why: &str) -> CallError {
        let why = format!("{} is not available: {why}", self.settings.name);
        CallError::new(CallErrorKind::Unavailable, why)
    }
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
