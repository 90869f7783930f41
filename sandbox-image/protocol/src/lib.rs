//! The protocol between the server and the agent, PID 1 of every sandbox.
//!
//! One byte stream in each direction carries frames ([`frame`]). The server sends requests, each
//! under a call id of its own; the agent answers every request with exactly one reply or failure
//! under the same id, in any order ([`message`]). There are few verbs and they know only programs
//! and files: sessions, URLs and MIME types are the server's business.
//!
//! ```text
//! server                          agent
//!   Hello{version} ------------->        the agent says nothing before it is spoken to, so
//!          <------------- Hello{version} that a stream that is attached late has lost nothing
//!   Run(7){..} code ------------->
//!   Get(8){path,..} ------------->
//!          <------------ Reply(8){stamp} bytes
//!          <------------ Reply(7){end, exit, ..} output
//! ```
//!
//! Each side refuses a peer of another version at its hello, and guesses at nothing. An agent answers
//! the hello of any version before it ends, so that the server can say what is wrong; to a server, an
//! agent that speaks first is one of protocol 3 or older.
//!
//! A sandbox whose server asked for it outlives its stream for a while, and goes on with another ([`resume`]).
//!
//! The server never trusts what comes back: user code and the agent share a trust domain, so every
//! length is checked before anything is allocated.

pub mod frame;
pub mod limits;
pub mod message;
pub mod resume;
