//! `llm-sandbox doctor`: what is there, what is wrong, and the command that mends it.

use std::process::ExitCode;

use super::{health, probe::probe};
use crate::{
    backend::{
        BackendError,
        docker::{Docker, Facts},
    },
    config::{Config, scratch_bytes},
    http::{Listener, Taken},
    image,
};

/// Oldest API with private cgroup namespaces (Docker 20.10).
const OLDEST_API: (u32, u32) = (1, 41);

/// What came of a check: what was found, and what mends it.
pub(super) enum Check {
    Good(String),
    Warning(String, String),
    Fault(String, String),
    /// It cannot be told here, and why.
    NotShown(String),
}

pub(super) async fn doctor(config: &Config, with_probe: bool) -> ExitCode {
    say!("llm-sandbox {}, protocol {}", env!("CARGO_PKG_VERSION"), image::PROTOCOL);
    let docker = Docker::new(&config.image, config.runtime.as_deref());
    let facts = docker.facts().await;
    let mut healthy = true;
    for (name, check) in checks(config, &docker, &facts).await {
        healthy &= show(name, 10, check);
    }
    if with_probe && let Ok(facts) = &facts {
        say!("\nA sandbox, from within:");
        for (name, check) in probe(config, facts).await {
            healthy &= show(&name, 26, check);
        }
    }
    if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a check; false if it is a fault.
fn show(name: &str, width: usize, check: Check) -> bool {
    let (mark, text, mend) = match check {
        Check::Good(text) => ("ok  ", text, None),
        Check::NotShown(text) => ("n/a ", text, None),
        Check::Warning(text, mend) => ("warn", text, Some(mend)),
        Check::Fault(text, mend) => ("FAIL", text, Some(mend)),
    };
    say!("{mark}  {name:<width$} {text}");
    if let Some(mend) = mend {
        say!("      {:<width$} -> {mend}", "");
    }
    mark != "FAIL"
}

/// Whether sandboxes have gVisor's kernel instead of the host's.
pub(super) fn is_gvisor(config: &Config, facts: &Facts) -> bool {
    config.runtime.as_ref().unwrap_or(&facts.default_runtime).contains("runsc")
}

async fn checks(
    config: &Config,
    docker: &Docker,
    facts: &Result<Facts, BackendError>,
) -> Vec<(&'static str, Check)> {
    let mut checks = vec![("settings", settings(config))];
    match facts {
        Err(error) => {
            let text = "cannot be used".to_owned();
            checks.push(("engine", Check::Fault(text, error.to_string())));
        }
        Ok(facts) => {
            checks.push(("engine", Check::Good(facts.version.clone())));
            checks.push(("api", api(&facts.api)));
            checks.push(("cgroup", cgroup(config, facts)));
            checks.push(("seccomp", seccomp(facts.seccomp)));
            checks.push(("runtime", runtime(config, facts)));
            checks.push(("cpus", cpus(config, facts.cpus)));
            checks.push(("image", image_check(config, docker).await));
        }
    }
    checks.push(("memory", memory(config)));
    checks.push(("port", port(config).await));
    checks
}

fn settings(config: &Config) -> Check {
    Check::Good(match &config.env_file {
        None => "from the environment".into(),
        Some(path) => format!(
            "from the environment and {0}; a server over stdio reads that only with --env-file {0}",
            path.display()
        ),
    })
}

fn api(version: &str) -> Check {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let text = format!("version {version}");
    if number >= OLDEST_API {
        Check::Good(text)
    } else {
        Check::Fault(text, "Update the engine: Docker 20.10 or newer is needed.".into())
    }
}

fn cgroup(config: &Config, facts: &Facts) -> Check {
    let text = format!("version {}", facts.cgroup);
    // Under gVisor they are memory like any other.
    if facts.allows_internet_sockets() || is_gvisor(config, facts) {
        Check::Good(text)
    } else {
        Check::Warning(
            format!(
                "{text} does not count the memory of TCP and UDP sockets, so sandboxes have none, \
                 not even for connections to themselves"
            ),
            "A host with cgroup version 2 counts it, and sandboxes there have them.".into(),
        )
    }
}

fn seccomp(on: bool) -> Check {
    if on {
        Check::Good("system calls are filtered".into())
    } else {
        Check::Fault(
            "the engine does not filter system calls".into(),
            "Use a kernel with CONFIG_SECCOMP_FILTER and an engine built with seccomp.".into(),
        )
    }
}

fn runtime(config: &Config, facts: &Facts) -> Check {
    let all = facts.runtimes.join(", ");
    match &config.runtime {
        None => Check::Good(format!("{} (the engine has: {all})", facts.default_runtime)),
        Some(wanted) if facts.may_have_runtime(wanted) => {
            Check::Good(format!("{wanted} (the engine has: {all})"))
        }
        Some(wanted) => Check::Fault(
            format!("the engine has no runtime {wanted}; it has: {all}"),
            "Set SANDBOX_RUNTIME to one of these, or register yours in the engine's daemon.json."
                .into(),
        ),
    }
}

fn cpus(config: &Config, host: f64) -> Check {
    if config.cpu_limit <= host {
        Check::Good(format!("{} of {host} a sandbox", config.cpu_limit))
    } else {
        Check::Warning(
            format!("SANDBOX_CPU_LIMIT is {}, the engine's host has {host}", config.cpu_limit),
            format!("Sandboxes get {host}."),
        )
    }
}

async fn image_check(config: &Config, docker: &Docker) -> Check {
    let name = &config.image;
    let build = || "llm-sandbox image build".to_owned();
    match docker.image_facts().await {
        Err(error) => Check::Fault(format!("{name} cannot be looked at"), error.to_string()),
        Ok(None) => Check::Fault(format!("{name} is not there"), build()),
        Ok(Some(facts)) => match facts.protocol {
            None => Check::Fault(format!("{name} is not a sandbox image"), build()),
            Some(protocol) if protocol != image::PROTOCOL => Check::Fault(
                format!("{name} speaks protocol {protocol}, this server {}", image::PROTOCOL),
                build(),
            ),
            Some(protocol) => {
                let text = format!("{name}, protocol {protocol}, {} MB", facts.size / 1_000_000);
                if facts.content.as_deref() == Some(&image::content_id(None)) {
                    Check::Good(text)
                } else {
                    Check::Warning(format!("{text}, built from other files than this"), build())
                }
            }
        },
    }
}

fn memory(config: &Config) -> Check {
    let mb = |bytes: u64| bytes / 1_000_000;
    let text = format!("{} MB a sandbox, files included", mb(config.memory_limit));
    if config.memory_limit > config.data_limit + 2 * scratch_bytes(config.memory_limit) {
        Check::Good(text)
    } else {
        Check::Warning(
            format!("{text}; a full data area ({} MB) leaves nothing", mb(config.data_limit)),
            "Raise SANDBOX_MEMORY_LIMIT or lower SANDBOX_DATA_LIMIT.".into(),
        )
    }
}

async fn port(config: &Config) -> Check {
    let address = format!("{}:{}", config.http_host, config.http_port);
    match Listener::bind(config, Taken::Fail) {
        Ok(_) => Check::Good(format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            if health::is_served(config).await {
                Check::Good(format!("{address} is in use by one of these servers, which answers"))
            } else {
                Check::Warning(
                    format!("{address} is taken, by none of these servers"),
                    "A server on stdio will use a free one; for one on HTTP set SANDBOX_HTTP_PORT."
                        .into(),
                )
            }
        }
        Err(error) => Check::Fault(
            format!("{address}: {error}"),
            "Set SANDBOX_HTTP_HOST and SANDBOX_HTTP_PORT to an address of this machine.".into(),
        ),
    }
}
