//! The `notes` of a result: sentences about what a model could not see otherwise. All notes are made here. Pure.
//!
//! ```text
//! arguments that were corrected -------.
//! the server's observations of a run --+--> Note --> Notes: five at most, each short --> the result's JSON
//! the sandbox's statements about it ---'
//! ```
//!
//! Statements of the sandbox are not trusted. Notes repeat only words of it that cannot be sentences: names, which are
//! quoted and cut, and numbers. So a program cannot say more in notes than it can in its output.

mod cell;
mod restored;
mod run;

use std::fmt::{self, Display, Formatter};

use model::{
    World,
    package::{Allowed, Ecosystem},
    text::quoted_within,
};
use protocol::message::{Names, Position, Shape};
use serde_json::Value;

pub use self::cell::WorkspaceNote;
pub(crate) use self::{
    cell::{NOT_STARTED, SeenCell, error_of_cell},
    restored::{RestoredNote, of_restored},
    run::{Seen, of_run, raised_by_node, raised_line},
};

/// Most notes of one result.
const MAX_NOTES: usize = 5;

/// Longest note, in characters.
const MAX_CHARS: usize = 299;

/// Largest number in a note: larger ones are not credible.
const MAX_COUNT: usize = 99_999;

/// Longest name in a note, in characters of its quoted form.
const MAX_NAME_CHARS: usize = 70;

/// One note for a model. Its text is the [`Display`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A number was out of bounds, and the bound was used instead.
    Clamped {
        /// Name of the argument.
        argument: String,
        /// The given value: a number, or a text that is one.
        given: Value,
        /// Whether it was above the bounds and not below them.
        is_more: bool,
        /// The bound, which was used.
        used: u64,
    },
    /// Markdown fences around the code were removed.
    Unfenced,
    /// A run printed nothing. Its last line had a value of this type, if it had one.
    NothingPrinted(Option<String>),
    /// Advice on an error that many programs have.
    Advice(Advice),
    /// Files of kinds that are never empty.
    EmptyFiles(Names),
    /// Number of charts that were neither shown nor saved.
    UnsavedFigures(usize),
    /// A chart for a browser, which only a person sees.
    ForPeople(String),
    /// A file does not exist.
    MissingFile {
        /// The name that the program used.
        name: String,
        /// The files that exist, the most similar first.
        there: Names,
        /// The place where it was expected.
        whereabouts: Whereabouts,
    },
    /// A table lacks the column that was asked for, and has these.
    Columns(Names),
    /// The row of a table, counted from 0, that seems to be its header.
    Header(u32),
    /// A file is not one table, but has tables at these places.
    Shape(Shape),
    /// A workbook lacks the sheet that was asked for, and has these.
    Sheets(Names),
    /// A module or package is not installed.
    NotInstalled(String, Instead),
    /// A file in the data area may have been imported instead of a library's module.
    HiddenModule(String),
    /// A variable is not defined, perhaps because an earlier call defined it.
    MissingVariable(String),
    /// A program tried to start another program, which does not exist.
    MissingProgram(String),
    /// A program tried to start a file of its own.
    NotExecutable(String),
    /// The position of a program at its timeout.
    StoodAt(Position),
    /// Files that were written before a program failed.
    Unreturned(Names),
    /// Files outside the data area, which are not returned.
    Elsewhere(Names),
    /// Charts that are too large to look at.
    TooLargeToShow(Names),
    /// Lines for a notebook that were left out.
    LeftOut(Names),
    /// The state of a workspace.
    Workspace(WorkspaceNote),
    /// The result of restoring a session from the archive.
    Restored(RestoredNote),
}

/// Advice on an error, in the same words for every program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// A file is of another kind than the program expected.
    OtherKind,
    /// A text is not in UTF-8, or no text.
    OtherEncoding,
    /// A column's name begins with a byte order mark.
    ByteOrderMark,
    /// A program named the file of a font.
    FontFile,
    /// A file has a JSON value on each line.
    JsonLines,
    /// A file is protected by a password.
    Encrypted,
    /// A program tried to reach a network.
    NoNetwork,
    /// A program asked for a picture of a chart, for which a browser is needed.
    NoBrowser,
    /// There is no room for a program's files.
    DiskFull,
    /// A program tried to write where nothing can be written.
    ReadOnly,
    /// A program tried to write into a folder that does not exist.
    MissingFolder,
    /// A program contains a line for a shell or a notebook.
    ShellLine,
    /// A program reached its timeout.
    TooSlow,
    /// A program asked for input.
    NoInput,
    /// A cell asked for input, which its call can provide.
    NoStdin,
    /// A program tried to open windows.
    NoScreen,
    /// A program used all memory.
    OutOfMemory,
    /// A program used all memory, in a sandbox where files take no part of it.
    OutOfMemoryOfGuest,
    /// A program reached its timeout, and its files were rolled back.
    TooSlowForFiles,
    /// A program tried to start another program or a thread, in a sandbox that has neither.
    NoProcesses,
    /// A program asked for a locale that does not exist.
    NoLocale,
    /// A program asked for a locale, in a sandbox that has only C.
    NoLocaleInGuest,
    /// Variables of earlier cells take memory that a cell needs.
    VariablesTakeMemory,
    /// A cell used a feature of Node, in a sandbox without Node.
    NoNode,
    /// A program tried to read or write Parquet, in a sandbox without a library for that.
    NoParquet,
    /// A program has used all its instructions.
    OutOfFuel,
}

impl Advice {
    fn text(self) -> &'static str {
        match self {
            Self::OtherKind => {
                "The file is of another kind than its name says: read_artifact tells which."
            }
            Self::OtherEncoding => {
                "The file is not UTF-8: read_artifact tells what it is and, of a text, its encoding."
            }
            Self::ByteOrderMark => {
                "The file begins with a byte order mark: read it with encoding=\"utf-8-sig\", or with \"utf-16\" if it is \
                 UTF-16."
            }
            Self::FontFile => {
                "That font file is not here, and none has to be named: matplotlib finds a font for every script by \
                 itself."
            }
            Self::JsonLines => {
                "The file seems to have a JSON value on each line: pd.read_json(path, lines=True) reads it, or json.loads \
                 line by line."
            }
            Self::Encrypted => {
                "The file is encrypted with a password: ask for a copy without one, or for the password."
            }
            Self::NoNetwork => {
                "The sandbox has no network, and trying again will not help. upload_file brings data \
                 in."
            }
            Self::NoBrowser => {
                "Charts of Plotly cannot become pictures here: write_html saves one for the person, and \
                 matplotlib draws pictures."
            }
            Self::DiskFull => {
                "There is no room left: delete files that are not needed (os.remove), or write less."
            }
            Self::ReadOnly => {
                "Only /mnt/data and /tmp can be written, and /mnt/data is what is kept."
            }
            Self::ShellLine => {
                "This is Python, not a notebook or a shell: for commands use execute_code with language bash, or \
                 subprocess.run."
            }
            Self::MissingFolder => "Make the folder first: os.makedirs(folder, exist_ok=True).",
            Self::TooSlow => {
                "Do less in one call, or save what is done to /mnt/data and go on in the next."
            }
            Self::NoInput => "Nobody can answer input(): put the values into the code.",
            Self::NoStdin => {
                "Nobody can answer input(): pass what it reads as stdin, a line for each call of it, or put \
                 the values into the code."
            }
            Self::NoScreen => {
                "There is no screen: leave matplotlib.use() out, and plt.show() saves charts."
            }
            Self::OutOfMemoryOfGuest => {
                "Work on less at a time: fewer columns (usecols), or parts of the file (chunksize)."
            }
            Self::TooSlowForFiles => "Files are as before this call, too: do less in one call.",
            Self::NoProcesses => {
                "Here are no processes, shells or threads, and trying again will not help: do it in one \
                 thread of this program."
            }
            Self::NoLocale => {
                "These locales are there, each as UTF-8: cs_CZ da_DK de_AT de_CH de_DE el_GR en_GB en_IN en_US es_ES \
                 es_MX fi_FI fr_CA fr_FR hu_HU it_IT ja_JP ko_KR nb_NO nl_NL pl_PL pt_BR pt_PT ro_RO ru_RU sv_SE tr_TR \
                 uk_UA zh_CN zh_TW."
            }
            Self::NoLocaleInGuest => {
                "Here is no locale but C: write numbers and dates in code, such as 1.234,50 by \
                 f\"{x:,.2f}\".translate(str.maketrans(\",.\", \".,\"))."
            }
            Self::VariablesTakeMemory => {
                "What variables of earlier cells hold takes part of the memory: del what is not needed any more, or \
                 begin anew with reset_workspace."
            }
            Self::NoNode => {
                "This is QuickJS and not Node: there is no fetch, URL, Buffer, Intl or import, and require has fs, path \
                 and util only. Use plain JavaScript, or Python."
            }
            Self::NoParquet => {
                "Parquet needs PyArrow, which is not here: write and read CSV, Excel or SQLite instead."
            }
            Self::OutOfFuel => {
                "It had used all the instructions that one call may use: do the work in smaller steps, or use NumPy \
                 and pandas instead of loops."
            }
            Self::OutOfMemory => {
                "Work on less at a time: fewer columns (usecols), parts of the file (chunksize), DuckDB on a CSV \
                 or Parquet file, or openpyxl with read_only=True on a workbook. Files in /mnt/data and /tmp take \
                 memory too."
            }
        }
    }
}

/// The expected place of a file that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// In a folder of the data area.
    Here,
    /// In a folder of the data area that does not exist either.
    MissingFolder,
    /// Outside the data area.
    Outside,
}

/// The alternative to a package that is not installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instead {
    /// Using the installed libraries for Python.
    Libraries,
    /// Using the modules that come with JavaScript, in a sandbox of this kind.
    Modules(World),
    /// Installing it; if not every package is allowed, the text names those that are.
    Installing(Ecosystem, Option<String>),
}

impl Instead {
    /// The ecosystem of the missing package.
    fn ecosystem(&self) -> Ecosystem {
        match self {
            Self::Libraries => Ecosystem::PyPi,
            Self::Modules(_) => Ecosystem::Npm,
            Self::Installing(ecosystem, _) => *ecosystem,
        }
    }
}

impl Display for Instead {
    /// The rest of the sentence after "is not installed".
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Installing(_, Some(allowed)) => {
                return write!(f, ". install_package installs only these: {}.", quoted_within(allowed, 150));
            }
            Self::Libraries => {
                ", and nothing can be: there is no network. The description of run_python names the libraries that \
                 are there."
            }
            Self::Modules(World::System) => {
                ", and nothing can be: there is no network and no npm. Node's own modules are there, such as fs, \
                 path and crypto."
            }
            Self::Modules(World::Interpreter) => {
                ", and nothing can be: there is no network and no npm. Of Node's modules fs, fs/promises, path and \
                 util are there."
            }
            Self::Installing(Ecosystem::PyPi, None) => {
                ". If no library that is there will do, install_package installs it."
            }
            Self::Installing(Ecosystem::Npm, None) => {
                ". If nothing that is there will do, install_package with language javascript installs it."
            }
        })
    }
}

impl Display for Note {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clamped { argument, given, is_more, used } => {
                let bound = if *is_more { "more than the limit of" } else { "less than" };
                let given = given.as_str().map_or_else(|| given.to_string(), |it| Name(it).to_string());
                write!(f, "{argument} {given} is {bound} {used}; {used} was used.")
            }
            Self::Unfenced => {
                f.write_str("The ``` fences around the code were taken off: send the code alone.")
            }
            Self::NothingPrinted(None) => {
                f.write_str("Nothing was printed: print what you want to see.")
            }
            Self::NothingPrinted(Some(kind)) => write!(
                f,
                "Nothing was printed. The value of the last line (of type {}) was dropped: print what \
                 you want to see.",
                Name(kind)
            ),
            Self::Advice(advice) => f.write_str(advice.text()),
            Self::EmptyFiles(names) => write!(
                f,
                "Empty (0 bytes): {}. Close or save the file before the program ends.",
                List(names, 200)
            ),
            Self::UnsavedFigures(1) => f.write_str(
                "A figure was neither shown nor saved: end with plt.show(), or savefig to /mnt/data.",
            ),
            Self::UnsavedFigures(many) => write!(
                f,
                "{many} figures were neither shown nor saved: end with plt.show(), or savefig to \
                 /mnt/data."
            ),
            Self::ForPeople(name) => write!(
                f,
                "{} is for the person's browser: draw with matplotlib what you want to see yourself.",
                Name(name)
            ),
            Self::MissingFile { name, there, whereabouts } => {
                missing_file(f, name, there, *whereabouts)
            }
            Self::Columns(names) => write!(f, "The columns are: {}.", List(names, 230)),
            Self::Header(row) => write!(
                f,
                "Row {row} of the table has that name, so the header seems to be further down: read it with header={}.",
                row.saturating_add(1)
            ),
            Self::Shape(shape) => write_shape(f, *shape),
            Self::Sheets(names) => write!(f, "The sheets are: {}.", List(names, 230)),
            Self::NotInstalled(name, instead) => {
                write!(f, "{} is not installed{instead}", Name(name))
            }
            Self::HiddenModule(name) => write!(
                f,
                "{} in /mnt/data was imported. If you meant the library's module of that name, rename or \
                 delete the file.",
                Name(name)
            ),
            Self::MissingVariable(name) => write!(
                f,
                "Each call is a new process: {} has to be defined in this program. Only files in \
                 /mnt/data are kept between calls.",
                Name(name)
            ),
            Self::MissingProgram(name) => write!(
                f,
                "There is no program {} here, and none can be installed: do it in Python.",
                Name(name)
            ),
            Self::NotExecutable(name) => write!(
                f,
                "Files in /mnt/data and /tmp cannot be started as programs: start what interprets \
                 them, such as [\"sh\", {}].",
                Name(name)
            ),
            Self::StoodAt(position) => stood_at(f, position),
            Self::Unreturned(names) => write!(
                f,
                "Written before it failed, and not among the artifacts: {}. list_artifacts has the URLs.",
                List(names, 170)
            ),
            Self::TooLargeToShow(names) => write!(
                f,
                "Not shown, with too many pixels or bytes: {}. Save it smaller, such as with dpi=100, to look at it.",
                List(names, 180)
            ),
            Self::Elsewhere(names) => write!(
                f,
                "Not returned, as only files in /mnt/data are: {}.",
                List(names, 210)
            ),
            Self::LeftOut(names) => write!(
                f,
                "This runs as a script, not in a notebook. Left out: {}.",
                List(names, 200)
            ),
            Self::Workspace(note) => note.fmt(f),
            Self::Restored(note) => note.fmt(f),
        }
    }
}

/// Writes the note on a missing file.
fn missing_file(
    f: &mut Formatter<'_>,
    name: &str,
    there: &Names,
    whereabouts: Whereabouts,
) -> fmt::Result {
    write!(f, "There is no {}", Name(name))?;
    f.write_str(match whereabouts {
        Whereabouts::Here => ". ",
        Whereabouts::MissingFolder => ". To write it, make its folder first (os.makedirs). ",
        Whereabouts::Outside => ": read and write in /mnt/data. ",
    })?;
    if there.is_empty() {
        f.write_str(
            "/mnt/data is empty. Uploaded files are in the session that upload_file named: pass its \
             session_id, or upload them here.",
        )
    } else {
        write!(f, "/mnt/data has: {}.", List(there, 90))
    }
}

/// Writes the note on the places of a file's tables.
fn write_shape(f: &mut Formatter<'_>, Shape { line, separator, next }: Shape) -> fmt::Result {
    write!(f, "The file's table seems to begin at line {line}")?;
    if line > 1 {
        write!(f, " (skiprows={} in pandas)", line - 1)?;
    }
    if separator != ',' {
        write!(f, ", with fields separated by {}", Name(&separator.to_string()))?;
    }
    if next > 0 {
        write!(f, ", and another at line {next}")?;
    }
    f.write_str(".")
}

/// Writes the note on the position of a program at its timeout.
fn stood_at(f: &mut Formatter<'_>, position: &Position) -> fmt::Result {
    let Position { file, line, function, text } = position;
    let file = file.strip_prefix("/tmp/").unwrap_or(file);
    write!(f, "At the timeout the program was at line {line} of {}", Name(file))?;
    if function != "<module>" {
        write!(f, ", in {}", Name(function))?;
    }
    match text {
        Some(text) => write!(f, ": {}.", Name(text)),
        None => f.write_str("."),
    }
}

/// As many names as fit into a number of characters, and how many there are besides.
struct List<'a>(&'a Names, usize);

impl Display for List<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (mut left, mut shown) = (self.1, 0);
        for name in &self.0.names {
            let name = Name(name).to_string();
            let separator = if shown == 0 { "" } else { ", " };
            let size = name.chars().count() + separator.len();
            if size > left && shown > 0 {
                break;
            }
            left = left.saturating_sub(size);
            shown += 1;
            write!(f, "{separator}{name}")?;
        }
        match (self.0.names.len() - shown).saturating_add(self.0.more).min(MAX_COUNT) {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

/// A name that somebody else chose: quoted as in JSON, without control characters, and cut.
struct Name<'a>(&'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted_within(self.0, MAX_NAME_CHARS))
    }
}

/// The notes of one result, the most important first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes(Vec<Note>);

impl Notes {
    /// Adds a note, unless it is there already or there is no room.
    pub(crate) fn push(&mut self, note: Note) {
        if self.0.len() < MAX_NOTES && !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    /// The notes as sentences.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|note| note.to_string().chars().take(MAX_CHARS).collect())
    }

    /// The same notes, if packages of these ecosystems can be installed.
    pub(crate) fn where_packages_are(self, ecosystems: &[Ecosystem], allowed: &Allowed) -> Self {
        let changed = self.0.into_iter().map(|note| match note {
            Note::NotInstalled(name, instead) if ecosystems.contains(&instead.ecosystem()) => {
                let ecosystem = instead.ecosystem();
                let only = allowed.only(ecosystem);
                let instead = if only.as_deref() == Some("") {
                    instead
                } else {
                    Instead::Installing(ecosystem, only)
                };
                Note::NotInstalled(name, instead)
            }
            other => other,
        });
        Self(changed.collect())
    }

    /// Bytes that the sentences have at most, if they are ASCII.
    pub(crate) fn max_bytes(&self) -> usize {
        self.0.len() * MAX_CHARS
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the notes to a result, if there are any.
    pub(crate) fn add_to(&self, result: &mut Value) {
        if !self.0.is_empty() {
            result["notes"] = self.sentences().collect();
        }
    }
}

impl IntoIterator for Notes {
    type Item = Note;
    type IntoIter = std::vec::IntoIter<Note>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Extend<Note> for Notes {
    fn extend<T: IntoIterator<Item = Note>>(&mut self, notes: T) {
        notes.into_iter().for_each(|note| self.push(note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clamped(given: &str) -> Note {
        let argument = "timeout_s".to_owned();
        Note::Clamped { argument, given: given.into(), is_more: true, used: 60 }
    }

    #[test]
    fn names_are_quoted_and_cut_and_cannot_act() {
        assert_eq!(
            clamped("120").to_string(),
            r#"timeout_s "120" is more than the limit of 60; 60 was used."#
        );
        let hostile = "a\"\n\u{1b}[2J".to_owned() + &"x".repeat(200);
        let note = clamped(&hostile).to_string();
        assert!(note.contains(r#""a\""#) && note.contains("...\"") && note.len() < 160, "{note}");
        assert!(!note.contains(char::is_control));
    }

    #[test]
    fn a_result_has_five_different_notes_at_most_or_none() {
        let mut result = serde_json::json!({});
        Notes::default().add_to(&mut result);
        assert_eq!(result, serde_json::json!({}));
        let mut notes = Notes::default();
        notes.extend(["1", "1", "2", "3", "4", "5", "6"].map(clamped));
        notes.add_to(&mut result);
        assert_eq!(result["notes"].as_array().map(Vec::len), Some(5));
    }
}
