//! The agent as a process: it ends when its server has ended, in every way that can happen.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod child;

use std::{fs, io::Write};

use child::Agent;
use protocol::{
    frame::{Kind, PROTOCOL_VERSION},
    message::{Failure, FailureCode, Run, RunDone, RuntimeName},
};
use serde_json::json;

/// A program that writes its process id to a file and then never ends.
const ENDLESS: &str = "import os, signal\nsignal.signal(15, signal.SIG_IGN)\n\
                       open('pid.part', 'w').write(str(os.getpid())); os.rename('pid.part', 'pid')\n\
                       while True: print('x' * 100)";

fn assert_dead(agent: &Agent) {
    let pid = fs::read_to_string(agent.folder.path().join("data/pid")).unwrap();
    assert!(!fs::exists(format!("/proc/{pid}")).unwrap(), "the program lives on");
}

#[test]
fn the_end_of_the_stream_ends_the_agent_and_its_run() {
    let mut agent = Agent::start();
    agent.run(1, ENDLESS);
    agent.wait_for("pid");
    agent.stdin = None;
    assert_eq!(agent.exit_code(), Some(0));
    assert_dead(&agent);
}

#[test]
fn an_end_behind_unread_bytes_is_seen_as_well() {
    let mut agent = Agent::start();
    agent.run(1, ENDLESS);
    agent.wait_for("pid");
    // Half a frame: the main thread waits for the rest, which never comes.
    agent.stdin.as_mut().unwrap().write_all(&[1, 2, 3]).unwrap();
    agent.stdin = None;
    assert_eq!(agent.exit_code(), Some(0));
    assert_dead(&agent);
}

#[test]
fn a_silent_server_ends_the_agent_and_its_run() {
    let mut agent = Agent::spawn();
    agent.greet(2_000);
    agent.run(1, ENDLESS);
    agent.wait_for("pid");
    assert_eq!(agent.exit_code(), Some(0), "although its input is still open");
    assert_dead(&agent);
}

#[test]
fn a_server_of_another_version_is_refused() {
    for hello in [
        json!({ "version": PROTOCOL_VERSION + 1, "of": "something else" }),
        // The hello of protocol 3, whose servers sent it at the same time as the agent.
        json!({ "version": 3, "silence_limit_ms": 60_000, "preload": null }),
    ] {
        let mut agent = Agent::spawn();
        agent.send(0, Kind::Hello, &hello, b"");
        assert_eq!(agent.version(), PROTOCOL_VERSION, "it is told which, so that it can say so");
        assert_eq!(agent.exit_code(), Some(1));
    }
}

#[test]
fn a_server_that_does_not_say_hello_first_is_refused() {
    let mut agent = Agent::spawn();
    agent.send(1, Kind::Ping, &json!({}), b"");
    assert_eq!(agent.exit_code(), Some(1));
    assert!(!agent.says_more(), "and is told nothing");
}

#[test]
fn whoever_reads_late_loses_nothing() {
    let mut agent = Agent::spawn();
    // The agent has done all that it does before it waits for the hello: its threads exist.
    agent.wait_for_threads(3);
    assert!(!agent.has_spoken(), "what is said now is lost where a stream is attached late");
    agent.greet(45_000);
    agent.run(1, "print(2+2)");
    let (done, printed) = agent.answer::<Run>(1).unwrap();
    assert_eq!((done.stdout.total, &printed[..2]), (2, &b"4\n"[..]));
}

#[test]
fn a_program_for_a_runtime_that_is_not_there_is_refused_and_the_next_is_run() {
    let mut agent = Agent::start();
    let runtime = "perl".to_owned().into();
    let run = Run {
        runtime,
        code_len: 1,
        has_stdin: false,
        timeout_ms: 60_000,
        output_cap: 9,
        cell: false,
    };
    assert_eq!(agent.ask(1, &run, b"1"), Err(FailureCode::NoRuntime));
    agent.run(2, "print(2+2)");
    assert_eq!(agent.answer::<Run>(2).unwrap().0.stdout.total, 2);
}

#[test]
fn a_broken_frame_ends_the_agent() {
    let mut agent = Agent::spawn();
    agent.stdin.as_mut().unwrap().write_all(&[0xFF; 64]).unwrap();
    assert_eq!(agent.exit_code(), Some(1));
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_the_next_is_served() {
    let mut agent = Agent::start();
    agent.send(1, Kind::Run, &json!({ "code_len": "many" }), b"");
    agent.send(2, Kind::Reply, &json!({}), b"");
    let runtime = RuntimeName::PYTHON;
    let too_long =
        Run { runtime, code_len: 99, has_stdin: false, timeout_ms: 1, output_cap: 1, cell: false };
    agent.send(3, Kind::Run, &too_long, b"print(1)");
    for call in 1..=3 {
        let frame = agent.receive();
        assert_eq!((frame.call, frame.kind), (call, Kind::Failure));
        let failure: Failure = serde_json::from_slice(&frame.head).unwrap();
        assert_eq!(failure.code, FailureCode::BadRequest);
    }
    agent.run(4, "print(2+2)");
    let frame = agent.receive();
    let done: RunDone = serde_json::from_slice(&frame.head).unwrap();
    assert_eq!((frame.call, done.stdout.total), (4, 2));
    assert_eq!(&frame.body[..2], b"4\n");
}
