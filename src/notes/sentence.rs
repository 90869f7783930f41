//! Notes as sentences.

use std::fmt::{self, Display, Formatter};

use model::{World, package::Ecosystem, text::quoted_within};
use protocol::message::{Names, Position, Shape};

use super::{Instead, Note, Whereabouts};

/// Largest number in a note: larger ones are not credible.
pub(super) const MAX_COUNT: usize = 99_999;

/// Longest name in a note, in characters of its quoted form.
const MAX_NAME_CHARS: usize = 70;

/// Writes the note on a missing file.
fn missing_file(
    f: &mut Formatter<'_>,
    name: &str,
    there: &Names,
    in_datasets: &Names,
    whereabouts: Whereabouts,
) -> fmt::Result {
    write!(f, "There is no {}", Name(name))?;
    if !in_datasets.is_empty() {
        return write!(f, ". Of that name or a similar one: {}.", List(in_datasets, 180));
    }
    f.write_str(match whereabouts {
        Whereabouts::Dataset => {
            return f.write_str(". list_artifacts with a path lists the files of a dataset.");
        }
        Whereabouts::Here => ". ",
        Whereabouts::MissingFolder => ". To write it, make its folder first. ",
        Whereabouts::Outside => ": read and write in /mnt/data. ",
    })?;
    if there.is_empty() {
        f.write_str(
            "/mnt/data is empty. Uploaded files are in the session of their upload: pass its session_id, or \
             upload them here.",
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
pub(super) struct List<'a>(pub(super) &'a Names, pub(super) usize);

/// A name that somebody else chose: quoted as in JSON, without control characters, and cut.
pub(super) struct Name<'a>(pub(super) &'a str);

impl Display for Instead {
    /// The rest of the sentence after "is not installed".
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Installing(_, Some(allowed)) => {
                return write!(f, ". install_package installs only these: {}.", quoted_within(allowed, 150));
            }
            Self::Libraries => {
                ", and nothing can be: there is no network. Use the libraries that are there."
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
            Self::MissingFile { name, there, in_datasets, whereabouts } => {
                missing_file(f, name, there, in_datasets, *whereabouts)
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

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted_within(self.0, MAX_NAME_CHARS))
    }
}
