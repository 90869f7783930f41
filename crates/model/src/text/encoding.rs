//! The encoding of a text: by a byte order mark, as UTF-8, or by the frequency of letters, which
//! is a guess. Pure.

use std::borrow::Cow;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// The number of bytes at the start of a file that determine its kind and encoding.
pub const SNIFFED: usize = 4096;

/// The encoding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    of: &'static encoding_rs::Encoding,
    /// Bytes of the byte order mark.
    mark_len: usize,
    /// Whether the encoding is a guess: nothing in the text names it.
    pub is_guess: bool,
}

/// Decoded bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The text. Bytes that are no characters become U+FFFD.
    pub text: String,
    /// Whether some bytes were no characters.
    pub is_lossy: bool,
    /// The number of bytes that were decoded. The others are the start of a character.
    pub len: usize,
}

impl Encoding {
    /// UTF-8 without a byte order mark.
    pub const UTF_8: Self = Self { of: UTF_8, mark_len: 0, is_guess: false };

    /// The encoding of a text with this start, which may end within a character.
    pub fn of(start: &[u8]) -> Self {
        if let Some((encoding, mark_len)) = encoding_rs::Encoding::for_bom(start) {
            return Self { of: encoding, mark_len, is_guess: false };
        }
        let guess = |of| Self { of, mark_len: 0, is_guess: true };
        if let Some(encoding) = utf16_without_mark(start) {
            return guess(encoding);
        }
        if is_utf8(start)
            || start.iter().any(|byte| is_strange(char::from(*byte)) && byte.is_ascii())
        {
            return Self::UTF_8;
        }
        let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
        detector.feed(start, false);
        let encoding = detector.guess(None, Utf8Detection::Deny);
        // Windows-1252 is guessed if nothing else fits, because every byte is a character of it.
        let foreign = start.iter().filter(|byte| !byte.is_ascii()).count();
        if encoding == WINDOWS_1252 && foreign * 3 > start.len() {
            Self::UTF_8
        } else {
            guess(encoding)
        }
    }

    /// Python's name of the encoding; `None` for UTF-8 without a byte order mark.
    pub fn name(self) -> Option<Cow<'static, str>> {
        if self.of == UTF_8 {
            return (self.mark_len > 0).then_some("utf-8-sig".into());
        }
        if self.mark_len > 0 {
            // With "utf-16le" Python takes the mark for the text's first character.
            return Some("utf-16".into());
        }
        Some(match self.of.name() {
            // The Encoding Standard's names mean the supersets that Python calls so.
            "GBK" => "gb18030".into(),
            "Shift_JIS" => "cp932".into(),
            "EUC-KR" => "cp949".into(),
            "Big5" => "big5hkscs".into(),
            "IBM866" => "cp866".into(),
            "ISO-8859-8-I" => "iso8859-8".into(),
            name => name.to_ascii_lowercase().replace("windows-", "cp").into(),
        })
    }

    /// The name of the encoding in browsers.
    pub fn charset(self) -> String {
        self.of.name().to_ascii_lowercase()
    }

    /// Rounds an offset down to an even number in UTF-16, where each character has an even number of bytes.
    pub fn start(self, offset: u64) -> u64 {
        if self.is_utf16() { offset & !1 } else { offset }
    }

    /// The encoding of a part of a file. The encoding of the file's start is this one, but the start may be ASCII
    /// alone.
    #[must_use]
    pub fn of_part(self, part: &[u8]) -> Self {
        if self == Self::UTF_8 && !is_utf8(part) { Self::of(part) } else { self }
    }

    /// Decodes bytes at an offset of a file. Unless they are the last of the file, a part of a character at their end
    /// is left out; but never all of them.
    pub fn decode(self, bytes: &[u8], offset: u64, is_last: bool) -> Decoded {
        let mark_len = if offset == 0 { self.mark_len.min(bytes.len()) } else { 0 };
        let content = &bytes[mark_len..];
        let decoded = |len: usize| {
            let (text, is_lossy) = self.of.decode_without_bom_handling(&content[..len]);
            Decoded { text: text.into_owned(), is_lossy, len: mark_len + len }
        };
        let whole = decoded(content.len());
        if is_last {
            return whole;
        }
        // No character has more than four bytes.
        let mut shorter = (1..4.min(content.len())).map(|cut| decoded(content.len() - cut));
        let is_whole = |it: &Decoded| !it.text.ends_with(char::REPLACEMENT_CHARACTER);
        if is_whole(&whole) { whole } else { shorter.find(is_whole).unwrap_or(whole) }
    }

    fn is_utf16(self) -> bool {
        [UTF_16LE, UTF_16BE].contains(&self.of)
    }
}

/// Whether the start of a file is text: it has no control characters that text never has, and all its bytes are
/// characters of its encoding. If the encoding is a guess other than UTF-16, fewer than 32 bytes are not enough.
pub fn is_text(start: &[u8]) -> bool {
    const ENOUGH: usize = 32;
    let encoding = Encoding::of(start);
    let decoded = encoding.decode(start, 0, start.len() < SNIFFED);
    let says_enough = !encoding.is_guess || encoding.is_utf16() || start.len() >= ENOUGH;
    says_enough && !decoded.is_lossy && !decoded.text.contains(is_strange)
}

/// Whether this is a control character that text never has.
fn is_strange(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\x0C' | '\x1B')
}

/// Whether bytes are UTF-8, which may end within a character, or damaged UTF-8: with more characters of several bytes
/// than faults.
fn is_utf8(bytes: &[u8]) -> bool {
    let Err(error) = std::str::from_utf8(bytes) else { return true };
    if error.error_len().is_none() {
        return true;
    }
    let (mut characters, mut faults) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        characters += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        faults += usize::from(!chunk.invalid().is_empty());
    }
    characters > faults
}

/// Recognizes UTF-16 of mostly ASCII letters: it has a zero in every second byte, and nowhere else.
fn utf16_without_mark(start: &[u8]) -> Option<&'static encoding_rs::Encoding> {
    let pairs = || start.chunks_exact(2);
    let zeros = |at: usize| pairs().filter(|pair| pair[at] == 0).count();
    let (first, second) = (zeros(0), zeros(1));
    match pairs().count() {
        0 | 1 => None,
        count if first == 0 && second * 2 > count => Some(UTF_16LE),
        count if second == 0 && first * 2 > count => Some(UTF_16BE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> (String, Option<String>, bool) {
        let encoding = Encoding::of(bytes);
        let decoded = encoding.decode(bytes, 0, true);
        (decoded.text, encoding.name().map(Cow::into_owned), decoded.is_lossy)
    }

    /// A few rows of a table in each encoding, as people export it.
    const TABLES: &[(&str, &str)] = &[
        (
            "gb18030",
            "日期,渠道,花费\n2026-01-10,抖音,100\n2026-01-11,微信,250\n2026-01-12,小红书,80\n",
        ),
        ("big5hkscs", "日期,通路,花費\n2026-01-10,臉書廣告,100\n2026-01-11,電子郵件,250\n"),
        ("cp932", "日付,チャネル,費用\n2026-01-10,検索広告,100\n2026-01-11,メール配信,250\n"),
        ("euc-jp", "日付,チャネル,費用\n2026-01-10,検索広告,100\n2026-01-11,メール配信,250\n"),
        ("cp949", "날짜,채널,비용\n2026-01-10,네이버 검색,100\n2026-01-11,카카오톡,250\n"),
        ("cp1251", "Дата,Канал,Расход\n2026-01-10,Яндекс Директ,100\n2026-01-11,Рассылка,250\n"),
        ("koi8-u", "Дата,Канал,Расход\n2026-01-10,Яндекс Директ,100\n2026-01-11,Рассылка,250\n"),
        (
            "cp1250",
            "Data,Kanał,Wydatki\n2026-01-10,Łódź - wyszukiwarka płatna,100\n2026-01-11,Poczta żółta,250\n",
        ),
        ("cp1252", "Datum,Kanal,Straße\n2026-01-10,Größe und Übung,100\n2026-01-11,Frühling,250\n"),
        (
            "cp1253",
            "Ημερομηνία,Κανάλι,Δαπάνη\n2026-01-10,Αναζήτηση,100\n2026-01-11,Ηλεκτρονικό ταχυδρομείο,250\n",
        ),
        (
            "cp1254",
            "Tarih,Kanal,Şehir\n2026-01-10,Ağustos kampanyası,İstanbul\n2026-01-11,Arama ağı,Iğdır\n",
        ),
        ("cp1255", "תאריך,ערוץ,הוצאה\n2026-01-10,חיפוש ממומן,100\n2026-01-11,דואר אלקטרוני,250\n"),
        (
            "cp1256",
            "التاريخ,القناة,الإنفاق\n2026-01-10,البحث المدفوع,100\n2026-01-11,البريد الإلكتروني,250\n",
        ),
        ("cp874", "วันที่,ช่องทาง,ค่าใช้จ่าย\n2026-01-10,ค้นหา,100\n2026-01-11,อีเมล,250\n"),
    ];

    fn encoded(python_name: &str, text: &str) -> Vec<u8> {
        let all = encoding_rs::Encoding::for_label(match python_name {
            "cp932" => b"shift_jis",
            "cp949" => b"euc-kr",
            "big5hkscs" => b"big5",
            name => name.strip_prefix("cp").map_or(name, |_| name).as_bytes(),
        });
        let name = python_name.replace("cp874", "windows-874");
        let encoding =
            all.or_else(|| encoding_rs::Encoding::for_label(name.as_bytes())).expect(python_name);
        let (bytes, _, has_unmappable) = encoding.encode(text);
        assert!(!has_unmappable, "{python_name}");
        bytes.into_owned()
    }

    #[test]
    fn tables_in_the_encodings_of_old_programs_are_read() {
        for (name, table) in TABLES {
            let bytes = encoded(name, table);
            assert_eq!(read(&bytes), ((*table).to_owned(), Some((*name).to_owned()), false));
            assert!(Encoding::of(&bytes).is_guess && is_text(&bytes), "{name}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_guess() {
        for (bytes, name) in [
            (&b"\xFF\xFEa\0\xE9\0"[..], "utf-16"),
            (b"\xFE\xFF\0a\0\xE9", "utf-16"),
            (b"\xEF\xBB\xBFa\xC3\xA9", "utf-8-sig"),
        ] {
            assert_eq!(read(bytes), ("aé".into(), Some(name.into()), false));
            assert!(!Encoding::of(bytes).is_guess && is_text(bytes), "{name}");
        }
        // Some programs leave the mark out.
        assert_eq!(
            read(b"d\0a\0t\0e\0,\0\xE9\0\n\0"),
            ("date,é\n".into(), Some("utf-16le".into()), false)
        );
    }

    #[test]
    fn damaged_utf8_and_other_bytes_are_no_guess() {
        let damaged = "é".repeat(3);
        let damaged = &damaged.as_bytes()[..5];
        assert_eq!(read(damaged), ("éé\u{FFFD}".into(), None, true));
        assert_eq!(read(b"\x89PNG\0"), ("\u{FFFD}PNG\0".into(), None, true));
        assert_eq!(read(b"\x89PNG\xFF"), ("\u{FFFD}PNG\u{FFFD}".into(), None, true));
    }

    #[test]
    fn text_is_told_from_other_files() {
        for text in ["a,b\n1,2\n", "été\ttab", "", "\x1B[1mbold"] {
            assert!(is_text(text.as_bytes()), "{text:?}");
        }
        assert!(is_text(&"aé".repeat(SNIFFED).as_bytes()[..SNIFFED]), "cut within a character");
        for other in [&b"a\0b"[..], b"\xFF\xFE\0", b"\x89PNG\r\n", b"PK\x03\x04", b"\x1F\x8B\x08\0"]
        {
            assert!(!is_text(other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn pages_together_are_the_text(
            text in "[a-zé東😀\\n]{0,60}",
            form in prop::sample::select(vec!["utf-8", "utf-8-sig", "utf-16le", "utf-16be"]),
            // A byte order mark and a character.
            len in 7..20_usize,
        ) {
            let units = std::iter::once(0xFEFF).chain(text.encode_utf16());
            let bytes: Vec<u8> = match form {
                "utf-16le" => units.flat_map(u16::to_le_bytes).collect(),
                "utf-16be" => units.flat_map(u16::to_be_bytes).collect(),
                "utf-8-sig" => format!("\u{FEFF}{text}").into_bytes(),
                _ => text.clone().into_bytes(),
            };
            let encoding = Encoding::of(&bytes);
            let name = if form.starts_with("utf-16") { "utf-16" } else { form };
            prop_assert_eq!(encoding.name(), Some(name.into()).filter(|form| *form != "utf-8"));
            let (mut all, mut at) = (String::new(), 0);
            while at < bytes.len() {
                let end = bytes.len().min(at + len);
                let page = encoding.decode(&bytes[at..end], at as u64, end == bytes.len());
                prop_assert!(!page.is_lossy && page.len > 0);
                all.push_str(&page.text);
                at += page.len;
            }
            prop_assert_eq!(all, text);
        }

        #[test]
        fn any_bytes_come_to_an_end(start: Vec<u8>, bytes in prop::collection::vec(any::<u8>(), 1..9), is_last: bool) {
            prop_assert!(Encoding::of(&start).decode(&bytes, 2, is_last).len > 0);
            is_text(&bytes);
        }
    }
}
