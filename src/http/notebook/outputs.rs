//! The outputs of a run, as a notebook shows them. Pure.

use model::{Outcome, text::whole_ms};
use protocol::message::RuntimeName;
use serde_json::{Value, json};

use super::{count, table};
use crate::{
    calls::Called,
    notes::{TRACEBACK, raised_by_node, raised_line},
    session::{PastRun, RunEnd},
};

/// The start of a traceback if the code could not be parsed.
const UNREADABLE: [&str; 2] = ["  File \"", "  Cell In["];

/// The run's streams, error and value. Pictures are not included.
pub(super) fn outputs(run: &PastRun) -> Vec<Value> {
    let Some(end) = &run.end else { return vec![] };
    let failure = Failure::of(run, end);
    let stderr = failure.as_ref().map_or(&*end.stderr, |it| it.before);
    let streams = [("stdout", &*end.stdout), ("stderr", stderr)];
    let streams = streams.into_iter().filter(|(_, text)| !text.is_empty());
    let streams =
        streams.map(|(name, text)| json!({ "output_type": "stream", "name": name, "text": text }));
    let result = end.cell.as_ref().and_then(|cell| cell.result.as_ref()).map(|text| {
        let mut data = json!({ "text/plain": text });
        if let Some(html) = table::html(text) {
            data["text/html"] = html.into();
        }
        json!({
            "output_type": "execute_result",
            "execution_count": count(run),
            "metadata": {},
            "data": data,
        })
    });
    let calls = (!run.calls.is_empty()).then(|| {
        json!({
            "output_type": "display_data",
            "metadata": {},
            "data": { "text/plain": calls(run) },
        })
    });
    calls.into_iter().chain(streams).chain(failure.map(|it| it.output())).chain(result).collect()
}

/// The calls of tools that the run has made, a line for each.
fn calls(run: &PastRun) -> String {
    let line = |call: &Called| {
        let Called { upstream, tool, outcome, took, decision, .. } = call;
        let decided = decision.as_ref().map(|it| format!(", a person: {it}")).unwrap_or_default();
        format!("called {upstream}.{tool}: {outcome}, {} ms{decided}", whole_ms(*took))
    };
    let mut lines: Vec<_> = run.calls.iter().map(line).collect();
    if run.calls_omitted > 0 {
        lines.push(format!("and {} more calls", run.calls_omitted));
    }
    lines.join("\n")
}

/// Why a run failed or was stopped.
#[derive(Debug)]
struct Failure<'a> {
    /// The standard error before the failure.
    before: &'a str,
    name: String,
    value: String,
    traceback: &'a str,
}

impl<'a> Failure<'a> {
    fn of(run: &PastRun, end: &'a RunEnd) -> Option<Self> {
        let stderr = &*end.stderr;
        if end.outcome == Outcome::Ok {
            return None;
        }
        let raised = (end.outcome == Outcome::Error).then(|| raised(&run.language, stderr));
        if let Some((start, line)) = raised.flatten() {
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            return Some(Self {
                before: &stderr[..start],
                name: name.trim().to_owned(),
                value: value.trim().to_owned(),
                traceback: &stderr[start..],
            });
        }
        // The reason is the last line of a program's standard error, or the message of a cell.
        let message = end.cell.as_ref().map(|cell| cell.error_message.as_deref());
        let (before, why) = match message {
            Some(message) => (stderr, message.unwrap_or(end.outcome.as_str())),
            None if end.outcome == Outcome::Error => (stderr, ""),
            None => {
                let text = stderr.trim_end();
                text.split_at(text.rfind('\n').map_or(0, |at| at + 1))
            }
        };
        let is_exit = end.outcome == Outcome::Error && run.language == RuntimeName::PYTHON;
        let name = if is_exit { "SystemExit" } else { end.outcome.as_str() };
        let value = match end.outcome {
            Outcome::Error => end.exit_code.to_string(),
            _ => why.to_owned(),
        };
        Some(Self { before, name: name.to_owned(), value, traceback: why })
    }

    fn output(&self) -> Value {
        let mut lines: Vec<_> = self.traceback.trim_end().lines().map(str::to_owned).collect();
        if lines.is_empty() {
            lines.push(format!("{}: {}", self.name, self.value));
        }
        json!({
            "output_type": "error",
            "ename": self.name,
            "evalue": self.value,
            "traceback": lines,
        })
    }
}

/// The start of the traceback, and the line that names the exception which ended the code, if there is one.
fn raised(language: &RuntimeName, stderr: &str) -> Option<(usize, String)> {
    if *language == RuntimeName::JAVASCRIPT {
        return raised_by_node(stderr).map(|line| (0, line.to_owned()));
    }
    if *language != RuntimeName::PYTHON {
        return None;
    }
    let line_of = |at: usize| stderr[..at].rfind('\n').map_or(0, |end| end + 1);
    let traceback = stderr.find(TRACEBACK).map(line_of);
    let start = traceback.or_else(|| {
        let mut at = 0;
        let mut lines = stderr.split_inclusive('\n').map(|line| {
            at += line.len();
            (at - line.len(), line)
        });
        let begins = |line: &str| UNREADABLE.iter().any(|words| line.starts_with(words));
        lines.find(|(_, line)| begins(line)).map(|(at, _)| at)
    })?;
    // IPython draws a rule above the traceback.
    let above = stderr[..start].trim_end_matches('\n');
    let rule = line_of(above.len());
    let is_rule = above.len() - rule > 20 && above[rule..].bytes().all(|it| it == b'-');
    Some((if is_rule { rule } else { start }, raised_line(stderr).into_owned()))
}
