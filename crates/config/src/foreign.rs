//! Variables that are set for this program but have no effect: variables of similar programs, and settings
//! with a misspelt prefix. The operator believes that they have an effect, so a warning names them.

use std::collections::BTreeMap;

use super::{setting::PREFIX, table};

/// A variable that is set and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The variable's name.
    pub name: String,
    /// The setting that does here what the variable is meant to do.
    pub ours: &'static str,
}

impl Foreign {
    /// Whether the variable was meant to set tokens: without effect it leaves the server open.
    pub fn is_of_tokens(&self) -> bool {
        [table::SANDBOX_AUTH_TOKENS.row.name, table::SANDBOX_AUTH_TOKENS_FILE.row.name]
            .contains(&self.ours)
    }
}

/// Known variables of other programs. `LOG_LEVEL` is not one of them: too many programs have it.
const KNOWN: [(&str, &str); 7] = [
    ("WASM_SANDBOX_TIMEOUT", table::SANDBOX_EXEC_TIMEOUT_S.row.name),
    ("WASM_SANDBOX_MEMORY_MB", table::SANDBOX_MEMORY_LIMIT.row.name),
    ("WASM_SANDBOX_MAX_OUTPUT", table::SANDBOX_MAX_OUTPUT_BYTES.row.name),
    ("WASM_SANDBOX_FUEL_PER_SEC", table::SANDBOX_FUEL.row.name),
    ("MCP_HTTP_HOST", table::SANDBOX_HTTP_HOST.row.name),
    ("MCP_HTTP_PORT", table::SANDBOX_HTTP_PORT.row.name),
    ("MCP_AUTH_TOKEN", table::SANDBOX_AUTH_TOKENS.row.name),
];

/// Least similarity of a misspelt prefix to ours, from 0 to 1.
const LIKE: f64 = 0.7;

/// The foreign variables that are set while their counterparts are not.
pub(super) fn among(vars: &BTreeMap<String, String>) -> Vec<Foreign> {
    let is_set = |name: &str| vars.get(name).is_some_and(|value| !value.trim().is_empty());
    let known = |name: &str| KNOWN.iter().find(|(it, _)| *it == name).map(|(_, ours)| *ours);
    let meant = vars.keys().filter(|name| !name.starts_with(PREFIX)).filter_map(|name| {
        let ours = known(name).or_else(|| misspelt(name))?;
        Some(Foreign { name: name.clone(), ours })
    });
    meant.filter(|it| is_set(&it.name) && !is_set(it.ours)).collect()
}

/// The setting that has this name except for the prefix, as in `SANBOX_HTTP_PORT` or `LLM_SANDBOX_HTTP_PORT`.
fn misspelt(name: &str) -> Option<&'static str> {
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
            assert_eq!(misspelt(name), Some("SANDBOX_HTTP_PORT"), "{name}");
        }
        assert_eq!(misspelt("SANBOX_AUTH_TOKENS_FILE"), Some("SANDBOX_AUTH_TOKENS_FILE"));
        for name in
            ["HTTP_PORT", "MCP_HTTP_PORT", "DOCKER_IMAGE", "SANBOX_NOTHING", "INBOX_IMAGE", "UNDO"]
        {
            assert_eq!(misspelt(name), None, "{name}");
        }
    }
}
