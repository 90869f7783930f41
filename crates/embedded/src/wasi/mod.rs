//! WASI preview 1 for guests: files, clocks and random numbers.
//!
//! ```text
//! link    binds each function to wasmtime, under the names of two generations
//! calls   carries out the functions        --> files, and
//! paths   those that take paths            --> files
//! poll    the one that waits for events
//! process the state of one guest: its descriptors, arguments, standard input, outputs
//! memory  the guest's memory, with every address checked
//! ```
//!
//! The file `/dev/tools` passes questions to the server, and their answers back ([`link`]).
//!
//! There are no sockets, processes or signals. The functions use nothing of the host except its clocks and its source
//! of random numbers.

mod calls;
mod link;
mod memory;
mod paths;
mod poll;
mod process;

pub(crate) use self::{
    link::{HasWorld, Stop, ask, link},
    process::{Descriptors, Process},
};
