//! The files of a session as its viewers see them. All viewers share one listing, as it costs the
//! sandbox a walk through everything, and it is made anew only when there may be other files. Pure:
//! who makes it is the driver.

use std::sync::Arc;

use super::{operations::Listing, reply::Reply};
use crate::error::Result;

/// The last listing, and who waits for the next. Which files one tells of is a number that grows.
#[derive(Default)]
pub(super) struct ViewerListing {
    last: Option<(u64, Arc<Listing>)>,
    waiting: Vec<(u64, Reply<Arc<Listing>>)>,
}

impl ViewerListing {
    /// Answers with a listing of these files, if there is one. True if one has to be made now; until
    /// then, and while one is being made, the answer waits.
    pub(super) fn ask(&mut self, files: u64, reply: Reply<Arc<Listing>>) -> bool {
        match &self.last {
            Some((of, listing)) if *of == files => {
                let _ = reply.send(Ok(listing.clone()));
                false
            }
            _ => {
                self.waiting.push((files, reply));
                self.waiting.len() == 1
            }
        }
    }

    /// A listing of these files has been made, or could not be. True if another has to be, for those who
    /// have asked since for later ones.
    pub(super) fn listed(&mut self, files: u64, listing: Result<Listing>) -> bool {
        let listing = listing.map(Arc::new);
        self.last = listing.as_ref().ok().map(|listing| (files, listing.clone()));
        let (done, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(wanted, _)| *wanted <= files || listing.is_err());
        for (_, reply) in done {
            // Whoever no longer waits is no error.
            let _ = reply.send(listing.clone());
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
    fn all_who_ask_for_the_same_files_share_a_listing() {
        let mut listing = ViewerListing::default();
        let [(first, mut a), (second, mut b), (third, mut c)] =
            [(); 3].map(|()| oneshot::channel());
        assert!(listing.ask(1, first), "the first has it made");
        assert!(!listing.ask(1, second), "the second waits for the same");
        assert!(matches!(a.try_recv(), Err(TryRecvError::Empty)));
        assert!(!listing.listed(1, Ok(Listing::default())));
        let a = a.try_recv().expect("answered").expect("listed");
        assert!(Arc::ptr_eq(&a, &b.try_recv().expect("answered").expect("listed")));
        assert!(!listing.ask(1, third), "the third has it at once");
        assert!(Arc::ptr_eq(&a, &c.try_recv().expect("answered").expect("listed")));
    }

    #[test]
    fn who_asks_for_later_files_is_not_told_of_earlier_ones() {
        let mut listing = ViewerListing::default();
        let [(early, mut a), (late, mut b), (again, mut c)] = [(); 3].map(|()| oneshot::channel());
        assert!(listing.ask(1, early));
        assert!(!listing.ask(2, late));
        assert!(listing.listed(1, Ok(Listing::default())), "another is needed");
        assert!(a.try_recv().expect("answered").is_ok());
        assert!(matches!(b.try_recv(), Err(TryRecvError::Empty)));
        assert!(!listing.listed(2, Ok(Listing::default())));
        assert!(b.try_recv().expect("answered").is_ok());
        assert!(listing.ask(3, again), "there may be other files again");
        assert!(matches!(c.try_recv(), Err(TryRecvError::Empty)));
    }

    #[test]
    fn a_listing_that_fails_is_told_to_all_and_not_kept() {
        let mut listing = ViewerListing::default();
        let [(one, mut a), (two, mut b), (next, _c)] = [(); 3].map(|()| oneshot::channel());
        listing.ask(1, one);
        listing.ask(2, two);
        assert!(!listing.listed(1, Err(Error::SessionBusy { at_most: None })));
        assert!(
            a.try_recv().expect("answered").is_err() && b.try_recv().expect("answered").is_err()
        );
        assert!(listing.ask(1, next), "the next has it made anew");
    }
}
