//! What a session is doing, in one word.

/// What a session is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Its sandbox is being started.
    #[default]
    Starting,
    /// Its sandbox waits in the pool, or is being started for it: nobody's session yet.
    Pooled,
    /// Nothing.
    Idle,
    /// A program is running.
    Running,
    /// Nothing, for so long that it has given up what makes runs start warm.
    Hibernating,
}

impl Phase {
    /// The documented word, as callers read it: whether an idle session hibernates makes no difference
    /// to them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting | Self::Pooled => "starting",
            Self::Running => "running",
            Self::Idle | Self::Hibernating => "idle",
        }
    }
}
