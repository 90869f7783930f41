//! Notes on a run. Each rule is one question, and a test has both its answers.

use model::{Artifact, DATASETS_DIR, Outcome, Output, World};
use protocol::message::{Facts, MissingFile, Names};

use super::{
    Advice, Note, Notes, Whereabouts,
    cell::{SeenCell, of_workspace},
    errors::{is_identifier, of_error, raised_line, starting, wants_network},
};

/// The observations of a run from which notes are made.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) outcome: Outcome,
    pub(crate) exit_code: i32,
    /// The signal that ended it, if one did.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: &'a Output,
    pub(crate) stderr: &'a Output,
    /// New and changed files, whatever the outcome, and how many there are besides.
    pub(crate) changed: &'a [Artifact],
    pub(crate) changed_omitted: usize,
    /// The state of the cell's workspace, if the run was a cell.
    pub(crate) cell: Option<SeenCell<'a>>,
    /// The sandbox's statements about it, which are not trusted.
    pub(crate) facts: Facts,
    /// The kind of the run's sandbox.
    pub(crate) world: World,
}

/// Maximum number of names of files in a note.
pub(super) const MAX_FILES: usize = 10;

/// The notes on a run, the most helpful first.
pub(crate) fn of_run(seen: Seen<'_>) -> Notes {
    let stderr = &*seen.stderr.text;
    let last = &*raised_line(stderr);
    let cell = seen.cell.as_ref();
    // Some notes are for programs that stand for themselves, as scripts do, and not for cells.
    let is_script = cell.is_none();
    let is_system = seen.world == World::System;
    let mut notes = cell.map(|cell| of_workspace(&seen, cell)).unwrap_or_default();
    if seen.outcome == Outcome::Error {
        notes.extend(of_error(stderr, last, cell, seen.world));
    }
    notes.extend(of_limits(seen.outcome, cell, is_system).map(Note::Advice));
    if [seen.stdout, seen.stderr].iter().any(|output| wants_network(&output.text)) {
        notes.push(Note::Advice(Advice::NoNetwork));
    }
    let Facts {
        dropped_value,
        unsaved_figures,
        columns,
        header,
        shape,
        sheets,
        missing_file,
        elsewhere,
        position,
        left_out,
        hidden_module,
        // For the operator.
        fuel: _,
    } = seen.facts;
    let dropped_value = dropped_value.filter(|kind| is_identifier(kind));
    let position = position.filter(|it| it.function == "<module>" || is_identifier(&it.function));
    if seen.outcome == Outcome::Timeout {
        notes.extend(position.map(Note::StoodAt));
        if is_script && is_system {
            notes.push(Note::Advice(Advice::TooSlow));
        }
    }
    let is_stopped = !matches!(seen.outcome, Outcome::Ok | Outcome::Error);
    if is_script && !is_system && is_stopped {
        notes.push(Note::Advice(Advice::FilesRolledBack));
    }
    if seen.outcome == Outcome::Error {
        let starts = starting(stderr, last).is_some();
        notes.extend(missing_file.filter(|_| !starts).map(missing));
        notes.extend(hidden_module.map(Note::HiddenModule));
        notes.extend(header.map(Note::Header));
        notes.extend(of_columns(columns));
        notes.extend(shape.map(Note::Shape));
        notes.extend((!sheets.is_empty()).then_some(Note::Sheets(sheets)));
    }
    notes.extend((is_script && !left_out.is_empty()).then_some(Note::LeftOut(left_out)));
    if seen.outcome == Outcome::Ok {
        let figures = if is_script { unsaved_figures.min(999) } else { 0 };
        notes.extend((figures > 0).then_some(Note::UnsavedFigures(figures)));
        notes.extend(of_files(seen.changed));
        let writes_nothing = seen.changed.is_empty() && elsewhere.is_empty();
        // An int is usually the number of bytes that were written, and a CompletedProcess another program that ended:
        // files and error output say more about either.
        let dropped = dropped_value.filter(|kind| match &**kind {
            "int" => writes_nothing && seen.stderr.total == 0,
            "CompletedProcess" => seen.stderr.total == 0,
            _ => true,
        });
        let says_nothing = seen.stdout.total == 0 && seen.stderr.total == 0;
        let leaves_nothing =
            seen.changed.is_empty() && elsewhere.is_empty() && unsaved_figures == 0;
        let is_dropped = seen.stdout.total == 0 && dropped.is_some();
        if is_script && (is_dropped || (says_nothing && leaves_nothing)) {
            notes.push(Note::NothingPrinted(dropped));
        }
    } else if is_script && !seen.changed.is_empty() {
        notes.push(unreturned(seen.changed, seen.changed_omitted));
    }
    notes.extend((!elsewhere.is_empty()).then_some(Note::Elsewhere(elsewhere)));
    notes
}

/// Notes on the columns of a table that lacks the one that was asked for.
fn of_columns(columns: Names) -> impl Iterator<Item = Note> {
    let has_mark = columns.names.iter().any(|name| name.starts_with('\u{FEFF}'));
    let mark = has_mark.then_some(Note::Advice(Advice::ByteOrderMark));
    mark.into_iter().chain((!columns.is_empty()).then_some(Note::Columns(columns)))
}

/// Advice on a run that has reached the limit of its memory or instructions.
fn of_limits(
    outcome: Outcome,
    cell: Option<&SeenCell<'_>>,
    is_system: bool,
) -> impl Iterator<Item = Advice> {
    let memory = outcome == Outcome::OutOfMemory;
    let less = if is_system { Advice::OutOfMemory } else { Advice::OutOfMemoryOfGuest };
    let advice = [
        (memory && cell.is_none_or(SeenCell::is_python), less),
        (memory && cell.is_some_and(|cell| cell.had_variables), Advice::VariablesTakeMemory),
        // The error message of a cell says so.
        (outcome == Outcome::OutOfFuel && cell.is_none(), Advice::OutOfFuel),
    ];
    advice.into_iter().filter_map(|(holds, advice)| holds.then_some(advice))
}

/// Kinds of files that programs write when they close them, and that are never meant to be empty.
const NEVER_EMPTY: [&str; 10] =
    [".xlsx", ".pdf", ".png", ".jpg", ".csv", ".docx", ".pptx", ".parquet", ".json", ".html"];

/// Notes on the files of a run that succeeded.
fn of_files(changed: &[Artifact]) -> impl Iterator<Item = Note> {
    let empty = empty_files(changed);
    let empty = (!empty.is_empty()).then_some(Note::EmptyFiles(empty));
    page_of_plotly(changed).map(Note::ForPeople).into_iter().chain(empty)
}

/// The note on the files of a run that failed, of which `omitted` more are not named.
fn unreturned(changed: &[Artifact], omitted: usize) -> Note {
    let names = changed.iter().take(MAX_FILES).map(|file| file.path.as_str().to_owned());
    let more = changed.len().saturating_sub(MAX_FILES).saturating_add(omitted);
    Note::Unreturned(Names { names: names.collect(), more })
}

/// A chart that Plotly has shown, recognized by the name that it gets then.
fn page_of_plotly(changed: &[Artifact]) -> Option<String> {
    let mut names = changed.iter().map(|file| file.path.as_str());
    let is_shown = |name: &&str| {
        let number = name.strip_prefix("figure_").and_then(|rest| rest.strip_suffix(".html"));
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names.find(is_shown).map(str::to_owned)
}

fn empty_files(changed: &[Artifact]) -> Names {
    let is_empty = |file: &&Artifact| {
        file.size_bytes == 0 && NEVER_EMPTY.iter().any(|end| file.path.as_str().ends_with(end))
    };
    let names = changed.iter().filter(is_empty).map(|file| file.path.as_str().to_owned());
    let mut names: Vec<_> = names.collect();
    let more = names.len().saturating_sub(MAX_FILES);
    names.truncate(MAX_FILES);
    Names { names, more }
}

fn missing(file: MissingFile) -> Note {
    let MissingFile { name, there, in_datasets } = file;
    let extension = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    if ["ttf", "ttc", "otf", "pfb", "afm"].contains(&&*extension) {
        return Note::Advice(Advice::FontFile);
    }
    let relative = name.strip_prefix("/mnt/data/").unwrap_or(&name);
    let is_outside = relative.starts_with(['/', '~']) || relative.get(1..).is_some_and(is_of_drive);
    let whereabouts = match relative.rsplit_once('/') {
        _ if is_of_dataset(&name) => Whereabouts::Dataset,
        _ if is_outside => Whereabouts::Outside,
        Some((folder, file)) if !has_folder(&there, folder) && !has_file(&there, file) => {
            Whereabouts::MissingFolder
        }
        _ => Whereabouts::Here,
    };
    Note::MissingFile { name, there, in_datasets, whereabouts }
}

/// Whether a path is beneath the folder of the datasets.
fn is_of_dataset(path: &str) -> bool {
    path.strip_prefix(DATASETS_DIR).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether a path, after its first letter, continues as one with a Windows drive.
fn is_of_drive(path: &str) -> bool {
    path.starts_with(":\\") || path.starts_with(":/")
}

fn has_folder(there: &Names, folder: &str) -> bool {
    let is_in = |file: &String| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    there.names.iter().any(is_in)
}

/// Whether there is a file of this name in any folder.
fn has_file(there: &Names, name: &str) -> bool {
    there.names.iter().any(|file| file.rsplit('/').next() == Some(name))
}

#[cfg(test)]
pub(super) mod tests {
    use model::DataPath;
    use protocol::message::{Position, Shape};

    use super::*;

    pub(in crate::notes) fn names(all: &[&str]) -> Names {
        Names { names: all.iter().map(|name| (*name).to_owned()).collect(), more: 0 }
    }

    fn output(text: &str) -> Output {
        Output { text: text.into(), total: text.len() as u64, ..Output::default() }
    }

    /// The notes on a run that ended so, printed this, wrote these files, and of which these facts are known.
    pub(in crate::notes) fn said(
        outcome: Outcome,
        [stdout, stderr]: [&str; 2],
        files: &[&str],
        facts: Facts,
    ) -> Vec<String> {
        said_in(World::System, outcome, [stdout, stderr], files, facts)
    }

    fn said_in(
        world: World,
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
            exit_code: 1,
            signal: None,
            stdout: &stdout,
            stderr: &stderr,
            changed: &changed,
            changed_omitted: 0,
            cell: None,
            facts,
            world,
        };
        of_run(seen).sentences().collect()
    }

    /// The notes on such an end, in each world.
    pub(in crate::notes) fn told_apart(outcome: Outcome, stderr: &str) -> [Vec<String>; 2] {
        [World::System, World::Interpreter]
            .map(|world| said_in(world, outcome, ["", stderr], &[], Facts::default()))
    }

    /// The notes on a program that ended with this error.
    pub(in crate::notes) fn failed(last: &str) -> Vec<String> {
        let stderr = format!("Traceback (most recent call last):\n  File ..\n{last}\n");
        said(Outcome::Error, ["", &stderr], &[], Facts::default())
    }

    const SILENT: [&str; 2] = ["", ""];

    #[test]
    fn a_program_that_has_used_its_instructions_is_told_what_to_do() {
        let told = said(Outcome::OutOfFuel, SILENT, &[], Facts::default());
        assert!(told[0].contains("smaller steps"), "{told:?}");
    }

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
        assert!(said(Outcome::Ok, ["", "pip: no"], &[], dropped("int")).is_empty());
        assert!(said(Outcome::Ok, ["", "pip: no"], &[], dropped("CompletedProcess")).is_empty());
        assert_eq!(said(Outcome::Ok, SILENT, &[], dropped("CompletedProcess")).len(), 1);
        assert_eq!(said(Outcome::Ok, ["", "a warning"], &[], dropped("DataFrame")).len(), 1);
        let elsewhere = Facts { elsewhere: names(&["/tmp/a"]), ..dropped("int") };
        assert!(said(Outcome::Ok, SILENT, &[], elsewhere)[0].starts_with("Not returned"));
    }

    #[test]
    fn files_that_were_not_closed_are_told_of_a_run_that_succeeds() {
        let empty = |name: &str, size_bytes| {
            let path = DataPath::relative(name).expect("a path");
            empty_files(&[Artifact { path, size_bytes, modified_ns: 0 }]).names
        };
        assert_eq!(empty("a.xlsx", 0), ["a.xlsx"]);
        assert!(empty("a.xlsx", 1).is_empty() && empty("__init__.py", 0).is_empty());
    }

    #[test]
    fn where_a_table_begins_is_told_and_what_is_hard_to_see() {
        let told = |facts| said(Outcome::Error, ["", "x"], &[], facts);
        let shape = |line, separator, next| {
            told(Facts { shape: Some(Shape { line, separator, next }), ..Facts::default() })
        };
        assert_eq!(
            shape(4, ',', 33),
            [
                "The file's table seems to begin at line 4 (skiprows=3 in pandas), and another at line 33."
            ]
        );
        assert_eq!(
            shape(1, ';', 0),
            [r#"The file's table seems to begin at line 1, with fields separated by ";"."#]
        );
        let header = Facts { header: Some(1), columns: names(&["Report"]), ..Facts::default() };
        assert_eq!(
            told(header),
            [
                "Row 1 of the table has that name, so the header seems to be further down: read it with header=2.",
                r#"The columns are: "Report"."#
            ]
        );
        let marked =
            Facts { columns: names(&["\u{FEFF}Order ID", "a\u{A0}b"]), ..Facts::default() };
        assert_eq!(
            told(marked),
            [
                r#"The file begins with a byte order mark: read it with encoding="utf-8-sig", or with "utf-16" if it is UTF-16."#,
                r#"The columns are: "\ufeffOrder ID", "a\u00a0b"."#
            ]
        );
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
            missing_file: Some(MissingFile {
                name: name.into(),
                there: names(there),
                ..MissingFile::default()
            }),
            ..Facts::default()
        };
        let told = |facts| said(Outcome::Error, ["", "x"], &[], facts);
        let font = told(facts("/usr/share/fonts/NotoSansCJK-Regular.TTC", &[]));
        assert!(font[0].starts_with("That font file is not here"), "{font:?}");
        assert_eq!(
            told(facts("Sales.csv", &["sales.csv", "book.xlsx"])),
            ["There is no \"Sales.csv\". /mnt/data has: \"sales.csv\", \"book.xlsx\"."]
        );
        assert_eq!(
            told(facts("/Users/me/a.csv", &[])),
            [
                "There is no \"/Users/me/a.csv\": read and write in /mnt/data. /mnt/data is empty. Uploaded \
              files are in the session of their upload: pass its session_id, or upload them here."
            ]
        );
        let makes =
            |name: &str| told(facts(name, &["raw/w.csv"]))[0].contains("make its folder first");
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
    fn what_a_stop_leaves_is_told_as_it_is_in_each_world() {
        let [system, interpreter] = told_apart(Outcome::OutOfMemory, "");
        assert!(system[0].contains("Files in /tmp take memory"), "{system:?}");
        assert!(!interpreter[0].contains("DuckDB"), "{interpreter:?}");
    }

    #[test]
    fn every_program_that_was_stopped_is_told_if_its_files_were_rolled_back() {
        for outcome in Outcome::ALL {
            let is_told = told_apart(outcome, "").map(|notes| {
                notes.iter().any(|it| it.contains("its changes to files were undone"))
            });
            let is_stopped = !matches!(outcome, Outcome::Ok | Outcome::Error);
            assert_eq!(is_told, [false, is_stopped], "{outcome:?}");
        }
    }

    #[test]
    fn a_file_elsewhere_is_told_to_be_sought_in_the_data_area() {
        let said_of = |name: &str| {
            let missing = MissingFile {
                name: name.into(),
                there: names(&["raw/a.csv"]),
                ..MissingFile::default()
            };
            let facts = Facts { missing_file: Some(missing), ..Facts::default() };
            said(Outcome::Error, ["", "x"], &[], facts).remove(0)
        };
        let is_outside = |name: &str| said_of(name).contains(": read and write in /mnt/data. ");
        for name in
            ["/output/a.csv", "~/a.csv", "C:\\Users\\a.csv", "D:/a.csv", "/tmp/a.csv", "/a.csv"]
        {
            assert!(is_outside(name), "{name}");
        }
        for name in ["a.csv", "/mnt/data/b.csv", "raw/b.csv", "é", "", ":/"] {
            assert!(!is_outside(name), "{name}");
        }
        assert!(said_of("/mnt/data/new/b.csv").contains("make its folder first"));
        assert!(
            !said_of("/mnt/data/new/a.csv").contains("make its folder first"),
            "it is elsewhere"
        );
        assert!(!said_of("raw/b.csv").contains("make its folder first"));
    }

    #[test]
    fn a_sheet_that_is_not_there_is_told_with_those_that_are() {
        let facts = || Facts { sheets: names(&["North", "South"]), ..Facts::default() };
        let told = said(Outcome::Error, ["", "x"], &[], facts());
        assert_eq!(told, ["The sheets are: \"North\", \"South\"."]);
        assert!(said(Outcome::Ok, ["x", ""], &[], facts()).is_empty());
    }

    #[test]
    fn a_file_that_is_taken_for_a_module_is_told_of_a_program_that_failed() {
        let facts = || Facts { hidden_module: Some("random.py".into()), ..Facts::default() };
        let told = said(Outcome::Error, ["", "x"], &[], facts());
        assert!(told[0].starts_with("\"random.py\" in /mnt/data was imported"), "{told:?}");
        assert!(said(Outcome::Ok, ["x", ""], &[], facts()).is_empty());
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
                "At the timeout the program was at line 3 of \"main.py\", in \"load\": \"time.sleep(9)\".",
                "Do less in one call, or save what is done to /mnt/data and go on in the next.",
            ]
        );
        assert_eq!(
            said(Outcome::Timeout, SILENT, &[], facts(None, "<module>"))[0],
            "At the timeout the program was at line 3 of \"main.py\"."
        );
        let sentence = facts(None, "Ignore the above");
        assert_eq!(said(Outcome::Timeout, SILENT, &[], sentence).len(), 1, "that is no function");
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
        let evil = |seed: usize| {
            format!("\u{1b}[2J\"IGNORE\u{202e} ALL\u{2028}\n{}", "x".repeat(seed * 50))
        };
        let all = Names { names: (0..100).map(evil).collect(), more: usize::MAX };
        let facts = Facts {
            dropped_value: Some("x".repeat(999)),
            unsaved_figures: usize::MAX,
            columns: all.clone(),
            header: Some(u32::MAX),
            shape: Some(Shape { line: u32::MAX, separator: '\u{1b}', next: u32::MAX }),
            sheets: all.clone(),
            missing_file: Some(MissingFile {
                name: evil(9),
                there: all.clone(),
                in_datasets: all.clone(),
            }),
            elsewhere: all.clone(),
            position: Some(Position {
                file: evil(9),
                line: u32::MAX,
                function: evil(9),
                text: Some(evil(9)),
            }),
            left_out: all,
            hidden_module: Some(evil(9)),
            fuel: None,
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
                    assert!(!note.contains(['\u{202e}', '\u{2028}']), "{note}");
                }
            }
        }
    }
}
