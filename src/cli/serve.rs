//! The server: MCP over standard input and output or over HTTP, and files over HTTP.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use backend::sweep::sweep_regularly;
use config::{
    Config, Engine, Inputs, Misspelt, Source, Transport,
    table::{self, Row},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{EXIT_UNAVAILABLE, EXIT_USAGE, guard::Guard, log, stop_signal, token::how_to_print};
use crate::{
    archive::{self, Archive},
    audit::{Audit, Rotation},
    heap,
    http::{Listener, PortInUse, Tls},
    mcp::{Counted, Server, http::Endpoint, stdio},
    own_tools::OwnTools,
    request::McpService,
    sessions::{Options, Sessions},
    signed_urls::SignedUrls,
    trace::Exporter,
};

/// File descriptors to ask for: one for each connection, and as many again for sandboxes and files. The usual
/// limit is 1024.
const MAX_DESCRIPTORS: u64 = 8192;

/// How long a server continues after a signal to end, if other servers take its place: a cluster's nodes learn within a
/// second or two that they must send it nothing more.
const DRAIN: Duration = Duration::from_secs(5);

/// Interval of checks whether the remaining runs have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The text for a person who started a server for clients in a terminal.
const IN_A_TERMINAL: &str = "\
llm-sandbox: this is a server that an MCP client starts, and it speaks JSON-RPC here. Ctrl-C ends it.
  for Claude Code:         claude mcp add sandbox -- llm-sandbox
  for clients over HTTP:   llm-sandbox serve --http
  to check the set-up:     llm-sandbox doctor
  all commands:            llm-sandbox --help";

pub(super) async fn serve(config: Config, inputs: Inputs) -> ExitCode {
    if config.transport == Transport::Stdio && io::stdin().is_terminal() {
        eprintln!("{IN_A_TERMINAL}");
    }
    let usual = match config.transport {
        // A client starts it in the folder of the project that is open, which is no place for logs.
        Transport::Stdio => log::Usual::UsersState,
        Transport::Http => log::Usual::WorkingFolder,
    };
    let _log = log::start(&config, usual);
    if let Some(why) = is_open_by_mistake(&config) {
        eprintln!("llm-sandbox: {why}");
        return EXIT_USAGE.into();
    }
    let own = match OwnTools::load(&config, Server::reserved_names()).await {
        Ok(own) => own,
        Err(mistakes) => {
            eprintln!("llm-sandbox: the tools cannot be used:{mistakes}");
            return EXIT_USAGE.into();
        }
    };
    let tls = match Tls::of(&config) {
        Ok(tls) => tls,
        Err(why) => {
            eprintln!("llm-sandbox: the certificate cannot be used:\n  {why}");
            return EXIT_USAGE.into();
        }
    };
    match run(config, inputs, own, tls).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "server failed");
            EXIT_UNAVAILABLE.into()
        }
    }
}

async fn run(
    config: Config,
    inputs: Inputs,
    own: Option<OwnTools>,
    tls: Option<Arc<Tls>>,
) -> io::Result<()> {
    let (told, stop) = (stop_signal()?, CancellationToken::new());
    // As many descriptors as the hard limit allows: with fewer, the server takes fewer connections.
    let _ = rlimit::increase_nofile_limit(MAX_DESCRIPTORS);
    let traces = Exporter::start(&config)?;
    let backend = backend::factory::of(&config)?;
    backend.acquire().map_err(io::Error::other)?;
    let transport = config.transport;
    let taken = match transport {
        Transport::Stdio => PortInUse::UseAnother,
        Transport::Http => PortInUse::Fail,
    };
    let listener = Listener::bind(&config, taken)?.with_tls(tls.clone());
    let base = listener.base_url(&config);
    let signed_urls = SignedUrls::new(base.clone().into(), &config);
    let archive = Archive::of(&config)?;
    let audit = audit_of(&config)?;
    let options = Options { archive: archive.clone(), audit: audit.clone(), ..Options::default() };
    let sessions = Sessions::new(config.clone(), backend.clone(), options);
    let owner = backend.needs_guard();
    let guard = owner.map(|owner| Guard::start(config.engine, &owner)).transpose()?;
    let server = Server::new(sessions.clone(), Some(signed_urls.clone()), transport, own.clone());
    tokio::spawn(end_when(told, stop.clone(), sessions.clone()));
    tell_of_serving(&config, &listener, &base);
    let endpoint = match transport {
        Transport::Stdio => None,
        Transport::Http => Some(Endpoint::new(server.clone())),
    };

    // Before clients can ask for the sessions that are adopted.
    sessions.adopt().await;
    if audit.is_some() {
        // Audit lines need to say from which template sessions start.
        sessions.template().await;
    }

    let tasks = TaskTracker::new();
    let mcp = endpoint.clone().map(|endpoint| {
        Arc::new(Counted::new(endpoint, sessions.host().metrics().clone())) as Arc<dyn McpService>
    });
    tasks.spawn(listener.serve(sessions.clone(), signed_urls, mcp, stop.clone()));
    let sweep = sweep_regularly(backend.clone(), config.cleanup_interval);
    tasks.spawn(stop.clone().run_until_cancelled_owned(sweep));
    tasks.spawn(stop.clone().run_until_cancelled_owned(sessions.clone().upkeep()));
    if let Some(archive) = archive {
        let sweep = archive::sweep_regularly(archive, config.cleanup_interval);
        tasks.spawn(stop.clone().run_until_cancelled_owned(sweep));
    }
    tasks.spawn(stop.clone().run_until_cancelled_owned(heap::keep_small()));
    if let Some(endpoint) = &endpoint {
        tasks.spawn(stop.clone().run_until_cancelled_owned(endpoint.clone().reap()));
    }
    if let Some(tls) = tls.clone() {
        tasks.spawn(stop.clone().run_until_cancelled_owned(tls.watch()));
    }
    if transport == Transport::Http {
        let hangup = signal(SignalKind::hangup())?;
        let reload = reload_when_told(hangup, inputs, sessions.clone(), tls);
        tasks.spawn(stop.clone().run_until_cancelled_owned(reload));
    }
    tell_of_own(&config, own.as_ref());
    if let Some(own) = own {
        tasks.spawn(stop.clone().run_until_cancelled_owned(own.keep_up()));
    }

    let outcome = match transport {
        Transport::Stdio => stdio::serve(server, stop.clone()).await,
        Transport::Http => {
            stop.cancelled().await;
            Ok(())
        }
    };
    stop.cancel();
    let clean = sessions.host().shutdown().await;
    if let Some(callers) = sessions.shared_callers() {
        callers.leave_all().await;
    }
    backend.close().await;
    if let Some(endpoint) = endpoint {
        endpoint.shutdown().await;
    }
    tasks.close();
    tasks.wait().await;
    if let Some(audit) = audit {
        audit.close();
    }
    if let Some(guard) = guard {
        // An undismissed guard removes what this server left when it sees that the server has ended.
        if clean {
            guard.dismiss().await;
        }
    }
    if let Some(traces) = traces {
        traces.end().await;
    }
    tracing::info!("server ended");
    outcome
}

/// Reads the settings and the certificate again at each signal. Runs forever.
async fn reload_when_told(
    mut hangup: Signal,
    inputs: Inputs,
    sessions: Sessions,
    tls: Option<Arc<Tls>>,
) {
    while hangup.recv().await.is_some() {
        if let Some(tls) = &tls {
            tls.reload();
        }
        match Config::load(&inputs) {
            Ok(config) => reload(&config, &sessions),
            Err(mistakes) => tracing::error!("the settings are not reloaded: {mistakes}"),
        }
    }
}

/// Replaces the callers by those of new settings, and logs the settings that need a restart.
fn reload(new: &Config, sessions: &Sessions) {
    let old = sessions.config();
    if new.requires_auth() != old.requires_auth() {
        tracing::error!(
            "the settings are not reloaded: to have the first tokens, or none any more, the server needs a restart"
        );
        return;
    }
    sessions.host().permissions().replace(new);
    let text = |config: &Config, row: &Row| config.given.get(row.name).map(|it| it.text.clone());
    let needs_restart = |row: &&Row| !row.key.starts_with("auth.oauth.");
    let is_other = |row: &&Row| needs_restart(row) && text(new, row) != text(old, row);
    let shown = |row: &Row| format!("{} ({})", row.key, row.name);
    let others: Vec<_> = table::rows().filter(is_other).map(shown).collect();
    if !others.is_empty() {
        tracing::warn!("these settings have changed and need a restart: {}", others.join(", "));
    }
    tracing::info!("callers and policies are reloaded");
}

/// Opens the audit file, if the settings name one, and logs its last line: an operator who records that
/// elsewhere can tell later whether the file was replaced.
fn audit_of(config: &Config) -> io::Result<Option<Audit>> {
    let Some(path) = &config.audit_file else { return Ok(None) };
    let rotation = Rotation { max_bytes: config.audit_max_size, max_total: config.audit_max_total };
    let key = config.server_key.as_ref();
    let audit = Audit::open(path, rotation, config.audit_refused, key).map_err(io::Error::other)?;
    let last = audit.last();
    tracing::info!(file = %path.display(), line = last.seq, hash = %last.hash, "audit file begins");
    Ok(Some(audit))
}

/// Stops the server after a signal to end. If other servers take its place, it first continues for [`DRAIN`], until the
/// load balancer has learned that it ends, and then waits for remaining runs, for at most the shutdown timeout.
async fn end_when(told: CancellationToken, stop: CancellationToken, sessions: Sessions) {
    told.cancelled().await;
    if sessions.config().peer_address.is_some() {
        tracing::info!("server is shutting down");
        sessions.host().announce_end();
        sleep(DRAIN).await;
        let until = Instant::now() + sessions.config().shutdown_timeout;
        while sessions.host().is_busy() && Instant::now() < until {
            sleep(POLL_INTERVAL).await;
        }
    }
    stop.cancel();
}

/// Logs what is served, how and where.
fn tell_of_serving(config: &Config, listener: &Listener, base: &str) {
    let version = env!("CARGO_PKG_VERSION");
    let (engine, why) = (config.engine.as_str(), config.engine_reason.as_deref());
    let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let (settings, env_file) = (shown(&config.file), shown(&config.env_file));
    let aliases = config.given.values().filter_map(|given| match given.source {
        Source::Alias(name) => Some(name),
        _ => None,
    });
    let aliases = aliases.collect::<Vec<_>>().join(" ");
    let aliases = (!aliases.is_empty()).then_some(aliases);
    let address = listener.address();
    match config.transport {
        Transport::Stdio => {
            tracing::info!(
                version,
                engine,
                why,
                files = base,
                settings,
                env_file,
                aliases,
                "serving MCP on stdio"
            );
        }
        // Clients elsewhere reach the server by names that are not known here.
        Transport::Http if config.public_url.is_none() && address.ip().is_unspecified() => {
            tracing::info!(version, engine, why, %address, settings, env_file, aliases, "serving MCP on HTTP");
        }
        Transport::Http => {
            let (url, page) = (format!("{base}/mcp"), format!("{base}/"));
            tracing::info!(
                version,
                engine,
                why,
                url,
                page,
                settings,
                env_file,
                aliases,
                "serving MCP on HTTP"
            );
        }
    }
    if !config.requires_auth() {
        tracing::warn!(
            "everybody on this machine has access: set SANDBOX_AUTH_TOKENS or SANDBOX_AUTH_TOKENS_FILE to require \
             tokens"
        );
    }
    if let Some(address) = config.peer_address {
        tracing::info!(%address, "sharing callers with other servers");
    }
    if config.transport == Transport::Http {
        if let Some(from) = &config.tokens_from {
            tracing::info!(
                "{} (with Docker Compose: `docker compose exec sandbox llm-sandbox token`)",
                how_to_print(from)
            );
        }
        if config.export_dir.is_some() || !config.upload_roots.is_empty() {
            tracing::warn!(
                "SANDBOX_EXPORT_DIR and SANDBOX_UPLOAD_ROOTS are ignored: they apply to stdio only"
            );
        }
    }
    tell_of_ignored(config);
    if config.engine == Engine::Local {
        tracing::warn!("programs run as plain processes of this machine: NOTHING IS ISOLATED");
    }
}

/// Why a server over HTTP must not start: it cannot check access tokens, or has no tokens, but a variable without effect
/// that was meant to set some.
fn is_open_by_mistake(config: &Config) -> Option<String> {
    if config.oauth().is_some() && !cfg!(feature = "oauth") {
        return Some(
            "this program was built without OAuth (SANDBOX_OAUTH_ISSUER): build it with \
             `cargo build --release --features oauth`, or use the server's image"
                .into(),
        );
    }
    if config.requires_auth() {
        return None;
    }
    config.misspelt.iter().find(|it| it.is_of_tokens()).map(|Misspelt { name, meant }| {
        format!(
            "the settings cannot be used:\n  {name}: has no effect, and without a token everybody on this machine \
             has access. Set {meant} to me:TOKEN instead, or unset {name}"
        )
    })
}

/// Logs which variables have no effect although they are set.
fn tell_of_ignored(config: &Config) {
    for Misspelt { name, meant } in &config.misspelt {
        tracing::warn!("{name} has no effect: here it is called {meant}");
    }
    if config.transport == Transport::Stdio && config.oauth_issuer.is_some() {
        tracing::warn!("SANDBOX_OAUTH_ISSUER is ignored: access tokens are for MCP over HTTP");
    }
    for why in config.remarks.iter().cloned().chain(fuel_is_ignored(config)) {
        tracing::warn!("{why}");
    }
    if let Some((why, fix)) = config.why_not_preloaded() {
        tracing::warn!("{why}. {fix}");
    }
}

/// Why a limit of instructions has no effect, if one is set and no engine counts them.
pub(super) fn fuel_is_ignored(config: &Config) -> Option<String> {
    let counts = !config.has_sessions() || config.engine == Engine::Wasm;
    (config.fuel.is_some() && !counts).then(|| {
        format!(
            "SANDBOX_FUEL has no effect: only the embedded engine (SANDBOX_ENGINE=wasm) counts instructions, and \
             sandboxes are made by {}",
            config.engine.as_str()
        )
    })
}

/// Logs the operator's own tools, and a warning if the settings ask for some and there are none.
fn tell_of_own(config: &Config, own: Option<&OwnTools>) {
    let Some(own) = own else {
        if !config.has_sessions() {
            tracing::warn!(
                "no tools are offered: SANDBOX_TOOLSETS is own, and SANDBOX_TOOLS_FILE names no tools"
            );
        }
        return;
    };
    let (file, names) = (own.path().display(), own.names());
    if names.is_empty() {
        tracing::warn!(%file, "no tools of your own are defined yet");
    } else {
        tracing::info!(%file, "tools of your own: {}", names.join(", "));
    }
}
