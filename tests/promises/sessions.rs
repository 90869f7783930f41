//! Sessions: how they are named, found, counted, closed and forgotten, and how they end with their server.

use serde_json::{Value, json};
use support::{
    On, Server, assert_fields, free_port, http, http_with, name, on_all, text, until,
    until_sessions, until_uploaded,
};
use tokio::join;

on_all! {
    a_session_goes_by_the_name_that_its_caller_gave,
    a_session_that_the_server_named_never_begins_anew,
    files_and_sessions_are_for_those_who_were_given_their_urls,
    a_call_without_a_session_makes_one,
    two_first_calls_of_one_name_share_one_session,
    there_are_never_more_sessions_than_allowed,
    a_closed_session_is_gone_with_its_urls,
    closing_a_session_cancels_its_run,
    an_unused_session_expires_but_never_during_a_run,
    a_cancelled_first_call_leaves_no_session,
    the_end_of_input_ends_the_server_during_a_run,
    signals_end_the_server_during_a_run,
}

async fn a_session_goes_by_the_name_that_its_caller_gave(on: On) {
    let (server, id) = (Server::start(on).await, name("named"));
    for (tool, arguments) in [
        ("list_artifacts", json!({ "session_id": id })),
        ("read_artifact", json!({ "session_id": id, "path": "a" })),
        ("read_output", json!({ "session_id": id, "run_id": "run_20250101T000000Z_0000" })),
        ("close_session", json!({ "session_id": id })),
    ] {
        let refused = server.call(tool, arguments).await;
        assert_eq!(refused.error(), "session_not_found", "{tool}");
        let message = text(&refused.json["message"]);
        assert!(message.starts_with(&format!("No active session with id {id}. ")), "{message}");
    }
    // The message for a session that never existed, or belongs to another caller, is the same.
    let never = "sess_0123456789ab";
    for tool in ["get_workspace_info", "list_artifacts", "reset_workspace", "execute_code"] {
        let code = if tool == "execute_code" { json!("1") } else { Value::Null };
        let mut arguments = json!({ "session_id": never, "code": code });
        arguments.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        let message = server.call(tool, arguments).await.json["message"].clone();
        let message = text(&message);
        let known = "No active session with id sess_0123456789ab. If there was one, it has ended";
        assert!(message.starts_with(known), "{tool}: {message}");
    }
    let first = server.upload(&id, "a", b"1").await.ok();
    assert_eq!(first["new_session"], true, "whoever names a session may think it is there already");
    let next = server.run(&id, "print(open('a').read())").await;
    assert_eq!((&next["stdout"], next.get("new_session")), (&json!("1\n"), None));
    let run = server.run(&name("named"), "1").await;
    assert_eq!(run["new_session"], true);
    let asked = json!({ "session_id": name("named"), "filename": "a" });
    assert_eq!(server.call("upload_file", asked).await.ok()["new_session"], true);
}

async fn a_session_that_the_server_named_never_begins_anew(on: On) {
    let server = Server::start(on).await;
    let first = server.call("run_python", json!({ "code": "open('a', 'w')" })).await.ok();
    assert_eq!(first.get("new_session"), None, "that goes without saying");
    let ended = text(&first["session_id"]);
    server.call("close_session", json!({ "session_id": ended })).await.ok();
    for id in [ended, "sess_0123456789ab"] {
        for (tool, arguments) in [
            ("run_python", json!({ "session_id": id, "code": "1" })),
            ("upload_file", json!({ "session_id": id, "filename": "b", "text": "1" })),
            ("upload_file", json!({ "session_id": id, "filename": "b" })),
            ("list_artifacts", json!({ "session_id": id })),
            ("close_session", json!({ "session_id": id })),
        ] {
            let refused = server.call(tool, arguments).await;
            assert_eq!(refused.error(), "session_not_found", "{tool} {id}");
            let message = text(&refused.json["message"]);
            assert!(message.contains("Leave session_id out"), "{message}");
        }
    }
    // A name that only resembles a generated one is a name like any other.
    for own in ["sess_0123456789AB", "sess_1", "sess_0123456789abc"] {
        assert_eq!(server.run(own, "print(1)").await["stdout"], "1\n", "{own}");
    }
}

async fn files_and_sessions_are_for_those_who_were_given_their_urls(on: On) {
    let port = free_port();
    let server = Server::start_with(on, &[("SANDBOX_HTTP_PORT", &*port)]).await;
    let (id, base) = (name("told"), format!("http://127.0.0.1:{port}"));
    let run = server.run(&id, "open('a.txt', 'w').write('private')").await;
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let asked = json!({ "session_id": id, "filename": "b.txt" });
    let asked = server.call("upload_file", asked).await.ok();
    let (file, page) = (text(&run["artifacts"][0]["download_url"]), text(&listed["page_url"]));
    let (all, upload) = (text(&listed["download_all_url"]), text(&asked["upload_url"]));
    assert_eq!(http("GET", file).await.body, b"private");
    assert_eq!(&http("GET", all).await.body[..2], b"PK");
    let shown = http("GET", page).await;
    assert_eq!(shown.status, 200, "{}", String::from_utf8_lossy(&shown.body));
    let listed_url = shown.json()["artifacts"][0]["download_url"].clone();
    assert_eq!(http("GET", text(&listed_url)).await.body, b"private");
    let (_, signature) = page.split_once('?').expect("it is signed");
    let look = http("GET", &format!("{base}/sessions/{id}?{signature}")).await;
    assert_eq!(look.json()["artifacts"][0]["filename"], "a.txt");
    assert_eq!(http_with("PUT", upload, &[], b"from outside").await.status, 201);
    // A client that is configured for a server with tokens may send its own token everywhere.
    let token = [("Authorization", "Bearer of-another-server")];
    assert_eq!(http_with("GET", file, &token, &[]).await.status, 200);

    let unsigned = |url: &str| url.split('?').next().expect("a path").to_owned();
    for (method, url) in [
        ("GET", unsigned(file)),
        ("HEAD", unsigned(file)),
        ("GET", unsigned(page)),
        ("GET", format!("{}?format=zip", unsigned(page))),
        ("PUT", unsigned(upload)),
        ("PUT", format!("{base}/files/{}/sitecustomize.py", name("new"))),
        ("POST", unsigned(upload)),
        ("POST", format!("{base}/files")),
        ("GET", format!("{base}/sessions")),
        ("GET", format!("{base}/sessions?{signature}")),
        ("GET", format!("{base}/sessions/{id}")),
        ("DELETE", format!("{base}/sessions/{id}")),
        ("GET", format!("{base}/files/no%20session/a")),
    ] {
        for headers in [&[][..], &token] {
            let body: &[u8] = if matches!(method, "PUT" | "POST") { b"theirs" } else { b"" };
            let refused = http_with(method, &url, headers, body).await;
            assert_eq!(refused.status, 401, "{method} {url}");
            if method != "HEAD" {
                let refused = refused.json();
                assert_fields!(refused, { "error": "unauthorized", "needs": "url" });
                assert!(text(&refused["message"]).contains("page_url"), "{refused}");
            }
        }
    }
    let names: Vec<_> = server.files(&id).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a.txt", "b.txt"]);
    for open in ["health", "ready", "metrics"] {
        assert_eq!(http("GET", &format!("{base}/{open}")).await.status, 200, "{open}");
    }
    // The page itself can be loaded without a signature: it contains no data.
    let browser = [("Accept", "text/html")];
    assert_eq!(http_with("GET", &unsigned(page), &browser, &[]).await.status, 200);
    let closed = http("DELETE", &format!("{base}/sessions/{id}?{signature}")).await;
    assert_eq!(closed.status, 204, "whoever has the page can end its session");
    let gone = server.call("list_artifacts", json!({ "session_id": id })).await;
    assert_eq!(gone.error(), "session_not_found");
}

async fn a_call_without_a_session_makes_one(on: On) {
    let server = Server::start(on).await;
    let first = server.call("run_python", json!({ "code": "open('a', 'w')" })).await.ok();
    let second =
        server.call("run_python", json!({ "code": "import os; print(os.listdir())" })).await;
    let second = second.ok();
    assert_ne!(first["session_id"], second["session_id"]);
    assert_eq!(second["stdout"], "[]\n");
    let arguments = json!({ "filename": "b", "content_base64": "" });
    let third = server.call("upload_file", arguments).await.ok();
    assert!(text(&third["session_id"]).starts_with("sess_"));
}

async fn two_first_calls_of_one_name_share_one_session(on: On) {
    let (server, id) = (Server::start(on).await, name("shared"));
    let (a, b) = join!(server.upload(&id, "a", b"1"), server.upload(&id, "b", b"2"));
    a.ok();
    b.ok();
    assert_eq!(server.files(&id).await, [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    assert!(on != On::Docker || support::containers(&id).len() == 1);
}

async fn there_are_never_more_sessions_than_allowed(on: On) {
    let server =
        Server::start_with(on, &[("SANDBOX_MAX_SESSIONS", "2"), ("SANDBOX_MAX_HIBERNATED", "0")])
            .await;
    let ids: Vec<_> = (0..6).map(|_| name("max")).collect();
    let calls = ids.iter().map(|id| server.upload(id, "a", b""));
    let answers = futures::future::join_all(calls).await;
    let (open, refused): (Vec<_>, Vec<_>) =
        ids.iter().zip(answers).partition(|(_, answer)| answer.raw["isError"] == false);
    assert_eq!((open.len(), refused.len()), (2, 4));
    for (_, answer) in refused {
        assert_eq!(answer.error(), "max_sessions");
        let message = text(&answer.json["message"]);
        let said = "Maximum 2 concurrent sessions reached. Close an existing session first";
        assert!(message.starts_with(said), "{message}");
        let named: Vec<_> = open.iter().map(|(id, _)| id.as_str()).collect();
        let listed = answer.json["sessions"].as_array().expect("a list");
        for session in listed {
            let id = text(&session["session_id"]);
            assert!(named.contains(&id) && message.contains(&format!("{id} (")), "{message}");
            assert!(session["idle_s"].is_u64() && session["state"].is_string(), "{session}");
        }
        assert_eq!(listed.len(), 2, "{}", answer.json);
    }
    server.call("close_session", json!({ "session_id": open[0].0 })).await.ok();
    server.upload(&name("max"), "a", b"").await.ok();
}

async fn a_closed_session_is_gone_with_its_urls(on: On) {
    let (server, id) = (Server::start(on).await, name("closed"));
    server.upload(&id, "a.txt", b"1").await.ok();
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let url = text(&listed["artifacts"][0]["download_url"]).to_owned();
    assert_eq!(http("GET", &url).await.body, b"1");
    let closed = server.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(closed, json!({ "session_id": id, "status": "closed" }));
    assert!(on != On::Docker || support::containers(&id).is_empty());
    let gone = http("GET", &url).await;
    assert_eq!(gone.status, 404);
    assert_eq!(gone.json()["error"], "not_found");
    assert!(
        text(&gone.json()["message"]).starts_with("The session has ended and its files are gone.")
    );
    let refused = server.call("list_artifacts", json!({ "session_id": id })).await;
    assert_eq!(refused.error(), "session_not_found");
    // The name is free again, and no file of the old session exists.
    assert_eq!(server.run(&id, "import os; print(os.listdir())").await["stdout"], "[]\n");
}

async fn closing_a_session_cancels_its_run(on: On) {
    let (server, id) = (Server::start(on).await, name("close-run"));
    let code = format!("print('begun')\nopen('started', 'w')\n{}", until_uploaded("never"));
    let close = async {
        until("it runs", async || !server.files_if_any(&id).await.is_empty()).await;
        server.call("close_session", json!({ "session_id": id })).await.ok();
    };
    let (run, ()) = join!(server.run(&id, &code), close);
    assert_eq!((&run["outcome"], &run["stdout"]), (&json!("cancelled"), &json!("begun\n")));
}

async fn an_unused_session_expires_but_never_during_a_run(on: On) {
    let port = free_port();
    let settings = [("SANDBOX_SESSION_TTL_M", "0.01"), ("SANDBOX_HTTP_PORT", &*port)];
    let (server, id) = (Server::start_with(on, &settings).await, name("idle"));
    // Three times the time to live.
    let run = server.run(&id, "import time; time.sleep(1.8); print('still here')").await;
    assert_eq!(run["stdout"], "still here\n");
    until_sessions(&port, 0).await;
    let gone = async || on != On::Docker || support::containers(&id).is_empty();
    until("its container is gone", gone).await;
    let refused = server.call("list_artifacts", json!({ "session_id": id })).await;
    assert_eq!(refused.error(), "session_not_found");
}

async fn a_cancelled_first_call_leaves_no_session(on: On) {
    let port = free_port();
    let server = Server::start_with(on, &[("SANDBOX_HTTP_PORT", &*port)]).await;
    let (request, _answer) = server.begin("run_python", json!({ "code": until_uploaded("never") }));
    until_sessions(&port, 1).await;
    server.cancel(request);
    until_sessions(&port, 0).await;
}

async fn the_end_of_input_ends_the_server_during_a_run(on: On) {
    ends_cleanly(on, Server::close_input).await;
}

async fn signals_end_the_server_during_a_run(on: On) {
    ends_cleanly(on, |server| server.signal("TERM")).await;
    ends_cleanly(on, |server| server.signal("INT")).await;
}

async fn ends_cleanly(on: On, how: impl FnOnce(&mut Server)) {
    let (mut server, id) = (Server::start(on).await, name("end"));
    let idle = name("end-idle");
    server.upload(&idle, "a", b"").await.ok();
    let code = format!("open('started', 'w')\n{}", until_uploaded("never"));
    server.begin("run_python", json!({ "session_id": id, "code": code }));
    until("it runs", async || !server.files_if_any(&id).await.is_empty()).await;
    how(&mut server);
    assert_eq!(server.exit_code().await, Some(0));
    if on == On::Docker {
        assert_eq!(support::containers(&id), Vec::<String>::new());
        assert_eq!(support::containers(&idle), Vec::<String>::new());
    }
}
