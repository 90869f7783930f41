//! Runs and their results.

use serde_json::json;
use support::{On, Server, assert_fields, name, on_all, text, until, until_uploaded};
use tokio::join;

on_all! {
    a_program_prints_and_its_exit_code_is_told,
    a_python_error_is_a_normal_result_with_its_source_line,
    every_run_is_a_fresh_process_in_the_data_folder,
    uploaded_modules_can_be_imported_and_left_ones_cannot_hide_a_library,
    a_timeout_keeps_what_was_printed,
    output_over_the_cap_keeps_both_ends_and_the_run_goes_on,
    two_hundred_megabytes_of_output_cost_the_server_next_to_nothing,
    output_that_is_not_utf8_is_shown_as_text,
    a_result_is_short_whatever_a_program_does_and_says_how_to_read_on,
    an_output_is_what_a_terminal_would_show_at_its_end,
    a_second_run_is_refused_at_once,
    a_cancelled_call_kills_its_run,
    ; not on wasm: a_program_killed_by_a_signal_tells_which, a_program_killed_by_a_signal_without_a_name_is_noticed, a_program_starts_with_no_signal_blocked, nothing_that_a_run_started_outlives_it,
}

async fn a_program_prints_and_its_exit_code_is_told(on: On) {
    let (server, id) = (Server::start(on).await, name("print"));
    let run = server.run(&id, "print(2+2)").await;
    assert_fields!(run, {
        "exit_code": 0, "outcome": "ok", "stdout": "4\n", "stderr": "", "stdout_truncated": null,
        "stderr_truncated": null,
    });
    assert_eq!(run["artifacts"], json!([]));
    assert_eq!(run["session_id"], id);
    assert!(run["duration_ms"].is_u64());

    let run = server.run(&id, "import sys\nprint('to stderr', file=sys.stderr)\nsys.exit(3)").await;
    assert_fields!(run, { "exit_code": 3, "outcome": "error", "stdout": "", "stderr": "to stderr\n" });
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
    let (server, id) = (Server::start(on).await, name("fresh"));
    let code =
        "import os\nx = 1\nopen('kept.txt', 'w').write('kept')\nprint(__name__, os.getcwd())";
    let first = server.run(&id, code).await;
    assert!(text(&first["stdout"]).starts_with("__main__ "));
    assert!(on.is_plain() || first["stdout"] == "__main__ /mnt/data\n");
    let second = server.run(&id, "print(open('kept.txt').read())\nprint(x)").await;
    assert_eq!(second["stdout"], "kept\n");
    assert!(text(&second["stderr"]).contains("NameError: name 'x' is not defined"));
}

async fn a_program_killed_by_a_signal_tells_which(on: On) {
    let (server, id) = (Server::start(on).await, name("signal"));
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
    let (server, id) = (Server::start(on).await, name("import"));
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
    let (server, id) = (Server::start(on).await, name("timeout"));
    // Ignores the signals that ask it to end.
    let code = "import signal\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\n\
                open('made.txt', 'w').write('x')\nprint('before')\nwhile True: pass";
    let run = server.run_for(&id, code, 3).await;
    assert_fields!(run, { "exit_code": -1, "outcome": "timeout", "stdout": "before\n" });
    assert!(text(&run["stderr"]).ends_with("Execution timed out after 3 seconds"));
    assert_eq!(run["artifacts"], json!([]));
    assert_eq!(server.run(&id, "print('next')").await["stdout"], "next\n");
}

async fn nothing_that_a_run_started_outlives_it(on: On) {
    let (server, id) = (Server::start(on).await, name("daemon"));
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
    let (server, id) = (Server::start(on).await, name("flood"));
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

async fn an_output_is_what_a_terminal_would_show_at_its_end(on: On) {
    let (server, id) = (Server::start(on).await, name("screen"));
    let code = "import sys\n\
                for n in range(5000): print(f'\\rrow {n}', end='')\n\
                print('\\n\\x1b[31mred\\x1b[0m\\nwindows\\r')\n\
                for n in range(400): print('findfont: no such font', file=sys.stderr)\n\
                print('a', end='\\x1b[2K\\rb', file=sys.stderr)";
    let run = server.run(&id, code).await;
    assert_eq!(run["stdout"], "row 4999\nred\nwindows\n");
    let stderr = "findfont: no such font\n[... the same line 399 more times ...]\nb";
    assert_eq!(run["stderr"], stderr);
    // Output before the end is returned, in whatever way the run ends.
    let code = "import time\nprint('\\rhalf', end='', flush=True)\nwhile True: pass";
    let run = server.run_for(&id, code, 3).await;
    assert_eq!(run["stdout"], "half");
}

async fn a_second_run_is_refused_at_once(on: On) {
    let (server, id) = (Server::start(on).await, name("busy"));
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

async fn a_cancelled_call_kills_its_run(on: On) {
    let (server, id) = (Server::start(on).await, name("cancel"));
    let code = format!("open('started', 'w')\n{}", until_uploaded("never"));
    let arguments = json!({ "session_id": id, "code": code });
    let (request, _answer) = server.begin("run_python", arguments);
    until("it runs", async || !server.files_if_any(&id).await.is_empty()).await;
    server.cancel(request);
    // Succeeds at once, while the cancelled program is still being killed.
    assert_eq!(server.run(&id, "print('free')").await["stdout"], "free\n");
}

async fn a_result_is_short_whatever_a_program_does_and_says_how_to_read_on(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_OUTPUT_BYTES", "20KB")]).await;
    let id = name("short");
    let files = "for n in range(60): open('/'.join(['\"' * 200] * 4) + f'/{n:02}', 'w')";
    for (stdout, stderr, more) in [
        ("'\\x01' * 20_000", "'\\x01' * 20_000", "pass"),
        ("'line\\n' * 4_000", "'\"' * 15_000", "pass"),
        ("'\\x01' * 6_000", "'x'", "pass"),
        ("'\\\\' * 3_000_000", "''", "pass"),
        ("'😀東é' * 2_000", "'\\x1b' * 9_000", "pass"),
        ("'x' * 19_000", "'y' * 19_000", files),
        ("'\\x02' * 2_300", "'\\x03' * 2_300", files),
    ] {
        let code = format!(
            "import os, sys\nos.makedirs('/'.join(['\"' * 200] * 4), exist_ok=True)\n{more}\n\
             sys.stdout.write({stdout})\nsys.stderr.write({stderr})"
        );
        let arguments = json!({ "session_id": id, "code": code });
        let answer = server.call("run_python", arguments).await;
        let shown = answer.raw["content"][0]["text"].as_str().expect("a text").to_owned();
        let run = answer.ok();
        assert!(shown.encode_utf16().count() < 40_000, "{stdout} {stderr}: {}", shown.len());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).ok(), Some(run.clone()));
        if more == files {
            let listed = run["artifacts"].as_array().map_or(0, Vec::len) as u64;
            assert_eq!(run["artifacts_omitted"], 60 - listed, "{stdout}");
        }
        // The omitted part can be read from the offset in the line.
        for stream in ["stdout", "stderr"] {
            let text = run[stream].as_str().expect("a text");
            if run.get(format!("{stream}_truncated")).is_none() {
                assert!(!text.contains("left out"), "{stream} of {stdout} {stderr}");
                continue;
            }
            let (head, line) = text.split_once("\n[... ").expect("a line says so");
            let (line, tail) = line.split_once(" ...]\n").expect("it ends");
            let read = async |offset: usize, length: usize| {
                let arguments = json!({
                    "session_id": id, "run_id": run["run_id"], "stream": stream,
                    "offset": offset, "length": length,
                });
                server.call("read_output", arguments).await.ok()
            };
            assert_eq!(read(0, head.len()).await["text"], head);
            let rest = read(head.len(), 4).await;
            assert_ne!(rest["text"], "", "{line}");
            let omitted: u64 =
                line.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
            assert_eq!(rest["total_bytes"], omitted + (head.len() + tail.len()) as u64, "{line}");
        }
    }
}
