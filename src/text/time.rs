//! Times as programs read them.

use std::time::Duration;

/// Whole milliseconds, rounded up: what took any time took one.
pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).div_ceil(1000)
}

/// A time as people say it, in a unit that makes it short: `59 s`, `30 min`, `3 h`. Rounded down.
pub(crate) fn human_time(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_units_that_people_use() {
        let said =
            [0, 59, 60, 1800, 7199, 7200, 90_000].map(|s| human_time(Duration::from_secs(s)));
        assert_eq!(said, ["0 s", "59 s", "1 min", "30 min", "119 min", "2 h", "25 h"]);
    }
}
