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
//!
//! # How to add a note
//!
//! 1. A sentence: a variant of [`Advice`] in `advice.rs` or, if it has parameters, of [`Note`] here.
//! 2. The condition: `of_error` in `errors.rs` if it is about an error; `of_run` in `run.rs` if it is about anything
//!    else of a run; `of_workspace` in `cell.rs` if it is about a workspace. Rules know no settings: a note on the call
//!    itself, or on a setting, is added by the tool (`Call::note`).
//! 3. A test of when the note must and must not appear, beside the condition; through the protocol, in
//!    `tests/drills/habits.rs`. Notes cost tokens: `tests/tokens/run.sh` measures them.
//! 4. If only the sandbox knows the fact: a field of `Facts` (`crates/protocol/src/message/facts.rs`). The agent fills
//!    it from the files (`crates/sandbox-files/src/facts.rs`), from a program's stack at its deadline
//!    (`crates/agent/src/runtimes/python/stack.rs`) or from what the program's process reports
//!    (`sandbox-image/runtimes/python/facts.py`).

mod advice;
mod cell;
mod errors;
mod restored;
mod run;
mod sentence;

use model::{
    World,
    package::{Allowed, Ecosystem},
};
use protocol::message::{Names, Position, Shape};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::sentence::{List, MAX_COUNT, Name};
pub(crate) use self::{advice::Advice, cell::WorkspaceNote};
pub(crate) use self::{
    cell::{NOT_STARTED, SeenCell, error_of_cell},
    errors::{TRACEBACK, raised_by_node, raised_line},
    restored::{RestoredNote, of_restored},
    run::{Seen, of_run},
};

/// Maximum number of notes of one result.
const MAX_NOTES: usize = 5;

/// Longest note, in characters.
const MAX_CHARS: usize = 299;

/// One note for a model. Its text is its [`Display`](std::fmt::Display).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// A number was out of bounds, and the bound was used instead.
    Clamped {
        /// Name of the argument.
        argument: String,
        /// The given value: a number, or a text that is one.
        given: Value,
        /// Whether the value was above the bounds and not below them.
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
        /// Files of datasets with such a name.
        in_datasets: Names,
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

/// The expected place of a file that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whereabouts {
    /// In a folder of the data area.
    Here,
    /// In a folder of the data area that does not exist either.
    MissingFolder,
    /// In a dataset.
    Dataset,
    /// Outside the data area.
    Outside,
}

/// The alternative to a package that is not installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// The notes of one result, the most important first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Value>")]
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

    /// The notes for sessions in which packages of these ecosystems can be installed.
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

/// Stored notes, within the bounds of new ones. Notes of another version, with facts that this one does not know, are
/// left out.
impl From<Vec<Value>> for Notes {
    fn from(stored: Vec<Value>) -> Self {
        let mut notes = Self::default();
        notes.extend(stored.into_iter().filter_map(|note| serde_json::from_value(note).ok()));
        notes
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
