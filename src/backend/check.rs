//! What `llm-sandbox doctor` shows: a line each.

use super::BackendError;

/// One thing that was looked at, and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was looked at, in a word or a few.
    pub name: String,
    /// What was found.
    pub finding: Finding,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// All is well.
    Good(String),
    /// It works, but not as well as it could.
    Warning {
        /// What is not well.
        text: String,
        /// How to fix it.
        fix: String,
    },
    /// Sandboxes cannot be started, or are not what they should be.
    Fault {
        /// What is wrong.
        text: String,
        /// How to fix it.
        fix: String,
    },
    /// It cannot be told here, and why.
    NotShown(String),
}

impl Check {
    /// A check of this name.
    pub fn new(name: impl Into<String>, finding: Finding) -> Self {
        Self { name: name.into(), finding }
    }
}

/// A fault, with what to do about it.
impl From<BackendError> for Finding {
    fn from(error: BackendError) -> Self {
        match error.parts() {
            (text, Some(fix)) => Self::fault(text, fix),
            (text, None) => Self::fault("cannot be used", text),
        }
    }
}

impl Finding {
    /// All is well.
    pub fn good(text: impl Into<String>) -> Self {
        Self::Good(text.into())
    }

    /// It works, but not as well as it could.
    pub fn warning(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Warning { text: text.into(), fix: fix.into() }
    }

    /// Something is wrong.
    pub fn fault(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Fault { text: text.into(), fix: fix.into() }
    }
}
