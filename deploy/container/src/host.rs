//! The engine and its host, on which a container's options depend besides the settings.

use serde_json::{Value, json};

/// The properties of an engine and its host on which containers depend. A server and a relay read the same from the
/// engine's own answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// Processors.
    pub cpus: f64,
    /// The buffers of TCP and UDP sockets count as memory of their container. Under cgroup v1 they would count only
    /// with a limit of their own (`memory.kmem.tcp`), which runc does not set.
    pub counts_internet_sockets: bool,
    /// The program that answers.
    pub product: Product,
    /// The engine runs as a user, not as root.
    pub rootless: bool,
    /// SELinux separates containers.
    pub selinux: bool,
    /// The limits that the engine can set.
    pub settable: Settable,
    /// The user ids that a container can have are less than this.
    pub ids: u32,
}

/// The program that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Product {
    /// Docker, or another engine that behaves like it.
    #[default]
    Docker,
    /// Podman, by its Docker API.
    Podman,
}

impl Product {
    /// Reads the product from the engine's answer to `/version`.
    pub fn of(version: &Value) -> Self {
        let mut components = version["Components"].as_array().into_iter().flatten();
        let is_podman = components.any(|part| part["Name"] == "Podman Engine");
        if is_podman { Self::Podman } else { Self::Docker }
    }

    /// The name, for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// The limits that an engine can set. A rootless engine can set those that systemd has delegated to its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "an engine may set any of these, or none")]
pub struct Settable {
    /// Memory.
    pub memory: bool,
    /// Memory and swap together.
    pub swap: bool,
    /// Processors.
    pub cpus: bool,
    /// Processes and threads.
    pub pids: bool,
}

impl Host {
    /// Reads the properties from the engine's answers to `/info` and `/version`. For an unknown number of processors
    /// or version of cgroups the lesser one is assumed; a limit that is not mentioned can be set.
    pub fn of(info: &Value, version: &Value) -> Self {
        let options = info["SecurityOptions"].as_array();
        let has = |name: &str| {
            options.into_iter().flatten().filter_map(Value::as_str).any(|option| {
                option.strip_prefix("name=").and_then(|it| it.split(',').next()) == Some(name)
            })
        };
        let podman = &info[PODMAN];
        let can = |limit: &str, controller: &str| match podman["Controllers"].as_array() {
            // Podman looks for these limits where only cgroup version 1 has them.
            Some(all) => all.iter().any(|known| known == controller),
            None => info[limit] != false,
        };
        let has_swap = info["SwapLimit"] != false || info["CgroupVersion"] == "2";
        Self {
            cpus: info["NCPU"].as_f64().filter(|cpus| *cpus >= 1.0).unwrap_or(1.0),
            counts_internet_sockets: info["CgroupVersion"] == "2",
            product: Product::of(version),
            // Podman before 4.6 has only the second.
            rootless: has("rootless") || info["Rootless"] == true,
            selinux: has("selinux"),
            settable: Settable {
                memory: can("MemoryLimit", "memory"),
                swap: can("SwapLimit", "memory") && (podman.is_null() || has_swap),
                cpus: can("CpuCfsQuota", "cpu"),
                pids: can("PidsLimit", "pids"),
            },
            ids: podman["Ids"].as_u64().and_then(|ids| ids.try_into().ok()).unwrap_or(u32::MAX),
        }
    }
}

/// A field that this program adds to the answer of Podman to `/info`.
const PODMAN: &str = "Podman";

/// The path at which Podman tells what is not in its answer to `/info`.
pub const PODMAN_INFO: &str = "/v4.0.0/libpod/info";

/// Adds to Podman's answer to `/info` the properties that containers depend on and that are only in its answer to
/// [`PODMAN_INFO`].
pub fn add_podman_info(info: &mut Value, podman: &Value) {
    let sizes = |map: &Value| {
        let ranges = map.as_array()?;
        let ends = ranges.iter().map(|range| {
            let first = range["container_id"].as_u64().unwrap_or(0);
            first.saturating_add(range["size"].as_u64().unwrap_or(0))
        });
        ends.max()
    };
    let maps = &podman["host"]["idMappings"];
    let ids = sizes(&maps["uidmap"]).into_iter().chain(sizes(&maps["gidmap"])).min();
    if let Some(info) = info.as_object_mut() {
        let controllers = &podman["host"]["cgroupControllers"];
        info.insert(PODMAN.into(), json!({ "Controllers": controllers, "Ids": ids }));
    }
}

/// Whether an answer to `/info` has what [`add_podman_info`] adds.
pub fn has_podman_info(info: &Value) -> bool {
    info[PODMAN].is_object()
}

/// The fields of the engine's answer to `/info` that [`Host::of`] reads.
pub const HOST_FIELDS: [&str; 9] = [
    "CgroupVersion",
    "CpuCfsQuota",
    "MemoryLimit",
    "NCPU",
    "PidsLimit",
    PODMAN,
    "Rootless",
    "SecurityOptions",
    "SwapLimit",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_second_version_of_cgroups_counts_sockets() {
        let counts = |cgroup: Value| {
            Host::of(&json!({ "CgroupVersion": cgroup }), &json!({})).counts_internet_sockets
        };
        assert!(counts(json!("2")));
        assert!(!counts(json!("1")) && !counts(json!("unknown")) && !counts(json!(null)));
    }

    #[test]
    fn podman_is_known_by_its_component_and_everything_else_is_docker() {
        let product =
            |components: Value| Host::of(&json!({}), &json!({ "Components": components })).product;
        assert_eq!(product(json!([{ "Name": "Podman Engine" }])), Product::Podman);
        assert_eq!(product(json!([{ "Name": "Engine" }, { "Name": "runc" }])), Product::Docker);
        assert_eq!(product(json!(null)), Product::Docker);
    }

    #[test]
    fn security_options_are_read_by_their_names() {
        let host = |info: &Value| Host::of(info, &json!({}));
        let options = ["name=seccomp,profile=builtin", "name=rootless", "name=selinux"];
        let found = host(&json!({ "SecurityOptions": options }));
        assert!(found.rootless && found.selinux);
        let found = host(&json!({ "SecurityOptions": ["name=rootlesskit", "selinux"] }));
        assert!(!found.rootless && !found.selinux);
        assert!(host(&json!({ "Rootless": true })).rootless);
    }

    #[test]
    fn a_limit_cannot_be_set_only_if_the_engine_says_so() {
        let settable = |info: &Value| Host::of(info, &json!({})).settable;
        let all = Settable { memory: true, swap: true, cpus: true, pids: true };
        assert_eq!(settable(&json!({})), all);
        let some = json!({ "MemoryLimit": true, "CpuCfsQuota": false, "PidsLimit": true });
        assert_eq!(settable(&some), Settable { cpus: false, ..all });
        let none = json!({
            "MemoryLimit": false, "SwapLimit": false, "CpuCfsQuota": false, "PidsLimit": false,
        });
        let none = settable(&none);
        assert!(!none.memory && !none.swap && !none.cpus && !none.pids);
    }

    #[test]
    fn podman_tells_the_limits_and_the_user_ids_of_a_rootless_engine_elsewhere() {
        let version = json!({ "Components": [{ "Name": "Podman Engine" }] });
        // As Podman answers on a host with cgroup version 2, whatever it can set.
        let mut info = json!({
            "CgroupVersion": "2", "Rootless": true, "MemoryLimit": true, "SwapLimit": false,
            "CpuCfsQuota": false, "PidsLimit": true,
        });
        let map = json!([
            { "container_id": 0, "host_id": 1000, "size": 1 },
            { "container_id": 1, "host_id": 100_000, "size": 65_536 },
        ]);
        let podman = |controllers: &[&str]| {
            let maps = json!({ "uidmap": map, "gidmap": map });
            json!({ "host": { "cgroupControllers": controllers, "idMappings": maps } })
        };
        add_podman_info(&mut info, &podman(&["cpu", "memory", "pids"]));
        let all = Settable { memory: true, swap: true, cpus: true, pids: true };
        let host = Host::of(&info, &version);
        assert_eq!((host.settable, host.ids), (all, 65_537));
        add_podman_info(&mut info, &podman(&["memory", "pids"]));
        assert_eq!(Host::of(&info, &version).settable, Settable { cpus: false, ..all });
        add_podman_info(&mut info, &podman(&[]));
        let Settable { memory, swap, cpus, pids } = Host::of(&info, &version).settable;
        assert!(!memory && !swap && !cpus && !pids);
        // An engine of root maps no ids.
        let none = json!({ "host": { "idMappings": { "uidmap": null, "gidmap": null } } });
        add_podman_info(&mut info, &none);
        assert_eq!(Host::of(&info, &version).ids, u32::MAX);
    }

    #[test]
    fn no_field_is_read_that_is_not_listed() {
        let info = json!({
            "NCPU": 3, "CgroupVersion": "2", "Rootless": true, "SecurityOptions": ["name=selinux"],
            "MemoryLimit": false, "SwapLimit": false, "CpuCfsQuota": false, "PidsLimit": false,
            "DefaultRuntime": "runc", "Name": "host", "Podman": { "Ids": 65_537 },
        });
        let mut listed = info.clone();
        listed.as_object_mut().expect("an object").retain(|name, _| HOST_FIELDS.contains(&&**name));
        assert_eq!(Host::of(&listed, &json!({})), Host::of(&info, &json!({})));
        assert_eq!(listed.as_object().expect("an object").len(), HOST_FIELDS.len());
    }
}
