//! Notes on the error that ended a run. Errors are recognized by what Python, Node and libraries print.

use std::borrow::Cow;

use model::{
    World,
    approval::{DENIED, NOT_ALLOWED, UNANSWERED},
};

use super::{
    Advice, Instead, Note,
    cell::{SeenCell, WorkspaceNote},
};

/// Notes on the error that ended a run, the most helpful first. `last` is its [`raised_line`].
pub(super) fn of_error(
    stderr: &str,
    last: &str,
    cell: Option<&SeenCell<'_>>,
    world: World,
) -> impl Iterator<Item = Note> {
    let is_system = world == World::System;
    let no_screen = wants_screen(last);
    let not_installed = not_installed(stderr, last, cell, world).filter(|_| !no_screen);
    let is_python = cell.is_none_or(SeenCell::is_python);
    let is_shell = is_python && has_shell_line(stderr, last);
    let variable = missing_variable(last).filter(|_| !is_shell);
    let variable = match cell {
        None => variable.map(Note::MissingVariable),
        Some(cell) if cell.fresh && !cell.had_variables => {
            variable.map(|name| WorkspaceNote::MissingInNew(name).into())
        }
        Some(_) => None,
    };
    let wants_input = last == "EOFError: EOF when reading a line";
    let wants_locale = last == "Error: unsupported locale setting";
    let advice = [
        (no_screen, Advice::NoScreen),
        (is_read_only(last), Advice::ReadOnly),
        (lacks_folder(last), Advice::MissingFolder),
        (is_full(last), Advice::DiskFull),
        (is_shell, if is_system { Advice::ShellLine } else { Advice::NoProcesses }),
        // The error message of a cell has it.
        (is_refused(last) && cell.is_none(), Advice::Refused),
        (wants_input, if cell.is_none() { Advice::NoInput } else { Advice::NoStdin }),
        (wants_picture_of_plotly(stderr), Advice::NoBrowser),
        (is_of_other_kind(last), Advice::OtherKind),
        (has_json_lines(last), Advice::JsonLines),
        (last.starts_with(JSON_MARK), Advice::ByteOrderMark),
        (is_encrypted(last), Advice::Encrypted),
        (is_of_other_encoding(stderr, last), Advice::OtherEncoding),
        (wants_locale, if is_system { Advice::NoLocale } else { Advice::NoLocaleInGuest }),
    ];
    let of_guest = of_guest(stderr, last, cell).filter(move |_| !is_system);
    let advice = advice.into_iter().filter_map(|(holds, it)| holds.then_some(it));
    let notes = not_installed.into_iter().chain(variable).chain(starting(stderr, last));
    notes.chain(of_guest.chain(advice).map(Note::Advice))
}

/// The note on a module or package that is not installed, if that is the error.
fn not_installed(
    stderr: &str,
    last: &str,
    cell: Option<&SeenCell<'_>>,
    world: World,
) -> Option<Note> {
    if cell.is_some_and(SeenCell::is_javascript) {
        let name = missing_package(stderr)?;
        return Some(Note::NotInstalled(name, Instead::Modules(world)));
    }
    Some(Note::NotInstalled(missing_module(last)?, Instead::Libraries))
}

/// Whether an exception says that a person or the operator did not allow a call out of the sandbox.
pub(super) fn is_refused(last: &str) -> bool {
    let line = last.strip_prefix("Uncaught ").unwrap_or(last);
    [("Denied: ", DENIED), ("Unanswered: ", UNANSWERED), ("NotAllowed: ", NOT_ALLOWED)]
        .iter()
        .any(|(name, words)| line.starts_with(name) && line.contains(words))
}

/// The start of the error of pandas for a Parquet file.
const NO_PARQUET: &str = "ImportError: Unable to find a usable engine; tried using: 'pyarrow'";

/// Advice on an error in a sandbox with an interpreter alone.
fn of_guest(stderr: &str, last: &str, cell: Option<&SeenCell<'_>>) -> impl Iterator<Item = Advice> {
    let is_javascript = cell.is_some_and(SeenCell::is_javascript);
    let advice = [
        (wants_process(stderr, last), Advice::NoProcesses),
        (last.starts_with(NO_PARQUET), Advice::NoParquet),
        (is_javascript && wants_node(stderr), Advice::NoNode),
    ];
    advice.into_iter().filter_map(|(holds, advice)| holds.then_some(advice))
}

/// Whether this can be the name of a variable, function, type or module, and no sentence.
pub(super) fn is_identifier(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || "_.-<>".contains(c))
}

/// The first words of a traceback; IPython has the exception's name before them.
pub(crate) const TRACEBACK: &str = "Traceback (most recent call last)";

/// The exception that ended a program in Python: its name, without its module as IPython shows it, and the first line of
/// its message that is not blank. Without a traceback it is the last line.
pub(crate) fn raised_line(stderr: &str) -> Cow<'_, str> {
    let last = || unqualified(stderr.trim_end().rsplit('\n').next().unwrap_or_default().trim());
    let Some((before, after)) = stderr.rsplit_once(TRACEBACK) else { return last().into() };
    let name = before.rsplit('\n').next().unwrap_or_default().trim();
    // The exception comes after the last cut, where the first line is only a part of one.
    let after = after.rsplit_once(" bytes left out ...]\n").map_or(after, |(_, rest)| rest);
    let mut lines = after.lines().skip(1).skip_while(|line| {
        if name.is_empty() {
            line.is_empty() || line.starts_with(' ')
        } else {
            line.strip_prefix(name).is_none_or(|rest| !rest.is_empty() && !rest.starts_with(':'))
        }
    });
    let Some(line) = lines.next().map(str::trim) else { return last().into() };
    match line.strip_suffix(':').zip(lines.find(|line| !line.trim().is_empty())) {
        Some((name, message)) => format!("{}: {}", unqualified(name), message.trim()).into(),
        None => unqualified(line).into(),
    }
}

/// Removes the module from the name of an exception.
fn unqualified(line: &str) -> &str {
    let name = line.split(':').next().unwrap_or_default();
    let is_path = name.chars().all(|c| c.is_alphanumeric() || "._".contains(c));
    let start = name.rfind('.').map_or(0, |dot| dot + 1);
    let is_class = name[start..].starts_with(|c: char| c.is_uppercase() || c == '_');
    if is_path && is_class { &line[start..] } else { line }
}

/// The text between the first two quotes after these words.
fn quoted_after(line: &str, words: &str) -> Option<String> {
    let (_, rest) = line.split_once(words)?;
    let name = rest.trim_start_matches(['\'', '"']).split(['\'', '"', '`']).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The module that was to be imported and is not installed.
fn missing_module(last: &str) -> Option<String> {
    let name = if last.starts_with("ModuleNotFoundError: ") {
        quoted_after(last, "No module named ")
    } else if last.starts_with("ImportError: ") {
        quoted_after(last, "Missing optional dependency ")
            .or_else(|| quoted_after(last, "Import "))
            .filter(|_| last.contains("pip"))
    } else {
        None
    };
    name.or_else(|| quoted_after(last, "No module named ").filter(|_| last.contains("/python")))
        .filter(|name| is_identifier(name))
}

/// The line in which Node names the error that ended a program. The position of the error and its other fields come
/// after it.
pub(crate) fn raised_by_node(stderr: &str) -> Option<&str> {
    let lines: Vec<_> = stderr.lines().collect();
    let names = |at: &usize| {
        let line = lines[*at];
        let name = line.split([':', ' ']).next().unwrap_or_default();
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_$".contains(c));
        let has_place = lines.get(at + 1).is_some_and(|next| next.starts_with("    at "));
        let is_error = name.ends_with("Error") || name.ends_with("Exception") || has_place;
        (is_name && is_error && line.contains(':')) || line.starts_with("Uncaught ")
    };
    (0..lines.len()).rev().find(names).map(|at| lines[at])
}

/// The package that a program for Node wanted, if it is not a file.
fn missing_package(stderr: &str) -> Option<String> {
    let line = raised_by_node(stderr)?;
    let name = ["Cannot find module ", "Cannot find package "];
    let name = name.iter().find_map(|words| quoted_after(line, words))?;
    let is_package = |c: char| c.is_ascii_alphanumeric() || "@/_.-".contains(c);
    (!name.starts_with(['.', '/']) && name.chars().all(is_package)).then_some(name)
}

fn missing_variable(last: &str) -> Option<String> {
    let name = last.starts_with("NameError: ").then(|| quoted_after(last, "name "))?;
    name.filter(|name| is_identifier(name))
}

/// Whether the error is that there are no windows.
fn wants_screen(last: &str) -> bool {
    ["tkinter", "_tkinter"]
        .iter()
        .any(|name| last.starts_with(&format!("ModuleNotFoundError: No module named '{name}'")))
        || (last.starts_with("ImportError: ") && last.contains("interactive framework"))
}

/// Names that Node has and QuickJS lacks.
const OF_NODE: [&str; 10] = [
    "fetch",
    "URL",
    "URLSearchParams",
    "Buffer",
    "Intl",
    "TextEncoder",
    "TextDecoder",
    "crypto",
    "AbortController",
    "Blob",
];

/// Whether code used a feature that only Node has.
fn wants_node(stderr: &str) -> bool {
    let Some(error) = raised_by_node(stderr) else { return false };
    let error = error.trim_start_matches("Uncaught ");
    let name = error.strip_prefix("ReferenceError: ");
    let name = name.and_then(|rest| rest.split_once(" is not defined")).map(|(name, _)| name);
    name.is_some_and(|name| OF_NODE.contains(&name.trim_matches('\'')))
        || (error.starts_with("SyntaxError: ") && stderr.contains("import"))
}

/// Whether a program tried to start a process or a thread in a sandbox that has none.
fn wants_process(stderr: &str, last: &str) -> bool {
    let says = ["wasi does not support processes", "can't start new thread"];
    let lacks = [
        (
            "os",
            &["'fork'", "'pipe'", "'posix_spawn'", "'system'", "'popen'", "'kill'", "'getppid'"][..],
        ),
        ("signal", &["'alarm'", "'setitimer'", "'pause'"]),
    ];
    let is_lacking = |(module, names): (&str, &[&str])| {
        last.strip_prefix("AttributeError: module '")
            .and_then(|rest| rest.strip_prefix(module))
            .and_then(|rest| rest.strip_prefix("' has no attribute "))
            .is_some_and(|rest| names.iter().any(|name| rest.starts_with(name)))
    };
    says.iter().any(|words| stderr.contains(words)) || lacks.into_iter().any(is_lacking)
}

/// The note on another program that could not be started.
pub(super) fn starting(stderr: &str, last: &str) -> Option<Note> {
    let innermost = stderr.lines().rfind(|line| line.trim_start().starts_with("File "))?;
    let starts = ["_execute_child", "_posix_spawn"];
    if !innermost.contains("/subprocess.py") || !starts.iter().any(|it| innermost.contains(it)) {
        return None;
    }
    if last.starts_with("FileNotFoundError: ") {
        // A name with a folder may be the user's own file, or the folder in which the program was to be started.
        let name = quoted_after(last, "directory: ").filter(|name| !name.contains('/'));
        return name.map(Note::MissingProgram);
    }
    if last.starts_with("PermissionError: ") {
        return quoted_after(last, "denied: ").map(Note::NotExecutable);
    }
    None
}

/// Whether Plotly, whose error message has several lines, has asked for a browser.
fn wants_picture_of_plotly(stderr: &str) -> bool {
    stderr.trim_end().ends_with("$ pip install --upgrade \"kaleido>=1\"")
        || stderr.contains("\nImage export requires the Kaleido package")
}

fn is_full(last: &str) -> bool {
    last.starts_with("OSError: [Errno ") && last.contains("] No space left on device")
}

/// Whether a library found a file to be of another kind than its name says.
fn is_of_other_kind(last: &str) -> bool {
    [
        "ValueError: Excel file format cannot be determined",
        "BadZipFile: File is not a zip file",
        "XLRDError: Unsupported format, or corrupt file",
        "ArrowInvalid: Could not open Parquet input source",
        "ArrowInvalid: Not a Feather V1 or Arrow IPC file",
        "ComputeError: parquet: File out of specification",
        "OSError: corrupt deflate stream",
        "BadGzipFile: Not a gzipped file",
        "OSError: Invalid data stream",
        "LZMAError: Input format not supported by decoder",
        "sqlite3.DatabaseError: file is not a database",
        "PdfStreamError: ",
        "PdfReadError: ",
        "UnpicklingError: ",
        "UnidentifiedImageError: ",
    ]
    .iter()
    .any(|words| last.starts_with(words))
        || (last.contains("No magic bytes found at end of file"))
}

/// The start of the error of the module `json` for a text with a byte order mark.
const JSON_MARK: &str = "JSONDecodeError: Unexpected UTF-8 BOM";

/// Whether the error is that another JSON value follows on a line of its own.
fn has_json_lines(last: &str) -> bool {
    let extra = last.strip_prefix("JSONDecodeError: Extra data: line ");
    let at_start = |rest: &str| !rest.starts_with("1 ") && rest.contains(" column 1 (");
    last.starts_with("ValueError: Trailing data") || extra.is_some_and(at_start)
}

fn is_encrypted(last: &str) -> bool {
    last.starts_with("XLRDError: Can't find workbook in OLE2 compound document")
        || last.starts_with("FileNotDecryptedError: ")
        || (last.starts_with("RuntimeError: File ")
            && last.contains(" is encrypted, password required"))
}

fn is_of_other_encoding(stderr: &str, last: &str) -> bool {
    let is_of_codec =
        last.starts_with("UnicodeDecodeError: ") && last.contains(" codec can't decode ");
    // The error of a program that asked for ASCII says nothing about the file.
    (is_of_codec && !last.contains("'ascii'"))
        || last.starts_with("UnicodeError: UTF-16 stream does not start with BOM")
        || (last.starts_with("ComputeError: ") && last.contains("invalid utf-8 sequence"))
        || (last.starts_with("InvalidInputException: ")
            && ["This file is not utf-8 encoded", "does not support the encoding"]
                .iter()
                .any(|words| stderr.contains(words)))
}

/// The error of pandas for a folder that does not exist; the name follows.
const NO_FOLDER: &str = "OSError: Cannot save file into a non-existent directory: ";

/// Whether a program tried to write where nothing can be written.
fn is_read_only(last: &str) -> bool {
    let folder = quoted_after(last, NO_FOLDER);
    last.contains("] Read-only file system")
        || folder.is_some_and(|it| it.starts_with(['/', '~']) && !it.starts_with("/mnt/data"))
}

fn lacks_folder(last: &str) -> bool {
    last.starts_with(NO_FOLDER) && !is_read_only(last)
}

/// Commands of a shell, and names of a notebook, that Python takes for variables.
const SHELL_NAMES: [&str; 8] = ["ls", "cd", "pwd", "cat", "pip", "bash", "get_ipython", "In"];

/// Programs that shells start and models ask for.
const PROGRAMS: [&str; 23] = [
    "apt", "apt-get", "bash", "cat", "cd", "chmod", "conda", "cp", "curl", "echo", "export",
    "find", "git", "grep", "head", "ls", "mkdir", "node", "npm", "pip", "python", "sh", "sudo",
];

/// Whether the error is in a line that only a notebook or a shell accepts.
fn has_shell_line(stderr: &str, last: &str) -> bool {
    let is_command = |line: &str| {
        let (program, rest) = line.split_once(' ').unwrap_or((line, ""));
        let is_expression = rest.starts_with(['=', '(', '.', '[', ',', ':']);
        let is_program = PROGRAMS.contains(&program.trim_end_matches('3')) && !is_expression;
        line.starts_with(['!', '%']) || (is_program && !rest.is_empty())
    };
    let shown = stderr.lines().map(|line| {
        // IPython numbers the lines, with an arrow at that of the error.
        let line = line.trim_start().trim_start_matches(['-', '>']).trim_start();
        line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start()
    });
    (last.starts_with("SyntaxError: ") && { shown }.any(is_command))
        || missing_variable(last).is_some_and(|name| SHELL_NAMES.contains(&&*name))
}

/// Errors of resolvers, sockets and libraries without a network.
const WITHOUT_NETWORK: [&str; 14] = [
    "Temporary failure in name resolution",
    "Name or service not known",
    "Failed to resolve",
    "Network is unreachable",
    "Address family not supported by protocol",
    "Could not resolve host",
    "getaddrinfo ENOTFOUND",
    "getaddrinfo EAI_AGAIN",
    "TypeError: fetch failed",
    "module '_socket' has no attribute",
    "unknown url type: https",
    "Failed to download extension",
    "automatically install the required extension",
    "there is no network here, so nothing",
];

pub(super) fn wants_network(text: &str) -> bool {
    WITHOUT_NETWORK.iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use model::Outcome;
    use protocol::message::{Facts, MissingFile};

    use super::{
        super::run::tests::{failed, names, said, told_apart},
        *,
    };

    #[test]
    fn what_a_guest_lacks_of_processes_is_told_by_whatever_it_was_asked() {
        for last in [
            "AttributeError: module 'os' has no attribute 'system'",
            "AttributeError: module 'os' has no attribute 'kill'. Did you mean: 'link'?",
            "AttributeError: module 'signal' has no attribute 'alarm'",
        ] {
            let [system, guest] = told_apart(Outcome::Error, last);
            assert!(system.is_empty(), "{system:?}");
            assert!(guest[0].starts_with("Here are no processes"), "{guest:?}");
        }
        let [_, other] =
            told_apart(Outcome::Error, "AttributeError: module 'os' has no attribute 'systems'");
        assert!(other.is_empty(), "{other:?}");
    }

    #[test]
    fn what_only_node_has_is_told_and_other_names_are_not() {
        for error in
            ["ReferenceError: fetch is not defined", "ReferenceError: 'URL' is not defined"]
        {
            assert!(
                wants_node(&format!("Uncaught {error}\n    at <eval> (cell-1:1:1)\n")),
                "{error}"
            );
        }
        assert!(!wants_node("Uncaught ReferenceError: total is not defined\n"));
        assert!(!wants_node("Uncaught TypeError: not a function\n"));
    }

    #[test]
    fn parquet_is_told_not_to_be_there_where_it_is_not() {
        let last =
            "ImportError: Unable to find a usable engine; tried using: 'pyarrow', 'fastparquet'.";
        let [_, guest] = told_apart(Outcome::Error, last);
        assert!(guest.iter().any(|note| note.starts_with("Parquet needs PyArrow")), "{guest:?}");
    }

    #[test]
    fn a_command_for_a_shell_is_told_from_a_mistake_in_python() {
        let told = |code: &str| {
            let stderr = format!(
                "  File \"/tmp/main.py\", line 1\n    {code}\n           ^^^\nSyntaxError: invalid syntax\n"
            );
            said(Outcome::Error, ["", &stderr], &[], Facts::default())
        };
        for code in [
            "python analyze.py --input x",
            "python3 a.py",
            "pip3 install x",
            "!ls",
            "ls -la",
            "cd /tmp",
        ] {
            assert!(told(code)[0].contains("subprocess.run"), "{code}");
        }
        for code in ["find = (", "head [1", "cat: = 1", "print 'x'", "pythonic x", "x = ls -la"] {
            assert_eq!(told(code), Vec::<String>::new(), "{code}");
        }
        let in_cell =
            "  Cell In[1], line 1\n    ----> 1 python analyze.py\nSyntaxError: invalid syntax";
        assert!(has_shell_line(in_cell, "SyntaxError: invalid syntax"));
        let [_, guest] = told_apart(Outcome::Error, "  !ls\nSyntaxError: invalid syntax");
        assert!(guest[0].starts_with("Here are no processes"), "{guest:?}");
    }

    #[test]
    fn folders_that_are_not_there_are_told_apart() {
        let words = |folder: &str| failed(&format!("{NO_FOLDER}'{folder}'")).remove(0);
        assert!(words("out").starts_with("Make the folder first"));
        assert!(words("/mnt/data/out").starts_with("Make the folder first"));
        assert!(words("/mnt/user-data/outputs").starts_with("Only /mnt/data and /tmp"));
        assert!(failed("OSError: Cannot save file").is_empty());
    }

    #[test]
    fn processes_and_threads_are_missed_only_where_there_are_none() {
        for last in [
            "OSError: [Errno 58] wasi does not support processes.",
            "RuntimeError: can't start new thread",
            "AttributeError: module 'os' has no attribute 'fork'",
        ] {
            let [system, interpreter] = told_apart(Outcome::Error, last);
            assert!(system.is_empty(), "{system:?}");
            assert!(interpreter[0].starts_with("Here are no processes"), "{interpreter:?}");
        }
        let other = "AttributeError: module 'os' has no attribute 'forks'";
        assert!(told_apart(Outcome::Error, other)[1].is_empty());
    }

    #[test]
    fn a_full_disk_is_told_whatever_number_its_error_has() {
        for number in [28, 51] {
            let told = failed(&format!("OSError: [Errno {number}] No space left on device"));
            assert_eq!(told, [Advice::DiskFull.text()]);
        }
        assert!(failed("OSError: No space left on device").is_empty());
    }

    #[test]
    fn a_missing_module_is_told_whoever_misses_it() {
        for last in [
            "ModuleNotFoundError: No module named 'foo'",
            "ImportError: Missing optional dependency 'foo'.  Use pip or conda to install foo.",
            "ImportError: `Import foo` failed.  Use pip or conda to install the foo package.",
            "/opt/venv/bin/python3: No module named foo",
        ] {
            let told = failed(last);
            assert!(
                told.len() == 1 && told[0].starts_with("\"foo\" is not installed"),
                "{last}: {told:?}"
            );
        }
        for other in
            ["ImportError: cannot import name 'x' from 'y'", "ValueError: No module named 'x'"]
        {
            assert!(failed(other).is_empty(), "{other}");
        }
    }

    #[test]
    fn a_variable_of_an_earlier_call_is_told_to_be_gone() {
        let told = failed("NameError: name 'df' is not defined");
        assert!(told[0].contains("new process: \"df\" has to be defined"), "{told:?}");
        let cut = "Traceback (most recent call last):\n  File \"/tmp/main.py\", line 1, in <module>\n    x = [1,...\n\
                   [... 100154 bytes left out ...]\n1, 1]\n    ^^^\nNameError: name 'df' is not defined";
        assert_eq!(raised_line(cut), "NameError: name 'df' is not defined");
        assert!(failed("KeyError: 'df'").is_empty());
    }

    #[test]
    fn who_looks_for_a_network_is_told_that_there_is_none_even_if_the_error_was_caught() {
        let words = "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>";
        assert!(failed(words)[0].starts_with("The sandbox has no network"));
        assert_eq!(said(Outcome::Ok, [words, ""], &[], Facts::default()).len(), 1);
        assert!(failed("URLError: <urlopen error timed out>").is_empty());
        let of_pip = ["", "pip: there is no network here, so nothing was installed."];
        let told = said(Outcome::Ok, of_pip, &[], Facts::default());
        assert!(told[0].starts_with("The sandbox has no network"), "{told:?}");
    }

    #[test]
    fn folders_that_cannot_be_written_are_told() {
        let told = failed("OSError: [Errno 30] Read-only file system: '/output'");
        assert!(told[0].starts_with("Only /mnt/data and /tmp can be written"), "{told:?}");
        assert!(failed("OSError: [Errno 13] Permission denied: 'x'").is_empty());
    }

    #[test]
    fn a_program_that_cannot_be_started_is_told_not_to_be_a_file_of_the_user() {
        const CHILD: &str = "/usr/lib/python3.13/subprocess.py\", line 1972, in _execute_child";
        const SPAWN: &str = "/usr/lib/python3.13/subprocess.py\", line 1801, in _posix_spawn";
        let said_of = |frame: &str, last: &str, missing: Option<&str>| {
            let stderr =
                format!("Traceback (most recent call last):\n  File \"{frame}\n    x()\n{last}\n");
            let missing = missing.map(|name| MissingFile {
                name: name.into(),
                there: names(&[]),
                ..MissingFile::default()
            });
            let facts = Facts { missing_file: missing, ..Facts::default() };
            said(Outcome::Error, ["", &stderr], &[], facts)
        };
        let lacks =
            |name| format!("FileNotFoundError: [Errno 2] No such file or directory: '{name}'");
        assert_eq!(
            said_of(CHILD, &lacks("node"), Some("node")),
            ["There is no program \"node\" here, and none can be installed: do it in Python."]
        );
        assert!(
            said_of(CHILD, &lacks("./a.sh"), Some("./a.sh"))[0]
                .starts_with("There is no \"./a.sh\"")
        );
        assert!(
            said_of("/tmp/main.py\", line 1", &lacks("node"), Some("node"))[0]
                .contains("Uploaded files")
        );
        let denied = "PermissionError: [Errno 13] Permission denied: './a.sh'";
        assert!(said_of(SPAWN, denied, None)[0].ends_with("such as [\"sh\", \"./a.sh\"]."));
        assert!(said_of("/tmp/main.py\", line 1", denied, None).is_empty());
        assert!(said_of(CHILD, "ValueError: x", None).is_empty());
    }

    #[test]
    fn a_program_that_asks_or_wants_windows_is_told_that_nobody_is_there() {
        assert!(failed("EOFError: EOF when reading a line")[0].contains("input()"));
        assert!(failed("EOFError: Ran out of input").is_empty());
        for last in [
            "ModuleNotFoundError: No module named 'tkinter'",
            "ImportError: Cannot load backend 'QtAgg' which requires the 'qt' interactive framework, as \
             'headless' is currently running",
        ] {
            let told = failed(last);
            assert!(told.len() == 1 && told[0].starts_with("There is no screen: "), "{told:?}");
        }
        assert!(failed("ModuleNotFoundError: No module named 'torch'")[0].starts_with("\"torch\""));
    }

    #[test]
    fn a_file_that_is_not_what_it_seems_is_told() {
        for last in [
            "ValueError: Excel file format cannot be determined, you must specify an engine manually.",
            "zipfile.BadZipFile: File is not a zip file",
            "PIL.UnidentifiedImageError: cannot identify image file 'a.png'",
        ] {
            assert!(failed(last)[0].starts_with("The file is of another kind"), "{last}");
        }
        let told =
            failed("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 1: x");
        assert!(told[0].starts_with("The file is not UTF-8: look at"), "{told:?}");
        for last in [
            "UnicodeDecodeError: 'charmap' codec can't decode byte 0x81 in position 1: x",
            "UnicodeError: UTF-16 stream does not start with BOM",
            "polars.exceptions.ComputeError: invalid utf-8 sequence",
            "Traceback (most recent call last):\n_duckdb.InvalidInputException: CSV Error\nThis file is not utf-8 encoded.\n\n  file = a.csv",
        ] {
            assert_eq!(failed(last), told, "{last}");
        }
        for last in [
            "xlrd.biffh.XLRDError: Can't find workbook in OLE2 compound document",
            "RuntimeError: File 'a.csv' is encrypted, password required for extraction",
        ] {
            assert!(failed(last)[0].starts_with("The file is encrypted"), "{last}");
        }
        for other in ["ValueError: Excel", "UnicodeDecodeError: 'ascii' codec can't decode byte"] {
            assert!(failed(other).is_empty(), "{other}");
        }
    }

    #[test]
    fn no_note_on_an_error_names_a_tool_that_the_client_may_not_have() {
        for last in [
            "ModuleNotFoundError: No module named 'foo'",
            "gaierror: Temporary failure in name resolution",
            "zipfile.BadZipFile: File is not a zip file",
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 1: x",
            "NameError: name 'ls' is not defined",
        ] {
            let told = failed(last);
            let is_tool = |word: &str| word.contains('_') && !word.contains(['.', '=']);
            assert!(!told.is_empty(), "{last}");
            assert!(!told.iter().any(|note| note.split(' ').any(is_tool)), "{told:?}");
        }
    }

    #[test]
    fn what_ended_a_program_is_found_in_scripts_and_in_cells() {
        let script = "Traceback (most recent call last):\n  File \"/tmp/main.py\", line 2, in <module>\n    x()\n  \
                      [3 library frames]\n";
        let cell = "-----\nNAME          Traceback (most recent call last)\nCell In[1], line 1\n----> 1 x()\n\n\
                    [3 library frames]\n\n";
        for (qualified, message, line) in [
            ("zipfile.BadZipFile", "File is not a zip file", "BadZipFile: File is not a zip file"),
            ("ValueError", "first\nsecond: not\n  third", "ValueError: first"),
            ("ValueError", "\n\n  Image export\n more", "ValueError: Image export"),
            ("_duckdb.IOException", "a: b\nc", "IOException: a: b"),
        ] {
            let name = qualified.rsplit('.').next().expect("a name");
            let of_script = format!("{script}{qualified}: {message}\n");
            let of_cell = format!("{}{name}: {message}\n", cell.replace("NAME", name));
            assert_eq!((&*raised_line(&of_script), &*raised_line(&of_cell)), (line, line));
            let chained = format!(
                "{of_script}\nDuring handling of the above exception, another ...\n\n{of_cell}"
            );
            assert_eq!(raised_line(&chained), line);
        }
        assert_eq!(raised_line(&format!("{script}KeyboardInterrupt\n")), "KeyboardInterrupt");
        assert_eq!(raised_line("warning\nmain.py: error: x\n"), "main.py: error: x");
        assert_eq!(
            raised_line("  File \"/tmp/main.py\", line 1\nSyntaxError: bad\n"),
            "SyntaxError: bad"
        );
        assert_eq!(raised_line(TRACEBACK), TRACEBACK);
    }

    #[test]
    fn what_the_sandbox_has_no_room_or_browser_for_is_told() {
        assert!(failed("OSError: [Errno 28] No space left on device")[0].contains("os.remove"));
        assert!(failed("OSError: [Errno 5] Input/output error").is_empty());
        let kaleido = "RuntimeError: \nImage export requires the Kaleido package, v1.0.0 or greater,\n\
                       which can be installed using pip:\n\n    $ pip install --upgrade \"kaleido>=1\"";
        assert!(failed(kaleido)[0].contains("write_html"));
        assert!(failed("RuntimeError: kaleido").is_empty());
    }

    #[test]
    fn a_line_for_a_shell_is_told_to_be_for_notebooks() {
        let told = failed("    !ls -l\n    ^\nSyntaxError: invalid syntax");
        assert!(told[0].contains("subprocess.run"), "{told:?}");
        assert!(failed("    x = !\n    ^\nSyntaxError: invalid syntax").is_empty());
        assert!(failed("    !ls\nValueError: x").is_empty());
        assert!(failed("NameError: name 'ls' is not defined")[0].contains("subprocess.run"));
        assert!(failed("    %%bash\n    ^\nSyntaxError: invalid syntax")[0].contains("subprocess"));
    }
}
