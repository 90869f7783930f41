//! The operator's metrics: what they count, their names, and who may read them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{
    On, Server, containers, http, http_with,
    metrics::Metrics,
    name, on_docker, program, until,
    web::{TOKENS, Web},
};

on_docker! {
    the_memory_of_real_sandboxes_is_told_and_goes_with_them,
    a_session_that_loses_its_container_is_counted_as_dead,
    a_sandbox_that_cannot_be_started_is_counted_and_the_server_not_ready,
    a_server_whose_runtime_the_engine_does_not_have_is_not_ready_and_says_which_there_are,
}

/// A mark in everything that a caller can choose.
const MARK: &str = "zqmarkzq";

/// Waits until a condition on the metrics holds.
async fn until_figures(what: &str, web: &Web, hold: impl Fn(&Metrics) -> bool) {
    until(what, async || hold(&Metrics::of(web).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_tools_are_counted_by_what_came_of_them_and_timed() {
    let web = Web::start(On::Local, &[]).await;
    let (caller, session) = (web.caller(None), name("calls"));
    caller.run(&session, "print(1)").await;
    // A program that fails does not make its call fail.
    caller.run(&session, "raise SystemExit(3)").await;
    let missing = json!({ "session_id": session, "path": "missing" });
    assert_eq!(caller.call("read_artifact", missing).await.error(), "not_found");
    // The same in the other generation of the protocol.
    let mcp = caller.open().await;
    mcp.call("list_artifacts", json!({ "session_id": session })).await.ok();
    assert_eq!(mcp.call("run_python", json!({ "code": 7 })).await.error(), "invalid_argument");

    let metrics = Metrics::of(&web).await;
    let calls = |tool, code| {
        metrics.count("llm_sandbox_tool_calls_total", &[("tool", tool), ("code", code)])
    };
    assert_eq!(calls("run_python", "ok"), 2);
    assert_eq!(calls("run_python", "invalid_argument"), 1);
    assert_eq!(calls("read_artifact", "not_found"), 1);
    assert_eq!(calls("list_artifacts", "ok"), 1);
    assert_eq!(metrics.count("llm_sandbox_tool_calls_total", &[]), 5);
    let timed = "llm_sandbox_tool_call_duration_seconds_count";
    assert_eq!(metrics.count(timed, &[("tool", "run_python")]), 3);
    assert_eq!(metrics.count(timed, &[]), 5);
    let took = metrics.sum("llm_sandbox_tool_call_duration_seconds_sum", &[]);
    assert!(took > 0.0, "{took}");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_stdio_the_figures_are_served_as_well() {
    let server = Server::start(On::Local).await;
    server.run(&name("stdio"), "print(1)").await;
    let base = server.base().await;
    let response = http("GET", &format!("{base}/metrics")).await;
    let metrics = Metrics::parse(std::str::from_utf8(&response.body).expect("UTF-8"));
    let ok = [("tool", "run_python"), ("code", "ok")];
    // `base` made the second call.
    assert_eq!(metrics.count("llm_sandbox_tool_calls_total", &ok), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_counted_by_outcome_and_start_with_the_time_of_their_code() {
    let web = Web::start(On::Local, &[]).await;
    let (caller, session) = (web.caller(None), name("runs"));
    caller.run(&session, "print(1)").await;
    caller.run(&session, "raise ValueError").await;
    caller.run(&session, "import os; os.abort()").await;
    caller.run_for(&session, "while True: pass", 1).await;

    let metrics = Metrics::of(&web).await;
    for outcome in ["ok", "error", "killed", "timeout"] {
        let outcome = [("outcome", outcome)];
        assert_eq!(metrics.count("llm_sandbox_runs_total", &outcome), 1, "{outcome:?}");
        assert_eq!(metrics.count("llm_sandbox_run_duration_seconds_count", &outcome), 1);
    }
    let python = [("language", "python")];
    assert_eq!(metrics.count("llm_sandbox_runs_total", &python), 4);
    let started = ["warm", "fork", "cold"]
        .map(|how| metrics.count("llm_sandbox_runs_total", &[("start", how)]))
        .iter()
        .sum::<u64>();
    assert_eq!(started, 4, "each in one of three ways");
    let sum =
        |outcome| metrics.sum("llm_sandbox_run_duration_seconds_sum", &[("outcome", outcome)]);
    assert!(sum("timeout") >= 1.0 && sum("ok") > 0.0, "{metrics:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_timed_by_language_and_their_processor_time_is_counted() {
    let web = Web::start(On::Local, &[]).await;
    let (caller, session) = (web.caller(None), name("languages"));
    caller.run(&session, "sum(range(3_000_000))").await;
    let bash = json!({ "code": "true", "language": "bash", "session_id": session });
    caller.call("execute_code", bash).await.ok();
    let metrics = Metrics::of(&web).await;
    for language in ["python", "bash"] {
        let ok = [("language", language), ("outcome", "ok")];
        assert_eq!(metrics.count("llm_sandbox_run_duration_seconds_count", &ok), 1, "{ok:?}");
    }
    let python = [("language", "python")];
    assert!(metrics.sum("llm_sandbox_run_cpu_seconds_total", &python) > 0.01, "{metrics:?}");
}

mod wasm {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn instructions_are_counted_where_the_engine_counts_them() {
        let web = Web::start(On::Wasm, &[]).await;
        let (caller, session) = (web.caller(None), name("fuel"));
        let used = async || {
            let metrics = Metrics::of(&web).await;
            metrics.count("llm_sandbox_run_fuel_total", &[("language", "python")])
        };
        caller.run(&session, "1").await;
        let little = used().await;
        assert!(little > 1000, "{little}");
        caller.run(&session, "for _ in range(1_000_000): pass").await;
        let loops = used().await - little;
        assert!(loops > little.max(1_000_000), "{little} {loops}");
        let cell = json!({ "code": "for _ in range(1_000_000): pass", "language": "python" });
        caller.call("execute_code", cell).await.ok();
        assert!(used().await > little + loops + 1_000_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_protocol_are_timed_by_method() {
    let (web, caller) = Web::open(On::Local, &[]).await;
    caller.open().await.ask("tools/list", json!({})).await;
    caller.call("list_runtimes", json!({})).await.ok();
    let metrics = Metrics::of(&web).await;
    for method in ["initialize", "tools/list", "tools/call"] {
        let timed = "llm_sandbox_mcp_request_duration_seconds_count";
        assert_eq!(metrics.count(timed, &[("method", method)]), 1, "{method}");
    }
}

/// The settings of a server whose metrics name callers.
const BY_CALLER: (&str, &str) = ("SANDBOX_METRICS_CALLERS", "true");

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_told_apart_for_the_token_of_the_figures_if_the_operator_asks_for_it() {
    let limit = [
        BY_CALLER,
        ("SANDBOX_METRICS_TOKEN", "secret-m"),
        ("SANDBOX_MAX_SESSIONS_PER_CLIENT", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
    ];
    let (web, alice, bob) = Web::of_two(On::Local, &limit).await;
    alice.run("a", "sum(range(3_000_000))").await;
    alice.run("a", "raise ValueError").await;
    alice.call("run_python", json!({ "session_id": "second", "code": "1" })).await.error();
    alice.send("PUT", "/files/a/data", &[], &[1; 1000]).await;
    alice.send("GET", "/files/a/data", &[], &[]).await;
    bob.call("execute_code", json!({ "code": "true", "language": "bash" })).await.ok();
    bob.ask("tools/call", json!({ "name": MARK, "arguments": {} })).await;

    let metrics = Metrics::read_by(&web.caller(Some("secret-m"))).await;
    let count = |name: &str, labels: &[(&str, &str)]| {
        metrics.count(&format!("llm_sandbox_caller_{name}"), labels)
    };
    let (of_alice, of_bob) = (("caller", "alice"), ("caller", "bob"));
    let run = ("tool", "run_python");
    assert_eq!(count("tool_calls_total", &[of_alice, run, ("code", "ok")]), 2);
    assert_eq!(count("tool_calls_total", &[of_alice, run, ("code", "max_sessions")]), 1);
    assert_eq!(count("tool_calls_total", &[of_bob, ("tool", "execute_code")]), 1);
    assert_eq!(count("tool_calls_total", &[of_bob, ("tool", "unknown")]), 1);
    for outcome in ["ok", "error"] {
        let python = [of_alice, ("language", "python"), ("outcome", outcome)];
        assert_eq!(count("runs_total", &python), 1, "{outcome}");
    }
    assert_eq!(count("runs_total", &[of_bob, ("language", "bash")]), 1);
    assert_eq!(count("sessions", &[of_alice]), 1);
    assert_eq!(count("sessions", &[of_bob]), 1);
    assert_eq!(count("sessions_refused_total", &[of_alice, ("limit", "client")]), 1);
    assert_eq!(count("uploaded_bytes_total", &[of_alice]), 1000);
    assert_eq!(count("downloaded_bytes_total", &[of_alice]), 1000);
    assert_eq!(count("uploaded_bytes_total", &[of_bob]), 0);
    for seconds in ["run_seconds_total", "run_cpu_seconds_total"] {
        let name = format!("llm_sandbox_caller_{seconds}");
        assert!(metrics.sum(&name, &[of_alice, ("language", "python")]) > 0.01, "{seconds}");
    }
    // The figures of all are what they are without the names.
    assert_eq!(metrics.count("llm_sandbox_tool_calls_total", &[]), 5);
    assert_eq!(metrics.count("llm_sandbox_uploaded_bytes_total", &[]), 1000);
    alice.close("a").await;
    let after = Metrics::read_by(&web.caller(Some("secret-m"))).await;
    assert_eq!(after.count("llm_sandbox_caller_sessions", &[of_alice]), 0);
    assert_eq!(after.count("llm_sandbox_caller_sessions", &[of_bob]), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_operators_and_auditors_learn_the_names_of_callers_by_their_own_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    let callers = "
callers:
  - { name: ben, token: secret-ben }
  - { name: olga, token: secret-olga, role: operator }
  - { name: rita, token: secret-rita, role: auditor }
";
    std::fs::write(&file, callers).expect("written");
    let path = file.to_str().expect("UTF-8");
    for (setting, named) in [("true", true), ("false", false)] {
        let settings = [("SANDBOX_CONFIG_FILE", path), (BY_CALLER.0, setting)];
        let web = Web::start(On::Local, &settings).await;
        let ben = web.caller(Some("secret-ben"));
        ben.run(&name("named"), "1").await;
        let names = async |who| {
            let metrics = Metrics::read_by(&web.caller(Some(who))).await;
            assert_eq!(metrics.count("llm_sandbox_runs_total", &[]), 1, "{who}");
            metrics.series().iter().any(|series| series.contains("caller"))
        };
        assert!(!names("secret-ben").await, "{setting}");
        assert_eq!(names("secret-olga").await, named, "{setting}");
        assert_eq!(names("secret-rita").await, named, "{setting}");
    }
    // The settings list no caller, so there is no name to learn.
    let web = Web::start(On::Local, &[BY_CALLER]).await;
    web.caller(None).run(&name("open"), "1").await;
    let metrics = Metrics::of(&web).await;
    assert!(metrics.series().iter().all(|series| !series.contains("caller")), "{metrics:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_the_protocol_are_counted_by_method_over_either_transport() {
    const METHODS: [&str; 4] = ["initialize", "tools/list", "tools/call", "other"];
    let counts = |metrics: &Metrics| {
        METHODS.map(|method| metrics.count("llm_sandbox_mcp_requests_total", &[("method", method)]))
    };
    let (web, caller) = Web::open(On::Local, &[]).await;
    let before = Metrics::of(&web).await;
    let (message, _) = caller.modern("nobody/knows", json!({}));
    caller.post(&message, &[]).await;
    // `open` sends `initialize`.
    caller.open().await.ask("tools/list", json!({})).await;
    caller.ask("tools/list", json!({})).await;
    caller.call("list_runtimes", json!({})).await.ok();
    let (before, after) = (counts(&before), counts(&Metrics::of(&web).await));
    let more: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(more, [1, 2, 1, 1], "{METHODS:?}");

    let server = Server::start(On::Local).await;
    server.request("nobody/knows", json!({})).await;
    server.request("tools/list", json!({})).await;
    let base = server.base().await;
    let response = http("GET", &format!("{base}/metrics")).await;
    let metrics = Metrics::parse(std::str::from_utf8(&response.body).expect("UTF-8"));
    let [initialized, listed, of_tools, other] = counts(&metrics);
    assert_eq!((listed, other), (1, 1), "{metrics:?}");
    // `base` made these calls.
    assert!(of_tools > 0 && initialized < 2, "{metrics:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_http_are_counted_by_route_method_and_status() {
    let web = Web::start(On::Local, &[]).await;
    let (caller, session) = (web.caller(None), name("requests"));
    let file = format!("/files/{session}/a.txt");
    caller.send("PUT", &file, &[], b"1").await;
    caller.send("GET", &file, &[], &[]).await;
    caller.send("HEAD", &file, &[], &[]).await;
    caller.send("GET", "/files/none/b.txt", &[], &[]).await;
    caller.send("GET", "/nowhere", &[], &[]).await;
    caller.send("GET", "/health", &[("Host", "another.test")], &[]).await;
    caller.send("PATCH", "/ready", &[], &[]).await;

    let metrics = Metrics::of(&web).await;
    for (route, method, status) in [
        ("/files/{session}/{*path}", "PUT", "201"),
        ("/files/{session}/{*path}", "GET", "200"),
        ("/files/{session}/{*path}", "HEAD", "200"),
        ("/files/{session}/{*path}", "GET", "404"),
        ("other", "GET", "404"),
        ("/health", "GET", "421"),
        ("/ready", "other", "405"),
    ] {
        let labels = [("route", route), ("method", method), ("status", status)];
        assert_eq!(metrics.count("llm_sandbox_http_requests_total", &labels), 1, "{labels:?}");
    }
}

/// Sends requests in which everything that a caller can choose has the mark and is new.
async fn make_names_up(web: &Web, round: usize) {
    let caller = web.caller(None);
    for n in 0..5 {
        let word = format!("{MARK}{round}x{n}");
        let params = json!({ "name": word, "arguments": { (word.clone()): word } });
        caller.ask("tools/call", params).await;
        let (message, _) = caller.modern(&word, json!({}));
        caller.post(&message, &[]).await;
        let code = format!("import sys\nopen('{word}', 'w')\nprint('{word}')\nsys.exit({n})");
        caller.run(&word, &code).await;
        caller.call("run_python", json!({ "session_id": word, "code": 1 })).await;
        let path = format!("/files/{word}/{word}");
        caller.send("PUT", &path, &[], b"1").await;
        for target in [&*path, &format!("/{word}"), &format!("/metrics/{word}"), "/metrics"] {
            let target = format!("{target}?{word}={word}");
            caller.send("GET", &target, &[("Host", &word)], &[]).await;
            caller.send("GET", &target, &[("Origin", &format!("http://{word}"))], &[]).await;
            caller.send(&word.to_uppercase(), &target, &[], &[]).await;
        }
        let stranger = web.caller(Some(&word));
        stranger.send("GET", "/metrics", &[("traceparent", &word)], &[]).await;
        caller.close(&word).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_make_no_new_series() {
    let web = Web::start(On::Local, &[]).await;
    // Creates the series of the reader's own requests.
    Metrics::of(&web).await;
    make_names_up(&web, 0).await;
    let first = Metrics::of(&web).await;
    make_names_up(&web, 1).await;
    let second = Metrics::of(&web).await;
    // Whether each of these runs starts cold is a matter of timing.
    let fixed = |metrics: &Metrics| {
        let mut series = metrics.series();
        series.retain(|series| !series.contains("llm_sandbox_runs_total"));
        series
    };
    assert_eq!(fixed(&first), fixed(&second));
    for series in second.series() {
        assert!(!series.to_lowercase().contains(MARK), "{series}");
    }
    let unknown = [("tool", "unknown"), ("code", "invalid_argument")];
    assert_eq!(second.count("llm_sandbox_tool_calls_total", &unknown), 10);
    assert!(second.count("llm_sandbox_http_requests_total", &[("method", "other")]) >= 40);
    assert!(second.series().len() < 400, "{}", second.series().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_counted_by_what_they_do() {
    let settings = [("SANDBOX_HIBERNATE_AFTER_M", "0.01"), ("SANDBOX_MAX_SESSIONS", "7")];
    let web = Web::start(On::Local, &settings).await;
    let (caller, session) = (web.caller(None), name("states"));
    let count =
        |metrics: &Metrics, state| metrics.count("llm_sandbox_sessions", &[("state", state)]);
    assert_eq!(Metrics::of(&web).await.count("llm_sandbox_sessions", &[]), 0);
    let code =
        "import os, time\nopen('runs', 'w')\nwhile not os.path.exists('end'): time.sleep(0.01)";
    let running = caller.run(&session, code);
    let seen = async {
        until_figures("it runs", &web, |metrics| count(metrics, "running") == 1).await;
        caller.send("PUT", &format!("/files/{session}/end"), &[], b"").await;
    };
    tokio::join!(running, seen);
    until_figures("it rests", &web, |metrics| count(metrics, "resting") == 1).await;
    let metrics = Metrics::of(&web).await;
    assert_eq!(metrics.count("llm_sandbox_sessions", &[]), 1, "it is in one state");
    assert_eq!(metrics.count("llm_sandbox_sessions_limit", &[]), 7);
    caller.close(&session).await;
    assert_eq!(Metrics::of(&web).await.count("llm_sandbox_sessions", &[]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_counted_by_how_they_began_and_ended() {
    let settings = [("SANDBOX_POOL_SIZE", "1"), ("SANDBOX_SESSION_TTL_M", "0.01")];
    let (web, caller) = Web::open(On::Local, &settings).await;
    let pooled = |metrics: &Metrics| metrics.count("llm_sandbox_pooled_sandboxes", &[]);
    until_figures("the pool is full", &web, |metrics| {
        pooled(metrics) == 1
            && metrics.count("llm_sandbox_sandbox_start_duration_seconds_count", &[]) == 1
    })
    .await;
    let metrics = Metrics::of(&web).await;
    assert_eq!(metrics.count("llm_sandbox_sessions_started_total", &[]), 0, "nobody's yet");
    let run = caller.call("run_python", json!({ "code": "1" })).await.ok();
    caller.close(run["session_id"].as_str().expect("a name")).await;
    caller.run(&name("named"), "1").await;

    let began = |metrics: &Metrics, source| {
        metrics.count("llm_sandbox_sessions_started_total", &[("source", source)])
    };
    let ended = |metrics: &Metrics, reason| {
        metrics.count("llm_sandbox_sessions_ended_total", &[("reason", reason)])
    };
    until_figures("the other has expired", &web, |metrics| ended(metrics, "expired") == 1).await;
    let metrics = Metrics::of(&web).await;
    assert_eq!((began(&metrics, "pool"), began(&metrics, "demand")), (1, 1));
    assert_eq!((ended(&metrics, "closed"), ended(&metrics, "died")), (1, 0));
    until_figures("the pool is full again", &web, |metrics| pooled(metrics) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_leaves_the_pool_unused_was_no_session() {
    let web = Web::start(
        On::Local,
        &[
            ("SANDBOX_POOL_SIZE", "1"),
            ("SANDBOX_MAX_SESSIONS", "1"),
            ("SANDBOX_MAX_HIBERNATED", "0"),
        ],
    )
    .await;
    until_figures("the pool is full", &web, |metrics| {
        metrics.count("llm_sandbox_sandbox_start_duration_seconds_count", &[]) == 1
    })
    .await;
    let (caller, session) = (web.caller(None), name("room"));
    // The pooled sandbox makes room for this one.
    caller.run(&session, "1").await;
    let metrics = Metrics::of(&web).await;
    assert_eq!(metrics.count("llm_sandbox_sandbox_start_duration_seconds_count", &[]), 2);
    assert_eq!(metrics.count("llm_sandbox_pooled_sandboxes", &[]), 0);
    assert_eq!(metrics.count("llm_sandbox_sessions", &[]), 1);
    assert_eq!(metrics.count("llm_sandbox_sessions_started_total", &[]), 1);
    assert_eq!(metrics.count("llm_sandbox_sessions_ended_total", &[]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_there_is_no_place_for_are_counted() {
    let settings = [
        TOKENS,
        ("SANDBOX_MAX_SESSIONS", "3"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
        ("SANDBOX_MAX_SESSIONS_PER_CLIENT", "2"),
    ];
    let (_web, alice, bob) = Web::of_two(On::Local, &settings).await;
    for (caller, sessions) in [(&alice, ["a1", "a2", "a3"]), (&bob, ["b1", "b2", "b3"])] {
        for session in sessions {
            caller.call("run_python", json!({ "session_id": session, "code": "1" })).await;
        }
    }
    let metrics = Metrics::read_by(&alice).await;
    let refused = |limit| metrics.count("llm_sandbox_sessions_refused_total", &[("limit", limit)]);
    assert_eq!((refused("client"), refused("server")), (1, 2));
    let calls = [("code", "max_sessions")];
    assert_eq!(metrics.count("llm_sandbox_tool_calls_total", &calls), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_gives_way_is_counted_as_evicted_and_not_as_refused() {
    let settings = [
        ("SANDBOX_MAX_SESSIONS", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
        ("SANDBOX_EVICT_IDLE_M", "0.000001"),
    ];
    let (web, caller) = Web::open(On::Local, &settings).await;
    let ended = |metrics: &Metrics| {
        metrics.count("llm_sandbox_sessions_ended_total", &[("reason", "evicted")])
    };
    assert_eq!(ended(&Metrics::of(&web).await), 0);
    for _ in 0..2 {
        caller.call("run_python", json!({ "code": "1" })).await.ok();
    }
    let metrics = Metrics::of(&web).await;
    assert_eq!(ended(&metrics), 1);
    assert_eq!(metrics.count("llm_sandbox_sessions_refused_total", &[]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_and_artifacts_are_counted_both_ways() {
    let web = Web::start(On::Local, &[]).await;
    let (caller, session) = (web.caller(None), name("bytes"));
    caller.send("PUT", &format!("/files/{session}/a"), &[], &[1; 1000]).await;
    let content = STANDARD.encode([2; 300]);
    let arguments = json!({ "session_id": session, "filename": "b", "content_base64": content });
    caller.call("upload_file", arguments).await.ok();
    // Refused: it adds no bytes.
    caller.send("PUT", &format!("/files/{session}/a"), &[("If-None-Match", "*")], &[1; 50]).await;
    let code = "for n in range(120): open(f'made{n}', 'w')\nprint('12345')";
    caller.run(&session, code).await;
    let range = [("Range", "bytes=0-99")];
    assert_eq!(
        caller.send("GET", &format!("/files/{session}/a"), &range, &[]).await.body.len(),
        100
    );
    let whole = json!({ "session_id": session, "path": "b", "format": "base64" });
    caller.call("read_artifact", whole).await.ok();

    let metrics = Metrics::of(&web).await;
    assert_eq!(metrics.count("llm_sandbox_uploaded_bytes_total", &[]), 1300);
    assert_eq!(metrics.count("llm_sandbox_output_bytes_total", &[]), 6);
    assert_eq!(metrics.count("llm_sandbox_artifacts_total", &[]), 120, "not only those listed");
    assert_eq!(metrics.count("llm_sandbox_downloaded_bytes_total", &[]), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_and_its_process_are_among_the_figures() {
    let web = Web::start(On::Local, &[("SANDBOX_MEMORY_LIMIT", "500MB")]).await;
    let metrics = Metrics::of(&web).await;
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(metrics.count("llm_sandbox_build_info", &version), 1);
    assert_eq!(metrics.count("llm_sandbox_ready", &[]), 1);
    assert_eq!(metrics.count("llm_sandbox_sandbox_memory_limit_bytes", &[]), 500_000_000);
    for figure in [
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
    ] {
        assert!(metrics.has(figure), "{figure}");
    }
    let (resident, open) = ("process_resident_memory_bytes", "process_open_fds");
    assert!(
        metrics.count(resident, &[]) > 1_000_000 && metrics.count(open, &[]) >= 3,
        "{metrics:?}"
    );
    // Seconds since the epoch, which were more than this when the test was written.
    assert!(metrics.count("process_start_time_seconds", &[]) > 1_700_000_000);
}

/// The status of a request for the metrics with this token.
async fn look(web: &Web, token: Option<&str>) -> u16 {
    web.caller(token).send("GET", "/metrics", &[], &[]).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_whoever_reaches_the_server_may_read_the_figures() {
    let web = Web::start(On::Local, &[]).await;
    assert_eq!((look(&web, None).await, look(&web, Some("any")).await), (200, 200));
    let url = format!("{}/metrics", web.base);
    let head = http("HEAD", &url).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(
        (head.header("content-type"), head.header("x-content-type-options")),
        (kind, "nosniff")
    );
    assert_eq!(http("POST", &url).await.status, 405);
    // Hosts and origins are checked as at every other path.
    assert_eq!(http_with("GET", &url, &[("Host", "another.test")], &[]).await.status, 421);
    let foreign = [("Origin", "https://another.test")];
    assert_eq!(http_with("GET", &url, &foreign, &[]).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_each_of_them_opens_the_figures_and_nothing_else_does() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    assert_eq!(
        (look(&web, Some("secret-a")).await, look(&web, Some("secret-b")).await),
        (200, 200)
    );
    assert_eq!((look(&web, None).await, look(&web, Some("wrong")).await), (401, 401));
    let refused = web.caller(None).send("GET", "/metrics", &[], &[]).await;
    assert_eq!(refused.json()["error"], "unauthorized");
    assert!(refused.header("www-authenticate").starts_with("Bearer "));
    let two = [("Authorization", "Bearer secret-a")];
    assert_eq!(web.caller(Some("secret-b")).send("GET", "/metrics", &two, &[]).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_the_figures_opens_them_alone_and_alone_opens_them() {
    let token = ("SANDBOX_METRICS_TOKEN", "secret-m");
    for tokens in [&[TOKENS][..], &[]] {
        let web = Web::start(On::Local, &[tokens, &[token]].concat()).await;
        assert_eq!(look(&web, Some("secret-m")).await, 200);
        for other in [None, Some("secret-a"), Some("secret-mm")] {
            assert_eq!(look(&web, other).await, 401, "{other:?}");
        }
        let refused = web.caller(None).send("GET", "/metrics", &[], &[]).await.json();
        assert!(
            refused["message"].as_str().is_some_and(|why| why.contains("SANDBOX_METRICS_TOKEN"))
        );
        if !tokens.is_empty() {
            let scraper = web.caller(Some("secret-m"));
            for (method, target) in [("GET", "/files/a/b"), ("PUT", "/files/a/b"), ("POST", "/mcp")]
            {
                let status = scraper.send(method, target, &[], b"1").await.status;
                assert_eq!(status, 401, "{method} {target}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_the_token_for_the_figures_may_look_as_often_as_they_like() {
    let settings =
        [TOKENS, ("SANDBOX_METRICS_TOKEN", "secret-m"), ("SANDBOX_RATE_LIMIT_PER_M", "1")];
    let web = Web::start(On::Local, &settings).await;
    for _ in 0..3 {
        assert_eq!(look(&web, Some("secret-m")).await, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_token_for_the_figures_is_a_mistake_that_is_told_without_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = program(folder.path(), &[("SANDBOX_METRICS_TOKEN", "hunter2 hunter2")]);
    let (code, _, said) = support::ended(server.arg("--no-isolation")).await;
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("SANDBOX_METRICS_TOKEN") && !said.contains("hunter2"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_name_no_caller_no_session_and_no_file() {
    let web = Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", &format!("{MARK}:secret-a"))]).await;
    let caller = web.caller(Some("secret-a"));
    let session = name(MARK);
    caller
        .run(&session, &format!("open('{MARK}.txt', 'w').write('{MARK}')\nprint('{MARK}')"))
        .await;
    caller.send("GET", &format!("/files/{session}/{MARK}.txt"), &[], &[]).await;
    let response = caller.send("GET", "/metrics", &[], &[]).await;
    let text = String::from_utf8(response.body).expect("UTF-8");
    assert!(text.contains("llm_sandbox_runs_total") && !text.contains(MARK), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_have_no_memory_of_their_own_to_tell() {
    let web = Web::start(On::Local, &[("SANDBOX_POOL_SIZE", "1")]).await;
    let none = Metrics::of(&web).await;
    assert_eq!(none.count("llm_sandbox_sandbox_memory_bytes", &[]), 0);
    // The server has had an answer from a pooled sandbox about its state.
    until_figures("the pool is full", &web, |metrics| {
        metrics.count("llm_sandbox_sandbox_start_duration_seconds_count", &[]) == 1
    })
    .await;
    web.caller(None).call("run_python", json!({ "code": "1" })).await.ok();
    assert!(!Metrics::of(&web).await.has("llm_sandbox_sandbox_memory_bytes"), "not 0, but unknown");
}

async fn the_memory_of_real_sandboxes_is_told_and_goes_with_them() {
    let web = Web::start(On::Docker, &[]).await;
    let (caller, large, small) = (web.caller(None), name("large"), name("small"));
    caller.send("PUT", &format!("/files/{large}/a"), &[], &vec![7; 40_000_000]).await;
    caller.run(&small, "print(1)").await;
    let all = |metrics: &Metrics| metrics.count("llm_sandbox_sandbox_memory_bytes", &[]);
    let largest =
        |metrics: &Metrics| metrics.count("llm_sandbox_largest_sandbox_memory_bytes", &[]);
    // The figures come with the sandboxes' last signs of life.
    until_figures("both have told", &web, |metrics| {
        largest(metrics) > 40_000_000 && all(metrics) > largest(metrics) + 1_000_000
    })
    .await;
    let metrics = Metrics::of(&web).await;
    let limit = metrics.count("llm_sandbox_sandbox_memory_limit_bytes", &[]);
    assert!(largest(&metrics) <= limit && all(&metrics) <= 2 * limit, "{metrics:?}");
    assert_eq!(metrics.count("llm_sandbox_sandbox_start_duration_seconds_count", &[]), 2);
    let before = all(&metrics);
    caller.close(&large).await;
    let after = all(&Metrics::of(&web).await);
    assert!(after < before - 40_000_000, "{before} and then {after}");
    caller.close(&small).await;
    assert_eq!(all(&Metrics::of(&web).await), 0);
}

async fn a_session_that_loses_its_container_is_counted_as_dead() {
    let web = Web::start(On::Docker, &[]).await;
    let (caller, session) = (web.caller(None), name("dead"));
    caller.run(&session, "print(1)").await;
    support::docker(&["kill", &containers(&session)[0]]);
    until_figures("it has died", &web, |metrics| {
        metrics.count("llm_sandbox_sessions_ended_total", &[("reason", "died")]) == 1
    })
    .await;
    assert_eq!(Metrics::of(&web).await.count("llm_sandbox_sessions", &[]), 0);
}

async fn a_sandbox_that_cannot_be_started_is_counted_and_the_server_not_ready() {
    let (web, caller) =
        Web::open(On::Docker, &[("SANDBOX_IMAGE", "llm-sandbox:no-such-image")]).await;
    let refused: Value = caller.call("run_python", json!({ "code": "1" })).await.json;
    assert_eq!(refused["error"], "sandbox_unavailable");
    let metrics = Metrics::of(&web).await;
    assert_eq!(metrics.count("llm_sandbox_ready", &[]), 0);
    assert_eq!(metrics.count("llm_sandbox_sandbox_start_failures_total", &[]), 1);
    assert_eq!(metrics.count("llm_sandbox_sessions", &[]), 0);
    assert_eq!(metrics.count("llm_sandbox_sessions_started_total", &[]), 0);
    let calls = [("code", "sandbox_unavailable")];
    assert_eq!(metrics.count("llm_sandbox_tool_calls_total", &calls), 1);
}

async fn a_server_whose_runtime_the_engine_does_not_have_is_not_ready_and_says_which_there_are() {
    let web = Web::start(On::Docker, &[("SANDBOX_RUNTIME", "no-such-runtime")]).await;
    let answer = http("GET", &format!("{}/ready", web.base)).await;
    assert_eq!(answer.status, 503);
    let told = answer.json()["message"].as_str().expect("a text").to_owned();
    assert!(told.contains("no runtime no-such-runtime; it has: "), "{told}");
    assert!(told.contains("runc") && told.contains("SANDBOX_RUNTIME"), "{told}");
    assert_eq!(Metrics::of(&web).await.count("llm_sandbox_ready", &[]), 0);
}
