//! The history of a session, as a notebook and as a script.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::uploads::{get, refusal, shell};
use support::{On, assert_fields, http, name, on_all, web::*};

on_all! {
    a_notebook_has_the_code_outputs_and_pictures_of_every_run,
    a_notebook_has_each_picture_as_its_run_has_left_it,
    ; on docker alone:
    cells_that_were_taken_back_or_stopped_are_marked,
    a_notebook_has_tables_as_tables_and_errors_as_errors,
    a_script_of_cells_does_again_what_they_did,
}

/// Draws a picture of one pixel, whose bytes the program makes itself.
pub(super) const PICTURE: &str = "
import struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
head = struct.pack('>IIBBBBB', 1, 1, 8, 0, 0, 0, 0)
pixel = zlib.compress(b'\\0\\0')
open('dot.png', 'wb').write(
    b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', pixel) + chunk(b'IEND', b''))
print('drawn')
";

pub(super) async fn notebook(caller: &Caller, session: &str) -> Value {
    let answer = get(caller, &format!("{session}/?format=ipynb")).await;
    assert_eq!((answer.status, answer.whole), (200, true));
    assert_eq!(answer.header("content-type"), "application/x-ipynb+json");
    let disposition = format!("attachment; filename=\"{session}.ipynb\"");
    assert_eq!(answer.header("content-disposition"), disposition);
    serde_json::from_slice(&answer.body).expect("JSON")
}

async fn a_notebook_has_the_code_outputs_and_pictures_of_every_run(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    let session = name("notebook");
    let drawn = caller.run(&session, PICTURE).await;
    let failed = caller.run(&session, "print('before')\n1/0").await;
    let notebook = notebook(&caller, &session).await;
    assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
    let [title, first, second] = &notebook["cells"].as_array().expect("cells")[..] else {
        panic!("{notebook}")
    };
    assert!(title["source"].as_str().is_some_and(|text| text.contains(&session)));
    assert_fields!(first, { "id": drawn["run_id"], "source": PICTURE });
    assert_eq!(first["metadata"].get("tags"), None);
    let [said, picture] = &first["outputs"].as_array().expect("outputs")[..] else {
        panic!("{first}")
    };
    assert_eq!(said, &json!({ "output_type": "stream", "name": "stdout", "text": "drawn\n" }));
    let shown = picture["data"]["image/png"].as_str().expect("a picture");
    let shown = BASE64_STANDARD.decode(shown).expect("base64");
    let file = get(&caller, &format!("{session}/dot.png")).await;
    assert_eq!(shown, file.body);
    assert_eq!(second["id"], failed["run_id"]);
    assert_eq!(second["metadata"]["tags"], json!(["raises-exception", "skip-execution"]));
    assert_eq!(second["source"], "print('before')\n1/0");
    let [said, error] = &second["outputs"].as_array().expect("outputs")[..] else {
        panic!("{second}")
    };
    assert_eq!((&said["name"], &said["text"]), (&json!("stdout"), &json!("before\n")));
    assert_fields!(error, { "output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero" });
    let lines = error["traceback"].as_array().expect("lines");
    assert_eq!(lines[0], "Traceback (most recent call last):");
    assert_eq!(lines.last(), Some(&json!("ZeroDivisionError: division by zero")));
}

async fn a_notebook_has_each_picture_as_its_run_has_left_it(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let on_disk = [("SANDBOX_HISTORY_DIR", folder.path().to_str().expect("UTF-8"))];
    for settings in [&[][..], &on_disk] {
        let (_web, caller) = Web::open(on, settings).await;
        let session = name("drawn");
        // The program replaces the same file, and finally removes it.
        let mut drawn = vec![];
        for shade in [0, 120, 255] {
            caller.run(&session, &PICTURE.replace("\\0\\0", &format!("\\0\\x{shade:02x}"))).await;
            drawn.push(get(&caller, &format!("{session}/dot.png")).await.body);
        }
        caller.run(&session, "import os; os.remove('dot.png')").await;
        let notebook = notebook(&caller, &session).await;
        let cells = &notebook["cells"].as_array().expect("cells")[1..];
        for (cell, drawn) in cells.iter().zip(&drawn) {
            let shown = cell["outputs"][1]["data"]["image/png"].as_str().expect("a picture");
            assert_eq!(&BASE64_STANDARD.decode(shown).expect("base64"), drawn);
        }
        assert_eq!(cells.len(), 4);
        assert_eq!(cells[3]["outputs"], json!([]));
        assert!(drawn.windows(2).all(|pair| pair[0] != pair[1]));
    }
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0, "without names");
}

async fn cells_that_were_taken_back_or_stopped_are_marked() {
    let (_web, caller) = Web::open(On::Docker, &[]).await;
    let session = name("marked");
    for code in ["x = 1", "x = 2", "while True: pass", "%time x"] {
        let arguments = json!({ "session_id": session, "code": code, "timeout": 2 });
        caller.call("execute_code", arguments).await.ok();
        if code == "x = 2" {
            let arguments = json!({ "session_id": session, "undo": 1 });
            caller.call("reset_workspace", arguments).await.ok();
        }
    }
    let notebook = notebook(&caller, &session).await;
    let cells = &notebook["cells"].as_array().expect("cells")[1..];
    let outcome = |cell: &Value| cell["metadata"]["llm_sandbox"]["outcome"].clone();
    let outcomes: Vec<_> = cells.iter().map(outcome).collect();
    assert_eq!(outcomes, ["ok", "undone", "timeout", "ok"], "{notebook}");
    for cell in &cells[1..3] {
        assert_eq!(cell["metadata"]["tags"], json!(["skip-execution"]));
    }
    assert_eq!(cells[1]["source"], "# Not run again (undone):\n# x = 2");
    assert_eq!(cells[2]["source"], "# Not run again (timeout):\n# while True: pass");
    let said = cells[2]["outputs"][0].clone();
    assert_eq!((&said["ename"], &said["output_type"]), (&json!("timeout"), &json!("error")));
    assert!(said["evalue"].as_str().is_some_and(|it| it.contains("stopped after 2 s")), "{said}");
    assert_eq!(said["traceback"], json!([said["evalue"]]));
    let script = get(&caller, &format!("{session}/?format=py")).await;
    let script = String::from_utf8(script.body).expect("UTF-8");
    assert!(script.contains("\nx = 1\n") && script.contains("\n# x = 2\n"), "{script}");
    assert!(script.contains("\n# %time\nx\n"), "{script}");
}

/// Cells that all succeed, not all of them in plain Python.
const CELLS: [&str; 13] = [
    "from __future__ import annotations\nkept = {}\ndef note(name: undefined, value): kept[name] = value",
    "names = !ls\nif kept is not None:\n    !ls \\\n    -l\nnote('shell', 1)",
    "timing = %timeit -o -n1 -r1 1\nfor n in range(2):\n    %time note('timed', n)",
    "text = '''\n%a\n!b\nwhy?\n'''\nnote('text', text)",
    "note('rest', 8 \\\n%3 + (\n9\n/ 3))",
    "note('nested', f\"{'#' + '('}\")\n!echo 'it'",
    "%%time\nnote('whole', 2)",
    "%%capture out\n%time note('captured', 3)\nprint('hidden')",
    "%%timeit -n1 -r1\nnote('never', 4)",
    "    len?\n    note('indented', 5)",
    "import asyncio\nawait asyncio.sleep(0)",
    "pip --version",
    "display(['shown'], 7)",
];

async fn a_script_of_cells_does_again_what_they_did() {
    let (_web, caller) = Web::open(On::Docker, &[]).await;
    let session = name("cells");
    let mut told = caller.run(&session, "%matplotlib inline\nprint('a program')").await;
    caller.run(&session, "import asyncio\nawait asyncio.sleep(0)\nprint('never again')").await;
    for code in CELLS.into_iter().chain(["kept.pop('never', None)\nprint(kept)"]) {
        told = caller.cell(&session, code).await.ok();
        assert_eq!(told["status"], "success", "{told}");
    }
    let script = get(&caller, &format!("{session}/?format=py")).await;
    let again = name("again");
    caller.upload(&again, "again.py", &script.body).await.ok();
    let script = String::from_utf8(script.body).expect("UTF-8");
    // A separate process, because programs that the server starts have more features than plain Python.
    let alone = "import subprocess, sys\nsubprocess.run([sys.executable, 'again.py'], check=True)";
    let again = caller.run(&again, alone).await;
    assert_eq!(again["outcome"], "ok", "{script}\n{again}");
    // A script prints the output that a cell captured.
    let wanted =
        format!("a program\nhidden\n['shown']\n7\n{}", told["stdout"].as_str().expect("text"));
    assert_eq!(again["stdout"], wanted);
    assert!(script.contains("\nnames = None  # !ls\n"), "{script}");
    assert!(script.contains("\n# await asyncio.sleep(0)\n"), "{script}");
}

async fn a_notebook_has_tables_as_tables_and_errors_as_errors() {
    let (_web, caller) = Web::open(On::Docker, &[]).await;
    let session = name("shown");
    let frame =
        "import pandas as pd\npd.DataFrame({'city': ['New York', 'Rome'], 'spend': [1.5, -20]})";
    let cells = [
        ("python", frame),
        ("python", "frame = 1\nraise ValueError('wrong: very')"),
        ("python", "x = = 1"),
        ("python", "import sys\nsys.exit(3)"),
        ("python", "import os\nos._exit(0)"),
        ("javascript", "null.x"),
        ("bash", "exit 7"),
    ];
    for (language, code) in cells {
        caller
            .call(
                "execute_code",
                json!({ "session_id": session, "code": code, "language": language }),
            )
            .await
            .ok();
    }
    let notebook = notebook(&caller, &session).await;
    let cells = &notebook["cells"].as_array().expect("cells")[1..];
    let shown = cells[0]["outputs"][0]["data"].clone();
    assert!(shown["text/plain"].as_str().is_some_and(|it| it.contains("New York")), "{shown}");
    let html = shown["text/html"].as_str().expect("a table");
    for part in ["<th>city</th>", "<td>New York</td>", "<td>-20.0</td>"] {
        assert!(html.contains(part), "{html}");
    }
    let errors = cells[1..].iter().map(|cell| cell["outputs"].as_array().expect("outputs"));
    let errors: Vec<_> = errors.map(|all| all.last().expect("an output")).collect();
    let told: Vec<_> = errors.iter().map(|it| (&it["ename"], &it["evalue"])).collect();
    let wanted = ["ValueError", "SyntaxError", "SystemExit", "SystemExit", "TypeError", "error"];
    for (error, wanted) in errors.iter().zip(wanted) {
        assert_fields!(error, { "output_type": "error", "ename": wanted });
    }
    assert_eq!(told[0].1, "wrong: very");
    assert_eq!((told[2].1, told[5].1), (&json!("3"), &json!("7")));
    let tags: Vec<_> = cells.iter().map(|cell| cell["metadata"]["tags"][0].as_str()).collect();
    let raises = Some("raises-exception");
    assert_eq!(tags, [None, raises, raises, raises, Some("skip-execution"), raises, raises]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_too_large_to_be_kept_is_shown_if_its_file_is_still_the_same() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let session = name("changed");
    caller.run(&session, &format!("{PICTURE}open('dot.png', 'ab').write(bytes(3 << 20))")).await;
    let pictures = async || {
        let notebook = notebook(&caller, &session).await;
        notebook["cells"][1]["outputs"].as_array().expect("outputs").len() - 1
    };
    assert_eq!(pictures().await, 1);
    caller.run(&session, "open('dot.png', 'ab').write(b'more')").await;
    assert_eq!(pictures().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_runs_what_has_succeeded_again() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let session = name("script");
    caller.run(&session, "total = 2 + 2\nprint(total)").await;
    caller.run(&session, "print('never again')\n1/0").await;
    caller.run(&session, "print('end')").await;
    let answer = get(&caller, &format!("{session}/?format=py")).await;
    assert_eq!(answer.header("content-type"), "text/x-python; charset=utf-8");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("again.py"), &answer.body).expect("written");
    assert_eq!(shell(folder.path(), "python3", &["again.py"]).await, "4\nend\n");
    let text = String::from_utf8(answer.body).expect("UTF-8");
    assert!(text.contains("\n# print('never again')\n# 1/0\n"), "{text}");
    assert_eq!(text.matches("# %% run_").count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_and_long_outputs_are_there_as_their_caller_saw_them() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let session = name("whole");
    let code = format!("print('x' * 9000)\n#{}", "é".repeat(30_000));
    let run = caller.run(&session, &code).await;
    for _ in 0..60 {
        caller.run(&session, "pass").await;
    }
    let notebook = notebook(&caller, &session).await;
    assert_eq!(notebook["cells"].as_array().map(Vec::len), Some(62));
    assert_eq!(notebook["cells"][1]["source"], code);
    assert_eq!(notebook["cells"][1]["outputs"][0]["text"], run["stdout"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_folder_a_notebook_has_what_memory_has_no_room_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    for (settings, is_whole) in [(vec![], false), (vec![("SANDBOX_HISTORY_DIR", path)], true)] {
        let (_web, caller) = Web::open(On::Local, &settings).await;
        let session = name("long");
        // More than a session keeps in memory.
        for n in 0..60 {
            let code = format!("print({n})\n#{}", "x".repeat(99_000));
            assert_eq!(caller.run(&session, &code).await["stdout"], format!("{n}\n"));
        }
        let notebook = notebook(&caller, &session).await;
        let cells = &notebook["cells"].as_array().expect("cells")[1..];
        assert_eq!(cells.len() == 60, is_whole);
        for (cell, n) in cells.iter().rev().zip((0..60).rev()) {
            assert_eq!(cell["outputs"][0]["text"], format!("{n}\n"));
            assert!(cell["source"].as_str().is_some_and(|code| code.len() > 99_000));
        }
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0, "no name is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_look_at_a_session_has_its_notebook_and_nobody_else() {
    let web = Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", "ann:a,bob:b")]).await;
    let (ann, bob) = (web.caller(Some("a")), web.caller(Some("b")));
    let session = name("looked");
    ann.run(&session, "print(1)").await;
    let target = format!("/sessions/{session}");
    let told: Value =
        serde_json::from_slice(&ann.send("GET", &target, &[], &[]).await.body).expect("JSON");
    for field in ["notebook_url", "script_url"] {
        let url = told[field].as_str().expect("an address");
        assert_eq!(http("GET", url).await.status, 200, "{field}");
        // The signature is only for viewing: it opens no file and no archive.
        let zip = url.replace("format=ipynb", "format=zip").replace("format=py", "format=zip");
        assert_eq!(http("GET", &zip).await.status, 403, "{field}");
        let unsigned = url.split("&signature").next().expect("a part");
        assert_eq!(http("GET", unsigned).await.status, 401, "{field}");
    }
    let all = told["download_all_url"].as_str().expect("an address");
    let other = all.replace("format=zip", "format=ipynb");
    assert_eq!(http("GET", &other).await.status, 403);
    let foreign = get(&bob, &format!("{session}/?format=ipynb")).await;
    assert_eq!(foreign.status, 404);
    let wrong = get(&ann, &format!("{session}/?format=doc")).await;
    assert_eq!(refusal(&wrong), (400, "invalid_argument".into()));
}
