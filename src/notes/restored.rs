//! Notes on a session that was restored from the archive: what was restored, and by name what was not.

use std::fmt::{self, Display, Formatter};

use jiff::Timestamp;
use protocol::message::Names;
use serde::{Deserialize, Serialize};

use super::{List, MAX_COUNT, Name, Notes};
use crate::archive::Restored;

/// Maximum number of lost variables with their reasons: a note has no room for more.
const WITH_REASONS: usize = 2;

/// Maximum number of names of a list.
const MAX_NAMES: usize = 12;

/// A note on data that was restored, or could not be restored. Its text is the [`Display`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestoredNote {
    /// Files and variables were restored.
    Back {
        /// When the session was saved, in seconds since the epoch.
        saved_at: i64,
        /// Number of files.
        files: usize,
        /// Names of variables and modules.
        names: Names,
        /// Whether the exact state was restored.
        is_exact: bool,
    },
    /// Changes of the session after that were not saved.
    Outdated,
    /// Variables that were not restored: their names, and the reasons of the first of them.
    Lost(Names, Vec<String>),
    /// Languages whose variables were not restored.
    LostLanguages(Names),
    /// Packages that were not restored.
    LostPackages(Names),
    /// Number of files that were not restored.
    LostFiles(usize),
    /// The saved variables cannot be used.
    VariablesDamaged,
    /// The archive could not be read to its end.
    CutOff,
    /// The archived session cannot be used.
    Damaged,
    /// The archive could not be reached.
    Unreachable,
}

impl From<RestoredNote> for super::Note {
    fn from(note: RestoredNote) -> Self {
        Self::Restored(note)
    }
}

impl Display for RestoredNote {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Back { saved_at, files, names, is_exact } => {
                let at = Timestamp::from_second(*saved_at).unwrap_or_default();
                let at = at.strftime("%Y-%m-%d %H:%M UTC");
                write!(f, "This session had ended and was brought back as it was at {at}: ")?;
                let files = (*files).min(MAX_COUNT);
                let s = if files == 1 { "" } else { "s" };
                if *is_exact {
                    return write!(f, "all variables and {files} file{s}, exactly as they were.");
                }
                write!(f, "{files} file{s}")?;
                if names.is_empty() {
                    f.write_str(", no variables.")
                } else {
                    write!(f, "; variables and imports: {}.", List(names, 150))
                }
            }
            Self::Outdated => f.write_str("What it did after that could not be saved."),
            Self::Lost(names, whys) => {
                write!(f, "Not brought back, make them again: {}.", List(names, 120))?;
                if !whys.is_empty() {
                    write!(f, " {}", whys.join("; "))?;
                }
                Ok(())
            }
            Self::LostLanguages(names) => write!(
                f,
                "Variables of {} could not be kept: run those cells again.",
                List(names, 100)
            ),
            Self::LostPackages(names) => write!(
                f,
                "Packages did not come back, install them first: {}.",
                List(names, 150)
            ),
            Self::LostFiles(1) => f.write_str("A file could not be brought back: it is damaged in the archive, or there was no room."),
            Self::LostFiles(many) => write!(
                f,
                "{} files could not be brought back: they are damaged in the archive, or there was no room.",
                many.min(&MAX_COUNT)
            ),
            Self::VariablesDamaged => f.write_str(
                "The variables that were archived are damaged and were not brought back: run the cells again.",
            ),
            Self::CutOff => f.write_str(
                "The archive could not be read to the end: some files, or all variables, were not brought back.",
            ),
            Self::Damaged => f.write_str(
                "An earlier session of this name was archived, but what the archive has is damaged and was not \
                 used: this session is new and empty. Upload and compute again what is needed.",
            ),
            Self::Unreachable => f.write_str(
                "The archive cannot be reached now: whatever was here before was not brought back, and this \
                 session is new and empty. What is archived stays, and comes back once this session has ended: \
                 it may not itself be kept.",
            ),
        }
    }
}

/// The notes on a restored session.
pub(crate) fn of_restored(restored: &Restored) -> Notes {
    let mut notes = Notes::default();
    let mut note = |it: RestoredNote| notes.push(it.into());
    match restored {
        Restored::Damaged => note(RestoredNote::Damaged),
        Restored::Unreachable => note(RestoredNote::Unreachable),
        Restored::Brought {
            saved_at,
            files,
            files_lost,
            variables,
            variables_damaged,
            is_exact,
            unreachable,
            is_outdated,
            languages_lost,
            packages_lost,
        } => {
            let all = variables.variables.iter().chain(&variables.imports).cloned();
            note(RestoredNote::Back {
                saved_at: *saved_at,
                files: *files,
                names: names(all, variables.more),
                is_exact: *is_exact,
            });
            if *is_outdated {
                note(RestoredNote::Outdated);
            }
            // Before the variables, which may be lost because packages are.
            if !packages_lost.is_empty() {
                note(RestoredNote::LostPackages(names(packages_lost.iter().cloned(), 0)));
            }
            if !variables.lost.is_empty() {
                let lost = variables.lost.iter().map(|it| it.name.clone());
                let whys = variables.lost.iter().filter(|it| !it.why.is_empty());
                let whys = whys.take(WITH_REASONS);
                let whys = whys.map(|it| format!("{}: {}", Name(&it.name), Name(&it.why)));
                note(RestoredNote::Lost(names(lost, variables.more_lost), whys.collect()));
            }
            if !languages_lost.is_empty() {
                note(RestoredNote::LostLanguages(names(languages_lost.iter().cloned(), 0)));
            }
            if *variables_damaged {
                note(RestoredNote::VariablesDamaged);
            }
            if *unreachable {
                note(RestoredNote::CutOff);
            } else if *files_lost > 0 {
                note(RestoredNote::LostFiles(*files_lost));
            }
        }
    }
    notes
}

fn names(all: impl Iterator<Item = String>, more: usize) -> Names {
    let mut names: Vec<_> = all.collect();
    let more = more.saturating_add(names.len().saturating_sub(MAX_NAMES));
    names.truncate(MAX_NAMES);
    Names { names, more }
}

#[cfg(test)]
mod tests {
    use protocol::message::{Carried, LostVariable};

    use super::*;

    fn brought(variables: Carried, is_exact: bool) -> Restored {
        Restored::Brought {
            saved_at: 1_764_000_000,
            files: 2,
            files_lost: 0,
            variables,
            variables_damaged: false,
            is_exact,
            unreachable: false,
            is_outdated: false,
            languages_lost: vec![],
            packages_lost: vec![],
        }
    }

    #[test]
    fn what_came_back_and_what_did_not_is_named() {
        let carried = Carried {
            variables: vec!["sales".into()],
            imports: vec!["pandas".into()],
            lost: vec![LostVariable { name: "log".into(), why: "it is an open file".into() }],
            ..Carried::default()
        };
        let all: Vec<_> = of_restored(&brought(carried, false)).sentences().collect();
        assert_eq!(
            all,
            [
                "This session had ended and was brought back as it was at 2025-11-24 16:00 UTC: 2 files; variables \
                 and imports: \"sales\", \"pandas\".",
                "Not brought back, make them again: \"log\". \"log\": \"it is an open file\"",
            ]
        );
        let all: Vec<_> = of_restored(&brought(Carried::default(), true)).sentences().collect();
        assert!(all[0].ends_with("all variables and 2 files, exactly as they were."), "{all:?}");
    }

    #[test]
    fn names_from_a_sandbox_cannot_act() {
        let name = "a\"\n\u{1b}[2J".to_owned() + &"x".repeat(200);
        let lost = vec![LostVariable { name: name.clone(), why: name.clone() }; 30];
        let carried = Carried { variables: vec![name; 30], lost, ..Carried::default() };
        for text in of_restored(&brought(carried, false)).sentences() {
            assert!(!text.contains(char::is_control) && text.chars().count() < 300, "{text}");
        }
    }
}
