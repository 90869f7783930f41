//! Declarations of cells in JavaScript: a cell may redeclare names of earlier cells, as in a notebook.
//!
//! Scripts may not declare a `let`, `const` or class twice. Declarations at the top level of a cell are therefore
//! turned into `var`s, which may be repeated. Declarations in blocks, functions and templates are not changed.

/// The code with its top-level declarations as `var`s. Positions in the code stay the same if possible.
pub(crate) fn as_vars(code: &str) -> String {
    let mut scanner =
        Scanner { code: code.as_bytes(), at: 0, out: String::with_capacity(code.len() + 32) };
    scanner.scan();
    scanner.out
}

struct Scanner<'a> {
    code: &'a [u8],
    at: usize,
    out: String,
}

/// The kind of the last token, which decides what the next may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// A statement may begin here.
    Start,
    /// A value has ended: a slash is a division.
    Value,
    /// An operator or an opening bracket: a slash begins a regular expression.
    Operator,
}

impl Scanner<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.code.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Copies `count` bytes.
    fn copy(&mut self, count: usize) {
        let end = (self.at + count).min(self.code.len());
        self.out.push_str(&String::from_utf8_lossy(&self.code[self.at..end]));
        self.at = end;
    }

    /// Copies up to and including the first `end`, or to the end of the code.
    fn copy_through(&mut self, end: &[u8]) {
        let rest = &self.code[self.at..];
        let found = rest.windows(end.len()).position(|window| window == end);
        self.copy(found.map_or(rest.len(), |found| found + end.len()));
    }

    fn scan(&mut self) {
        let mut depth = 0usize;
        // Depths at which braces of template expressions close.
        let mut templates: Vec<usize> = vec![];
        let mut last = Last::Start;
        let mut after_line = false;
        while self.at < self.code.len() {
            let byte = self.peek(0);
            match byte {
                b'\n' => {
                    after_line = true;
                    self.copy(1);
                    continue;
                }
                b' ' | b'\t' | b'\r' => {
                    self.copy(1);
                    continue;
                }
                b'/' if self.peek(1) == b'/' => {
                    self.copy_through(b"\n");
                    after_line = true;
                    continue;
                }
                b'/' if self.peek(1) == b'*' => {
                    self.copy(2);
                    self.copy_through(b"*/");
                    continue;
                }
                b'"' | b'\'' => {
                    self.string(byte);
                    last = Last::Value;
                }
                b'`' => {
                    self.copy(1);
                    if self.template() {
                        templates.push(depth);
                        depth += 1;
                        last = Last::Operator;
                    } else {
                        last = Last::Value;
                    }
                }
                b'/' if last != Last::Value => {
                    self.regex();
                    last = Last::Value;
                }
                b'(' | b'[' | b'{' => {
                    depth += 1;
                    self.copy(1);
                    last = Last::Operator;
                }
                b'}' if templates.last() == Some(&depth.wrapping_sub(1)) => {
                    self.copy(1);
                    depth -= 1;
                    templates.pop();
                    if self.template() {
                        templates.push(depth);
                        depth += 1;
                        last = Last::Operator;
                    } else {
                        last = Last::Value;
                    }
                }
                b')' | b']' | b'}' => {
                    depth = depth.saturating_sub(1);
                    self.copy(1);
                    last = if byte == b'}' && depth == 0 { Last::Start } else { Last::Value };
                }
                b';' => {
                    self.copy(1);
                    last = Last::Start;
                }
                _ if is_name(byte) => last = self.word(depth == 0, last, after_line),
                _ => {
                    self.copy(1);
                    last = Last::Operator;
                }
            }
            after_line = false;
        }
    }

    fn string(&mut self, quote: u8) {
        let start = self.at;
        let mut end = start + 1;
        while end < self.code.len() && self.code[end] != quote && self.code[end] != b'\n' {
            end += if self.code[end] == b'\\' { 2 } else { 1 };
        }
        self.copy(end + 1 - start);
    }

    /// Copies the text of a template. Returns true if an expression begins.
    fn template(&mut self) -> bool {
        let start = self.at;
        let mut end = start;
        while end < self.code.len() {
            match self.code[end] {
                b'\\' => end += 2,
                b'`' => {
                    self.copy(end + 1 - start);
                    return false;
                }
                b'$' if self.code.get(end + 1) == Some(&b'{') => {
                    self.copy(end + 2 - start);
                    return true;
                }
                _ => end += 1,
            }
        }
        self.copy(end - start);
        false
    }

    fn regex(&mut self) {
        let start = self.at;
        let mut end = start + 1;
        let mut in_class = false;
        while end < self.code.len() && self.code[end] != b'\n' {
            match self.code[end] {
                b'\\' => end += 1,
                b'[' => in_class = true,
                b']' => in_class = false,
                b'/' if !in_class => break,
                _ => {}
            }
            end += 1;
        }
        self.copy(end + 1 - start);
    }

    /// Copies a word, or writes `var` for a declaration.
    fn word(&mut self, is_top: bool, last: Last, after_line: bool) -> Last {
        let rest = &self.code[self.at..];
        let len = rest.iter().position(|byte| !is_name(*byte)).unwrap_or(rest.len());
        let word = &rest[..len];
        let begins = is_top && (last == Last::Start || (after_line && last == Last::Value));
        let next = rest[len..].iter().find(|byte| !byte.is_ascii_whitespace()).copied();
        let is_target = next.is_some_and(|next| is_name(next) || matches!(next, b'{' | b'['));
        match word {
            b"let" if begins && is_target => self.replace(len, "var"),
            b"const" if begins && is_target => self.replace(len, "var  "),
            b"class" if begins && next.is_some_and(is_name) => {
                let name = rest[len..].trim_ascii_start();
                let end = name.iter().position(|byte| !is_name(*byte)).unwrap_or(name.len());
                let name = String::from_utf8_lossy(&name[..end]).into_owned();
                if name == "extends" {
                    self.copy(len);
                } else {
                    self.out.extend(["var ", &name, " = class"]);
                    self.at += len;
                }
            }
            _ => self.copy(len),
        }
        let ends_value = !matches!(
            word,
            b"return"
                | b"typeof"
                | b"case"
                | b"in"
                | b"of"
                | b"delete"
                | b"void"
                | b"throw"
                | b"new"
                | b"else"
                | b"do"
                | b"await"
                | b"yield"
                | b"instanceof"
                | b"extends"
                | b"let"
                | b"const"
                | b"class"
        );
        if ends_value { Last::Value } else { Last::Operator }
    }

    fn replace(&mut self, len: usize, with: &str) {
        self.out.push_str(with);
        self.at += len;
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_cell_declares_can_be_declared_anew() {
        for (code, expected) in [
            ("let x = 1", "var x = 1"),
            ("const y = 2; let z", "var   y = 2; var z"),
            ("x\nlet y = x", "x\nvar y = x"),
            ("const {a, b} = c, [d] = e", "var   {a, b} = c, [d] = e"),
            (
                "class A {}\nclass B extends A {}",
                "var A = class A {}\nvar B = class B extends A {}",
            ),
            ("/* let */ let a // let b\nlet c", "/* let */ var a // let b\nvar c"),
            ("f()\nlet a = 1", "f()\nvar a = 1"),
            ("if (a) { } let b", "if (a) { } var b"),
        ] {
            assert_eq!(as_vars(code), expected);
        }
    }

    #[test]
    fn what_is_not_at_the_top_stays() {
        for code in [
            "for (let i = 0; i < 3; i++) { const j = i }",
            "{ let x }",
            "function f() { let a; const b = 1; class C {} }",
            "`${(() => { let x = 1; return x })()} let y`",
            "'let x' + \"const y\" + /let z/.source",
            "const_ = 1; letter = 2; x.let = 3; y = class {}",
            "a = b / c; d / let_ / e",
            "x = class Named {}",
            "let = 5",
        ] {
            assert_eq!(as_vars(code), code);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_borne(code in "([ -~\n]|let |const |class |`|\\$\\{|\\}|é){0,60}") {
            let _ = as_vars(&code);
        }
    }
}
