//! Questions of the programs of a run: they are answered beside the loop, and given up with the run.

use std::{collections::HashMap, sync::Arc};

use futures::future::FutureExt;
use link::{Asked, LinkOwner, Question};
use model::{Approval, RunId};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{super::events::SessionEvent, Driver, Finished};
use crate::calls::{Asking, Begun, Called, Granted, not_enabled};

/// The questions of a session's programs.
pub(super) struct Questions {
    pub(super) asked: mpsc::Receiver<Asked>,
    /// Those without an answer, each with the token that gives it up.
    open: HashMap<u32, CancellationToken>,
    /// Tools that a person has allowed for the session.
    granted: Granted,
    /// The calls that wait for a person.
    waiting: Arc<watch::Sender<Vec<Arc<Approval>>>>,
    pub(super) waits: watch::Receiver<Vec<Arc<Approval>>>,
}

impl Questions {
    pub(super) fn new(link: &mut LinkOwner) -> Self {
        let (waiting, waits) = watch::channel(vec![]);
        // A link has one receiver, and its session takes it.
        let asked = link.take_asked().unwrap_or_else(|| mpsc::channel(1).1);
        let (open, granted, waiting) = (HashMap::new(), Granted::default(), Arc::new(waiting));
        Self { asked, open, granted, waiting, waits }
    }

    /// The questions of another link of the same session.
    pub(super) fn replace(&mut self, link: &mut LinkOwner) {
        self.end_all();
        *self = Self { granted: self.granted.clone(), ..Self::new(link) };
    }

    /// The call for which the run waits for a person.
    pub(super) fn first_waiting(&self) -> Option<Arc<Approval>> {
        self.waiting.borrow().first().cloned()
    }

    /// Gives up all questions: their run is over.
    pub(super) fn end_all(&mut self) {
        self.open.drain().for_each(|(_, given_up)| given_up.cancel());
    }
}

impl Driver {
    pub(super) fn take_question(&mut self, asked: Asked) {
        match asked {
            Asked::Withdrawn(number) => {
                if let Some(given_up) = self.questions.open.remove(&number) {
                    given_up.cancel();
                }
            }
            Asked::Question(question) => self.begin_to_answer(question),
        }
    }

    fn begin_to_answer(&mut self, question: Question) {
        let (link, number) = (self.link.clone(), question.number);
        let Some((run_id, progress, calls)) =
            self.current.as_ref().filter(|_| link.is_of_run(&question)).and_then(|run| {
                Some((run.run_id().clone(), run.progress.clone(), run.calls.clone()?))
            })
        else {
            let answering = async move { drop(link.answer(number, not_enabled()).await) };
            self.work.push(answering.map(|()| Finished::Upkeep).boxed());
            return;
        };
        let given_up = CancellationToken::new();
        self.questions.open.insert(number, given_up.clone());
        let asking = Asking {
            session: self.setup.id.clone(),
            run_id,
            link: link.clone(),
            granted: self.questions.granted.clone(),
            waiting: self.questions.waiting.clone(),
            progress,
        };
        let answering = async move {
            let begun = Begun::default();
            let answering = calls.answer(question, &asking, &begun);
            let called = match given_up.run_until_cancelled(answering).await {
                Some((answer, called)) => {
                    // Fails if the link ends, and then the session does.
                    let _ = link.answer(number, answer).await;
                    called
                }
                None => calls.abandoned(&begun, &asking),
            };
            Finished::Answered(number, called.map(|called| (asking.run_id, called)))
        };
        self.work.push(answering.boxed());
    }

    /// Tells people who view the session which calls wait for them.
    pub(super) fn show_waiting(&mut self) {
        let approvals = self.questions.waits.borrow_and_update().clone();
        if let Some(run) = &self.current {
            let event = SessionEvent::Waiting { run_id: run.run_id(), approvals: &approvals };
            self.setup.observers.notify(&event);
        }
    }

    /// Notes a call. Its run may be over, if it was given up.
    pub(super) fn note_call(&mut self, number: u32, called: Option<(RunId, Called)>) {
        self.questions.open.remove(&number);
        if let Some((run_id, called)) = &called {
            self.setup.observers.notify(&SessionEvent::Called { run_id, called });
        }
    }
}
