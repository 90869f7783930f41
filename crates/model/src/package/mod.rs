//! Packages as callers request them, and the reasons why they cannot be installed.

mod allowed;
mod requirement;

use std::fmt;

pub use self::{
    allowed::Allowed,
    requirement::{Ecosystem, NoRequirement, PlainName, Requirement, is_npm_name},
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
    /// Packages are disabled.
    Disabled,
    /// The operator does not allow the package.
    NotAllowed,
    /// The index has no such package, version or wheel.
    NotFound,
    /// The package conflicts with what is installed.
    Conflict,
    /// The packages are larger than allowed.
    TooLarge,
    /// An archive from the index is not accepted.
    Refused,
    /// The index could not be used.
    Index,
}

impl Fault {
    /// Creates a fault with its message for a model.
    pub fn new(kind: FaultKind, message: String) -> Self {
        Self { kind, message }
    }

    /// Creates the fault of a refused package, with one sentence that says why.
    pub fn refused(what: &str, why: &str) -> Self {
        let message =
            format!("{what} was refused, and nothing was installed. {why} Tell the person.");
        Self::new(FaultKind::Refused, message)
    }

    /// Adds a sentence to the message.
    #[must_use]
    pub fn with(mut self, sentence: &str) -> Self {
        self.message = format!("{} {sentence}", self.message);
        self
    }

    /// Whether the index gave this answer, and so can be used.
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
