//! The form of an answer, by what its client accepts (RFC 9110, section 12.5.1) and by what it asks for.

use hyper::{
    Method,
    header::{ACCEPT, HeaderMap},
};

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One JSON body. Messages before the answer are left out.
    Json,
    /// One JSON body if the answer is ready soon and no message comes before it, otherwise events.
    Either,
    /// A stream of events.
    Events,
}

impl Form {
    /// The form of the answer to a request of this method; `None` if the client accepts neither form. `streams` says
    /// whether the client expects messages before the answer.
    pub(super) fn of(method: &Method, headers: &HeaderMap, streams: bool) -> Option<Self> {
        let json = quality(headers, "application", "json");
        let events = quality(headers, "text", "event-stream");
        match *method {
            Method::GET => (events > 0).then_some(Self::Events),
            Method::POST if json == 0 && events == 0 => None,
            Method::POST if json == 0 || events > json => Some(Self::Events),
            Method::POST if events == 0 || !streams => Some(Self::Json),
            // Either a POST that expects messages and accepts both forms, or another method, whose answer has neither
            // form.
            _ => Some(Self::Either),
        }
    }
}

/// The client's preference for this type, in thousandths: that of the range that names it most precisely. Without the
/// header, or with an empty one, the client accepts anything.
fn quality(headers: &HeaderMap, wanted: &str, subtype: &str) -> u16 {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges = values.flat_map(|value| value.split(',')).map(str::trim).peekable();
    if ranges.peek().is_none_or(|first| first.is_empty()) {
        return ANY;
    }
    let fitting = ranges.filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let (kind, sub) = parts.next()?.split_once('/')?;
        let precision = match (kind, sub) {
            ("*", "*") => 0,
            (kind, "*") if kind.eq_ignore_ascii_case(wanted) => 1,
            (kind, sub)
                if kind.eq_ignore_ascii_case(wanted) && sub.eq_ignore_ascii_case(subtype) =>
            {
                2
            }
            _ => return None,
        };
        let quality = parts.find_map(weight).unwrap_or(ANY);
        Some((precision, quality))
    });
    fitting.max().map_or(0, |(_, quality)| quality)
}

/// The quality of a range that has none of its own.
const ANY: u16 = 1000;

/// The weight that a parameter of a range gives it, if it is one.
fn weight(parameter: &str) -> Option<u16> {
    let (name, value) = parameter.split_once('=')?;
    let value: f32 = name.eq_ignore_ascii_case("q").then_some(value)?.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
    (0.0..=1.0).contains(&value).then(|| (value * f32::from(ANY)).round() as u16)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn of(accept: &[&'static str], streams: bool) -> Option<Form> {
        let accept = accept.iter().map(|value| (ACCEPT, HeaderValue::from_static(value)));
        Form::of(&Method::POST, &accept.collect(), streams)
    }

    #[test]
    fn a_client_is_answered_in_json_unless_it_prefers_events() {
        for (accept, form) in [
            (&[][..], Some(Form::Json)),
            (&[""], Some(Form::Json)),
            (&["*/*"], Some(Form::Json)),
            (&["application/json"], Some(Form::Json)),
            (&["Application/JSON; charset=utf-8"], Some(Form::Json)),
            (&["application/*"], Some(Form::Json)),
            (&["application/json, text/event-stream"], Some(Form::Json)),
            (&["text/event-stream", "application/json"], Some(Form::Json)),
            (&["text/html, application/xhtml+xml, */*;q=0.8"], Some(Form::Json)),
            (&["text/event-stream;q=0.5, application/json;q=0.7"], Some(Form::Json)),
            (&["text/event-stream"], Some(Form::Events)),
            (&["text/*"], Some(Form::Events)),
            (&["text/event-stream, */*;q=0.1"], Some(Form::Events)),
            (&["application/json;q=0.5, text/event-stream"], Some(Form::Events)),
            (&["application/json;q=0, */*"], Some(Form::Events)),
            (&["text/html"], None),
            (&["application/json;q=0"], None),
            (&["*/*;q=0"], None),
            (&["json"], None),
        ] {
            assert_eq!(of(accept, false), form, "{accept:?}");
        }
    }

    #[test]
    fn messages_before_the_answer_are_sent_to_those_who_expect_and_accept_them() {
        for (accept, form) in [
            (&[][..], Form::Either),
            (&["*/*"], Form::Either),
            (&["application/json, text/event-stream"], Form::Either),
            (&["application/json"], Form::Json),
            (&["text/event-stream"], Form::Events),
        ] {
            assert_eq!(of(accept, true), Some(form), "{accept:?}");
        }
    }

    #[test]
    fn a_get_is_answered_in_events() {
        let of = |accept: &'static str| {
            let accept = [(ACCEPT, HeaderValue::from_static(accept))];
            Form::of(&Method::GET, &accept.into_iter().collect(), false)
        };
        assert_eq!(of("text/event-stream"), Some(Form::Events));
        assert_eq!(of("*/*"), Some(Form::Events));
        assert_eq!(of("application/json"), None);
    }
}
