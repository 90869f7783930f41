//! Checks of the cluster for `llm-sandbox doctor`: whether it answers, the server's rights, whether it admits
//! sandboxes, and, with a canary pod, whether sandboxes start and have no network.

use std::{env, net::SocketAddr, time::Duration};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};
use link::{Link, LinkError, Opening, RunRequest, Stream, Timing};
use model::text::printable;
use protocol::message::RuntimeName;
use sandbox_container::Uid;
use serde_json::json;
use tokio::{net::lookup_host, time::Instant};

use super::{Cluster, Kubernetes, ask, explain::no_answer, pod};
use crate::{
    Backend, BackendError, Check, Diagnosable, Finding, Greeting, Life, Limits, Purpose, Sandbox,
    Spec, image,
};

/// Rights that a server needs in its namespace: the verb, the group, the resource and the subresource.
const RIGHTS: &[(&str, &str, &str, &str)] = &[
    ("create", "", "pods", ""),
    ("get", "", "pods", ""),
    ("list", "", "pods", ""),
    ("watch", "", "pods", ""),
    ("delete", "", "pods", ""),
    // To take over the pods of another server.
    ("patch", "", "pods", ""),
    // The API requires one or the other, depending on its version and on how the websocket was opened.
    ("create", "", "pods", "exec"),
    ("get", "", "pods", "exec"),
    ("create", "coordination.k8s.io", "leases", ""),
    ("list", "coordination.k8s.io", "leases", ""),
    ("patch", "coordination.k8s.io", "leases", ""),
    ("delete", "coordination.k8s.io", "leases", ""),
];

/// Further rights of a server that shares its callers with others.
const RIGHTS_OF_PEERS: &[(&str, &str, &str, &str)] =
    &[("get", "coordination.k8s.io", "leases", ""), ("watch", "coordination.k8s.io", "leases", "")];

/// The name of the canary's session.
const CANARY: &str = "canary";

/// A Python program that tries to connect to each address, and prints the outcome.
const CONNECT: &str = "import errno, json, socket, sys
for host, port in json.load(sys.stdin):
    try:
        socket.create_connection((host, port), 3).close()
        print('connected')
    except OSError as error:
        print(errno.errorcode.get(error.errno, type(error).__name__))
";

/// Longest run of the canary's program.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of addresses that the canary tries.
const MAX_TARGETS: usize = 4;

const POLICY: &str = "Apply a NetworkPolicy to the namespace that denies all ingress and egress (docs/kubernetes.md), \
                      and see to it that the cluster's network enforces such policies: Calico and Cilium do, flannel \
                      alone does not.";

pub(super) async fn look_over(kubernetes: &Kubernetes, limits: &Limits) -> Vec<Check> {
    let fault = |name: &str, text: &str, error: BackendError| {
        Check::new(name, Finding::fault(text, error.to_string()))
    };
    let cluster = match kubernetes.0.cluster().await {
        Ok(cluster) => cluster,
        Err(error) => return vec![fault("cluster", "cannot be used", error)],
    };
    let version = ask("tell its version", cluster.client.apiserver_version()).await;
    let mut checks = match version {
        Ok(version) => {
            let text =
                format!("Kubernetes {}, namespace {}", version.git_version, cluster.namespace);
            vec![Check::new("cluster", Finding::good(printable(&text)))]
        }
        Err(error) => return vec![fault("cluster", "does not answer", error)],
    };
    checks.push(Check::new("rights", rights(kubernetes, cluster).await));
    if kubernetes.0.homes.is_some() {
        checks.push(Check::new("peers", peers(kubernetes, cluster).await));
    }
    match dry_run(kubernetes, limits).await {
        Ok(()) => {
            checks.push(Check::new(
                "admission",
                Finding::good("a sandbox is admitted, and within the quota"),
            ));
            if let Some(class) = &kubernetes.0.settings.runtime_class {
                checks.push(Check::new("runtime", Finding::good(format!("RuntimeClass {class}"))));
            }
        }
        Err(error) => checks.push(fault("admission", "a sandbox would not be admitted", error)),
    }
    checks.push(Check::new("user ids", user_namespaces(kubernetes)));
    checks.extend(canary(kubernetes, cluster, limits).await);
    checks
}

/// Whether the server has the rights that it needs.
async fn rights(kubernetes: &Kubernetes, cluster: &Cluster) -> Finding {
    let reviews = Api::<SelfSubjectAccessReview>::all(cluster.client.clone());
    let mut missing = vec![];
    let of_peers = if kubernetes.0.homes.is_some() { RIGHTS_OF_PEERS } else { &[] };
    for &(verb, group, resource, below) in RIGHTS.iter().chain(of_peers) {
        let attributes = ResourceAttributes {
            namespace: Some(cluster.namespace.clone()),
            verb: Some(verb.into()),
            group: Some(group.into()),
            resource: Some(resource.into()),
            subresource: (!below.is_empty()).then(|| below.into()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        match ask("review our rights", reviews.create(&PostParams::default(), &review)).await {
            Ok(review) if review.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) if below.is_empty() => missing.push(format!("{verb} {resource}")),
            Ok(_) => missing.push(format!("{verb} {resource}/{below}")),
            Err(error) => return Finding::fault("cannot be reviewed", error.to_string()),
        }
    }
    if missing.is_empty() {
        Finding::good("all that are needed")
    } else {
        Finding::fault(
            format!("missing in namespace {}: {}", cluster.namespace, missing.join(", ")),
            "Give the server's service account the Role in docs/kubernetes.md.",
        )
    }
}

/// Whether all servers that share their callers have the same key.
async fn peers(kubernetes: &Kubernetes, cluster: &Cluster) -> Finding {
    let judged = match kubernetes.0.judge(cluster).await {
        Ok(judged) => judged,
        Err(error) => return Finding::fault("cannot be found", error.to_string()),
    };
    let others: Vec<_> = kubernetes.0.others(&judged).collect();
    if others.is_empty() {
        let alive = judged.iter().filter(|it| it.life == Life::Alive && it.key.is_some()).count();
        return Finding::good(format!("all {alive} that are alive have this server's key"));
    }
    Finding::fault(
        format!("other keys than this server's: {}", others.join(", ")),
        "Give all servers of this namespace the same SANDBOX_KEY_FILE.",
    )
}

/// Whether the cluster would admit a sandbox: its admission rules and its quota.
async fn dry_run(kubernetes: &Kubernetes, limits: &Limits) -> Result<(), BackendError> {
    let Kubernetes(inner) = kubernetes;
    let (cluster, run) = (inner.cluster().await?, inner.run().await?);
    let name = pod::name(CANARY, 0);
    let made = inner.pod(&name, &canary_spec(limits), Uid::random(), run)?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    ask("create a pod", cluster.pods.create(&dry, &made)).await.map(drop)
}

fn user_namespaces(kubernetes: &Kubernetes) -> Finding {
    Finding::good(if kubernetes.0.settings.patch.has_user_namespace() {
        "each sandbox has a user namespace of its own (hostUsers: false)"
    } else {
        "those of the nodes; with hostUsers: false in SANDBOX_KUBERNETES_POD each sandbox has its own, where the nodes \
         can do that"
    })
}

fn canary_spec(limits: &Limits) -> Spec {
    let session = CANARY.parse().expect("the constant `CANARY` is a valid session ID");
    Spec {
        session,
        limits: *limits,
        saved_as: None,
        hold: None,
        caller: None,
        datasets: vec![],
        purpose: Purpose::Session,
    }
}

/// Starts a sandbox, checks it, and removes it.
async fn canary(kubernetes: &Kubernetes, cluster: &Cluster, limits: &Limits) -> Vec<Check> {
    let image = &kubernetes.0.settings.image;
    let failed = |error: BackendError| {
        let finding = Finding::fault(format!("{image}: no sandbox starts"), error.to_string());
        vec![Check::new("image", finding)]
    };
    let begun = Instant::now();
    let sandbox = match kubernetes.start(canary_spec(limits)).await {
        Ok(sandbox) => sandbox,
        Err(error) => return failed(error),
    };
    let Sandbox { id, reader, writer, .. } = sandbox;
    let checks =
        match Link::connect(Stream { reader, writer }, Timing::default(), Opening::default()).await
        {
            Ok((link, _owner)) => {
                let took = begun.elapsed().as_millis();
                let text = format!(
                    "{image}: a sandbox starts in {took} ms, and speaks protocol {}",
                    image::PROTOCOL
                );
                let network = match targets(kubernetes, cluster).await {
                    Ok(targets) => network(&link, &targets).await,
                    Err(why) => Finding::NotShown(why),
                };
                vec![Check::new("image", Finding::good(text)), Check::new("network", network)]
            }
            Err(error) => {
                let fault = match error {
                    LinkError::Version(_) => Greeting::OtherVersion,
                    _ => Greeting::Missing,
                };
                failed(kubernetes.no_greeting(fault, &error.to_string()))
            }
        };
    if let Err(error) = kubernetes.remove(id.clone()).await {
        tracing::warn!(sandbox = id, %error, "failed to remove the canary pod");
    }
    checks
}

/// Addresses that a sandbox must not reach: those of `SANDBOX_KUBERNETES_CANARY_TARGET`, or the API server's, which
/// every pod can reach unless a policy prevents it.
async fn targets(kubernetes: &Kubernetes, cluster: &Cluster) -> Result<Vec<(String, u16)>, String> {
    let var = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let service = var("KUBERNETES_SERVICE_HOST")
        .zip(var("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse::<u16>().ok()));
    let set = kubernetes.0.settings.canary_target.as_ref();
    let address = match set.and_then(|set| set.rsplit_once(':')) {
        Some((host, port)) => {
            let port = port.parse().map_err(|_| format!("{port} is not a port"))?;
            Some((host.trim_matches(['[', ']']).to_owned(), port))
        }
        None => service.or_else(|| cluster.address.clone()),
    };
    let (host, port) = address.ok_or("the API server's address is not known")?;
    let found = lookup_host((&*host, port)).await.map_err(|error| format!("{host}: {error}"))?;
    let is_shown = |it: &SocketAddr| set.is_some() || !it.ip().is_loopback();
    let found: Vec<_> = found.filter(is_shown).take(MAX_TARGETS).collect();
    if found.is_empty() {
        return Err(format!(
            "the API server's address is this machine's own ({host}); SANDBOX_KUBERNETES_CANARY_TARGET can name \
             another that a sandbox must not reach"
        ));
    }
    Ok(found.into_iter().map(|it| (it.ip().to_string(), it.port())).collect())
}

/// Whether the canary can connect to any of these addresses.
async fn network(link: &Link, targets: &[(String, u16)]) -> Finding {
    let request = RunRequest {
        runtime: RuntimeName::PYTHON,
        code: CONNECT.into(),
        stdin: Some(json!(targets).to_string().into()),
        timeout: CONNECT_TIMEOUT,
        output_cap: 4096,
        cell: false,
    };
    let reply = match link.run(request).await {
        Ok(running) => running.finish().await,
        Err(error) => Err(error),
    };
    let said = match reply {
        Ok(reply) => String::from_utf8_lossy(&reply.stdout.head).into_owned(),
        Err(error) => {
            let why = no_answer("run a program in a sandbox");
            return Finding::fault(format!("cannot be tried: {error}"), why.to_string());
        }
    };
    judge(targets, &said)
}

/// Interprets the output of the canary's program.
fn judge(targets: &[(String, u16)], said: &str) -> Finding {
    let said: Vec<_> = said.lines().map(printable).collect();
    let shown: Vec<_> = targets
        .iter()
        .zip(&said)
        .map(|((host, port), outcome)| format!("{host} port {port}: {outcome}"))
        .collect();
    let shown = shown.join(", ");
    let has = |outcome: &str| said.iter().any(|it| it == outcome);
    if said.len() != targets.len() {
        Finding::fault("the canary did not say whether it can connect out", POLICY)
    } else if has("connected") {
        Finding::fault(format!("A SANDBOX CAN CONNECT OUT ({shown})"), POLICY)
    } else if has("ECONNREFUSED") || has("ECONNRESET") {
        let text = format!("what a sandbox sends is answered ({shown})");
        Finding::warning(text, POLICY)
    } else {
        Finding::good(format!("a sandbox cannot connect out ({shown})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_that_connects_is_a_fault_and_silence_is_no_proof() {
        let targets = [("10.96.0.1".to_owned(), 443), ("10.96.0.2".to_owned(), 443)];
        let is_fault = |said| matches!(judge(&targets, said), Finding::Fault { .. });
        assert!(is_fault("TimeoutError\nconnected\n"));
        assert!(is_fault(""));
        assert!(is_fault("ENETUNREACH\n"), "of one nothing is known");
        assert!(matches!(judge(&targets, "ENETUNREACH\nTimeoutError\n"), Finding::Good(_)));
        assert!(matches!(judge(&targets, "ECONNREFUSED\nENETUNREACH\n"), Finding::Warning { .. }));
    }
}
