//! Sessions that end with the call that they were started for, whatever its result.

use std::sync::Arc;

use model::SessionId;
use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    session::handle::Handle,
};

/// In place of a session's name: a session that ends with its call. No other session can have this name.
pub(crate) const STATELESS: &str = "__stateless__";

/// Parses the name of a session that a request uses or starts, and that does not end with the request.
///
/// # Errors
/// If no such session can have the name.
pub(crate) fn session_name(name: &str) -> Result<SessionId> {
    if name == STATELESS {
        let why = "A session that ends with its call is of no use here. Leave session_id out, or pass \
                   that of an earlier result.";
        return Err(Error::InvalidArgument(why.into()));
    }
    Ok(name.parse()?)
}

/// Ends the session that was started for a call: on request or, at the latest, when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct Stateless(Arc<Started>);

#[derive(Debug, Default)]
struct Started(Mutex<Option<Handle>>);

impl Stateless {
    /// Stores the session that was started. An earlier one has ended, as another is started only then.
    pub(super) fn hold(&self, session: Handle) {
        *self.0.0.lock() = Some(session);
    }

    /// Ends the session, if one was started. Its sandbox has been removed when this returns.
    pub async fn close(&self) {
        let session = self.0.0.lock().take();
        if let Some(session) = session {
            // Fails if the session has ended by itself.
            let _ = session.close().await;
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(session) = self.0.get_mut().take() {
            tracing::debug!(session_id = %session.id, "a call did not end the session that was its own");
            session.close_unheard();
        }
    }
}
