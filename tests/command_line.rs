//! The commands for a person at a shell.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

use support::{On, program, web::Web};
use tokio::{io::AsyncWriteExt, time::timeout};

async fn run(folder: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
    let child = program(folder, settings).args(arguments).stdin(Stdio::null()).output();
    timeout(support::PATIENCE, child).await.expect("ends in time").expect("starts")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn all_mistakes_in_the_settings_are_told_at_once_with_code_64() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".env"), "OTHER=1\nSANDBOX_CPU_LIMIT=none\n").unwrap();
    let settings = [("SANDBOX_MEMORY_LIMIT", "lots"), ("SANDBOX_TYPO", "1")];
    let output = run(folder.path(), &settings, &[]).await;
    assert_eq!(output.status.code(), Some(64));
    for name in ["SANDBOX_CPU_LIMIT", "SANDBOX_MEMORY_LIMIT", "SANDBOX_TYPO"] {
        assert!(err(&output).contains(name), "{name}: {}", err(&output));
    }
    assert_eq!(out(&output), "", "standard output is the protocol's");
}

#[tokio::test]
async fn a_setting_comes_from_the_file_unless_the_environment_has_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.py"), "import time; time.sleep(60)").unwrap();
    fs::write(folder.path().join(".env"), "SANDBOX_EXEC_TIMEOUT_S=1\n").unwrap();
    let output = run(folder.path(), &[], &["--no-isolation", "run", "s.py"]).await;
    assert_eq!(output.status.code(), Some(124), "{}", err(&output));
    assert!(err(&output).contains("Execution timed out after 1 seconds"));
    let settings = [("SANDBOX_EXEC_TIMEOUT_S", "0")];
    let output = run(folder.path(), &settings, &["--no-isolation", "run", "s.py"]).await;
    assert_eq!(output.status.code(), Some(64));
}

#[tokio::test]
async fn an_unknown_argument_is_code_64_and_help_is_not() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(folder.path(), &[], &["--no-such"]).await.status.code(), Some(64));
    let help = run(folder.path(), &[], &["--help"]).await;
    assert_eq!(help.status.code(), Some(0));
    for command in ["serve", "image", "doctor", "run", "token", "health", "engine-relay"] {
        assert!(out(&help).contains(&format!("  {command} ")), "{command}");
    }
    assert!(!out(&help).contains("isolation"), "not for users");
}

async fn a_script_runs_with_its_files_and_its_exit_code_is_passed_on(arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("data.csv"), "x\n1\n2\n").unwrap();
    let script = "import csv, os, sys\n\
                  total = sum(int(row['x']) for row in csv.DictReader(open('data.csv')))\n\
                  os.makedirs('deep'); open('deep/total.txt', 'w').write(str(total))\n\
                  print('total', total, sys.stdin.read())\nprint('careful', file=sys.stderr)";
    fs::write(path("script.py"), script).unwrap();
    let given = ["run", "script.py", "--file", "data.csv", "--out", "made", "--stdin", "-"];
    let mut child = program(folder.path(), &[])
        .args(arguments)
        .args(given)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"given").await.unwrap();
    let output = timeout(support::PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output), "total 3 given\n");
    assert!(err(&output).contains("careful\n"));
    assert_eq!(fs::read_to_string(path("made/deep/total.txt")).unwrap(), "3");
    assert!(!path("made/data.csv").exists(), "only what is new or changed");

    fs::write(path("script.py"), "raise SystemExit(3)").unwrap();
    let output = run(folder.path(), &[], &[arguments, &["run", "script.py"]].concat()).await;
    assert_eq!(output.status.code(), Some(3));
    let output = run(folder.path(), &[], &[arguments, &["run", "missing.py"]].concat()).await;
    assert_eq!(output.status.code(), Some(64));
    assert!(err(&output).contains("missing.py"));
}

#[tokio::test]
async fn a_script_runs_as_a_process() {
    a_script_runs_with_its_files_and_its_exit_code_is_passed_on(&["--no-isolation"]).await;
}

#[tokio::test]
async fn a_script_runs_in_a_container() {
    a_script_runs_with_its_files_and_its_exit_code_is_passed_on(&[]).await;
}

#[tokio::test]
async fn the_doctor_finds_a_healthy_machine_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[], &["doctor"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", out(&output));
    for check in ["engine", "api", "seccomp", "runtime", "image"] {
        assert!(out(&output).contains(&format!("ok    {check} ")), "{check}: {}", out(&output));
    }
    // It works with both versions of cgroups, and says what the first lacks.
    let [second, first] =
        ["ok    cgroup     version 2\n", "warn  cgroup     version 1 does not count"]
            .map(|line| out(&output).contains(line));
    assert!(second != first, "{}", out(&output));
}

#[tokio::test]
async fn the_doctor_names_the_remedy_for_each_fault() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[("DOCKER_HOST", "unix:///nonexistent.sock")], "sudo systemctl start docker"),
        (&[("SANDBOX_IMAGE", "no-such-image:latest")], "-> llm-sandbox image build"),
        (&[("SANDBOX_IMAGE", "debian:trixie-slim")], "-> llm-sandbox image build"),
        (&[("SANDBOX_RUNTIME", "no-such-runtime")], "-> Set SANDBOX_RUNTIME"),
    ];
    for (settings, remedy) in cases {
        let output = run(folder.path(), settings, &["doctor"]).await;
        assert_eq!(output.status.code(), Some(1), "{settings:?}");
        assert!(out(&output).contains(remedy), "{settings:?}: {}", out(&output));
    }
}

#[tokio::test]
async fn an_image_that_is_up_to_date_is_not_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &[], &["image", "build", "--if-needed"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output), "The image llm-sandbox:latest is there and up to date.\n");
}

#[tokio::test]
async fn nothing_but_the_protocol_is_written_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [("SANDBOX_LOG_LEVEL", "TRACE"), ("SANDBOX_LOG_FILE", "log/server.log")];
    let output = run(folder.path(), &settings, &["--no-isolation"]).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(out(&output), "");
    assert!(err(&output).contains("serving MCP"));
    assert!(
        fs::read_to_string(folder.path().join("log/server.log")).unwrap().contains("serving MCP")
    );
}

#[tokio::test]
async fn tokens_are_printed_one_a_line_or_those_of_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let set = [("SANDBOX_AUTH_TOKENS", "ann:a1, ben:b:2,ann:a3")];
    assert_eq!(out(&run(folder.path(), &set, &["token"]).await), "a1\nb:2\na3\n");
    assert_eq!(out(&run(folder.path(), &set, &["token", "ann"]).await), "a1\na3\n");
    for (settings, arguments) in [(&set[..], &["token", "cat"][..]), (&[], &["token"])] {
        let output = run(folder.path(), settings, arguments).await;
        assert_eq!((output.status.code(), &*out(&output)), (Some(1), ""), "{arguments:?}");
        assert!(err(&output).contains("no such token"));
    }
    let file = [("SANDBOX_AUTH_TOKENS_FILE", "tokens")];
    let made = out(&run(folder.path(), &file, &["token"]).await);
    let kept = fs::read_to_string(folder.path().join("tokens")).unwrap();
    assert_eq!(kept, format!("me:{made}"));
    assert_eq!(out(&run(folder.path(), &file, &["token"]).await), made);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_made_lets_in_and_is_in_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, log) = (folder.path().join("tokens"), folder.path().join("server.log"));
    let settings = [
        ("SANDBOX_AUTH_TOKENS_FILE", tokens.to_str().unwrap()),
        ("SANDBOX_HTTP_HOST", "0.0.0.0"),
        ("SANDBOX_LOG_FILE", log.to_str().unwrap()),
        ("SANDBOX_LOG_LEVEL", "TRACE"),
    ];
    let mut web = Web::start(On::Local, &settings).await;
    let token = out(&run(folder.path(), &settings, &["token"]).await).trim().to_owned();
    let target = "/files/kept/a.txt";
    assert_eq!(web.caller(None).send("PUT", target, &[], b"1").await.status, 401);
    let put = web.caller(Some(&token)).send("PUT", target, &[], b"1").await;
    assert_eq!(put.status, 201);
    web.signal("TERM");
    assert_eq!(web.exit_code().await, Some(0));
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("`llm-sandbox token` prints the tokens") && !log.contains(&token));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_every_address_logs_no_url_that_is_right_for_some_only() {
    for (host, public, logged) in [
        ("0.0.0.0", None, "address=0.0.0.0:"),
        ("127.0.0.1", None, "url=\"http://127.0.0.1:"),
        ("0.0.0.0", Some("https://example.org"), "url=\"https://example.org/mcp\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("server.log");
        let mut settings = vec![
            ("SANDBOX_HTTP_HOST", host),
            ("SANDBOX_AUTH_TOKENS", "me:token"),
            ("SANDBOX_LOG_FILE", log.to_str().unwrap()),
            ("SANDBOX_LOG_LEVEL", "INFO"),
        ];
        settings.extend(public.map(|url| ("SANDBOX_PUBLIC_URL", url)));
        let mut web = Web::start(On::Local, &settings).await;
        web.signal("TERM");
        assert_eq!(web.exit_code().await, Some(0));
        let log = fs::read_to_string(log).unwrap();
        let line = log.lines().find(|line| line.contains("serving MCP on HTTP")).unwrap();
        assert!(line.contains(logged), "{line}");
        assert_eq!(line.contains("url="), logged.starts_with("url="), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_tells_a_port_of_a_server_from_one_that_something_else_has() {
    let folder = tempfile::tempdir().unwrap();
    let web = Web::start(On::Local, &[]).await;
    let port = web.base.rsplit(':').next().unwrap();
    let output = run(folder.path(), &[("SANDBOX_HTTP_PORT", port)], &["doctor"]).await;
    assert!(out(&output).contains("in use by one of these servers"), "{}", out(&output));
    assert!(!out(&output).contains("warn  port"), "{}", out(&output));
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || drop(other.accept()));
    let output = run(folder.path(), &[("SANDBOX_HTTP_PORT", &port)], &["doctor"]).await;
    assert!(out(&output).contains("warn  port"), "{}", out(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_that_of_the_server_of_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let web = Web::start(On::Local, &[]).await;
    let port = web.base.rsplit(':').next().unwrap();
    for host in ["127.0.0.1", "0.0.0.0"] {
        let settings = [
            ("SANDBOX_HTTP_PORT", port),
            ("SANDBOX_HTTP_HOST", host),
            ("SANDBOX_AUTH_TOKENS", "me:token"),
        ];
        let well = run(folder.path(), &settings, &["health"]).await;
        assert_eq!(well.status.code(), Some(0), "{}", err(&well));
        assert!(out(&well).contains("ready"), "{}", out(&well));
    }
    let nobody = support::free_port();
    let unwell = run(folder.path(), &[("SANDBOX_HTTP_PORT", &nobody)], &["health"]).await;
    assert_eq!((unwell.status.code(), &*out(&unwell)), (Some(1), ""));
    assert!(err(&unwell).contains(&nobody), "{}", err(&unwell));
    let engineless = [("DOCKER_HOST", "unix:///nonexistent.sock")];
    let web = Web::start(On::Docker, &engineless).await;
    let port = web.base.rsplit(':').next().unwrap();
    let unready = run(folder.path(), &[("SANDBOX_HTTP_PORT", port)], &["health"]).await;
    assert_eq!(unready.status.code(), Some(1));
    assert!(err(&unready).contains("503"), "{}", err(&unready));
}
