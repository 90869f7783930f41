//! Promises to callers, checked with the real program. Tests in `on_all!` run on each engine, in a module with the
//! engine's name; tests for containers alone are in a module `docker_only`.

mod archive;
mod archives;
mod arguments;
mod artifacts;
mod audit;
mod auth;
mod base_url;
mod callers;
mod cells;
mod cli;
mod downloads;
mod errors;
mod eviction;
mod http;
mod http_answers;
mod images;
mod kubernetes;
mod local_files;
mod log;
mod metrics;
mod notebooks;
mod npm_packages;
mod operators;
mod own_sessions;
mod own_tools;
mod packages;
mod protocol;
mod reading;
mod replicas;
mod resources;
mod runs;
mod sessions;
mod uploads;
mod viewer;
mod workspaces;
