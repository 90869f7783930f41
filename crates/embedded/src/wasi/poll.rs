//! The function of WASI that waits for events.

use std::time::Duration;

use super::calls::{Call, Generation};
use crate::files::Errno;

/// Maximum number of events that one call waits for.
const MAX_EVENTS: u32 = 256;

impl Call<'_> {
    /// Returns the time to wait. The events that will have happened by then are already written.
    pub(super) fn poll_oneoff(
        &mut self,
        subscriptions: u32,
        events: u32,
        count: u32,
        done: u32,
    ) -> Result<Duration, Errno> {
        if count == 0 || count > MAX_EVENTS {
            return Err(Errno::Inval);
        }
        // The older generation has one more field, before the clock's number.
        let shift = if self.generation == Generation::Unstable { 8 } else { 0 };
        let size = 48 + shift;
        let mut ready = vec![];
        let mut soonest: Option<(Duration, u64)> = None;
        for number in 0..count {
            let at = subscriptions.checked_add(number * size).ok_or(Errno::Fault)?;
            let user = self.memory.read_u64(at)?;
            let kind = self.memory.get(at.checked_add(8).ok_or(Errno::Fault)?, 1)?[0];
            let field = |offset: u32| at.checked_add(offset).ok_or(Errno::Fault);
            match kind {
                0 => {
                    let clock = self.memory.read_u32(field(16 + shift)?)?;
                    let timeout = self.memory.read_u64(field(24 + shift)?)?;
                    let is_absolute = self.memory.get(field(40 + shift)?, 1)?[0] & 1 == 1;
                    let now = self.time(clock)?;
                    let left = if is_absolute { timeout.saturating_sub(now) } else { timeout };
                    let left = Duration::from_nanos(left);
                    if soonest.is_none_or(|(soonest, _)| left < soonest) {
                        soonest = Some((left, user));
                    }
                }
                1 | 2 => {
                    let fd = self.memory.read_u32(field(16)?)?;
                    let errno = self.process.descriptors.get(fd).err();
                    ready.push((user, errno.map_or(0, |errno| errno as u16), kind));
                }
                _ => return Err(Errno::Inval),
            }
        }
        let wait = match soonest {
            Some((wait, user)) if ready.is_empty() => {
                ready.push((user, 0, 0));
                wait
            }
            _ => Duration::ZERO,
        };
        for (number, (user, errno, kind)) in (0u32..).zip(&ready) {
            let mut event = [0; 32];
            event[..8].copy_from_slice(&user.to_le_bytes());
            event[8..10].copy_from_slice(&errno.to_le_bytes());
            event[10] = *kind;
            if *kind != 0 {
                event[16..24].copy_from_slice(&1u64.to_le_bytes());
            }
            self.memory.write(events.checked_add(number * 32).ok_or(Errno::Fault)?, &event)?;
        }
        self.memory.write_u32(done, u32::try_from(ready.len()).map_err(|_| Errno::Fault)?)?;
        Ok(wait)
    }
}
