//! The record of a session, to be read and to be run again: its runs as a Jupyter notebook with their outputs
//! and pictures, or as a Python script. It is written while it is sent, so that pictures take no memory.

mod outputs;
mod table;

use std::{collections::BTreeSet, fmt::Write as _, io};

use axum::body::Bytes;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{Stream, TryStreamExt};
use model::{Artifact, Outcome, SessionId, artifact::is_picture};
use protocol::message::{CellState, RuntimeName};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, DuplexStream},
    task::yield_now,
};

use self::outputs::outputs;
use super::{
    archive::FilesOf,
    body::written,
    script::{self, Part},
};
use crate::session::{History, PastRun, RunEnd};

/// The format of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A Jupyter notebook, nbformat 4.5.
    Notebook,
    /// A Python script, in cells that editors recognize by `# %%`.
    Script,
}

impl Kind {
    pub(super) fn mime(self) -> &'static str {
        match self {
            Self::Notebook => "application/x-ipynb+json",
            Self::Script => "text/x-python; charset=utf-8",
        }
    }

    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Notebook => "ipynb",
            Self::Script => "py",
        }
    }
}

/// The remark about the code in a notebook, for its readers.
const NOTEBOOK_REMARK: &str = "Cells may use await outside of functions, which runs in a notebook only. Cells that were stopped or taken back \
     are comments.";

/// The record of a session's runs, as they were when it was requested. The stream ends with an error if a
/// picture changes or the session ends meanwhile, so that a partial record is never taken for a complete one.
pub(super) fn stream(
    kind: Kind,
    files: FilesOf,
    id: SessionId,
    history: History,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let record = Record { files, id, history };
    written(move |writer| async move {
        match kind {
            Kind::Notebook => record.notebook(writer).await,
            Kind::Script => record.script(writer).await,
        }
    })
}

struct Record {
    files: FilesOf,
    id: SessionId,
    history: History,
}

impl Record {
    async fn notebook(self, mut writer: DuplexStream) -> io::Result<()> {
        let metadata = json!({
            "kernelspec": { "name": "python3", "display_name": "Python 3", "language": "python" },
            "language_info": { "name": "python" },
        });
        let title = json!({
            "cell_type": "markdown",
            "id": "title",
            "metadata": {},
            "source": format!("# Session {}\n\n{} {NOTEBOOK_REMARK}", self.id, self.remark()),
        });
        let head =
            format!(r#"{{"nbformat":4,"nbformat_minor":5,"metadata":{metadata},"cells":[{title}"#);
        writer.write_all(head.as_bytes()).await?;
        for run in self.history.runs() {
            self.cell(&*run.whole()?, &mut writer).await?;
        }
        writer.write_all(b"]}").await?;
        writer.shutdown().await
    }

    /// Writes a run as a cell. Its outputs end with its pictures, if they were recorded or have not changed since.
    async fn cell(&self, run: &PastRun, writer: &mut DuplexStream) -> io::Result<()> {
        let cell = json!({
            "cell_type": "code",
            "id": run.run_id.as_str(),
            "metadata": metadata(run),
            "execution_count": count(run),
            "source": source(run),
        })
        .to_string();
        let open = &cell[..cell.len() - 1];
        let mut outputs = outputs(run).iter().map(Value::to_string).collect::<Vec<_>>().join(",");
        writer.write_all(format!(",{open},\"outputs\":[{outputs}").as_bytes()).await?;
        let Some(end) = &run.end else { return writer.write_all(b"]}").await };
        for picture in pictures(end) {
            let comma = if outputs.is_empty() { "" } else { "," };
            let head = format!(
                r#"{comma}{{"output_type":"display_data","metadata":{{}},"data":{{"{}":""#,
                picture.path.mime()
            );
            // The picture as it was recorded, or else its file if that has not changed.
            if let Some(bytes) = end.picture(&picture.path) {
                writer.write_all(head.as_bytes()).await?;
                writer.write_all(BASE64_STANDARD.encode(&bytes).as_bytes()).await?;
            } else if !self.unchanged(picture, &head, writer).await? {
                continue;
            }
            "there is one".clone_into(&mut outputs);
            writer.write_all(b"\"}}").await?;
        }
        writer.write_all(b"]}").await
    }

    /// Writes `head` and the picture if the picture's file has not changed; otherwise writes
    /// nothing and returns false.
    async fn unchanged(
        &self,
        picture: &Artifact,
        head: &str,
        writer: &mut DuplexStream,
    ) -> io::Result<bool> {
        let Ok((stamp, pieces)) = self.files.open(&picture.path).await else { return Ok(false) };
        if (stamp.size, stamp.mtime_ns) != (picture.size_bytes, picture.modified_ns) {
            return Ok(false);
        }
        writer.write_all(head.as_bytes()).await?;
        let mut pieces = std::pin::pin!(pieces);
        let mut rest = vec![];
        while let Some(piece) = pieces.try_next().await? {
            rest.extend_from_slice(&piece);
            // Base64 encodes three bytes as four characters; remaining bytes wait for the next piece.
            let whole = rest.len() / 3 * 3;
            writer.write_all(BASE64_STANDARD.encode(&rest[..whole]).as_bytes()).await?;
            rest.drain(..whole);
        }
        writer.write_all(BASE64_STANDARD.encode(&rest).as_bytes()).await?;
        Ok(true)
    }

    async fn script(self, mut writer: DuplexStream) -> io::Result<()> {
        let remark = format!("# Session {}\n# {}\n# {}\n", self.id, self.remark(), script::REMARK);
        writer.write_all(remark.as_bytes()).await?;
        writer.write_all(self.prelude().await?.as_bytes()).await?;
        for run in self.history.runs() {
            yield_now().await;
            let run = run.whole()?;
            let (id, language, outcome) = (&run.run_id, run.language.as_str(), outcome(&run));
            let title = format!("\n# %% {id}: {language}, {outcome}\n");
            writer.write_all((title + &part(&run).code).as_bytes()).await?;
        }
        writer.shutdown().await
    }

    /// The lines that must precede all parts of the script, each once. The parts are created again when they are
    /// written, because all of them together may be hundreds of megabytes; other tasks can run between two parts.
    async fn prelude(&self) -> io::Result<String> {
        let (mut futures, mut displays) = (BTreeSet::new(), false);
        for run in self.history.runs() {
            yield_now().await;
            let part = part(&*run.whole()?);
            futures.extend(part.futures);
            displays |= part.displays;
        }
        let futures: String = futures.into_iter().map(|import| import + "\n").collect();
        Ok(futures + if displays { script::DISPLAY } else { "" })
    }

    /// The remark at the start of the record.
    fn remark(&self) -> String {
        remark(self.history.lacks_earlier(), self.history.forgotten())
    }
}

/// The remark at the start of the record of a session that had runs before, of which nothing is known, or of which this
/// number of runs is no longer stored.
fn remark(lacks_earlier: bool, forgotten: usize) -> String {
    let mut remark =
        "Written by llm-sandbox. Programs were processes of their own; cells shared their variables."
            .to_owned();
    if lacks_earlier {
        remark += " Earlier runs are not recorded.";
    } else if forgotten > 0 {
        let _ = write!(remark, " {forgotten} earlier runs are not kept.");
    }
    remark
}

/// Pictures that notebooks show, in the order in which they were made.
fn pictures(end: &RunEnd) -> Vec<&Artifact> {
    let mut pictures: Vec<_> =
        end.artifacts.iter().filter(|file| is_picture(file.path.mime())).collect();
    pictures.sort_by_key(|file| file.modified_ns);
    pictures
}

fn metadata(run: &PastRun) -> Value {
    let kind = if run.is_cell { "cell" } else { "program" };
    let outcome = outcome(run);
    let mut metadata = json!({ "llm_sandbox": {
        "kind": kind, "language": run.language.as_str(), "outcome": outcome,
    } });
    let tags = tags(run);
    if !tags.is_empty() {
        metadata["tags"] = tags.into();
    }
    metadata
}

/// The outcome of the run, in one word.
fn outcome(run: &PastRun) -> &'static str {
    match &run.end {
        None => "running",
        Some(_) if run.is_undone() => "undone",
        Some(end) => end.outcome.as_str(),
    }
}

/// The number of the run among the cells of its interpreter.
fn count(run: &PastRun) -> Option<u64> {
    run.end.as_ref()?.cell.as_ref()?.number()
}

/// Whether running the code again has an effect: the run succeeded, and was not undone as a cell.
fn has_lasted(run: &PastRun) -> bool {
    has_ended(run, Outcome::Ok) && !run.is_undone()
}

/// Whether the run failed by itself, and its interpreter continued.
fn has_failed(run: &PastRun) -> bool {
    let cell = run.end.as_ref().and_then(|end| end.cell.as_ref());
    has_ended(run, Outcome::Error)
        && !run.is_undone()
        && cell.is_none_or(|cell| cell.state == CellState::Kept && cell.count > 0)
}

fn has_ended(run: &PastRun, outcome: Outcome) -> bool {
    run.end.as_ref().is_some_and(|end| end.outcome == outcome)
}

/// The tags that tell programs that run notebooks how to treat a cell that did not succeed. A cell that failed runs
/// again, because later cells use the variables that it set before the error. A program leaves no variables.
fn tags(run: &PastRun) -> Vec<&'static str> {
    match (has_lasted(run), has_failed(run)) {
        (true, _) => vec![],
        (false, true) if run.is_cell => vec!["raises-exception"],
        (false, true) => vec!["raises-exception", "skip-execution"],
        (false, false) => vec!["skip-execution"],
    }
}

/// The run's code for a Python notebook. Jupyter's "Run All" ignores `skip-execution`, so code that was
/// stopped or undone becomes a comment: it would never end, or repeat what was undone.
fn source(run: &PastRun) -> String {
    let is = |name: RuntimeName| run.language == name;
    let code = match () {
        () if is(RuntimeName::PYTHON) => run.code.clone(),
        () if is(RuntimeName::BASH) => format!("%%bash\n{}", run.code),
        () if is(RuntimeName::JAVASCRIPT) => format!("%%script node\n{}", run.code),
        () => format!("%%script {}\n{}", run.language.as_str(), run.code),
    };
    if has_lasted(run) || has_failed(run) {
        return code;
    }
    let outcome = outcome(run).replace('_', " ");
    format!("# Not run again ({outcome}):\n{}", Part::comment(&code).code.trim_end())
}

/// A run as a part of a script. Code that must not run again, or is not Python, becomes a comment.
fn part(run: &PastRun) -> Part {
    let is_python = run.language == RuntimeName::PYTHON;
    if !is_python || !has_lasted(run) {
        Part::comment(&run.code)
    } else if run.is_cell {
        Part::cell(&run.code)
    } else {
        Part::program(&run.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_lacks_earlier_runs_says_so() {
        assert!(!remark(false, 0).contains("earlier"));
        assert!(remark(false, 7).ends_with("7 earlier runs are not kept."));
        for forgotten in [0, 7] {
            assert!(remark(true, forgotten).ends_with(" Earlier runs are not recorded."));
        }
    }
}
