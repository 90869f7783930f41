//! The two outputs of a run: the thread that runs the program fills them, and others may read them meanwhile.

use std::sync::{Arc, Mutex, MutexGuard};

use protocol::{
    limits::{KEPT_FROM, MAX_LINE},
    message::{PeekDone, Stream},
};

use crate::{
    capture::Capture,
    kept::{OutputSpool, OutputStore},
    screen::Screen,
};

/// The number of bytes at the end of an output in which its newest line is searched.
const LINE_WINDOW: usize = 4096;

/// Outputs that are shared while the run lasts.
#[derive(Debug, Clone)]
pub struct SharedOutputs(Arc<Mutex<Option<Outputs>>>);

impl SharedOutputs {
    /// Creates empty outputs of the run with this call id. `cap` bytes of each are captured, as a terminal would show
    /// them.
    pub fn new(store: &Arc<OutputStore>, call: u32, cap: usize) -> Self {
        Self::with(store, call, cap, || Some(Screen::default()))
    }

    /// Creates empty outputs that are captured byte for byte, as they are written.
    pub fn exact(store: &Arc<OutputStore>, call: u32, cap: usize) -> Self {
        Self::with(store, call, cap, || None)
    }

    fn with(
        store: &Arc<OutputStore>,
        call: u32,
        cap: usize,
        screen: impl Fn() -> Option<Screen>,
    ) -> Self {
        let output = |stream| Output {
            screen: screen(),
            written: 0,
            capture: Capture::new(cap, KEPT_FROM),
            spool: OutputSpool::new(store.clone(), call, stream),
        };
        let [stdout, stderr] = [Stream::Stdout, Stream::Stderr].map(output);
        Self(Arc::new(Mutex::new(Some(Outputs {
            stdout,
            stderr,
            newest: Stream::Stdout,
            loading: true,
        }))))
    }

    /// Records that the interpreter has started and the code runs.
    pub fn begin(&self) {
        if let Some(outputs) = &mut *self.lock() {
            outputs.loading = false;
        }
    }

    /// Adds bytes that the program has written. They are dropped if the outputs have been [taken](Self::take).
    pub fn push(&self, stream: Stream, bytes: &[u8]) {
        if let Some(outputs) = &mut *self.lock() {
            outputs.push(stream, bytes);
        }
    }

    /// Ends the sharing and returns the outputs; `None` if they have been taken before.
    pub fn take(&self) -> Option<Outputs> {
        let mut outputs = self.lock().take()?;
        outputs.stdout.end();
        outputs.stderr.end();
        Some(outputs)
    }

    /// The progress of a run; `None` once it is over.
    pub fn peek(&self) -> Option<(PeekDone, Vec<u8>)> {
        self.lock().as_ref().map(Outputs::peek)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Outputs>> {
        self.0.lock().expect("no thread panics while it holds this")
    }
}

/// The outputs of a program.
#[derive(Debug)]
pub struct Outputs {
    stdout: Output,
    stderr: Output,
    /// The output that was written to last.
    newest: Stream,
    /// Whether the interpreter still loads, so that no code has run yet.
    loading: bool,
}

#[derive(Debug)]
struct Output {
    screen: Option<Screen>,
    /// Bytes that the program has written.
    written: u64,
    capture: Capture,
    spool: OutputSpool,
}

impl Output {
    fn push(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        let Self { screen, capture, spool, .. } = self;
        let mut keep = |text: &[u8]| capture.push(text, |long| spool.append(long));
        match screen {
            Some(screen) => screen.push(bytes, &mut keep),
            None => keep(bytes),
        }
    }

    fn end(&mut self) {
        let Self { screen, capture, spool, .. } = self;
        if let Some(screen) = screen {
            screen.end(&mut |text| capture.push(text, |long| spool.append(long)));
        }
    }

    fn newest_line(&self) -> Option<Vec<u8>> {
        let held = self.screen.as_ref().and_then(|screen| newest_line(screen.held()));
        held.or_else(|| newest_line(&self.capture.latest(LINE_WINDOW)))
    }
}

impl Outputs {
    /// Standard output.
    pub fn stdout(&self) -> &Capture {
        &self.stdout.capture
    }

    /// Standard error.
    pub fn stderr(&self) -> &Capture {
        &self.stderr.capture
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let output = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        output.push(bytes);
        self.newest = stream;
    }

    fn peek(&self) -> (PeekDone, Vec<u8>) {
        let (newer, older) = match self.newest {
            Stream::Stdout => (&self.stdout, &self.stderr),
            Stream::Stderr => (&self.stderr, &self.stdout),
        };
        let line = [newer, older].into_iter().find_map(Output::newest_line);
        let done = PeekDone {
            stdout_total: self.stdout.written,
            stderr_total: self.stderr.written,
            loading: self.loading,
        };
        (done, line.unwrap_or_default())
    }
}

/// The last whole line that is not blank. A progress bar ends or begins its lines with carriage returns: its line
/// counts even if it has not ended. Any other line that has not ended may be incomplete, and counts only if there is no
/// other line.
fn newest_line(text: &[u8]) -> Option<Vec<u8>> {
    let ends = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let last = |text: &[u8]| {
        let mut lines = text.rsplit(ends).map(<[u8]>::trim_ascii);
        lines.find(|line| !line.is_empty()).map(<[u8]>::to_vec)
    };
    let end = text.iter().rposition(ends).unwrap_or(0);
    let whole = if text.get(end) == Some(&b'\n') { &text[..end] } else { text };
    let line = last(whole).or_else(|| last(text))?;
    Some(line[line.len().saturating_sub(MAX_LINE)..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_line_is_the_last_that_says_something() {
        let line = |text: &str| newest_line(text.as_bytes()).map(String::from_utf8);
        let says = |text, expected: &str| assert_eq!(line(text), Some(Ok(expected.to_owned())));
        says("one\ntwo\n", "two");
        says("one\ntwo", "one");
        says("\n\ntwo", "two");
        says("two", "two");
        says("one\n\n \t\r\n", "one");
        says("\r  0%|  |\r 50%|# |", "50%|# |");
        says(" 50%|# |\r", "50%|# |");
        assert_eq!(line(""), None);
        assert_eq!(line(" \r\n\t"), None);
        let long = "x".repeat(MAX_LINE) + "end";
        says(&long, &long[3..]);
    }

    #[test]
    fn the_output_that_was_written_to_last_is_looked_at_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = crate::beneath::root(dir.path()).expect("opened");
        let shared = SharedOutputs::new(&Arc::new(OutputStore::new(data)), 1, 100);
        let seen =
            || shared.peek().map(|(done, line)| (done.stdout_total, done.stderr_total, line));
        assert_eq!(seen(), Some((0, 0, vec![])));
        let is_loading = || shared.peek().is_some_and(|(done, _)| done.loading);
        assert!(is_loading());
        shared.begin();
        assert!(!is_loading());
        shared.push(Stream::Stdout, b"out\n");
        assert_eq!(seen(), Some((4, 0, b"out".to_vec())));
        shared.push(Stream::Stderr, b"\n");
        assert_eq!(seen(), Some((4, 1, b"out".to_vec())), "it says nothing");
        shared.push(Stream::Stderr, b"err");
        assert_eq!(seen(), Some((4, 4, b"err".to_vec())));
        assert!(shared.take().is_some());
        shared.push(Stream::Stdout, b"late");
        assert_eq!(seen(), None);
    }
}
