//! A limit on lines for refused calls, which cost a caller next to nothing: those beyond it are only counted.

use std::{collections::BTreeMap, num::NonZeroU32};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::Record;

/// The number of callers above which callers without recent refusals are removed.
const MANY: usize = 1024;

/// The refused calls of all callers.
#[derive(Debug)]
pub(super) struct Refusals {
    /// The rate of lines for refused calls, for each caller; `None` for no limit.
    rate: Option<DefaultKeyedRateLimiter<String>>,
    /// The number of calls without a line, by caller.
    omitted: BTreeMap<String, u64>,
}

impl Refusals {
    /// Creates a limit of this many lines a minute for each caller.
    pub(super) fn new(per_minute: Option<NonZeroU32>) -> Self {
        let rate = per_minute.map(|per_minute| RateLimiter::keyed(Quota::per_minute(per_minute)));
        Self { rate, omitted: BTreeMap::new() }
    }

    /// The number of earlier calls of the same caller without a line, for this call's line; `None` if this call gets
    /// none.
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

    /// Takes the counts that no line has yet.
    pub(super) fn take(&mut self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.omitted)
    }
}
