//! Lines of a stream, of which none can fill memory.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Bytes of the start and of the end of a line that is too long, which are kept.
const KEPT: usize = 256;

/// Reads lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    max: usize,
    line: Vec<u8>,
    /// The last bytes of a line that is too long.
    end: Option<Vec<u8>>,
    is_done: bool,
}

/// A line without its end.
#[derive(Debug, PartialEq)]
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    /// A line that was too long: its start and its end.
    Long(&'a [u8], &'a [u8]),
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// Reads lines of at most `max` bytes.
    pub(super) fn new(reader: R, max: usize) -> Self {
        let reader = BufReader::with_capacity(64 << 10, reader);
        Self { reader, max, line: vec![], end: None, is_done: false }
    }

    /// The next line; `None` at the end of the stream. A line that the end cuts off is left out. If the future is
    /// dropped, nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Line<'_>> {
        if self.is_done {
            self.line.clear();
            // A long line leaves much room.
            self.line.shrink_to(KEPT << 10);
            (self.end, self.is_done) = (None, false);
        }
        while !self.is_done {
            let available = self.reader.fill_buf().await.ok().filter(|it| !it.is_empty())?;
            let end = memchr::memchr(b'\n', available);
            let part = &available[..end.unwrap_or(available.len())];
            if self.end.is_none() && self.line.len() + part.len() <= self.max {
                self.line.extend_from_slice(part);
            } else {
                let last = self.end.get_or_insert_with(|| {
                    let from = self.line.len().saturating_sub(KEPT);
                    let last = self.line[from..].to_vec();
                    let missing = KEPT.saturating_sub(self.line.len());
                    self.line.extend_from_slice(&part[..part.len().min(missing)]);
                    self.line.truncate(KEPT);
                    last
                });
                last.extend_from_slice(&part[part.len().saturating_sub(KEPT)..]);
                last.drain(..last.len().saturating_sub(KEPT));
            }
            let consumed = part.len() + usize::from(end.is_some());
            self.reader.consume(consumed);
            self.is_done = end.is_some();
        }
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        Some(match &self.end {
            None => Line::Whole(line),
            Some(end) => Line::Long(line, end),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_are_only_their_start_and_end() {
        let long = format!("{{{}}}", "x".repeat(200_000));
        let text = format!("one\r\n\n{long}\ntwo\ncut");
        let mut lines = Lines::new(text.as_bytes(), 1000);
        assert_eq!(lines.next().await, Some(Line::Whole(b"one")));
        assert_eq!(lines.next().await, Some(Line::Whole(b"")));
        match lines.next().await {
            Some(Line::Long(start, end)) => {
                assert!(start.starts_with(b"{xx") && start.len() <= 1000, "{}", start.len());
                assert!(end.ends_with(b"xx}") && end.len() == KEPT, "{}", end.len());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(lines.next().await, Some(Line::Whole(b"two")));
        assert_eq!(lines.next().await, None);
    }
}
