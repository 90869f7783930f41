//! Cutting UTF-8 between characters.

/// Removes the incomplete character at the end, if there is one.
pub fn whole_end(bytes: &[u8]) -> &[u8] {
    let lead = bytes.iter().rev().take(4).position(|byte| byte & 0xC0 != 0x80);
    let Some(from_end) = lead else { return bytes };
    let start = bytes.len() - 1 - from_end;
    match std::str::from_utf8(&bytes[start..]) {
        // An incomplete character was cut off; any other error was there before the cut.
        Err(error) if error.error_len().is_none() => &bytes[..start],
        _ => bytes,
    }
}

/// Removes the rest of a character at the start, if there is one.
pub fn whole_start(bytes: &[u8]) -> &[u8] {
    let rest = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    &bytes[rest..]
}

/// The longest start of a text that fits in `most` bytes.
pub fn start(text: &str, most: usize) -> &str {
    let to = (0..=most.min(text.len())).rfind(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..to]
}

/// The longest end of a text that fits in `most` bytes.
pub fn end(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cut_leaves_whole_characters_and_as_many_as_fit(text in "\\PC{0,40}", at in 0usize..170) {
            let at = at.min(text.len());
            let (head, tail) = text.as_bytes().split_at(at);
            prop_assert_eq!(whole_end(head), start(&text, at).as_bytes());
            prop_assert_eq!(whole_start(tail), end(&text, text.len() - at).as_bytes());
        }
    }

    #[test]
    fn bytes_that_were_no_text_before_the_cut_stay() {
        assert_eq!(whole_end(b"ab\xff"), b"ab\xff");
        assert_eq!(whole_end(&[0x80; 5]), &[0x80; 5]);
        assert_eq!(whole_start(&[0x80; 5]), &[0x80; 2]);
    }
}
