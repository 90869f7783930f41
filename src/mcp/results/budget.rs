//! How much fits into one message, by the transport. Clients drop a connection over one that is
//! larger, and with it every session they have.

use serde_json::Value;

use crate::config::Transport;

/// Most bytes of what goes into one message.
#[derive(Debug, Clone, Copy)]
pub(in crate::mcp) struct MessageBudget {
    /// Of the whole message.
    pub(in crate::mcp) message: usize,
    /// Of an image file, which base64 makes larger by a third.
    pub(in crate::mcp) image: u64,
    /// Larger ones are scaled down instead of being refused.
    pub(in crate::mcp) scales: bool,
    /// Of another file, which base64 makes larger by a third and which is there encoded_size, as text and
    /// as structured content.
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
                image: 7_800_000,
                scales: false,
                base64: 3_900_000,
                listing: 8 << 20,
            },
            // Python clients refuse an event of more than 1 MiB.
            Transport::Http => Self {
                message: 1_000_000,
                image: 700_000,
                scales: true,
                base64: 350_000,
                listing: 900_000,
            },
        }
    }
}

/// Bytes of a result in a message: it is there as it is, and as a text in which quotes and backslashes
/// are escaped once more.
pub(in crate::mcp) fn encoded_size(result: &Value) -> usize {
    let text = result.to_string();
    text.len() + Value::from(text).to_string().len()
}
