//! The current state: sandboxes, the phase of each, and its memory. It is collected when it is read.
//!
//! ```text
//!   Starting --> Idle <--> Running       a session: counted as started on its way in, as ended with
//!                 |  ^                   its reason
//!   Pooled -------'  '--> Hibernating    no session yet: counted as neither
//! ```

use std::{collections::BTreeMap, fmt, sync::Arc};

use link::Vitals;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::session::{
    Phase,
    events::{EndReason, Observer, SessionEvent},
    label::SessionLabel,
    origin::Origin,
};

/// The phases of sandboxes, in the order in which they are counted.
const PHASES: [Phase; 5] =
    [Phase::Starting, Phase::Pooled, Phase::Idle, Phase::Running, Phase::Hibernating];

/// The label of a session's phase; `None` for a pooled sandbox, which has no session.
fn state(phase: Phase) -> Option<&'static str> {
    (phase != Phase::Pooled).then(|| phase.for_operators())
}

/// All sandboxes. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Mutex<Vec<Arc<Seen>>>,
    started: Family<[(&'static str, &'static str); 1], Counter>,
    ended: Family<[(&'static str, &'static str); 1], Counter>,
}

#[derive(Debug)]
struct Seen {
    phase: Mutex<Phase>,
    memory: Mutex<Use>,
    /// The upper bound of its memory, whatever its agent reports.
    memory_limit: u64,
    label: SessionLabel,
}

/// The known memory of a sandbox.
#[derive(Debug, Default)]
enum Use {
    #[default]
    Unknown,
    Told(Vitals),
    /// The sandbox is saved on disk.
    None,
}

impl Use {
    fn bytes(&self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Told(vitals) => vitals.memory(),
            Self::None => Some(0),
        }
    }
}

/// A sandbox, which is counted until this is dropped.
pub(crate) struct SandboxGauge {
    watch: Watch,
    seen: Arc<Seen>,
}

impl Watch {
    pub(super) fn begin(
        &self,
        origin: Origin,
        memory_limit: u64,
        label: SessionLabel,
    ) -> SandboxGauge {
        let phase = match origin {
            Origin::Pooled => Phase::Pooled,
            _ => Phase::Starting,
        };
        let (phase, memory) = (Mutex::new(phase), Mutex::default());
        let seen = Seen { phase, memory, memory_limit, label };
        let seen = Arc::new(seen);
        self.lock().push(seen.clone());
        SandboxGauge { watch: self.clone(), seen }
    }

    pub(super) fn register(&self, ours: &mut Registry) {
        for source in ["demand", "pool"] {
            let _ = self.0.started.get_or_create(&[("source", source)]);
        }
        for reason in EndReason::ALL {
            let _ = self.0.ended.get_or_create(&[("reason", reason.as_str())]);
        }
        ours.register(
            "sessions_started",
            "Sessions started, by whether their sandbox came from the pool or was started on demand",
            self.0.started.clone(),
        );
        ours.register("sessions_ended", "Sessions ended, by reason", self.0.ended.clone());
        ours.register_collector(Box::new(self.clone()));
    }

    /// The same sandboxes by caller.
    pub(super) fn by_caller(&self) -> WatchByCaller {
        WatchByCaller(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Seen>>> {
        self.0.all.lock()
    }
}

impl SandboxGauge {
    fn set(&self, phase: Phase) {
        let before = std::mem::replace(&mut *self.seen.phase.lock(), phase);
        let source = match before {
            before if before == phase => return,
            Phase::Starting => "demand",
            Phase::Pooled => "pool",
            Phase::Idle | Phase::Running | Phase::Hibernating => return,
        };
        self.watch.0.started.get_or_create(&[("source", source)]).inc();
    }

    fn ended(&self, reason: EndReason) {
        if state(*self.seen.phase.lock()).is_some() {
            self.watch.0.ended.get_or_create(&[("reason", reason.as_str())]).inc();
        }
    }
}

impl Observer for SandboxGauge {
    fn observe(&self, event: &SessionEvent<'_>) {
        match event {
            SessionEvent::Started { vitals, .. } => {
                *self.seen.memory.lock() = Use::Told(vitals.clone());
            }
            SessionEvent::Slept => *self.seen.memory.lock() = Use::None,
            SessionEvent::Phase(phase) => self.set(*phase),
            SessionEvent::Ended(reason) => self.ended(*reason),
            SessionEvent::NotStarted
            | SessionEvent::Warmed { .. }
            | SessionEvent::RunBegan { .. }
            | SessionEvent::Wrote { .. }
            | SessionEvent::Waiting { .. }
            | SessionEvent::Called { .. }
            | SessionEvent::RunFailed { .. }
            | SessionEvent::Undone { .. }
            | SessionEvent::RunEnded { .. }
            | SessionEvent::Drawn { .. }
            | SessionEvent::FileAdded { .. }
            | SessionEvent::FileRead { .. }
            | SessionEvent::Recalled(_)
            | SessionEvent::Archived { .. } => {}
        }
    }
}

impl Drop for SandboxGauge {
    fn drop(&mut self) {
        self.watch.lock().retain(|seen| !Arc::ptr_eq(seen, &self.seen));
    }
}

impl Collector for Watch {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut phases = vec![];
        let mut memory = vec![];
        for seen in self.lock().iter() {
            phases.push(*seen.phase.lock());
            let bytes = seen.memory.lock().bytes();
            memory.extend(bytes.map(|bytes| bytes.min(seen.memory_limit)));
        }
        let count = |phase| phases.iter().filter(|other| **other == phase).count() as u64;
        let mut gauge = |name, help, unit: Option<&Unit>, value: u64| {
            let encoder = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(value).encode(encoder)
        };
        gauge("pooled_sandboxes", "Sandboxes waiting for a session.", None, count(Phase::Pooled))?;
        // Without sandboxes the value is zero. If there are some and none has reported its memory, there is no sample.
        if !memory.is_empty() || phases.is_empty() {
            let bytes = Some(&Unit::Bytes);
            let help =
                "Memory of all sandboxes, as reported by their agents in the last ten seconds.";
            gauge("sandbox_memory", help, bytes, memory.iter().sum())?;
            let help = "Memory of the sandbox that uses most.";
            gauge("largest_sandbox_memory", help, bytes, memory.into_iter().max().unwrap_or(0))?;
        }
        let help = "Sessions by state.";
        let mut states = encoder.encode_descriptor("sessions", help, None, MetricType::Gauge)?;
        for phase in PHASES {
            if let Some(state) = state(phase) {
                ConstGauge::new(count(phase)).encode(states.encode_family(&[("state", state)])?)?;
            }
        }
        Ok(())
    }
}

/// The number of sessions of each caller that has one.
#[derive(Debug)]
pub(super) struct WatchByCaller(Watch);

impl Collector for WatchByCaller {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut counts = BTreeMap::<_, u64>::new();
        for seen in self.0.lock().iter().filter(|seen| state(*seen.phase.lock()).is_some()) {
            if let Some(caller) = seen.label.get() {
                *counts.entry(caller.clone()).or_default() += 1;
            }
        }
        if counts.is_empty() {
            return Ok(());
        }
        let help = "Sessions by caller.";
        let gauge = MetricType::Gauge;
        let mut callers = encoder.encode_descriptor("caller_sessions", help, None, gauge)?;
        for (caller, count) in counts {
            ConstGauge::new(count)
                .encode(callers.encode_family(&[("caller", caller.as_str())])?)?;
        }
        Ok(())
    }
}
