//! Checks of the engine and the image for `llm-sandbox doctor`.

use std::fs;

use link::{Link, LinkError, Opening, Stream, Timing};
use sandbox_container::{Settable, Storage};
use tokio::time::Instant;

use super::{Docker, EngineFacts};
use crate::{
    Backend, BackendError, Check, Diagnosable, Finding, Greeting, Limits, Purpose, Sandbox, Spec,
    check, image,
};

/// The session of the sandbox that `doctor` starts.
const TRIAL: &str = "doctor";

/// Oldest API with private cgroup namespaces (Docker 20.10).
const OLDEST_API: (u32, u32) = (1, 41);

impl Docker {
    /// Whether sandboxes run under gVisor.
    pub(super) fn is_gvisor(&self, facts: &EngineFacts) -> bool {
        self.runtime.as_ref().unwrap_or(&facts.default_runtime).contains("runsc")
    }

    /// Checks the engine and the image.
    pub(super) async fn look_over(&self, limits: &Limits) -> Vec<Check> {
        let (facts, host) = match self.connection().await {
            Ok(connection) => (&connection.facts, &*connection.host),
            Err(error) => {
                let finding = Finding::fault("cannot be used", error.to_string());
                return vec![Check::new("engine", finding)];
            }
        };
        let disk = (limits.storage == Storage::Disk)
            .then(|| Check::new("disk", disk(&facts.folder, limits.data)));
        let image = self.image_check().await;
        let start = match &image {
            Finding::Fault { .. } => None,
            _ => Some(Check::new("start", self.start_check(limits).await)),
        };
        let missing = limits_check(facts.host.settable).map(|it| Check::new("limits", it));
        let always = [
            Check::new("engine", Finding::good(engine(facts, host))),
            Check::new("api", api(&facts.api)),
            Check::new("cgroup", self.cgroup(facts)),
            Check::new("seccomp", seccomp(facts.seccomp)),
            Check::new("runtime", self.runtime_check(facts)),
            Check::new("cpus", cpus(limits.cpus, facts.host.cpus)),
            Check::new("image", image),
        ];
        let gpus = (!self.gpus.is_empty()).then(|| Check::new("gpus", gpus(&self.gpus, facts)));
        always.into_iter().chain(missing).chain(start).chain(disk).chain(gpus).collect()
    }

    /// The label that AppArmor gives the processes of a container, if the engine is on this machine and shows it.
    async fn apparmor_label(&self, id: &str) -> Option<String> {
        let engine = &self.connection().await.ok()?.engine;
        let pid = engine.inspect_container(id, None).await.ok()?.state?.pid?;
        fs::read_to_string(format!("/proc/{pid}/attr/current")).ok()
    }

    fn cgroup(&self, facts: &EngineFacts) -> Finding {
        let text = format!("version {}", facts.cgroup);
        // gVisor counts the memory of sockets like any other.
        if facts.allows_internet_sockets() || self.is_gvisor(facts) {
            Finding::Good(text)
        } else {
            Finding::warning(
                format!(
                    "{text} does not count the memory of TCP and UDP sockets, so sandboxes have no \
                     such sockets, not even for connections to themselves"
                ),
                "Use a host with cgroup version 2, which counts it; sandboxes there have these \
                 sockets.",
            )
        }
    }

    fn runtime_check(&self, facts: &EngineFacts) -> Finding {
        let all = facts.runtimes.join(", ");
        match &self.runtime {
            None => Finding::Good(format!("{} (the engine has: {all})", facts.default_runtime)),
            Some(wanted) if facts.may_have_runtime(wanted) => {
                Finding::Good(format!("{wanted} (the engine has: {all})"))
            }
            Some(wanted) => Finding::fault(
                format!("the engine has no runtime {wanted}; it has: {all}"),
                "Set SANDBOX_RUNTIME to one of these, or register yours in the engine's \
                 daemon.json.",
            ),
        }
    }

    /// Starts a sandbox, greets its agent, and removes it: an engine that answers may still refuse sandboxes.
    async fn start_check(&self, limits: &Limits) -> Finding {
        let spec = Spec {
            session: TRIAL.parse().expect("the constant `TRIAL` is a valid session id"),
            limits: *limits,
            saved_as: None,
            hold: None,
            caller: None,
            datasets: vec![],
            purpose: Purpose::Session,
        };
        let failed = |error: &BackendError| {
            let (text, fix) = error.parts();
            let fix = fix.unwrap_or("Change what the message names; docs/security.md has what engines must be able to do.");
            Finding::fault(format!("no sandbox starts: {text}"), fix)
        };
        let begun = Instant::now();
        let Sandbox { id, reader, writer, .. } = match self.launch(&spec).await {
            Ok(sandbox) => sandbox,
            Err(error) => return failed(&error),
        };
        let stream = Stream { reader, writer };
        let finding = match Link::connect(stream, Timing::default(), Opening::default()).await {
            Ok(_) => {
                let took = begun.elapsed().as_millis();
                let confined = self.apparmor_label(&id).await;
                confined
                    .as_deref()
                    .and_then(stacked)
                    .unwrap_or_else(|| Finding::Good(format!("a sandbox starts in {took} ms")))
            }
            Err(error) => {
                let fault = match error {
                    LinkError::Version(_) => Greeting::OtherVersion,
                    _ => Greeting::Missing,
                };
                failed(&self.no_greeting(fault, &error.to_string()))
            }
        };
        if let Err(error) = self.remove(id).await {
            tracing::warn!(%error, "failed to remove the sandbox of a trial");
        }
        finding
    }

    async fn image_check(&self) -> Finding {
        let name = &self.image;
        let build = "llm-sandbox image build";
        let facts = match self.image_facts().await {
            Ok(Some(facts)) => facts,
            Ok(None) => return Finding::fault(format!("{name} does not exist"), build),
            Err(error) => {
                return Finding::fault(format!("{name} cannot be inspected"), error.to_string());
            }
        };
        match facts.protocol {
            None => Finding::fault(format!("{name} is not a sandbox image"), build),
            Some(protocol) if protocol != image::PROTOCOL => Finding::fault(
                format!(
                    "{name} speaks protocol {protocol}, this server speaks {}",
                    image::PROTOCOL
                ),
                build,
            ),
            Some(protocol) => {
                let text = format!("{name}, protocol {protocol}, {} MB", facts.size / 1_000_000);
                let label = image::LABEL_TEMPLATE;
                if let Err(fault) = facts.template {
                    Finding::fault(
                        format!("{text}; its label {label} is invalid"),
                        format!("{fault} Correct the label and build the image again."),
                    )
                } else if let Ok(None) = facts.template {
                    Finding::warning(
                        format!(
                            "{text}; it has no label {label}, so clients are told the languages and \
                             libraries of this version's own image"
                        ),
                        build,
                    )
                } else if facts.content.as_deref() == Some(&image::content_id(None, &facts.recipes))
                {
                    Finding::Good(text)
                } else {
                    let text = format!("{text}, built from different files than this version's");
                    Finding::warning(text, build)
                }
            }
        }
    }
}

/// The engine for people: product, version, address, and whether it is root's.
fn engine(facts: &EngineFacts, host: &str) -> String {
    let user = if facts.host.rootless { "rootless" } else { "root" };
    format!("{}, {user}, at {host}", facts.version)
}

/// The finding about limits that the engine cannot set, if there are any.
fn limits_check(settable: Settable) -> Option<Finding> {
    let Settable { memory, swap, cpus, pids } = settable;
    let all = [
        (memory, "memory (each process has the limit instead)"),
        (swap, "swap"),
        (cpus, "processors"),
        (pids, "processes (each user id has the limit instead)"),
    ];
    let missing: Vec<_> = all.iter().filter(|(can, _)| !can).map(|(_, name)| *name).collect();
    (!missing.is_empty()).then(|| {
        Finding::warning(
            format!("the engine cannot limit {}", missing.join(", ")),
            "Use a host with cgroup version 2, and delegate the controllers cpu, memory and pids \
             to the engine's user, as docs/security.md says.",
        )
    })
}

/// The fault of processes that AppArmor confines by two profiles: each permits signals only among processes of that
/// profile alone, so that a sandbox cannot end its programs.
fn stacked(label: &str) -> Option<Finding> {
    let (first, others) = label.trim().split_once("//&")?;
    let second = others.split([' ', '/']).next().unwrap_or(others);
    Some(Finding::fault(
        format!(
            "AppArmor confines sandboxes by two profiles, {first} and {second}, so that they cannot end their programs"
        ),
        format!(
            "As root: ln -s /etc/apparmor.d/{second} /etc/apparmor.d/disable/ && apparmor_parser -R \
             /etc/apparmor.d/{second}"
        ),
    ))
}

fn gpus(wanted: &[String], facts: &EngineFacts) -> Finding {
    let names = wanted.join(", ");
    let fix = "Install the driver's CDI specifications on the engine's host (for NVIDIA `nvidia-ctk cdi generate`), or \
               change SANDBOX_GPUS.";
    let Some(known) = &facts.devices else {
        return Finding::warning(format!("{names}; the engine does not list its devices"), fix);
    };
    match wanted.iter().find(|name| !known.contains(name)) {
        None => Finding::Good(names),
        Some(missing) if known.is_empty() => {
            Finding::fault(format!("the engine has no device {missing}, and no other"), fix)
        }
        Some(missing) => {
            let text = format!("the engine has no device {missing}; it has: {}", known.join(", "));
            Finding::fault(text, fix)
        }
    }
}

fn api(version: &str) -> Finding {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let text = format!("version {version}");
    if number >= OLDEST_API {
        Finding::Good(text)
    } else {
        Finding::fault(text, "Update the engine: Docker 20.10 or newer is needed.")
    }
}

fn seccomp(on: bool) -> Finding {
    if on {
        Finding::good("system calls are filtered")
    } else {
        Finding::fault(
            "the engine does not filter system calls",
            "Use a kernel with CONFIG_SECCOMP_FILTER and an engine built with seccomp.",
        )
    }
}

/// The finding about the disk of data areas, each of which may have this many bytes.
fn disk(folder: &str, each: u64) -> Finding {
    let text = format!("/mnt/data is in volumes of the engine, in {folder}");
    check::disk(&text, folder.as_ref(), each)
}

fn cpus(limit: f64, host: f64) -> Finding {
    if limit <= host {
        Finding::Good(format!("{limit} of {host} per sandbox"))
    } else {
        Finding::warning(
            format!("SANDBOX_CPU_LIMIT is {limit}, but the engine's host has {host}"),
            format!("Sandboxes get {host}."),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_profiles_of_apparmor_are_a_fault_with_its_fix() {
        for label in ["docker-default (enforce)\n", "unconfined\n", "runc (unconfined)\n", ""] {
            assert!(stacked(label).is_none(), "{label}");
        }
        let Some(Finding::Fault { text, fix }) =
            stacked("containers-default-0.62.2//&crun (mixed)\n")
        else {
            panic!("no fault")
        };
        assert!(text.contains("containers-default-0.62.2 and crun,"), "{text}");
        assert!(fix.contains("ln -s /etc/apparmor.d/crun /etc/apparmor.d/disable/"), "{fix}");
    }
}
