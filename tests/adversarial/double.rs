//! Sandboxes in memory whose agents do what a test orders: a script is at the other end of the stream, chosen by the
//! session's name.

#![expect(missing_docs, clippy::unwrap_used, reason = "the names say it, and a test may panic")]

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use backend::{
    Abilities, Backend, BackendError, Check, Diagnosable, Greeting, Limits, ListedSandbox, Probe,
    Sandbox, Spec, Template, docker::Docker,
};
use bytes::Bytes;
use config::{Config, Inputs};
use futures::{FutureExt, future::BoxFuture};
use link::Timing;
use llm_sandbox::{
    archive::Archive,
    error::Result,
    session::{FileReader, RunReport},
    sessions::{
        Inspect, Inspected, List, Open, Options, Program, Reset, RuntimeName, Sessions, Summarize,
        Upload,
    },
};
use model::{DataPath, Existing, SessionId};
use protocol::{
    frame::{self, Kind, MAX_BODY, PREFIX_LEN, PROTOCOL_VERSION, Prefix},
    message::{
        AgentHello, Captured, Carried, CellDone, CellState, Contents, Empty, End, Export,
        ExportDone, Facts, FileEntry, Get, GetDone, Import, ImportDone, InspectDone, ListDone,
        PutDone, ResetDone, Run, RunDone, Stamp, Start, SummarizeDone, Variable, WarmDone,
    },
};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// The longest that anything in these tests can take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Deadlines that a test can wait for, and that an honest agent meets even on a machine with four times as many busy
/// processes as processors.
pub const TIMING: Timing = Timing {
    hello: Duration::from_secs(10),
    ping: Duration::from_secs(1),
    silence: Duration::from_secs(10),
};

/// The same deadlines, for sessions without an archive.
pub fn options() -> Options {
    Options { timing: TIMING, ..Options::default() }
}

/// The output of every run of an honest agent.
pub const PRINTED: &[u8] = b"honest\n";

/// The stamp of the only file of an honest agent; its size is that of [`PRINTED`].
pub const STAMP: Stamp = Stamp { ino: 1, size: 7, mtime_ns: 3, ctime_ns: 4 };

type Script = Arc<dyn Fn(Agent) -> BoxFuture<'static, ()> + Send + Sync>;

/// The agent's end of a stream.
pub struct Agent {
    stream: DuplexStream,
    /// Bytes that the server has taken or that wait for it in the stream.
    pub sent: u64,
    cast: Arc<Shared>,
}

/// A request of the server.
pub struct Asked {
    pub call: u32,
    pub kind: Kind,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

impl Agent {
    /// The next request other than pings and warm-ups, which are answered; `None` when the server has closed the
    /// stream.
    pub async fn asked(&mut self) -> Option<Asked> {
        loop {
            let asked = self.any_asked().await?;
            match asked.kind {
                Kind::Warm => self.warm(asked.call).await,
                Kind::Ping => self.reply(asked.call, &Empty {}, b"").await,
                _ => return Some(asked),
            }
        }
    }

    /// The next frame, whatever it is.
    pub async fn any_asked(&mut self) -> Option<Asked> {
        let mut prefix = [0; PREFIX_LEN];
        self.stream.read_exact(&mut prefix).await.ok()?;
        let Prefix { call, kind, head_len, body_len } = Prefix::decode(prefix).unwrap();
        let mut rest = vec![0; head_len + body_len];
        self.stream.read_exact(&mut rest).await.ok()?;
        let body = rest.split_off(head_len);
        Some(Asked { call, kind, head: rest, body })
    }

    /// Sends bytes unchanged; returns false if the server has closed the stream.
    pub async fn raw(&mut self, bytes: &[u8]) -> bool {
        let sent = self.stream.write_all(bytes).await.is_ok();
        self.sent += if sent { bytes.len() as u64 } else { 0 };
        sent
    }

    /// Sends a frame with any head.
    pub async fn send(&mut self, call: u32, kind: Kind, head: &[u8], body: &[u8]) -> bool {
        self.raw(&frame(call, kind, head, body)).await
    }

    /// Answers a request.
    pub async fn reply(&mut self, call: u32, head: &impl Serialize, body: &[u8]) {
        self.send(call, Kind::Reply, &serde_json::to_vec(head).unwrap(), body).await;
    }

    /// Answers the server's hello correctly, and sends nothing before.
    pub async fn hello(&mut self) {
        match self.any_asked().await {
            Some(asked) => assert_eq!((asked.call, asked.kind), (0, Kind::Hello)),
            None => return,
        }
        let hello = AgentHello { version: PROTOCOL_VERSION, max_body: MAX_BODY, max_uploads: 16 };
        self.send(0, Kind::Hello, &serde_json::to_vec(&hello).unwrap(), b"").await;
    }

    /// Answers a request correctly.
    pub async fn honestly(&mut self, asked: &Asked) {
        match asked.kind {
            Kind::Run => {
                let run: Run = serde_json::from_slice(&asked.head).unwrap();
                let (head, body) = if run.cell { cell_done(PRINTED) } else { run_done(PRINTED) };
                self.reply(asked.call, &head, &body).await;
            }
            Kind::Inspect => {
                let done = InspectDone { live: true, count: 1, can_undo: 1, memory_bytes: None };
                self.reply(asked.call, &done, &contents(1)).await;
            }
            Kind::Export => {
                let export: Export = serde_json::from_slice(&asked.head).unwrap();
                let done = ExportDone { live: true, count: 1, total: PRINTED.len() as u64 };
                let body = if export.begin.is_some() { carried(1) } else { PRINTED.to_vec() };
                self.reply(asked.call, &done, &body).await;
            }
            Kind::Import => {
                let import: Import = serde_json::from_slice(&asked.head).unwrap();
                let body = import.last.map(|_| carried(1)).unwrap_or_default();
                self.reply(asked.call, &ImportDone { count: import.count }, &body).await;
            }
            Kind::Reset => {
                let done = ResetDone { count: 0, can_undo: 0, lost_threads: 0 };
                self.reply(asked.call, &done, b"").await;
            }
            Kind::Get => {
                let get: Get = serde_json::from_slice(&asked.head).unwrap();
                let rest = &PRINTED[usize::try_from(get.offset).unwrap()..];
                let piece = &rest[..rest.len().min(get.len)];
                self.reply(asked.call, &GetDone { stamp: STAMP }, piece).await;
            }
            Kind::List => {
                let page = page(["made.csv"]);
                self.reply(asked.call, &ListDone { more: false, cut: false }, &page).await;
            }
            Kind::Summarize => {
                let summary = br#"{"kind":"csv","columns":[],"rows":1}"#;
                self.reply(asked.call, &SummarizeDone::default(), summary).await;
            }
            Kind::Put => self.reply(asked.call, &PutDone { replaced: false }, b"").await,
            Kind::Warm => self.warm(asked.call).await,
            _ => self.reply(asked.call, &Empty {}, b"").await,
        }
    }

    /// Answers a warm-up: there is no fork server here.
    async fn warm(&mut self, call: u32) {
        let done = WarmDone { ready: false, problems: vec![], went_on: None };
        self.reply(call, &done, b"").await;
    }

    /// Answers all requests honestly until the server closes the stream.
    pub async fn honest(mut self) {
        self.hello().await;
        while let Some(asked) = self.asked().await {
            self.honestly(&asked).await;
        }
    }

    /// Says hello, and then nothing, until the server closes the stream.
    pub async fn deaf(mut self) {
        self.hello().await;
        while self.any_asked().await.is_some() {}
    }

    /// Takes in everything that comes, and answers nothing, until the server closes the stream.
    pub async fn deaf_from_now_on(mut self) -> Self {
        while self.any_asked().await.is_some() {}
        self
    }

    /// Sends bytes while it takes in everything that comes, and answers nothing. Returns false if the server has closed
    /// the stream.
    pub async fn exchange(&mut self, bytes: &[u8]) -> bool {
        let (mut reader, mut writer) = tokio::io::split(&mut self.stream);
        let mut taken = [0; 4096];
        let sending = writer.write_all(bytes);
        tokio::pin!(sending);
        loop {
            tokio::select! {
                sent = &mut sending => return sent.is_ok(),
                read = reader.read(&mut taken) => if !read.is_ok_and(|len| len > 0) {
                    return false;
                }
            }
        }
    }

    /// Reports to the test how many bytes were sent.
    pub fn confess(&self) {
        self.cast.sent.store(usize::try_from(self.sent).unwrap(), Ordering::SeqCst);
    }
}

/// A frame in bytes.
pub fn frame(call: u32, kind: Kind, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut wire = vec![];
    frame::write(&mut wire, call, kind, head, &[body]).unwrap();
    wire
}

/// An honest answer to a run with this output.
pub fn run_done(stdout: &[u8]) -> (RunDone, Vec<u8>) {
    let total = stdout.len() as u64;
    let done = RunDone {
        end: End::Exited { code: 0 },
        start: Start::Cold,
        elapsed_us: 1000,
        agent_us: 1000,
        cpu_us: 1000,
        oom_kills: 0,
        stdout: Captured { head: stdout.len(), tail: 0, total },
        stderr: Captured::default(),
        changed_len: 0,
        changed_omitted: 0,
        facts: Facts::default(),
        cell: None,
    };
    (done, stdout.to_vec())
}

/// An honest answer to a cell with this output, which is also its value.
pub fn cell_done(stdout: &[u8]) -> (RunDone, Vec<u8>) {
    let (done, body) = run_done(stdout);
    let cell = CellDone {
        state: CellState::Kept,
        fresh: false,
        count: 1,
        result: Some(done.stdout),
        memory_bytes: Some(1 << 20),
        can_undo: 1,
        lost_threads: 0,
        at_risk: false,
    };
    (RunDone { cell: Some(cell), ..done }, [&body[..], stdout].concat())
}

/// The contents of a workspace with this number of variables.
pub fn contents(variables: usize) -> Vec<u8> {
    let variable = |n| Variable { name: format!("x{n}"), summary: "int".into() };
    let variables = (0..variables).map(variable).collect();
    serde_json::to_vec(&Contents { variables, ..Contents::default() }).unwrap()
}

/// The list of this number of variables that were exported or imported.
pub fn carried(variables: usize) -> Vec<u8> {
    let variables = (0..variables).map(|n| format!("x{n}")).collect();
    serde_json::to_vec(&Carried { variables, ..Carried::default() }).unwrap()
}

/// A page of a listing.
pub fn page<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let entry = |path: &str| FileEntry { path: path.into(), stamp: STAMP };
    let entries: Vec<_> = paths.into_iter().map(entry).collect();
    serde_json::to_vec(&entries).unwrap()
}

/// A backend that starts agents. Those without a script are honest.
#[derive(Clone, Default)]
pub struct Cast {
    scripts: HashMap<SessionId, Script>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The running sandboxes by number, each with the token that removes it.
    live: Mutex<HashMap<usize, CancellationToken>>,
    next: AtomicUsize,
    sent: AtomicUsize,
}

impl fmt::Debug for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cast").finish_non_exhaustive()
    }
}

impl Cast {
    /// Makes the agent of a session follow this script.
    #[must_use]
    pub fn with<F>(
        mut self,
        session: &str,
        script: impl Fn(Agent) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let script: Script = Arc::new(move |agent| script(agent).boxed());
        self.scripts.insert(id(session), script);
        self
    }

    /// The number of running sandboxes.
    pub fn live(&self) -> usize {
        self.shared.live.lock().unwrap().len()
    }

    /// The number that an agent [confessed](Agent::confess) last.
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }

    /// A registry for at most `max_sessions` sessions with these sandboxes.
    pub fn sessions(&self, max_sessions: usize) -> Sessions {
        let config = Config { max_sessions, max_hibernated: 0, ..Config::default() };
        Sessions::new(config, Arc::new(self.clone()), options())
    }

    /// A registry for two sessions whose code may list the upstream `api`, and call it if a person allows that.
    pub fn with_an_upstream(&self) -> Sessions {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let yaml =
            "upstreams: { api: { base_url: \"http://127.0.0.1:1\", private: true, ask: [get] } }";
        std::fs::write(&file, yaml).unwrap();
        let inputs = Inputs { file: Some(file), ..Inputs::default() };
        let config = Config::load(&inputs).unwrap();
        let config = Config { max_sessions: 2, max_hibernated: 0, ..config };
        Sessions::new(config, Arc::new(self.clone()), options())
    }

    /// A registry for four sessions with an archive in this folder.
    pub fn archived_in(&self, folder: &std::path::Path) -> Sessions {
        let archive = Some(folder.to_str().expect("UTF-8").to_owned());
        let config = Config {
            max_sessions: 4,
            max_hibernated: 0,
            archive,
            min_free: 0,
            ..Config::default()
        };
        let archive = Archive::of(&config).expect("a folder");
        Sessions::new(config, Arc::new(self.clone()), Options { archive, ..options() })
    }

    /// Waits until exactly `count` sandboxes are left.
    pub async fn only(&self, count: usize) {
        until("the other sandboxes are gone", || self.live() == count).await;
    }
}

impl Backend for Cast {
    fn start(&self, spec: Spec) -> BoxFuture<'_, std::result::Result<Sandbox, BackendError>> {
        async move {
            let (ours, theirs) = duplex(64 << 10);
            let number = self.shared.next.fetch_add(1, Ordering::SeqCst);
            let removed = CancellationToken::new();
            self.shared.live.lock().unwrap().insert(number, removed.clone());
            let agent = Agent { stream: theirs, sent: 0, cast: self.shared.clone() };
            let script = match self.scripts.get(&spec.session) {
                Some(script) => script(agent),
                None => agent.honest().boxed(),
            };
            let shared = self.shared.clone();
            let life = tokio::spawn(async move {
                removed.run_until_cancelled(script).await;
                shared.live.lock().unwrap().remove(&number);
            });
            let (reader, writer) = tokio::io::split(ours);
            Ok(Sandbox {
                id: number.to_string(),
                reader: Box::new(reader),
                writer: Box::new(writer),
                gone: life.map(drop).boxed().shared(),
            })
        }
        .boxed()
    }

    fn list(&self) -> BoxFuture<'_, std::result::Result<Vec<ListedSandbox>, BackendError>> {
        async { Ok(vec![]) }.boxed()
    }

    fn remove(&self, id: String) -> BoxFuture<'_, std::result::Result<(), BackendError>> {
        async move {
            let number: usize = id.parse().unwrap();
            if let Some(removed) = self.shared.live.lock().unwrap().get(&number) {
                removed.cancel();
            }
            Ok(())
        }
        .boxed()
    }

    fn template(&self) -> BoxFuture<'_, Option<Template>> {
        async { None }.boxed()
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { diagnosable: Some(self), ..Abilities::default() }
    }

    fn ready(&self) -> BoxFuture<'_, std::result::Result<(), BackendError>> {
        async { Ok(()) }.boxed()
    }
}

impl Diagnosable for Cast {
    fn checks<'a>(&'a self, _: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        async { vec![] }.boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        async { None }.boxed()
    }

    /// Uses the words of the Docker backend.
    fn no_greeting(&self, fault: Greeting, detail: &str) -> BackendError {
        Docker::new("llm-sandbox:latest", None).no_greeting(fault, detail)
    }
}

/// A session's name.
pub fn id(session: &str) -> SessionId {
    session.parse().unwrap()
}

/// A program; the agents in memory do not look at its code.
pub fn program() -> Program {
    let code = Bytes::from_static(b"print('honest')");
    Program::new(RuntimeName::PYTHON, code, Duration::from_secs(1))
}

/// The same program as a cell.
pub fn cell() -> Program {
    Program { cell: true, ..program() }
}

/// Runs a cell in a session of this name.
///
/// # Errors
/// If the session returns an error.
pub async fn run_cell(sessions: &Sessions, session: &str) -> Result<RunReport> {
    soon(sessions.run(Some(id(session)), cell())).await.1
}

/// Inspects the workspace of a session.
///
/// # Errors
/// If the session returns an error.
pub async fn inspect(sessions: &Sessions, session: &str) -> Result<Option<Inspected>> {
    let inspect = Inspect { language: RuntimeName::PYTHON };
    soon(sessions.perform(&id(session), inspect)).await
}

/// Undoes one cell of a session.
///
/// # Errors
/// If the session returns an error.
pub async fn undo(sessions: &Sessions, session: &str) -> Result<ResetDone> {
    let reset = Reset { language: RuntimeName::PYTHON, undo: Some(1), files: false };
    soon(sessions.perform(&id(session), reset)).await
}

/// Runs a program in a session of this name.
///
/// # Errors
/// If the session returns an error.
pub async fn run(sessions: &Sessions, session: &str) -> Result<RunReport> {
    soon(sessions.run(Some(id(session)), program())).await.1
}

/// Makes every kind of call in an honest session.
pub async fn use_all_of(sessions: &Sessions, session: &str) {
    assert_eq!(run(sessions, session).await.unwrap().stdout.text.as_bytes(), PRINTED);
    let report = run_cell(sessions, session).await.unwrap();
    let cell = report.cell.expect("a cell");
    assert_eq!(cell.result.expect("a value").text.as_bytes(), PRINTED);
    let held = inspect(sessions, session).await.unwrap().expect("no run is in progress");
    assert_eq!(held.contents.variables.len(), 1);
    assert_eq!(undo(sessions, session).await.unwrap().count, 0);
    soon(upload(sessions, session)).await.unwrap();
    let summarize = Summarize { path: "made.csv".into() };
    let summary = soon(sessions.perform(&id(session), summarize)).await.unwrap();
    assert_eq!(summary.and_then(|summary| summary.rows), Some(1));
    assert_eq!(soon(sessions.perform(&id(session), List)).await.unwrap().artifacts.len(), 1);
    assert_eq!(soon(open(sessions, session).await.unwrap().read()).await.unwrap(), PRINTED);
}

/// Uploads a file of several pieces.
///
/// # Errors
/// If the session returns an error.
pub async fn upload(sessions: &Sessions, session: &str) -> Result<()> {
    sessions
        .perform_or_create(
            Some(id(session)),
            Upload {
                path: made(),
                content: vec![7; 3 * MAX_BODY].into(),
                existing: Existing::Keep,
            },
        )
        .await
        .1
        .map(drop)
}

/// Opens the file of an honest agent.
///
/// # Errors
/// If the session returns an error.
pub async fn open(sessions: &Sessions, session: &str) -> Result<FileReader> {
    soon(sessions.perform(&id(session), Open { path: made().into() })).await
}

fn made() -> DataPath {
    DataPath::relative("made.csv").unwrap()
}

/// Waits for `what`, for at most [`PATIENCE`].
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("in time")
}

/// Waits until `holds` returns true.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "never: {what}");
}
