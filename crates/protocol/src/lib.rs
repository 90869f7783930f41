//! The protocol between the server and the agent of a sandbox: PID 1 of a container, or the
//! embedded engine's process.
//!
//! One byte stream in each direction carries frames ([`frame`]). The server sends requests, each
//! under a call id of its own; the agent answers every request with exactly one reply or failure under the same id, in
//! any order ([`message`]). There are few verbs and they know only programs and files: the server alone knows sessions,
//! URLs and MIME types.
//!
//! ```text
//! server                          agent
//!   Hello{version} ------------->        the agent sends nothing before it gets a hello, so
//!          <------------- Hello{version} that a stream that is attached late loses nothing
//!   Run(7){..} code ------------->
//!   Get(8){path,..} ------------->
//!          <------------ Reply(8){stamp} bytes
//!          <------------ Reply(7){end, exit, ..} output
//! ```
//!
//! Each side refuses a peer of another version at its hello. An agent answers the hello of any version before it ends,
//! so that the server can say what is wrong; if an agent speaks first, the server knows that it is of protocol 3 or
//! older.
//!
//! If its server asked for it, a sandbox outlives its stream for a while, and continues with another ([`resume`]).
//!
//! # How to add a verb
//!
//! Here:
//!
//! 1. `frame.rs`: a number in `kinds!`. Raise [`PROTOCOL_VERSION`](frame::PROTOCOL_VERSION): an agent ends if it does
//!    not know a verb, and its session with it. With a new version an older image is refused instead, and the error
//!    names the command that builds it again.
//! 2. `message/`: a request and its reply with units and limits, and a line in `requests!`, which ties them.
//! 3. Tests: golden frames of both in `tests/wire.rs`; two lines `steady::<…>` in `fuzz/src/lib.rs`, and a file in
//!    `fuzz/corpus/stream/`.
//!
//! The agents: an arm in `answer` of `crates/agent-core/src/dispatch.rs`, which calls a method of `Frontend` or of
//! `Runner`. Both agents implement it; an agent that cannot do it answers with a failure. Code that touches only files
//! belongs in `crates/sandbox-files`, so that an agent without processes has it, too.
//!
//! The server: a typed call in `crates/link`, which checks the reply; a file in `src/session/operations/` with a type
//! that implements `Operation`, exported there and in `src/sessions/mod.rs`. `list.rs` is a short example, `open.rs` one
//! with a path. The type contains the call, the meaning of its failures for a caller, and its effect on the session
//! (`Done::unchanged`, or an `Effect` if a file was added). A tool requests it with
//! `call.services.sessions.perform(&id, operation)`.
//!
//! The tests' agents: an arm in `honestly` and a call in `use_all_of` (`tests/adversarial/double.rs`), and lies about
//! the verb in `lying_agent.rs`.
//!
//! # Trust
//!
//! The server never trusts the agent's frames: user code and the agent share a trust domain, so every length is checked
//! before anything is allocated.

pub mod frame;
pub mod limits;
pub mod message;
pub mod resume;
