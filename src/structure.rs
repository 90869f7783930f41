//! The structure of JSON before it is parsed: parsing takes up to 320 times the memory of the text.

use memchr::memchr2;

/// The structure of a text that may be JSON.
pub(crate) struct Structure {
    /// Number of structural characters (`{`, `[`, `,` and `:`) outside strings. Each may take half a kibibyte once it
    /// is parsed.
    pub(crate) tokens: usize,
    /// Start and end of the longest string, with its quotes.
    pub(crate) longest: Option<(usize, usize)>,
}

/// The structure of a text; `None` if it has more structural characters than `most`. Text that is not JSON gets some
/// count, too; the parser refuses it.
pub(crate) fn structure(text: &[u8], most: usize) -> Option<Structure> {
    let (mut tokens, mut longest) = (0, None::<(usize, usize)>);
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' | b',' | b':' => {
                tokens += 1;
                if tokens > most {
                    return None;
                }
            }
            b'"' => {
                let start = at - 1;
                at = end_of_string(text, at);
                if longest.is_none_or(|(from, to)| at - start > to - from) {
                    longest = Some((start, at));
                }
            }
            _ => {}
        }
    }
    Some(Structure { tokens, longest })
}

/// The position after the closing quote of the string whose first byte is at `at`; the end if there is no such quote.
fn end_of_string(text: &[u8], mut at: usize) -> usize {
    while let Some(found) = memchr2(b'"', b'\\', &text[at..]) {
        at += found;
        if text[at] == b'"' {
            return at + 1;
        }
        at = (at + 2).min(text.len());
    }
    text.len()
}
