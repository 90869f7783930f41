//! Text, a page at a time. Pure.

use std::{borrow::Cow, ops::Range};

use protocol::limits::shown_len;

use super::budget::encoded_size;

/// Bytes of a page unless another length is asked for: what a model reads with ease, and what
/// common clients show it in full.
pub(in crate::mcp) const PAGE: u64 = 30_000;

/// Most bytes of a page.
pub(in crate::mcp) const MAX_PAGE: u64 = 100_000;

/// Largest offset: whole numbers beyond it are no longer exact where all numbers are floating.
pub(in crate::mcp) const MAX_OFFSET: u64 = 1 << 53;

/// How the characters of a text are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mcp) enum Encoding {
    Utf8,
    /// Nothing says so: UTF-8, or page by page what older programs write.
    Unsaid,
    Utf16Le,
    Utf16Be,
    /// What older programs on Windows write; Latin-1 is part of it.
    Cp1252,
}

impl Encoding {
    /// By how the text starts.
    pub(in crate::mcp) fn of(start: &[u8]) -> Self {
        match start {
            [0xFF, 0xFE, ..] => Self::Utf16Le,
            [0xFE, 0xFF, ..] => Self::Utf16Be,
            _ => Self::Unsaid,
        }
    }

    /// The offset of the character's part that this is an offset within.
    pub(in crate::mcp) fn start(self, offset: u64) -> u64 {
        if self.is_utf16() { offset & !1 } else { offset }
    }

    /// As Python calls it; none for what everybody expects.
    pub(in crate::mcp) fn name(self) -> Option<&'static str> {
        match self {
            Self::Utf8 | Self::Unsaid => None,
            Self::Utf16Le => Some("utf-16le"),
            Self::Utf16Be => Some("utf-16be"),
            Self::Cp1252 => Some("cp1252"),
        }
    }

    fn is_utf16(self) -> bool {
        matches!(self, Self::Utf16Le | Self::Utf16Be)
    }
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::mcp) struct Page {
    /// Bytes that are no characters are U+FFFD.
    pub(in crate::mcp) text: String,
    /// Where the next page starts, if there is one.
    pub(in crate::mcp) next_offset: Option<u64>,
    /// What it was read as.
    pub(in crate::mcp) encoding: Encoding,
    /// Not all of it was characters.
    pub(in crate::mcp) is_lossy: bool,
}

/// The page that these bytes make, of a text of `total` bytes: as much of it as fits into `budget` bytes
/// of a message. A character of which only the first bytes are here is left to the next page.
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
        let whole = match encoding {
            _ if is_last => bytes,
            _ if encoding.is_utf16() => &bytes[..whole_utf16_len(encoding, bytes)],
            _ => &bytes[..whole_len(bytes)],
        };
        let (text, encoding, is_lossy) = decoded(encoding, whole, offset);
        // Control characters take up to thirteen bytes each.
        if bytes.len() > 4 && encoded_size(&text.as_str().into()) > budget {
            bytes = &bytes[..bytes.len() / 4 * 2];
            continue;
        }
        let next_offset = (!is_last).then_some(offset + whole.len() as u64);
        return Page { text, next_offset, encoding, is_lossy };
    }
}

/// The text of these bytes, what they were read as, and whether some of them were no characters.
fn decoded(encoding: Encoding, bytes: &[u8], offset: u64) -> (String, Encoding, bool) {
    if !encoding.is_utf16() {
        return match String::from_utf8_lossy(bytes) {
            Cow::Borrowed(text) => (text.to_owned(), Encoding::Utf8, false),
            Cow::Owned(_) if encoding == Encoding::Unsaid && is_cp1252(bytes) => {
                (from_cp1252(bytes), Encoding::Cp1252, false)
            }
            Cow::Owned(text) => (text, Encoding::Utf8, true),
        };
    }
    let mut units = bytes.chunks(2).map(|pair| unit(encoding, pair));
    if offset == 0 {
        // The mark that says which of the two it is.
        units.next();
    }
    let mut is_lossy = false;
    let text = char::decode_utf16(units).map(|c| {
        c.unwrap_or_else(|_| {
            is_lossy = true;
            char::REPLACEMENT_CHARACTER
        })
    });
    let text = text.collect();
    (text, encoding, is_lossy)
}

/// Two bytes as a unit of UTF-16; one alone is none.
fn unit(encoding: Encoding, pair: &[u8]) -> u16 {
    match (encoding, pair) {
        (Encoding::Utf16Be, [high, low]) | (_, [low, high]) => u16::from_be_bytes([*high, *low]),
        // Half of a pair stands alone nowhere.
        _ => 0xDC00,
    }
}

/// Without a unit or a pair of them that is cut off at the end; never nothing.
fn whole_utf16_len(encoding: Encoding, bytes: &[u8]) -> usize {
    let even = bytes.len() / 2 * 2;
    match bytes[..even].last_chunk::<2>() {
        None => bytes.len(),
        Some(last) if even > 2 && (0xD800..0xDC00).contains(&unit(encoding, last)) => even - 2,
        Some(_) => even,
    }
}

/// Whether bytes that are not UTF-8 may be text of this kind: most of them are letters that every encoding
/// has, the others are nowhere UTF-8, and each stands for a character.
fn is_cp1252(bytes: &[u8]) -> bool {
    let is_ascii = bytes.utf8_chunks().all(|chunk| chunk.valid().is_ascii());
    let is_strange = |byte: &u8| {
        matches!(byte, 0..=8 | 0x0B | 0x0E..=0x1A | 0x1C..=0x1F | 0x7F)
            || matches!(byte, 0x81 | 0x8D | 0x8F | 0x90 | 0x9D)
    };
    let foreign = bytes.iter().filter(|byte| !byte.is_ascii()).count();
    is_ascii && foreign * 3 <= bytes.len() && !bytes.iter().any(is_strange)
}

fn from_cp1252(bytes: &[u8]) -> String {
    /// The characters of 0x80 to 0x9F.
    const SPECIAL: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8D}', 'Ž',
        '\u{8F}', '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9D}',
        'ž', 'Ÿ',
    ];
    let character = |byte: &u8| match byte {
        0x80..=0x9F => SPECIAL[usize::from(byte - 0x80)],
        byte => char::from(*byte),
    };
    bytes.iter().map(character).collect()
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

/// The start and the end of an output, with a line between that says how much of its `total` bytes was left
/// out and, if it is kept, how to read it, so that all of it takes at most so many characters in JSON. What is in the
/// `gap` is left out in any case. Nothing if that would not make it shorter.
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
    // What the head does not need.
    left += of_head;
    let start = gap.map_or(head, |gap| gap.end);
    let tail = text[start..].char_indices().rev().find(|(_, c)| !takes(*c, &mut left));
    let tail = tail.map_or(start, |(at, c)| start + at + c.len_utf8());
    let omitted = total.saturating_sub((head + text.len() - tail) as u64);
    // Where all of it was UTF-8 the offset is that of the output itself.
    let offset = if text[..head].contains(char::REPLACEMENT_CHARACTER) { 0 } else { head };
    let how = if is_kept {
        format!("read_output from offset {offset}")
    } else {
        "print what is needed of it, or save it".into()
    };
    let line = format!("\n[... {omitted} bytes left out; {how} ...]\n");
    (line.len() < tail - head).then(|| format!("{}{line}{}", &text[..head], &text[tail..]))
}

/// Most characters of the line that says what was left out.
const MAX_MARKER: usize = 120;

/// Takes a character, as it is in JSON, from what is left.
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
    is_textual(mime) || (!is_other && (is_text(start) || is_foreign_text(start)))
}

/// The same of text that is not UTF-8: it says that it is UTF-16, or reads as what older programs write.
fn is_foreign_text(start: &[u8]) -> bool {
    /// Fewer bytes say nothing.
    const ENOUGH: usize = 32;
    let encoding = Encoding::of(start);
    if encoding.is_utf16() {
        let start = &start[..whole_utf16_len(encoding, start)];
        let (text, _, is_lossy) = decoded(encoding, start, 0);
        return start.len() > 2 && !is_lossy && is_text(text.as_bytes());
    }
    start.len() >= ENOUGH && is_cp1252(start)
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
                let page = page(Encoding::Utf8, &bytes[offset..end], offset as u64, bytes.len() as u64, usize::MAX);
                prop_assert!(!page.is_lossy);
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
        fn any_bytes_come_to_an_end(
            bytes: Vec<u8>,
            len in 1..9_usize,
            encoding in prop::sample::select(vec![Encoding::Utf8, Encoding::Utf16Le, Encoding::Utf16Be]),
        ) {
            let mut offset = 0;
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
        // Where something was left out before, it is one cut, and all of it is counted.
        let cut =
            format!("{}\n[... 9000 bytes left out ...]\n{}", "a".repeat(100), "b".repeat(300));
        let gap = 100..cut.len() - 300;
        let shorter = without_middle(&cut, Some(&gap), 300, 9400, true).expect("shorter");
        let line = "\n[... 9220 bytes left out; read_output from offset 100 ...]\n";
        assert_eq!(shorter, format!("{}{line}{}", "a".repeat(100), "b".repeat(80)));
    }

    proptest! {
        #[test]
        fn pages_of_utf16_together_are_the_text(text in "[a-zé東😀\\n]{0,60}", len in 2..10_usize, big: bool) {
            let bytes: Vec<u8> = std::iter::once(0xFEFF)
                .chain(text.encode_utf16())
                .flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() })
                .collect();
            let encoding = Encoding::of(&bytes);
            prop_assert_eq!(encoding.name(), Some(if big { "utf-16be" } else { "utf-16le" }));
            let (mut all, mut offset) = (String::new(), 0);
            loop {
                let end = bytes.len().min(offset + len.max(4));
                let page = page(encoding, &bytes[offset..end], offset as u64, bytes.len() as u64, usize::MAX);
                prop_assert!(!page.is_lossy && page.encoding == encoding);
                all.push_str(&page.text);
                match page.next_offset {
                    Some(next) => offset = usize::try_from(next).expect("small"),
                    None => break,
                }
            }
            prop_assert_eq!(all, text);
        }
    }

    #[test]
    fn text_of_other_encodings_is_read_as_what_it_is() {
        let read = |bytes: &[u8]| {
            let page = page(Encoding::of(bytes), bytes, 0, bytes.len() as u64, usize::MAX);
            (page.text, page.encoding.name(), page.is_lossy)
        };
        assert_eq!(read(b"Gr\xF6\xDFe \x80 5"), ("Größe € 5".into(), Some("cp1252"), false));
        assert_eq!(read(b"\xFF\xFEa\0\xE9\0"), ("aé".into(), Some("utf-16le"), false));
        assert_eq!(read(b"\xFE\xFF\0a\0\xE9"), ("aé".into(), Some("utf-16be"), false));
        // UTF-8 with one byte too few is still that, and what no text has is not made up.
        assert_eq!(
            read("é".repeat(2).as_bytes().split_last().expect("some").1),
            ("é\u{FFFD}".into(), None, true)
        );
        assert_eq!(read(b"\x89PNG\0"), ("\u{FFFD}PNG\0".into(), None, true));
        let long = b"Stra\xDFe;Gr\xF6\xDFe;one;two;three;four\r\n";
        assert!(reads_as_text("application/octet-stream", long));
        assert!(reads_as_text("application/octet-stream", b"\xFF\xFEa\0b\0"));
        assert!(!reads_as_text("application/octet-stream", &long.map(|byte| byte | 0x80)));
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
