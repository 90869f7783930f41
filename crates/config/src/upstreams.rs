//! Upstreams of the settings: servers of MCP and services over HTTP that programs in sandboxes can call, and the
//! callers that may use each. Pure.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use model::{Principal, UpstreamName, text::quoted};

use super::{
    Config,
    datasets::NONE,
    setting::{Mistaken, Row},
    table,
};

/// The maximum number of upstreams.
const MAX_UPSTREAMS: usize = 50;

/// A text that may contain secrets. It is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden {
    pub(super) text: String,
    /// The parts that came from elsewhere, or the whole text if its place is one of secrets.
    pub(super) secrets: Vec<String>,
}

impl Hidden {
    /// The text.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The parts that nobody but the upstream may learn.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A pattern of names or paths: `*` stands for any characters, `/` included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(pub(super) String);

impl Pattern {
    /// The same pattern for names in lower case with `_` instead of `-`.
    #[must_use]
    pub fn folded(&self) -> Self {
        Self(self.0.to_lowercase().replace('-', "_"))
    }

    /// Whether a text has this form.
    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let mut parts: Vec<_> = parts.collect();
        let Some(last) = parts.pop() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How an upstream is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum Reached {
    /// A server of MCP that this program starts, over standard input and output.
    Command {
        /// The program: a path, or a name that is looked up in `PATH`.
        command: String,
        /// Its arguments.
        args: Vec<Hidden>,
        /// Variables of its environment, besides `PATH` and `HOME`.
        env: BTreeMap<String, Hidden>,
        /// Its working folder; a folder of its own if not set.
        cwd: Option<PathBuf>,
    },
    /// A server of MCP over streamable HTTP.
    Mcp {
        /// The URL of its endpoint.
        url: Hidden,
        /// Headers of each request.
        headers: BTreeMap<String, Hidden>,
    },
    /// A service over HTTP.
    Http {
        /// The URL before the paths of its requests.
        base_url: Hidden,
        /// The methods that requests may have, in upper case.
        methods: Vec<String>,
        /// The paths that requests may have; all, if empty.
        paths: Vec<Pattern>,
        /// Headers of each request.
        headers: BTreeMap<String, Hidden>,
    },
}

/// A server or a service that programs in sandboxes can call.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Its name in code.
    pub name: UpstreamName,
    /// How it is reached.
    pub reached: Reached,
    /// One line for models; may be empty.
    pub description: String,
    /// Tools that may be called without asking, besides those that only read.
    pub allow: Vec<Pattern>,
    /// Tools of which a person must allow each call.
    pub ask: Vec<Pattern>,
    /// The callers that may use it; `None` if all may.
    pub callers: Option<Vec<Principal>>,
    /// Time limit of a call.
    pub timeout: Duration,
    /// The largest answer, in bytes.
    pub max_answer: u64,
    /// Whether it may have a private or loopback address.
    pub private: bool,
    /// Time without calls after which its process or connection ends.
    pub idle: Duration,
}

impl Upstream {
    /// All secrets of its settings.
    pub fn secrets(&self) -> Vec<&str> {
        let (texts, map): (Vec<&Hidden>, _) = match &self.reached {
            Reached::Command { args, env, .. } => (args.iter().collect(), env),
            Reached::Mcp { url, headers } => (vec![url], headers),
            Reached::Http { base_url, headers, .. } => (vec![base_url], headers),
        };
        texts.into_iter().chain(map.values()).flat_map(Hidden::secrets).collect()
    }
}

/// The upstreams of a server, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Upstreams(Vec<Arc<Upstream>>);

impl Upstreams {
    /// The upstreams of the settings file; those of the list, if there is one.
    ///
    /// # Errors
    /// If there are too many, or the list has others.
    pub(super) fn new(
        listed: Option<&[UpstreamName]>,
        mut all: Vec<Upstream>,
    ) -> Result<Self, String> {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let variable = table::SANDBOX_UPSTREAMS.row.name;
        let is_known = |name: &&UpstreamName| all.iter().any(|upstream| upstream.name == **name);
        if let Some(name) = listed.into_iter().flatten().find(|name| !is_known(name)) {
            return Err(format!("{variable}: there is no upstream {name} in the settings file"));
        }
        if all.len() > MAX_UPSTREAMS {
            return Err(format!("upstreams: there are more than {MAX_UPSTREAMS}"));
        }
        let is_used = |it: &Upstream| listed.is_none_or(|listed| listed.contains(&it.name));
        Ok(Self(all.into_iter().filter(is_used).map(Arc::new).collect()))
    }

    /// All upstreams.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The upstreams that a caller may use; only those that its policy lists, if it lists any.
    pub fn of(&self, caller: &Principal, policy: Option<&[UpstreamName]>) -> Vec<Arc<Upstream>> {
        let may_use = |upstream: &&Arc<Upstream>| {
            upstream.callers.as_ref().is_none_or(|callers| callers.contains(caller))
                && policy.is_none_or(|listed| listed.contains(&upstream.name))
        };
        self.0.iter().filter(may_use).cloned().collect()
    }
}

/// Parses a list of names; the word `none` is the empty list.
pub(super) fn names(_: &Row, value: &str) -> Result<Option<Vec<UpstreamName>>, Mistaken> {
    match value {
        "" => return Ok(None),
        NONE => return Ok(Some(vec![])),
        _ => {}
    }
    let (mut all, mut mistaken) = (vec![], vec![]);
    for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        match item.parse() {
            Ok(name) => all.push(name),
            Err(why) => mistaken.push(format!("{} {why}", quoted(item))),
        }
    }
    if mistaken.is_empty() { Ok(Some(all)) } else { Err(mistaken) }
}

impl Config {
    /// Remarks about callers of upstreams that the settings do not list. They are no mistakes: the file of tokens may
    /// get them later. With an authorization server, any name may be one.
    pub(super) fn unknown_callers(&self) -> Vec<String> {
        if self.oauth_issuer.is_some() {
            return vec![];
        }
        let of = |upstream: &Arc<Upstream>| {
            let given = upstream.callers.iter().flatten();
            let unknown = given.filter(|it| !self.callers.list(it) && **it != Principal::local());
            let names: Vec<_> = unknown.map(Principal::name).collect();
            (!names.is_empty()).then(|| {
                let names = names.join(", ");
                format!("upstreams.{}.callers has names that no caller has: {names}", upstream.name)
            })
        };
        self.upstreams.all().filter_map(of).collect()
    }

    /// Whether a policy lists only upstreams of the server.
    pub(super) fn lists_only_upstreams(&self, server: &Self) -> bool {
        let is_known =
            |name: &UpstreamName| server.upstreams.all().any(|upstream| upstream.name == *name);
        self.upstream_list.iter().flatten().all(is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text, matches) in [
            ("get", "get", true),
            ("get", "gets", false),
            ("*", "", true),
            ("get_*", "get_all", true),
            ("get_*", "forget_all", false),
            ("*_all", "get_all", true),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("ab*b", "ab", false),
            ("/v1/*/items", "/v1/a/b/items", true),
        ] {
            assert_eq!(Pattern(pattern.into()).matches(text), matches, "{pattern} {text}");
        }
    }
}
