//! A fetcher: a sandbox with a network and nothing else, in which pip or npm works out what is needed and downloads
//! it. What it says and what it gets is not trusted: archives come from it over the link, are hashed and looked
//! through here, and it is gone before any of them goes anywhere.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use model::{
    DataPath,
    package::{Ecosystem, Fault, FaultKind, PlainName, Requirement, is_npm_name},
    text::{human_size, printable},
};
use protocol::{
    frame::MAX_BODY,
    message::{End, RuntimeName},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256, Sha512};
use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    archive::{Fault as ArchiveFault, NODE_MODULES, Named},
    cache::{Fetched, FetchedPackage, Got},
    index::Index,
    tarball,
    wheel::Wheel,
};
use crate::{
    backend::{Backend, Spec},
    link::{Link, Opening, RunReply, RunRequest, Timing},
    progress::Progress,
};

/// What a fetcher runs, and the folder in which that leaves what it has downloaded.
const PIP: (&str, &str) = (include_str!("../../sandbox-image/runtimes/python/fetch.py"), "wheels");
const NPM: (&str, &str) =
    (include_str!("../../sandbox-image/runtimes/javascript/fetch.cjs"), "tarballs");

/// Most that is kept of what it says.
const MAX_ANSWER: usize = 256 << 10;

/// What a file takes a whole number of, in memory.
const PAGE: u64 = 4096;

/// Most packages that come with one.
const MAX_PACKAGES: usize = 300;

/// Most bytes of what npm has to know of the packages of a session, all of which is one message with the rest of a
/// request: some six hundred packages.
const MAX_LOCK: usize = 256 << 10;

/// The same, as it travels.
const MAX_WRITTEN: usize = 320 << 10;

/// Longest place of a package for JavaScript, in bytes.
const MAX_PLACE: usize = 1000;

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

/// What is there, as far as a fetcher cannot see it by itself.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Beside<'a> {
    Python {
        present: &'a BTreeMap<String, String>,
        /// The version of Python for which pure wheels are wanted, if those alone are, and not what this interpreter
        /// takes.
        pure_for: Option<&'a str>,
    },
    JavaScript {
        /// What was said with the last answer.
        lock: Option<&'a str>,
    },
}

#[derive(Serialize)]
struct Request<'a> {
    requirement: String,
    #[serde(flatten)]
    beside: &'a Beside<'a>,
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
    /// It is made for other systems.
    Platform { requirement: String },
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
    /// Of what was asked for, as it is there.
    version: Option<String>,
    /// Python's own modules.
    #[serde(default)]
    stdlib: HashSet<String>,
    /// A file with what npm has to know next time, if that has changed.
    #[serde(default)]
    lock: Option<String>,
    /// Names of packages whose installing would have run something.
    #[serde(default)]
    scripts: Vec<String>,
}

#[derive(Deserialize)]
struct Found {
    name: String,
    version: String,
    #[serde(flatten)]
    hash: Hash,
    /// In the folder of downloads.
    file: Option<String>,
    /// Where it goes, of a package for JavaScript.
    #[serde(default)]
    place: String,
}

/// What the index says that it is, in hexadecimal digits.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Hash {
    Sha256(String),
    Sha512(String),
}

/// Gets what a package needs, beside what is there.
pub(super) async fn fetch(
    backend: &dyn Backend,
    spec: Spec,
    (requirement, beside): (&Requirement, &Beside<'_>),
    bounds: Bounds,
    progress: &watch::Sender<Progress>,
) -> Result<Got, Fault> {
    let fetching = async {
        let unavailable = |why: &dyn std::fmt::Display| {
            Fault::new(FaultKind::Index, format!("The package could not be fetched: {why}"))
        };
        let mut sandbox = backend.start(spec).await.map_err(|error| unavailable(&error))?;
        let stream = sandbox.take_stream();
        let linked = Link::connect(stream, Timing::default(), Opening::default()).await;
        let outcome = match linked {
            Ok((link, owner)) => {
                let outcome = within(&link, (requirement, beside), bounds, progress).await;
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
    (requirement, beside): (&Requirement, &Beside<'_>),
    bounds: Bounds,
    progress: &watch::Sender<Progress>,
) -> Result<Got, Fault> {
    let ecosystem = requirement.ecosystem();
    let request = Request {
        requirement: requirement.to_string(),
        beside,
        seconds: bounds.time.as_secs(),
        bytes: bounds.bytes,
        index: &Index::here(ecosystem),
    };
    let stdin = serde_json::to_vec(&request).map_err(|error| broken(&error))?;
    let (runtime, (script, folder)) = match ecosystem {
        Ecosystem::PyPi => (RuntimeName::PYTHON, PIP),
        Ecosystem::Npm => (RuntimeName::JAVASCRIPT, NPM),
    };
    let run = RunRequest {
        runtime,
        code: Bytes::from_static(script.as_bytes()),
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
    let Answered { found, version, stdlib, lock, scripts } =
        answer(&reply, requirement, bounds.bytes)?;
    progress.send_modify(|it| "checking what was downloaded".clone_into(&mut it.line));
    let (mut downloads, mut left) = (vec![], bounds.bytes);
    let too_large = || too_large(requirement, bounds.bytes);
    for one in found {
        downloads.push(download(link, folder, one, &mut left, too_large).await?);
    }
    let (mut packages, mut left) = (vec![], bounds.bytes);
    for one in downloads {
        packages.push(check(one, ecosystem, &stdlib, &mut left, too_large).await?);
    }
    let name = requirement.plain_name();
    let is_own = |package: &&FetchedPackage| {
        ecosystem == Ecosystem::PyPi && PlainName::of(&package.named.name) == name
    };
    let own = packages.iter().find(is_own);
    let version = own.map(|package| package.named.version.clone()).or(version);
    let lock = match lock {
        Some(file) => Some(read_lock(link, &file, requirement).await?),
        None => None,
    };
    let version = version.ok_or_else(|| broken(&"it does not say which version there is"))?;
    Ok(Got { version, packages, lock, scripts })
}

/// What npm has to know next time. It is nobody else's business what that is.
async fn read_lock(link: &Link, file: &str, wanted: &Requirement) -> Result<Arc<str>, Fault> {
    let path = DataPath::relative(file).map_err(|error| broken(&error))?;
    let (done, text) = link.get(&path, 0, MAX_LOCK).await.map_err(|error| broken(&error))?;
    let text = std::str::from_utf8(&text).map_err(|error| broken(&error))?;
    // It travels as a text of JSON, in which some characters take several.
    let is_larger = serde_json::to_string(text).is_ok_and(|written| written.len() > MAX_WRITTEN);
    if done.stamp.size > text.len() as u64 || is_larger {
        return Err(too_many(wanted));
    }
    Ok(text.into())
}

fn broken(error: &dyn std::fmt::Display) -> Fault {
    let why = printable(&error.to_string());
    Fault::new(FaultKind::Index, format!("What fetches packages failed: {why}. Try again once."))
}

/// Reads what it says last.
fn answer(reply: &RunReply, requirement: &Requirement, most: u64) -> Result<Answered, Fault> {
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
            End::OutOfMemory => broken(&"there is more to look at than it has memory for"),
            _ => broken(&"it ended early"),
        });
    }
    match serde_json::from_slice(last).map_err(|error| broken(&error))? {
        Answer::Failed(failed) => Err(explained(failed, requirement, most)),
        Answer::Found(answered) => {
            let is_plain = |text: &str| {
                let is_of = |c: char| c.is_ascii_alphanumeric() || "-_.+!".contains(c);
                (1..=200).contains(&text.len()) && text.chars().all(is_of)
            };
            let is_package = |it: &Found| match requirement.ecosystem() {
                Ecosystem::PyPi => is_plain(&it.name) && it.place.is_empty(),
                Ecosystem::Npm => is_npm_name(&it.name) && is_place(&it.place),
            };
            let is_hashed = |it: &Found| match requirement.ecosystem() {
                Ecosystem::PyPi => matches!(it.hash, Hash::Sha256(_)),
                Ecosystem::Npm => matches!(it.hash, Hash::Sha512(_)),
            };
            let Answered { found, version, scripts, .. } = &answered;
            let places: HashSet<_> = found.iter().map(|it| (&it.place, &it.name)).collect();
            let folders: HashSet<_> = found.iter().map(|it| &it.place).collect();
            let are_apart = places.len() == found.len()
                && (requirement.ecosystem() == Ecosystem::PyPi || folders.len() == found.len());
            let are_plain = found.iter().all(|it| is_package(it) && is_plain(&it.version))
                && found.iter().all(is_hashed)
                && are_apart
                && scripts.len() <= found.len()
                && scripts.iter().all(|name| found.iter().any(|it| it.name == *name))
                && version.as_deref().is_none_or(is_plain);
            if !are_plain {
                return Err(broken(&"it names what cannot be a package"));
            }
            if found.len() > MAX_PACKAGES {
                return Err(too_many(requirement));
            }
            Ok(answered)
        }
    }
}

/// Where a package for JavaScript can be: in the folder of all, or in one of another's own.
fn is_place(place: &str) -> bool {
    let (begins, within) = (format!("{NODE_MODULES}/"), format!("/{NODE_MODULES}/"));
    place.len() <= MAX_PLACE
        && place.strip_prefix(&begins).is_some_and(|rest| rest.split(&within).all(is_npm_name))
}

fn explained(failed: Failed, wanted: &Requirement, most: u64) -> Fault {
    let language = wanted.ecosystem().language();
    let list = |all: &[String]| printable(&all.join(", "));
    let (kind, why) = match failed {
        Failed::Missing { requirement, sources } if sources.is_empty() => {
            let what = printable(plain(&requirement));
            let why = format!(
                "The package index for {language} has no {what}. Check the name, and the language; do without it \
                 if they are right."
            );
            (FaultKind::NotFound, why)
        }
        Failed::Missing { requirement, sources } => {
            let why = format!(
                "There is no wheel of {} for the Python here, and nothing is built from source (it has {}). Do \
                 without it, or say language javascript if that is meant.",
                printable(plain(&requirement)),
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
        Failed::Platform { requirement } => {
            let what = printable(&requirement);
            let why = format!("{what} is not made for the system here. Do without it.");
            (FaultKind::NotFound, why)
        }
        Failed::Version { requirement, versions } => {
            let why = format!(
                "There is no {} for the {language} here. The index has: {}.",
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
        Failed::TooLarge => return too_large(wanted, most),
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

/// Without the condition under which pip looks for it, such as an extra.
fn plain(requirement: &str) -> &str {
    requirement.split(';').next().unwrap_or_default().trim_end()
}

fn too_many(wanted: &Requirement) -> Fault {
    let why = format!("With {wanted} there would be too many packages. Do without it.");
    Fault::new(FaultKind::TooLarge, why)
}

fn too_large(wanted: &Requirement, most: u64) -> Fault {
    let why = format!(
        "{wanted} and what it needs are larger than the packages of a session may be here ({}). Do without it.",
        human_size(most)
    );
    Fault::new(FaultKind::TooLarge, why)
}

/// An archive as it was downloaded.
struct Download {
    named: Named,
    sha256: [u8; 32],
    file: File,
    bytes: u64,
    place: String,
}

/// Reads an archive from the fetcher, as far as it may have so many bytes, and compares it with what the index says.
async fn download(
    link: &Link,
    folder: &str,
    found: Found,
    left: &mut u64,
    too_large: impl Fn() -> Fault,
) -> Result<Download, Fault> {
    let Found { name, version, hash: said, file, place } = found;
    let what = format!("{name} {version}");
    let refused = |why: &str| Fault::refused(&what, why);
    let file = file.ok_or_else(|| refused("The index sent another file than it said."))?;
    let path = DataPath::relative(&format!("{folder}/{file}")).map_err(|error| broken(&error))?;
    let into = tempfile::tempfile().map_err(|error| broken(&error))?;
    let mut into = tokio::fs::File::from_std(into);
    let (mut sha256, mut sha512, mut bytes) = (Sha256::new(), Sha512::new(), 0);
    loop {
        let (done, piece) =
            link.get(&path, bytes, MAX_BODY).await.map_err(|error| broken(&error))?;
        *left = left.checked_sub(piece.len() as u64).ok_or_else(&too_large)?;
        sha256.update(&piece);
        if matches!(said, Hash::Sha512(_)) {
            sha512.update(&piece);
        }
        bytes += piece.len() as u64;
        into.write_all(&piece).await.map_err(|error| broken(&error))?;
        if piece.is_empty() || bytes >= done.stamp.size {
            break;
        }
    }
    into.flush().await.map_err(|error| broken(&error))?;
    let sha256: [u8; 32] = sha256.finalize().into();
    let is_it = match said {
        Hash::Sha256(said) => said.eq_ignore_ascii_case(&hex::encode(sha256)),
        Hash::Sha512(said) => said.eq_ignore_ascii_case(&hex::encode(sha512.finalize())),
    };
    if !is_it {
        return Err(refused("What the index sent is not what it says it has."));
    }
    let named = Named { name, version, file };
    Ok(Download { named, sha256, file: into.into_std().await, bytes, place })
}

/// Looks through an archive to its end; all of them may unpack to so many bytes.
async fn check(
    download: Download,
    ecosystem: Ecosystem,
    stdlib: &HashSet<String>,
    left: &mut u64,
    too_large: impl Fn() -> Fault,
) -> Result<FetchedPackage, Fault> {
    let Download { named, sha256, file, bytes, place } = download;
    let read = async {
        let (mut pieces, installs) = match ecosystem {
            Ecosystem::PyPi => {
                let open = Wheel::open(&file, &named, *left).await?;
                open.check_modules(stdlib)?;
                let installs = open.installs();
                (open.pieces(true), installs)
            }
            Ecosystem::Npm => (tarball::pieces(&file, &place, *left)?, vec![]),
        };
        let mut room = 0;
        while let Some(piece) = pieces.recv().await {
            let piece = piece?;
            let len = piece.bytes.len() as u64;
            *left = left.checked_sub(len).ok_or(ArchiveFault::TooLarge)?;
            if piece.last && !piece.path.is_empty() {
                room += (piece.offset + len).next_multiple_of(PAGE);
            }
        }
        Ok((room, installs))
    };
    let what = format!("{} {}", named.name, named.version);
    match read.await {
        Ok((room, installs)) => {
            let archive = Fetched { ecosystem, sha256, file, bytes, room, installs };
            Ok(FetchedPackage { named, place, archive })
        }
        Err(ArchiveFault::TooLarge) => Err(too_large()),
        Err(fault) => {
            let (package, version) = (&named.name, &named.version);
            tracing::warn!(package, version, %fault, "a package was refused");
            Err(Fault::refused(&what, &format!("Its archive {fault}.")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_for_javascript_has_a_folder_of_its_own() {
        for place in [
            "node_modules/a",
            "node_modules/@b/c.d",
            "node_modules/a/node_modules/@b/c/node_modules/d",
        ] {
            assert!(is_place(place), "{place}");
        }
        for place in [
            "",
            "a",
            "node_modules",
            "node_modules/",
            "node_modules/..",
            "node_modules/.bin",
            "node_modules/a/b",
            "node_modules/a/../b",
            "node_modules/a/node_modules",
            "node_modules/node_modules/a",
            "/node_modules/a",
            "x/node_modules/a",
            "node_modules/@b",
        ] {
            assert!(!is_place(place), "{place}");
        }
    }

    #[test]
    fn both_kinds_of_answers_are_read() {
        let read = |text| serde_json::from_str::<Answer>(text).expect("an answer");
        let python = r#"{"found": [{"name": "a", "version": "1", "sha256": "00", "file": "a.whl"}],
                         "version": null, "stdlib": ["os"]}"#;
        let Answer::Found(python) = read(python) else { panic!("found") };
        assert!(matches!(&python.found[0].hash, Hash::Sha256(hash) if hash == "00"));
        let javascript = r#"{"found": [{"name": "a", "version": "1", "sha512": "11", "file": null,
                             "place": "node_modules/a"}], "version": "1", "lock": "lock.json"}"#;
        let Answer::Found(javascript) = read(javascript) else { panic!("found") };
        assert!(matches!(&javascript.found[0].hash, Hash::Sha512(hash) if hash == "11"));
        assert!(matches!(read(r#"{"failed": "too_large"}"#), Answer::Failed(Failed::TooLarge)));
    }
}
