//! Archived sessions: restores them, reads their files in the archive, and deletes them.

use model::{DataPath, Principal, SessionId, SessionKey};

use super::{Sessions, which::Which};
use crate::{
    archive::{Archive, ArchivedFile, Listed, Lookup, Manifest, Restored},
    error::{Error, Result},
    session::{
        History,
        history::{MAX_RECORD_BYTES, Recorded},
    },
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
    /// The number that the session's URLs are bound to, if they are this server's.
    pub(crate) number: Option<u64>,
}

impl ArchivedSession {
    /// Bytes of memory that reading the session's runs takes.
    pub(crate) fn history_bytes(&self) -> usize {
        let size = self.manifest.runs.as_ref().map_or(0, |runs| runs.size.min(MAX_RECORD_BYTES));
        // The object, and the runs in it.
        usize::try_from(2 * size).unwrap_or(usize::MAX)
    }

    /// The session's runs: none if none were saved, or they cannot be read.
    pub(crate) async fn history(&self) -> History {
        let Self { archive, key, manifest, .. } = self;
        let runs = archive.runs(key, manifest, MAX_RECORD_BYTES).await;
        runs.map(|runs| Recorded::read(&runs).into_history()).unwrap_or_default()
    }

    /// The file at this path, if there is one.
    pub(crate) fn file(&self, path: &DataPath) -> Option<ArchivedFile> {
        self.archive.file(&self.key, &self.manifest, path)
    }
}

/// The archived sessions of one caller.
#[derive(Clone, Copy)]
pub(crate) struct ArchivedSessions<'a> {
    sessions: &'a Sessions,
    archive: &'a Archive,
}

impl<'a> ArchivedSessions<'a> {
    pub(super) fn new(sessions: &'a Sessions, archive: &'a Archive) -> Self {
        Self { sessions, archive }
    }

    /// The archive's answer for the session that the call means, which is not live. The registry is not locked
    /// meanwhile.
    ///
    /// # Errors
    /// If the archive cannot be reached and only it knows whether there was a session of this name.
    pub(super) async fn restorable(&self, which: &Which) -> Result<Option<Restore>> {
        let Self { sessions, archive } = self;
        let saved = sessions.saved();
        let found = match which {
            Which::New | Which::Stateless(_) => return Ok(None),
            Which::Named(id) if saved.is_some_and(|saved| saved.has(id)) => return Ok(None),
            Which::Named(id) => archive.find(&sessions.caller, id).await,
            Which::Automatic(workspace) => match workspace.name() {
                None => return Ok(None),
                Some(_) if saved.is_some_and(|saved| saved.of_workspace(workspace).is_some()) => {
                    return Ok(None);
                }
                Some(name) => archive.find_workspace(&sessions.caller, name).await,
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

    /// The caller's session of this name, if it is archived and not live. It is not restored.
    pub(crate) async fn find(&self, id: &SessionId) -> Option<ArchivedSession> {
        let Self { sessions, archive } = *self;
        if sessions.find(id).is_some() || sessions.saved().is_some_and(|saved| saved.has(id)) {
            return None;
        }
        let Lookup::Found(manifest) = archive.find(&sessions.caller, id).await else { return None };
        let number = archive.number_of(&manifest);
        if sessions.only.is_some() && sessions.only != number {
            return None;
        }
        let key = SessionKey::of(&sessions.caller, id);
        Some(ArchivedSession { archive: archive.clone(), key, manifest: *manifest, number })
    }

    /// The caller's sessions that are in the archive and not on this server, the last saved first.
    pub(crate) async fn list(&self) -> Vec<Listed> {
        let saved = self.sessions.saved();
        let is_saved = |id: &SessionId| saved.is_some_and(|saved| saved.has(id));
        let mut listed = self.archive.list(&self.sessions.caller).await;
        listed.retain(|it| self.sessions.find(&it.id).is_none() && !is_saved(&it.id));
        listed
    }

    /// The archived session of this name and number as its holder sees it, for any caller.
    pub(super) async fn held(&self, id: &SessionId, number: u64) -> Option<Sessions> {
        let manifest = self.archive.find_by_number(id, number).await?;
        let holder = Principal::named(manifest.caller_name())?;
        Some(self.sessions.seen_by(holder).only(number))
    }

    /// Deletes the caller's session of this name from the archive. Returns whether there was one.
    ///
    /// # Errors
    /// If the session may still be in the archive.
    pub(super) async fn forget(&self, id: &SessionId) -> Result<bool> {
        let Self { sessions, archive } = self;
        if sessions.only.is_some() && self.find(id).await.is_none() {
            return Ok(false);
        }
        archive.forget(&sessions.caller, id).await.map_err(|error| {
            tracing::warn!(session_id = %id, %error, "failed to delete a session from the archive");
            let why = "The session has ended, but the archive could not be reached to delete what it has of \
                       it. Try again later.";
            Error::SandboxUnavailable(why.into())
        })
    }
}
