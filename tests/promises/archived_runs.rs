//! The runs of sessions in the archive: on their pages, in their notebooks, and when they are restored.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{On, name, on_all, text, web::*};

use super::{
    archive::{Place, manifests},
    notebooks::{PICTURE, notebook},
};

on_all! {
    an_archived_session_has_its_runs_and_has_them_again_when_it_is_restored,
}

async fn page(caller: &Caller, session: &str) -> Value {
    let answer = caller.send("GET", &format!("/sessions/{session}"), &[], &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.json()
}

async fn result(caller: &Caller, run: &Value) -> Value {
    let asked = json!({ "execution_id": run, "wait_s": 0 });
    caller.call("get_execution_result", asked).await.ok()
}

/// Runs as a page shows them, without the signatures and times of the URLs in them.
fn shown(page: &Value) -> Vec<Value> {
    let mut runs = page["runs"].as_array().cloned().expect("a list");
    for file in runs.iter_mut().flat_map(|run| run["artifacts"].as_array_mut().expect("a list")) {
        let file = file.as_object_mut().expect("an object");
        file.retain(|field, _| !field.ends_with("url"));
    }
    runs
}

/// The times of a file, as the run that made it and the list of files have them.
fn times_of<'a>(page: &'a Value, file: &str) -> [&'a Value; 2] {
    let runs = page["runs"].as_array().into_iter().flatten();
    let made = runs.flat_map(|run| run["artifacts"].as_array().into_iter().flatten());
    let listed = page["artifacts"].as_array().into_iter().flatten();
    let time = |mut files: Box<dyn Iterator<Item = &'a Value> + 'a>| {
        &files.find(|it| it["filename"] == file).expect("it is there")["modified_at"]
    };
    [time(Box::new(made)), time(Box::new(listed))]
}

async fn ended(mut web: Web) {
    web.signal("TERM");
    web.exit_code().await;
}

async fn an_archived_session_has_its_runs_and_has_them_again_when_it_is_restored(on: On) {
    let (place, session) = (Place::new(), name("runs"));
    let (web, alice, _) = place.web(on).await;
    let drawn = alice.run(&session, PICTURE).await;
    let failed = alice.run(&session, "import sys\nprint('before')\nsys.exit(3)").await;
    let undefined = alice.cell(&session, "x = 1\nmissing").await.json;
    let before = shown(&page(&alice, &session).await);
    assert_eq!(before.len(), 3);
    assert!(before[0]["error_message"].is_string() && before[0]["notes"].is_array(), "{before:?}");
    let noted = notebook(&alice, &session).await["cells"].clone();
    ended(web).await;

    let (web, alice, bob) = place.web(on).await;
    let archived = page(&alice, &session).await;
    assert_eq!((&archived["state"], &archived["runs_omitted"]), (&json!("archived"), &json!(0)));
    assert_eq!(shown(&archived), before);
    let [made, listed] = times_of(&archived, "dot.png");
    assert_eq!(made, listed, "the page shows the picture");
    assert_eq!(notebook(&alice, &session).await["cells"], noted, "from the archive");
    let url = text(&archived["notebook_url"]);
    let (somebody, path) = (web.caller(None), &url[url.find("/files/").expect("a path")..]);
    assert_eq!(somebody.send("GET", path, &[], &[]).await.status, 200);
    for target in [format!("/sessions/{session}"), format!("/files/{session}/?format=ipynb")] {
        assert_eq!(bob.send("GET", &target, &[], &[]).await.status, 404, "{target}");
    }
    assert_eq!(page(&alice, &session).await["state"], "archived", "a look restores nothing");

    let after = alice.run(&session, "print('after')").await;
    let restored = page(&alice, &session).await;
    assert_eq!(restored["state"], "idle");
    let ids = |runs: &[Value]| runs.iter().map(|run| run["run_id"].clone()).collect::<Vec<_>>();
    let all = [&after, &undefined, &failed, &drawn].map(|run| run["run_id"].clone());
    assert_eq!(ids(&shown(&restored)), all);
    let [made, listed] = times_of(&restored, "dot.png");
    assert_eq!(made, listed, "the page shows the picture");
    let cells = notebook(&alice, &session).await["cells"].as_array().cloned().expect("cells");
    assert_eq!(cells.len(), 5);
    assert_eq!(&cells[1..4], &noted.as_array().expect("cells")[1..]);
    assert!(!text(&cells[0]["source"]).contains("arlier runs"), "{}", cells[0]);
    for run in [&drawn, &failed, &undefined] {
        assert_eq!(result(&alice, &run["run_id"]).await, *run, "as its caller got it");
        assert_eq!(result(&bob, &run["run_id"]).await["status"], "not_found");
    }
    ended(web).await;

    let (_web, alice, _) = place.web(on).await;
    assert_eq!(ids(&shown(&page(&alice, &session).await)), all, "they are archived again");
}

/// The manifest of the one session, and its object of runs.
fn parts(place: &Place) -> (PathBuf, PathBuf, Value) {
    let manifest = manifests(&place.archive()).remove(0);
    let bytes = fs::read(&manifest).expect("read");
    let line = bytes.iter().position(|byte| *byte == b'\n').expect("a line");
    let json: Value = serde_json::from_slice(&bytes[line + 1..]).expect("JSON");
    let folder = manifest.parent().expect("a folder").join(text(&json["generation"]));
    (manifest, folder.join("runs"), json)
}

/// Writes a manifest, as anyone can who writes to the archive of a server without a secret.
fn put(manifest: &PathBuf, json: &Value) {
    let json = json.to_string();
    let line = format!("sha256 {}\n", hex::encode(Sha256::digest(&json)));
    fs::write(manifest, line + &json).expect("written");
}

/// Archives a session with a file and a run, changes the archive, and returns a server that finds it changed.
async fn changed(session: &str, change: impl FnOnce(&Place)) -> (Web, Caller, Place) {
    let place = Place::new();
    let folder = place.archive();
    let settings = [("SANDBOX_ARCHIVE", folder.to_str().expect("UTF-8"))];
    let (web, caller) = Web::open(On::Local, &settings).await;
    caller.run(session, "open('a.txt', 'w').write('a')\nprint('made')").await;
    ended(web).await;
    change(&place);
    let (web, caller) = Web::open(On::Local, &settings).await;
    (web, caller, place)
}

/// Checks that a session is restored with its file, and that its page has only the runs since.
async fn goes_on_without_runs(caller: &Caller, session: &str) {
    let archived = page(caller, session).await;
    assert_eq!((&archived["state"], &archived["runs"]), (&json!("archived"), &json!([])));
    assert_eq!(archived["artifacts"][0]["filename"], "a.txt");
    assert_eq!(archived.get("notebook_url"), None);
    let target = format!("/files/{session}/?format=ipynb");
    assert_eq!(caller.send("GET", &target, &[], &[]).await.status, 404);
    let run = caller.run(session, "print(open('a.txt').read())").await;
    assert_eq!(run["stdout"], "a\n", "{run}");
    let restored = page(caller, session).await;
    assert_eq!(restored["runs"].as_array().map(Vec::len), Some(1));
    let notebook = notebook(caller, session).await;
    let title = text(&notebook["cells"][0]["source"]);
    assert!(title.contains("Earlier runs are not recorded"), "{title}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_of_an_earlier_version_opens_without_runs() {
    let session = name("older");
    let (_web, caller, _place) = changed(&session, |place| {
        let (manifest, runs, mut json) = parts(place);
        fs::remove_file(runs).expect("there are runs");
        json.as_object_mut().expect("an object").remove("runs").expect("they were listed");
        put(&manifest, &json);
    })
    .await;
    goes_on_without_runs(&caller, &session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_damaged_cost_nothing_else() {
    let session = name("damaged");
    let (_web, caller, _place) = changed(&session, |place| {
        let (_, runs, _) = parts(place);
        let mut bytes = fs::read(&runs).expect("there are runs");
        let last = bytes.len() - 10;
        bytes[last] ^= 1;
        fs::write(&runs, bytes).expect("written");
    })
    .await;
    goes_on_without_runs(&caller, &session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_somebody_else_has_written_harm_nobody() {
    let session = name("hostile");
    let (_web, caller, _place) = changed(&session, |place| {
        let (manifest, runs, mut json) = parts(place);
        let written = fs::read_to_string(&runs).expect("there are runs");
        let line = written.lines().find(|line| line.starts_with("{\"run\"")).expect("a run");
        let run: Value = serde_json::from_str(line).expect("JSON");
        let with = |pointer: &str, value: Value| {
            let mut run = run.clone();
            *run.pointer_mut(pointer).expect("a field") = value;
            run.to_string()
        };
        let cell = json!({ "count": u64::MAX, "state": "rolled_back", "is_undone": false });
        let lines = [
            json!({ "head": { "forgotten": u64::MAX, "lacks_earlier": false } }).to_string(),
            json!({ "head": { "forgotten": u64::MAX, "lacks_earlier": false } }).to_string(),
            with("/run/end/cell", cell),
            with("/run/end/artifacts_omitted", u64::MAX.into()),
            with("/run/end/notes", json!([{ "HiddenModule": "x\u{1b}".repeat(500) }, "Unknown", 7])),
            // These are left out.
            with("/run/end", Value::Null),
            with("/run/run_id", "../x".into()),
            with("/run/begun", i64::MAX.into()),
            with("/run/language", "python\nimport os".into()),
            with("/run/end/artifacts/0/path", "../../etc/passwd".into()),
            json!({ "picture": { "run_id": run["run"]["run_id"], "path": "a.txt", "base64": "?" } })
                .to_string(),
            json!({ "other": {} }).to_string(),
            "{\"run\": ".into(),
            "[".repeat(5000),
        ];
        let lines = lines.join("\n");
        json["runs"] = json!({
            "size": lines.len(), "sha256": hex::encode(Sha256::digest(&lines)),
        });
        fs::write(&runs, lines).expect("written");
        put(&manifest, &json);
    })
    .await;
    let archived = page(&caller, &session).await;
    let runs = shown(&archived);
    assert_eq!(runs.len(), 3, "{archived}");
    let notes = runs.iter().find_map(|run| run["notes"].as_array()).expect("notes");
    assert!(notes.len() == 1 && text(&notes[0]).chars().count() < 300, "{notes:?}");
    assert!(!text(&notes[0]).contains(char::is_control));
    notebook(&caller, &session).await;
    let run = caller.run(&session, "print(open('a.txt').read())").await;
    assert_eq!(run["stdout"], "a\n", "{run}");
    assert_eq!(shown(&page(&caller, &session).await).len(), 4);
    notebook(&caller, &session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_runs_alone_is_archived_with_them() {
    let (place, session) = (Place::new(), name("alone"));
    let (web, alice, _) = place.web(On::Local).await;
    alice.run(&session, "print('hello')").await;
    ended(web).await;
    let (_web, alice, _) = place.web(On::Local).await;
    let archived = page(&alice, &session).await;
    assert_eq!((&archived["state"], &archived["artifacts"]), (&json!("archived"), &json!([])));
    assert_eq!(archived["runs"][0]["stdout"], "hello\n");
}
