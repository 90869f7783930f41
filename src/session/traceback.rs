//! Shortens Python's tracebacks to the frames that a model can act on. Pure, and for any text: text that does not look
//! like a traceback stays as it is.
//!
//! ```text
//! Traceback (most recent call last):
//!   File "/tmp/main.py", line 3, in <module>      the user's: stays
//!     table["Reven"]
//!     ~~~~~^^^^^^^^^
//!   [1 library frame]                             stands for those between
//!   File "/opt/venv/lib/.../base.py", line 3819   the innermost: stays
//! KeyError: 'Reven'
//! ```
//!
//! IPython, which runs cells, writes frames in another form, with blank lines between them. They are treated alike:
//!
//! ```text
//! Cell In[3], line 2                                  the user's: stays
//!       1 table = sales
//! ----> 2 table["Reven"]
//!
//! [1 library frame]
//!
//! File /opt/venv/lib/.../base.py:3819, in Index.get_loc(self, key)
//! -> 3819     raise KeyError(key) from err              without the lines around it
//! ```
//!
//! If an exception led to another, and its traceback has none of the user's frames, even its innermost frame is of no
//! use: it is removed as well.

use std::{mem, ops::Range};

/// Longest line of a traceback that shows code, in characters.
const MAX_CODE_CHARS: usize = 200;

/// The text with its tracebacks shortened; `None` if there is nothing to shorten.
pub(super) fn shortened(text: &str) -> Option<String> {
    let mut short = Shortened { text: String::with_capacity(text.len()), ..Shortened::default() };
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let Some(header) = Header::parse(line) else {
            // IPython writes a line between frames for those that it leaves out itself.
            if short.of_cell && (is_skipped(line) || line.trim().is_empty()) {
                short.between(line);
                continue;
            }
            short.of_cell = false;
            short.release();
            if LEADS_ON.contains(&line.trim_end()) {
                short.forget_foreign();
            }
            if is_long_mark(line) {
                let cut = short.code(line);
                short.text.push_str(&cut);
            } else {
                short.text.push_str(line);
            }
            continue;
        };
        short.of_cell = header.of_cell;
        let mut frame = line.to_owned();
        while let Some(more) = lines.next_if(|next| header.has(next)) {
            // The line that was reached is enough for a library; the lines around it are removed.
            if header.of_cell && header.is_library && !more.starts_with('-') {
                short.changed = true;
            } else {
                frame.push_str(&short.code(more));
            }
        }
        if header.is_library {
            short.held.push(frame);
        } else {
            short.replace_held(header.indent);
            short.text.push_str(&frame);
            (short.has_own, short.foreign) = (true, None);
        }
    }
    short.release();
    short.changed.then_some(short.text)
}

/// The lines between two exceptions, the first of which led to the second.
const LEADS_ON: [&str; 2] = [
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
];

#[derive(Default)]
struct Shortened {
    text: String,
    /// The last frames, which are of libraries. The last of them may be the innermost.
    held: Vec<String>,
    /// Whether the last frame is in IPython's form.
    of_cell: bool,
    /// Whether the traceback has a frame of the user's.
    has_own: bool,
    /// The position and the number of the frames of a traceback that has none of the user's.
    foreign: Option<(Range<usize>, usize)>,
    changed: bool,
}

impl Shortened {
    /// A line of code, or of marks below it, cut to [`MAX_CODE_CHARS`].
    fn code(&mut self, line: &str) -> String {
        let Some((cut, _)) = line.trim_end().char_indices().nth(MAX_CODE_CHARS) else {
            return line.to_owned();
        };
        self.changed = true;
        format!("{}...\n", &line[..cut])
    }

    /// Ends a traceback: the last frame is the innermost.
    fn release(&mut self) {
        let has_own = mem::take(&mut self.has_own);
        let Some(innermost) = self.held.pop() else { return };
        let (start, count) = (self.text.len(), self.held.len() + 1);
        let indent = innermost.find("File").unwrap_or(0);
        self.replace_held(&innermost[..indent]);
        self.text.push_str(&innermost);
        self.foreign = (!has_own).then_some((start..self.text.len(), count));
    }

    /// Removes the frames of the last exception if none is the user's: it led to another, which says more.
    fn forget_foreign(&mut self) {
        if let Some((frames, count)) = self.foreign.take() {
            let indent = self.text[frames.clone()].find(['F', '[']).unwrap_or(0);
            let has_blank = self.text[frames.clone()].ends_with(BLANK);
            let line = left_out(&self.text[frames.start..frames.start + indent], count, has_blank);
            self.text.replace_range(frames, &line);
            self.changed = true;
        }
    }

    /// Adds a line between frames, which stays with the frame before it.
    fn between(&mut self, line: &str) {
        match self.held.last_mut() {
            Some(frame) => frame.push_str(line),
            None => self.text.push_str(line),
        }
    }

    fn replace_held(&mut self, indent: &str) {
        let count = self.held.len();
        if count > 0 {
            let has_blank = self.held.last().is_some_and(|frame| frame.ends_with(BLANK));
            let line = left_out(indent, count, has_blank);
            self.text.push_str(&line);
            self.changed = true;
            self.held.clear();
        }
    }
}

/// The end of a frame that has a blank line after it.
const BLANK: &str = "\n\n";

/// The line that stands for this number of frames, with a blank line after it if they have one.
fn left_out(indent: &str, count: usize, has_blank: bool) -> String {
    let s = if count == 1 { "" } else { "s" };
    let blank = if has_blank { "\n" } else { "" };
    format!("{indent}[{count} library frame{s}]\n{blank}")
}

/// The first line of a frame.
struct Header<'a> {
    /// The text before it, and before the lines that belong to it: a group of exceptions has bars there.
    indent: &'a str,
    is_library: bool,
    of_cell: bool,
}

impl<'a> Header<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        Self::of_cell(line).or_else(|| Self::of_program(line))
    }

    /// Parses IPython's form: `Cell In[3], line 2`, `File /mnt/data/own.py:2, in f(x)`. If a cell has a syntax error,
    /// the line is indented as Python does it.
    fn of_cell(line: &'a str) -> Option<Self> {
        let is_library = if let Some(rest) = line.strip_prefix("File ") {
            let place = rest.trim_end().split(", in ").next()?;
            let (file, number) = place.rsplit_once(':')?;
            if file.starts_with('"') || number.is_empty() || !is_number(number) {
                return None;
            }
            is_of_library(file)
        } else {
            let (cell, rest) =
                line.trim_start().strip_prefix("Cell In[")?.split_once("], line ")?;
            if !is_number(cell) || !rest.starts_with(|c: char| c.is_ascii_digit()) {
                return None;
            }
            false
        };
        Some(Self { indent: "", is_library, of_cell: true })
    }

    fn of_program(line: &'a str) -> Option<Self> {
        let (indent, rest) = line.split_at(line.find("File \"")?);
        if !indent.ends_with("  ") || indent.contains(|c| !matches!(c, ' ' | '|')) {
            return None;
        }
        let (file, rest) = rest["File \"".len()..].split_once("\", line ")?;
        rest.starts_with(|c: char| c.is_ascii_digit()).then(|| Self {
            indent,
            is_library: is_of_library(file),
            of_cell: false,
        })
    }

    /// Whether a line belongs to the frame: its code, or how often the frame was repeated.
    fn has(&self, line: &'a str) -> bool {
        if self.of_cell {
            // Numbers of lines, arrows and marks come before the code.
            return line.starts_with([' ', '-']) && !line.trim().is_empty() && !is_skipped(line);
        }
        line.strip_prefix(self.indent).is_some_and(|rest| {
            rest.starts_with("  ") || rest.starts_with("[Previous line repeated ")
        }) && Self::parse(line).is_none()
    }
}

fn is_number(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit())
}

/// Whether a line stands for frames that IPython has left out.
fn is_skipped(line: &str) -> bool {
    line.trim_start().starts_with("[... skipping ")
}

/// Whether a line is the marks below a very long line of code, without their frame: if an output is cut in its middle,
/// only they may remain.
fn is_long_mark(line: &str) -> bool {
    let marks = line.trim();
    line.len() > MAX_CODE_CHARS
        && marks.len() < line.trim_end().len()
        && !marks.is_empty()
        && marks.chars().all(|c| matches!(c, '^' | '~'))
}

/// Whether a file is not the user's. Compiled modules have relative names.
fn is_of_library(file: &str) -> bool {
    ["/site-packages/", "/dist-packages/", "/lib/python3", "/opt/sandbox/"]
        .iter()
        .any(|folder| file.contains(folder))
        || file.starts_with("<frozen ")
        || file.starts_with("<__array_function__")
        || (!file.starts_with('/')
            && [".pyx", ".pxd", ".pxi"].iter().any(|end| file.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY_ERROR: &str = "\
some words of the program
Traceback (most recent call last):
  File \"/opt/venv/lib/python3.13/site-packages/pandas/core/indexes/base.py\", line 3812, in get_loc
    return self._engine.get_loc(casted_key)
           ~~~~~~~~~~~~~~~~~~~~^^^^^^^^^^^^
  File \"pandas/_libs/index.pyx\", line 167, in pandas._libs.index.IndexEngine.get_loc
  File \"pandas/_libs/hashtable_class_helper.pxi\", line 7096, in PyObjectHashTable.get_item
KeyError: 'Reven'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File \"/tmp/main.py\", line 3, in <module>
    table[\"Reven\"]
    ~~~~~^^^^^^^^^
  File \"/opt/venv/lib/python3.13/site-packages/pandas/core/frame.py\", line 4107, in __getitem__
    indexer = self.columns.get_loc(key)
  File \"/opt/venv/lib/python3.13/site-packages/pandas/core/indexes/base.py\", line 3819, in get_loc
    raise KeyError(key) from err
KeyError: 'Reven'
";

    #[test]
    fn the_users_frames_and_the_innermost_of_each_traceback_stay() {
        let expected = "\
some words of the program
Traceback (most recent call last):
  [3 library frames]
KeyError: 'Reven'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File \"/tmp/main.py\", line 3, in <module>
    table[\"Reven\"]
    ~~~~~^^^^^^^^^
  [1 library frame]
  File \"/opt/venv/lib/python3.13/site-packages/pandas/core/indexes/base.py\", line 3819, in get_loc
    raise KeyError(key) from err
KeyError: 'Reven'
";
        assert_eq!(shortened(KEY_ERROR).as_deref(), Some(expected));
        assert_eq!(shortened(expected), None, "there is nothing left to shorten");
    }

    #[test]
    fn a_callback_of_the_users_below_a_library_stays() {
        let text = "\
Traceback (most recent call last):
  File \"/tmp/main.py\", line 3, in <module>
    s.apply(f)
  File \"/usr/lib/python3.13/x.py\", line 1, in apply
    f()
  File \"/mnt/data/own.py\", line 2, in f
    1 / 0
    ~~^~~
ZeroDivisionError: division by zero
";
        let short = shortened(text).expect("shorter");
        assert!(short.contains("    s.apply(f)\n  [1 library frame]\n  File \"/mnt/data/own.py\""));
    }

    #[test]
    fn lines_of_code_are_cut_wherever_they_stand() {
        let code = "é".repeat(300);
        let text = format!(
            "  File \"/tmp/main.py\", line 1\n    {code}\n    {0}\nSyntaxError: x\n",
            "^".repeat(999)
        );
        let short = shortened(&text).expect("shorter");
        for line in short.lines() {
            assert!(line.chars().count() <= MAX_CODE_CHARS + 3, "{line}");
        }
        assert!(short.ends_with("...\nSyntaxError: x\n"));
    }

    #[test]
    fn marks_that_are_left_of_a_long_line_are_cut() {
        let text = format!("[... 9 bytes left out ...]\n{0}^^^\nNameError: x\n", " ".repeat(5_000));
        let short = shortened(&text).expect("shorter");
        assert!(short.len() < 300 && short.ends_with("...\nNameError: x\n"), "{short}");
        for text in
            [format!("{}\n", "^".repeat(999)), " ".repeat(999), format!("{}x\n", " ".repeat(999))]
        {
            assert_eq!(shortened(&text), None);
        }
    }

    #[test]
    fn groups_of_exceptions_keep_their_bars() {
        let text = "\
  + Exception Group Traceback (most recent call last):
  |   File \"/tmp/main.py\", line 1, in <module>
  |     raise ExceptionGroup(\"g\", [e])
  | ExceptionGroup: g (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File \"/usr/lib/python3.13/a.py\", line 1, in a
    |     b()
    |   File \"/usr/lib/python3.13/b.py\", line 1, in b
    |     raise e
    | ValueError
    +------------------------------------
";
        let short = shortened(text).expect("shorter");
        assert!(
            short.contains("    |   [1 library frame]\n    |   File \"/usr/lib/python3.13/b.py\""),
            "{short}"
        );
    }

    #[test]
    fn repeated_frames_belong_to_the_one_that_they_repeat() {
        let text = "Traceback (most recent call last):
  File \"/usr/lib/python3.13/copy.py\", line 1, in copy
    copy(x)
  [Previous line repeated 990 more times]
  File \"/tmp/main.py\", line 2, in f
    f()
  [Previous line repeated 996 more times]
RecursionError: too deep
";
        let expected = "Traceback (most recent call last):\n  [1 library frame]\n  File \"/tmp/main.py\", line 2, in f\n    f()\n  [Previous line repeated 996 more times]\nRecursionError: too deep\n";
        assert_eq!(shortened(text).as_deref(), Some(expected));
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in [
            "",
            "File \"x\", line 1\n",
            "a  File \"/usr/lib/python3/x\", line 1\n",
            "  File \"/usr/lib/python3/x\", line 1, in f\n",
        ] {
            assert_eq!(shortened(text), None, "{text:?}");
        }
    }

    const CELL: &str = "\
---------------------------------------------------------------------------
KeyError                                  Traceback (most recent call last)
File /opt/venv/lib/python3.13/site-packages/pandas/core/indexes/base.py:3812, in Index.get_loc(self, key)
   3811 try:
-> 3812     return self._engine.get_loc(casted_key)
   3813 except KeyError as err:

File pandas/_libs/index.pyx:167, in pandas._libs.index.IndexEngine.get_loc()

KeyError: 'Reven'

The above exception was the direct cause of the following exception:

KeyError                                  Traceback (most recent call last)
Cell In[2], line 2
      1 x = 1
----> 2 table[\"Reven\"]

File /opt/venv/lib/python3.13/site-packages/pandas/core/frame.py:4107, in DataFrame.__getitem__(self, key)
   4105 if self.columns.nlevels > 1:
-> 4107     indexer = self.columns.get_loc(key)

File /opt/venv/lib/python3.13/site-packages/pandas/core/indexes/base.py:3819, in Index.get_loc(self, key)
   3818     return self._engine.get_loc(casted_key)
-> 3819     raise KeyError(key) from err

KeyError: 'Reven'
";

    #[test]
    fn frames_of_cells_are_shortened_by_the_same_rule() {
        let expected = "\
---------------------------------------------------------------------------
KeyError                                  Traceback (most recent call last)
[2 library frames]

KeyError: 'Reven'

The above exception was the direct cause of the following exception:

KeyError                                  Traceback (most recent call last)
Cell In[2], line 2
      1 x = 1
----> 2 table[\"Reven\"]

[1 library frame]

File /opt/venv/lib/python3.13/site-packages/pandas/core/indexes/base.py:3819, in Index.get_loc(self, key)
-> 3819     raise KeyError(key) from err

KeyError: 'Reven'
";
        assert_eq!(shortened(CELL).as_deref(), Some(expected));
        assert_eq!(shortened(expected), None, "there is nothing left to shorten");
    }

    #[test]
    fn frames_of_ones_own_files_and_those_that_ipython_leaves_out_stay_in_place() {
        let text = "\
RecursionError                            Traceback (most recent call last)
Cell In[4], line 4
      1 def f():
----> 4 g()

File /mnt/data/own.py:2, in g()
      1 def g():
----> 2     g()

    [... skipping similar frames: g at line 2 (2970 times)]

File /usr/lib/python3.13/copy.py:9, in copy(x)
      9 raise x

    [... skipping hidden 1 frame]

Cell In[4], line 3, in f()
      3     raise RecursionError

RecursionError: too deep
";
        let expected = "\
RecursionError                            Traceback (most recent call last)
Cell In[4], line 4
      1 def f():
----> 4 g()

File /mnt/data/own.py:2, in g()
      1 def g():
----> 2     g()

    [... skipping similar frames: g at line 2 (2970 times)]

[1 library frame]

Cell In[4], line 3, in f()
      3     raise RecursionError

RecursionError: too deep
";
        assert_eq!(shortened(text).as_deref(), Some(expected));
    }

    #[test]
    fn a_cell_that_cannot_be_read_is_shown_with_its_line_cut() {
        let text = "  Cell In[1], line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n\n";
        assert_eq!(shortened(text), None);
        let text =
            format!("  Cell In[1], line 1\n    x = {}\n    ^\nSyntaxError: x\n", "1 ".repeat(200));
        let short = shortened(&text).expect("shorter");
        assert!(short.len() < 300 && short.ends_with("...\n    ^\nSyntaxError: x\n"), "{short}");
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "(Cell In\\[3\\], line 1\n|File (/mnt/data/a|/lib/python3/b).py:1, in f\\(\\)\n|----> 1 x\n|\n|  File \"(/tmp/m|/lib/python3)\", line 1\n|    é{0,250}\n|\\PC{0,9}\n?|  \\| )*") {
            if let Some(short) = shortened(&text) {
                prop_assert!(short.lines().count() <= text.lines().count());
                let same = shortened(&short).unwrap_or_else(|| short.clone());
                prop_assert!(same.len() <= short.len());
            }
        }
    }
}
