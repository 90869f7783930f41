//! Questions of programs, which the agent passes on: they arrive in their order, and each is answered once.
//!
//! ```text
//! agent --Ask, Withdraw--> Incoming --> Asked --> the session --> Link::answer --> agent
//! ```

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{
    frame::Kind,
    message::{Answer, Ask, MAX_ASK, MAX_ASKS, Pause},
};
use tokio::sync::mpsc;

use super::{Link, LinkError, wire::read_json};

/// Maximum number of answers that the agent has not acknowledged. An agent that withdraws its questions could otherwise
/// have any number of them wait.
const MAX_ANSWERS: usize = 4 * MAX_ASKS;

/// A question of a program, or its end.
#[derive(Debug, Clone)]
pub enum Asked {
    /// A program asks.
    Question(Question),
    /// The question with this number needs no answer any more.
    Withdrawn(u32),
}

/// A question of a program. All of it may be anything.
#[derive(Debug, Clone)]
pub struct Question {
    /// Its number, for [`Link::answer`].
    pub number: u32,
    /// The number of the run whose program asks.
    pub run: u32,
    /// If another server may have received it before: whether that one had [paused](Link::pause) the run for it, and so
    /// not carried it out.
    pub before: Option<bool>,
    /// The program's bytes.
    pub body: Bytes,
}

/// The receiving end for questions.
pub(super) struct Incoming {
    sender: mpsc::Sender<Asked>,
    state: Arc<Mutex<State>>,
}

/// The questions without an answer, and the pauses of the run in progress. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Asks(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The number of the run in progress.
    run: Option<u32>,
    /// The number of the last question.
    last: u32,
    open: HashSet<u32>,
    /// The number of answers that the agent has not acknowledged.
    answers: usize,
    pausing: HashSet<u32>,
    /// When the pause in progress began.
    since: Option<Instant>,
    /// Time of all pauses that are over.
    paused: Duration,
}

impl State {
    /// Notes that a question needs no answer any more.
    fn close(&mut self, number: u32) -> bool {
        self.end_pause(number);
        self.open.remove(&number)
    }

    /// Notes that the run is not paused for a question any more. Returns whether it was.
    fn end_pause(&mut self, number: u32) -> bool {
        let was_paused = self.pausing.remove(&number);
        if was_paused
            && self.pausing.is_empty()
            && let Some(since) = self.since.take()
        {
            self.paused += since.elapsed();
        }
        was_paused
    }
}

impl Asks {
    /// The receiving end for a link, and the questions that arrive over it.
    pub(super) fn receiver(&self) -> (Incoming, mpsc::Receiver<Asked>) {
        let (sender, asked) = mpsc::channel(2 * MAX_ASKS);
        (Incoming { sender, state: self.0.clone() }, asked)
    }

    /// Notes that a run begins.
    pub(super) fn begin(&self, run: u32) {
        self.0.lock().run = Some(run);
    }

    /// Notes that a run is over, and with it its questions: all of them arrived before its reply.
    pub(super) fn end(&self, run: u32) {
        let mut state = self.0.lock();
        if state.run.take_if(|it| *it == run).is_some() {
            let open: Vec<_> = state.open.iter().copied().collect();
            for number in open {
                state.close(number);
            }
        }
    }

    /// Time for which runs were paused.
    pub(super) fn paused(&self) -> Duration {
        let state = self.0.lock();
        state.paused + state.since.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Whether the run in progress is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.0.lock().since.is_some()
    }
}

impl Incoming {
    /// Takes in a frame of the agent.
    ///
    /// # Errors
    /// If it violates the protocol.
    pub(super) async fn take(
        &self,
        kind: Kind,
        number: u32,
        head: &[u8],
        body: Bytes,
    ) -> Result<(), String> {
        let asked = if kind == Kind::Withdraw {
            if !self.state.lock().close(number) {
                // It was answered at the same time.
                return Ok(());
            }
            Asked::Withdrawn(number)
        } else {
            let Ask { run, again, paused } = read_json(head).map_err(|error| error.to_string())?;
            let mut state = self.state.lock();
            if number <= state.last {
                // It comes again, because the stream was lost. If it has been answered, its answer is on the way.
                return Ok(());
            }
            if state.open.len() >= MAX_ASKS || body.len() > MAX_ASK {
                return Err("too many questions, or a question that is too long".into());
            }
            if state.answers >= MAX_ANSWERS {
                return Err("too many answers are not acknowledged".into());
            }
            let before = again.then_some(paused);
            state.last = number;
            state.open.insert(number);
            Asked::Question(Question { number, run, before, body })
        };
        // Fails if nobody answers questions here; then they are never answered.
        let _ = self.sender.send(asked).await;
        Ok(())
    }
}

/// An answer that the agent has not acknowledged, until this is dropped.
struct Unacknowledged<'a>(&'a Asks);

impl<'a> Unacknowledged<'a> {
    fn new(asks: &'a Asks) -> Self {
        asks.0.lock().answers += 1;
        Self(asks)
    }
}

impl Drop for Unacknowledged<'_> {
    fn drop(&mut self) {
        self.0.0.lock().answers -= 1;
    }
}

impl Link {
    /// Whether a question is one of the run in progress. An agent may send another run's number, or a question may be
    /// read when its run is already over.
    pub fn is_of_run(&self, question: &Question) -> bool {
        self.asks.0.lock().run == Some(question.run)
    }

    /// Answers a question; no error if nobody waits for the answer any more.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn answer(&self, number: u32, answer: Bytes) -> Result<(), LinkError> {
        let _unacknowledged = Unacknowledged::new(&self.asks);
        let answered = self.call(&Answer { ask: number }, answer).await.map(drop);
        self.asks.0.lock().close(number);
        answered
    }

    /// Stops the processes of the run whose program asks, until its question is answered or [`go_on`](Self::go_on) is
    /// called. That time does not count against the run's deadline.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn pause(&self, number: u32) -> Result<(), LinkError> {
        {
            let mut state = self.asks.0.lock();
            if !state.open.contains(&number) {
                return Ok(());
            }
            state.pausing.insert(number);
            state.since.get_or_insert_with(Instant::now);
        }
        self.call(&Pause { ask: number, over: false }, Bytes::new()).await.map(drop)
    }

    /// Continues the run, unless it is also paused for another question. The time until the answer counts.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn go_on(&self, number: u32) -> Result<(), LinkError> {
        if !self.asks.0.lock().end_pause(number) {
            return Ok(());
        }
        self.call(&Pause { ask: number, over: true }, Bytes::new()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::message::MAX_ASK;

    use super::*;

    /// Heads that an agent may send, most of them nonsense.
    const HEADS: [&[u8]; 6] = [
        br#"{"run":1}"#,
        br#"{"run":2,"again":true,"paused":true}"#,
        br#"{"run":-1}"#,
        br#"{"run":1,"more":[[[[[[]]]]]]}"#,
        b"\xff",
        b"",
    ];

    fn any_frame() -> impl Strategy<Value = (bool, u32, usize, usize)> {
        let number = prop_oneof![0..100u32, any::<u32>()];
        (any::<bool>(), number, 0..HEADS.len(), prop_oneof![Just(1), Just(MAX_ASK + 1)])
    }

    #[test]
    fn the_end_of_a_run_ends_its_questions_and_its_pause() {
        let asks = Asks::default();
        let (incoming, mut asked) = asks.receiver();
        for run in 1..10 {
            asks.begin(run);
            for number in 10 * run..10 * run + 9 {
                let taken = incoming.take(Kind::Ask, number, br#"{"run":1}"#, Bytes::new());
                assert_eq!(futures::FutureExt::now_or_never(taken), Some(Ok(())));
                asked.try_recv().expect("it is passed on");
            }
            let mut state = asks.0.lock();
            state.pausing.insert(10 * run);
            state.since = Some(Instant::now());
            drop(state);
            asks.end(run + 1);
            assert!(asks.is_paused(), "another run");
            asks.end(run);
            assert!(!asks.is_paused() && asks.0.lock().open.is_empty());
        }
    }

    proptest! {
        #[test]
        fn any_frames_keep_the_bounds(frames in prop::collection::vec(any_frame(), 0..200)) {
            let asks = Asks::default();
            let (incoming, mut asked) = asks.receiver();
            let (mut last, mut open) = (0, HashSet::new());
            for (withdraws, number, head, len) in frames {
                let kind = if withdraws { Kind::Withdraw } else { Kind::Ask };
                let body = Bytes::from(vec![0; len]);
                let taken = incoming.take(kind, number, HEADS[head], body);
                let Some(taken) = futures::FutureExt::now_or_never(taken) else {
                    panic!("the session receives");
                };
                match asked.try_recv() {
                    Ok(Asked::Question(question)) => {
                        prop_assert!(taken.is_ok() && number > last && question.body.len() == 1);
                        last = number;
                        open.insert(number);
                    }
                    Ok(Asked::Withdrawn(number)) => prop_assert!(open.remove(&number)),
                    Err(_) => {}
                }
                prop_assert!(open.len() <= MAX_ASKS);
                prop_assert_eq!(&asks.0.lock().open, &open);
            }
        }
    }
}
