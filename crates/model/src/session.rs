//! What is known of a session beside its sandbox.

use std::time::Duration;

use protocol::message::RuntimeName;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Principal, SessionId};

/// The key under which a session is kept or archived: a hash of its caller's name and its own.
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

    /// Reads one back.
    pub fn parse(text: &str) -> Option<Self> {
        let key = Self(text.to_owned());
        key.is_valid().then_some(key)
    }

    /// One that was read may be anything.
    pub fn is_valid(&self) -> bool {
        self.0.len() == 32 && self.0.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a session has instead of what the server's settings say; never more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnSettings {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// For how long it may be unused.
    pub ttl: Option<Duration>,
    /// The language of its cells that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<RuntimeName>,
}

impl OwnSettings {
    /// A sandbox that was started before they were known does not have them.
    pub fn are_of_sandbox(&self) -> bool {
        self.memory.is_some() || self.ttl.is_some()
    }
}

/// A session that is gone, with its files and variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// What it was called.
    pub id: SessionId,
    /// Why it is gone.
    pub why: LostReason,
}

/// Why a session is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// Somebody closed it.
    Closed,
    /// It was unused for this long.
    Expired(Duration),
    /// It had to give way to another session of its caller.
    Evicted,
    /// Its sandbox ended unexpectedly.
    Died,
    /// It was to be kept when its server ended, and what was kept cannot be used.
    NotKept,
    /// It is there as it was some time before its server ended. What was done after that is gone.
    Older,
}
