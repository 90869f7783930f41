//! Text, a page at a time. Pure.

use std::ops::Range;

use model::text::encoding::{Decoded, Encoding, is_text};
use protocol::limits::shown_len;

use super::{budget::encoded_size, kind};

/// Bytes of a page unless another length is asked for: a model reads that much with ease, and common clients show it in
/// full.
pub(in crate::mcp) const PAGE: u64 = 30_000;

/// Maximum number of bytes of a page.
pub(in crate::mcp) const MAX_PAGE: u64 = 100_000;

/// Largest offset: whole numbers beyond it are no longer exact in clients whose numbers are all floating.
pub(in crate::mcp) const MAX_OFFSET: u64 = 1 << 53;

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::mcp) struct Page {
    pub(in crate::mcp) content: Decoded,
    /// Offset of the next page, if there is one.
    pub(in crate::mcp) next_offset: Option<u64>,
}

/// Makes a page of these bytes, of a text of `total` bytes: as much of it as fits into `budget` bytes of a message. A
/// character that is incomplete at the end is left to the next page.
pub(in crate::mcp) fn page(
    encoding: Encoding,
    mut bytes: &[u8],
    offset: u64,
    total: u64,
    budget: usize,
) -> Page {
    loop {
        let end = offset.saturating_add(bytes.len() as u64);
        let is_last = end >= total || bytes.is_empty();
        let content = encoding.decode(bytes, offset, is_last);
        // Control characters take up to thirteen bytes each.
        if bytes.len() > 4 && encoded_size(&content.text.as_str().into()) > budget {
            bytes = &bytes[..bytes.len() / 4 * 2];
            continue;
        }
        let next_offset = (!is_last).then_some(offset + content.len as u64);
        return Page { content, next_offset };
    }
}

/// The start and the end of an output, with a line between that says how much of its `total` bytes was left out and, if
/// it is stored, how to read it, so that all of it takes at most `most` characters in JSON. The text in the `gap` is
/// always left out. `None` if the result would not be shorter.
pub(in crate::mcp) fn without_middle(
    text: &str,
    gap: Option<&Range<usize>>,
    most: usize,
    total: u64,
    is_kept: bool,
) -> Option<String> {
    let mut left = most.checked_sub(MAX_MARKER)?;
    let mut of_head = left / 5 * 3;
    left -= of_head;
    let end = gap.map_or(text.len(), |gap| gap.start);
    let head = text[..end].char_indices().find(|(_, c)| !takes(*c, &mut of_head));
    let head = head.map_or(end, |(at, _)| at);
    // The room that the head does not need.
    left += of_head;
    let start = gap.map_or(head, |gap| gap.end);
    let tail = text[start..].char_indices().rev().find(|(_, c)| !takes(*c, &mut left));
    let tail = tail.map_or(start, |(at, c)| start + at + c.len_utf8());
    let omitted = total.saturating_sub((head + text.len() - tail) as u64);
    // If all of the head was UTF-8, the offset is that of the output itself.
    let offset = if text[..head].contains(char::REPLACEMENT_CHARACTER) { 0 } else { head };
    let how = if is_kept {
        format!("read_output from offset {offset}")
    } else {
        "print what is needed of it, or save it".into()
    };
    let line = format!("\n[... {omitted} bytes left out; {how} ...]\n");
    (line.len() < tail - head).then(|| format!("{}{line}{}", &text[..head], &text[tail..]))
}

/// Maximum number of characters of the line that says what was left out.
const MAX_MARKER: usize = 120;

/// Takes the length of a character in JSON from `left`; false if it is longer.
fn takes(c: char, left: &mut usize) -> bool {
    let len = match c {
        '\0'..=' ' | '"' | '\\' => shown_len(&[c as u8]),
        _ => c.len_utf16(),
    };
    match left.checked_sub(len) {
        Some(rest) => *left = rest,
        None => return false,
    }
    true
}

/// Whether a file is text: by its type, unless it starts as another kind of file; or, if its type does not say, by its
/// start.
pub(in crate::mcp) fn reads_as_text(mime: &str, start: &[u8]) -> bool {
    let kind = mime.split('/').next();
    // Such a file, for example a PDF, may start as text does, and clients would then get a type and a content that
    // disagree.
    let is_other = matches!(kind, Some("image" | "audio" | "font")) || mime == "application/pdf";
    if is_textual(mime) { !kind::is_other_file(start) } else { !is_other && is_text(start) }
}

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
        fn pages_within_a_budget_come_to_the_end(bytes: Vec<u8>, start: Vec<u8>, len in 1..9_usize) {
            let (encoding, mut offset) = (Encoding::of(&start), 0);
            while offset < bytes.len() {
                let end = bytes.len().min(offset + len);
                let page = page(encoding, &bytes[offset..end], offset as u64, bytes.len() as u64, 40);
                let next = page.next_offset.map_or(bytes.len(), |next| usize::try_from(next).expect("small"));
                prop_assert!(next > offset);
                offset = next;
            }
        }
    }

    proptest! {
        #[test]
        fn a_text_without_its_middle_is_as_short_as_was_asked_for(
            text in "[\\x00-\\x7Fé東😀\u{FFFD}]{0,1500}",
            most in 0..2000_usize,
            is_kept: bool,
        ) {
            let Some(shorter) = without_middle(&text, None, most, text.len() as u64, is_kept) else { return Ok(()) };
            let in_json = serde_json::Value::from(&*shorter).to_string();
            prop_assert!(in_json.encode_utf16().count() <= most + 2, "{} of {}", in_json.len(), most);
            let (head, rest) = shorter.rsplit_once("\n[... ").expect("a line");
            let (line, tail) = rest.split_once(" ...]\n").expect("its end");
            prop_assert!(text.starts_with(head) && text.ends_with(tail));
            let omitted = format!("{} bytes left out;", text.len() - head.len() - tail.len());
            prop_assert!(line.starts_with(&omitted), "{}", line);
        }
    }

    #[test]
    fn a_text_without_its_middle_says_so() {
        let text = "é".repeat(400);
        let shorter = without_middle(&text, None, 300, 800, true).expect("shorter");
        assert!(shorter.contains("[... 440 bytes left out; read_output from offset 216 ...]"));
        assert!(shorter.starts_with('é') && shorter.ends_with('é'));
        let shorter = without_middle(&text, None, 300, 800, false).expect("shorter");
        assert!(!shorter.contains("read_output") && shorter.contains("print what is needed of it"));
        assert_eq!(without_middle("short", None, 1000, 5, true), None);
        // If a part was left out before, there is one cut, which counts all omitted bytes.
        let cut =
            format!("{}\n[... 9000 bytes left out ...]\n{}", "a".repeat(100), "b".repeat(300));
        let gap = 100..cut.len() - 300;
        let shorter = without_middle(&cut, Some(&gap), 300, 9400, true).expect("shorter");
        let line = "\n[... 9220 bytes left out; read_output from offset 100 ...]\n";
        assert_eq!(shorter, format!("{}{line}{}", "a".repeat(100), "b".repeat(80)));
    }

    #[test]
    fn a_file_is_text_by_its_type_unless_it_starts_as_another_does() {
        let cases: [(&str, &[u8], bool); 9] = [
            ("text/csv", b"a,b\n1,\0\n", true),
            ("text/csv", b"PK,name\n1,a\n", true),
            ("text/csv", b"BMW,Audi\n1,2\n", true),
            ("text/csv", b"\x1F\x8B\x08\0\0\0\0\0\0\x03", false),
            ("text/csv", b"PK\x03\x04\x14\0", false),
            ("application/json", b"PAR1\x15\0", false),
            ("application/octet-stream", b"a,b\n1,2\n", true),
            ("application/pdf", b"%PDF-1.7\n", false),
            ("application/octet-stream", b"\x1F\x8B\x08\0", false),
        ];
        for (mime, start, reads) in cases {
            assert_eq!(reads_as_text(mime, start), reads, "{mime} {start:?}");
        }
    }
}
