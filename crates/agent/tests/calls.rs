//! The modules and the program by which code in a sandbox calls tools, against a server of the tests' own.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

/// Folder of the tests in other languages, and of the server that they share.
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/calls");

/// Runs a program of the tests, and shows what it says if it fails.
fn run(program: &str, file: &str) {
    let ended = Command::new(program).arg(format!("{TESTS}/{file}")).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}{said}", String::from_utf8_lossy(&ended.stdout));
}

#[test]
fn the_module_of_python_calls_tools() {
    run("python3", "python.py");
}

#[test]
fn the_global_of_node_calls_tools() {
    run("node", "javascript.mjs");
}

/// A server of calls that listens until it is dropped.
struct Broker(Child, String);

impl Broker {
    fn start(test: &str) -> Self {
        let name = format!("llm-sandbox-test-{test}-{}", std::process::id());
        let mut child = Command::new("python3")
            .args([format!("{TESTS}/broker.py"), name.clone()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child, name)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command `tool` with a text as its standard input. Returns its exit code and its outputs.
fn tool(socket: &str, input: &str, args: &[&str]) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg0("/usr/local/bin/tool")
        .args(args)
        .env("SANDBOX_TOOLS", socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It reads no input unless it is asked to.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let ended = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ended.status.code().unwrap(), text(ended.stdout), text(ended.stderr))
}

#[test]
fn the_command_tool_calls_tools() {
    let broker = Broker::start("calls");
    let run = |args: &[&str]| tool(&broker.1, "{\"value\": [1, \"Köln\"]}", args);
    let printed = |args: &[&str]| {
        let (code, out, err) = run(args);
        assert_eq!((code, &*err), (0, ""), "{args:?} {out}");
        out
    };
    assert_eq!(printed(&["crm", "echo", "{\"value\": {\"a\": 1}}"]), "{\"a\":1}\n");
    assert_eq!(printed(&["crm", "echo", "{\"value\": \"a text\"}"]), "a text\n");
    assert_eq!(printed(&["crm", "echo", "-"]), "[1,\"Köln\"]\n");
    assert_eq!(printed(&["crm", "several"]), "text\n/mnt/data/calls/a.png\n");
    assert_eq!(printed(&["crm", "nothing"]), "");
    assert_eq!(
        printed(&["--list"]),
        "crm (15 tools)  Customers\nmy-files (3 tools)  Files\nweather (2 tools)  The weather\n\
         wiki [unavailable: wiki: its process has ended]  Pages\n"
    );
    let search_contacts = "crm search_contacts { query: string, from?, limit?: integer, sort?: string }  \
                           Finds contacts.\n";
    assert_eq!(printed(&["--search", "contacts"]), search_contacts);
    let import = printed(&["--search", "import"]);
    assert!(import.starts_with("crm import { data, option_0?, option_1?, "), "{import}");
    let (_, description) = import.split_once(", … }  Imports records of several").unwrap();
    assert!(description.ends_with("several…\n") && description.len() < 100, "{import}");
    let tools = printed(&["crm", "--help"]);
    assert!(tools.starts_with(search_contacts), "{tools}");
    assert!(tools.contains("\ncrm delete_all [a person is asked]\n"), "{tools}");
    assert_eq!(
        printed(&["crm", "search_contacts", "--help"]),
        "tool crm search_contacts '{...}'\nFinds contacts.\nBest first.\n\
         \x20 from (value)\n\x20 limit (integer)\n\
         \x20 query (string, required): words of the name\n\
         \x20 sort (string) one of [\"name\",\"newest\"]\n"
    );
}

#[test]
fn the_command_tool_reports_errors_on_standard_error() {
    let broker = Broker::start("errors");
    let failed = |args: &[&str]| {
        let (code, out, err) = tool(&broker.1, "", args);
        assert_eq!(out, "");
        (code, err)
    };
    let says = "tool: crm.fail: crm says: no such person\n";
    let fail = "{\"kind\": \"upstream\", \"message\": \"no such person\"}";
    assert_eq!(failed(&["crm", "fail", fail]), (1, says.to_owned()));
    let (code, message) = failed(&["crm", "fail", "{\"kind\": \"denied\"}"]);
    assert_eq!((code, &*message), (1, "tool: crm.fail: it went wrong\n"));
    for (code, words, args) in [
        (1, "crm.hang_up: the connection was closed", &["crm", "hang_up"][..]),
        (1, "crm.garbage: the answer is not what it must be", &["crm", "garbage"]),
        (1, "crm has no tool x: it has search_contacts, ", &["crm", "x", "--help"]),
        (1, "no upstream x", &["x", "y"]),
        (2, "the arguments are one JSON object", &["crm", "echo", "value=1"]),
        (2, "usage: tool --list", &["crm"]),
        (2, "usage: tool --list", &[]),
    ] {
        let (exit, message) = failed(args);
        assert!(exit == code && message.contains(words), "{args:?} {exit} {message}");
    }
    let (code, _, message) = tool("nobody-listens-here", "", &["--list"]);
    assert!(code == 1 && message.contains("are not enabled"), "{message}");
}
