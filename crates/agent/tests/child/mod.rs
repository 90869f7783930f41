//! The agent as a child process, without a container.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "each test program uses a part of this"
)]

use std::{
    collections::VecDeque,
    fs,
    os::fd::AsFd,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use protocol::{
    frame::{self, Frame, Kind, PROTOCOL_VERSION},
    message::{
        AgentHello, Answer, Failure, FailureCode, Request, Run, RunDone, RuntimeName, ServerHello,
    },
};

/// An agent and the server's end of its stream.
pub struct Agent {
    pub process: Child,
    pub stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Frames that came before one that was waited for.
    early: VecDeque<Frame>,
    pub folder: tempfile::TempDir,
}

/// Ends a test that hangs; not a promise about speed.
pub const TIMEOUT: Duration = Duration::from_secs(30);

impl Agent {
    /// An agent that has received the hello.
    pub fn start() -> Self {
        let mut agent = Self::spawn();
        agent.greet(45_000);
        agent
    }

    /// An agent that has received nothing.
    pub fn spawn() -> Self {
        Self::spawn_with(&[])
    }

    /// An agent that has received nothing, with arguments before its folders.
    pub fn spawn_with(args: &[&str]) -> Self {
        Self::spawn_in(tempfile::tempdir().unwrap(), args)
    }

    /// Starts an agent with these arguments and with its folders in this one. It has received nothing yet.
    pub fn spawn_in(folder: tempfile::TempDir, args: &[&str]) -> Self {
        let (data, scratch) = (folder.path().join("data"), folder.path().join("scratch"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&scratch).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_agent"))
            .args(args)
            .args([&data, &scratch])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../sandbox-image/runtimes"))
            .env("HOME", &scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().unwrap());
        Self { process, stdin, stdout, early: VecDeque::new(), folder }
    }

    /// Sends a hello, and receives the agent's; `undo` cells can be undone.
    pub fn greet_with(&mut self, undo: Option<u32>) {
        self.say_hello(45_000, undo);
    }

    /// Sends a hello, and receives the agent's.
    pub fn greet(&mut self, silence_limit_ms: u64) {
        self.say_hello(silence_limit_ms, None);
    }

    fn say_hello(&mut self, silence_limit_ms: u64, undo: Option<u32>) {
        self.say(&ServerHello {
            version: PROTOCOL_VERSION,
            silence_limit_ms,
            preload: None,
            undo,
            hold: None,
            timezone: None,
            asks: false,
            commands: vec![],
        });
    }

    /// Sends this hello, and receives the agent's.
    pub fn say(&mut self, hello: &ServerHello) {
        self.send(0, Kind::Hello, hello, b"");
        assert_eq!(self.version(), PROTOCOL_VERSION);
    }

    /// Has `agent --connect` bring another stream, which replaces the one before.
    pub fn visit(&mut self) -> Child {
        let mut visitor = Command::new(env!("CARGO_BIN_EXE_agent"))
            .args(["--connect", &self.process.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.stdin = visitor.stdin.take();
        self.stdout = visitor.stdout.take().unwrap();
        visitor
    }

    /// Receives the agent's hello, and returns its version.
    pub fn version(&mut self) -> u32 {
        let frame = self.receive();
        assert_eq!((frame.call, frame.kind), (0, Kind::Hello));
        serde_json::from_slice::<AgentHello>(&frame.head).unwrap().version
    }

    /// Whether the agent has sent anything that was not read yet.
    pub fn has_spoken(&self) -> bool {
        let stdout = self.stdout.as_fd();
        let mut fds = [PollFd::new(stdout, PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    pub fn send(&mut self, call: u32, kind: Kind, head: &impl serde::Serialize, body: &[u8]) {
        let head = serde_json::to_vec(head).unwrap();
        frame::write(self.stdin.as_mut().unwrap(), call, kind, &head, &[body]).unwrap();
    }

    /// Sends a frame to an agent that may have rejected the stream.
    pub fn try_send(&mut self, call: u32, kind: Kind, head: &impl serde::Serialize) {
        let head = serde_json::to_vec(head).unwrap();
        let _ = frame::write(self.stdin.as_mut().unwrap(), call, kind, &head, &[]);
    }

    pub fn receive(&mut self) -> Frame {
        self.try_receive().unwrap().expect("a frame")
    }

    /// Receives a frame, unless the stream breaks off.
    pub fn try_receive(&mut self) -> std::io::Result<Option<Frame>> {
        match self.early.pop_front() {
            Some(frame) => Ok(Some(frame)),
            None => frame::read(&mut self.stdout),
        }
    }

    pub fn run(&mut self, call: u32, code: &str) {
        let run = Run {
            runtime: RuntimeName::PYTHON,
            code_len: code.len(),
            has_stdin: false,
            timeout_ms: 60_000,
            output_cap: 1000,
            cell: false,
        };
        self.send(call, Run::KIND, &run, code.as_bytes());
    }

    /// Runs a cell to its end. Returns how it ended, and its outputs followed by the result.
    pub fn cell(&mut self, call: u32, code: &str) -> (RunDone, String) {
        let run = Run {
            runtime: RuntimeName::PYTHON,
            code_len: code.len(),
            has_stdin: false,
            timeout_ms: 60_000,
            output_cap: 1000,
            cell: true,
        };
        let (done, body) = self.ask(call, &run, code.as_bytes()).unwrap();
        let all = body.len() - done.changed_len;
        (done, String::from_utf8_lossy(&body[..all]).into_owned())
    }

    /// Sends a request, and waits for its answer. No other answer may be due.
    pub fn ask<R: Request>(
        &mut self,
        call: u32,
        request: &R,
        body: &[u8],
    ) -> Result<(R::Reply, Vec<u8>), FailureCode> {
        self.send(call, R::KIND, request, body);
        self.answer::<R>(call)
    }

    /// Receives the next answer, which must be to this call.
    pub fn answer<R: Request>(&mut self, call: u32) -> Result<(R::Reply, Vec<u8>), FailureCode> {
        let frame = self.receive();
        assert_eq!(frame.call, call);
        if frame.kind == Kind::Failure {
            let failure: Failure = serde_json::from_slice(&frame.head).unwrap();
            return Err(failure.code);
        }
        assert_eq!(frame.kind, Kind::Reply);
        Ok((serde_json::from_slice(&frame.head).unwrap(), frame.body))
    }

    /// Answers a question. Its program may go on, or end, before the agent confirms the answer.
    pub fn tell(&mut self, call: u32, question: u32, answer: &[u8]) {
        self.send(call, Kind::Answer, &Answer { ask: question }, answer);
        let mut early = VecDeque::new();
        loop {
            let frame = self.receive();
            if (frame.call, frame.kind) == (call, Kind::Reply) {
                break;
            }
            early.push_back(frame);
        }
        self.early = early;
    }

    /// Whether the agent sends anything before the end of its stream, which must be about to come.
    pub fn says_more(&mut self) -> bool {
        frame::read(&mut self.stdout).unwrap().is_some()
    }

    /// Waits until the agent has this many threads.
    pub fn wait_for_threads(&self, count: usize) {
        let start = Instant::now();
        let tasks = format!("/proc/{}/task", self.process.id());
        while fs::read_dir(&tasks).unwrap().count() < count {
            assert!(start.elapsed() < TIMEOUT, "never: {count} threads");
            std::thread::yield_now();
        }
    }

    /// Waits until a program has made this file.
    pub fn wait_for(&self, file: &str) {
        let start = Instant::now();
        while !self.folder.path().join("data").join(file).exists() {
            assert!(start.elapsed() < TIMEOUT, "never: {file}");
            std::thread::yield_now();
        }
    }

    /// Waits until a program has removed this file.
    pub fn wait_until_gone(&self, file: &str) {
        let start = Instant::now();
        while self.folder.path().join("data").join(file).exists() {
            assert!(start.elapsed() < TIMEOUT, "still there: {file}");
            std::thread::yield_now();
        }
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < TIMEOUT, "the agent does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
