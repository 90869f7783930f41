//! How much fits into one message, by the transport. Clients drop a connection over one that is
//! larger, and with it every session they have.

use serde_json::Value;

use crate::config::Transport;

/// Most bytes of what goes into one message.
#[derive(Debug, Clone, Copy)]
pub(in crate::mcp) struct MessageBudget {
    /// Of the whole message.
    pub(in crate::mcp) message: usize,
    /// Of an image, which base64 makes larger by a third; larger ones are scaled down.
    pub(in crate::mcp) image: u64,
    /// Of a file as a resource, which base64 makes larger by a third.
    pub(in crate::mcp) resource: u64,
    /// Of a part of a file, which base64 makes larger by a third and which is there twice, as text and as
    /// structured content.
    pub(in crate::mcp) base64: u64,
    /// Of listed files, see [`encoded_size`].
    pub(in crate::mcp) listing: usize,
}

impl MessageBudget {
    /// Of a page of text.
    pub(in crate::mcp) fn page(self) -> usize {
        self.message / 10 * 9
    }

    pub(in crate::mcp) fn new(transport: Transport) -> Self {
        match transport {
            // TypeScript clients drop a connection at 10 MiB.
            Transport::Stdio => Self {
                message: 10_000_000,
                // Model interfaces refuse an image of more than 5 MiB, some of more than 3.75 MB.
                image: 3_700_000 / 4 * 3,
                resource: 7_800_000,
                base64: 3_900_000,
                listing: 8 << 20,
            },
            // Python clients refuse an event of more than 1 MiB.
            Transport::Http => Self {
                message: 1_000_000,
                image: 700_000,
                resource: 700_000,
                base64: 350_000,
                listing: 900_000,
            },
        }
    }
}

/// Most characters of a result's JSON, with default settings: clients put a longer one into a file, where
/// a model has to look for it.
pub(in crate::mcp) const MAX_CHARS: usize = 39_900;

/// Characters of a result's JSON as most clients count them: units of UTF-16.
pub(in crate::mcp) fn chars(result: &Value) -> usize {
    result.to_string().encode_utf16().count()
}

/// Bytes of a result in a message: it is there as it is, and as a text in which quotes and backslashes
/// are escaped once more.
pub(in crate::mcp) fn encoded_size(result: &Value) -> usize {
    let text = result.to_string();
    text.len() + Value::from(text).to_string().len()
}
