//! Tests of upstreams: settings from a file, and servers that misbehave.

mod http;
mod rights;
mod silent;
mod stdio;

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use config::{Config, Inputs};
use model::Principal;
use serde_json::{Value, json};

use super::{
    CallError, CallErrorKind, CallLimits, CallersUpstreams, Discover, Item, Request, ToolCall,
    Upstreams, Verdict,
};

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

const LIMITS: CallLimits = CallLimits { timeout: PATIENCE, max_bytes: 50_000_000 };

/// The upstreams of these settings.
fn upstreams(yaml: &str) -> Arc<Upstreams> {
    Upstreams::new(&config(yaml).expect("valid settings")).expect("upstreams")
}

fn config(yaml: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, yaml).expect("written");
    let inputs = Inputs { file: Some(path), ..Inputs::default() };
    Config::load(&inputs).map_err(|mistakes| mistakes.to_string())
}

/// All upstreams of these settings, as a caller sees them without a policy.
fn of(yaml: &str) -> CallersUpstreams {
    upstreams(yaml).of(&Principal::local(), None)
}

/// Settings with the server in `tests/upstream` as `crm`, with more lines of its entry.
fn server(generation: &str, folder: &Path, more: &str) -> String {
    format!("upstreams:\n{}", entry("crm", generation, folder, more))
}

/// The entry of the server with this name.
fn entry(name: &str, generation: &str, folder: &Path, more: &str) -> String {
    // The first in PATH may be a script that starts another.
    static PYTHON: LazyLock<String> = LazyLock::new(|| {
        let print = ["-c", "import sys; print(sys.executable, end='')"];
        let told = std::process::Command::new("python3").args(print).output().expect("Python");
        String::from_utf8(told.stdout).expect("a path")
    });
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/upstream/server.py");
    let python = &*PYTHON;
    format!(
        "  {name}:\n    command: {python}\n    args: [{program:?}, {generation}, {:?}]\n{more}",
        folder.display().to_string()
    )
}

/// Makes a call that nobody has to allow.
async fn call(
    upstreams: &CallersUpstreams,
    tool: &str,
    arguments: Value,
) -> Result<Vec<Item>, CallError> {
    call_of(upstreams, "crm", tool, arguments).await
}

async fn call_of(
    upstreams: &CallersUpstreams,
    upstream: &str,
    tool: &str,
    arguments: Value,
) -> Result<Vec<Item>, CallError> {
    let prepared = upstreams.prepare(tool_call(upstream, tool, arguments)).await?;
    assert_eq!(prepared.verdict(), Verdict::Allowed);
    tokio::time::timeout(PATIENCE, prepared.carry_out(LIMITS)).await.expect("an end")
}

fn tool_call(upstream: &str, tool: &str, arguments: Value) -> ToolCall {
    let arguments = arguments.as_object().expect("an object").clone();
    ToolCall { upstream: upstream.into(), tool: tool.into(), arguments }
}

fn value(items: Result<Vec<Item>, CallError>) -> Value {
    match &items.expect("an answer")[..] {
        [Item::Value(value)] => value.clone(),
        other => panic!("{other:?}"),
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T, CallError>) -> CallErrorKind {
    result.expect_err("an error").kind
}

/// Waits for a number of files in a folder whose names begin with a word.
async fn files(folder: &Path, begin: &str, wanted: usize) {
    let count = || {
        let entries = std::fs::read_dir(folder).expect("a folder");
        let names = entries.map(|it| it.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().starts_with(begin)).count()
    };
    until(|| count() >= wanted).await;
    assert_eq!(count(), wanted, "{begin}");
}

/// Waits for a state.
async fn until(mut is_reached: impl FnMut() -> bool) {
    let waiting = async {
        while !is_reached() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the state is reached");
}

#[test]
fn a_request_is_read_as_programs_write_it() {
    let parse = |json: Value| Request::parse(json.to_string().as_bytes());
    assert_eq!(
        parse(json!({ "op": "list" })),
        Ok(Request::Discover(Discover::List { is_brief: false }))
    );
    let search = Discover::Search { query: "x".into(), limit: None };
    assert_eq!(parse(json!({ "op": "search", "query": "x" })), Ok(Request::Discover(search)));
    let call = json!({ "op": "call", "upstream": "crm", "tool": "echo", "arguments": { "a": 1 } });
    assert_eq!(parse(call), Ok(Request::Call(tool_call("crm", "echo", json!({ "a": 1 })))));
    for wrong in [
        json!({ "op": "list", "more": 1 }),
        json!({ "op": "call", "upstream": "crm", "tool": "echo", "as": "root" }),
        json!({ "op": "call", "upstream": "crm", "tool": "echo", "arguments": [] }),
        json!({ "op": "delete" }),
        json!([]),
    ] {
        assert_eq!(kind(parse(wrong.clone())), CallErrorKind::InvalidArguments, "{wrong}");
    }
    let error = CallError::new(CallErrorKind::UnknownOutcome, "x");
    let json = serde_json::to_value(error).expect("JSON");
    assert_eq!(json, json!({ "kind": "unknown_outcome", "message": "x" }));
}
