//! How a session began on this server.

/// How a session began on this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The sandbox was started for the session.
    New,
    /// The sandbox waited in the pool, or still waits there.
    Pooled,
    /// The session resumed from the sandbox that an earlier server saved in the state folder.
    Woken,
    /// The sandbox, which waited for another server, was taken over.
    Resumed,
    /// The session was restored from the archive.
    Restored,
}

impl Origin {
    /// Whether the session continues one that its caller knows.
    pub(crate) fn continues(self) -> bool {
        match self {
            Self::Woken | Self::Resumed | Self::Restored => true,
            Self::New | Self::Pooled => false,
        }
    }
}
