//! Calls that were refused cost their caller next to nothing, and have only so many lines: the others are counted.

use std::{collections::BTreeMap, num::NonZeroU32};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::Record;

/// Callers from which on those that have not been refused lately are forgotten.
const MANY: usize = 1024;

/// What callers were refused.
#[derive(Debug)]
pub(super) struct Refusals {
    /// How often each caller may have a line for that; as often as it likes if there is none.
    rate: Option<DefaultKeyedRateLimiter<String>>,
    /// How many calls have no line, by caller.
    omitted: BTreeMap<String, u64>,
}

impl Refusals {
    /// With so many lines a minute for each caller.
    pub(super) fn new(per_minute: Option<NonZeroU32>) -> Self {
        let rate = per_minute.map(|per_minute| RateLimiter::keyed(Quota::per_minute(per_minute)));
        Self { rate, omitted: BTreeMap::new() }
    }

    /// How many calls of the same caller its line has to count besides; `None` if it is to have none itself.
    pub(super) fn omitted_before(&mut self, record: &Record) -> Option<u64> {
        if record.is_refusal()
            && let Some(rate) = &self.rate
        {
            if rate.len() > MANY {
                rate.retain_recent();
            }
            if rate.check_key(&record.caller).is_err() {
                *self.omitted.entry(record.caller.clone()).or_default() += 1;
                return None;
            }
        }
        Some(self.omitted.remove(&record.caller).unwrap_or(0))
    }

    /// What no line has counted yet.
    pub(super) fn take(&mut self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.omitted)
    }
}
