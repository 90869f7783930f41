//! Checks that `llm-sandbox doctor` shows, one to a line.

use std::path::Path;

use super::BackendError;

/// One check and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The subject of the check, in one word or a few.
    pub name: String,
    /// The result.
    pub finding: Finding,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// No problem; the text describes the subject.
    Good(String),
    /// A problem that does not prevent sandboxes, but limits them.
    Warning {
        /// The problem.
        text: String,
        /// How to fix it.
        fix: String,
    },
    /// A problem because of which sandboxes cannot start, or break a promise.
    Fault {
        /// The problem.
        text: String,
        /// How to fix it.
        fix: String,
    },
    /// The check is impossible here; the text says why.
    NotShown(String),
}

impl Check {
    /// A check of this name.
    pub fn new(name: impl Into<String>, finding: Finding) -> Self {
        Self { name: name.into(), finding }
    }
}

/// A fault, with its fix.
impl From<BackendError> for Finding {
    fn from(error: BackendError) -> Self {
        match error.parts() {
            (text, Some(fix)) => Self::fault(text, fix),
            (text, None) => Self::fault("cannot be used", text),
        }
    }
}

impl Finding {
    /// A result without a problem.
    pub fn good(text: impl Into<String>) -> Self {
        Self::Good(text.into())
    }

    /// A warning with its fix.
    pub fn warning(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Warning { text: text.into(), fix: fix.into() }
    }

    /// A fault with its fix.
    pub fn fault(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Fault { text: text.into(), fix: fix.into() }
    }
}

/// The finding about the disk with this folder, on which each sandbox may have this many bytes of files.
pub(crate) fn disk(text: &str, folder: &Path, each: u64) -> Finding {
    let gb = |bytes: u64| bytes / 1_000_000_000;
    // An engine on another host has a folder that this process cannot see.
    let Ok(stat) = rustix::fs::statvfs(folder) else { return Finding::good(text) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let text = format!("{text}, where {} GB are free; {} GB per sandbox", gb(free), gb(each));
    if free >= each {
        Finding::Good(text)
    } else {
        Finding::warning(text, "Free some space there, or lower SANDBOX_DISK_LIMIT.")
    }
}
