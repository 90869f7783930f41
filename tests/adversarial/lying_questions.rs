//! An agent that lies about the questions of its programs costs its own session and nothing else.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{Arc, Mutex};

use llm_sandbox::{error::Error, session::RunReport, sessions::Sessions};
use protocol::{
    frame::Kind,
    message::{Answer, Ask, Empty, Failure, FailureCode, MAX_ASK, MAX_ASKS},
};
use serde_json::{Value, json};

use crate::double::{Agent, Asked, Cast, PRINTED, frame, id, run, soon, use_all_of};

/// A question that is answered at once.
const LIST: &[u8] = br#"{"op":"list"}"#;

/// A call of which a person must decide.
const GET: &[u8] = br#"{"op":"call","upstream":"api","tool":"get","arguments":{"path":"/"}}"#;

/// The answers that an agent has received, with the numbers of their questions.
type Answers = Arc<Mutex<Vec<(u32, Value)>>>;

fn ask(number: u32, run: u32, body: &[u8]) -> Vec<u8> {
    let ask = Ask { run, again: false, paused: false };
    frame(number, Kind::Ask, &serde_json::to_vec(&ask).unwrap(), body)
}

fn withdraw(number: u32) -> Vec<u8> {
    frame(number, Kind::Withdraw, b"{}", b"")
}

/// Receives requests until this question is answered, and acknowledges each.
async fn hear(agent: &mut Agent, answers: &Answers, until: u32) {
    while let Some(Asked { call, kind, head, body }) = agent.asked().await {
        if kind == Kind::Peek {
            let failure = Failure { code: FailureCode::NotFound, detail: String::new() };
            agent.send(call, Kind::Failure, &serde_json::to_vec(&failure).unwrap(), b"").await;
            continue;
        }
        agent.reply(call, &Empty {}, b"").await;
        if kind == Kind::Answer {
            let Answer { ask } = serde_json::from_slice(&head).unwrap();
            answers.lock().unwrap().push((ask, serde_json::from_slice(&body).unwrap()));
            if ask == until {
                return;
            }
        }
    }
}

/// The numbers of the answered questions, each with the kind of its error or `ok`.
fn outcomes(answers: &Answers) -> Vec<(u32, String)> {
    let kind = |value: &Value| value["error"]["kind"].as_str().unwrap_or("ok").to_owned();
    answers.lock().unwrap().iter().map(|(number, value)| (*number, kind(value))).collect()
}

/// Runs a program in the session `liar`, whose agent does this when it is asked for a run, and then answers the run;
/// the session `honest` is used before and after. Returns the run's result and whether the session is still there.
async fn lied<F>(
    has_upstream: bool,
    lie: impl Fn(Agent, u32, Answers) -> F + Clone + Send + Sync + 'static,
) -> (Result<RunReport, Error>, bool, Answers)
where
    F: Future<Output = Agent> + Send + 'static,
{
    let answers = Answers::default();
    let given = answers.clone();
    let cast = Cast::default().with("liar", move |mut agent| {
        let (lie, answers) = (lie.clone(), given.clone());
        async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                if asked.kind == Kind::Run {
                    agent = lie(agent, asked.call, answers.clone()).await;
                }
                agent.honestly(&asked).await;
            }
        }
    });
    let sessions = if has_upstream { cast.with_an_upstream() } else { cast.sessions(2) };
    use_all_of(&sessions, "honest").await;
    let (done, ()) = tokio::join!(run(&sessions, "liar"), use_all_of(&sessions, "honest"));
    let is_there = goes_on(&sessions).await;
    use_all_of(&sessions, "honest").await;
    soon(sessions.host().shutdown()).await;
    assert_eq!((sessions.host().count(), cast.live()), (0, 0));
    (done, is_there, answers)
}

/// Whether the session `liar` is there.
async fn goes_on(sessions: &Sessions) -> bool {
    soon(sessions.close(&id("liar"))).await.is_ok()
}

fn assert_ok((done, is_there, _): &(Result<RunReport, Error>, bool, Answers)) {
    assert_eq!(done.as_ref().unwrap().stdout.text.as_bytes(), PRINTED);
    assert!(is_there);
}

fn assert_died((done, is_there, _): &(Result<RunReport, Error>, bool, Answers), lie: &str) {
    assert_eq!(done.as_ref().unwrap_err().code(), "sandbox_died", "{lie}");
    assert!(!is_there, "{lie}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_another_run_is_answered_without_a_call() {
    let told = lied(true, |mut agent, run, answers| async move {
        for (number, run) in [(1, run + 1), (2, 0), (3, u32::MAX), (4, run)] {
            agent.raw(&ask(number, run, LIST)).await;
            hear(&mut agent, &answers, number).await;
        }
        agent
    })
    .await;
    assert_ok(&told);
    let expected = [(1, "not_enabled"), (2, "not_enabled"), (3, "not_enabled"), (4, "ok")];
    assert_eq!(outcomes(&told.2), expected.map(|(number, kind)| (number, kind.to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_after_its_run_is_answered_without_a_call() {
    let answers = Answers::default();
    let given = answers.clone();
    let cast = Cast::default().with("liar", move |mut agent: Agent| {
        let answers = given.clone();
        async move {
            agent.hello().await;
            let Some(asked) = agent.asked().await else { return };
            agent.honestly(&asked).await;
            // The reply is there before the question.
            agent.raw(&ask(1, asked.call, LIST)).await;
            hear(&mut agent, &answers, 1).await;
            while let Some(asked) = agent.asked().await {
                agent.honestly(&asked).await;
            }
        }
    });
    let sessions = cast.with_an_upstream();
    run(&sessions, "liar").await.unwrap();
    crate::double::until("the question is answered", || !answers.lock().unwrap().is_empty()).await;
    assert_eq!(outcomes(&answers), [(1, "not_enabled".to_owned())]);
    run(&sessions, "liar").await.unwrap();
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_must_not_ask_is_told_so_and_its_run_goes_on() {
    let told = lied(false, |mut agent, run, answers| async move {
        for (number, body) in [(1, LIST), (2, GET), (3, b"\xff")] {
            agent.raw(&ask(number, run, body)).await;
            hear(&mut agent, &answers, number).await;
        }
        agent
    })
    .await;
    assert_ok(&told);
    let expected = [1, 2, 3].map(|number| (number, "not_enabled".to_owned()));
    assert_eq!(outcomes(&told.2), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_come_again_or_descend_are_not_answered_twice() {
    let told = lied(true, |mut agent, run, answers| async move {
        for numbers in [&[5, 5, 3, 1, 0, 5][..], &[u32::MAX, 6, u32::MAX]] {
            for number in numbers {
                agent.raw(&ask(*number, run, LIST)).await;
            }
            hear(&mut agent, &answers, numbers[0]).await;
        }
        agent
    })
    .await;
    assert_ok(&told);
    let numbers: Vec<_> = outcomes(&told.2).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, [5, u32::MAX]);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_that_are_nonsense_are_errors_of_their_own() {
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"\xff\xfe".to_vec(),
        b"{".to_vec(),
        br#"{"op":"shutdown"}"#.to_vec(),
        br#"{"op":"call","upstream":"api","tool":"get","caller":"bob"}"#.to_vec(),
        vec![b'['; MAX_ASK],
        vec![b' '; MAX_ASK],
        [&b"{\"op\":\""[..], &vec![b'x'; MAX_ASK - 20]].concat(),
        format!(
            r#"{{"op":"call","upstream":"api","tool":"get","arguments":{{"a":[{}0]}}}}"#,
            "{\"\":0},".repeat(100_000)
        )
        .into(),
    ];
    let count = u32::try_from(bodies.len()).unwrap();
    let told = lied(true, move |mut agent, run, answers| {
        let bodies = bodies.clone();
        async move {
            for (number, body) in (1..).zip(&bodies) {
                agent.raw(&ask(number, run, body)).await;
                hear(&mut agent, &answers, number).await;
            }
            agent
        }
    })
    .await;
    assert_ok(&told);
    let all: Vec<_> = (1..=count).map(|number| (number, "invalid_arguments".to_owned())).collect();
    assert_eq!(outcomes(&told.2), all);
    for (_, answer) in told.2.lock().unwrap().iter() {
        assert!(answer.to_string().len() < 10_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_of_nobody_is_unknown() {
    let told = lied(true, |mut agent, run, answers| async move {
        for (number, upstream) in [(1, "crm"), (2, "../api"), (3, "API"), (4, "api\u{202e}")] {
            let body = json!({ "op": "call", "upstream": upstream, "tool": "get" }).to_string();
            agent.raw(&ask(number, run, body.as_bytes())).await;
            hear(&mut agent, &answers, number).await;
        }
        agent
    })
    .await;
    assert_ok(&told);
    let expected = [1, 2, 3, 4].map(|number| (number, "unknown_upstream".to_owned()));
    assert_eq!(outcomes(&told.2), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_comes_again_without_another_server_is_answered_once() {
    let told = lied(true, |mut agent, run, answers| async move {
        for (number, paused) in [(1, true), (2, false)] {
            let again = serde_json::to_vec(&Ask { run, again: true, paused }).unwrap();
            for _ in 0..3 {
                agent.send(number, Kind::Ask, &again, LIST).await;
            }
            hear(&mut agent, &answers, number).await;
        }
        agent
    })
    .await;
    assert_ok(&told);
    assert_eq!(outcomes(&told.2), [1, 2].map(|number| (number, "ok".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_are_no_questions_end_their_session() {
    let deep = format!(r#"{{"run":1,"more":{}"#, "[".repeat(10_000));
    let lies = [
        ("no JSON", frame(1, Kind::Ask, b"\xff", b"")),
        ("no head", frame(1, Kind::Ask, b"", b"")),
        ("no run", frame(1, Kind::Ask, br#"{"again":true}"#, b"")),
        ("a negative run", frame(1, Kind::Ask, br#"{"run":-1}"#, b"")),
        ("deep JSON", frame(1, Kind::Ask, deep.as_bytes(), b"")),
        ("too long", ask(1, 1, &vec![b'x'; MAX_ASK + 1])),
        ("an answer", frame(1, Kind::Answer, br#"{"ask":1}"#, b"")),
        ("a pause", frame(1, Kind::Pause, br#"{"ask":1}"#, b"")),
    ];
    for (name, lie) in lies {
        let told = lied(true, move |mut agent, _, _| {
            let lie = lie.clone();
            async move {
                agent.raw(&lie).await;
                agent.deaf_from_now_on().await
            }
        })
        .await;
        assert_died(&told, name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_questions_than_there_may_be_end_their_session() {
    for has_upstream in [true, false] {
        let told = lied(has_upstream, |mut agent, run, _| async move {
            for number in 1..=u32::try_from(MAX_ASKS + 1).unwrap() {
                agent.raw(&ask(number, run, GET)).await;
            }
            agent.deaf_from_now_on().await
        })
        .await;
        assert_died(&told, "a flood");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_never_acknowledged_are_bounded() {
    // Each question is withdrawn, so that the number of open ones does not grow.
    let sent = Arc::new(Mutex::new(0));
    for has_upstream in [true, false] {
        let noted = sent.clone();
        let told = lied(has_upstream, move |mut agent, run, _| {
            let noted = noted.clone();
            async move {
                let mut number = 0;
                loop {
                    number += 1;
                    let mut frames = ask(number, run, b"nonsense");
                    frames.extend(withdraw(number));
                    *noted.lock().unwrap() = number;
                    // It takes in what the server sends, and says nothing to it.
                    if !agent.exchange(&frames).await {
                        return agent;
                    }
                }
            }
        })
        .await;
        assert_died(&told, "no acknowledgement");
        let sent = *sent.lock().unwrap();
        assert!(sent < 20_000, "{sent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawals_of_anything_change_nothing() {
    let told = lied(true, |mut agent, run, answers| async move {
        for number in 0..10_000 {
            agent.raw(&withdraw(number)).await;
        }
        agent.raw(&ask(1, run, LIST)).await;
        hear(&mut agent, &answers, 1).await;
        agent.raw(&withdraw(1)).await;
        agent
    })
    .await;
    assert_ok(&told);
    assert_eq!(outcomes(&told.2), [(1, "ok".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_that_runs_leave_without_an_answer_do_not_add_up() {
    // They wait for a person, and the agent neither pauses the run nor withdraws them.
    let cast = Cast::default().with("liar", |mut agent: Agent| async move {
        agent.hello().await;
        let mut number = 0;
        while let Some(asked) = agent.asked().await {
            if asked.kind == Kind::Run {
                for _ in 0..MAX_ASKS - 2 {
                    number += 1;
                    agent.raw(&ask(number, asked.call, GET)).await;
                }
            }
            agent.honestly(&asked).await;
        }
    });
    let sessions = cast.with_an_upstream();
    for _ in 0..4 {
        run(&sessions, "liar").await.unwrap();
    }
    assert!(goes_on(&sessions).await);
    soon(sessions.host().shutdown()).await;
}
