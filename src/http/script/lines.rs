//! The logical lines of a cell: the start and end of each, and which of them only IPython understands. Text
//! within a string, a comment or brackets, or after a backslash, does not begin a line.

use std::iter;

/// A statement with all of its physical lines; a blank or comment-only line counts as one, too.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// The whole line, without its last `\n`.
    pub(super) text: &'a str,
    /// Bytes of white space before it.
    pub(super) indent: usize,
    pub(super) kind: Kind,
    /// Whether this is the first line of a function.
    pub(super) is_def: bool,
    /// Whether the line awaits outside of functions; the first line of a function can do so only in its defaults.
    pub(super) awaits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Python,
    /// A magic, a shell command or a question.
    Escape,
    /// The value of a magic or a shell command, which begins at this byte, gets a name.
    AssignedEscape(usize),
}

/// The logical lines of code that Python or IPython has compiled. Other text is split into some lines, too.
pub(super) fn lines(code: &str) -> impl Iterator<Item = Line<'_>> {
    let mut rest = code;
    iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let line = Scanner::new(rest).line();
        rest = rest[line.text.len()..].strip_prefix('\n').unwrap_or_default();
        Some(line)
    })
}

/// A construct that a byte may be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    Brackets,
    Text(Quote),
    /// The expression between the braces of an f-string.
    Field,
    /// The format after a field's colon.
    Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quote {
    mark: u8,
    is_triple: bool,
    has_fields: bool,
}

impl Quote {
    fn len(self) -> usize {
        if self.is_triple { 3 } else { 1 }
    }
}

/// Reads one logical line.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    within: Vec<Context>,
    /// The last two words, the last one last.
    words: [&'a str; 2],
    words_seen: usize,
    /// The last byte that is neither white space nor in a comment or string.
    last: u8,
    is_def: bool,
    is_past_colon: bool,
    awaits: bool,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            within: vec![],
            words: [""; 2],
            words_seen: 0,
            last: 0,
            is_def: false,
            is_past_colon: false,
            awaits: false,
        }
    }

    fn line(mut self) -> Line<'a> {
        let indent = self.text.len() - self.text.trim_start_matches([' ', '\t', '\x0c']).len();
        self.at = indent;
        let kind = if matches!(self.byte(0), b'%' | b'!' | b'?' | b',' | b';' | b'/') {
            self.at = self.end_of_escape();
            Kind::Escape
        } else {
            self.python()
        };
        // After a backslash as the last byte, `at` is past the end.
        let text = self.text.get(..self.at).unwrap_or(self.text);
        Line { text, indent, kind, is_def: self.is_def, awaits: self.awaits }
    }

    /// Reads to the end of the line.
    fn python(&mut self) -> Kind {
        while self.at < self.text.len() {
            match self.within.last().copied() {
                Some(Context::Text(quote)) => self.text(quote),
                Some(Context::Format) => self.format(),
                None if self.byte(0) == b'\n' => break,
                None if self.byte(0) == b'=' && self.assigns_escape() => {
                    let value = self.at;
                    self.at = self.end_of_escape();
                    return Kind::AssignedEscape(value);
                }
                None | Some(Context::Brackets | Context::Field) => self.code(),
            }
        }
        if self.last == b'?' { Kind::Escape } else { Kind::Python }
    }

    /// The byte at this distance ahead; 0 after the end.
    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or_default()
    }

    /// Length of the next character if it is ASCII, so that a backslash may change its meaning; otherwise 0.
    fn next_if_ascii(&self) -> usize {
        usize::from(self.byte(0).is_ascii())
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn code(&mut self) {
        let byte = self.byte(0);
        if byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii() {
            return self.word();
        }
        if !byte.is_ascii_whitespace() && !matches!(byte, b'#' | b'\\') {
            self.last = byte;
        }
        self.at += 1;
        match (byte, self.within.last()) {
            (b'#', _) => self.at += self.rest().iter().take_while(|&&byte| byte != b'\n').count(),
            (b'"' | b'\'', _) => self.open(byte, false),
            (b'(' | b'[' | b'{', _) => self.within.push(Context::Brackets),
            (b')' | b']' | b'}', Some(Context::Brackets)) | (b'}', Some(Context::Field)) => {
                self.within.pop();
            }
            (b':', Some(Context::Field)) => {
                self.within.pop();
                self.within.push(Context::Format);
            }
            (b':', None) => self.is_past_colon = true,
            (b'\\', _) => self.at += self.next_if_ascii(),
            _ => {}
        }
    }

    fn word(&mut self) {
        let is_part = |byte: &u8| *byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii();
        let start = self.at;
        self.at += self.rest().iter().take_while(|byte| is_part(byte)).count();
        let word = &self.text[start..self.at];
        let mark = self.byte(0);
        self.last = b'_';
        let is_prefix = |byte: u8| b"rRbBuUfFtT".contains(&byte);
        if matches!(mark, b'"' | b'\'') && word.len() <= 2 && word.bytes().all(is_prefix) {
            self.at += 1;
            return self.open(mark, word.contains(['f', 'F', 't', 'T']));
        }
        let before = self.words[1];
        self.is_def |=
            word == "def" && (self.words_seen == 0 || (self.words_seen, before) == (1, "async"));
        let is_async = word == "await" || (before == "async" && word != "def");
        self.awaits |= is_async && !(self.is_def && self.is_past_colon);
        self.words = [before, word];
        self.words_seen += 1;
    }

    /// Opens a string whose first quotation mark has been read.
    fn open(&mut self, mark: u8, has_fields: bool) {
        let is_triple = (self.byte(0), self.byte(1)) == (mark, mark);
        self.at += if is_triple { 2 } else { 0 };
        self.within.push(Context::Text(Quote { mark, is_triple, has_fields }));
    }

    fn text(&mut self, quote: Quote) {
        let byte = self.byte(0);
        let has_field = quote.has_fields && byte == b'{';
        match byte {
            // Braces after a backslash keep their meaning.
            b'\\' if quote.has_fields && matches!(self.byte(1), b'{' | b'}') => self.at += 1,
            b'\\' => {
                self.at += 1;
                self.at += self.next_if_ascii();
            }
            b'{' if has_field && self.byte(1) == b'{' => self.at += 2,
            b'{' if has_field => {
                self.within.push(Context::Field);
                self.at += 1;
            }
            // The string has no end, so it is not one; the next line is read as code.
            b'\n' if !quote.is_triple => self.within.clear(),
            _ if self.rest().starts_with(&[quote.mark; 3][..quote.len()]) => {
                self.within.pop();
                self.at += quote.len();
            }
            _ => self.at += 1,
        }
    }

    fn format(&mut self) {
        match self.byte(0) {
            b'{' => self.within.push(Context::Field),
            b'}' => _ = self.within.pop(),
            _ => {}
        }
        self.at += 1;
    }

    /// Whether a magic or shell command follows this `=`; if so, moves to it.
    fn assigns_escape(&mut self) -> bool {
        let blanks =
            self.rest()[1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let is_so = matches!(self.byte(1 + blanks), b'%' | b'!');
        self.at += if is_so { 1 + blanks } else { 0 };
        is_so
    }

    /// The end of text that is not Python, in which quotes and brackets have no meaning.
    fn end_of_escape(&self) -> usize {
        let mut end = self.at;
        loop {
            end += self.text[end..].find('\n').unwrap_or(self.text.len() - end);
            if end == self.text.len() || !self.text[..end].ends_with('\\') {
                return end;
            }
            end += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds(code: &str) -> Vec<(&str, Kind)> {
        lines(code).map(|line| (line.text, line.kind)).collect()
    }

    /// Asserts that each text is a line of its own.
    fn are_python(lines: &[&str]) {
        let code = lines.join("\n");
        let wanted: Vec<_> = lines.iter().map(|line| (*line, Kind::Python)).collect();
        assert_eq!(kinds(&code), wanted);
    }

    #[test]
    fn what_is_in_strings_brackets_or_after_a_backslash_begins_no_line() {
        are_python(&[
            "s = '''\n%a\n!b\n'''",
            "t = \"\"\"\n'''?\n\"\"\"",
            "u = 'it\\'s # no\\\n!b'",
        ]);
        are_python(&["x = 7 \\\n% 2", "y = (7\n% 2)", "", "z = [f(\n/ 2),\n{\n}]"]);
        are_python(&["# it's (", "x = 1  # ok?", "r'\\'", "'why?'", "b'('", "x = {'a': 1}"]);
        are_python(&[
            "f'{a[\"(\"]}'",
            "f\"{d[\"#\"]!r:>{n}} {{ (\"",
            "f'''{\nx\n:%Y\n}'''",
            "rf'\\{x}'",
        ]);
        are_python(&[
            "x: int = 1",
            "a = b == c != d",
            "f(x=1)",
            "x %= 2",
            "f'{x=!r}'",
            "é = 'é\\é'",
            "  ",
        ]);
    }

    #[test]
    fn magics_commands_and_questions_begin_a_line_and_end_with_it() {
        for text in [
            "%time f(",
            "!echo 'it",
            "    !ls \\\n  -l",
            "?len",
            "len??",
            "  x.real ?",
            ",f a",
            "!!ls",
            "/f (",
            "%",
        ] {
            assert_eq!(
                kinds(&format!("{text}\nx = 1")),
                [(text, Kind::Escape), ("x = 1", Kind::Python)]
            );
        }
        for (text, value) in
            [("x = !ls 'a", 4), ("x=%timeit -o (", 2), ("if y: a, b =  !ls \\\n -l", 14)]
        {
            let wanted = [(text, Kind::AssignedEscape(value)), ("x = 1", Kind::Python)];
            assert_eq!(kinds(&format!("{text}\nx = 1")), wanted);
        }
    }

    proptest! {
        #[test]
        fn whatever_the_text_its_lines_are_all_of_it(code in "[f'\"\\\\{}()\\[\\]:#=!%?é \n]{0,24}") {
            let texts: Vec<_> = lines(&code).map(|line| line.text).collect();
            let whole = texts.join("\n");
            prop_assert_eq!(whole.trim_end_matches('\n'), code.trim_end_matches('\n'));
        }
    }

    #[test]
    fn a_line_that_awaits_is_known() {
        let awaits = |code: &str| lines(code).any(|line| line.awaits);
        for code in [
            "await f()",
            "x = [\nawait f()]",
            "async with f(): pass",
            "[x async for x in y]",
            "f'{await x}'",
        ] {
            assert!(awaits(code), "{code}");
        }
        assert!(awaits("async def f(a=await g()): pass"));
        for code in [
            "'await'",
            "# await",
            "awaited = 1",
            "async def f(): await g()",
            "def await_it(): pass",
            "x.await_ = 1",
        ] {
            assert!(!awaits(code), "{code}");
        }
        assert!(lines("async def f():\n  x").next().is_some_and(|line| line.is_def));
    }
}
