//! The protocol between the server and the agent, PID 1 of every sandbox.
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
//! The server never trusts the agent's frames: user code and the agent share a trust domain, so every length is checked
//! before anything is allocated.

pub mod frame;
pub mod limits;
pub mod message;
pub mod resume;
