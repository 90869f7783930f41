//! Tests of the program's arguments and settings.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::process::{Command, Output};

fn run(arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut relay = Command::new(env!("CARGO_BIN_EXE_llm-sandbox-relay"));
    relay.args(arguments).envs(settings.iter().copied()).output().unwrap()
}

#[test]
fn what_cannot_be_used_ends_it_with_a_code_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("relay.sock").to_string_lossy().into_owned();
    let listen = ["--listen", &*socket];
    let wrong = run(&listen, &[("SANDBOX_MEMORY_LIMIT", "much")]);
    assert_eq!(wrong.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("SANDBOX_MEMORY_LIMIT"));
    assert_eq!(run(&[], &[]).status.code(), Some(64));
    assert_eq!(run(&["--help"], &[]).status.code(), Some(0));
    assert_eq!(run(&["--listen", "/no/such/folder/relay.sock"], &[]).status.code(), Some(69));
    let nobody = run(&["--health", "--listen", &socket], &[]);
    assert_eq!(nobody.status.code(), Some(1));
}
