//! Sessions that end with the call that they were started for, whatever becomes of it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::session::handle::Handle;

/// Ends the session that was started for a call: when it is asked to or, at the latest, when the last of
/// its clones is dropped.
#[derive(Debug, Clone, Default)]
pub struct Stateless(Arc<Started>);

#[derive(Debug, Default)]
struct Started(Mutex<Option<Handle>>);

impl Stateless {
    /// Takes over the session that was started. An earlier one has ended: another is started only then.
    pub(super) fn hold(&self, session: Handle) {
        *self.0.0.lock() = Some(session);
    }

    /// Ends the session, if one was started. Its sandbox is gone when this returns.
    pub async fn close(&self) {
        let session = self.0.0.lock().take();
        if let Some(session) = session {
            // One that has ended by itself is closed as well.
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
