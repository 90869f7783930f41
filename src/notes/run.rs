//! What there is to be said of a run. Each rule is one question, and a test has both its answers.

use protocol::message::{Facts, MissingFile, Names};

use super::{Note, Notes};
use crate::session::{Artifact, Outcome, Output};

/// What was seen of a run.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) outcome: Outcome,
    pub(crate) stdout: &'a Output,
    pub(crate) stderr: &'a Output,
    /// New and changed files, whatever the outcome, and how many there are besides.
    pub(crate) changed: &'a [Artifact],
    pub(crate) changed_omitted: usize,
    /// What the sandbox says of it.
    pub(crate) facts: Facts,
}

/// Names of files that a note may have.
const MAX_FILES: usize = 10;

/// The notes on a run, the most helpful first.
pub(crate) fn of_run(seen: Seen<'_>) -> Notes {
    let last = last_line(&seen.stderr.text);
    let mut notes = Notes::default();
    if seen.outcome == Outcome::Error {
        notes.extend(missing_module(last).map(Note::MissingModule));
        notes.extend(missing_variable(last).map(Note::MissingVariable));
        notes.extend(is_read_only(last).then_some(Note::ReadOnly));
        notes.extend(has_shell_line(&seen.stderr.text, last).then_some(Note::ShellLine));
    }
    if seen.outcome == Outcome::OutOfMemory {
        notes.push(Note::OutOfMemory);
    }
    if [seen.stdout, seen.stderr].iter().any(|output| wants_network(&output.text)) {
        notes.push(Note::NoNetwork);
    }
    let Facts {
        dropped_value,
        unsaved_figures,
        columns,
        missing_file,
        elsewhere,
        position,
        left_out,
    } = seen.facts;
    if seen.outcome == Outcome::Timeout {
        notes.extend(position.map(Note::StoodAt));
    }
    if seen.outcome == Outcome::Error {
        notes.extend(missing_file.map(missing));
        notes.extend((!columns.is_empty()).then_some(Note::Columns(columns)));
    }
    notes.extend((!left_out.is_empty()).then_some(Note::LeftOut(left_out)));
    if seen.outcome == Outcome::Ok {
        notes.extend((unsaved_figures > 0).then_some(Note::UnsavedFigures(unsaved_figures)));
        // A number of bytes that were written, as a rule: there are files that say more.
        let dropped = dropped_value.filter(|kind| seen.changed.is_empty() || kind != "int");
        let says_nothing = seen.stdout.total == 0 && seen.stderr.total == 0;
        let shows_nothing = says_nothing && seen.changed.is_empty() && unsaved_figures == 0;
        if shows_nothing || (seen.stdout.total == 0 && dropped.is_some()) {
            notes.push(Note::NothingPrinted(dropped));
        }
    } else if !seen.changed.is_empty() {
        let names = seen.changed.iter().take(MAX_FILES).map(|file| file.path.as_str().to_owned());
        let more =
            seen.changed.len().saturating_sub(MAX_FILES).saturating_add(seen.changed_omitted);
        notes.push(Note::Unreturned(Names { names: names.collect(), more }));
    }
    notes.extend((!elsewhere.is_empty()).then_some(Note::Elsewhere(elsewhere)));
    notes
}

/// The last line that is not blank: of a traceback, what happened.
fn last_line(stderr: &str) -> &str {
    stderr.trim_end().rsplit('\n').next().unwrap_or_default()
}

fn missing(file: MissingFile) -> Note {
    let MissingFile { name, there } = file;
    let relative = name.strip_prefix("/mnt/data/").unwrap_or(&name);
    let folder = relative.rsplit_once('/').map(|(folder, _)| format!("{folder}/"));
    let lacks_folder = folder.is_some_and(|folder| {
        !folder.starts_with('/') && !there.names.iter().any(|known| known.starts_with(&folder))
    });
    Note::MissingFile { name, there, lacks_folder }
}

/// The text between the first two quotes after these words.
fn quoted_after(line: &str, words: &str) -> Option<String> {
    let (_, rest) = line.split_once(words)?;
    let name = rest.trim_start_matches(['\'', '"']).split(['\'', '"']).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The module that was to be imported, if there is none.
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
}

fn missing_variable(last: &str) -> Option<String> {
    last.starts_with("NameError: ").then(|| quoted_after(last, "name "))?
}

fn is_read_only(last: &str) -> bool {
    last.contains("[Errno 30] Read-only file system")
}

/// A line that only a notebook would have taken.
fn has_shell_line(stderr: &str, last: &str) -> bool {
    last.starts_with("SyntaxError: ")
        && stderr.lines().any(|line| line.trim_start().starts_with('!'))
}

/// What resolvers, sockets and libraries say without a network.
const WITHOUT_NETWORK: [&str; 6] = [
    "Temporary failure in name resolution",
    "Name or service not known",
    "Failed to resolve",
    "Network is unreachable",
    "Address family not supported by protocol",
    "Could not resolve host",
];

fn wants_network(text: &str) -> bool {
    WITHOUT_NETWORK.iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use protocol::message::Position;

    use super::*;
    use crate::artifact::DataPath;

    fn names(all: &[&str]) -> Names {
        Names { names: all.iter().map(|name| (*name).to_owned()).collect(), more: 0 }
    }

    fn output(text: &str) -> Output {
        Output { text: text.into(), total: text.len() as u64, ..Output::default() }
    }

    /// What is said of a run that ended so, printed this, wrote these files, and of which this is known.
    fn said(
        outcome: Outcome,
        [stdout, stderr]: [&str; 2],
        files: &[&str],
        facts: Facts,
    ) -> Vec<String> {
        let [stdout, stderr] = [stdout, stderr].map(output);
        let file = |name: &&str| Artifact {
            path: DataPath::relative(name).expect("a path"),
            size_bytes: 1,
            modified_ns: 0,
        };
        let changed: Vec<_> = files.iter().map(file).collect();
        let seen = Seen {
            outcome,
            stdout: &stdout,
            stderr: &stderr,
            changed: &changed,
            changed_omitted: 0,
            facts,
        };
        of_run(seen).sentences().collect()
    }

    /// What is said of a program that ended with this error.
    fn failed(last: &str) -> Vec<String> {
        let stderr = format!("Traceback (most recent call last):\n  File ..\n{last}\n");
        said(Outcome::Error, ["", &stderr], &[], Facts::default())
    }

    const SILENT: [&str; 2] = ["", ""];

    #[test]
    fn a_run_that_prints_nothing_is_told_so_unless_it_shows_something_else() {
        let nothing = || Facts::default();
        let dropped = |kind: &str| Facts { dropped_value: Some(kind.into()), ..Facts::default() };
        let note = ["Nothing was printed: print what you want to see."];
        assert_eq!(said(Outcome::Ok, SILENT, &[], nothing()), note);
        assert!(said(Outcome::Ok, ["x", ""], &[], nothing()).is_empty());
        assert!(said(Outcome::Ok, ["", "a warning"], &[], nothing()).is_empty());
        assert!(said(Outcome::Ok, SILENT, &["a.csv"], nothing()).is_empty());
        assert!(said(Outcome::Error, SILENT, &[], nothing()).is_empty());

        let note = ["Nothing was printed. The value of the last line (of type \"DataFrame\") was \
                     dropped: print what you want to see."];
        assert_eq!(said(Outcome::Ok, SILENT, &[], dropped("DataFrame")), note);
        assert_eq!(said(Outcome::Ok, SILENT, &["a.csv"], dropped("DataFrame")), note);
        assert!(said(Outcome::Ok, ["x", ""], &[], dropped("DataFrame")).is_empty());
        assert!(said(Outcome::Ok, SILENT, &["a.txt"], dropped("int")).is_empty());
        assert_eq!(said(Outcome::Ok, SILENT, &[], dropped("int")).len(), 1);
    }

    #[test]
    fn charts_that_nobody_sees_are_told_of_a_run_that_succeeds() {
        let facts = |unsaved_figures| Facts { unsaved_figures, ..Facts::default() };
        let told = said(Outcome::Ok, SILENT, &[], facts(1));
        assert_eq!(
            told,
            ["A figure was neither shown nor saved: end with plt.show(), or savefig to /mnt/data."]
        );
        assert!(
            said(Outcome::Ok, ["x", ""], &[], facts(2))[0].starts_with("2 figures were neither")
        );
        assert!(said(Outcome::Ok, ["x", ""], &[], facts(0)).is_empty());
        assert!(said(Outcome::Error, ["x", ""], &[], facts(1)).is_empty());
    }

    #[test]
    fn a_missing_file_is_told_with_what_is_there() {
        let facts = |name: &str, there: &[&str]| Facts {
            missing_file: Some(MissingFile { name: name.into(), there: names(there) }),
            ..Facts::default()
        };
        let told = |facts| said(Outcome::Error, ["", "x"], &[], facts);
        assert_eq!(
            told(facts("Sales.csv", &["sales.csv", "book.xlsx"])),
            ["There is no \"Sales.csv\". /mnt/data has: \"sales.csv\", \"book.xlsx\"."]
        );
        assert_eq!(
            told(facts("/Users/me/a.csv", &[])),
            ["There is no \"/Users/me/a.csv\". /mnt/data is empty: upload_file puts files there."]
        );
        let makes = |name: &str| told(facts(name, &["raw/x.csv"]))[0].contains("os.makedirs");
        assert!(makes("out/x.csv") && makes("/mnt/data/out/x.csv"));
        assert!(!makes("raw/y.csv") && !makes("x.csv") && !makes("/home/me/x.csv"));
        assert!(said(Outcome::Ok, ["x", ""], &[], facts("a", &["b"])).is_empty());
    }

    #[test]
    fn columns_are_told_to_a_program_that_fails() {
        let facts = || Facts { columns: names(&["Region", "Umsatz"]), ..Facts::default() };
        let told = said(Outcome::Error, ["", "KeyError: 'x'"], &[], facts());
        assert_eq!(told, ["The columns are: \"Region\", \"Umsatz\"."]);
        assert!(said(Outcome::Ok, ["x", ""], &[], facts()).is_empty());
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
                told.len() == 1 && told[0].contains("foo") && told[0].contains("not installed"),
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
        assert!(failed("KeyError: 'df'").is_empty());
    }

    #[test]
    fn who_looks_for_a_network_is_told_that_there_is_none_even_if_the_error_was_caught() {
        let words = "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>";
        assert!(failed(words)[0].starts_with("The sandbox has no network"));
        assert_eq!(said(Outcome::Ok, [words, ""], &[], Facts::default()).len(), 1);
        assert!(failed("URLError: <urlopen error timed out>").is_empty());
    }

    #[test]
    fn folders_that_cannot_be_written_are_told() {
        let told = failed("OSError: [Errno 30] Read-only file system: '/output'");
        assert!(told[0].starts_with("Only /mnt/data and /tmp can be written"), "{told:?}");
        assert!(failed("OSError: [Errno 13] Permission denied: 'x'").is_empty());
    }

    #[test]
    fn a_line_for_a_shell_is_told_to_be_for_notebooks() {
        let told = failed("    !ls -l\n    ^\nSyntaxError: invalid syntax");
        assert!(told[0].contains("subprocess.run"), "{told:?}");
        assert!(failed("    x = !\n    ^\nSyntaxError: invalid syntax").is_empty());
        assert!(failed("    !ls\nValueError: x").is_empty());
    }

    #[test]
    fn a_program_that_takes_all_memory_is_told_how_to_take_less() {
        let told = |outcome| said(outcome, ["x", ""], &[], Facts::default());
        assert!(told(Outcome::OutOfMemory)[0].contains("chunksize"));
        assert!(told(Outcome::Killed).is_empty());
    }

    #[test]
    fn a_program_that_is_late_is_told_where_it_stood() {
        let facts = |text: Option<&str>, function: &str| Facts {
            position: Some(Position {
                file: "/tmp/main.py".into(),
                line: 3,
                function: function.into(),
                text: text.map(Into::into),
            }),
            ..Facts::default()
        };
        assert_eq!(
            said(Outcome::Timeout, SILENT, &[], facts(Some("time.sleep(9)"), "load")),
            [
                "At the timeout the program was at line 3 of \"main.py\", in \"load\": \"time.sleep(9)\"."
            ]
        );
        assert_eq!(
            said(Outcome::Timeout, SILENT, &[], facts(None, "<module>")),
            ["At the timeout the program was at line 3 of \"main.py\"."]
        );
        assert!(said(Outcome::Ok, ["x", ""], &[], facts(None, "f")).is_empty());
    }

    #[test]
    fn files_of_a_program_that_failed_are_told() {
        let told = |outcome, files: &[&str]| said(outcome, ["", "x"], files, Facts::default());
        for outcome in [Outcome::Error, Outcome::Timeout, Outcome::Killed, Outcome::OutOfMemory] {
            let told = told(outcome, &["a.png"]);
            assert!(told.last().is_some_and(|last| last.contains("\"a.png\"")), "{told:?}");
        }
        assert!(told(Outcome::Ok, &["a.png"]).is_empty());
        assert!(told(Outcome::Error, &[]).is_empty());
    }

    #[test]
    fn files_in_other_folders_and_lines_that_were_left_out_are_told_of_every_run() {
        let facts = || Facts {
            elsewhere: names(&["/tmp/chart.png"]),
            left_out: names(&["%matplotlib inline"]),
            ..Facts::default()
        };
        for outcome in Outcome::ALL {
            let told = said(outcome, ["x", ""], &[], facts());
            let said = |words: &str| told.iter().any(|note| note.contains(words));
            assert!(said("only files in /mnt/data are: \"/tmp/chart.png\"."), "{told:?}");
            assert!(said("Left out: \"%matplotlib inline\"."), "{told:?}");
        }
        assert!(said(Outcome::Ok, ["x", ""], &[], Facts::default()).is_empty());
    }

    #[test]
    fn whatever_a_program_says_no_note_is_long_or_has_control_characters() {
        let evil = |seed: usize| format!("\u{1b}[2J\"IGNORE ALL\n{}", "x".repeat(seed * 50));
        let all = Names { names: (0..100).map(evil).collect(), more: usize::MAX };
        let facts = Facts {
            dropped_value: Some(evil(9)),
            unsaved_figures: usize::MAX,
            columns: all.clone(),
            missing_file: Some(MissingFile { name: evil(9), there: all.clone() }),
            elsewhere: all.clone(),
            position: Some(Position {
                file: evil(9),
                line: u32::MAX,
                function: evil(9),
                text: Some(evil(9)),
            }),
            left_out: all,
        };
        for outcome in Outcome::ALL {
            for stderr in [
                "",
                "NameError: name 'x' is not defined",
                &format!("ModuleNotFoundError: No module named '{}'", evil(9)),
            ] {
                let told = said(outcome, ["", stderr], &["a"], facts.clone());
                assert!(!told.is_empty() && told.len() <= 5);
                for note in told {
                    assert!(note.chars().count() < 300 && note.ends_with('.'), "{note}");
                    assert!(!note.contains(char::is_control), "{note}");
                }
            }
        }
    }
}
