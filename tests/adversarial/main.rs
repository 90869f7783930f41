//! Hostile callers and hostile agents: callers that send anything, agents that lie, and both kinds that fall silent or
//! leave in the middle.

/// Changes of streams, shared with the tests of the decoder.
#[path = "../../crates/protocol/tests/changes/mod.rs"]
pub mod changes;
pub mod double;

mod exhaustion;
mod gone_caller;
mod hostile_arguments;
mod hostile_stream;
mod lying_agent;
mod lying_exports;
mod lying_questions;
mod slow_uploads;
