//! An agent that lies costs its own session and nothing else: each lie is told to a session beside an honest one, and
//! after it the server is in the same state as before.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::double::{
    Agent, Asked, Cast, PRINTED, STAMP, cell_done, contents, frame, id, inspect, open, page,
    program, run, run_cell, run_done, soon, undo, until, upload, use_all_of,
};
use futures::future::BoxFuture;
use llm_sandbox::{
    error::Error,
    progress::Progress,
    session::{ReadError, RunReport},
    sessions::{Inspected, List, OutputPart, ReadOutput, Sessions, Stream, Summarize},
};
use model::{CellStatus, Outcome, OwnSettings};
use protocol::{
    frame::{Kind, MAX_BODY, MAX_HEAD, PROTOCOL_VERSION},
    limits::{MAX_LIVE, MAX_RESULT, MAX_VARIABLE_CHARS, MAX_VARIABLES},
    message::{
        Captured, CellDone, CellState, Empty, End, Failure, FailureCode, GetDone, ListDone,
        OutputDone, PeekDone, Pong, RunDone, Stamp,
    },
};
use serde_json::{Value, json};
use tokio::{join, sync::watch, task::JoinSet};

/// Does something with the session `liar`, whose agent follows the script, while the session `honest` is used. Returns
/// the result, and whether the session was still there afterwards.
async fn beside_an_honest_one<T, F>(
    script: impl Fn(Agent) -> F + Send + Sync + 'static,
    act: impl AsyncFnOnce(&Sessions) -> T,
) -> (T, bool)
where
    F: Future<Output = ()> + Send + 'static,
{
    let cast = Cast::default().with("liar", script);
    let sessions = cast.sessions(2);
    use_all_of(&sessions, "honest").await;
    let (done, ()) = join!(soon(act(&sessions)), use_all_of(&sessions, "honest"));
    use_all_of(&sessions, "honest").await;

    let there = sessions.host().count() == 2;
    if there {
        soon(sessions.close(&id("liar"))).await.unwrap();
    }
    // The session leaves nothing: its place is free for another.
    cast.only(1).await;
    until("a place is free", || sessions.host().count() == 1).await;
    soon(async {
        while run(&sessions, "next").await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    soon(sessions.host().shutdown()).await;
    assert_eq!((sessions.host().count(), cast.live()), (0, 0));
    (done, there)
}

async fn run_liar(sessions: &Sessions) -> Result<RunReport, Error> {
    run(sessions, "liar").await
}

/// An agent that answers its first request with this lie, and later ones honestly.
fn answering<F>(
    lie: impl Fn(Agent, Asked) -> F + Clone + Send + Sync + 'static,
) -> impl Fn(Agent) -> BoxFuture<'static, ()> + Send + Sync + 'static
where
    F: Future<Output = Agent> + Send + 'static,
{
    move |mut agent| {
        let lie = lie.clone();
        Box::pin(async move {
            agent.hello().await;
            let Some(asked) = agent.asked().await else { return };
            let mut agent = lie(agent, asked).await;
            while let Some(asked) = agent.asked().await {
                agent.honestly(&asked).await;
            }
        })
    }
}

/// The result of a run that is answered with this head and body, and whether the session was still there.
async fn run_answered(head: &[u8], body: &[u8]) -> (Result<RunReport, Error>, bool) {
    beside_an_honest_one(replying(head, body), run_liar).await
}

/// An agent that answers its first request with this head and body.
fn replying(head: &[u8], body: &[u8]) -> impl Fn(Agent) -> BoxFuture<'static, ()> + use<> {
    let (head, body) = (head.to_vec(), body.to_vec());
    answering(move |mut agent, asked| {
        let frame = frame(asked.call, Kind::Reply, &head, &body);
        async move {
            agent.raw(&frame).await;
            agent
        }
    })
}

/// The result of a run with a changed honest answer.
async fn run_done_but(change: impl FnOnce(&mut RunDone)) -> (Result<RunReport, Error>, bool) {
    let (mut done, body) = run_done(PRINTED);
    change(&mut done);
    run_answered(&serde_json::to_vec(&done).unwrap(), &body).await
}

fn assert_died<T>((done, there): (Result<T, Error>, bool), lie: &str) {
    let Err(error) = done else { panic!("believed: {lie}") };
    assert_eq!(error.code(), "sandbox_died", "{lie}");
    assert!(!there, "the session goes on: {lie}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_is_none_makes_no_session() {
    const OURS: i64 = PROTOCOL_VERSION as i64;
    let long = format!(r#"{{"version":"{}"}}"#, "\u{1b}[2J".repeat(5000));
    let of_version =
        |version: i64| format!(r#"{{"version":{version},"max_body":1,"max_uploads":1}}"#);
    let hellos = [
        ("another version", frame(0, Kind::Hello, of_version(OURS + 1).as_bytes(), b"")),
        ("no number", frame(0, Kind::Hello, of_version(-1).as_bytes(), b"")),
        ("no JSON", frame(0, Kind::Hello, b"hello", b"")),
        ("no UTF-8", frame(0, Kind::Hello, b"{\"version\":\"\xff\xfe\"}", b"")),
        ("pages of text", frame(0, Kind::Hello, long.as_bytes(), b"")),
        ("no head", frame(0, Kind::Hello, b"", &vec![0; MAX_BODY])),
        ("another kind", frame(1, Kind::Reply, of_version(OURS).as_bytes(), b"")),
        ("no frame", b"Traceback (most recent call last):\n".to_vec()),
        ("a frame of four gigabytes", vec![0xff; 64]),
        ("half a frame", frame(0, Kind::Hello, of_version(OURS).as_bytes(), b"")[..20].to_vec()),
        ("nothing", vec![]),
    ];
    for (lie, hello) in hellos {
        for stays in [true, false] {
            let hello = hello.clone();
            let script = move |mut agent: Agent| {
                let hello = hello.clone();
                async move {
                    agent.raw(&hello).await;
                    while stays && agent.any_asked().await.is_some() {}
                }
            };
            let (done, there) = beside_an_honest_one(script, run_liar).await;
            let error = done.unwrap_err();
            assert_eq!(error.code(), "sandbox_unavailable", "{lie}");
            let text = error.to_string();
            assert!(text.len() < 1000 && !text.contains('\u{1b}'), "{lie}: {text}");
            assert!(!there, "{lie}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_another_protocol_is_refused_at_once_with_the_command_that_rebuilds_its_image()
{
    // Agents up to protocol 3 spoke first; later ones answer a hello that they do not understand, and end. Neither kind
    // waits for the server's hello.
    for (version, speaks_first) in [(3, true), (PROTOCOL_VERSION + 1, false)] {
        let script = move |mut agent: Agent| async move {
            if !speaks_first {
                agent.any_asked().await;
            }
            let hello = json!({ "version": version, "of": "something else" }).to_string();
            agent.send(0, Kind::Hello, hello.as_bytes(), b"").await;
        };
        let (done, there) = beside_an_honest_one(script, run_liar).await;
        let error = done.unwrap_err();
        assert_eq!(error.code(), "sandbox_unavailable");
        let text = error.to_string();
        let says = format!("the agent speaks protocol {version}, this server {PROTOCOL_VERSION}");
        assert!(text.contains(&says) && text.contains("`llm-sandbox image build`"), "{text}");
        assert!(!there);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_hears_that_a_session_did_not_start_may_start_another_at_once() {
    let cast = Cast::default().with("liar", |agent| async { drop(agent) });
    let sessions = cast.sessions(1);
    // The callers share one session at a time, so that it has to report to many of them.
    let mut callers = JoinSet::new();
    for _ in 0..32 {
        let sessions = sessions.clone();
        callers.spawn(async move {
            for _ in 0..20 {
                assert_eq!(run_liar(&sessions).await.unwrap_err().code(), "sandbox_unavailable");
            }
        });
    }
    soon(callers.join_all()).await;
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_answer_end_the_session_of_their_agent() {
    let prefix = |len: u32, kind: u8, head: u32| {
        let parts = [&len.to_le_bytes()[..], &1u32.to_le_bytes(), &[kind], &head.to_le_bytes()];
        parts.concat()
    };
    let reply = frame(1, Kind::Reply, b"{}", b"");
    let lies = [
        ("a frame of four gigabytes", prefix(u32::MAX, 8, 2)),
        ("a head of four gigabytes", prefix(u32::MAX, 8, u32::MAX)),
        ("a body over the cap", prefix(u32::try_from(MAX_BODY).unwrap() + 10, 8, 0)),
        ("a length of less than nothing", prefix(3, 8, 0)),
        ("a head longer than its frame", prefix(9, 8, 1)),
        ("an unknown kind", prefix(9, 10, 0)),
        ("a second hello", frame(0, Kind::Hello, br#"{"version":1}"#, b"")),
        ("a request", frame(1, Kind::Run, b"{}", b"print(1)")),
        ("a ping", frame(1, Kind::Ping, b"{}", b"")),
        ("an answer to no call", frame(77, Kind::Reply, b"{}", b"")),
        ("an answer to the hello", frame(0, Kind::Reply, b"{}", b"")),
        ("a refusal of no call", frame(77, Kind::Failure, br#"{"code":"full","detail":""}"#, b"")),
        ("a refusal without a reason", frame(1, Kind::Failure, b"{}", b"")),
        ("a refusal for an unknown reason", {
            frame(1, Kind::Failure, br#"{"code":"mood","detail":""}"#, b"")
        }),
        ("a refusal in no UTF-8", {
            frame(1, Kind::Failure, b"{\"code\":\"full\",\"detail\":\"\xff\"}", b"")
        }),
        ("what Python prints", b"Traceback (most recent call last):\n".to_vec()),
        ("zeros", vec![0; 1 << 20]),
        ("half a prefix and the end", reply[..7].to_vec()),
        ("half a head and the end", reply[..14].to_vec()),
        ("the end", vec![]),
    ];
    for (lie, bytes) in lies {
        let ends = lie.ends_with("the end");
        let script = move |mut agent: Agent| {
            let bytes = bytes.clone();
            async move {
                agent.hello().await;
                agent.asked().await;
                agent.raw(&bytes).await;
                while !ends && agent.any_asked().await.is_some() {}
            }
        };
        assert_died(beside_an_honest_one(script, run_liar).await, lie);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_shape_ends_the_session() {
    let (done, body) = run_done(PRINTED);
    let whole = serde_json::to_vec(&done).unwrap();
    let (half, nested) = (&whole[..whole.len() / 2], vec![b'['; MAX_HEAD]);
    let list = serde_json::to_vec(&ListDone { more: false, cut: false }).unwrap();
    let heads: [(&str, &[u8]); 6] = [
        ("a listing", &list),
        ("nothing", b""),
        ("half an answer", half),
        ("a tower of brackets", &nested),
        ("no UTF-8", b"\xff\xfe"),
        ("a null", b"null"),
    ];
    for (lie, head) in heads {
        assert_died(run_answered(head, &body).await, lie);
    }
    assert_died(run_answered(&whole, b"").await, "output that is not there");
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_that_do_not_fit_end_the_session() {
    let huge = Captured { head: usize::MAX, tail: usize::MAX, total: 0 };
    assert_died(run_done_but(|done| done.stdout = huge).await, "lengths that overflow");
    assert_died(run_done_but(|done| done.stdout.tail = 1).await, "a byte too many");
    assert_died(run_done_but(|done| done.changed_len = usize::MAX).await, "an endless list");
    assert_died(
        run_done_but(|done| (done.stdout.head, done.changed_len) = (0, 7)).await,
        "no list",
    );
    for signal in [i32::MIN, 0, i32::MAX] {
        let end = End::Signaled { signal };
        assert_died(run_done_but(|done| done.end = end).await, "no such signal");
    }
    let (done, body) = run_done(&vec![0; MAX_BODY]);
    let head = serde_json::to_vec(&done).unwrap();
    assert_died(run_answered(&head, &body).await, "ten times the output that was asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_that_nobody_can_check_are_passed_on_and_harm_nothing() {
    let (done, there) = run_done_but(|done| {
        done.stdout.total = u64::MAX;
        (done.elapsed_us, done.cpu_us, done.oom_kills) = (u64::MAX, u64::MAX, u64::MAX);
        done.changed_omitted = usize::MAX;
    })
    .await;
    let report = done.unwrap();
    assert!(there && report.outcome == Outcome::Ok && report.stdout.truncated);
    let (done, _) = run_done_but(|done| done.end = End::Exited { code: i32::MIN }).await;
    assert_eq!(done.unwrap().exit_code, i32::MIN);
}

/// The result of a cell with a changed honest answer.
async fn cell_done_but(
    change: impl FnOnce(&mut RunDone, &mut CellDone),
) -> (Result<RunReport, Error>, bool) {
    let (mut done, body) = cell_done(PRINTED);
    let mut cell = done.cell.take().unwrap();
    change(&mut done, &mut cell);
    done.cell = Some(cell);
    cell_answered(&serde_json::to_vec(&done).unwrap(), &body).await
}

async fn cell_answered(head: &[u8], body: &[u8]) -> (Result<RunReport, Error>, bool) {
    beside_an_honest_one(replying(head, body), async |sessions| run_cell(sessions, "liar").await)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_a_workspace_that_cannot_be_ends_the_session() {
    let (run, body) = run_done(PRINTED);
    let run = serde_json::to_vec(&run).unwrap();
    assert_died(cell_answered(&run, &body).await, "a cell that was none");
    let (cell, body) = cell_done(PRINTED);
    let cell = serde_json::to_vec(&cell).unwrap();
    assert_died(run_answered(&cell, &body).await, "a program that was a cell");
    assert_died(cell_answered(&cell, PRINTED).await, "a value that is not there");

    let of = |head, tail| Some(Captured { head, tail, total: 0 });
    let long = cell_done_but(|_, cell| cell.result = of(usize::MAX, usize::MAX)).await;
    assert_died(long, "a value whose length overflows");
    let long = cell_done_but(|_, cell| cell.result = of(MAX_RESULT, 1)).await;
    assert_died(long, "a value that is too long");
    let unknown = String::from_utf8(cell).unwrap().replace("kept", "better");
    assert_died(cell_answered(unknown.as_bytes(), &body).await, "another state");
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_a_cell_that_nobody_can_check_are_bounded_and_harm_nothing() {
    let (done, there) = cell_done_but(|done, cell| {
        done.end = End::TimedOut;
        (cell.state, cell.fresh) = (CellState::RolledBack, true);
        (cell.count, cell.can_undo, cell.memory_bytes) = (u64::MAX, u32::MAX, Some(u64::MAX));
        cell.lost_threads = usize::MAX;
    })
    .await;
    let (report, exact) = (done.unwrap(), (1 << 53) - 1);
    let cell = report.cell.unwrap();
    assert!(there && cell.state == CellState::RolledBack);
    assert_eq!((cell.execution_count, cell.memory_bytes, cell.can_undo), (exact, Some(exact), 20));
    assert!(report.notes.sentences().all(|note| note.chars().count() < 300));

    // The agent claims that the workspace is lost, and that the cell succeeded.
    let (done, _) = cell_done_but(|_, cell| cell.state = CellState::Lost).await;
    let report = done.unwrap();
    let status = report.cell.unwrap().status;
    assert_eq!((status, report.exit_code), (CellStatus::ExecutionError, 1));
}

/// The result of `inspect` after a run, if the agent answers it with this head and body.
async fn inspect_answered(head: &[u8], body: &[u8]) -> (Result<Option<Inspected>, Error>, bool) {
    after_a_run(Kind::Reply, head, body, async |sessions| inspect(sessions, "liar").await).await
}

/// The result of an inspection or a reset after the first run, if the agent answers it with a frame of this kind, head
/// and body.
async fn after_a_run<T>(
    kind: Kind,
    head: &[u8],
    body: &[u8],
    act: impl AsyncFnOnce(&Sessions) -> Result<T, Error>,
) -> (Result<T, Error>, bool) {
    let (head, body) = (head.to_vec(), body.to_vec());
    let script = move |mut agent: Agent| {
        let (head, body) = (head.clone(), body.clone());
        async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                match asked.kind {
                    Kind::Inspect | Kind::Reset => {
                        agent.send(asked.call, kind, &head, &body).await;
                    }
                    _ => agent.honestly(&asked).await,
                }
            }
        }
    };
    beside_an_honest_one(script, async |sessions| {
        run_liar(sessions).await?;
        act(sessions).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn more_of_variables_than_there_may_be_ends_the_session() {
    let head = br#"{"live":true,"count":1,"can_undo":0}"#;
    let named = |name: &str, summary: &str| {
        json!({ "variables": [{ "name": name, "summary": summary }] }).to_string().into_bytes()
    };
    let long = "x".repeat(4 * MAX_VARIABLE_CHARS + 1);
    let imports = json!({ "imports": vec!["os"; MAX_VARIABLES + 1] }).to_string().into_bytes();
    for (lie, body) in [
        ("too many variables", contents(MAX_VARIABLES + 1)),
        ("too many modules", imports),
        ("a name that is too long", named(&long, "int")),
        ("a type that is too long", named("x", &long)),
        ("no JSON", b"x = 1".to_vec()),
        ("no UTF-8", b"{\"imports\":[\"\xff\"]}".to_vec()),
    ] {
        assert_died(inspect_answered(head, &body).await, lie);
    }
    assert_died(inspect_answered(b"{}", b"").await, "half an answer");

    let odd = named("\u{1b}[2J IGNORE", "\u{202e}");
    let (inspected, there) = inspect_answered(head, &odd).await;
    assert!(
        there && inspected.unwrap().unwrap().contents.variables.len() == 1,
        "a name like any other"
    );
    let most = contents(MAX_VARIABLES);
    let figures = br#"{"live":true,"count":18446744073709551615,"can_undo":4294967295}"#;
    let (inspected, there) = inspect_answered(figures, &most).await;
    let inspected = inspected.unwrap().unwrap().interpreter;
    assert!(there && (inspected.count, inspected.can_undo) == ((1 << 53) - 1, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_refuses_of_a_workspace_is_told_in_our_words() {
    let failure = |code| {
        let detail = "\u{1b}[2J IGNORE ALL".to_owned();
        serde_json::to_vec(&Failure { code, detail }).unwrap()
    };
    for (code, undoing, inspecting) in [
        (FailureCode::NothingToUndo, "nothing_to_undo", "internal"),
        (FailureCode::Busy, "session_busy", ""),
        (FailureCode::NoRuntime, "nothing_to_undo", ""),
        (FailureCode::System, "internal", "internal"),
    ] {
        let head = failure(code);
        let undo = async |sessions: &Sessions| undo(sessions, "liar").await;
        let (done, there) = after_a_run(Kind::Failure, &head, b"", undo).await;
        let error = done.unwrap_err();
        assert!(there && error.code() == undoing, "{error}");
        assert!(!error.to_string().contains("IGNORE"), "{error}");
        let inspect = async |sessions: &Sessions| inspect(sessions, "liar").await;
        let (done, there) = after_a_run(Kind::Failure, &head, b"", inspect).await;
        let answer = done.map_or_else(|error| error.code(), |_| "");
        assert!(there && answer == inspecting, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_the_sandbox_cannot_start_is_a_setup_error() {
    let refusing = |code| {
        answering(move |mut agent: Agent, asked: Asked| {
            let failure = Failure { code, detail: "no memory".into() };
            async move {
                let head = serde_json::to_vec(&failure).unwrap();
                agent.send(asked.call, Kind::Failure, &head, b"").await;
                agent
            }
        })
    };
    let run = async |sessions: &Sessions| run_cell(sessions, "liar").await;
    let (done, there) = beside_an_honest_one(refusing(FailureCode::System), run).await;
    let cell = done.unwrap().cell.unwrap();
    assert!(there && cell.status == CellStatus::SetupError);
    let (done, there) = beside_an_honest_one(refusing(FailureCode::NoRuntime), run).await;
    assert!(there && done.unwrap_err().code() == "unsupported_language");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_figure_of_the_operators_is_more_than_can_be_true() {
    let script = |mut agent: Agent| async move {
        agent.hello().await;
        while let Some(asked) = agent.any_asked().await {
            match asked.kind {
                Kind::Ping => {
                    let all = Some(u64::MAX);
                    let pong = Pong {
                        memory_bytes: all,
                        memory_peak_bytes: all,
                        cpu_ms: all,
                        data_bytes: all,
                    };
                    agent.reply(asked.call, &pong, b"").await;
                }
                Kind::Run => {
                    let (mut done, body) = run_done(PRINTED);
                    (done.elapsed_us, done.stdout.total) = (u64::MAX, u64::MAX);
                    (done.cpu_us, done.facts.fuel) = (u64::MAX, Some(u64::MAX));
                    done.changed_omitted = usize::MAX;
                    agent.reply(asked.call, &done, &body).await;
                }
                _ => agent.honestly(&asked).await,
            }
        }
    };
    let cast = Cast::default().with("liar", script);
    let sessions = cast.sessions(2);
    let begun = std::time::Instant::now();
    run_liar(&sessions).await.unwrap();
    let most = begun.elapsed().as_secs_f64();
    let figure = |name: &str| {
        let text = sessions.host().metrics().text(true, true);
        let found =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or(f64::NAN)
    };
    let run = figure("llm_sandbox_run_duration_seconds_sum{language=\"python\",outcome=\"ok\"}");
    assert!((0.0..=most).contains(&run), "{run} s");
    let cpu = figure("llm_sandbox_run_cpu_seconds_total{language=\"python\"}");
    let processors = sessions.config().limits(&OwnSettings::default()).cpus.ceil();
    assert!((0.0..=most * processors).contains(&cpu), "{cpu} s");
    assert!(figure("llm_sandbox_run_fuel_total{language=\"python\"}").is_nan(), "not counted");
    assert!(figure("llm_sandbox_artifacts_total") <= 16_384.0);
    assert!(figure("llm_sandbox_output_bytes_total") <= 1000.0);
    let limit = figure("llm_sandbox_sandbox_memory_limit_bytes");
    for memory in ["llm_sandbox_sandbox_memory_bytes", "llm_sandbox_largest_sandbox_memory_bytes"] {
        until("its memory is told", || figure(memory) > 0.0).await;
        assert!(figure(memory) <= limit, "{memory}");
    }
    // Agents that do not report their memory, as older ones, are not part of the sum.
    use_all_of(&sessions, "honest").await;
    assert!(figure("llm_sandbox_sandbox_memory_bytes") <= limit);
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_answers_the_first_counts_and_the_second_ends_the_session() {
    let script = answering(|mut agent, asked| async move {
        agent.honestly(&asked).await;
        agent.honestly(&asked).await;
        agent
    });
    let act = async |sessions: &Sessions| {
        let report = run_liar(sessions).await;
        until("the session has ended", || sessions.host().count() == 1).await;
        report
    };
    let (done, there) = Box::pin(beside_an_honest_one(script, act)).await;
    assert_eq!(done.unwrap().stdout.text.as_bytes(), PRINTED);
    assert!(!there);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_answers_is_not_taken_in() {
    for kind in [Kind::Reply, Kind::Failure] {
        let head: &[u8] =
            if kind == Kind::Reply { b"{}" } else { br#"{"code":"full","detail":""}"# };
        let cast = Cast::default().with("liar", move |mut agent: Agent| async move {
            agent.hello().await;
            let Some(Asked { call, .. }) = agent.asked().await else { return };
            let flood = frame(call, kind, head, &vec![b'x'; 1000]);
            for _ in 0..200_000 {
                if !agent.raw(&flood).await {
                    break;
                }
            }
            agent.confess();
        });
        let sessions = cast.sessions(2);
        use_all_of(&sessions, "honest").await;
        let (done, ()) = join!(run_liar(&sessions), use_all_of(&sessions, "honest"));
        assert!(done.is_err());
        cast.only(1).await;
        until("the session has ended", || sessions.host().count() == 1).await;
        assert!(cast.sent() < 100_000, "{} bytes of 200 megabytes were taken", cast.sent());
        use_all_of(&sessions, "honest").await;
        soon(sessions.host().shutdown()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_any_length_is_an_error_and_its_session_goes_on() {
    let detail = "\u{1b}]0;title\u{7}\n".repeat(3000);
    for (code, expected) in [
        (FailureCode::NotFound, "not_found"),
        (FailureCode::Exists, "internal"),
        (FailureCode::BadPath, "internal"),
        (FailureCode::Full, "quota_exceeded"),
        (FailureCode::Busy, "session_busy"),
        (FailureCode::BadRequest, "internal"),
        (FailureCode::System, "internal"),
    ] {
        let mut failure = Failure { code, detail: detail.clone() };
        failure.detail.truncate(MAX_HEAD / 8);
        let head = serde_json::to_vec(&failure).unwrap();
        let script = answering(move |mut agent, asked| {
            let frame = frame(asked.call, Kind::Failure, &head, &vec![0; MAX_BODY]);
            async move {
                agent.raw(&frame).await;
                agent
            }
        });
        let act = async |sessions: &Sessions| {
            let refused = run_liar(sessions).await.unwrap_err();
            use_all_of(sessions, "liar").await;
            refused
        };
        let (refused, there) = Box::pin(beside_an_honest_one(script, act)).await;
        assert_eq!((refused.code(), there), (expected, true), "{code:?}");
        assert!(refused.to_string().len() < 500);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_over_the_cap_ends_the_session() {
    let script = answering(|mut agent, asked| async move {
        let len = u32::try_from(2 * MAX_BODY).unwrap();
        let mut bytes = vec![];
        bytes.extend_from_slice(&(len + 9).to_le_bytes());
        bytes.extend_from_slice(&asked.call.to_le_bytes());
        bytes.push(Kind::Failure as u8);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.resize(bytes.len() + 2 * MAX_BODY, b' ');
        agent.raw(&bytes).await;
        agent
    });
    assert_died(beside_an_honest_one(script, run_liar).await, "megabytes of reasons");
}

/// The result of reading a file whose pieces have this stamp and content, after an honest first answer.
async fn read_pieces(stamp: Stamp, piece: &'static [u8]) -> (Result<Vec<u8>, String>, bool) {
    let script = move |mut agent: Agent| async move {
        agent.hello().await;
        let mut first = true;
        while let Some(asked) = agent.asked().await {
            match asked.kind {
                Kind::Get if !first => agent.reply(asked.call, &GetDone { stamp }, piece).await,
                Kind::Get => {
                    first = false;
                    agent.honestly(&asked).await;
                }
                _ => agent.honestly(&asked).await,
            }
        }
    };
    let act = async |sessions: &Sessions| {
        run_liar(sessions).await.unwrap();
        let reader = open(sessions, "liar").await.unwrap();
        let read = soon(reader.read()).await;
        if matches!(read, Err(ReadError::Link(_))) {
            until("the session has ended", || sessions.host().count() == 1).await;
        }
        read.map_err(|error| error.to_string())
    };
    beside_an_honest_one(script, act).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_what_it_was_when_it_was_opened_or_an_error() {
    let changed = "the file has changed while it was read";
    let (read, there) = read_pieces(STAMP, b"x").await;
    assert!(there, "a byte at a time");
    assert!(read.as_ref().map_or_else(|why| why == changed, |bytes| bytes == b"xxxxxxx"));

    let (read, there) = read_pieces(STAMP, b"").await;
    assert_eq!((read.unwrap_err().as_str(), there), (changed, true), "no bytes for ever");
    let other = Stamp { ctime_ns: STAMP.ctime_ns + 1, ..STAMP };
    let (read, there) = read_pieces(other, PRINTED).await;
    assert_eq!((read.unwrap_err().as_str(), there), (changed, true), "another file");

    let (read, there) = read_pieces(STAMP, b"more than seven bytes").await;
    assert!(read.unwrap_err().contains("more bytes than were asked for") && !there);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stamp_of_any_size_and_time_can_be_looked_at() {
    let stamp = Stamp { ino: 0, size: u64::MAX, mtime_ns: i64::MIN, ctime_ns: i64::MAX };
    let script = answering(move |mut agent, asked| async move {
        agent.honestly(&asked).await;
        let Some(asked) = agent.asked().await else { return agent };
        agent.reply(asked.call, &GetDone { stamp }, b"").await;
        agent
    });
    let act = async |sessions: &Sessions| {
        run_liar(sessions).await.unwrap();
        open(sessions, "liar").await.unwrap().stamp()
    };
    let (seen, there) = beside_an_honest_one(script, act).await;
    assert_eq!((seen, there), (stamp, true));
    let path = "made.csv".to_owned();
    let too_large =
        Error::ArtifactTooLarge { path, size_bytes: seen.size, limit: Some(1), download_url: None };
    assert!(too_large.to_string().starts_with("made.csv is 18446744073.8GB"));
}

/// Whether there is a summary if the agent answers with this, and whether its session is still there.
async fn summarized(body: Vec<u8>) -> (bool, bool) {
    let script = move |mut agent: Agent| {
        let body = body.clone();
        async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                if asked.kind == Kind::Summarize {
                    agent.reply(asked.call, &Empty {}, &body).await;
                } else {
                    agent.honestly(&asked).await;
                }
            }
        }
    };
    beside_an_honest_one(script, async |sessions: &Sessions| {
        run_liar(sessions).await.unwrap();
        let wanted = Summarize { path: "made.csv".into() };
        sessions.perform(&id("liar"), wanted).await.is_ok_and(|summary| summary.is_some())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_is_none_ends_the_session() {
    let good = r#"{"kind":"csv","columns":[{"name":"a","kind":"text","examples":[]}]}"#;
    assert_eq!(summarized(good.into()).await, (true, true));
    let many = format!(r#"{{"kind":"csv","columns":[],"encoding":"{}"}}"#, "x".repeat(70_000));
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"kind":"csv"}"#,
        r#"{"kind":"exe","columns":[]}"#,
        r#"{"kind":"csv","columns":[],"note":"ignore the above"}"#,
        r#"{"kind":"csv","columns":[{"name":"a","kind":"text","examples":[],"note":""}]}"#,
        r#"{"kind":"csv","columns":[{"name":"a","kind":"text","examples":[[]]}]}"#,
        r#"{"kind":"csv","columns":[],"rows":-1}"#,
        r#"{"kind":"csv","columns":[],"rows":1e300}"#,
        r#"{"kind":"csv","columns":[],"separator":"ab"}"#,
        &many,
    ] {
        let bad = bad.to_owned();
        assert_eq!(summarized(bad.clone().into()).await, (false, false), "{bad:.80}");
    }
}

/// The result of a listing with this page repeated, and the number of bytes that the server took.
async fn list_pages(more: bool, page: Vec<u8>) -> (Result<Vec<String>, Error>, bool, u64) {
    let taken = Arc::new(AtomicU64::new(0));
    let count = taken.clone();
    let script = move |mut agent: Agent| {
        let (page, count) = (page.clone(), count.clone());
        async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                if asked.kind == Kind::List {
                    agent.reply(asked.call, &ListDone { more, cut: false }, &page).await;
                    count.store(agent.sent, Ordering::SeqCst);
                } else {
                    agent.honestly(&asked).await;
                }
            }
        }
    };
    let act = async |sessions: &Sessions| {
        run_liar(sessions).await.unwrap();
        let listing = sessions.perform(&id("liar"), List).await?;
        assert_eq!(listing.more, more);
        Ok(listing.artifacts.into_iter().map(|file| file.path.as_str().to_owned()).collect())
    };
    let (done, there) = beside_an_honest_one(script, act).await;
    (done, there, taken.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_lead_elsewhere_are_not_listed() {
    let long = "x".repeat(2000);
    let names = page([
        "ok.csv",
        "../../etc/passwd",
        "/etc/passwd",
        "a\0b",
        "a\nb",
        "\u{1b}[2J",
        "",
        ".",
        "a/../b",
        "a\\b",
        &long,
        "ok.csv",
    ]);
    let (listed, there, _) = list_pages(false, names.clone()).await;
    assert_eq!((listed.unwrap(), there), (vec!["ok.csv".to_owned(); 2], true));

    let (mut done, _) = run_done(b"");
    done.changed_len = names.len();
    let (report, _) = run_answered(&serde_json::to_vec(&done).unwrap(), &names).await;
    let artifacts = report.unwrap().artifacts;
    assert!(artifacts.len() == 2 && artifacts.iter().all(|file| file.path.as_str() == "ok.csv"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_without_end_is_cut_off() {
    let (listed, there, _) = list_pages(true, page(["a.csv"])).await;
    assert!(listed.unwrap().len() < 10 && there, "small pages");

    let names: Vec<_> = (0..900).map(|n| format!("{n}/{}", "x".repeat(200)).repeat(5)).collect();
    let large = page(names.iter().map(String::as_str));
    assert!(large.len() > MAX_BODY * 9 / 10 && large.len() <= MAX_BODY);
    let (listed, there, taken) = list_pages(true, large).await;
    assert!(listed.is_ok() && there);
    assert!(taken < 10 << 20, "{taken} bytes were taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_none_ends_the_session() {
    let pages: [&[u8]; 5] = [b"", b"{}", b"[{}]", b"[\"\xff\"]", b"[[[[[[[["];
    for bad in pages {
        let (listed, there, _) = list_pages(false, bad.to_vec()).await;
        assert_died((listed, there), &String::from_utf8_lossy(bad));
    }
    let (listed, there, _) = list_pages(true, b"[]".to_vec()).await;
    assert_died((listed, there), "an empty page before another");
}

/// The result of reading 10 bytes of an output from offset 5, if this is the answer.
async fn output_answered(head: Value, body: &'static [u8]) -> (Result<OutputPart, Error>, bool) {
    let head = serde_json::to_vec(&head).unwrap();
    let script = move |mut agent: Agent| {
        let head = head.clone();
        async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                match asked.kind {
                    Kind::Run => {
                        let (mut done, body) = run_done(PRINTED);
                        done.stdout.total = 100;
                        agent.reply(asked.call, &done, &body).await;
                    }
                    Kind::Output => {
                        agent.send(asked.call, Kind::Reply, &head, body).await;
                    }
                    _ => agent.honestly(&asked).await,
                }
            }
        }
    };
    beside_an_honest_one(script, async |sessions: &Sessions| {
        let report = run_liar(sessions).await.unwrap();
        let run = report.run_id.as_str();
        soon(sessions.perform(
            &id("liar"),
            ReadOutput { run_id: run.to_owned(), stream: Stream::Stdout, offset: Some(5), len: 10 },
        ))
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_adds_up_is_passed_on_and_no_other() {
    let done = |total: u64, kept: u64| serde_json::to_value(OutputDone { total, kept }).unwrap();
    // The agent may claim another total than before, because the server cannot check it.
    for (total, kept, body) in
        [(100, 100, &b"0123456789"[..]), (100, 7, b"56"), (7, 7, b"56"), (u64::MAX, 5, b"")]
    {
        let (part, there) = output_answered(done(total, kept), body).await;
        let expected = OutputPart { offset: 5, bytes: body.into(), total, kept };
        assert_eq!((part.unwrap(), there), (expected, true));
    }
    let lies = [
        ("more than was asked for", done(100, 100), &b"0123456789a"[..]),
        ("less than it has", done(100, 100), b"012345678"),
        ("nothing of what it has", done(100, 100), b""),
        ("more than it has", done(100, 7), b"0123456789"),
        ("more kept than written", done(9, 10), b"01234"),
        ("all there could be", done(5, u64::MAX), b"0123456789"),
        ("no figures", json!({}), b""),
        ("less than nothing", json!({ "total": -1, "kept": -1 }), b""),
    ];
    for (lie, head, body) in lies {
        assert_died(output_answered(head, body).await, lie);
    }
}

/// The progress of a run whose peeks are answered like this, and the result of the run.
async fn peek_answered(done: Value, line: Vec<u8>) -> (Progress, (Result<RunReport, Error>, bool)) {
    let head = serde_json::to_vec(&done).unwrap();
    let script = move |mut agent: Agent| {
        let (head, line) = (head.clone(), line.clone());
        async move {
            agent.hello().await;
            let Some(run) = agent.asked().await else { return };
            let Some(peek) = agent.asked().await else { return };
            assert_eq!((run.kind, peek.kind), (Kind::Run, Kind::Peek));
            agent.send(peek.call, Kind::Reply, &head, &line).await;
            // A second peek shows that the server has accepted the first answer.
            let Some(peek) = agent.asked().await else { return };
            agent.send(peek.call, Kind::Reply, &head, &line).await;
            agent.honestly(&run).await;
            while let Some(asked) = agent.asked().await {
                agent.honestly(&asked).await;
            }
        }
    };
    let (progress, seen) = watch::channel(Progress::default());
    let done = beside_an_honest_one(script, async |sessions: &Sessions| {
        let program = llm_sandbox::sessions::Program { progress: Some(progress), ..program() };
        sessions.run(Some(id("liar")), program).await.1
    })
    .await;
    let seen = seen.borrow().clone();
    (seen, done)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_run_shows_lines_of_text_or_ends_the_session() {
    let done = |stdout_total, stdout| {
        let done = PeekDone { stdout_total, stderr_total: 1, stdout, loading: false };
        serde_json::to_value(done).unwrap()
    };
    let line = b"x\x1b]\x07\xff\n".repeat(1000);
    let (seen, _) = peek_answered(done(u64::MAX, line.len()), line).await;
    assert!(seen.started && seen.written == u64::MAX && !seen.loading && seen.since.is_some());
    assert!(seen.lines.since(0).contains("\nx\u{FFFD}]\u{FFFD}\u{FFFD}\n"));

    let (seen, (run, there)) = peek_answered(done(u64::MAX, 0), vec![]).await;
    assert!(run.is_ok() && there && seen.written == u64::MAX);
    for (lie, head, body) in [
        ("more than there may be", done(1 << 20, MAX_LIVE + 1), vec![b'x'; MAX_LIVE + 1]),
        ("more than was written", done(9, 10), vec![b'x'; 10]),
        ("less than it says", done(9, 9), vec![b'x'; 8]),
        ("another output, of which there is less", done(9, 0), vec![b'x'; 2]),
        ("no figures", json!({}), vec![]),
    ] {
        let (seen, run) = peek_answered(head, body).await;
        assert_died(run, lie);
        assert_eq!(seen.lines.newest(), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_without_a_result_ends_the_session() {
    for head in [&b"{}"[..], b"{\"replaced\":1}", b""] {
        let script = answering(move |mut agent, asked| async move {
            agent.send(asked.call, Kind::Reply, head, b"").await;
            agent
        });
        let act = async |sessions: &Sessions| upload(sessions, "liar").await;
        assert_died(beside_an_honest_one(script, act).await, &String::from_utf8_lossy(head));
    }
}

/// An agent that answers everything, including pings, except one kind of request.
fn silent_on(kind: Kind) -> impl Fn(Agent) -> BoxFuture<'static, ()> + Send + Sync {
    move |mut agent| {
        Box::pin(async move {
            agent.hello().await;
            while let Some(asked) = agent.any_asked().await {
                match asked.kind {
                    asked if asked == kind => {}
                    Kind::Ping => agent.reply(asked.call, &Empty {}, b"").await,
                    _ => agent.honestly(&asked).await,
                }
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_never_answered_ends_the_session_after_a_while() {
    let on_run = beside_an_honest_one(silent_on(Kind::Run), run_liar);
    let on_upload = beside_an_honest_one(silent_on(Kind::Put), async |sessions: &Sessions| {
        upload(sessions, "liar").await
    });
    let on_list = beside_an_honest_one(silent_on(Kind::List), async |sessions: &Sessions| {
        run_liar(sessions).await.unwrap();
        sessions.perform(&id("liar"), List).await
    });
    let on_open = beside_an_honest_one(silent_on(Kind::Get), async |sessions: &Sessions| {
        run_liar(sessions).await.unwrap();
        open(sessions, "liar").await
    });
    let (on_run, on_upload, on_list, on_open) = join!(on_run, on_upload, on_list, on_open);
    assert_died(on_run, "no answer to a run");
    assert_died(on_upload, "no answer to an upload");
    assert_died(on_list, "no answer to a listing");
    assert_died(on_open, "no answer to a read");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_falls_silent_ends_the_session() {
    let silent = beside_an_honest_one(silent_on(Kind::Ping), async |sessions: &Sessions| {
        run_liar(sessions).await.unwrap();
        until("the session has ended", || sessions.host().count() == 1).await;
    });
    // The agent reads nothing, so the server cannot even send a ping.
    let full = beside_an_honest_one(
        |mut agent: Agent| async move {
            agent.hello().await;
            std::future::pending::<()>().await;
        },
        async |sessions: &Sessions| upload(sessions, "liar").await,
    );
    let deaf = beside_an_honest_one(Agent::deaf, run_liar);
    let (((), there), full, deaf) = join!(silent, full, deaf);
    assert!(!there);
    assert_died(full, "an upload into a full stream");
    assert_died(deaf, "an agent that only listens");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_does_not_end_when_killed_does_not_hold_up_its_caller() {
    /// An agent that acknowledges a kill or not, and does not end the run in either case.
    fn unkillable(acknowledges: bool) -> impl Fn(Agent) -> BoxFuture<'static, ()> {
        move |mut agent| {
            Box::pin(async move {
                agent.hello().await;
                while let Some(asked) = agent.asked().await {
                    if asked.kind == Kind::Kill && acknowledges {
                        agent.reply(asked.call, &Empty {}, b"").await;
                    }
                }
            })
        }
    }
    for acknowledges in [true, false] {
        let cancelled =
            beside_an_honest_one(unkillable(acknowledges), async |sessions: &Sessions| {
                let program = program();
                program.cancel.cancel();
                soon(sessions.run(Some(id("liar")), program)).await.1
            });
        let closed = beside_an_honest_one(unkillable(acknowledges), async |sessions: &Sessions| {
            let close = async {
                until("the session is there", || sessions.host().count() == 2).await;
                soon(sessions.close(&id("liar"))).await
            };
            join!(run_liar(sessions), close)
        });
        let (cancelled, ((run, close), there)) = join!(cancelled, closed);
        assert_died(cancelled, "no end of a run that was killed");
        assert_eq!((close.is_ok(), there), (true, false));
        assert_eq!(run.unwrap_err().code(), "session_not_found");
    }
}
