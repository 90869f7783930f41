//! Where log lines go: stderr and a file. Never to stdout, which is the protocol's.

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
};

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::config::{Config, LogFormat};

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging, until what is returned is dropped. A file that cannot be written is said so on
/// stderr and done without: a server may well be started in a folder that it must not write to.
///
/// Lines are written by threads of their own, which drop them when they cannot keep up: a client
/// that does not read stderr must not stop the server.
#[must_use]
pub(super) fn start(config: &Config) -> Vec<WorkerGuard> {
    let (stderr, guard) = tracing_appender::non_blocking(io::stderr());
    let mut layers = vec![layer(config, stderr)];
    let mut guards = vec![guard];
    let mut failed = None;
    if let Some(path) = &config.log_file {
        match open(path) {
            Ok(file) => {
                let (file, guard) = tracing_appender::non_blocking(file);
                layers.push(layer(config, file));
                guards.push(guard);
            }
            Err(error) => failed = Some((path, error)),
        }
    }
    // Libraries speak up only for what is wrong; below that they log whole messages. rmcp warns of
    // every error that it sends, with what its client asked for, and takes a client that goes away for
    // a fault.
    let level = config.log_level;
    let filter = EnvFilter::new(format!("warn,rmcp=error,rmcp::service=off,llm_sandbox={level}"));
    let _ = tracing_subscriber::registry().with(layers).with(filter).try_init();
    if let Some((path, error)) = failed {
        tracing::warn!(path = %path.display(), %error, "no log file");
    }
    guards
}

fn layer(config: &Config, writer: NonBlocking) -> BoxedLayer {
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    match config.log_format {
        LogFormat::Console => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_target(false).boxed(),
    }
}

fn open(path: &Path) -> io::Result<fs::File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}
