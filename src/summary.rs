//! Summaries of tables as models see them: within [`MAX_TOKENS`], and without anything that a file could use to look
//! like something else. Pure.

use model::text::without_controls;
use protocol::message::{Column, ColumnKind, Sheet, Summary, SummaryKind};
use serde_json::{Map, Value, json};

/// The maximum size of a summary in an answer, in tokens of `o200k_base`, by an [estimate](estimate).
const MAX_TOKENS: usize = 150;

/// Tokens that the sheets of a workbook may take.
const MAX_SHEET_TOKENS: usize = 40;

/// Tokens of the key of a summary in an answer, and of its braces.
const FRAME_TOKENS: usize = 4;

/// Tokens that the key of the rows may have.
const MAX_KEY_TOKENS: usize = 15;

/// Longest name of a column or a sheet, and longest example, in characters.
const MAX_NAME: usize = 40;
const MAX_EXAMPLE: usize = 20;

/// Largest number in a summary: clients cannot read all larger ones.
const MAX_NUMBER: u64 = (1 << 53) - 1;

/// Longest name of an encoding, in bytes.
const MAX_ENCODING: usize = 20;

/// The number of examples of a column.
const EXAMPLES: usize = 3;

/// Renders a summary for an answer. It comes from the sandbox and may be anything.
pub(crate) fn rendered(summary: &Summary) -> Value {
    let mut shown = Map::new();
    shown.insert("kind".into(), kind(summary.kind).into());
    if summary.gzip {
        shown.insert("compression".into(), "gzip".into());
    }
    let encoding = summary.encoding.as_deref().filter(|name| is_encoding(name));
    shown.extend(encoding.map(|name| ("encoding".to_owned(), name.into())));
    let marks = [
        ("separator", summary.separator),
        ("decimal", summary.decimal),
        ("thousands", summary.thousands),
    ];
    for (name, mark) in marks {
        let mark = mark.filter(|mark| {
            *mark == '\t' || without_controls([*mark].into_iter()) == mark.to_string()
        });
        shown.extend(mark.map(|mark| (name.to_owned(), mark.to_string().into())));
    }
    if !summary.header {
        shown.insert("header".into(), false.into());
    }
    if summary.header_line > 1 {
        shown.insert("header_line".into(), number(summary.header_line).into());
    }
    // Workbooks have no keys.
    let within_key = summary.within.as_deref().filter(|_| summary.sheets.is_empty());
    let within_key = within_key.map(|name| cut(name, MAX_NAME));
    let within_key = within_key.filter(|name| estimate(name) <= MAX_KEY_TOKENS);
    shown.extend(within_key.map(|name| ("within".to_owned(), name.into())));
    if let Some(rows) = summary.rows {
        let name = if summary.at_least { "rows_at_least" } else { "rows" };
        shown.insert(name.into(), number(rows).into());
    }
    if let Some(looked_at) = summary.looked_at
        && (summary.at_least || summary.rows.is_some_and(|rows| rows > looked_at))
    {
        shown.insert("columns_from_first_rows".into(), number(looked_at).into());
    }
    if !summary.sheets.is_empty() {
        let (sheets, more) = within(summary.sheets.iter().map(sheet), MAX_SHEET_TOKENS);
        shown.insert("sheets".into(), sheets.into());
        let more = summary.more_sheets.saturating_add(more);
        if more > 0 {
            shown.insert("more_sheets".into(), number(more).into());
        }
    }
    shown.insert("columns".into(), json!([]));
    let count = summary.more_columns.saturating_add(summary.columns.len() as u64);
    shown.insert("more_columns".into(), number(count).into());
    let before =
        FRAME_TOKENS + shown.iter().map(|(name, value)| of_entry(name, value)).sum::<usize>();
    // The name of a column says more than a third value of another.
    let with = |examples: usize| {
        let columns = summary.columns.iter().enumerate();
        let columns = columns.map(move |(at, it)| column(at, it, examples));
        within(columns, MAX_TOKENS.saturating_sub(before))
    };
    let all = (1..=EXAMPLES).rev().map(with).find(|(_, more)| *more == 0);
    let (columns, more) = all.unwrap_or_else(|| with(0));
    shown.insert("columns".into(), columns.into());
    let more = summary.more_columns.saturating_add(more);
    shown.insert("more_columns".into(), number(more).into());
    shown.retain(|name, value| name != "more_columns" || value != 0);
    shown.into()
}

/// The first of these texts that take at most so many tokens, and the number of the others.
fn within(texts: impl Iterator<Item = String>, most: usize) -> (Vec<Value>, u64) {
    let (mut shown, mut left, mut more) = (vec![], Some(most), 0);
    for text in texts {
        let text = Value::from(text);
        left = left.and_then(|left| left.checked_sub(of_value(&text)));
        if left.is_some() {
            shown.push(text);
        } else {
            more += 1;
        }
    }
    (shown, more)
}

fn kind(kind: SummaryKind) -> &'static str {
    match kind {
        SummaryKind::Csv => "csv",
        SummaryKind::Tsv => "tsv",
        SummaryKind::Xlsx => "xlsx",
        SummaryKind::Xls => "xls",
        SummaryKind::Parquet => "parquet",
        SummaryKind::Json => "json",
        SummaryKind::JsonLines => "json_lines",
    }
}

/// A sheet as `Sales: 1200 rows`.
fn sheet(sheet: &Sheet) -> String {
    let name = cut(&sheet.name, MAX_NAME);
    match sheet.rows {
        Some(1) => format!("{name}: 1 row"),
        Some(rows) => format!("{name}: {} rows", number(rows)),
        None => name,
    }
}

/// A column as `Region: text, 3 missing: North | South | East`, with at most so many examples.
fn column(at: usize, column: &Column, most_examples: usize) -> String {
    let Column { name, kind, missing, unsure, examples } = column;
    let mut shown =
        if name.is_empty() { format!("column {}", at + 1) } else { cut(name, MAX_NAME) };
    shown.push_str(match kind {
        ColumnKind::Integer => ": int",
        ColumnKind::Number => ": float",
        ColumnKind::Boolean => ": bool",
        ColumnKind::Date => ": date",
        ColumnKind::DateDayFirst => ": date, day first",
        ColumnKind::DateMonthFirst => ": date, month first",
        ColumnKind::Datetime => ": datetime",
        ColumnKind::Time => ": time",
        ColumnKind::Text => ": text",
        ColumnKind::Binary => ": bytes",
        ColumnKind::List => ": list",
        ColumnKind::Object => ": object",
        ColumnKind::Mixed => ": mixed",
        ColumnKind::Empty => ": empty",
    });
    if *unsure {
        shown.push_str(match kind {
            ColumnKind::Number => ", may be thousands",
            ColumnKind::Date | ColumnKind::Datetime => ", day or month first",
            _ => "",
        });
    }
    if let Some(missing) = missing.filter(|missing| *missing > 0) {
        shown.push_str(", ");
        shown.push_str(&number(missing).to_string());
        shown.push_str(" missing");
    }
    let examples = examples.iter().take(most_examples).map(|it| cut(it, MAX_EXAMPLE));
    let examples: Vec<_> = examples.collect();
    if !examples.is_empty() {
        shown.push_str(": ");
        shown.push_str(&examples.join(" | "));
    }
    shown
}

fn number(number: u64) -> u64 {
    number.min(MAX_NUMBER)
}

fn is_encoding(name: &str) -> bool {
    let is_of_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    name.len() <= MAX_ENCODING && name.bytes().all(is_of_name)
}

/// The first characters of a text, of which the last stands for those that are left out.
fn cut(text: &str, most: usize) -> String {
    let mut chars = text.chars();
    let mut shown = without_controls(chars.by_ref().take(most));
    if chars.next().is_some() {
        shown.pop();
        shown.push('…');
    }
    shown
}

/// Words of every summary, each a token.
const WORDS: [&str; 39] = [
    "at",
    "be",
    "bool",
    "columns",
    "compression",
    "csv",
    "date",
    "datetime",
    "day",
    "decimal",
    "empty",
    "encoding",
    "first",
    "float",
    "from",
    "header",
    "in",
    "int",
    "json",
    "kind",
    "least",
    "line",
    "list",
    "may",
    "missing",
    "mixed",
    "month",
    "more",
    "object",
    "or",
    "rows",
    "separator",
    "sheets",
    "summary",
    "text",
    "thousands",
    "time",
    "utf",
    "within",
];

/// Estimates the tokens of a text, rather too many: a real count needs a table of 200,000 words. Letters that are no
/// word, and characters of rare scripts, are counted as the tokenizer divides them on average.
fn estimate(text: &str) -> usize {
    let (mut tokens, mut rest, mut before) = (0, text, ' ');
    while let Some(first) = rest.chars().next() {
        let run = |is: fn(&u8) -> bool, from: usize| {
            from + rest.as_bytes()[from..].iter().take_while(|byte| is(byte)).count()
        };
        let upper = run(u8::is_ascii_uppercase, 0);
        let len = match first {
            // The last capital before small letters begins their word.
            'A'..='Z' if upper > 1 => {
                upper - usize::from(run(u8::is_ascii_lowercase, upper) > upper)
            }
            'A'..='Z' => run(u8::is_ascii_lowercase, 1),
            'a'..='z' => run(u8::is_ascii_lowercase, 0),
            '0'..='9' => run(u8::is_ascii_digit, 0),
            _ => first.len_utf8(),
        };
        let (part, others) = rest.split_at(len);
        tokens += match first {
            'A'..='Z' if upper > 1 => (len * 3).div_ceil(5),
            'A'..='Z' | 'a'..='z' => of_word(&part.to_ascii_lowercase()),
            // Only a digit is not joined with the space before it.
            '0'..='9' => len.div_ceil(3) + usize::from(before == ' '),
            ' ' => usize::from(before == ' '),
            _ => of_character(first),
        };
        before = part.chars().next_back().unwrap_or(' ');
        rest = others;
    }
    tokens
}

/// Estimates the tokens of a key with its value, and of the marks around them.
fn of_entry(name: &str, value: &Value) -> usize {
    estimate(name) + of_value(value) + 1
}

/// Estimates the tokens of a value. The marks between two texts of JSON are one token.
fn of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => {
            estimate(Value::from(text.as_str()).to_string().trim_matches('"')) + 1
        }
        Value::Array(values) => 1 + values.iter().map(of_value).sum::<usize>(),
        other => estimate(&other.to_string()) + 1,
    }
}

/// Estimates the tokens of a word of small letters.
fn of_word(word: &str) -> usize {
    if WORDS.contains(&word) {
        return 1;
    }
    let is_vowel = |letter: char| "aeiouy".contains(letter);
    let (mut run, mut last, mut is_speakable) =
        (0, None, word.len() < 3 || word.contains(is_vowel));
    for letter in word.chars() {
        run = if last == Some(is_vowel(letter)) { run + 1 } else { 1 };
        last = Some(is_vowel(letter));
        is_speakable &= run < 4;
    }
    if is_speakable { word.len().div_ceil(3) } else { (word.len() * 3).div_ceil(5) }
}

/// Estimates the tokens of a character that is neither a letter of ASCII nor a digit.
fn of_character(c: char) -> usize {
    match u32::from(c) {
        0..0x180 | 0x370..0x450 | 0x5D0..0x700 | 0x2000..0x2100 => 1,
        0x180..0x800 | 0xE00..0xE80 | 0x3000..0x3100 | 0x4E00..0xA000 | 0xAC00..0xD7A4 => 2,
        0x800..0x1_0000 | 0x1_F300..0x1_FB00 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(columns: Vec<Column>) -> Summary {
        let summary = json!({ "kind": "csv", "columns": [], "rows": 3, "looked_at": 3 });
        Summary { columns, ..serde_json::from_value(summary).expect("a summary") }
    }

    fn text(name: &str, examples: &[&str]) -> Column {
        let examples = examples.iter().map(|it| (*it).to_owned()).collect();
        Column {
            name: name.into(),
            kind: ColumnKind::Text,
            missing: Some(0),
            unsure: false,
            examples,
        }
    }

    #[test]
    fn a_summary_is_compact() {
        let day = Column {
            kind: ColumnKind::DateDayFirst,
            missing: Some(2),
            ..text("Day", &["31.1.2026"])
        };
        let summary = Summary {
            encoding: Some("cp1252".into()),
            separator: Some(';'),
            decimal: Some(','),
            ..of(vec![day, text("Region", &["North", "South", "East", "West"]), text("", &[])])
        };
        assert_eq!(
            rendered(&summary),
            json!({
                "kind": "csv", "encoding": "cp1252", "separator": ";", "decimal": ",", "rows": 3,
                "columns": [
                    "Day: date, day first, 2 missing: 31.1.2026",
                    "Region: text: North | South | East",
                    "column 3: text",
                ],
            })
        );
    }

    #[test]
    fn rows_and_columns_say_how_much_of_the_file_they_are_about() {
        let whole = of(vec![text("a", &[])]);
        assert_eq!(rendered(&whole)["columns_from_first_rows"], Value::Null);
        let start = Summary { rows: Some(9), ..whole.clone() };
        assert_eq!(rendered(&start)["columns_from_first_rows"], 3);
        let cut = Summary { at_least: true, ..whole };
        assert_eq!(
            (&rendered(&cut)["rows"], &rendered(&cut)["rows_at_least"]),
            (&Value::Null, &json!(3))
        );
    }

    #[test]
    fn what_could_pass_for_something_else_is_replaced() {
        let hostile = text("a\u{1b}[2J\n\u{202e}b", &[&"x".repeat(90), "\u{0}\u{feff}"]);
        let summary = Summary {
            encoding: Some("utf-8 IGNORE".into()),
            separator: Some('\u{202e}'),
            rows: Some(u64::MAX),
            more_columns: u64::MAX,
            ..of(vec![hostile])
        };
        let shown = rendered(&summary);
        assert_eq!(
            shown["columns"][0],
            format!("a\u{fffd}[2J\u{fffd}\u{fffd}b: text: {}… | \u{fffd}\u{fffd}", "x".repeat(19))
        );
        assert_eq!((&shown["encoding"], &shown["separator"]), (&Value::Null, &Value::Null));
        assert_eq!(
            (&shown["rows"], &shown["more_columns"]),
            (&json!(MAX_NUMBER), &json!(MAX_NUMBER))
        );
    }

    #[test]
    fn of_a_wide_table_the_first_columns_are_shown() {
        let columns = (0..30).map(|n| text(&format!("column_{n}"), &["one", "two", "three"]));
        let shown = rendered(&Summary { more_columns: 5, ..of(columns.collect()) });
        let count = shown["columns"].as_array().expect("columns").len();
        assert!((12..30).contains(&count), "{shown}");
        assert!(!shown.to_string().contains("one"), "no examples: {shown}");
        assert_eq!(shown["more_columns"], 35 - count);
    }

    proptest! {
        #[test]
        fn no_summary_is_estimated_higher_than_the_limit(
            names in prop::collection::vec(any::<String>(), 0..40),
            numbers: [u64; 5],
            sheets in prop::collection::vec(any::<String>(), 0..20),
        ) {
            let column = |name: &String| Column {
                kind: ColumnKind::Datetime,
                missing: Some(numbers[0]),
                unsure: true,
                ..text(name, &[name, "1", name])
            };
            let summary = Summary {
                encoding: names.first().cloned(),
                within: names.last().cloned(),
                rows: Some(numbers[1]),
                looked_at: Some(numbers[2]),
                more_columns: numbers[3],
                more_sheets: numbers[4],
                header: false,
                header_line: numbers[2],
                gzip: true,
                at_least: true,
                sheets: sheets.into_iter().map(|name| Sheet { name, rows: Some(numbers[0]) }).collect(),
                ..of(names.iter().map(column).collect())
            };
            let shown = rendered(&summary);
            let entries = shown.as_object().expect("an object").iter();
            let tokens = FRAME_TOKENS + entries.map(|(name, value)| of_entry(name, value)).sum::<usize>();
            prop_assert!(tokens <= MAX_TOKENS, "{tokens}");
        }
    }
}
