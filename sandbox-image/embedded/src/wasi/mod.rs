//! WASI preview 1 for guests: what they see of a world that is no more than files, clocks and chance.
//!
//! ```text
//! link    binds each function to wasmtime: the names of two generations
//! calls   what each of them does           --> files, and
//! process one guest's side: its descriptors, arguments, standard input, outputs
//! memory  the guest's memory, every address checked
//! ```
//!
//! There are no sockets, processes or signals. Nothing here touches anything of the host's but its clocks and
//! its source of random numbers.

mod calls;
mod link;
mod memory;
mod process;

pub(crate) use self::{
    link::{HasWorld, Stop, link},
    process::{Descriptors, Process},
};
