//! The sessions of all callers, for operators: live ones, and those that are in the state folder or in the archive.

use std::{collections::HashSet, time::Duration};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use model::{Principal, SessionId, SessionKey};
use tokio::time::timeout;

use super::{Live, SessionInfo, Sessions, saved::SavedRecord};

/// Maximum number of agents that are asked for their resources at a time.
const ASKED_AT_ONCE: usize = 32;

/// Longest time for which agents are asked.
const ASKED_FOR: Duration = Duration::from_secs(2);

/// The sessions of all callers.
#[derive(Clone, Copy)]
pub(crate) struct AllSessions<'a>(pub(super) &'a Sessions);

/// A session of any caller that is not live.
pub(crate) struct Dormant {
    pub(crate) caller: Principal,
    pub(crate) id: SessionId,
    /// When the session began, or when it was archived.
    pub(crate) since: Option<Timestamp>,
    /// The size of what is archived.
    pub(crate) bytes: Option<u64>,
}

impl AllSessions<'_> {
    /// The live sessions with the resources that they use now, by caller and name.
    pub(crate) async fn live(self) -> Vec<(Principal, SessionInfo)> {
        let handles: Vec<_> = {
            let registry = self.0.host.registry();
            let of = |caller: Principal| {
                registry.of(&caller).cloned().map(|it| (caller.clone(), it)).collect::<Vec<_>>()
            };
            let callers: HashSet<_> = registry.callers().collect();
            callers.into_iter().flat_map(of).collect()
        };
        let mut all: Vec<_> = handles
            .into_iter()
            .map(|(caller, handle)| {
                let sessions = self.0.seen_by(caller.clone());
                (caller, Live::new(&sessions, handle).info())
            })
            .collect();
        all.sort_by(|(a, one), (b, other)| (a.name(), &one.id).cmp(&(b.name(), &other.id)));
        let asked = stream::iter(&all);
        let asked =
            asked.for_each_concurrent(ASKED_AT_ONCE, |(_, info)| info.history.renew_resources());
        // Those that were not asked in time have their last report.
        let _ = timeout(ASKED_FOR, asked).await;
        all
    }

    /// The sessions in the state folder that have not been used since this server started.
    pub(crate) fn saved(self) -> Vec<Dormant> {
        let Sessions { host, .. } = self.0;
        let Some(folder) = host.backend.abilities().saved else { return vec![] };
        let records = folder.records().into_iter();
        let records = records.filter_map(|text| SavedRecord::parse(&text, &host.config));
        let dormant = records.filter_map(|it| {
            let (caller, id) = (it.caller?, it.session);
            let is_asleep = folder.has(&SessionKey::of(&caller, &id))
                && host.registry().find(&caller, &id).is_none();
            is_asleep.then_some(Dormant { caller, id, since: it.since, bytes: None })
        });
        dormant.collect()
    }

    /// The sessions in the archive that are not on this server, the last saved first.
    pub(crate) async fn archived(self) -> Vec<Dormant> {
        let Some(archive) = &self.0.host.archive else { return vec![] };
        let listed = archive.list_all().await.into_iter();
        let elsewhere = listed.filter(|it| {
            let sessions = self.0.seen_by(it.caller.clone());
            let is_saved = sessions.saved().is_some_and(|saved| saved.has(&it.session.id));
            sessions.find(&it.session.id).is_none() && !is_saved
        });
        let dormant = elsewhere.map(|it| Dormant {
            caller: it.caller,
            id: it.session.id,
            since: Some(it.session.saved),
            bytes: Some(it.bytes),
        });
        dormant.collect()
    }
}
