//! Variables that look like settings with a misspelt prefix. The operator believes that they have an effect, so a warning
//! names them.

use std::collections::BTreeMap;

use super::{given::Given, setting::PREFIX, table};

/// A variable that is set and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misspelt {
    /// The variable's name.
    pub name: String,
    /// The setting that the variable was meant to be.
    pub meant: &'static str,
}

impl Misspelt {
    /// Whether the variable was meant to set tokens: without effect it leaves the server open.
    pub fn is_of_tokens(&self) -> bool {
        [table::SANDBOX_AUTH_TOKENS.row.name, table::SANDBOX_AUTH_TOKENS_FILE.row.name]
            .contains(&self.meant)
    }
}

/// Least similarity of a misspelt prefix to ours, from 0 to 1.
const LIKE: f64 = 0.7;

/// The misspelt variables that are set while the settings that they were meant to be are not.
pub(super) fn among(given: &BTreeMap<String, Given>) -> Vec<Misspelt> {
    let is_set = |name: &str| given.get(name).is_some_and(|given| !given.text.trim().is_empty());
    let others = given.keys().filter(|name| !name.starts_with(PREFIX));
    let meant =
        others.filter_map(|name| Some(Misspelt { name: name.clone(), meant: meant(name)? }));
    meant.filter(|it| is_set(&it.name) && !is_set(it.meant)).collect()
}

/// The setting that has this name except for the prefix, as in `SANBOX_HTTP_PORT` or `LLM_SANDBOX_HTTP_PORT`.
fn meant(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let of_all = table::rows().filter_map(|row| {
        let rest = name.strip_suffix(row.name.strip_prefix(PREFIX)?)?;
        let is_meant = rest.ends_with(PREFIX)
            || rest.ends_with('_') && strsim::normalized_levenshtein(rest, PREFIX) >= LIKE;
        is_meant.then_some(row.name)
    });
    of_all.max_by_key(|ours| ours.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_with_a_misspelt_prefix_is_recognized_and_variables_of_others_are_not() {
        for name in
            ["SANBOX_HTTP_PORT", "LLM_SANDBOX_HTTP_PORT", "sandbox_http_port", "SANDOBX_HTTP_PORT"]
        {
            assert_eq!(meant(name), Some("SANDBOX_HTTP_PORT"), "{name}");
        }
        assert_eq!(meant("SANBOX_AUTH_TOKENS_FILE"), Some("SANDBOX_AUTH_TOKENS_FILE"));
        for name in
            ["HTTP_PORT", "MCP_HTTP_PORT", "DOCKER_IMAGE", "SANBOX_NOTHING", "INBOX_IMAGE", "UNDO"]
        {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
