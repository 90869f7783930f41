//! Callers of the settings file: what their roles and policies let them do, and what changes while the server runs.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use support::{On, name, text, until, web::*};

const FILE: &str = "
policies:
  analysts:
    sandbox: { max_timeout: 7, max_memory_mb: 200 }
    sessions: { max_workspaces_per_client: 1 }
    files: { max_upload_bytes: 10 }
    tools: { toolsets: [run] }
  slow:
    transport: { http: { rate_limit_per_minute: 3 } }
callers:
  - { name: ann, token: secret-ann, policy: analysts }
  - { name: ben, token: secret-ben }
  - { name: sue, token: secret-sue, policy: slow }
  - { name: olga, token: secret-olga, role: operator }
  - { name: rita, token: secret-rita, role: auditor }
";

/// A server with the callers of a settings file, which a test can change.
struct Team {
    web: Web,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Team {
    async fn start(more: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.yaml");
        fs::write(&file, FILE).expect("written");
        let path = file.to_str().expect("UTF-8");
        let settings = [&[("SANDBOX_CONFIG_FILE", path), ("SANDBOX_PRELOAD", "none")], more];
        let web = Web::start(On::Local, &settings.concat()).await;
        Self { web, file, _folder: folder }
    }

    fn caller(&self, who: &str) -> Caller {
        self.web.caller(Some(&format!("secret-{who}")))
    }
}

async fn tools(caller: &Caller) -> Vec<Value> {
    let answers = caller.ask("tools/list", json!({})).await;
    let listed = answers.last().expect("an answer")["result"]["tools"].clone();
    serde_json::from_value(listed).expect("a list")
}

fn named<'a>(tools: &'a [Value], tool: &str) -> Option<&'a Value> {
    tools.iter().find(|listed| listed["name"] == tool)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_offered_the_tools_and_limits_of_its_policy_and_no_more() {
    let team = Team::start(&[("SANDBOX_MAX_HIBERNATED", "0")]).await;
    let (ann, ben) = (team.caller("ann"), team.caller("ben"));
    let (of_ann, of_ben) = (tools(&ann).await, tools(&ben).await);
    assert!(of_ann.len() < of_ben.len());
    let timeout = |tools: &[Value]| {
        let tool = named(tools, "run_python").expect("listed");
        text(&tool["inputSchema"]["properties"]["timeout_s"]["description"]).to_owned()
    };
    assert_eq!(timeout(&of_ann), "Default and limit: 7.");
    assert_eq!(timeout(&of_ben), "Default and limit: 60.");
    let described = text(&named(&of_ann, "run_python").expect("listed")["description"]);
    assert!(described.contains("200MB"), "{described}");
    // Each tool that is not listed is refused.
    for tool in of_ben.iter().filter(|tool| named(&of_ann, text(&tool["name"])).is_none()) {
        let call = json!({ "name": tool["name"], "arguments": {} });
        let answers = ann.ask("tools/call", call).await;
        let message = answers.last().expect("an answer")["error"]["message"].to_string();
        assert!(message.contains("There is no tool"), "{message}");
    }
    let longer = json!({ "code": "print(1)", "timeout_s": 50 });
    let notes = ann.call("run_python", longer).await.ok()["notes"].to_string();
    assert!(notes.contains("7 was used"), "{notes}");
    let second = json!({ "code": "print(1)", "session_id": name("second") });
    assert_eq!(ann.call("run_python", second.clone()).await.error(), "max_sessions");
    ben.call("run_python", second.clone()).await.ok();
    ben.call("run_python", json!({ "code": "print(1)" })).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_over_http_are_limited_by_the_policy_of_their_caller() {
    let team = Team::start(&[]).await;
    let (ann, ben) = (team.caller("ann"), team.caller("ben"));
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"b.txt\"\r\n\r\n\
                more than ten\r\n--b--\r\n";
    let multipart = [("Content-Type", "multipart/form-data; boundary=b")];
    for (caller, [put, post]) in [(&ann, [413, 413]), (&ben, [201, 201])] {
        let path = format!("/files/{}/", name("limited"));
        let answer = caller.send("PUT", &format!("{path}a.txt"), &[], b"more than ten").await;
        assert_eq!(answer.status, put);
        let answer = caller.send("POST", &path, &multipart, form.as_bytes()).await;
        assert_eq!(answer.status, post, "{}", String::from_utf8_lossy(&answer.body));
    }
}

#[tokio::test]
async fn the_tokens_that_the_file_has_in_clear_are_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    let digest = "sha256:".to_owned() + &"0".repeat(64);
    fs::write(folder.path().join("bens"), "of-ben\n\nanother\n\n").expect("written");
    let callers = format!(
        "callers: [{{ name: ann, token: of-ann }}, {{ name: ben, token: 'file:bens' }}, {{ name: cat, token: '{digest}' }}]"
    );
    fs::write(&file, callers).expect("written");
    let file = file.to_str().expect("UTF-8");
    let token = async |more: &[&str]| {
        let mut command = support::program(folder.path(), &[("SANDBOX_CONFIG_FILE", file)]);
        support::ended(command.arg("token").args(more)).await
    };
    let (code, out, _) = token(&[]).await;
    assert_eq!((code, &*out), (Some(0), "of-ann\nof-ben\nanother\n"));
    assert_eq!(token(&["ann"]).await.1, "of-ann\n");
    let (code, _, err) = token(&["cat"]).await;
    assert_eq!(code, Some(1), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_the_policy_of_their_caller() {
    let team = Team::start(&[]).await;
    let (sue, ben) = (team.caller("sue"), team.caller("ben"));
    let status =
        async |caller: &Caller| caller.send("GET", "/files/none/none", &[], &[]).await.status;
    let mut of_sue = vec![];
    for _ in 0..5 {
        of_sue.push(status(&sue).await);
        assert_eq!(status(&ben).await, 404);
    }
    assert_eq!(of_sue, [404, 404, 404, 429, 429]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_auditor_reads_the_audit_file_and_the_metrics_and_calls_no_tool() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("audit.jsonl");
    let path = file.to_str().expect("UTF-8");
    let settings = [("SANDBOX_AUDIT_FILE", path), ("SANDBOX_METRICS_TOKEN", "secret-m")];
    let team = Team::start(&settings).await;
    let (ben, rita) = (team.caller("ben"), team.caller("rita"));
    ben.call("run_python", json!({ "code": "print(1)" })).await.ok();
    let audit = rita.send("GET", "/audit", &[], &[]).await;
    assert_eq!(audit.status, 200);
    assert_eq!(audit.body, fs::read(&file).expect("there"));
    assert_eq!(rita.send("GET", "/metrics", &[], &[]).await.status, 200);
    assert_eq!(ben.send("GET", "/metrics", &[], &[]).await.status, 401);
    let refused =
        rita.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }), &[]).await;
    assert_eq!(refused.status, 403);
    assert!(refused.json()["error"]["message"].to_string().contains("role auditor"));
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_and_policies_are_reloaded_and_no_session_is_lost() {
    let team = Team::start(&[]).await;
    let (ann, ben, new) = (team.caller("ann"), team.caller("ben"), team.caller("new"));
    let session = name("kept");
    let cell = |code: &str| json!({ "session_id": session, "code": code });
    ben.call("execute_code", cell("x = 41")).await.ok();
    let slow = "import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.05)\nx + 1";
    let running = ben.call("execute_code", cell(slow));
    let changing = async {
        let changed = FILE
            .replace("max_timeout: 7", "max_timeout: 9")
            .replace("secret-sue, policy: slow", "secret-new");
        fs::write(&team.file, "callers: [").expect("written");
        team.web.signal("HUP");
        fs::write(&team.file, changed).expect("written");
        team.web.signal("HUP");
        until("the new caller is known", async || {
            new.send("GET", "/sessions", &[], &[]).await.status == 200
        })
        .await;
        assert_eq!(team.caller("sue").send("GET", "/sessions", &[], &[]).await.status, 401);
        let listed = tools(&ann).await;
        let limit = &named(&listed, "run_python").expect("listed")["inputSchema"]["properties"]["timeout_s"]
            ["description"];
        assert_eq!(text(limit), "Default and limit: 9.");
        let go = format!("/files/{session}/go");
        assert_eq!(ben.send("PUT", &go, &[], b"1").await.status, 201);
    };
    let (answer, ()) = tokio::join!(running, changing);
    assert_eq!(answer.ok()["result"], "42");
}
