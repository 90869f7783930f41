//! The processes of a workspace, the kernel and its frozen copies, and the messages to them: the other side of
//! `kernel.py`, which describes the messages.

use std::{
    cell::Cell,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
    unistd::Pid,
};
use protocol::{
    limits::MAX_VARIABLES,
    message::{Carried, CarryLimits, Contents, Start},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::carry::{self, Written};
use super::{
    EXPENDABLE, INTERPRETER, Layout, OPTIONS, PROTECTED, makers_path,
    stack::StackPipe,
    zygote::{KernelSpare, pid_of},
};
use crate::{
    processes::{Children, set_oom_score},
    runtimes::{
        channel::{MAX_KERNEL_MESSAGE, ProgramChannel, Received, pair, receive_up_to, send},
        cold,
        program::{Program, Stdin},
    },
};

/// Time limit for making a copy, which delays the next call.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit for the answer of a kernel that has nothing else to do. A kernel that is only slow, for example because a
/// thread of the user's is busy, must not be taken for dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A request to a kernel or a copy.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "do")]
enum Request {
    Cell,
    Freeze {
        oom_score: u32,
    },
    TakeOver,
    Ping,
    Inspect,
    CarryOut {
        #[serde(flatten)]
        limits: CarryLimits,
    },
    CarryIn {
        count: u64,
        each_ms: u64,
        total_ms: u64,
    },
}

/// A request and its number, which the answer repeats, so that a late answer is not taken for the next.
#[derive(Serialize)]
struct Numbered<'a> {
    n: u64,
    #[serde(flatten)]
    request: &'a Request,
}

/// The answer to a request.
#[derive(Deserialize)]
struct Answer<T> {
    n: u64,
    #[serde(flatten)]
    answer: T,
}

/// The kernel is alive.
#[derive(Deserialize)]
struct Pong {
    pong: i32,
}

/// A copy has become the kernel.
#[derive(Deserialize)]
struct Taken {
    pid: i32,
}

/// A process that has the variables of a workspace.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    channel: OwnedFd,
    /// Number of requests that were sent to the process.
    asked: Cell<u64>,
}

impl Process {
    fn new(pid: Pid, channel: OwnedFd) -> Self {
        Self { pid, channel, asked: Cell::new(0) }
    }

    pub(super) fn is_alive(&self, children: &Children) -> bool {
        children.is_spared(self.pid)
    }

    pub(super) fn kill(self, children: &mut Children) {
        children.kill_spared(self.pid);
    }

    /// Sends a request, and returns its number.
    fn ask(&self, request: &Request, files: &[i32]) -> io::Result<u64> {
        let n = self.asked.get() + 1;
        self.asked.set(n);
        send(&self.channel, &serde_json::to_vec(&Numbered { n, request })?, files)?;
        Ok(n)
    }

    /// Continues the process, and waits for its answer to a request; `None` if there is none in time.
    fn answer<T: DeserializeOwned>(&self, request: &Request, children: &Children) -> Option<T> {
        children.signal_spared(self.pid, Signal::SIGCONT);
        let n = self.ask(request, &[]).ok()?;
        wait_for(&self.channel, ANSWER_TIMEOUT, |bytes| answer_to(n, bytes))
    }

    /// Makes a copy the kernel; returns false if it does not answer.
    pub(super) fn take_over(&self, children: &Children) -> bool {
        let answer = self.answer(&Request::TakeOver, children);
        // The copies of the kernel are worth less.
        set_oom_score(self.pid, PROTECTED);
        answer.is_some_and(|Taken { pid }| pid == self.pid.as_raw())
    }

    /// Whether the process is alive and answers.
    pub(super) fn answers(&self, children: &Children) -> bool {
        let answer = self.answer(&Request::Ping, children);
        answer.is_some_and(|Pong { pong }| pong == self.pid.as_raw())
    }

    /// Asks for the variables.
    pub(super) fn inspect(&self, children: &Children) -> Option<Contents> {
        let mut contents: Contents = self.answer(&Request::Inspect, children)?;
        // User code can change what a kernel says.
        contents.variables.truncate(MAX_VARIABLES);
        contents.imports.truncate(MAX_VARIABLES);
        for variable in &mut contents.variables {
            variable.name = short(&variable.name);
            variable.summary = short(&variable.summary);
        }
        contents.imports.iter_mut().for_each(|import| *import = short(import));
        Some(contents)
    }

    /// Has the process save its variables; `None` if it does not begin to.
    pub(super) fn carry_out(&self, limits: CarryLimits, children: &Children) -> Option<Written> {
        let (ours, theirs) = io::pipe().ok()?;
        children.signal_spared(self.pid, Signal::SIGCONT);
        let until = carry::deadline(&limits);
        let n = self.ask(&Request::CarryOut { limits }, &[theirs.as_raw_fd()]).ok()?;
        drop(theirs);
        let bytes = carry::collect(ours, &self.channel, &limits, until);
        let left = until.saturating_duration_since(Instant::now());
        let told = wait_for(&self.channel, left, |bytes| answer_to(n, bytes));
        Some(carry::written(bytes, told.map(|CarriedOut { carried }| carried)))
    }

    /// Has the process restore saved variables. `None` if it does not, or not in time: then its contents are unknown.
    pub(super) fn carry_in(
        &self,
        bytes: &[u8],
        count: u64,
        limits: CarryLimits,
        children: &Children,
    ) -> Option<CarriedIn> {
        let (theirs, ours) = io::pipe().ok()?;
        children.signal_spared(self.pid, Signal::SIGCONT);
        let until = carry::deadline(&limits);
        let CarryLimits { each_ms, total_ms, .. } = limits;
        let n =
            self.ask(&Request::CarryIn { count, each_ms, total_ms }, &[theirs.as_raw_fd()]).ok()?;
        drop(theirs);
        carry::feed(ours, bytes, &self.channel, until);
        let left = until.saturating_duration_since(Instant::now());
        let told: CarriedIn = wait_for(&self.channel, left, |bytes| answer_to(n, bytes))?;
        Some(CarriedIn { carried: carry::bounded(told.carried), ..told })
    }

    /// Has the process make a copy of itself, which gets this score for when memory runs out. Returns the copy, and the
    /// number of threads that the copy lacks.
    pub(super) fn freeze(&self, oom_score: u32, children: &mut Children) -> Option<(Self, usize)> {
        let (channel, theirs) = pair().ok()?;
        let seen = Children::seen();
        children.signal_spared(self.pid, Signal::SIGCONT);
        let n = self.ask(&Request::Freeze { oom_score }, &[theirs.as_raw_fd()]).ok()?;
        drop(theirs);
        // Until it has answered, the process is about to fork.
        let Frozen { frozen, threads } =
            wait_for(&self.channel, FREEZE_TIMEOUT, |bytes| answer_to(n, bytes))?;
        if !frozen {
            return None;
        }
        let pid = wait_for(&channel, FREEZE_TIMEOUT, pid_of)?;
        // User code can change what a kernel says.
        if !children.is_new_child(pid, &seen) {
            return None;
        }
        children.keep(pid);
        Some((Self::new(pid, channel), threads))
    }
}

/// The report of saved variables.
#[derive(Deserialize)]
struct CarriedOut {
    carried: Carried,
}

/// The report of restored variables.
#[derive(Deserialize)]
pub(super) struct CarriedIn {
    /// Whether the modules that the kernel has loaded go together with the files in the user's folder. If not, nothing
    /// was restored, and a new interpreter is needed.
    pub(super) fits: bool,
    pub(super) carried: Carried,
}

/// Whether a copy has been made.
#[derive(Deserialize)]
struct Frozen {
    frozen: bool,
    threads: usize,
}

/// Cuts a text to the maximum length of a variable's name or summary.
pub(super) fn short(text: &str) -> String {
    text.chars().take(protocol::limits::MAX_VARIABLE_CHARS).collect()
}

/// Reads the answer to the request of this number.
fn answer_to<T: DeserializeOwned>(number: u64, bytes: &[u8]) -> Option<T> {
    let Answer { n, answer } = serde_json::from_slice(bytes).ok()?;
    (n == number).then_some(answer)
}

/// Waits for a message that can be read, ignores others, and gives up after the timeout.
fn wait_for<T>(
    channel: &OwnedFd,
    timeout: Duration,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    let until = Instant::now() + timeout;
    loop {
        let received = receive_up_to(channel, MAX_KERNEL_MESSAGE, |bytes| Some(parse(bytes)));
        if let Received::Message(Some(message)) = received {
            return Some(message);
        }
        let left = until.saturating_duration_since(Instant::now());
        match received {
            Received::End => return None,
            _ if left.is_zero() => return None,
            Received::Message(_) => continue,
            Received::Nothing => {}
        }
        let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
    }
}

/// The interpreter of a workspace.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) process: Process,
    /// The pipe to which it and its copies write their stacks.
    pub(super) stack: StackPipe,
    /// Number of cells that it has run.
    pub(super) count: u64,
    /// How the next cell starts.
    pub(super) start: Start,
}

impl Kernel {
    /// Takes over a spare that has waited for its first cell.
    pub(super) fn from_spare(spare: KernelSpare, start: Start) -> Option<Self> {
        let KernelSpare { channel, stack, pid, .. } = spare;
        Some(Self { process: Process::new(pid?, channel), stack, count: 0, start })
    }

    /// Starts a new interpreter.
    pub(super) fn start_cold(layout: &Layout, children: &mut Children) -> io::Result<Self> {
        let (channel, theirs) = pair()?;
        let (stack, stack_writer) = StackPipe::new()?;
        // Only this thread starts processes, so no other inherits them.
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        fcntl(&stack_writer, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = Command::new(INTERPRETER);
        command
            .args(OPTIONS)
            .arg(&layout.kernel)
            .arg(&layout.script)
            .arg(&layout.places.data)
            .arg(layout.python_path())
            .args([theirs.as_raw_fd(), stack_writer.as_raw_fd()].map(|fd| fd.to_string()))
            .current_dir(&layout.places.data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        match makers_path() {
            Some(path) => command.env("PYTHONPATH", path),
            None => command.env_remove("PYTHONPATH"),
        };
        // As expendable as the kernels that the fork server forks.
        let child = cold::spawn(&mut command, EXPENDABLE)?;
        let pid = Pid::from_raw(child.id().cast_signed());
        children.keep(pid);
        Ok(Self { process: Process::new(pid, channel), stack, count: 0, start: Start::Cold })
    }

    /// Has the kernel run the program's file as a cell.
    pub(super) fn go(
        &mut self,
        stdin: Stdin,
        layout: &Layout,
        children: &Children,
    ) -> io::Result<Program> {
        let (theirs, stdin) = match stdin {
            Stdin::Pipe => Some(io::pipe()?),
            Stdin::Null => None,
        }
        .unzip();
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        let mut files = vec![stdout_writer.as_raw_fd(), stderr_writer.as_raw_fd()];
        files.extend(theirs.iter().map(AsRawFd::as_raw_fd));
        let begun = Instant::now();
        let Process { pid, channel, .. } = &self.process;
        let program = Program {
            pid: *pid,
            start: self.start,
            begun,
            stdin: stdin.map(|pipe| File::from(OwnedFd::from(pipe))),
            stdout: stdout.into(),
            stderr: stderr.into(),
            channel: Some(ProgramChannel::of_kernel(channel.try_clone()?)),
            stack: Some(Box::new(self.stack.of_cell(*pid, self.count + 1, layout)?)),
        };
        children.signal_spared(*pid, Signal::SIGCONT);
        self.process.ask(&Request::Cell, &files)?;
        self.start = Start::Warm;
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_too_late_is_not_taken_for_the_next() {
        let (ours, theirs) = pair().expect("sockets");
        let kernel = Process::new(Pid::from_raw(7), ours);
        let n = kernel.ask(&Request::Ping, &[]).expect("asked");
        let later = kernel.ask(&Request::Ping, &[]).expect("asked");
        for late in [
            format!(r#"{{"n":{n},"frozen":true,"threads":1}}"#),
            "no JSON".to_owned(),
            format!(r#"{{"n":{n},"pong":6}}"#),
            format!(r#"{{"n":{later},"pong":7}}"#),
        ] {
            send(&theirs, late.as_bytes(), &[]).expect("sent");
        }
        let answer = wait_for(&kernel.channel, ANSWER_TIMEOUT, |bytes| answer_to(later, bytes));
        assert_eq!(answer.map(|Pong { pong }| pong), Some(7));
        drop(theirs);
        let nobody: Option<Pong> =
            wait_for(&kernel.channel, ANSWER_TIMEOUT, |bytes| answer_to(later, bytes));
        assert!(nobody.is_none());
    }

    #[test]
    fn a_request_has_its_number_beside_what_is_asked() {
        let request = Numbered { n: 3, request: &Request::Freeze { oom_score: 1000 } };
        let json = serde_json::to_string(&request).expect("serializes");
        assert_eq!(json, r#"{"n":3,"do":"freeze","oom_score":1000}"#);
    }
}
