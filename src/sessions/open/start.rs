//! Starting the task of a session, with all that it needs.

use std::sync::{Arc, atomic::AtomicBool};

use model::{OwnSettings, SessionId, SessionKey};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    archive::{Identity, Restored},
    backend::Spec,
    config::Toolset,
    session::{
        archiving::{Archived, Archiving},
        driver,
        events::{Observer, Observers},
        handle::Handle,
        history::Journal,
        lease::Lease,
        setup::{Birth, Setup},
        state::IdleLimits,
        usage::Usage,
    },
    sessions::{Sessions, archived::Restore},
};

impl Sessions {
    /// Starts a sandbox for the pool, if there is a permit for it.
    pub(in crate::sessions) fn start_pooled(&self) -> Option<Handle> {
        let permit = self.inner.permits.clone().try_acquire_owned().ok()?;
        Some(self.spawn(
            &SessionId::mint(),
            OwnSettings::default(),
            permit,
            (Birth::InPool, None),
            None,
        ))
    }

    pub(super) fn spawn(
        &self,
        id: &SessionId,
        own: OwnSettings,
        permit: OwnedSemaphorePermit,
        (birth, key): (Birth, Option<SessionKey>),
        restore: Option<Restore>,
    ) -> Handle {
        let (mut handle, setup) =
            self.prepare((id, None), own, Some(permit), (birth, key), restore);
        handle.image = self.inner.template.last_id();
        self.inner.tasks.spawn(driver::drive(setup));
        handle
    }

    /// The setup of a session's task, and the session's handle. The session gets this number, if one is given.
    pub(in crate::sessions) fn prepare(
        &self,
        (id, number): (&SessionId, Option<u64>),
        own: OwnSettings,
        permit: Option<OwnedSemaphorePermit>,
        (birth, key): (Birth, Option<SessionKey>),
        restore: Option<Restore>,
    ) -> (Handle, Setup) {
        let (manifest, failed) = match restore {
            Some(Restore::From(_, manifest)) => (Some(manifest), None),
            Some(Restore::Nothing(failed)) => (None, Some(failed)),
            None => (None, None),
        };
        let own = manifest.as_ref().map_or(own, |manifest| manifest.own.clone());
        let config = &self.inner.config;
        let (journal, history) = Journal::new(
            self.inner.changes.clone(),
            config.max_sessions,
            config.history_dir.as_deref(),
            config.min_free,
        );
        // The URLs of a restored session stay valid.
        let archive = self.inner.archive.as_ref();
        let archived_as =
            archive.zip(manifest.as_ref()).and_then(|(it, found)| it.number_of(found));
        let number = number.or(archived_as).unwrap_or_else(|| self.inner.numbers.next());
        let usage = Usage::default();
        let ttl = own.ttl.unwrap_or(config.session_ttl);
        let (mut handle, commands) = Handle::new(id, number, ttl, history, usage.clone());
        handle.let_go = self.inner.shutdown.child_token();
        handle.is_kept = manifest.is_some();
        handle.own = own.clone();
        let archived = Archived {
            may_be: manifest.is_some() || failed.is_some(),
            began_without: AtomicBool::new(failed.as_deref() == Some(&Restored::Unreachable)),
            workspace: manifest.as_ref().and_then(|manifest| manifest.workspace()),
            ..Archived::default()
        };
        if let Some(failed) = failed {
            archived.news.set(*failed);
        }
        if manifest.is_some() {
            // Set before its task begins, which reads it.
            let _ = archived.identity.set(Identity {
                caller: self.caller.clone(),
                session: id.clone(),
                workspace: archived.workspace.clone(),
                own: own.clone(),
                number: self.public(number),
            });
        }
        handle.archived = Arc::new(archived);
        let archiving = archive.map(|archive| Archiving {
            archive: archive.clone(),
            of: handle.archived.clone(),
            restore: manifest,
            shutdown_timeout: config.shutdown_timeout,
        });
        let hold = self.inner.hold.clone();
        // Pooled sandboxes have no caller yet.
        let caller = (birth == Birth::OnDemand).then(|| self.caller_key(&self.caller)).flatten();
        let spec = Spec::new(config, id)
            .with_memory(own.memory)
            .kept_as(key)
            .holding(hold.as_ref().map(|hold| hold.limit))
            .of_caller(caller);
        let preload = config.preload_within(&spec.limits);
        let metrics = &self.inner.metrics;
        let observers: [Box<dyn Observer>; 3] = [
            Box::new(metrics.clone()),
            Box::new(metrics.watch(birth, spec.limits.memory)),
            Box::new(journal),
        ];
        let setup = Setup {
            id: id.clone(),
            spec,
            idle: IdleLimits { hibernate: config.hibernate_after, ttl },
            birth,
            hold,
            max_output: config.max_output,
            tracebacks: config.tracebacks,
            max_timeout: config.exec_timeout,
            timing: self.inner.timing,
            preload,
            timezone: config.timezone.clone(),
            undo: config.toolsets.has(Toolset::Code).then_some(config.undo),
            backend: self.inner.backend.clone(),
            archiving,
            commands,
            observers: Observers::new(id, observers),
            reads: Arc::new(metrics.clone()),
            usage,
            beginning: handle.beginning.clone(),
            starts: self.inner.starts.clone(),
            shutdown: handle.let_go.clone(),
            lease: Lease::new(self.inner.clone(), number, permit),
        };
        (handle, setup)
    }
}
