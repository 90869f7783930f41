//! Pods as one backend makes them and as another server sweeps them, on an API server in this process.

use std::time::Duration;

use backend::{Backend, BackendErrorKind as Kind, Spec, kubernetes::Kubernetes, sweep};
use config::Config;
use serde_json::{Value, json};
use support::{
    PATIENCE,
    kubernetes::{Behaviour, Cluster, NAMESPACE, Trouble},
    name, text, until,
};
use tokio::time::timeout;

/// A backend on this cluster, in this process.
fn backend(cluster: &Cluster, more: &[(&str, &str)]) -> Kubernetes {
    let set = [("SANDBOX_KUBERNETES_NAMESPACE", NAMESPACE)];
    let set = set.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let config = Config::parse(set).expect("valid");
    Kubernetes::at(&cluster.url, &config).expect("a backend")
}

fn spec() -> Spec {
    Spec::new(
        &Config::default(),
        &name("pod").parse().expect("a name"),
        &model::OwnSettings::default(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_pod_from_starting_is_told_with_what_to_do_and_leaves_nothing() {
    let cluster = Cluster::start();
    let kubernetes = backend(&cluster, &[]);
    let failed = async |kubernetes: &Kubernetes, kind: Kind, remedy: &str| {
        let started = timeout(PATIENCE, kubernetes.start(spec())).await.expect("in time");
        let error = started.expect_err("it cannot start");
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
        cluster.until("pods", 0).await;
        cluster.recover();
    };
    for (behaviour, kind, remedy) in [
        (Behaviour::Waits("ImagePullBackOff"), Kind::TemplateMissing, "imagePullSecrets"),
        (Behaviour::Waits("ErrImageNeverPull"), Kind::TemplateMissing, "SANDBOX_IMAGE"),
        (Behaviour::Waits("RunContainerError"), Kind::TemplateMissing, "image build"),
        (Behaviour::Ends("StartError"), Kind::TemplateMissing, "image build"),
        (Behaviour::Ends("Error"), Kind::Refused, "kubectl describe"),
    ] {
        cluster.behave(behaviour);
        failed(&kubernetes, kind, remedy).await;
    }
    for (verb, code, message, kind, remedy) in [
        (
            "create",
            403,
            "pods is forbidden: User \"x\" cannot create resource",
            Kind::Denied,
            "docs/kubernetes.md",
        ),
        (
            "create",
            400,
            "admission webhook \"x\" denied the request: no",
            Kind::Denied,
            "admission rule",
        ),
        ("create", 500, "etcdserver: leader changed", Kind::Unreachable, "later"),
        ("exec", 403, "forbidden", Kind::Denied, "pods/exec"),
        ("exec", 502, "no kubelet", Kind::Unreachable, "no kubelet"),
    ] {
        cluster.trouble(verb, "pods", Trouble::Status(code, message.into()), 9);
        failed(&kubernetes, kind, remedy).await;
    }
    cluster.allow_pods(0);
    failed(&kubernetes, Kind::Refused, "ResourceQuota").await;
    let other = backend(&cluster, &[("SANDBOX_RUNTIME", "kata")]);
    failed(&other, Kind::TemplateMissing, "SANDBOX_RUNTIME").await;
    let elsewhere = Config { kubernetes_namespace: Some("elsewhere".into()), ..Config::default() };
    let elsewhere = Kubernetes::at(&cluster.url, &elsewhere).expect("a backend");
    failed(&elsewhere, Kind::TemplateMissing, "SANDBOX_KUBERNETES_NAMESPACE").await;
    let nowhere = Kubernetes::at("http://127.0.0.1:1", &Config::default()).expect("a backend");
    failed(&nowhere, Kind::Unreachable, "cannot be reached").await;
    // Without trouble, the backend works again.
    let sandbox = kubernetes.start(spec()).await.expect("it starts");
    drop(sandbox);
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_nobody_waits_for_any_more_leaves_nothing_wherever_it_was() {
    let cluster = Cluster::start();
    let kubernetes = backend(&cluster, &[]);
    kubernetes.ready().await.expect("ready");
    let late = |after| Trouble::Late(Duration::from_millis(after));
    let points = [
        ("create", late(200), Behaviour::Runs),
        ("create", Trouble::Status(200, String::new()), Behaviour::Runs),
        ("list", Trouble::Ignored, Behaviour::Unschedulable),
        ("list", Trouble::Ignored, Behaviour::Silent),
        ("list", Trouble::Ignored, Behaviour::Waits("ContainerCreating")),
        ("exec", late(200), Behaviour::Runs),
        ("exec", Trouble::Ignored, Behaviour::Runs),
    ];
    for (verb, trouble, behaviour) in points {
        let what = format!("{verb} {trouble:?} {behaviour:?}");
        cluster.behave(behaviour);
        if trouble != Trouble::Status(200, String::new()) {
            cluster.trouble(verb, "pods", trouble, 1);
        }
        let before = cluster.requests().len();
        let mut start = Box::pin(kubernetes.start(spec()));
        let asked = async || cluster.requests()[before..].iter().any(|it| it == "create pods");
        tokio::select! {
            started = &mut start => drop(started),
            () = until("a pod is asked for", asked) => {}
        }
        drop(start);
        until(&format!("deleted: {what}"), async || {
            cluster.requests()[before..].iter().any(|it| it == "delete pods")
        })
        .await;
        cluster.until("pods", 0).await;
        cluster.recover();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_made_without_an_answer_is_removed() {
    let cluster = Cluster::start();
    let kubernetes = backend(&cluster, &[]);
    kubernetes.ready().await.expect("ready");
    cluster.trouble("create", "pods", Trouble::Swallowed, 1);
    let error = timeout(PATIENCE, kubernetes.start(spec())).await.expect("in time");
    assert_eq!(error.expect_err("no answer").kind, Kind::Timeout);
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_has_expired_begins_anew_and_misses_nothing() {
    let cluster = Cluster::start();
    let kubernetes = backend(&cluster, &[]);
    let first = kubernetes.start(spec()).await.expect("it starts");
    let (gone, stays) = (first.gone.clone(), kubernetes.start(spec()).await.expect("it starts"));
    // The pod is deleted while no watch can see it: the events before the next list are forgotten.
    cluster.trouble("list", "pods", Trouble::Late(Duration::from_millis(300)), 1);
    cluster.trouble("watch", "pods", Trouble::Status(410, "too old resource version".into()), 1);
    cluster.forget_history();
    cluster.delete("pods", &first.id);
    timeout(PATIENCE, gone).await.expect("it is heard of");
    for _ in 0..3 {
        cluster.forget_history();
        let next = timeout(PATIENCE, kubernetes.start(spec())).await.expect("in time");
        drop(next.expect("it starts"));
    }
    assert!(futures::FutureExt::now_or_never(stays.gone.clone()).is_none(), "it is still there");
    drop((first, stays));
    cluster.until("pods", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_server_leaves_is_removed_by_another_when_its_lease_is_overdue() {
    let cluster = Cluster::start();
    let mut killed = cluster.server(&[("SANDBOX_HOLD_S", "0")]).await;
    killed.run(&name("left"), "x = 1").await;
    killed.kill().await;
    killed.exit_code().await;
    let left = cluster.names("leases").remove(0);
    assert_eq!(cluster.all("pods").len(), 1, "no guard and no collector could know");
    // To other servers, its Lease has not expired yet.
    let other = backend(&cluster, &[]);
    other.ready().await.expect("ready");
    sweep::sweep(&other).await;
    assert_eq!(cluster.all("pods").len(), 1);
    cluster.age_leases();
    until("the other renews its own", async || {
        cluster.all("leases").iter().any(|it| !text(&it["spec"]["renewTime"]).starts_with("2020"))
    })
    .await;
    cluster.until("pods", 0).await;
    until("the Lease is gone", async || !cluster.names("leases").contains(&left)).await;
    assert_eq!(cluster.all("leases").len(), 1, "its own is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_somebody_deletes_takes_its_pods_and_is_made_anew() {
    let cluster = Cluster::start();
    let kubernetes = backend(&cluster, &[]);
    let sandbox = kubernetes.start(spec()).await.expect("it starts");
    cluster.delete("leases", &cluster.names("leases")[0]);
    timeout(PATIENCE, sandbox.gone.clone()).await.expect("it goes with it");
    // Until the backend notices that the Lease is missing, new pods have the deleted Lease as owner, and are removed.
    until("a sandbox stays", async || {
        let Ok(sandbox) = kubernetes.start(spec()).await else { return false };
        timeout(Duration::from_millis(300), sandbox.gone.clone()).await.is_err()
    })
    .await;
    assert_eq!(cluster.all("leases").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_cluster_sandboxes_end_with_the_servers_own_pod() {
    let cluster = Cluster::start();
    let own = json!({ "metadata": { "name": "server-0", "labels": { "app": "llm-sandbox" } }, "spec": {} });
    let uid = cluster.add("pods", own);
    let more = [("POD_NAME", "server-0"), ("POD_UID", &*uid), ("POD_NAMESPACE", NAMESPACE)];
    let mut server = cluster.server(&more).await;
    server.run(&name("a"), "x = 1").await;
    let sandboxes =
        cluster.all("pods").into_iter().filter(|pod| pod["metadata"]["name"] != "server-0");
    let owners: Vec<_> =
        sandboxes.map(|pod| pod["metadata"]["ownerReferences"][0]["uid"].clone()).collect();
    assert_eq!(owners, [json!(uid)]);
    // A sweep never takes the server's own pod for a sandbox, whatever label it has.
    sweep::sweep(&backend(&cluster, &[])).await;
    assert_eq!(cluster.all("pods").len(), 2);
    server.kill().await;
    server.exit_code().await;
    cluster.delete("pods", "server-0");
    cluster.until("pods", 0).await;
    cluster.until("leases", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_ours_that_no_session_has_is_swept() {
    let cluster = Cluster::start();
    let kubernetes = backend(&cluster, &[]);
    let sandbox = kubernetes.start(spec()).await.expect("it starts");
    let mut lost = cluster.all("pods").remove(0);
    lost["metadata"]["name"] = "sandbox-lost".into();
    lost["metadata"]["uid"] = Value::Null;
    cluster.add("pods", lost);
    sweep::sweep(&kubernetes).await;
    assert_eq!(cluster.names("pods"), std::slice::from_ref(&sandbox.id));
}
