//! Tools: programs for WASI that an operator has brought, each call of which runs one once.
//!
//! ```text
//! compile  a module -> code for this processor               ahead of all, where it may be written
//! serve    calls in, replies out; each call on a thread      in a process of its own for each tool
//!                                  in a fresh instance, with files of its own
//! ```
//!
//! A program sees what its call gives it, and folders of the host's that its definition shows it, as they were when
//! its process started. The process has given up all rights before it reads its first call.

mod compile;
mod serve;

pub use self::{
    compile::{compile_tool, tool_key},
    serve::{ToolSettings, tool_agent},
};
