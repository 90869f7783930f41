//! The properties of the engine, as it tells them.

use bollard::{Docker, errors::Error};
use bytes::BytesMut;
use futures::TryStreamExt;
use model::DatasetSource;
use sandbox_container::{Host, PODMAN_INFO, Product, add_podman_info, has_podman_info};
use serde_json::Value;

use super::engine::line;

/// Maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Properties of an engine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EngineFacts {
    /// The properties on which containers depend.
    pub host: Host,
    /// Product and version, for people.
    pub version: String,
    /// API version, such as 1.45.
    pub api: String,
    /// Version of cgroups, `1` or `2`.
    pub cgroup: String,
    /// Names of the runtimes.
    pub runtimes: Vec<String>,
    /// The runtime of a container that names none.
    pub default_runtime: String,
    /// Whether the kernel filters system calls.
    pub seccomp: bool,
    /// CDI names of the devices that the engine knows; `None` if it does not list them.
    pub devices: Option<Vec<String>>,
    /// The folder of the engine's host in which it has images and volumes.
    pub folder: String,
    /// Whether a relay in front of Podman answers, which puts the files for it.
    pub is_relay: bool,
}

impl EngineFacts {
    /// Reads the properties from the engine's answers to `/info` and `/version`.
    fn of(info: &Value, version: &Value) -> Self {
        let text = |value: &Value| line(value.as_str().unwrap_or("unknown"));
        let host = Host::of(info, version);
        let mut runtimes: Vec<String> = info["Runtimes"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| line(name))
            .collect();
        runtimes.sort_unstable();
        let name = match host.product {
            // Some distributions of Docker have a name of their own.
            Product::Docker => {
                let name = version["Platform"]["Name"].as_str().filter(|name| !name.is_empty());
                line(name.unwrap_or(Product::Docker.as_str()))
            }
            Product::Podman => Product::Podman.as_str().to_owned(),
        };
        let options = info["SecurityOptions"].as_array().into_iter().flatten();
        let devices = |all: &Vec<Value>| {
            all.iter().filter_map(|device| Some(device["ID"].as_str()?.to_owned())).collect()
        };
        Self {
            host,
            version: format!("{name} {}", text(&version["Version"])),
            api: text(&version["ApiVersion"]),
            cgroup: text(&info["CgroupVersion"]),
            runtimes,
            default_runtime: text(&info["DefaultRuntime"]),
            seccomp: options
                .filter_map(Value::as_str)
                .any(|option| option.starts_with("name=seccomp")),
            devices: info["DiscoveredDevices"].as_array().map(devices),
            folder: text(&info["DockerRootDir"]),
            is_relay: false,
        }
    }

    /// Whether sandboxes have TCP and UDP sockets, for connections within themselves: only if the host counts the
    /// memory of sockets towards their limit.
    pub(super) fn allows_internet_sockets(&self) -> bool {
        self.host.counts_internet_sockets
    }

    /// Whether containers get the folder of a dataset itself: one of the client's roots, whose changes are to be seen at
    /// once. With SELinux they may not read it, and its label is the user's: they get a file system of its own over it.
    pub(super) fn mounts_itself(&self, source: &DatasetSource) -> bool {
        matches!(source, DatasetSource::Root(_)) && !self.host.selinux
    }

    /// Whether the engine has this runtime, or may have it: a runtime with the name of a shim, such as
    /// `io.containerd.kata.v2`, is looked up by the engine only when it is used.
    pub(super) fn may_have_runtime(&self, name: &str) -> bool {
        let is_shim = name.contains('.') && !name.starts_with('.') && !name.contains('/');
        is_shim || self.runtimes.iter().any(|runtime| runtime == name)
    }
}

/// Asks an engine for its properties.
pub(super) async fn read(engine: &Docker) -> Result<EngineFacts, Error> {
    let (mut info, version) = (get(engine, "/info").await?, get(engine, "/version").await?);
    let is_relay = has_podman_info(&info);
    if Product::of(&version) == Product::Podman
        && !is_relay
        // Without it, the limits and ids are those of an engine of root.
        && let Ok(podman) = get(engine, PODMAN_INFO).await
    {
        add_podman_info(&mut info, &podman);
    }
    Ok(EngineFacts { is_relay, ..EngineFacts::of(&info, &version) })
}

/// The engine's whole answer to a request: bollard's types lack what only Podman tells.
async fn get(engine: &Docker, path: &'static str) -> Result<Value, Error> {
    // bollard passes the answer to this request on as bytes, and sends it without a body and parameters.
    let asking = engine.clone().with_request_modifier(move |mut request| {
        let uri = request.uri();
        let (scheme, host) = (uri.scheme_str(), uri.authority());
        if let (Some(scheme), Some(host)) = (scheme, host)
            && let Ok(uri) = format!("{scheme}://{host}{path}").parse()
        {
            *request.uri_mut() = uri;
        }
        request
    });
    let mut parts = asking.export_container("none");
    let mut body = BytesMut::new();
    while let Some(part) = parts.try_next().await? {
        body.extend_from_slice(&part);
        if body.len() > MAX_ANSWER_BYTES {
            let err = std::io::Error::other("the answer is too long");
            return Err(Error::IOError { err });
        }
    }
    serde_json::from_slice(&body).map_err(|err| Error::JsonSerdeError { err })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(info: &str, version: &str) -> EngineFacts {
        let value = |text: &str| serde_json::from_str(text).expect("JSON");
        EngineFacts::of(&value(info), &value(version))
    }

    #[test]
    fn a_docker_engine_is_known_from_its_answers() {
        let facts = facts(
            include_str!("recorded/docker-info.json"),
            include_str!("recorded/docker-version.json"),
        );
        assert_eq!(facts.host.product, Product::Docker);
        assert!(!facts.host.rootless && !facts.host.selinux);
        assert_eq!(facts.version, "Docker 26.1.5+dfsg1");
        assert_eq!((&*facts.api, &*facts.cgroup), ("1.45", "1"));
        assert_eq!(facts.runtimes, ["io.containerd.runc.v2", "runc"]);
        assert_eq!((&*facts.default_runtime, &*facts.folder), ("runc", "/var/lib/docker"));
        assert!(facts.seccomp && facts.devices.is_none());
    }

    #[test]
    fn a_podman_engine_is_known_from_its_answers() {
        let facts = facts(
            include_str!("recorded/podman-info.json"),
            include_str!("recorded/podman-version.json"),
        );
        assert_eq!(facts.host.product, Product::Podman);
        assert!(!facts.host.rootless && !facts.host.selinux);
        assert_eq!((&*facts.version, &*facts.api, &*facts.cgroup), ("Podman 4.3.1", "1.41", "1"));
        assert_eq!(facts.default_runtime, "crun");
        assert_eq!(facts.folder, "/var/lib/containers/storage");
        assert!(facts.seccomp);
    }

    #[test]
    fn the_folder_of_a_client_is_mounted_itself_unless_selinux_would_deny_it() {
        let (root, folder) = (DatasetSource::Root("/a".into()), DatasetSource::Folder("/a".into()));
        let plain = facts(r#"{ "SecurityOptions": ["name=seccomp,profile=builtin"] }"#, "{}");
        let selinux = facts(r#"{ "SecurityOptions": ["name=seccomp", "name=selinux"] }"#, "{}");
        assert!(plain.mounts_itself(&root) && !selinux.mounts_itself(&root));
        assert!(!plain.mounts_itself(&folder) && !selinux.mounts_itself(&folder));
    }

    #[test]
    fn an_engine_that_tells_nothing_is_taken_for_the_least() {
        let facts = facts("{}", "{}");
        assert_eq!(facts.version, "Docker unknown");
        assert!(facts.runtimes.is_empty() && !facts.seccomp);
        assert!((facts.host.cpus - 1.0).abs() < f64::EPSILON);
    }
}
