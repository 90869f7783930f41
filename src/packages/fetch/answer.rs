//! The answer of a fetcher: packages that were found, or why there are none.

use std::collections::HashSet;

use link::RunReply;
use model::{
    package::{Ecosystem, Fault, FaultKind, Requirement, is_npm_name},
    text::printable,
};
use protocol::message::End;
use serde::Deserialize;

use super::{broken, too_large, too_many};
use crate::packages::archive::NODE_MODULES;

/// The maximum number of packages in an answer.
const MAX_PACKAGES: usize = 300;

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

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Failed(Failed),
    Found(Answered),
}

/// Why a fetcher found nothing. A requirement names the missing package, which may be a dependency of the requested
/// one.
#[derive(Deserialize)]
#[serde(tag = "failed", rename_all = "snake_case")]
pub(super) enum Failed {
    /// No wheel fits; `sources` are the versions that the index has in another form.
    Missing { requirement: String, sources: Vec<String> },
    /// The index has only compiled wheels.
    Compiled { requirement: String },
    /// The package is made for other systems.
    Platform { requirement: String },
    /// The requested version does not exist; `versions` do.
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
pub(super) struct Answered {
    pub(super) found: Vec<Downloaded>,
    /// The version of the requested package. For Python, `None` if the package is in `found`.
    pub(super) version: Option<String>,
    /// Names of the modules of Python's standard library.
    #[serde(default)]
    pub(super) stdlib: HashSet<String>,
    /// The name of npm's lock file, if it has changed.
    #[serde(default)]
    pub(super) lock: Option<String>,
    /// Names of packages with install scripts, which were not run.
    #[serde(default)]
    pub(super) scripts: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Downloaded {
    pub(super) name: String,
    pub(super) version: String,
    #[serde(flatten)]
    pub(super) hash: Hash,
    /// The archive's name in the folder of downloads.
    pub(super) file: Option<String>,
    /// The folder of a JavaScript package; empty for Python.
    #[serde(default)]
    pub(super) place: String,
}

/// The hash of an archive from the index, in hexadecimal digits.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Hash {
    Sha256(String),
    Sha512(String),
}

/// Reads the last line of a fetcher's output.
pub(super) fn answer(
    reply: &RunReply,
    requirement: &Requirement,
    most: u64,
) -> Result<Answered, Fault> {
    let text = [&reply.stdout.head[..], &reply.stdout.tail[..]].concat();
    let last = text.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    if reply.end != (End::Exited { code: 0 }) {
        tracing::warn!(
            end = ?reply.end,
            stderr = printable(&String::from_utf8_lossy(&reply.stderr.tail)),
            "package fetcher failed"
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
            let is_package = |it: &Downloaded| match requirement.ecosystem() {
                Ecosystem::PyPi => is_plain(&it.name) && it.place.is_empty(),
                Ecosystem::Npm => is_npm_name(&it.name) && is_place(&it.place),
            };
            let is_hashed = |it: &Downloaded| match requirement.ecosystem() {
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
pub(super) fn is_place(place: &str) -> bool {
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

/// A requirement without its environment marker, such as `extra == "http2"`.
pub(super) fn plain(requirement: &str) -> &str {
    requirement.split(';').next().unwrap_or_default().trim_end()
}
