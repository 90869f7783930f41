//! The command `tool`, with which shell scripts call the tools that the operator has connected. It is the agent's program
//! under another name, and a process of the user's like any other.
//!
//! ```text
//! tool --list                       upstreams
//! tool --search WORDS               tools that have to do with something
//! tool crm --help                   the tools of an upstream
//! tool crm search_contacts --help   what a tool takes
//! tool crm search_contacts '{..}'   a call; `-` reads the arguments from standard input
//! ```
//!
//! It prints a text as it is, the path of a file, and anything else as JSON. Exit code 1: the call failed; 2: it was
//! not made, because the command is wrong.

use std::{
    collections::HashMap,
    fmt::Write as _,
    io::{self, Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    path::Path,
    process::ExitCode,
};

use protocol::message::MAX_ASK;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gate;

/// The name of the command, by which the agent's program finds out that it is this one.
const NAME: &str = "tool";

/// Maximum length of a description in a list, in characters, and number of arguments of a tool there.
const MAX_LINE: usize = 100;
const MAX_ARGUMENTS: usize = 8;

const NOT_ENABLED: &str = "calls out of this sandbox are not enabled: its operator has connected no tools (setting `upstreams`)";

const USAGE: &str = "usage: tool --list
       tool --search WORDS
       tool UPSTREAM --help
       tool UPSTREAM TOOL --help
       tool UPSTREAM TOOL ['{\"argument\": \"value\"}' | -]";

/// A failure: the exit code and the message.
struct Failed(u8, String);

/// An answer of the server.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The value that was requested, except by a call.
    Value(Value),
    /// The results of a call.
    Items(Vec<Item>),
    Error {
        #[serde(default)]
        kind: String,
        #[serde(default)]
        message: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Item {
    Value(Value),
    File { path: String },
}

/// The arguments of the command, if this process is it.
pub(crate) fn args() -> Option<Vec<String>> {
    let mut args = std::env::args_os();
    let program = args.next()?;
    let is_this = Path::new(&program).file_name().is_some_and(|name| name == NAME);
    is_this.then(|| args.map(|arg| arg.to_string_lossy().into_owned()).collect())
}

/// Runs the command.
pub(crate) fn main(args: &[String]) -> ExitCode {
    match carry_out(args) {
        Ok(text) => {
            // A pipe that nobody reads any more is no failure of the call.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Failed(code, message)) => {
            eprintln!("{NAME}: {message}");
            ExitCode::from(code)
        }
    }
}

fn carry_out(args: &[String]) -> Result<String, Failed> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match *args {
        ["--list"] => Ok(lines(&entries(&json!({ "op": "list" }))?, "")),
        ["--search", ref words @ ..] if !words.is_empty() => search(&words.join(" ")),
        ["--list", upstream] | [upstream, "--help" | "--list"] if !upstream.starts_with('-') => {
            Ok(lines(&entries(&tools(upstream))?, upstream))
        }
        [upstream, tool, "--help"] => help(upstream, tool),
        [upstream, tool] if !upstream.starts_with('-') => call(upstream, tool, "{}"),
        [upstream, tool, "-"] => {
            let mut text = String::new();
            let read = io::stdin().read_to_string(&mut text);
            read.map_err(|error| Failed(2, format!("standard input: {error}")))?;
            call(upstream, tool, &text)
        }
        [upstream, tool, arguments] if !upstream.starts_with('-') => {
            call(upstream, tool, arguments)
        }
        ["--help" | "-h"] => Ok(format!("{USAGE}\n")),
        _ => Err(Failed(2, USAGE.to_owned())),
    }
}

fn tools(upstream: &str) -> Value {
    json!({ "op": "tools", "upstream": upstream })
}

fn call(upstream: &str, tool: &str, arguments: &str) -> Result<String, Failed> {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).map_err(|error| {
        Failed(2, format!("the arguments are one JSON object, as '{{\"query\": \"x\"}}': {error}"))
    })?;
    let request =
        json!({ "op": "call", "upstream": upstream, "tool": tool, "arguments": arguments });
    let items = match ask(&request)? {
        Answer::Items(items) => items,
        Answer::Value(value) => vec![Item::Value(value)],
        Answer::Error { .. } => vec![],
    };
    let lines = items.into_iter().map(|item| match item {
        Item::File { path } => path,
        Item::Value(Value::String(text)) => text,
        Item::Value(value) => value.to_string(),
    });
    Ok(lines.map(|line| if line.ends_with('\n') { line } else { line + "\n" }).collect())
}

/// The tools that have to do with something. The arguments of each are in the list of its upstream.
fn search(words: &str) -> Result<String, Failed> {
    let mut found = entries(&json!({ "op": "search", "query": words, "limit": 20 }))?;
    let mut known = HashMap::new();
    for entry in &mut found {
        let Some(upstream) = entry["upstream"].as_str().map(str::to_owned) else { continue };
        let listed = known
            .entry(upstream.clone())
            .or_insert_with(|| entries(&tools(&upstream)).unwrap_or_default());
        if let Some(full) = listed.iter().find(|full| full["name"] == entry["name"]) {
            *entry = full.clone();
            entry["upstream"] = upstream.into();
        }
    }
    Ok(lines(&found, ""))
}

/// A line for each upstream or tool; `upstream` has the tools that do not name theirs.
fn lines(entries: &[Value], upstream: &str) -> String {
    let mut lines = String::new();
    for entry in entries {
        let word = |name: &str| entry[name].as_str().unwrap_or_default();
        let upstream = entry["upstream"].as_str().unwrap_or(upstream);
        let space = if upstream.is_empty() { "" } else { " " };
        let _ = write!(lines, "{upstream}{space}{}{}", word("name"), usage(&entry["input_schema"]));
        if let Some(count) = entry["tools"].as_u64() {
            let _ = write!(lines, " ({count} tools)");
        }
        match (entry["unavailable"].as_str(), word("rights")) {
            (Some(why), _) => {
                let _ = write!(lines, " [unavailable: {}]", cut(why));
            }
            (None, "ask") => lines.push_str(" [a person is asked]"),
            (None, "denied") => lines.push_str(" [not allowed]"),
            _ => {}
        }
        let first = cut(word("description"));
        let _ = writeln!(lines, "{}{first}", if first.is_empty() { "" } else { "  " });
    }
    lines
}

/// The arguments of a tool, those that it needs first; of many optional ones not all.
fn usage(schema: &Value) -> String {
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    let properties = schema["properties"].as_object();
    let (needed, optional): (Vec<_>, Vec<_>) = properties
        .into_iter()
        .flatten()
        .partition(|(name, _)| required.iter().any(|each| each == name.as_str()));
    let most = MAX_ARGUMENTS.saturating_sub(needed.len());
    let is_cut = optional.len() > most;
    let mut shown = vec![];
    for (mark, arguments) in [("", &needed[..]), ("?", &optional[..most.min(optional.len())])] {
        shown.extend(arguments.iter().map(|(name, property)| match property["type"].as_str() {
            Some(kind) => format!("{name}{mark}: {kind}"),
            None => format!("{name}{mark}"),
        }));
    }
    shown.extend(is_cut.then(|| "…".to_owned()));
    if shown.is_empty() { String::new() } else { format!(" {{ {} }}", shown.join(", ")) }
}

/// The first line of a text; of a long one the first words.
fn cut(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default().trim_end();
    let Some((end, _)) = line.char_indices().nth(MAX_LINE) else { return line.to_owned() };
    let words = line[..end].rfind(' ').map_or(&line[..end], |space| &line[..space]);
    format!("{}…", words.trim_end_matches([' ', ',', ';', ':', '.']))
}

fn help(upstream: &str, tool: &str) -> Result<String, Failed> {
    let entries = entries(&tools(upstream))?;
    let Some(entry) = entries.iter().find(|entry| entry["name"] == tool) else {
        let names: Vec<_> = entries.iter().filter_map(|entry| entry["name"].as_str()).collect();
        return Err(Failed(
            1,
            format!("{upstream} has no tool {tool}: it has {}", names.join(", ")),
        ));
    };
    let schema = &entry["input_schema"];
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = format!("tool {upstream} {tool} '{{...}}'\n");
    if let Some(description) = entry["description"].as_str() {
        let _ = writeln!(text, "{}", description.trim());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let kind = match &property["type"] {
            Value::String(kind) => kind.clone(),
            Value::Null => "value".to_owned(),
            kinds => kinds.to_string(),
        };
        let needed = if required.iter().any(|each| each == name) { ", required" } else { "" };
        let _ = write!(text, "  {name} ({kind}{needed})");
        if let Some(choices) = property["enum"].as_array() {
            let _ = write!(text, " one of {}", Value::from(choices.clone()));
        }
        let words = property["description"].as_str().unwrap_or_default();
        let words: Vec<_> = words.split_whitespace().collect();
        let _ = writeln!(text, "{}{}", if words.is_empty() { "" } else { ": " }, words.join(" "));
    }
    Ok(text)
}

fn entries(request: &Value) -> Result<Vec<Value>, Failed> {
    match ask(request)? {
        Answer::Value(Value::Array(entries)) => Ok(entries),
        _ => Err(Failed(1, "the answer is no list".to_owned())),
    }
}

/// Sends a request and returns the answer, unless that is an error.
fn ask(request: &Value) -> Result<Answer, Failed> {
    let (upstream, tool) = (request["upstream"].as_str(), request["tool"].as_str());
    let whose: Vec<_> = upstream.into_iter().chain(tool).collect();
    let failed = |message: &str| {
        let whose = whose.join(".");
        Failed(1, if whose.is_empty() { message.to_owned() } else { format!("{whose}: {message}") })
    };
    let request = request.to_string();
    if request.len() > MAX_ASK {
        return Err(failed(&format!("the arguments are longer than {MAX_ASK} bytes")));
    }
    let name = std::env::var(gate::VARIABLE).unwrap_or_else(|_| gate::NAME.to_owned());
    let address = SocketAddr::from_abstract_name(name);
    let stream = address.and_then(|address| UnixStream::connect_addr(&address));
    let mut stream = stream.map_err(|_| failed(NOT_ENABLED))?;
    let answer = exchange(&mut stream, &request).map_err(|_| {
        failed("the connection was closed before the answer came; the call may have been made")
    })?;
    match serde_json::from_slice(&answer) {
        Ok(Answer::Error { kind, message }) => Err(match upstream {
            Some(upstream) if kind == "upstream" => failed(&format!("{upstream} says: {message}")),
            _ => failed(&message),
        }),
        Ok(answer) => Ok(answer),
        Err(_) => Err(failed("the answer is not what it must be")),
    }
}

/// Sends a request with its length before it, and reads the answer, which has the same form.
fn exchange(stream: &mut UnixStream, request: &str) -> io::Result<Vec<u8>> {
    let length = u32::try_from(request.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_le_bytes(), request.as_bytes()].concat())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_ASK {
        return Err(io::Error::other("too long"));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
