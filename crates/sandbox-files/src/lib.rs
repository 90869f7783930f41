//! The files of a sandbox, and the outputs of its programs.
//!
//! This is the part of an agent that does not know processes. Every agent (a container's PID 1, the embedded engine's
//! process) answers the protocol's requests for files and outputs with it, so that quotas, paths and ranges mean the
//! same everywhere.
//!
//! ```text
//! files     pieces of files in and out, listings  --.
//! tree      lists of files, changes of files      --+-- beneath: never outside the folder
//! usage     the room that files take          --'
//! outputs   of one run  -- screen   the output as a terminal would show it
//!                       |- capture  its start and its end, in memory
//!                       '- kept     all of it, if it is long and there is room
//! ```

pub mod beneath;
pub mod capture;
pub mod facts;
pub mod files;
pub mod kept;
pub mod missing;
pub mod outputs;
pub mod python_errors;
pub mod screen;
pub mod tree;
pub mod usage;
pub mod watch;
