//! How much fits into one message, by the transport. Clients drop a connection over one that is
//! larger, and with it every session they have.

use serde_json::Value;

use crate::config::Transport;

/// Most bytes of what goes into a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Of the whole message.
    pub(super) message: usize,
    /// Of a picture file, which base64 makes larger by a third.
    pub(super) picture: u64,
    /// Larger ones are scaled down instead of being refused.
    pub(super) scales: bool,
    /// Of another file, which base64 makes larger by a third and which is there twice, as text and
    /// as structured content.
    pub(super) base64: u64,
    /// Of listed files, see [`twice`].
    pub(super) listing: usize,
}

impl Room {
    /// Of a page of text.
    pub(super) fn page(self) -> usize {
        self.message / 10 * 9
    }

    pub(super) fn new(transport: Transport) -> Self {
        match transport {
            // TypeScript clients drop a connection at 10 MiB.
            Transport::Stdio => Self {
                message: 10_000_000,
                picture: 7_800_000,
                scales: false,
                base64: 3_900_000,
                listing: 8 << 20,
            },
            // Python clients refuse an event of more than 1 MiB.
            Transport::Http => Self {
                message: 1_000_000,
                picture: 700_000,
                scales: true,
                base64: 350_000,
                listing: 900_000,
            },
        }
    }
}

/// Bytes of a result in a message: it is there as it is, and as a text in which quotes and backslashes
/// are escaped once more.
pub(super) fn twice(result: &Value) -> usize {
    let text = result.to_string();
    text.len() + Value::from(text).to_string().len()
}
