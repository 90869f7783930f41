//! The exact description of a sandbox's container: one pure function, with a reason beside each choice.

use std::{collections::HashMap, time::Duration};

use bollard_stubs::models::{
    ContainerCreateBody, DeviceRequest, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountType, MountVolumeOptions, ResourcesUlimits,
};
use protocol::limits::MAX_FILES;

use crate::{
    AGENT, APP, Dataset, Host, LABEL_APP, LABEL_FETCHER, LABEL_HOLD, LABEL_OWNER, LABEL_SESSION,
    Limits, Owner, Product, Settable, Storage, Uid, scratch_bytes, seccomp, uid::GID,
};

/// The parameters of a container.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    /// The session.
    pub session: &'a str,
    /// The server.
    pub owner: &'a Owner,
    /// Image.
    pub image: &'a str,
    /// Runtime, if not the engine's default.
    pub runtime: Option<&'a str>,
    /// The resource limits.
    pub limits: Limits,
    /// Time for which it outlives its stream; `None` if it ends with the stream.
    pub hold: Option<Duration>,
    /// The folders of the host that it can read.
    pub datasets: &'a [Dataset],
    /// The devices of the host that it can use, by their CDI names.
    pub devices: &'a [String],
    /// The purpose.
    pub purpose: Purpose<'a>,
}

/// The purpose of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// Runs a session's code. The container has no network.
    Session {
        /// The maximum size of installed packages, in bytes; `None` if none may be installed.
        packages: Option<u64>,
    },
    /// Fetches packages. The container has a network, and runs no user's code.
    Fetcher {
        /// Name of the engine's network.
        network: &'a str,
    },
}

/// The folder in which packages are installed while a sandbox runs: interpreters search it last.
pub const PACKAGES: &str = "/opt/packages";

/// The option for the allowed system calls, before the profile or its path.
pub(crate) const SECCOMP: &str = "seccomp=";

/// The maximum number of files and folders of packages.
const MAX_PACKAGE_FILES: u32 = 32_768;

/// The description of a container with this user id, on this host.
pub fn create_body(container: &Container, host: &Host, uid: Uid) -> ContainerCreateBody {
    // The engine refuses more processors than the host has.
    let cpus = container.limits.cpus.min(host.cpus);
    // Without this, BLAS starts a thread for each processor it sees and then waits for its quota: 25 times slower on
    // one of two.
    let threads = cpus.ceil().max(1.0);
    let is_podman = host.product == Product::Podman;
    // Without a network pip retries for minutes before it says so.
    let no_index = matches!(container.purpose, Purpose::Session { .. });
    let no_index = no_index.then(|| "PIP_NO_INDEX=1".into());
    ContainerCreateBody {
        image: Some(container.image.to_owned()),
        // A derived image may have another entrypoint; a sandbox always starts the agent.
        entrypoint: Some(vec![AGENT.into()]),
        cmd: Some(arguments(&container.limits, host)),
        user: Some(format!("{uid}:{GID}")),
        working_dir: Some("/mnt/data".into()),
        hostname: Some("sandbox".into()),
        env: Some(
            [format!("OPENBLAS_NUM_THREADS={threads}"), format!("OMP_NUM_THREADS={threads}")]
                .into_iter()
                .chain(no_index)
                .collect(),
        ),
        labels: Some(labels(container)),
        // The engine closes stdin when its one client is lost, and the agent ends, or waits for another client for the
        // time that its server has set.
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        // The engine then does not even set up a network, which saves a third of the start.
        network_disabled: Some(matches!(container.purpose, Purpose::Session { .. })),
        // PID 1 ignores a SIGTERM it has no handler for; the engine would wait ten seconds.
        stop_signal: Some("SIGKILL".into()),
        stop_timeout: Some(1),
        // Podman takes this for the command of a check.
        healthcheck: (!is_podman)
            .then(|| HealthConfig { test: Some(vec!["NONE".into()]), ..Default::default() }),
        host_config: Some(HostConfig {
            runtime: container.runtime.map(str::to_owned),
            ..host_config(container, host, cpus, uid)
        }),
        ..Default::default()
    }
}

/// The arguments of the agent. It enforces the limits of a data area on disk: most file systems have none for a folder.
pub fn agent_arguments(limits: &Limits) -> Vec<String> {
    match limits.storage {
        Storage::Memory => vec![],
        Storage::Disk => {
            let (bytes, files) = (limits.data.to_string(), MAX_FILES.to_string());
            ["--max-bytes", &bytes, "--max-inodes", &files].map(str::to_owned).into()
        }
    }
}

/// The arguments of the agent on this engine. Podman knows no limit of the files of a tmpfs, and without root it ignores
/// limits of a process, so that the agent enforces both.
fn arguments(limits: &Limits, host: &Host) -> Vec<String> {
    let mut all = agent_arguments(limits);
    if host.product == Product::Podman {
        if all.is_empty() {
            all.extend(["--max-inodes".into(), MAX_FILES.to_string()]);
        }
        all.extend(["--rlimits".into(), rlimits_argument(&rlimits_on(limits, host))]);
    }
    all
}

/// The limits of each process of a sandbox: names as in `setrlimit(2)`, and values.
pub fn rlimits(limits: &Limits) -> [(&'static str, u64); 6] {
    [
        ("nofile", 1024),
        // A little more than the data area, so that a program sees "no space left" and not SIGXFSZ, but no sparse file
        // can pretend to be larger than the area.
        ("fsize", limits.data + (1 << 20)),
        ("core", 0),
        ("memlock", 0),
        ("msgqueue", 0),
        ("sigpending", 1024),
    ]
}

/// The agent's option `--rlimits`.
pub fn rlimits_argument(limits: &[(&str, u64)]) -> String {
    limits.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

/// The limits of each process on this engine, among them those that it cannot set for the sandbox.
fn rlimits_on(limits: &Limits, host: &Host) -> Vec<(&'static str, u64)> {
    let Settable { memory, pids, .. } = host.settable;
    rlimits(limits)
        .into_iter()
        // The engine's limit counts all processes and threads. Podman would set a limit of its own that may be more than
        // it may set.
        .chain((host.product == Product::Podman || !pids).then_some(("nproc", limits.pids.into())))
        // The next best.
        .chain((!memory).then_some(("data", limits.memory)))
        .collect()
}

/// A data area on disk: an anonymous volume. It cannot be mounted with `noexec`, `nosuid` or `nodev`: the container has
/// no capabilities and cannot get any, so that neither set-user-ID programs nor devices work in it.
fn volume() -> Mount {
    Mount {
        target: Some("/mnt/data".into()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(MountVolumeOptions::default()),
        ..Default::default()
    }
}

/// The engine's label of volumes without a name, which it removes when it is asked to remove unused ones.
const LABEL_ANONYMOUS: &str = "com.docker.volume.anonymous";

/// The mounts of a container: its data area, if that is on disk, and its datasets. The engine removes volumes together
/// with their container. By their labels a sweep finds those that an engine which was killed has left behind.
fn mounts(container: &Container, host: &Host) -> Vec<Mount> {
    let data = (container.limits.storage == Storage::Disk).then(volume);
    let datasets = container.datasets.iter().map(|dataset| dataset.mount(host));
    let mut all: Vec<_> = data.into_iter().chain(datasets).collect();
    for options in all.iter_mut().filter_map(|mount| mount.volume_options.as_mut()) {
        // The engine sets this label only if it is asked for a volume alone.
        let anonymous = (LABEL_ANONYMOUS.to_owned(), String::new());
        options.labels = Some(labels(container).into_iter().chain([anonymous]).collect());
    }
    all
}

fn labels(container: &Container) -> HashMap<String, String> {
    let hold = container.hold.map(|hold| (LABEL_HOLD.into(), hold.as_secs().to_string()));
    let fetcher = matches!(container.purpose, Purpose::Fetcher { .. });
    let fetcher = fetcher.then(|| (LABEL_FETCHER.into(), "true".into()));
    let always = [
        (LABEL_APP.into(), APP.into()),
        (LABEL_SESSION.into(), container.session.to_owned()),
        (LABEL_OWNER.into(), container.owner.to_string()),
    ];
    always.into_iter().chain(hold).chain(fetcher).collect()
}

/// The engine has CDI specifications for these names, which its administrator has installed with the driver.
fn devices(container: &Container) -> Vec<DeviceRequest> {
    // Only code of sessions uses devices.
    let is_session = matches!(container.purpose, Purpose::Session { .. });
    let names = container.devices.to_vec();
    let request =
        DeviceRequest { driver: Some("cdi".into()), device_ids: Some(names), ..Default::default() };
    (is_session && !container.devices.is_empty()).then_some(request).into_iter().collect()
}

fn host_config(container: &Container, host: &Host, cpus: f64, uid: Uid) -> HostConfig {
    let limits = &container.limits;
    let (network, internet, packages) = match container.purpose {
        Purpose::Session { packages } => ("none", host.counts_internet_sockets, packages),
        // The task of a fetcher limits the memory of its sockets.
        Purpose::Fetcher { network } => (network, true, None),
    };
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let is_podman = host.product == Product::Podman;
    let tmpfs = |size: u64, files: u32, mode: &str, is_own: bool| {
        if is_podman {
            // Podman knows neither a limit of files nor an owner, and without `notmpcopyup` takes owner and mode from
            // the image. The container has no second user.
            let mode = if is_own { "0777" } else { mode };
            return format!("nosuid,nodev,size={size},notmpcopyup,mode={mode}");
        }
        // Every file costs the host a kibibyte, even when it is empty.
        let owner = if is_own { format!(",uid={uid},gid={GID}") } else { String::new() };
        // nodev and nosuid are defaults, written out.
        format!("nosuid,nodev,size={size},nr_inodes={files},mode={mode}{owner}")
    };
    // noexec prevents that users run binaries of their own.
    let scratch = |size: u64, mode: &str, is_own: bool| {
        format!("rw,noexec,{}", tmpfs(size, MAX_FILES, mode, is_own))
    };
    let Settable { memory, swap, cpus: can_set_cpus, pids } = host.settable;
    HostConfig {
        auto_remove: Some(true),
        // The agent reaps processes; a second init would only come between it and its children.
        init: Some(false),
        privileged: Some(false),
        // In addition to network_disabled, for engines that do not know that option.
        network_mode: Some(network.into()),
        // Any other driver writes every frame to the host's disk.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(
            ["no-new-privileges:true".into(), format!("{SECCOMP}{}", seccomp::profile(internet))]
                .into_iter()
                // Podman adds to its own list of paths only what this option names.
                .chain(is_podman.then(|| format!("mask={}", MASKED.join(":"))))
                .collect(),
        ),
        // Not "none": multiprocessing needs /dev/shm.
        ipc_mode: Some("private".into()),
        shm_size: Some(bytes(scratch_bytes(limits.memory))),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        memory: memory.then(|| bytes(limits.memory)),
        // Equal to memory, which means no swap.
        memory_swap: swap.then(|| bytes(limits.memory)),
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the host's processors")]
        nano_cpus: can_set_cpus.then_some((cpus * 1e9) as i64),
        // A quarter of the usual weight: the host and its server come first.
        cpu_shares: can_set_cpus.then_some(256),
        pids_limit: pids.then(|| i64::from(limits.pids)),
        // If the host runs out of memory, the kernel kills sandboxes before other processes.
        oom_score_adj: Some(500),
        ulimits: Some(
            rlimits_on(limits, host)
                .into_iter()
                .map(|(name, value)| ResourcesUlimits {
                    name: Some(name.into()),
                    soft: Some(bytes(value)),
                    hard: Some(bytes(value)),
                })
                .collect(),
        ),
        device_requests: Some(devices(container)).filter(|devices| !devices.is_empty()),
        mounts: Some(mounts(container, host)).filter(|mounts| !mounts.is_empty()),
        tmpfs: Some(
            [("/tmp".into(), scratch(scratch_bytes(limits.memory), "1777", false))]
                .into_iter()
                .chain(
                    (limits.storage == Storage::Memory)
                        .then(|| ("/mnt/data".into(), scratch(limits.data, "0700", true))),
                )
                .chain(packages.map(|size| {
                    // Not noexec: the kernel would not let a compiled module be loaded from it.
                    let options = tmpfs(size, MAX_PACKAGE_FILES, "0700", true);
                    (PACKAGES.into(), format!("rw,exec,{options}"))
                }))
                // Podman makes these writable, with as much room as there is memory, and programs in them can run.
                .chain(
                    is_podman.then_some(["/run", "/var/tmp"]).into_iter().flatten().map(|path| {
                        (path.into(), "ro,noexec,nosuid,nodev,size=4096,mode=0755".into())
                    }),
                )
                .collect(),
        ),
        masked_paths: Some(MASKED.iter().map(|path| (*path).to_owned()).collect()),
        readonly_paths: Some(READ_ONLY.iter().map(|path| (*path).to_owned()).collect()),
        ..Default::default()
    }
}

/// The engine's own list, which this one replaces, and after it paths that reveal facts about the host.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kallsyms",
    "/proc/partitions",
    // In addition, it accepts triggers, which keep the kernel busy.
    "/proc/pressure",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/zoneinfo",
    "/sys/block",
    "/sys/bus",
    "/sys/class/block",
    "/sys/class/dmi",
    "/sys/dev",
    "/sys/devices/virtual/block",
    "/sys/kernel",
    "/sys/module",
];

const READ_ONLY: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use serde_json::json;

    use super::*;
    use crate::View;

    const LIMITS: Limits = Limits {
        memory: 512_000_000,
        cpus: 1.0,
        pids: 128,
        data: 256_000_000,
        storage: Storage::Memory,
    };

    static HOST: LazyLock<Host> =
        LazyLock::new(|| Host::of(&json!({ "NCPU": 2, "CgroupVersion": "2" }), &json!({})));

    fn body(limits: Limits) -> ContainerCreateBody {
        body_on(limits, &HOST)
    }

    fn body_on(limits: Limits, host: &Host) -> ContainerCreateBody {
        let container = Container {
            session: "sess_0123456789ab",
            owner: &"v1/boot/1/2/3".parse().expect("valid"),
            image: "llm-sandbox:latest",
            runtime: None,
            limits,
            hold: None,
            datasets: &[],
            devices: &[],
            purpose: Purpose::Session { packages: None },
        };
        create_body(&container, host, Uid::fixed(50_123))
    }

    #[test]
    fn the_container_is_exactly_this() {
        let mut body = serde_json::to_value(body(LIMITS)).expect("serializes");
        // The profile has a file of its own; here only its presence is checked.
        let options = &mut body["HostConfig"]["SecurityOpt"];
        assert!(options[1].as_str().is_some_and(|o| o.starts_with("seccomp={\"")), "{options}");
        options[1] = "seccomp=<sandbox-image/seccomp.json>".into();
        insta::assert_json_snapshot!(body);
    }

    #[test]
    fn the_container_of_podman_differs_only_in_this() {
        let podman = json!({ "Components": [{ "Name": "Podman Engine" }] });
        let host = Host::of(&json!({ "NCPU": 2, "CgroupVersion": "2" }), &podman);
        let (docker, podman) = (body(LIMITS), body_on(LIMITS, &host));
        let options = podman.host_config.clone().expect("set");
        let known = docker.host_config.clone().expect("set");
        let own = options.security_opt.as_ref().expect("set");
        assert_eq!(own[..2], known.security_opt.as_ref().expect("set")[..]);
        let differs = json!({
            "Cmd": podman.cmd,
            "Healthcheck": podman.healthcheck,
            "Tmpfs": options.tmpfs,
            "Ulimits": options.ulimits.as_ref().and_then(|all| all.last()),
            "SecurityOpt": own[2..],
        });
        insta::assert_json_snapshot!(differs);
        let mut ulimits = options.ulimits.clone().expect("set");
        ulimits.pop();
        assert_eq!(Some(&ulimits), known.ulimits.as_ref());
        let same = ContainerCreateBody {
            cmd: docker.cmd.clone(),
            healthcheck: docker.healthcheck.clone(),
            host_config: Some(HostConfig {
                tmpfs: known.tmpfs,
                ulimits: known.ulimits,
                security_opt: known.security_opt,
                ..options
            }),
            ..podman
        };
        assert_eq!(same, docker);
    }

    #[test]
    fn limits_that_the_engine_cannot_set_are_not_asked_for_and_made_up_by_process() {
        let none = json!({
            "NCPU": 2, "CgroupVersion": "2",
            "MemoryLimit": false, "SwapLimit": false, "CpuCfsQuota": false, "PidsLimit": false,
        });
        let body = body_on(LIMITS, &Host::of(&none, &json!({})));
        let options = body.host_config.expect("set");
        assert_eq!((options.memory, options.memory_swap), (None, None));
        assert_eq!((options.nano_cpus, options.cpu_shares, options.pids_limit), (None, None, None));
        let ulimits = options.ulimits.expect("set");
        let limit = |name: &str| ulimits.iter().find(|it| it.name.as_deref() == Some(name));
        assert_eq!(limit("nproc").and_then(|it| it.hard), Some(128));
        assert_eq!(limit("data").and_then(|it| it.hard), Some(512_000_000));
    }

    #[test]
    fn a_session_of_less_memory_has_less_room_for_files_and_is_the_same_otherwise() {
        let less = body(LIMITS.with_memory(64_000_000));
        let options = less.host_config.clone().expect("set");
        assert_eq!((options.memory, options.memory_swap), (Some(64_000_000), Some(64_000_000)));
        assert_eq!(options.shm_size, Some(4_000_000));
        let tmpfs = options.tmpfs.clone().expect("set");
        assert!(tmpfs["/mnt/data"].contains("size=32000000,"), "{tmpfs:?}");
        assert!(tmpfs["/tmp"].contains("size=4000000,"), "{tmpfs:?}");
        let mut same = less;
        let all = body(LIMITS).host_config.expect("set");
        same.host_config = Some(HostConfig {
            memory: all.memory,
            memory_swap: all.memory_swap,
            shm_size: all.shm_size,
            tmpfs: all.tmpfs,
            ulimits: all.ulimits,
            ..options
        });
        assert_eq!(same, body(LIMITS));
        assert_eq!(LIMITS.with_memory(1 << 40), LIMITS, "never more");
        let few = Limits { data: 1 << 20, ..LIMITS };
        assert_eq!(few.with_memory(64_000_000).data, 1 << 20, "nor more files than were allowed");
    }

    #[test]
    fn datasets_are_mounts_that_can_only_be_read_and_nothing_else_differs() {
        let sales = Dataset {
            name: "sales".into(),
            path: "/srv/exports".into(),
            view: View::Own { empty: "/var/lib/docker/volumes/llm-sandbox-empty/_data".into() },
        };
        let project =
            Dataset { name: "shop".into(), path: "/home/ann/shop".into(), view: View::Live };
        let with = |datasets: &[Dataset], host: &Host| {
            let container = Container {
                session: "sess_0123456789ab",
                owner: &"v1/boot/1/2/3".parse().expect("valid"),
                image: "llm-sandbox:latest",
                runtime: None,
                limits: LIMITS,
                hold: None,
                datasets,
                devices: &[],
                purpose: Purpose::Session { packages: None },
            };
            create_body(&container, host, Uid::fixed(50_123))
        };
        let selinux = with(std::slice::from_ref(&sales), &Host { selinux: true, ..*HOST });
        let [mount] = &selinux.host_config.expect("set").mounts.expect("a mount")[..] else {
            panic!("one mount")
        };
        let volume = mount.volume_options.clone().expect("a volume");
        let layers = volume.driver_config.expect("set").options.expect("set").remove("o");
        // Without a comma in the label, it needs no quotes.
        assert_eq!(
            layers.as_deref(),
            Some(
                "ro,nosuid,nodev,noexec,lowerdir=/srv/exports:/var/lib/docker/volumes/llm-sandbox-empty/_data,\
                 context=system_u:object_r:container_file_t:s0"
            )
        );
        let mut body = with(&[sales, project], &HOST);
        let mounts = body.host_config.as_mut().and_then(|it| it.mounts.take());
        let mounts = serde_json::to_value(mounts).expect("serializes");
        insta::assert_json_snapshot!(mounts);
        assert_eq!(body, with(&[], &HOST));
    }

    #[test]
    fn a_container_with_its_files_on_disk_has_a_volume_and_is_the_same_otherwise() {
        let limits = Limits { data: 10_000_000_000, storage: Storage::Disk, ..LIMITS };
        let disk = body(limits);
        let mounts = disk.host_config.as_ref().expect("set").mounts.clone();
        // As a value, whose labels have an order.
        let shown = serde_json::to_value((&disk.cmd, mounts)).expect("serializes");
        insta::assert_json_snapshot!(shown);
        let options = disk.host_config.clone().expect("set");
        assert!(!options.tmpfs.as_ref().expect("set").contains_key("/mnt/data"));
        let memory = body(LIMITS).host_config.expect("set");
        let mut same = disk;
        same.cmd = Some(vec![]);
        same.host_config = Some(HostConfig {
            mounts: None,
            tmpfs: memory.tmpfs,
            ulimits: memory.ulimits,
            ..options
        });
        assert_eq!(same, body(LIMITS));
        let less = limits.with_memory(64_000_000);
        assert_eq!((less.memory, less.data), (64_000_000, limits.data), "files take no memory");
    }

    #[test]
    fn devices_are_asked_for_by_their_cdi_names_and_nothing_else_differs() {
        let gpus = ["nvidia.com/gpu=0".to_owned(), "nvidia.com/gpu=1".to_owned()];
        let with = |devices: &[String], purpose| {
            let container = Container {
                session: "sess_0123456789ab",
                owner: &"v1/boot/1/2/3".parse().expect("valid"),
                image: "llm-sandbox:latest",
                runtime: None,
                limits: LIMITS,
                hold: None,
                datasets: &[],
                devices,
                purpose,
            };
            create_body(&container, &HOST, Uid::fixed(50_123))
        };
        let session = Purpose::Session { packages: None };
        let mut body = with(&gpus, session);
        let requests = body.host_config.as_mut().and_then(|it| it.device_requests.take());
        let [request] = &requests.expect("asked for")[..] else { panic!("one request") };
        assert_eq!(request.driver.as_deref(), Some("cdi"));
        assert_eq!(request.device_ids.as_deref(), Some(&gpus[..]));
        assert_eq!(body, with(&[], session));
        let fetcher = Purpose::Fetcher { network: "bridge" };
        assert_eq!(with(&gpus, fetcher), with(&[], fetcher));
    }

    #[test]
    fn processors_are_never_more_than_the_host_has() {
        let body = body(Limits { cpus: 8.0, ..LIMITS });
        assert_eq!(body.host_config.expect("set").nano_cpus, Some(2_000_000_000));
        assert!(body.env.expect("set").contains(&"OMP_NUM_THREADS=2".into()));
    }
}
