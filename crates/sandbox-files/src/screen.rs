//! Converts an output to the text that a terminal would show at its end, with repeated lines shown once.
//!
//! ```text
//! bytes --> Screen: the newest lines, which programs can still change  --> Fold: a line and its repeats  --> text
//! ```
//!
//! Progress bars write the same line hundreds of times, and libraries the same warning: a caller needs the last state
//! of the bar and a single copy of the warning. Text without control characters passes unchanged, byte for byte, valid
//! UTF-8 or not. Both parts hold a bounded number of bytes.

use std::mem;

/// The number of bytes of the newest lines that are held after older ones were passed on. Programs can move the cursor
/// within these.
const HELD: usize = 4 << 10;

/// The number of held bytes from which older ones are passed on.
const MOST_HELD: usize = 4 * HELD;

/// The maximum length of an escape sequence; a longer one is shown as text.
const MAX_ESCAPE: usize = 256;

/// The number of repeats above which a line is shown once, with the number of the others.
const MAX_REPEATS: u64 = 10;

/// The maximum length of a line that is compared with the next, in bytes.
const MAX_COMPARED: usize = 2 << 10;

/// Applies carriage returns, backspaces and the usual escape sequences as a terminal does. Colours are left out. A
/// character takes one column.
#[derive(Debug, Default)]
pub struct Screen {
    held: Vec<u8>,
    /// The cursor: index in `held` of the next character, at most its length.
    at: usize,
    /// An escape sequence that has begun.
    escape: Vec<u8>,
    /// Whether the beginning of the first held line was passed on.
    is_continued: bool,
    /// Whether the cursor was moved to the beginning of such a line, which cannot be changed any more.
    is_before: bool,
    /// Whether a part of the last held line was overwritten or erased.
    is_redrawn: bool,
    fold: Fold,
}

impl Screen {
    /// Adds the next bytes, and passes on the text that can no longer change.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut dyn FnMut(&[u8])) {
        while let Some((&first, rest)) = bytes.split_first() {
            if !self.escape.is_empty() || first == b'\x1b' {
                self.escape(first);
                bytes = rest;
            } else if is_control(first) {
                self.control(first);
                bytes = rest;
            } else {
                let end = bytes.iter().position(|byte| is_control(*byte)).unwrap_or(bytes.len());
                // In pieces of this size, so that no more is held.
                for piece in bytes[..end].chunks(MOST_HELD) {
                    self.write(piece);
                    self.give_on(out);
                }
                bytes = &bytes[end..];
            }
            self.give_on(out);
        }
    }

    /// Passes on the rest.
    pub fn end(&mut self, out: &mut dyn FnMut(&[u8])) {
        let escape = mem::take(&mut self.escape);
        self.write(&escape);
        self.at = self.held.len();
        self.trim();
        self.fold.push(&self.held, out);
        self.held.clear();
        self.at = 0;
        self.fold.end(out);
    }

    fn give_on(&mut self, out: &mut dyn FnMut(&[u8])) {
        if self.held.len() < MOST_HELD {
            return;
        }
        let keep_from = (self.held.len() - HELD).min(self.line_start(self.at));
        let lines = self.held[..keep_from].iter().rposition(|byte| *byte == b'\n');
        // A line that is longer than the limit is passed on as it is.
        let count = lines.map_or(self.held.len(), |end| end + 1);
        self.is_continued = lines.is_none();
        self.fold.push(&self.held[..count], out);
        self.held.drain(..count);
        self.at = self.at.saturating_sub(count);
    }

    /// The start of the line that contains this index.
    fn line_start(&self, at: usize) -> usize {
        self.held[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
    }

    /// The end of the line that contains this index, without its end mark.
    fn line_end(&self, at: usize) -> usize {
        self.held[at..]
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(self.held.len(), |len| at + len)
    }

    /// Writes text without control characters at the cursor, over the text that is there.
    fn write(&mut self, text: &[u8]) {
        if mem::take(&mut self.is_before) {
            self.new_line();
        }
        if self.at == self.held.len() {
            self.held.extend_from_slice(text);
            self.at = self.held.len();
            return;
        }
        let columns = text.iter().filter(|byte| starts_character(**byte)).count();
        let end = self.line_end(self.at);
        let over = self.after_columns(self.at, end, columns);
        self.held.splice(self.at..over, text.iter().copied());
        self.at += text.len();
        self.is_redrawn = true;
    }

    /// The index this many characters further, or `end`.
    fn after_columns(&self, at: usize, end: usize, columns: usize) -> usize {
        let mut starts = (at..end).filter(|place| starts_character(self.held[*place]));
        starts.nth(columns).unwrap_or(end)
    }

    fn column(&self) -> usize {
        let line = &self.held[self.line_start(self.at)..self.at];
        line.iter().filter(|byte| starts_character(**byte)).count()
    }

    fn new_line(&mut self) {
        self.is_before = false;
        self.at = self.line_end(self.at);
        if self.at == self.held.len() {
            self.trim();
            self.held.push(b'\n');
            self.at = self.held.len();
        } else {
            self.at += 1;
        }
    }

    /// Removes the blanks with which the last line was erased.
    fn trim(&mut self) {
        if mem::take(&mut self.is_redrawn) {
            let start = self.line_start(self.held.len());
            let len = self.held[start..].trim_ascii_end().len();
            self.held.truncate(start + len);
            self.at = self.held.len();
        }
    }

    fn go_to_line_start(&mut self) {
        self.at = self.line_start(self.at);
        self.is_before = self.at == 0 && self.is_continued;
    }

    fn control(&mut self, byte: u8) {
        match byte {
            b'\n' => self.new_line(),
            b'\r' => self.go_to_line_start(),
            _ => {
                let start = self.line_start(self.at);
                let before = (start..self.at).rfind(|place| starts_character(self.held[*place]));
                self.at = before.unwrap_or(start);
            }
        }
    }

    /// Adds the next byte of an escape sequence.
    fn escape(&mut self, byte: u8) {
        self.escape.push(byte);
        let is_over = match self.escape[..] {
            [_] | [_, b'[' | b']'] => false,
            [_, b'[', .., last] => (0x40..=0x7E).contains(&last),
            [_, b']', .., last] => last == 0x07 || self.escape.ends_with(b"\x1b\\"),
            _ => true,
        };
        let is_known = matches!(self.escape.get(1), Some(b'[' | b']'));
        if is_over && is_known {
            let sequence = mem::take(&mut self.escape);
            if let [_, b'[', parameters @ .., order] = &sequence[..] {
                self.obey(*order, parameters);
            }
        } else if is_over || self.escape.len() > MAX_ESCAPE {
            // The bytes are not a known sequence, and are shown as they are. The last byte may begin another sequence.
            let mut text = mem::take(&mut self.escape);
            if byte == 0x1B || is_control(byte) {
                text.pop();
                self.write(&text);
                if byte == 0x1B {
                    self.escape.push(byte);
                } else {
                    self.control(byte);
                }
            } else {
                self.write(&text);
            }
        }
    }

    fn obey(&mut self, order: u8, parameters: &[u8]) {
        let number = std::str::from_utf8(parameters).ok().and_then(|text| text.parse().ok());
        let count = number.unwrap_or(1_usize).max(1);
        let (start, end) = (self.line_start(self.at), self.line_end(self.at));
        match order {
            b'A' | b'F' => {
                let column = if order == b'A' { self.column() } else { 0 };
                for _ in 0..count.min(self.held.len()) {
                    let start = self.line_start(self.at);
                    self.at = self.line_start(start.saturating_sub(1));
                }
                self.go_to_column(column);
            }
            b'B' | b'E' => {
                let column = if order == b'B' { self.column() } else { 0 };
                for _ in 0..count.min(self.held.len()) {
                    let end = self.line_end(self.at);
                    self.at = if end == self.held.len() { self.line_start(end) } else { end + 1 };
                }
                self.go_to_column(column);
            }
            b'C' => self.at = self.after_columns(self.at, end, count),
            b'D' => {
                let column = self.column().saturating_sub(count);
                self.go_to_column(column);
            }
            b'G' => self.go_to_column(count - 1),
            b'K' => {
                let erased = match number {
                    None | Some(0) => self.at..end,
                    Some(2) => start..end,
                    _ => return,
                };
                if end == self.held.len() {
                    self.is_redrawn = true;
                }
                self.at = erased.start;
                self.held.drain(erased);
            }
            b'J' if matches!(number, None | Some(0)) => {
                self.held.truncate(self.at);
                self.is_redrawn = true;
            }
            _ => {}
        }
    }

    /// Moves the cursor to this column of its line, or to the line's end.
    fn go_to_column(&mut self, column: usize) {
        self.go_to_line_start();
        self.at = self.after_columns(self.at, self.line_end(self.at), column);
        self.is_before &= column == 0;
    }
}

fn is_control(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r' | 0x08 | 0x1B)
}

fn starts_character(byte: u8) -> bool {
    byte & 0xC0 != 0x80
}

/// Passes on a repeated line once, with the number of its repeats.
#[derive(Debug, Default)]
struct Fold {
    /// The newest whole line, with its end mark; empty if it was too long.
    line: Vec<u8>,
    /// The number of the line's repeats.
    repeats: u64,
    /// The start of the next line.
    begun: Vec<u8>,
    /// Whether the start of the next line was passed on, because the line is too long.
    is_long: bool,
}

impl Fold {
    fn push(&mut self, text: &[u8], out: &mut dyn FnMut(&[u8])) {
        for piece in text.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = piece.ends_with(b"\n");
            if !self.is_long && self.begun.len() + piece.len() > MAX_COMPARED {
                self.say(out);
                out(&mem::take(&mut self.begun));
                self.line.clear();
                self.is_long = true;
            }
            if self.is_long {
                out(piece);
                self.is_long = !is_whole;
            } else if !is_whole {
                self.begun.extend_from_slice(piece);
            } else if self.begun.is_empty() && self.line == piece {
                self.repeats += 1;
            } else {
                self.begun.extend_from_slice(piece);
                if self.begun == self.line {
                    self.repeats += 1;
                } else {
                    self.say(out);
                    out(&self.begun);
                    mem::swap(&mut self.line, &mut self.begun);
                }
                self.begun.clear();
            }
        }
    }

    /// Passes on the repeats, or their number if there are many.
    fn say(&mut self, out: &mut dyn FnMut(&[u8])) {
        match mem::take(&mut self.repeats) {
            few @ 0..=MAX_REPEATS => (0..few).for_each(|_| out(&self.line)),
            many => out(format!("[... the same line {many} more times ...]\n").as_bytes()),
        }
    }

    fn end(&mut self, out: &mut dyn FnMut(&[u8])) {
        self.say(out);
        out(&mem::take(&mut self.begun));
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text that is shown of an output in pieces of this size.
    fn in_pieces(text: &[u8], size: usize) -> Vec<u8> {
        let (mut screen, mut shown) = (Screen::default(), vec![]);
        for piece in text.chunks(size) {
            screen.push(piece, &mut |bytes| shown.extend_from_slice(bytes));
            assert!(screen.held.len() < MOST_HELD + HELD && screen.escape.len() <= MAX_ESCAPE);
        }
        screen.end(&mut |bytes| shown.extend_from_slice(bytes));
        shown
    }

    fn shown(text: &str) -> String {
        let whole = in_pieces(text.as_bytes(), usize::MAX);
        assert_eq!(in_pieces(text.as_bytes(), 1), whole, "{text:?}");
        String::from_utf8(whole).expect("whole characters")
    }

    #[test]
    fn a_line_that_is_drawn_again_is_shown_as_it_was_last() {
        for (written, expected) in [
            ("\r  0%|   |\r 50%|#  |\r100%|###|\n", "100%|###|\n"),
            ("before\n\rrow 1\rrow 2", "before\nrow 2"),
            ("working...\rdone", "doneing..."),
            ("working...\r          \rdone\n", "done\n"),
            ("ab\x08c", "ac"),
            ("é\x08東\n", "東\n"),
            ("one\r\ntwo\r\n", "one\ntwo\n"),
            ("\x1b[31mred\x1b[0m \x1b[1;4mbold\x1b[m", "red bold"),
            ("long line\r\x1b[Kshort\n", "short\n"),
            ("long line\x1b[2K\rshort\n", "short\n"),
            ("a\nb\n\x1b[2A1\n2\n", "1\n2\n"),
            ("a: 0%\nb: 0%\x1b[A\ra: 9%\n\rb: 9%\n", "a: 9%\nb: 9%\n"),
            ("a\nb\nc\x1b[2F\x1b[Jall\n", "all\n"),
            ("0123\x1b[2Gx\n", "0x23\n"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07\n", "link\n"),
            ("bar\r   \r", ""),
            ("kept  \nand this \r", "kept  \nand this"),
        ] {
            assert_eq!(shown(written), expected, "{written:?}");
        }
    }

    #[test]
    fn what_is_no_movement_is_shown_as_it_is() {
        for text in ["tab\tnul\0bell\x07\n", "\x1b\x1b\x1b", "\x1bM\n", "trailing  \n\n", "\x1b["] {
            assert_eq!(shown(text), text);
        }
        assert_eq!(in_pieces(b"\xff\xfe\n\x80", 1), b"\xff\xfe\n\x80");
    }

    #[test]
    fn a_line_that_repeats_is_shown_once_with_its_number() {
        let few = "again\n".repeat(11);
        assert_eq!(shown(&few), few);
        let many = format!("a\n{}b\n", "again\n".repeat(500));
        assert_eq!(shown(&many), "a\nagain\n[... the same line 499 more times ...]\nb\n");
        assert_eq!(shown(&"x\n".repeat(100_000)), "x\n[... the same line 99999 more times ...]\n");
        let long = format!("{}\n", "x".repeat(MAX_COMPARED)).repeat(20);
        assert_eq!(shown(&long), long);
        assert_eq!(shown(&format!("{}x", "x\n".repeat(3))), "x\nx\nx\nx");
    }

    #[test]
    fn a_line_too_long_to_be_held_is_not_written_over() {
        let long = "x".repeat(3 * MOST_HELD);
        assert_eq!(shown(&format!("{long}\r\nnext\n")), format!("{long}\nnext\n"));
        assert_eq!(shown(&format!("{long}\rnext\n")), format!("{long}\nnext\n"));
    }

    proptest! {
        #[test]
        fn text_without_movement_passes_byte_for_byte(
            lines in prop::collection::vec(prop::collection::vec(0x09_u8..=0xFF, 0..3000), 0..20),
            size in 1_usize..5000,
        ) {
            let mut lines = lines;
            for (number, line) in lines.iter_mut().enumerate() {
                line.retain(|byte| !is_control(*byte));
                // No line equals the one before.
                line.push(b'0' + u8::try_from(number % 10).expect("a digit"));
                line.push(b'\n');
            }
            let text = lines.concat();
            prop_assert_eq!(in_pieces(&text, size), text);
        }

        #[test]
        fn any_bytes_are_borne(
            text in prop::collection::vec(
                prop_oneof![
                    any::<u8>().prop_map(|byte| vec![byte]),
                    Just(b"\x1b[A".to_vec()), Just(b"\x1b[K".to_vec()), Just(b"\x1b[J".to_vec()),
                    Just(b"\r".to_vec()), Just(b"\n".to_vec()), Just(vec![b'x'; 700]), Just(b"again\n".repeat(12)),
                ],
                0..200,
            ),
            size in 1_usize..900,
        ) {
            let text = text.concat();
            let _ = in_pieces(&text, size);
        }
    }
}
