//! Archived sessions: restores them, reads their files in the archive, and deletes them.

use model::{DataPath, OwnSettings, Principal, SessionId, SessionKey};

use super::{
    Sessions,
    which::{Opened, Which, Workspace},
};
use crate::{
    archive::{Archive, ArchivedFile, Identity, Listed, Lookup, Manifest, Restored},
    error::{Error, Result},
    session::handle::Handle,
};

/// The archive's answer for a session that is about to start.
pub(super) enum Restore {
    /// The session is restored from this manifest, under its own name.
    From(SessionId, Box<Manifest>),
    /// The session cannot be restored, for this reason.
    Nothing(Box<Restored>),
}

impl Restore {
    /// Whether there was a session, restorable or not.
    pub(super) fn is_known(&self) -> bool {
        match self {
            Self::From(..) => true,
            Self::Nothing(why) => **why == Restored::Damaged,
        }
    }

    /// The session that is restored, if one is.
    pub(super) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::From(id, _) => Some(id),
            Self::Nothing(_) => None,
        }
    }
}

/// A session in the archive, whose files can be read there.
#[derive(Debug)]
pub(crate) struct ArchivedSession {
    archive: Archive,
    key: SessionKey,
    pub(crate) manifest: Manifest,
    /// The number that its URLs are bound to, if they are this server's.
    pub(crate) number: Option<u64>,
}

impl ArchivedSession {
    /// The file at this path, if there is one.
    pub(crate) fn file(&self, path: &DataPath) -> Option<ArchivedFile> {
        self.archive.file(&self.key, &self.manifest, path)
    }
}

impl Sessions {
    /// Waits until the session that the call means is saved, if it is being saved: until then it is neither live nor in
    /// the archive.
    pub(super) async fn wait_until_saved(&self, which: &Which) {
        let Some(archive) = &self.inner.archive else { return };
        let key = match which {
            Which::Named(id) => SessionKey::of(&self.caller, id),
            Which::Automatic(workspace) => match workspace.name() {
                Some(name) => SessionKey::of_workspace(&self.caller, name),
                None => return,
            },
            Which::New | Which::Stateless(_) => return,
        };
        archive.saved(&key).await;
    }

    /// The archive's answer for the session that the call means, if that is not live and has to be started. The
    /// registry is not locked meanwhile.
    ///
    /// # Errors
    /// If the archive cannot be reached and only it knows whether there was a session of this name.
    pub(super) async fn restorable(&self, which: &Which) -> Result<Option<Restore>> {
        let Some(archive) = &self.inner.archive else { return Ok(None) };
        if self.only.is_some() || !matches!(self.find_open(&self.registry(), which, true), Ok(None))
        {
            return Ok(None);
        }
        let found = match which {
            Which::New | Which::Stateless(_) => return Ok(None),
            Which::Named(id) if self.has_kept(id) => return Ok(None),
            Which::Named(id) => archive.find(&self.caller, id).await,
            Which::Automatic(workspace) => match workspace.name() {
                None => return Ok(None),
                Some(_) if self.kept_for(workspace).is_some() => return Ok(None),
                Some(name) => archive.find_workspace(&self.caller, name).await,
            },
        };
        match (found, which) {
            (Lookup::None, _) => Ok(None),
            (Lookup::Found(found), _) => match found.session() {
                Some(id) => Ok(Some(Restore::From(id, found))),
                None => Ok(Some(Restore::Nothing(Box::new(Restored::Damaged)))),
            },
            (Lookup::Damaged, _) => Ok(Some(Restore::Nothing(Box::new(Restored::Damaged)))),
            (Lookup::Unreachable, Which::Named(id)) if id.is_minted() => {
                let why = format!(
                    "Whether session {id} can be brought back is not known now, as the archive cannot be \
                     reached. Try again later, or leave session_id out to start a new one."
                );
                Err(Error::SandboxUnavailable(why))
            }
            (Lookup::Unreachable, _) => Ok(Some(Restore::Nothing(Box::new(Restored::Unreachable)))),
        }
    }

    /// Records whose session this is, so that it is archived when it ends.
    pub(super) fn identify(&self, which: &Which, handle: &Handle) {
        if self.inner.archive.is_none() || matches!(which, Which::Stateless(_)) {
            return;
        }
        let workspace = match which {
            Which::Automatic(workspace) => {
                workspace.name().map(|name| SessionKey::of_workspace(&self.caller, name))
            }
            _ => None,
        };
        let _ = handle.archived.identity.set(Identity {
            caller: self.caller.clone(),
            session: handle.id.clone(),
            workspace: workspace.or_else(|| handle.archived.workspace.clone()),
            own: handle.own.clone(),
            number: self.public(handle.number),
        });
    }

    /// The news for the caller if its session of this name was restored.
    pub(crate) fn restored(&self, id: &SessionId) -> Option<Restored> {
        self.find(id)?.archived.news.get()
    }

    /// Records that the caller was told.
    pub(crate) fn restored_told(&self, id: &SessionId) {
        if let Some(handle) = self.find(id) {
            handle.archived.news.told();
        }
    }

    /// The caller's session of this workspace. If it is not live, it is restored if possible.
    ///
    /// # Errors
    /// If the session can be restored, but starting it fails.
    pub async fn workspace_there(&self, workspace: &Workspace) -> Result<Option<Opened>> {
        if let Some(there) = self.of_workspace(workspace) {
            return Ok(Some(there));
        }
        let which = Which::Automatic(workspace.clone());
        let can_be = match self.restorable(&which).await? {
            Some(Restore::From(..)) => true,
            _ => self.inner.archive.is_some() && self.kept_for(workspace).is_some(),
        };
        if !can_be {
            return Ok(None);
        }
        Ok(Some(Box::pin(self.open_session(&which, OwnSettings::default())).await?.0))
    }

    /// The caller's session of this name, if it is archived and not live. It is not restored.
    pub(crate) async fn archived(&self, id: &SessionId) -> Option<ArchivedSession> {
        let archive = self.inner.archive.as_ref()?;
        if self.find(id).is_some() {
            return None;
        }
        let Lookup::Found(manifest) = archive.find(&self.caller, id).await else { return None };
        let number = archive.number_of(&manifest);
        if self.only.is_some() && self.only != number {
            return None;
        }
        let key = SessionKey::of(&self.caller, id);
        Some(ArchivedSession { archive: archive.clone(), key, manifest: *manifest, number })
    }

    /// The caller's sessions that are in the archive and not on this server, the last saved first.
    pub(crate) async fn archived_sessions(&self) -> Vec<Listed> {
        let Some(archive) = &self.inner.archive else { return vec![] };
        let mut listed = archive.list(&self.caller).await;
        listed.retain(|it| self.find(&it.id).is_none() && !self.has_kept(&it.id));
        listed
    }

    /// The archived session of this name and number as its holder sees it, for any caller.
    pub(crate) async fn held_archived(&self, id: &SessionId, number: u64) -> Option<Self> {
        let archive = self.inner.archive.as_ref()?;
        let manifest = archive.find_by_number(id, number).await?;
        let holder = Principal::named(manifest.caller_name())?;
        Some(self.seen_by(holder).only(number))
    }

    /// Deletes the caller's session of this name from the archive. Returns whether there was one.
    ///
    /// # Errors
    /// If the session may still be in the archive.
    pub(super) async fn forget_archived(&self, id: &SessionId) -> Result<bool> {
        let Some(archive) = &self.inner.archive else { return Ok(false) };
        if self.only.is_some() && self.archived(id).await.is_none() {
            return Ok(false);
        }
        archive.forget(&self.caller, id).await.map_err(|error| {
            tracing::warn!(session_id = %id, %error, "a session could not be deleted from the archive");
            let why = "The session has ended, but the archive could not be reached to delete what it has of \
                       it. Try again later.";
            Error::SandboxUnavailable(why.into())
        })
    }
}
