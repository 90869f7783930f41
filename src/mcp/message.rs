//! A message before it is parsed: the cost of parsing it is bounded, and its one long string is cut out.
//!
//! Seven bytes of JSON can take two thousand of memory once they are parsed, so the structure of a message is counted
//! first, and a message with more than any valid call has is refused. A file in base64 is one string of up to the
//! upload limit. It is cut out, so that parsing does not copy it; the call reads it from the received bytes
//! ([`LongText`]).
//!
//! ```text
//! {"method":"tools/call","params":{..,"content_base64":"QUJD....."}}
//!                                                       '--------'--> LongText
//! {"method":"tools/call","params":{..,"content_base64":"\u0000long"}}  --> parsed
//! ```

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use super::long_text::LongText;
use crate::{
    request::ANSWER_BYTES,
    structure::{Structure, structure},
};

/// Message for the sender of a message that cannot be read.
pub(in crate::mcp) const UNREADABLE_MESSAGE: &str = "The message is not JSON, or contains an unpaired surrogate \
                                  escape, a number out of range, or more than 120 levels of \
                                  nesting. Nothing was done.";

/// Maximum number of structural characters (`{`, `[`, `,` and `:`) outside strings. The largest valid messages have
/// some hundreds; each may take half a kibibyte once it is parsed.
pub(super) const MAX_TOKENS: usize = 2000;

/// Bytes of memory that a structural character takes at most, measured with `{"":0},` repeated: 320
/// times the bytes of the message.
pub(super) const TOKEN_BYTES: usize = 600;

/// Length in bytes above which a string is cut out.
const MIN_CUT_OUT: usize = 256 << 10;

/// Maximum number of bytes of a message without its long string. The longest code, each byte of it escaped, counts
/// as a long string.
pub(super) const MAX_REST: usize = 1 << 20;

/// Maximum memory that a message without its long string and its answer take together, in bytes.
pub(super) const KEPT_BYTES: usize = MAX_REST + MAX_TOKENS * TOKEN_BYTES + ANSWER_BYTES;

/// Maximum number of bytes of an `initialize`: its description of the client is stored for as long as the MCP session
/// lives.
const MAX_INITIALIZE: usize = 16 << 10;

/// Maximum number of structural characters of an `initialize`. Common clients send fewer than fifty.
const MAX_INITIALIZE_TOKENS: usize = 128;

/// Replaces the string that was cut out of a message. The control character ensures that it is not the name of
/// anything.
pub(super) const PLACEHOLDER: &str = "\u{0}long";

/// The placeholder as JSON.
const PLACEHOLDER_JSON: &[u8] = br#""\u0000long""#;

/// A message that may be parsed.
#[derive(Debug, Clone)]
pub(super) struct Message {
    /// The message without the long string. It may be invalid JSON: only its structure was counted.
    pub(super) json: Bytes,
    /// The string that was cut out of the message.
    pub(super) long: Option<LongText>,
    /// Number of structural characters in the message.
    pub(super) tokens: usize,
}

/// Why a message is not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The message has more structure than any valid call.
    TooComplex,
    /// The message is longer than any valid call, even without its longest string.
    TooLong,
}

impl Refused {
    /// The text for the sender of the message.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::TooComplex => {
                "The message has more objects, lists and fields than any valid call. Nothing was \
                 done. Send data as the text of a file."
            }
            Self::TooLong => {
                "The message is longer than any valid call. Nothing was done. Send data as a file."
            }
        }
    }
}

impl Message {
    /// Scans a message in one pass, and cuts out its longest string if it is long.
    ///
    /// # Errors
    /// If parsing it would cost more than any valid call does.
    pub(super) fn read(body: Bytes) -> Result<Self, Refused> {
        let Structure { tokens, longest } =
            structure(&body, MAX_TOKENS).ok_or(Refused::TooComplex)?;
        let Some((start, end)) = longest.filter(|(start, end)| end - start > MIN_CUT_OUT) else {
            return if body.len() > MAX_REST + MIN_CUT_OUT {
                Err(Refused::TooLong)
            } else {
                Ok(Self { json: body, long: None, tokens })
            };
        };
        let rest = body.len() - (end - start);
        if rest > MAX_REST {
            return Err(Refused::TooLong);
        }
        let mut json = BytesMut::with_capacity(rest + PLACEHOLDER_JSON.len());
        json.extend_from_slice(&body[..start]);
        json.extend_from_slice(PLACEHOLDER_JSON);
        json.extend_from_slice(&body[end..]);
        Ok(Self { json: json.freeze(), long: Some(LongText::new(body.slice(start..end))), tokens })
    }

    /// Whether the message is an `initialize` that is too long to be stored by a server with many clients.
    pub(super) fn is_long_initialize(&self) -> bool {
        let is_large = self.long.is_some()
            || self.json.len() > MAX_INITIALIZE
            || self.tokens > MAX_INITIALIZE_TOKENS;
        is_large && self.is_initialize()
    }

    /// Whether the message is an `initialize`, which opens an MCP session in protocol versions that have them.
    pub(super) fn is_initialize(&self) -> bool {
        is_initialize(&self.json)
    }

    /// The part of a request that concerns its answer; the default if the message is no request.
    pub(super) fn asks(&self) -> Asks {
        asks(&self.json).unwrap_or_default()
    }
}

/// The part of a request that concerns its answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asks {
    /// The id that the answer will have; null if there will be none.
    pub(super) id: Value,
    /// Whether the message's client expects messages before the answer: about progress, or from a subscription.
    pub(super) streams: bool,
}

fn asks(body: &[u8]) -> serde_json::Result<Asks> {
    #[derive(serde::Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        #[serde(default)]
        id: Value,
        #[serde(default)]
        params: Params,
    }
    #[derive(Default, serde::Deserialize)]
    struct Params {
        #[serde(default, rename = "_meta")]
        meta: Meta,
    }
    #[derive(Default, serde::Deserialize)]
    struct Meta {
        #[serde(rename = "progressToken")]
        progress_token: Option<serde::de::IgnoredAny>,
    }
    let Request { method, id, params } = serde_json::from_slice(body)?;
    let streams = params.meta.progress_token.is_some() || method == "subscriptions/listen";
    let id = if id.is_string() || id.is_number() { id } else { Value::Null };
    Ok(Asks { id, streams })
}

/// Whether the method is `initialize`, whatever else the message contains. Nothing of it is copied.
fn is_initialize(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Method<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
    }
    serde_json::from_slice::<Method>(body).is_ok_and(|Method { method }| method == "initialize")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn read(json: &str) -> Result<Message, Refused> {
        Message::read(Bytes::from(json.to_owned()))
    }

    #[test]
    fn a_message_that_takes_far_more_memory_than_bytes_is_refused_at_any_length() {
        for bomb in [r#"{"":0},"#, "0,", "[", "[],", r#"{"a":"#] {
            for times in [MAX_TOKENS + 1, 100_000] {
                assert_eq!(read(&bomb.repeat(times)).expect_err(bomb), Refused::TooComplex);
            }
        }
    }

    #[test]
    fn what_stands_in_strings_is_no_structure() {
        let code = r#"{"a": [1, 2, 3]}, \" \\ "#.repeat(10_000);
        let message = json!({ "code": code }).to_string();
        assert_eq!(read(&message).expect("few tokens").tokens, 2);
    }

    #[test]
    fn a_long_string_is_cut_out_wherever_it_stands() {
        let long = "QUJD\n".repeat(100_000);
        for message in [
            json!({ "params": { "arguments": { "a": long, "b": "short" } }, "id": 7 }),
            json!([long]),
            json!(long),
        ] {
            let read = read(&message.to_string()).expect("read");
            assert!(read.json.len() < 200);
            let parsed: Value = serde_json::from_slice(&read.json).expect("JSON");
            let whole = message.to_string().replace(&json!(long).to_string(), "\"\\u0000long\"");
            assert_eq!(parsed, serde_json::from_str::<Value>(&whole).expect("JSON"));
            let text = read.long.expect("cut out").into_string(usize::MAX).expect("a string");
            assert!(text == long);
        }
    }

    #[test]
    fn an_initialize_that_is_long_is_told_from_others() {
        let initialize = |name: usize, method: &str| json!({ "params": { "clientInfo": { "name": "x".repeat(name) } }, "method": method });
        let is_long = |json: &str| read(json).expect("not too long").is_long_initialize();
        assert!(!is_long(&initialize(1000, "initialize").to_string()));
        assert!(!is_long(&initialize(1 << 20, "tools/call").to_string()));
        let escaped = initialize(1 << 20, "?").to_string().replace('?', "initi\\u0061lize");
        let fields = json!({ "method": "initialize", "params": vec![json!({ "": 0 }); 100] });
        let long = initialize(MAX_INITIALIZE, "initialize");
        for long in [long.to_string(), escaped, fields.to_string()] {
            assert!(is_long(&long));
        }
    }

    #[test]
    fn a_request_says_what_it_asks_for() {
        let asks = |message: Value| read(&message.to_string()).expect("short").asks();
        let request = |meta: Value| {
            asks(json!({ "id": 7, "method": "tools/call", "params": { "_meta": meta } }))
        };
        assert_eq!(request(json!({ "progressToken": 0 })), Asks { id: 7.into(), streams: true });
        for meta in [json!({}), json!({ "progressToken": null })] {
            assert_eq!(request(meta), Asks { id: 7.into(), streams: false });
        }
        let listen = json!({ "id": "a", "method": "subscriptions/listen", "params": {} });
        assert_eq!(asks(listen), Asks { id: "a".into(), streams: true });
        let ping = json!({ "id": 1, "method": "ping" });
        assert_eq!(asks(ping), Asks { id: 1.into(), streams: false });
        for other in [
            json!({ "method": "notifications/initialized" }),
            json!({ "id": 1, "result": {} }),
            json!({ "id": [1], "method": "ping" }),
            json!([1]),
        ] {
            assert_eq!(asks(other), Asks::default());
        }
    }

    #[test]
    fn two_strings_that_are_too_long_together_are_refused() {
        let one = "x".repeat(MAX_REST + 1);
        let refused = read(&json!([one, one]).to_string()).expect_err("too long");
        assert_eq!(refused, Refused::TooLong);
        let blank = " ".repeat(MAX_REST + MIN_CUT_OUT + 1);
        assert_eq!(read(&blank).expect_err("too long"), Refused::TooLong);
    }

    #[test]
    fn a_string_without_an_end_does_not_end_the_scan_wrongly() {
        for unfinished in [r#"{"a": ""#, r#""\"#, r#""\""#, "\"", "\\"] {
            assert!(read(unfinished).expect("short").long.is_none(), "{unfinished}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::read(body.into());
        }

        #[test]
        fn tokens_are_counted_as_a_parser_sees_them(keys in prop::collection::vec("\\PC{0,8}", 0..20)) {
            let object: Value = keys.iter().map(|key| (key.clone(), json!([key, 1]))).collect();
            let fields = object.as_object().map_or(0, serde_json::Map::len);
            let expected = if fields == 0 { 1 } else { 1 + fields * 3 + (fields - 1) };
            prop_assert_eq!(read(&object.to_string()).expect("few").tokens, expected);
        }
    }
}
