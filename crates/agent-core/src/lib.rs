//! The part of an agent that is the same wherever programs run: it answers the verbs of the protocol, checks each run,
//! and puts together its reply.
//!
//! It starts no program and opens no file. The two agents (a container's PID 1, and the process of the embedded engine)
//! implement its two traits: [`Frontend`] for requests that are answered at once, and [`Runner`] for those that are
//! carried out one after another. Each verb is a method of one of them, so that an agent without an ability must say so
//! in its own words.
//!
//! ```text
//! main thread     frames in -> Dispatcher -- files, lists, outputs, pings, peeks, kills --> Frontend --> replies
//!                                  |
//!                                  v Order
//! runner thread   one order after another: runs, cells, variables, memory --> Runner --> replies
//!
//! a question      of a program, sent to the server and answered by it: [`Asks`]
//!
//! a summary       given up, by its switch, when an order comes that a caller waits for
//!
//! a run           idle -- Run --> in progress -- its reply is about to be sent --> idle
//!                                    | Kill throws its switch, Peek reads its outputs,
//!                                    ' and requests that need an idle interpreter fail with Busy
//! ```

#![expect(
    clippy::missing_errors_doc,
    reason = "a failure is what the protocol says, and any other error means that the stream is lost"
)]

mod asks;
mod dispatch;
mod runner;
mod summary;

pub use self::{
    asks::{Asks, Then},
    dispatch::{Dispatcher, Frontend, Orders, Outlet, Replies, greet, next_frame, parse},
    runner::{Ended, Job, Order, Runner, Seen, Settings, Switch},
    summary::{Summarizing, no_summary},
};
