//! Progress of a run or another long call, for the caller that waits for it.
//!
//! ```text
//! looks at a run (`Peek`) --> RunOutput: unfinished lines, the newest bytes --> Lines: whole lines --> messages
//! ```

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use model::{
    Approval, RunId, SessionId,
    text::{utf8, without_controls},
};
use protocol::message::{Peek, PeekDone, RuntimeName};
use tokio::time::Instant;

/// Longest line that is shown, in characters; only the end of a longer line is shown.
const MAX_LINE_CHARS: usize = 500;

/// Maximum number of bytes of a line that has not ended; only the end of a longer one is held.
const MAX_BEGUN: usize = 4 << 10;

/// Maximum number of bytes of lines that wait for a slow reader.
const MAX_LINES: usize = 8 << 10;

/// Maximum number of bytes of each output that viewers of a run in progress see: the newest.
const MAX_NEWEST: usize = 4 << 10;

/// The progress of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The id of the run, if it is one.
    pub run_id: Option<RunId>,
    /// The session in which the run has begun.
    pub session: Option<SessionId>,
    /// Whether that session is new to the caller.
    pub is_new: bool,
    /// Whether the sandbox has started and has received the program.
    pub started: bool,
    /// The language of the run's code, if it is a run.
    pub language: Option<RuntimeName>,
    /// Whether the interpreter is still starting, so that none of the program has run.
    pub loading: bool,
    /// When the program itself began, if that is known.
    pub since: Option<Instant>,
    /// The lines of its output that are not blank, as printable text.
    pub lines: Lines,
    /// The present state of a progress bar, which draws a line again and again; empty if there is none.
    pub bar: String,
    /// Bytes written to both outputs.
    pub written: u64,
    /// The call out of the sandbox that waits for a person.
    pub(crate) approval: Option<Arc<Approval>>,
}

/// Lines for a reader that may be slower than their writer: then it misses the oldest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    /// The newest lines, each with its end mark.
    text: String,
    /// Bytes of all lines so far.
    end: u64,
}

impl Lines {
    /// Adds a line of printable text.
    pub fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
        self.end += line.len() as u64 + 1;
        if let Some(excess) = self.text.len().checked_sub(MAX_LINES) {
            let end = self.text.as_bytes()[excess..].iter().position(|byte| *byte == b'\n');
            // The newest line is never removed.
            let cut = end.map(|end| excess + end + 1).filter(|cut| *cut < self.text.len());
            drop(self.text.drain(..cut.unwrap_or_default()));
        }
    }

    /// The position after the newest line.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The lines after a position that [`end`](Self::end) has returned, without the last end mark.
    pub fn since(&self, position: u64) -> Cow<'_, str> {
        let new = usize::try_from(self.end.saturating_sub(position)).unwrap_or(usize::MAX);
        match self.text.len().checked_sub(new) {
            Some(start) => self.text[start..].trim_end_matches('\n').into(),
            None => {
                format!("[... lines left out ...]\n{}", self.text.trim_end_matches('\n')).into()
            }
        }
    }

    /// The newest line.
    pub fn newest(&self) -> &str {
        self.text.lines().next_back().unwrap_or_default()
    }
}

/// The outputs of a run in progress, as far as looks at it have shown them.
#[derive(Debug, Default)]
pub(crate) struct RunOutput {
    stdout: Tail,
    stderr: Tail,
}

/// The end of an output.
#[derive(Debug, Default)]
struct Tail {
    /// Bytes that the program has written.
    total: u64,
    newest: Vec<u8>,
    /// The line that has not ended.
    begun: Vec<u8>,
    /// Whether the beginning of that line is unknown.
    is_torn: bool,
}

impl RunOutput {
    /// The request for what the run writes next.
    pub(crate) fn next(&self, run: u32) -> Peek {
        Peek { run, stdout: self.stdout.total, stderr: self.stderr.total }
    }

    /// Adds the answer to that request. Returns whether anything was written.
    pub(crate) fn add(
        &mut self,
        done: &PeekDone,
        [out, err]: &[Bytes; 2],
        lines: &mut Lines,
    ) -> bool {
        let before = self.written();
        self.stdout.add(done.stdout_total, out, lines);
        self.stderr.add(done.stderr_total, err, lines);
        self.written() != before
    }

    /// Bytes written to both outputs.
    pub(crate) fn written(&self) -> u64 {
        self.stdout.total.saturating_add(self.stderr.total)
    }

    /// The present state of a progress bar; empty if there is none.
    pub(crate) fn bar(&self) -> String {
        let bar = [&self.stderr, &self.stdout].into_iter().find(|it| it.begun.contains(&b'\r'));
        bar.map(|it| shown(&it.begun).trim_start().to_owned()).unwrap_or_default()
    }

    /// The newest text of standard output and standard error.
    pub(crate) fn newest(&self) -> [String; 2] {
        [self.stdout.text(), self.stderr.text()]
    }
}

impl Tail {
    fn add(&mut self, total: u64, new: &[u8], lines: &mut Lines) {
        let missing = total.saturating_sub(self.total).saturating_sub(new.len() as u64);
        if missing > 0 {
            lines.push(&format!("[... {missing} bytes left out ...]"));
            self.begun.clear();
            self.newest.clear();
            self.is_torn = true;
        }
        self.total = total;
        for piece in new.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if self.begun.pop_if(|last| *last == b'\n').is_some() {
                let line = shown(&self.begun);
                if !line.is_empty() && !self.is_torn {
                    lines.push(&line);
                }
                self.begun.clear();
                self.is_torn = false;
            } else {
                keep_end(&mut self.begun, MAX_BEGUN);
            }
        }
        self.newest.extend_from_slice(new);
        keep_end(&mut self.newest, MAX_NEWEST);
    }

    fn text(&self) -> String {
        let newest = utf8::whole_start(&self.newest);
        let lines = newest.split(|byte| *byte == b'\n');
        let lines: Vec<_> = lines.map(|line| folded(line).into_owned()).collect();
        String::from_utf8_lossy(&lines.join(&b'\n')).into_owned()
    }
}

fn keep_end(bytes: &mut Vec<u8>, most: usize) {
    drop(bytes.drain(..bytes.len().saturating_sub(most)));
}

/// A line as a progress bar has drawn it last: the text after the last carriage return that some follows, without escape
/// sequences.
fn folded(line: &[u8]) -> Cow<'_, [u8]> {
    let drawn = line.split(|byte| *byte == b'\r').rfind(|text| !text.trim_ascii().is_empty());
    let drawn = drawn.unwrap_or_default();
    if !drawn.contains(&0x1B) {
        return drawn.into();
    }
    let mut text = vec![];
    let mut rest = drawn.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte == 0x1B && rest.next_if_eq(&b'[').is_some() {
            rest.find(|last| (0x40..=0x7E).contains(last));
        } else {
            text.push(byte);
        }
    }
    text.into()
}

/// The newest line of the first output that has one, as printable text.
pub(crate) fn newest_line(outputs: &[String]) -> Option<String> {
    let lines = outputs.iter().flat_map(|output| output.lines().rev());
    lines.map(|line| shown(line.as_bytes())).find(|line| !line.is_empty())
}

/// A line as printable text.
fn shown(line: &[u8]) -> String {
    let line = folded(line);
    let line = String::from_utf8_lossy(utf8::whole_start(&line));
    let line = line.trim_end();
    let skip = line.chars().count().saturating_sub(MAX_LINE_CHARS);
    // A tab becomes a blank, as other control characters could move a cursor.
    without_controls(line.chars().skip(skip).map(|c| if c == '\t' { ' ' } else { c }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Output that is looked at in these pieces, and the lines in it.
    fn looked_at(pieces: &[&[u8]]) -> (RunOutput, Lines) {
        let (mut output, mut lines) = (RunOutput::default(), Lines::default());
        for piece in pieces {
            let stdout_total = output.stdout.total + piece.len() as u64;
            let done =
                PeekDone { stdout_total, stderr_total: 0, stdout: piece.len(), loading: false };
            output.add(&done, &[Bytes::copy_from_slice(piece), Bytes::new()], &mut lines);
        }
        (output, lines)
    }

    #[test]
    fn whole_lines_are_shown_as_they_come_and_bars_as_they_were_drawn_last() {
        for (pieces, expected, bar) in [
            (&[&b"one\ntw"[..], b"o\nhal"][..], "one\ntwo", ""),
            (&[b"\r  0%|  |\r 50%|# |"], "", "50%|# |"),
            (&[b"\r  0%|  |", b"\r100%|##|\n"], "100%|##|", ""),
            (&[b" 50%|# |\r"], "", "50%|# |"),
            (&[b"one\r\n\r\n \t\r\n  two\r\n"], "one\n  two", ""),
            (&[b"\x1b[31mred\x1b[0m\x1b[K\n\x07\xff\n"], "red\n\u{FFFD}\u{FFFD}", ""),
            (&[&"é".as_bytes()[1..], b"x\n"], "x", ""),
        ] {
            let (output, lines) = looked_at(pieces);
            assert_eq!((&*lines.since(0), &*output.bar()), (expected, bar), "{pieces:?}");
        }
        let (_, lines) = looked_at(&[&[&[b'x'; 700][..], b"end\n"].concat()]);
        assert_eq!(lines.newest(), "x".repeat(497) + "end");
    }

    #[test]
    fn output_that_no_look_has_shown_is_counted() {
        let (mut output, mut lines) = looked_at(&[b"begun"]);
        let done = PeekDone { stdout_total: 100, stderr_total: 0, stdout: 9, loading: false };
        output.add(&done, &[Bytes::from_static(b"rest\nnext"), Bytes::new()], &mut lines);
        assert_eq!(lines.since(0), "[... 86 bytes left out ...]");
        assert_eq!(output.newest(), ["rest\nnext".to_owned(), String::new()]);
        assert_eq!(output.next(7), Peek { run: 7, stdout: 100, stderr: 0 });
    }

    #[test]
    fn a_slow_reader_misses_the_oldest_lines_and_is_told_so() {
        let mut lines = Lines::default();
        lines.push("first");
        let position = lines.end();
        assert_eq!((&*lines.since(0), &*lines.since(position)), ("first", ""));
        lines.push("second");
        assert_eq!(lines.since(position), "second");
        for n in 0..MAX_LINES {
            lines.push(&n.to_string());
        }
        let late = lines.since(position);
        assert!(late.starts_with("[... lines left out ...]\n") && late.ends_with("\n8191"));
        assert!(late.len() < MAX_LINES + 100, "{}", late.len());
    }

    proptest! {
        #[test]
        fn any_bytes_are_lines_that_can_be_shown(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 0..6),
        ) {
            let pieces: Vec<_> = pieces.iter().map(|piece| &piece[..]).collect();
            let (output, lines) = looked_at(&pieces);
            let texts = lines.since(0);
            prop_assert!(texts.len() < MAX_LINES + MAX_LINE_CHARS * 4);
            for line in texts.split('\n').chain([&*output.bar()]) {
                prop_assert!(line.chars().count() <= MAX_LINE_CHARS);
                prop_assert!(!line.contains(char::is_control));
            }
            prop_assert!(output.stdout.begun.len() <= MAX_BEGUN);
            let _ = output.newest();
        }
    }
}
