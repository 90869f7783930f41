//! Sandboxes as pods, on an API server in this process whose containers are plain agents.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, time::timeout};

use support::{
    On, PATIENCE, key_in,
    kubernetes::{Behaviour, Cluster},
    name, program, text, until,
    web::Web,
};

/// The settings of a server of this cluster.
fn settings(cluster: &Cluster) -> Vec<(&'static str, String)> {
    let kubeconfig = cluster.kubeconfig.display().to_string();
    vec![("SANDBOX_ENGINE", "kubernetes".into()), ("KUBECONFIG", kubeconfig)]
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_files_and_cells_work_in_a_pod_that_goes_with_its_session() {
    let cluster = Cluster::start();
    let server = cluster.server(&[]).await;
    let session = name("Pod_1");
    let ran = server.run(&session, "print(6 * 7)").await;
    assert_eq!(ran["stdout"], "42\n", "{ran}");
    server.upload(&session, "in.txt", b"hello").await.ok();
    let ran = server.run(&session, "open('out.txt', 'w').write(open('in.txt').read() * 2)").await;
    assert_eq!(ran["outcome"], "ok", "{ran}");
    assert_eq!(
        server.files(&session).await,
        [("in.txt".to_owned(), 5), ("out.txt".to_owned(), 10)]
    );
    for (code, value) in [("x = [1]", Value::Null), ("x + [2]", json!("[1, 2]"))] {
        let cell = json!({ "session_id": session, "language": "python", "code": code });
        let ran = server.call("execute_code", cell).await.ok();
        assert_eq!(ran.get("result").cloned().unwrap_or_default(), value, "{ran}");
    }
    let pods = cluster.all("pods");
    let metadata = &pods[0]["metadata"];
    assert_eq!(pods.len(), 1);
    assert!(text(&metadata["name"]).starts_with("sandbox-pod-1-"), "{metadata}");
    assert_eq!(metadata["annotations"]["llm-sandbox/session"], json!(session));
    assert_eq!(metadata["labels"]["app"], "llm-sandbox");
    let lease = &cluster.all("leases")[0];
    assert_eq!(metadata["ownerReferences"][0]["uid"], lease["metadata"]["uid"]);
    server.call("close_session", json!({ "session_id": session })).await.ok();
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn older_clusters_are_spoken_to_as_they_understand() {
    let cluster = Cluster::start();
    cluster.speak_v4();
    let server = cluster.server(&[]).await;
    let session = name("v4");
    let text = server.run(&session, "print('x' * 300_000)").await;
    assert_eq!(text["outcome"], "ok", "{text}");
    server.call("close_session", json!({ "session_id": session })).await.ok();
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_evicted_in_the_middle_of_a_run_is_told_as_a_sandbox_that_died() {
    let cluster = Cluster::start();
    let server = cluster.server(&[]).await;
    let session = name("evicted");
    server.run(&session, "x = 1").await;
    let code = "open('begun', 'w').close()\nimport time\ntime.sleep(60)";
    let run = json!({ "session_id": session, "code": code });
    let evict = async {
        let pod = cluster.names("pods").remove(0);
        until("the run has begun", async || !server.files_if_any(&session).await.is_empty()).await;
        cluster.evict(&pod);
    };
    let (ran, ()) = tokio::join!(server.call("run_python", run), evict);
    assert_eq!(ran.error(), "sandbox_died", "{}", ran.json);
    cluster.until("pods", 0).await;
    let again = server.run(&session, "print(1)").await;
    assert_eq!(again["new_session"], true, "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_ends_a_session_that_does_not_hold_and_removes_its_pod() {
    let cluster = Cluster::start();
    let server = cluster.server(&[("SANDBOX_HOLD_S", "0")]).await;
    let session = name("cut");
    server.run(&session, "x = 1").await;
    cluster.cut(&cluster.names("pods")[0]);
    cluster.until("pods", 0).await;
    let again = server.run(&session, "print(1)").await;
    assert_eq!(again["new_session"], true, "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_in_a_cell_is_replaced_and_nobody_notices() {
    for is_old in [false, true] {
        let cluster = Cluster::start();
        if is_old {
            cluster.speak_v4();
        }
        let server = cluster.server(&[]).await;
        let session = name("resumed");
        let cell = async |code: &str| {
            let cell = json!({ "session_id": session, "code": code });
            server.call("execute_code", cell).await.ok()
        };
        cell("x = [0]").await;
        let pod = cluster.names("pods").remove(0);
        let code = "open('begun', 'w').close()\nimport time\nfor i in range(50): print(i); time.sleep(.01)\n\
                    x.append(1)\nlen(x)";
        let cut = async {
            until("the cell has begun", async || !server.files_if_any(&session).await.is_empty())
                .await;
            cluster.cut(&pod);
        };
        let (ran, ()) = tokio::join!(cell(code), cut);
        assert_eq!(ran["result"], "2", "{ran}");
        assert!(text(&ran["stdout"]).ends_with("49\n"), "{ran}");
        server.call("close_session", json!({ "session_id": session })).await.ok();
        cluster.until("pods", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_goes_on_with_the_pods_of_a_killed_one_and_then_they_are_its_own() {
    let cluster = Cluster::start();
    let folder = tempfile::tempdir().expect("a folder");
    let key = key_in(folder.path());
    let mut settings = settings(&cluster);
    settings.extend([("SANDBOX_KEY_FILE", key), ("SANDBOX_POOL_SIZE", "0".into())]);
    let settings: Vec<_> = settings.iter().map(|(key, value)| (*key, &**value)).collect();
    let session = name("next");
    let cell = async |server: &Web, code: &str| {
        let cell = json!({ "session_id": session, "code": code });
        server.caller(None).call("execute_code", cell).await.json
    };
    let mut first = Web::start(On::Kubernetes, &settings).await;
    assert_eq!(cell(&first, "x = 41").await["status"], "success");
    let owner =
        || text(&cluster.all("pods")[0]["metadata"]["labels"]["llm-sandbox.owner"]).to_owned();
    let left = owner();
    first.signal("KILL");
    first.exit_code().await;
    let second = Web::start(On::Kubernetes, &settings).await;
    let next = cell(&second, "x + 1").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("42"), &Value::Null), "{next}");
    let own = owner();
    assert_ne!(own, left);
    let leases = cluster.all("leases");
    let lease = leases.iter().find(|it| it["metadata"]["name"] == own).expect("its own");
    let pod = cluster.all("pods").remove(0);
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], lease["metadata"]["uid"]);
    // When the first server's Lease is overdue, it is removed, and nothing that the second server took over.
    cluster.age_leases();
    until("the Lease is gone", async || !cluster.names("leases").contains(&left)).await;
    assert_eq!(cell(&second, "x").await["result"], "41");
    let close = json!({ "session_id": session });
    second.caller(None).call("close_session", close).await.ok();
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_in_good_order_leaves_neither_pods_nor_its_lease() {
    let cluster = Cluster::start();
    let mut server = cluster.server(&[("SANDBOX_POOL_SIZE", "1")]).await;
    server.run(&name("a"), "x = 1").await;
    assert_eq!(cluster.all("leases").len(), 1);
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    cluster.until("pods", 0).await;
    cluster.until("leases", 0).await;
}

/// The output of `doctor` with these settings, and its exit code.
pub(crate) async fn doctor(cluster: &Cluster, more: &[(&str, &str)]) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(cluster);
    let settings: Vec<_> = settings.iter().map(|(key, value)| (*key, &**value)).collect();
    let mut command = program(folder.path(), &settings);
    let command = command.envs(more.iter().copied()).arg("doctor").stdout(Stdio::piped());
    let mut process = command.kill_on_drop(true).spawn().expect("it starts");
    let mut said = String::new();
    let mut output = process.stdout.take().expect("piped");
    timeout(PATIENCE, output.read_to_string(&mut said)).await.expect("in time").expect("UTF-8");
    let code = process.wait().await.expect("waited").code();
    (said, code)
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_cluster_in_order_and_leaves_nothing() {
    let cluster = Cluster::start();
    let (said, code) = doctor(&cluster, &[("SANDBOX_RUNTIME", "gvisor")]).await;
    assert_eq!(code, Some(0), "{said}");
    for line in [
        "ok    cluster    Kubernetes v1.33.0-fake, namespace sandboxes",
        "ok    rights     all that are needed",
        "ok    admission  a sandbox is admitted",
        "ok    runtime    RuntimeClass gvisor",
        "a sandbox starts in",
        "n/a   network    the API server's address is this machine's own",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    cluster.until("pods", 0).await;
    cluster.until("leases", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_fails_where_a_sandbox_can_connect_out() {
    let cluster = Cluster::start();
    let target = cluster.url.trim_start_matches("http://");
    let (said, code) = doctor(&cluster, &[("SANDBOX_KUBERNETES_CANARY_TARGET", target)]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("FAIL  network    A SANDBOX CAN CONNECT OUT"), "{said}");
    assert!(said.contains("NetworkPolicy"), "{said}");
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_missing_rights_a_full_quota_and_a_missing_image() {
    let cluster = Cluster::start();
    cluster.deny("exec", "pods");
    cluster.deny("patch", "leases");
    cluster.behave(Behaviour::Waits("ImagePullBackOff"));
    let (said, code) = doctor(&cluster, &[("SANDBOX_IMAGE", "registry.example.org/x:1")]).await;
    assert_eq!(code, Some(1), "{said}");
    for line in
        ["create pods/exec, get pods/exec, patch leases", "FAIL  image", "registry.example.org/x:1"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    cluster.allow_pods(0);
    let (said, code) = doctor(&cluster, &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("FAIL  admission"), "{said}");
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_that_would_weaken_a_sandbox_ends_the_server_with_all_its_mistakes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pod.yaml");
    std::fs::write(&path, "spec: { hostNetwork: true, tolerations: x, volumes: [] }")
        .expect("written");
    let settings = [
        ("SANDBOX_ENGINE", "kubernetes"),
        ("SANDBOX_KUBERNETES_POD", path.to_str().expect("UTF-8")),
    ];
    let mut command = program(folder.path(), &settings);
    let output = command.arg("doctor").output().await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("spec.hostNetwork") && said.contains("spec.volumes"), "{said}");
    std::fs::write(&path, "spec: { tolerations: x }").expect("written");
    let output = program(folder.path(), &settings).arg("doctor").output().await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is no pod with that"), "{said}");
}
