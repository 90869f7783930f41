//! The resources that a sandbox uses, as its agent reports them with each ping.

use std::{sync::Arc, time::Duration};

use protocol::message::Pong;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

/// The last report of a sandbox's agent. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Vitals(Arc<Reports>);

#[derive(Debug, Default)]
struct Reports {
    last: watch::Sender<Pong>,
    wanted: Notify,
}

impl Vitals {
    pub(super) fn set(&self, report: Pong) {
        self.0.last.send_replace(report);
    }

    /// Waits until a report is wanted before its time.
    pub(super) async fn wanted(&self) {
        self.0.wanted.notified().await;
    }

    /// The last report; empty before the first ping.
    pub fn report(&self) -> Pong {
        *self.0.last.borrow()
    }

    /// Waits for a new report, at most for this time.
    pub async fn renew(&self, most: Duration) {
        let mut reports = self.0.last.subscribe();
        self.0.wanted.notify_one();
        // Without a new report the last one counts.
        let _ = timeout(most, reports.changed()).await;
    }

    /// The memory in bytes; `None` if it is unknown, as every sandbox uses some.
    pub fn memory(&self) -> Option<u64> {
        self.report().memory_bytes.filter(|bytes| *bytes > 0)
    }
}
