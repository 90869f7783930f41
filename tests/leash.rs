//! Drills: however a server ends, and whenever, its containers end with it.

mod support;

use std::{process::Command, time::Duration};

use serde_json::json;
use support::{On, Server, containers, name, until};
use tokio::time::{sleep, timeout};

/// Sessions of containers of ours, in any state, whose name starts so.
fn left_over(prefix: &str) -> Vec<String> {
    let output = Command::new("docker")
        .args(["ps", "--all", "--filter", "label=app=llm-sandbox"])
        .args(["--format", "{{.Label \"session_id\"}} {{.State}}"])
        .output()
        .expect("the docker client runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
}

/// Asks for sessions and runs, and does not wait for any of it.
fn keep_busy(server: &Server, prefix: &str, round: u64) {
    for number in 0..3 {
        let session = format!("{prefix}-{round}-{number}");
        let (id, _answer) = server.expect_answer();
        let code = "import time\nfor i in range(100): print(i); time.sleep(0.01)";
        server.send(&json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": { "name": "run_python", "arguments": { "session_id": session, "code": code } },
        }));
    }
}

/// Moments from 0 to 800 ms that fall differently in every round, and the same in every run.
fn moment(round: u64) -> Duration {
    Duration::from_millis(round.wrapping_mul(2_654_435_761) % 800)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_at_any_moment_leaves_no_container() {
    let prefix = name("killed");
    for round in 0..50 {
        let mut server = Server::start(On::Docker).await;
        keep_busy(&server, &prefix, round);
        // The moment is the drill: between create and start, in a start, in a run.
        sleep(moment(round)).await;
        server.process.start_kill().expect("killed");
        server.exit_code().await;
    }
    let gone = timeout(
        Duration::from_secs(10),
        until("all are gone", async || left_over(&prefix).is_empty()),
    );
    assert!(gone.await.is_ok(), "left after 10 s: {:?}", left_over(&prefix));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_told_to_end_at_any_moment_leaves_no_container() {
    let prefix = name("ended");
    for round in 0..20 {
        let mut server = Server::start(On::Docker).await;
        keep_busy(&server, &prefix, round);
        sleep(moment(round)).await;
        match round % 3 {
            0 => server.signal("TERM"),
            1 => server.signal("INT"),
            _ => server.close_input(),
        }
        assert_eq!(server.exit_code().await, Some(0), "round {round}");
        assert_eq!(left_over(&format!("{prefix}-{round}-")), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_loses_its_containers_and_works_again_when_it_thaws() {
    let server = Server::start(On::Docker).await;
    let id = name("frozen");
    server.upload(&id, "a", b"1").await.ok();
    server.signal("STOP");
    until("the agent gives up on its server", async || containers(&id).is_empty()).await;
    server.signal("CONT");
    until("the session is gone", async || {
        let answer = server.call("list_artifacts", json!({ "session_id": id })).await;
        matches!(answer.error(), "session_not_found" | "sandbox_died")
    })
    .await;
    assert_eq!(server.run(&id, "print('thawed')").await["stdout"], "thawed\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_kills_the_whole_group_leaves_no_container() {
    let server = Server::start(On::Docker).await;
    let id = name("group");
    server.upload(&id, "a", b"1").await.ok();
    let pid = server.process.id().expect("running");
    // The guard first, as a client that ends all descendants might: the stream still ends with the
    // server.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let guards: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(guards.len(), 1, "one guard");
    for process in guards.into_iter().chain([&*pid.to_string()]) {
        let killed = Command::new("kill").args(["-s", "KILL", process]).status();
        assert!(killed.expect("kill runs").success());
    }
    until("it is gone", async || containers(&id).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_first_calls_at_once_make_exactly_the_maximum() {
    let server = Server::start_with(On::Docker, &[("SANDBOX_MAX_SESSIONS", "5")]).await;
    let prefix = name("rush");
    let ids: Vec<_> = (0..30).map(|number| format!("{prefix}-{number}")).collect();
    let answers =
        futures::future::join_all(ids.iter().map(|id| server.upload(id, "a", b"1"))).await;
    let refused = answers.iter().filter(|answer| answer.raw["isError"] == true);
    let refused: Vec<_> = refused.map(support::Answer::error).collect();
    assert_eq!(refused, vec!["max_sessions"; 25]);
    assert_eq!(left_over(&prefix).len(), 5);
}
