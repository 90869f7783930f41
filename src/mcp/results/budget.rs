//! The sizes that fit into one message. Clients drop a connection over a larger message, and with it all their
//! sessions: Python clients over HTTP and Claude Desktop at 1 MiB, TypeScript clients at 10 MiB.

use serde_json::Value;

/// Maximum number of bytes of a message.
pub(in crate::mcp) const MESSAGE: usize = 1_000_000;

/// Maximum number of bytes of a page of text in a message.
pub(in crate::mcp) const PAGE: usize = MESSAGE / 10 * 9;

/// Maximum number of bytes of an image, which base64 makes larger by a third; larger ones are scaled down.
pub(in crate::mcp) const IMAGE: u64 = 700_000;

/// Maximum number of bytes of a file as a resource, which base64 makes larger by a third.
pub(in crate::mcp) const RESOURCE: u64 = 700_000;

/// Maximum number of bytes of a part of a file, which base64 makes larger by a third, and which a message contains
/// twice, as text and as structured content.
pub(in crate::mcp) const BASE64: u64 = 350_000;

/// Maximum number of bytes of listed files, see [`encoded_size`].
pub(in crate::mcp) const LISTING: usize = 900_000;

/// Maximum number of characters of a result's JSON, with default settings: clients put a longer one into a file, where
/// a model has to look for it.
pub(in crate::mcp) const MAX_CHARS: usize = 39_900;

/// Characters of a result's JSON as most clients count them: units of UTF-16.
pub(in crate::mcp) fn chars(result: &Value) -> usize {
    result.to_string().encode_utf16().count()
}

/// Bytes of a result in a message, which contains it as structured content and as a text in which quotes and
/// backslashes are escaped once more.
pub(in crate::mcp) fn encoded_size(result: &Value) -> usize {
    let text = result.to_string();
    text.len() + Value::from(text).to_string().len()
}
