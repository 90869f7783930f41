//! The protocol between the server and the agent, PID 1 of every sandbox.
//!
//! One byte stream in each direction carries frames ([`frame`]). The server sends requests, each
//! under a call id of its own; the agent answers every request with exactly one reply or failure
//! under the same id, in any order ([`message`]). There are few verbs and they know only programs
//! and files: sessions, URLs and MIME types are the server's business.
//!
//! ```text
//! server                          agent
//!   Hello{version} ------------->        both speak first; a peer of another
//!          <------------- Hello{version} version is refused, not guessed at
//!   Run(7){..} code ------------->
//!   Get(8){path,..} ------------->
//!          <------------ Reply(8){stamp} bytes
//!          <------------ Reply(7){end, exit, ..} output
//! ```
//!
//! The server never trusts what comes back: user code and the agent share a trust domain, so every
//! length is checked before anything is allocated.

pub mod frame;
pub mod limits;
pub mod message;
