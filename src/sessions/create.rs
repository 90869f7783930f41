//! Starts a session explicitly, with settings of its own.

use model::{OwnSettings, SessionId};

use super::{Look, Opened, Sessions, Which};
use crate::{
    error::{Error, Result},
    session::command::Command,
};

impl Sessions {
    /// Starts a session with this name, or with a generated one. Its sandbox has started when this returns.
    ///
    /// # Errors
    /// If the caller has a session of this name already, or a limit of sessions is reached.
    pub async fn create(&self, id: Option<SessionId>, own: OwnSettings) -> Result<Look> {
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
        self.look(&id).ok_or(Error::SessionNotFound(id))
    }

    /// The requested settings without those that are equal to or above the server's.
    fn within_settings(&self, own: OwnSettings) -> OwnSettings {
        let config = self.config();
        OwnSettings {
            memory: own.memory.filter(|memory| *memory < config.memory_limit),
            ttl: own.ttl.filter(|ttl| *ttl < config.session_ttl),
            language: own.language,
        }
    }
}
