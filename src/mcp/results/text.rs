//! Text, a page at a time. Pure.

use super::budget::encoded_size;

/// Bytes of a page unless another length is asked for: what a model reads with ease, and what
/// common clients show it in full.
pub(in crate::mcp) const PAGE: u64 = 30_000;

/// Most bytes of a page.
pub(in crate::mcp) const MAX_PAGE: u64 = 100_000;

/// Largest offset: whole numbers beyond it are no longer exact where all numbers are floating.
pub(in crate::mcp) const MAX_OFFSET: u64 = 1 << 53;

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::mcp) struct Page {
    /// Bytes that are not UTF-8 are U+FFFD.
    pub(in crate::mcp) text: String,
    /// Where the next page starts, if there is one.
    pub(in crate::mcp) next_offset: Option<u64>,
    /// All of it was UTF-8.
    pub(in crate::mcp) is_utf8: bool,
}

/// The page that these bytes make, of a text of `total` bytes: as much of it as fits into `budget` bytes
/// of a message. A character of which only the first bytes are here is left to the next page.
pub(in crate::mcp) fn page(mut bytes: &[u8], offset: u64, total: u64, budget: usize) -> Page {
    // Control characters take up to thirteen bytes each.
    while bytes.len() > 4 && encoded_size(&String::from_utf8_lossy(bytes).into()) > budget {
        bytes = &bytes[..bytes.len() / 2];
    }
    let end = offset.saturating_add(bytes.len() as u64);
    let is_last = end >= total || bytes.is_empty();
    let whole = if is_last { bytes } else { &bytes[..whole_len(bytes)] };
    let next_offset = (!is_last).then_some(offset + whole.len() as u64);
    let text = String::from_utf8_lossy(whole);
    let is_utf8 = matches!(text, std::borrow::Cow::Borrowed(_));
    Page { text: text.into_owned(), next_offset, is_utf8 }
}

/// Without a character that is cut off at the end; never nothing.
fn whole_len(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        // Invalid before: the end may still be cut, within its last three bytes.
        Err(_) => {
            let lead = bytes.iter().rev().take(3).position(|byte| byte & 0xC0 == 0xC0);
            match lead.map(|from_end| bytes.len() - 1 - from_end) {
                Some(start) if start > 0 && is_cut(&bytes[start..]) => start,
                _ => bytes.len(),
            }
        }
        Ok(_) => bytes.len(),
    }
}

fn is_cut(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

/// The first and the last quarter, with a line between that says how much was left out; nothing if
/// that would not make it shorter.
pub(in crate::mcp) fn without_middle(text: &str) -> Option<String> {
    let quarter = text.len() / 4;
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=quarter).rev().find(is_boundary)?;
    let tail = (3 * quarter..=text.len()).find(is_boundary)?;
    let omitted = tail - head;
    let line = format!(
        "\n[... {omitted} bytes left out to fit into a message; read_output from offset 0 reads \
         all of it ...]\n"
    );
    (line.len() < omitted).then(|| format!("{}{line}{}", &text[..head], &text[tail..]))
}

/// Whether the start of a file reads as text: UTF-8 without the control characters that text never has.
fn is_text(bytes: &[u8]) -> bool {
    let cut = match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    let is_strange = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\x0C' | '\x1B');
    cut.is_some_and(|text| !text.contains(is_strange))
}

/// Whether a file is text: by its type, or where that does not say, by how it starts.
pub(in crate::mcp) fn reads_as_text(mime: &str, start: &[u8]) -> bool {
    let kind = mime.split('/').next();
    // Such a file may start as text does, a PDF for one, and clients would then be told two things at once.
    let is_other = matches!(kind, Some("image" | "audio" | "font")) || mime == "application/pdf";
    is_textual(mime) || (!is_other && is_text(start))
}

/// Bytes of a file that say whether it is text.
pub(in crate::mcp) const SNIFFED: usize = 4096;

/// Whether a type is one of text.
fn is_textual(mime: &str) -> bool {
    mime.starts_with("text/")
        || mime.ends_with("+json")
        || mime.ends_with("+xml")
        || matches!(
            mime,
            "application/json"
                | "application/xml"
                | "application/javascript"
                | "application/x-javascript"
                | "application/sql"
                | "application/x-sql"
                | "application/toml"
                | "application/x-sh"
                | "application/x-tex"
                | "application/x-yaml"
                | "application/yaml"
                | "application/x-ndjson"
                | "application/jsonl"
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_together_are_the_text(text in "\\PC{0,60}", len in 4..20_usize) {
            let (bytes, mut all, mut offset) = (text.as_bytes(), String::new(), 0);
            loop {
                let end = bytes.len().min(offset + len);
                let page = page(&bytes[offset..end], offset as u64, bytes.len() as u64, usize::MAX);
                prop_assert!(page.is_utf8);
                all.push_str(&page.text);
                match page.next_offset {
                    Some(next) => {
                        prop_assert!(next > offset as u64);
                        offset = usize::try_from(next).expect("small");
                    }
                    None => break,
                }
            }
            prop_assert_eq!(all, text);
        }

        #[test]
        fn any_bytes_come_to_an_end(bytes: Vec<u8>, len in 1..9_usize) {
            let mut offset = 0;
            while offset < bytes.len() {
                let end = bytes.len().min(offset + len);
                let page = page(&bytes[offset..end], offset as u64, bytes.len() as u64, 40);
                let next = page.next_offset.map_or(bytes.len(), |next| usize::try_from(next).expect("small"));
                prop_assert!(next > offset);
                offset = next;
            }
        }
    }

    #[test]
    fn a_text_without_its_middle_says_so() {
        let text = "é".repeat(400);
        let shorter = without_middle(&text).expect("shorter");
        assert!(shorter.len() < text.len() && shorter.contains("[... 400 bytes left out"));
        assert!(shorter.starts_with('é') && shorter.ends_with('é'));
        assert_eq!(without_middle("short"), None);
    }

    #[test]
    fn text_is_told_from_other_files() {
        for text in ["a,b\n1,2\n", "été\ttab", "", "\x1B[1mbold"] {
            assert!(is_text(text.as_bytes()), "{text:?}");
        }
        assert!(is_text(&"é".as_bytes()[..1]), "cut within a character");
        for other in [&b"a\0b"[..], b"\xFF\xFE", b"\x89PNG\r\n", b"PK\x03\x04"] {
            assert!(!is_text(other), "{other:?}");
        }
    }
}
