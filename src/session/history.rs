//! The history of a session, for viewers: its last runs, in memory, limited, and removed with the session. If a folder
//! is set, the texts of older runs are stored there, and more runs are stored.
//!
//! The session's task writes it. Viewers read the newest version without asking the task, so that viewing does not
//! count as activity and delays nothing.

mod journal;
mod recorded;

use std::{
    borrow::Cow, collections::VecDeque, io, mem, ops::RangeInclusive, sync::Arc, time::Duration,
};

use bytes::Bytes;
use jiff::Timestamp;
use link::Vitals;
use model::{Approval, Artifact, DataPath, Outcome, Output, RunId, text::without_controls};
use protocol::message::{CellState, RuntimeName, Start};
use serde::{Deserialize, Serialize};

pub(crate) use self::{
    journal::{Changes, Journal},
    recorded::{MAX_RECORD_BYTES, Recorded},
};
use super::{
    CellReport, Phase, RunReport,
    command::Program,
    pictures::Picture,
    report::MAX_FIGURE,
    spill::{SpillFile, Spilled},
};
use crate::{calls::Called, notes::Notes};

/// Maximum number of runs that are stored, in memory alone and with a folder.
const MAX_RUNS: usize = 500;
const MAX_RUNS_ON_DISK: usize = 2000;

/// Bytes that the sessions of a server keep together, if all use their share.
const MAX_BYTES_OF_ALL: usize = 16 << 20;

/// The smallest and the largest number of bytes that a session may keep, however many sessions there are. The newest
/// run is always stored.
const MAX_BYTES: RangeInclusive<usize> = (256 << 10)..=(4 << 20);

/// Maximum number of characters of a program's first line that are shown.
const MAX_LINE_CHARS: usize = 80;

/// Factor by which a session with texts on disk may keep more bytes, because the rest of each run stays in memory.
const MORE_WITH_DISK: usize = 4;

/// Longest wait for an agent's report of resources.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a run besides its texts.
const RUN_BYTES: usize = 512;

/// Maximum number of calls of a run that are remembered: the first ones.
const MAX_CALLS: usize = 100;

/// The history of a session so far. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct History {
    runs: VecDeque<Arc<PastRun>>,
    max_bytes: usize,
    /// The file for texts that do not fit into memory.
    spill_file: Option<Arc<SpillFile>>,
    forgotten: usize,
    /// Whether there were runs before, which this server does not know.
    lacks_earlier: bool,
    version: u64,
    looks: u64,
    phase: Phase,
    changed: Option<Timestamp>,
    /// The reports of the present sandbox; `None` while there is no sandbox.
    vitals: Option<Vitals>,
    /// The resources that earlier sandboxes of the session have used.
    before: Resources,
}

/// The resources that a session uses, each `None` if it is not known. Agents report them every ten seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resources {
    /// Memory in bytes, files included; 0 while no sandbox is running.
    pub memory: Option<u64>,
    /// The most memory in bytes so far.
    pub memory_peak: Option<u64>,
    /// Processor time so far.
    pub cpu: Option<Duration>,
    /// Bytes of files in the data area.
    pub data: Option<u64>,
}

/// A run, in progress or ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PastRun {
    /// The id of the run.
    pub run_id: RunId,
    /// When the run was asked for.
    #[serde(with = "recorded::millis")]
    pub begun: Timestamp,
    /// The language of the run's code.
    pub language: RuntimeName,
    /// Whether the run is a cell of the workspace, not a program of its own.
    pub is_cell: bool,
    /// The run's whole code; empty if it is on disk: then [`whole`](Self::whole) reads it and the other texts.
    pub code: String,
    /// The first line of its source that is not blank, as printable text of at most 80 characters.
    #[serde(skip)]
    pub first_line: String,
    /// `None` while it is in progress.
    pub end: Option<RunEnd>,
    /// The newest text of standard output and standard error while it is in progress.
    #[serde(skip)]
    pub newest: [String; 2],
    /// The first calls of tools that its code has made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Called>,
    /// The number of its calls that are not in the list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub calls_omitted: usize,
    /// The calls that wait for a person while it is in progress.
    #[serde(skip)]
    pub(crate) approvals: Vec<Arc<Approval>>,
    /// The position of the run's texts on disk, if they are not in memory.
    #[serde(skip)]
    spilled: Option<Spilled>,
}

/// The texts of a run that may be on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Texts {
    code: String,
    stdout: String,
    stderr: String,
    result: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunEnd {
    /// Why the run ended.
    pub outcome: Outcome,
    /// The exit code of its report.
    pub exit_code: i32,
    /// Wall time of the code.
    pub elapsed: Duration,
    /// Standard output, as its caller saw it.
    pub stdout: String,
    /// Standard error, as its caller saw it.
    pub stderr: String,
    /// The notes on it.
    pub notes: Notes,
    /// The effect on the workspace, if the run was a cell.
    pub cell: Option<PastCell>,
    /// New and changed files, by path.
    pub artifacts: Vec<Artifact>,
    /// Artifacts that are not in the list because it would be too long.
    pub artifacts_omitted: usize,
    /// Pictures among them, as they were when it ended.
    #[serde(skip)]
    pictures: Vec<(DataPath, StoredPicture)>,
}

/// The place where a picture is stored.
#[derive(Debug, Clone)]
enum StoredPicture {
    InMemory(Bytes),
    OnDisk(Spilled),
}

/// A cell that has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PastCell {
    /// Cells that its interpreter has counted, including this one unless it was rolled back.
    pub count: u64,
    /// The state of the variables after it.
    pub state: CellState,
    /// The value of the cell's last expression.
    pub result: Option<String>,
    /// The error and the advice on it, in one sentence, unless the cell succeeded.
    pub error_message: Option<String>,
    /// Whether the cell was undone later.
    pub is_undone: bool,
}

impl History {
    /// The empty history of one of so many sessions.
    fn of(sessions: usize, spill_file: Option<Arc<SpillFile>>) -> Self {
        let max_bytes = MAX_BYTES_OF_ALL / sessions.max(1);
        let max_bytes = max_bytes.clamp(*MAX_BYTES.start(), *MAX_BYTES.end());
        Self { max_bytes, spill_file, ..Self::default() }
    }

    /// The last runs, oldest first.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = &PastRun> + ExactSizeIterator {
        self.runs.iter().map(|run| &**run)
    }

    /// The run of this name, if it is remembered.
    pub fn run(&self, run_id: &str) -> Option<&PastRun> {
        self.runs().rev().find(|run| run.run_id.as_str() == run_id)
    }

    /// The run that is in progress. There is one at a time.
    pub fn running(&self) -> Option<&PastRun> {
        self.runs().last().filter(|run| run.end.is_none())
    }

    /// The number of earlier runs, which are no longer stored.
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// A number that grows with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Maximum number of bytes of memory of its texts, its pictures, and the results of its runs, each.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// A number that grows with each new output of a run in progress.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// When a run or an upload last began or ended.
    pub fn changed(&self) -> Option<Timestamp> {
        self.changed
    }

    /// The present phase of the session.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The resources that the session uses, as its agent last reported them.
    pub fn resources(&self) -> Resources {
        let Self { vitals, before, .. } = self;
        let Some(vitals) = vitals else { return Resources { memory: Some(0), ..*before } };
        let now = vitals.report();
        let cpu = now.cpu_ms.map(|ms| Duration::from_millis(ms.min(MAX_FIGURE)));
        Resources {
            memory: vitals.memory(),
            memory_peak: now.memory_peak_bytes.max(before.memory_peak),
            cpu: cpu.map(|cpu| cpu + before.cpu.unwrap_or_default()).or(before.cpu),
            data: now.data_bytes.or(before.data),
        }
    }

    /// Waits until the session's agent has reported the resources anew, if the session has a sandbox. An agent that
    /// does not answer is not waited for long.
    pub async fn renew_resources(&self) {
        if let Some(vitals) = &self.vitals {
            vitals.renew(REPORT_TIMEOUT).await;
        }
    }

    /// Another sandbox has taken the place of the present one, or none has.
    fn replace_sandbox(&mut self, vitals: Option<Vitals>) {
        self.before = self.resources();
        self.vitals = vitals;
    }

    fn begin(&mut self, run_id: RunId, program: &Program) {
        let code = String::from_utf8_lossy(&program.code).into_owned();
        let begun = Timestamp::now();
        let (language, is_cell) = (program.language.clone(), program.cell);
        let first_line = first_line(&code);
        let run = PastRun {
            run_id,
            begun,
            language,
            is_cell,
            code,
            first_line,
            end: None,
            newest: Default::default(),
            calls: vec![],
            calls_omitted: 0,
            approvals: vec![],
            spilled: None,
        };
        self.runs.push_back(Arc::new(run));
        (self.phase, self.changed) = (Phase::Running, Some(begun));
        self.forget();
    }

    /// Notes the newest output of the run in progress.
    fn wrote(&mut self, run_id: &RunId, newest: &[String; 2]) {
        if let Some(run) = self.runs.back_mut().filter(|run| run.run_id == *run_id) {
            newest.clone_into(&mut Arc::make_mut(run).newest);
            self.looks += 1;
        }
    }

    /// Notes the calls of the run in progress that wait for a person.
    fn wait(&mut self, run_id: &RunId, approvals: &[Arc<Approval>]) {
        if let Some(run) = self.runs.back_mut().filter(|run| run.run_id == *run_id) {
            approvals.clone_into(&mut Arc::make_mut(run).approvals);
        }
    }

    /// Notes a call of the run in progress.
    fn called(&mut self, run_id: &RunId, called: &Called) {
        let Some(run) = self.runs.back_mut().filter(|run| run.run_id == *run_id) else { return };
        let run = Arc::make_mut(run);
        if run.calls.len() < MAX_CALLS {
            run.calls.push(called.clone());
        } else {
            run.calls_omitted += 1;
        }
    }

    /// Removes a run that could not be carried out.
    fn fail(&mut self, run_id: &RunId) {
        (self.phase, self.changed) = (Phase::Idle, Some(Timestamp::now()));
        self.runs.retain(|run| run.run_id != *run_id);
    }

    fn end(&mut self, report: &RunReport) {
        (self.phase, self.changed) = (Phase::Idle, Some(Timestamp::now()));
        // Only one run is in progress at a time, so it is the last one.
        let Some(run) = self.runs.back_mut().filter(|run| run.run_id == report.run_id) else {
            return;
        };
        let run = Arc::make_mut(run);
        run.newest = Default::default();
        run.approvals = vec![];
        run.end = Some(RunEnd {
            outcome: report.outcome,
            exit_code: report.exit_code,
            elapsed: report.elapsed,
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            notes: report.notes.clone(),
            cell: report.cell.as_ref().map(|cell| PastCell {
                count: cell.execution_count,
                state: cell.state,
                result: cell.result.as_ref().map(|result| result.text.clone()),
                error_message: cell.error_message.clone(),
                is_undone: false,
            }),
            artifacts: report.artifacts.clone(),
            artifacts_omitted: report.artifacts_omitted,
            pictures: vec![],
        });
        self.forget();
    }

    /// Keeps the pictures of a run that has ended, if they are among its artifacts.
    fn draw(&mut self, run_id: &RunId, pictures: &[Picture]) {
        let kept = |picture: &Picture| (picture.path.clone(), self.kept(&picture.bytes));
        let run = self.runs.iter().rposition(|run| run.run_id == *run_id);
        let Some((at, end)) = run.and_then(|at| Some((at, self.runs[at].end.as_ref()?))) else {
            return;
        };
        let is_artifact = |it: &&Picture| end.artifacts.iter().any(|file| file.path == it.path);
        let kept: Vec<_> = pictures.iter().filter(is_artifact).map(kept).collect();
        if let Some(end) = &mut Arc::make_mut(&mut self.runs[at]).end {
            end.pictures = kept;
        }
        self.forget_pictures();
    }

    /// Stores a picture on disk if possible, otherwise in memory.
    fn kept(&self, picture: &Bytes) -> StoredPicture {
        let on_disk =
            self.spill_file.as_ref().and_then(|spill_file| spill_file.add_bytes(picture).ok());
        on_disk.map_or_else(|| StoredPicture::InMemory(picture.clone()), StoredPicture::OnDisk)
    }

    /// Marks the last cells that lasted as undone.
    fn undo(&mut self, language: &RuntimeName, cells: u32) {
        let of_language = self.runs.iter_mut().rev().filter(|run| run.language == *language);
        let lasting = of_language.filter(|run| run.end.as_ref().is_some_and(RunEnd::has_lasted));
        for run in lasting.take(cells as usize) {
            let end = Arc::make_mut(run).end.as_mut();
            if let Some(cell) = end.and_then(|end| end.cell.as_mut()) {
                cell.is_undone = true;
            }
        }
        self.changed = Some(Timestamp::now());
    }

    /// Keeps the newest pictures that fit into memory, and drops the others.
    fn forget_pictures(&mut self) {
        let mut left = self.max_bytes;
        for run in self.runs.iter_mut().rev() {
            let pictures = run.end.iter().flat_map(|end| &end.pictures);
            let bytes: usize = pictures.map(|(_, kept)| kept.memory()).sum();
            if let Some(less) = left.checked_sub(bytes) {
                left = less;
                continue;
            }
            left = 0;
            if let Some(end) = &mut Arc::make_mut(run).end {
                end.pictures.retain(|(_, kept)| kept.memory() == 0);
            }
        }
    }

    fn forget(&mut self) {
        let mut bytes: usize = self.runs().map(PastRun::size).sum();
        let (mut max_runs, mut max_bytes) = (MAX_RUNS, self.max_bytes);
        if let Some(spill_file) = &self.spill_file {
            let before_last = self.runs.len().saturating_sub(1);
            let in_memory = self.runs.iter_mut().take(before_last);
            for run in in_memory.filter(|run| run.spilled.is_none()) {
                if bytes <= self.max_bytes {
                    break;
                }
                let size = run.size();
                if let Err(error) = Arc::make_mut(run).move_to(spill_file) {
                    tracing::warn!(%error, "old runs are discarded, because they cannot be written to disk");
                    self.spill_file = None;
                    break;
                }
                bytes -= size - run.size();
            }
            (max_runs, max_bytes) = (MAX_RUNS_ON_DISK, max_bytes * MORE_WITH_DISK);
        }
        while self.runs.len() > max_runs || (bytes > max_bytes && self.runs.len() > 1) {
            bytes -= self.runs.pop_front().map_or(0, |run| run.size());
            self.forgotten += 1;
        }
    }
}

impl StoredPicture {
    /// Bytes of memory that it uses.
    fn memory(&self) -> usize {
        match self {
            Self::InMemory(bytes) => bytes.len(),
            Self::OnDisk(_) => 0,
        }
    }
}

impl RunEnd {
    /// The picture at this path as it was when the run ended, if it is stored.
    pub fn picture(&self, path: &DataPath) -> Option<Bytes> {
        let (_, kept) = self.pictures.iter().find(|(it, _)| it == path)?;
        match kept {
            StoredPicture::InMemory(bytes) => Some(bytes.clone()),
            StoredPicture::OnDisk(spilled) => spilled.read_bytes().ok().map(Bytes::from),
        }
    }

    /// Whether the run was a cell that its interpreter has counted, and that was not undone.
    fn has_lasted(&self) -> bool {
        // A cell whose state is `Lost` has lasted too, if it was the first of a new interpreter.
        self.cell.as_ref().is_some_and(|cell| {
            !cell.is_undone && cell.count > 0 && cell.state != CellState::RolledBack
        })
    }
}

impl PastCell {
    /// The number of the cell in tracebacks and notes (`Cell In[7]`), if it has one. A cell that was rolled back is no
    /// longer counted, so the next one has the same number.
    pub fn number(&self) -> Option<u64> {
        match self.state {
            CellState::RolledBack => Some(self.count.saturating_add(1)),
            CellState::Kept | CellState::Lost => (self.count > 0).then_some(self.count),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl PastRun {
    /// Whether the run was a cell that was undone later.
    pub fn is_undone(&self) -> bool {
        let cell = self.end.as_ref().and_then(|end| end.cell.as_ref());
        cell.is_some_and(|cell| cell.is_undone)
    }

    /// The run with all its texts.
    ///
    /// # Errors
    /// If they are on disk and cannot be read.
    pub fn whole(&self) -> io::Result<Cow<'_, Self>> {
        let Some(spilled) = &self.spilled else { return Ok(Cow::Borrowed(self)) };
        let mut run = Self { spilled: None, ..self.clone() };
        run.exchange(&mut spilled.read()?);
        Ok(Cow::Owned(run))
    }

    /// Its report, as far as it is stored; `None` while it is in progress, and if its texts cannot be read.
    pub(crate) fn report(&self) -> Option<RunReport> {
        let run = self.whole().ok()?.into_owned();
        let end = run.end?;
        let output = |text: String| {
            let total = text.len() as u64;
            Output { text, total, head: total, ..Output::default() }
        };
        Some(RunReport {
            run_id: run.run_id,
            outcome: end.outcome,
            exit_code: end.exit_code,
            stdout: output(end.stdout),
            stderr: output(end.stderr),
            artifacts: end.artifacts,
            artifacts_omitted: end.artifacts_omitted,
            notes: end.notes,
            elapsed: end.elapsed,
            start: Start::Cold,
            agent_elapsed: end.elapsed,
            cpu: Duration::ZERO,
            fuel: None,
            cell: end.cell.map(|cell| CellReport {
                language: run.language,
                status: end.outcome.status(),
                state: cell.state,
                fresh: false,
                execution_count: cell.count,
                result: cell.result.map(output),
                memory_bytes: None,
                can_undo: 0,
                error_message: cell.error_message,
            }),
        })
    }

    /// Moves its texts to disk.
    fn move_to(&mut self, folder: &Arc<SpillFile>) -> io::Result<()> {
        let mut texts = Texts::default();
        self.exchange(&mut texts);
        match folder.add(&texts) {
            Ok(spilled) => self.spilled = Some(spilled),
            Err(error) => {
                self.exchange(&mut texts);
                return Err(error);
            }
        }
        Ok(())
    }

    fn exchange(&mut self, texts: &mut Texts) {
        mem::swap(&mut self.code, &mut texts.code);
        if let Some(end) = &mut self.end {
            mem::swap(&mut end.stdout, &mut texts.stdout);
            mem::swap(&mut end.stderr, &mut texts.stderr);
            if let Some(cell) = &mut end.cell {
                mem::swap(&mut cell.result, &mut texts.result);
            }
        }
    }

    fn size(&self) -> usize {
        let end = self.end.as_ref().map_or(0, |end| {
            let artifacts = end.artifacts.iter();
            let result = end.cell.as_ref().and_then(|cell| cell.result.as_ref());
            let result = result.map_or(0, String::len);
            let names: usize = artifacts.map(|file| file.path.as_str().len() + 64).sum();
            end.stdout.len() + end.stderr.len() + result + names + end.notes.max_bytes()
        });
        RUN_BYTES + self.code.len() + end
    }
}

/// The first line that is not blank, as printable text.
fn first_line(code: &str) -> String {
    let line = code.lines().map(str::trim).find(|line| !line.is_empty());
    without_controls(line.unwrap_or_default().chars().take(MAX_LINE_CHARS))
}

#[cfg(test)]
pub(super) mod tests {
    use model::{DataPath, Output};
    use proptest::prelude::*;
    use protocol::message::Start;

    use super::*;
    use crate::notes::Notes;
    use crate::session::events::{Observer, SandboxStart, SessionEvent};

    pub(in super::super) fn report(
        run_id: RunId,
        stdout: &str,
        stderr: &str,
        files: usize,
    ) -> RunReport {
        let output = |text: &str| Output { text: text.to_owned(), ..Output::default() };
        let path = |n| DataPath::relative(&format!("{n}.png")).expect("valid");
        let artifact = |n| Artifact { path: path(n), size_bytes: 1, modified_ns: 1 };
        RunReport {
            run_id,
            outcome: Outcome::Ok,
            exit_code: 0,
            stdout: output(stdout),
            stderr: output(stderr),
            artifacts: (0..files).map(artifact).collect(),
            notes: Notes::default(),
            artifacts_omitted: 0,
            elapsed: Duration::from_millis(1),
            start: Start::Warm,
            agent_elapsed: Duration::from_micros(1),
            cpu: Duration::ZERO,
            fuel: None,
            cell: None,
        }
    }

    pub(in super::super) fn program(code: &str) -> Program {
        Program::new(RuntimeName::PYTHON, code.to_owned(), Duration::from_secs(1))
    }

    #[test]
    fn pictures_in_memory_are_bounded_and_cost_no_run() {
        let (journal, reader) = Journal::new(Changes::default(), 100, None, 0);
        let most = reader.borrow().max_bytes;
        let size = most / 4;
        let mut names = vec![];
        for _ in 0..10 {
            let run_id = RunId::mint();
            journal.observe(&SessionEvent::RunBegan { run_id: &run_id, program: &program("x") });
            let report = report(run_id.clone(), "", "", 2);
            let path = report.artifacts[0].path.clone();
            let other = DataPath::relative("no artifact.png").expect("valid");
            let bytes = Bytes::from(vec![0; size]);
            let pictures = [path, other].map(|path| Picture { path, bytes: bytes.clone() });
            let language = &RuntimeName::PYTHON;
            journal.observe(&SessionEvent::RunEnded { report: &report, language });
            journal.observe(&SessionEvent::Drawn { run_id: &run_id, pictures: &pictures });
            names.push(run_id);
        }
        let history = reader.borrow();
        assert_eq!(history.runs().len(), names.len());
        let ends = history.runs().filter_map(|run| run.end.as_ref());
        let kept: Vec<_> = ends.map(|end| end.picture(&end.artifacts[0].path).is_some()).collect();
        assert_eq!(kept, [false, false, false, false, false, false, true, true, true, true]);
        let bytes: usize = history
            .runs()
            .filter_map(|run| run.end.as_ref())
            .flat_map(|end| &end.pictures)
            .map(|(_, kept)| kept.memory())
            .sum();
        assert_eq!(bytes, 4 * size, "what is no artifact is not kept");
    }

    #[test]
    fn a_session_starts_runs_and_rests() {
        let (journal, reader) = Journal::new(Changes::default(), 10, None, 0);
        let phase = || reader.borrow().phase();
        assert_eq!(phase(), Phase::Starting);
        journal.observe(&SessionEvent::Started {
            sandbox: "box",
            took: Duration::ZERO,
            vitals: Vitals::default(),
            start: SandboxStart::New,
        });
        assert_eq!(phase(), Phase::Idle);
        let id = RunId::mint();
        let program = program("print(1)");
        journal.observe(&SessionEvent::RunBegan { run_id: &id, program: &program });
        assert_eq!(phase(), Phase::Running);
        let running = reader.borrow().running().map(|run| run.run_id.clone());
        assert_eq!(running, Some(id.clone()));
        let report = report(id.clone(), "1\n", "", 30);
        let language = &RuntimeName::PYTHON;
        journal.observe(&SessionEvent::RunEnded { report: &report, language });
        assert_eq!(phase(), Phase::Idle);
        let history = reader.borrow();
        let run = history.runs().next().expect("one");
        let end = run.end.as_ref().expect("ended");
        assert_eq!((&*run.code, &*end.stdout), ("print(1)", "1\n"));
        assert_eq!((end.artifacts.len(), end.artifacts_omitted), (30, 0));
        assert_eq!(history.version(), 3);
        assert!(history.running().is_none());
        drop(history);

        let (id, program) = (RunId::mint(), self::program("\n  x =\x1b[2J 1\ny"));
        journal.observe(&SessionEvent::RunBegan { run_id: &id, program: &program });
        let line = reader.borrow().running().map(|run| run.first_line.clone());
        assert_eq!(line.as_deref(), Some("x =\u{FFFD}[2J 1"));
        journal.observe(&SessionEvent::RunFailed { run_id: &id });
        let history = reader.borrow();
        assert!(history.running().is_none() && history.run(id.as_str()).is_none());
        assert_eq!(history.runs().len(), 1);
    }

    #[test]
    fn cells_that_were_taken_back_are_the_last_that_lasted() {
        let mut history = History::of(10, None);
        let kept = CellState::Kept;
        let cells = [
            (RuntimeName::PYTHON, kept, 1),
            (RuntimeName::PYTHON, kept, 2),
            (RuntimeName::BASH, kept, 1),
            (RuntimeName::PYTHON, CellState::RolledBack, 2),
        ];
        for (language, state, count) in cells {
            let (id, cell) = (RunId::mint(), Program { language, cell: true, ..program("x") });
            history.begin(id.clone(), &cell);
            history.end(&report(id, "", "", 0));
            let end = history.runs.back_mut().and_then(|run| Arc::make_mut(run).end.as_mut());
            let cell =
                PastCell { count, state, result: None, error_message: None, is_undone: false };
            end.expect("it has ended").cell = Some(cell);
        }
        let undone = |history: &History| history.runs().map(PastRun::is_undone).collect::<Vec<_>>();
        history.undo(&RuntimeName::PYTHON, 1);
        assert_eq!(undone(&history), [false, true, false, false]);
        history.undo(&RuntimeName::PYTHON, 1);
        assert_eq!(undone(&history), [true, true, false, false]);
    }

    #[test]
    fn whoever_listens_hears_of_changes_in_any_session() {
        let changes = Changes::default();
        let mut listener = changes.listen();
        let (journal, _reader) = Journal::new(changes.clone(), 10, None, 0);
        assert!(!listener.has_changed().expect("open"));
        journal.observe(&SessionEvent::FileAdded { bytes: 1 });
        assert!(listener.has_changed().expect("open"));
        listener.mark_unchanged();
        assert!(!listener.has_changed().expect("open"));
    }

    #[test]
    fn with_a_folder_everything_is_remembered_whole_and_little_of_it_in_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut history =
            History::of(1000, Some(SpillFile::new(folder.path(), 0).expect("a file")));
        let code = |n: usize| format!("print({n}) #{}", "x".repeat(3000));
        for n in 0..700 {
            let id = RunId::mint();
            history.begin(id.clone(), &program(&code(n)));
            history.end(&report(id, &format!("{n}\n"), "", 0));
        }
        assert_eq!((history.runs().len(), history.forgotten()), (700, 0));
        for (n, run) in history.runs().enumerate() {
            assert!(run.first_line.starts_with(&format!("print({n}) #x")));
            let run = run.whole().expect("it can be read");
            let stdout = run.end.as_ref().map(|end| &*end.stdout);
            assert_eq!((&*run.code, stdout), (&*code(n), Some(&*format!("{n}\n"))));
        }
        let bytes: usize = history.runs().map(PastRun::size).sum();
        assert!(bytes < 2 * *MAX_BYTES.start(), "{bytes}");
    }

    proptest! {
        #[test]
        fn what_is_remembered_is_bounded_and_the_newest(
            sizes in prop::collection::vec((0usize..40_000, 0usize..9_000, 0usize..120), 1..90),
        ) {
            let mut history = History::of(1000, None);
            let mut last = None;
            for (code, output, files) in &sizes {
                let id = RunId::mint();
                history.begin(id.clone(), &program(&"x".repeat(*code)));
                let output = "y".repeat(*output);
                history.end(&report(id.clone(), &output, &output, *files));
                last = Some(id);
            }
            let bytes: usize = history.runs().map(PastRun::size).sum();
            prop_assert!(history.runs().len() <= MAX_RUNS);
            prop_assert!(bytes <= *MAX_BYTES.start());
            prop_assert_eq!(history.runs().len() + history.forgotten(), sizes.len());
            prop_assert_eq!(history.runs().last().map(|run| run.run_id.clone()), last);
        }
    }
}
