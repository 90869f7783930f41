//! The report that a caller gets of a run. Pure: its input is what the link has read and checked.

use std::time::Duration;

use config::Tracebacks;
use link::{CapturedOutput, CellReply, RunReply};
use model::{Artifact, CellStatus, Outcome, Output, RunId, World, text::utf8};
use protocol::{
    limits::{KEPT_FROM, shown_len},
    message::{CellState, End, RuntimeName, Start},
};

use super::traceback;
use crate::notes::{self, Notes};

/// A finished run.
#[derive(Debug, Clone)]
pub struct RunReport {
    /// The id of the run.
    pub run_id: RunId,
    /// Why the run ended.
    pub outcome: Outcome,
    /// The exit code of the process; -1 at the deadline, 128 + signal if a signal ended it.
    pub exit_code: i32,
    /// Standard output, within the cap.
    pub stdout: Output,
    /// Standard error, within the cap.
    pub stderr: Output,
    /// New and changed files, by path; empty for a program whose exit code is not 0, but not for a cell.
    pub artifacts: Vec<Artifact>,
    /// Artifacts that are not in the list because it would be too long.
    pub artifacts_omitted: usize,
    /// Facts that the caller could not see otherwise.
    pub notes: Notes,
    /// Wall time of the code.
    pub elapsed: Duration,
    /// How the run's interpreter was started.
    pub start: Start,
    /// Time that the agent took in total.
    pub agent_elapsed: Duration,
    /// Processor time of the code, at most as much as the processors of the sandbox have in its wall time.
    pub cpu: Duration,
    /// Instructions that the code has used, on an engine that counts them.
    pub fuel: Option<u64>,
    /// The effect on the workspace, if the run was a cell.
    pub cell: Option<CellReport>,
}

impl RunReport {
    /// Bytes of output in the report.
    pub(crate) fn output_bytes(&self) -> u64 {
        (self.stdout.text.len() + self.stderr.text.len()) as u64
    }
}

/// The effect of a cell on its workspace.
#[derive(Debug, Clone)]
pub struct CellReport {
    /// The language of the cell.
    pub language: RuntimeName,
    /// The status of the cell, in one word.
    pub status: CellStatus,
    /// Whether the variables still exist.
    pub state: CellState,
    /// Whether the interpreter was started for this cell.
    pub fresh: bool,
    /// Cells that the interpreter has run so far.
    pub execution_count: u64,
    /// The value of the cell's last expression as text, if it has one.
    pub result: Option<Output>,
    /// Memory of the interpreter after it, in bytes, if it is known.
    pub memory_bytes: Option<u64>,
    /// Cells that can be undone now.
    pub can_undo: u32,
    /// The error and the advice on it, in one sentence, unless the cell succeeded.
    pub error_message: Option<String>,
}

/// Maximum number of artifacts that are listed after a run. A program that writes thousands of files must not flood the
/// context of the model that started it; `list_artifacts` lists all of them.
const MAX_ARTIFACTS: usize = 50;

/// Largest number from a sandbox that is passed on: JSON readers with 64-bit floats do not represent larger ones
/// exactly.
pub(crate) const MAX_FIGURE: u64 = (1 << 53) - 1;

/// Most instructions that a run can use in a microsecond: more than any processor executes.
const MAX_FUEL_PER_US: u64 = 20_000;

/// The limits and settings of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Wall time.
    pub(crate) timeout: Duration,
    /// The longest wall time that the settings allow.
    pub(crate) max_timeout: Duration,
    /// Whether its caller still wants it: if it is killed, its session or server has ended.
    pub(crate) is_wanted: bool,
    /// Memory in bytes.
    pub(crate) memory: u64,
    /// Processors that the run can use, rounded up.
    pub(crate) processors: u32,
    /// How tracebacks are shown.
    pub(crate) tracebacks: Tracebacks,
    /// The kind of environment that programs run in.
    pub(crate) world: World,
}

/// A caller's assumptions about the interpreter in which a cell will run.
#[derive(Debug, Clone)]
pub(crate) struct Before {
    /// The language of the cell.
    pub(crate) language: RuntimeName,
    /// Whether the interpreter has variables of earlier cells, according to what the caller was told.
    pub(crate) has_variables: bool,
    /// Whether the caller was told that stopping the cell may lose them.
    pub(crate) is_at_risk: bool,
}

impl Before {
    /// The state of the variables. If the interpreter that had them ended before the cell began, they are lost, however
    /// the cell itself ended.
    fn state_after(&self, cell: &CellReply) -> CellState {
        if cell.fresh && self.has_variables { CellState::Lost } else { cell.state }
    }
}

fn killed(limits: Limits) -> &'static str {
    if limits.is_wanted {
        "Execution stopped, because its session or the server ended"
    } else {
        "Execution cancelled"
    }
}

fn human_seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let is_one = time == Duration::from_secs(1);
    format!("{seconds} second{}", if is_one { "" } else { "s" })
}

/// The instructions that a run has used, at most as many as can be true.
fn fuel_of(run: &RunReply, world: World) -> Option<u64> {
    // Elsewhere this would be the program's own claim.
    let fuel = run.facts.fuel.filter(|_| world == World::Interpreter)?;
    let most = u64::try_from(run.elapsed.as_micros()).unwrap_or(u64::MAX);
    Some(fuel.min(most.saturating_mul(MAX_FUEL_PER_US)).min(MAX_FIGURE))
}

/// The report of a run. `before` is set for a cell.
pub(crate) fn report(
    run_id: RunId,
    limits: Limits,
    before: Option<Before>,
    run: RunReply,
) -> RunReport {
    let (mut outcome, mut exit_code, note) = match run.end {
        End::Exited { code: 0 } => (Outcome::Ok, 0, None),
        End::Exited { code } => (Outcome::Error, code, None),
        End::TimedOut => (
            Outcome::Timeout,
            -1,
            Some(format!("Execution timed out after {}", human_seconds(limits.timeout))),
        ),
        End::OutOfMemory => {
            let limit = model::text::human_size(limits.memory);
            (Outcome::OutOfMemory, 137, Some(format!("Killed: out of memory (limit {limit})")))
        }
        End::OutOfFuel => (
            Outcome::OutOfFuel,
            -1,
            Some("Stopped: it has used all the instructions that it may".into()),
        ),
        End::Killed => (Outcome::Cancelled, 137, Some(killed(limits).into())),
        End::Signaled { signal } => {
            let name = signal_name(signal);
            (Outcome::Killed, 128 + signal, Some(format!("Killed by signal {signal}{name}")))
        }
    };
    let cell = run.cell.as_ref().zip(before.as_ref());
    if outcome == Outcome::Ok && cell.is_some_and(|(cell, _)| cell.state != CellState::Kept) {
        // The cell has ended its own interpreter, whatever its exit code.
        (outcome, exit_code) = (Outcome::Error, 1);
    }
    let stdout = output(&run.stdout);
    let mut stderr = output(&run.stderr);
    let fuel = fuel_of(&run, limits.world);
    let mut artifacts: Vec<_> = run.changed.into_iter().filter_map(Artifact::from_entry).collect();
    let mut omitted = run.changed_omitted;
    let seen = notes::Seen {
        outcome,
        exit_code,
        signal: if let End::Signaled { signal } = run.end { Some(signal) } else { None },
        stdout: &stdout,
        stderr: &stderr,
        changed: &artifacts,
        changed_omitted: omitted,
        cell: cell.map(|(cell, before)| notes::SeenCell {
            language: before.language.as_str(),
            state: cell.state,
            keeps_variables: before.language.keeps_variables(),
            fresh: cell.fresh,
            had_variables: before.has_variables,
            newly_at_risk: cell.at_risk && !before.is_at_risk,
            lost_threads: cell.lost_threads,
            timeout: limits.timeout,
            max_timeout: limits.max_timeout,
            is_wanted: limits.is_wanted,
            memory: limits.memory,
        }),
        facts: run.facts,
        world: limits.world,
    };
    let error_message = notes::error_of_cell(&seen);
    let notes = notes::of_run(seen);
    if limits.tracebacks == Tracebacks::Short {
        shorten(&mut stderr);
    }
    let cell = run.cell.zip(before).map(|(cell, before)| CellReport {
        state: before.state_after(&cell),
        language: before.language,
        status: outcome.status(),
        fresh: cell.fresh,
        execution_count: cell.count.min(MAX_FIGURE),
        result: cell.result.as_ref().map(output),
        memory_bytes: cell.memory_bytes.map(|bytes| bytes.min(MAX_FIGURE)),
        can_undo: cell.can_undo,
        error_message,
    });
    // The report of a cell has `error_message` instead.
    if let Some(note) = note.filter(|_| cell.is_none()) {
        if !stderr.text.is_empty() && !stderr.text.ends_with('\n') {
            stderr.text.push('\n');
        }
        stderr.text.push_str(&note);
    }

    if outcome == Outcome::Ok || cell.is_some() {
        omitted = omitted.saturating_add(artifacts.len().saturating_sub(MAX_ARTIFACTS));
        artifacts.truncate(MAX_ARTIFACTS);
    } else {
        (artifacts, omitted) = (vec![], 0);
    }
    RunReport {
        run_id,
        outcome,
        exit_code,
        stdout,
        stderr,
        artifacts,
        artifacts_omitted: omitted,
        notes,
        elapsed: run.elapsed,
        start: run.start,
        agent_elapsed: run.agent_elapsed,
        cpu: run.cpu.min(run.elapsed.saturating_mul(limits.processors)),
        fuel,
        cell,
    }
}

/// The report of a cell that never began, because its interpreter could not be started.
pub(crate) fn not_started(run_id: RunId, before: Option<Before>) -> RunReport {
    RunReport {
        run_id,
        outcome: Outcome::Error,
        exit_code: 1,
        stdout: Output::default(),
        stderr: Output::default(),
        artifacts: vec![],
        artifacts_omitted: 0,
        notes: Notes::default(),
        elapsed: Duration::ZERO,
        start: Start::Cold,
        agent_elapsed: Duration::ZERO,
        cpu: Duration::ZERO,
        fuel: None,
        cell: before.map(|before| CellReport {
            language: before.language,
            status: CellStatus::SetupError,
            state: CellState::Kept,
            fresh: false,
            execution_count: 0,
            result: None,
            memory_bytes: None,
            can_undo: 0,
            error_message: Some(notes::NOT_STARTED.into()),
        }),
    }
}

/// Joins head and tail; invalid bytes become U+FFFD.
fn output(captured: &CapturedOutput) -> Output {
    let (head, tail) = (&captured.head[..], &captured.tail[..]);
    let kept = (head.len() + tail.len()) as u64;
    if captured.total <= kept {
        let is_kept = shown_len(head) + shown_len(tail) > KEPT_FROM;
        let text = String::from_utf8_lossy(&[head, tail].concat()).into_owned();
        return Output { text, total: kept, head: kept, is_kept, ..Output::default() };
    }
    // The cut may have split a character; its halves are left out too, not shown as errors.
    let head = whole_lines_at_start(utf8::whole_end(head));
    let tail = whole_lines_at_end(utf8::whole_start(tail));
    let omitted = captured.total - (head.len() + tail.len()) as u64;
    let mut text = String::from_utf8_lossy(head).into_owned();
    let start = text.len();
    let line = format!("\n[... {omitted} bytes left out ...]\n");
    let gap = Some(start..start + line.len());
    text += &line;
    text += &String::from_utf8_lossy(tail);
    let head = head.len() as u64;
    Output { text, truncated: true, gap, total: captured.total, head, whole: None, is_kept: true }
}

/// A cut line is left out completely if the part that is shown would be shorter than this.
const MAX_LEFT_OUT: usize = 500;

/// Removes the incomplete last line.
fn whole_lines_at_start(text: &[u8]) -> &[u8] {
    match text.iter().rev().take(MAX_LEFT_OUT).position(|byte| *byte == b'\n') {
        // The mark for the omitted bytes begins on a line of its own.
        Some(part) => &text[..text.len() - part - 1],
        None => text,
    }
}

/// Removes the incomplete first line.
fn whole_lines_at_end(text: &[u8]) -> &[u8] {
    match text.iter().take(MAX_LEFT_OUT).position(|byte| *byte == b'\n') {
        Some(part) => &text[part + 1..],
        None => text,
    }
}

/// Shortens its tracebacks. Keeps the captured text, unless the agent keeps the whole output.
fn shorten(stderr: &mut Output) {
    let Some(short) = traceback::shortened(&stderr.text) else { return };
    let long = std::mem::replace(&mut stderr.text, short);
    if !stderr.is_kept {
        stderr.whole = Some(long.into());
        stderr.is_kept = true;
    }
    stderr.head = 0;
    // The position of the line for the omitted bytes has changed.
    stderr.gap = None;
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        31 => " (SIGSYS: a system call that is not allowed)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::text::whole_ms;
    use proptest::prelude::*;
    use protocol::message::{Facts, FileEntry, Stamp};

    use super::*;

    const LIMITS: Limits = Limits {
        timeout: Duration::from_secs(60),
        max_timeout: Duration::from_secs(60),
        is_wanted: false,
        memory: 512_000_000,
        processors: 1,
        tracebacks: Tracebacks::Short,
        world: World::System,
    };

    fn captured(head: &[u8], tail: &[u8], total: u64) -> CapturedOutput {
        let bytes = Bytes::copy_from_slice;
        CapturedOutput { head: bytes(head), tail: bytes(tail), total }
    }

    fn run(end: End, stdout: CapturedOutput, stderr: &[u8]) -> RunReply {
        RunReply {
            call: 7,
            end,
            start: Start::Warm,
            elapsed: Duration::from_micros(1_500),
            agent_elapsed: Duration::from_micros(1_600),
            cpu: Duration::from_secs(3),
            stdout,
            stderr: captured(stderr, b"", stderr.len() as u64),
            changed: vec![],
            changed_omitted: 0,
            facts: Facts::default(),
            cell: None,
        }
    }

    fn read(end: End, stderr: &[u8]) -> RunReport {
        report(RunId::mint(), LIMITS, None, run(end, captured(b"4\n", b"", 2), stderr))
    }

    #[test]
    fn every_end_has_its_outcome_code_and_words() {
        let cases = [
            (End::Exited { code: 0 }, Outcome::Ok, 0, ""),
            (End::Exited { code: 3 }, Outcome::Error, 3, ""),
            (End::TimedOut, Outcome::Timeout, -1, "Execution timed out after 60 seconds"),
            (End::OutOfMemory, Outcome::OutOfMemory, 137, "Killed: out of memory (limit 512MB)"),
            (End::Signaled { signal: 11 }, Outcome::Killed, 139, "Killed by signal 11 (SIGSEGV)"),
            (End::Killed, Outcome::Cancelled, 137, "Execution cancelled"),
        ];
        for (end, outcome, exit_code, stderr) in cases {
            let report = read(end, b"");
            assert_eq!((report.outcome, report.exit_code), (outcome, exit_code));
            assert_eq!(report.stderr.text, stderr);
            assert_eq!(report.stdout.text, "4\n");
            assert_eq!(whole_ms(report.elapsed), 2);
            assert_eq!(report.cpu, report.elapsed, "one processor has no more in that time");
        }
        let limits = Limits { is_wanted: true, ..LIMITS };
        let killed = run(End::Killed, captured(b"", b"", 0), b"");
        let stopped = report(RunId::mint(), limits, None, killed);
        let why = "Execution stopped, because its session or the server ended";
        assert_eq!((stopped.outcome, &*stopped.stderr.text), (Outcome::Cancelled, why));
        assert!(read(End::TimedOut, b"half a line").stderr.text.starts_with("half a line\nExec"));
    }

    #[test]
    fn what_was_left_out_is_counted_between_head_and_tail() {
        let run = run(End::Exited { code: 0 }, captured(b"abc", b"xyz", 1006), b"");
        let report = report(RunId::mint(), LIMITS, None, run);
        assert_eq!(report.stdout.text, "abc\n[... 1000 bytes left out ...]\nxyz");
        assert!(report.stdout.truncated && !report.stderr.truncated);
    }

    /// A cell with this end, in a new interpreter or not, whose caller had variables or not.
    fn cell(end: End, state: CellState, fresh: bool, has_variables: bool) -> RunReport {
        let mut run = run(end, CapturedOutput::default(), b"");
        run.cell = Some(CellReply {
            state,
            fresh,
            count: u64::from(state == CellState::Kept),
            result: None,
            memory_bytes: None,
            can_undo: 0,
            lost_threads: 0,
            at_risk: false,
        });
        let before = Before { language: RuntimeName::PYTHON, has_variables, is_at_risk: false };
        report(RunId::mint(), LIMITS, Some(before), run)
    }

    #[test]
    fn variables_that_were_gone_before_a_cell_began_are_lost_however_it_ended() {
        for (end, state, status) in [
            (End::Exited { code: 0 }, CellState::Kept, CellStatus::Success),
            (End::Exited { code: 1 }, CellState::Kept, CellStatus::ExecutionError),
            (End::TimedOut, CellState::RolledBack, CellStatus::Timeout),
            (End::Signaled { signal: 11 }, CellState::RolledBack, CellStatus::ExecutionError),
            (End::OutOfMemory, CellState::Lost, CellStatus::OutOfMemory),
        ] {
            let report = cell(end, state, true, true);
            let of_cell = report.cell.expect("a cell");
            assert_eq!((of_cell.state, of_cell.status), (CellState::Lost, status));
            let notes = report.notes.sentences().collect::<Vec<_>>().join(" ");
            assert!(notes.contains("of earlier cells are gone"), "{notes}");
            assert!(!notes.contains("exactly as before"), "{notes}");
            for (fresh, has_variables) in [(true, false), (false, true), (false, false)] {
                let of_cell = cell(end, state, fresh, has_variables).cell.expect("a cell");
                assert_eq!(of_cell.state, state, "nobody had what is gone");
            }
        }
    }

    #[test]
    fn files_nobody_could_ask_for_are_not_listed() {
        let mut run = run(End::Exited { code: 0 }, CapturedOutput::default(), b"");
        let stamp = Stamp { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };
        let entry = |path: &str| FileEntry { path: path.into(), stamp };
        run.changed = ["a\nb", "../up", "ok.png"].map(entry).into();
        let artifacts = report(RunId::mint(), LIMITS, None, run).artifacts;
        assert_eq!(artifacts.iter().map(|a| a.path.as_str()).collect::<Vec<_>>(), ["ok.png"]);
    }

    fn any_run() -> impl Strategy<Value = RunReply> {
        let end = prop_oneof![
            any::<i32>().prop_map(|code| End::Exited { code }),
            (1i32..65).prop_map(|signal| End::Signaled { signal }),
            Just(End::OutOfMemory),
            Just(End::TimedOut),
            Just(End::Killed),
        ];
        let bytes = || prop::collection::vec(any::<u8>(), 0..500);
        let output = || {
            (bytes(), bytes(), prop_oneof![0u64..900, any::<u64>()])
                .prop_map(|(head, tail, total)| captured(&head, &tail, total))
        };
        let stamp = Stamp { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };
        let entry = any::<String>().prop_map(move |path| FileEntry { path, stamp });
        let changed = prop::collection::vec(entry, 0..150);
        (end, any::<u64>(), output(), output(), changed, any::<usize>()).prop_map(
            |(end, elapsed_us, stdout, stderr, changed, changed_omitted)| RunReply {
                call: 7,
                end,
                start: Start::Cold,
                elapsed: Duration::from_micros(elapsed_us),
                agent_elapsed: Duration::MAX,
                cpu: Duration::from_micros(elapsed_us),
                stdout,
                stderr,
                changed,
                changed_omitted,
                facts: Facts::default(),
                cell: None,
            },
        )
    }

    proptest! {
        #[test]
        fn a_cut_never_shows_half_a_character(
            text in "\\PC{1,40}",
            at: prop::sample::Index,
            gap in 1usize..20,
        ) {
            let bytes = text.as_bytes();
            let at = at.index(bytes.len());
            let end = (at + gap).min(bytes.len());
            let shown = output(&captured(&bytes[..at], &bytes[end..], bytes.len() as u64));
            let is_error = |c: char| c == char::REPLACEMENT_CHARACTER;
            prop_assert!(!shown.text.contains(is_error) || text.contains(is_error));
            let omitted: usize = shown
                .text
                .rsplit_once("[... ")
                .and_then(|(_, rest)| rest.split_once(" bytes"))
                .expect("a count")
                .0
                .parse()?;
            let marker = format!("\n[... {omitted} bytes left out ...]\n");
            prop_assert_eq!(shown.text.len() - marker.len() + omitted, bytes.len());
            prop_assert_eq!(shown.total, bytes.len() as u64);
            // A caller that reads on from there misses nothing and sees no half character.
            let head = usize::try_from(shown.head)?;
            prop_assert!(text.is_char_boundary(head) && shown.text.starts_with(&text[..head]));
        }

        #[test]
        fn any_reply_makes_a_report_within_its_limits(run in any_run()) {
            let changed = run.changed.len();
            let report = report(RunId::mint(), LIMITS, None, run);
            let most = 1000 * '\u{FFFD}'.len_utf8() + 100;
            prop_assert!(report.stdout.text.len() <= most && report.stderr.text.len() <= most);
            prop_assert!(report.artifacts.len() <= MAX_ARTIFACTS.min(changed));
        }

        #[test]
        fn any_bytes_make_a_text(head in prop::collection::vec(any::<u8>(), 0..50), tail in prop::collection::vec(any::<u8>(), 0..50), gap in 0u64..3) {
            let total = (head.len() + tail.len()) as u64 + gap;
            prop_assert_eq!(output(&captured(&head, &tail, total)).truncated, gap > 0);
        }
    }
}
