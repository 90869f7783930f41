//! Where log lines go: stderr and a file. Never to stdout, which is the protocol's.

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
    sync::Arc,
};

use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::config::{Config, LogFormat};

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging. A file that cannot be written is said so on stderr and done without: a server
/// may well be started in a folder that it must not write to.
pub(super) fn start(config: &Config) {
    let mut layers = vec![layer(config, io::stderr)];
    let mut failed = None;
    if let Some(path) = &config.log_file {
        match open(path) {
            Ok(file) => layers.push(layer(config, Arc::new(file))),
            Err(error) => failed = Some((path, error)),
        }
    }
    // Libraries speak up only for what is wrong; below that they log whole messages. rmcp warns of
    // every error that it sends, with what its client asked for.
    let filter = EnvFilter::new(format!("warn,rmcp=error,llm_sandbox={}", config.log_level));
    let _ = tracing_subscriber::registry().with(layers).with(filter).try_init();
    if let Some((path, error)) = failed {
        tracing::warn!(path = %path.display(), %error, "no log file");
    }
}

fn layer(
    config: &Config,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
) -> BoxedLayer {
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
