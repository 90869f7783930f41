//! What the end of a traceback says. Pure; a program can have written anything.

/// The file that was looked for in vain, if the last line says so: the operating system's words, and those
/// of libraries that have their own.
pub(super) fn missing_file(stderr: &str) -> Option<String> {
    let last = stderr.trim_end().rsplit('\n').next()?;
    let says_so = ["No such file or directory", "FileNotFoundError", "No files found that match"];
    // An exception's name comes first; other lines are the program's own words.
    let (kind, text) = last.split_once(": ")?;
    if kind.contains(' ') || !says_so.iter().any(|words| last.contains(words)) {
        return None;
    }
    let name = quoted(text).or_else(|| text.rsplit_once(": ").map(|(_, name)| name))?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The first text in quotes, as Python writes a string.
fn quoted(text: &str) -> Option<&str> {
    let start = text.find(['\'', '"'])?;
    let quote = char::from(text.as_bytes()[start]);
    let rest = &text[start + 1..];
    Some(&rest[..rest.find(quote)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_is_not_there_is_read_from_the_last_line() {
        let missing =
            |last: &str| missing_file(&format!("Traceback:\n  File \"x\", line 1\n{last}\n"));
        let cases = [
            ("FileNotFoundError: [Errno 2] No such file or directory: 'Sales.csv'", "Sales.csv"),
            ("FileNotFoundError: [Errno 2] No such file or directory: \"it's.csv\"", "it's.csv"),
            (
                "FileNotFoundError: [Errno 2] Failed to open local file '/a/x.parquet'. Detail: ..",
                "/a/x.parquet",
            ),
            ("FileNotFoundError: No such file or directory (os error 2): sales.csv", "sales.csv"),
            (
                "_duckdb.IOException: IO Error: No files found that match the pattern \"x.csv\"",
                "x.csv",
            ),
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
        ] {
            assert_eq!(missing(other), None, "{other}");
        }
    }
}
