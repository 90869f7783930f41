//! The page for people, and its data: sessions, their runs and their files as JSON, with changes as they happen. Its
//! look and behaviour in a browser are tested in `tests/browser`.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{On, PATIENCE, Response, http, http_begin, http_with, name, web::*};
use tokio::{
    io::AsyncReadExt,
    time::{sleep, timeout},
};

/// The `Accept` header of a browser.
const BROWSER: (&str, &str) =
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8");

/// Code that makes a picture and a table without a library.
const MAKE: &str = "import base64\n\
    open('chart.png', 'wb').write(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ\
    AAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=='))\n\
    open('table.csv', 'w').write('a,b\\n1,2\\n')\n\
    print('made')\n";

async fn sessions(caller: &Caller) -> Vec<Value> {
    let response = caller.send("GET", "/sessions", &[], &[]).await;
    assert_eq!(response.status, 200);
    response.json()["sessions"].as_array().expect("a list").clone()
}

async fn session(caller: &Caller, session: &str) -> Value {
    let response = caller.send("GET", &format!("/sessions/{session}"), &[], &[]).await;
    assert_eq!(response.status, 200, "{}", response.json());
    response.json()
}

/// Waits up to `seconds` for an answer that is newer than this one.
async fn newer(caller: &Caller, target: &str, than: &Response, seconds: u32) -> Response {
    let wait = format!("wait={seconds}");
    let headers = [("If-None-Match", than.header("etag")), ("Prefer", &wait)];
    timeout(PATIENCE, caller.send("GET", target, &headers, &[])).await.expect("in time")
}

fn path_of(url: &str) -> &str {
    &url[url.find("/files/").expect("a file's address")..]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_gets_a_page_and_a_script_the_files() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("page");
    caller.run(&id, MAKE).await;
    let all = format!("/files/{id}/");
    for target in ["/", &all, &format!("/files/{id}")] {
        let page = caller.send("GET", target, &[BROWSER], &[]).await;
        assert_eq!(page.status, 200);
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8", "{target}");
        assert_eq!(page.header("vary"), "Accept", "{target}");
    }
    for accept in ["*/*", "application/json"] {
        let list = caller.send("GET", &all, &[("Accept", accept)], &[]).await;
        assert_eq!(list.json()["artifacts"].as_array().map(Vec::len), Some(2), "{accept}");
        assert_eq!(list.header("vary"), "Accept");
    }
    let zip = caller.send("GET", &format!("{all}?format=zip"), &[BROWSER], &[]).await;
    assert_eq!(zip.header("content-type"), "application/zip");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_the_same_for_everybody_and_loads_nothing_but_itself() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let page = web.caller(None).send("GET", "/", &[BROWSER], &[]).await;
    assert_eq!(page.status, 200, "whoever comes without a token is asked for it by the page");
    let another = web.caller(Some("secret-a")).send("GET", "/files/x/", &[BROWSER], &[]).await;
    assert_eq!(page.body, another.body);
    let text = String::from_utf8(page.body.clone()).expect("text");
    let policy = page.header("content-security-policy");
    for element in ["script", "style"] {
        let (_, rest) = text.split_once(&format!("<{element}>")).expect("there is one");
        let (inside, after) = rest.split_once(&format!("</{element}>")).expect("it ends");
        let hash = BASE64_STANDARD.encode(Sha256::digest(inside));
        assert!(policy.contains(&format!("{element}-src 'sha256-{hash}';")), "{policy}");
        assert!(!after.contains(&format!("<{element}")), "a second {element}");
    }
    for rule in ["default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    for allowed in ["unsafe", "*", "http:", "https:"] {
        assert!(!policy.contains(allowed), "{policy}");
    }
    assert!(!text.contains("src=\"") && !text.contains("@import") && !text.contains("url("));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frame_of_html_files_has_no_origin_no_network_and_no_way_out() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let frame = web.caller(None).send("GET", "/page/frame", &[BROWSER], &[]).await;
    assert_eq!((frame.status, frame.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = frame.header("content-security-policy");
    let rules: Vec<_> = policy.split(';').map(str::trim).collect();
    for rule in [
        "sandbox allow-scripts",
        "default-src 'none'",
        "connect-src 'none'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'self'",
    ] {
        assert!(rules.contains(&rule), "{rule}: {policy}");
    }
    for allowed in ["http", "*", "allow-same-origin", "allow-top", "allow-popups"] {
        assert!(!policy.contains(allowed), "{policy}");
    }
    assert!(frame.header("set-cookie").is_empty(), "it sets no cookie");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_when_it_expires_and_what_it_may_use() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("expiry");
    caller.run(&id, "pass").await;
    let [listed] = &sessions(&caller).await[..] else { panic!("one session") };
    for told in [listed, &session(&caller, &id).await] {
        assert!(told["expires_at"].as_str() > told["since"].as_str(), "{told}");
        assert!(told["memory_limit_bytes"].as_u64() > Some(0), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_with_their_state_runs_and_charts() {
    let (web, caller) = Web::open(On::Local, &[]).await;
    assert_eq!(sessions(&caller).await, Vec::<Value>::new());
    let id = name("listed");
    caller.run(&id, "1/0").await;
    caller.run(&id, MAKE).await;
    let [listed] = &sessions(&caller).await[..] else { panic!("one session") };
    assert_eq!(listed["session_id"], id);
    assert_eq!((&listed["state"], &listed["runs"]), (&json!("idle"), &json!(2)));
    assert_eq!(listed["last_outcome"], "ok");
    assert_eq!(listed["page_url"], format!("{}/files/{id}/", web.base));
    let [picture] = &listed["pictures"].as_array().expect("a list")[..] else { panic!("one") };
    assert_eq!(picture["filename"], "chart.png");
    let url = picture["download_url"].as_str().expect("an address");
    assert_eq!(http("GET", url).await.header("content-type"), "image/png");
    caller.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(sessions(&caller).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_what_was_run_and_what_came_of_it() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("told");
    let made = caller.run(&id, MAKE).await;
    let failed = caller.run(&id, "import sys\nprint('out')\nsys.exit('wrong')").await;
    let told = session(&caller, &id).await;
    let [last, first] = &told["runs"].as_array().expect("a list")[..] else { panic!("two runs") };
    assert_eq!(last["run_id"], failed["run_id"]);
    assert_eq!((&last["outcome"], &last["exit_code"]), (&json!("error"), &json!(1)));
    assert_eq!((&last["stdout"], &last["stderr"]), (&json!("out\n"), &json!("wrong\n")));
    assert_eq!(first["run_id"], made["run_id"]);
    assert_eq!(first["code"], MAKE);
    assert_eq!(first["duration_ms"], made["duration_ms"]);
    let (told_of, made) = (&first["artifacts"][0], &made["artifacts"][0]);
    assert_eq!((&told_of["path"], &told_of["size_bytes"]), (&made["path"], &made["size_bytes"]));
    assert!(told_of["modified_at"].is_string(), "{told_of}");
    assert_eq!((&first["language"], &first["is_cell"]), (&json!("python"), &json!(false)));
    assert!(first["begun_at"].as_str() <= last["begun_at"].as_str());
    let files = told["artifacts"].as_array().expect("a list");
    let names: Vec<_> = files.iter().map(|file| &file["filename"]).collect();
    assert_eq!(names, ["chart.png", "table.csv"]);
    let all = told["download_all_url"].as_str().expect("an address");
    assert_eq!(http("GET", all).await.header("content-type"), "application/zip");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_long_programs_and_outputs_a_part_is_told_and_says_so() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("long");
    let code = format!(
        "import sys\nprint('head' + 'x' * 9000)\nprint('y' * 9000 + 'tail', file=sys.stderr)\n#{}",
        "é".repeat(20_000)
    );
    caller.run(&id, &code).await;
    let told = session(&caller, &id).await;
    let run = &told["runs"][0];
    let text = |field: &str| run[field].as_str().expect("text").to_owned();
    assert!(code.starts_with(&text("code")) && text("code").len() > 16_000);
    assert!(text("stdout").starts_with("head") && text("stdout").len() == 4096);
    assert!(text("stderr").ends_with("tail\n") && text("stderr").len() == 4096);
    for field in ["code_truncated", "stdout_truncated", "stderr_truncated"] {
        assert_eq!(run[field], true, "{field}");
    }
    for _ in 0..60 {
        caller.run(&id, "pass").await;
    }
    let told = session(&caller, &id).await;
    let runs = told["runs"].as_array().expect("a list").len() as u64;
    assert_eq!((runs, told["runs_omitted"].as_u64()), (50, Some(11)));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_hears_when_a_run_begins_and_when_it_ends() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("news");
    let none = caller.send("GET", "/sessions", &[], &[]).await;
    let target = format!("/sessions/{id}");
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let (_, ()) = tokio::join!(caller.run(&id, code), async {
        let mut list = newer(&caller, "/sessions", &none, 30).await;
        while list.json()["sessions"][0]["state"] != "running" {
            assert_eq!(list.status, 200);
            list = newer(&caller, "/sessions", &list, 30).await;
        }
        let running = caller.send("GET", &target, &[], &[]).await;
        let told = running.json();
        assert_eq!((&told["state"], &told["runs"][0]["code"]), (&json!("running"), &json!(code)));
        assert_eq!(told["runs"][0].get("outcome"), None, "it has none yet");
        caller.send("PUT", &format!("/files/{id}/go"), &[], b"").await;
        let mut next = newer(&caller, &target, &running, 30).await;
        while next.json()["state"] == "running" {
            next = newer(&caller, &target, &next, 30).await;
        }
        assert_eq!(next.json()["runs"][0]["outcome"], "ok");
        assert_eq!(next.json()["artifacts"][0]["filename"], "go");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_new_there_is_nothing_to_send() {
    let (_web, alice, bob) = Web::of_two(On::Local, &[]).await;
    let id = name("quiet");
    alice.run(&id, "pass").await;
    for target in ["/sessions", &format!("/sessions/{id}")] {
        let known = alice.send("GET", target, &[], &[]).await;
        assert_eq!(newer(&alice, target, &known, 0).await.status, 304);
        // Another caller's run changes nothing for alice.
        let other = name("other");
        let (quiet, _) = tokio::join!(newer(&alice, target, &known, 1), bob.run(&other, "pass"));
        assert_eq!((quiet.status, quiet.body.len()), (304, 0));
        assert_eq!(quiet.header("etag"), known.header("etag"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_left_open_keeps_no_session_alive() {
    let (_web, caller) = Web::open(On::Local, &[("SANDBOX_SESSION_TTL_M", "0.03")]).await;
    let id = name("left");
    caller.run(&id, "pass").await;
    let target = format!("/sessions/{id}");
    let mut known = caller.send("GET", &target, &[], &[]).await;
    let ended = async {
        loop {
            let next = newer(&caller, &target, &known, 1).await;
            match next.status {
                304 => {}
                200 => known = next,
                status => return status,
            }
        }
    };
    assert_eq!(timeout(PATIENCE, ended).await.expect("in time"), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_only_looked_at_ends_like_any_other() {
    let (_web, caller) = Web::open(On::Local, &[("SANDBOX_SESSION_TTL_M", "0.03")]).await;
    let id = name("looked");
    caller.run(&id, "open('a', 'w')").await;
    let target = format!("/sessions/{id}");
    let ended = async {
        while caller.send("GET", &target, &[], &[]).await.status == 200 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("it ends although it is looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_known_of_one_server_is_not_known_of_the_next() {
    let mut known = None;
    for code in ["print('A')", "print('B')"] {
        let (_web, caller) = Web::open(On::Local, &[]).await;
        caller.run("same", code).await;
        for target in ["/sessions", "/sessions/same"] {
            let Some(known) = &known else { continue };
            assert_eq!(newer(&caller, target, known, 0).await.status, 200, "{target}");
        }
        known = Some(caller.send("GET", "/sessions", &[], &[]).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_takes_nothing_from_the_models_rate() {
    let settings = [TOKENS, ("SANDBOX_RATE_LIMIT_PER_M", "3")];
    let web = Web::start(On::Local, &settings).await;
    let alice = web.caller(Some("secret-a"));
    for status in [200, 200, 200, 429] {
        assert_eq!(alice.send("GET", "/sessions", &[], &[]).await.status, status);
    }
    for _ in 0..3 {
        assert_eq!(alice.run(&name("rate"), "print(1)").await["stdout"], "1\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_the_variables_of_its_workspace() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("variables");
    caller.run(&id, "count = 1").await;
    assert_eq!(session(&caller, &id).await["interpreters"], json!([]), "a program leaves none");
    let cell =
        |code: &'static str| caller.call("execute_code", json!({ "session_id": id, "code": code }));
    cell("count = 41\nnames = ['a', 'b']").await.ok();
    let told = session(&caller, &id).await;
    let [python] = &told["interpreters"].as_array().expect("a list")[..] else { panic!("{told}") };
    let of = |name: &str, summary: &str| json!({ "name": name, "summary": summary });
    assert_eq!(python["language"], "python");
    assert_eq!(python["variables"], json!([of("count", "int"), of("names", "list 2")]));
    assert_eq!(told["runs"][0]["is_cell"], true);
    cell("del names").await.ok();
    let told = session(&caller, &id).await;
    assert_eq!(told["interpreters"][0]["variables"], json!([of("count", "int")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_shown_with_the_notes_and_the_message_that_its_caller_saw() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("notes");
    let code = "x = 1\nopen('half.csv', 'w').write('a')\nwhile True: pass";
    let stopped = caller.cell_for(&id, code, 1).await.ok();
    let program = caller.run(&id, "open('missing.csv')").await;
    let told = session(&caller, &id).await;
    let [of_program, of_cell] = &told["runs"].as_array().expect("a list")[..] else {
        panic!("{told}")
    };
    assert!(stopped["error_message"].is_string() && stopped["notes"].is_array(), "{stopped}");
    for field in ["error_message", "notes"] {
        assert_eq!(of_cell[field], stopped[field], "{of_cell}");
    }
    assert!(program["notes"].is_array(), "{program}");
    assert_eq!(of_program["notes"], program["notes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_has_the_number_by_which_its_notes_call_it() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("numbers");
    let cell = async |code: &str| caller.cell_for(&id, code, 1).await.ok();
    cell("x = 1").await;
    let stopped = cell("while True: pass").await;
    assert!(stopped["notes"].to_string().contains("Cell In[2]"), "{stopped}");
    cell("x = 3").await;
    let undo = json!({ "session_id": id, "undo": 1 });
    caller.call("reset_workspace", undo).await.ok();
    cell("x = 4").await;
    let told = session(&caller, &id).await;
    let runs: Vec<_> = told["runs"].as_array().expect("a list").iter().rev().collect();
    let numbers: Vec<_> = runs.iter().map(|run| run["execution_count"].as_u64()).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(2), Some(2)], "{told}");
    let why: Vec<_> = runs.iter().map(|run| (&run["state"], run.get("is_undone"))).collect();
    assert_eq!(why[1], (&json!("rolled_back"), None), "{told}");
    assert_eq!(why[2], (&json!("kept"), Some(&json!(true))), "{told}");
    assert_eq!(why[3], (&json!("kept"), None), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_the_sessions_of_another() {
    let (web, alice, bob) = Web::of_two(On::Local, &[]).await;
    let id = name("hers");
    alice.run(&id, "print('private')").await;
    assert_eq!(sessions(&alice).await.len(), 1);
    assert_eq!(sessions(&bob).await, Vec::<Value>::new());
    let target = format!("/sessions/{id}");
    assert_eq!(bob.send("GET", &target, &[], &[]).await.status, 404);
    for (caller, status) in [(web.caller(None), 401), (web.caller(Some("wrong")), 401)] {
        for target in ["/sessions", &target, "/sessions/none", "/sessions/a%20b"] {
            assert_eq!(caller.send("GET", target, &[], &[]).await.status, status, "{target}");
        }
    }
    assert_eq!(bob.send("GET", "/sessions/a%20b", &[], &[]).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pages_address_opens_one_session_for_looking_and_nothing_else() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let alice = web.caller(Some("secret-a"));
    let (id, other) = (name("shared"), name("kept"));
    alice.run(&id, MAKE).await;
    alice.run(&other, MAKE).await;
    let listed = alice.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let address = listed["page_url"].as_str().expect("an address").to_owned();
    let person = web.caller(None);
    let page = person.send("GET", path_of(&address), &[BROWSER], &[]).await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");

    let (_, signature) = address.split_once('?').expect("it is signed");
    let look = |id: &str| format!("/sessions/{id}?{signature}");
    let told = person.send("GET", &look(&id), &[], &[]).await;
    assert_eq!(told.status, 200);
    let told = told.json();
    assert_eq!(told["runs"][0]["stdout"], "made\n");
    // The person who sees the files can also open them.
    for file in told["artifacts"].as_array().expect("a list") {
        let url = file["download_url"].as_str().expect("an address");
        assert_eq!(http("GET", url).await.status, 200, "{url}");
    }
    let all = told["download_all_url"].as_str().expect("an address");
    assert_eq!(http("GET", all).await.status, 200);

    assert_eq!(person.send("GET", &look(&other), &[], &[]).await.status, 403);
    assert_eq!(person.send("GET", &format!("/sessions?{signature}"), &[], &[]).await.status, 401);
    // The same URL answers a program with the list in JSON.
    let list = person.send("GET", path_of(&address), &[], &[]).await;
    assert_eq!(list.json()["artifacts"].as_array().map(Vec::len), Some(2));
    for target in ["?format=zip&", "?format=tar&", "chart.png?"] {
        let target = format!("/files/{id}/{target}{signature}");
        assert_eq!(person.send("GET", &target, &[], &[]).await.status, 403, "{target}");
    }
    let put = person.send("PUT", &format!("/files/{id}/new?{signature}"), &[], b"x").await;
    assert_eq!(put.status, 403);

    // A new session of the same name is another session.
    alice.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(person.send("GET", &look(&id), &[], &[]).await.status, 404);
    alice.run(&id, "pass").await;
    for target in [look(&id), path_of(&address).to_owned()] {
        assert_eq!(person.send("GET", &target, &[], &[]).await.status, 404, "{target}");
    }
    assert_eq!(person.send("DELETE", &look(&id), &[], &[]).await.status, 404);
    assert_eq!(sessions(&alice).await.len(), 2, "the later one goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_ends_a_session_with_a_token_or_by_the_address_of_its_page() {
    let (web, alice, bob) = Web::of_two(On::Local, &[]).await;
    let (person, wrong) = (web.caller(None), web.caller(Some("wrong")));
    let (id, other) = (name("done"), name("done"));
    alice.run(&id, MAKE).await;
    alice.run(&other, MAKE).await;
    let listed = alice.call("list_artifacts", json!({ "session_id": other })).await.ok();
    let query = |url: &Value| {
        let url = url.as_str().expect("an address");
        url.split_once('?').expect("it is signed").1.replace("format=zip&", "")
    };
    let page = query(&listed["page_url"]);
    let file = query(&listed["artifacts"][0]["download_url"]);
    let all = query(&listed["download_all_url"]);
    let target = format!("/sessions/{id}");
    for (caller, target, status) in [
        (&person, target.clone(), 401),
        (&wrong, target.clone(), 401),
        (&bob, target.clone(), 404),
        (&bob, format!("{target}?{page}"), 404),
        (&person, format!("{target}?{page}"), 403),
        (&person, format!("/sessions/{other}?{file}"), 403),
        (&person, format!("/sessions/{other}?{all}"), 403),
        (&alice, "/sessions/none".into(), 404),
        (&alice, "/sessions/a%20b".into(), 404),
        (&alice, "/sessions".into(), 405),
    ] {
        let refused = caller.send("DELETE", &target, &[], &[]).await;
        assert_eq!(refused.status, status, "{target}");
        assert!(refused.json()["message"].is_string());
    }
    // A page of another site cannot end a session, even with a valid token or signature.
    for (caller, target) in [(&alice, &target), (&person, &format!("/sessions/{other}?{page}"))] {
        let foreign = [("Origin", "https://elsewhere.test")];
        assert_eq!(caller.send("DELETE", target, &foreign, &[]).await.status, 403, "{target}");
    }
    assert_eq!(sessions(&alice).await.len(), 2);

    let ended = alice.send("DELETE", &target, &[], &[]).await;
    assert_eq!((ended.status, ended.body.len()), (204, 0));
    assert_eq!(alice.send("DELETE", &target, &[], &[]).await.status, 404);
    assert_eq!(sessions(&alice).await.len(), 1);
    let own = [("Origin", &*web.base)];
    let ended = person.send("DELETE", &format!("/sessions/{other}?{page}"), &own, &[]).await;
    assert_eq!(ended.status, 204);
    assert_eq!(sessions(&alice).await, Vec::<Value>::new());
    let gone = alice.call("list_artifacts", json!({ "session_id": other })).await;
    assert_eq!(gone.error(), "session_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_waits_for_nobody_who_waits_for_news() {
    let (mut web, caller) = Web::open(On::Local, &[]).await;
    let known = caller.send("GET", "/sessions", &[], &[]).await;
    let headers = [("If-None-Match", known.header("etag")), ("Prefer", "wait=30")];
    let mut waiting = http_begin("GET", &format!("{}/sessions", web.base), &headers, b"").await;
    // The answer to this later request shows that the server has received the waiting one.
    assert_eq!(http("GET", &format!("{}/health", web.base)).await.status, 200);
    web.signal("TERM");
    let mut answer = vec![];
    let read = waiting.read_to_end(&mut answer);
    timeout(PATIENCE, read).await.expect("in time").expect("answered");
    assert_eq!(Response::parse(&answer).status, 304);
    assert_eq!(web.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_stdio_has_the_page_as_well() {
    let server = support::Server::start(On::Local).await;
    let id = name("stdio");
    let made = server.run(&id, MAKE).await;
    let url = made["artifacts"][0]["download_url"].as_str().expect("an address");
    let (base, _) = url.split_once("/files/").expect("a file's address");
    let page = http_with("GET", &format!("{base}/"), &[BROWSER], b"").await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let (address, signature) =
        listed["page_url"].as_str().and_then(|url| url.split_once('?')).expect("it is signed");
    let page = http_with("GET", &format!("{address}?{signature}"), &[BROWSER], b"").await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let told = http("GET", &format!("{base}/sessions/{id}?{signature}")).await.json();
    assert_eq!(told["runs"][0]["stdout"], "made\n");
    for file in told["artifacts"].as_array().expect("a list") {
        let url = file["download_url"].as_str().expect("an address");
        assert_eq!(http("GET", url).await.status, 200, "{url}");
    }
    let all = told["download_all_url"].as_str().expect("an address");
    assert_eq!(http("GET", all).await.header("content-type"), "application/zip");
    assert!(told["urls_expire_in_s"].is_u64(), "so that the page asks in time for new ones");
    for target in ["sessions", &format!("sessions/{id}")] {
        assert_eq!(http("GET", &format!("{base}/{target}")).await.status, 401, "{target}");
    }
}
