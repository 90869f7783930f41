//! Values of settings that are one of a few, and how they are written.

use std::{path::PathBuf, str::FromStr};

/// Where a server's tokens are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokensFrom {
    /// `SANDBOX_AUTH_TOKENS` in the environment.
    Environment,
    /// `SANDBOX_AUTH_TOKENS` in the file of settings, an absolute path.
    EnvFile(PathBuf),
    /// The file that `SANDBOX_AUTH_TOKENS_FILE` names, an absolute path.
    TokensFile(PathBuf),
}

/// The file that log lines are written to, besides standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFile {
    /// Not set: the usual one of whoever writes it.
    Usual,
    /// This one.
    At(PathBuf),
    /// Set to nothing: none.
    None,
}

/// How clients speak to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Over standard input and output, each client with a server of its own.
    Stdio,
    /// Over HTTP, all of them with this one.
    Http,
}

/// What makes the sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Docker where it can be used, else the embedded engine where its runtime is installed.
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
    /// As it is written in the settings.
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

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Console,
    /// One JSON object a line.
    Json,
}

/// How tracebacks are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracebacks {
    /// With the frames that a model can do something about.
    Short,
    /// As the interpreter writes them.
    Full,
}

impl FromStr for Tracebacks {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "short" => Ok(Self::Short),
            "full" => Ok(Self::Full),
            _ => Err(()),
        }
    }
}

impl FromStr for Engine {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let all = [Self::Auto, Self::Docker, Self::Kubernetes, Self::Wasm, Self::Local];
        let named = all.into_iter().find(|engine| text.eq_ignore_ascii_case(engine.as_str()));
        named.ok_or("there is no such engine")
    }
}

impl FromStr for Transport {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "stdio" => Ok(Self::Stdio),
            "http" => Ok(Self::Http),
            _ => Err(()),
        }
    }
}

impl FromStr for LogFormat {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "console" => Ok(Self::Console),
            "json" => Ok(Self::Json),
            _ => Err(()),
        }
    }
}
