//! Tests that link the server and call its types: the registry of sessions, the artifact server with short limits,
//! links to agents, backends, and servers whose agents are in memory.

#[path = "../adversarial/double.rs"]
pub mod double;

mod cells {
    mod docker_only;
}
#[cfg(feature = "wasm")]
mod datasets;
mod downloads;
mod javascript;
mod kubernetes;
mod outputs;
mod relay;
mod roles;
mod saved;
mod scale;
mod sessions;
