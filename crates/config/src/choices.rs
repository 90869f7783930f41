//! Settings with a few possible values, and how these are written.

use std::{path::PathBuf, str::FromStr};

/// The source of a server's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokensFrom {
    /// `SANDBOX_AUTH_TOKENS` in the environment, or an option of the command line.
    Environment,
    /// `SANDBOX_AUTH_TOKENS` in the file of variables, an absolute path.
    EnvFile(PathBuf),
    /// `auth.tokens` in the settings file, an absolute path.
    File(PathBuf),
    /// The file that `SANDBOX_AUTH_TOKENS_FILE` names, an absolute path.
    TokensFile(PathBuf),
}

/// The file that log lines are written to, besides standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFile {
    /// Not set: the default of the command.
    Usual,
    /// The file at this path.
    At(PathBuf),
    /// Set to an empty value: no file.
    None,
}

/// How clients speak to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Over standard input and output, with one server for each client.
    Stdio,
    /// Over HTTP, with one server for all clients.
    Http,
}

/// The engine that runs the sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Docker if it can be used, otherwise the embedded engine if its runtime is installed.
    Auto,
    /// Containers of a Docker engine.
    Docker,
    /// Pods of a Kubernetes cluster.
    Kubernetes,
    /// The embedded engine: processes of this program that interpret WebAssembly.
    Wasm,
    /// Plain processes, which isolates nothing: for tests.
    Local,
}

impl Engine {
    /// The name in the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Docker => "docker",
            Self::Kubernetes => "kubernetes",
            Self::Wasm => "wasm",
            Self::Local => "local",
        }
    }
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people to read.
    Console,
    /// One JSON object a line.
    Json,
}

/// The format of tracebacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracebacks {
    /// Only with frames that are useful to a model.
    Short,
    /// As the interpreter writes them.
    Full,
}

/// The choice with this name, in any case.
fn named<T: Copy>(text: &str, all: &[(&str, T)]) -> Option<T> {
    all.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, choice)| *choice)
}

impl FromStr for Tracebacks {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        named(text, &[("short", Self::Short), ("full", Self::Full)]).ok_or(())
    }
}

impl FromStr for Engine {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let all = [Self::Auto, Self::Docker, Self::Kubernetes, Self::Wasm, Self::Local];
        named(text, &all.map(|engine| (engine.as_str(), engine))).ok_or("there is no such engine")
    }
}

impl FromStr for Transport {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        named(text, &[("stdio", Self::Stdio), ("http", Self::Http)]).ok_or(())
    }
}

impl FromStr for LogFormat {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        named(text, &[("console", Self::Console), ("json", Self::Json)]).ok_or(())
    }
}
