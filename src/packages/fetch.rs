//! A fetcher: a sandbox with a network and nothing else, in which pip or npm finds out which packages are needed and
//! downloads them. Neither its answer nor its downloads are trusted: the server reads the archives over the link,
//! hashes and checks them, and the fetcher ends before any archive goes into a session.
//!
//! ```text
//! start --> the program that asks pip or npm --> its answer --> archives, over the link --> the end of the sandbox
//!    '------- fails, or takes longer than its bounds: the end, and a fault that says why ------'
//! ```

mod answer;

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    sync::Arc,
    time::Duration,
};

use backend::{Backend, Spec};
use bytes::Bytes;
use link::{Link, Opening, RunRequest, Timing};
use model::{
    DataPath,
    package::{Ecosystem, Fault, FaultKind, PlainName, Requirement},
    text::{human_size, printable},
};
use protocol::{frame::MAX_BODY, message::RuntimeName};
use serde::Serialize;
use sha2::{Digest, Sha256, Sha512};
use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use self::answer::{Answered, Downloaded, Hash, answer};
use super::{
    archive::{Fault as ArchiveFault, Named},
    cache::{CachedPackage, Fetched, Obtained},
    index::Index,
    tarball,
    wheel::Wheel,
};
use crate::progress::{Progress, RunOutput};

/// The programs that a fetcher runs, each with its folder of downloads.
const PIP: (&str, &str) = (include_str!("../../sandbox-image/runtimes/python/fetch.py"), "wheels");
const NPM: (&str, &str) =
    (include_str!("../../sandbox-image/runtimes/javascript/fetch.cjs"), "tarballs");

/// The maximum output of a fetcher that is returned, in bytes.
const MAX_ANSWER: usize = 256 << 10;

/// The size of a page, in bytes: a file takes whole pages of memory.
const PAGE_BYTES: u64 = 4096;

/// The maximum size of npm's lock file for a session, in bytes: some six hundred packages. It is one message with the
/// rest of a request.
const MAX_LOCK: usize = 256 << 10;

/// The maximum size of the lock file as a JSON string, in bytes.
const MAX_WRITTEN: usize = 320 << 10;

/// Interval at which the progress of a fetcher is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Time that a fetcher has to end by itself before it is removed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Fetches a package and the packages that it needs, except those that are present.
pub(super) async fn fetch(
    backend: &dyn Backend,
    spec: Spec,
    (requirement, beside): (&Requirement, &Beside<'_>),
    bounds: Bounds,
    progress: &watch::Sender<Progress>,
) -> Result<Obtained, Fault> {
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
        if timeout(END_TIMEOUT, sandbox.gone).await.is_err() {
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
) -> Result<Obtained, Fault> {
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
    let mut output = RunOutput::default();
    let number = running.call;
    let mut looks = interval(POLL_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut finished = std::pin::pin!(running.finish());
    let reply = loop {
        tokio::select! {
            reply = &mut finished => break reply.map_err(|error| broken(&error))?,
            _ = looks.tick() => {
                if let Ok((done, new)) = link.peek(&output.next(number)).await {
                    progress.send_modify(|it| {
                        it.started = true;
                        output.add(&done, &new, &mut it.lines);
                    });
                }
            }
        }
    };
    let Answered { found, version, stdlib, lock, scripts } =
        answer(&reply, requirement, bounds.bytes)?;
    progress.send_modify(|it| it.lines.push("checking what was downloaded"));
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
    let is_own = |package: &&CachedPackage| {
        ecosystem == Ecosystem::PyPi && PlainName::of(&package.named.name) == name
    };
    let own = packages.iter().find(is_own);
    let version = own.map(|package| package.named.version.clone()).or(version);
    let lock = match lock {
        Some(file) => Some(read_lock(link, &file, requirement).await?),
        None => None,
    };
    let version = version.ok_or_else(|| broken(&"it does not say which version there is"))?;
    Ok(Obtained { version, packages, lock, scripts })
}

/// Reads npm's lock file, for the next request. The server does not interpret it.
async fn read_lock(link: &Link, file: &str, wanted: &Requirement) -> Result<Arc<str>, Fault> {
    let path = DataPath::relative(file).map_err(|error| broken(&error))?.into();
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
    found: Downloaded,
    left: &mut u64,
    too_large: impl Fn() -> Fault,
) -> Result<Download, Fault> {
    let Downloaded { name, version, hash: said, file, place } = found;
    let what = format!("{name} {version}");
    let refused = |why: &str| Fault::refused(&what, why);
    let file = file.ok_or_else(|| refused("The index sent another file than it said."))?;
    let path =
        DataPath::relative(&format!("{folder}/{file}")).map_err(|error| broken(&error))?.into();
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
) -> Result<CachedPackage, Fault> {
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
                room += (piece.offset + len).next_multiple_of(PAGE_BYTES);
            }
        }
        Ok((room, installs))
    };
    let what = format!("{} {}", named.name, named.version);
    match read.await {
        Ok((room, installs)) => {
            let archive = Fetched { ecosystem, sha256, file, bytes, room, installs };
            Ok(CachedPackage { archive: Arc::new(archive), named, place })
        }
        Err(ArchiveFault::TooLarge) => Err(too_large()),
        Err(fault) => {
            let (package, version) = (&named.name, &named.version);
            tracing::warn!(package, version, %fault, "package refused");
            Err(Fault::refused(&what, &format!("Its archive {fault}.")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        answer::{Answer, Failed, is_place},
        *,
    };

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
