//! Shortens the result of a program to what a client shows and a message can take. Pure.

use config::Config;
use model::Output;
use protocol::limits::KEPT_FROM;
use serde_json::Value;

use super::{
    budget::{MAX_CHARS, chars, encoded_size},
    images, text,
};

/// A text of a result that may be shortened.
#[derive(Debug, Clone, Copy)]
pub(in crate::mcp) struct TextField<'a> {
    /// The field that contains the text.
    pub(in crate::mcp) field: &'static str,
    /// The text, as an output of the program.
    pub(in crate::mcp) output: &'a Output,
    /// The field that says that it was truncated.
    pub(in crate::mcp) mark: &'static str,
    /// Whether `read_output` has the whole output.
    pub(in crate::mcp) is_kept: bool,
}

/// The limits of a result, see [`fit`].
#[derive(Debug, Clone, Copy)]
pub(in crate::mcp) struct Room {
    /// Maximum number of characters of the JSON, as clients count them.
    chars: usize,
    /// Maximum number of bytes of the message.
    bytes: usize,
}

impl Room {
    /// Longer outputs than usual, if the settings allow them, get more room: that of two outputs in which each byte is
    /// escaped.
    pub(in crate::mcp) fn new(config: &Config, message: usize) -> Self {
        let chars = MAX_CHARS + 4 * config.max_output.saturating_sub(USUAL_OUTPUT);
        Self { chars, bytes: message - images::ENVELOPE }
    }
}

/// Bytes of each output for which there is room in [`MAX_CHARS`].
const USUAL_OUTPUT: usize = 20_000;

/// Shortens a result until it fits: the longest text first, but no stored text below [`KEPT_FROM`], above which
/// `read_output` always has it; and then the list of files, which `list_artifacts` has as well.
pub(in crate::mcp) fn fit(result: &mut Value, texts: &[TextField<'_>], room: Room) {
    let mut most = room.chars;
    loop {
        fit_chars(result, texts, most);
        // The message may still be too large if nearly all characters have several bytes, and outputs are the largest
        // possible.
        if encoded_size(result) <= room.bytes || most <= MIN_CHARS {
            return;
        }
        most = most / 4 * 3;
    }
}

/// Number of characters of a field that says that an output was truncated, and of the output's quotes.
const TRUNCATED: usize = 30;

/// Number of characters below which no result can be too large for a message.
const MIN_CHARS: usize = 30_000;

fn fit_chars(result: &mut Value, texts: &[TextField<'_>], most: usize) {
    let excess = |result: &Value| chars(result).saturating_sub(most);
    if excess(result) == 0 {
        return;
    }
    let sizes: Vec<_> = texts.iter().map(|shown| chars(&result[shown.field])).collect();
    let rest = chars(result) - sizes.iter().sum::<usize>();
    let room = most.saturating_sub(rest + TRUNCATED * texts.len());
    let of_kept = texts.iter().zip(&sizes).filter(|(shown, _)| shown.is_kept);
    let least: usize = of_kept.map(|(_, size)| (*size).min(KEPT_FROM)).sum();
    for ((TextField { field, output, mark, is_kept }, size), share) in
        texts.iter().zip(&sizes).zip(shares(&sizes, room))
    {
        // An output that is not stored is shortened further, to leave room for outputs that are stored.
        let limit =
            if *is_kept { share.max(KEPT_FROM) } else { share.min(room.saturating_sub(least)) };
        let total = if output.truncated { output.total } else { output.text.len() as u64 };
        if *size > limit
            && let Some(shorter) =
                text::without_middle(&output.text, output.gap.as_ref(), limit, total, *is_kept)
        {
            result[*field] = shorter.into();
            result[*mark] = true.into();
        }
    }
    while excess(result) > 0 {
        let Some(files) = result["artifacts"].as_array_mut().filter(|files| !files.is_empty())
        else {
            return;
        };
        let keep = files.len() * 3 / 4;
        let omitted = files.split_off(keep).len() as u64;
        let before = result["artifacts_omitted"].as_u64().unwrap_or(0);
        result["artifacts_omitted"] = (before + omitted).into();
    }
}

/// Divides a room among texts of these sizes: room that short texts do not need goes to long ones.
fn shares(sizes: &[usize], room: usize) -> Vec<usize> {
    let mut by_size: Vec<_> = (0..sizes.len()).collect();
    by_size.sort_unstable_by_key(|n| sizes[*n]);
    let (mut shares, mut left) = (vec![0; sizes.len()], room);
    for (done, n) in by_size.into_iter().enumerate() {
        shares[n] = left / (sizes.len() - done);
        left -= shares[n].min(sizes[n]);
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_short_texts_do_not_need_the_long_ones_get() {
        assert_eq!(shares(&[10, 500], 100), [50, 90]);
        assert_eq!(shares(&[500, 500], 100), [50, 50]);
        assert_eq!(shares(&[2, 90, 500], 100), [33, 49, 49]);
        assert_eq!(shares(&[], 100), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn shares_are_within_the_room(sizes in prop::collection::vec(0usize..5_000, 1..4), room in 0usize..9_000) {
            let taken: usize = shares(&sizes, room).iter().zip(&sizes).map(|(share, size)| share.min(size)).sum();
            prop_assert!(taken <= room);
            prop_assert!(taken == room || taken == sizes.iter().sum::<usize>() || room - taken < sizes.len());
        }
    }
}
