//! The values of settings as they were given, each with its place.

use std::{fmt, path::PathBuf};

/// A value that was given for a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The value, as it would be written.
    pub text: String,
    /// The place.
    pub source: Source,
}

/// The place where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// No place: the value follows from other settings.
    Others,
    /// This option of the command line.
    Flag(&'static str),
    /// The setting's variable in the environment.
    Environment,
    /// This variable, under which other programs know the setting.
    Alias(&'static str),
    /// The file of variables at this absolute path.
    EnvFile(PathBuf),
    /// The settings file.
    File {
        /// Its absolute path.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Others => f.write_str("follows from other settings"),
            Self::Flag(name) => f.write_str(name),
            Self::Environment => f.write_str("environment"),
            Self::Alias(name) => write!(f, "environment, as {name}"),
            Self::EnvFile(path) => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
        }
    }
}
