//! Checks of the engine and the image for `llm-sandbox doctor`.

use sandbox_container::Storage;

use super::{Docker, EngineFacts};
use crate::{Check, Finding, Limits, check, image};

/// Oldest API with private cgroup namespaces (Docker 20.10).
const OLDEST_API: (u32, u32) = (1, 41);

impl Docker {
    /// Whether sandboxes run under gVisor.
    pub(super) fn is_gvisor(&self, facts: &EngineFacts) -> bool {
        self.runtime.as_ref().unwrap_or(&facts.default_runtime).contains("runsc")
    }

    /// Checks the engine and the image.
    pub(super) async fn look_over(&self, limits: &Limits) -> Vec<Check> {
        let facts = match self.connection().await {
            Ok(connection) => &connection.facts,
            Err(error) => {
                let finding = Finding::fault("cannot be used", error.to_string());
                return vec![Check::new("engine", finding)];
            }
        };
        let disk = (limits.storage == Storage::Disk)
            .then(|| Check::new("disk", disk(&facts.folder, limits.data)));
        let always = [
            Check::new("engine", Finding::good(&*facts.version)),
            Check::new("api", api(&facts.api)),
            Check::new("cgroup", self.cgroup(facts)),
            Check::new("seccomp", seccomp(facts.seccomp)),
            Check::new("runtime", self.runtime_check(facts)),
            Check::new("cpus", cpus(limits.cpus, facts.host.cpus)),
            Check::new("image", self.image_check().await),
        ];
        let gpus = (!self.gpus.is_empty()).then(|| Check::new("gpus", gpus(&self.gpus, facts)));
        always.into_iter().chain(disk).chain(gpus).collect()
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
