//! Notes on a cell besides those on every program: the state of its workspace, and how the cell ended.

use std::{
    fmt::{self, Display, Formatter},
    time::Duration,
};

use model::{
    LostReason, Outcome, World,
    text::{human_size, human_time, quoted_within},
};
use protocol::message::{CellState, Names, RuntimeName};
use serde::{Deserialize, Serialize};

use super::{List, MAX_COUNT, Name, Note, Notes, advice::REFUSED, errors::is_refused, run::Seen};

/// The signal by which a run ends whose files take too much space: SIGXFSZ.
const NO_SPACE: i32 = 25;

/// The observations of a cell from which notes are made.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(crate) struct SeenCell<'a> {
    /// The cell's language, such as `python`.
    pub(crate) language: &'a str,
    pub(crate) state: CellState,
    /// Whether the language keeps variables between cells.
    pub(crate) keeps_variables: bool,
    /// Whether the cell's interpreter was started for it.
    pub(crate) fresh: bool,
    /// Whether there were variables before the cell, according to what the caller was told.
    pub(crate) had_variables: bool,
    /// Whether the variables may be lost if the next cell is stopped, and the caller was not told so before.
    pub(crate) newly_at_risk: bool,
    /// Number of threads that were not rolled back with the variables.
    pub(crate) lost_threads: usize,
    /// The cell's timeout.
    pub(crate) timeout: Duration,
    /// The longest timeout that it could have had.
    pub(crate) max_timeout: Duration,
    /// Whether its caller still wants it: if it was cancelled, its session or server has ended.
    pub(crate) is_wanted: bool,
    /// Memory of its sandbox, in bytes.
    pub(crate) memory: u64,
}

impl SeenCell<'_> {
    pub(super) fn is_python(&self) -> bool {
        self.language == RuntimeName::PYTHON.as_str()
    }

    pub(super) fn is_javascript(&self) -> bool {
        self.language == RuntimeName::JAVASCRIPT.as_str()
    }
}

/// A note on the state of a workspace. Its text is the [`Display`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkspaceNote {
    /// A variable is not defined in an interpreter that was started for the cell.
    MissingInNew(String),
    /// The variables of earlier cells were lost before a cell began.
    Forgotten,
    /// A cell was stopped, and may have changed variables.
    KeptPartly,
    /// The variables were rolled back. These files of the cell still exist.
    RolledBack(Names),
    /// Variables and files were rolled back.
    AllRolledBack,
    /// Number of threads that were not rolled back.
    LostThreads(usize),
    /// The variables are lost.
    Lost {
        /// Whether the language supports rollback, for which no copy was left; otherwise it keeps no copies.
        can_be_rolled_back: bool,
    },
    /// The variables of earlier cells are lost, in the answer to a call that lists them.
    Gone,
    /// The variables may be lost if the next cell is stopped, as they have no copy.
    AtRisk,
    /// The variables of an interpreter are not known during a run.
    Running,
    /// The run in progress waits for a person to allow a call. The text says which, and where.
    Waiting(String),
    /// The client has run no cell yet.
    NoneYet,
    /// A session is new, as the one before has ended.
    MadeAnew(LostReason),
}

impl From<WorkspaceNote> for Note {
    fn from(note: WorkspaceNote) -> Self {
        Self::Workspace(note)
    }
}

impl Display for WorkspaceNote {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingInNew(name) => write!(
                f,
                "This was the first cell of a new interpreter: {} has to be made in it first.",
                Name(name)
            ),
            Self::Forgotten => f.write_str(
                "The interpreter had ended since the last cell, and this one ran in a new one: variables \
                 and imports of earlier cells are gone; files are still there.",
            ),
            Self::KeptPartly => f.write_str(
                "What the code did before it was stopped is kept: variables may be half changed.",
            ),
            Self::RolledBack(files) if files.is_empty() => {
                f.write_str("Variables and imports are exactly as before this call.")
            }
            Self::RolledBack(files) => write!(
                f,
                "Variables and imports are exactly as before this call. Files that it wrote are still \
                 there: {}.",
                List(files, 150)
            ),
            Self::AllRolledBack => {
                f.write_str("Variables, imports and files are exactly as before this call.")
            }
            Self::LostThreads(1) => f.write_str(
                "A thread that was running before this call could not be brought back: start it again. \
                 Locks that it held stay locked.",
            ),
            Self::LostThreads(many) => write!(
                f,
                "{} threads that were running before this call could not be brought back: start them \
                 again. Locks that they held stay locked.",
                many.min(&MAX_COUNT)
            ),
            Self::Lost { can_be_rolled_back } => {
                f.write_str("All variables and imports are gone, as the interpreter ")?;
                f.write_str(if *can_be_rolled_back {
                    "had to be ended and no copy of it from before this call was left. "
                } else {
                    "had to be ended and this language keeps no copies to go back to. "
                })?;
                f.write_str("The next call starts a new one; files are still there.")
            }
            Self::Gone => f.write_str(
                "The interpreter has ended since the last cell: variables and imports of earlier cells are \
                 gone; files are still there. The next cell starts a new one.",
            ),
            Self::AtRisk => f.write_str(
                "The interpreter, with its variables and loaded libraries, is too large to keep a safe copy of: if \
                 the next cell is stopped, all variables may be lost. Save to /mnt/data what is hard to make \
                 again. Only deleting large variables or files helps: libraries stay loaded until reset_workspace.",
            ),
            Self::Running => f.write_str(
                "A run is in progress: variables are told when it has ended, and history shows its run_id.",
            ),
            Self::Waiting(which) => write!(f, "The run is {which}"),
            Self::NoneYet => f.write_str(
                "There is no workspace yet. The first execute_code starts one; to look at another session, \
                 name its session_id.",
            ),
            Self::MadeAnew(LostReason::Older) => f.write_str(
                "This session goes on from an earlier state: the server ended before all was written. Variables \
                 and files are as they were some calls ago: look at them, and do again what is missing.",
            ),
            Self::MadeAnew(why) => write!(
                f,
                "This session is new: the one before {}, and its variables and files are gone. Upload and \
                 compute again what is needed.",
                why_lost(*why)
            ),
        }
    }
}

/// Why a session was lost, as the rest of a sentence about it.
fn why_lost(why: LostReason) -> String {
    match why {
        LostReason::Closed => "was closed".into(),
        LostReason::Expired(unused) => format!("was unused for {}", human_time(unused)),
        LostReason::Evicted => "had to make room for another session".into(),
        LostReason::Died => "ended unexpectedly".into(),
        LostReason::NotKept => "could not be kept when the server ended".into(),
        // Unused: the note of this reason has other words.
        LostReason::Older => "was kept as it was before".into(),
    }
}

/// Message for a cell that never began.
pub(crate) const NOT_STARTED: &str = "The interpreter could not be started, and nothing was run: try \
                                      again, or begin anew with reset_workspace.";

/// Longest part of an error that is repeated, in characters.
const MAX_ERROR_CHARS: usize = 150;

/// Notes on the state of the variables, if it is not what a caller expects.
pub(super) fn of_workspace(seen: &Seen<'_>, cell: &SeenCell<'_>) -> Notes {
    let mut notes = Notes::default();
    let is_forgotten = cell.fresh && cell.had_variables;
    if is_forgotten {
        notes.push(WorkspaceNote::Forgotten.into());
    }
    let stopped = matches!(seen.outcome, Outcome::Timeout | Outcome::Cancelled);
    match cell.state {
        CellState::Kept if stopped && cell.keeps_variables => {
            notes.push(WorkspaceNote::KeptPartly.into());
        }
        // The state before the cell is not the one that its caller expects.
        CellState::RolledBack if is_forgotten => {}
        CellState::Kept => {}
        CellState::RolledBack if seen.world == World::Interpreter => {
            notes.push(WorkspaceNote::AllRolledBack.into());
        }
        CellState::RolledBack => {
            let files = seen.changed.iter().take(super::run::MAX_FILES);
            let names = files.map(|file| file.path.as_str().to_owned()).collect();
            let more = seen.changed.len().saturating_sub(super::run::MAX_FILES);
            let more = more.saturating_add(seen.changed_omitted);
            notes.push(WorkspaceNote::RolledBack(Names { names, more }).into());
        }
        CellState::Lost => {
            let can_be_rolled_back = cell.language == "python";
            notes.push(WorkspaceNote::Lost { can_be_rolled_back }.into());
        }
    }
    if cell.state == CellState::Kept && cell.newly_at_risk {
        notes.push(WorkspaceNote::AtRisk.into());
    }
    if cell.state == CellState::RolledBack && !is_forgotten && cell.lost_threads > 0 {
        notes.push(WorkspaceNote::LostThreads(cell.lost_threads).into());
    }
    notes
}

/// One sentence about what happened in a cell and what to do; `None` if the cell succeeded, or the run is no cell.
pub(crate) fn error_of_cell(seen: &Seen<'_>) -> Option<String> {
    let cell = seen.cell.as_ref()?;
    let is_kept = cell.state == CellState::Kept;
    let seconds = cell.timeout.as_secs();
    Some(match seen.outcome {
        Outcome::Ok => return None,
        Outcome::Timeout if cell.timeout < cell.max_timeout => format!(
            "The code was stopped after {seconds} s: do less in one call, or give a longer timeout (at \
             most {}).",
            cell.max_timeout.as_secs()
        ),
        Outcome::Timeout => format!(
            "The code was stopped after {seconds} s, which is the limit: do less in one call."
        ),
        Outcome::OutOfMemory => format!(
            "The code was stopped because it needed more than the memory limit of {}: work on less at a \
             time.",
            human_size(cell.memory)
        ),
        Outcome::OutOfFuel => "The code was stopped as it had used all the instructions that one call may use. \
                               Do the work in smaller steps, or use NumPy and pandas instead of loops."
            .into(),
        Outcome::Cancelled if cell.is_wanted => {
            "The code was stopped because its session or the server ended.".into()
        }
        Outcome::Cancelled => "The code was stopped because the call was cancelled.".into(),
        Outcome::Killed if seen.signal == Some(NO_SPACE) => {
            "The code was stopped because its files took more space than there may be: write less, or remove \
             files first."
                .into()
        }
        Outcome::Killed if !is_kept => format!(
            "The code ended its interpreter by signal {}, as a crash in a library does: do it in another \
             way.",
            seen.signal.unwrap_or_default()
        ),
        Outcome::Error if !is_kept => {
            "The code ended its interpreter: leave out what does so, such as os._exit.".into()
        }
        Outcome::Error | Outcome::Killed => match raised(seen) {
            Some((error, true)) => format!("The code failed with {error}. {REFUSED}"),
            Some((error, false)) => {
                format!("The code failed with {error}: fix it and run it again.")
            }
            None => format!("The code ended with exit code {}.", seen.exit_code),
        },
    })
}

/// The exception that ended the code, by its error output, if there is one; and whether it is a refused call.
fn raised(seen: &Seen<'_>) -> Option<(String, bool)> {
    let shown = |line: &str| (quoted_within(line, MAX_ERROR_CHARS), is_refused(line));
    if seen.cell.as_ref().is_some_and(SeenCell::is_javascript) {
        let line = super::errors::raised_by_node(&seen.stderr.text)?;
        return (seen.exit_code == 1).then(|| shown(line));
    }
    let line = super::errors::raised_line(&seen.stderr.text);
    let name = line.split(':').next().unwrap_or_default();
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_');
    let is_error = !name.is_empty() && name.chars().all(is_name) && seen.exit_code == 1;
    is_error.then(|| shown(&line))
}

#[cfg(test)]
mod tests {
    use model::{Artifact, DataPath, Output};
    use protocol::message::{Facts, MissingFile};

    use super::*;

    /// A Python cell whose variables survived.
    fn cell() -> SeenCell<'static> {
        SeenCell {
            language: "python",
            state: CellState::Kept,
            keeps_variables: true,
            fresh: false,
            had_variables: true,
            newly_at_risk: false,
            lost_threads: 0,
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_secs(60),
            is_wanted: false,
            memory: 512_000_000,
        }
    }

    /// The notes on a cell that ended so, and its error.
    fn said(
        outcome: Outcome,
        stderr: &str,
        files: &[&str],
        cell: SeenCell<'_>,
    ) -> (Vec<String>, Option<String>) {
        let file = |name: &&str| Artifact {
            path: DataPath::relative(name).expect("a path"),
            size_bytes: 1,
            modified_ns: 0,
        };
        let changed: Vec<_> = files.iter().map(file).collect();
        let output = |text: &str| Output {
            text: text.into(),
            total: text.len() as u64,
            ..Output::default()
        };
        let (stdout, stderr) = (output(""), output(stderr));
        let seen = Seen {
            outcome,
            exit_code: 1,
            signal: (outcome == Outcome::Killed).then_some(11),
            stdout: &stdout,
            stderr: &stderr,
            changed: &changed,
            changed_omitted: 0,
            cell: Some(cell),
            facts: Facts::default(),
            world: World::System,
        };
        let error = error_of_cell(&seen);
        (super::super::of_run(seen).sentences().collect(), error)
    }

    fn notes(outcome: Outcome, cell: SeenCell<'_>) -> Vec<String> {
        said(outcome, "", &[], cell).0
    }

    #[test]
    fn a_cell_that_ends_by_itself_needs_no_words() {
        assert_eq!(said(Outcome::Ok, "", &[], cell()), (vec![], None), "it may print nothing");
        assert!(said(Outcome::Error, "KeyError: 'x'", &["a.png"], cell()).0.is_empty());
        let fresh = SeenCell { fresh: true, had_variables: false, ..cell() };
        assert!(notes(Outcome::Ok, fresh).is_empty(), "nobody expected variables");
    }

    #[test]
    fn variables_that_went_back_are_told_with_the_files_that_did_not() {
        let back = || SeenCell { state: CellState::RolledBack, ..cell() };
        let before = "Variables and imports are exactly as before this call.";
        assert_eq!(notes(Outcome::OutOfMemory, back())[0], before);
        let (told, _) = said(Outcome::Timeout, "", &["out.csv"], back());
        assert_eq!(told, [format!("{before} Files that it wrote are still there: \"out.csv\".")]);
        assert!(!notes(Outcome::Timeout, cell())[0].contains("exactly as before"));
    }

    #[test]
    fn threads_that_did_not_come_back_are_counted() {
        let lost = |state, lost_threads| SeenCell { state, lost_threads, ..cell() };
        let told = |state, count| notes(Outcome::Timeout, lost(state, count)).join(" ");
        assert!(told(CellState::RolledBack, 1).contains("A thread that was running"));
        assert!(told(CellState::RolledBack, 3).contains("3 threads that were running"));
        assert!(told(CellState::RolledBack, usize::MAX).contains("99999 threads"));
        assert!(!told(CellState::RolledBack, 0).contains("thread"));
        assert!(!told(CellState::Kept, 3).contains("thread"), "nothing was lost");
    }

    #[test]
    fn variables_that_are_gone_are_told_and_why() {
        let lost = |language| SeenCell { state: CellState::Lost, language, ..cell() };
        let told = notes(Outcome::Timeout, lost("python")).remove(0);
        assert!(told.contains("All variables and imports are gone"), "{told}");
        assert!(told.contains("no copy of it from before this call was left"), "{told}");
        let told = notes(Outcome::Timeout, lost("javascript")).remove(0);
        assert!(told.contains("this language keeps no copies"), "{told}");
        assert!(!notes(Outcome::Timeout, cell())[0].contains("gone"));
    }

    #[test]
    fn variables_without_a_copy_are_told_once_in_a_row() {
        let told = |state, newly_at_risk| {
            let cell = SeenCell { state, newly_at_risk, ..cell() };
            let all = notes(Outcome::Ok, cell).join(" ");
            assert!(all.chars().count() < 300, "{all}");
            all.contains("too large to keep a safe copy of")
        };
        assert!(told(CellState::Kept, true));
        assert!(!told(CellState::Kept, false), "there is one, or it was said before");
        assert!(!told(CellState::RolledBack, true), "there was a copy");
    }

    #[test]
    fn a_new_interpreter_where_there_were_variables_is_told() {
        let fresh = |had_variables| SeenCell { fresh: true, had_variables, ..cell() };
        let told = notes(Outcome::Ok, fresh(true));
        assert!(told[0].starts_with("The interpreter had ended since the last cell"), "{told:?}");
        assert!(notes(Outcome::Ok, fresh(false)).is_empty());
        let missing =
            |cell| said(Outcome::Error, "NameError: name 'df' is not defined", &[], cell).0;
        let told = missing(fresh(false));
        assert_eq!(
            told,
            ["This was the first cell of a new interpreter: \"df\" has to be made in it first."]
        );
        assert_eq!(missing(fresh(true)).len(), 1, "that the others are gone says it");
        assert!(missing(cell()).is_empty());
    }

    #[test]
    fn what_a_stopped_cell_did_is_told_to_be_kept_where_it_is() {
        let of = |language| SeenCell { language, ..cell() };
        for outcome in [Outcome::Timeout, Outcome::Cancelled] {
            let told = notes(outcome, of("javascript"));
            assert!(told[0].starts_with("What the code did before it was stopped"), "{told:?}");
            let shell = SeenCell { keeps_variables: false, ..of("bash") };
            assert!(notes(outcome, shell).is_empty(), "a shell keeps nothing");
        }
        assert!(notes(Outcome::Error, of("javascript")).is_empty());
    }

    #[test]
    fn every_end_but_success_has_one_sentence_that_says_what_to_do() {
        let error = |outcome, stderr, cell| said(outcome, stderr, &[], cell).1;
        let ended = |state| SeenCell { state, ..cell() };
        let full = SeenCell { max_timeout: Duration::from_secs(30), ..cell() };
        for (outcome, stderr, cell, message) in [
            (
                Outcome::Timeout,
                "",
                cell(),
                "The code was stopped after 30 s: do less in one call, or give a longer timeout (at most \
                 60).",
            ),
            (
                Outcome::Timeout,
                "",
                full,
                "The code was stopped after 30 s, which is the limit: do less in one call.",
            ),
            (
                Outcome::OutOfMemory,
                "",
                cell(),
                "The code was stopped because it needed more than the memory limit of 512MB: work on less at \
                 a time.",
            ),
            (
                Outcome::Cancelled,
                "",
                cell(),
                "The code was stopped because the call was cancelled.",
            ),
            (
                Outcome::Cancelled,
                "",
                SeenCell { is_wanted: true, ..cell() },
                "The code was stopped because its session or the server ended.",
            ),
            (
                Outcome::Killed,
                "",
                ended(CellState::RolledBack),
                "The code ended its interpreter by signal 11, as a crash in a library does: do it in another \
                 way.",
            ),
            (
                Outcome::Error,
                "",
                ended(CellState::RolledBack),
                "The code ended its interpreter: leave out what does so, such as os._exit.",
            ),
            (
                Outcome::Error,
                "KeyError                Traceback\n\nKeyError: 'x'\n",
                cell(),
                "The code failed with \"KeyError: 'x'\": fix it and run it again.",
            ),
            (
                Outcome::Error,
                "Denied   Traceback (most recent call last)\n\nDenied: crm.x: a person did not allow the call\n",
                cell(),
                "The code failed with \"Denied: crm.x: a person did not allow the call\". Do not \
                 repeat the call: ask the user, or go on without it.",
            ),
            (
                Outcome::Error,
                "Denied   Traceback (most recent call last)\n\nDenied: by my own class\n",
                cell(),
                "The code failed with \"Denied: by my own class\": fix it and run it again.",
            ),
            (Outcome::Error, "done, and not well\n", cell(), "The code ended with exit code 1."),
        ] {
            assert_eq!(error(outcome, stderr, cell).as_deref(), Some(message));
        }
    }

    #[test]
    fn an_error_of_node_is_named_wherever_it_stands() {
        let javascript = || SeenCell { language: "javascript", ..cell() };
        for (stderr, named) in [
            (
                "cell-1:1\nnosuch + 1\n^\n\nReferenceError: nosuch is not defined\n    at cell-1:1:1\n",
                "ReferenceError: nosuch is not defined",
            ),
            (
                "cell-8:1\nlet a = ;\n        ^\n\nSyntaxError: Unexpected token ';'\n",
                "SyntaxError: Unexpected token ';'",
            ),
            ("TypeError: bad\nsecond\n    at cell-6:1:7\n", "TypeError: bad"),
            ("Error: with\n    at cell-12:1:110 {\n  code: 'E1'\n}\n", "Error: with"),
            ("Mine: x\n    at cell-2:1:3\n", "Mine: x"),
            ("TypeError [ERR_X]: y\n    at cell-2:1:3\n", "TypeError [ERR_X]: y"),
            ("Uncaught 'str'\n", "Uncaught 'str'"),
        ] {
            let error = said(Outcome::Error, stderr, &[], javascript()).1.expect("one");
            let words = format!("The code failed with {}: fix it", quoted_within(named, 99));
            assert!(error.starts_with(&words), "{error}");
        }
        let other = said(Outcome::Error, "warning: x\ncell-1:1\n", &[], javascript()).1;
        assert_eq!(other.as_deref(), Some("The code ended with exit code 1."));
    }

    #[test]
    fn a_cell_of_node_is_told_that_there_are_neither_packages_nor_a_network() {
        let told = |stderr: &str| {
            let cell = SeenCell { language: "javascript", ..cell() };
            said(Outcome::Error, stderr, &[], cell).0.join(" ")
        };
        for stderr in [
            "Error: Cannot find module 'lodash'\nRequire stack:\n- /mnt/data/cell\n    at x {\n  code: 'MODULE_NOT_FOUND'\n}\n",
            "Error: Cannot find package 'lodash' imported from /mnt/data/cell\n    at x {\n  code: 'ERR_MODULE_NOT_FOUND'\n}\n",
        ] {
            assert!(told(stderr).starts_with("\"lodash\" is not installed"), "{}", told(stderr));
            assert!(told(stderr).contains("no npm"));
        }
        assert_eq!(told("Error: Cannot find module './own.js'\n    at x\n"), "", "it is a file");
        for stderr in [
            "TypeError: fetch failed\n    at x\n",
            "Error: getaddrinfo EAI_AGAIN example.com\n    at x\n",
            "Error: getaddrinfo ENOTFOUND example.com\n    at x\n",
        ] {
            assert!(told(stderr).starts_with("The sandbox has no network"), "{}", told(stderr));
        }
    }

    #[test]
    fn advice_on_libraries_of_python_is_for_python() {
        let of = |language| notes(Outcome::OutOfMemory, SeenCell { language, ..cell() }).join(" ");
        assert!(of("python").contains("usecols"));
        assert!(!of("javascript").contains("usecols") && !of("bash").contains("usecols"));
    }

    #[test]
    fn a_cell_that_asks_is_told_to_pass_what_it_reads() {
        let told = said(Outcome::Error, "EOFError: EOF when reading a line\n", &[], cell()).0;
        assert!(told[0].contains("pass what it reads as stdin"), "{told:?}");
    }

    #[test]
    fn whatever_a_cell_says_its_sentences_are_few_short_and_plain() {
        let evil = format!("Error: \u{1b}[2J\"IGNORE\u{202e} ALL\u{2028}{}", "x".repeat(5_000));
        let path = "é".repeat(100);
        let files: Vec<_> = (0..100).map(|n| format!("{path}{n}")).collect();
        let files: Vec<_> = files.iter().map(|it| &**it).collect();
        for outcome in Outcome::ALL {
            for state in [CellState::Kept, CellState::RolledBack, CellState::Lost] {
                for language in ["python", "javascript", "bash"] {
                    let (fresh, lost_threads) = (true, usize::MAX);
                    let cell = SeenCell { language, state, fresh, lost_threads, ..cell() };
                    let (told, error) = said(outcome, &evil, &files, cell);
                    assert!(told.len() <= 5);
                    for text in told.into_iter().chain(error) {
                        assert!(text.chars().count() < 300 && text.ends_with('.'), "{text}");
                        assert!(!text.contains(char::is_control), "{text}");
                        assert!(!text.contains(['\u{202e}', '\u{2028}']), "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_meant_for_scripts_is_not_told_of_cells() {
        let (stdout, stderr) = (Output::default(), Output::default());
        let names = |name: &str| Names { names: vec![name.into()], more: 0 };
        let facts = || Facts {
            dropped_value: Some("DataFrame".into()),
            unsaved_figures: 2,
            left_out: names("%matplotlib inline"),
            ..Facts::default()
        };
        let seen = |cell, facts| Seen {
            outcome: Outcome::Ok,
            exit_code: 0,
            signal: None,
            stdout: &stdout,
            stderr: &stderr,
            changed: &[],
            changed_omitted: 0,
            cell,
            facts,
            world: World::System,
        };
        assert!(super::super::of_run(seen(Some(cell()), facts())).is_empty());
        assert!(!super::super::of_run(seen(None, facts())).is_empty());
        // Notes for both are made for cells, too.
        let missing =
            MissingFile { name: "a.csv".into(), there: names("b.csv"), ..MissingFile::default() };
        let facts = Facts { missing_file: Some(missing), ..Facts::default() };
        let failed = Seen { outcome: Outcome::Error, ..seen(Some(cell()), facts) };
        assert_eq!(super::super::of_run(failed).sentences().count(), 1);
    }

    #[test]
    fn what_was_lost_is_told_with_its_reason() {
        let half_an_hour = Duration::from_secs(1800);
        for (why, words) in [
            (LostReason::Closed, "the one before was closed,"),
            (LostReason::Expired(half_an_hour), "the one before was unused for 30 min,"),
            (LostReason::Evicted, "the one before had to make room for another session,"),
            (LostReason::Died, "the one before ended unexpectedly,"),
            (LostReason::NotKept, "the one before could not be kept when the server ended,"),
            (LostReason::Older, "goes on from an earlier state"),
        ] {
            let note = WorkspaceNote::MadeAnew(why).to_string();
            assert!(note.contains(words) && note.len() < 300, "{note}");
        }
        let waits = WorkspaceNote::Waiting("waiting for a person to allow crm.x".into());
        assert_eq!(waits.to_string(), "The run is waiting for a person to allow crm.x");
        assert!(WorkspaceNote::Running.to_string().contains("history shows its run_id"));
    }
}
