//! The commands for people at a shell.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

use serde_json::{Value, json};
use support::{
    On, Server,
    index::{Index, Wheel},
    on_docker, program,
    registry::Registry,
    web::Web,
};
use tokio::{io::AsyncWriteExt, time::timeout};

mod wasm {
    use super::*;

    /// Runs a server over stdio, which ends by itself if it may not use its folder.
    async fn ended(folder: &Path, settings: &[(&str, &str)]) -> Output {
        run(folder, settings, &["serve"]).await
    }

    #[tokio::test]
    async fn a_state_folder_is_one_servers_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let states = folder.path().join("states");
        let settings =
            [("SANDBOX_STATE_DIR", states.to_str().unwrap()), ("SANDBOX_ENGINE", "wasm")];
        let first = Server::launch(On::Wasm, &settings);
        support::until("it has the folder", async || states.exists()).await;
        support::until("it holds it", async || {
            out(&run(folder.path(), &settings, &["doctor"]).await)
                .contains("which a server is using")
        })
        .await;
        let second = ended(folder.path(), &settings).await;
        assert_eq!(second.status.code(), Some(69), "{}", err(&second));
        let told = err(&second);
        assert!(
            told.contains(states.to_str().unwrap()) && told.contains("another server"),
            "{told}"
        );
        drop(first);
        support::until("the next has it", async || {
            ended(folder.path(), &settings).await.status.code() == Some(0)
        })
        .await;
    }

    #[tokio::test]
    async fn of_a_folder_that_others_can_write_to_the_remedy_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (states, runtime) = (folder.path().join("states"), folder.path().join("runtime"));
        let own = support::runtime_folder();
        fs::create_dir(&runtime).unwrap();
        for entry in fs::read_dir(own).unwrap().flatten() {
            std::os::unix::fs::symlink(entry.path(), runtime.join(entry.file_name())).unwrap();
        }
        fs::create_dir(&states).unwrap();
        let settings = [
            ("SANDBOX_STATE_DIR", states.to_str().unwrap()),
            ("SANDBOX_RUNTIME_DIR", runtime.to_str().unwrap()),
            ("SANDBOX_ENGINE", "wasm"),
        ];
        for open in [&states, &runtime] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
            let output = run_to(1, folder.path(), &settings, &["doctor"]).await;
            let remedy = format!("chmod go-w {}", open.display());
            assert!(out(&output).contains(&remedy), "{}", out(&output));
            assert_eq!(out(&output).matches("FAIL").count(), 1, "{}", out(&output));
            fs::set_permissions(open, fs::Permissions::from_mode(0o700)).unwrap();
        }
        run_to(0, folder.path(), &settings, &["doctor"]).await;
    }

    #[tokio::test]
    async fn where_neither_engine_can_be_used_both_ways_out_are_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("s.py"), "print(1)").unwrap();
        let settings = [("DOCKER_HOST", "unix:///nowhere/docker.sock")];
        let is_told = |text: &str| {
            assert!(text.contains("systemctl start docker"), "{text}");
            assert!(text.contains("llm-sandbox runtime install"), "{text}");
        };
        let doctor = run(folder.path(), &settings, &["doctor"]).await;
        is_told(&out(&doctor));
        let chosen = out(&doctor);
        let chosen = chosen.lines().find(|line| line.contains("chosen")).unwrap();
        assert!(chosen.starts_with("FAIL"), "{chosen}");
        let script = run_to(69, folder.path(), &settings, &["run", "s.py"]).await;
        is_told(&err(&script));
        let named = [settings[0], ("SANDBOX_ENGINE", "docker")];
        let script = run(folder.path(), &named, &["run", "s.py"]).await;
        assert!(!err(&script).contains("runtime install"), "who chose one is told of that");
    }

    #[tokio::test]
    async fn a_script_leaves_nothing_in_the_state_folder_of_a_server() {
        let folder = tempfile::tempdir().unwrap();
        let states = folder.path().join("states");
        let own = support::runtime_folder();
        let settings = [
            ("SANDBOX_STATE_DIR", states.to_str().unwrap()),
            ("SANDBOX_RUNTIME_DIR", own.to_str().unwrap()),
            ("SANDBOX_ENGINE", "wasm"),
        ];
        fs::write(folder.path().join("s.py"), "print(6 * 7)").unwrap();
        let output = run(folder.path(), &settings, &["run", "s.py"]).await;
        assert_eq!(
            (out(&output), output.status.code()),
            ("42\n".into(), Some(0)),
            "{}",
            err(&output)
        );
        assert!(!states.exists());
    }
}

on_docker! {
    the_guard_of_a_server_removes_what_it_left_whatever_became_of_the_settings,
    a_script_runs_in_a_container,
    the_doctor_finds_a_healthy_machine_healthy,
    the_doctor_names_the_remedy_for_each_fault,
    the_doctor_fetches_a_package_where_there_may_be_some,
    an_image_that_is_up_to_date_is_not_built_again,
}

async fn run(folder: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
    let child = program(folder, settings).args(arguments).stdin(Stdio::null()).output();
    timeout(support::PATIENCE, child).await.expect("ends in time").expect("starts")
}

/// Runs the program, which must end with this code.
async fn run_to(code: i32, folder: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
    let output = run(folder, settings, arguments).await;
    let (out, err) = (out(&output), err(&output));
    assert_eq!(output.status.code(), Some(code), "{settings:?} {arguments:?}: {out}{err}");
    output
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
    let output = run_to(64, folder.path(), &settings, &["--env-file", ".env"]).await;
    for name in ["SANDBOX_CPU_LIMIT", "SANDBOX_MEMORY_LIMIT", "SANDBOX_TYPO"] {
        assert!(err(&output).contains(name), "{name}: {}", err(&output));
    }
    assert_eq!(out(&output), "", "standard output is the protocol's");
}

#[tokio::test]
async fn a_setting_comes_from_the_file_unless_the_environment_has_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.py"), "import time; time.sleep(60)").unwrap();
    fs::write(folder.path().join("settings"), "SANDBOX_EXEC_TIMEOUT_S=1\n").unwrap();
    let arguments = ["--no-isolation", "run", "s.py", "--env-file", "settings"];
    let output = run_to(124, folder.path(), &[], &arguments).await;
    assert!(err(&output).contains("Execution timed out after 1 second"));
    let settings = [("SANDBOX_EXEC_TIMEOUT_S", "0")];
    run_to(64, folder.path(), &settings, &arguments).await;
}

#[tokio::test]
async fn a_file_of_settings_that_is_named_must_be_there_and_name_no_other() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("chain"), "SANDBOX_ENV_FILE=/etc/passwd\n").unwrap();
    fs::write(folder.path().join("good"), "SANDBOX_POOL_SIZE=0\n").unwrap();
    let server = ["--no-isolation", "serve"];
    for wrong in ["missing", ".", "chain"] {
        let output =
            run_to(64, folder.path(), &[], &[&server[..], &["--env-file", wrong]].concat()).await;
        assert!(err(&output).contains(&format!("{wrong}: ")), "{}", err(&output));
        run_to(64, folder.path(), &[("SANDBOX_ENV_FILE", wrong)], &server).await;
    }
    for good in ["good", ""] {
        run_to(0, folder.path(), &[("SANDBOX_ENV_FILE", good)], &server).await;
    }
    // The argument takes precedence over the variable, in any position.
    let missing = [("SANDBOX_ENV_FILE", "missing")];
    for arguments in [["--env-file", "good", "serve"], ["serve", "--env-file", "good"]] {
        let arguments = [&["--no-isolation"], &arguments[..]].concat();
        run_to(0, folder.path(), &missing, &arguments).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folder_that_a_client_starts_a_server_in_does_not_configure_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(".env"), "SANDBOX_UPLOAD_ROOTS=/\n").unwrap();
    let upload = json!({ "filename": "name", "local_path": "/etc/hostname" });
    let server = Server::start_as(On::Local, program(folder.path(), &[])).await;
    assert_eq!(server.call("upload_file", upload.clone()).await.error(), "invalid_path");
    let mut named = program(folder.path(), &[]);
    named.args(["--env-file", ".env"]);
    let server = Server::start_as(On::Local, named).await;
    server.call("upload_file", upload.clone()).await.ok();
    let named = program(folder.path(), &[("SANDBOX_ENV_FILE", ".env")]);
    let server = Server::start_as(On::Local, named).await;
    server.call("upload_file", upload).await.ok();

    // A `.env` file with mistakes does not keep a server or a script from starting.
    fs::write(folder.path().join(".env"), "SANDBOX_CPU_LIMIT=none\nSANDBOX_TYPO=1\n").unwrap();
    fs::write(folder.path().join("s.py"), "print('ran')").unwrap();
    let output = run(folder.path(), &[], &["--no-isolation", "run", "s.py"]).await;
    assert_eq!((output.status.code(), &*out(&output)), (Some(0), "ran\n"), "{}", err(&output));
    let server = Server::start_as(On::Local, program(folder.path(), &[])).await;
    server.call("run_python", json!({ "code": "1" })).await.ok();
    // The commands for a server that others use do read it.
    for arguments in [&["doctor"][..], &["token"], &["serve", "--http"]] {
        run_to(64, folder.path(), &[], arguments).await;
    }
}

#[tokio::test]
async fn variables_of_similar_programs_are_read_unless_the_setting_itself_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let show = async |vars: &[(&str, &str)]| {
        let shown = run_to(0, folder.path(), vars, &["config", "show"]).await;
        out(&shown)
    };
    let line = |shown: &str, key: &str| {
        let line = shown.lines().find(|line| line.split(' ').next() == Some(key));
        line.unwrap_or_else(|| panic!("{key}: {shown}")).to_owned()
    };
    let theirs = [
        ("WASM_SANDBOX_TIMEOUT", "20", "sandbox.default_timeout", "20"),
        ("WASM_SANDBOX_MEMORY_MB", "300", "sandbox.default_memory_mb", "300MB"),
        ("WASM_SANDBOX_MAX_OUTPUT", "30000", "sandbox.max_output_bytes", "30000"),
        ("MCP_HTTP_HOST", "127.0.0.2", "transport.http.host", "127.0.0.2"),
        ("MCP_AUTH_TOKEN", "hunter2", "auth.tokens", "(secret)"),
        ("LOG_LEVEL", "warning", "logging.level", "WARN"),
    ];
    // Every program of these tests has a level set; a blank value is none.
    let blank = ("SANDBOX_LOG_LEVEL", "");
    let vars: Vec<_> =
        theirs.iter().map(|(name, value, ..)| (*name, *value)).chain([blank]).collect();
    let shown = show(&vars).await;
    for (name, _, key, value) in theirs {
        let line = line(&shown, key);
        assert!(line.contains(&format!("\"{value}\"  # environment, as {name}")), "{line}");
    }
    assert!(!shown.contains("hunter2"), "{shown}");
    let both = [("LOG_LEVEL", "debug"), ("SANDBOX_LOG_LEVEL", "ERROR")];
    assert!(line(&show(&both).await, "logging.level").contains("\"ERROR\"  # environment"));
    // A value that means nothing here is another program's.
    let other = show(&[("LOG_LEVEL", "verbose"), blank]).await;
    assert!(line(&other, "logging.level").contains("\"INFO\"  # default"), "{other}");
    let told =
        run(folder.path(), &[("LOG_LEVEL", "info"), blank], &["--no-isolation", "serve"]).await;
    assert!(err(&told).contains("LOG_LEVEL"), "{}", err(&told));
}

#[tokio::test]
async fn settings_come_from_a_file_the_environment_and_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    let named = ["--config", path.to_str().unwrap()];
    fs::write(
        &path,
        "sandbox:\n  max_timeout: 20\n  default_memory_mb: 300\nsessions:\n  undo: 3\n",
    )
    .unwrap();
    let wrong = run_to(64, folder.path(), &[], &[&["config", "check"][..], &named].concat()).await;
    let line = format!(
        "{}:5: sessions.undo: there is no such key (did you mean sandbox.undo?)",
        path.display()
    );
    assert!(err(&wrong).contains(&line), "{}", err(&wrong));

    fs::write(&path, "sandbox:\n  max_timeout: 20\n  default_memory_mb: 300\n  undo: 3\n").unwrap();
    let right = run_to(0, folder.path(), &[], &[&["config", "check"][..], &named].concat()).await;
    assert!(out(&right).contains("config.yaml"), "{}", out(&right));
    let env = [("SANDBOX_UNDO", "4")];
    let shown = run_to(0, folder.path(), &env, &[&["config", "show"][..], &named].concat()).await;
    let has = |key: &str, rest: &str| {
        let line = out(&shown).lines().find(|line| line.starts_with(key)).map(str::to_owned);
        let line = line.unwrap_or_default();
        assert!(line.contains(rest), "{line}");
    };
    has("sandbox.max_timeout ", &format!("\"20\"  # {}:2", path.display()));
    has("sandbox.undo ", "\"4\"  # environment");
    has("sandbox.cpus ", "\"1.0\"  # default");

    // The program reads the file in the user's folder, and none in the working folder.
    let home = folder.path().join("home/llm-sandbox");
    fs::create_dir_all(&home).unwrap();
    fs::copy(&path, home.join("config.yaml")).unwrap();
    let home = home.parent().unwrap().to_str().unwrap();
    let usual = [("XDG_CONFIG_HOME", home), ("SANDBOX_CONFIG_FILE", "")];
    let found = run_to(0, folder.path(), &usual, &["config", "check"]).await;
    assert!(out(&found).contains("home/llm-sandbox/config.yaml"), "{}", out(&found));

    // Options win over all of them.
    let options = ["serve", "--transport", "carrier-pigeon", "--port", "0"];
    let refused = run_to(64, folder.path(), &[], &options).await;
    assert!(err(&refused).contains("\"carrier-pigeon\" is not stdio or http"), "{}", err(&refused));
    let schema = run_to(0, folder.path(), &[], &["config", "schema"]).await;
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert_eq!(schema["properties"]["sandbox"]["properties"]["undo"]["default"], "5");
}

#[tokio::test]
async fn of_a_misspelt_setting_the_one_that_was_meant_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, meant) in [
        ("SANDBOX_MEMORY_LIMT", "SANDBOX_MEMORY_LIMIT"),
        ("SANDBOX_PORT", "SANDBOX_HTTP_PORT"),
        ("SANDBOX_TOKENS", "SANDBOX_AUTH_TOKENS or SANDBOX_AUTH_TOKENS_FILE"),
    ] {
        let output = run_to(64, folder.path(), &[(name, "1")], &["doctor"]).await;
        let line = format!("{name}: there is no such setting (did you mean {meant}?)");
        assert!(err(&output).contains(&line), "{}", err(&output));
    }
    // The prefix may be the mistake.
    for name in ["SANBOX_EXEC_TIMEOUT_S", "LLM_SANDBOX_EXEC_TIMEOUT_S"] {
        let settings = [(name, "30"), ("SANDBOX_LOG_LEVEL", "WARN")];
        let output = run(folder.path(), &settings, &["--no-isolation", "serve"]).await;
        let line = format!("{name} has no effect: here it is called SANDBOX_EXEC_TIMEOUT_S");
        assert!(err(&output).contains(&line), "{}", err(&output));
    }
    let token = [("SANBOX_AUTH_TOKENS", "me:secret")];
    let refused = run_to(64, folder.path(), &token, &["--no-isolation", "serve", "--http"]).await;
    assert!(!err(&refused).contains("secret"), "{}", err(&refused));
}

#[tokio::test]
async fn limits_that_leave_no_room_to_preload_are_told_at_the_start_and_by_the_doctor() {
    let folder = tempfile::tempdir().unwrap();
    let said = "no libraries are preloaded";
    let told = async |more: &[(&str, &str)]| {
        let usual =
            [("SANDBOX_DATA_LIMIT", "300MB"), ("SANDBOX_LOG_LEVEL", "WARN"), support::PRELOADED];
        let settings = [&usual[..], more].concat();
        let server = run(folder.path(), &settings, &["--no-isolation", "serve"]).await;
        let doctor = run(folder.path(), &settings, &["--no-isolation", "doctor"]).await;
        [err(&server), out(&doctor)]
    };
    for text in told(&[]).await {
        assert!(text.contains(said) && text.contains("SANDBOX_MEMORY_LIMIT=550MB"), "{text}");
    }
    for enough in [("SANDBOX_MEMORY_LIMIT", "550MB"), ("SANDBOX_PRELOAD", "json")] {
        for text in told(&[enough]).await {
            assert!(!text.contains(said), "{enough:?}: {text}");
        }
    }
}

#[tokio::test]
async fn who_starts_a_server_for_a_client_in_a_terminal_is_told_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let in_a_terminal = async |arguments: &str| {
        let command = program(folder.path(), &[]);
        let server = command.as_std().get_program().to_str().unwrap().to_owned();
        let words = format!("exec {server} --no-isolation {arguments}");
        let mut script = tokio::process::Command::new("script");
        script.args(["--quiet", "--echo", "never", "--return", "--command", &words, "/dev/null"]);
        script.current_dir(folder.path()).stdin(Stdio::null());
        for (name, value) in command.as_std().get_envs() {
            if let Some(value) = value {
                script.env(name, value);
            }
        }
        let ended = timeout(support::PATIENCE, script.output()).await.expect("ends in time");
        out(&ended.expect("`script` of util-linux"))
    };
    let told = in_a_terminal("").await;
    assert!(told.contains("claude mcp add sandbox -- llm-sandbox"), "{told}");
    assert!(told.contains("serve --http") && told.contains("--help"), "{told}");
    // A client over a pipe gets none of this text.
    let piped = run(folder.path(), &[], &["--no-isolation"]).await;
    assert_eq!((out(&piped), err(&piped)), (String::new(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_for_http_logs_its_page_and_whether_everybody_here_has_access() {
    let folder = tempfile::tempdir().unwrap();
    for (token, is_open) in [(None, true), (Some("me:token"), false)] {
        let log = folder.path().join(format!("{is_open}.log"));
        let mut settings =
            vec![("SANDBOX_LOG_FILE", log.to_str().unwrap()), ("SANDBOX_LOG_LEVEL", "INFO")];
        settings.extend(token.map(|token| ("SANDBOX_AUTH_TOKENS", token)));
        let web = Web::start(On::Local, &settings).await;
        let page = format!("page=\"{}/\"", web.base);
        support::until("the start is logged", async || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("NOTHING IS ISOLATED"))
        })
        .await;
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.contains(&page), "{text}");
        assert_eq!(text.contains("everybody on this machine has access"), is_open, "{text}");
    }
}

#[tokio::test]
async fn fuel_that_nobody_counts_is_told_at_the_start_and_by_the_doctor() {
    let folder = tempfile::tempdir().unwrap();
    let said = "SANDBOX_FUEL has no effect: only the embedded engine";
    for (fuel, is_told) in [("1000000", 1), ("0", 0)] {
        let settings = [("SANDBOX_FUEL", fuel), ("SANDBOX_LOG_LEVEL", "WARN")];
        let server = run(folder.path(), &settings, &["--no-isolation", "serve"]).await;
        assert_eq!(err(&server).matches(said).count(), is_told, "{}", err(&server));
        let doctor = run(folder.path(), &settings, &["--no-isolation", "doctor"]).await;
        assert_eq!(out(&doctor).matches(said).count(), is_told, "{}", out(&doctor));
    }
}

#[tokio::test]
async fn a_server_for_http_says_which_file_it_read_and_so_does_the_doctor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join(".env");
    let port = support::free_port();
    fs::write(&path, format!("SANDBOX_HTTP_PORT={port}\nSANDBOX_TRANSPORT=http\n")).unwrap();
    let log = folder.path().join("server.log");
    let settings = [("SANDBOX_LOG_FILE", log.to_str().unwrap()), ("SANDBOX_LOG_LEVEL", "INFO")];
    let shown = path.to_str().unwrap();
    let output = run(&path.with_file_name(""), &settings, &["doctor"]).await;
    let line = out(&output).lines().find(|line| line.contains("  settings ")).unwrap().to_owned();
    assert!(line.contains(shown) && line.contains("--env-file"), "{line}");

    // Chosen by the environment, by the named file, or by the argument.
    for (variable, arguments) in
        [(Some("http"), &[][..]), (None, &["--env-file", ".env"]), (None, &["serve", "--http"])]
    {
        let _ = fs::remove_file(&log);
        let mut command = program(&path.with_file_name(""), &settings);
        command.env_remove("SANDBOX_HTTP_PORT").arg("--no-isolation").args(arguments);
        command.envs(variable.map(|value| ("SANDBOX_TRANSPORT", value))).kill_on_drop(true);
        let mut server = command.spawn().unwrap();
        support::until("the line", async || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains('\n'))
        })
        .await;
        server.kill().await.unwrap();
        let log = fs::read_to_string(&log).unwrap();
        let first = log.lines().next().unwrap();
        assert!(first.contains(&format!("127.0.0.1:{port}")), "{arguments:?}: {first}");
        assert!(first.contains(&format!("env_file=\"{shown}\"")), "{arguments:?}: {first}");
    }
}

async fn the_guard_of_a_server_removes_what_it_left_whatever_became_of_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (owner, id) = (format!("v1/{}/1/1/1", support::name("boot")), support::name("guarded"));
    let labels =
        ["app=llm-sandbox", &format!("session_id={id}"), &format!("llm-sandbox.owner={owner}")];
    let mut create = std::process::Command::new("docker");
    create.arg("create").args(labels.iter().flat_map(|label| ["--label", label]));
    assert!(create.arg("llm-sandbox:latest").output().unwrap().status.success());
    assert_eq!(support::containers(&id).len(), 1);
    // The server's settings file may have changed since the server started.
    let wrong = [("SANDBOX_CPU_LIMIT", "none"), ("SANDBOX_ENV_FILE", "missing")];
    run_to(0, folder.path(), &wrong, &["guard", &owner]).await;
    assert_eq!(support::containers(&id), Vec::<String>::new());
}

#[tokio::test]
async fn an_unknown_argument_is_code_64_and_help_is_not() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(folder.path(), &[], &["--no-such"]).await.status.code(), Some(64));
    let help = run_to(0, folder.path(), &[], &["--help"]).await;
    for command in ["serve", "image", "doctor", "run", "token", "health"] {
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
    run_to(3, folder.path(), &[], &[arguments, &["run", "script.py"]].concat()).await;
    let output =
        run_to(64, folder.path(), &[], &[arguments, &["run", "missing.py"]].concat()).await;
    assert!(err(&output).contains("missing.py"));
}

#[tokio::test]
async fn a_script_runs_as_a_process() {
    a_script_runs_with_its_files_and_its_exit_code_is_passed_on(&["--no-isolation"]).await;
}

async fn a_script_runs_in_a_container() {
    a_script_runs_with_its_files_and_its_exit_code_is_passed_on(&[]).await;
}

#[tokio::test]
async fn a_script_runs_in_the_language_that_its_name_says() {
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in [
        ("s.py", "print([6 * 7][-1])"),
        ("s", "print([6 * 7][-1])"),
        ("s.js", "console.log([6 * 7].at(-1))"),
        ("s.sh", "all=(42); echo ${all[-1]}"),
    ] {
        fs::write(folder.path().join(name), script).unwrap();
        let output = run(folder.path(), &[], &["--no-isolation", "run", name]).await;
        let ended = (out(&output), output.status.code());
        assert_eq!(ended, ("42\n".into(), Some(0)), "{name}: {}", err(&output));
    }
    fs::write(folder.path().join("s.rb"), "puts 42").unwrap();
    let output = run_to(64, folder.path(), &[], &["--no-isolation", "run", "s.rb"]).await;
    assert!(err(&output).contains(".py"), "{}", err(&output));
}

#[tokio::test]
async fn what_stops_a_script_from_running_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.py"), "print(1)").unwrap();
    let settings = [
        ("DOCKER_HOST", "unix:///nowhere/docker.sock"),
        ("SANDBOX_ENGINE", "docker"),
        ("SANDBOX_LOG_LEVEL", "INFO"),
    ];
    let output = run_to(69, folder.path(), &settings, &["run", "s.py"]).await;
    assert_eq!(err(&output).matches("systemctl start docker").count(), 1, "{}", err(&output));
    assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
}

/// A Podman engine that answers each request, and refuses each container with its whole description.
fn refusing_engine(request: &axum::extract::Request, protocol: &str) -> axum::response::Response {
    use axum::{Json, http::StatusCode, response::IntoResponse};
    let path = request.uri().path().to_owned();
    if path.ends_with("/containers/create") {
        let message =
            format!("container create: open {{{}}}: no rights", "\n  \"a\": 1,".repeat(999));
        let body = json!({ "cause": "x", "message": message, "response": 500 });
        return (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response();
    }
    let labels = json!({ "llm-sandbox.protocol": protocol });
    Json(match path.rsplit('/').next() {
        Some("version") => json!({
            "Version": "5.4.2", "ApiVersion": "1.41",
            "Components": [{ "Name": "Podman Engine", "Version": "5.4.2" }],
        }),
        Some("info") if path.contains("libpod") => json!({ "host": {
            "cgroupControllers": ["memory", "pids"],
            "idMappings": { "uidmap": [{ "container_id": 0, "host_id": 1, "size": 65_537 }] },
        } }),
        Some("info") => json!({
            "NCPU": 2, "CgroupVersion": "2", "Rootless": true,
            "SecurityOptions": ["name=seccomp,profile=default"],
            "DefaultRuntime": "crun", "Runtimes": { "crun": { "path": "crun" } },
        }),
        _ => json!({ "Id": "sha256:0", "Size": 1, "Config": { "Labels": labels } }),
    })
    .into_response()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_tries_a_sandbox_and_tells_in_one_line_why_none_starts() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("podman.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let dead = [("DOCKER_HOST", "unix:///nowhere/docker.sock"), ("SANDBOX_ENGINE", "docker")];
    let told = out(&run_to(1, folder.path(), &dead, &["doctor"]).await);
    let first = told.lines().next().unwrap_or_default();
    let protocol = first.rsplit(' ').next().unwrap_or_default().to_owned();
    let app =
        axum::Router::new().fallback(async move |request| refusing_engine(&request, &protocol));
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let host = format!("unix://{}", socket.display());
    let settings = [
        ("DOCKER_HOST", &*host),
        ("SANDBOX_ENGINE", "docker"),
        ("XDG_RUNTIME_DIR", folder.path().to_str().unwrap()),
    ];
    let output = run_to(1, folder.path(), &settings, &["doctor"]).await;
    let told = out(&output);
    let engine = format!("ok    engine     Podman 5.4.2, rootless, at {host}\n");
    assert!(told.contains(&engine), "{told}");
    assert!(told.contains("warn  limits     the engine cannot limit processors\n"), "{told}");
    let line = told.lines().find(|line| line.starts_with("FAIL  start ")).unwrap_or_default();
    assert!(line.contains("no sandbox starts: ") && line.contains("no rights"), "{told}");
    assert!(told.lines().all(|line| line.len() < 500), "{told}");
    // The file for the engine has been removed.
    let left = fs::read_dir(folder.path()).unwrap().flatten().map(|found| found.file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("profiles")));
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_ends_with_what_to_do_next() {
    let folder = tempfile::tempdir().unwrap();
    let last = async |settings: &[(&str, &str)]| {
        let output = run(folder.path(), settings, &["--no-isolation", "doctor"]).await;
        out(&output).lines().last().unwrap_or_default().to_owned()
    };
    let next = last(&[]).await;
    assert!(next.starts_with("Ready. Next: claude mcp add sandbox -e SANDBOX_"), "{next}");
    assert!(next.contains(" -- /"), "{next}");
    let http = last(&[("SANDBOX_TRANSPORT", "http"), ("SANDBOX_HTTP_PORT", "8099")]).await;
    assert!(http.contains("serve --http") && http.contains("http://127.0.0.1:8099/mcp"), "{http}");
    let web = Web::start(On::Local, &[]).await;
    let port = web.base.rsplit(':').next().unwrap();
    let served = last(&[("SANDBOX_HTTP_PORT", port)]).await;
    assert!(served.contains(&format!("{}/mcp", web.base)), "{served}");
    let dead = [("DOCKER_HOST", "unix:///nowhere/docker.sock"), ("SANDBOX_ENGINE", "docker")];
    let output = run(folder.path(), &dead, &["doctor"]).await;
    assert!(out(&output).lines().last().unwrap().starts_with("Not ready: "), "{}", out(&output));
}

async fn the_doctor_finds_a_healthy_machine_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_to(0, folder.path(), &[], &["doctor"]).await;
    let chosen =
        "ok    chosen     docker (the embedded engine, which is the alternative, is not set up)\n";
    assert!(out(&output).contains(chosen), "{}", out(&output));
    for check in ["engine", "api", "seccomp", "runtime", "image"] {
        assert!(out(&output).contains(&format!("ok    {check} ")), "{check}: {}", out(&output));
    }
    // Both versions of cgroups will do; for version 1, the line says what it lacks.
    let [second, first] =
        ["ok    cgroup     version 2\n", "warn  cgroup     version 1 does not count"]
            .map(|line| out(&output).contains(line));
    assert!(second != first, "{}", out(&output));
}

async fn the_doctor_names_the_remedy_for_each_fault() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[("DOCKER_HOST", "unix:///nonexistent.sock")], "sudo systemctl start docker"),
        (&[("SANDBOX_IMAGE", "no-such-image:latest")], "-> llm-sandbox image build"),
        (&[("SANDBOX_IMAGE", "debian:trixie-slim")], "-> llm-sandbox image build"),
        (&[("SANDBOX_RUNTIME", "no-such-runtime")], "-> Set SANDBOX_RUNTIME"),
    ];
    for (settings, remedy) in cases {
        let output = run_to(1, folder.path(), settings, &["doctor"]).await;
        assert!(out(&output).contains(remedy), "{settings:?}: {}", out(&output));
    }
}

async fn the_doctor_fetches_a_package_where_there_may_be_some() {
    let folder = tempfile::tempdir().unwrap();
    let host = support::index::engine_host();
    let (index, registry) = (Index::start_on(&host).await, Registry::start_on(&host).await);
    index.add(Wheel::new("wanted", "1.0"));
    let mut settings = [index.settings(), registry.settings()].concat();
    settings.push(("SANDBOX_PACKAGES", "wanted, npm:nowhere"));
    let output = run_to(0, folder.path(), &settings, &["doctor"]).await;
    for line in [
        "ok    packages   for Python: wanted 1.0 was fetched\n",
        "ok    packages   for JavaScript: the index answers. The package index for JavaScript has no nowhere.",
    ] {
        assert!(out(&output).contains(line), "{}", out(&output));
    }
    let away = format!("http://{host}:1/simple/");
    settings.push(("PIP_INDEX_URL", &away));
    let output = run_to(1, folder.path(), &settings, &["doctor"]).await;
    assert!(out(&output).contains("-> Set the index, its proxy"), "{}", out(&output));
}

async fn an_image_that_is_up_to_date_is_not_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_to(0, folder.path(), &[], &["image", "build", "--if-needed"]).await;
    assert_eq!(out(&output), "The image llm-sandbox:latest exists and is up to date.\n");
}

#[tokio::test]
async fn nothing_but_the_protocol_is_written_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [("SANDBOX_LOG_LEVEL", "TRACE"), ("SANDBOX_LOG_FILE", "log/server.log")];
    let output = run_to(0, folder.path(), &settings, &["--no-isolation"]).await;
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
    }
    let none = err(&run(folder.path(), &[], &["token"]).await);
    for word in ["SANDBOX_AUTH_TOKENS_FILE", "SANDBOX_AUTH_TOKENS ", ".env", "--env-file"] {
        assert!(none.contains(word), "{word}: {none}");
    }
    let other = err(&run(folder.path(), &set, &["token", "cat"]).await);
    assert!(other.contains("ann, ben") && !other.contains("a1"), "{other}");
    fs::write(folder.path().join(".env"), "SANDBOX_AUTH_TOKENS=me:in-file\n").unwrap();
    assert_eq!(out(&run(folder.path(), &[], &["token"]).await), "in-file\n");
    fs::remove_file(folder.path().join(".env")).unwrap();
    let file = [("SANDBOX_AUTH_TOKENS_FILE", "tokens")];
    // Only the server creates this file: if the command created it, its token would let nobody in.
    let missing = run(folder.path(), &file, &["token"]).await;
    assert_eq!((missing.status.code(), &*out(&missing)), (Some(64), ""));
    assert!(err(&missing).contains("no file tokens yet"), "{}", err(&missing));
    fs::write(folder.path().join("tokens"), "me:kept\n").unwrap();
    assert_eq!(out(&run(folder.path(), &file, &["token"]).await), "kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_made_lets_in_and_is_in_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, log) = (folder.path().join("tokens"), folder.path().join("server.log"));
    let settings = [
        ("SANDBOX_AUTH_TOKENS_FILE", tokens.to_str().unwrap()),
        ("SANDBOX_HTTP_HOST", "0.0.0.0"),
        ("SANDBOX_ALLOW_INSECURE_HTTP", "true"),
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
    assert!(!log.contains(&token));
    // The command in the log line works in any folder and without the server's settings.
    let said = log.split('`').find(|said| said.contains("llm-sandbox token")).unwrap();
    let program = support::binary();
    let said = said.replace("llm-sandbox token", &format!("'{}' token", program.display()));
    let printed = std::process::Command::new("sh").args(["-c", &said]).current_dir("/").output();
    assert_eq!(out(&printed.unwrap()).trim(), token, "{said}");
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
            ("SANDBOX_ALLOW_INSECURE_HTTP", "true"),
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
    assert!(out(&output).contains("in use by an llm-sandbox server"), "{}", out(&output));
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
            ("SANDBOX_ALLOW_INSECURE_HTTP", "true"),
            ("SANDBOX_AUTH_TOKENS", "me:token"),
        ];
        let well = run_to(0, folder.path(), &settings, &["health"]).await;
        assert!(out(&well).contains("ready"), "{}", out(&well));
    }
    let nobody = support::free_port();
    let unwell = run(folder.path(), &[("SANDBOX_HTTP_PORT", &nobody)], &["health"]).await;
    assert_eq!((unwell.status.code(), &*out(&unwell)), (Some(1), ""));
    assert!(err(&unwell).contains(&nobody), "{}", err(&unwell));
    let engineless = [("DOCKER_HOST", "unix:///nonexistent.sock")];
    let web = Web::start(On::Docker, &engineless).await;
    let port = web.base.rsplit(':').next().unwrap();
    let unready = run_to(1, folder.path(), &[("SANDBOX_HTTP_PORT", port)], &["health"]).await;
    assert!(err(&unready).contains("503"), "{}", err(&unready));
}
