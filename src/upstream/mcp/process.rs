//! Servers over standard input and output: processes in a group of their own, with an environment of their own.

use std::{
    collections::VecDeque,
    io,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use config::upstreams::{Hidden, Reached, Upstream as Settings};
use model::{UpstreamName, text::without_controls};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::Transport,
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Mutex,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{info, warn};

use super::{
    GRACE,
    lines::{Line, Lines},
    max_message, nonsense, too_large,
};

/// Largest data segment of a process, in bytes.
#[cfg(target_os = "linux")]
const MEMORY: u64 = 4 << 30;

/// Variables of the environment that a process has besides those of the settings.
const PASSED_ON: [&str; 2] = ["PATH", "HOME"];

/// Longest line of standard error in the log, in bytes, and the most lines in a minute.
const MAX_LOG_LINE: usize = 500;
const MAX_LOG_LINES: u32 = 60;

/// Lines in a row that are no messages, after which a server is taken for no server of MCP.
const MAX_STRAY: u32 = 1000;

/// The same before its first message, and the time for that message after the first such line. It is longer than the
/// time after which a server that does not know the first request is asked as an older one.
const MAX_STRAY_AT_FIRST: u32 = 100;
const FIRST_MESSAGE: Duration = Duration::from_secs(12);

/// Number of the last lines of standard error that are shown.
const LAST_LINES: usize = 5;

/// The groups of all processes, which end with the server even if nothing is dropped.
static GROUPS: parking_lot::Mutex<Vec<Pid>> = parking_lot::Mutex::new(vec![]);

/// Waits until the processes of all upstreams have ended, and kills those that have not after a time.
pub(in crate::upstream) async fn end_all() {
    let ended = async {
        while !GROUPS.lock().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    // Each has the time after the end of its input; then its own task kills it.
    let _ = timeout(GRACE + GRACE, ended).await;
    for group in std::mem::take(&mut *GROUPS.lock()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The lines of a process besides messages.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The first line of standard output, if it was no message and no message followed.
    stray: Option<String>,
    /// Whether it was taken for no server of MCP.
    is_given_up: bool,
    /// The last lines of standard error.
    errors: VecDeque<String>,
}

impl Words {
    /// The first line, if it was no message and no message followed.
    pub(super) fn stray(&self) -> Option<&str> {
        self.stray.as_deref()
    }

    /// Whether the process was taken for no server of MCP because of its lines.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// The last lines of standard error.
    pub(super) fn of_errors(&self) -> Vec<String> {
        self.errors.iter().cloned().collect()
    }

    fn add_error(&mut self, line: String) {
        if self.errors.len() == LAST_LINES {
            self.errors.pop_front();
        }
        self.errors.push_back(line);
    }
}

type SharedWords = Arc<parking_lot::Mutex<Words>>;

/// A process with its group. When this is dropped, the whole group is killed.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    /// Reads standard error.
    log: JoinHandle<()>,
}

/// Starts the process of an upstream. `words` gets what it writes besides messages.
///
/// # Errors
/// If there is no such program, or it cannot be started.
pub(super) fn start(settings: &Settings, words: &SharedWords) -> Result<(Process, Pipes), String> {
    let Reached::Command { command, args, env, cwd } = &settings.reached else {
        return Err("it is no command".into());
    };
    let mut program = Command::new(command);
    let folder = cwd.clone().unwrap_or_else(std::env::temp_dir);
    program.args(args.iter().map(Hidden::reveal)).env_clear().current_dir(folder);
    program.envs(PASSED_ON.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
    program.envs(env.iter().map(|(name, value)| (name, value.reveal())));
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = program.process_group(0).kill_on_drop(true).spawn();
    let mut child = spawned.map_err(|error| format!("{command} cannot be started: {error}"))?;
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    GROUPS.lock().extend(group);
    limit(group);
    let stdin = child.stdin.take().expect("piped above");
    let stdout = child.stdout.take().expect("piped above");
    let stderr = child.stderr.take().expect("piped above");
    *words.lock() = Words::default();
    let errors = Lines::new(stderr, MAX_LOG_LINE);
    let log = tokio::spawn(log(settings.name.clone(), errors, words.clone()));
    let transport = Pipes {
        lines: Lines::new(stdout, max_message(settings)),
        stdin: Arc::new(Mutex::new(Some(stdin))),
        stray: 0,
        first_by: None,
        is_heard: false,
        words: words.clone(),
    };
    Ok((Process { child, group, log }, transport))
}

/// Limits what a process and those that it starts can use.
#[cfg(target_os = "linux")]
fn limit(process: Option<Pid>) {
    use rustix::process::{Resource, Rlimit, prlimit};

    for (resource, most) in [(Resource::Core, 0), (Resource::Data, MEMORY)] {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // The process may have ended, or have a lower limit already.
        let _ = process.map(|process| prlimit(Some(process), resource, limit));
    }
}

#[cfg(not(target_os = "linux"))]
fn limit(_: Option<Pid>) {}

/// Writes lines of standard error to the log, a limited number in a minute.
async fn log(
    name: UpstreamName,
    mut lines: Lines<impl tokio::io::AsyncRead + Unpin>,
    words: SharedWords,
) {
    let (mut since, mut written, mut left_out) = (Instant::now(), 0, 0_u32);
    while let Some(line) = lines.next().await {
        let (Line::Whole(start) | Line::Long(start, _)) = line;
        let text = without_controls(String::from_utf8_lossy(start).chars());
        if text.trim().is_empty() {
            continue;
        }
        words.lock().add_error(text.clone());
        if since.elapsed() >= Duration::from_secs(60) {
            if left_out > 0 {
                info!(upstream = %name, lines = left_out, "more lines of standard error were left out");
            }
            (since, written, left_out) = (Instant::now(), 0, 0);
        }
        if written == MAX_LOG_LINES {
            left_out += 1;
            continue;
        }
        written += 1;
        info!(upstream = %name, "stderr: {text}");
    }
}

impl Process {
    /// Waits for the end of the process: how it ended.
    pub(super) async fn exited(&mut self) -> String {
        describe(self.child.wait().await)
    }

    /// How the process ended, if it does so within a time.
    pub(super) async fn status(&mut self, within: Duration) -> Option<String> {
        timeout(within, self.exited()).await.ok()
    }

    /// Waits for the end of the process for a time, and then kills its group.
    pub(super) async fn end(mut self, within: Duration) {
        let _ = timeout(within, self.child.wait()).await;
        self.kill();
        let _ = self.child.wait().await;
        // A process that has left the group may hold standard error open.
        let _ = timeout(GRACE, &mut self.log).await;
    }

    /// Kills what is left of the group.
    fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            GROUPS.lock().retain(|other| *other != group);
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("its process ended ({status})"),
        Err(error) => format!("its process cannot be observed: {error}"),
    }
}

/// Messages over the standard input and output of a process.
pub(super) struct Pipes {
    lines: Lines<ChildStdout>,
    /// Held while one message is written; `None` once it is closed.
    stdin: Arc<Mutex<Option<ChildStdin>>>,
    stray: u32,
    /// The time by which the first message must come, once a line came that is none.
    first_by: Option<Instant>,
    /// Whether a message has come.
    is_heard: bool,
    words: SharedWords,
}

impl Pipes {
    /// Notes a line that is no message. Returns whether there were too many.
    fn note_stray(&mut self, stray: Option<String>) -> bool {
        let most = if self.is_heard { MAX_STRAY } else { MAX_STRAY_AT_FIRST };
        self.stray += 1;
        if !self.is_heard
            && let Some(line) = stray
        {
            self.words.lock().stray.get_or_insert(line);
            self.first_by.get_or_insert_with(|| Instant::now() + FIRST_MESSAGE);
        }
        self.stray > most
    }
}

impl Transport<RoleClient> for Pipes {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let stdin = self.stdin.clone();
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut stdin = stdin.lock().await;
            let stdin = stdin.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            stdin.write_all(&line).await?;
            stdin.flush().await
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let next = self.lines.next();
            let line = match self.first_by {
                None => next.await?,
                Some(by) => {
                    if let Ok(line) = timeout_at(by, next).await {
                        line?
                    } else {
                        self.words.lock().is_given_up = true;
                        return None;
                    }
                }
            };
            let (message, stray) = match line {
                Line::Whole(line) => match parse(line) {
                    None => (None, (!self.is_heard).then(|| shown(line)).flatten()),
                    message => (message, None),
                },
                Line::Long(start, end) => {
                    let id = id_of(start, end);
                    if id.is_none() {
                        warn!("a message of a server of MCP is too large, and has no known id");
                    }
                    (Some(ServerJsonRpcMessage::error(too_large(), Some(id?))), None)
                }
            };
            if let Some(message) = message {
                if !self.is_heard {
                    (self.is_heard, self.first_by) = (true, None);
                    self.words.lock().stray = None;
                }
                self.stray = 0;
                return Some(message);
            }
            if self.note_stray(stray) {
                warn!("a server of MCP writes lines that are no messages");
                self.words.lock().is_given_up = true;
                return None;
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.stdin.lock().await.take();
        Ok(())
    }
}

/// A line for people; `None` if there is nothing to see.
fn shown(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&line[..line.len().min(MAX_LOG_LINE)]);
    let text = without_controls(text.trim().chars());
    (!text.is_empty()).then_some(text)
}

/// A message of a server. An answer that is none becomes an error of its request.
fn parse(line: &[u8]) -> Option<ServerJsonRpcMessage> {
    if let Ok(message) = serde_json::from_slice(line) {
        return Some(message);
    }
    let value: Value = serde_json::from_slice(line).ok()?;
    if value.get("method").is_some() {
        return None;
    }
    let id: RequestId = serde_json::from_value(value.get("id")?.clone()).ok()?;
    Some(ServerJsonRpcMessage::error(nonsense(), Some(id)))
}

/// The id of a response, by its start or its end: servers write it first or last.
fn id_of(start: &[u8], end: &[u8]) -> Option<RequestId> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let plain = |text: String| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let number = |text: &str| {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..digits].parse::<i64>().ok().map(|id| (id, text[digits..].to_owned()))
    };
    let start = plain(text(start));
    let first = start.strip_prefix('{')?;
    let first = first.strip_prefix("\"jsonrpc\":\"2.0\",").unwrap_or(first);
    if let Some((id, _)) = first.strip_prefix("\"id\":").and_then(number) {
        return Some(RequestId::Number(id));
    }
    let end = plain(text(end));
    let (_, last) = end.rsplit_once(",\"id\":")?;
    let (id, rest) = number(last)?;
    matches!(&*rest, "}" | ",\"jsonrpc\":\"2.0\"}").then_some(RequestId::Number(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_long_answer_is_at_its_start_or_end() {
        for (start, end, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"#, "}}", Some(7)),
            (r#"{"jsonrpc": "2.0", "id": 8, "result": {"#, "}}", Some(8)),
            (r#"{"result":{"content":["#, r#"]},"jsonrpc":"2.0","id":9}"#, Some(9)),
            (r#"{"result":{"id":1,"#, r#"},"id":10,"jsonrpc":"2.0"}"#, Some(10)),
            (r#"{"result":{"id":1,"#, r#","id":11}}"#, None),
            ("xxxx", "xxxx", None),
        ] {
            let found = id_of(start.as_bytes(), end.as_bytes());
            assert_eq!(found, id.map(RequestId::Number), "{start} {end}");
        }
    }
}
