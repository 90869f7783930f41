//! Drills on a real Kubernetes, which `tests/kubernetes/drills.sh` starts and names in `TEST_CLUSTER`: they kill parts
//! of the cluster, and servers of this project, during cells. Skipped without `TEST_CLUSTER`.

use std::process::Command;

use serde_json::{Value, json};

use support::{On, PATIENCE, free_port, key_in, name, text, until, web::Web};

/// The cluster.
pub(crate) struct Cluster {
    /// The script that controls it.
    script: String,
    kubeconfig: String,
}

impl Cluster {
    /// The cluster; `None`, after a line with the reason, if there is none.
    pub(crate) fn there() -> Option<Self> {
        let Ok(script) = std::env::var("TEST_CLUSTER") else {
            println!("skipped: tests/kubernetes/drills.sh runs it");
            return None;
        };
        let kubeconfig = std::env::var("SERVER_KUBECONFIG").expect("beside it");
        Some(Self { script, kubeconfig })
    }

    /// Settings of a server whose sandboxes are on this cluster.
    pub(crate) fn settings(&self) -> [(&'static str, &str); 3] {
        [
            ("SANDBOX_ENGINE", "kubernetes"),
            ("KUBECONFIG", &self.kubeconfig),
            ("SANDBOX_KUBERNETES_NAMESPACE", "sandboxes"),
        ]
    }

    /// Makes a folder of the node a volume, and claims it by this name.
    pub(crate) fn claim_folder(&self, name: &str, path: &str) {
        let size = json!({ "storage": "1Gi" });
        let modes = ["ReadOnlyMany"];
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": {
                "capacity": size, "accessModes": modes, "storageClassName": "",
                "hostPath": { "path": path },
            },
        });
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": name, "namespace": "sandboxes" },
            "spec": {
                "accessModes": modes, "storageClassName": "", "volumeName": name,
                "resources": { "requests": size },
            },
        });
        let both = json!({ "apiVersion": "v1", "kind": "List", "items": [volume, claim] });
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), both.to_string()).expect("written");
        self.control(&["kubectl", "apply", "--filename", file.path().to_str().expect("UTF-8")]);
    }

    /// Removes what [`claim_folder`](Self::claim_folder) made.
    pub(crate) fn release_folder(&self, name: &str) {
        let claim = ["kubectl", "--namespace", "sandboxes", "delete", "persistentvolumeclaim"];
        self.control(&[&claim[..], &[name, "--wait=false"]].concat());
        self.control(&["kubectl", "delete", "persistentvolume", name, "--wait=false"]);
    }

    fn control(&self, words: &[&str]) -> String {
        let output = Command::new(&self.script).args(words).output().expect("the script runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        said
    }

    /// Names of the pods of sessions whose names begin with `session`.
    fn pods(&self, session: &str) -> Vec<String> {
        let list = "kubectl --namespace sandboxes get pods --output name";
        let all = self.control(&list.split(' ').collect::<Vec<_>>());
        let prefix = format!("pod/sandbox-{}", session.to_lowercase());
        all.lines().filter(|line| line.starts_with(&prefix)).map(str::to_owned).collect()
    }

    async fn server(&self, key: &str) -> Web {
        self.server_with(key, &[]).await
    }

    /// Starts a server with an address for other servers.
    async fn replica(&self, key: &str) -> Web {
        let peers = format!("127.0.0.1:{}", free_port());
        let tokens = "alice:a-token,bob:b-token";
        let more = [("SANDBOX_PEER_ADDRESS", &*peers), ("SANDBOX_AUTH_TOKENS", tokens)];
        self.server_with(key, &more).await
    }

    async fn server_with(&self, key: &str, more: &[(&str, &str)]) -> Web {
        let mut settings = self.settings().to_vec();
        settings.extend([("SANDBOX_KEY_FILE", key), ("SANDBOX_POOL_SIZE", "0")]);
        settings.extend(more);
        Web::start(On::Kubernetes, &settings).await
    }
}

async fn cell(server: &Web, session: &str, code: &str) -> Value {
    let arguments = json!({ "session_id": session, "code": code });
    server.caller(None).call("execute_code", arguments).await.json
}

/// A cell that creates the file `begun` and then takes some seconds.
const LONG: &str = "open('begun', 'w').close()\nimport time\n\
                    for i in range(400): print(i); time.sleep(.02)\nx.append(len(x))\nx";

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_outlives_each_part_of_the_cluster() {
    let Some(cluster) = Cluster::there() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key").display().to_string();
    let server = cluster.server(&key).await;
    let session = name("part");
    assert_eq!(cell(&server, &session, "x = [0]").await["status"], "success");
    let mut expected = vec![0];
    for part in ["apiserver", "kubelet", "containerd", "etcd", "controllers"] {
        let killing = async {
            let caller = server.caller(None);
            let begun = async || caller.files(&session).await.iter().any(|file| file.0 == "begun");
            until("it runs", begun).await;
            tokio::task::block_in_place(|| cluster.control(&["restart", part]));
        };
        let (ran, ()) = tokio::join!(cell(&server, &session, LONG), killing);
        expected.push(expected.len());
        assert_eq!(ran["result"], format!("{expected:?}"), "{part}: {ran}");
        assert!(text(&ran["stdout"]).ends_with("399\n"), "{part}: {ran}");
        let removed = cell(&server, &session, "import os; os.remove('begun')").await;
        assert_eq!(removed["status"], "success", "{part}: {removed}");
    }
    let closed = server.caller(None).call("close_session", json!({ "session_id": session })).await;
    closed.ok();
    until("its pod is gone", async || cluster.pods(&session).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_killed_one_after_another_lose_no_variable() {
    let Some(cluster) = Cluster::there() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key").display().to_string();
    let session = name("rollout");
    let mut server = cluster.server(&key).await;
    assert_eq!(cell(&server, &session, "x = 0").await["status"], "success");
    let mut done = 0;
    for signal in ["KILL", "TERM", "KILL"] {
        for _ in 0..20 {
            done += 1;
            let ran = cell(&server, &session, "x += 1\nx").await;
            assert_eq!(ran["result"], done.to_string(), "{ran}");
        }
        server.signal(signal);
        let ended = tokio::time::timeout(PATIENCE, server.process.wait()).await;
        ended.expect("in time").expect("waited");
        server = cluster.server(&key).await;
    }
    let ran = cell(&server, &session, "x").await;
    assert_eq!((&ran["result"], &ran["new_session"]), (&json!(done.to_string()), &Value::Null));
    let closed = server.caller(None).call("close_session", json!({ "session_id": session })).await;
    closed.ok();
    until("its pod is gone", async || cluster.pods(&session).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_cells_over_servers_that_are_killed_and_replaced_lose_nothing() {
    let Some(cluster) = Cluster::there() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let key = key_in(folder.path());
    let session = name("robin");
    let mut servers = vec![cluster.replica(&key).await, cluster.replica(&key).await];
    let first = servers[0].caller(Some("a-token")).try_cell(&session, "x = []").await;
    assert_eq!(first.expect("an answer")["status"], "success");
    let mut longest = std::time::Duration::ZERO;
    for n in 0..200 {
        if n % 50 == 25 {
            let mut old = servers.remove(n / 50 % 2);
            let caller = servers[0].caller(Some("a-token"));
            let long = format!("import time; time.sleep(.3)\nx.append({n})");
            let (_, ()) = tokio::join!(caller.try_cell(&session, &long), async {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                old.signal(if n % 100 == 25 { "KILL" } else { "TERM" });
            });
            // The caller finds the session on the other server.
            let lost = std::time::Instant::now();
            let there = async || {
                let found = caller.try_cell(&session, "x").await;
                found.is_some_and(|found| found["status"] == "success")
            };
            until("it goes on", there).await;
            longest = longest.max(lost.elapsed());
            let _ = old.exit_code().await;
            servers.push(cluster.replica(&key).await);
        }
        let caller = servers[n % 2].caller(Some("a-token"));
        let once = format!("if {n} not in x: x.append({n})\nlen(x)");
        let ran = async || {
            let ran = caller.try_cell(&session, &once).await;
            ran.is_some_and(|ran| ran["result"].as_str() == Some(&*(n + 1).to_string()))
        };
        until("a cell has run", ran).await;
    }
    println!("longest until a session went on: {longest:?}");
    let caller = servers[0].caller(Some("a-token"));
    let all = caller.try_cell(&session, "x == list(range(200))").await.expect("an answer");
    assert_eq!((&all["result"], &all["new_session"]), (&json!("True"), &Value::Null), "{all}");
    let other = servers[1].caller(Some("b-token"));
    let his = other.try_cell(&session, "x").await.expect("an answer");
    assert_eq!(his["status"], "execution_error", "{his}");
    for who in [caller, other] {
        who.call("close_session", json!({ "session_id": session })).await.ok();
    }
    until("its pods are gone", async || cluster.pods(&session).is_empty()).await;
}
