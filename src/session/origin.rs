//! How a session began on this server.

/// How a session began on this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Its sandbox was started for it.
    New,
    /// Its sandbox waited in the pool, or still waits there.
    Pooled,
    /// It resumed from the sandbox that an earlier server saved in the state folder.
    Woken,
    /// Its sandbox, which waited for another server, was taken over.
    Resumed,
    /// It was restored from the archive.
    Restored,
}

impl Origin {
    /// Whether it continues a session that its caller knows.
    pub(crate) fn continues(self) -> bool {
        match self {
            Self::Woken | Self::Resumed | Self::Restored => true,
            Self::New | Self::Pooled => false,
        }
    }
}
