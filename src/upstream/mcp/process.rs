//! Servers over standard input and output: processes in a group of their own, with an environment of their own.

use std::{
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
    time::{Instant, timeout},
};
use tracing::{info, warn};

use super::{
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

/// The groups of all processes, which end with the server even if nothing is dropped.
static GROUPS: parking_lot::Mutex<Vec<Pid>> = parking_lot::Mutex::new(vec![]);

/// Kills the processes of all upstreams.
pub(in crate::upstream) fn kill_all() {
    for group in std::mem::take(&mut *GROUPS.lock()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A process with its group. When this is dropped, the whole group is killed.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
}

/// Starts the process of an upstream.
///
/// # Errors
/// If there is no such program, or it cannot be started.
pub(super) fn start(settings: &Settings) -> Result<(Process, Pipes), String> {
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
    tokio::spawn(log(settings.name.clone(), Lines::new(stderr, MAX_LOG_LINE)));
    let transport = Pipes {
        lines: Lines::new(stdout, max_message(settings)),
        stdin: Arc::new(Mutex::new(Some(stdin))),
        stray: 0,
    };
    Ok((Process { child, group }, transport))
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
async fn log(name: UpstreamName, mut lines: Lines<impl tokio::io::AsyncRead + Unpin>) {
    let (mut since, mut written, mut left_out) = (Instant::now(), 0, 0_u32);
    while let Some(line) = lines.next().await {
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
        let (Line::Whole(start) | Line::Long(start, _)) = line;
        let text = without_controls(String::from_utf8_lossy(start).chars());
        if !text.trim().is_empty() {
            info!(upstream = %name, "stderr: {text}");
        }
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
            let message = match self.lines.next().await? {
                Line::Whole(line) => parse(line),
                Line::Long(start, end) => {
                    let id = id_of(start, end);
                    if id.is_none() {
                        warn!("a message of a server of MCP is too large, and has no known id");
                    }
                    Some(ServerJsonRpcMessage::error(too_large(), Some(id?)))
                }
            };
            match message {
                Some(message) => {
                    self.stray = 0;
                    return Some(message);
                }
                None if self.stray == MAX_STRAY => {
                    warn!("a server of MCP writes lines that are no messages");
                    return None;
                }
                None => self.stray += 1,
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.stdin.lock().await.take();
        Ok(())
    }
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
