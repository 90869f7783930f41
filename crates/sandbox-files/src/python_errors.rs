//! Reads the last line of a Python traceback. Pure; the program may have written anything.

use protocol::message::Facts;

use crate::{facts, tree::Snapshot};

/// Adds the facts that the end of a failed program's standard error reveals. `files` are those of the data area.
pub fn explain(stderr: &[u8], files: &Snapshot, facts: &mut Facts) {
    let stderr = String::from_utf8_lossy(stderr);
    facts.missing_file = missing_file(&stderr).map(|name| facts::missing_file(&name, files));
    let module = wanting_module(&stderr).map(|name| name.replace('.', "/"));
    let hiding = module.map(|path| [format!("{path}.py"), format!("{path}/__init__.py")]);
    facts.hidden_module = hiding.into_iter().flatten().find(|path| files.contains_key(path));
}

/// The file that was not found, if the last line says so: in the words of the operating system, or of libraries that
/// have their own.
fn missing_file(stderr: &str) -> Option<String> {
    let last = stderr.trim_end().rsplit('\n').next()?;
    let says_so = [
        "No such file or directory",
        "FileNotFoundError",
        "No files found that match",
        "PackageNotFoundError: Package not found at ",
    ];
    // An exception's name comes first; other lines are the program's own words.
    let (kind, text) = last.split_once(": ")?;
    if kind.contains(' ') || !says_so.iter().any(|words| last.contains(words)) {
        return None;
    }
    let name = quoted(text).or_else(|| text.rsplit_once(": ").map(|(_, name)| name))?.trim();
    (!name.is_empty()).then(|| name.replace(r"\\", r"\"))
}

/// The module in which the program did not find a name, if the last line says so. A library's module of the same name
/// may have that name.
fn wanting_module(stderr: &str) -> Option<String> {
    let last = stderr.trim_end().rsplit('\n').next()?;
    let (kind, text) = last.split_once(": ")?;
    let rest = match kind {
        "AttributeError" if text.contains(" has no attribute ") => {
            text.strip_prefix("partially initialized ").unwrap_or(text).strip_prefix("module ")?
        }
        "ImportError" => {
            text.split_once(" from ")?.1.trim_start_matches("partially initialized module ")
        }
        _ => return None,
    };
    let name = rest.starts_with('\'').then(|| quoted(rest))??;
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    (!name.is_empty() && name.chars().all(is_plain)).then(|| name.to_owned())
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
                r"FileNotFoundError: [Errno 2] No such file or directory: 'C:\\Users\\a.csv'",
                r"C:\Users\a.csv",
            ),
            ("docx.opc.exceptions.PackageNotFoundError: Package not found at 'x.docx'", "x.docx"),
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

    #[test]
    fn the_module_that_lacks_something_is_read_from_the_last_line() {
        let wanting = |last: &str| wanting_module(&format!("Traceback:\n  File \"x\"\n{last}\n"));
        for last in [
            "AttributeError: module 'random' has no attribute 'randint'",
            "AttributeError: partially initialized module 'random' from '/mnt/data/random.py' has no attribute 'x' (most likely due to a circular import)",
            "ImportError: cannot import name 'Random' from 'random' (/mnt/data/random.py)",
            "ImportError: cannot import name 'x' from partially initialized module 'random' (most likely due to a circular import)",
        ] {
            assert_eq!(wanting(last).as_deref(), Some("random"), "{last}");
        }
        for other in [
            "AttributeError: 'str' object has no attribute 'x'",
            "AttributeError: module '../x' has no attribute 'y'",
            "ImportError: Unable to find a usable engine",
            "ValueError: module 'random' has no attribute 'x'",
            "ImportError: cannot import name 'x' from ''",
            "",
        ] {
            assert_eq!(wanting(other), None, "{other}");
        }
    }
}
