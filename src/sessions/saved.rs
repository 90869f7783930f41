//! The state folder: sandboxes that an earlier server has saved on disk, from which sessions resume.

use std::collections::{BTreeSet, HashMap};

use backend::SavesSandboxes;
use config::Config;
use jiff::Timestamp;
use model::{OwnSettings, Principal, SessionId, SessionKey, SessionRecord, WorkspaceId};
use serde::{Deserialize, Serialize};

use super::{Sessions, numbers, which::Workspace};

/// The sessions that earlier servers have saved, of all callers.
#[derive(Debug, Default)]
pub(super) struct SavedBefore {
    names: BTreeSet<SessionId>,
    of_workspaces: HashMap<SessionKey, SessionId>,
    /// The caller of each session by its name and the number that its URLs are bound to.
    holders: HashMap<(SessionId, u64), Principal>,
}

/// A saved session that can resume and has not been used since this server started.
#[derive(Debug, Clone)]
pub struct Sleeper {
    /// The session's name.
    pub id: SessionId,
    /// When the session began, if that was recorded.
    pub since: Option<Timestamp>,
}

/// The saved sessions of one caller.
#[derive(Clone, Copy)]
pub(crate) struct SavedSessions<'a> {
    sessions: &'a Sessions,
    folder: &'a dyn SavesSandboxes,
}

/// The record of a saved session, as far as this server can use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedRecord {
    pub(super) session: SessionId,
    /// The session's caller, if it was recorded.
    pub(super) caller: Option<Principal>,
    /// The number that the session's URLs are bound to, if this server's URLs are bound to it.
    pub(super) number: Option<u64>,
    /// When the session began, if that was recorded.
    pub(super) since: Option<Timestamp>,
    pub(super) workspace: Option<WorkspaceId>,
    pub(super) own: OwnSettings,
}

/// A record as the state folder has it.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    record: SessionRecord,
    /// The servers for which the number is valid. Other servers give the same number to other sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numbers_of: Option<String>,
}

/// The record of an earlier version, which did not name the caller.
#[derive(Deserialize)]
struct Nameless {
    session: String,
    workspace: Option<SessionKey>,
    own: OwnSettings,
    begun_s: Option<i64>,
}

impl SavedRecord {
    /// Parses a record that a server with these or other settings has stored; `None` if it is not valid.
    pub(super) fn parse(text: &str, config: &Config) -> Option<Self> {
        if let Ok(Stored { record, numbers_of }) = serde_json::from_str(text) {
            let is_own = numbers_of.is_some() && numbers_of == numbers::valid_for(config);
            let SessionRecord { caller, session, number, since, workspace, own, .. } = record;
            let number = is_own.then_some(number);
            let (caller, since) = (Some(caller), Some(since));
            return Some(Self { session, caller, number, since, workspace, own });
        }
        let Nameless { session, workspace, own, begun_s } = serde_json::from_str(text).ok()?;
        Some(Self {
            session: session.parse().ok()?,
            caller: None,
            number: None,
            since: begun_s.and_then(|seconds| Timestamp::from_second(seconds).ok()),
            workspace: workspace.map(WorkspaceId::Hashed),
            own,
        })
    }

    /// The key of the session's workspace, if it is known.
    fn workspace_key(&self) -> Option<SessionKey> {
        match (self.workspace.as_ref()?, &self.caller) {
            (WorkspaceId::Hashed(key), _) => Some(key.clone()),
            (workspace, caller) => workspace.key(caller.as_ref()?),
        }
    }
}

impl SavedBefore {
    /// Reads the records that the backend has stored.
    pub(super) fn read(folder: &dyn SavesSandboxes, config: &Config) -> Self {
        let mut known = Self::default();
        let records = folder.records().into_iter();
        for record in records.filter_map(|text| SavedRecord::parse(&text, config)) {
            if let Some(workspace) = record.workspace_key() {
                known.of_workspaces.insert(workspace, record.session.clone());
            }
            if let (Some(caller), Some(number)) = (record.caller, record.number) {
                known.holders.insert((record.session.clone(), number), caller);
            }
            known.names.insert(record.session);
        }
        known
    }
}

impl<'a> SavedSessions<'a> {
    pub(super) fn new(sessions: &'a Sessions, folder: &'a dyn SavesSandboxes) -> Self {
        Self { sessions, folder }
    }

    /// The key under which the sandbox of the caller's session of this name is saved.
    pub(super) fn key(&self, id: &SessionId) -> SessionKey {
        SessionKey::of(&self.sessions.caller, id)
    }

    /// Whether the caller's session of this name can resume from a saved sandbox.
    pub(super) fn has(&self, id: &SessionId) -> bool {
        let number = || self.record(id).and_then(|record| record.number);
        self.folder.has(&self.key(id))
            && self.sessions.only.is_none_or(|only| number() == Some(only))
    }

    /// The saved session of this name and number as its holder sees it, for any caller.
    pub(super) fn held(&self, id: &SessionId, number: u64) -> Option<Sessions> {
        let holder = self.sessions.host.saved_before.holders.get(&(id.clone(), number))?;
        let held = self.sessions.seen_by(holder.clone()).only(number);
        held.saved().is_some_and(|saved| saved.has(id)).then_some(held)
    }

    /// The workspace's session that can resume from a saved sandbox.
    pub(super) fn of_workspace(&self, workspace: &Workspace) -> Option<SessionId> {
        self.recorded_for(workspace).filter(|id| self.has(id)).cloned()
    }

    /// The session of a workspace, according to the records of earlier servers.
    pub(super) fn recorded_for(&self, workspace: &Workspace) -> Option<&'a SessionId> {
        let key = workspace.id().key(&self.sessions.caller)?;
        self.sessions.host.saved_before.of_workspaces.get(&key)
    }

    /// The record of the caller's session of this name.
    pub(super) fn record(&self, id: &SessionId) -> Option<SavedRecord> {
        let text = self.folder.record(&self.key(id))?;
        SavedRecord::parse(&text, &self.sessions.host.config)
    }

    /// Stores the record of a session that has begun.
    pub(super) fn store(&self, record: &SessionRecord) {
        let numbers_of = numbers::valid_for(&self.sessions.host.config);
        let stored = Stored { record: record.clone(), numbers_of };
        let text = serde_json::to_string(&stored).expect("a record is a map of texts and numbers");
        self.folder.store_record(&record.key(), &text);
    }

    /// Removes the saved sandbox of the caller's session of this name.
    pub(super) fn forget(&self, id: &SessionId) {
        self.folder.forget(&self.key(id));
    }

    /// The caller's saved sessions that can resume and have not been used since this server started.
    pub(crate) fn asleep(&self) -> Vec<Sleeper> {
        let names = self.sessions.host.saved_before.names.iter();
        let asleep = names.filter(|id| self.sessions.find(id).is_none() && self.has(id));
        let began = |id| self.record(id)?.since;
        asleep.map(|id| Sleeper { id: id.clone(), since: began(id) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Arc};

    use backend::local::Local;
    use config::server_key::ServerKey;
    use parking_lot::Mutex;

    use super::*;
    use crate::sessions::Options;

    /// A folder with one record and its sandbox.
    struct One(Mutex<String>);

    impl One {
        fn of(text: &str) -> Self {
            Self(Mutex::new(text.into()))
        }
    }

    impl SavesSandboxes for One {
        fn has(&self, _: &SessionKey) -> bool {
            true
        }

        fn path(&self, _: &SessionKey) -> PathBuf {
            PathBuf::new()
        }

        fn forget(&self, _: &SessionKey) {}

        fn store_record(&self, _: &SessionKey, text: &str) {
            *self.0.lock() = text.into();
        }

        fn record(&self, _: &SessionKey) -> Option<String> {
            Some(self.0.lock().clone())
        }

        fn records(&self) -> Vec<String> {
            vec![self.0.lock().clone()]
        }
    }

    /// The settings of a server without a key, or with one of its own.
    fn settings(key: Option<&ServerKey>) -> Config {
        Config { server_key: key.cloned(), ..Config::default() }
    }

    fn sessions(config: Config) -> Sessions {
        Sessions::new(config, Arc::new(Local::new().expect("a backend")), Options::default())
    }

    #[test]
    fn a_record_of_a_version_that_named_no_caller_is_read() {
        let workspace = "q3".parse().expect("a valid name");
        let key = SessionKey::of_workspace(&Principal::local(), &workspace);
        let text = format!(
            r#"{{"session":"reports","workspace":"{}","own":{{"memory":1073741824,"ttl":null}},"begun_s":1700000000}}"#,
            key.as_str()
        );
        let (folder, id) = (One::of(&text), "reports".parse().expect("a valid name"));
        let config = settings(Some(&ServerKey::random()));
        let before = SavedBefore::read(&folder, &config);
        assert_eq!(before.of_workspaces.get(&key), Some(&id));
        assert!(before.names.contains(&id) && before.holders.is_empty());
        let sessions = sessions(config);
        let record = SavedSessions::new(&sessions, &folder).record(&id).expect("it is read");
        assert_eq!(record.workspace, Some(WorkspaceId::Hashed(key)));
        assert_eq!(record.own.memory, Some(1 << 30));
        assert_eq!(record.since.map(Timestamp::as_second), Some(1_700_000_000));
        assert_eq!(record.number, None);
    }

    #[test]
    fn a_number_is_valid_for_servers_with_the_key_of_the_one_that_recorded_it() {
        let [one, other] = [ServerKey::random(), ServerKey::random()];
        let record = SessionRecord {
            caller: Principal::named("ann").expect("a valid name"),
            session: "work".parse().expect("a valid name"),
            number: 7,
            since: Timestamp::from_millisecond(1_700_000_000_123).expect("a time of this era"),
            workspace: None,
            own: OwnSettings::default(),
            datasets: vec![],
        };
        let id = &record.session;
        // As a version stored it that recorded no key.
        let keyless = serde_json::to_string(&record).expect("a map of texts and numbers");
        for written_by in [None, Some(&one), Some(&other)] {
            let folder = One::of(&keyless);
            let writer = sessions(settings(written_by));
            if written_by.is_some() {
                SavedSessions::new(&writer, &folder).store(&record);
            }
            for read_by in [None, Some(&one), Some(&other)] {
                let config = settings(read_by);
                let number = (written_by.is_some() && written_by == read_by).then_some(7);
                let holders = SavedBefore::read(&folder, &config).holders;
                assert_eq!(holders.get(&(id.clone(), 7)), number.map(|_| &record.caller));
                let reader = sessions(config);
                let read = SavedSessions::new(&reader, &folder).record(id).expect("it is read");
                assert_eq!((read.number, read.since), (number, Some(record.since)));
                let only = reader.only(7);
                assert_eq!(SavedSessions::new(&only, &folder).has(id), number.is_some());
            }
        }
    }
}
