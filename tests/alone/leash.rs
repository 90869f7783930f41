//! Drills: however and whenever a server ends, its containers end with it.
//!
//! Every server removes leftovers when it starts. These drills must show that a dead server needs no other one, so no
//! other server may start meanwhile.

use std::{process::Command, time::Duration};

use support::{On, Server, containers, name, rounds, until};

use crate::alone;
use serde_json::json;
use tokio::time::{sleep, timeout};

/// Names and states of this project's containers whose session name starts with `prefix`, in any state.
fn left_over(prefix: &str) -> Vec<String> {
    let output = Command::new("docker")
        .args(["ps", "--all", "--filter", "label=app=llm-sandbox"])
        .args(["--format", "{{.Label \"session_id\"}} {{.State}}"])
        .output()
        .expect("the docker client runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
}

/// Waits until no container is left, for at most 30 seconds: an agent ends by itself after 45 seconds of silence, and
/// the test is about the leash, which takes a tenth of a second on an idle machine.
async fn until_gone(prefix: &str) {
    let gone = until("nothing is left", async || left_over(prefix).is_empty());
    let gone = timeout(Duration::from_secs(30), gone).await;
    assert!(gone.is_ok(), "left after 30 s: {:?}", left_over(prefix));
}

/// Asks for sessions and runs, and does not wait for the answers.
fn keep_busy(server: &Server, prefix: &str, round: u64) {
    for number in 0..3 {
        let session = format!("{prefix}-{round}-{number}");
        let code = "import time\nfor i in range(100): print(i); time.sleep(0.01)";
        server.begin("run_python", json!({ "session_id": session, "code": code }));
    }
}

/// A moment from 0 to 800 ms that differs in every round and is the same in every execution of the test.
fn moment(round: u64) -> Duration {
    Duration::from_millis(round.wrapping_mul(2_654_435_761) % 800)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_at_any_moment_leaves_no_container() {
    let _alone = alone().await;
    let prefix = name("killed");
    for round in 0..rounds(12, 50) {
        let mut server = Server::start(On::Docker).await;
        keep_busy(&server, &prefix, round);
        // The moment varies: between create and start, in a start, in a run.
        sleep(moment(round)).await;
        server.process.start_kill().expect("killed");
        server.exit_code().await;
        // Before another server starts, which would remove leftovers.
        until_gone(&prefix).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_told_to_end_at_any_moment_leaves_no_container() {
    let _alone = alone().await;
    let prefix = name("ended");
    for round in 0..rounds(6, 20) {
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
    let _alone = alone().await;
    let (server, id) = (Server::start(On::Docker).await, name("frozen"));
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
    let _alone = alone().await;
    let (server, id) = (Server::start(On::Docker).await, name("group"));
    server.upload(&id, "a", b"1").await.ok();
    let pid = server.process.id().expect("running");
    // The guard is killed first, as a client that ends all descendants might do: the stream still ends with the server.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let guards: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(guards.len(), 1, "one guard");
    for process in guards.into_iter().chain([&*pid.to_string()]) {
        let killed = Command::new("kill").args(["-s", "KILL", process]).status();
        assert!(killed.expect("kill runs").success());
    }
    until_gone(&id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_removes_what_dead_ones_left() {
    let _alone = alone().await;
    let orphan = name("orphan");
    // A running container with this project's label and no label that names its server.
    let created = Command::new("docker")
        .args(["run", "--detach", "--interactive", "--network", "none", "--entrypoint", "sleep"])
        .args(["--label", "app=llm-sandbox", "--label", &format!("session_id={orphan}")])
        .args(["llm-sandbox:latest", "600"])
        .output()
        .expect("the docker client runs");
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    assert_eq!(containers(&orphan).len(), 1);
    let _server = Server::start(On::Docker).await;
    until("the leftover is gone", async || containers(&orphan).is_empty()).await;
}
