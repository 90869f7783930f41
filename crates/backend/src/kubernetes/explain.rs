//! Explanations of the cluster's errors: the kind, and a sentence or two with how to fix it.

use std::error::Error as _;

use kube::core::Status;
use model::text::printable;

use crate::{BackendError, BackendErrorKind as Kind};

/// Pointer to the lists of rights.
const RIGHTS: &str = "docs/kubernetes.md lists the rights that a server needs, and `llm-sandbox doctor` those it lacks.";

/// Converts an error of the client. `asked` names the request, such as "create a pod".
pub(super) fn explain(error: kube::Error, asked: &str) -> BackendError {
    let (kind, message) = match &error {
        kube::Error::Api(status) => of_status(status, asked),
        kube::Error::UpgradeConnection(kube::client::UpgradeConnectionError::ProtocolSwitch(
            status,
        )) => of_upgrade(status.as_u16()),
        kube::Error::InferConfig(_) | kube::Error::InferKubeconfig(_) => {
            let detail = chain(&error);
            (Kind::Unreachable, format!("{} ({detail}).", no_cluster()))
        }
        kube::Error::Auth(_) => {
            (Kind::Denied, format!("The cluster's credentials cannot be used ({}).", chain(&error)))
        }
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => (
            Kind::Unreachable,
            format!("The cluster's API server cannot be reached ({}).", chain(&error)),
        ),
        _ => (Kind::Refused, format!("The cluster did not {asked} ({}).", chain(&error))),
    };
    BackendError::new(kind, message).caused_by(error)
}

pub(super) fn no_answer(asked: &str) -> BackendError {
    let message = format!("The cluster's API server did not answer in time when asked to {asked}.");
    BackendError::new(Kind::Timeout, message)
}

fn no_cluster() -> &'static str {
    "There is no cluster: outside one, KUBECONFIG or ~/.kube/config must name it; inside one, the server's pod needs \
     the token of its service account"
}

/// The text of an error with its causes, which the client's own texts omit.
fn chain(error: &kube::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    printable(&text)
}

fn of_status(status: &Status, asked: &str) -> (Kind, String) {
    let says = printable(status.message.trim());
    let has = |text: &str| status.message.contains(text);
    match status.code {
        403 if has("exceeded quota") || has("must specify") => (
            Kind::Refused,
            format!(
                "The namespace's quota leaves no room for another sandbox ({says}). Raise the ResourceQuota, or lower \
                 SANDBOX_MAX_SESSIONS and SANDBOX_POOL_SIZE."
            ),
        ),
        403 | 404 | 422 if has("RuntimeClass") || has("runtimeClassName") => (
            Kind::TemplateMissing,
            format!(
                "The cluster does not have the RuntimeClass that SANDBOX_RUNTIME names ({says}). `kubectl get \
                 runtimeclasses` lists those it has."
            ),
        ),
        403 if has("violates PodSecurity") => (
            Kind::Denied,
            format!(
                "The namespace's Pod Security does not admit sandboxes ({says}). They keep to the level restricted; a \
                 change by SANDBOX_KUBERNETES_POD or by a webhook of the cluster does not."
            ),
        ),
        _ if has("admission webhook") || has("denied the request") => (
            Kind::Denied,
            format!(
                "An admission rule of the cluster refused to {asked} ({says}). Change that rule for the namespace, or \
                 set what it asks for in SANDBOX_KUBERNETES_POD."
            ),
        ),
        401 => (
            Kind::Denied,
            format!(
                "The cluster does not know who we are when asked to {asked} ({says}): the token or certificate is not, or no longer, valid."
            ),
        ),
        404 if has("namespaces") => (
            Kind::TemplateMissing,
            format!(
                "The namespace does not exist ({says}). Make it, or set SANDBOX_KUBERNETES_NAMESPACE."
            ),
        ),
        403 => (Kind::Denied, format!("The server may not {asked} ({says}). {RIGHTS}")),
        400 | 422 => (
            Kind::Refused,
            format!(
                "The cluster takes the request to {asked} for wrong ({says}). SANDBOX_KUBERNETES_POD may hold what it does not know."
            ),
        ),
        429 | 500.. => (
            Kind::Unreachable,
            format!("The cluster's API server could not {asked} ({says}). Try again later."),
        ),
        _ => (Kind::Refused, format!("The cluster refused to {asked} ({says}).")),
    }
}

fn of_upgrade(status: u16) -> (Kind, String) {
    match status {
        401 | 403 => (
            Kind::Denied,
            format!(
                "The server may not run a process in its pods (HTTP {status}): it needs the rights create and get on pods/exec. {RIGHTS}"
            ),
        ),
        _ => (
            Kind::Unreachable,
            format!(
                "The stream to the sandbox could not be opened (HTTP {status}): the API server must reach the node's \
                 kubelet, and a proxy in between must let websockets through."
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_kind_and_says_what_to_do() {
        let cases = [
            (
                403,
                "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1",
                Kind::Refused,
                "ResourceQuota",
            ),
            (
                403,
                "pods \"a\" is forbidden: pod rejected: RuntimeClass \"x\" not found",
                Kind::TemplateMissing,
                "SANDBOX_RUNTIME",
            ),
            (
                403,
                "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": x",
                Kind::Denied,
                "SANDBOX_KUBERNETES_POD",
            ),
            (
                400,
                "admission webhook \"policy.example.org\" denied the request: no",
                Kind::Denied,
                "admission rule",
            ),
            (
                403,
                "pods is forbidden: User \"x\" cannot create resource",
                Kind::Denied,
                "llm-sandbox doctor",
            ),
            (401, "Unauthorized", Kind::Denied, "token"),
            (
                404,
                "namespaces \"x\" not found",
                Kind::TemplateMissing,
                "SANDBOX_KUBERNETES_NAMESPACE",
            ),
            (422, "Pod \"a\" is invalid: spec.x", Kind::Refused, "SANDBOX_KUBERNETES_POD"),
            (429, "too many requests", Kind::Unreachable, "later"),
            (500, "etcdserver: request timed out", Kind::Unreachable, "etcdserver"),
            (409, "object is being deleted", Kind::Refused, "being deleted"),
        ];
        for (code, message, kind, remedy) in cases {
            let status = Status::failure(message, "").with_code(code);
            let error = explain(kube::Error::Api(status.boxed()), "create a pod");
            assert_eq!(error.kind, kind, "{message}");
            assert!(error.to_string().contains(remedy), "{message}: {error}");
        }
        assert_eq!(of_upgrade(403).0, Kind::Denied);
        assert_eq!(of_upgrade(502).0, Kind::Unreachable);
    }
}
