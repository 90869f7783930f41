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
