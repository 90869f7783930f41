//! The questions of programs: each waits here until the server answers it, the program goes away, or its run ends.
//!
//! ```text
//! a program's thread -- ask --> open --> frame to the server      main thread -- answer --> the program's thread
//!                                 '-- paused: the run waits for a person
//! ```

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard},
};

use protocol::{
    frame::Kind,
    message::{Ask, MAX_ASK, MAX_ASKS, Withdraw},
};

use crate::Replies;

/// Receives the answer to a question; dropped without it if the run ends.
pub type Then = Box<dyn FnOnce(Vec<u8>) + Send>;

/// The questions that are open. Clones share them.
#[derive(Clone)]
pub struct Asks {
    replies: Replies,
    state: Arc<Mutex<State>>,
    /// Called when a run must pause, or may go on.
    wake: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// Whether the server answers questions.
    enabled: bool,
    /// Call id of the run in progress.
    run: Option<u32>,
    /// The number of the last question.
    last: u32,
    open: BTreeMap<u32, Open>,
}

struct Open {
    question: Vec<u8>,
    paused: bool,
    then: Then,
}

impl fmt::Debug for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asks").finish_non_exhaustive()
    }
}

impl Asks {
    /// No questions. `wake` is called when a run must pause, or may go on.
    pub fn new(replies: Replies, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { replies, state: Arc::default(), wake: Arc::new(wake) }
    }

    /// Allows questions from now on.
    pub fn enable(&self) {
        self.lock().enabled = true;
    }

    /// Whether programs may ask.
    pub fn are_enabled(&self) -> bool {
        self.lock().enabled
    }

    /// Notes that the run with this call id begins.
    pub fn begin(&self, run: u32) {
        self.lock().run = Some(run);
    }

    /// Drops all questions: their run is over.
    pub fn end(&self) {
        let mut state = self.lock();
        state.run = None;
        state.open.clear();
    }

    /// The call id of the run in progress.
    pub fn run(&self) -> Option<u32> {
        self.lock().run
    }

    /// Sends a question of this run to the server. Returns its number; `None` if another run or none is in progress, it
    /// is too long, or too many are open.
    pub fn ask(&self, run: u32, question: Vec<u8>, then: Then) -> Option<u32> {
        // The lock is held until the frame is sent, so that the numbers arrive in their order.
        let mut state = self.lock();
        if !state.enabled || state.run != Some(run) {
            return None;
        }
        if question.len() > MAX_ASK || state.open.len() >= MAX_ASKS {
            return None;
        }
        state.last += 1;
        let number = state.last;
        let ask = Ask { run, again: false, paused: false };
        self.replies.tell(number, Kind::Ask, &ask, &question).ok()?;
        state.open.insert(number, Open { question, paused: false, then });
        Some(number)
    }

    /// Tells the server that nobody waits for this answer any more.
    pub fn withdraw(&self, number: u32) {
        let was_paused = {
            let mut state = self.lock();
            let Some(open) = state.open.remove(&number) else { return };
            // Fails only if the agent ends.
            let _ = self.replies.tell(number, Kind::Withdraw, &Withdraw {}, &[]);
            open.paused
        };
        if was_paused {
            (self.wake)();
        }
    }

    /// Passes the answer on, if somebody still waits for it.
    pub(crate) fn answer(&self, number: u32, answer: Vec<u8>) {
        let open = self.lock().open.remove(&number);
        let Some(Open { then, paused, .. }) = open else { return };
        then(answer);
        if paused {
            (self.wake)();
        }
    }

    /// Pauses the run until this question is answered, or ends that pause.
    pub(crate) fn pause(&self, number: u32, paused: bool) {
        if let Some(open) = self.lock().open.get_mut(&number) {
            open.paused = paused;
        }
        (self.wake)();
    }

    /// Whether the run must not go on before a question is answered.
    pub fn is_paused(&self) -> bool {
        self.lock().open.values().any(|open| open.paused)
    }

    /// Sends all open questions once more, after the stream was lost: to the same server, which knows which of them it
    /// has received, or to another.
    ///
    /// # Errors
    /// If the new stream is lost as well, and no other will come.
    pub fn repeat(&self, to_another: bool) -> io::Result<()> {
        let state = self.lock();
        let Some(run) = state.run else { return Ok(()) };
        state.open.iter().try_for_each(|(number, Open { question, paused, .. })| {
            let ask = Ask { run, again: to_another, paused: *paused };
            self.replies.tell(*number, Kind::Ask, &ask, question)
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outlet;

    #[derive(Debug)]
    struct Nowhere;

    impl Outlet for Nowhere {
        fn send(&mut self, _: u32, _: Kind, _: &[u8], _: &[&[u8]]) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_question_of_a_run_that_is_over_is_not_one_of_the_next() {
        let asks = Asks::new(Replies::to(Arc::new(Mutex::new(Nowhere))), || {});
        asks.enable();
        let ask = |run| asks.ask(run, b"q".to_vec(), Box::new(drop));
        asks.begin(1);
        assert_eq!(ask(1), Some(1));
        asks.end();
        assert_eq!(ask(1), None);
        asks.begin(2);
        assert_eq!((ask(1), ask(2)), (None, Some(2)));
    }
}
