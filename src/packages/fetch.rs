//! A fetcher: a sandbox with a network and nothing else, in which pip looks for wheels and downloads them. What it
//! says and what it gets is not trusted: wheels come from it over the link, are hashed and looked through here, and
//! it is gone before any of them goes anywhere.

use std::{
    collections::{BTreeMap, HashSet},
    io::Write as _,
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
    link::{Link, Opening, RunReply, RunRequest, Stream, Timing},
    sessions::Progress,
    text::{human_size, printable},
};

/// What a fetcher runs.
const SCRIPT: &str = include_str!("fetch.py");

/// Most that is kept of what it says.
const MAX_ANSWER: usize = 256 << 10;

/// Most packages that come with one.
const MAX_PACKAGES: usize = 200;

/// What does the same, or most of it, where compiled packages cannot be installed.
const INSTEAD: [(&str, &str); 13] = [
    ("cryptography", "hashlib"),
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
    Failed {
        failed: String,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        requirement: String,
        #[serde(default)]
        versions: Vec<String>,
        #[serde(default)]
        sources: Vec<String>,
    },
    Found(Answered),
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
        let reader = std::mem::replace(&mut sandbox.reader, Box::new(tokio::io::empty()));
        let writer = std::mem::replace(&mut sandbox.writer, Box::new(tokio::io::sink()));
        let stream = Stream { reader, writer };
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
    let (mut left, mut all) = (bounds.bytes, vec![]);
    for one in found {
        let wheel = download(link, one, &mut left).await?;
        all.push(wheel);
    }
    let mut left = bounds.bytes;
    for wheel in &all {
        check(wheel, &stdlib, &mut left).await?;
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
            End::OutOfMemory => too_large(requirement),
            _ => broken(&"it ended early"),
        });
    }
    match serde_json::from_slice(last).map_err(|error| broken(&error))? {
        Answer::Failed { failed, reason, requirement: what, versions, sources } => {
            Err(explained(&failed, &reason, &what, &versions, &sources, requirement))
        }
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

fn explained(
    failed: &str,
    reason: &str,
    what: &str,
    versions: &[String],
    sources: &[String],
    wanted: &Requirement,
) -> Fault {
    let (reason, what) = (printable(reason), printable(what));
    let what = if what.is_empty() { wanted.to_string() } else { what };
    let list = |all: &[String]| printable(&all.join(", "));
    match failed {
        "missing" if sources.is_empty() => {
            let why = format!(
                "The package index has no {what}. Check the name; do without it if it is right."
            );
            Fault::new(FaultKind::NotFound, why)
        }
        "missing" => {
            let why = format!(
                "There is no wheel of {what} for the Python here, and nothing is built from source (it has {}). \
                 Do without it.",
                list(&sources[..sources.len().min(5)])
            );
            Fault::new(FaultKind::NotFound, why)
        }
        "compiled" => {
            let name = wanted.plain_name();
            let instead = INSTEAD.iter().find(|(it, _)| *it == name.as_str());
            let instead =
                instead.map_or_else(String::new, |(_, there)| format!(" {there} is there."));
            let why = format!(
                "{what} is not to be had in Python alone (a pure wheel), and the sandboxes here take nothing else.\
                 {instead} Do without it."
            );
            Fault::new(FaultKind::NotFound, why)
        }
        "version" => {
            let why = format!(
                "There is no {what} for the Python here that goes with what is installed. The index has: {}.",
                list(versions)
            );
            Fault::new(FaultKind::NotFound, why)
        }
        "conflict" => {
            let why = format!(
                "{wanted} does not go with what is installed, which stays as it is: {reason}. Ask for another \
                 version, or do without it."
            );
            Fault::new(FaultKind::Conflict, why)
        }
        "hash" | "refused" => Fault::refused(&wanted.to_string(), &reason),
        "size" => too_large(wanted),
        _ => {
            let why = format!("The package index could not be asked: {reason}");
            let end = if why.ends_with('.') { "" } else { "." };
            Fault::new(FaultKind::Index, format!("{why}{end} Tell the person; do without it."))
        }
    }
}

fn too_large(wanted: &Requirement) -> Fault {
    let why = format!("{wanted} is larger than packages may be here. Do without it.");
    Fault::new(FaultKind::TooLarge, why)
}

/// Reads a wheel from the fetcher, as far as it may have so many bytes, and compares it with what the index says.
async fn download(link: &Link, found: Found, left: &mut u64) -> Result<Fetched, Fault> {
    let Found { name, version, sha256, file } = found;
    let what = format!("{name} {version}");
    let refused = |why: &str| Fault::refused(&what, why);
    let file = file.ok_or_else(|| refused("The index sent another file than it said."))?;
    let path = DataPath::relative(&format!("wheels/{file}")).map_err(|error| broken(&error))?;
    let mut into = tempfile::tempfile().map_err(|error| broken(&error))?;
    let (mut hash, mut offset) = (Sha256::new(), 0);
    loop {
        let (done, bytes) =
            link.get(&path, offset, MAX_BODY).await.map_err(|error| broken(&error))?;
        *left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            Fault::new(
                FaultKind::TooLarge,
                format!("{what} is larger than packages may be here. Do without it."),
            )
        })?;
        hash.update(&bytes);
        offset += bytes.len() as u64;
        into.write_all(&bytes).map_err(|error| broken(&error))?;
        if bytes.is_empty() || offset >= done.stamp.size {
            break;
        }
    }
    let hash: [u8; 32] = hash.finalize().into();
    if hex::encode(hash) != sha256.to_ascii_lowercase() {
        return Err(refused("What the index sent is not what it says it has."));
    }
    let named = Named { name, version, file };
    Ok(Fetched { named, sha256: hash, file: into, bytes: offset })
}

/// Looks through a wheel to its end.
async fn check(wheel: &Fetched, stdlib: &HashSet<String>, left: &mut u64) -> Result<(), Fault> {
    let named = &wheel.named;
    let read = async {
        let open = Wheel::open(&wheel.file, named, *left).await?;
        open.check_modules(stdlib)?;
        let (mut bytes, mut pieces) = (0, open.pieces(true));
        while let Some(piece) = pieces.recv().await {
            bytes += piece?.bytes.len() as u64;
        }
        Ok::<_, WheelFault>(bytes)
    };
    match read.await {
        Ok(bytes) => {
            *left -= bytes;
            Ok(())
        }
        Err(WheelFault::TooLarge) => {
            let most = human_size(*left);
            let why = format!(
                "{} unpacks to more than the {most} that packages may have here.",
                named.name
            );
            Err(Fault::new(FaultKind::TooLarge, why))
        }
        Err(fault) => {
            tracing::warn!(package = named.name, version = named.version, %fault, "a wheel was refused");
            let why = format!("Its wheel {fault}.");
            Err(Fault::refused(&format!("{} {}", named.name, named.version), &why))
        }
    }
}
