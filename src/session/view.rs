//! A session as its viewers see it: its files, and the variables of its workspace. All viewers share one view, because
//! the sandbox walks through everything to make it. A new view is made only when something may have changed. Pure
//! except for [`look`], which the driver calls.

use std::sync::Arc;

use link::{Link, LinkError};
use protocol::message::RuntimeName;

use super::{
    operations::{Inspected, Listing, inspect, list},
    reply::Reply,
};
use crate::error::Result;

/// The part of a session's state that viewers see besides its history.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The session's files.
    pub files: Arc<Listing>,
    /// The interpreters of the session's workspace, by language; empty while a run is in progress.
    pub interpreters: Vec<(RuntimeName, Inspected)>,
}

/// Makes a view of a session, with the interpreters of these languages.
pub(super) async fn look(
    link: &Link,
    languages: Vec<RuntimeName>,
) -> std::result::Result<View, LinkError> {
    let files = Arc::new(list(link).await?);
    let mut interpreters = vec![];
    for language in languages {
        if let Some(found) = inspect(link, language.clone(), true).await?
            && found.interpreter.live
        {
            interpreters.push((language, found));
        }
    }
    Ok(View { files, interpreters })
}

/// The last view, and the callers that wait for the next. States are numbered in ascending order.
#[derive(Default)]
pub(super) struct SharedView {
    last: Option<(u64, Arc<View>)>,
    waiting: Vec<(u64, Reply<Arc<View>>)>,
}

impl SharedView {
    /// Answers with a view of this state, if there is one; otherwise the answer waits for one. Returns true if a view
    /// has to be made now, and false while one is being made.
    pub(super) fn ask(&mut self, state: u64, reply: Reply<Arc<View>>) -> bool {
        match &self.last {
            Some((of, view)) if *of == state => {
                let _ = reply.send(Ok(view.clone()));
                false
            }
            _ => {
                self.waiting.push((state, reply));
                self.waiting.len() == 1
            }
        }
    }

    /// Whether there is a view of this state.
    pub(super) fn has(&self, state: u64) -> bool {
        self.last.as_ref().is_some_and(|(of, _)| *of == state)
    }

    /// Takes a view of this state, or the error that prevented it. Returns true if another has to be made, for callers
    /// that have asked for later states since.
    pub(super) fn seen(&mut self, state: u64, view: Result<View>) -> bool {
        let view = view.map(Arc::new);
        self.last = view.as_ref().ok().map(|view| (state, view.clone()));
        let (done, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(wanted, _)| *wanted <= state || view.is_err());
        for (_, reply) in done {
            // The caller may no longer wait; that is no error.
            let _ = reply.send(view.clone());
        }
        self.waiting = later;
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::{self, error::TryRecvError};

    use super::*;
    use crate::error::Error;

    #[test]
    fn all_who_ask_for_the_same_state_share_a_view() {
        let mut view = SharedView::default();
        let [(first, mut a), (second, mut b), (third, mut c)] =
            [(); 3].map(|()| oneshot::channel());
        assert!(view.ask(1, first), "the first has it made");
        assert!(!view.ask(1, second), "the second waits for the same");
        assert!(matches!(a.try_recv(), Err(TryRecvError::Empty)));
        assert!(!view.seen(1, Ok(View::default())));
        let a = a.try_recv().expect("answered").expect("listed");
        assert!(Arc::ptr_eq(&a, &b.try_recv().expect("answered").expect("listed")));
        assert!(!view.ask(1, third), "the third has it at once");
        assert!(Arc::ptr_eq(&a, &c.try_recv().expect("answered").expect("listed")));
    }

    #[test]
    fn who_asks_for_a_later_state_is_not_told_of_an_earlier_one() {
        let mut view = SharedView::default();
        let [(early, mut a), (late, mut b), (again, mut c)] = [(); 3].map(|()| oneshot::channel());
        assert!(view.ask(1, early));
        assert!(!view.ask(2, late));
        assert!(view.seen(1, Ok(View::default())), "another is needed");
        assert!(a.try_recv().expect("answered").is_ok());
        assert!(matches!(b.try_recv(), Err(TryRecvError::Empty)));
        assert!(!view.seen(2, Ok(View::default())));
        assert!(b.try_recv().expect("answered").is_ok());
        assert!(view.ask(3, again), "something may be different again");
        assert!(matches!(c.try_recv(), Err(TryRecvError::Empty)));
    }

    #[test]
    fn a_view_that_fails_is_told_to_all_and_not_kept() {
        let mut view = SharedView::default();
        let [(one, mut a), (two, mut b), (next, _c)] = [(); 3].map(|()| oneshot::channel());
        view.ask(1, one);
        view.ask(2, two);
        assert!(!view.seen(1, Err(Error::SessionBusy { run: None })));
        assert!(
            a.try_recv().expect("answered").is_err() && b.try_recv().expect("answered").is_err()
        );
        assert!(view.ask(1, next), "the next has it made anew");
    }
}
