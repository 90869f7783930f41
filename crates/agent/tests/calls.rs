//! The modules and the program by which code in a sandbox calls tools, against a server of the tests' own.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

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
