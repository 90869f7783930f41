//! What a sandbox holds for its user: files, and the outputs of programs.
//!
//! All of an agent that knows no processes. Whatever runs programs (a container's PID 1, an
//! interpreter of its own) answers the protocol's requests for files and outputs with this, so that
//! quotas, paths and ranges mean the same everywhere.
//!
//! ```text
//! files     pieces of files in and out, listings  --.
//! tree      what there is, what has changed       --+-- beneath: never outside the folder
//! outputs   of one run  -- screen   what a terminal would show of it
//!                       |- capture  the ends of that, in memory
//!                       '- kept     the whole of that, if it is long and there is room
//! ```

pub mod beneath;
pub mod capture;
pub mod facts;
pub mod files;
pub mod kept;
pub mod outputs;
pub mod python_errors;
pub mod replies;
pub mod screen;
pub mod tree;
pub mod watch;
