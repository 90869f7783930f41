//! The exact description of a sandbox's pod: one pure function, with a reason beside each choice. It complies with Pod
//! Security `restricted`.
//!
//! A pod has no field for some limits of a Docker container. The agent sets them by its arguments (open files, core
//! dumps, size and number of files), or `docs/kubernetes.md` states that they are missing (programs in `/tmp`,
//! processes).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use protocol::limits::{DATASETS, MAX_FILES};
use sandbox_container::{
    AGENT, APP, GID, LABEL_APP, LABEL_CALLER, LABEL_FETCHER, LABEL_HOLD, LABEL_KEY, LABEL_OWNER,
    Limits, PACKAGES, Storage, Uid, rlimits, rlimits_argument, scratch_bytes,
};
use serde_json::{Value, json};

use super::patch::Patch;
use crate::{CallerKey, Purpose};

/// The only container.
pub(super) const CONTAINER: &str = "agent";

/// Annotation: the pod's session. Not a label, because not every session's name is a valid value of a label.
pub(super) const SESSION: &str = "llm-sandbox/session";

/// How long PID 1 waits for its first stream, in seconds.
const HOLD_S: u32 = 60;

/// The command of PID 1. All processes that it starts inherit its resource limits.
fn hold_command(limits: &Limits) -> Vec<String> {
    let own = rlimits_argument(&rlimits(limits));
    let (hold, files) = (HOLD_S.to_string(), MAX_FILES.to_string());
    let always = [AGENT, "--hold", &hold, "--rlimits", &own, "--max-inodes", &files];
    let bytes = limits.data.to_string();
    let on_disk = (limits.storage == Storage::Disk).then_some(["--max-bytes", &bytes]);
    always.into_iter().chain(on_disk.into_iter().flatten()).map(str::to_owned).collect()
}

/// Memory that is requested on the node, in bytes: the size of a session with its libraries loaded. Sessions are idle
/// most of the time, so they share the memory between this and their limits.
const REQUESTED_MEMORY: u64 = 200_000_000;

/// Processor time that is requested on the node, in thousandths. It is low because sessions are idle most of the time.
const REQUESTED_CPU: u64 = 50;

/// Bytes of the node's disk for the agent's few log messages.
const LOG_BYTES: u64 = 64_000_000;

/// The parameters of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The pod's name in the namespace.
    pub(super) name: &'a str,
    /// The name of the pod's session.
    pub(super) session: &'a str,
    /// The name of the server's Lease.
    pub(super) owner: &'a str,
    /// The owner: the cluster removes the pod when the owner is deleted.
    pub(super) ends_with: &'a OwnerReference,
    pub(super) image: &'a str,
    pub(super) runtime_class: Option<&'a str>,
    pub(super) limits: Limits,
    /// How long the pod outlives its stream; `None` if it ends with the stream.
    pub(super) hold: Option<Duration>,
    /// Bytes of packages in the pod, if packages may be installed.
    pub(super) packages: Option<u64>,
    /// Names of resources of the node, and the number of each, for devices.
    pub(super) gpus: &'a [(String, u32)],
    /// The datasets, each with the source of its volume.
    pub(super) datasets: &'a [(String, Value)],
    /// The pod's task.
    pub(super) purpose: Purpose,
    /// The caller of the session, if several servers share their callers.
    pub(super) caller: Option<&'a CallerKey>,
    /// The fingerprint of the servers' key, if they share their callers.
    pub(super) key: Option<&'a str>,
    pub(super) uid: Uid,
    /// The age at which the cluster ends the pod in any case.
    pub(super) deadline: Duration,
    pub(super) patch: &'a Patch,
}

fn labels(wanted: &Wanted) -> BTreeMap<&'static str, String> {
    let hold = wanted.hold.map(|hold| (LABEL_HOLD, hold.as_secs().to_string()));
    let caller = wanted.caller.map(|caller| (LABEL_CALLER, caller.as_str().to_owned()));
    let always = [(LABEL_APP, APP.to_owned()), (LABEL_OWNER, wanted.owner.to_owned())];
    let key = wanted.key.map(|key| (LABEL_KEY, key.to_owned()));
    let is_fetcher = wanted.purpose == Purpose::Fetcher;
    let fetcher = is_fetcher.then(|| (LABEL_FETCHER, "true".to_owned()));
    always.into_iter().chain(hold).chain(caller).chain(key).chain(fetcher).collect()
}

/// The description of a pod.
pub(super) fn pod(wanted: &Wanted) -> Value {
    let Wanted { limits, uid, .. } = *wanted;
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": wanted.name,
            "labels": labels(wanted),
            "annotations": { SESSION: wanted.session },
            "ownerReferences": [wanted.ends_with],
        },
        "spec": {
            // A restarted container would not have the files and variables of the sandbox that ended.
            "restartPolicy": "Never",
            // No grace period: PID 1 has nothing to save.
            "terminationGracePeriodSeconds": 0,
            // The last resort, for a pod that neither the end of its stream nor a sweep has ended.
            "activeDeadlineSeconds": wanted.deadline.as_secs(),
            // A sandbox must have no access to the cluster's API.
            "automountServiceAccountToken": false,
            // These environment variables would name the services of the namespace.
            "enableServiceLinks": false,
            "hostname": "sandbox",
            // No name server: a sandbox has no network.
            "dnsPolicy": "None",
            "dnsConfig": { "nameservers": ["127.0.0.1"] },
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "securityContext": {
                "runAsNonRoot": true,
                // A random user id for each pod, because the kernel counts resources by user over the whole node.
                "runAsUser": uid.number(),
                "runAsGroup": GID,
                "fsGroup": GID,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": CONTAINER,
                "image": wanted.image,
                // Set because the default for the tag `latest` is Always, with which each start would ask the
                // registry, and an image that was loaded into the nodes would not be found.
                "imagePullPolicy": "IfNotPresent",
                // Set because a derived image may have another entrypoint than the agent.
                "command": hold_command(&limits),
                "workingDir": "/mnt/data",
                "env": environment(limits.cpus, wanted.purpose),
                // A file on the node's disk, which any user could write to by default. Users cannot enter `/root`.
                "terminationMessagePath": "/root/termination-log",
                // PID 1 has no streams of its own, because they would be written to the node's disk.
                "stdin": false,
                "tty": false,
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                    "privileged": false,
                    "readOnlyRootFilesystem": true,
                },
                "resources": {
                    "requests": {
                        "cpu": format!("{}m", thousandths(limits.cpus).min(REQUESTED_CPU)),
                        "memory": limits.memory.min(REQUESTED_MEMORY).to_string(),
                        // Set because the default is the limit, and few sessions fill their data areas.
                        "ephemeral-storage": LOG_BYTES.to_string(),
                    },
                    "limits": {
                        "cpu": format!("{}m", thousandths(limits.cpus)),
                        "memory": limits.memory.to_string(),
                        "ephemeral-storage": (LOG_BYTES + on_disk(&limits)).to_string(),
                    },
                },
                "volumeMounts": [
                    { "name": "data", "mountPath": "/mnt/data" },
                    { "name": "scratch", "mountPath": "/tmp" },
                    { "name": "shared", "mountPath": "/dev/shm" },
                ],
            }],
            // Files in memory count towards the memory limit, and none stays on the node's disk.
            "volumes": [
                match limits.storage {
                    Storage::Memory => memory_volume("data", limits.data),
                    // The agent ends a run before its files take more. A kubelet looks once a minute, and would end
                    // the pod.
                    Storage::Disk => json!({
                        "name": "data",
                        "emptyDir": { "sizeLimit": limits.data.to_string() },
                    }),
                },
                memory_volume("scratch", scratch_bytes(limits.memory)),
                // Replaces the container runtime's own, which is 64 MB regardless of the memory limit.
                memory_volume("shared", scratch_bytes(limits.memory)),
            ],
        },
    });
    let spec = &mut pod["spec"];
    add_datasets(spec, wanted.datasets);
    for (name, count) in wanted.gpus.iter().filter(|_| wanted.purpose == Purpose::Session) {
        spec["containers"][0]["resources"]["limits"][name] = count.to_string().into();
    }
    match wanted.purpose {
        Purpose::Session => {
            if let Some(size) = wanted.packages {
                let mount = json!({ "name": "packages", "mountPath": PACKAGES });
                add(&mut spec["containers"][0]["volumeMounts"], mount);
                add(&mut spec["volumes"], memory_volume("packages", size));
            }
        }
        // A fetcher resolves the name of the package index with the cluster's name server.
        Purpose::Fetcher => {
            spec["dnsPolicy"] = "ClusterFirst".into();
            spec.as_object_mut().expect("the JSON above has it").remove("dnsConfig");
        }
    }
    if let Some(class) = wanted.runtime_class {
        pod["spec"]["runtimeClassName"] = class.into();
    }
    wanted.patch.apply(&mut pod);
    pod
}

/// Adds the volumes of datasets to the description of a pod.
fn add_datasets(spec: &mut Value, datasets: &[(String, Value)]) {
    for (number, (name, source)) in datasets.iter().enumerate() {
        // A dataset's name may be none of a volume's.
        let volume = format!("dataset-{number}");
        let mount = json!({
            "name": volume, "mountPath": format!("{DATASETS}/{name}"), "readOnly": true,
        });
        add(&mut spec["containers"][0]["volumeMounts"], mount);
        let mut source = source.clone();
        source["name"] = volume.into();
        add(&mut spec["volumes"], source);
    }
}

/// Adds an item to a list of the description.
fn add(list: &mut Value, item: Value) {
    list.as_array_mut().expect("the description has it").push(item);
}

/// Bytes of the node's disk that the data area may take.
fn on_disk(limits: &Limits) -> u64 {
    limits.data - limits.data_in_memory()
}

fn memory_volume(name: &str, size: u64) -> Value {
    json!({ "name": name, "emptyDir": { "medium": "Memory", "sizeLimit": size.to_string() } })
}

fn environment(cpus: f64, purpose: Purpose) -> Value {
    // Without this, BLAS starts a thread for each processor of the node, and the pod's CPU quota throttles them.
    let threads = cpus.ceil().max(1.0).to_string();
    let set = [("OPENBLAS_NUM_THREADS", &*threads), ("OMP_NUM_THREADS", &threads)];
    // Without a network, pip would retry for minutes before it fails.
    let no_index = (purpose == Purpose::Session).then_some(("PIP_NO_INDEX", "1"));
    set.into_iter()
        .chain(no_index)
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0.05 to 1024 processors"
)]
fn thousandths(cpus: f64) -> u64 {
    (cpus * 1000.0).ceil() as u64
}

/// Maximum number of characters of a session's name in the name of its pod.
const MAX_SLUG: usize = 40;

/// The name of a session's pod: a DNS label that contains the session's name. Sessions of different callers may have
/// the same name, so the number makes it unique.
pub(super) fn name(session: &str, number: u32) -> String {
    let slug: String = session
        .bytes()
        .take(MAX_SLUG)
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase().into() } else { '-' }
            },
        )
        .collect();
    format!("sandbox-{slug}-{number:08x}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        memory: 512_000_000,
        cpus: 1.0,
        pids: 128,
        data: 256_000_000,
        storage: Storage::Memory,
    };

    fn reference() -> OwnerReference {
        OwnerReference {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            name: "llm-sandbox-0123456789ab".into(),
            uid: "7b0f6c1e-0000-4000-8000-000000000000".into(),
            ..OwnerReference::default()
        }
    }

    fn wanted<'a>(reference: &'a OwnerReference, patch: &'a Patch) -> Wanted<'a> {
        Wanted {
            name: "sandbox-sess-0123456789ab-0000002a",
            session: "sess_0123456789ab",
            owner: "llm-sandbox-0123456789ab",
            ends_with: reference,
            image: "registry.example.org/llm-sandbox:1",
            runtime_class: None,
            hold: None,
            caller: None,
            packages: None,
            gpus: &[],
            datasets: &[],
            purpose: Purpose::Session,
            key: None,
            limits: LIMITS,
            uid: Uid::of_container("llm-sandbox-u50123").expect("one of ours"),
            deadline: Duration::from_secs(612_060),
            patch,
        }
    }

    #[test]
    fn the_pod_is_exactly_this() {
        let (reference, patch) = (reference(), Patch::default());
        insta::assert_json_snapshot!(pod(&wanted(&reference, &patch)));
    }

    #[test]
    fn what_fetches_packages_differs_by_its_label_and_its_names_and_has_no_room_for_them() {
        let (reference, patch) = (reference(), Patch::default());
        let with =
            |packages, purpose| pod(&Wanted { packages, purpose, ..wanted(&reference, &patch) });
        let fetcher = with(Some(128_000_000), Purpose::Fetcher);
        let mut same = with(None, Purpose::Session);
        same["metadata"]["labels"][LABEL_FETCHER] = "true".into();
        same["spec"]["dnsPolicy"] = "ClusterFirst".into();
        same["spec"].as_object_mut().expect("an object").remove("dnsConfig");
        let variables = &mut same["spec"]["containers"][0]["env"];
        variables.as_array_mut().expect("an array").retain(|it| it["name"] != "PIP_NO_INDEX");
        assert_eq!(fetcher, same);
        let session = with(Some(128_000_000), Purpose::Session);
        let mounts = session["spec"]["containers"][0]["volumeMounts"].as_array().expect("an array");
        assert_eq!(
            mounts.last(),
            Some(&json!({ "name": "packages", "mountPath": "/opt/packages" }))
        );
        assert_eq!(session["spec"]["volumes"][3]["emptyDir"]["sizeLimit"], "128000000");
        assert_eq!(session["metadata"]["labels"].get(LABEL_FETCHER), None);
    }

    #[test]
    fn a_dataset_is_a_volume_that_can_only_be_read() {
        let (reference, patch) = (reference(), Patch::default());
        let source =
            json!({ "nfs": { "server": "nfs.example.org", "path": "/x", "readOnly": true } });
        let datasets = [("Sales_2026".to_owned(), source)];
        let mut made = pod(&Wanted { datasets: &datasets, ..wanted(&reference, &patch) });
        let mut take =
            |list: &str| made.pointer_mut(list).and_then(Value::as_array_mut).and_then(Vec::pop);
        let mount =
            json!({ "name": "dataset-0", "mountPath": "/data/Sales_2026", "readOnly": true });
        assert_eq!(take("/spec/containers/0/volumeMounts"), Some(mount));
        let volume = take("/spec/volumes").expect("a volume");
        assert_eq!((&volume["name"], &volume["nfs"]["path"]), (&json!("dataset-0"), &json!("/x")));
        assert_eq!(made, pod(&wanted(&reference, &patch)));
    }

    #[test]
    fn files_on_disk_are_in_a_volume_of_the_node_of_which_the_agent_knows_the_limit() {
        let (reference, patch) = (reference(), Patch::default());
        let limits = Limits { data: 10_000_000_000, storage: Storage::Disk, ..LIMITS };
        let mut made = pod(&Wanted { limits, ..wanted(&reference, &patch) });
        let container = &mut made["spec"]["containers"][0];
        let command = container["command"].as_array_mut().expect("a list");
        assert_eq!(command.split_off(7), ["--max-bytes", "10000000000"]);
        assert_eq!(
            command[4],
            "nofile=1024,fsize=10001048576,core=0,memlock=0,msgqueue=0,sigpending=1024"
        );
        assert_eq!(container["resources"]["limits"]["ephemeral-storage"], "10064000000");
        assert_eq!(container["resources"]["requests"]["ephemeral-storage"], "64000000");
        let data = &made["spec"]["volumes"][0];
        assert_eq!(data, &json!({ "name": "data", "emptyDir": { "sizeLimit": "10000000000" } }));
    }

    #[test]
    fn every_field_of_it_is_one_that_the_api_has() {
        let (reference, patch) = (reference(), Patch::default());
        let made = pod(&Wanted { runtime_class: Some("gvisor"), ..wanted(&reference, &patch) });
        let typed: k8s_openapi::api::core::v1::Pod =
            serde_json::from_value(made.clone()).expect("a pod");
        assert_eq!(serde_json::to_value(typed).expect("serializes"), made);
    }

    #[test]
    fn devices_are_limits_of_resources_and_nothing_else_differs() {
        let (reference, patch) = (reference(), Patch::default());
        let gpus = [("nvidia.com/gpu".to_owned(), 2)];
        let mut made = pod(&Wanted { gpus: &gpus, ..wanted(&reference, &patch) });
        let limits = &mut made["spec"]["containers"][0]["resources"]["limits"];
        let count = limits.as_object_mut().and_then(|limits| limits.remove("nvidia.com/gpu"));
        assert_eq!(count, Some(json!("2")));
        assert_eq!(made, pod(&wanted(&reference, &patch)));
    }

    #[test]
    fn what_is_set_aside_on_the_node_is_never_more_than_the_limits() {
        let (reference, patch) = (reference(), Patch::default());
        let limits = Limits { memory: 64_000_000, cpus: 0.05, pids: 16, data: 1 << 20, ..LIMITS };
        let made = pod(&Wanted { limits, ..wanted(&reference, &patch) });
        let resources = &made["spec"]["containers"][0]["resources"];
        assert_eq!(resources["requests"]["memory"], resources["limits"]["memory"]);
        assert_eq!(resources["requests"]["cpu"], resources["limits"]["cpu"]);
    }

    proptest! {
        #[test]
        fn every_session_has_a_pod_whose_name_is_one(session in "[A-Za-z0-9_-]{1,64}", number: u32) {
            let name = name(&session, number);
            prop_assert!(name.len() <= 63);
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            prop_assert!(name.bytes().all(|byte| is_plain(byte) || byte == b'-'));
            prop_assert!(name.bytes().next().is_some_and(is_plain) && name.bytes().last().is_some_and(is_plain));
        }
    }
}
