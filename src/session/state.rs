//! The rules of a session, without time, tasks or sandboxes: what is allowed in which state.
//!
//! ```text
//!            first use         Run
//!   Pooled -----------> Idle <-------> Running      file operations go on beside a run
//!                       |  ^ run_ended
//!            `hibernate`|  | next use
//!                       v  |
//!                    Hibernating
//! ```
//!
//! A session that is unused for `hibernate` hibernates, or earlier if its place is needed; one that is unused for `ttl`
//! ends. A session that waits for its first use does neither.

use std::time::{Duration, Instant};

use super::phase::Phase;

/// The state of a session.
#[derive(Debug, Clone)]
pub(crate) struct State {
    running: bool,
    /// File operations in progress.
    operations: usize,
    /// Time of the last use; `None` before the first use, if the session is in the pool.
    last_used: Option<Instant>,
    /// Whether the session has begun to hibernate since it was last used.
    hibernating: bool,
    limits: IdleLimits,
}

/// How long a session may be unused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleLimits {
    /// Time until it hibernates.
    pub(crate) hibernate: Duration,
    /// Time until it ends.
    pub(crate) ttl: Duration,
}

impl State {
    /// A session that is in use from now on.
    pub(crate) fn new(now: Instant, limits: IdleLimits) -> Self {
        Self { last_used: Some(now), ..Self::waiting(limits) }
    }

    /// A session that waits for its first use.
    pub(crate) fn waiting(limits: IdleLimits) -> Self {
        Self { running: false, operations: 0, last_used: None, hibernating: false, limits }
    }

    /// Records the start of a run, unless one is in progress.
    pub(crate) fn begin_run(&mut self, now: Instant) -> Result<(), Busy> {
        if self.running {
            return Err(Busy);
        }
        self.running = true;
        self.touch(now);
        Ok(())
    }

    /// Records the start of a file operation; any number may be in progress.
    pub(crate) fn begin_operation(&mut self, now: Instant) {
        self.operations += 1;
        self.touch(now);
    }

    pub(crate) fn run_ended(&mut self, now: Instant) {
        debug_assert!(self.running);
        self.running = false;
        self.touch(now);
    }

    pub(crate) fn operation_ended(&mut self, now: Instant) {
        debug_assert!(self.operations > 0);
        self.operations = self.operations.saturating_sub(1);
        self.touch(now);
    }

    pub(crate) fn touch(&mut self, now: Instant) {
        self.last_used = Some(now);
        self.hibernating = false;
    }

    pub(crate) fn hibernation_began(&mut self) {
        self.hibernating = true;
    }

    /// Records that the session has its sandbox again, without a use.
    pub(crate) fn woke(&mut self) {
        self.hibernating = false;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// The phase that viewers see.
    pub(crate) fn phase(&self) -> Phase {
        match self.last_used {
            None => Phase::Pooled,
            Some(_) if self.running => Phase::Running,
            Some(_) if self.hibernating => Phase::Hibernating,
            Some(_) => Phase::Idle,
        }
    }

    /// When the session will have been unused for its time to live; `None` while it is in use.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        Some(self.unused_since()? + self.limits.ttl)
    }

    /// When the session will have been unused for so long that it should hibernate.
    pub(crate) fn hibernates_at(&self) -> Option<Instant> {
        let at = self.unused_since()? + self.limits.hibernate;
        (!self.hibernating).then_some(at)
    }

    /// Since when it has had nothing to do; `None` while it is busy, and before its first use.
    pub(crate) fn unused_since(&self) -> Option<Instant> {
        let in_use = self.running || self.operations > 0;
        self.last_used.filter(|_| !in_use)
    }
}

/// A run is in progress, and only one may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        BeginRun,
        EndRun,
        BeginOperation,
        EndOperation,
        Rest,
        Wait(u64),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::BeginRun),
            Just(Step::EndRun),
            Just(Step::BeginOperation),
            Just(Step::EndOperation),
            Just(Step::Rest),
            (0u64..100).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn one_run_at_a_time_and_neither_rest_nor_end_while_in_use(
            waits: bool,
            steps in prop::collection::vec(any_step(), 0..60),
        ) {
            let limits = IdleLimits { hibernate: Duration::from_secs(20), ttl: Duration::from_secs(50) };
            let mut now = Instant::now();
            let mut state = if waits { State::waiting(limits) } else { State::new(now, limits) };
            let (mut runs, mut operations) = (0, 0);
            let mut used = (!waits).then_some(now);
            let mut rested = false;
            for step in steps {
                match step {
                    Step::BeginRun => {
                        let allowed = state.begin_run(now).is_ok();
                        prop_assert_eq!(allowed, runs == 0);
                        if allowed {
                            (runs, used, rested) = (1, Some(now), false);
                        }
                    }
                    Step::BeginOperation => {
                        state.begin_operation(now);
                        (operations, used, rested) = (operations + 1, Some(now), false);
                    }
                    Step::EndRun if runs > 0 => {
                        state.run_ended(now);
                        (runs, used, rested) = (0, Some(now), false);
                    }
                    Step::EndOperation if operations > 0 => {
                        state.operation_ended(now);
                        (operations, used, rested) = (operations - 1, Some(now), false);
                    }
                    Step::Rest => {
                        state.hibernation_began();
                        rested = true;
                    }
                    Step::Wait(seconds) => now += Duration::from_secs(seconds),
                    Step::EndRun | Step::EndOperation => {}
                }
                prop_assert_eq!(state.is_running(), runs == 1);
                let in_use = runs + operations > 0;
                let unused = used.filter(|_| !in_use);
                prop_assert_eq!(state.expires_at(), unused.map(|at| at + limits.ttl));
                let rests = unused.filter(|_| !rested).map(|at| at + limits.hibernate);
                prop_assert_eq!(state.hibernates_at(), rests);
            }
        }
    }
}
