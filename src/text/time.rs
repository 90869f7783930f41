//! Times as programs read them.

use std::time::Duration;

/// Whole milliseconds, rounded up: what took any time took one.
pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).div_ceil(1000)
}
