//! A Node that runs cells, and the messages to and from it: a request is JSON; an answer is a letter, JSON, a line feed
//! and further bytes. User code can answer in its place, and harms only itself.

use std::{
    fs,
    io::{self, PipeReader},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::{Pid, SysconfVar, sysconf},
};
use protocol::{
    limits::{MAX_RESULT, MAX_VARIABLE_CHARS, MAX_VARIABLES},
    message::{Captured, Contents, Facts, Start},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::INTERPRETER;
use crate::{
    memory,
    places::Places,
    runtimes::{
        channel::{
            self, CellReport, Done, MAX_KERNEL_MESSAGE, ProgramChannel, ProgramMessage, Received,
        },
        cold,
        program::Program,
    },
};

/// The kernel's program, among the runtimes' files.
const PROGRAM: &str = "javascript/kernel.cjs";

/// Options that the program needs: to continue after an interruption, and for Node's own parser and inspector.
const OPTIONS: [&str; 4] = [
    "--no-force-async-hooks-checks",
    "--expose-internals",
    "--disable-warning=ExperimentalWarning",
    "--disable-warning=internal/test/binding",
];

/// The score of a kernel: high, so that a cell without bounds ends its own kernel when memory runs out.
const OOM_SCORE: u32 = 700;

/// Time limit for listing the variables.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for an answer from a kernel that may have just been started on a busy processor.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Memory that is left besides the heap, in bytes: for the rest of Node, the other interpreters, and files.
const BESIDE_THE_HEAP: u64 = 160 << 20;

/// Minimum size of a heap, in bytes.
const MIN_HEAP: u64 = 48 << 20;

/// A larger value in cgroup v1 means that there is no limit: it is beyond all memory.
const NO_LIMIT: u64 = 1 << 50;

/// The option that limits the heap, if memory is limited: Node collects its garbage before the system kills it.
pub(super) fn heap_limit() -> Option<String> {
    let heap = memory::limit()
        .filter(|limit| *limit < NO_LIMIT)?
        .saturating_sub(BESIDE_THE_HEAP)
        .max(MIN_HEAP);
    Some(format!("--max-old-space-size={}", heap >> 20))
}

/// A cell to be started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<'a> {
    pub(super) file: &'a Path,
    pub(super) stdin: Option<&'a Path>,
}

/// A Node process, with the agent's ends of its pipes.
#[derive(Debug)]
pub(super) struct Kernel {
    pid: Pid,
    control: OwnedFd,
    stdout: PipeReader,
    stderr: PipeReader,
    /// Number of cells that were started.
    count: u64,
}

impl Kernel {
    pub(super) fn start(places: &Places) -> io::Result<Self> {
        let (control, theirs) = channel::pair()?;
        // Node inherits it under the same number.
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let (stdout, to_stdout) = io::pipe()?;
        let (stderr, to_stderr) = io::pipe()?;
        let mut command = Command::new(INTERPRETER);
        command
            .args(OPTIONS)
            .args(heap_limit())
            .arg(places.runtimes.join(PROGRAM))
            .arg(theirs.as_raw_fd().to_string())
            .current_dir(&places.data)
            .stdin(Stdio::null())
            .stdout(to_stdout)
            .stderr(to_stderr);
        let child = cold::spawn(&mut command, OOM_SCORE)?;
        let pid = Pid::from_raw(child.id().cast_signed());
        Ok(Self { pid, control, stdout, stderr, count: 0 })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Number of cells that were started.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Starts a cell.
    pub(super) fn begin(&mut self, cell: Cell<'_>, start: Start) -> io::Result<Program> {
        let begun = Instant::now();
        self.count += 1;
        self.drain();
        let (file, stdin) = (cell.file.to_str(), cell.stdin.and_then(Path::to_str));
        self.say(&json!({
            "kind": "cell", "number": self.count, "file": file, "stdin": stdin, "most": MAX_RESULT,
        }))?;
        self.go_on();
        Ok(Program {
            pid: self.pid,
            start,
            begun,
            stdin: None,
            stdout: self.stdout.try_clone()?.into(),
            stderr: self.stderr.try_clone()?.into(),
            channel: Some(ProgramChannel::of_kernel_that_says(
                self.control.try_clone()?,
                self.count,
                said,
            )),
            stack: None,
        })
    }

    /// Interrupts the cell. Returns false if the kernel does not receive that.
    pub(super) fn interrupt(&self) -> bool {
        let asked = self.say(&json!({ "kind": "interrupt", "number": self.count }));
        self.go_on();
        asked.is_ok()
    }

    /// Whether the process is alive and answers. Continues it for that.
    pub(super) fn answers(&self) -> bool {
        let is_answer = |bytes: &[u8]| bytes.first() == Some(&b'P');
        self.ask(&json!({ "kind": "ping" }), PING_TIMEOUT, |bytes| is_answer(bytes).then_some(()))
            .is_some()
    }

    /// Asks for the variables, and waits for the answer; `None` if there is none.
    pub(super) fn inspect(&self) -> Option<Contents> {
        let request = json!({
            "kind": "inspect", "variables": MAX_VARIABLES, "chars": MAX_VARIABLE_CHARS,
        });
        self.ask(&request, INSPECT_TIMEOUT, |bytes| Some(contents(bytes)))
    }

    /// Sends a request, and returns the first message that follows; `None` if it is invalid or does not come in time.
    fn ask<T>(
        &self,
        request: &Value,
        timeout: Duration,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        self.drain();
        self.say(request).ok()?;
        self.go_on();
        let until = Instant::now() + timeout;
        loop {
            match channel::receive_up_to(&self.control, MAX_KERNEL_MESSAGE, &parse) {
                Received::Message(answer) => return Some(answer),
                Received::End => return None,
                Received::Nothing => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let mut fds = [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        }
    }

    /// Resident memory of the process, in bytes.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid)).ok()?;
        let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
        Some(pages * u64::try_from(page).ok()?)
    }

    fn say(&self, request: &Value) -> io::Result<()> {
        channel::send(&self.control, request.to_string().as_bytes(), &[])
    }

    fn go_on(&self) {
        let _ = kill(self.pid, Signal::SIGCONT);
    }

    /// Discards messages that the kernel has sent since its last cell: they answer no request.
    fn drain(&self) {
        while let Received::Message(()) = channel::receive(&self.control, |_| Some(())) {}
    }
}

/// The head of the message that a cell is done.
#[derive(Deserialize)]
struct DoneHead {
    /// Number of the cell.
    number: u64,
    code: u8,
    cpu_us: u64,
    #[serde(default)]
    result: Option<Captured>,
}

/// Reads a message while this cell runs. A message that is invalid or from an earlier cell has no effect: code that an
/// earlier cell has left behind does not end this one.
#[expect(clippy::unnecessary_wraps, reason = "an answer that cannot be read ends other channels")]
fn said(bytes: &[u8], cell: u64) -> Option<ProgramMessage> {
    Some(done(bytes, cell).map_or(ProgramMessage::Other, ProgramMessage::Done))
}

/// Reads the message that the cell is done; there is no report if the kernel can run no more cells.
fn done(bytes: &[u8], cell: u64) -> Option<Done> {
    let (kind, (head, rest)) = match bytes.first()? {
        kind @ (b'D' | b'U') => (*kind, split(bytes, *kind)?),
        _ => return None,
    };
    let DoneHead { number, code, cpu_us, result } = serde_json::from_slice(head).ok()?;
    let report = CellReport { captured: result, result: rest.to_vec() };
    let cell_report = (kind == b'D').then_some(report);
    let done = Done { code, cpu_us, facts: Box::<Facts>::default(), cell: cell_report };
    (number == cell).then_some(done)
}

/// Reads the list of variables; empty if it is invalid, or exceeds the limits.
fn contents(bytes: &[u8]) -> Contents {
    let parse = || serde_json::from_slice(split(bytes, b'I')?.0).ok();
    let contents: Contents = parse().unwrap_or_default();
    let fits = |text: &str| text.chars().count() <= MAX_VARIABLE_CHARS;
    let is_within_limits = contents.variables.len() <= MAX_VARIABLES
        && contents.imports.len() <= MAX_VARIABLES
        && contents.variables.iter().all(|it| fits(&it.name) && fits(&it.summary));
    if is_within_limits { contents } else { Contents::default() }
}

fn split(bytes: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let bytes = bytes.strip_prefix(&[kind])?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_of_a_cell_is_read() {
        let message =
            b"D{\"number\":5,\"code\":3,\"cpu_us\":40,\"result\":{\"head\":2,\"tail\":0,\"total\":2}}\n42";
        let Some(ProgramMessage::Done(done)) = said(message, 5) else { panic!("it is one") };
        assert_eq!((done.code, done.cpu_us), (3, 40));
        let cell = done.cell.expect("it was a cell");
        assert_eq!(cell.result, b"42");
        assert_eq!(cell.captured, Some(Captured { head: 2, tail: 0, total: 2 }));
    }

    #[test]
    fn a_kernel_that_is_unable_to_run_cells_reports_none() {
        let message = b"U{\"number\":5,\"code\":1,\"cpu_us\":40}\n";
        let Some(ProgramMessage::Done(done)) = said(message, 5) else { panic!("it is one") };
        assert_eq!((done.code, done.cell), (1, None));
    }

    #[test]
    fn what_is_said_of_another_cell_does_not_end_this_one() {
        let message = b"D{\"number\":5,\"code\":0,\"cpu_us\":1}\n";
        assert_eq!(said(message, 6), Some(ProgramMessage::Other));
        assert!(matches!(said(message, 5), Some(ProgramMessage::Done(_))));
    }

    #[test]
    fn what_makes_no_sense_is_nothing() {
        let too_large = b"D{\"number\":1,\"code\":300,\"cpu_us\":1}\n";
        for wrong in [&b""[..], b"D", b"D{}", b"D{}\n", too_large, b"x"] {
            assert_eq!(said(wrong, 1), Some(ProgramMessage::Other), "{wrong:?}");
            assert_eq!(contents(wrong), Contents::default());
        }
        let long = "x".repeat(MAX_VARIABLE_CHARS + 1);
        let lie = format!("I{{\"variables\":[{{\"name\":\"{long}\",\"summary\":\"\"}}]}}\n");
        assert_eq!(contents(lie.as_bytes()), Contents::default());
    }
}
