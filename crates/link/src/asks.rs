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

/// A question of a program, or its end.
#[derive(Debug, Clone)]
pub enum Asked {
    /// A program asks.
    Question(Question),
    /// Nobody waits for the answer to the question with this number any more.
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
    /// The number of the last question.
    last: u32,
    open: HashSet<u32>,
    pausing: HashSet<u32>,
    /// When the pause in progress began.
    since: Option<Instant>,
    /// Time of all pauses that are over.
    paused: Duration,
}

impl State {
    /// Notes that a question needs no answer any more.
    fn close(&mut self, number: u32) -> bool {
        if self.pausing.remove(&number)
            && self.pausing.is_empty()
            && let Some(since) = self.since.take()
        {
            self.paused += since.elapsed();
        }
        self.open.remove(&number)
    }
}

impl Asks {
    /// The receiving end for a link, and the questions that arrive over it.
    pub(super) fn receiver(&self) -> (Incoming, mpsc::Receiver<Asked>) {
        let (sender, asked) = mpsc::channel(2 * MAX_ASKS);
        (Incoming { sender, state: self.0.clone() }, asked)
    }

    /// Forgets the questions of a run that is over: the agent has dropped them.
    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        for number in state.open.drain().collect::<Vec<_>>() {
            state.close(number);
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

impl Link {
    /// Answers a question; no error if nobody waits for the answer any more.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn answer(&self, number: u32, answer: Bytes) -> Result<(), LinkError> {
        let answered = self.call(&Answer { ask: number }, answer).await.map(drop);
        self.asks.0.lock().close(number);
        answered
    }

    /// Stops the processes of the run whose program asks, until its question is answered. That time does not count
    /// against the run's deadline.
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
        self.call(&Pause { ask: number }, Bytes::new()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes in a question with this number.
    async fn ask(incoming: &Incoming, number: u32) -> Result<(), String> {
        let head = serde_json::to_vec(&Ask { run: 1, again: false, paused: false });
        incoming.take(Kind::Ask, number, &head.expect("serializes"), Bytes::new()).await
    }

    #[tokio::test]
    async fn questions_are_bounded_and_those_of_a_run_end_with_it() {
        let asks = Asks::default();
        let (incoming, mut asked) = asks.receiver();
        let most = u32::try_from(MAX_ASKS).expect("small");
        for run in 0..3 {
            for number in 1..=most {
                ask(&incoming, run * most + number).await.expect("within the rules");
                assert!(matches!(asked.recv().await, Some(Asked::Question(_))));
            }
            assert!(ask(&incoming, (run + 1) * most + 1).await.is_err(), "one too many");
            asks.0.lock().pausing.insert(run * most + 1);
            asks.0.lock().since = Some(Instant::now());
            assert!(asks.is_paused());
            asks.end();
            assert!(!asks.is_paused());
        }
    }

    #[tokio::test]
    async fn a_question_that_comes_again_is_taken_once() {
        let asks = Asks::default();
        let (incoming, mut asked) = asks.receiver();
        for number in [1, 2, 2, 1] {
            ask(&incoming, number).await.expect("within the rules");
        }
        incoming.take(Kind::Withdraw, 2, b"{}", Bytes::new()).await.expect("within the rules");
        incoming.take(Kind::Withdraw, 7, b"{}", Bytes::new()).await.expect("it was answered");
        drop(incoming);
        let mut seen = vec![];
        while let Some(asked) = asked.recv().await {
            seen.push(match asked {
                Asked::Question(question) => (question.number, false),
                Asked::Withdrawn(number) => (number, true),
            });
        }
        assert_eq!(seen, [(1, false), (2, false), (2, true)]);
    }
}
