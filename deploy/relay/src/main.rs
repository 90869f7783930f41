//! `llm-sandbox-relay`: the process that has the engine's socket in place of the server.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use llm_sandbox_relay::{LogFormat, Relay, Settings, is_answered};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Forwards a server's requests to its Docker engine, so that the server need not hold the engine's socket:
/// those that a server with these settings makes, and nothing else.
///
/// Settings are environment variables, the same as the server's, and the file that SANDBOX_CONFIG_FILE names; those
/// that are the server's alone are passed over.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    /// Socket to listen on, for the server's DOCKER_HOST=unix://...
    #[arg(long, value_name = "SOCKET")]
    listen: PathBuf,

    /// The engine's own socket.
    #[arg(long, value_name = "SOCKET", default_value = "/var/run/docker.sock")]
    engine: PathBuf,

    /// Folder for files that Podman reads: a private one, which it sees by the same path. Docker needs none.
    #[arg(long, value_name = "FOLDER", default_value_os_t = sandbox_container::folder_for_engine())]
    files: PathBuf,

    /// Ask the relay that listens there whether its engine answers, instead of starting one: exit code 0 or 1.
    #[arg(long)]
    health: bool,
}

/// Exit code for bad arguments or settings (`EX_USAGE`).
const EXIT_USAGE: u8 = 64;

/// Exit code when the machine lacks what is needed (`EX_UNAVAILABLE`).
const EXIT_UNAVAILABLE: u8 = 69;

/// Time limit for the answer to a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    if cli.health {
        return health(&cli).await;
    }
    // A name that is not UTF-8 is not that of a setting; a value that is not UTF-8 is not valid for one.
    let vars = std::env::vars_os();
    let vars = vars.filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    });
    let in_file = std::env::var_os(config::CONFIG_FILE).filter(|path| !path.is_empty());
    let in_file = in_file.map_or(Ok(vec![]), |path| {
        let path = PathBuf::from(path);
        let values = config::variables_in(&path);
        values.map_err(|error| vec![format!("{}: {error}", path.display())])
    });
    let settings = match in_file.and_then(|values| Settings::parse(values.into_iter().chain(vars)))
    {
        Ok(settings) => settings,
        Err(mistakes) => {
            eprintln!(
                "llm-sandbox-relay: the settings cannot be used:\n  {}",
                mistakes.join("\n  ")
            );
            return EXIT_USAGE.into();
        }
    };
    log(&settings);
    let relay = Relay::bind(settings, &cli.engine, &cli.listen, &cli.files);
    match stop_signal().and_then(|stop| Ok((stop, relay?))) {
        Ok((stop, relay)) => {
            let (socket, engine) = (cli.listen.display(), cli.engine.display());
            tracing::info!(%socket, %engine, "relaying to the engine");
            relay.serve(stop).await;
            tracing::info!("relay ended");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!(socket = %cli.listen.display(), %error, "relay failed");
            EXIT_UNAVAILABLE.into()
        }
    }
}

async fn health(cli: &Cli) -> ExitCode {
    let why = match timeout(HEALTH_TIMEOUT, is_answered(&cli.listen)).await {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".into(),
    };
    eprintln!("llm-sandbox-relay: {}: {why}", cli.listen.display());
    ExitCode::FAILURE
}

/// Starts the log on standard error. Libraries log only warnings and errors.
fn log(settings: &Settings) {
    let targets = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("llm_sandbox_relay", settings.log_level);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    let layer = match settings.log_format {
        LogFormat::Console => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_target(false).boxed(),
    };
    let _ = tracing_subscriber::registry().with(layer.with_filter(targets)).try_init();
}

/// Returns a token that SIGINT or SIGTERM cancels.
fn stop_signal() -> std::io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        stopped.cancel();
    });
    Ok(stop)
}
