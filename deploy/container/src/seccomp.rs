//! The system calls that a container may make: a profile, of which a part depends on the host.

use serde_json::{Value, json};

/// Docker's default profile without calls that a data program does not need, and with sockets by a list of families,
/// types and protocols. The file has a reason for each rule.
const PROFILE: &str = include_str!("../../../sandbox-image/seccomp.json");

const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const EAFNOSUPPORT: u64 = 97;

/// The profile for containers, as one line of JSON. If the memory of internet sockets is not counted, programs get
/// none, because they could hold uncounted memory: AF_INET and AF_INET6 fail as in a kernel without them. The memory of
/// AF_UNIX sockets is always counted.
pub(crate) fn profile(allows_internet_sockets: bool) -> String {
    let mut profile: Value = serde_json::from_str(PROFILE).expect("the embedded profile is JSON");
    let rules = profile["syscalls"].as_array_mut().expect("the embedded profile has rules");
    if !allows_internet_sockets {
        rules.retain(|rule| !is_of_internet_sockets(rule));
        rules.extend([AF_INET, AF_INET6].map(|family| {
            json!({
                "names": ["socket"],
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": EAFNOSUPPORT,
                "args": [{ "index": 0, "value": family, "op": "SCMP_CMP_EQ" }],
            })
        }));
    }
    // The profile is sent with every create request; comments are only for readers of the file.
    for rule in rules {
        rule.as_object_mut().expect("a rule is an object").remove("comment");
    }
    profile.to_string()
}

fn is_of_internet_sockets(rule: &Value) -> bool {
    let family = &rule["args"][0];
    rule["names"] == json!(["socket"])
        && family["op"] == "SCMP_CMP_EQ"
        && [AF_INET, AF_INET6].iter().any(|known| family["value"] == *known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(counts_internet_sockets: bool) -> Value {
        serde_json::from_str(&profile(counts_internet_sockets)).expect("JSON")
    }

    /// The actions of the rules for sockets whose family is exactly this.
    fn actions(profile: &Value, family: u64) -> Vec<&str> {
        let rules = profile["syscalls"].as_array().expect("rules").iter();
        let of_family = rules.filter(|rule| {
            rule["names"] == json!(["socket"])
                && rule["args"][0]["op"] == "SCMP_CMP_EQ"
                && rule["args"][0]["value"] == family
        });
        of_family.map(|rule| rule["action"].as_str().expect("an action")).collect()
    }

    #[test]
    fn the_profile_refuses_by_default() {
        for counted in [true, false] {
            assert_eq!(parsed(counted)["defaultAction"], "SCMP_ACT_ERRNO");
        }
    }

    #[test]
    fn internet_sockets_are_there_only_where_their_memory_is_counted() {
        let (counted, uncounted) = (parsed(true), parsed(false));
        for family in [AF_INET, AF_INET6] {
            let allowed =
                actions(&counted, family).iter().filter(|a| **a == "SCMP_ACT_ALLOW").count();
            assert_eq!(allowed, 4, "two types with two protocols each");
            assert_eq!(actions(&uncounted, family), ["SCMP_ACT_ERRNO"]);
        }
        assert_eq!(actions(&counted, 1), ["SCMP_ACT_ALLOW"; 3]);
        assert_eq!(actions(&uncounted, 1), ["SCMP_ACT_ALLOW"; 3]);
    }

    #[test]
    fn what_counts_for_the_whole_host_is_not_allowed() {
        let profile = parsed(true);
        let rules = profile["syscalls"].as_array().expect("rules").iter();
        let allowed = rules.filter(|rule| rule["action"] == "SCMP_ACT_ALLOW");
        let names: Vec<_> =
            allowed.flat_map(|rule| rule["names"].as_array().expect("names")).collect();
        for call in ["io_setup", "io_submit", "sync", "syncfs", "inotify_init1", "io_uring_setup"] {
            assert!(!names.iter().any(|name| **name == call), "{call}");
        }
    }
}
