//! The memory of a workspace: how much room there is for copies, which of them are kept if there is little, and which
//! process the system kills first if there is none.

use crate::{
    memory,
    processes::{Children, memory_of, set_oom_score},
    runtimes::python::{EXPENDABLE, PROTECTED, prefork::Prefork},
};

use super::Workspace;

/// The score of a kernel at work whose copy is expendable: the system kills it after the copy, but before the agent.
const AT_WORK: u32 = 700;

/// Use of memory above which no copies of older states are kept, in percent.
const CROWDED: u64 = 90;

/// Bytes that must be free for a copy to be made: as many as it may soon have for itself; the second if that is most of
/// what the kernel has.
const MIN_FREE: u64 = 24 << 20;
const MIN_FREE_UNSHARED: u64 = 96 << 20;

/// The room in memory for a copy of the present state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// None, not even for a copy that has next to nothing for itself.
    None,
    /// Enough for a copy that is killed first when memory runs out.
    Tight,
    /// Enough for a copy that has all of the state for itself.
    Ample,
}

impl Workspace {
    /// How much room there is for a copy. A copy shares the memory that the kernel shares with the fork server.
    pub(super) fn room(&self, prefork: &Prefork) -> Room {
        let own = |pid| memory_of(pid).map_or(0, |(_, own)| own);
        let kernel = self.kernel.as_ref().map_or(0, |kernel| own(kernel.process.pid));
        let shared = || prefork.server().map_or(0, own);
        if !memory::has_room(min_free()) {
            Room::None
        } else if memory::has_room(kernel) || memory::has_room(kernel.saturating_sub(shared())) {
            Room::Ample
        } else {
            Room::Tight
        }
    }

    /// Sets the scores for a cell. A copy of the present state is worth more than the work of the cell, unless there is
    /// no room for both: then honest work on a large state must be able to end.
    pub(super) fn weigh_for_cell(&self, prefork: &Prefork, children: &Children) {
        let Some(kernel) = &self.kernel else { return };
        let copy = self.copies.last().filter(|copy| copy.count == kernel.count);
        let copy = copy.filter(|copy| copy.process.is_alive(children));
        let score = match copy {
            Some(copy) if copy.is_protected => {
                set_oom_score(copy.process.pid, PROTECTED);
                EXPENDABLE
            }
            // Nothing is lost with a kernel that has run no cell.
            None if kernel.count == 0 => EXPENDABLE,
            _ => AT_WORK,
        };
        prefork.set_oom_score(if score == AT_WORK { EXPENDABLE } else { PROTECTED });
        if kernel.process.is_alive(children) {
            set_oom_score(kernel.process.pid, score);
        }
    }

    /// Sets the scores between cells. The kernel is worth the most, because the result of the last cell said that its
    /// state persists.
    pub(super) fn weigh_for_rest(&self, children: &Children) {
        let kernel = self.kernel.iter().map(|kernel| (&kernel.process, PROTECTED));
        let copy = self.copies.last().map(|copy| (&copy.process, EXPENDABLE));
        for (process, score) in kernel.chain(copy) {
            if process.is_alive(children) {
                set_oom_score(process.pid, score);
            }
        }
    }

    /// After a cell: ends the copies, which are of older states, if memory is short.
    pub(super) fn make_room(&mut self, children: &mut Children) {
        if self.copies.is_empty() || !is_crowded() && memory::has_room(min_free()) {
            return;
        }
        for copy in self.copies.drain(..) {
            copy.process.kill(children);
        }
        children.sweep();
    }

    /// Ends the oldest copies, if there are more than may be kept or memory is short.
    pub(super) fn trim(&mut self, children: &mut Children) {
        let most = if is_crowded() { 1 } else { self.undo as usize + 1 };
        let surplus = self.copies.len().saturating_sub(most);
        for copy in self.copies.drain(..surplus) {
            copy.process.kill(children);
        }
    }
}

fn min_free() -> u64 {
    if memory::is_soon_unshared() { MIN_FREE_UNSHARED } else { MIN_FREE }
}

/// Whether there is too little memory for copies of older states.
fn is_crowded() -> bool {
    memory::limit().is_some_and(|limit| !memory::has_room(limit / 100 * (100 - CROWDED)))
}
