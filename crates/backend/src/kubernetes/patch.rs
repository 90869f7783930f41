//! The operator's merge patch (RFC 7386) of sandboxes' pods, for differences between clusters. Only fields that weaken
//! no promise are allowed.

use std::{fs, path::Path};

use serde_json::{Map, Value};

use sandbox_container::{APP, LABEL_APP};

/// Largest file, in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// A patch that weakens no promise; the default changes nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Patch(Map<String, Value>);

/// The path of the annotation by which the operator allows datasets in folders of the nodes.
const ALLOWS_HOST_PATH: &str = "metadata.annotations.llm-sandbox/allow-host-path";

/// Checks a value; the error says why it is refused.
type Rule = fn(&Value) -> Result<(), &'static str>;

/// Fields that may be set, including everything below them. `*` is any key.
const ALLOWED: &[(&str, Rule)] = &[
    ("apiVersion", |value| is(value == "v1", "is v1")),
    ("kind", |value| is(value == "Pod", "is Pod")),
    ("metadata.annotations.*", |_| Ok(())),
    ("metadata.labels.*", |_| Ok(())),
    ("spec.affinity", |_| Ok(())),
    ("spec.hostUsers", |value| {
        is(value == false, "can only be false: a user namespace of its own")
    }),
    ("spec.imagePullSecrets", |_| Ok(())),
    ("spec.nodeSelector.*", |_| Ok(())),
    ("spec.preemptionPolicy", |_| Ok(())),
    ("spec.priorityClassName", |_| Ok(())),
    ("spec.schedulerName", |_| Ok(())),
    ("spec.securityContext.appArmorProfile.localhostProfile", |_| Ok(())),
    ("spec.securityContext.appArmorProfile.type", is_profile),
    ("spec.securityContext.fsGroup", is_not_root),
    ("spec.securityContext.fsGroupChangePolicy", |_| Ok(())),
    ("spec.securityContext.runAsGroup", is_not_root),
    ("spec.securityContext.runAsUser", is_not_root),
    ("spec.securityContext.seLinuxOptions.level", |_| Ok(())),
    ("spec.securityContext.seccompProfile.localhostProfile", |_| Ok(())),
    ("spec.securityContext.seccompProfile.type", is_profile),
    // For the pull secrets of the service account; its token is never mounted.
    ("spec.serviceAccountName", |_| Ok(())),
    ("spec.tolerations", |_| Ok(())),
    ("spec.topologySpreadConstraints", |_| Ok(())),
];

/// Fields that are often asked for and refused, with the reason. The first entry that a path begins with applies.
const REFUSED: &[(&str, &str)] = &[
    ("spec.automountServiceAccountToken", "a sandbox has no token of the cluster's"),
    (
        "spec.containers",
        "the container is the sandbox; settings such as SANDBOX_IMAGE say what is in it",
    ),
    ("spec.dns", "a sandbox has no name server"),
    ("spec.ephemeralContainers", "nothing else runs beside a sandbox"),
    ("spec.hostIPC", "a sandbox has nothing of its node"),
    ("spec.hostNetwork", "a sandbox has nothing of its node, and no network"),
    ("spec.hostPID", "a sandbox has nothing of its node"),
    ("spec.initContainers", "nothing else runs beside a sandbox"),
    ("spec.runtimeClassName", "set SANDBOX_RUNTIME instead"),
    ("spec.shareProcessNamespace", "nothing else runs beside a sandbox"),
    (
        "spec.volumes",
        "a sandbox has no files but its own, and datasets: no hostPath, no claim, no secret",
    ),
];

fn is(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}

fn is_profile(value: &Value) -> Result<(), &'static str> {
    is(value == "RuntimeDefault" || value == "Localhost", "can only be RuntimeDefault or Localhost")
}

/// With `null` the cluster chooses, but because of `runAsNonRoot` never root.
fn is_not_root(value: &Value) -> Result<(), &'static str> {
    is(
        value.is_null() || value.as_u64() >= Some(1),
        "can only be a number from 1, or null: never root",
    )
}

impl Patch {
    /// Reads a file of JSON or YAML.
    ///
    /// # Errors
    /// All mistakes in the file.
    pub(super) fn read(path: &Path) -> Result<Self, Vec<String>> {
        let read = || {
            if fs::metadata(path)?.len() > MAX_BYTES {
                return Err(std::io::Error::other(format!("is larger than {MAX_BYTES} bytes")));
            }
            fs::read_to_string(path)
        };
        Self::parse(&read().map_err(|error| vec![error.to_string()])?)
    }

    /// Parses the text of a patch.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<String>> {
        // JSON is YAML, too.
        let patch: Value = serde_saphyr::from_str(text).map_err(|error| vec![error.to_string()])?;
        let Value::Object(patch) = patch else {
            return Err(vec!["is not an object such as {\"spec\": {...}}".into()]);
        };
        let mut mistakes = vec![];
        for (key, value) in &patch {
            look(key, value, &mut mistakes);
        }
        if mistakes.is_empty() { Ok(Self(patch)) } else { Err(mistakes) }
    }

    /// Merges the patch into a pod.
    pub(super) fn apply(&self, pod: &mut Value) {
        merge(pod, &self.0);
    }
}

impl Patch {
    /// Whether the patch gives each pod a user namespace of its own.
    pub(super) fn has_user_namespace(&self) -> bool {
        self.at("/hostUsers") == Some(&Value::Bool(false))
    }

    /// The first and the last user id that a pod may have, if the patch sets `runAsUser`.
    pub(super) fn users(&self) -> Option<[u32; 2]> {
        let user = self.at("/securityContext/runAsUser")?;
        let fixed = user.as_u64().and_then(|user| u32::try_from(user).ok());
        Some(fixed.map_or([1, u32::MAX], |user| [user, user]))
    }

    /// Whether the operator allows datasets in folders of the nodes.
    pub(super) fn allows_host_path(&self) -> bool {
        let annotations = self.0.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let name = ALLOWS_HOST_PATH.trim_start_matches("metadata.annotations.");
        annotations.and_then(|all| all.get(name)) == Some(&Value::from("true"))
    }

    fn at(&self, below_spec: &str) -> Option<&Value> {
        self.0.get("spec")?.pointer(below_spec)
    }
}

/// Adds a mistake for each value at or below this path that is not allowed.
fn look(path: &str, value: &Value, mistakes: &mut Vec<String>) {
    if let Some((_, rule)) = ALLOWED.iter().find(|(allowed, _)| is_at(allowed, path)) {
        let fault = rule(value).err().or_else(|| own_or_unconfined(path, value));
        mistakes.extend(fault.map(|why| format!("{path}: {why}")));
        return;
    }
    if let (Value::Object(fields), true) = (value, ALLOWED.iter().any(|(it, _)| is_above(path, it)))
    {
        for (key, value) in fields {
            look(&format!("{path}.{key}"), value, mistakes);
        }
        return;
    }
    let refused = REFUSED.iter().find(|(refused, _)| path.starts_with(refused));
    let why = refused.map_or("is not among what can be changed", |(_, why)| why);
    mistakes.push(format!("{path}: {why}"));
}

/// Whether a path matches an allowed one. Keys may contain dots, so `*` matches the whole rest as one key.
fn is_at(allowed: &str, path: &str) -> bool {
    match allowed.strip_suffix('*') {
        Some(above) => path.strip_prefix(above).is_some_and(|key| !key.is_empty()),
        None => path == allowed,
    }
}

fn is_above(path: &str, allowed: &str) -> bool {
    allowed.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
}

/// Refuses labels and annotations that are the server's own, or that loosen a profile on older clusters.
fn own_or_unconfined(path: &str, value: &Value) -> Option<&'static str> {
    let key = path
        .strip_prefix("metadata.labels.")
        .or_else(|| path.strip_prefix("metadata.annotations."))?;
    // The server's own are `llm-sandbox.owner` and `llm-sandbox/session`, for example.
    let is_own = path != ALLOWS_HOST_PATH
        && (key == LABEL_APP
            || key.strip_prefix(APP).is_some_and(|rest| rest.starts_with(['.', '/'])));
    if is_own {
        return Some("is the server's own");
    }
    let is_profile =
        key.contains("seccomp.security.alpha") || key.contains("apparmor.security.beta");
    let is_strict =
        value.as_str().is_some_and(|it| it == "runtime/default" || it.starts_with("localhost/"));
    (is_profile && !is_strict).then_some("can only be runtime/default or localhost/...")
}

fn merge(target: &mut Value, patch: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(key)),
            Value::Object(fields) => merge(target.entry(&**key).or_insert(Value::Null), fields),
            other => drop(target.insert(key.clone(), other.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_container::{LABEL_HOLD, LABEL_OWNER};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_clusters_differ_in_is_merged_over_ours() {
        let patch = "
            metadata: { labels: { team.example.org/name: data } }
            spec:
              nodeSelector: { pool: sandboxes }
              tolerations: [{ key: sandboxes, operator: Exists }]
              imagePullSecrets: [{ name: registry }]
              hostUsers: false
              securityContext:
                runAsUser: null
                seccompProfile: { type: Localhost, localhostProfile: llm-sandbox.json }";
        let patch = Patch::parse(patch).expect("all of it may be");
        let mut pod = json!({
            "metadata": { "labels": { "app": "llm-sandbox" } },
            "spec": {
                "nodeSelector": { "kubernetes.io/os": "linux" },
                "securityContext": { "runAsUser": 50_123, "seccompProfile": { "type": "RuntimeDefault" } },
            },
        });
        patch.apply(&mut pod);
        assert_eq!(
            pod,
            json!({
                "metadata": { "labels": { "app": "llm-sandbox", "team.example.org/name": "data" } },
                "spec": {
                    "nodeSelector": { "kubernetes.io/os": "linux", "pool": "sandboxes" },
                    "tolerations": [{ "key": "sandboxes", "operator": "Exists" }],
                    "imagePullSecrets": [{ "name": "registry" }],
                    "hostUsers": false,
                    "securityContext": {
                        "seccompProfile": { "type": "Localhost", "localhostProfile": "llm-sandbox.json" },
                    },
                },
            })
        );
    }

    #[test]
    fn all_that_would_weaken_a_sandbox_is_named_at_once() {
        let weak = json!({
            "metadata": {
                "labels": { "app": "mine", LABEL_HOLD: "3600", LABEL_OWNER: null },
                "annotations": { "container.apparmor.security.beta.kubernetes.io/agent": "unconfined" },
                "namespace": "elsewhere",
            },
            "spec": {
                "hostNetwork": true, "hostPID": true, "hostIPC": true, "hostUsers": true,
                "automountServiceAccountToken": true,
                "shareProcessNamespace": true,
                "containers": [{ "name": "agent", "securityContext": { "privileged": true } }],
                "initContainers": [{ "securityContext": { "capabilities": { "add": ["NET_ADMIN"] } } }],
                "volumes": [{ "name": "x", "hostPath": { "path": "/" } }],
                "dnsPolicy": "ClusterFirst",
                "runtimeClassName": "gvisor",
                "activeDeadlineSeconds": null,
                "securityContext": {
                    "runAsNonRoot": false, "runAsUser": 0, "seccompProfile": { "type": "Unconfined" },
                    "sysctls": [],
                },
                "nodeSelector": "x",
            },
        });
        let mistakes = Patch::parse(&weak.to_string()).expect_err("none of it may be");
        for path in [
            "metadata.labels.app",
            "metadata.labels.llm-sandbox.hold",
            "metadata.labels.llm-sandbox.owner",
            "metadata.annotations.container.apparmor",
            "metadata.namespace",
            "spec.hostNetwork",
            "spec.hostPID",
            "spec.hostIPC",
            "spec.hostUsers",
            "spec.automountServiceAccountToken",
            "spec.shareProcessNamespace",
            "spec.containers",
            "spec.initContainers",
            "spec.volumes",
            "spec.dnsPolicy",
            "spec.runtimeClassName",
            "spec.activeDeadlineSeconds",
            "spec.securityContext.runAsNonRoot",
            "spec.securityContext.runAsUser",
            "spec.securityContext.seccompProfile.type",
            "spec.securityContext.sysctls",
            "spec.nodeSelector",
        ] {
            assert!(
                mistakes.iter().any(|mistake| mistake.starts_with(path)),
                "{path}: {mistakes:#?}"
            );
        }
        assert_eq!(mistakes.len(), 22, "{mistakes:#?}");
    }

    #[test]
    fn what_holds_can_be_neither_taken_away_nor_replaced_as_a_whole() {
        for whole in [
            r#"{"spec": null}"#,
            r#"{"metadata": null}"#,
            r#"{"metadata": {"labels": null}}"#,
            r#"{"spec": {"securityContext": null}}"#,
            r#"{"spec": {"securityContext": {"seccompProfile": null}}}"#,
            r#"{"spec": {"securityContext": {"seccompProfile": {"type": null}}}}"#,
            r#"{"spec": {"securityContext": []}}"#,
            r#"{"spec": []}"#,
            "[]",
            "text",
            "",
            "{",
        ] {
            assert!(Patch::parse(whole).is_err(), "{whole}");
        }
        assert_eq!(Patch::parse("{}"), Ok(Patch::default()));
    }
}
