//! Tools: programs for WASI that an operator provides. Each call runs one once.
//!
//! ```text
//! compile  a module -> code for this processor               before the first call, while files can be written
//! serve    reads calls, writes replies; each call on a       in a process of its own for each tool
//!          thread, in a new instance, with its own files
//! ```
//!
//! A program has access to the input of its call, and to the host's folders that its definition names, as they were
//! when its process started. The process gives up all rights before it reads its first call.

mod compile;
mod serve;

pub use self::{
    compile::{compile_tool, tool_key},
    serve::{ToolSettings, tool_agent},
};
