//! The caller's span, as the W3C's `traceparent` passes it on.

use std::str::FromStr;

use hyper::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The caller's span. See <https://www.w3.org/TR/trace-context/#traceparent-header>.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TraceParent {
    /// 32 hexadecimal digits.
    trace_id: String,
    /// 16 hexadecimal digits.
    span_id: String,
    /// Two hexadecimal digits.
    flags: String,
}

/// Length in bytes above which a `tracestate` is dropped: the standard asks nobody to pass on more.
const MAX_STATE: usize = 512;

impl TraceParent {
    /// Reads the `traceparent` header of a request; `None` if there is none, or more than one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all("traceparent").iter();
        let only = all.next().filter(|_| all.next().is_none())?;
        Self::parse(only.to_str().ok()?)
    }

    /// Reads `version-trace-parent-flags`. Any other text is `None`, which is not reported: a trace only helps to find
    /// a call, and is no reason to refuse one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let [version, trace_id, span_id, flags] = [2, 32, 16, 2].map(|len| {
            parts.next().filter(|part| part.len() == len && part.bytes().all(is_lower_hex))
        });
        let (version, trace_id, span_id) = (version?, trace_id?, span_id?);
        let is_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
        // Later versions may have more parts.
        let has_more = parts.next().is_some();
        if version == "ff" || (version == "00" && has_more) || is_zero(trace_id) || is_zero(span_id)
        {
            return None;
        }
        let [trace_id, span_id, flags] = [trace_id, span_id, flags?].map(str::to_owned);
        Some(Self { trace_id, span_id, flags })
    }

    /// The span with the `tracestate` that came with it; one that is not valid is dropped. `None` is impossible for
    /// a span that was parsed.
    pub(super) fn context(&self, state: &str) -> Option<SpanContext> {
        let state = Some(state).filter(|state| !state.is_empty() && state.len() <= MAX_STATE);
        let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
        Some(SpanContext::new(
            TraceId::from_hex(&self.trace_id).ok()?,
            SpanId::from_hex(&self.span_id).ok()?,
            TraceFlags::new(u8::from_str_radix(&self.flags, 16).ok()?),
            true,
            state,
        ))
    }
}

fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_trace_parent_is_read_as_the_standard_has_it() {
        let parsed = TraceParent::parse(&format!("00-{TRACE}-{SPAN}-01")).expect("valid");
        assert_eq!((&*parsed.trace_id, &*parsed.span_id, &*parsed.flags), (TRACE, SPAN, "01"));
        for later in ["", "-", "-what-comes"] {
            let parsed = TraceParent::parse(&format!("cc-{TRACE}-{SPAN}-00{later}"));
            assert_eq!(parsed.expect("a later version").trace_id, TRACE);
        }
    }

    #[test]
    fn what_is_not_exactly_one_is_none() {
        let zeros = "0".repeat(32);
        for wrong in [
            String::new(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01more"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}0-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-zz"),
            format!("00-{TRACE}-{SPAN}"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01\n"),
            format!("00_{TRACE}_{SPAN}_01"),
        ] {
            assert_eq!(TraceParent::parse(&wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_digits_ever_comes_of_it(text in "([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\\PC{0,3})|\\PC{0,60}") {
            if let Some(parsed) = TraceParent::parse(&text) {
                let all = [parsed.trace_id, parsed.span_id, parsed.flags].concat();
                prop_assert!(all.len() == 50 && all.bytes().all(is_lower_hex));
            }
        }
    }
}
