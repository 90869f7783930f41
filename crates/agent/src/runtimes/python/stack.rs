//! The line at which a program is: a signal has the interpreter write its stack into a pipe, at once and whatever it is
//! doing (`faulthandler`, set up in `zygote.py` and `kernel.py`). None of it is trusted.
//!
//! ```text
//! Stack (most recent call first):
//!   File "/opt/venv/lib/python3.13/site-packages/..", line 7 in wait
//!   File "/tmp/main.py", line 3 in load
//!   File "/tmp/main.py", line 9 in <module>
//!   File "/opt/sandbox/runtimes/python/zygote.py", line 700 in <module>
//! ```
//!
//! In a kernel the program's lines are `File "Cell In[3]"`, and the last may be `kernel.py`.

use std::{
    io::{self, PipeReader, PipeWriter, Read},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use protocol::message::Position;

use super::Layout;
use sandbox_files::facts::cut;

use crate::runtimes::program::Locate;

/// The signal that asks for the stack. A program without a handler ignores it, and nothing else sends it here.
const SIGNAL: Signal = Signal::SIGURG;

/// Longest time that a program is waited for. It is due to be killed, and its interpreter is quick.
const PATIENCE: Duration = Duration::from_millis(100);

/// Time between two reads.
const INTERVAL: Duration = Duration::from_millis(2);

/// Longest last line that is examined, in bytes.
const MAX_LINE: usize = 512;

/// How the names of cells begin; a number follows.
const CELL: &str = "Cell In[";

/// Longest text that is read: a hundred frames, which is all that an interpreter writes.
const MAX_BYTES: usize = 64 << 10;

/// The pipe from which a program's stack is read.
#[derive(Debug)]
pub(super) struct StackPipe(PipeReader);

impl StackPipe {
    /// Creates the pipe; the program writes to the second end.
    pub(super) fn new() -> io::Result<(Self, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok((Self(reader), writer))
    }

    /// The stack of the process that writes to the pipe.
    pub(super) fn of(self, pid: Pid, layout: &Layout) -> Stack {
        let Layout { script, places, .. } = layout.clone();
        Stack { pipe: self.0, pid, script, data: places.data }
    }

    /// The stack of a kernel that runs the cell of this number.
    pub(super) fn of_cell(&self, pid: Pid, number: u64, layout: &Layout) -> io::Result<Stack> {
        let script = PathBuf::from(format!("{CELL}{number}]"));
        Ok(Stack { script, ..Self(self.0.try_clone()?).of(pid, layout) })
    }
}

/// The stack of a program that runs.
#[derive(Debug)]
pub(super) struct Stack {
    pipe: PipeReader,
    pid: Pid,
    script: PathBuf,
    data: PathBuf,
}

impl Locate for Stack {
    fn position(&self, code: &[u8]) -> Option<Position> {
        let (mut text, mut buffer) = (vec![], vec![0; MAX_BYTES]);
        // A kernel may have left an earlier answer.
        let _ = (&self.pipe).read(&mut buffer);
        kill(self.pid, SIGNAL).ok()?;
        let until = Instant::now() + PATIENCE;
        // A program can write here too, as much and as slowly as it likes.
        while Instant::now() < until && text.len() < MAX_BYTES {
            match (&self.pipe).read(&mut buffer[text.len()..]) {
                Ok(0) => return None,
                Ok(n) => text.extend_from_slice(&buffer[text.len()..text.len() + n]),
                Err(_) => thread::sleep(INTERVAL),
            }
            if is_complete(&text) {
                return self.innermost(&String::from_utf8_lossy(&text), code);
            }
        }
        None
    }
}

/// Whether the last line is the outermost frame, which is that of the fork server or the kernel; if there are very many
/// frames, only the first are written.
fn is_complete(text: &[u8]) -> bool {
    let last = text.trim_ascii_end();
    let last = &last[last.len().saturating_sub(MAX_LINE)..];
    let last =
        String::from_utf8_lossy(last.rsplit(|byte| *byte == b'\n').next().unwrap_or_default());
    last.trim() == "..."
        || (["zygote.py", "kernel.py"].iter().any(|own| last.contains(own))
            && last.ends_with("in <module>"))
}

impl Stack {
    /// The innermost frame of user code. The text of the line is from the program as it was sent: its file may have
    /// changed.
    fn innermost(&self, text: &str, code: &[u8]) -> Option<Position> {
        let (file, line, function) = text.lines().filter_map(frame).find(|(file, ..)| {
            self.script.as_os_str() == *file
                || file.starts_with(CELL)
                || self.data.to_str().is_some_and(|data| is_below(file, data))
        })?;
        let line: u32 = line.parse().ok()?;
        let is_program = self.script.as_os_str() == file;
        let at = usize::try_from(line).ok()?.checked_sub(1)?;
        let text = code.split(|byte| *byte == b'\n').nth(at).filter(|_| is_program);
        let text = text.map(|text| cut(String::from_utf8_lossy(text).trim()));
        let text = text.filter(|text| !text.is_empty());
        Some(Position { file: cut(file), line, function: cut(function), text })
    }
}

fn is_below(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// File, line and function of a line that names them.
fn frame(line: &str) -> Option<(&str, &str, &str)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some((file, line, function))
}
