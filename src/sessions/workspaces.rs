//! The workspaces of one caller.

use super::{Opened, Sessions, Which, Workspace, open};
use crate::error::Result;

/// The workspaces of one caller, each of which has at most one session.
#[derive(Debug, Clone, Copy)]
pub struct Workspaces<'a>(pub(super) &'a Sessions);

impl Workspaces<'_> {
    /// The session of this workspace. A saved session is woken by the first operation on it; an archived session is
    /// restored first. No session is started.
    ///
    /// # Errors
    /// If the session can be restored, but starting it fails.
    pub async fn session(self, workspace: &Workspace) -> Result<Option<Opened>> {
        let Self(sessions) = self;
        let live = open::find_workspace(sessions, &sessions.host.registry(), workspace);
        if let Some((there, _)) = live {
            return Ok(Some(there));
        }
        if let Some(id) = sessions.saved().and_then(|saved| saved.of_workspace(workspace)) {
            return Ok(Some(Opened { id, is_new: false, lost: None }));
        }
        open::restored(sessions, Which::Automatic(workspace.clone())).await
    }

    /// Ends the session of this workspace, if it has one. Its sandbox has been removed when this returns.
    pub async fn close(self, workspace: &Workspace) {
        let Self(sessions) = self;
        let found = open::find_workspace(sessions, &sessions.host.registry(), workspace);
        if let Some((_, handle)) = found {
            // Fails if the session has ended by itself.
            let _ = handle.close().await;
        }
    }

    /// Records that the caller has the result of a call for this workspace, which says whether its session was new.
    /// Until then every result says so.
    pub fn told(self, workspace: &Workspace) {
        let Self(sessions) = self;
        sessions.host.registry().told(&sessions.caller, workspace);
    }
}
