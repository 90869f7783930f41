//! The sessions of all callers, as an operator lists and ends them, and the resources that each session uses.

use std::fs;

use serde_json::{Value, json};
use support::{On, Server, key_in, name, on_all, program, text, until, web::*};

on_all! {
    a_session_reports_the_resources_that_it_has_used,
}

const TEAM: (&str, &str) = ("SANDBOX_AUTH_TOKENS", "ann:secret-ann,ben:secret-ben");

/// A server with an operator, olga, besides ann and ben.
struct Operated {
    web: Web,
    folder: tempfile::TempDir,
}

impl Operated {
    async fn start(on: On, more: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { web: operated(on, &folder, more).await, folder }
    }

    fn caller(&self, who: &str) -> Caller {
        self.web.caller(Some(&format!("secret-{who}")))
    }

    /// The sessions of all callers.
    async fn all(&self) -> Vec<Value> {
        let listed = self.caller("olga").send("GET", "/sessions?all", &[], &[]).await.json();
        listed["sessions"].as_array().expect("a list").clone()
    }

    /// The session of this name among those of all callers.
    async fn session(&self, id: &str) -> Option<Value> {
        self.all().await.into_iter().find(|listed| listed["session_id"] == id)
    }
}

/// Starts a server whose settings file is in this folder.
async fn operated(on: On, folder: &tempfile::TempDir, more: &[(&str, &str)]) -> Web {
    let file = folder.path().join("config.yaml");
    fs::write(&file, "callers: [{ name: olga, token: secret-olga, role: operator }]")
        .expect("written");
    let file = file.to_str().expect("UTF-8");
    let settings = [("SANDBOX_CONFIG_FILE", file), ("SANDBOX_PRELOAD", "none"), TEAM];
    Web::start(on, &[&settings, more].concat()).await
}

async fn a_session_reports_the_resources_that_it_has_used(on: On) {
    let server = Server::start(on).await;
    let used = async |session: &str, code: &str| {
        server.cell(session, code).await.ok();
        let found = server.call("get_workspace_info", json!({ "session_id": session })).await.ok();
        found["resources"].clone()
    };
    let session = name("uses");
    let figure = |used: &Value, name: &str| used[name].as_f64();
    let cpu = |used: &Value| figure(used, "cpu_seconds").expect("known on every engine");
    let before = used(&session, "1").await;
    let after = used(&session, "for i in range(5_000_000): pass").await;
    // No processor runs five million steps of Python in less.
    assert!(cpu(&after) >= cpu(&before) + 0.03, "{before} {after}");
    for limit in ["memory_limit_bytes", "disk_limit_bytes"] {
        assert!(figure(&after, limit).expect("known") > 1e6, "{after}");
    }
    // The kernel counts memory and files of the whole machine for plain processes.
    if on.is_plain() {
        assert_eq!(after.get("memory_bytes"), None, "{after}");
        return;
    }
    let more = "x = b'1' * 40_000_000\nopen('f', 'wb').write(bytes(3_000_000))";
    let before = after;
    let after = used(&session, more).await;
    let grown =
        |name: &str| figure(&after, name).unwrap_or(0.0) - figure(&before, name).unwrap_or(0.0);
    assert!(grown("memory_bytes") > 39e6, "{before} {after}");
    assert!(grown("disk_bytes") >= 3e6, "{before} {after}");
    assert!(figure(&after, "memory_peak_bytes") >= figure(&after, "memory_bytes"), "{after}");
    let last = used(&session, "del x").await;
    assert!(figure(&last, "memory_peak_bytes") >= figure(&after, "memory_bytes"), "{last}");
    assert!(cpu(&last) >= cpu(&after), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lists_and_ends_sessions_of_all_and_reads_nothing_in_them() {
    let server = Operated::start(On::Local, &[]).await;
    let (ben, olga) = (server.caller("ben"), server.caller("olga"));
    let session = name("bens");
    let run = json!({ "code": "open('secret.csv', 'w').write('42')", "session_id": session });
    ben.call("run_python", run).await.ok();
    let listed = olga.send("GET", "/sessions?all", &[], &[]).await;
    assert!(!String::from_utf8_lossy(&listed.body).contains("secret"), "no code and no files");
    let found = server.session(&session).await.expect("listed");
    let fields = json!({
        "caller": "ben", "client": "tests 1", "engine": "local", "state": "idle", "runs": 1, "last_outcome": "ok",
    });
    support::check_fields(&found, fields);
    for field in ["created_at", "used_at", "expires_at"] {
        let _: jiff::Timestamp = text(&found[field]).parse().expect("a time");
    }
    assert!(found["cpu_seconds"].as_f64().expect("a figure") > 0.0, "{found}");
    for path in [format!("/files/{session}/secret.csv"), format!("/sessions/{session}")] {
        assert_eq!(olga.send("GET", &path, &[], &[]).await.status, 404, "{path}");
    }
    let (own, hers) = (format!("/sessions/{session}"), format!("/sessions/{session}?caller=ben"));
    assert_eq!(olga.send("DELETE", &own, &[], &[]).await.status, 404);
    let of_nobody = format!("/sessions/{session}?all");
    assert_eq!(olga.send("DELETE", &of_nobody, &[], &[]).await.status, 400);
    assert_eq!(ben.send("DELETE", &hers, &[], &[]).await.status, 403);
    assert_eq!(olga.send("DELETE", &hers, &[], &[]).await.status, 204);
    assert_eq!(olga.send("DELETE", &hers, &[], &[]).await.status, 404);
    assert_eq!(server.session(&session).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_learn_whether_they_may_list_the_sessions_of_all() {
    let server = Operated::start(On::Local, &[]).await;
    for (who, may) in [("olga", true), ("ben", false)] {
        let own = server.caller(who).send("GET", "/sessions", &[], &[]).await.json();
        assert_eq!(own["can_list_all"], may, "{who}");
    }
    let (_web, anybody) = Web::open(On::Local, &[]).await;
    let own = anybody.send("GET", "/sessions", &[], &[]).await.json();
    assert_eq!(own["can_list_all"], true, "without tokens there is one caller");
    assert_eq!(anybody.send("GET", "/sessions?all", &[], &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn listing_a_session_that_hibernates_does_not_wake_it() {
    let one = [("SANDBOX_MAX_SESSIONS", "1"), ("SANDBOX_MAX_HIBERNATED", "5")];
    let server = Operated::start(On::Local, &one).await;
    let (ann, rests) = (server.caller("ann"), name("rests"));
    for session in [&rests, &name("next")] {
        ann.call("execute_code", json!({ "session_id": session, "code": "1" })).await.ok();
    }
    for _ in 0..2 {
        assert_eq!(server.session(&rests).await.expect("listed")["state"], "resting");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lists_and_ends_archived_sessions() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("archive").display().to_string();
    let key = key_in(folder.path());
    let settings = [
        ("SANDBOX_ARCHIVE", &*archive),
        ("SANDBOX_KEY_FILE", &*key),
        ("SANDBOX_SESSION_TTL_M", "0.02"),
    ];
    let server = Operated::start(On::Local, &settings).await;
    let session = name("archived");
    let file = format!("/files/{session}/a");
    assert_eq!(server.caller("ben").send("PUT", &file, &[], b"12345").await.status, 201);
    until("it is archived", async || {
        server.session(&session).await.is_some_and(|it| it["state"] == "archived")
    })
    .await;
    let found = server.session(&session).await.expect("listed");
    support::check_fields(&found, json!({ "caller": "ben", "disk_bytes": 5 }));
    let path = format!("/sessions/{session}?caller=ben");
    assert_eq!(server.caller("olga").send("DELETE", &path, &[], &[]).await.status, 204);
    assert_eq!(server.session(&session).await, None);
}

mod of_an_earlier_server {
    use super::*;

    mod wasm {
        use super::*;

        #[tokio::test(flavor = "multi_thread")]
        async fn an_operator_lists_and_ends_sessions_that_an_earlier_server_saved() {
            let folder = tempfile::tempdir().expect("a folder");
            let state = folder.path().join("state").display().to_string();
            let settings = [("SANDBOX_STATE_DIR", state.as_str())];
            let mut first = operated(On::Wasm, &folder, &settings).await;
            let (kept, ended) = (name("kept"), name("ended"));
            for session in [&kept, &ended] {
                let cell = json!({ "session_id": session, "code": "x = 1" });
                first.caller(Some("secret-ben")).call("execute_code", cell).await.ok();
            }
            first.signal("TERM");
            first.exit_code().await;
            let server = Operated { web: operated(On::Wasm, &folder, &settings).await, folder };
            for _ in 0..2 {
                let found = server.session(&kept).await.expect("listed, and not woken");
                support::check_fields(&found, json!({ "caller": "ben", "state": "asleep" }));
            }
            let path = format!("/sessions/{ended}?caller=ben");
            assert_eq!(server.caller("olga").send("DELETE", &path, &[], &[]).await.status, 204);
            assert_eq!(server.session(&ended).await, None);
            let cell = json!({ "session_id": kept, "code": "x" });
            assert_eq!(server.caller("ben").call("execute_code", cell).await.ok()["result"], "1");
            assert_eq!(server.session(&kept).await.expect("listed")["state"], "idle");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lists_and_ends_sessions_on_a_terminal() {
    let server = Operated::start(On::Local, &[]).await;
    let session = name("bens");
    let run = json!({ "code": "print(1)", "session_id": session });
    server.caller("ben").call("run_python", run).await.ok();
    let token = server.folder.path().join("token");
    fs::write(&token, "secret-olga\n").expect("written");
    let (_, port) = server.web.base.rsplit_once(':').expect("a port");
    let command = async |arguments: &[&str], token: &str| {
        let settings = [("SANDBOX_HTTP_PORT", port), ("LLM_SANDBOX_TOKEN", token)];
        let mut command = program(server.folder.path(), &settings);
        support::ended(command.arg("sessions").args(arguments)).await
    };
    let (code, out, _) = command(&["list"], "secret-olga").await;
    assert_eq!(code, Some(0));
    let mut lines = out.lines();
    assert!(lines.next().expect("a head").starts_with("CALLER  SESSION"), "{out}");
    let line = out.lines().find(|line| line.contains(&session)).expect("listed");
    for cell in ["ben ", " tests 1 ", " idle ", "s ago ", " 1, last ok"] {
        assert!(line.contains(cell), "{cell:?} in {line:?}");
    }
    let path = token.to_str().expect("UTF-8");
    let (_, out, _) = command(&["list", "--json", "--token-file", path], "").await;
    let listed: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(listed["sessions"][0]["caller"], "ben");
    let (code, _, err) = command(&["list"], "secret-ben").await;
    assert_eq!((code, err.contains("role user")), (Some(1), true), "{err}");
    let (code, _, err) = command(&["list"], "wrong").await;
    assert_eq!((code, err.contains("LLM_SANDBOX_TOKEN")), (Some(1), true), "{err}");
    let (code, ..) = command(&["end", "ben", &session], "secret-olga").await;
    assert_eq!((code, server.session(&session).await), (Some(0), None));
    let (code, _, err) = command(&["end", "ben", &session], "secret-olga").await;
    assert_eq!((code, err.contains("no such session")), (Some(1), true), "{err}");
}
