//! The code of runs as parts of one plain script, which compiles and repeats the runs except for code that
//! needs a notebook. [`mod@lines`] finds the lines that are Python.

mod lines;

use std::{borrow::Cow, fmt::Write as _};

use self::lines::{Kind, Line, lines};

/// The remark about the code in a script, for its readers.
pub(super) const REMARK: &str = "What only a notebook runs is a comment: magics, shell commands, code that awaits outside of \
     functions. Names that got the value of a magic or of a command are None. sys.exit() ends the \
     script, and there is no _, In or Out.";

/// `display`, which cells and programs have without an import, for text only.
pub(super) const DISPLAY: &str = "\n# display(), as here without an import.\n\
                                  def display(*values, **options):\n\
                                  \x20   print(*values, sep=\"\\n\")\n";

/// Cell magics that run the cell like any other.
const TRANSPARENT: [&str; 2] = ["time", "capture"];

/// Magics that models call without `%`, which IPython allows in a cell of one line.
const BARE_MAGICS: [&str; 24] = [
    "cat",
    "cd",
    "conda",
    "cp",
    "env",
    "hist",
    "history",
    "ldir",
    "ll",
    "ls",
    "mamba",
    "matplotlib",
    "mkdir",
    "mv",
    "pip",
    "pwd",
    "reset",
    "rm",
    "rmdir",
    "run",
    "time",
    "timeit",
    "uv",
    "whos",
];

/// Words that may stand next to another word in Python.
const KEYWORDS: [&str; 36] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "type",
    "while", "with", "yield",
];

/// The code of a run, in a form for a script.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) code: String,
    /// Imports from `__future__`, which must precede all parts.
    pub(super) futures: Vec<String>,
    /// Whether the part needs [`DISPLAY`] before it.
    pub(super) displays: bool,
}

impl Part {
    /// A program that succeeded; lines for a notebook become comments, as they were not run.
    pub(super) fn program(code: &str) -> Self {
        Self::of(&plain_program(&normalized(code)))
    }

    /// A cell that succeeded.
    pub(super) fn cell(code: &str) -> Self {
        Self::of(&plain_cell(&normalized(code)))
    }

    /// Code that must not run again, or is not Python.
    pub(super) fn comment(text: &str) -> Self {
        Self { code: commented(&normalized(text)), ..Self::default() }
    }

    /// A part of plain Python. A `global` statement outside of functions becomes a comment: it has no effect,
    /// but is an error if an earlier line uses the name.
    fn of(code: &str) -> Self {
        let mut part = Self::default();
        for line in lines(code) {
            part.displays |=
                line.text.contains("display(") && !line.text.trim_start().starts_with('#');
            let is_future = line.text.starts_with("from __future__ import");
            if !is_future && !line.text.starts_with("global ") {
                let _ = writeln!(part.code, "{}", line.text);
                continue;
            }
            let (statement, rest) = match line.text.split_once(';') {
                Some((statement, rest)) if !statement.contains('#') => {
                    (statement, rest.trim_start())
                }
                _ => (line.text, ""),
            };
            part.code += &commented(statement);
            if !rest.is_empty() {
                let _ = writeln!(part.code, "{rest}");
            }
            if is_future {
                part.futures.push(statement.to_owned());
            }
        }
        part
    }
}

/// Ends lines as Python does, which also takes `\r` for an end, and replaces NUL, which Python refuses even
/// in comments.
fn normalized(code: &str) -> String {
    let code = code.strip_prefix('\u{feff}').unwrap_or(code);
    code.replace("\r\n", "\n").replace('\r', "\n").replace('\0', "\u{fffd}")
}

fn commented(text: &str) -> String {
    text.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect()
}

fn plain_program(code: &str) -> String {
    let plain = |line: Line<'_>| match line.kind {
        Kind::Escape => left_out(&line),
        _ => format!("{}\n", line.text),
    };
    if awaits(code) { not_run(code) } else { lines(code).map(plain).collect() }
}

fn not_run(code: &str) -> String {
    format!("# Not run, as it awaits outside of functions:\n{}", commented(code))
}

fn plain_cell(code: &str) -> String {
    let code = without_prompts(&dedented(code)).into_owned();
    if let Some(magic) = code.strip_prefix("%%") {
        let (head, body) = magic.split_once('\n').unwrap_or((magic, ""));
        let name = head.split(' ').next().unwrap_or_default();
        if TRANSPARENT.contains(&name) {
            return commented(&format!("%%{head}")) + &plain_cell(body);
        }
        // With a question mark it is a line that asks for help on the magic.
        if !name.contains('?') {
            return commented(&code);
        }
    }
    if is_bare_magic(&code) {
        return commented(&code);
    }
    if awaits(&code) {
        return not_run(&code);
    }
    lines(&code).map(|line| plain_line(&line)).collect()
}

/// Removes empty lines at the start, and the white space that all lines begin with.
fn dedented(code: &str) -> String {
    let is_blank = |line: &&str| line.trim_matches([' ', '\t']).is_empty();
    let indent =
        |line: &str| line[..line.len() - line.trim_start_matches([' ', '\t']).len()].to_owned();
    let common = |one: String, other: String| {
        let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        one[..same].to_owned()
    };
    let mut indents = code.lines().filter(|line| !is_blank(line)).map(indent);
    let margin = indents.next().map(|first| indents.fold(first, common)).unwrap_or_default();
    let line = |line: &str| line.strip_prefix(&margin).unwrap_or_default().to_owned() + "\n";
    code.lines()
        .skip_while(|text| text.trim().is_empty())
        .map(|text| if is_blank(&text) { "\n".to_owned() } else { line(text) })
        .collect()
}

/// Removes the prompts from code that was copied from Python's own prompt.
fn without_prompts(code: &str) -> Cow<'_, str> {
    if !code.starts_with(">>>") {
        return code.into();
    }
    let line = |line: &str| {
        let bare = line.strip_prefix(">>>").or_else(|| line.strip_prefix("...")).unwrap_or(line);
        bare.strip_prefix(' ').unwrap_or(bare).to_owned() + "\n"
    };
    code.lines().map(line).collect::<String>().into()
}

/// Whether the code is a command in one line, such as `pip install x` or `ls -l`, and not an assignment or a
/// call. Two words in a row are never Python, whatever the magic.
fn is_bare_magic(code: &str) -> bool {
    const OPERATORS: &[char] = &['+', '-', '*', '/', '%', '&', '|', '^', '<', '>', '@'];
    let line = code.trim_end();
    let (name, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let rest = rest.trim_start();
    let is_part = |character: char| character == '_' || character.is_alphanumeric();
    let is_word = |word: &str| !word.is_empty() && word.chars().all(is_part);
    let next = rest.split(|character| !is_part(character)).next().unwrap_or_default();
    let are_words =
        is_word(name) && is_word(next) && ![name, next].iter().any(|it| KEYWORDS.contains(it));
    let is_python = rest.trim_start_matches(OPERATORS).starts_with(['=', ',', '(', '[', ':', ';']);
    !line.contains('\n') && (are_words || BARE_MAGICS.contains(&name) && !is_python)
}

/// Whether the code awaits outside of functions.
fn awaits(code: &str) -> bool {
    let mut function = None;
    lines(code).any(|line| {
        let is_code = line.text[line.indent..].chars().next().is_some_and(|first| first != '#');
        if function.is_some_and(|indent| !is_code || line.indent > indent) {
            return false;
        }
        function = line.is_def.then_some(line.indent);
        line.awaits
    })
}

fn plain_line(line: &Line<'_>) -> String {
    let blanks = &line.text[..line.indent];
    match line.kind {
        Kind::Python => format!("{}\n", line.text),
        Kind::AssignedEscape(value) => {
            let (names, value) = line.text.split_at(value);
            format!("{} None  {}", names.trim_end(), commented(value))
        }
        Kind::Escape => {
            match line.text[line.indent..].strip_prefix("%time ").map(str::trim_start) {
                // `%time` with a statement runs the statement. Its options are only for other uses.
                Some(statement) if !statement.starts_with('-') && !statement.ends_with('?') => {
                    let timed: String = lines(&format!("{blanks}{statement}"))
                        .map(|line| plain_line(&line))
                        .collect();
                    format!("{blanks}# %time\n{timed}")
                }
                _ => left_out(line),
            }
        }
    }
}

fn left_out(line: &Line<'_>) -> String {
    let (blanks, text) = line.text.split_at(line.indent);
    // A block may consist of only this line.
    let pass = if blanks.is_empty() { "" } else { "pass  " };
    format!("{blanks}{pass}{}", commented(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(code: &str) -> String {
        Part::cell(code).code
    }

    #[test]
    fn lines_for_a_notebook_are_comments_in_a_script() {
        let code = "x = 1\n%timeit f()\n!ls\n?x\nx.real?\nprint('why?')\n";
        let script = "x = 1\n# %timeit f()\n# !ls\n# ?x\n# x.real?\nprint('why?')\n";
        assert_eq!(cell(code), script);
        assert_eq!(cell("\n%%bash\nls -l\n"), "# %%bash\n# ls -l\n");
    }

    #[test]
    fn a_block_of_such_lines_stays_one() {
        let code = "if x:\n    !ls \\\n    -l\nelse:\n\tx.real?\n";
        assert_eq!(cell(code), "if x:\n    pass  # !ls \\\n#     -l\nelse:\n\tpass  # x.real?\n");
    }

    #[test]
    fn a_name_for_the_value_of_such_a_line_is_none() {
        let code = "x = !ls\nif x: a, b =%timeit -o \\\n 1\nelse: x = !pwd";
        let script =
            "x = None  # !ls\nif x: a, b = None  # %timeit -o \\\n#  1\nelse: x = None  # !pwd\n";
        assert_eq!(cell(code), script);
    }

    #[test]
    fn what_looks_like_such_a_line_and_is_none_stays() {
        let code = "s = '''\n%a\n!b\nwhy?\n'''\nx = 7 \\\n% 2\ny = (7\n  % 2)\n# why?\n";
        assert_eq!(cell(code), code);
    }

    #[test]
    fn what_is_timed_is_done_again() {
        assert_eq!(cell("%time x = f(1)\nx"), "# %time\nx = f(1)\nx\n");
        assert_eq!(
            cell("for x in y:\n  %time z = !ls\n"),
            "for x in y:\n  # %time\n  z = None  # !ls\n"
        );
        assert_eq!(cell("if x:\n  %time !ls\n"), "if x:\n  # %time\n  pass  # !ls\n");
        for whole in ["%time?", "%time", "%timeit x = 1", "%time --no-raise-error x"] {
            assert_eq!(cell(whole), format!("# {whole}\n"));
        }
        let body = "x = 1\nif x:\n    !ls\n";
        let script = "x = 1\nif x:\n    pass  # !ls\n";
        assert_eq!(cell(&format!("%%time\n{body}")), format!("# %%time\n{script}"));
        assert_eq!(
            cell(&format!("%%capture out\n\n%%time\n{body}")),
            format!("# %%capture out\n# %%time\n{script}")
        );
        assert_eq!(cell("%%timeit\nx = 1"), "# %%timeit\n# x = 1\n");
        assert_eq!(cell("%%time?\nx = 1"), "# %%time?\nx = 1\n");
    }

    #[test]
    fn a_cell_that_awaits_outside_of_functions_is_a_comment() {
        let remark = "# Not run, as it awaits outside of functions:\n";
        for code in ["x = 1\nif x:\n  await f()\n", "async def f():\n  pass\nawait f()\n"] {
            assert_eq!(cell(code), format!("{remark}{}", commented(code)));
        }
        for code in [
            "async def f():\n  await g()\n\n# await\n  async with h:\n    pass\nf\n",
            "s = 'await f()'\n",
        ] {
            assert_eq!(cell(code), code);
        }
    }

    #[test]
    fn what_ipython_takes_away_is_not_in_a_script() {
        assert_eq!(cell("\n    if x:\n        y = 1\n    z"), "if x:\n    y = 1\nz\n");
        assert_eq!(cell(">>> for x in y:\n...     x\n>>>\n"), "for x in y:\n    x\n\n");
        for whole in ["ls", "cd /tmp", "pip install x", "ls -l *.csv", "time f()", "greet you"] {
            assert_eq!(cell(whole), format!("# {whole}\n"));
        }
        for code in [
            "ls = 1",
            "time.sleep(0)",
            "run (1)",
            "cat /= 2",
            "env: dict = {}",
            "print(ls)",
            "time\ntime",
            "x if y else z",
            "import a",
            "type A = int",
        ] {
            assert_eq!(cell(code), format!("{code}\n"));
        }
    }

    #[test]
    fn what_must_stand_first_in_a_script_is_told_apart() {
        let futures = vec!["from __future__ import annotations".to_owned()];
        let code = "# from __future__ import annotations\nx = 1\n".to_owned();
        let part = Part::program("from __future__ import annotations; x = 1");
        assert_eq!(part, Part { code: code.clone(), futures: futures.clone(), displays: false });
        assert_eq!(
            Part::cell(" from __future__ import annotations\n x = 1"),
            Part { code, futures, displays: false }
        );
        assert_eq!(
            Part::cell("%%writefile a.py\nfrom __future__ import annotations").futures.len(),
            0
        );
        assert_eq!(cell("global x; x = 1"), "# global x\nx = 1\n");
    }

    #[test]
    fn what_displays_needs_a_function_for_it() {
        assert!(Part::cell("if x:\n    display(x)").displays);
        assert!(Part::program("display(x)").displays);
        assert!(!Part::cell("# display(x)\nx").displays);
        assert!(!Part::comment("display(x)").displays);
    }

    #[test]
    fn a_program_for_a_notebook_does_again_what_was_run_of_it() {
        let code = "%%time\nimport a\nif a:\n    !pip install b\n%time x = 1\n";
        let script = "# %%time\nimport a\nif a:\n    pass  # !pip install b\n# %time x = 1\n";
        assert_eq!(Part::program(code).code, script);
        let remark = "# Not run, as it awaits outside of functions:\n";
        assert_eq!(Part::program("await f()").code, format!("{remark}# await f()\n"));
    }

    #[test]
    fn a_program_stays_what_it_is() {
        let code = "s = 1 \\\n%2\nprint(s)\n";
        assert_eq!(Part::program(code).code, code);
    }

    #[test]
    fn a_comment_ends_where_python_thinks_it_does() {
        assert_eq!(Part::comment("a\rb\r\nc\0").code, "# a\n# b\n# c\u{fffd}\n");
        assert_eq!(cell("%a\rx = 1"), "# %a\nx = 1\n");
    }
}
