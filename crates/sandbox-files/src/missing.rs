//! Reads from the end of standard error which file a program did not find. Pure; the program may have written anything.

/// The words of the operating system.
const NOT_FOUND: &str = "No such file or directory";

/// The words of JavaScript's file system, before the operation and the path.
const NOT_FOUND_BY_NODE: &str = "Error: ENOENT: no such file or directory, ";

/// The name of the file that was not found, if an error of Python, the shell and its programs, or JavaScript says so.
pub fn named(stderr: &[u8]) -> Option<String> {
    let stderr = String::from_utf8_lossy(stderr);
    let last = stderr.trim_end().rsplit('\n').next()?;
    let name = of_shell(last).or_else(|| of_python(last)).or_else(|| of_node(&stderr))?.trim();
    (!name.is_empty()).then(|| name.replace(r"\\", r"\"))
}

/// The file of a line such as `cat: sales.csv: No such file or directory`.
fn of_shell(last: &str) -> Option<&str> {
    let before = last.strip_suffix(')').unwrap_or(last).strip_suffix(NOT_FOUND)?;
    // The name of the program, or the shell's with its line, comes first.
    let (program, text) = before.trim_end_matches([' ', ':', '(']).split_once(": ")?;
    if program.contains(' ') {
        return None;
    }
    let name = quoted(text).unwrap_or_else(|| text.rsplit(": ").next().unwrap_or(text));
    let verbs = ["can't read ", "can't open ", "cannot open ", "cannot access "];
    Some(verbs.iter().find_map(|verb| name.strip_prefix(verb)).unwrap_or(name))
}

/// The file of the last line of a traceback: in the words of the operating system, or of libraries that have their own.
fn of_python(last: &str) -> Option<&str> {
    let says_so = [
        NOT_FOUND,
        "FileNotFoundError",
        "No files found that match",
        "PackageNotFoundError: Package not found at ",
    ];
    // An exception's name comes first; other lines are the program's own words.
    let (kind, text) = last.split_once(": ")?;
    if kind.contains(' ') || !says_so.iter().any(|words| last.contains(words)) {
        return None;
    }
    quoted(text).or_else(|| text.rsplit_once(": ").map(|(_, name)| name))
}

/// The file of an error of JavaScript, which the stack follows.
fn of_node(stderr: &str) -> Option<&str> {
    let line = stderr.lines().rev().find_map(|line| {
        let line = line.trim_start_matches([' ', '[']);
        line.strip_prefix("Uncaught ").unwrap_or(line).strip_prefix(NOT_FOUND_BY_NODE)
    });
    quoted(line?)
}

/// The first text in quotes, as Python writes a string, or between a grave accent and a quote.
pub(crate) fn quoted(text: &str) -> Option<&str> {
    let start = text.find(['\'', '"', '`'])?;
    let quote = char::from(text.as_bytes()[start]);
    let rest = &text[start + 1..];
    Some(&rest[..rest.find(if quote == '`' { '\'' } else { quote })?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(last: &str) -> Option<String> {
        named(format!("Traceback:\n  File \"x\", line 1\n{last}\n").as_bytes())
    }

    #[test]
    fn the_file_that_is_not_there_is_read_from_the_last_line() {
        let cases = [
            ("FileNotFoundError: [Errno 2] No such file or directory: 'Sales.csv'", "Sales.csv"),
            ("FileNotFoundError: [Errno 2] No such file or directory: \"it's.csv\"", "it's.csv"),
            (
                "FileNotFoundError: [Errno 2] Failed to open local file '/a/x.parquet'. Detail: ..",
                "/a/x.parquet",
            ),
            ("FileNotFoundError: No such file or directory (os error 2): sales.csv", "sales.csv"),
            (
                r"FileNotFoundError: [Errno 2] No such file or directory: 'C:\\Users\\a.csv'",
                r"C:\Users\a.csv",
            ),
            ("docx.opc.exceptions.PackageNotFoundError: Package not found at 'x.docx'", "x.docx"),
            (
                "_duckdb.IOException: IO Error: No files found that match the pattern \"x.csv\"",
                "x.csv",
            ),
            ("cat: sales.csv: No such file or directory", "sales.csv"),
            ("ls: cannot access 'my sales.csv': No such file or directory", "my sales.csv"),
            ("sort: cannot read: sales.csv: No such file or directory", "sales.csv"),
            ("sed: can't read sales.csv: No such file or directory", "sales.csv"),
            ("mawk: cannot open sales.csv (No such file or directory)", "sales.csv"),
            ("/tmp/main.sh: line 3: sales.csv: No such file or directory", "sales.csv"),
        ];
        for (last, name) in cases {
            assert_eq!(missing(last).as_deref(), Some(name), "{last}");
        }
        for other in [
            "KeyError: 'FileNot'",
            "",
            "FileNotFoundError",
            "FileNotFoundError: ",
            "no such thing: FileNotFoundError 'x'",
            "ModuleNotFoundError: No module named 'x'",
            "the program says: No such file or directory",
        ] {
            assert_eq!(missing(other), None, "{other}");
        }
    }

    #[test]
    fn the_file_that_is_not_there_is_read_from_a_stack_of_javascript() {
        let stack = "node:fs:573\n  return binding.open(\n\n\
             Error: ENOENT: no such file or directory, open 'sales.csv'\n    at open (node:fs:573:18) {\n  \
             errno: -2,\n  path: 'sales.csv'\n}\n\nNode.js v20.19.2";
        assert_eq!(missing(stack).as_deref(), Some("sales.csv"));
        let copied = "Uncaught Error: ENOENT: no such file or directory, copyfile 'a' -> 'b'";
        assert_eq!(missing(copied).as_deref(), Some("a"));
        assert_eq!(missing("Error: spawn sales ENOENT"), None);
    }
}
