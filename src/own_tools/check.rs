//! Whether the arguments of a call are what its tool's schema takes.
//!
//! Most schemas take no longer to check than the arguments take to read. One that refers to itself, or has patterns,
//! can take for ever with a few bytes, and nothing could stop that in this process: it is checked in another.

use std::{io, process::Stdio, time::Duration};

use jsonschema::Validator;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
    time::timeout,
};

/// Mistakes that are named.
pub(super) const MAX_FAULTS: usize = 5;

/// Longest text of one, in characters: what an argument is, however long, is quoted in some of them.
const MAX_FAULT: usize = 500;

/// Longest that a check may take.
const MOST: Duration = Duration::from_secs(5);

/// Bytes of an answer: each character may be six.
const MAX_ANSWER: u64 = (MAX_FAULTS * MAX_FAULT * 6 + 64) as u64;

/// What is asked of the process.
#[derive(Debug, Serialize, Deserialize)]
struct Question<T> {
    schema: T,
    arguments: T,
}

/// How a tool's arguments are checked.
#[derive(Debug)]
pub(super) enum Check {
    /// Here.
    Here(Box<Validator>),
    /// Where it can be stopped.
    Elsewhere,
}

/// Why it is not known whether arguments are right.
#[derive(Debug)]
pub(super) enum NotChecked {
    /// It took too long.
    TooLong,
    /// There is no process, or it has failed.
    Failed(io::Error),
}

impl Check {
    /// That of a schema which is one.
    pub(super) fn of(schema: &Value) -> Self {
        match jsonschema::validator_for(schema) {
            Ok(validator) if is_plain(schema) => Self::Here(Box::new(validator)),
            _ => Self::Elsewhere,
        }
    }
}

/// What is wrong with arguments, the first few, found in a process that is killed when this is dropped, or when it
/// takes longer than this or than any check may.
pub(super) async fn elsewhere(
    schema: &Value,
    arguments: &Value,
    most: Duration,
) -> Result<Vec<String>, NotChecked> {
    match timeout(most.min(MOST), ask(schema, arguments)).await {
        Ok(answer) => answer.map_err(NotChecked::Failed),
        Err(_) => Err(NotChecked::TooLong),
    }
}

async fn ask(schema: &Value, arguments: &Value) -> io::Result<Vec<String>> {
    let question = serde_json::to_vec(&Question { schema, arguments })?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("check-arguments")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().expect("was asked for");
    let stdout = child.stdout.take().expect("was asked for");
    stdin.write_all(&question).await?;
    drop(stdin);
    let mut answer = vec![];
    stdout.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Is that process: the question on standard input, the answer on standard output.
///
/// # Errors
/// If they cannot be read or written, or the question is none.
#[cfg(feature = "wasm")]
pub(crate) fn answer() -> io::Result<()> {
    use std::io::{Read, Write};

    // Should the server be killed meanwhile.
    std::thread::spawn(|| {
        std::thread::sleep(2 * MOST);
        std::process::exit(1);
    });
    let mut question = vec![];
    io::stdin().read_to_end(&mut question)?;
    let Question { schema, arguments }: Question<Value> = serde_json::from_slice(&question)?;
    let validator = jsonschema::validator_for(&schema).map_err(io::Error::other)?;
    io::stdout().write_all(&serde_json::to_vec(&faults(&validator, &arguments))?)
}

/// What is wrong with arguments, the first few.
pub(super) fn faults(validator: &Validator, arguments: &Value) -> Vec<String> {
    let faults = validator.iter_errors(arguments).map(|error| {
        let at = error.instance_path().to_string();
        let at = at.trim_start_matches('/').replace('/', ".");
        let text = if at.is_empty() { error.to_string() } else { format!("{at}: {error}") };
        text.chars().take(MAX_FAULT).collect()
    });
    faults.take(MAX_FAULTS).collect()
}

/// Whether a check takes no longer than arguments and schema are long.
fn is_plain(schema: &Value) -> bool {
    const NOT: [&str; 6] =
        ["$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties", "uniqueItems"];
    match schema {
        Value::Object(fields) => {
            fields.iter().all(|(key, value)| !NOT.contains(&&**key) && is_plain(value))
        }
        Value::Array(values) => values.iter().all(is_plain),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_takes_no_longer_than_it_is_long_is_checked_here() {
        let plain = json!({ "properties": { "a": { "type": "array", "items": { "enum": [1] } } } });
        assert!(matches!(Check::of(&plain), Check::Here(_)));
        for part in [
            json!({ "$ref": "#/$defs/t" }),
            json!({ "anyOf": [{ "type": "string", "pattern": "^(a+)+$" }] }),
            json!({ "items": { "uniqueItems": true } }),
        ] {
            let schema = json!({ "$defs": { "t": {} }, "properties": { "a": part } });
            assert!(matches!(Check::of(&schema), Check::Elsewhere), "{schema}");
        }
    }
}
