//! The surroundings of a program.

/// What programs find around them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum World {
    /// A system with processes and threads. Its files stay as they are whatever becomes of variables.
    #[default]
    System,
    /// An interpreter alone. A stop takes back all that it holds, files included.
    Interpreter,
}
