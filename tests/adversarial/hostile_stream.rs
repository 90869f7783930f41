//! Sessions whose agents send almost correct bytes. The decoder by itself is tested, and fuzzed, beside its crate
//! (`crates/protocol/fuzz`); these tests cover the whole way of an answer from the stream to the caller. The inputs are
//! the same in every run.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use crate::{
    changes::{Change, any_change},
    double::{Agent, Cast, PRINTED, STAMP, frame, id, open, page, run, run_done, soon, until},
};
use llm_sandbox::error::Result;
use llm_sandbox::sessions::List;
use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngSeed, TestRunner},
};
use protocol::{
    frame::Kind,
    message::{GetDone, ListDone},
};
use serde::Serialize;
use tokio::join;

/// The number of streams to try.
const INPUTS: usize = 3_000;

/// Honest answers, each to be changed and mixed with the others.
fn answers(calls: [u32; 3]) -> Vec<Vec<u8>> {
    fn reply(call: u32, head: &impl Serialize, body: &[u8]) -> Vec<u8> {
        frame(call, Kind::Reply, &serde_json::to_vec(head).unwrap(), body)
    }
    let (done, printed) = run_done(PRINTED);
    let files = page(["made.csv", "plots/a.png"]);
    let [run, list, get] = calls;
    vec![
        reply(run, &done, &printed),
        reply(list, &ListDone { more: false, cut: false }, &files),
        reply(get, &GetDone { stamp: STAMP }, b""),
    ]
}

/// An agent that waits for one call of each kind, answers all of them in one changed stream, and ends.
async fn answer(mut agent: Agent, changes: Vec<Change>) {
    agent.hello().await;
    let mut calls = [0; 3];
    while calls.contains(&0) {
        let Some(asked) = agent.asked().await else { return };
        match asked.kind {
            Kind::Run => calls[0] = asked.call,
            Kind::List => calls[1] = asked.call,
            Kind::Get => calls[2] = asked.call,
            other => panic!("{other:?} was not asked for"),
        }
    }
    let mut bytes = answers(calls).concat();
    for change in changes {
        change.apply(&mut bytes);
    }
    agent.raw(&bytes).await;
}

/// Whether the call was answered; otherwise the error must be the end of the session.
fn answered<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) => {
            assert!(matches!(error.code(), "sandbox_died" | "session_not_found"), "{error}");
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn almost_right_answers_are_taken_or_end_their_session() {
    let config = Config { rng_seed: RngSeed::Fixed(0), ..Config::default() };
    let mut runner = TestRunner::new(config);
    // The ids of a session's first calls.
    let changes = vec(any_change(answers([1, 2, 3])), 0..4);
    let mut taken = 0;
    for _ in 0..INPUTS {
        let changes = changes.new_tree(&mut runner).unwrap().current();
        let shown = format!("{changes:?}");
        let script = move |agent| answer(agent, changes.clone());
        let cast = Cast::default().with("liar", script);
        let sessions = cast.sessions(1);
        let liar = id("liar");
        // The run is the first call, so it starts the session.
        let calls = async {
            join!(run(&sessions, "liar"), sessions.perform(&liar, List), open(&sessions, "liar"))
        };
        let (run, list, open) = Box::pin(soon(calls)).await;
        taken += [answered(run), answered(list), answered(open)].iter().filter(|ok| **ok).count();
        until(&shown, || sessions.host().count() == 0 && cast.live() == 0).await;
    }
    // Some answers must be taken and some refused, or the test would show nothing. How many depends on how busy the machine
    // is: a session that has ended refuses the calls that come after that.
    assert!((INPUTS / 10..INPUTS * 3).contains(&taken), "{taken} answers were taken");
}
