//! The phase of a session, in one word.

/// The phase of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// The sandbox is being started.
    #[default]
    Starting,
    /// The sandbox waits in the pool, or is being started for it. The session has no caller yet.
    Pooled,
    /// No run is in progress.
    Idle,
    /// A program is running.
    Running,
    /// The session was unused for so long that it has freed the memory that makes runs start warm.
    Hibernating,
}

impl Phase {
    /// The documented word for callers. An idle and a hibernating session have the same word, as callers see no
    /// difference.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting | Self::Pooled => "starting",
            Self::Running => "running",
            Self::Idle | Self::Hibernating => "idle",
        }
    }

    /// The documented word for operators, who see which sessions have freed their memory.
    pub(crate) fn for_operators(self) -> &'static str {
        if self == Self::Hibernating { "resting" } else { self.as_str() }
    }
}
