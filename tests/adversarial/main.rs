//! Whoever means harm, on either side: callers that send anything, agents that lie, and both that
//! fall silent or go away in the middle.

/// Shared with the tests of the decoder.
#[path = "../../crates/protocol/tests/changes/mod.rs"]
pub mod changes;
pub mod double;

mod exhaustion;
mod gone_caller;
mod hostile_arguments;
mod hostile_stream;
mod lying_agent;
mod lying_exports;
mod slow_uploads;
