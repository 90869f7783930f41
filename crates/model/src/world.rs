//! The surroundings of a program.

use serde::{Deserialize, Serialize};

/// The kind of environment in which a program runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum World {
    /// A system with processes and threads. The files stay if variables are lost.
    #[default]
    System,
    /// An interpreter alone. If a run is stopped, everything is rolled back, files included.
    Interpreter,
}
