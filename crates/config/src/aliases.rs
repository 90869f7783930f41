//! Variables under which similar programs know a setting. They are read if the setting's own variable is not given.

use std::collections::BTreeMap;

use super::{
    given::{Given, Source},
    table,
};

/// Translates a value.
type Translate = fn(&str) -> String;

/// Each variable with the setting's own and the translation of its value. A value whose translation is empty is meant for
/// another program.
const ALIASES: [(&str, &str, Translate); 7] = [
    ("WASM_SANDBOX_TIMEOUT", table::SANDBOX_DEFAULT_TIMEOUT_S.row.name, as_is),
    ("WASM_SANDBOX_MEMORY_MB", table::SANDBOX_DEFAULT_MEMORY.row.name, megabytes),
    ("WASM_SANDBOX_MAX_OUTPUT", table::SANDBOX_MAX_OUTPUT_BYTES.row.name, as_is),
    ("MCP_HTTP_HOST", table::SANDBOX_HTTP_HOST.row.name, as_is),
    ("MCP_HTTP_PORT", table::SANDBOX_HTTP_PORT.row.name, as_is),
    ("MCP_AUTH_TOKEN", table::SANDBOX_AUTH_TOKENS.row.name, token),
    ("LOG_LEVEL", table::SANDBOX_LOG_LEVEL.row.name, level),
];

/// The variable with the instructions that a program may use in a second. Here a run has a number of them, whatever its
/// time limit.
const FUEL_PER_SECOND: &str = "WASM_SANDBOX_FUEL_PER_SEC";

/// Fewest instructions a second that are taken over: with fewer, Python does not even start within some seconds.
const LEAST_FUEL_PER_SECOND: u64 = 1_000_000_000;

/// Time limit of a run if no setting has one.
const DEFAULT_TIMEOUT_S: u64 = 60;

/// Adds the values of aliases for the settings that are not given. Returns remarks about those without effect.
pub(super) fn apply(given: &mut BTreeMap<String, Given>) -> Vec<String> {
    for (alias, own, translate) in ALIASES {
        let text = text_of(given, alias).map(translate).unwrap_or_default();
        if !text.is_empty() {
            insert(given, own, text, alias);
        }
    }
    let Some(per_second) = text_of(given, FUEL_PER_SECOND) else { return vec![] };
    match per_second.parse::<u64>() {
        Ok(per_second) if per_second >= LEAST_FUEL_PER_SECOND => {
            let limit = [&table::SANDBOX_DEFAULT_TIMEOUT_S.row, &table::SANDBOX_EXEC_TIMEOUT_S.row];
            let limit = limit.into_iter().find_map(|row| text_of(given, row.name)?.parse().ok());
            let fuel = per_second.saturating_mul(limit.unwrap_or(DEFAULT_TIMEOUT_S));
            insert(given, table::SANDBOX_FUEL.row.name, fuel.to_string(), FUEL_PER_SECOND);
            vec![]
        }
        _ => vec![format!(
            "{FUEL_PER_SECOND} has no effect: a second of Python takes some 15,000,000,000 instructions, and programs \
             would end at once. Set {} to the instructions of a run",
            table::SANDBOX_FUEL.row.name
        )],
    }
}

/// The value of a variable, unless it is blank.
fn text_of<'a>(given: &'a BTreeMap<String, Given>, name: &str) -> Option<&'a str> {
    given.get(name).map(|given| given.text.trim()).filter(|text| !text.is_empty())
}

/// Sets a setting, unless something that comes after the settings file has set it.
fn insert(given: &mut BTreeMap<String, Given>, own: &str, text: String, alias: &'static str) {
    let is_of_file = |own: &Given| matches!(own.source, Source::File { .. });
    if text_of(given, own).is_none() || given.get(own).is_some_and(is_of_file) {
        given.insert(own.to_owned(), Given { text, source: Source::Alias(alias) });
    }
}

fn as_is(text: &str) -> String {
    text.to_owned()
}

fn megabytes(text: &str) -> String {
    format!("{text}MB")
}

/// The name of the caller whose token has none.
const CALLER: &str = "me";

fn token(text: &str) -> String {
    format!("{CALLER}:{text}")
}

/// The level with this name in Python, from which the variable comes, or here; empty if there is none.
fn level(text: &str) -> String {
    let level = match &*text.to_ascii_uppercase() {
        "WARNING" => "WARN".to_owned(),
        "CRITICAL" | "FATAL" => "ERROR".to_owned(),
        other => other.to_owned(),
    };
    if level.parse::<tracing::Level>().is_ok() { level } else { String::new() }
}
