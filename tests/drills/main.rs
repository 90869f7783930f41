//! Drills on real engines: limits, hardening, the pool, the fork server, engines that die.

mod behaviours;
mod cluster;
mod conformance;
mod containers;
mod disk;
mod embedded;
mod engine;
mod fork_server;
mod habits;
mod hold;
mod libraries;
mod limits;
mod notebook_cells;
mod packages;
mod pool;
mod relay;
mod semantics;
mod shadow;
mod snippets;
mod users;
mod wasm_disk;
