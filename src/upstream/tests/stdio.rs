//! Servers over standard input and output.

use rustix::process::{Pid, test_kill_process};

use super::*;

#[tokio::test]
async fn an_answer_is_a_value_or_a_file_in_both_generations() {
    for generation in ["old", "new", "fragile", "chatty"] {
        let folder = tempfile::tempdir().expect("a folder");
        let crm = of(&server(generation, folder.path(), ""));
        let called = async |tool| call(&crm, tool, json!({})).await;
        assert_eq!(value(call(&crm, "echo", json!({ "text": "hi" })).await), "hi");
        assert_eq!(value(call(&crm, "echo", json!({ "text": "12" })).await), "12");
        assert_eq!(value(called("structured").await), json!({ "rows": [1, 2] }));
        let image = called("image").await.expect("an answer");
        let data = bytes::Bytes::from_static(b"\x89PNG pixels");
        assert_eq!(image, [Item::Bytes { data, mime_type: "image/png".into(), name: None }]);
        let many = called("many").await.expect("an answer");
        assert_eq!(many[0], Item::Value(json!([{ "a": 1 }])));
        assert_eq!(many[1], Item::Value("{no json".into()));
        assert!(matches!(&many[2], Item::Value(link) if link["uri"] == "file:///a"), "{many:?}");
        let error = called("fail").await.expect_err("an error");
        assert_eq!(error, CallError::new(CallErrorKind::Upstream, "no such contact"));
        // The list has two pages, and one process serves all calls.
        files(folder.path(), "listed", 2).await;
        files(folder.path(), "started", if generation == "fragile" { 2 } else { 1 }).await;
    }
}

#[tokio::test]
async fn the_environment_has_only_what_is_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), "    env: { CRM_MODE: plain }\n"));
    let environment = value(call(&crm, "environment", json!({})).await);
    let mut names: Vec<_> = environment.as_object().expect("an object").keys().collect();
    // Python sets these itself, if it wants another locale.
    names.retain(|name| *name != "LC_CTYPE");
    assert_eq!(names, ["CRM_MODE", "HOME", "PATH"]);
}

#[tokio::test]
async fn a_secret_is_in_no_answer_and_in_no_text_about_the_settings() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "hunter2-hunter2\n").expect("written");
    let more = format!("    env: {{ CRM_TOKEN: 'file:{}' }}\n", secret.display());
    let yaml = server("old", folder.path(), &more);
    let crm = of(&yaml);
    let environment = value(call(&crm, "environment", json!({})).await);
    assert_eq!(environment["CRM_TOKEN"], "[secret]");
    let config = config(&yaml).expect("valid");
    assert!(!format!("{config:?}{crm:?}").contains("hunter2"));
}

#[tokio::test]
async fn calls_of_a_dead_server_fail_at_once_until_it_is_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), ""));
    let error = call(&crm, "die", json!({})).await.expect_err("it died");
    assert_eq!(error.kind, CallErrorKind::Unavailable);
    // It is known to be dead a moment later.
    let echo = async || call(&crm, "echo", json!({ "text": "hi" })).await;
    let mut told = vec![];
    let answered = async {
        loop {
            match echo().await {
                Ok(_) => break,
                Err(error) => told.push(error),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("it is started again");
    assert!(told.iter().all(|error| error.kind == CallErrorKind::Unavailable), "{told:?}");
    let waits = |error: &CallError| {
        error.message.contains("exit status: 3") && error.message.contains("started again in ")
    };
    assert!(told.iter().any(waits), "{told:?}");
    files(folder.path(), "started", 2).await;
}

#[tokio::test]
async fn a_call_that_changes_something_and_loses_its_server_may_have_been_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), "    allow: [die_writing]\n"));
    let error = call(&crm, "die_writing", json!({})).await.expect_err("it died");
    assert_eq!(error.kind, CallErrorKind::UnknownOutcome, "{}", error.message);
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_not_available() {
    let crm = of("upstreams: { crm: { command: /no/such/program }, b: { command: /bin/false } }");
    let error = call(&crm, "echo", json!({})).await.expect_err("an error");
    assert_eq!(error.kind, CallErrorKind::Unavailable);
    assert!(error.message.contains("/no/such/program cannot be started"), "{}", error.message);
    let listed = crm.discover(Discover::List { is_brief: false }).await.expect("a list");
    assert!(listed[0]["unavailable"].as_str().is_some_and(|why| why.contains("exit status: 1")));
    assert_eq!(listed[1]["kind"], "mcp");
}

#[tokio::test]
async fn an_answer_that_is_none_does_not_end_the_connection() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), "    timeout_s: 1\n"));
    let error = call(&crm, "wrong", json!({})).await.expect_err("no answer");
    assert_eq!(error.kind, CallErrorKind::Unavailable);
    assert!(error.message.contains("something that is no answer"), "{}", error.message);
    let error = call(&crm, "garbage", json!({})).await.expect_err("no answer");
    assert_eq!(error.message, "no answer within 1 s (setting upstreams.crm.timeout_s)");
    assert_eq!(value(call(&crm, "echo", json!({ "text": "hi" })).await), "hi");
    files(folder.path(), "started", 1).await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_ends_neither_the_connection_nor_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), "    max_answer_mb: 1\n"));
    for last in [false, true] {
        // More than the largest message, and more than an answer alone may have.
        for bytes in [6_000_000, 1_100_000] {
            let error = call(&crm, "huge", json!({ "bytes": bytes, "last": last })).await;
            assert_eq!(kind(error), CallErrorKind::Limit, "{last} {bytes}");
        }
    }
    let fits = value(call(&crm, "huge", json!({ "bytes": 900_000 })).await);
    assert_eq!(fits.as_str().map(str::len), Some(900_000));
    files(folder.path(), "started", 1).await;
    let prepared = crm.prepare(tool_call("crm", "huge", json!({ "bytes": 5000 }))).await;
    let limits = CallLimits { max_bytes: 4000, ..LIMITS };
    let error = prepared.expect("prepared").carry_out(limits).await;
    assert_eq!(kind(error), CallErrorKind::Limit);
}

#[tokio::test]
async fn a_line_without_an_end_is_bounded_and_the_call_ends_in_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), "    max_answer_mb: 1\n    timeout_s: 2\n"));
    assert_eq!(kind(call(&crm, "endless", json!({})).await), CallErrorKind::Unavailable);
}

#[tokio::test]
async fn a_call_that_is_dropped_or_late_is_cancelled_at_the_server() {
    for generation in ["old", "new"] {
        let folder = tempfile::tempdir().expect("a folder");
        let crm = of(&server(generation, folder.path(), ""));
        let slow =
            async || crm.prepare(tool_call("crm", "slow", json!({}))).await.expect("prepared");
        let calling = tokio::spawn(slow().await.carry_out(LIMITS));
        files(folder.path(), "slow", 1).await;
        calling.abort();
        files(folder.path(), "cancelled", 1).await;
        let limits = CallLimits { timeout: Duration::from_millis(100), ..LIMITS };
        assert_eq!(kind(slow().await.carry_out(limits).await), CallErrorKind::Unavailable);
        files(folder.path(), "cancelled", 2).await;
        assert_eq!(value(call(&crm, "echo", json!({ "text": "hi" })).await), "hi");
        files(folder.path(), "started", 1).await;
    }
}

#[tokio::test]
async fn a_changed_list_is_asked_for_again() {
    for generation in ["old", "new"] {
        let folder = tempfile::tempdir().expect("a folder");
        let crm = of(&server(generation, folder.path(), ""));
        assert_eq!(kind(call(&crm, "added_0", json!({})).await), CallErrorKind::UnknownTool);
        let change = async || {
            call(&crm, "change", json!({})).await.expect("changed");
            let listed = crm.discover(Discover::Tools { upstream: "crm".into() }).await;
            let listed = listed.expect("a list");
            listed.as_array().expect("a list").iter().any(|tool| tool["name"] == "added_0")
        };
        // The newer generation may begin to listen after the first change.
        let changed = async { while !change().await {} };
        tokio::time::timeout(PATIENCE, changed).await.expect("the change is seen");
        files(folder.path(), "started", 1).await;
    }
}

#[tokio::test]
async fn an_unused_server_is_stopped_and_started_by_the_next_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), "    idle_s: 1\n"));
    let pids = value(call(&crm, "child", json!({})).await);
    let pid = |at: usize| pid(&pids[at]);
    let is_gone = |pid: Pid| test_kill_process(pid).is_err() || is_zombie(pid);
    assert!(!is_gone(pid(0)) && !is_gone(pid(1)));
    until(|| is_gone(pid(0)) && is_gone(pid(1))).await;
    // The list is still known.
    let tools = crm.discover(Discover::Tools { upstream: "crm".into() }).await.expect("tools");
    assert!(tools.as_array().is_some_and(|tools| tools.len() > 10));
    files(folder.path(), "started", 1).await;
    assert_eq!(value(call(&crm, "echo", json!({ "text": "hi" })).await), "hi");
    files(folder.path(), "started", 2).await;
}

#[tokio::test]
async fn the_end_of_the_upstreams_kills_each_group() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("new", folder.path(), ""));
    let pids = value(call(&crm, "child", json!({})).await);
    let pid = |at: usize| pid(&pids[at]);
    drop(crm);
    until(|| {
        [pid(0), pid(1)].iter().all(|pid| test_kill_process(*pid).is_err() || is_zombie(*pid))
    })
    .await;
}

#[tokio::test]
async fn calls_that_come_together_start_one_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), ""));
    let calls = (0..20).map(async |at: usize| {
        let text = at.to_string();
        assert_eq!(value(call(&crm, "echo", json!({ "text": text })).await), text);
    });
    futures::future::join_all(calls).await;
    files(folder.path(), "started", 1).await;
    files(folder.path(), "listed", 2).await;
}

fn pid(value: &Value) -> Pid {
    let number = value.as_i64().and_then(|number| number.try_into().ok());
    number.and_then(Pid::from_raw).expect("a process")
}

/// Whether a process has ended and nobody has asked how: a container's first process may not.
fn is_zombie(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    status.is_ok_and(|status| status.contains(") Z "))
}
