//! What the program promises to its callers, through the real program and the real protocol. Every
//! promise is checked twice: with plain processes as sandboxes, and with containers.

use crate::support::{
    self, Answer, On, Server, free_port, http, http_with, name, on_both, until, until_sessions,
    web::Web,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::join;

on_both! {
    a_program_prints_and_its_exit_code_is_told,
    a_python_error_is_a_normal_result_with_its_source_line,
    every_run_is_a_fresh_process_in_the_data_folder,
    a_program_killed_by_a_signal_tells_which,
    a_program_killed_by_a_signal_without_a_name_is_noticed,
    a_program_starts_with_no_signal_blocked,
    uploaded_modules_can_be_imported_and_left_ones_cannot_hide_a_library,
    a_timeout_keeps_what_was_printed,
    new_and_changed_files_are_artifacts_and_no_others,
    a_run_that_fails_has_no_artifacts,
    thousands_of_files_do_not_flood_the_result,
    nothing_that_a_run_started_outlives_it,
    output_over_the_cap_keeps_both_ends_and_the_run_goes_on,
    two_hundred_megabytes_of_output_cost_the_server_next_to_nothing,
    output_that_is_not_utf8_is_shown_as_text,
    a_file_of_the_largest_size_round_trips_byte_exact,
    one_byte_too_many_is_refused_and_leaves_nothing,
    a_message_far_too_large_is_answered_all_the_same,
    an_upload_replaces_only_when_asked_to,
    an_empty_file_is_a_file,
    files_come_and_go_while_a_program_runs,
    a_second_run_is_refused_at_once,
    a_session_goes_by_the_name_that_its_caller_gave,
    a_session_that_the_server_named_never_begins_anew,
    files_and_sessions_are_for_those_who_were_given_their_urls,
    a_call_without_a_session_makes_one,
    two_first_calls_of_one_name_share_one_session,
    there_are_never_more_sessions_than_allowed,
    a_closed_session_is_gone_with_its_urls,
    closing_a_session_cancels_its_run,
    a_cancelled_call_kills_its_run,
    an_unused_session_expires_but_never_during_a_run,
    a_cancelled_first_call_leaves_no_session,
    a_list_of_hostile_names_still_fits_into_a_message,
    a_picture_comes_as_a_picture_and_once,
    what_is_not_a_picture_comes_as_base64,
    a_file_too_large_for_a_message_comes_as_a_url,
    files_are_listed_by_path_with_all_that_is_known_of_them,
    links_and_special_files_are_neither_listed_nor_served,
    files_are_served_with_their_types_and_nothing_else_is,
    bad_arguments_are_refused_with_the_right_code,
    nonsense_does_not_end_the_server,
    the_end_of_input_ends_the_server_during_a_run,
    signals_end_the_server_during_a_run,
}

async fn a_program_prints_and_its_exit_code_is_told(on: On) {
    let server = Server::start(on).await;
    let id = name("print");
    let run = server.run(&id, "print(2+2)").await;
    assert_eq!(run["exit_code"], 0);
    assert_eq!(run["outcome"], "ok");
    assert_eq!(run["stdout"], "4\n");
    assert_eq!(run["stderr"], "");
    assert_eq!(run["stdout_truncated"], false);
    assert_eq!(run["stderr_truncated"], false);
    assert_eq!(run["artifacts"], json!([]));
    assert_eq!(run["session_id"], id);
    assert!(run["duration_ms"].is_u64());

    let run = server.run(&id, "import sys\nprint('to stderr', file=sys.stderr)\nsys.exit(3)").await;
    assert_eq!((&run["exit_code"], &run["outcome"]), (&json!(3), &json!("error")));
    assert_eq!((&run["stdout"], &run["stderr"]), (&json!(""), &json!("to stderr\n")));
}

async fn a_python_error_is_a_normal_result_with_its_source_line(on: On) {
    let server = Server::start(on).await;
    let run = server.run(&name("error"), "row = {'spend': 1}\nprint(row['cost'])\n").await;
    assert_eq!((&run["exit_code"], &run["outcome"]), (&json!(1), &json!("error")));
    let stderr = text(&run["stderr"]);
    assert!(stderr.starts_with("Traceback (most recent call last):\n"), "{stderr}");
    assert!(stderr.contains("line 2, in <module>\n    print(row['cost'])\n"), "{stderr}");
    assert!(stderr.ends_with("KeyError: 'cost'\n"), "{stderr}");

    let run = server.run(&name("syntax"), "x = 1\nprint(x\n").await;
    assert!(text(&run["stderr"]).contains("SyntaxError: '(' was never closed"));
}

async fn every_run_is_a_fresh_process_in_the_data_folder(on: On) {
    let server = Server::start(on).await;
    let id = name("fresh");
    let code =
        "import os\nx = 1\nopen('kept.txt', 'w').write('kept')\nprint(__name__, os.getcwd())";
    let first = server.run(&id, code).await;
    assert!(text(&first["stdout"]).starts_with("__main__ "));
    assert!(on == On::Local || first["stdout"] == "__main__ /mnt/data\n");
    let second = server.run(&id, "print(open('kept.txt').read())\nprint(x)").await;
    assert_eq!(second["stdout"], "kept\n");
    assert!(text(&second["stderr"]).contains("NameError: name 'x' is not defined"));
}

async fn a_program_killed_by_a_signal_tells_which(on: On) {
    let server = Server::start(on).await;
    let id = name("signal");
    let run = server.run(&id, "import os; os.abort()").await;
    assert_eq!((&run["exit_code"], &run["outcome"]), (&json!(134), &json!("killed")));
    let code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)";
    let run = server.run(&id, code).await;
    assert_eq!((&run["exit_code"], &run["outcome"]), (&json!(137), &json!("killed")));
    assert_eq!(server.run(&id, "print('well')").await["stdout"], "well\n");
}

async fn a_program_killed_by_a_signal_without_a_name_is_noticed(on: On) {
    let server = Server::start(on).await;
    let run = server.run(&name("real-time"), "import os; os.kill(os.getpid(), 40)").await;
    assert_eq!((&run["exit_code"], &run["outcome"]), (&json!(168), &json!("killed")));
}

async fn a_program_starts_with_no_signal_blocked(on: On) {
    let server = Server::start(on).await;
    let code = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))";
    assert_eq!(server.run(&name("mask"), code).await["stdout"], "set()\n");
}

async fn uploaded_modules_can_be_imported_and_left_ones_cannot_hide_a_library(on: On) {
    let server = Server::start(on).await;
    let id = name("import");
    server.upload(&id, "helper.py", b"def double(x): return 2 * x\n").await.ok();
    server.upload(&id, "kit/__init__.py", b"from .parts import name\n").await.ok();
    server.upload(&id, "kit/parts.py", b"name = 'kit'\n").await.ok();
    let code = "import os, sys, tempfile\nfrom helper import double\nimport kit\n\
                print(double(21), kit.name)\n\
                here = os.path.dirname(os.path.abspath(__file__))\n\
                open(os.path.join(here, 'random.py'), 'w').write('raise SystemExit(1)')";
    assert_eq!(server.run(&id, code).await["stdout"], "42 kit\n");
    assert_eq!(server.run(&id, "import random; print(random.seed(1))").await["stdout"], "None\n");
}

async fn a_timeout_keeps_what_was_printed(on: On) {
    let server = Server::start(on).await;
    let id = name("timeout");
    // Ignores every polite request to end.
    let code = "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n\
                open('made.txt', 'w').write('x')\nprint('before')\nwhile True: pass";
    let arguments = json!({ "session_id": id, "code": code, "timeout_s": 3 });
    let run = server.call("run_python", arguments).await.ok();
    assert_eq!((&run["exit_code"], &run["outcome"]), (&json!(-1), &json!("timeout")));
    assert_eq!(run["stdout"], "before\n");
    assert!(text(&run["stderr"]).ends_with("Execution timed out after 3 seconds"));
    assert_eq!(run["artifacts"], json!([]));
    assert_eq!(server.run(&id, "print('next')").await["stdout"], "next\n");
}

async fn new_and_changed_files_are_artifacts_and_no_others(on: On) {
    let server = Server::start(on).await;
    let id = name("artifacts");
    server.upload(&id, "in.csv", b"a,b\n").await.ok();
    server.upload(&id, "same.csv", b"a,b\n").await.ok();
    let code = "import os, pathlib\nos.mkdir('plots')\nopen('plots/é 1.png', 'wb').write(b'12345')\n\
                was = os.stat('in.csv')\nopen('in.csv', 'w').write('b,a\\n')\n\
                os.utime('in.csv', ns=(was.st_atime_ns, was.st_mtime_ns))\nopen('same.csv').read()";
    let run = server.run(&id, code).await;
    let artifacts = run["artifacts"].as_array().expect("an array");
    assert_eq!(artifacts.len(), 2, "a file that hides its change is told, an unchanged one is not");
    let url = text(&artifacts[1]["download_url"]);
    assert!(url.contains(&format!("/files/{id}/plots/%C3%A9%201.png?expires=")), "{url}");
    assert_eq!(http("GET", url).await.body, b"12345");
    assert_eq!(artifacts[0]["filename"], "in.csv");
    let mut picture = artifacts[1].clone();
    picture.as_object_mut().expect("an object").remove("download_url");
    assert_eq!(
        picture,
        json!({
            "path": "/mnt/data/plots/é 1.png",
            "filename": "plots/é 1.png",
            "size_bytes": 5,
            "mime_type": "image/png",
        })
    );
}

async fn a_run_that_fails_has_no_artifacts(on: On) {
    let server = Server::start(on).await;
    let run = server.run(&name("failed"), "open('half.csv', 'w').write('x')\n1/0").await;
    assert_eq!((&run["exit_code"], &run["artifacts"]), (&json!(1), &json!([])));
}

async fn thousands_of_files_do_not_flood_the_result(on: On) {
    let server = Server::start(on).await;
    let id = name("many");
    let run = server.run(&id, "for i in range(6000): open(f'{i:05}' + 'x' * 100, 'w')").await;
    assert_eq!(run["artifacts"].as_array().map(Vec::len), Some(100));
    assert_eq!(run["artifacts_omitted"], 5900);
    assert_eq!(server.files(&id).await.len(), 6000, "over several pages");
}

async fn nothing_that_a_run_started_outlives_it(on: On) {
    let server = Server::start(on).await;
    let id = name("daemon");
    let code = "import os, subprocess, time\n\
                pids = [subprocess.Popen(['sleep', '1000'], start_new_session=True).pid]\n\
                r, w = os.pipe()\n\
                if os.fork() == 0:\n\
                \x20   os.setsid()\n\
                \x20   if os.fork() == 0:\n\
                \x20       os.write(w, str(os.getpid()).encode())\n\
                \x20       while True: time.sleep(1000)\n\
                \x20   os._exit(0)\n\
                pids.append(int(os.read(r, 20)))\n\
                print(*pids)";
    let started = server.run(&id, code).await;
    assert_eq!(started["exit_code"], 0, "{started}");
    let pids = text(&started["stdout"]).trim().replace(' ', ", ");
    let code = format!(
        "import os\nfor pid in ({pids}):\n    try: print(open(f'/proc/{{pid}}/cmdline').read())\n    \
         except FileNotFoundError: print('gone')"
    );
    assert_eq!(server.run(&id, &code).await["stdout"], "gone\ngone\n");
}

async fn output_over_the_cap_keeps_both_ends_and_the_run_goes_on(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_OUTPUT_BYTES", "1000")]).await;
    let code = "import sys\nfor i in range(10000): print(f'{i:08}€')\n\
                print('e' * 1000, file=sys.stderr)\nopen('end.txt', 'w').write('reached')";
    let run = server.run(&name("cap"), code).await;
    assert_eq!((&run["outcome"], &run["stdout_truncated"]), (&json!("ok"), &json!(true)));
    let stdout = text(&run["stdout"]);
    assert!(stdout.starts_with("00000000€\n00000001€\n"), "{stdout}");
    assert!(stdout.ends_with("00009999€\n") && stdout.len() < 1100, "{stdout}");
    let (head, rest) = stdout.split_once("\n[... ").expect("a line between");
    let (omitted, tail) = rest.split_once(" bytes left out ...]\n").expect("with the count");
    let omitted: usize = omitted.parse().expect("a number");
    assert_eq!(head.len() + omitted + tail.len(), 120_000);
    assert!(!stdout.contains(char::REPLACEMENT_CHARACTER), "no character is cut in half");
    assert_eq!(run["stderr_truncated"], true, "1001 bytes of 1000");
    assert_eq!(run["artifacts"][0]["filename"], "end.txt");
}

async fn two_hundred_megabytes_of_output_cost_the_server_next_to_nothing(on: On) {
    let server = Server::start(on).await;
    let id = name("flood");
    server.run(&id, "print('warm')").await;
    let before = server.peak_memory();
    let code = "import sys\nfor _ in range(200):\n    print('x' * 1_000_000)\n    \
                print('y' * 1_000_000, file=sys.stderr)\nprint('last')";
    let run = server.run(&id, code).await;
    assert_eq!((&run["outcome"], &run["exit_code"]), (&json!("ok"), &json!(0)));
    assert!(text(&run["stdout"]).ends_with("\nlast\n"));
    let grown = server.peak_memory() - before;
    assert!(grown < 8 << 20, "the server grew by {grown} bytes");
}

async fn output_that_is_not_utf8_is_shown_as_text(on: On) {
    let server = Server::start(on).await;
    let code = r"import os; os.write(1, b'a\xff\xfeb\x00c\n')";
    let run = server.run(&name("bytes"), code).await;
    assert_eq!(run["stdout"], "a\u{FFFD}\u{FFFD}b\0c\n");
}

async fn a_file_of_the_largest_size_round_trips_byte_exact(on: On) {
    let server = Server::start(on).await;
    let id = name("largest");
    let content = noise(50_000_000);
    let uploaded = server.upload(&id, "big.bin", &content).await.ok();
    assert_eq!(
        (&uploaded["path"], &uploaded["size_bytes"]),
        (&json!("/mnt/data/big.bin"), &json!(50_000_000))
    );

    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let response = http("GET", text(&listed["artifacts"][0]["download_url"])).await;
    assert_eq!(response.header("content-length"), "50000000");
    assert!(response.body == content, "what comes down is what went up");
}

async fn one_byte_too_many_is_refused_and_leaves_nothing(on: On) {
    let server = Server::start(on).await;
    let id = name("too-large");
    server.upload(&id, "small", b"x").await.ok();
    let refused = server.upload(&id, "big.bin", &vec![7; 50_000_001]).await;
    assert_eq!(refused.error(), "upload_too_large");
    assert_eq!(server.files(&id).await, [("small".to_owned(), 1)]);
    // One that would also have made a session makes none.
    let refused = server.upload(&name("none"), "big.bin", &vec![7; 50_000_001]).await;
    assert_eq!(refused.error(), "upload_too_large");
}

async fn a_message_far_too_large_is_answered_all_the_same(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    let refused = server.upload(&name("message"), "big.bin", &vec![7; 8_000_000]).await;
    assert_eq!(refused.error(), "upload_too_large");
    assert_eq!(server.run(&name("message"), "print('well')").await["stdout"], "well\n");
}

async fn an_upload_replaces_only_when_asked_to(on: On) {
    let server = Server::start(on).await;
    let id = name("replace");
    server.upload(&id, "raw/sales.csv", b"old").await.ok();
    let refused = server.upload(&id, "raw/sales.csv", b"new").await;
    assert_eq!(refused.error(), "file_exists");
    assert_eq!(
        refused.json["message"],
        "raw/sales.csv already exists. Set overwrite=true to replace."
    );
    assert_eq!(read(&server, &id, "raw/sales.csv").await, b"old");
    let arguments = json!({
        "session_id": id,
        "filename": "raw/sales.csv",
        "content_base64": STANDARD.encode("newer"),
        "overwrite": true,
    });
    server.call("upload_file", arguments).await.ok();
    assert_eq!(read(&server, &id, "raw/sales.csv").await, b"newer");
}

async fn an_empty_file_is_a_file(on: On) {
    let server = Server::start(on).await;
    let id = name("empty");
    server.upload(&id, "empty.csv", b"").await.ok();
    assert_eq!(server.files(&id).await, [("empty.csv".to_owned(), 0)]);
    assert_eq!(read(&server, &id, "empty.csv").await, b"");
}

/// Code that ends when a file of this name appears.
fn until_uploaded(file: &str) -> String {
    format!("import os, time\nwhile not os.path.exists('{file}'): time.sleep(0.01)\nprint('seen')")
}

async fn files_come_and_go_while_a_program_runs(on: On) {
    let server = Server::start(on).await;
    let id = name("beside");
    // Whole as soon as it has its name.
    let make = "import os\nopen('new', 'w').write('while running')\nos.rename('new', 'made')\n";
    let code = format!("{make}{}", until_uploaded("go"));
    let uploads = async {
        until("the program made its file", async || {
            server.files_if_any(&id).await.iter().any(|(name, _)| name == "made")
        })
        .await;
        assert_eq!(read(&server, &id, "made").await, b"while running");
        server.upload(&id, "go", b"").await.ok();
    };
    let (run, ()) = join!(server.run(&id, &code), uploads);
    assert_eq!(run["stdout"], "seen\n");
}

async fn a_second_run_is_refused_at_once(on: On) {
    let server = Server::start(on).await;
    let id = name("busy");
    let code = format!("open('started', 'w')\n{}", until_uploaded("go"));
    let second = async {
        until("the first runs", async || !server.files_if_any(&id).await.is_empty()).await;
        let arguments = json!({ "session_id": id, "code": "print(1)" });
        let refused = server.call("run_python", arguments).await;
        assert_eq!(refused.error(), "session_busy");
        server.upload(&id, "go", b"").await.ok();
    };
    let (run, ()) = join!(server.run(&id, &code), second);
    assert_eq!(run["stdout"], "seen\n");
    assert_eq!(server.run(&id, "print('free')").await["stdout"], "free\n");
}

async fn a_session_goes_by_the_name_that_its_caller_gave(on: On) {
    let server = Server::start(on).await;
    let id = name("named");
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
            assert!(message.contains("Start again without session_id"), "{message}");
        }
    }
    // What only looks like one is a name like any other.
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
    // A client that was set up for a server with tokens may send its own everywhere.
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
                assert_eq!(
                    (&refused["error"], &refused["needs"]),
                    (&json!("unauthorized"), &json!("url"))
                );
                assert!(text(&refused["message"]).contains("page_url"), "{refused}");
            }
        }
    }
    let names: Vec<_> = server.files(&id).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a.txt", "b.txt"]);
    for open in ["health", "ready", "metrics"] {
        assert_eq!(http("GET", &format!("{base}/{open}")).await.status, 200, "{open}");
    }
    // The page itself is nobody's.
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
    let server = Server::start(on).await;
    let id = name("shared");
    let (a, b) = join!(server.upload(&id, "a", b"1"), server.upload(&id, "b", b"2"));
    a.ok();
    b.ok();
    assert_eq!(server.files(&id).await, [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    assert!(on == On::Local || support::containers(&id).len() == 1);
}

async fn there_are_never_more_sessions_than_allowed(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_SESSIONS", "2")]).await;
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
    let server = Server::start(on).await;
    let id = name("closed");
    server.upload(&id, "a.txt", b"1").await.ok();
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let url = text(&listed["artifacts"][0]["download_url"]).to_owned();
    assert_eq!(http("GET", &url).await.body, b"1");
    let closed = server.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(closed, json!({ "session_id": id, "status": "closed" }));
    assert!(on == On::Local || support::containers(&id).is_empty());
    let gone = http("GET", &url).await;
    assert_eq!(gone.status, 404);
    assert_eq!(gone.json()["error"], "not_found");
    assert!(
        text(&gone.json()["message"]).starts_with("The session has ended; its files are gone.")
    );
    let refused = server.call("list_artifacts", json!({ "session_id": id })).await;
    assert_eq!(refused.error(), "session_not_found");
    // The name is free again, and nothing of the old session is left.
    assert_eq!(server.run(&id, "import os; print(os.listdir())").await["stdout"], "[]\n");
}

async fn closing_a_session_cancels_its_run(on: On) {
    let server = Server::start(on).await;
    let id = name("close-run");
    let code = format!("print('begun')\nopen('started', 'w')\n{}", until_uploaded("never"));
    let close = async {
        until("it runs", async || !server.files_if_any(&id).await.is_empty()).await;
        server.call("close_session", json!({ "session_id": id })).await.ok();
    };
    let (run, ()) = join!(server.run(&id, &code), close);
    assert_eq!((&run["outcome"], &run["stdout"]), (&json!("cancelled"), &json!("begun\n")));
}

async fn a_cancelled_call_kills_its_run(on: On) {
    let server = Server::start(on).await;
    let id = name("cancel");
    let code = format!("open('started', 'w')\n{}", until_uploaded("never"));
    let (request, _answer) = server.expect_answer();
    let arguments = json!({ "session_id": id, "code": code });
    server.send(&json!({
        "jsonrpc": "2.0", "id": request, "method": "tools/call",
        "params": { "name": "run_python", "arguments": arguments },
    }));
    until("it runs", async || !server.files_if_any(&id).await.is_empty()).await;
    server.send(&json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": request },
    }));
    // At once, while the other is still being killed.
    assert_eq!(server.run(&id, "print('free')").await["stdout"], "free\n");
}

async fn an_unused_session_expires_but_never_during_a_run(on: On) {
    let port = free_port();
    let settings = [("SANDBOX_SESSION_TTL_M", "0.01"), ("SANDBOX_HTTP_PORT", &*port)];
    let server = Server::start_with(on, &settings).await;
    let id = name("idle");
    // Three times the time to live.
    let run = server.run(&id, "import time; time.sleep(1.8); print('still here')").await;
    assert_eq!(run["stdout"], "still here\n");
    until_sessions(&port, 0).await;
    let gone = async || on == On::Local || support::containers(&id).is_empty();
    until("its container is gone", gone).await;
    let refused = server.call("list_artifacts", json!({ "session_id": id })).await;
    assert_eq!(refused.error(), "session_not_found");
}

async fn a_cancelled_first_call_leaves_no_session(on: On) {
    let port = free_port();
    let server = Server::start_with(on, &[("SANDBOX_HTTP_PORT", &*port)]).await;
    let (request, _answer) = server.expect_answer();
    server.send(&json!({
        "jsonrpc": "2.0", "id": request, "method": "tools/call",
        "params": { "name": "run_python", "arguments": { "code": until_uploaded("never") } },
    }));
    until_sessions(&port, 1).await;
    server.send(&json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": request },
    }));
    until_sessions(&port, 0).await;
}

async fn a_list_of_hostile_names_still_fits_into_a_message(on: On) {
    let server = Server::start(on).await;
    let id = name("names");
    // What grows most when it is written as JSON, and again as JSON in a text.
    let code = "for i in range(9000): open('\"' * 250 + str(i), 'w')";
    assert_eq!(server.run(&id, code).await["outcome"], "ok");
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await;
    let len = listed.raw.to_string().len();
    assert!(len < 10 << 20, "{len} bytes");
    let listed = listed.ok();
    assert!(listed["artifacts_omitted"].as_u64().is_some_and(|omitted| omitted > 0));
}

/// The smallest PNG there is.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

async fn a_picture_comes_as_a_picture_and_once(on: On) {
    let server = Server::start(on).await;
    let id = name("picture");
    let bytes = STANDARD.decode(PNG).expect("base64");
    server.upload(&id, "chart.png", &bytes).await.ok();
    for path in ["chart.png", "/mnt/data/chart.png"] {
        let answer = server.call("read_artifact", json!({ "session_id": id, "path": path })).await;
        let blocks = answer.raw["content"].as_array().expect("blocks").clone();
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[0], json!({ "type": "image", "data": PNG, "mimeType": "image/png" }));
        let metadata = answer.ok();
        assert_eq!(
            metadata,
            json!({
                "session_id": id,
                "path": "/mnt/data/chart.png",
                "filename": "chart.png",
                "mime_type": "image/png",
                "size_bytes": bytes.len(),
            })
        );
    }
    let arguments = json!({ "session_id": id, "path": "chart.png", "format": "base64" });
    let answer = server.call("read_artifact", arguments).await;
    assert_eq!(answer.raw["content"].as_array().map(Vec::len), Some(1));
    assert_eq!(answer.ok()["content_base64"], PNG);
}

async fn what_is_not_a_picture_comes_as_base64(on: On) {
    let server = Server::start(on).await;
    let id = name("base64");
    let content = noise(2_500_000);
    server.upload(&id, "report.pdf", &content).await.ok();
    let answer =
        server.call("read_artifact", json!({ "session_id": id, "path": "report.pdf" })).await;
    let json = answer.ok();
    assert_eq!(json["mime_type"], "application/pdf");
    assert!(STANDARD.decode(text(&json["content_base64"])).expect("base64") == content);
    let missing =
        server.call("read_artifact", json!({ "session_id": id, "path": "other.pdf" })).await;
    assert_eq!(missing.error(), "not_found");
}

async fn a_file_too_large_for_a_message_comes_as_a_url(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_ARTIFACT_READ_BYTES", "2MB")]).await;
    let id = name("large");
    server.upload(&id, "chart.png", &vec![7; 2_000_001]).await.ok();
    let refused =
        server.call("read_artifact", json!({ "session_id": id, "path": "chart.png" })).await;
    assert_eq!(refused.error(), "artifact_too_large");
    assert_eq!(
        refused.json["message"],
        "chart.png is 2.1MB, exceeds 2MB limit. Use download_url instead."
    );
    assert_eq!(refused.json["size_bytes"], 2_000_001);
    let response = http("GET", text(&refused.json["download_url"])).await;
    assert_eq!(response.body.len(), 2_000_001);
}

async fn files_are_listed_by_path_with_all_that_is_known_of_them(on: On) {
    let server = Server::start(on).await;
    let id = name("list");
    for name in ["b.csv", "a/z.txt", "a.png", "a/b/c.parquet"] {
        server.upload(&id, name, b"123").await.ok();
    }
    server.run(&id, "import os; os.utime('b.csv', (0, 1.5))").await;
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let artifacts = listed["artifacts"].as_array().expect("an array");
    let names: Vec<_> = artifacts.iter().map(|file| text(&file["filename"])).collect();
    assert_eq!(names, ["a.png", "a/b/c.parquet", "a/z.txt", "b.csv"]);
    let last = &artifacts[3];
    assert_eq!(
        *last,
        json!({
            "path": "/mnt/data/b.csv",
            "filename": "b.csv",
            "size_bytes": 3,
            "mime_type": "text/csv",
            "modified_at": "1970-01-01T00:00:01.500Z",
            "download_url": last["download_url"],
        })
    );
}

async fn links_and_special_files_are_neither_listed_nor_served(on: On) {
    // Open to whoever asks, so that every path can be asked for.
    let web = Web::start(on, &[]).await;
    let server = web.caller(None);
    let id = name("links");
    let code = "import os\nos.symlink('/etc/passwd', 'passwd')\nos.symlink('/', 'root')\n\
                os.mkfifo('fifo')\nopen('a.txt', 'w').write('a')\nos.mkdir('folder')\n\
                os.symlink('a.txt', 'b.txt')\nopen('line\\nbreak.txt', 'w')\n\
                open(b'\\xff.txt', 'w')";
    let run = server.run(&id, code).await;
    assert_eq!(run["artifacts"].as_array().map(Vec::len), Some(1), "{run}");
    assert_eq!(server.files(&id).await, [("a.txt".to_owned(), 1)]);
    for (path, code) in [
        ("passwd", "invalid_path"),
        ("root/etc/passwd", "invalid_path"),
        ("fifo", "not_found"),
        ("folder", "not_found"),
        ("b.txt", "invalid_path"),
    ] {
        let refused = server.call("read_artifact", json!({ "session_id": id, "path": path })).await;
        assert_eq!(refused.error(), code, "{path}");
        let target = format!("/files/{id}/{path}");
        assert_eq!(server.send("GET", &target, &[], &[]).await.status, 404, "{path}");
    }
    let refused = server.upload(&id, "root/tmp/out.txt", b"x").await;
    assert_eq!(refused.error(), "invalid_filename");
}

async fn files_are_served_with_their_types_and_nothing_else_is(on: On) {
    let web = Web::start(on, &[]).await;
    let server = web.caller(None);
    let id = name("http");
    server.upload(&id, "ventes été.csv", b"a;b\n").await.ok();
    server.upload(&id, "page.html", b"<script>").await.ok();
    let url = format!("{}/files/{id}/ventes%20%C3%A9t%C3%A9.csv", web.base);
    let response = http("GET", &url).await;
    assert_eq!((response.status, &response.body[..]), (200, &b"a;b\n"[..]));
    assert_eq!(response.header("content-type"), "text/csv; charset=utf-8");
    assert_eq!(response.header("content-length"), "4");
    assert_eq!(
        response.header("content-disposition"),
        "attachment; filename=\"ventes _t_.csv\"; filename*=UTF-8''ventes%20%C3%A9t%C3%A9.csv"
    );
    assert_eq!(response.header("x-content-type-options"), "nosniff");
    assert!(response.header("content-security-policy").starts_with("sandbox"));
    assert!(response.header("last-modified").ends_with(" GMT"));
    assert!(response.header("etag").starts_with('"'));

    let head = http("HEAD", &url).await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "4", 0));
    assert_eq!(http("DELETE", &url).await.status, 405);
    for path in [
        "missing.csv",
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2fetc%2fpasswd",
        "a%00b",
        "%ff",
        "page.html/below",
    ] {
        let response = server.send("GET", &format!("/files/{id}/{path}"), &[], &[]).await;
        assert!(matches!(response.status, 400 | 404), "{path}: {}", response.status);
    }
    let base = &web.base;
    assert_eq!(http("GET", &format!("{base}/health")).await.status, 200);
    assert_eq!(http("GET", &format!("{base}/ready")).await.status, 200);
    assert_eq!(http("GET", &format!("{base}/files/no%20session/a")).await.status, 404);
    assert_eq!(http("GET", &format!("{base}/elsewhere")).await.status, 404);
}

async fn bad_arguments_are_refused_with_the_right_code(on: On) {
    let server = Server::start(on).await;
    let id = name("bad");
    server.upload(&id, "a.csv", b"1").await.ok();
    let long = "x".repeat(10_000);
    let upload = |name: &str, content: &str| {
        ("upload_file", json!({ "session_id": id, "filename": name, "content_base64": content }))
    };
    let read = |path: &str| ("read_artifact", json!({ "session_id": id, "path": path }));
    let cases = [
        (upload("../a", "AA=="), "invalid_filename"),
        (upload("/etc/passwd", "AA=="), "invalid_filename"),
        (upload("/mnt/data/a", "AA=="), "invalid_filename"),
        (upload("", "AA=="), "invalid_filename"),
        (upload(".", "AA=="), "invalid_filename"),
        (upload("a\0b", "AA=="), "invalid_filename"),
        (upload("a\nb", "AA=="), "invalid_filename"),
        (upload("a\\b", "AA=="), "invalid_filename"),
        (upload(&long, "AA=="), "invalid_filename"),
        (upload("a.csv/below", "AA=="), "invalid_filename"),
        (upload("b", "not base64!"), "invalid_base64"),
        (upload("b", "AA"), "invalid_base64"),
        (upload("b", "AA==AA=="), "invalid_base64"),
        (upload("b", "-_-_"), "invalid_base64"),
        (read("../a.csv"), "invalid_path"),
        (read("/etc/passwd"), "invalid_path"),
        (read("/mnt/data/../../etc/passwd"), "invalid_path"),
        (read("a\0b"), "invalid_path"),
        (read(""), "invalid_path"),
        (read(&long), "invalid_path"),
        (read("missing"), "not_found"),
        (("read_artifact", json!({ "session_id": id, "path": 7 })), "invalid_argument"),
        (("read_artifact", json!({ "session_id": id })), "invalid_argument"),
        (
            ("read_artifact", json!({ "session_id": id, "path": "a.csv", "format": "hex" })),
            "invalid_argument",
        ),
        (("list_artifacts", json!({ "session_id": "no/such" })), "invalid_session_id"),
        (("list_artifacts", json!({ "session_id": "" })), "invalid_session_id"),
        (("list_artifacts", json!({ "session_id": long })), "invalid_session_id"),
        (("list_artifacts", json!({})), "invalid_argument"),
        (("list_artifacts", json!({ "session_id": id, "extra": 1 })), "invalid_argument"),
        (("run_python", json!({ "session_id": id, "code": ["print(1)"] })), "invalid_argument"),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": 0 })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": 61 })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": 1.5 })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "#".repeat(100_001) })),
            "code_too_large",
        ),
        (("run_python", json!({ "session_id": "ü", "code": "1" })), "invalid_session_id"),
    ];
    for ((tool, arguments), code) in cases {
        let shown: String = arguments.to_string().chars().take(120).collect();
        let refused = server.call(tool, arguments).await;
        assert_eq!(refused.error(), code, "{tool} {shown}");
        assert!(text(&refused.json["message"]).len() < 600, "{tool} {shown}");
    }
    assert_eq!(server.files(&id).await, [("a.csv".to_owned(), 1)], "nothing was written");
    let unknown = server.request("tools/call", json!({ "name": "rm", "arguments": {} })).await;
    assert_eq!(unknown["error"]["code"], -32602);
}

async fn nonsense_does_not_end_the_server(on: On) {
    let server = Server::start(on).await;
    for line in [
        "",
        "not json",
        "{",
        "[]",
        "{}",
        "null",
        "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":90001,\"method\":\"tools/call\",\"params\":[]}",
        "{\"jsonrpc\":\"2.0\",\"id\":90002,\"method\":\"no/such\",\"params\":{}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/no-such\"}",
    ] {
        server.send_line(line.to_owned());
    }
    server.send_line("[".repeat(100_000));
    assert_eq!(server.run(&name("nonsense"), "print('well')").await["stdout"], "well\n");
}

async fn the_end_of_input_ends_the_server_during_a_run(on: On) {
    ends_cleanly(on, Server::close_input).await;
}

async fn signals_end_the_server_during_a_run(on: On) {
    ends_cleanly(on, |server| server.signal("TERM")).await;
    ends_cleanly(on, |server| server.signal("INT")).await;
}

async fn ends_cleanly(on: On, how: impl FnOnce(&mut Server)) {
    let mut server = Server::start(on).await;
    let id = name("end");
    let idle = name("end-idle");
    server.upload(&idle, "a", b"").await.ok();
    let code = format!("open('started', 'w')\n{}", until_uploaded("never"));
    let (request, _answer) = server.expect_answer();
    server.send(&json!({
        "jsonrpc": "2.0", "id": request, "method": "tools/call",
        "params": { "name": "run_python", "arguments": { "session_id": id, "code": code } },
    }));
    until("it runs", async || !server.files_if_any(&id).await.is_empty()).await;
    how(&mut server);
    assert_eq!(server.exit_code().await, Some(0));
    if on == On::Docker {
        assert_eq!(support::containers(&id), Vec::<String>::new());
        assert_eq!(support::containers(&idle), Vec::<String>::new());
    }
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}"))
}

/// Bytes that nothing compresses and that end nowhere by chance.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

async fn read(server: &Server, id: &str, path: &str) -> Vec<u8> {
    let arguments = json!({ "session_id": id, "path": path, "format": "base64" });
    let answer: Answer = server.call("read_artifact", arguments).await;
    STANDARD.decode(text(&answer.ok()["content_base64"])).expect("base64")
}
