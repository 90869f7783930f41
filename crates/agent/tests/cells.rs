//! Python cells in the agent as a process, with the interpreter of this machine.

#![allow(missing_docs, clippy::allow_attributes, clippy::unwrap_used, reason = "a test may panic")]

mod child;

use child::Agent;
use protocol::message::{
    CellState, Contents, End, FailureCode, Inspect, Kill, Reset, Run, RuntimeName,
};

fn reset(undo: Option<u32>, files: bool) -> Reset {
    Reset { runtime: RuntimeName::PYTHON, undo, files }
}

#[test]
fn cells_remember_and_go_back_to_what_was_before_one_that_dies() {
    let mut agent = Agent::start();
    let (done, _) = agent.cell(1, "x = [1, 2]");
    let cell = done.cell.unwrap();
    assert_eq!((done.end, cell.state), (End::Exited { code: 0 }, CellState::Kept));
    assert!(cell.fresh && cell.count == 1);
    let (done, _) = agent.cell(2, "x.append(3)\nimport os\nos._exit(4)");
    let cell = done.cell.unwrap();
    assert_eq!((done.end, cell.state), (End::Exited { code: 4 }, CellState::RolledBack));
    let (done, output) = agent.cell(3, "print(len(x), end=' ')\nx");
    assert_eq!((&*output, done.cell.unwrap().count), ("2 [1, 2]", 2));
}

#[test]
fn the_first_cell_that_dies_leaves_what_was_before_it() {
    let mut agent = Agent::start();
    let (done, _) = agent.cell(1, "x = 1\nimport os\nos.kill(os.getpid(), 9)");
    let cell = done.cell.unwrap();
    assert_eq!((done.end, cell.state), (End::Signaled { signal: 9 }, CellState::RolledBack));
    let (done, _) = agent.cell(2, "x");
    assert_eq!(done.end, End::Exited { code: 1 });
    assert!(done.cell.unwrap().fresh);
}

#[test]
fn cells_are_taken_back_as_far_as_was_asked_for_at_the_start() {
    let mut agent = Agent::spawn();
    agent.greet_with(Some(2));
    for number in 1..=4 {
        agent.cell(number, &format!("x = {number}"));
    }
    assert_eq!(agent.ask(5, &reset(Some(3), false), b"").unwrap_err(), FailureCode::NothingToUndo);
    let (done, _) = agent.ask(6, &reset(Some(2), false), b"").unwrap();
    assert_eq!((done.count, done.can_undo), (2, 0));
    assert_eq!(agent.cell(7, "x").1, "2");
    let (done, _) = agent.ask(8, &reset(None, false), b"").unwrap();
    assert_eq!((done.count, done.can_undo), (0, 0));
    assert_eq!(agent.cell(9, "x").0.end, End::Exited { code: 1 });
}

#[test]
fn a_reset_deletes_files_if_that_is_wanted() {
    let mut agent = Agent::start();
    agent.cell(1, "open('kept.txt', 'w').close()");
    agent.ask(2, &reset(None, false), b"").unwrap();
    assert_eq!(agent.cell(3, "import os\nos.listdir()").1, "['kept.txt']");
    agent.ask(4, &reset(None, true), b"").unwrap();
    assert_eq!(agent.cell(5, "import os\nos.listdir()").1, "[]");
}

#[test]
fn a_workspace_is_looked_at_between_cells_and_not_during_one() {
    let mut agent = Agent::start();
    let inspect = Inspect { runtime: RuntimeName::PYTHON };
    assert!(!agent.ask(1, &inspect, b"").unwrap().0.live);
    let imports = "import json, os.path as p, os.path as again\nfrom collections import OrderedDict\n\
                   from email.message import EmailMessage\nfrom textwrap import dedent as cut\n\
                   from enum import Enum\nfrom math import *\n";
    let own = "class Own(Enum): A = 1\ndef work(): pass\ne = 1.5\n";
    agent.cell(2, &format!("names = {{'a': 1}}\n{imports}{own}"));
    let (done, body) = agent.ask(3, &inspect, b"").unwrap();
    assert!(done.live && done.count == 1);
    let contents: Contents = serde_json::from_slice(&body).unwrap();
    let names: Vec<_> = contents.variables.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["names", "e", "Own", "work"], "what was imported is no variable");
    assert_eq!(contents.variables[0].summary, "dict 1");
    let modules = ["collections", "email.message", "enum", "json", "math", "posixpath", "textwrap"];
    assert_eq!(contents.imports, modules, "each once, by name, also of what was imported from it");

    let code = "open('there', 'w').close()\nwhile True: pass";
    let run = Run {
        runtime: RuntimeName::PYTHON,
        code_len: code.len(),
        has_stdin: false,
        timeout_ms: 60_000,
        output_cap: 9,
        cell: true,
    };
    agent.send(4, protocol::frame::Kind::Run, &run, code.as_bytes());
    agent.wait_for("there");
    assert_eq!(agent.ask(5, &inspect, b"").unwrap_err(), FailureCode::Busy);
    assert_eq!(agent.ask(6, &reset(None, true), b"").unwrap_err(), FailureCode::Busy);
    agent.send(7, protocol::frame::Kind::Kill, &Kill { run: 4 }, b"");
    agent.receive();
    let (done, _) = agent.answer::<Run>(4).unwrap();
    assert_eq!((done.end, done.cell.unwrap().state), (End::Killed, CellState::RolledBack));
    assert_eq!(agent.cell(8, "names").1, "{'a': 1}");
}
