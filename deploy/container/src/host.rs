//! The engine and its host, on which a container's options depend besides the settings.

use serde_json::Value;

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
    /// `AppArmor` confines containers.
    pub apparmor: bool,
    /// The limits that the engine can set.
    pub settable: Settable,
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
        let can = |limit: &str| info[limit] != false;
        let components = version["Components"].as_array().into_iter().flatten();
        let is_podman = components.into_iter().any(|part| part["Name"] == "Podman Engine");
        Self {
            cpus: info["NCPU"].as_f64().unwrap_or(1.0),
            counts_internet_sockets: info["CgroupVersion"] == "2",
            product: if is_podman { Product::Podman } else { Product::Docker },
            // Podman before 4.6 has only the second.
            rootless: has("rootless") || info["Rootless"] == true,
            selinux: has("selinux"),
            apparmor: has("apparmor"),
            settable: Settable {
                memory: can("MemoryLimit"),
                swap: can("SwapLimit"),
                cpus: can("CpuCfsQuota"),
                pids: can("PidsLimit"),
            },
        }
    }
}

/// The fields of the engine's answer to `/info` that [`Host::of`] reads.
pub const HOST_FIELDS: [&str; 8] = [
    "CgroupVersion",
    "CpuCfsQuota",
    "MemoryLimit",
    "NCPU",
    "PidsLimit",
    "Rootless",
    "SecurityOptions",
    "SwapLimit",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        assert!(found.rootless && found.selinux && !found.apparmor);
        assert!(host(&json!({ "SecurityOptions": ["name=apparmor"] })).apparmor);
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
    fn no_field_is_read_that_is_not_listed() {
        let info = json!({
            "NCPU": 3, "CgroupVersion": "2", "Rootless": true, "SecurityOptions": ["name=selinux"],
            "MemoryLimit": false, "SwapLimit": false, "CpuCfsQuota": false, "PidsLimit": false,
            "DefaultRuntime": "runc", "Name": "host",
        });
        let mut listed = info.clone();
        listed.as_object_mut().expect("an object").retain(|name, _| HOST_FIELDS.contains(&&**name));
        assert_eq!(Host::of(&listed, &json!({})), Host::of(&info, &json!({})));
        assert_eq!(listed.as_object().expect("an object").len(), HOST_FIELDS.len());
    }
}
