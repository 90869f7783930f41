//! The status of a pod, reduced to starting, running or over, with the reason.

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use model::text::printable;

use crate::{BackendError, BackendErrorKind as Kind};

/// The last known state of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) phase: Phase,
    /// The reason that the cluster reports.
    pub(super) why: Option<Why>,
    /// Whether the pod was deleted.
    pub(super) is_deleted: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The pod does not run yet, or is not known yet.
    #[default]
    Starting,
    /// The pod's container runs.
    Running,
    /// The pod has ended, will never run, or no longer exists.
    Over,
}

/// A reason of the cluster, such as `ErrImageNeverPull`, and its message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Why {
    reason: String,
    message: String,
}

/// Reasons of a container that waits and will never start. A single failed pull (`ErrImagePull`) is not among them, as
/// the registry may only be down for a moment; `ImagePullBackOff` is, because the kubelet no longer retries at once.
const HOPELESS: &[&str] = &[
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

impl Seen {
    /// The state of a pod that no longer exists.
    pub(super) fn gone() -> Self {
        let why = Why::new(Some("it was deleted"), None);
        Self { phase: Phase::Over, why, is_deleted: true }
    }
}

impl Why {
    fn new(reason: Option<&str>, message: Option<&str>) -> Option<Self> {
        let [reason, message] = [reason, message].map(|text| printable(text.unwrap_or_default()));
        (!(reason.is_empty() && message.is_empty())).then_some(Self { reason, message })
    }

    /// The error for a pod that did not start, with the fix.
    pub(super) fn explain(this: Option<&Self>, image: &str) -> BackendError {
        let default = Self::default();
        let why = this.unwrap_or(&default);
        let says = why.to_string();
        let (kind, message) = match &*why.reason {
            "ErrImageNeverPull" | "ErrImagePull" | "ImageInspectError" | "ImagePullBackOff" | "InvalidImageName" => (
                Kind::TemplateMissing,
                format!(
                    "The cluster cannot get the image {image} ({says}). Push it to a registry that the nodes reach and \
                     set SANDBOX_IMAGE to its name there; a registry that asks who is there needs imagePullSecrets in \
                     SANDBOX_KUBERNETES_POD."
                ),
            ),
            "Unschedulable" => (
                Kind::Refused,
                format!(
                    "No node of the cluster has room for a sandbox ({says}). Add nodes, or see nodeSelector and \
                     tolerations in SANDBOX_KUBERNETES_POD."
                ),
            ),
            "Evicted" | "OOMKilled" | "DeadlineExceeded" => {
                (Kind::Refused, format!("The cluster has ended the sandbox as it started ({says})."))
            }
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "StartError"
            | "ContainerCannotRun" => (
                Kind::TemplateMissing,
                format!(
                    "The sandbox's container cannot be started ({says}). The image {image} must be one of \
                     `llm-sandbox image build`, or based on one, and what SANDBOX_KUBERNETES_POD names must be there."
                ),
            ),
            "" => (
                Kind::Timeout,
                "The cluster did not start the sandbox in time, and does not say why. `kubectl describe pods \
                 --selector app=llm-sandbox` may show more."
                    .to_owned(),
            ),
            _ => (
                Kind::Refused,
                format!(
                    "The sandbox did not start ({says}). `kubectl describe pods --selector app=llm-sandbox` may show \
                     more."
                ),
            ),
        };
        BackendError::new(kind, message)
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&*self.reason, &*self.message) {
            (reason, "") => f.write_str(reason),
            ("", message) => f.write_str(message),
            (reason, message) => write!(f, "{reason}: {message}"),
        }
    }
}

/// Reads the state from a pod's status.
pub(super) fn seen(pod: &Pod) -> Seen {
    let Some(status) = &pod.status else { return Seen::default() };
    let containers = status.container_statuses.iter().flatten();
    let each: Vec<&ContainerState> = containers.filter_map(|it| it.state.as_ref()).collect();
    let own = Why::new(status.reason.as_deref(), status.message.as_deref());
    let terminated = each.iter().find_map(|state| state.terminated.as_ref());
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) || terminated.is_some() {
        let of_container = terminated
            .and_then(|ended| Why::new(ended.reason.as_deref(), ended.message.as_deref()));
        return Seen { phase: Phase::Over, why: own.or(of_container), is_deleted: false };
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Seen::gone();
    }
    let waiting = each.iter().find_map(|state| state.waiting.as_ref());
    if let Some(waiting) = waiting {
        let hopeless = waiting.reason.as_deref().is_some_and(|reason| HOPELESS.contains(&reason));
        return Seen {
            phase: if hopeless { Phase::Over } else { Phase::Starting },
            why: Why::new(waiting.reason.as_deref(), waiting.message.as_deref()),
            is_deleted: false,
        };
    }
    if each.iter().any(|state| state.running.is_some()) {
        return Seen { phase: Phase::Running, ..Seen::default() };
    }
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|it| it.type_ == "PodScheduled" && it.status == "False");
    let why = unscheduled.and_then(|it| Why::new(it.reason.as_deref(), it.message.as_deref()));
    Seen { why, ..Seen::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(status: Value) -> Seen {
        seen(&serde_json::from_value(json!({ "metadata": {}, "status": status })).expect("a pod"))
    }

    fn with_state(state: Value) -> Value {
        let container = json!({ "name": "agent", "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0 });
        json!({ "phase": "Pending", "containerStatuses": [container] })
    }

    fn waiting(reason: &str) -> Seen {
        of(with_state(json!({ "waiting": { "reason": reason, "message": "told" } })))
    }

    #[test]
    fn what_keeps_a_pod_from_starting_has_its_kind_and_says_what_to_do() {
        let unschedulable = of(json!({
            "phase": "Pending",
            "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
            }],
        }));
        let cases = [
            (waiting("ImagePullBackOff"), Phase::Over, Kind::TemplateMissing, "SANDBOX_IMAGE"),
            (waiting("ErrImageNeverPull"), Phase::Over, Kind::TemplateMissing, "SANDBOX_IMAGE"),
            (waiting("ErrImagePull"), Phase::Starting, Kind::TemplateMissing, "imagePullSecrets"),
            (waiting("RunContainerError"), Phase::Over, Kind::TemplateMissing, "image build"),
            (waiting("ContainerCreating"), Phase::Starting, Kind::Refused, "kubectl describe"),
            (unschedulable, Phase::Starting, Kind::Refused, "0/3 nodes"),
            (
                of(json!({ "phase": "Failed", "reason": "Evicted" })),
                Phase::Over,
                Kind::Refused,
                "Evicted",
            ),
            (Seen::default(), Phase::Starting, Kind::Timeout, "in time"),
        ];
        for (seen, phase, kind, remedy) in cases {
            assert_eq!(seen.phase, phase, "{seen:?}");
            let error = Why::explain(seen.why.as_ref(), "own:1");
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_pod_runs_when_its_container_does_until_that_has_ended() {
        let running = of(with_state(json!({ "running": {} })));
        assert_eq!(running, Seen { phase: Phase::Running, ..Seen::default() });
        let ended =
            of(with_state(json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } })));
        assert_eq!(ended.phase, Phase::Over);
        assert_eq!(ended.why.map(|why| why.to_string()).as_deref(), Some("OOMKilled"));
        let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": { "phase": "Running" } });
        assert_eq!(seen(&serde_json::from_value(going).expect("a pod")).phase, Phase::Over);
    }
}
