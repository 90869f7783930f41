//! Drills on a real Kubernetes, which `tests/kubernetes/drills.sh` brings up and names in `TEST_CLUSTER`:
//! what serves the cluster is killed, and so are servers of ours, in the middle of cells. Skipped without it.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{On, PATIENCE, name, text, until, web::Web};

/// The cluster, if there is one.
struct Cluster {
    /// The script that controls it.
    script: String,
    kubeconfig: String,
}

impl Cluster {
    /// `None`, and a line that says why, where there is none.
    fn there() -> Option<Self> {
        let Ok(script) = std::env::var("TEST_CLUSTER") else {
            println!("skipped: tests/kubernetes/drills.sh runs it");
            return None;
        };
        let kubeconfig = std::env::var("SERVER_KUBECONFIG").expect("beside it");
        Some(Self { script, kubeconfig })
    }

    fn control(&self, words: &[&str]) -> String {
        let output = Command::new(&self.script).args(words).output().expect("the script runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        said
    }

    /// Names of pods of sessions whose names begin so.
    fn pods(&self, session: &str) -> Vec<String> {
        let all = self.control(&[
            "kubectl",
            "--namespace",
            "sandboxes",
            "get",
            "pods",
            "--output",
            "name",
        ]);
        let prefix = format!("pod/sandbox-{}", session.to_lowercase());
        all.lines().filter(|line| line.starts_with(&prefix)).map(str::to_owned).collect()
    }

    async fn server(&self, key: &str) -> Web {
        let settings = [
            ("SANDBOX_ENGINE", "kubernetes"),
            ("KUBECONFIG", &self.kubeconfig),
            ("SANDBOX_KUBERNETES_NAMESPACE", "sandboxes"),
            ("SANDBOX_KEY_FILE", key),
            ("SANDBOX_POOL_SIZE", "0"),
        ];
        Web::start(On::Kubernetes, &settings).await
    }
}

async fn cell(server: &Web, session: &str, code: &str) -> Value {
    let arguments = json!({ "session_id": session, "code": code });
    server.caller(None).call("execute_code", arguments).await.json
}

/// A cell that says that it has begun, and then takes some seconds.
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
