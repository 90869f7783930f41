//! The embedded engine: an agent that speaks the same protocol as a container's, in a process of its own, and
//! interprets Python and JavaScript as WebAssembly.
//!
//! It starts no process of the user's, opens no file of the host for a guest except those of datasets, and has no
//! network. It does not outlive its stream; instead it can be saved and restored. `agent-core` dispatches the verbs of
//! the protocol to it.
//!
//! ```text
//! install  packages -> a folder: compiled code, files, images         once, before the first sandbox
//! agent    reads frames; answers requests for files, lists, pings itself
//!          '- runner  one run after another
//!               machine   an instance and the limits of its calls     --> wasi --> files
//!               state     the state of a guest between two calls, for rollbacks and for saving
//! tool     calls of one program of the operator, each in a new instance           a process of its own
//!
//! states   opening files --> locked down --> restoring the saved sandbox --> ready --> saved, end
//!                                                (only pings and warming)
//! ```
//!
//! Each sandbox has one process. Before it reads its first frame, it opens everything that it needs, and then gives up
//! the right to open anything else except files of datasets.

mod agent;
mod declarations;
mod files;
mod install;
mod javascript;
mod kept;
mod lockdown;
mod machine;
mod memory;
mod module;
mod python;
mod random;
mod runtime;
mod state;
mod tool;
mod wasi;

use std::{
    hash::{Hash, Hasher},
    io,
    path::PathBuf,
};

use sha2::{Digest, Sha256};
use thiserror::Error;

pub use self::{
    agent::{Settings, agent},
    files::check_dataset,
    install::{Sources, Step, install},
    kept::{is_kept, truncate_unkept},
    runtime::{Description, describe},
    tool::{ToolSettings, compile_tool, tool_agent, tool_key},
};

/// An error of a runtime or of a tool's module.
#[derive(Debug, Error)]
pub enum Error {
    /// A module is not as expected.
    #[error("a module cannot be used: {0}")]
    Module(String),
    /// A package is not as expected.
    #[error("{0} cannot be used: {1}")]
    Package(PathBuf, String),
    /// An interpreter has not started.
    #[error("{0} does not start: {1}")]
    Start(&'static str, String),
    /// The runtime was made by another version of this program, or for another processor.
    #[error("it was made by another version of this program, or for another processor")]
    Outdated,
    /// A file of the runtime is damaged.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A message of the engine.
    #[error("the engine cannot use it: {0}")]
    Engine(String),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
}

impl From<wasmtime::Error> for Error {
    fn from(error: wasmtime::Error) -> Self {
        Self::Engine(format!("{error:#}"))
    }
}

/// The key of a runtime, 16 hexadecimal digits. It changes with the engine and its settings, the processor, and our
/// sources in the interpreters' images.
pub fn key() -> String {
    let sources: Vec<_> = python::SOURCES.into_iter().chain(javascript::SOURCES).collect();
    engine_key(sources.join("\0").as_bytes())
}

/// A key that changes with the engine and its settings, the processor, and `more`.
fn engine_key(more: &[u8]) -> String {
    key_of(machine::engine(), more)
}

fn key_of(engine: wasmtime::Result<wasmtime::Engine>, more: &[u8]) -> String {
    struct Hash(Sha256);

    impl Hasher for Hash {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }

    let mut hash = Hash(Sha256::new());
    if let Ok(engine) = engine {
        engine.precompile_compatibility_hash().hash(&mut hash);
    }
    hash.write(more);
    hex::encode(&hash.0.finalize()[..8])
}
