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
    fs,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use protocol::{
    frame::{self, Frame, Kind, PROTOCOL_VERSION},
    message::{AgentHello, Failure, FailureCode, Request, Run},
};

/// An agent and the server's end of its stream.
pub struct Agent {
    pub process: Child,
    pub stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    pub folder: tempfile::TempDir,
}

/// Ends what hangs; not a promise about speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

impl Agent {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (data, scratch) = (folder.path().join("data"), folder.path().join("scratch"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&scratch).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_agent"))
            .args([&data, &scratch])
            .env("HOME", &scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().unwrap());
        let mut agent = Self { process, stdin, stdout, folder };
        let hello = agent.receive();
        assert_eq!(hello.kind, Kind::Hello);
        let hello: AgentHello = serde_json::from_slice(&hello.head).unwrap();
        assert_eq!(hello.version, PROTOCOL_VERSION);
        agent
    }

    pub fn send(&mut self, call: u32, kind: Kind, head: &impl serde::Serialize, body: &[u8]) {
        let head = serde_json::to_vec(head).unwrap();
        frame::write(self.stdin.as_mut().unwrap(), call, kind, &head, &[body]).unwrap();
    }

    pub fn receive(&mut self) -> Frame {
        frame::read(&mut self.stdout).unwrap().expect("a frame")
    }

    pub fn run(&mut self, call: u32, code: &str) {
        let run =
            Run { code_len: code.len(), has_stdin: false, timeout_ms: 60_000, output_cap: 1000 };
        self.send(call, Run::KIND, &run, code.as_bytes());
    }

    /// Asks for something, and waits for what comes of it. No other answer may be due.
    pub fn ask<R: Request>(
        &mut self,
        call: u32,
        request: &R,
        body: &[u8],
    ) -> Result<(R::Reply, Vec<u8>), FailureCode> {
        self.send(call, R::KIND, request, body);
        self.answer::<R>(call)
    }

    /// The next answer, which must be to this.
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

    /// Waits until a program has made this file.
    pub fn wait_for(&self, file: &str) {
        let start = Instant::now();
        while !self.folder.path().join("data").join(file).exists() {
            assert!(start.elapsed() < PATIENCE, "never: {file}");
            std::thread::yield_now();
        }
    }

    /// Waits until a program has removed this file.
    pub fn wait_until_gone(&self, file: &str) {
        let start = Instant::now();
        while self.folder.path().join("data").join(file).exists() {
            assert!(start.elapsed() < PATIENCE, "still there: {file}");
            std::thread::yield_now();
        }
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "the agent does not end");
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
