//! Packages as callers ask for them, and why they get none.

mod requirement;

use std::fmt;

pub use self::requirement::{
    Allowed, Ecosystem, NoRequirement, PlainName, Requirement, is_npm_name,
};

/// Why a package cannot be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    kind: FaultKind,
    message: String,
}

/// The kinds of [`Fault`], each a documented code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Packages are off here.
    Disabled,
    /// It is not among those that the operator allows.
    NotAllowed,
    /// The index has no such package, version or wheel.
    NotFound,
    /// It needs something else than what is there.
    Conflict,
    /// It is larger than packages may be.
    TooLarge,
    /// What the index sent is not what it should be.
    Refused,
    /// The index did not answer as one does.
    Index,
}

impl Fault {
    /// A fault, with what a model is told of it.
    pub fn new(kind: FaultKind, message: String) -> Self {
        Self { kind, message }
    }

    /// A package that was refused, and one sentence that says why.
    pub fn refused(what: &str, why: &str) -> Self {
        let message =
            format!("{what} was refused, and nothing was installed. {why} Tell the person.");
        Self::new(FaultKind::Refused, message)
    }

    /// The same with one more sentence.
    #[must_use]
    pub fn with(mut self, sentence: &str) -> Self {
        self.message = format!("{} {sentence}", self.message);
        self
    }

    /// Whether it was the index that has said so, and so can be asked.
    pub fn is_answer(&self) -> bool {
        matches!(self.kind, FaultKind::NotFound | FaultKind::Conflict)
    }

    /// The stable code, as documented in docs/tools.md.
    pub fn code(&self) -> &'static str {
        match self.kind {
            FaultKind::Disabled => "packages_disabled",
            FaultKind::NotAllowed => "package_not_allowed",
            FaultKind::NotFound => "package_not_found",
            FaultKind::Conflict => "package_conflict",
            FaultKind::TooLarge => "package_too_large",
            FaultKind::Refused => "package_refused",
            FaultKind::Index => "package_index_unavailable",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
