//! `llm-sandbox doctor`: checks the engine, the image and the settings, and says how to fix what is wrong.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use backend::{Backend, Check, Finding, Limits};
use config::{Config, Engine, Source, Transport, scratch_bytes, table};
use protocol::frame::PROTOCOL_VERSION;

use super::{
    EXIT_UNAVAILABLE, backend, clients, datasets, health, probe::probe, serve::fuel_is_ignored,
    upstreams,
};
use crate::{
    archive::Archive,
    http::{Listener, PortInUse, Tls},
    mcp::Server,
    own_tools::OwnTools,
    packages::try_out,
};

pub(super) async fn doctor(config: &Config, with_probe: bool) -> ExitCode {
    let Ok(State { is_healthy, is_served }) = look(config, with_probe).await else {
        return EXIT_UNAVAILABLE.into();
    };
    print_line!("\n{}", what_is_next(config, is_healthy, is_served));
    if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The machine, as the checks found it.
pub(super) struct State {
    /// No check has found a fault.
    pub(super) is_healthy: bool,
    /// A server answers at the port of these settings.
    is_served: bool,
}

/// Makes all checks, and prints the findings.
///
/// # Errors
/// If there is no engine of these settings, which is printed as well.
pub(super) async fn look(config: &Config, with_probe: bool) -> Result<State, ExitCode> {
    print_line!("llm-sandbox {}, protocol {}", env!("CARGO_PKG_VERSION"), PROTOCOL_VERSION);
    let backend = backend(config)?;
    let diagnosable = backend.abilities().diagnosable;
    let remarks = config.remarks.iter().map(|remark| {
        Finding::warning(remark.clone(), "Remove it, or change it as docs/settings.md says.")
    });
    let settings = std::iter::once(settings(config)).chain(remarks);
    let mut checks: Vec<_> = settings.map(|finding| Check::new("settings", finding)).collect();
    if config.has_sessions() {
        let of_engine = match diagnosable {
            Some(diagnosable) => diagnosable.checks(&Limits::from(config)).await,
            None => vec![],
        };
        if let Some(why) = &config.engine_reason {
            let is_usable =
                !of_engine.iter().any(|check| matches!(check.finding, Finding::Fault { .. }));
            let chosen = format!("{} ({why})", config.engine.as_str());
            checks.push(Check::new("chosen", chosen_finding(chosen, is_usable, config)));
        }
        checks.extend(of_engine);
    } else {
        let text = "none is needed: SANDBOX_TOOLSETS has nothing but tools of your own";
        checks.push(Check::new("engine", Finding::Good(text.into())));
    }
    if let Some(finding) = own_tools(config).await {
        checks.push(Check::new("tools", finding));
    }
    if let Some(finding) = archive(config).await {
        checks.push(Check::new("archive", finding));
    }
    checks.extend(packages(config, &*backend).await);
    checks.push(Check::new("memory", memory(config)));
    if let Some(why) = fuel_is_ignored(config) {
        checks.push(Check::new(
            "fuel",
            Finding::warning(why, "Unset it, or use the embedded engine."),
        ));
    }
    checks.extend(datasets::checks(config));
    checks.extend(upstreams::checks(config).await);
    if let Some(finding) = certificate(config) {
        checks.push(Check::new("tls", finding));
    }
    let (port, is_served) = port(config).await;
    checks.push(Check::new("port", port));
    let mut is_healthy = report(10, checks);
    if with_probe
        && let Some(diagnosable) = diagnosable
        && let Some(script) = diagnosable.probe().await
    {
        print_line!("\nInside a sandbox:");
        is_healthy &= report(26, probe(config, backend.clone(), script).await);
    }
    backend.close().await;
    Ok(State { is_healthy, is_served })
}

/// The next step after these checks.
fn what_is_next(config: &Config, is_healthy: bool, is_served: bool) -> String {
    if !is_healthy {
        let next = "Not ready: do what the arrows say, then run `llm-sandbox doctor` again.";
        return as_started(next);
    }
    let [config_file, env_file] = files(config)
        .map(|option| option.map_or_else(String::new, |(name, path)| format!(" {name} {path}")));
    let program = program().join(" ") + &config_file;
    // A server that listens on all addresses, as in a container, does not know the address that clients use.
    let known = (!config.http_host.is_unspecified())
        .then(|| SocketAddr::new(config.http_host, config.http_port).to_string());
    let address = known.as_deref().unwrap_or("<its address>");
    let own = || format!("{}://{address}", config.scheme());
    let base = config.public_url.clone().unwrap_or_else(own);
    if is_served {
        format!("Ready. A server answers: MCP is at {base}/mcp, and docs/clients has each client.")
    } else if config.transport == Transport::Http {
        format!("Ready. Next: {program}{env_file} serve --http, then add {base}/mcp to a client.")
    } else {
        let options = options_of(config);
        format!("Ready. Next: claude mcp add sandbox{options} -- {program}{env_file}")
    }
}

/// The options that name the files with these settings.
fn files(config: &Config) -> [Option<(&'static str, String)>; 2] {
    let option = |name, path: &Option<PathBuf>| {
        let path = path.as_ref()?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Some((name, path.display().to_string()))
    };
    [option("--config", &config.file), option("--env-file", &config.env_file)]
}

/// The settings of the environment, without secrets.
fn settings_of_environment(config: &Config) -> impl Iterator<Item = (&'static str, &str)> {
    let rows = table::rows().filter(|row| !row.form.is_secret());
    let given = rows.filter_map(|row| Some((row.name, config.given.get(row.name)?)));
    given
        .filter(|(_, given)| given.source == Source::Environment)
        .map(|(name, given)| (name, &*given.text))
}

/// The options with which a client passes on the settings of the environment.
fn options_of(config: &Config) -> String {
    settings_of_environment(config)
        .fold(String::new(), |all, (name, _)| all + &format!(" -e {name}=\"${name}\""))
}

/// The server with these settings, as a client on this machine starts it.
pub(super) fn server(config: &Config) -> clients::Server {
    let path = std::env::current_exe().ok();
    let command = path.map_or_else(program, |path| clients::command_of(&path));
    let options = files(config).into_iter().flatten();
    let options = options.flat_map(|(name, path)| [name.to_owned(), path]);
    clients::Server {
        command: command.into_iter().chain(options).collect(),
        env: settings_of_environment(config)
            .map(|(name, value)| (name.to_owned(), from_anywhere(name, value)))
            .collect(),
    }
}

/// The value of a setting with absolute paths: a client starts the server in another folder. Files that runs make are
/// exported to the client's folder.
fn from_anywhere(name: &str, value: &str) -> String {
    let has_paths = ["_FILE", "_DIR", "_ROOTS"].iter().any(|end| name.ends_with(end));
    if !has_paths || name == "SANDBOX_EXPORT_DIR" {
        return value.to_owned();
    }
    let separator = table::rows().find(|row| row.name == name).and_then(|row| row.form.separator());
    let absolute = |path: &str| match std::path::absolute(path.trim()) {
        Ok(absolute) => absolute.display().to_string(),
        Err(_) => path.to_owned(),
    };
    match separator {
        Some(separator) => {
            value.split(separator).map(absolute).collect::<Vec<_>>().join(&separator.to_string())
        }
        None => absolute(value),
    }
}

/// The command that starts this program in any folder, as short as it was typed.
fn program() -> Vec<String> {
    let typed = std::env::args_os().next().map(PathBuf::from);
    let is_path = typed.is_some_and(|typed| typed.components().count() > 1);
    let command = std::env::current_exe().ok().map(|path| clients::command_of(&path));
    command
        .filter(|command| is_path || command.len() > 1)
        .unwrap_or_else(|| vec![env!("CARGO_PKG_NAME").to_owned()])
}

/// A text whose commands name this program as it was started, if another program runs it without installing it.
pub(super) fn as_started(text: &str) -> String {
    match &program()[..] {
        [_] => text.to_owned(),
        words => text.replace("`llm-sandbox ", &format!("`{} ", words.join(" "))),
    }
}

/// The finding about the chosen engine: a fault if neither engine can be used.
fn chosen_finding(chosen: String, is_usable: bool, config: &Config) -> Finding {
    match &config.engine_instead {
        Some(instead) if !is_usable => Finding::fault(
            "neither Docker nor the embedded engine can be used",
            format!("Fix Docker as the next lines say. {instead}"),
        ),
        _ => Finding::Good(chosen),
    }
}

/// Prints a line for each check, with its name padded to `width`; returns false if one of them is a fault.
fn report(width: usize, checks: Vec<Check>) -> bool {
    let mut healthy = true;
    for Check { name, finding } in checks {
        healthy &= !matches!(finding, Finding::Fault { .. });
        let (mark, text, fix) = match finding {
            Finding::Good(text) => ("ok  ", text, None),
            Finding::NotShown(text) => ("n/a ", text, None),
            Finding::Warning { text, fix } => ("warn", text, Some(fix)),
            Finding::Fault { text, fix } => ("FAIL", text, Some(fix)),
        };
        print_line!("{mark}  {name:<width$} {text}");
        if let Some(fix) = fix {
            print_line!("      {:<width$} -> {}", "", as_started(&fix));
        }
    }
    healthy
}

fn settings(config: &Config) -> Finding {
    let file = config.file.as_ref().map(|path| path.display().to_string());
    let env_file = config.env_file.as_ref().map(|path| {
        format!(
            "{0} (a server over stdio reads that file only with --env-file {0})",
            path.display()
        )
    });
    let from = [Some("the environment".to_owned()), file, env_file];
    let from = from.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    Finding::Good(format!("from {from}"))
}

fn certificate(config: &Config) -> Option<Finding> {
    const FIX: &str = "Set SANDBOX_TLS_CERT and SANDBOX_TLS_KEY to a certificate and its key, as \
                       docs/http.md says.";
    let tls = match Tls::of(config) {
        Ok(tls) => tls?,
        Err(why) => return Some(Finding::fault(why, FIX)),
    };
    let certificate = tls.certificate();
    Some(match certificate.fault() {
        None => Finding::Good(certificate.describe()),
        Some(fault) => Finding::warning(format!("{}; {fault}", certificate.describe()), FIX),
    })
}

async fn own_tools(config: &Config) -> Option<Finding> {
    if !config.has_sessions() && config.tools_file.is_none() {
        return Some(Finding::warning(
            "there are none: SANDBOX_TOOLSETS has nothing but own, and SANDBOX_TOOLS_FILE names no tools",
            "Set SANDBOX_TOOLS_FILE, or offer other toolsets as well.",
        ));
    }
    let own = OwnTools::load(config, Server::reserved_names()).await;
    Some(match own {
        Ok(own) => Finding::Good(format!("{} (SANDBOX_TOOLS_FILE)", own?.names().join(", "))),
        Err(mistakes) => Finding::fault(
            format!("they cannot be used:{mistakes}"),
            "Correct the files that SANDBOX_TOOLS_FILE names; docs/own-tools.md says what they hold.",
        ),
    })
}

async fn archive(config: &Config) -> Option<Finding> {
    let place = config.archive.as_ref()?;
    let checked = match Archive::of(config) {
        Ok(archive) => archive?.check().await,
        Err(error) => Err(error.to_string()),
    };
    Some(match checked {
        Ok(took) => Finding::Good(format!(
            "{place} can be written, read and deleted in {} ms",
            took.as_millis()
        )),
        Err(why) => Finding::fault(
            format!("{place}: {why}"),
            "Set SANDBOX_ARCHIVE to a folder of this user's, or to a bucket that the variables AWS_* open; \
             docs/archive.md says which.",
        ),
    })
}

/// Fetches a package: only that shows that network, index and certificates work together.
async fn packages(config: &Config, backend: &dyn Backend) -> Vec<Check> {
    if !config.has_sessions() || config.packages_within().is_none() {
        return vec![];
    }
    let Some(template) = backend.template().await else { return vec![] };
    let tried = try_out(config, backend, &template).await;
    if tried.is_empty() {
        let why = "SANDBOX_PACKAGES allows none that sandboxes of this engine can take";
        return vec![Check::new("packages", Finding::warning(why, "See docs/packages.md."))];
    }
    let findings = tried.into_iter().map(|(ecosystem, tried)| {
        let language = ecosystem.language();
        match tried {
            Ok(what) => Finding::Good(format!("for {language}: {what} was fetched")),
            Err(fault) if fault.is_answer() => {
                Finding::Good(format!("for {language}: the index answers. {fault}"))
            }
            Err(fault) => Finding::fault(
                format!("for {language}: {fault}"),
                "Set the index, its proxy and certificates as docs/packages.md says, and \
                 SANDBOX_PACKAGES_NETWORK to a network that reaches it.",
            ),
        }
    });
    findings.map(|finding| Check::new("packages", finding)).collect()
}

fn memory(config: &Config) -> Finding {
    let mb = |bytes: u64| bytes / 1_000_000;
    if config.engine == Engine::Wasm {
        let (memory, data) = (mb(config.memory_limit), mb(config.data_limit));
        let place = if Limits::from(config).data_in_memory() > 0 { "" } else { " on disk" };
        return Finding::Good(format!(
            "{memory} MB per sandbox, and {data} MB{place} for its files"
        ));
    }
    let in_memory = Limits::from(config).data_in_memory();
    let files = if in_memory > 0 {
        "files included".into()
    } else {
        format!("and {} MB on disk for its files", mb(config.data_limit))
    };
    let text = format!("{} MB per sandbox, {files}", mb(config.memory_limit));
    if let Some((why, fix)) = config.why_not_preloaded() {
        return Finding::warning(format!("{text}; {why}"), fix);
    }
    if config.memory_limit > in_memory + 2 * scratch_bytes(config.memory_limit) {
        Finding::Good(text)
    } else {
        Finding::warning(
            format!("{text}; a full data area ({} MB) would leave nothing", mb(config.data_limit)),
            "Raise SANDBOX_MEMORY_LIMIT or lower SANDBOX_DATA_LIMIT.",
        )
    }
}

/// The finding about the port in the settings, and whether a server of this program answers there, which may be the one
/// with these settings.
async fn port(config: &Config) -> (Finding, bool) {
    let address = format!("{}:{}", config.http_host, config.http_port);
    let finding = match Listener::bind(config, PortInUse::Fail) {
        Ok(_) => Finding::Good(format!("{address} is free")),
        Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => Finding::fault(
            format!("{address}: {error}"),
            "Set SANDBOX_HTTP_HOST and SANDBOX_HTTP_PORT to an address of this machine.",
        ),
        Err(_) if health::is_served(config).await => {
            let text = format!("{address} is in use by an llm-sandbox server, which answers");
            return (Finding::Good(text), true);
        }
        Err(_) => Finding::warning(
            format!("{address} is in use by another program"),
            "A server over stdio will use a free port; for one over HTTP set SANDBOX_HTTP_PORT.",
        ),
    };
    (finding, false)
}

#[cfg(test)]
mod tests {
    use config::Given;

    use super::*;

    #[test]
    fn settings_of_the_environment_are_passed_on_without_secrets() {
        let given = |name, source| (name, Given { text: "x".into(), source });
        let given = [
            given("SANDBOX_ENGINE", Source::Environment),
            given("SANDBOX_AUTH_TOKENS", Source::Environment),
            given("SANDBOX_IMAGE", Source::EnvFile("/.env".into())),
        ];
        let config = Config { given: given.into(), ..Config::default() };
        assert_eq!(options_of(&config), r#" -e SANDBOX_ENGINE="$SANDBOX_ENGINE""#);
    }
}
