//! A session's key, its own settings, and the reason why it was lost.

use std::time::Duration;

use protocol::message::RuntimeName;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Principal, SessionId};

/// The key under which a session is saved or archived: a hash of its caller's name and its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionKey(String);

impl SessionKey {
    /// The key of this caller's session of this name.
    pub fn of(caller: &Principal, session: &SessionId) -> Self {
        Self::hashed(caller, 0, session)
    }

    /// The key of this caller's workspace of this name.
    pub fn of_workspace(caller: &Principal, name: &SessionId) -> Self {
        Self::hashed(caller, 1, name)
    }

    fn hashed(caller: &Principal, kind: u8, name: &SessionId) -> Self {
        let mut hash = Sha256::new();
        hash.update(caller.name());
        hash.update([kind]);
        hash.update(name.as_str());
        Self(hex::encode(&hash.finalize()[..16]))
    }

    /// Parses a key; `None` if it is not valid.
    pub fn parse(text: &str) -> Option<Self> {
        let key = Self(text.to_owned());
        key.is_valid().then_some(key)
    }

    /// Whether the key is valid: a deserialized key may be anything.
    pub fn is_valid(&self) -> bool {
        self.0.len() == 32 && self.0.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Settings of a session that replace the server's, and never exceed them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnSettings {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Size of the data area in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<u64>,
    /// Time for which the session may be unused.
    pub ttl: Option<Duration>,
    /// The language of cells that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<RuntimeName>,
}

impl OwnSettings {
    /// Whether the sandbox depends on these settings: a sandbox that was started before they were known does not have
    /// them.
    pub fn are_of_sandbox(&self) -> bool {
        self.memory.is_some() || self.data.is_some() || self.ttl.is_some()
    }
}

/// A session that was lost with its files and variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The session's name.
    pub id: SessionId,
    /// The reason.
    pub why: LostReason,
}

/// Why a session was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LostReason {
    /// The session was closed.
    Closed,
    /// The session was unused for this long.
    Expired(Duration),
    /// The session ended to make room for another session of its caller.
    Evicted,
    /// The sandbox ended unexpectedly.
    Died,
    /// The session was to be saved when its server ended, and the saved state cannot be used.
    NotKept,
    /// The session was restored to a state from some time before its server ended. Later changes are lost.
    Older,
}
