//! What was done in a session, to be read and to be done again: its runs as a notebook for Jupyter, with their
//! outputs and pictures, or as a Python script. Made while it is sent, so that pictures cost no memory.

use std::{collections::BTreeSet, fmt::Write as _, io};

use axum::body::Bytes;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{Stream, StreamExt, TryStreamExt};
use protocol::message::RuntimeName;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, DuplexStream},
    task::yield_now,
};
use tokio_util::{io::ReaderStream, task::AbortOnDropHandle};

use super::script::{self, Part};
use crate::{
    artifact::is_picture,
    session::{Artifact, History, Outcome, PastRun, Pieces, RunEnd, SessionId},
    sessions::{Open, Sessions},
};

/// What the runs are written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Jupyter's, nbformat 4.5.
    Notebook,
    /// Python, in cells that editors know by `# %%`.
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

/// What a reader has to know of the code in a notebook.
const NOTEBOOK_REMARK: &str =
    "Cells may use await outside of functions, which runs in a notebook only.";

/// Bytes between the task that writes and the one that sends.
const BUFFER_BYTES: usize = 64 << 10;

/// The record of a session's runs, as they were when it was asked for. It ends with an error, and so is never
/// taken for whole, if a picture changes or the session ends meanwhile.
pub(super) fn stream(
    kind: Kind,
    sessions: Sessions,
    id: SessionId,
    history: History,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let (writer, reader) = tokio::io::duplex(BUFFER_BYTES);
    let record = Record { sessions, id, history };
    let writing = AbortOnDropHandle::new(tokio::spawn(async move {
        match kind {
            Kind::Notebook => record.notebook(writer).await,
            Kind::Script => record.script(writer).await,
        }
    }));
    let verdict = futures::stream::once(async move { writing.await.map_err(io::Error::other)? });
    let end = verdict.try_filter_map(|()| async { Ok(None) });
    ReaderStream::with_capacity(reader, BUFFER_BYTES).chain(end)
}

struct Record {
    sessions: Sessions,
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

    /// A run as a cell, whose outputs end with its pictures as far as they are still what they were.
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
            // As it was then, or else as it still is.
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

    /// Writes a picture whose file is still what it was, after this. False, and nothing is written, if it is not.
    async fn unchanged(
        &self,
        picture: &Artifact,
        head: &str,
        writer: &mut DuplexStream,
    ) -> io::Result<bool> {
        let opened = self.sessions.perform(&self.id, Open { path: picture.path.clone() }).await;
        let Ok(file) = opened else { return Ok(false) };
        let stamp = file.stamp();
        if (stamp.size, stamp.mtime_ns) != (picture.size_bytes, picture.modified_ns) {
            return Ok(false);
        }
        writer.write_all(head.as_bytes()).await?;
        let mut pieces = std::pin::pin!(file.range(0..stamp.size, Pieces::new(0)));
        let mut rest = vec![];
        while let Some(piece) = pieces.try_next().await.map_err(io::Error::other)? {
            rest.extend_from_slice(&piece);
            // Three bytes are four characters; what is left over waits for the next piece.
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

    /// What has to stand before all parts of the script, each once. The parts are made once more when it is their
    /// turn, as all of them together may be hundreds of megabytes; others have their turn between two.
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

    /// What a reader has to know before.
    fn remark(&self) -> String {
        let mut remark =
            "Written by llm-sandbox. Programs were processes of their own; cells shared their variables."
                .to_owned();
        if self.history.forgotten() > 0 {
            let _ = write!(remark, " {} earlier runs are not kept.", self.history.forgotten());
        }
        remark
    }
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
    if !has_lasted(run) {
        // Tools that run notebooks know this word.
        metadata["tags"] = json!(["skip-execution"]);
    }
    metadata
}

/// How it ended, in one word.
fn outcome(run: &PastRun) -> &'static str {
    match &run.end {
        None => "running",
        Some(_) if run.is_undone() => "undone",
        Some(end) => end.outcome.as_str(),
    }
}

/// Its number among the cells of its interpreter.
fn count(run: &PastRun) -> Option<u64> {
    run.end.as_ref()?.cell.as_ref().map(|cell| cell.count)
}

/// Done again, it would do something: it has not failed as a program, or been taken back as a cell.
fn has_lasted(run: &PastRun) -> bool {
    run.end.as_ref().is_some_and(|end| end.outcome == Outcome::Ok) && !run.is_undone()
}

/// The code as a notebook in Python runs it.
fn source(run: &PastRun) -> String {
    let is = |name: RuntimeName| run.language == name;
    match () {
        () if is(RuntimeName::PYTHON) => run.code.clone(),
        () if is(RuntimeName::BASH) => format!("%%bash\n{}", run.code),
        () if is(RuntimeName::JAVASCRIPT) => format!("%%script node\n{}", run.code),
        () => format!("%%script {}\n{}", run.language.as_str(), run.code),
    }
}

fn outputs(run: &PastRun) -> Vec<Value> {
    let Some(end) = &run.end else { return vec![] };
    let stream = |name: &str, text: &str| {
        let stream = json!({ "output_type": "stream", "name": name, "text": text });
        (!text.is_empty()).then_some(stream)
    };
    let result = end.cell.as_ref().and_then(|cell| cell.result.as_ref()).map(|text| {
        json!({
            "output_type": "execute_result",
            "execution_count": count(run),
            "metadata": {},
            "data": { "text/plain": text },
        })
    });
    let stopped = stopped(end).map(|words| stream("stderr", words));
    [stream("stdout", &end.stdout), stream("stderr", &end.stderr), stopped.flatten(), result]
        .into_iter()
        .flatten()
        .collect()
}

/// What is said of a cell that was stopped, whose own outputs do not say so.
fn stopped(end: &RunEnd) -> Option<&'static str> {
    end.cell.as_ref()?;
    match end.outcome {
        Outcome::Timeout => Some("The cell was stopped, as its time was over.\n"),
        Outcome::Cancelled => Some("The cell was stopped, as it was cancelled.\n"),
        Outcome::OutOfMemory => {
            Some("The cell was stopped, as it needed more memory than there is.\n")
        }
        Outcome::OutOfFuel => {
            Some("The cell was stopped, as it had used all the instructions that it may.\n")
        }
        Outcome::Ok | Outcome::Error | Outcome::Killed => None,
    }
}

/// A run as a part of a script: what would not run again, or is not Python, as comments.
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
