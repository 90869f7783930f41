//! Writes log lines to stderr and a file, never to stdout, which belongs to the protocol.

use std::{
    env,
    ffi::OsString,
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use config::{Config, LogFile, LogFormat};
use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt,
};

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The default log file.
pub(super) enum Usual {
    /// `logs/sandbox.log` in the working folder.
    WorkingFolder,
    /// A file in the user's folder for state.
    UsersState,
}

/// Starts logging, until the result is dropped. If the file cannot be opened, a warning says so and lines go
/// to stderr alone: a server may be started in a folder that it must not write to.
///
/// Separate threads write the lines, and drop lines if they cannot keep up: a client that does not read
/// stderr must not block the server.
#[must_use]
pub(super) fn start(config: &Config, usual: Usual) -> Vec<WorkerGuard> {
    let (stderr, guard) = tracing_appender::non_blocking(io::stderr());
    let mut layers = vec![layer(config, stderr)];
    let mut guards = vec![guard];
    let mut failed = None;
    let file = file(&config.log_file, usual);
    if let Some((path, modes)) = &file {
        match open(path, *modes) {
            Ok(file) => {
                let (file, guard) = tracing_appender::non_blocking(file);
                layers.push(layer(config, file));
                guards.push(guard);
            }
            Err(error) => failed = Some((path, error)),
        }
    }
    // Libraries log only warnings and errors: at lower levels they log whole messages. rmcp logs a warning with the
    // client's request for every error that it sends, and treats a client that disconnects as a fault.
    let level = config.log_level;
    let own = ["llm_sandbox", "backend", "config", "link"].map(|own| format!(",{own}={level}"));
    let filter = EnvFilter::new(format!("warn,rmcp=error,rmcp::service=off{}", own.concat()));
    let _ = tracing_subscriber::registry().with(layers).with(filter).try_init();
    if let Some((path, error)) = failed {
        tracing::warn!(path = %path.display(), %error, "failed to open the log file");
    } else if file.is_none() && config.log_file == LogFile::Usual {
        tracing::debug!("no log file: neither XDG_STATE_HOME nor HOME is an absolute path");
    }
    guards
}

/// Modes of the log's folder and file when they are created, before the umask.
type Modes = (u32, u32);

const ORDINARY: Modes = (0o777, 0o666);

/// Other users of the machine must not read the names of sessions.
const PRIVATE: Modes = (0o700, 0o600);

fn file(setting: &LogFile, usual: Usual) -> Option<(PathBuf, Modes)> {
    match (setting, usual) {
        (LogFile::None, _) => None,
        (LogFile::At(path), _) => Some((path.clone(), ORDINARY)),
        (LogFile::Usual, Usual::WorkingFolder) => Some(("logs/sandbox.log".into(), ORDINARY)),
        (LogFile::Usual, Usual::UsersState) => {
            let folder = state_folder(env::var_os("XDG_STATE_HOME"), env::var_os("HOME"))?;
            Some((folder.join("llm-sandbox/sandbox.log"), PRIVATE))
        }
    }
}

/// The folder for the state of a user's programs, by the XDG base directory specification, which says to
/// ignore relative paths. macOS has a folder for logs.
fn state_folder(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let usual = if cfg!(target_os = "macos") { "Library/Logs" } else { ".local/state" };
    state.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(usual)))
}

fn layer(config: &Config, writer: NonBlocking) -> BoxedLayer {
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    match config.log_format {
        LogFormat::Console => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_target(false).boxed(),
    }
}

fn open(path: &Path, (folder_mode, file_mode): Modes) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(folder_mode).create(folder)?;
    }
    OpenOptions::new().create(true).append(true).mode(file_mode).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_state_lies_where_xdg_has_it() {
        let folder = |state: Option<&str>, home: Option<&str>| {
            state_folder(state.map(Into::into), home.map(Into::into))
        };
        let below_home = |home: &str| {
            let usual = if cfg!(target_os = "macos") { "Library/Logs" } else { ".local/state" };
            Some(Path::new(home).join(usual))
        };
        assert_eq!(folder(Some("/state"), Some("/home/ann")), Some("/state".into()));
        for not_set in [None, Some(""), Some("state"), Some("./state")] {
            assert_eq!(folder(not_set, Some("/home/ann")), below_home("/home/ann"));
            for homeless in [None, Some(""), Some("ann")] {
                assert_eq!(folder(not_set, homeless), None);
            }
        }
    }

    #[test]
    fn a_file_that_the_settings_name_comes_before_the_usual_ones() {
        let path = |setting: &LogFile, usual| file(setting, usual).map(|(path, _)| path);
        for usual in [|| Usual::WorkingFolder, || Usual::UsersState] {
            assert_eq!(path(&LogFile::At("a/b.log".into()), usual()), Some("a/b.log".into()));
            assert_eq!(path(&LogFile::None, usual()), None);
        }
        let here = path(&LogFile::Usual, Usual::WorkingFolder);
        assert_eq!(here, Some("logs/sandbox.log".into()));
    }
}
