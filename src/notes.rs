//! What a model could not see otherwise, in sentences: the `notes` of a result. All of them are made here.
//! Pure.
//!
//! ```text
//! arguments that were put right --.
//! what the server saw of a run ---+--> Note --> Notes: five at most, each short --> the result's JSON
//! what the sandbox says of it ----'
//! ```
//!
//! What the sandbox says is not trusted. Only words that cannot be sentences come through: names, which are
//! quoted and cut, and numbers. So a program cannot say more here than it can in its output.

#![cfg_attr(not(test), expect(dead_code, reason = "the first note is pushed in the next commit"))]

use std::fmt::{self, Display, Formatter};

use serde_json::Value;

use crate::text::without_controls;

/// Most notes of one result.
const MAX_NOTES: usize = 5;

/// Longest note, in characters.
const MAX_CHARS: usize = 299;

/// Longest name in a note, in characters.
const MAX_NAME_CHARS: usize = 80;

/// One thing that a model is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// A number was out of bounds, and another was taken instead.
    Clamped {
        /// Name of the argument.
        argument: &'static str,
        /// What was given.
        given: String,
        /// What was used.
        used: u64,
    },
}

impl Display for Note {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clamped { argument, given, used } => {
                write!(f, "{argument} {} is out of bounds; {used} was used.", Name(given))
            }
        }
    }
}

/// A name that somebody else chose: quoted as in JSON, without control characters, and cut.
struct Name<'a>(&'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_cut = self.0.chars().nth(MAX_NAME_CHARS).is_some();
        let shown = without_controls(self.0.chars().take(MAX_NAME_CHARS));
        let quoted = Value::from(shown + if is_cut { "..." } else { "" });
        write!(f, "{quoted}")
    }
}

/// The notes of one result, the most important first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Notes(Vec<Note>);

impl Notes {
    /// Adds one, if it is not there and there is room.
    pub(crate) fn push(&mut self, note: Note) {
        if self.0.len() < MAX_NOTES && !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    /// The sentences.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|note| note.to_string().chars().take(MAX_CHARS).collect())
    }

    /// Puts them into a result, if there are any.
    pub(crate) fn add_to(&self, result: &mut Value) {
        if !self.0.is_empty() {
            result["notes"] = self.sentences().collect();
        }
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
        Note::Clamped { argument: "timeout_s", given: given.into(), used: 60 }
    }

    #[test]
    fn names_are_quoted_and_cut_and_cannot_act() {
        assert_eq!(clamped("120").to_string(), r#"timeout_s "120" is out of bounds; 60 was used."#);
        let hostile = "a\"\n\u{1b}[2J".to_owned() + &"x".repeat(200);
        let note = clamped(&hostile).to_string();
        assert!(note.contains(r#""a\""#) && note.contains("...\"") && note.len() < 150, "{note}");
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
