//! A self-hosted server that gives a language model a computer with which it cannot harm anything.
//!
//! A client speaks the Model Context Protocol to it; each session gets a sandbox of its own without a network, in which
//! the model runs code; a person downloads the files. This crate is the server. The agent, the program inside a
//! container that runs the code, is another (`crates/agent`); the two share only the crate [`protocol`].
//!
//! ```text
//!  cli                  reads settings, builds the parts below, waits for the end
//!   |
//!  mcp, http            edges: parse, render, nothing else
//!   |
//!  sessions -- pool     the registry: find, start, close; sandboxes that are started in advance
//!   |
//!  session              one task each; its rules are pure
//!   |
//!  link ------ backend  one byte stream to the agent, and a notice of its death
//! - | - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - trust ends here
//!  agent                PID 1 of the container, or the embedded engine's process
//! ```
//!
//! A module uses only modules below its own in this drawing; there are no cycles. `link` and `backend` are crates.
//!
//! - **Start here**: [`mcp::Server`] answers clients; [`sessions::Sessions::run`] runs a program in a session;
//!   [`backend::Backend`] is the trait of everything that makes sandboxes; [`link::Link`] has the calls to an agent.
//! - **Edges**: [`mcp`], [`http`]. Beside them: [`permissions`] (callers, their roles and policies), [`budget`] and [`request`] (memory of requests),
//!   [`signed_urls`], [`listing`] and [`export`] (files for people), [`own_tools`], [`trace`].
//! - **Sessions**: [`sessions`] (all of them), [`session`] (one), [`archive`] (restoring them later), [`marks`] (names
//!   that are not free yet), [`packages`], [`notes`] (sentences for models), [`picture`] (images for models).
//! - **Calls out of a sandbox**: [`upstream`], the client of the operator's own servers and services.
//! - **Sandboxes**: the crate [`backend`], with a module for each kind.
//! - **For the operator**: [`cli`], [`audit`], [`metrics`], the crate [`config`] (settings).
//! - **Values**: the crate [`model`]; [`error`] has every error that a caller can get.
//!
//! The output of a program, whatever it is, is a value ([`model::Outcome`]). `Err` means that the server could not do
//! what was asked. Nothing that comes out of a sandbox is trusted: [`link`] checks each reply.
//!
//! `docs/architecture.md` has the path of a run, file by file, the states of a session, and the steps to add a tool, a
//! backend, a runtime, a setting or a note.

pub mod archive;
mod audit;
mod budget;
mod calls;
pub mod cli;
pub mod content;
pub mod error;
mod export;
mod heap;
pub mod http;
mod listing;
mod marks;
pub mod mcp;
mod metrics;
mod notes;
mod oauth;
mod own_tools;
mod packages;
pub mod peers;
mod permissions;
mod picture;
pub mod progress;
mod request;
pub mod session;
pub mod sessions;
pub mod signed_urls;
mod structure;
mod summary;
mod trace;
pub mod upstream;
