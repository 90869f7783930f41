//! What is promised to callers, through the real program. What is listed in `on_all!` is checked on
//! plain processes and again on containers; what needs containers is in a module `docker`.

#[path = "../support/mod.rs"]
pub mod support;

mod archive;
mod archives;
mod arguments;
mod artifacts;
mod audit;
mod auth;
mod base_url;
mod cells;
mod cli;
mod downloads;
mod errors;
mod eviction;
mod http;
mod images;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod local_files;
mod log;
mod metrics;
mod notebooks;
mod npm_packages;
mod outputs;
mod own_sessions;
mod own_tools;
mod packages;
mod protocol;
mod reading;
#[cfg(feature = "kubernetes")]
mod replicas;
mod resources;
mod runs;
mod sessions;
mod uploads;
mod viewer;
mod workspaces;
