//! Names from callers and sandboxes, for sentences.

use super::printable::is_invisible;

/// The maximum length of a name that is shown, in characters.
const MAX_NAME_CHARS: usize = 80;

/// The maximum length of a path that is shown, in characters.
const MAX_PATH_CHARS: usize = 200;

/// The number of characters of a name that are compared.
const MAX_COMPARED_CHARS: usize = 60;

/// The maximum number of names that are compared: the caller waits for the result.
const MAX_COMPARED: usize = 2000;

/// The similarity from which two names are alike, from 0 to 1.
const LIKE: f64 = 0.6;

/// Quotes a name as in JSON, with escapes for invisible and control characters, and cuts it if it is long.
pub fn quoted(name: &str) -> String {
    quoted_within(name, MAX_NAME_CHARS)
}

/// Quotes a path in the same way.
pub fn quoted_path(path: &str) -> String {
    quoted_within(path, MAX_PATH_CHARS)
}

/// Quotes a name with at most `most` characters; all characters of an escape count.
pub fn quoted_within(name: &str, most: usize) -> String {
    let (mut shown, mut left) = (String::from('"'), most);
    for c in name.chars() {
        let escaped = match c {
            '"' | '\\' => format!("\\{c}"),
            '\n' => "\\n".into(),
            _ if !is_invisible(c) => c.into(),
            // As JSON and Python both write it.
            _ if c <= '\u{FFFF}' => format!("\\u{:04x}", u32::from(c)),
            _ => format!("\\U{:08x}", u32::from(c)),
        };
        let Some(rest) = left.checked_sub(escaped.chars().count()) else {
            return shown + "...\"";
        };
        left = rest;
        shown += &escaped;
    }
    shown + "\""
}

/// At most `most` of the names that are like this one, the nearest first. Upper and lower case are alike, and so are
/// paths that differ only in their folder.
pub fn nearest<'a>(
    name: &str,
    all: impl Iterator<Item = &'a str>,
    most: usize,
) -> impl Iterator<Item = &'a str> {
    let folded = |name: &str| {
        name.chars().take(MAX_COMPARED_CHARS).flat_map(char::to_lowercase).collect::<String>()
    };
    let last = |path: &str| folded(path.rsplit('/').next().unwrap_or(path));
    let (whole, file) = (folded(name), last(name));
    let likeness = |other: &str| {
        let of_files = strsim::normalized_levenshtein(&file, &last(other));
        strsim::normalized_levenshtein(&whole, &folded(other)).max(of_files)
    };
    let compared = all.take(MAX_COMPARED).map(|other| (likeness(other), other));
    let mut near: Vec<_> = compared.filter(|(like, _)| *like >= LIKE).collect();
    near.sort_by(|(one, a), (two, b)| two.total_cmp(one).then_with(|| a.cmp(b)));
    near.into_iter().take(most).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_and_cut_and_cannot_act() {
        assert_eq!(quoted("a \"b\""), r#""a \"b\"""#);
        let hostile = quoted(&("\n\u{1b}[2J".to_owned() + &"x".repeat(200)));
        assert!(hostile.ends_with("...\"") && hostile.chars().count() < 100, "{hostile}");
        assert!(!hostile.contains(char::is_control));
        // An escape of two characters counts as two.
        assert_eq!(quoted_within("\"\\\"x", 5), r#""\"\\...""#);
        assert_eq!(quoted_within("\"\\x", 5), r#""\"\\x""#);
        assert_eq!(quoted_within("ab\n", 3), r#""ab...""#);
    }

    #[test]
    fn what_nobody_sees_in_a_name_is_escaped_as_python_writes_it() {
        let name = quoted("\u{FEFF}Order\u{A0}ID\0\u{200B}\u{202E}\u{E0041}");
        assert_eq!(name, r#""\ufeffOrder\u00a0ID\u0000\u200b\u202e\U000e0041""#);
        // Characters that join emoji and letters are part of them.
        assert_eq!(quoted("👨\u{200D}👩 é"), "\"👨\u{200D}👩 é\"");
    }

    #[test]
    fn the_nearest_names_come_first_and_others_not_at_all() {
        let near = |name, most| {
            nearest(name, ["sales.csv", "SALES.csv", "sale.csv", "b"].into_iter(), most)
                .collect::<Vec<_>>()
        };
        assert_eq!(near("Sales.csv", 5), ["SALES.csv", "sales.csv", "sale.csv"]);
        assert_eq!(near("slaes.csv", 1), ["SALES.csv"]);
        assert_eq!(near("weather", 5), Vec::<&str>::new());
        let path = nearest("sales.csv", ["raw/2025/sales.csv"].into_iter(), 1).next();
        assert_eq!(path, Some("raw/2025/sales.csv"));
    }
}
