//! Servers that do not answer, or are no servers of MCP: nothing else waits for them.

use super::*;

/// The upstreams with this server as `crm`, and one that answers as `well`.
fn beside(generation: &str, folder: &Path) -> CallersUpstreams {
    let [crm, well] = [("crm", generation), ("well", "old")]
        .map(|(name, generation)| entry(name, generation, folder, ""));
    of(&format!("upstreams:\n{crm}{well}"))
}

async fn list(upstreams: &CallersUpstreams, is_brief: bool) -> Value {
    upstreams.discover(Discover::List { is_brief }).await.expect("a list")
}

/// Does something while time passes only when everything waits for it. Returns how much passed.
async fn with_frozen_time<T>(act: impl Future<Output = T>) -> (T, Duration) {
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let done = act.await;
    let took = begun.elapsed();
    tokio::time::resume();
    (done, took)
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_is_waited_for_once() {
    for (generation, lists) in [("silent", 2), ("unlisted", 3)] {
        let folder = tempfile::tempdir().expect("a folder");
        let all = beside(generation, folder.path());
        call_of(&all, "well", "structured", json!({})).await.expect("known");
        let (first, took) = with_frozen_time(list(&all, false)).await;
        assert!(first[1]["tools"].as_u64().is_some_and(|tools| tools > 10), "{first}");
        assert_eq!(first[0]["unavailable"], "not available: no list of tools for 5 s");
        assert!(took < Duration::from_secs(6), "{took:?}");
        files(folder.path(), "started", 2).await;
        files(folder.path(), "listed", lists).await;
        let search = Discover::Search { query: "contact".into(), limit: None };
        let ((), took) = with_frozen_time(async {
            let again = list(&all, false).await;
            let why = again[0]["unavailable"].as_str().expect("a reason");
            assert!(why.contains("no list of tools for "), "{why}");
            all.discover(search).await.expect("found");
        })
        .await;
        assert_eq!(took, Duration::ZERO, "the first list has waited");
    }
}

#[tokio::test]
async fn a_brief_list_and_a_call_wait_for_no_other_upstream() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = beside("silent", folder.path());
    let (brief, took) = with_frozen_time(list(&all, true)).await;
    assert_eq!((&brief[0]["name"], &brief[1]["name"]), (&json!("crm"), &json!("well")));
    assert!(brief[0].get("unavailable").is_none() && took == Duration::ZERO, "{brief} {took:?}");
    call_of(&all, "well", "structured", json!({})).await.expect("an answer");
    files(folder.path(), "started", 1).await;
}

#[tokio::test]
async fn a_program_that_is_no_server_of_mcp_is_told_with_its_first_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = upstreams(&server("banner", folder.path(), ""));
    let health = all.health().await.remove(0);
    let error = health.tools.expect_err("no server");
    assert!(
        error.message.contains("it is not an MCP server: it writes \"Listening on port 8080\""),
        "{}",
        error.message
    );
    assert_eq!(health.last_words.len(), 5);
    assert_eq!(health.last_words[0], "a last word");
    files(folder.path(), "started", 1).await;
    // A line, and then silence.
    let yaml = "upstreams: { crm: { command: sh, args: [-c, 'echo hello; exec sleep 600'] }, \
                b: { command: sh, args: [-c, 'echo usage; read line; exit 2'] } }";
    let all = of(yaml);
    let echo = async |upstream| {
        let error = call_of(&all, upstream, "echo", json!({})).await.expect_err("no server");
        error.message
    };
    let told = echo("crm").await;
    assert!(told.contains("it is not an MCP server: it writes \"hello\""), "{told}");
    let told = echo("b").await;
    assert!(told.contains("it wrote \"usage\", and its process ended (exit status: 2)"), "{told}");
}

#[tokio::test]
async fn all_upstreams_are_checked_at_the_same_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let silent = (0..3).map(|at| entry(&format!("s{at}"), "silent", folder.path(), ""));
    let all = upstreams(&format!("upstreams:\n{}", silent.collect::<String>()));
    let (health, took) = with_frozen_time(all.health()).await;
    assert!(took < Duration::from_secs(16), "one after the other they take 45 s: {took:?}");
    for silent in health {
        let error = silent.tools.expect_err("it is silent");
        assert_eq!(error.message, "no list of tools within 15 s");
    }
}

#[tokio::test]
async fn the_patterns_that_no_tool_has_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = "    allow: [create-*, creat_contact, '*_nothing']\n    ask: [ECHO, nobody]\n";
    let all = upstreams(&server("old", folder.path(), more));
    let counts = all.health().await.remove(0).tools.expect("it answers");
    assert_eq!(counts.unmatched, ["creat_contact", "*_nothing", "nobody"]);
    assert_eq!(counts.asked, 1);
}

#[tokio::test]
async fn an_upstream_that_is_being_started_ends_with_the_server_and_is_not_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = upstreams(&server("silent", folder.path(), ""));
    let caller = all.of(&Principal::local(), None);
    let asked = tokio::spawn(async move { call(&caller, "echo", json!({ "text": "x" })).await });
    files(folder.path(), "started", 1).await;
    all.end().await;
    let error = asked.await.expect("no panic").expect_err("the server ends");
    assert_eq!(error.kind, CallErrorKind::Unavailable);
    let name = folder.path().to_string_lossy().into_owned();
    let is_there = || {
        let all = std::fs::read_dir("/proc").expect("processes");
        let commands = all.filter_map(|it| std::fs::read(it.ok()?.path().join("cmdline")).ok());
        commands.into_iter().any(|it| String::from_utf8_lossy(&it).contains(&name))
    };
    until(|| !is_there()).await;
    files(folder.path(), "started", 1).await;
}

#[tokio::test]
async fn a_call_that_may_write_and_has_no_answer_in_time_may_have_been_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let crm = of(&server("old", folder.path(), "    timeout_s: 1\n    allow: [\"*\"]\n"));
    let error = call(&crm, "create_contact", json!({ "text": "and no answer" })).await;
    let error = error.expect_err("no answer");
    assert_eq!(error.kind, CallErrorKind::UnknownOutcome, "{}", error.message);
    assert!(error.message.contains("may have been made"), "{}", error.message);
    let error = call(&crm, "slow", json!({})).await.expect_err("no answer");
    assert_eq!(error.kind, CallErrorKind::Unavailable, "{}", error.message);
}
