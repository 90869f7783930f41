//! Where log lines go: stderr and a file. Never to stdout, which is the protocol's.

use std::{
    env,
    ffi::OsString,
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::config::{Config, LogFile, LogFormat};

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Where the file is if the settings do not say.
pub(super) enum Usual {
    /// `logs/sandbox.log` where the program was started.
    WorkingFolder,
    /// Among the files that programs keep for their user.
    UsersState,
}

/// Starts logging, until what is returned is dropped. A file that cannot be written is said so on
/// stderr and done without: a server may well be started in a folder that it must not write to.
///
/// Lines are written by threads of their own, which drop them when they cannot keep up: a client
/// that does not read stderr must not stop the server.
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
    // Libraries speak up only for what is wrong; below that they log whole messages. rmcp warns of
    // every error that it sends, with what its client asked for, and takes a client that goes away for
    // a fault.
    let level = config.log_level;
    let filter = EnvFilter::new(format!("warn,rmcp=error,rmcp::service=off,llm_sandbox={level}"));
    let _ = tracing_subscriber::registry().with(layers).with(filter).try_init();
    if let Some((path, error)) = failed {
        tracing::warn!(path = %path.display(), %error, "no log file");
    } else if file.is_none() && config.log_file == LogFile::Usual {
        tracing::debug!("no log file: neither XDG_STATE_HOME nor HOME is an absolute path");
    }
    guards
}

/// Access to the log's folder and file where they have to be made, before the umask.
type Modes = (u32, u32);

const ORDINARY: Modes = (0o777, 0o666);

/// Names of sessions are nobody else's business on a machine that others use.
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

/// Where a user's programs keep what is neither settings nor documents: the XDG base directory
/// specification has it so, in which a relative path is as good as none. macOS has a folder for logs.
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
