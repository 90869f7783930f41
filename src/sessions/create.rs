//! Starting a session on purpose, with limits of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Look, Opened, RuntimeName, Sessions, Which};
use crate::{
    error::{Error, Result},
    session::{SessionId, command::Command},
};

/// What a session is to have instead of what the settings say; never more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnLimits {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// For how long it may be unused.
    pub ttl: Option<Duration>,
}

impl OwnLimits {
    /// A sandbox that was started before they were known does not have them.
    pub(super) fn are_special(self) -> bool {
        self != Self::default()
    }
}

impl Sessions {
    /// Starts a session of this name, or of one that is made here. Cells that name no language are in this one. Its sandbox is there when this returns.
    ///
    /// # Errors
    /// The caller has one of that name already, or as many as there may be.
    pub async fn create(
        &self,
        id: Option<SessionId>,
        own: OwnLimits,
        language: Option<RuntimeName>,
    ) -> Result<Look> {
        let own = self.within_settings(own);
        let touch = |reply| Command::Touch { reply };
        let (Opened { id, is_new, .. }, there) =
            self.ask_or_create(Which::from(id), own, touch).await;
        there?;
        if !is_new {
            return Err(Error::InvalidArgument(format!(
                "There is a session {id} already, with limits of its own. Use it, choose another \
                 session_id, or end it first with destroy_session."
            )));
        }
        if let Some(language) = language {
            self.note_language(&id, &language);
            self.registry().set_language(&self.caller, &id, language);
        }
        self.look(&id).ok_or(Error::SessionNotFound(id))
    }

    /// Of what is asked for, what is not the same as the settings, or more.
    fn within_settings(&self, own: OwnLimits) -> OwnLimits {
        let config = self.config();
        OwnLimits {
            memory: own.memory.filter(|memory| *memory < config.memory_limit),
            ttl: own.ttl.filter(|ttl| *ttl < config.session_ttl),
        }
    }
}
