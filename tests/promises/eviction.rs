//! The limit of sessions blocks no caller: an unused session hibernates for a new one and goes on later. If it cannot
//! hibernate, an unnamed, unused session ends for a new one of the same caller. A session in use is never evicted, and
//! a refused caller is told which sessions are theirs.

use std::cell::Cell;

use futures::future::join_all;
use serde_json::{Value, json};
use support::{On, Response, Server, containers, http_begin, name, on_all, until, web::*};
use tokio::io::AsyncReadExt;

on_all! {
    at_the_limit_sessions_hibernate_and_go_on_with_their_variables,
    a_new_session_takes_the_place_of_one_that_nobody_uses,
}

/// Less than the time between any two calls, so that every unused session can be evicted.
const AT_ONCE: (&str, &str) = ("SANDBOX_EVICT_IDLE_M", "0.000001");
const ONE: (&str, &str) = ("SANDBOX_MAX_SESSIONS", "1");
const NO_REST: (&str, &str) = ("SANDBOX_MAX_HIBERNATED", "0");
const COLD: (&str, &str) = ("SANDBOX_PRELOAD", "none");

#[track_caller]
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

/// Runs code in a new session; returns its name, or the refusal.
async fn new(caller: &Caller) -> Result<String, Value> {
    let answer = caller.call("run_python", json!({ "code": "open('a', 'w')" })).await;
    if answer.raw["isError"] == true {
        assert_eq!(answer.error(), "max_sessions");
        return Err(answer.json);
    }
    Ok(text(&answer.ok()["session_id"]))
}

/// The names of the caller's sessions.
async fn names(caller: &Caller) -> Vec<String> {
    let listed = caller.send("GET", "/sessions", &[], &[]).await.json();
    let sessions = listed["sessions"].as_array().expect("a list").iter();
    sessions.map(|session| text(&session["session_id"])).collect()
}

/// Runs a cell; returns its result.
async fn cell(server: &Server, session: &str, code: &str) -> String {
    text(&server.cell(session, code).await.ok()["result"])
}

async fn at_the_limit_sessions_hibernate_and_go_on_with_their_variables(on: On) {
    let settings = [("SANDBOX_MAX_SESSIONS", "2"), ("SANDBOX_MAX_HIBERNATED", "10")];
    let server = Server::start_with(on, &settings).await;
    let ids: Vec<_> = (0..5).map(|_| name("rests")).collect();
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(cell(&server, id, &format!("x = {number}\nx")).await, number.to_string());
    }
    // Reading files needs no place, and a hibernated session can be closed.
    server.upload(&ids[0], "a", b"1").await.ok();
    server.run(&ids[1], "print(1)").await;
    server.run(&ids[2], "print(1)").await;
    assert_eq!(server.files(&ids[0]).await, [("a".to_owned(), 1)]);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(cell(&server, id, "x").await, number.to_string(), "of session {number}");
    }
    for id in &ids {
        server.call("close_session", json!({ "session_id": id })).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_names_and_closes_nothing_keeps_its_sessions_up_to_their_limit() {
    let settings = [ONE, ("SANDBOX_MAX_HIBERNATED", "2"), COLD];
    let (_web, caller) = Web::open(On::Local, &settings).await;
    let mut made = vec![];
    for _ in 0..5 {
        made.push(new(&caller).await.expect("one hibernates"));
    }
    let mut left = made.split_off(2);
    left.sort_unstable();
    assert_eq!(names(&caller).await, left, "those that were unused for longest have ended");
    let caller_ended = caller.call("list_artifacts", json!({ "session_id": made[0] })).await;
    assert_eq!(caller_ended.error(), "session_not_found");
    // Named sessions are not evicted, so there is no place.
    for id in ["one", "two", "three"] {
        let put = caller.send("PUT", &format!("/files/{id}/a"), &[], b"1").await;
        assert_eq!(put.status, 201, "{id}");
    }
    assert_eq!(names(&caller).await, ["one", "three", "two"]);
    new(&caller).await.expect_err("two hibernate, and one has the place");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_use_keeps_its_place_and_one_that_rests_waits_for_none() {
    let (_web, caller) = Web::open(On::Local, &[ONE, COLD]).await;
    let first = new(&caller).await.expect("the first");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let running = json!({ "session_id": "busy", "code": code });
    let (run, ()) = tokio::join!(caller.call("run_python", running), async {
        until("it runs", async || {
            let listed = caller.send("GET", "/sessions", &[], &[]).await.json();
            let sessions = listed["sessions"].as_array().expect("a list").clone();
            sessions.iter().any(|it| it["session_id"] == "busy" && it["state"] == "running")
        })
        .await;
        let again = json!({ "session_id": first, "code": "1" });
        assert_eq!(caller.call("run_python", again).await.error(), "max_sessions");
        let listed = caller.call("list_artifacts", json!({ "session_id": first })).await;
        assert_eq!(listed.ok()["artifacts"][0]["filename"], "a");
        let put = caller.send("PUT", "/files/busy/go", &[], b"1").await;
        assert_eq!(put.status, 201);
    });
    run.ok();
    assert_eq!(caller.run(&first, "print(open('a').read() == '')").await["stdout"], "True\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_sessions_at_once_take_no_more_places_than_there_are() {
    let settings = [("SANDBOX_MAX_SESSIONS", "2"), ("SANDBOX_MAX_HIBERNATED", "20"), COLD];
    let (_web, caller) = Web::open(On::Local, &settings).await;
    for _ in 0..3 {
        // Both calls ask the same sessions for their places.
        let (one, other) = tokio::join!(new(&caller), new(&caller));
        assert!(one.is_ok() || other.is_ok(), "{one:?} {other:?}");
    }
    let (ids, refused) = (names(&caller).await, Cell::new(0));
    assert!(ids.len() >= 4, "{ids:?}");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let runs = join_all(ids.iter().map(async |id| {
        let run = caller.call("run_python", json!({ "session_id": id, "code": code })).await;
        refused.update(|refused| refused + usize::from(run.raw["isError"] == true));
    }));
    let looking = async {
        let running = Cell::new(0);
        until("each runs or is refused", async || {
            let listed = caller.send("GET", "/sessions", &[], &[]).await.json();
            let sessions = listed["sessions"].as_array().expect("a list").iter();
            running.set(sessions.filter(|it| it["state"] == "running").count());
            running.get() + refused.get() == ids.len()
        })
        .await;
        assert_eq!(running.get(), 2);
        for id in &ids {
            caller.send("PUT", &format!("/files/{id}/go"), &[], b"1").await;
        }
    };
    tokio::join!(runs, looking);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_hibernates_for_another_caller_only_if_its_own_has_more_places() {
    let tokens = ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b");
    let web = Web::start(On::Local, &[("SANDBOX_MAX_SESSIONS", "2"), COLD, tokens]).await;
    let (alice, bob) = (web.caller(Some("secret-a")), web.caller(Some("secret-b")));
    let (first, second) = (new(&alice).await.expect("one"), new(&alice).await.expect("two"));
    let his = new(&bob).await.expect("the place of her first");
    // Now each caller has one place, and only his own session can hibernate for him: hers runs a program.
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let (run, ()) = tokio::join!(
        alice.call("run_python", json!({ "session_id": second, "code": code })),
        async {
            until("it runs", async || {
                let listed = alice.send("GET", "/sessions", &[], &[]).await.json();
                listed["sessions"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .any(|it| it["state"] == "running")
            })
            .await;
            let another = new(&bob).await.expect("his first hibernates");
            assert_ne!(another, his);
            let put = alice.send("PUT", &format!("/files/{second}/go"), &[], b"1").await;
            assert_eq!(put.status, 201);
        }
    );
    run.ok();
    for (caller, id) in [(&alice, &first), (&bob, &his), (&alice, &second)] {
        let run = json!({ "session_id": id, "code": "import os; print(os.listdir())" });
        let run = caller.call("run_python", run).await.ok();
        assert!(text(&run["stdout"]).contains("'a'"), "{run}");
    }
}

async fn a_new_session_takes_the_place_of_one_that_nobody_uses(on: On) {
    let server = Server::start_with(on, &[ONE, NO_REST, AT_ONCE]).await;
    let mut ended: Vec<String> = vec![];
    for _ in 0..3 {
        let run = server.call("run_python", json!({ "code": "print(1)" })).await.ok();
        let id = text(&run["session_id"]);
        for before in &ended {
            assert!(on != On::Docker || containers(before).is_empty(), "its container is gone");
            for tool in ["list_artifacts", "close_session"] {
                let gone = server.call(tool, json!({ "session_id": before })).await;
                assert_eq!(gone.error(), "session_not_found");
                let message = text(&gone.json["message"]);
                assert!(message.contains("was closed to make room"), "{message}");
            }
        }
        ended.push(id);
    }
    // An unnamed session is also evicted for a named one, which then is not evicted itself.
    let kept = name("kept");
    server.upload(&kept, "a", b"1").await.ok();
    let refused = server.call("run_python", json!({ "code": "1" })).await;
    assert_eq!(refused.error(), "max_sessions");
    assert_eq!(refused.json["sessions"][0]["session_id"], kept);
    assert_eq!(server.files(&kept).await, [("a".to_owned(), 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_names_and_closes_none_of_its_sessions_does_not_run_dry() {
    // Twelve seconds: longer than ten starts take, so that no session is evicted before there are ten.
    let (_web, caller) =
        Web::open(On::Local, &[("SANDBOX_EVICT_IDLE_M", "0.2"), NO_REST, COLD]).await;
    let mut made = vec![];
    {
        let conversation = caller.open().await;
        for _ in 0..10 {
            let run = conversation.call("run_python", json!({ "code": "1" })).await.ok();
            made.push(text(&run["session_id"]));
        }
        let headers = [("Mcp-Session-Id", &*conversation.id), ("MCP-Protocol-Version", LEGACY)];
        caller.send("DELETE", "/mcp", &headers, &[]).await;
    }
    let next = caller.open().await;
    until("the eleventh has a place", async || {
        let answer = next.call("run_python", json!({ "code": "1" })).await;
        answer.raw["isError"] == false
    })
    .await;
    let left = names(&caller).await;
    assert_eq!(left.len(), 10);
    assert!(!left.contains(&made[0]), "the one that was unused for longest");
    assert!(made[2..].iter().all(|id| left.contains(id)), "and no more than needed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_runs_a_program_never_gives_way() {
    let (_web, caller) = Web::open(On::Local, &[ONE, NO_REST, AT_ONCE, COLD]).await;
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let (run, ()) = tokio::join!(caller.call("run_python", json!({ "code": code })), async {
        let state = async || {
            let listed = caller.send("GET", "/sessions", &[], &[]).await.json();
            listed["sessions"][0]["state"].clone()
        };
        until("it runs", async || state().await == "running").await;
        let refused = new(&caller).await.expect_err("there is no place");
        let [session] = &refused["sessions"].as_array().expect("a list")[..] else { panic!("one") };
        assert_eq!((&session["state"], &session["idle_s"]), (&json!("running"), &json!(0)));
        let id = text(&session["session_id"]);
        let message = text(&refused["message"]);
        assert!(message.contains(&format!("{id} (running)")), "{message}");
        assert!(message.contains("Close an existing session first"), "{message}");
        let put = caller.send("PUT", &format!("/files/{id}/go"), &[], b"1").await;
        assert_eq!(put.status, 201);
    });
    let first = text(&run.ok()["session_id"]);
    let second = new(&caller).await.expect("the first is idle now");
    assert_ne!(first, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_file_is_being_downloaded_never_gives_way() {
    let (_web, caller) = Web::open(On::Local, &[ONE, NO_REST, AT_ONCE, COLD]).await;
    let code = "open('large', 'wb').write(bytes(50_000_000))";
    let run = caller.call("run_python", json!({ "code": code })).await.ok();
    let url = text(&run["artifacts"][0]["download_url"]);
    let mut download = http_begin("GET", &url, &[], b"").await;
    let mut head = [0; 12];
    download.read_exact(&mut head).await.expect("received");
    assert_eq!(&head, b"HTTP/1.1 200");
    let refused = new(&caller).await.expect_err("there is no place");
    assert_eq!(refused["sessions"][0]["state"], "in_use", "{refused}");
    let mut all = vec![];
    download.read_to_end(&mut all).await.expect("received");
    assert!(Response::parse(&[&head[..], &all].concat()).body.len() == 50_000_000, "it is whole");
    until("it gives way", async || new(&caller).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_gives_way_to_others_of_its_caller_only() {
    let tokens = ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b");
    let web = Web::start(On::Local, &[ONE, NO_REST, AT_ONCE, COLD, tokens]).await;
    let (alice, bob) = (web.caller(Some("secret-a")), web.caller(Some("secret-b")));
    let hers = new(&alice).await.expect("her first");
    let refused = new(&bob).await.expect_err("there is no place");
    assert_eq!(refused["sessions"], json!([]), "nothing of hers is told");
    assert!(!refused.to_string().contains(&hers), "{refused}");
    assert_eq!(names(&alice).await, std::slice::from_ref(&hers));
    assert_ne!(new(&alice).await.expect("her second"), hers);
}

/// Tests eviction at the limit of one client.
async fn at_the_clients_own_limit_its_own_session_gives_way(pool: &str) {
    let settings = [
        ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b"),
        ("SANDBOX_MAX_SESSIONS_PER_CLIENT", "2"),
        ("SANDBOX_POOL_SIZE", pool),
        NO_REST,
        AT_ONCE,
        COLD,
    ];
    let (_web, alice, bob) = Web::of_two(On::Local, &settings).await;
    let his = new(&bob).await.expect("his first");
    let (first, second) = (new(&alice).await.expect("one"), new(&alice).await.expect("two"));
    let third = new(&alice).await.expect("in the place of the first");
    let mut left = vec![second, third];
    left.sort_unstable();
    assert_eq!(names(&alice).await, left, "{first} was unused for longest");
    assert_eq!(names(&bob).await, [his]);
}

support::tests! {
    at_the_clients_own_limit_its_own_session_gives_way_without_a_pool =>
        at_the_clients_own_limit_its_own_session_gives_way("0");
    at_the_clients_own_limit_its_own_session_gives_way_with_a_pool =>
        at_the_clients_own_limit_its_own_session_gives_way("1");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_gives_way_before_its_time_or_where_the_settings_say_never() {
    for settings in
        [&[ONE, NO_REST, COLD][..], &[ONE, NO_REST, COLD, ("SANDBOX_EVICT_IDLE_M", "0")]]
    {
        let (_web, caller) = Web::open(On::Local, settings).await;
        let first = new(&caller).await.expect("one");
        let refused = new(&caller).await.expect_err("there is no place");
        assert_eq!(refused["sessions"][0]["session_id"], first);
        assert_eq!(refused["sessions"][0]["state"], "idle");
        assert_eq!(names(&caller).await, [first]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_new_sessions_at_once_are_served_or_refused_and_never_too_many() {
    let (_web, caller) =
        Web::open(On::Local, &[("SANDBOX_MAX_SESSIONS", "3"), NO_REST, AT_ONCE, COLD]).await;
    let mut served = 0;
    for _ in 0..4 {
        let all = (0..6).map(|_| new(&caller));
        let all = futures::future::join_all(all).await;
        served += all.iter().filter(|made| made.is_ok()).count();
        assert!(names(&caller).await.len() <= 3);
    }
    assert!(served >= 12, "each round has at least three: {served}");
    new(&caller).await.expect("no place was lost");
}
