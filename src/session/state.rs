//! The rules of a session, without time, tasks or sandboxes: what may be done in which state.
//!
//! ```text
//!          Run                    Close
//!   Idle ------> Running        any ------> Closing
//!    ^              |
//!    '--------------'  RunEnded           file operations go on beside a run
//! ```

use std::time::{Duration, Instant};

use crate::error::Error;

/// What is going on in a session.
#[derive(Debug, Clone)]
pub(crate) struct State {
    running: bool,
    closing: bool,
    /// File operations under way.
    operations: usize,
    last_used: Instant,
    ttl: Duration,
}

/// What somebody wants of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Run,
    File,
    Close,
}

impl State {
    pub(crate) fn new(now: Instant, ttl: Duration) -> Self {
        Self { running: false, closing: false, operations: 0, last_used: now, ttl }
    }

    /// Allows a request and takes note of it, or says why not.
    pub(crate) fn admit(&mut self, request: Request, now: Instant) -> Result<(), Refusal> {
        if self.closing {
            return Err(Refusal::Closing);
        }
        match request {
            Request::Run if self.running => return Err(Refusal::Busy),
            Request::Run => self.running = true,
            Request::File => self.operations += 1,
            Request::Close => self.closing = true,
        }
        self.last_used = now;
        Ok(())
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

/// Why a request is not allowed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A run is in progress.
    Busy,
    /// The session is about to end; to a caller it is gone.
    Closing,
}

impl Refusal {
    pub(crate) fn to_error(self, session: &super::SessionId) -> Error {
        match self {
            Self::Busy => Error::SessionBusy,
            Self::Closing => Error::SessionNotFound(session.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Ask(Request),
        EndRun,
        EndOperation,
        Wait(u64),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Ask(Request::Run)),
            4 => Just(Step::Ask(Request::File)),
            1 => Just(Step::Ask(Request::Close)),
            3 => Just(Step::EndRun),
            3 => Just(Step::EndOperation),
            3 => (0u64..100).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn one_run_at_a_time_and_no_end_while_in_use(steps in prop::collection::vec(any_step(), 0..60)) {
            let ttl = Duration::from_secs(50);
            let mut now = Instant::now();
            let mut state = State::new(now, ttl);
            let (mut runs, mut operations, mut closed, mut used) = (0, 0, false, now);
            for step in steps {
                match step {
                    Step::Ask(request) => {
                        let allowed = state.admit(request, now);
                        let expected = match request {
                            _ if closed => Err(Refusal::Closing),
                            Request::Run if runs == 1 => Err(Refusal::Busy),
                            _ => Ok(()),
                        };
                        prop_assert_eq!(allowed, expected);
                        if allowed.is_ok() {
                            used = now;
                            match request {
                                Request::Run => runs += 1,
                                Request::File => operations += 1,
                                Request::Close => closed = true,
                            }
                        }
                    }
                    Step::EndRun if runs > 0 => {
                        state.run_ended(now);
                        (runs, used) = (runs - 1, now);
                    }
                    Step::EndOperation if operations > 0 => {
                        state.operation_ended(now);
                        (operations, used) = (operations - 1, now);
                    }
                    Step::Wait(seconds) => now += Duration::from_secs(seconds),
                    Step::EndRun | Step::EndOperation => {}
                }
                prop_assert!(runs <= 1);
                prop_assert_eq!(state.is_running(), runs == 1);
                let in_use = runs + operations > 0;
                prop_assert_eq!(state.expires_at(), (!in_use).then_some(used + ttl));
            }
        }
    }
}
