//! The description of a container: what the relay's own settings say, and nothing else. Pure.

use serde_json::Value;

use sandbox_container::{
    Container, DATASETS, Dataset, Host, LABEL_FETCHER, LABEL_OWNER, LABEL_SESSION, Limits, Owner,
    Purpose, Storage, Uid, View, create_body, defaults, fetcher_limits, is_session_id, uids_below,
};

use super::{Settings, answer::Refused};

/// The description by these settings of a container for the same session and server as the given one, with the user id
/// in its name. An error if the given description differs.
pub(super) fn description(
    settings: &Settings,
    host: &Host,
    (name, empty): (&str, Option<String>),
    given: &Value,
) -> Result<Value, Refused> {
    let label = |name: &str| given["Labels"][name].as_str().unwrap_or_default();
    let another =
        || Refused::NotAllowed("the container differs from what the relay's own settings describe");
    let session = label(LABEL_SESSION);
    if !is_session_id(session) {
        return Err(another());
    }
    let owner: Owner = label(LABEL_OWNER).parse().map_err(|_| another())?;
    let uids = uids_below(host.ids).ok_or_else(another)?;
    let uid = Uid::of_container_of(name, &uids).ok_or_else(another)?;
    let container = if given["Labels"][LABEL_FETCHER].is_string() {
        fetcher(settings, session, &owner).ok_or_else(another)?
    } else {
        let limits = limits(settings, host, given).ok_or_else(another)?;
        container(settings, limits, session, &owner)
    };
    let datasets = datasets(settings, empty, given).ok_or_else(another)?;
    let container = Container { datasets: &datasets, ..container };
    let own = serde_json::to_value(create_body(&container, host, uid)).map_err(|_| another())?;
    if own == *given { Ok(own) } else { Err(another()) }
}

/// The limits of a container by these settings: all that they allow or, if a session asked for less, less memory and
/// the limits that follow from it, and less disk. `None` if it is more than they allow, or too little.
fn limits(settings: &Settings, host: &Host, given: &Value) -> Option<Limits> {
    let options = &given["HostConfig"];
    let memory = if host.settable.memory {
        options["Memory"].as_u64()?
    } else {
        let limits = options["Ulimits"].as_array()?;
        limits.iter().find(|limit| limit["Name"] == "data")?["Soft"].as_u64()?
    };
    let all = settings.limits;
    let is_less = (defaults::MIN_SESSION_MEMORY..all.memory).contains(&memory);
    let limits =
        if is_less { Some(all.with_memory(memory)) } else { (memory == all.memory).then_some(all) };
    match all.storage {
        Storage::Memory => limits,
        Storage::Disk => {
            let data = given["Cmd"][1].as_str()?.parse().ok()?;
            limits.filter(|_| (1..=all.data).contains(&data)).map(|it| Limits { data, ..it })
        }
    }
}

/// The names of the datasets that a container has by its description.
pub(super) fn given_datasets(given: &Value) -> impl Iterator<Item = &str> {
    let mounts = given["HostConfig"]["Mounts"].as_array().into_iter().flatten();
    mounts.filter_map(|mount| mount["Target"].as_str()?.strip_prefix(DATASETS)?.strip_prefix('/'))
}

/// Those datasets of the settings that the container has, in its order; `None` if it has another, or one twice. `empty`
/// is the path of the empty volume.
fn datasets(settings: &Settings, empty: Option<String>, given: &Value) -> Option<Vec<Dataset>> {
    let Some(empty) = empty else { return Some(vec![]) };
    let datasets = given_datasets(given).map(|name| {
        let (name, path) = settings.datasets.iter().find(|(known, _)| known == name)?.clone();
        Some(Dataset { name, path, view: View::Own { empty: empty.clone() } })
    });
    let datasets = datasets.collect::<Option<Vec<_>>>()?;
    let is_twice = |it: &Dataset| datasets.iter().filter(|other| other.name == it.name).count() > 1;
    (!datasets.iter().any(is_twice)).then_some(datasets)
}

fn container<'a>(
    settings: &'a Settings,
    limits: Limits,
    session: &'a str,
    owner: &'a Owner,
) -> Container<'a> {
    Container {
        session,
        owner,
        image: &settings.image,
        runtime: settings.runtime.as_deref(),
        limits,
        hold: settings.hold,
        datasets: &[],
        devices: &settings.gpus,
        purpose: Purpose::Session { packages: settings.packages.as_ref().map(|it| it.limit) },
    }
}

/// The container that fetches packages; `None` if packages are disabled.
fn fetcher<'a>(
    settings: &'a Settings,
    session: &'a str,
    owner: &'a Owner,
) -> Option<Container<'a>> {
    let packages = settings.packages.as_ref()?;
    let purpose = Purpose::Fetcher { network: &packages.network };
    let limits = fetcher_limits(packages.limit);
    Some(Container { hold: None, purpose, ..container(settings, limits, session, owner) })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use serde_json::json;

    use super::*;

    const NAME: &str = "llm-sandbox-u50123";
    static HOST: LazyLock<Host> =
        LazyLock::new(|| Host::of(&json!({ "NCPU": 2, "CgroupVersion": "2" }), &json!({})));

    fn settings() -> Settings {
        Settings::parse([]).expect("the defaults are valid")
    }

    fn given(settings: &Settings) -> Value {
        given_with(settings, settings.limits)
    }

    fn given_with(settings: &Settings, limits: Limits) -> Value {
        let owner = "v1/boot/1/2/3".parse().expect("valid");
        let container = container(settings, limits, "sess_0123456789ab", &owner);
        let uid = Uid::of_container(NAME).expect("valid");
        serde_json::to_value(create_body(&container, &HOST, uid)).expect("serializes")
    }

    #[test]
    fn the_container_of_the_same_settings_is_made() {
        let settings = settings();
        let given = given(&settings);
        assert_eq!(description(&settings, &HOST, (NAME, None), &given).expect("allowed"), given);
    }

    #[test]
    fn an_engine_that_cannot_limit_memory_has_the_same_checks() {
        let settings = settings();
        let info = json!({ "NCPU": 2, "CgroupVersion": "2", "MemoryLimit": false });
        let host = Host::of(&info, &json!({}));
        let owner = "v1/boot/1/2/3".parse().expect("valid");
        let uid = Uid::of_container(NAME).expect("valid");
        let with = |limits: Limits| {
            let container = container(&settings, limits, "sess_0123456789ab", &owner);
            serde_json::to_value(create_body(&container, &host, uid)).expect("serializes")
        };
        for limits in [settings.limits, settings.limits.with_memory(100_000_000)] {
            let given = with(limits);
            assert_eq!(
                description(&settings, &host, (NAME, None), &given).expect("allowed"),
                given
            );
        }
        let more = with(Limits { memory: settings.limits.memory + 1, ..settings.limits });
        assert!(description(&settings, &host, (NAME, None), &more).is_err());
        let other = given(&settings);
        assert!(description(&settings, &host, (NAME, None), &other).is_err());
    }

    #[test]
    fn a_session_may_have_less_memory_and_what_follows_from_it() {
        let settings = settings();
        let least = defaults::MIN_SESSION_MEMORY;
        for memory in [least, 100_000_000, settings.limits.memory - 1] {
            let given = given_with(&settings, settings.limits.with_memory(memory));
            assert_eq!(
                description(&settings, &HOST, (NAME, None), &given).expect("allowed"),
                given
            );
            assert_eq!(given["HostConfig"]["Memory"], memory);
        }
    }

    #[test]
    fn with_less_memory_nothing_else_may_differ() {
        let settings = settings();
        let all = settings.limits;
        let less = all.with_memory(100_000_000);
        let refused = |why: &str, given: &Value| {
            assert!(description(&settings, &HOST, (NAME, None), given).is_err(), "{why}: {given}");
        };
        for (why, limits) in [
            ("less than any session may have", all.with_memory(defaults::MIN_SESSION_MEMORY - 1)),
            ("no memory, which means no limit", all.with_memory(0)),
            ("more memory", Limits { memory: all.memory + 1, ..all }),
            ("files as with all memory", Limits { data: all.data, ..less }),
            ("fewer files", Limits { data: less.data - 1, ..less }),
            ("more processes", Limits { pids: less.pids + 1, ..less }),
            ("fewer processes", Limits { pids: less.pids - 1, ..less }),
            ("more processors", Limits { cpus: 2.0, ..less }),
        ] {
            refused(why, &given_with(&settings, limits));
        }
        for (pointer, value) in [
            ("/HostConfig/MemorySwap", json!(-1)),
            ("/HostConfig/MemorySwap", json!(all.memory)),
            ("/HostConfig/ShmSize", json!(1 << 30)),
            ("/HostConfig/Memory", json!(100_000_000.5)),
            ("/HostConfig/Memory", json!("100000000")),
            ("/HostConfig/Memory", json!(-100_000_000)),
            ("/HostConfig/Privileged", json!(true)),
            ("/HostConfig/NetworkMode", json!("host")),
            ("/HostConfig/Binds", json!(["/:/host"])),
            ("/User", json!("0:0")),
        ] {
            let mut changed = given_with(&settings, less);
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            changed.pointer_mut(parent).expect("is there")[name] = value;
            refused(pointer, &changed);
        }
    }

    #[test]
    fn files_on_disk_are_in_a_volume_of_the_container_and_in_no_other() {
        let vars = [("SANDBOX_STORAGE", "disk"), ("SANDBOX_DISK_LIMIT", "2GB")];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let on = Settings::parse(vars).expect("valid");
        let all = given(&on);
        assert_eq!(description(&on, &HOST, (NAME, None), &all).expect("allowed"), all);
        let less = given_with(&on, on.limits.with_memory(100_000_000));
        assert_eq!(description(&on, &HOST, (NAME, None), &less).expect("allowed"), less);
        let less = given_with(&on, Limits { data: 1_000_000, ..on.limits });
        assert_eq!(description(&on, &HOST, (NAME, None), &less).expect("allowed"), less);
        let refused = |settings: &Settings, given: &Value| {
            assert!(description(settings, &HOST, (NAME, None), given).is_err(), "{given}");
        };
        refused(&settings(), &all);
        refused(&on, &given(&settings()));
        for data in [0, on.limits.data + 1] {
            refused(&on, &given_with(&on, Limits { data, ..on.limits }));
        }
        for (pointer, value) in [
            ("/Cmd", json!([])),
            ("/Cmd/1", json!("4000000000")),
            ("/Cmd/1", json!("1000000")),
            ("/HostConfig/Mounts", json!([])),
            ("/HostConfig/Mounts/0/Source", json!("another")),
            ("/HostConfig/Mounts/0/Source", json!("/")),
            ("/HostConfig/Mounts/0/Target", json!("/mnt")),
            ("/HostConfig/Mounts/0/Type", json!("bind")),
            ("/HostConfig/Mounts/0/VolumeOptions/NoCopy", json!(true)),
            ("/HostConfig/Mounts/0/VolumeOptions/Labels/more", json!("x")),
            (
                "/HostConfig/Mounts/0/VolumeOptions/DriverConfig",
                json!({ "Name": "local", "Options": { "type": "none", "o": "bind", "device": "/" } }),
            ),
            ("/HostConfig/Mounts/1", json!({ "Type": "bind", "Source": "/", "Target": "/host" })),
        ] {
            let mut changed = all.clone();
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            match changed.pointer_mut(parent).expect("is there") {
                Value::Array(list) => {
                    let at: usize = name.parse().expect("a number");
                    list.truncate(at);
                    list.push(value);
                }
                other => other[name] = value,
            }
            refused(&on, &changed);
        }
    }

    #[test]
    fn a_container_has_a_network_only_to_fetch_packages_where_there_may_be_any() {
        let vars = [("SANDBOX_PACKAGES", "any"), ("SANDBOX_PACKAGES_NETWORK", "packages")];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let on = Settings::parse(vars).expect("valid");
        let owner = "v1/boot/1/2/3".parse().expect("valid");
        let uid = Uid::of_container(NAME).expect("valid");
        let fetcher = fetcher(&on, "sess_0123456789ab", &owner).expect("packages are on");
        let given = serde_json::to_value(create_body(&fetcher, &HOST, uid)).expect("serializes");
        assert_eq!(given["HostConfig"]["NetworkMode"], "packages");
        assert_eq!(description(&on, &HOST, (NAME, None), &given).expect("allowed"), given);
        let refused = |settings: &Settings, given: &Value| {
            assert!(description(settings, &HOST, (NAME, None), given).is_err(), "{given}");
        };
        refused(&settings(), &given);
        for (pointer, value) in [
            ("/HostConfig/NetworkMode", json!("host")),
            ("/HostConfig/NetworkMode", json!("bridge")),
            ("/HostConfig/Memory", json!(1_u64 << 40)),
            ("/HostConfig/Binds", json!(["/:/host"])),
            ("/Cmd", json!(["-c", "id"])),
            ("/Env", json!([])),
        ] {
            let mut changed = given.clone();
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            changed.pointer_mut(parent).expect("is there")[name] = value;
            refused(&on, &changed);
        }
        // A session's container has no network, with packages or without.
        for settings in [&on, &settings()] {
            let mut given = self::given(settings);
            assert_eq!(given["HostConfig"]["NetworkMode"], "none");
            assert_eq!(description(settings, &HOST, (NAME, None), &given).expect("allowed"), given);
            given["HostConfig"]["NetworkMode"] = json!("packages");
            refused(settings, &given);
        }
    }

    #[test]
    fn a_container_reads_the_datasets_of_the_settings_and_no_other_folder() {
        let vars = [("SANDBOX_DATASETS".to_owned(), "sales=/srv/sales, web=/srv/web".to_owned())];
        let settings = Settings::parse(vars).expect("valid");
        let owner = "v1/boot/1/2/3".parse().expect("valid");
        let uid = Uid::of_container(NAME).expect("valid");
        let empty = || Some("/volumes/empty".to_owned());
        let with = |datasets: &[Dataset]| {
            let container = Container {
                datasets,
                ..container(&settings, settings.limits, "sess_0123456789ab", &owner)
            };
            serde_json::to_value(create_body(&container, &HOST, uid)).expect("serializes")
        };
        let dataset = |name: &str, path: &str| Dataset {
            name: name.into(),
            path: path.into(),
            view: View::Own { empty: "/volumes/empty".into() },
        };
        let (sales, web) = (dataset("sales", "/srv/sales"), dataset("web", "/srv/web"));
        for some in [&[][..], std::slice::from_ref(&sales), &[web, sales.clone()]] {
            let given = with(some);
            let own = description(&settings, &HOST, (NAME, empty()), &given);
            assert_eq!(own.expect("allowed"), given);
        }
        let refused = |given: &Value| {
            for empty in [empty(), None] {
                assert!(description(&settings, &HOST, (NAME, empty), given).is_err(), "{given}");
            }
        };
        let live = Dataset { view: View::Live, ..sales.clone() };
        let other = Dataset { view: View::Own { empty: "/etc".into() }, ..sales.clone() };
        let (moved, renamed) = (dataset("sales", "/srv"), dataset("other", "/srv/sales"));
        for some in [&[live][..], &[other], &[moved], &[renamed], &[sales.clone(), sales.clone()]] {
            refused(&with(some));
        }
        for (pointer, value) in [
            ("/ReadOnly", json!(false)),
            ("/Source", json!("volume")),
            ("/Target", json!("/mnt/data")),
            ("/Target", json!("/data/sales/../../tmp")),
            ("/Type", json!("bind")),
            ("/VolumeOptions/NoCopy", json!(false)),
            ("/VolumeOptions/DriverConfig/Name", json!("other")),
            ("/VolumeOptions/DriverConfig/Options/type", json!("ext4")),
            ("/VolumeOptions/DriverConfig/Options/o", json!("lowerdir=/:/volumes/empty")),
        ] {
            let mut changed = with(std::slice::from_ref(&sales));
            let mount = &mut changed["HostConfig"]["Mounts"][0];
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            mount.pointer_mut(parent).expect("is there")[name] = value;
            refused(&changed);
        }
    }

    #[test]
    fn no_other_container_is_made() {
        let settings = settings();
        let refused = |name: &str, given: &Value| {
            assert!(description(&settings, &HOST, (name, None), given).is_err(), "{name}: {given}");
        };
        let others: &[(&str, Value)] = &[
            ("/HostConfig/Binds", json!(["/:/host"])),
            ("/HostConfig/Mounts", json!([{ "Type": "bind", "Source": "/", "Target": "/host" }])),
            ("/HostConfig/Privileged", json!(true)),
            ("/HostConfig/CapAdd", json!(["SYS_ADMIN"])),
            ("/HostConfig/CapDrop", json!([])),
            ("/HostConfig/NetworkMode", json!("host")),
            ("/HostConfig/PidMode", json!("host")),
            ("/HostConfig/IpcMode", json!("host")),
            ("/HostConfig/UsernsMode", json!("host")),
            ("/HostConfig/Devices", json!([{ "PathOnHost": "/dev/sda" }])),
            ("/HostConfig/SecurityOpt", json!(["seccomp=unconfined"])),
            ("/HostConfig/ReadonlyRootfs", json!(false)),
            ("/HostConfig/AutoRemove", json!(false)),
            ("/HostConfig/RestartPolicy", json!({ "Name": "always" })),
            ("/HostConfig/Memory", json!(1_u64 << 40)),
            ("/HostConfig/Memory", json!(256_000_000)),
            ("/HostConfig/VolumesFrom", json!(["another"])),
            ("/HostConfig/MaskedPaths", json!([])),
            ("/Image", json!("another")),
            ("/User", json!("0:0")),
            ("/User", json!("1000:1000")),
            ("/User", json!("50124:1000")),
            ("/User", json!("50123:0")),
            ("/User", json!("50123")),
            ("/HostConfig/Tmpfs", json!({ "/mnt/data": "uid=50124" })),
            ("/Entrypoint", json!(["/bin/sh"])),
            ("/Cmd", json!(["-c", "id"])),
            ("/Env", json!([])),
            ("/Volumes", json!({ "/x": {} })),
            ("/NetworkingConfig", json!({})),
            ("/StdinOnce", json!(false)),
            ("/Labels/app", json!("another")),
            ("/Labels/more", json!("x")),
            ("/Labels/session_id", json!("../no session")),
            ("/Labels/llm-sandbox.owner", json!("nobody")),
            ("/Unknown", json!(1)),
        ];
        for (pointer, value) in others {
            let mut changed = given(&settings);
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            changed.pointer_mut(parent).expect("is there")[name] = value.clone();
            refused(NAME, &changed);
        }
        for uid in ["", "50124", "0", "1000", "49999", "60000", "050123", "50123-2"] {
            refused(&format!("llm-sandbox-u{uid}"), &given(&settings));
        }
        // A user id that no sandbox may have is refused, even if the name agrees.
        for uid in ["0", "1000", "49999", "60000"] {
            let given = given(&settings).to_string().replace("50123", uid);
            let given = serde_json::from_str(&given).expect("JSON");
            refused(&format!("llm-sandbox-u{uid}"), &given);
        }
        for name in ["", "x", "50123", "another-u50123"] {
            refused(name, &given(&settings));
        }
        for other in [json!({}), json!([]), json!(null), json!("x")] {
            refused(NAME, &other);
        }
        let limits = Limits { memory: 1 << 30, ..settings.limits };
        let more = Settings { limits, ..settings.clone() };
        refused(NAME, &given(&more));
    }
}
