//! The rules of a session, without time, tasks or sandboxes: what may be done in which state.
//!
//! ```text
//!          Run
//!   Idle ------> Running        file operations go on beside a run
//!    ^              |
//!    '--------------'  run_ended
//! ```

use std::time::{Duration, Instant};

/// What is going on in a session.
#[derive(Debug, Clone)]
pub(crate) struct State {
    running: bool,
    /// File operations under way.
    operations: usize,
    last_used: Instant,
    ttl: Duration,
}

impl State {
    pub(crate) fn new(now: Instant, ttl: Duration) -> Self {
        Self { running: false, operations: 0, last_used: now, ttl }
    }

    /// Takes note of a run, unless there is one already.
    pub(crate) fn begin_run(&mut self, now: Instant) -> Result<(), Busy> {
        if self.running {
            return Err(Busy);
        }
        self.running = true;
        self.last_used = now;
        Ok(())
    }

    /// Takes note of a file operation; there may be any number.
    pub(crate) fn begin_operation(&mut self, now: Instant) {
        self.operations += 1;
        self.last_used = now;
    }

    pub(crate) fn run_ended(&mut self, now: Instant) {
        debug_assert!(self.running);
        self.running = false;
        self.last_used = now;
    }

    pub(crate) fn operation_ended(&mut self, now: Instant) {
        debug_assert!(self.operations > 0);
        self.operations = self.operations.saturating_sub(1);
        self.last_used = now;
    }

    pub(crate) fn touch(&mut self, now: Instant) {
        self.last_used = now;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// When nobody will have used the session for its time to live; never while it is in use.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let in_use = self.running || self.operations > 0;
        if in_use { None } else { Some(self.last_used + self.ttl) }
    }
}

/// A run is in progress, and there is one at a time.
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
        Wait(u64),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::BeginRun),
            Just(Step::EndRun),
            Just(Step::BeginOperation),
            Just(Step::EndOperation),
            (0u64..100).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn one_run_at_a_time_and_no_end_while_in_use(steps in prop::collection::vec(any_step(), 0..60)) {
            let ttl = Duration::from_secs(50);
            let mut now = Instant::now();
            let mut state = State::new(now, ttl);
            let (mut runs, mut operations, mut used) = (0, 0, now);
            for step in steps {
                match step {
                    Step::BeginRun => {
                        let allowed = state.begin_run(now).is_ok();
                        prop_assert_eq!(allowed, runs == 0);
                        if allowed {
                            (runs, used) = (1, now);
                        }
                    }
                    Step::BeginOperation => {
                        state.begin_operation(now);
                        (operations, used) = (operations + 1, now);
                    }
                    Step::EndRun if runs > 0 => {
                        state.run_ended(now);
                        (runs, used) = (0, now);
                    }
                    Step::EndOperation if operations > 0 => {
                        state.operation_ended(now);
                        (operations, used) = (operations - 1, now);
                    }
                    Step::Wait(seconds) => now += Duration::from_secs(seconds),
                    Step::EndRun | Step::EndOperation => {}
                }
                prop_assert_eq!(state.is_running(), runs == 1);
                let in_use = runs + operations > 0;
                prop_assert_eq!(state.expires_at(), (!in_use).then_some(used + ttl));
            }
        }
    }
}
