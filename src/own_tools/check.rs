//! Checks the arguments of a call against the schema of its tool.
//!
//! With most schemas, a check takes no longer than reading the arguments. A schema that refers to itself, or has
//! patterns, can take forever with a few bytes, and nothing could stop that within this process: another process checks
//! it.

use std::{fmt, io, process::Stdio, time::Duration};

use boon::{CompileError, Compiler, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
    time::timeout,
};

/// Maximum number of mistakes that are reported.
pub(super) const MAX_FAULTS: usize = 5;

/// Longest text of a mistake, in characters: some of them quote the argument, however long it is.
const MAX_FAULT: usize = 500;

/// Longest time of a check.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Maximum memory of a process that checks, in bytes. A schema with branches yields a mistake for each branch.
#[cfg(feature = "wasm")]
const MOST_MEMORY: u64 = 512 << 20;

/// Maximum number of bytes of an answer: JSON may need six bytes for a character.
const MAX_ANSWER: u64 = (MAX_FAULTS * MAX_FAULT * 6 + 64) as u64;

/// The request to the process.
#[derive(Debug, Serialize, Deserialize)]
struct Question<T> {
    schema: T,
    arguments: T,
}

/// A compiled schema that checks arguments.
pub(super) struct Validator {
    schemas: Schemas,
    root: SchemaIndex,
}

impl fmt::Debug for Validator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validator").finish_non_exhaustive()
    }
}

impl Validator {
    /// Compiles a schema of any draft since 4, by default of 2020-12.
    ///
    /// # Errors
    /// If it is not a valid schema: the first mistake, after the place where it is.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        // A name that no reference in a schema has by chance.
        const NAME: &str = "schema:tool";

        let mut schemas = Schemas::new();
        let mut compiler = Compiler::new();
        compiler.use_loader(Box::new(NoOtherFile));
        compiler
            .add_resource(NAME, schema.clone())
            .expect("`NAME` is a URL and the first resource");
        match compiler.compile(NAME, &mut schemas) {
            Ok(root) => Ok(Self { schemas, root }),
            Err(CompileError::ValidationError { src, .. }) => {
                let mut found = vec![];
                add_leaves(&src, &mut found);
                Err(found.swap_remove(0))
            }
            Err(other) => Err(format!("{other:#}")),
        }
    }
}

/// Refuses references to other files: a schema must be complete.
struct NoOtherFile;

impl UrlLoader for NoOtherFile {
    fn load(&self, url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err(format!("{url} is another file, and a schema must be in one").into())
    }
}

/// The way in which a tool's arguments are checked.
#[derive(Debug)]
pub(super) enum Check {
    /// In this process.
    Here(Box<Validator>),
    /// In another process, which can be stopped.
    Elsewhere,
}

/// The reason why a check has no result.
#[derive(Debug)]
pub(super) enum NotChecked {
    /// The check took too long, or too much memory.
    TooLong,
    /// The process could not be started, or it failed.
    Failed(io::Error),
}

impl Check {
    /// Chooses the check for a valid schema.
    pub(super) fn of(schema: &Value) -> Self {
        match Validator::of(schema) {
            Ok(validator) if is_plain(schema) => Self::Here(Box::new(validator)),
            _ => Self::Elsewhere,
        }
    }
}

/// Returns the first mistakes in arguments, at most [`MAX_FAULTS`]. A process of its own finds them. It is killed when
/// this is dropped, or when it takes longer than `most` or [`MAX_TIME`].
pub(super) async fn elsewhere(
    schema: &Value,
    arguments: &Value,
    most: Duration,
) -> Result<Vec<String>, NotChecked> {
    match timeout(most.min(MAX_TIME), ask(schema, arguments)).await {
        Ok(Ok(Some(faults))) => Ok(faults),
        Ok(Ok(None)) | Err(_) => Err(NotChecked::TooLong),
        Ok(Err(error)) => Err(NotChecked::Failed(error)),
    }
}

/// Asks the process. `None` if a signal ended it, which happens when it runs out of memory.
async fn ask(schema: &Value, arguments: &Value) -> io::Result<Option<Vec<String>>> {
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
    let mut stdin = child.stdin.take().expect("piped above");
    let stdout = child.stdout.take().expect("piped above");
    stdin.write_all(&question).await?;
    drop(stdin);
    let mut answer = vec![];
    stdout.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    if child.wait().await?.code().is_none() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&answer)?))
}

/// The main function of that process: the question is on standard input, the answer goes to standard output.
///
/// # Errors
/// If they cannot be read or written, or the question is invalid.
#[cfg(feature = "wasm")]
pub(crate) fn answer() -> io::Result<()> {
    use std::io::{Read, Write};

    // Ends the process if the server was killed meanwhile.
    std::thread::spawn(|| {
        std::thread::sleep(2 * MAX_TIME);
        std::process::exit(1);
    });
    rlimit::setrlimit(rlimit::Resource::AS, MOST_MEMORY, MOST_MEMORY)?;
    let mut question = vec![];
    io::stdin().read_to_end(&mut question)?;
    let Question { schema, arguments }: Question<Value> = serde_json::from_slice(&question)?;
    let validator = Validator::of(&schema).map_err(io::Error::other)?;
    io::stdout().write_all(&serde_json::to_vec(&faults(&validator, &arguments))?)
}

/// Returns the first mistakes in arguments, at most [`MAX_FAULTS`].
pub(super) fn faults(validator: &Validator, arguments: &Value) -> Vec<String> {
    let Err(error) = validator.schemas.validate(arguments, validator.root) else {
        return vec![];
    };
    let mut found = vec![];
    add_leaves(&error, &mut found);
    found
}

/// Adds the first mistakes themselves, without the schema keywords above them.
fn add_leaves(error: &ValidationError, found: &mut Vec<String>) {
    if error.causes.is_empty() {
        let text = text(error);
        if !found.contains(&text) {
            found.push(text);
        }
    }
    for cause in &error.causes {
        if found.len() < MAX_FAULTS {
            add_leaves(cause, found);
        }
    }
}

/// The text of a mistake, after the place where it is, such as `size.width`.
fn text(error: &ValidationError) -> String {
    let at = error.instance_location.to_string();
    let at = at.trim_start_matches('/').replace('/', ".");
    let kind = &error.kind;
    let text = if at.is_empty() { kind.to_string() } else { format!("{at}: {kind}") };
    text.chars().take(MAX_FAULT).collect()
}

/// Whether the time of a check grows only with the length of arguments and schema.
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
