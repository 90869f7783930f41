//! Variables of programs like this one, for whoever has moved from one of them: they set nothing here, and that is
//! said, as the operator believes otherwise.

use std::collections::BTreeMap;

use super::table::{
    AUTH_TOKENS, EXEC_TIMEOUT_S, FUEL, HTTP_HOST, HTTP_PORT, MAX_OUTPUT_BYTES, MEMORY_LIMIT,
};

/// A variable that is set and has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// Its name.
    pub name: &'static str,
    /// The setting that does here what it is meant to do.
    pub ours: &'static str,
}

impl Foreign {
    /// The variable of a token, without which others than its holder would have access.
    pub const TOKEN: Self = Self { name: "MCP_AUTH_TOKEN", ours: AUTH_TOKENS.row.name };
}

/// All that are known. `LOG_LEVEL` is not one of them: too many programs have it.
const KNOWN: [Foreign; 7] = [
    Foreign { name: "WASM_SANDBOX_TIMEOUT", ours: EXEC_TIMEOUT_S.row.name },
    Foreign { name: "WASM_SANDBOX_MEMORY_MB", ours: MEMORY_LIMIT.row.name },
    Foreign { name: "WASM_SANDBOX_MAX_OUTPUT", ours: MAX_OUTPUT_BYTES.row.name },
    Foreign { name: "WASM_SANDBOX_FUEL_PER_SEC", ours: FUEL.row.name },
    Foreign { name: "MCP_HTTP_HOST", ours: HTTP_HOST.row.name },
    Foreign { name: "MCP_HTTP_PORT", ours: HTTP_PORT.row.name },
    Foreign::TOKEN,
];

/// Those that are set and whose counterparts are not.
pub(super) fn among(vars: &BTreeMap<String, String>) -> Vec<Foreign> {
    let is_set = |name: &str| vars.get(name).is_some_and(|value| !value.trim().is_empty());
    KNOWN.into_iter().filter(|it| is_set(it.name) && !is_set(it.ours)).collect()
}
