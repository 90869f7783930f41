//! A self-hosted server that gives a language model a computer with which it cannot harm anything.
//!
//! A client speaks the Model Context Protocol to it; each session gets a sandbox of its own without a network, in which
//! the model runs code; a person downloads the files.
//!
//! ```text
//! mcp, http, cli        edges: parse, render, nothing else
//!      |
//!  sessions -- pool     the registry: find, start, close; sandboxes that are started in advance
//!      |
//!   session             one task each; its rules are pure
//!      |
//!    link ----- backend one byte stream to the agent, and a notice of its death
//! - - -|- - - - - - - - - - - - - - - - - - - - - - - - - - - trust ends here
//!    agent              PID 1 of the container (its own crate, crates/agent), or the embedded engine's
//! ```

pub mod archive;
mod audit;
mod auth;
pub mod backend;
mod budget;
pub mod cli;
pub mod config;
pub mod content;
pub mod error;
mod export;
mod heap;
pub mod http;
pub mod link;
mod listing;
pub mod mcp;
mod metrics;
mod notes;
mod own_tools;
mod packages;
pub mod peers;
mod picture;
pub mod progress;
mod request;
mod secret_file;
pub mod server_key;
pub mod session;
pub mod sessions;
pub mod signed_urls;
mod trace;
