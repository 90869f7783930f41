//! The history of a session, with the results of its runs, as bytes: for the archive, and back.
//!
//! ```text
//! {"head": { .. }}       each line is JSON
//! {"run": { .. }}        the newest run is first, and so are the newest result and picture
//! {"result": { .. }}
//! {"picture": { .. }}
//! ```
//!
//! Both directions are bounded. A line that cannot be read costs only what is in it, so that another version may write
//! lines of other kinds.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use model::{Artifact, DataPath, RunId};
use serde::{Deserialize, Serialize};

use super::{History, MAX_RUNS_ON_DISK, PastRun, StoredPicture, first_line};
use crate::session::results::{Results, Stored};

/// The maximum number of bytes of the runs, of their results, and of their pictures, each.
const MAX_BYTES: usize = 4 << 20;

/// The maximum number of bytes that are read: all lines, with the names in them.
pub(crate) const MAX_RECORD_BYTES: u64 = 4 * MAX_BYTES as u64;

/// The maximum number of pictures that are read.
const MAX_PICTURES: usize = 10 * MAX_RUNS_ON_DISK;

/// The largest number of runs or files that is believed.
const MAX_COUNT: usize = 1_000_000;

/// A line of the record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Head {
        /// The number of earlier runs, which were no longer stored.
        forgotten: usize,
        lacks_earlier: bool,
    },
    Run(Box<PastRun>),
    Result {
        run_id: RunId,
        is_awaited: bool,
        result: String,
    },
    Picture {
        run_id: RunId,
        path: DataPath,
        base64: String,
    },
}

/// The recorded history of a session, and the results of its runs.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// The runs, the newest first.
    runs: Vec<PastRun>,
    forgotten: usize,
    lacks_earlier: bool,
    pictures: Vec<(RunId, DataPath, Bytes)>,
    results: Vec<Stored>,
}

/// The lines of a record within its bounds.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// Adds a line if `left` has room for it. Returns false if there is none.
    fn add(&mut self, line: &Line, left: &mut usize) -> bool {
        let mut bytes = serde_json::to_vec(line).expect("a line has only keys that are strings");
        bytes.push(b'\n');
        let fits = left.checked_sub(bytes.len());
        if let Some(less) = fits {
            *left = less;
            self.0.append(&mut bytes);
        }
        fits.is_some()
    }
}

impl Recorded {
    /// Writes the newest runs that have ended, their results and their pictures; `None` if no run has ended.
    pub(crate) fn write(history: &History, results: &Results) -> Option<Vec<u8>> {
        let ended = || history.runs().rev().filter(|run| run.end.is_some());
        ended().next()?;
        let (mut runs, mut left, mut written) = (Lines::default(), MAX_BYTES, 0);
        for run in ended() {
            // Without its texts on disk, a run says too little.
            let Ok(whole) = run.whole() else { break };
            if !runs.add(&Line::Run(Box::new(whole.into_owned())), &mut left) {
                break;
            }
            written += 1;
        }
        let forgotten = history.forgotten() + ended().count() - written;
        let head = Line::Head { forgotten, lacks_earlier: history.lacks_earlier() };
        let (mut lines, mut left) = (Lines::default(), MAX_BYTES);
        lines.add(&head, &mut left);
        lines.0.append(&mut runs.0);
        let mut left = MAX_BYTES;
        for Stored { run_id, is_awaited, result } in results.newest_first() {
            let result = String::from_utf8_lossy(&result).into_owned();
            lines.add(&Line::Result { run_id, is_awaited, result }, &mut left);
        }
        let mut left = MAX_BYTES;
        for run in ended().take(written) {
            let end = run.end.iter();
            for path in end.clone().flat_map(|end| end.pictures.iter().map(|(path, _)| path)) {
                let picture = end.clone().find_map(|end| end.picture(path));
                let Some(base64) = picture.map(|bytes| BASE64_STANDARD.encode(bytes)) else {
                    continue;
                };
                let (run_id, path) = (run.run_id.clone(), path.clone());
                lines.add(&Line::Picture { run_id, path, base64 }, &mut left);
            }
        }
        Some(lines.0)
    }

    /// Reads what was written, in any order, as far as it can be read.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut recorded = Self::default();
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(Line::Head { forgotten, lacks_earlier }) => {
                    recorded.forgotten = recorded.forgotten.saturating_add(forgotten);
                    recorded.lacks_earlier = lacks_earlier;
                }
                Ok(Line::Run(mut run)) => {
                    // A run that has not ended would seem to be in progress for ever.
                    let Some(end) = &mut run.end else { continue };
                    end.artifacts_omitted = end.artifacts_omitted.min(MAX_COUNT);
                    run.first_line = first_line(&run.code);
                    let language = run.language.as_str();
                    let is_name =
                        language.len() <= 64 && language.bytes().all(|b| b.is_ascii_graphic());
                    if is_name && recorded.runs.len() < MAX_RUNS_ON_DISK {
                        recorded.runs.push(*run);
                    }
                }
                Ok(Line::Result { run_id, is_awaited, result })
                    if recorded.results.len() < MAX_RUNS_ON_DISK =>
                {
                    recorded.results.push(Stored { run_id, is_awaited, result: result.into() });
                }
                Ok(Line::Picture { run_id, path, base64 })
                    if recorded.pictures.len() < MAX_PICTURES =>
                {
                    if let Ok(bytes) = BASE64_STANDARD.decode(base64) {
                        recorded.pictures.push((run_id, path, bytes.into()));
                    }
                }
                _ => {}
            }
        }
        recorded.forgotten = recorded.forgotten.min(MAX_COUNT);
        recorded
    }

    /// Sets the times of files that have other ones since they were restored: `now` has the artifact of each file that
    /// was saved as the first of a pair.
    pub(crate) fn adjust(&mut self, now: &HashMap<Artifact, i64>) {
        let ends = self.runs.iter_mut().filter_map(|run| run.end.as_mut());
        for file in ends.flat_map(|end| &mut end.artifacts) {
            if let Some(modified_ns) = now.get(file) {
                file.modified_ns = *modified_ns;
            }
        }
    }

    /// Adds the results of the runs to those of a session whose results take at most so many bytes.
    pub(crate) fn add_results(&mut self, to: &Results, max_bytes: usize) {
        for result in std::mem::take(&mut self.results).into_iter().rev() {
            to.add(result, max_bytes);
        }
    }

    /// The history as its viewers see it, for a session that is not live.
    pub(crate) fn into_history(self) -> History {
        let mut history = History::of(1, None);
        history.recall(&self);
        history
    }
}

impl History {
    /// Whether there were runs before those that are stored or forgotten, of which nothing is known.
    pub fn lacks_earlier(&self) -> bool {
        self.lacks_earlier
    }

    /// Puts recorded runs before those that are here.
    pub(super) fn recall(&mut self, recorded: &Recorded) {
        self.forgotten += recorded.forgotten;
        self.lacks_earlier = recorded.lacks_earlier;
        let mut pictures = HashMap::<_, Vec<_>>::new();
        for (run_id, path, bytes) in &recorded.pictures {
            pictures.entry(run_id.as_str()).or_default().push((path, bytes));
        }
        for run in &recorded.runs {
            let mut run = run.clone();
            if let Some(end) = &mut run.end {
                let of_run = pictures.remove(run.run_id.as_str()).into_iter().flatten();
                let kept = |(path, bytes): (&DataPath, &Bytes)| (path.clone(), self.kept(bytes));
                end.pictures = of_run.map(kept).collect::<Vec<(DataPath, StoredPicture)>>();
            }
            self.runs.push_front(Arc::new(run));
        }
        self.forget();
        self.forget_pictures();
    }
}

/// A time in milliseconds since the epoch.
pub(super) mod millis {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(in super::super) fn serialize<S: Serializer>(
        at: &Timestamp,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        at.as_millisecond().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Timestamp, D::Error> {
        Timestamp::from_millisecond(i64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{program, report},
        *,
    };
    use crate::session::pictures::Picture;

    /// A history of so many runs with code of this size, and the results of its runs.
    fn of_runs(runs: usize, size: usize) -> (History, Results) {
        let (mut history, results) = (History::of(1, None), Results::default());
        for n in 0..runs {
            let (run_id, code) = (RunId::mint(), format!("# {n} {}", "\u{1}".repeat(size)));
            history.begin(run_id.clone(), &program(&code));
            let report = report(run_id.clone(), &format!("{n}\n"), "", 1);
            history.end(&report);
            let path = report.artifacts[0].path.clone();
            history.draw(&run_id, &[Picture { path, bytes: vec![7; 10].into() }]);
            results.add(Stored { run_id, is_awaited: false, result: "{}".into() }, MAX_BYTES);
        }
        (history, results)
    }

    #[test]
    fn a_record_has_the_runs_with_their_pictures_and_results() {
        let (mut history, results) = of_runs(3, 10);
        history.forgotten = 4;
        history.begin(RunId::mint(), &program("in progress"));
        let bytes = Recorded::write(&history, &results).expect("runs have ended");
        let mut recorded = Recorded::read(&bytes);
        let (again, max_bytes) = (Results::default(), history.max_bytes());
        recorded.add_results(&again, max_bytes);
        let restored = recorded.into_history();
        assert_eq!((restored.runs().len(), restored.forgotten()), (3, 4));
        for (was, is) in history.runs().zip(restored.runs()) {
            assert_eq!((&was.run_id, &was.code), (&is.run_id, &is.code));
            assert_eq!((&was.first_line, &was.language), (&is.first_line, &is.language));
            let (was, is) = (was.end.as_ref().expect("ended"), is.end.as_ref().expect("ended"));
            assert_eq!((&was.stdout, &was.artifacts), (&is.stdout, &is.artifacts));
            assert_eq!(is.picture(&is.artifacts[0].path).as_deref(), Some(&[7; 10][..]));
        }
        let ids =
            |of: &Results| of.newest_first().into_iter().map(|it| it.run_id).collect::<Vec<_>>();
        assert_eq!(ids(&again), ids(&results));
    }

    #[test]
    fn of_a_forged_record_no_more_is_read_than_a_real_one_can_have() {
        let (run_id, path) = (RunId::mint(), DataPath::relative("a.png").expect("valid"));
        let result =
            || Line::Result { run_id: run_id.clone(), is_awaited: false, result: String::new() };
        let picture =
            || Line::Picture { run_id: run_id.clone(), path: path.clone(), base64: String::new() };
        let (mut lines, mut left) = (Lines::default(), usize::MAX);
        for _ in 0..=MAX_PICTURES {
            assert!(lines.add(&result(), &mut left) && lines.add(&picture(), &mut left));
        }
        let recorded = Recorded::read(&lines.0);
        let read = (recorded.results.len(), recorded.pictures.len());
        assert_eq!(read, (MAX_RUNS_ON_DISK, MAX_PICTURES));
    }

    #[test]
    fn a_record_is_bounded_and_counts_what_it_lacks() {
        // Each of these bytes is six in JSON.
        let (history, results) = of_runs(8, 300 << 10);
        let bytes = Recorded::write(&history, &results).expect("runs have ended");
        assert!(bytes.len() < 5 << 20, "{}", bytes.len());
        let restored = Recorded::read(&bytes).into_history();
        let (stored, of_all) = (restored.runs().len(), history.runs().len() + history.forgotten());
        assert_eq!(stored, 2);
        assert_eq!(stored + restored.forgotten(), of_all);
        let newest = |of: &History| of.runs().last().map(|run| run.run_id.clone());
        assert_eq!(newest(&restored), newest(&history));
        assert!(Recorded::write(&History::default(), &results).is_none(), "no run has ended");
    }
}
