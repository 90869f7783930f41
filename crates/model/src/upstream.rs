//! Names of upstreams: servers and services of the operator that programs in sandboxes can call.

use std::{fmt, str::FromStr};

/// The maximum length of an upstream's name.
const MAX_NAME: usize = 32;

/// Names that the module in a sandbox uses itself.
const RESERVED: [&str; 5] = ["aio", "http", "list", "search", "upstream"];

/// The name of an upstream, which is an identifier in code: up to 32 of `a` to `z`, `0` to `9` and `_`; the first is a
/// letter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamName(String);

/// A text that is not the name of an upstream. The message is a predicate, to follow the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "is no name of an upstream: 1 to {MAX_NAME} of a to z, 0 to 9 and _, the first a letter, and none of aio, http, list, search, upstream"
)]
pub struct InvalidUpstreamName;

impl FromStr for UpstreamName {
    type Err = InvalidUpstreamName;

    fn from_str(text: &str) -> Result<Self, InvalidUpstreamName> {
        let begins = text.starts_with(|first: char| first.is_ascii_lowercase());
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_free = !RESERVED.contains(&text);
        if begins && is_free && text.len() <= MAX_NAME && text.chars().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidUpstreamName)
    }
}

impl UpstreamName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_an_identifier_that_the_module_does_not_use() {
        for good in ["a", "crm", "crm_2", &"x".repeat(32)] {
            assert_eq!(good.parse::<UpstreamName>().map(|it| it.to_string()), Ok(good.into()));
        }
        for bad in [
            "",
            "_a",
            "2a",
            "A",
            "a-b",
            "a.b",
            "é",
            "http",
            "search",
            "aio",
            "list",
            &"x".repeat(33),
        ] {
            assert_eq!(bad.parse::<UpstreamName>(), Err(InvalidUpstreamName), "{bad:?}");
        }
    }
}
