//! Rights: which tools of an upstream may be called. Pure.
//!
//! | the settings have the tool in | a tool that only reads | any other |
//! |---|---|---|
//! | `ask`, whatever else | a person is asked | a person is asked |
//! | `allow` | may be called | may be called |
//! | neither | may be called | may not |
//!
//! Case does not matter in patterns, nor whether a name has `-` or `_`.

use config::upstreams::{Pattern, Upstream as Settings};
use model::{UpstreamName, approval::NOT_ALLOWED};

use super::{CallError, CallErrorKind, catalogue::Tool};

/// Whether a call may be made at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allowed,
    /// A person must allow it first.
    Ask,
}

/// The rights of all callers of an upstream.
pub(super) struct Rights<'a> {
    allow: &'a [Pattern],
    ask: &'a [Pattern],
}

impl<'a> Rights<'a> {
    pub(super) fn of(settings: &'a Settings) -> Self {
        Self { allow: &settings.allow, ask: &settings.ask }
    }

    /// The verdict on a tool; `None` if it may not be called.
    pub(super) fn verdict(&self, tool: &Tool) -> Option<Verdict> {
        let name = folded(&tool.name);
        let has = |patterns: &[Pattern]| patterns.iter().any(|it| it.folded().matches(&name));
        if has(self.ask) {
            Some(Verdict::Ask)
        } else if tool.read_only || has(self.allow) {
            Some(Verdict::Allowed)
        } else {
            None
        }
    }
}

/// The patterns in `allow` and `ask` that no tool has.
pub(super) fn unmatched(settings: &Settings, tools: &[Tool]) -> Vec<String> {
    let names: Vec<_> = tools.iter().map(|tool| folded(&tool.name)).collect();
    let is_unmatched = |pattern: &&Pattern| {
        let pattern = pattern.folded();
        !names.iter().any(|name| pattern.matches(name))
    };
    let all = settings.allow.iter().chain(&settings.ask).filter(is_unmatched);
    all.map(ToString::to_string).collect()
}

/// A name as patterns see it: code and people write `get_sum` for `get-sum`, and `GET` for `get`.
fn folded(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// The error about a tool that may not be called.
pub(super) fn not_allowed(upstream: &UpstreamName, tool: &Tool) -> CallError {
    CallError::new(
        CallErrorKind::NotAllowed,
        format!(
            "the tool may change something, and {NOT_ALLOWED} it: upstreams.{upstream}.allow or \
             upstreams.{upstream}.ask in the server's settings file would have to name {}",
            tool.name
        ),
    )
}
