//! What there is now: sandboxes, what each is doing, and its memory. Looked at when it is asked for.
//!
//! ```text
//!   Starting --> Idle <--> Running       a session: counted as started on its way in, as ended with
//!                 |  ^                   its reason
//!   Pooled -------'  '--> Resting        nobody's yet: counted as neither
//! ```

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge},
    registry::{Registry, Unit},
};

/// What a sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Starting,
    /// It waits for a session.
    Pooled,
    Idle,
    /// A program runs.
    Running,
    /// It has given up what makes runs warm.
    Resting,
}

/// Those of a session, in the order of [`Phase`]; `None` is nobody's.
const STATES: [Option<&str>; 5] =
    [Some("starting"), None, Some("idle"), Some("running"), Some("resting")];

/// Why sessions end.
const REASONS: [&str; 5] = ["closed", "expired", "evicted", "died", "shutdown"];

/// Memory of a sandbox by its agent's last word. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<AtomicU64>);

impl Memory {
    /// In bytes. An agent that does not know says nothing.
    pub(crate) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// No sandbox has none at all.
    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }
}

/// All sandboxes. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Mutex<Vec<Arc<Seen>>>,
    started: Family<Source, Counter>,
    ended: Family<Reason, Counter>,
}

#[derive(Debug)]
struct Seen {
    phase: AtomicU8,
    memory: OnceLock<(Memory, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Source {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// One sandbox; it is there for as long as this is.
pub(crate) struct Watched {
    watch: Watch,
    seen: Arc<Seen>,
}

impl Watch {
    pub(super) fn begin(&self, phase: Phase) -> Watched {
        let seen = Seen { phase: AtomicU8::new(phase as u8), memory: OnceLock::new() };
        let seen = Arc::new(seen);
        self.lock().push(seen.clone());
        Watched { watch: self.clone(), seen }
    }

    pub(super) fn register(&self, ours: &mut Registry) {
        for source in ["demand", "pool"] {
            let _ = self.0.started.get_or_create(&Source { source });
        }
        for reason in REASONS {
            let _ = self.0.ended.get_or_create(&Reason { reason });
        }
        ours.register(
            "sessions_started",
            "Sessions by whether their sandbox waited in the pool or was started for them",
            self.0.started.clone(),
        );
        ours.register(
            "sessions_ended",
            "Sessions that have ended, by reason",
            self.0.ended.clone(),
        );
        ours.register_collector(Box::new(self.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Seen>>> {
        self.0.all.lock()
    }
}

impl Watched {
    /// It is doing this now.
    pub(crate) fn set(&self, phase: Phase) {
        let before = self.seen.phase.swap(phase as u8, Ordering::Relaxed);
        let source = match before {
            before if before == phase as u8 => return,
            before if before == Phase::Starting as u8 => "demand",
            before if before == Phase::Pooled as u8 => "pool",
            _ => return,
        };
        self.watch.0.started.get_or_create(&Source { source }).inc();
    }

    /// Where its memory can be read, and the most it can be, whatever its agent says.
    pub(crate) fn measured_by(&self, memory: Memory, limit: u64) {
        let _ = self.seen.memory.set((memory, limit));
    }

    /// It is gone.
    pub(crate) fn ended(self, reason: &'static str) {
        if STATES[usize::from(self.seen.phase.load(Ordering::Relaxed))].is_some() {
            self.watch.0.ended.get_or_create(&Reason { reason }).inc();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.lock().retain(|seen| !Arc::ptr_eq(seen, &self.seen));
    }
}

impl Collector for Watch {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut phases = [0u64; STATES.len()];
        let mut memory = vec![];
        for seen in self.lock().iter() {
            phases[usize::from(seen.phase.load(Ordering::Relaxed))] += 1;
            let measured = seen.memory.get();
            memory.extend(measured.and_then(|(memory, limit)| Some(memory.get()?.min(*limit))));
        }
        let mut gauge = |name, help, unit: Option<&Unit>, value: u64| {
            let encoder = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(value).encode(encoder)
        };
        gauge(
            "pooled_sandboxes",
            "Sandboxes that wait for a session.",
            None,
            phases[Phase::Pooled as usize],
        )?;
        // Nought is what no sandboxes have. Those of which nobody knows are no figure at all.
        if !memory.is_empty() || phases.iter().sum::<u64>() == 0 {
            let bytes = Some(&Unit::Bytes);
            let help = "Memory of all sandboxes, as their agents said in the last ten seconds.";
            gauge("sandbox_memory", help, bytes, memory.iter().sum())?;
            let help = "Memory of the sandbox that has most.";
            gauge("largest_sandbox_memory", help, bytes, memory.into_iter().max().unwrap_or(0))?;
        }
        let help = "Sessions by what they do.";
        let mut states = encoder.encode_descriptor("sessions", help, None, MetricType::Gauge)?;
        for (state, count) in STATES.into_iter().zip(phases) {
            if let Some(state) = state {
                ConstGauge::new(count).encode(states.encode_family(&[("state", state)])?)?;
            }
        }
        Ok(())
    }
}
