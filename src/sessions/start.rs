//! Starting the task of a session, with all that it needs.

use std::sync::{Arc, atomic::AtomicBool};

use backend::{CallerKey, Spec};
use config::Toolset;
use jiff::Timestamp;
use model::{Dataset, OwnSettings, SessionId, SessionKey, SessionRecord};
use tokio::sync::OwnedSemaphorePermit;

use super::{archived::Restore, host::Host};
use crate::{
    archive::Restored,
    session::{
        archiving::{Archived, Archiving},
        driver,
        events::{Observer, Observers},
        handle::Handle,
        history::Journal,
        lease::Lease,
        origin::Origin,
        setup::Setup,
        spans::Spans,
        state::IdleLimits,
        usage::Usage,
    },
};

/// A session that is about to start.
pub(super) struct NewSession {
    pub(super) id: SessionId,
    pub(super) number: u64,
    pub(super) origin: Origin,
    pub(super) own: OwnSettings,
    /// The datasets that its sandbox can read.
    pub(super) datasets: Vec<Arc<Dataset>>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// The key of the session's caller, if it has a caller and servers share callers.
    pub(super) caller: Option<CallerKey>,
    /// The session's record; `None` if the session has no caller yet, or ends with its call.
    pub(super) record: Option<SessionRecord>,
    /// The key under which the session's sandbox is saved when the server ends; `None` if it is not saved.
    pub(super) saved_as: Option<SessionKey>,
    /// The archive's answer for the session.
    pub(super) restore: Option<Restore>,
}

impl NewSession {
    /// A session without a caller, for the pool. Returns `None` if no permit is free.
    pub(super) fn pooled(host: &Host) -> Option<Self> {
        let permit = host.permits.clone().try_acquire_owned().ok()?;
        Some(Self {
            id: SessionId::mint(),
            number: host.numbers.next(),
            origin: Origin::Pooled,
            own: OwnSettings::default(),
            datasets: host.permissions.usual_datasets(),
            permit: Some(permit),
            caller: None,
            record: None,
            saved_as: None,
            restore: None,
        })
    }

    /// Starts the session's task.
    pub(super) fn spawn(self, host: &Arc<Host>) -> Handle {
        let (mut handle, setup) = self.prepare(host);
        // The sandbox of a woken session may be older than the template of new ones.
        if handle.origin != Origin::Woken {
            handle.image = host.template.last_id();
        }
        host.tasks.spawn(driver::drive(setup));
        handle
    }

    /// The setup of the session's task, and the session's handle.
    pub(super) fn prepare(self, host: &Arc<Host>) -> (Handle, Setup) {
        let Self { id, number, origin, own, datasets, permit, caller, record, saved_as, restore } =
            self;
        let (manifest, failed) = match restore {
            Some(Restore::From(_, manifest)) => (Some(manifest), None),
            Some(Restore::Nothing(failed)) => (None, Some(failed)),
            None => (None, None),
        };
        let config = &host.config;
        let (journal, history) = Journal::new(
            host.changes.clone(),
            config.max_sessions,
            config.history_dir.as_deref(),
            config.min_free,
        );
        let journal = journal.lacking_earlier(origin.continues());
        let usage = Usage::default();
        let ttl = config.ttl(&own);
        let (mut handle, commands) = Handle::new(&id, number, ttl, history, usage.clone());
        handle.let_go = host.shutdown.child_token();
        handle.origin = origin;
        handle.archived = Arc::new(Archived {
            may_be: failed.is_some(),
            began_without: AtomicBool::new(failed.as_deref() == Some(&Restored::Unreachable)),
            ..Archived::default()
        });
        if let Some(failed) = failed {
            handle.archived.news.set(*failed);
        }
        let archiving = host.archive.as_ref().map(|archive| Archiving {
            archive: archive.clone(),
            of: handle.archived.clone(),
            history: handle.history.clone(),
            results: handle.results.clone(),
            restore: manifest,
            shutdown_timeout: config.shutdown_timeout,
        });
        let hold = host.hold.clone();
        let spec = Spec::new(config, &id, &own)
            .saved_as(saved_as)
            .holding(hold.as_ref().map(|hold| hold.limit))
            .of_caller(caller)
            .with_datasets(datasets.clone());
        let preload = config.preload_within(&spec.limits);
        let counts = host.metrics.of_session(&handle.label);
        let observers: [Box<dyn Observer>; 4] = [
            Box::new(counts.clone()),
            Box::new(host.metrics.watch(origin, spec.limits.memory, &handle.label)),
            Box::new(journal),
            Box::new(Spans::new(&id)),
        ];
        handle.own = own;
        handle.datasets = datasets;
        handle.since = Timestamp::now();
        if let Some(record) = record {
            handle.since = record.since;
            // Set before the session's task begins, which reads it.
            let _ = handle.record.set(record);
        }
        let setup = Setup {
            spec,
            idle: IdleLimits { hibernate: config.hibernate_after, ttl },
            origin,
            record: handle.record.clone(),
            hold,
            max_output: config.max_output,
            tracebacks: config.tracebacks,
            max_timeout: config.exec_timeout,
            timing: host.timing,
            preload,
            timezone: config.timezone.clone(),
            asks: host.calls.is_some(),
            undo: config.toolsets.has(Toolset::Code).then_some(config.undo),
            backend: host.backend.clone(),
            template: host.template.clone(),
            archiving,
            commands,
            observers: Observers::new(&id, observers),
            reads: Arc::new(counts),
            usage,
            beginning: handle.beginning.clone(),
            starts: host.starts.clone(),
            shutdown: handle.let_go.clone(),
            lease: Lease::new(host.clone(), number, permit),
            id,
        };
        (handle, setup)
    }
}
