//! Keeps the first and the last part of an output that may be endless.

use protocol::{limits::shown_len, message::Captured};

/// The start of an output in three fifths of the cap and, in a ring, its end in the other two. Everything between is
/// counted and dropped, so a program that prints gigabytes costs no more memory than the cap.
#[derive(Debug)]
pub struct Capture {
    head: Vec<u8>,
    head_cap: usize,
    ring: Vec<u8>,
    ring_cap: usize,
    /// Index of the oldest byte in the ring, which the next byte replaces once the ring is full.
    next: usize,
    total: u64,
    /// Length of the output as it is shown. Not counted further once it exceeds `spill_from`.
    shown: usize,
    /// The length beyond which the whole output is also spilled.
    spill_from: usize,
    cap: u64,
}

impl Capture {
    /// Creates a capture that keeps `cap` bytes, and spills an output that is longer than that, or longer than
    /// `spill_from` as it is [shown](shown_len).
    pub fn new(cap: usize, spill_from: usize) -> Self {
        let head_cap = cap - cap * 2 / 5;
        Self {
            head: vec![],
            head_cap,
            ring: vec![],
            ring_cap: cap - head_cap,
            next: 0,
            total: 0,
            shown: 0,
            spill_from,
            cap: cap as u64,
        }
    }

    /// Adds the next bytes. Once the output is long, and at the latest when bytes are dropped here, `spill` gets all
    /// bytes that were ever pushed, in order; before that it gets none.
    pub fn push(&mut self, mut bytes: &[u8], mut spill: impl FnMut(&[u8])) {
        let was_long = self.is_long();
        self.total += bytes.len() as u64;
        if !was_long {
            self.shown += shown_len(bytes);
        }
        if self.is_long() {
            if !was_long {
                self.pieces().into_iter().for_each(&mut spill);
            }
            spill(bytes);
        }
        let to_head = bytes.len().min(self.head_cap - self.head.len());
        self.head.extend_from_slice(&bytes[..to_head]);
        bytes = &bytes[to_head..];

        let skip = bytes.len().saturating_sub(self.ring_cap);
        bytes = &bytes[skip..];
        let to_grow = bytes.len().min(self.ring_cap - self.ring.len());
        self.ring.extend_from_slice(&bytes[..to_grow]);
        bytes = &bytes[to_grow..];
        while !bytes.is_empty() {
            let n = bytes.len().min(self.ring_cap - self.next);
            self.ring[self.next..self.next + n].copy_from_slice(&bytes[..n]);
            self.next = (self.next + n) % self.ring_cap;
            bytes = &bytes[n..];
        }
    }

    /// The captured bytes, as three pieces in order.
    pub fn pieces(&self) -> [&[u8]; 3] {
        [&self.head, &self.ring[self.next..], &self.ring[..self.next]]
    }

    /// At most `most` of the newest bytes, without a gap.
    pub fn latest(&self, most: usize) -> Vec<u8> {
        let [head, older, newer] = self.pieces();
        let mut latest = [if self.is_cut() { &[] } else { head }, older, newer];
        let mut left = most;
        for piece in latest.iter_mut().rev() {
            *piece = &piece[piece.len().saturating_sub(left)..];
            left -= piece.len();
        }
        latest.concat()
    }

    /// The number of bytes that were pushed.
    pub fn total(&self) -> u64 {
        self.total
    }

    fn is_long(&self) -> bool {
        self.total > self.cap || self.shown > self.spill_from
    }

    fn is_cut(&self) -> bool {
        self.total > (self.head_cap + self.ring_cap) as u64
    }

    /// The sizes of the captured parts, as they are sent.
    pub fn captured(&self) -> Captured {
        Captured { head: self.head.len(), tail: self.ring.len(), total: self.total }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn head_and_tail_are_kept_whatever_the_pieces(
            cap in 0usize..40,
            spill_from in 0usize..60,
            most in 0usize..60,
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..12),
        ) {
            let mut capture = Capture::new(cap, spill_from);
            let mut spilt = vec![];
            for piece in &pieces {
                capture.push(piece, |bytes| spilt.extend_from_slice(bytes));
            }
            let all = pieces.concat();
            let kept = capture.pieces().concat();
            let spills = all.len() > cap || shown_len(&all) > spill_from;
            prop_assert_eq!(&spilt[..], if spills { &all[..] } else { &[] });
            let latest = capture.latest(most);
            prop_assert!(all.ends_with(&latest));
            let there = if all.len() > cap { cap * 2 / 5 } else { all.len() };
            prop_assert_eq!(latest.len(), most.min(there));
            prop_assert_eq!(capture.captured().total, all.len() as u64);
            if all.len() <= cap {
                prop_assert_eq!(kept, all);
            } else {
                let tail = cap * 2 / 5;
                let head = cap - tail;
                prop_assert_eq!(&kept[..head], &all[..head]);
                prop_assert_eq!(&kept[head..], &all[all.len() - tail..]);
            }
        }
    }
}
