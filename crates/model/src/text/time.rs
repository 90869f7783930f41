//! Times for programs and for people.

use std::time::Duration;

use serde_json::Number;

/// Whole milliseconds, rounded up from whole microseconds.
pub fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).div_ceil(1000)
}

/// Milliseconds to three significant digits, from a microsecond on: `0.482`, `2.35`, `23.5`, `235`. Never zero.
pub fn fine_ms(duration: Duration) -> Number {
    let ms = duration.as_secs_f64() * 1e3;
    let parts = match ms {
        ..1.0 => 1e3,
        ..10.0 => 1e2,
        ..100.0 => 1e1,
        _ => return whole_ms(duration).into(),
    };
    let rounded = ((ms * parts).round() / parts).max(0.001);
    Number::from_f64(rounded).expect("a time is finite")
}

/// A time as people say it, in a unit that makes it short: `59 s`, `30 min`, `3 h`. Rounded down.
pub fn human_time(duration: Duration) -> String {
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
    fn short_times_have_fractions_and_long_ones_none() {
        let said = [0, 1, 482, 2_346, 23_449, 99_999, 100_000, 234_567];
        let said = said.map(|us| fine_ms(Duration::from_micros(us)).to_string());
        assert_eq!(said, ["0.001", "0.001", "0.482", "2.35", "23.4", "100.0", "100", "235"]);
    }

    #[test]
    fn times_are_said_in_units_that_people_use() {
        let said =
            [0, 59, 60, 1800, 7199, 7200, 90_000].map(|s| human_time(Duration::from_secs(s)));
        assert_eq!(said, ["0 s", "59 s", "1 min", "30 min", "119 min", "2 h", "25 h"]);
    }
}
