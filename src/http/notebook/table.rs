//! Tables in the text of a value, as HTML. Pure, and strict: text that is not clearly a table stays text.
//!
//! pandas writes a frame with each column flush right and the index flush left. Columns that do not fit into its width
//! follow in further blocks, and a frame that is long or wide ends with its size:
//!
//! ```text
//!         revenue   orders  \          <- the columns; more of them follow
//! region                               <- the name of the index
//! North    1200.5       12
//!
//! [2 rows x 9 columns]
//! ```

use std::fmt::Write as _;

/// A table as text.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    /// The cells of each row, with the index first.
    rows: Vec<Vec<String>>,
    columns: Vec<String>,
    /// Rows and columns of the whole frame.
    size: Option<String>,
}

/// The HTML of a value that is a table.
pub(super) fn html(text: &str) -> Option<String> {
    let table = Table::parse(text)?;
    let mut html = String::from("<table border=\"1\" class=\"dataframe\">\n<thead><tr>");
    for title in &table.columns {
        let _ = write!(html, "<th>{}</th>", escaped(title));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        let mut cells = row.iter();
        let index = cells.next().map_or("", String::as_str);
        let _ = write!(html, "<tr><th>{}</th>", escaped(index));
        for cell in cells {
            let _ = write!(html, "<td>{}</td>", escaped(cell));
        }
        html += "</tr>\n";
    }
    html += "</tbody></table>";
    if let Some(size) = &table.size {
        let _ = write!(html, "\n<p>{}</p>", escaped(size));
    }
    Some(html)
}

impl Table {
    fn parse(text: &str) -> Option<Self> {
        let mut blocks: Vec<&str> = text.trim_end().split("\n\n").collect();
        let is_size =
            |it: &&str| it.starts_with('[') && it.ends_with(" columns]") && !it.contains('\n');
        let size = blocks.pop_if(|block| is_size(&&**block));
        let size = size.map(|it| it.trim_matches(['[', ']']).replace(" x ", " × "));
        let last = blocks.len().checked_sub(1)?;
        let mut blocks = blocks.iter().enumerate().map(|(n, block)| block_of(block, n == last));
        let (mut columns, mut rows) = blocks.next()??;
        for block in blocks {
            let (more, next) = block?;
            if next.len() != rows.len() {
                return None;
            }
            columns.extend(more.into_iter().skip(1));
            for (row, next) in rows.iter_mut().zip(next) {
                if row[0] != next[0] {
                    return None;
                }
                row.extend(next.into_iter().skip(1));
            }
        }
        Some(Self { rows, columns, size })
    }
}

/// The titles and rows of one block, each with the index first.
fn block_of(text: &str, is_last: bool) -> Option<(Vec<String>, Vec<Vec<String>>)> {
    let mut lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
    if !is_last {
        // A backslash after the titles announces more columns, and blanks after the rows make room for it.
        let marked = lines.first_mut()?;
        marked.pop_if(|it| *it == '\\')?;
    }
    let head = lines.first()?;
    let ends = ends_of_words(head);
    let first = *ends.first()?;
    // The name of the index has a line of its own, with nothing below the titles.
    let index_name = lines.get(1).filter(|line| {
        !line.starts_with(&[' ']) && is_blank(line.get(first - 1..).unwrap_or_default())
    });
    let rows = &lines[1 + usize::from(index_name.is_some())..];
    let is_row = |row: &Vec<char>| {
        let is_flush = |end: &usize| row.get(end - 1).is_some_and(|it| *it != ' ');
        let is_apart = |end: &usize| row.get(*end).is_none_or(|it| *it == ' ');
        let rest = row.get(*ends.last().unwrap_or(&0)..).unwrap_or_default();
        ends.iter().all(|end| is_flush(end) && is_apart(end)) && is_blank(rest)
    };
    if rows.is_empty() || !rows.iter().all(is_row) {
        return None;
    }
    // The widest value of the first column shows where the index ends.
    let all = || std::iter::once(head).chain(rows);
    let start = all().map(|line| start_of_word(&line[..first])).min()?;
    if start == 0 || !all().all(|line| line[start - 1] == ' ') {
        return None;
    }
    let cells = |line: &Vec<char>| {
        let mut from = start;
        let mut cells = vec![trimmed(&line[..start])];
        for end in &ends {
            cells.push(trimmed(&line[from..*end]));
            from = *end;
        }
        cells
    };
    let mut columns = cells(head);
    if !columns[0].is_empty() {
        return None;
    }
    if let Some(name) = index_name {
        columns[0] = trimmed(name);
    }
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let is_clear = |cell: &String| !cell.contains("  ");
    (columns.iter().all(is_clear) && rows.iter().flatten().all(is_clear)).then_some((columns, rows))
}

/// The end of each word. Two blanks separate words, because a word may contain single blanks.
fn ends_of_words(line: &[char]) -> Vec<usize> {
    let is_end =
        |at: &usize| line[at - 1] != ' ' && line[*at..].iter().take(2).all(|it| *it == ' ');
    (1..=line.len()).filter(is_end).collect()
}

/// The start of the last word: after two blanks, or else after one.
fn start_of_word(line: &[char]) -> usize {
    let behind = |blanks: usize| {
        let mut starts = line
            .windows(blanks + 1)
            .enumerate()
            .filter(|(_, it)| it[..blanks].iter().all(|it| *it == ' ') && it[blanks] != ' ');
        starts.next_back().map(|(at, _)| at + blanks)
    };
    behind(2).or_else(|| behind(1)).unwrap_or(0)
}

fn is_blank(text: &[char]) -> bool {
    text.iter().all(|it| *it == ' ')
}

fn trimmed(text: &[char]) -> String {
    text.iter().collect::<String>().trim().to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn table(text: &str) -> (Vec<String>, Vec<Vec<String>>) {
        let table = Table::parse(text).expect("a table");
        (table.columns, table.rows)
    }

    #[test]
    fn a_frame_is_a_table() {
        let (columns, rows) = table(
            "       city  unit price    x\n0  New York         1.5 -1.0\n1      Rome       -20.0  NaN",
        );
        assert_eq!(columns, ["", "city", "unit price", "x"]);
        assert_eq!(rows, [["0", "New York", "1.5", "-1.0"], ["1", "Rome", "-20.0", "NaN"]]);
    }

    #[test]
    fn an_index_has_its_name_and_its_size_is_told() {
        let text = "               revenue\nregion                \nNorth America   1200.5\nSouth            -80.0\n\n[2 rows x 1 columns]";
        let found = Table::parse(text).expect("a table");
        assert_eq!(found.columns, ["region", "revenue"]);
        assert_eq!(found.rows, [["North America", "1200.5"], ["South", "-80.0"]]);
        assert_eq!(found.size.as_deref(), Some("2 rows × 1 columns"));
    }

    #[test]
    fn the_index_ends_before_a_number_that_is_negative() {
        let (columns, rows) = table("   a\n0 -1\n1 -2");
        assert_eq!(
            (columns, rows),
            (
                vec![String::new(), "a".into()],
                vec![vec!["0".into(), "-1".into()], vec!["1".into(), "-2".into()]]
            )
        );
    }

    #[test]
    fn columns_that_follow_in_another_block_are_of_the_same_table() {
        let (columns, rows) =
            table("   a  b  \\\n0  1  2   \n1  3  4   \n\n   c  \n0  5  \n1  6  ");
        assert_eq!(columns, ["", "a", "b", "c"]);
        assert_eq!(rows, [["0", "1", "2", "5"], ["1", "3", "4", "6"]]);
    }

    #[test]
    fn what_is_no_table_stays_text() {
        for text in [
            "",
            "42",
            "'a  b'",
            "[1, 2]",
            "a  b\nc  d",
            "region\nNorth    1\nName: revenue, dtype: int64",
            "            x\na b  1.0\n  c  2.0\nd e  3.0\n[... 5 bytes left out ...]",
            "Empty DataFrame\nColumns: [a]\nIndex: []",
            "   a  b  \\\n0  1  2   ",
        ] {
            assert_eq!(html(text), None, "{text}");
        }
    }

    #[test]
    fn a_value_is_text_in_html() {
        let html = html("       <b>a\n0  <script>").expect("a table");
        assert!(
            html.contains("<th>&lt;b&gt;a</th>") && html.contains("<td>&lt;script&gt;</td>"),
            "{html}"
        );
    }

    proptest! {
        #[test]
        fn every_text_is_a_table_or_none(text in "[ a0\\\\\n\\[\\]é-]{0,80}") {
            let _ = html(&text);
        }

        #[test]
        fn a_frame_is_read_as_it_was_written(
            rows in prop::collection::vec(("[a-z]{1,9}( [a-z]{1,4})?", -999..999_i32, "[a-z]{1,5}( [a-z]{1,3})?"), 1..6),
        ) {
            // As pandas does it: the index flush left, columns flush right, with a blank before each and one more for a sign.
            let texts: Vec<[String; 3]> =
                rows.iter().map(|(index, number, word)| [index.clone(), format!("{number:>2}"), word.clone()]).collect();
            let width = |n: usize, title: &str| {
                texts.iter().map(|row| row[n].trim().len() + usize::from(!row[n].trim().starts_with('-'))).chain([title.len() + 1]).max().unwrap_or(0)
            };
            let widths = [texts.iter().map(|row| row[0].len()).max().unwrap_or(0), width(1, "n"), width(2, "word")];
            let line = |cells: [&str; 3]| {
                format!("{:<a$} {:>b$} {:>c$}\n", cells[0], cells[1].trim(), cells[2], a = widths[0], b = widths[1], c = widths[2])
            };
            let mut text = line(["", "n", "word"]);
            for row in &texts {
                text += &line([&row[0], &row[1], &row[2]]);
            }
            let (columns, read) = table(text.trim_end());
            prop_assert_eq!(columns, ["", "n", "word"]);
            for (read, row) in read.iter().zip(&texts) {
                let row: Vec<_> = row.iter().map(|it| it.trim().to_owned()).collect();
                prop_assert_eq!(read, &row);
            }
        }
    }
}
