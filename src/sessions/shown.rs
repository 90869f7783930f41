//! The newest runs of a session as JSON, for people: on the page, and in apps of MCP clients.

use std::borrow::Cow;

use jiff::Timestamp;
use model::{
    Approval,
    text::{utf8, whole_ms},
};
use serde_json::{Value, json};

use super::{SessionInfo, Sessions};
use crate::{
    calls::Called,
    listing,
    notes::Notes,
    session::{History, PastRun, RunEnd},
    signed_urls::{NumberedSession, SignedUrls},
};

/// Maximum number of runs of a session that are shown, the newest, and of bytes of their texts. The notebook has all
/// remembered runs.
const MAX_RUNS: usize = 50;
const MAX_BYTES: usize = 256 << 10;

/// Bytes of a program that are shown, from its start.
const MAX_CODE_BYTES: usize = 16 << 10;

/// Bytes of each output that are shown: the start of standard output, and the end of standard error, where a
/// traceback names the error.
const MAX_OUTPUT_BYTES: usize = 4 << 10;

/// Maximum number of artifacts of a run that are shown.
const MAX_ARTIFACTS: usize = 20;

impl SessionInfo {
    pub(crate) fn numbered(&self) -> NumberedSession<'_> {
        NumberedSession { id: &self.id, number: self.number }
    }

    /// Adds the newest runs to a session's JSON, and the number of those that are left out.
    pub(crate) fn add_runs(&self, body: &mut Value, urls: Option<&SignedUrls>, of: &Sessions) {
        add_runs(body, &self.history, urls.map(|urls| (urls, self.numbered())), of);
    }
}

/// Adds the newest runs of a session of this caller to its JSON, and the number of those that are left out. With `links`,
/// the files of runs have URLs.
pub(crate) fn add_runs(
    body: &mut Value,
    history: &History,
    links: Option<(&SignedUrls, NumberedSession)>,
    of: &Sessions,
) {
    let mut left = MAX_BYTES;
    let newest = history.runs().rev().take(MAX_RUNS);
    // A run that cannot be read is shown without its texts.
    let whole = newest.map(|run| run.whole().unwrap_or(Cow::Borrowed(run)));
    let shown = whole.take_while(|run| {
        let is_newest = left == MAX_BYTES;
        left = left.saturating_sub(shown_bytes(run));
        left > 0 || is_newest
    });
    let (ecosystems, allowed) = (of.packages().ecosystems(), &of.config().packages);
    let notes = |end: &RunEnd| end.notes.clone().where_packages_are(ecosystems, allowed);
    let runs: Vec<_> = shown.map(|past| run(links, &past, notes)).collect();
    body["runs_omitted"] = (history.forgotten() + history.runs().len() - runs.len()).into();
    body["runs"] = runs.into();
}

/// Bytes of a run's texts that are shown, at most.
fn shown_bytes(run: &PastRun) -> usize {
    let ended = run.end.iter().flat_map(|end| [&end.stdout, &end.stderr]);
    let outputs = ended.chain(&run.newest);
    let outputs: usize = outputs.map(|text| text.len().min(MAX_OUTPUT_BYTES)).sum();
    run.code.len().min(MAX_CODE_BYTES) + outputs
}

/// A run as JSON, with the notes on it in the words of its caller's settings.
fn run(
    links: Option<(&SignedUrls, NumberedSession)>,
    run: &PastRun,
    notes: impl Fn(&RunEnd) -> Notes,
) -> Value {
    let code = utf8::start(&run.code, MAX_CODE_BYTES);
    let mut shown = json!({
        "run_id": run.run_id.as_str(),
        "begun_at": rfc3339(run.begun),
        "language": run.language.as_str(),
        "is_cell": run.is_cell,
        "code": code,
        "code_truncated": code.len() < run.code.len(),
    });
    if run.end.is_none() {
        let [stdout, stderr] = &run.newest;
        (shown["stdout"], shown["stderr"]) = (stdout.as_str().into(), stderr.as_str().into());
        if !run.approvals.is_empty() {
            shown["approvals"] = run.approvals.iter().map(|it| approval(it)).collect();
        }
    }
    if !run.calls.is_empty() {
        shown["calls"] = run.calls.iter().map(called).collect();
        shown["calls_omitted"] = run.calls_omitted.into();
    }
    if let Some(end) = &run.end {
        let artifacts = end.artifacts.iter().take(MAX_ARTIFACTS);
        let artifacts: Vec<_> =
            artifacts.map(|file| listing::artifact_json_with_mtime(links, file)).collect();
        let (stdout, stderr) =
            (utf8::start(&end.stdout, MAX_OUTPUT_BYTES), utf8::end(&end.stderr, MAX_OUTPUT_BYTES));
        let omitted = end.artifacts_omitted + end.artifacts.len() - artifacts.len();
        shown["outcome"] = end.outcome.as_str().into();
        shown["exit_code"] = end.exit_code.into();
        if let Some(cell) = &end.cell {
            if let Some(number) = cell.number() {
                shown["execution_count"] = number.into();
            }
            if cell.is_undone {
                shown["is_undone"] = true.into();
            }
            shown["state"] = cell.state.as_str().into();
            if let Some(message) = &cell.error_message {
                shown["error_message"] = message.as_str().into();
            }
            if let Some(result) = &cell.result {
                let start = utf8::start(result, MAX_OUTPUT_BYTES);
                shown["result"] = start.into();
                shown["result_truncated"] = (start.len() < result.len()).into();
            }
        }
        notes(end).add_to(&mut shown);
        shown["duration_ms"] = whole_ms(end.elapsed).into();
        shown["stdout"] = stdout.into();
        shown["stdout_truncated"] = (stdout.len() < end.stdout.len()).into();
        shown["stderr"] = stderr.into();
        shown["stderr_truncated"] = (stderr.len() < end.stderr.len()).into();
        shown["artifacts"] = artifacts.into();
        shown["artifacts_omitted"] = omitted.into();
    }
    shown
}

/// A call that waits for a person.
fn approval(waiting: &Approval) -> Value {
    json!({
        "approval_id": waiting.id,
        "upstream": waiting.upstream,
        "tool": waiting.tool,
        "description": waiting.description,
        "arguments": waiting.arguments,
        "until": rfc3339(waiting.until),
    })
}

/// A call of a tool by the run's code.
fn called(call: &Called) -> Value {
    let mut shown = json!({
        "upstream": call.upstream,
        "tool": call.tool,
        "outcome": call.outcome,
        "duration_ms": whole_ms(call.took),
    });
    if let Some(decision) = &call.decision {
        shown["decision"] = decision.as_str().into();
    }
    shown
}

/// A time as the JSON for people has it.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}
