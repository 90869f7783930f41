//! A caller that leaves in the middle of its call leaves a session that others can use, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use crate::double::{Agent, Cast, id, open, run, soon, until, upload, use_all_of};
use futures::future::{BoxFuture, FutureExt};
use llm_sandbox::sessions::{List, Sessions};
use protocol::frame::Kind;
use tokio_util::sync::CancellationToken;

/// The limit of sessions in these tests.
const MOST: usize = 3;

/// A point at which a slow agent waits: `reached` when it is there, `open` when it may go on.
#[derive(Clone, Default)]
struct Gate {
    reached: CancellationToken,
    open: CancellationToken,
}

impl Gate {
    async fn pass(&self) {
        self.reached.cancel();
        self.open.cancelled().await;
    }
}

/// Starts a call, waits until the agent is at the gate, and drops the call.
async fn leave_at(gate: &Gate, call: impl Future) {
    tokio::select! {
        () = soon(gate.reached.cancelled()) => {}
        _ = call => panic!("a call was answered before its agent went through the gate"),
    }
}

/// Checks that nothing has leaked: all sessions can be opened, and no more.
async fn all_places_are_free(cast: &Cast, sessions: &Sessions) {
    cast.only(0).await;
    assert_eq!(sessions.host().count(), 0);
    for n in 0..MOST {
        run(sessions, &format!("next-{n}")).await.unwrap();
    }
    assert_eq!(run(sessions, "one-more").await.unwrap_err().code(), "max_sessions");
    soon(sessions.host().shutdown()).await;
    assert_eq!((cast.live(), sessions.host().count()), (0, 0));
}

/// An agent that waits at the gate before it answers requests of this kind.
fn slow_on(kind: Kind, gate: Gate) -> impl Fn(Agent) -> BoxFuture<'static, ()> + Send + Sync {
    move |mut agent| {
        let gate = gate.clone();
        async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                if asked.kind == kind {
                    gate.pass().await;
                }
                agent.honestly(&asked).await;
            }
        }
        .boxed()
    }
}

/// A gate, and a cast whose agent of the session `left` follows this script with it.
fn at_gate<F>(script: impl Fn(Agent, Gate) -> F + Send + Sync + 'static) -> (Gate, Cast)
where
    F: Future<Output = ()> + Send + 'static,
{
    let gate = Gate::default();
    let same = gate.clone();
    (gate, Cast::default().with("left", move |agent| script(agent, same.clone())))
}

/// Runs in a session until nothing else runs in it.
async fn run_when_free(sessions: &Sessions) {
    soon(async {
        while let Err(error) = run(sessions, "left").await {
            assert_eq!(error.code(), "session_busy");
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Makes a call with a request of this kind, and drops it while the agent waits.
async fn a_caller_leaves(kind: Kind, call: impl AsyncFnOnce(&Sessions)) {
    let gate = Gate::default();
    let cast = Cast::default().with("left", slow_on(kind, gate.clone()));
    let sessions = cast.sessions(MOST);
    // A call of another kind has started the session.
    match kind {
        Kind::Run => upload(&sessions, "left").await.unwrap(),
        _ => drop(run(&sessions, "left").await.unwrap()),
    }
    leave_at(&gate, call(&sessions)).await;
    assert_eq!(sessions.host().count(), 1, "the session is still there");

    gate.open.cancel();
    // The agent finishes what it has begun, so a run can still be in progress.
    run_when_free(&sessions).await;
    use_all_of(&sessions, "left").await;
    soon(sessions.close(&id("left"))).await.unwrap();
    all_places_are_free(&cast, &sessions).await;
}

support::tests! {
    a_session_whose_caller_left_in_mid_run_goes_on =>
        a_caller_leaves(Kind::Run, async |sessions| drop(run(sessions, "left").await));
    a_session_whose_caller_left_in_mid_upload_goes_on =>
        a_caller_leaves(Kind::Put, async |sessions| drop(upload(sessions, "left").await));
    a_session_whose_caller_left_in_mid_listing_goes_on =>
        a_caller_leaves(Kind::List, async |sessions| drop(sessions.perform(&id("left"), List).await));
    a_session_whose_caller_left_while_a_file_was_opened_goes_on =>
        a_caller_leaves(Kind::Get, async |sessions| drop(open(sessions, "left").await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_dropped_in_mid_file_leaves_a_link_that_works() {
    let gate = Gate::default();
    let cast = Cast::default().with("left", slow_on(Kind::Get, gate.clone()));
    let sessions = cast.sessions(MOST);
    run(&sessions, "left").await.unwrap();
    // Opening also sends a Get for the stamp, so the gate is opened before it, and stays open for the reader.
    gate.open.cancel();
    let reader = open(&sessions, "left").await.unwrap();
    for _ in 0..100 {
        // Polled once, which sends the request, and then dropped.
        assert!(reader.read().now_or_never().is_none_or(|read| read.is_ok()));
    }
    use_all_of(&sessions, "left").await;
    drop(reader);
    soon(sessions.close(&id("left"))).await.unwrap();
    all_places_are_free(&cast, &sessions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_caller_left_during_its_start_is_there_for_the_next() {
    let (gate, cast) = at_gate(|agent: Agent, gate: Gate| async move {
        gate.pass().await;
        agent.honest().await;
    });
    let sessions = cast.sessions(MOST);
    leave_at(&gate, run(&sessions, "left")).await;
    assert_eq!((sessions.host().count(), cast.live()), (1, 1));
    gate.open.cancel();
    run_when_free(&sessions).await;
    use_all_of(&sessions, "left").await;
    assert_eq!(cast.live(), 1, "it is the one that was started");
    soon(sessions.close(&id("left"))).await.unwrap();
    all_places_are_free(&cast, &sessions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_never_start_and_whose_callers_left_give_their_places_back() {
    let mut cast = Cast::default();
    let silent = |mut agent: Agent| async move { while agent.any_asked().await.is_some() {} };
    for n in 0..MOST {
        cast = cast.with(&format!("left-{n}"), silent);
    }
    let sessions = cast.sessions(MOST);
    for n in 0..MOST {
        // Polled once, which requests the session, and then dropped.
        assert!(run(&sessions, &format!("left-{n}")).now_or_never().is_none());
    }
    assert_eq!(run(&sessions, "one-more").await.unwrap_err().code(), "max_sessions");
    until("none of them has started", || sessions.host().count() == 0).await;
    all_places_are_free(&cast, &sessions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_dies_when_its_caller_has_left_gives_its_place_back() {
    let (gate, cast) = at_gate(|mut agent: Agent, gate: Gate| async move {
        agent.hello().await;
        agent.asked().await;
        gate.pass().await;
    });
    let sessions = cast.sessions(MOST);
    leave_at(&gate, run(&sessions, "left")).await;
    gate.open.cancel();
    until("the session has ended", || sessions.host().count() == 0).await;
    all_places_are_free(&cast, &sessions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_leaves_while_closing_closes_all_the_same() {
    // The agent ends only when it is removed, so that closing takes a moment.
    let (gate, cast) = at_gate(|mut agent: Agent, gate: Gate| async move {
        agent.hello().await;
        while let Some(asked) = agent.asked().await {
            agent.honestly(&asked).await;
        }
        gate.pass().await;
    });
    let sessions = cast.sessions(MOST);
    run(&sessions, "left").await.unwrap();
    leave_at(&gate, sessions.close(&id("left"))).await;
    all_places_are_free(&cast, &sessions).await;
}
