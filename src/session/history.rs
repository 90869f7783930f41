//! What a session has done, for people who view it: its last runs, in memory, bounded, and gone with
//! the session.
//!
//! The task of the session writes it; viewers read the newest state without asking the task, so that
//! viewing does not count as activity and holds nothing up.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    Artifact, Outcome, Phase, RunId, RunReport,
    events::{Observer, SessionEvent},
};
use crate::text::utf8;

/// Runs that are remembered.
const MAX_RUNS: usize = 50;

/// Bytes of all that is remembered; the newest run is, whatever it takes.
const MAX_BYTES: usize = 256 << 10;

/// Bytes of a program that are remembered.
const MAX_CODE_BYTES: usize = 16 << 10;

/// Bytes of each output that are remembered.
const MAX_OUTPUT_BYTES: usize = 4 << 10;

/// Artifacts of a run that are remembered.
const MAX_ARTIFACTS: usize = 20;

/// What a session has done so far. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct History {
    runs: VecDeque<Arc<PastRun>>,
    forgotten: usize,
    version: u64,
    phase: Phase,
    changed: Option<Timestamp>,
}

/// A run, in progress or ended.
#[derive(Debug, Clone)]
pub struct PastRun {
    /// Names the run.
    pub run_id: RunId,
    /// When it was asked for.
    pub begun: Timestamp,
    /// Python source, from its start.
    pub code: Excerpt,
    /// `None` while it is in progress.
    pub end: Option<RunEnd>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// Why it ended.
    pub outcome: Outcome,
    /// As in its report.
    pub exit_code: i32,
    /// Wall time of the code.
    pub elapsed: Duration,
    /// Standard output, from its start.
    pub stdout: Excerpt,
    /// The end of standard error, where a traceback says what happened.
    pub stderr: Excerpt,
    /// New and changed files, by path.
    pub artifacts: Vec<Artifact>,
    /// Artifacts that are not in the list because it would be too long.
    pub artifacts_omitted: usize,
}

/// The part of a text that is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// Whole characters.
    pub text: String,
    /// There was more.
    pub is_cut: bool,
}

impl History {
    /// The last runs, oldest first.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = &PastRun> + ExactSizeIterator {
        self.runs.iter().map(|run| &**run)
    }

    /// How many runs there were before those.
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// Another after each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// When a run or an upload last began or ended.
    pub fn changed(&self) -> Option<Timestamp> {
        self.changed
    }

    /// What the session does now.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn begin(&mut self, run_id: RunId, code: &Bytes) {
        let code = Excerpt::start(&String::from_utf8_lossy(code), MAX_CODE_BYTES);
        let begun = Timestamp::now();
        self.runs.push_back(Arc::new(PastRun { run_id, begun, code, end: None }));
        (self.phase, self.changed) = (Phase::Running, Some(begun));
        self.forget();
    }

    fn end(&mut self, report: &RunReport) {
        (self.phase, self.changed) = (Phase::Idle, Some(Timestamp::now()));
        // One runs at a time, so it is the last.
        let Some(run) = self.runs.back_mut().filter(|run| run.run_id == report.run_id) else {
            return;
        };
        let more = report.artifacts.len().saturating_sub(MAX_ARTIFACTS);
        Arc::make_mut(run).end = Some(RunEnd {
            outcome: report.outcome,
            exit_code: report.exit_code,
            elapsed: report.elapsed,
            stdout: Excerpt::start(&report.stdout.text, MAX_OUTPUT_BYTES),
            stderr: Excerpt::end(&report.stderr.text, MAX_OUTPUT_BYTES),
            artifacts: report.artifacts.iter().take(MAX_ARTIFACTS).cloned().collect(),
            artifacts_omitted: report.artifacts_omitted + more,
        });
        self.forget();
    }

    fn forget(&mut self) {
        let mut bytes: usize = self.runs().map(PastRun::size).sum();
        while self.runs.len() > MAX_RUNS || (bytes > MAX_BYTES && self.runs.len() > 1) {
            bytes -= self.runs.pop_front().map_or(0, |run| run.size());
            self.forgotten += 1;
        }
    }
}

impl PastRun {
    fn size(&self) -> usize {
        let end = self.end.as_ref().map_or(0, |end| {
            let artifacts = end.artifacts.iter();
            let names: usize = artifacts.map(|file| file.path.as_str().len() + 64).sum();
            end.stdout.text.len() + end.stderr.text.len() + names
        });
        self.code.text.len() + end
    }
}

impl Excerpt {
    fn start(text: &str, most: usize) -> Self {
        Self::part(utf8::start(text, most), text)
    }

    fn end(text: &str, most: usize) -> Self {
        Self::part(utf8::end(text, most), text)
    }

    fn part(part: &str, text: &str) -> Self {
        Self { text: part.to_owned(), is_cut: part.len() < text.len() }
    }
}

/// Where a session's task writes what it does.
#[derive(Debug)]
pub(crate) struct Journal {
    history: watch::Sender<History>,
    /// Told of every change in any session.
    changes: Changes,
}

impl Journal {
    /// An empty one, and where it is read.
    pub(crate) fn new(changes: Changes) -> (Self, watch::Receiver<History>) {
        let (history, reader) = watch::channel(History::default());
        (Self { history, changes }, reader)
    }

    fn note(&self, change: impl FnOnce(&mut History)) {
        self.history.send_modify(|history| {
            change(history);
            history.version += 1;
        });
        self.changes.tell();
    }
}

impl Observer for Journal {
    fn observe(&self, event: &SessionEvent<'_>) {
        match event {
            SessionEvent::Started { .. } => self.note(|history| history.phase = Phase::Idle),
            SessionEvent::RunBegan { run_id, code } => {
                self.note(|history| history.begin((*run_id).clone(), code));
            }
            SessionEvent::RunEnded { report, .. } => self.note(|history| history.end(report)),
            SessionEvent::FileAdded { .. } => {
                self.note(|history| history.changed = Some(Timestamp::now()));
            }
            // What viewers have to hear of it they have heard with the events above.
            SessionEvent::Phase(phase) => {
                self.history.send_if_modified(|history| {
                    history.phase = *phase;
                    false
                });
            }
            SessionEvent::NotStarted
            | SessionEvent::Warmed { .. }
            | SessionEvent::FileRead { .. }
            | SessionEvent::Ended(_) => {}
        }
    }
}

/// Tells all viewers that something is new. Clones tell the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Changes(Arc<watch::Sender<()>>);

impl Default for Changes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(())))
    }
}

impl Changes {
    pub(crate) fn tell(&self) {
        self.0.send_replace(());
    }

    pub(crate) fn listen(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::message::Start;

    use super::*;
    use crate::notes::Notes;
    use crate::{artifact::DataPath, link::Memory, session::Output};

    fn report(run_id: RunId, stdout: &str, stderr: &str, files: usize) -> RunReport {
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
        }
    }

    #[test]
    fn a_session_starts_runs_and_rests() {
        let (journal, reader) = Journal::new(Changes::default());
        let phase = || reader.borrow().phase();
        assert_eq!(phase(), Phase::Starting);
        journal.observe(&SessionEvent::Started {
            sandbox: "box",
            took: Duration::ZERO,
            memory: Memory::default(),
        });
        assert_eq!(phase(), Phase::Idle);
        let id = RunId::mint();
        let code = Bytes::from_static(b"print(1)");
        journal.observe(&SessionEvent::RunBegan { run_id: &id, code: &code });
        assert_eq!(phase(), Phase::Running);
        let report = report(id, "1\n", "", 30);
        journal.observe(&SessionEvent::RunEnded { report: &report, wall: Duration::ZERO });
        assert_eq!(phase(), Phase::Idle);
        let history = reader.borrow();
        let run = history.runs().next().expect("one");
        let end = run.end.as_ref().expect("ended");
        assert_eq!((&*run.code.text, &*end.stdout.text), ("print(1)", "1\n"));
        assert_eq!((end.artifacts.len(), end.artifacts_omitted), (20, 10));
        assert_eq!(history.version(), 3);
    }

    #[test]
    fn of_an_output_the_start_is_kept_and_of_errors_the_end() {
        let long = "é".repeat(MAX_OUTPUT_BYTES);
        let start = Excerpt::start(&format!("1{long}"), MAX_OUTPUT_BYTES);
        assert!(
            start.is_cut && start.text.len() == MAX_OUTPUT_BYTES - 1 && start.text.starts_with('1')
        );
        let end = Excerpt::end(&format!("{long}1"), MAX_OUTPUT_BYTES);
        assert!(end.is_cut && end.text.len() == MAX_OUTPUT_BYTES - 1 && end.text.ends_with('1'));
        assert_eq!(
            Excerpt::end("all", MAX_OUTPUT_BYTES),
            Excerpt { text: "all".into(), is_cut: false }
        );
    }

    #[test]
    fn whoever_listens_hears_of_changes_in_any_session() {
        let changes = Changes::default();
        let mut listener = changes.listen();
        let (journal, _reader) = Journal::new(changes.clone());
        assert!(!listener.has_changed().expect("open"));
        journal.observe(&SessionEvent::FileAdded { bytes: 1 });
        assert!(listener.has_changed().expect("open"));
        listener.mark_unchanged();
        assert!(!listener.has_changed().expect("open"));
    }

    proptest! {
        #[test]
        fn what_is_remembered_is_bounded_and_the_newest(
            sizes in prop::collection::vec((0usize..40_000, 0usize..9_000, 0usize..120), 1..90),
        ) {
            let mut history = History::default();
            let mut last = None;
            for (code, output, files) in &sizes {
                let id = RunId::mint();
                history.begin(id.clone(), &vec![b'x'; *code].into());
                let output = "y".repeat(*output);
                history.end(&report(id.clone(), &output, &output, *files));
                last = Some(id);
            }
            let bytes: usize = history.runs().map(PastRun::size).sum();
            prop_assert!(history.runs().len() <= MAX_RUNS);
            prop_assert!(bytes <= MAX_BYTES);
            prop_assert_eq!(history.runs().len() + history.forgotten(), sizes.len());
            prop_assert_eq!(history.runs().last().map(|run| run.run_id.clone()), last);
        }
    }
}
