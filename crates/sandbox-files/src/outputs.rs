//! The two outputs of a run: the thread that runs the program fills them, and others may read them meanwhile.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use protocol::{
    limits::{KEPT_FROM, MAX_LIVE},
    message::{Peek, PeekDone, Stream},
};

use crate::{
    capture::Capture,
    kept::{OutputSpool, OutputStore},
    screen::Screen,
};

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
            newest: VecDeque::new(),
            capture: Capture::new(cap, KEPT_FROM),
            spool: OutputSpool::new(store.clone(), call, stream),
        };
        let [stdout, stderr] = [Stream::Stdout, Stream::Stderr].map(output);
        Self(Arc::new(Mutex::new(Some(Outputs { stdout, stderr, loading: true }))))
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

    /// Answers [`Peek`]; `None` once the run is over.
    pub fn peek(&self, peek: &Peek) -> Option<(PeekDone, Vec<u8>)> {
        self.lock().as_ref().map(|outputs| outputs.peek(peek))
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
    /// Whether the interpreter still loads, so that no code has run yet.
    loading: bool,
}

#[derive(Debug)]
struct Output {
    screen: Option<Screen>,
    /// Bytes that the program has written.
    written: u64,
    /// The newest of these bytes, at most [`MAX_LIVE`].
    newest: VecDeque<u8>,
    capture: Capture,
    spool: OutputSpool,
}

impl Output {
    fn push(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        let newest = &bytes[bytes.len().saturating_sub(MAX_LIVE)..];
        let excess = (self.newest.len() + newest.len()).saturating_sub(MAX_LIVE);
        self.newest.drain(..excess);
        self.newest.extend(newest);
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

    /// The bytes after so many, as far as they are still held.
    fn since(&self, seen: u64) -> impl Iterator<Item = u8> {
        let new = usize::try_from(self.written.saturating_sub(seen)).unwrap_or(usize::MAX);
        self.newest.iter().skip(self.newest.len().saturating_sub(new)).copied()
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
    }

    fn peek(&self, peek: &Peek) -> (PeekDone, Vec<u8>) {
        let mut body: Vec<u8> = self.stdout.since(peek.stdout).collect();
        let done = PeekDone {
            stdout_total: self.stdout.written,
            stderr_total: self.stderr.written,
            stdout: body.len(),
            loading: self.loading,
        };
        body.extend(self.stderr.since(peek.stderr));
        (done, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_has_what_was_written_since_the_last() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = crate::beneath::root(dir.path()).expect("opened");
        let shared = SharedOutputs::new(&Arc::new(OutputStore::new(data)), 1, 100);
        let seen = |stdout, stderr| {
            let (done, body) = shared.peek(&Peek { run: 1, stdout, stderr })?;
            let (out, err) = body.split_at(done.stdout);
            Some((done.stdout_total, done.stderr_total, out.to_vec(), err.to_vec()))
        };
        let is_loading = || {
            let looked = shared.peek(&Peek { run: 1, stdout: 0, stderr: 0 });
            looked.is_some_and(|(done, _)| done.loading)
        };
        assert!(is_loading());
        shared.begin();
        assert!(!is_loading());
        shared.push(Stream::Stdout, b"one\rtwo\n");
        shared.push(Stream::Stderr, b"err");
        assert_eq!(seen(0, 0), Some((8, 3, b"one\rtwo\n".to_vec(), b"err".to_vec())));
        shared.push(Stream::Stdout, b"three");
        assert_eq!(seen(8, 3), Some((13, 3, b"three".to_vec(), vec![])));
        assert_eq!(seen(99, 99), Some((13, 3, vec![], vec![])), "nothing was written after that");
        shared.push(Stream::Stdout, &[b'x'; MAX_LIVE - 1]);
        shared.push(Stream::Stdout, b"yz");
        let (_, _, newest, _) = seen(13, 3).expect("it is not over");
        assert_eq!((newest.len(), &newest[MAX_LIVE - 3..]), (MAX_LIVE, &b"xyz"[..]));
        assert!(shared.take().is_some());
        shared.push(Stream::Stdout, b"late");
        assert_eq!(seen(0, 0), None);
    }
}
