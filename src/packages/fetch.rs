//! A fetcher: a sandbox with a network and nothing else, in which pip or npm finds out which packages are needed and
//! downloads them. Neither its answer nor its downloads are trusted: the server reads the archives over the link,
//! hashes and checks them, and the fetcher ends before any archive goes into a session.

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

/// The programs that a fetcher runs, each with its folder of downloads.
const PIP: (&str, &str) = (include_str!("../../sandbox-image/runtimes/python/fetch.py"), "wheels");
const NPM: (&str, &str) =
    (include_str!("../../sandbox-image/runtimes/javascript/fetch.cjs"), "tarballs");

/// The maximum output of a fetcher that is kept, in bytes.
const MAX_ANSWER: usize = 256 << 10;

/// The size of a page, in bytes: a file takes whole pages of memory.
const PAGE: u64 = 4096;

/// The maximum number of packages in an answer.
const MAX_PACKAGES: usize = 300;

/// The maximum size of npm's lock file for a session, in bytes: some six hundred packages. It is one message with the
/// rest of a request.
const MAX_LOCK: usize = 256 << 10;

/// The maximum size of the lock file as a JSON string, in bytes.
const MAX_WRITTEN: usize = 320 << 10;

/// The maximum length of the folder of a JavaScript package, in bytes.
const MAX_PLACE: usize = 1000;

/// Compiled packages, and what does the same or most of it if they cannot be installed.
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

/// The number of versions that a message lists for a package that exists only in another form.
const MAX_VERSIONS: usize = 5;

/// Interval at which the progress of a fetcher is read.
const LOOK: Duration = Duration::from_millis(500);

/// Time that a fetcher has to end by itself before it is removed.
const END: Duration = Duration::from_secs(2);

/// Limits of one fetch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Time from the request for a sandbox to the last byte.
    pub(super) time: Duration,
    /// Bytes of all archives, and also of their unpacked contents.
    pub(super) bytes: u64,
}

/// The packages that are present but that a fetcher does not see by itself.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Beside<'a> {
    Python {
        present: &'a BTreeMap<String, String>,
        /// The version of Python for which pure wheels are fetched; `None` to fetch any wheels that the fetcher's own
        /// interpreter takes.
        pure_for: Option<&'a str>,
    },
    JavaScript {
        /// The lock file from the last answer.
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

/// Why a fetcher found nothing. A requirement names the missing package, which may be a dependency of the requested
/// one.
#[derive(Deserialize)]
#[serde(tag = "failed", rename_all = "snake_case")]
enum Failed {
    /// There is no wheel that fits; `sources` are the versions that exist in another form.
    Missing { requirement: String, sources: Vec<String> },
    /// There are only compiled wheels.
    Compiled { requirement: String },
    /// The package is made for other systems.
    Platform { requirement: String },
    /// There is no such version; `versions` are those that exist.
    Version { requirement: String, versions: Vec<String> },
    /// The package conflicts with packages that are present.
    Conflict { reason: String },
    /// The hash or the source of a package is not accepted.
    Refused { reason: String },
    /// The packages are larger than allowed.
    TooLarge,
    /// Any other failure.
    Index { reason: String },
}

/// The packages that a fetcher found.
#[derive(Deserialize)]
struct Answered {
    found: Vec<Found>,
    /// The version of the requested package. For Python, `None` if the package is in `found`.
    version: Option<String>,
    /// Names of the modules of Python's standard library.
    #[serde(default)]
    stdlib: HashSet<String>,
    /// The name of npm's lock file, if it has changed.
    #[serde(default)]
    lock: Option<String>,
    /// Names of packages with install scripts, which were not run.
    #[serde(default)]
    scripts: Vec<String>,
}

#[derive(Deserialize)]
struct Found {
    name: String,
    version: String,
    #[serde(flatten)]
    hash: Hash,
    /// The archive's name in the folder of downloads.
    file: Option<String>,
    /// The folder of a JavaScript package; empty for Python.
    #[serde(default)]
    place: String,
}

/// The hash of an archive from the index, in hexadecimal digits.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Hash {
    Sha256(String),
    Sha512(String),
}

/// Fetches a package and the packages that it needs, except those that are present.
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

/// Reads npm's lock file, for the next request. The server does not interpret it.
async fn read_lock(link: &Link, file: &str, wanted: &Requirement) -> Result<Arc<str>, Fault> {
    let path = DataPath::relative(file).map_err(|error| broken(&error))?;
    let (done, text) = link.get(&path, 0, MAX_LOCK).await.map_err(|error| broken(&error))?;
    let text = std::str::from_utf8(&text).map_err(|error| broken(&error))?;
    // The lock file is sent as a JSON string, in which some characters take several bytes.
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

/// Reads the last line of a fetcher's output.
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

/// Whether a JavaScript package can be there: in the common folder of packages, or in another package's own.
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

/// A requirement without the condition under which pip needs it, such as an extra.
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

/// An archive that was downloaded and is not checked yet.
struct Download {
    named: Named,
    sha256: [u8; 32],
    file: File,
    bytes: u64,
    place: String,
}

/// Reads an archive of at most `left` bytes from the fetcher, and compares its hash with the index's.
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

/// Reads an archive to its end and checks it. All archives may unpack to `left` more bytes.
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
