//! Several servers behind one address, on an API server in this process: each caller's sessions are on one of them, and
//! every server answers for all of them.

use std::{collections::BTreeMap, time::Duration};

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use support::{
    On, PATIENCE, Response, assert_fields, free_port,
    issuer::Issuer,
    kubernetes::Cluster,
    name, text, until,
    web::{Caller, LEGACY, Web},
};

use crate::kubernetes::doctor;

/// The servers of one deployment.
struct Deployment {
    cluster: Cluster,
    folder: tempfile::TempDir,
}

/// One server of a deployment.
struct Replica {
    web: Web,
    /// The address at which the other servers reach this one.
    peers: String,
}

impl Deployment {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        support::key_in(folder.path());
        Self { cluster: Cluster::start(), folder }
    }

    async fn server(&self) -> Replica {
        self.server_with(&[]).await
    }

    async fn server_with(&self, more: &[(&str, &str)]) -> Replica {
        self.server_at(&format!("127.0.0.1:{}", free_port()), more).await
    }

    async fn server_at(&self, peers: &str, more: &[(&str, &str)]) -> Replica {
        let kubeconfig = self.cluster.kubeconfig.display().to_string();
        let key = self.folder.path().join("key").display().to_string();
        let mut settings = vec![
            ("SANDBOX_ENGINE", "kubernetes"),
            ("KUBECONFIG", &kubeconfig),
            ("SANDBOX_KEY_FILE", &key),
            ("SANDBOX_AUTH_TOKENS", "alice:a-token,bob:b-token,carol:c-token"),
            ("SANDBOX_PEER_ADDRESS", peers),
        ];
        settings.extend(more);
        Replica { web: Web::start(On::Kubernetes, &settings).await, peers: peers.to_owned() }
    }

    async fn two(&self) -> (Replica, Replica) {
        (self.server().await, self.server().await)
    }

    /// Starts a server of this name that answers every request in the same words; returns its address, the heads of the
    /// requests that it gets, and the task that serves them.
    async fn another(
        &self,
        name: &'static str,
    ) -> (String, mpsc::UnboundedReceiver<String>, JoinHandle<()>) {
        let key = std::fs::read_to_string(self.folder.path().join("key")).expect("a key");
        let key = hex::decode(key.trim()).expect("hexadecimal digits");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let (heard, requests) = mpsc::unbounded_channel();
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let proven = timeout(Duration::from_secs(1), prove(&mut stream, &key, name)).await;
                if !proven.is_ok_and(|it| it.is_ok()) {
                    continue;
                }
                let mut begin = vec![0; 4096];
                let count = stream.read(&mut begin).await.unwrap_or(0);
                let _ = heard.send(String::from_utf8_lossy(&begin[..count]).into_owned());
                let said = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\nConnection: close\r\n\r\nfrom elsewhere";
                let _ = stream.write_all(said).await;
            }
        });
        (address, requests, serving)
    }

    /// The home of each caller: addresses by the names of the callers' Leases.
    fn homes(&self) -> BTreeMap<String, String> {
        let leases = self.cluster.all("leases").into_iter();
        let homes = leases.filter(|it| text(&it["metadata"]["name"]).contains("-caller-"));
        let entry = |it: Value| {
            let address = text(&it["metadata"]["annotations"]["llm-sandbox/address"]).to_owned();
            (text(&it["metadata"]["name"]).to_owned(), address)
        };
        homes.map(entry).collect()
    }
}

impl Replica {
    fn alice(&self) -> Caller {
        self.web.caller(Some("a-token"))
    }

    fn bob(&self) -> Caller {
        self.web.caller(Some("b-token"))
    }

    async fn ended(mut self, signal: &str) {
        self.web.signal(signal);
        self.web.exit_code().await;
    }
}

/// Proves to a connecting server that the server of this name has this key, by the protocol in `src/peers.rs`.
async fn prove(stream: &mut TcpStream, key: &[u8], name: &str) -> std::io::Result<()> {
    let (mut begin, ours) = ([0; 40], [7; 32]);
    stream.read_exact(&mut begin).await?;
    let secret = mac(key, &[b"llm-sandbox peers 1"]);
    let proof = mac(&secret, &[b"l", &begin[8..], &ours, name.as_bytes()]);
    stream.write_all(&[&ours[..], &proof].concat()).await?;
    stream.read_exact(&mut [0; 32]).await.map(drop)
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

async fn cell(caller: &Caller, session: &str, code: &str) -> Value {
    caller.call("execute_code", json!({ "session_id": session, "code": code })).await.json
}

/// The URL of a file at another server, as a load balancer would choose it.
fn at(replica: &Replica, url: &str) -> String {
    format!("{}{}", replica.web.base, &url[url.find("/files").expect("files")..])
}

async fn get(url: &str) -> Response {
    support::http("GET", url).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_with_access_tokens_finds_its_sessions_whichever_server_is_asked() {
    let (deployment, issuer) = (Deployment::new(), Issuer::start().await);
    let settings = [
        ("SANDBOX_OAUTH_ISSUER", &*issuer.url),
        ("SANDBOX_OAUTH_AUDIENCE", "https://sandbox.test"),
    ];
    let a = deployment.server_with(&settings).await;
    let b = deployment.server_with(&settings).await;
    let token = |subject: &str| issuer.token(&issuer.claims("https://sandbox.test", subject));
    let (at_a, at_b) = (a.web.caller(Some(&token("ann"))), b.web.caller(Some(&token("ann"))));
    let id = name("shared");
    assert_eq!(cell(&at_a, &id, "x = 41").await["status"], "success");
    let next = cell(&at_b, &id, "x + 1").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("42"), &Value::Null), "{next}");
    assert_eq!(deployment.homes().len(), 1, "passed on");
    at_b.upload(&id, "up.csv", b"1,2").await.ok();
    let listed = at_b.call("list_artifacts", json!({ "session_id": id })).await.json;
    for replica in [&a, &b] {
        assert_eq!(get(&at(replica, &support::url_in(&listed, "up.csv"))).await.body, b"1,2");
    }
    // A server that passes a refusal on adds nothing to it.
    let mut expired = issuer.claims("https://sandbox.test", "ann");
    expired["exp"] = 1.into();
    for replica in [&a, &b] {
        let caller = replica.web.caller(Some(&issuer.token(&expired)));
        let answer = caller.send("GET", &format!("/sessions/{id}"), &[], &[]).await;
        let challenge = answer.header("www-authenticate").to_owned();
        assert_eq!((answer.status, challenge.matches("resource_metadata").count()), (401, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_finds_the_same_sessions_whichever_server_is_asked() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("shared");
    assert_eq!(cell(&a.alice(), &id, "x = 41").await["status"], "success");
    let next = cell(&b.alice(), &id, "x + 1").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("42"), &Value::Null), "{next}");
    assert_eq!(
        deployment.homes().into_values().collect::<Vec<_>>(),
        std::slice::from_ref(&a.peers)
    );

    // Files by token and by signed URLs, in both directions.
    b.alice().upload(&id, "up.csv", b"1,2").await.ok();
    let large = vec![b'z'; 3 << 20];
    let put = format!("/files/{id}/large.bin");
    assert_eq!(b.alice().send("PUT", &put, &[], &large).await.status, 201);
    let listed = b.alice().call("list_artifacts", json!({ "session_id": id })).await.json;
    let url = support::url_in(&listed, "up.csv");
    for replica in [&a, &b] {
        let got = get(&at(replica, &url)).await;
        assert_eq!((got.status, &*got.body), (200, &b"1,2"[..]));
        assert_eq!(got.header("cache-control"), "private, no-cache");
        let got = get(&at(replica, &support::url_in(&listed, "large.bin"))).await;
        assert_eq!((got.status, got.body == large), (200, true));
        let forged = get(&at(replica, &url).replace("up.csv", "large.bin")).await;
        assert!(forged.status == 200 || forged.status == 403, "as the kind of URL has it");
    }
    let asked = json!({ "session_id": id, "filename": "form.txt" });
    let signed = b.alice().call("upload_file", asked).await.json;
    let put = at(&b, text(&signed["upload_url"]));
    assert_eq!(support::http_with("PUT", &put, &[], b"by url").await.status, 201, "{signed}");
    assert!(a.alice().files(&id).await.contains(&("form.txt".into(), 6)));

    // Forwarded requests are counted.
    let metrics = b.alice().send("GET", "/metrics", &[], &[]).await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let count = metrics.lines().find_map(|line| {
        line.strip_prefix("llm_sandbox_forwarded_requests_total{outcome=\"answered\"} ")
    });
    assert!(count.expect("counted").parse::<f64>().expect("a number") > 5.0, "{metrics}");

    // The page, and the end of the session.
    for replica in [&a, &b] {
        let sessions = replica.alice().send("GET", "/sessions", &[], &[]).await;
        assert!(String::from_utf8_lossy(&sessions.body).contains(&id));
        let zip = replica.alice().send("GET", &format!("/files/{id}/?format=zip"), &[], &[]).await;
        assert_eq!((zip.status, &zip.body[..2]), (200, &b"PK"[..]));
    }
    let ended = b.alice().send("DELETE", &format!("/sessions/{id}"), &[], &[]).await;
    assert_eq!(ended.status, 204);
    assert_eq!(get(&at(&a, &url)).await.status, 404);
    deployment.cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lists_and_ends_the_sessions_of_all_servers_at_any_of_them() {
    let deployment = Deployment::new();
    let file = deployment.folder.path().join("config.yaml");
    std::fs::write(&file, "callers: [{ name: olga, token: o-token, role: operator }]")
        .expect("written");
    let settings = [("SANDBOX_CONFIG_FILE", file.to_str().expect("UTF-8"))];
    let a = deployment.server_with(&settings).await;
    let b = deployment.server_with(&settings).await;
    let (hers, his) = (name("hers"), name("his"));
    cell(&a.alice(), &hers, "1").await;
    cell(&b.bob(), &his, "1").await;
    let listed = async |replica: &Replica| {
        let olga = replica.web.caller(Some("o-token"));
        let all = olga.send("GET", "/sessions?all", &[], &[]).await.json();
        let all = all["sessions"].as_array().expect("a list").clone();
        let shown =
            |it: &Value| (text(&it["caller"]).to_owned(), text(&it["session_id"]).to_owned());
        let mut servers: Vec<_> = all.iter().map(|it| text(&it["server"]).to_owned()).collect();
        servers.sort();
        servers.dedup();
        let mut all: Vec<_> = all.iter().map(shown).collect();
        all.sort();
        (all, servers.len())
    };
    let both = vec![("alice".to_owned(), hers), ("bob".to_owned(), his.clone())];
    // The list is as long as a server knows of the other's callers.
    for replica in [&a, &b] {
        until("both are listed", async || listed(replica).await == (both.clone(), 2)).await;
    }
    let end = async |caller: &Caller| {
        caller.send("DELETE", &format!("/sessions/{his}?caller=bob"), &[], &[]).await.status
    };
    assert_eq!(end(&a.alice()).await, 403);
    assert_eq!(end(&a.web.caller(Some("o-token"))).await, 204, "of the other server");
    assert_eq!(listed(&b).await.0, both[..1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_apart_on_whichever_server_they_are() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("apart");
    cell(&a.alice(), &id, "secret = 'hers'").await;
    cell(&b.bob(), &name("his-own"), "1").await;
    for replica in [&a, &b] {
        let his = cell(&replica.bob(), &id, "secret").await;
        assert_eq!(his["status"], "execution_error", "{his}");
        let sessions = replica.bob().send("GET", "/sessions", &[], &[]).await;
        let sessions: Value = serde_json::from_slice(&sessions.body).expect("JSON");
        assert_eq!(sessions["sessions"].as_array().expect("a list").len(), 2, "{sessions}");
    }
    let (hers, his) = (a.alice(), b.bob());
    hers.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(cell(&his, &id, "1 + 1").await["result"], "2", "his is his");
    let homes: Vec<_> = deployment.homes().into_values().collect();
    assert!(homes.contains(&a.peers) && homes.contains(&b.peers), "{homes:?}");
    // Unknown tokens are refused by both servers.
    for replica in [&a, &b] {
        let stranger = replica.web.caller(Some("no-token"));
        assert_eq!(stranger.send("GET", "/sessions", &[], &[]).await.status, 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_and_mcp_sessions_are_the_same_on_all_servers() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    // Without an MCP session.
    a.alice().call("execute_code", json!({ "code": "x = 1" })).await.ok();
    let next = b.alice().call("execute_code", json!({ "code": "x" })).await.json;
    assert_eq!((&next["result"], &next["new_workspace"]), (&json!("1"), &Value::Null), "{next}");
    let named = |replica: &Replica| replica.alice().at("?workspace=sales");
    named(&b).call("execute_code", json!({ "code": "y = 2" })).await.ok();
    assert_eq!(named(&a).call("execute_code", json!({ "code": "y" })).await.json["result"], "2");

    // With an MCP session, which one server opens and the other one uses.
    let (first, second) = (a.alice(), b.alice());
    let opened = first.open().await;
    let elsewhere = support::web::Mcp { caller: &second, id: opened.id.clone() };
    opened.call("execute_code", json!({ "code": "z = 3" })).await.ok();
    let z = elsewhere.call("execute_code", json!({ "code": "z" })).await.json;
    assert_eq!((&z["result"], &z["new_workspace"]), (&json!("3"), &Value::Null), "{z}");
    // Another caller cannot use it.
    let bob = b.bob();
    let stolen = support::web::Mcp { caller: &bob, id: opened.id.clone() };
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
    assert_eq!(stolen.post(&message).await.status, 404);
    let headers = [("Mcp-Session-Id", &*opened.id), ("MCP-Protocol-Version", LEGACY)];
    let ended = b.alice().send("DELETE", "/mcp", &headers, &[]).await;
    assert_eq!(ended.status, 204);
    assert_eq!(opened.post(&message).await.status, 404);
}

support::tests! {
    what_a_killed_server_had_goes_on_with_the_first_request_to_another => goes_on("KILL");
    what_a_server_that_ends_had_goes_on_with_the_first_request_to_another => goes_on("TERM");
}

async fn goes_on(signal: &str) {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("goes-on");
    cell(&a.alice(), &id, "x = 1\nopen('kept.txt', 'w').write('x')").await;
    let (hers, carols) = (a.alice(), a.web.caller(Some("c-token")));
    let opened = hers.open().await;
    opened.call("execute_code", json!({ "code": "y = 2" })).await.ok();
    let carol = name("carols");
    cell(&carols, &carol, "open('hers.txt', 'w').write('c')").await;
    let listed = carols.call("list_artifacts", json!({ "session_id": carol })).await.json;
    let url = support::url_in(&listed, "hers.txt");
    a.ended(signal).await;

    let next = cell(&b.alice(), &id, "x += 1\nx").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("2"), &Value::Null), "{next}");
    // A client with an MCP session need not open another one.
    let alice = b.alice();
    let same = support::web::Mcp { caller: &alice, id: opened.id.clone() };
    let y = same.call("execute_code", json!({ "code": "y" })).await.json;
    assert_eq!((&y["result"], &y["new_workspace"]), (&json!("2"), &Value::Null), "{y}");
    // A signed URL leads to its session's home without a token.
    let got = get(&at(&b, &url)).await;
    assert_eq!((got.status, &*got.body), (200, &b"c"[..]));
    assert!(deployment.homes().into_values().all(|home| home == b.peers));

    // A new server forwards to the server that has the sessions now.
    let c = deployment.server().await;
    assert_eq!(cell(&c.alice(), &id, "x").await["result"], "2");
    c.alice().call("close_session", json!({ "session_id": id })).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_when_a_server_is_told_to_end_is_answered_on_either_way() {
    let deployment = Deployment::new();
    let (mut a, b) = deployment.two().await;
    let ids = [name("runs-here"), name("runs-there")];
    for (id, replica) in ids.iter().zip([&a, &b]) {
        cell(&replica.alice(), id, "x = 1").await;
    }
    // Longer than an ending server waits for load balancers to notice.
    let code = "open('begun', 'w').close()\nimport time\ntime.sleep(7)\nx += 1\nx";
    let (here, there) = (a.alice(), b.alice());
    let running = async { tokio::join!(cell(&here, &ids[0], code), cell(&there, &ids[1], code)) };
    let ending = async {
        let alice = b.alice();
        for id in &ids {
            let begun = async || alice.files(id).await.iter().any(|file| file.0 == "begun");
            until("it runs", begun).await;
        }
        a.web.signal("TERM");
    };
    let ((first, second), ()) = tokio::join!(running, ending);
    for ran in [first, second] {
        assert_eq!(ran["result"], "2", "{ran}");
    }
    assert_eq!(a.web.exit_code().await, Some(0));
    for id in &ids {
        assert_eq!(cell(&b.alice(), id, "x").await["result"], "2");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_held_up_touches_nothing_that_another_has_taken_over() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("held-up");
    cell(&a.alice(), &id, "x = 1").await;
    a.web.signal("STOP");
    // To the other servers it is dead, and its sandboxes wait for a new stream.
    deployment.cluster.forsake(&a.peers);
    for pod in deployment.cluster.names("pods") {
        deployment.cluster.cut(&pod);
    }
    let taken = async || {
        let next = b.alice().try_cell(&id, "x += 1\nx").await;
        next.is_some_and(|next| next["result"] == "2")
    };
    until("it goes on", taken).await;
    a.web.signal("CONT");
    // Server A learns of the new home when it forwards a request again.
    let heard = async || {
        let again = a.alice().try_cell(&id, "x").await;
        again.is_some_and(|again| again["result"] == "2")
    };
    until("the one that was held up passes on", heard).await;
    let sessions = async || {
        let ready = get(&format!("{}/ready", a.web.base)).await;
        ready.json()["sessions"] == 0
    };
    until("it has let go", sessions).await;
    let next = cell(&b.alice(), &id, "x").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("2"), &Value::Null), "{next}");
    assert_eq!(deployment.cluster.all("pods").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_in_the_same_place_goes_on_with_its_own() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let (id, peers) = (name("same-place"), a.peers.clone());
    cell(&a.alice(), &id, "x = 1").await;
    a.ended("KILL").await;
    let again = deployment.server_at(&peers, &[]).await;
    assert_eq!(cell(&again.alice(), &id, "x").await["result"], "1");
    // Before the other server is asked, which on a very busy machine may take it for dead, and take over.
    assert_eq!(deployment.homes().into_values().collect::<Vec<_>>(), [peers]);
    assert_eq!(cell(&b.alice(), &id, "x").await["result"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_asks_for_is_taken_over_all_the_same() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("unasked");
    cell(&a.alice(), &id, "x = 1").await;
    a.web.signal("TERM");
    until("it says that it ends", async || {
        get(&format!("{}/ready", a.web.base)).await.status == 503
    })
    .await;
    assert_eq!(cell(&a.alice(), &id, "x").await["result"], "1", "and answers until then");
    a.ended("TERM").await;
    until("the other has it", async || {
        deployment.homes().into_values().all(|home| home == b.peers)
    })
    .await;
    let ready = async || {
        let ready = get(&format!("{}/ready", b.web.base)).await;
        serde_json::from_slice::<Value>(&ready.body).expect("JSON")["sessions"] == 1
    };
    until("it has the session", ready).await;
    assert_eq!(cell(&b.alice(), &id, "x").await["result"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_caller_hold_over_all_servers() {
    let deployment = Deployment::new();
    let most = [
        ("SANDBOX_MAX_SESSIONS_PER_CLIENT", "2"),
        ("SANDBOX_MAX_SESSIONS", "8"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
    ];
    let (a, b) = (deployment.server_with(&most).await, deployment.server_with(&most).await);
    for (n, replica) in [&a, &b].into_iter().enumerate() {
        assert_eq!(cell(&replica.alice(), &name("own"), "1").await["result"], "1", "{n}");
    }
    for replica in [&a, &b] {
        let third = cell(&replica.alice(), &name("third"), "1").await;
        assert_eq!(third["error"], "max_sessions", "{third}");
    }
    assert_eq!(cell(&b.bob(), &name("his"), "1").await["result"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_goes_on_with_what_another_had_and_starts_nothing_new() {
    let deployment = Deployment::new();
    let most = [("SANDBOX_MAX_SESSIONS", "1"), ("SANDBOX_MAX_HIBERNATED", "0")];
    let (a, b) = (deployment.server_with(&most).await, deployment.server_with(&most).await);
    let (hers, his) = (name("hers"), name("his"));
    cell(&a.alice(), &hers, "x = 1").await;
    cell(&b.bob(), &his, "x = 2").await;
    a.ended("KILL").await;
    assert_eq!(cell(&b.alice(), &hers, "x").await["result"], "1");
    assert_eq!(cell(&b.bob(), &his, "x").await["result"], "2");
    let carol = b.web.caller(Some("c-token"));
    assert_eq!(cell(&carol, &name("new"), "1").await["error"], "max_sessions");
    for (caller, id) in [(b.alice(), hers), (b.bob(), his)] {
        caller.call("close_session", json!({ "session_id": id })).await.ok();
    }
    assert_eq!(cell(&carol, &name("new"), "1").await["result"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_seen_and_cancelled_from_another_server() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("cancelled");
    cell(&a.alice(), &id, "1").await;
    let (caller, session) = (b.alice(), id.clone());
    let code = "open('begun', 'w').close()\nimport time\nwhile True: time.sleep(.01)";
    let running = tokio::spawn(async move { cell(&caller, &session, code).await });
    let begun = async || a.alice().files(&id).await.iter().any(|file| file.0 == "begun");
    until("it runs", begun).await;
    let busy = cell(&a.alice(), &id, "1").await;
    assert_eq!(busy["error"], "session_busy", "{busy}");
    let shown = a.alice().send("GET", &format!("/sessions/{id}"), &[], &[]).await.json();
    let runs = shown["runs"].as_array().expect("a list");
    let run = runs.iter().find(|run| run.get("outcome").is_none()).expect("one in progress");
    let cancel = json!({ "execution_id": run["run_id"] });
    let cancelled = a.alice().call("cancel_execution", cancel).await.ok();
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    let ran = tokio::time::timeout(PATIENCE, running).await.expect("in time").expect("it ends");
    assert_eq!(ran["status"], "cancelled", "{ran}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_the_background_is_asked_for_at_any_server_and_after_its_own_has_ended() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("background");
    cell(&a.alice(), &id, "1").await;
    let code = "import os, time\nprint('at work', flush=True)\n\
                while not os.path.exists('go'): time.sleep(.01)\n6 * 7";
    let arguments = json!({ "session_id": id, "code": code, "background": true });
    let run = b.alice().call("execute_code", arguments).await.ok()["run_id"].clone();
    let ask = async |caller: Caller, wait_s: u32| {
        let arguments = json!({ "execution_id": run, "wait_s": wait_s });
        caller.call("get_execution_result", arguments).await.ok()
    };
    for replica in [&a, &b] {
        until("its output is seen", async || {
            let seen = ask(replica.alice(), 0).await;
            assert_eq!((&seen["status"], &seen["run_id"]), (&json!("running"), &run));
            seen["stdout"] == "at work\n"
        })
        .await;
        let other = ask(replica.bob(), 0).await;
        assert_eq!(other["status"], "not_found");
    }
    // The caller's sessions are on this server.
    a.ended("KILL").await;
    b.alice().upload(&id, "go", b"").await.ok();
    let result = ask(b.alice(), 50).await;
    assert_fields!(result, { "status": "success", "stdout": "at work\n", "result": "42" });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_another_server_takes_is_let_go_and_comes_back_when_that_is_gone() {
    let deployment = Deployment::new();
    let a = deployment.server().await;
    let id = name("taken");
    cell(&a.alice(), &id, "x = 1").await;
    // Another server, which answers only with a fixed text.
    let (address, mut requests, other) = deployment.another("llm-sandbox-another").await;
    let lease = deployment.homes().into_keys().next().expect("one");
    let mut taken = deployment.cluster.all("leases");
    taken.retain(|it| it["metadata"]["name"] == lease);
    let mut taken = taken.remove(0);
    taken["spec"]["holderIdentity"] = "llm-sandbox-another".into();
    taken["metadata"]["annotations"]["llm-sandbox/address"] = address.into();
    deployment.cluster.change("leases", taken);

    let elsewhere =
        async || a.alice().send("GET", "/sessions", &[], &[]).await.body == b"from elsewhere";
    until("requests go there", elsewhere).await;
    let passed_on = requests.recv().await.expect("one").to_lowercase();
    assert!(passed_on.starts_with("get /sessions http/1.1\r\n"), "{passed_on}");
    assert!(passed_on.contains("authorization: bearer a-token\r\n"), "{passed_on}");
    until("it has let go", async || {
        let ready = get(&format!("{}/ready", a.web.base)).await;
        serde_json::from_slice::<Value>(&ready.body).expect("JSON")["sessions"] == 0
    })
    .await;
    // The sandbox waits for the next server that takes it over.
    assert_eq!(deployment.cluster.all("pods").len(), 1);
    other.abort();
    let _ = other.await;
    let back = cell(&a.alice(), &id, "x").await;
    assert_eq!((&back["result"], &back["new_session"]), (&json!("1"), &Value::Null), "{back}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_come_from_a_server_is_turned_away_where_servers_meet() {
    let deployment = Deployment::new();
    let a = deployment.server().await;
    let mut stream = TcpStream::connect(&a.peers).await.expect("somebody listens");
    let asked =
        "GET /sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-token\r\n\r\n";
    stream.write_all(asked.as_bytes()).await.expect("sent");
    let mut said = vec![];
    // The server may close the connection before it has read everything.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("in time");
    assert_eq!(said, b"", "not even that there is a server");
    assert_eq!(deployment.homes().len(), 0, "nothing was looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_listens_where_a_dead_server_was_gets_nothing_and_holds_nobody_up() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let (id, peers) = (name("impostor"), a.peers.clone());
    cell(&a.alice(), &id, "x = 1").await;
    // The server also keeps an open connection to the other one.
    assert_eq!(cell(&b.alice(), &id, "x").await["result"], "1");
    a.ended("KILL").await;
    let listener = TcpListener::bind(&peers).await.expect("it is free");
    let (heard, mut all) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let heard = heard.clone();
            tokio::spawn(async move {
                let mut said = vec![0; 4096];
                while let Ok(count) = stream.read(&mut said).await
                    && count > 0
                {
                    let _ = heard.send(said[..count].to_vec());
                }
            });
        }
    });
    let next = cell(&b.alice(), &id, "x").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("1"), &Value::Null), "{next}");
    while let Ok(said) = all.try_recv() {
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!said.contains("token") && !said.contains("HTTP"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_breaks_off_is_not_taken_for_the_beginning_of_the_next() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    for caller in [a.alice(), a.bob()] {
        cell(&caller, &name("home"), "1").await;
    }
    for target in ["/sessions", "/files/a/b", "/mcp"] {
        for length in [5, 4000] {
            for _ in 0..10 {
                let mut stream =
                    TcpStream::connect(&b.web.base["http://".len()..]).await.expect("it");
                let head = format!(
                    "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-token\r\n\
                     Content-Length: {length}\r\n\r\nhe"
                );
                stream.write_all(head.as_bytes()).await.expect("sent");
                stream.shutdown().await.expect("half of it");
                let mut said = vec![];
                let _ = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("in time");
            }
            for _ in 0..10 {
                let his = b.bob().send("GET", "/sessions", &[], &[]).await;
                assert_eq!(his.status, 200, "{target} {length}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_a_callers_lease_its_sessions_are_in_one_place() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("lease");
    cell(&a.alice(), &id, "x = 0").await;
    for round in 1..=4 {
        let lease = deployment.homes().into_keys().next().expect("one");
        if round % 2 == 0 {
            deployment.cluster.delete("leases", &lease);
        } else {
            deployment.cluster.forsake(deployment.homes().values().next().expect("one"));
        }
        // A request to the server that has the sandbox, or to the other one.
        let next = [&a, &b][usize::from(round > 2)].alice();
        let ran = async || {
            let ran = next.try_cell(&id, &format!("x = max(x, {round})\nx")).await;
            let Some(ran) = ran.filter(|ran| ran["status"] == "success") else { return false };
            assert_eq!(
                (&ran["result"], &ran["new_session"]),
                (&json!(round.to_string()), &Value::Null),
                "round {round}: {ran}"
            );
            true
        };
        until("it goes on", ran).await;
    }
    assert_eq!(deployment.cluster.all("pods").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_that_were_kept_ready_are_taken_over_once_somebody_has_them() {
    let deployment = Deployment::new();
    let ready = [("SANDBOX_POOL_SIZE", "1")];
    let a = deployment.server_with(&ready).await;
    deployment.cluster.until("pods", 1).await;
    let alice = a.alice();
    let made = alice.call("execute_code", json!({ "code": "x = 5" })).await.ok();
    let id = text(&made["session_id"]).to_owned();
    let labels = |pod: &Value| pod["metadata"]["labels"]["llm-sandbox.caller"].clone();
    until("the pod says whose it is", async || {
        deployment.cluster.all("pods").iter().any(|pod| labels(pod).is_string())
    })
    .await;
    let b = deployment.server_with(&[]).await;
    a.ended("KILL").await;
    let next = cell(&b.alice(), &id, "x").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("5"), &Value::Null), "{next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_servers_that_have_another_key() {
    let (deployment, other) = (Deployment::new(), tempfile::tempdir().expect("a folder"));
    let a = deployment.server().await;
    cell(&a.alice(), &name("any"), "1").await;
    let keys = [support::key_in(deployment.folder.path()), support::key_in(other.path())];
    for (key, says) in
        keys.iter().zip(["ok    peers      all 1 that", "FAIL  peers      other keys"])
    {
        let more = [
            ("SANDBOX_KEY_FILE", &**key),
            ("SANDBOX_PEER_ADDRESS", "127.0.0.1:1"),
            ("SANDBOX_TRANSPORT", "http"),
        ];
        let (said, _) = doctor(&deployment.cluster, &more).await;
        assert!(said.contains(says), "{says}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_another_key_in_the_namespace_change_nothing() {
    let deployment = Deployment::new();
    let (a, b) = deployment.two().await;
    let id = name("other-key");
    cell(&a.alice(), &id, "x = 1").await;
    let other = tempfile::tempdir().expect("a folder");
    let key = support::key_in(other.path());
    let stranger = deployment.server_with(&[("SANDBOX_KEY_FILE", &key)]).await;
    let homes = deployment.homes();
    // By the time it answers, it has looked for sandboxes that other servers left.
    let theirs = cell(&stranger.alice(), &id, "x").await;
    assert_fields!(theirs, { "new_session": true, "status": "execution_error" });
    let also: Vec<_> =
        deployment.homes().into_iter().filter(|it| !homes.contains_key(&it.0)).collect();
    assert_eq!(also.len(), 1, "a home of its own for its own alice");
    for replica in [&a, &b] {
        let next = cell(&replica.alice(), &id, "x").await;
        assert_eq!((&next["result"], &next["new_session"]), (&json!("1"), &Value::Null), "{next}");
    }
    stranger.ended("KILL").await;
    assert_eq!(cell(&b.alice(), &id, "x").await["result"], "1");
    assert!(deployment.homes().values().filter(|home| **home == a.peers).count() == 1);
}

/// Sends cells to both servers in turn, like a round robin. A server is replaced every fifty cells: a cell that was in
/// progress then may or may not have taken effect, so the next one checks before it repeats it.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_cells_over_servers_that_are_killed_and_replaced_lose_nothing() {
    const CELLS: usize = 200;
    let deployment = Deployment::new();
    let mut replicas = vec![deployment.server().await, deployment.server().await];
    let id = name("robin");
    assert_eq!(cell(&replicas[0].alice(), &id, "x = []").await["status"], "success");
    for n in 0..CELLS {
        if n % 50 == 25 {
            let signal = if n % 100 == 25 { "KILL" } else { "TERM" };
            let old = replicas.remove(n / 50 % 2);
            let pid = old.web.process.id().expect("it runs").to_string();
            let killing = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let kill = std::process::Command::new("kill").args(["-s", signal, &pid]).status();
                assert!(kill.expect("kill runs").success());
            });
            // In the middle of a cell, which is sent to the other server.
            let caller = replicas[0].alice();
            let _ =
                caller.try_cell(&id, &format!("import time; time.sleep(.02)\nx.append({n})")).await;
            killing.await.expect("it was killed");
            old.ended("KILL").await;
            replicas.push(deployment.server().await);
        }
        let caller = replicas[n % 2].alice();
        let once = format!("if {n} not in x: x.append({n})\nlen(x)");
        let ran = async || match caller.try_cell(&id, &once).await {
            Some(ran) if ran["status"] == "success" => {
                assert_eq!(ran["result"], (n + 1).to_string(), "{ran}");
                true
            }
            Some(ran) => {
                let why = ran["error"].as_str().unwrap_or_default();
                assert!(["session_busy", "sandbox_unavailable"].contains(&why), "{n}: {ran}");
                false
            }
            None => false,
        };
        until("a cell has run", ran).await;
    }
    let all = cell(&replicas[1].alice(), &id, "x == list(range(200))").await;
    assert_eq!((&all["result"], &all["new_session"]), (&json!("True"), &Value::Null), "{all}");
    assert_eq!(deployment.homes().len(), 1);
}
