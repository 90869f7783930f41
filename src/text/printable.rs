//! Text that goes where control characters would do something.

use percent_encoding::{CONTROLS, utf8_percent_encode};

/// Longest text, in characters.
const MAX_SHOWN: usize = 200;

/// For a terminal or a log line: of the text, the first 200 characters, in which control characters are
/// shown in percent-encoding.
pub(crate) fn printable(text: &str) -> String {
    utf8_percent_encode(text, CONTROLS).to_string().chars().take(MAX_SHOWN).collect()
}

/// The same characters with U+FFFD in place of each control character.
pub(crate) fn without_controls(text: impl Iterator<Item = char>) -> String {
    text.map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_passed_on() {
        assert_eq!(printable("\x1b[2Jé\n"), "%1B[2J%C3%A9%0A");
        assert_eq!(printable(&"x".repeat(300)).len(), MAX_SHOWN);
        assert_eq!(without_controls("\x1b[2Jé\n".chars()), "\u{FFFD}[2Jé\u{FFFD}");
    }
}
