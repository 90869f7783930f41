//! Calls as people see them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The outcome of a call that was given up with its run, or by its program.
const ABANDONED: &str = "abandoned";

/// A call that was made or refused, for people who view the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// The upstream, as the program has named it, as printable text.
    pub upstream: String,
    /// Its tool, likewise.
    pub tool: String,
    /// `ok`, or the kind of the error.
    pub outcome: String,
    /// The time that it took, a person's decision included.
    pub took: Duration,
    /// A person's decision on it, if one was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Whether there is such an upstream.
    #[serde(skip)]
    pub is_known: bool,
}

/// The call that a question has become, until it ends.
#[derive(Debug, Default)]
pub(crate) struct Begun(Mutex<Option<(Instant, Called)>>);

impl Begun {
    pub(super) fn begin(&self, upstream: String, tool: String, is_known: bool) {
        let (outcome, decision) = (ABANDONED.to_owned(), None);
        let called = Called { upstream, tool, outcome, took: Duration::ZERO, decision, is_known };
        *self.0.lock() = Some((Instant::now(), called));
    }

    /// Notes a person's decision.
    pub(super) fn decide(&self, decision: &str) {
        if let Some((_, called)) = &mut *self.0.lock() {
            called.decision = Some(decision.to_owned());
        }
    }

    /// The call, which ends now; `None` if there is none, or it has ended.
    pub(super) fn end(&self, outcome: String) -> Option<Called> {
        let (since, called) = self.0.lock().take()?;
        Some(Called { outcome, took: since.elapsed(), ..called })
    }

    /// The same, of a call that is given up.
    pub(super) fn abandon(&self) -> Option<Called> {
        self.end(ABANDONED.to_owned())
    }
}
