//! A client of the real program, small enough to control exactly what goes over the wire.
//!
//! It is written here on purpose: the library that the server is built on has a client too, and the two could share a
//! mistake. The official clients are in `tests/clients`.

#![expect(missing_docs, clippy::unwrap_used, reason = "the names say it, and a test may panic")]

use std::{
    collections::HashMap,
    fmt::Write as _,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

#[macro_use]
mod calls;
pub mod index;
pub mod issuer;
pub mod kubernetes;
pub mod metrics;
pub mod registry;
mod shelf;
pub mod tls;
pub mod web;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, ChildStdin, Command},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

/// The longest that anything in a test may take. Not a promise about speed: it only ends what hangs.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// How many times longer than usual anything may take: `TEST_SLOWNESS`, which is set on an emulated machine.
pub fn slowness() -> u32 {
    let factor = std::env::var("TEST_SLOWNESS").ok();
    factor.map_or(1, |factor| factor.parse().expect("TEST_SLOWNESS is a number"))
}

/// For runs that are long on a busy machine: their timeout is [`PATIENCE`].
pub const PATIENT: (&str, &str) = ("SANDBOX_EXEC_TIMEOUT_S", "90");

/// The backend of a server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Plain processes.
    Local,
    /// Containers.
    Docker,
    /// The embedded engine.
    Wasm,
    /// Pods of a cluster in this process.
    Kubernetes,
}

impl On {
    /// Sets the engine of a program, unless the test has set one.
    pub fn choose(self, command: &mut Command) {
        let is_set = command.as_std().get_envs().any(|(name, _)| name == "SANDBOX_ENGINE");
        if !is_set && self != Self::Local {
            command.env("SANDBOX_ENGINE", self.name());
        }
        if self == Self::Wasm {
            command.env("SANDBOX_RUNTIME_DIR", runtime_folder());
        }
        if self == Self::Kubernetes
            && !command.as_std().get_envs().any(|(name, _)| name == "KUBECONFIG")
        {
            command.env("KUBECONFIG", &kubernetes::Cluster::shared().kubeconfig);
        }
    }

    /// Whether the sandboxes are plain processes of this machine, with its files and its Python.
    pub fn is_plain(self) -> bool {
        !matches!(self, Self::Docker | Self::Wasm)
    }

    /// The name of the engine in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker => "docker",
            Self::Wasm => "wasm",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// Makes four tests of each function: as [`on_both`], on pods that are processes, and on the embedded engine. The
/// module of a test names its engine; it is `docker_only` if the test exists for no other engine.
#[macro_export]
macro_rules! on_all {
    ($($test:ident),* $(,)? $(; not on wasm: $($other:ident),* $(,)?)? $(; on docker alone: $($docker:ident),* $(,)?)?) => {
        $crate::on_both!($($test,)* $($($other,)*)? $(; on docker alone: $($docker),*)?);
        mod kubernetes {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test($crate::On::Kubernetes).await })*
            $($(#[tokio::test(flavor = "multi_thread")]
            async fn $other() { super::$other($crate::On::Kubernetes).await })*)?
        }
        mod wasm {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test($crate::On::Wasm).await })*
        }
    };
}

/// Makes two tests of each function: one on processes, one on containers.
#[macro_export]
macro_rules! on_both {
    ($($test:ident),* $(,)? $(; on docker alone: $($docker:ident),* $(,)?)?) => {
        mod local {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test($crate::On::Local).await })*
        }
        mod docker {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test($crate::On::Docker).await })*
        }
        $($crate::on_docker!($($docker),*);)?
    };
}

/// Makes a test of each function, which runs on containers.
#[macro_export]
macro_rules! on_docker {
    ($($test:ident),* $(,)?) => {
        mod docker_only {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test().await })*
        }
    };
}

/// Makes a test of each row: its name, and what it does.
#[macro_export]
macro_rules! tests {
    ($($name:ident => $does:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() { $does.await })*
    };
}

/// A server for one test.
pub struct Server {
    pub process: Child,
    input: Option<mpsc::UnboundedSender<String>>,
    waiting: Waiting,
    heard: Arc<Mutex<Vec<Value>>>,
    next: AtomicU64,
    _folder: tempfile::TempDir,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// The result of a tool call.
#[derive(Debug)]
pub struct Answer {
    /// The whole result.
    pub raw: Value,
    /// The JSON in its last text block.
    pub json: Value,
}

impl Answer {
    /// Reads a result, of which exactly one block is text.
    #[track_caller]
    pub fn new(raw: Value) -> Self {
        let blocks = raw["content"].as_array().expect("blocks");
        let mut texts = blocks.iter().filter_map(|block| block["text"].as_str());
        let text = texts.next().expect("a text block");
        assert_eq!(texts.next(), None, "one text block");
        let json = serde_json::from_str(text).expect("JSON in the text");
        Self { raw, json }
    }

    /// The blocks of this type.
    pub fn blocks(&self, kind: &str) -> Vec<&Value> {
        let blocks = self.raw["content"].as_array().expect("blocks");
        blocks.iter().filter(|block| block["type"] == kind).collect()
    }

    /// The result of a call that must have succeeded.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.raw["isError"], false, "{}", self.json);
        assert_eq!(self.raw["structuredContent"], self.json, "the same JSON twice");
        self.json
    }

    /// Names and sizes of the files in a listing, which must have succeeded.
    #[track_caller]
    pub fn files(self) -> Vec<(String, u64)> {
        let listed = self.ok();
        let entry = |file: &Value| {
            let name = file["filename"].as_str().expect("a name").to_owned();
            (name, file["size_bytes"].as_u64().expect("a size"))
        };
        listed["artifacts"].as_array().expect("an array").iter().map(entry).collect()
    }

    /// The code of a call that must have failed, checked for its form.
    #[track_caller]
    pub fn error(&self) -> &str {
        assert_eq!(self.raw["isError"], true, "{}", self.json);
        assert_eq!(self.raw.get("structuredContent"), None);
        assert_eq!(self.raw["content"].as_array().map(Vec::len), Some(1));
        assert!(self.json["message"].as_str().is_some_and(|text| !text.is_empty()));
        self.json["error"].as_str().expect("a code")
    }
}

impl Server {
    pub async fn start(on: On) -> Self {
        Self::start_with(on, &[]).await
    }

    /// Starts the program with these settings and initializes the connection.
    pub async fn start_with(on: On, settings: &[(&str, &str)]) -> Self {
        Self::start_to(on, settings, Stdio::inherit()).await
    }

    /// Does the same, with `stderr` as the program's standard error.
    pub async fn start_to(on: On, settings: &[(&str, &str)], stderr: Stdio) -> Self {
        Self::launch_to(on, settings, stderr).greeted().await
    }

    /// Starts a program that [`program`] made, and initializes the connection.
    pub async fn start_as(on: On, command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::launch_as(on, command, folder).greeted().await
    }

    async fn greeted(self) -> Self {
        let server = self;
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "tests", "version": "1" },
        });
        server.request("initialize", hello).await;
        server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        server
    }

    /// Starts the program and sends nothing.
    pub fn launch(on: On, settings: &[(&str, &str)]) -> Self {
        Self::launch_to(on, settings, Stdio::inherit())
    }

    fn launch_to(on: On, settings: &[(&str, &str)], stderr: Stdio) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = program(folder.path(), settings);
        command.stderr(stderr);
        Self::launch_as(on, command, folder)
    }

    fn launch_as(on: On, mut command: Command, folder: tempfile::TempDir) -> Self {
        on.choose(&mut command);
        let mut process = command
            .args((on == On::Local).then_some("--no-isolation"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the server starts");
        let waiting = Waiting::default();
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let heard = Arc::<Mutex<Vec<Value>>>::default();
        tokio::spawn(pass_on(lines, waiting.clone(), heard.clone()));
        let (input, queue) = mpsc::unbounded_channel();
        tokio::spawn(write_lines(process.stdin.take().expect("piped"), queue));
        let next = AtomicU64::new(1);
        Self { process, input: Some(input), waiting, heard, next, _folder: folder }
    }

    /// Sends one message as a line.
    pub fn send(&self, message: &Value) {
        self.send_line(message.to_string());
    }

    /// Sends a line as it is.
    pub fn send_line(&self, line: String) {
        self.input.as_ref().expect("input is open").send(line).expect("the server runs");
    }

    /// Sends a request and waits for its answer, the whole message.
    pub async fn request(&self, method: &str, params: Value) -> Value {
        answered(self.begin_request(method, params).1).await
    }

    /// Sends a request; returns its id, and the receiver of its answer.
    pub fn begin_request(&self, method: &str, params: Value) -> (u64, oneshot::Receiver<Value>) {
        let (id, answer) = self.expect_answer();
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        (id, answer)
    }

    /// Begins a call; returns the id of its request, and the receiver of its answer.
    pub fn begin(&self, tool: &str, arguments: Value) -> (u64, oneshot::Receiver<Value>) {
        self.begin_request("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Cancels a request.
    pub fn cancel(&self, id: u64) {
        let params = json!({ "requestId": id });
        self.send(
            &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }),
        );
    }

    /// The notifications and requests of the server, in the order of arrival.
    pub fn notifications(&self) -> Arc<Mutex<Vec<Value>>> {
        self.heard.clone()
    }

    /// A new id for a request, and the receiver of its answer.
    pub fn expect_answer(&self) -> (u64, oneshot::Receiver<Value>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap().insert(id, sender);
        (id, receiver)
    }

    /// The tools that the server offers.
    pub async fn tools(&self) -> Vec<Value> {
        let listed = self.request("tools/list", json!({})).await;
        listed["result"]["tools"].as_array().expect("an array").clone()
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        let answer =
            self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await;
        let raw = answer.get("result").cloned().unwrap_or_else(|| panic!("no result: {answer}"));
        Answer::new(raw)
    }

    calls!();

    /// Names and sizes of a session's files; empty if there is no such session (yet).
    pub async fn files_if_any(&self, session: &str) -> Vec<(String, u64)> {
        let listed = self.call("list_artifacts", json!({ "session_id": session })).await;
        if listed.raw["isError"] == true { vec![] } else { self.files(session).await }
    }

    /// The download URL of an existing file, as the server returns it.
    pub async fn url(&self, session: &str, file: &str) -> String {
        let listed = self.call("list_artifacts", json!({ "session_id": session })).await.ok();
        url_in(&listed, file)
    }

    /// The base of the server's URLs, without a slash at the end.
    pub async fn base(&self) -> String {
        let probe = self.call("run_python", json!({ "code": "open('a', 'w')" })).await.ok();
        let url = probe["artifacts"][0]["download_url"].as_str().expect("an address").to_owned();
        self.call("close_session", json!({ "session_id": probe["session_id"] })).await.ok();
        url.split("/files/").next().expect("a base").to_owned()
    }

    /// Closes standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Kills the server, and waits for its end: until then it has its locks.
    pub async fn kill(&mut self) {
        self.signal("KILL");
        assert_eq!(self.exit_code().await, None);
    }

    process!();
}

/// Names and sizes of a session's files, from all pages.
pub async fn all_files(session: &str, list: impl AsyncFn(Value) -> Answer) -> Vec<(String, u64)> {
    let (mut files, mut arguments) = (vec![], json!({ "session_id": session }));
    loop {
        let page = list(arguments.clone()).await;
        let next = page.json.get("next_offset").cloned();
        files.extend(page.files());
        let Some(next) = next else { return files };
        assert_eq!(next, files.len(), "it goes on where the page ends");
        arguments["offset"] = next;
    }
}

/// The download URL of a file in a page of a list: the file's own URL, or one made from the page's template.
#[track_caller]
pub fn url_in(listed: &Value, file: &str) -> String {
    const KEPT: percent_encoding::AsciiSet =
        percent_encoding::NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
    let files = listed["artifacts"].as_array().expect("an array");
    let found = files.iter().find(|it| it["filename"] == file);
    let found = found.unwrap_or_else(|| panic!("no {file} in {listed}"));
    if let Some(url) = found.get("download_url") {
        return text(url).to_owned();
    }
    let name = percent_encoding::utf8_percent_encode(file, &KEPT).to_string();
    text(&listed["download_url_template"]).replace("{filename}", &name)
}

/// The arguments of `upload_file` for a content, in base64.
fn upload_arguments(session: &str, name: &str, content: &[u8]) -> Value {
    let content = STANDARD.encode(content);
    json!({ "session_id": session, "filename": name, "content_base64": content })
}

/// The setting of a test whose sandboxes load the data libraries, as a server does by default and [`program`] does not.
pub const PRELOADED: (&str, &str) = ("SANDBOX_PRELOAD", "");

/// The number of rounds of a drill: `gate`, or `full` in a full run, which sets `TEST_FULL`.
pub fn rounds<T>(gate: T, full: T) -> T {
    if std::env::var_os("TEST_FULL").is_some() { full } else { gate }
}

/// A fifth of these in the gate, chosen by the commit (`TEST_FIFTH`, 0 to 4); otherwise all.
pub fn share_of<T>(all: Vec<T>) -> Vec<T> {
    let Ok(fifth) = std::env::var("TEST_FIFTH") else { return all };
    let fifth: usize = fifth.parse().expect("TEST_FIFTH is a number from 0 to 4");
    all.into_iter().skip(fifth).step_by(5).collect()
}

/// The program with settings that keep tests out of each other's way.
pub fn program(folder: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary());
    command
        .current_dir(folder)
        .env("SANDBOX_HTTP_PORT", "0")
        .env("SANDBOX_LOG_FILE", "")
        .env("SANDBOX_LOG_LEVEL", "ERROR")
        // The disk of the machine that runs the tests may be nearly full: then the archive saves nothing.
        .env("SANDBOX_MIN_FREE", "0")
        // A pooled sandbox would cost each server a second of processor time, and only some tests need one.
        .env("SANDBOX_POOL_SIZE", "0")
        // Preloading would cost each sandbox another second. Tests of preloaded libraries set [`PRELOADED`].
        .env("SANDBOX_PRELOAD", "json")
        // No settings file, even if this user or machine has one.
        .env("SANDBOX_CONFIG_FILE", "/dev/null")
        // The files that a killed server leaves are removed with the folder.
        .env("TMPDIR", folder)
        // No runtime, even if this user has one installed: without a choice of the test, the engine is Docker.
        .env("SANDBOX_RUNTIME_DIR", folder.join("no-runtime"));
    for setting in settings {
        if *setting == PRELOADED {
            command.env_remove(setting.0);
        } else {
            command.env(setting.0, setting.1);
        }
    }
    command
}

/// The root folder of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in it")
}

/// The program under test: `LLM_SANDBOX_BIN`, by default the one beside the folder `deps` of this test program.
pub fn binary() -> PathBuf {
    if let Some(program) = std::env::var_os("LLM_SANDBOX_BIN") {
        return built(root().join(program));
    }
    let test = std::env::current_exe().expect("the path of this program");
    built(test.ancestors().nth(2).expect("it is in `deps`").join("llm-sandbox"))
}

/// Another program of the workspace, in the folder of the program under test.
pub fn binary_beside(name: &str) -> PathBuf {
    built(binary().with_file_name(name))
}

fn built(program: PathBuf) -> PathBuf {
    let path = program.display();
    assert!(
        program.is_file(),
        "{path} is missing: `cargo build --workspace --all-features` builds it"
    );
    program
}

/// The folder in which `tests/run.sh` installed the embedded engine's runtime: beside the program.
pub fn runtime_folder() -> PathBuf {
    binary().with_file_name("runtime")
}

/// Writes lines until the sender is dropped, and then closes the pipe.
async fn write_lines(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<String>) {
    while let Some(line) = queue.recv().await {
        let written = async {
            stdin.write_all(line.as_bytes()).await?;
            stdin.write_all(b"\n").await?;
            stdin.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
}

async fn pass_on(
    mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    waiting: Waiting,
    heard: Arc<Mutex<Vec<Value>>>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let message: Value = serde_json::from_str(&line).expect("every line of output is JSON");
        if message.get("method").is_some() {
            heard.lock().unwrap().push(message);
            continue;
        }
        let waiter = message["id"].as_u64().and_then(|id| waiting.lock().unwrap().remove(&id));
        if let Some(waiter) = waiter {
            let _ = waiter.send(message);
        }
    }
    waiting.lock().unwrap().clear();
}

/// An output of a program as results show it.
pub fn on_screen(output: &[u8]) -> Vec<u8> {
    let (mut screen, mut shown) = (sandbox_files::screen::Screen::default(), vec![]);
    screen.push(output, &mut |text| shown.extend_from_slice(text));
    screen.end(&mut |text| shown.extend_from_slice(text));
    shown
}

/// An HTTP response.
pub struct Response {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// Whether a chunked body was complete.
    pub whole: bool,
}

impl Response {
    /// Reads everything that a server sent before it closed the connection.
    #[track_caller]
    pub fn parse(all: &[u8]) -> Self {
        let end = all.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(all[..end].to_vec()).expect("ASCII");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.filter_map(|line| line.split_once(": "));
        Self {
            whole: true,
            status: status.expect("a status"),
            headers: headers.map(|(k, v)| (k.to_ascii_lowercase(), v.to_owned())).collect(),
            body: all[end + 4..].to_vec(),
        }
        .unchunked()
    }

    fn unchunked(mut self) -> Self {
        if self.header("transfer-encoding") != "chunked" {
            return self;
        }
        let (mut rest, mut body) = (&self.body[..], vec![]);
        self.whole = false;
        while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
            let size = std::str::from_utf8(&rest[..line]).expect("ASCII");
            let size = usize::from_str_radix(size, 16).expect("a size");
            rest = &rest[line + 2..];
            if size == 0 {
                self.whole = true;
                break;
            }
            if rest.len() < size + 2 {
                break;
            }
            body.extend_from_slice(&rest[..size]);
            rest = &rest[size + 2..];
        }
        self.body = body;
        self
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The messages of a body that is JSON or a stream of events.
    #[track_caller]
    pub fn messages(&self) -> Vec<Value> {
        if !self.header("content-type").starts_with("text/event-stream") {
            return vec![self.json()];
        }
        let text = std::str::from_utf8(&self.body).expect("UTF-8");
        let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        let data = data.filter(|data| !data.is_empty());
        data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value)
    }
}

/// Sends one HTTP/1.1 request, with its target exactly as given.
pub async fn http(method: &str, url: &str) -> Response {
    http_with(method, url, &[], &[]).await
}

/// Does the same, with more headers (a header Host replaces the default one) and a body.
pub async fn http_with(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    let exchange = async {
        let mut all = vec![];
        // A server that refuses a body may close the connection before all of it was sent.
        if url.starts_with("https://") {
            let mut stream = tls::begin(method, url, headers, body).await;
            let _ = stream.read_to_end(&mut all).await;
        } else {
            let mut stream = http_begin(method, url, headers, body).await;
            let _ = stream.read_to_end(&mut all).await;
        }
        all
    };
    let all = timeout(PATIENCE * slowness(), exchange).await.expect("in time");
    Response::parse(&all)
}

/// Sends a request and leaves the answer unread.
pub async fn http_begin(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let (host, head) = head(method, url, headers, body);
    let mut stream = TcpStream::connect(host).await.expect("connected");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let _ = stream.write_all(body).await;
    stream
}

/// The host of a URL, and the head of a request.
fn head(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> (String, String) {
    let (_, rest) = url.split_once("://").expect("a scheme");
    let (host, target) = rest.split_once('/').expect("a path");
    let mut head = format!("{method} /{target} HTTP/1.1\r\nConnection: close\r\n");
    let named = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !named("host") {
        let _ = write!(head, "Host: {host}\r\n");
    }
    if !body.is_empty() && !named("content-length") && !named("transfer-encoding") {
        let _ = write!(head, "Content-Length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    (host.to_owned(), head + "\r\n")
}

/// A key of servers, in a file in this folder: servers that share callers do not make one themselves.
pub fn key_in(folder: &Path) -> String {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt};
    let path = folder.join("key");
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    if let Ok(mut file) = made {
        writeln!(file, "{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
            .expect("written");
    }
    path.display().to_string()
}

/// Reserves a TCP port until this process ends. The port is below the ephemeral range, from which the kernel assigns
/// ports to other sockets; and other test processes skip it, as a UDP socket of the same number is bound here.
pub fn free_port() -> String {
    static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(vec![]);
    const PORTS: u32 = 10_000;
    let mut reserved = RESERVED.lock().unwrap();
    let first = std::process::id() * 16;
    let free = (0..PORTS).find_map(|n| {
        let port = 20_000 + u16::try_from((first + n) % PORTS).expect("small");
        let address = (Ipv4Addr::LOCALHOST, port);
        let reservation = UdpSocket::bind(address).ok()?;
        TcpListener::bind(address).ok()?;
        reserved.push(reservation);
        Some(port)
    });
    free.expect("a free port").to_string()
}

/// The answer to a request, the whole message.
pub async fn answered(answer: oneshot::Receiver<Value>) -> Value {
    timeout(PATIENCE * slowness(), answer).await.expect("answered in time").expect("answered")
}

/// Checks that a JSON object has these fields; a field that is expected to be null must be missing.
#[macro_export]
macro_rules! assert_fields {
    ($found:expr, $fields:tt) => {
        $crate::check_fields(&$found, serde_json::json!($fields))
    };
}

/// Does the check of [`assert_fields`].
#[track_caller]
pub fn check_fields(found: &Value, expected: Value) {
    let Value::Object(expected) = expected else { panic!("no object: {expected}") };
    for (field, value) in expected {
        let value = Some(value).filter(|value| !value.is_null());
        assert_eq!(found.get(&field), value.as_ref(), "{field} of {found}");
    }
}

/// How a program ended: its exit code, standard output and standard error.
pub async fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let output =
        timeout(PATIENCE * slowness(), command.stdin(Stdio::null()).kill_on_drop(true).output())
            .await;
    let output = output.expect("ends in time").expect("starts");
    let [out, err] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    (output.status.code(), out, err)
}

/// The output of a command of the docker client, which must succeed.
pub fn docker(arguments: &[&str]) -> String {
    let output = std::process::Command::new("docker").args(arguments).output();
    let output = output.expect("the docker client runs; tests/run.sh makes the machine ready");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// Waits until the server at this port has `count` sessions.
pub async fn until_sessions(port: &str, count: u64) {
    let url = format!("http://127.0.0.1:{port}/ready");
    until("the number of sessions", async || {
        let ready: Value = serde_json::from_slice(&http("GET", &url).await.body).expect("JSON");
        ready["sessions"] == count
    })
    .await;
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = timeout(PATIENCE * slowness(), async {
        while !holds().await {
            sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "never: {what}");
}

/// The ids of this project's containers for a session of this name, in any state.
pub fn containers(session: &str) -> Vec<String> {
    let label = format!("label=session_id={session}");
    let format = "{{.ID}} {{.State}}";
    let listed = docker(&["ps", "--all", "--no-trunc", "--filter", &label, "--format", format]);
    // A busy engine lists a container a while after it was removed.
    let there = listed.lines().filter_map(|line| line.split_once(' '));
    there.filter(|(_, state)| *state != "removing").map(|(id, _)| id.to_owned()).collect()
}

/// A session name that no other test uses.
pub fn name(test: &str) -> String {
    format!("{test}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8])
}

#[track_caller]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}"))
}

/// Bytes that do not compress and do not repeat.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Code that ends when a file of this name appears.
pub fn until_uploaded(file: &str) -> String {
    format!("import os, time\nwhile not os.path.exists('{file}'): time.sleep(0.01)\nprint('seen')")
}

/// An image of one test; removed when dropped.
pub struct Image(pub String);

impl Image {
    /// Gives the usual image an additional name.
    pub fn named(test: &str) -> Self {
        let image = Self(format!("llm-sandbox-test:{}", name(test)));
        docker(&["tag", &self::image(), &image.0]);
        image
    }

    /// Gives the name to an image that this Dockerfile makes of the usual one.
    pub fn build(&self, lines: &str) {
        let mut build = std::process::Command::new("docker")
            .args(["build", "--quiet", "--tag", &self.0, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the docker client runs");
        let dockerfile = format!("FROM {}\n{lines}\n", image());
        let mut stdin = build.stdin.take().expect("piped");
        std::io::Write::write_all(&mut stdin, dockerfile.as_bytes()).expect("written");
        drop(stdin);
        assert!(build.wait().expect("waited").success());
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::process::Command::new("docker").args(["rmi", "--force", &self.0]).output();
    }
}

/// The image of the sandboxes under test.
pub fn image() -> String {
    std::env::var("SANDBOX_IMAGE").unwrap_or_else(|_| "llm-sandbox:latest".into())
}
