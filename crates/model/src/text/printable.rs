//! Text for places where control characters would have an effect.

use std::fmt::Write as _;

use percent_encoding::{CONTROLS, utf8_percent_encode};

/// The maximum length of a printable text, in characters.
const MAX_SHOWN: usize = 200;

/// Converts a text for a terminal or a log line: percent-encodes control characters and all that is not ASCII, and
/// takes the first 200 characters.
pub fn printable(text: &str) -> String {
    utf8_percent_encode(text, CONTROLS).to_string().chars().take(MAX_SHOWN).collect()
}

/// Replaces each character that controls something, cannot be seen, or turns or breaks the text around it by U+FFFD.
pub fn without_controls(text: impl Iterator<Item = char>) -> String {
    text.map(|c| if is_control(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Escapes, as JSON does in strings, each character that controls something, cannot be seen, or turns or breaks the
/// text around it. Ends of lines stay.
pub fn with_escaped_controls(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !is_control(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

/// Whether a character controls something, or cannot be seen or distinguished from a space.
pub(super) fn is_invisible(c: char) -> bool {
    is_control(c) || (c.is_whitespace() && c != ' ')
}

/// Whether this is a control character, a character for the direction or the breaking of text, or a tag. Characters
/// that join emoji and letters are none of these.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}' | '\u{200E}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
                | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_passed_on() {
        assert_eq!(printable("\x1b[2Jé\n"), "%1B[2J%C3%A9%0A");
        assert_eq!(printable(&"x".repeat(300)).len(), MAX_SHOWN);
        assert_eq!(without_controls("\x1b[2Jé\n".chars()), "\u{FFFD}[2Jé\u{FFFD}");
        assert_eq!(without_controls("a\u{202E}b\u{2028}".chars()), "a\u{FFFD}b\u{FFFD}");
        let json = "{\n\"a\": \"é\u{202E}\u{E0041}\\n\"}";
        let shown = "{\n\"a\": \"é\\u202e\\udb40\\udc41\\n\"}";
        assert_eq!(with_escaped_controls(json), shown);
        // Characters that join emoji and letters are part of them.
        assert_eq!(without_controls("👨\u{200D}👩".chars()), "👨\u{200D}👩");
    }
}
