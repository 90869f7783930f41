//! The agent as a process: it outlives its stream for as long as its server has asked for, and continues with another,
//! but only if the visitor has the token.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod child;

use std::{fs, io::Write, process::Child, time::Instant};

use child::{Agent, TIMEOUT};
use protocol::{
    frame::{Frame, Kind, PROTOCOL_VERSION},
    message::{AgentHello, FailureCode, Get, Ping, Put, Run, RunDone, RuntimeName, ServerHello},
    resume::{Hold, Remember, Resume, Resumed},
};
use serde_json::json;

const TOKEN: &str = "the server's own";

/// Long enough for any test.
const LONG_MS: u64 = 60_000;

fn hold(limit_ms: u64, token: &str) -> Hold {
    Hold { limit_ms, token: token.to_owned().into() }
}

fn hello(limit_ms: u64) -> ServerHello {
    ServerHello {
        version: PROTOCOL_VERSION,
        silence_limit_ms: 45_000,
        preload: None,
        undo: Some(0),
        hold: Some(hold(limit_ms, TOKEN)),
        timezone: None,
        asks: false,
        commands: vec![],
    }
}

/// An agent whose hold has this limit.
fn held(limit_ms: u64) -> Agent {
    let mut agent = Agent::spawn();
    agent.say(&hello(limit_ms));
    agent
}

fn resume(token: &str, received: Option<u64>) -> Resume {
    Resume {
        version: PROTOCOL_VERSION,
        silence_limit_ms: 45_000,
        hold: hold(LONG_MS, token),
        received,
    }
}

/// Resumes with another stream. Returns the agent's answer, and the note.
fn go_on(agent: &mut Agent, received: Option<u64>) -> (Resumed, Vec<u8>) {
    agent.stdin = None;
    let (resumed, note) = introduce(agent, &resume(TOKEN, received));
    assert_eq!(resumed.kind, Kind::Reply);
    (serde_json::from_slice(&resumed.head).unwrap(), note)
}

#[expect(clippy::zombie_processes, reason = "a visitor that is let in lives as long as its stream")]
/// Visits with this first frame, and again until the agent has noticed that its stream is lost.
fn introduce(agent: &mut Agent, first: &impl serde::Serialize) -> (Frame, Vec<u8>) {
    let begun = Instant::now();
    loop {
        let mut visitor = agent.visit();
        agent.try_send(0, Kind::Resume, first);
        if let Ok(Some(frame)) = agent.try_receive() {
            let body = frame.body.clone();
            return (frame, body);
        }
        visitor.wait().unwrap();
        assert!(begun.elapsed() < TIMEOUT, "it is never let in");
    }
}

/// Visits an agent that has no stream yet, and sends a hello; again until the agent listens.
fn come_first(agent: &mut Agent) -> Child {
    let begun = Instant::now();
    loop {
        let mut visitor = agent.visit();
        agent.try_send(0, Kind::Hello, &hello(LONG_MS));
        if let Ok(Some(frame)) = agent.try_receive() {
            assert_eq!(frame.kind, Kind::Hello);
            return visitor;
        }
        visitor.wait().unwrap();
        assert!(begun.elapsed() < TIMEOUT, "it is never let in");
    }
}

fn run(code: &str) -> Run {
    Run {
        runtime: RuntimeName::PYTHON,
        code_len: code.len(),
        has_stdin: false,
        timeout_ms: 60_000,
        output_cap: 1000,
        cell: false,
    }
}

/// A program that makes the file `begun`, and continues when there is a file `go`.
const WAITS: &str = "open('begun', 'w')\nimport os, time\n\
                     while not os.path.exists('go'): time.sleep(.005)\nprint('done')";

#[test]
fn what_runs_goes_on_and_its_result_comes_by_the_next_stream() {
    let mut agent = held(LONG_MS);
    agent.send(1, Kind::Run, &run(WAITS), WAITS.as_bytes());
    agent.wait_for("begun");
    let (resumed, note) = go_on(&mut agent, Some(0));
    assert_eq!(resumed, Resumed { received: 1, last_call: 1, running: Some(1), missed: 0 });
    assert!(note.is_empty());
    fs::write(agent.folder.path().join("data/go"), "").unwrap();
    let (done, printed) = agent.answer::<Run>(1).unwrap();
    assert_eq!((done.stdout.total, &printed[..5]), (5, &b"done\n"[..]));
}

#[test]
fn a_result_that_nobody_has_received_is_sent_again() {
    let mut agent = held(LONG_MS);
    agent.run(1, "print(2+2)");
    let first = agent.receive();
    assert_eq!((first.call, first.kind), (1, Kind::Reply));
    // As if the result had been lost on the way.
    let _ = go_on(&mut agent, Some(0));
    assert_eq!(agent.receive(), first);
    // The result was received.
    let (resumed, _) = go_on(&mut agent, Some(1));
    assert_eq!(resumed.received, 1);
    agent.send(2, Kind::Ping, &Ping {}, b"");
    agent.answer::<Ping>(2).unwrap();
}

#[test]
fn a_result_of_while_there_is_no_stream_is_kept() {
    let mut agent = held(LONG_MS);
    agent.send(1, Kind::Run, &run(WAITS), WAITS.as_bytes());
    agent.wait_for("begun");
    agent.stdin = None;
    fs::write(agent.folder.path().join("data/go"), "").unwrap();
    // The result may be ready before or after the stream comes: it is sent in both cases.
    let (resumed, _) = go_on(&mut agent, Some(0));
    assert_eq!(resumed.last_call, 1);
    assert_eq!(agent.answer::<Run>(1).unwrap().0.stdout.total, 5);
}

#[test]
fn another_server_hears_nothing_of_old_calls_but_of_the_run_that_goes_on() {
    let mut agent = held(LONG_MS);
    agent.run(1, "print(2+2)");
    agent.receive();
    agent.send(2, Kind::Remember, &Remember {}, b"whose it is");
    agent.answer::<Remember>(2).unwrap();
    agent.send(3, Kind::Run, &run(WAITS), WAITS.as_bytes());
    agent.wait_for("begun");
    // An upload whose last piece will not come.
    let put = Put { upload: 9, path: "a.csv".into(), offset: 0, last: false, overwrite: false };
    agent.ask(4, &put, b"half").unwrap();
    let (resumed, note) = go_on(&mut agent, None);
    assert_eq!(resumed, Resumed { received: 4, last_call: 4, running: Some(3), missed: 3 });
    assert_eq!(note, b"whose it is");
    let rest = Put { offset: 4, last: true, ..put };
    assert!(agent.ask(5, &rest, b" and half").is_err(), "it was of another server's");
    fs::write(agent.folder.path().join("data/go"), "").unwrap();
    agent.answer::<Run>(3).unwrap();
    agent.run(6, "print(open('begun').read(), 'still there')");
    let frame = agent.receive();
    let done: RunDone = serde_json::from_slice(&frame.head).unwrap();
    assert_eq!((frame.call, done.stdout.total), (6, 13));
}

#[test]
fn another_server_gets_the_result_of_the_last_run_and_counts_from_there() {
    let mut agent = held(LONG_MS);
    agent.run(1, "print(2+2)");
    let result = agent.receive();
    agent.send(2, Kind::Ping, &Ping {}, b"");
    agent.answer::<Ping>(2).unwrap();
    for _ in 0..2 {
        // The first of these servers ends before it has received the result.
        let (resumed, _) = go_on(&mut agent, None);
        assert_eq!(resumed, Resumed { received: 2, last_call: 2, running: Some(1), missed: 1 });
        assert_eq!(agent.receive(), result);
    }
    agent.send(3, Kind::Ping, &Ping {}, b"");
    agent.answer::<Ping>(3).unwrap();
    let (resumed, _) = go_on(&mut agent, Some(3));
    assert_eq!(resumed.received, 3);
    agent.send(4, Kind::Ping, &Ping {}, b"");
    agent.answer::<Ping>(4).unwrap();
}

#[test]
fn a_request_that_was_cut_off_counts_as_never_made() {
    let mut agent = held(LONG_MS);
    agent.run(1, "print(2+2)");
    agent.receive();
    // Half a frame, and then the end.
    agent.stdin.as_mut().unwrap().write_all(&[200, 0, 0, 0, 2, 0]).unwrap();
    let (resumed, _) = go_on(&mut agent, Some(1));
    assert_eq!((resumed.received, resumed.last_call), (1, 1));
    agent.run(2, "print(3)");
    assert_eq!(agent.answer::<Run>(2).unwrap().0.stdout.total, 2);
}

#[test]
fn nobody_without_the_token_is_answered_and_the_server_still_is() {
    let mut agent = held(LONG_MS);
    go_on(&mut agent, Some(0));
    agent.stdin = None;
    for first in [
        (Kind::Resume, serde_json::to_value(resume("another", None)).unwrap()),
        (Kind::Hello, serde_json::to_value(hello(LONG_MS)).unwrap()),
        (Kind::Ping, json!({})),
        (Kind::Resume, json!({ "version": PROTOCOL_VERSION, "token": [1] })),
    ] {
        let mut visitor = agent.visit();
        agent.try_send(0, first.0, &first.1);
        assert!(!agent.says_more(), "{:?}", first.0);
        visitor.wait().unwrap();
    }
    // A visitor that does not send enough.
    let mut silent = agent.visit();
    let _ = agent.stdin.as_mut().unwrap().write_all(&[1]);
    agent.stdin = None;
    assert!(!agent.says_more());
    silent.wait().unwrap();
    go_on(&mut agent, Some(0));
}

#[test]
fn a_server_of_another_version_hears_ours_and_the_right_one_can_still_come() {
    let mut agent = held(LONG_MS);
    agent.stdin = None;
    let (frame, _) =
        introduce(&mut agent, &json!({ "version": PROTOCOL_VERSION + 1, "as": "unknown" }));
    assert_eq!(frame.kind, Kind::Hello);
    let hello: AgentHello = serde_json::from_slice(&frame.head).unwrap();
    assert_eq!(hello.version, PROTOCOL_VERSION);
    go_on(&mut agent, Some(0));
}

#[test]
fn while_there_is_a_stream_nobody_else_comes_in() {
    let mut agent = held(LONG_MS);
    let (stdin, mut visitor) = (agent.stdin.take(), agent.visit());
    // The visitor is rejected at once.
    visitor.wait().unwrap();
    assert!(!agent.says_more());
    // The test has held the end of the first stream until now.
    drop(stdin);
    go_on(&mut agent, Some(0));
}

#[test]
fn an_agent_that_nobody_comes_for_ends_with_what_it_runs() {
    let mut agent = held(300);
    agent.send(1, Kind::Run, &run(WAITS), WAITS.as_bytes());
    agent.wait_for("begun");
    agent.stdin = None;
    assert_eq!(agent.exit_code(), Some(0));
}

#[test]
fn a_server_that_falls_silent_loses_its_stream_and_not_its_sandbox() {
    let mut agent = Agent::spawn();
    agent.say(&ServerHello { silence_limit_ms: 1, ..hello(LONG_MS) });
    let old = agent.stdin.take();
    // The agent takes another stream although the old one was never closed.
    let (resumed, _) = introduce(&mut agent, &resume(TOKEN, Some(0)));
    assert_eq!(resumed.kind, Kind::Reply);
    drop(old);
}

#[test]
fn an_agent_without_a_stream_waits_for_its_first() {
    let mut agent = Agent::spawn_with(&["--hold", "60"]);
    agent.stdin = None;
    let mut visitor = come_first(&mut agent);
    agent.run(1, "print(2+2)");
    assert_eq!(agent.answer::<Run>(1).unwrap().0.stdout.total, 2);
    let get = Get { path: "nothing".into(), offset: 0, len: 1, of: None };
    assert_eq!(agent.ask(2, &get, b"").map(drop), Err(FailureCode::NotFound));
    go_on(&mut agent, Some(2));
    assert!(visitor.wait().unwrap().success(), "the first is of no use any more");
}

#[test]
fn who_comes_to_go_on_with_what_has_not_begun_is_turned_away_and_the_first_is_not() {
    let mut agent = Agent::spawn_with(&["--hold", "60"]);
    agent.stdin = None;
    let (begun, door) = (Instant::now(), format!("@llm-sandbox-agent-{}\n", agent.process.id()));
    while !fs::read_to_string("/proc/net/unix").unwrap().contains(&door) {
        assert!(begun.elapsed() < TIMEOUT, "it does not listen");
    }
    for _ in 0..3 {
        let mut visitor = agent.visit();
        agent.try_send(0, Kind::Resume, &resume(TOKEN, None));
        assert!(!matches!(agent.try_receive(), Ok(Some(_))), "nothing is said to it");
        visitor.wait().unwrap();
    }
    let mut visitor = come_first(&mut agent);
    agent.run(1, "print(2+2)");
    assert_eq!(agent.answer::<Run>(1).unwrap().0.stdout.total, 2);
    go_on(&mut agent, Some(1));
    assert!(visitor.wait().unwrap().success(), "the first is of no use any more");
}

#[test]
fn an_agent_whose_first_stream_does_not_come_ends() {
    let mut agent = Agent::spawn_with(&["--hold", "0"]);
    assert_eq!(agent.exit_code(), Some(0));
}
