//! A fetcher: a sandbox with a network and nothing else, in which pip looks for wheels and downloads them. What it
//! says and what it gets is not trusted: wheels come from it over the link, are hashed and looked through here, and
//! it is gone before any of them goes anywhere.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    time::Duration,
};

use bytes::Bytes;
use protocol::{
    frame::MAX_BODY,
    message::{End, RuntimeName},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    Fault, FaultKind,
    cache::Fetched,
    index::Index,
    requirement::{PlainName, Requirement},
    wheel::{Fault as WheelFault, Named, Wheel},
};
use crate::{
    artifact::DataPath,
    backend::{Backend, PackageKind, Spec},
    link::{Link, Opening, RunReply, RunRequest, Timing},
    sessions::Progress,
    text::printable,
};

/// What a fetcher runs.
const SCRIPT: &str = include_str!("../../sandbox-image/runtimes/python/fetch.py");

/// Most that is kept of what it says.
const MAX_ANSWER: usize = 256 << 10;

/// Most packages that come with one.
const MAX_PACKAGES: usize = 200;

/// What does the same, or most of it, where compiled packages cannot be installed.
const INSTEAD: [(&str, &str); 12] = [
    ("duckdb", "sqlite3"),
    ("jellyfish", "difflib"),
    ("levenshtein", "difflib"),
    ("lightgbm", "scikit-learn"),
    ("orjson", "json"),
    ("polars", "pandas"),
    ("pyarrow", "pandas (for CSV, Excel and pickle)"),
    ("python-levenshtein", "difflib"),
    ("rapidfuzz", "difflib"),
    ("torch", "scikit-learn"),
    ("ujson", "json"),
    ("xgboost", "scikit-learn"),
];

/// Versions that are told of what there is only in another form.
const MAX_VERSIONS: usize = 5;

/// Time between two looks at how it is going.
const LOOK: Duration = Duration::from_millis(500);

/// Longest that a fetcher takes to end by itself.
const END: Duration = Duration::from_secs(2);

/// Bounds of one fetch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// From the request for a sandbox to the last byte.
    pub(super) time: Duration,
    /// Bytes of all wheels, and of all that is in them.
    pub(super) bytes: u64,
}

#[derive(Serialize)]
struct Request<'a> {
    requirement: String,
    present: &'a BTreeMap<String, String>,
    /// The version of Python for which pure wheels are wanted, if those alone are, and not what this interpreter takes.
    pure_for: Option<&'a str>,
    seconds: u64,
    bytes: u64,
    #[serde(flatten)]
    index: &'a Index,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Failed(Failed),
    Found(Answered),
}

/// Why it has found nothing. A requirement is what is missing, which may be something that was not asked for itself.
#[derive(Deserialize)]
#[serde(tag = "failed", rename_all = "snake_case")]
enum Failed {
    /// No wheel that fits; `sources` are versions that there are in another form.
    Missing { requirement: String, sources: Vec<String> },
    /// No wheel in Python alone.
    Compiled { requirement: String },
    /// None in such a version.
    Version { requirement: String, versions: Vec<String> },
    /// It does not go with what is there.
    Conflict { reason: String },
    /// It is not what it should be.
    Refused { reason: String },
    /// It is larger than it may be.
    TooLarge,
    /// Anything else.
    Index { reason: String },
}

/// What it has found.
#[derive(Deserialize)]
struct Answered {
    found: Vec<Found>,
    /// Of what was asked for, as it is there already.
    version: Option<String>,
    /// Python's own modules.
    stdlib: HashSet<String>,
}

#[derive(Deserialize)]
struct Found {
    name: String,
    version: String,
    sha256: String,
    file: Option<String>,
}

/// Gets what a package needs, beside what is there, and its version.
pub(super) async fn fetch(
    backend: &dyn Backend,
    spec: Spec,
    (requirement, present, kind): (&Requirement, &BTreeMap<String, String>, &PackageKind),
    (index, bounds): (&Index, Bounds),
    progress: &watch::Sender<Progress>,
) -> Result<(String, Vec<Fetched>), Fault> {
    let fetching = async {
        let unavailable = |why: &dyn std::fmt::Display| {
            Fault::new(FaultKind::Index, format!("The package could not be fetched: {why}"))
        };
        let mut sandbox = backend.start(spec).await.map_err(|error| unavailable(&error))?;
        let stream = sandbox.take_stream();
        let linked = Link::connect(stream, Timing::default(), Opening::default()).await;
        let outcome = match linked {
            Ok((link, owner)) => {
                let outcome =
                    within(&link, (requirement, present, kind), (index, bounds), progress).await;
                drop((link, owner));
                outcome
            }
            Err(error) => Err(unavailable(&error)),
        };
        if timeout(END, sandbox.gone).await.is_err() {
            let _ = backend.remove(sandbox.id).await;
        }
        outcome
    };
    timeout(bounds.time, fetching).await.unwrap_or_else(|_| {
        let why = format!(
            "The package could not be fetched within {} s. Try again once; if it comes back, do without it.",
            bounds.time.as_secs()
        );
        Err(Fault::new(FaultKind::Index, why))
    })
}

async fn within(
    link: &Link,
    (requirement, present, kind): (&Requirement, &BTreeMap<String, String>, &PackageKind),
    (index, bounds): (&Index, Bounds),
    progress: &watch::Sender<Progress>,
) -> Result<(String, Vec<Fetched>), Fault> {
    let pure_for = match kind {
        PackageKind::OfFetcher => None,
        PackageKind::Pure { python } => Some(python.as_str()),
    };
    let request = Request {
        requirement: requirement.to_string(),
        present,
        pure_for,
        seconds: bounds.time.as_secs(),
        bytes: bounds.bytes,
        index,
    };
    let stdin = serde_json::to_vec(&request).map_err(|error| broken(&error))?;
    let run = RunRequest {
        runtime: RuntimeName::PYTHON,
        code: Bytes::from_static(SCRIPT.as_bytes()),
        stdin: Some(stdin.into()),
        timeout: bounds.time,
        output_cap: MAX_ANSWER,
        cell: false,
    };
    let running = link.run(run).await.map_err(|error| broken(&error))?;
    let number = running.call;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut finished = std::pin::pin!(running.finish());
    let reply = loop {
        tokio::select! {
            reply = &mut finished => break reply.map_err(|error| broken(&error))?,
            _ = looks.tick() => {
                if let Ok((_, line)) = link.peek(number).await {
                    let newest = printable(&String::from_utf8_lossy(&line));
                    progress.send_modify(|it| (it.started, it.line) = (true, newest));
                }
            }
        }
    };
    let Answered { found, version, stdlib } = answer(&reply, requirement)?;
    progress.send_modify(|it| "checking what was downloaded".clone_into(&mut it.line));
    let (mut downloads, mut left) = (vec![], bounds.bytes);
    for one in found {
        downloads.push(download(link, one, &mut left).await?);
    }
    let (mut all, mut left) = (vec![], bounds.bytes);
    for one in downloads {
        all.push(check(one, &stdlib, &mut left).await?);
    }
    let name = requirement.plain_name();
    let own = all.iter().find(|wheel| PlainName::of(&wheel.named.name) == name);
    let version = own.map(|wheel| wheel.named.version.clone()).or(version);
    Ok((version.unwrap_or_default(), all))
}

fn broken(error: &dyn std::fmt::Display) -> Fault {
    let why = printable(&error.to_string());
    Fault::new(FaultKind::Index, format!("What fetches packages failed: {why}. Try again once."))
}

/// Reads what it says last.
fn answer(reply: &RunReply, requirement: &Requirement) -> Result<Answered, Fault> {
    let text = [&reply.stdout.head[..], &reply.stdout.tail[..]].concat();
    let last = text.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    if reply.end != (End::Exited { code: 0 }) {
        tracing::warn!(
            end = ?reply.end,
            stderr = printable(&String::from_utf8_lossy(&reply.stderr.tail)),
            "a fetcher has failed"
        );
        return Err(match reply.end {
            End::TimedOut => broken(&"it took too long"),
            End::OutOfMemory => too_large(&requirement.to_string()),
            _ => broken(&"it ended early"),
        });
    }
    match serde_json::from_slice(last).map_err(|error| broken(&error))? {
        Answer::Failed(failed) => Err(explained(failed, requirement)),
        Answer::Found(answered) => {
            let is_plain = |text: &str| {
                let is_of = |c: char| c.is_ascii_alphanumeric() || "-_.+!".contains(c);
                (1..=200).contains(&text.len()) && text.chars().all(is_of)
            };
            let Answered { found, version, .. } = &answered;
            let are_plain = found.iter().all(|it| is_plain(&it.name) && is_plain(&it.version))
                && version.as_deref().is_none_or(is_plain);
            if !are_plain || found.len() > MAX_PACKAGES {
                return Err(broken(&"it names what cannot be a package"));
            }
            Ok(answered)
        }
    }
}

fn explained(failed: Failed, wanted: &Requirement) -> Fault {
    let list = |all: &[String]| printable(&all.join(", "));
    let (kind, why) = match failed {
        Failed::Missing { requirement, sources } if sources.is_empty() => {
            let what = printable(&requirement);
            let why = format!(
                "The package index has no {what}. Check the name; do without it if it is right."
            );
            (FaultKind::NotFound, why)
        }
        Failed::Missing { requirement, sources } => {
            let why = format!(
                "There is no wheel of {} for the Python here, and nothing is built from source (it has {}). Do \
                 without it.",
                printable(&requirement),
                list(&sources[..sources.len().min(MAX_VERSIONS)])
            );
            (FaultKind::NotFound, why)
        }
        Failed::Compiled { requirement } => {
            let name = wanted.plain_name();
            let instead = INSTEAD.iter().find(|(it, _)| *it == name.as_str());
            let instead =
                instead.map_or_else(String::new, |(_, there)| format!(" {there} is there."));
            let why = format!(
                "{} is not to be had in Python alone (a pure wheel), and the sandboxes here take nothing else.\
                 {instead} Do without it.",
                printable(&requirement)
            );
            (FaultKind::NotFound, why)
        }
        Failed::Version { requirement, versions } => {
            let why = format!(
                "There is no {} for the Python here that goes with what is installed. The index has: {}.",
                printable(&requirement),
                list(&versions)
            );
            (FaultKind::NotFound, why)
        }
        Failed::Conflict { reason } => {
            let why = format!(
                "{wanted} does not go with what is installed, which stays as it is: {}. Ask for another version, or \
                 do without it.",
                printable(&reason)
            );
            (FaultKind::Conflict, why)
        }
        Failed::Refused { reason } => {
            return Fault::refused(&wanted.to_string(), &printable(&reason));
        }
        Failed::TooLarge => return too_large(&wanted.to_string()),
        Failed::Index { reason } => {
            let reason = printable(&reason);
            let reason = reason.trim_end_matches('.');
            let why = format!(
                "The package index could not be asked: {reason}. Tell the person; do without it."
            );
            (FaultKind::Index, why)
        }
    };
    Fault::new(kind, why)
}

fn too_large(what: &str) -> Fault {
    let why = format!("{what} is larger than packages may be here. Do without it.");
    Fault::new(FaultKind::TooLarge, why)
}

/// A wheel as it was downloaded.
struct Download {
    named: Named,
    sha256: [u8; 32],
    file: File,
    bytes: u64,
}

/// Reads a wheel from the fetcher, as far as it may have so many bytes, and compares it with what the index says.
async fn download(link: &Link, found: Found, left: &mut u64) -> Result<Download, Fault> {
    let Found { name, version, sha256, file } = found;
    let what = format!("{name} {version}");
    let refused = |why: &str| Fault::refused(&what, why);
    let file = file.ok_or_else(|| refused("The index sent another file than it said."))?;
    let path = DataPath::relative(&format!("wheels/{file}")).map_err(|error| broken(&error))?;
    let into = tempfile::tempfile().map_err(|error| broken(&error))?;
    let mut into = tokio::fs::File::from_std(into);
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    loop {
        let (done, piece) =
            link.get(&path, bytes, MAX_BODY).await.map_err(|error| broken(&error))?;
        *left = left.checked_sub(piece.len() as u64).ok_or_else(|| too_large(&what))?;
        hash.update(&piece);
        bytes += piece.len() as u64;
        into.write_all(&piece).await.map_err(|error| broken(&error))?;
        if piece.is_empty() || bytes >= done.stamp.size {
            break;
        }
    }
    into.flush().await.map_err(|error| broken(&error))?;
    let hash: [u8; 32] = hash.finalize().into();
    if hex::encode(hash) != sha256.to_ascii_lowercase() {
        return Err(refused("What the index sent is not what it says it has."));
    }
    let named = Named { name, version, file };
    Ok(Download { named, sha256: hash, file: into.into_std().await, bytes })
}

/// Looks through a wheel to its end; all of them may unpack to so many bytes.
async fn check(
    download: Download,
    stdlib: &HashSet<String>,
    left: &mut u64,
) -> Result<Fetched, Fault> {
    let Download { named, sha256, file, bytes } = download;
    let read = async {
        let open = Wheel::open(&file, &named, *left).await?;
        open.check_modules(stdlib)?;
        let installs = open.installs();
        let mut pieces = open.pieces(true);
        while let Some(piece) = pieces.recv().await {
            *left = left.checked_sub(piece?.bytes.len() as u64).ok_or(WheelFault::TooLarge)?;
        }
        Ok(installs)
    };
    let what = format!("{} {}", named.name, named.version);
    match read.await {
        Ok(installs) => Ok(Fetched { named, sha256, file, bytes, installs }),
        Err(WheelFault::TooLarge) => Err(too_large(&what)),
        Err(fault) => {
            let (package, version) = (&named.name, &named.version);
            tracing::warn!(package, version, %fault, "a wheel was refused");
            Err(Fault::refused(&what, &format!("Its wheel {fault}.")))
        }
    }
}
