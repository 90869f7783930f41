//! Groups of files whose names have a pattern in common, for a folder with more files than an answer lists. Pure.
//!
//! ```text
//! files -- same name but for numbers -- same folder and first word -- same folder and type -- same type -- the rest
//!              '- a group, if it has enough files; the other files go on
//! ```

use std::collections::BTreeMap;

use model::{FilePath, FoundFile};
use serde_json::{Value, json};

/// Maximum number of groups by a pattern: each has at least this part of all files.
const MAX_GROUPS: usize = 40;

/// Minimum number of files of a group.
const LEAST: usize = 3;

/// Maximum number of files that are in no group.
const MAX_ALONE: usize = 10;

/// The character for a number of a name, which no name has.
const NUMBER: char = '\0';

/// Files whose names have a pattern in common.
pub(in crate::mcp) struct Group<'a> {
    /// The files, by path.
    pub(in crate::mcp) files: Vec<&'a FoundFile>,
}

/// The files in groups, the largest first, and the files that are in none.
pub(in crate::mcp) fn groups(files: &[FoundFile]) -> (Vec<Group<'_>>, Vec<&FoundFile>) {
    let least = files.len().div_ceil(MAX_GROUPS).max(LEAST);
    let keys: [fn(&str) -> String; 5] =
        [without_numbers, by_word, by_folder, by_type, |_| String::new()];
    let mut rest: Vec<_> = files.iter().collect();
    let mut found = vec![];
    for (at, key) in keys.iter().enumerate() {
        if rest.len() <= MAX_ALONE {
            break;
        }
        let least = if at + 1 == keys.len() { LEAST } else { least };
        let mut by_key = BTreeMap::<_, Vec<_>>::new();
        for file in rest.drain(..) {
            by_key.entry(key(&absolute(&file.path))).or_default().push(file);
        }
        for files in by_key.into_values() {
            if files.len() >= least {
                found.push(Group { files });
            } else {
                rest.extend(files);
            }
        }
    }
    found.sort_by_key(|group| (usize::MAX - group.files.len(), absolute(&group.files[0].path)));
    rest.sort_by_key(|file| absolute(&file.path));
    (found, rest)
}

impl Group<'_> {
    /// Renders the group. `all` are the files of all groups.
    pub(in crate::mcp) fn rendered(&self, all: &[FoundFile]) -> Value {
        let paths: Vec<_> = self.files.iter().map(|file| absolute(&file.path)).collect();
        let size = self.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size_bytes));
        let mut shown = json!({
            "first": paths.first(),
            "last": paths.last(),
            "count": paths.len(),
            "size_bytes": size,
        });
        let matches = |parts: &[Part<'_>]| {
            all.iter().filter(|file| are_of(&absolute(&file.path), parts)).count() == paths.len()
        };
        if let Some(parts) = pattern(&paths).filter(|parts| matches(parts)) {
            shown["pattern"] = parts.iter().map(Part::text).collect::<Vec<_>>().join("/").into();
        }
        shown
    }
}

/// The absolute path of a file.
fn absolute(path: &FilePath) -> String {
    match path {
        FilePath::Own(path) => path.absolute(),
        FilePath::OfDataset(_) => path.to_text(),
    }
}

/// The path with one mark for each number. A part of hexadecimal digits, as names of objects have them, counts as one.
fn without_numbers(path: &str) -> String {
    let mut shape = String::new();
    for word in path.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let is_hex = word.len() > 4
            && word
                .trim_end_matches(|c: char| !c.is_alphanumeric())
                .bytes()
                .all(|it| it.is_ascii_hexdigit())
            && word.bytes().any(|it| it.is_ascii_digit());
        for c in word.chars() {
            let is_number = c.is_ascii_digit() || (is_hex && c.is_ascii_hexdigit());
            if !is_number {
                shape.push(c);
            } else if !shape.ends_with(NUMBER) {
                shape.push(NUMBER);
            }
        }
    }
    shape
}

/// The folder without its numbers, the first word of the name, and the type.
fn by_word(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let word: String = name.chars().take_while(|c| c.is_alphabetic()).collect();
    format!("{}/{}.{}", without_numbers(folder), word.to_lowercase(), by_type(path))
}

/// The folder without its numbers, and the type.
fn by_folder(path: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{}/{}", without_numbers(folder), by_type(path))
}

fn by_type(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').map_or_else(String::new, |(_, end)| end.to_lowercase())
}

/// A part of a path in a pattern: the same for all files, or a start and an end.
struct Part<'a> {
    start: &'a str,
    end: Option<&'a str>,
}

impl Part<'_> {
    fn text(&self) -> String {
        self.end.map_or_else(|| self.start.to_owned(), |end| format!("{}*{end}", self.start))
    }

    fn is_of(&self, name: &str) -> bool {
        match self.end {
            None => name == self.start,
            Some(end) => name.strip_prefix(self.start).is_some_and(|rest| rest.ends_with(end)),
        }
    }
}

fn are_of(path: &str, parts: &[Part<'_>]) -> bool {
    let mut names = path.split('/');
    parts.iter().all(|part| names.next().is_some_and(|name| part.is_of(name)))
        && names.next().is_none()
}

/// The pattern of these paths, as programs search for files; `None` if no such pattern is simple.
fn pattern(paths: &[String]) -> Option<Vec<Part<'_>>> {
    let first: Vec<_> = paths.first()?.split('/').collect();
    let mut parts: Vec<_> = first.iter().copied().map(|start| Part { start, end: None }).collect();
    for path in paths {
        let names: Vec<_> = path.split('/').collect();
        if names.len() != parts.len() {
            return None;
        }
        for ((part, name), first) in parts.iter_mut().zip(names).zip(&first) {
            if part.end.is_none() && *first == name {
                continue;
            }
            part.start = &part.start[..common(part.start.chars(), name.chars())];
            let end = part.end.unwrap_or(*first);
            part.end = Some(&end[end.len() - common(end.chars().rev(), name.chars().rev())..]);
        }
    }
    let has_sign = |part: &Part<'_>| {
        [part.start, part.end.unwrap_or("")].iter().any(|it| it.contains(['*', '?', '[']))
    };
    for part in &mut parts {
        if let Some(end) = part.end {
            // A number is replaced as a whole.
            part.start = part.start.trim_end_matches(|c: char| c.is_ascii_digit());
            part.end = Some(end.trim_start_matches(|c: char| c.is_ascii_digit()));
        }
    }
    (!parts.iter().any(has_sign)).then_some(parts)
}

/// Number of bytes that are the same in both.
fn common(one: impl Iterator<Item = char>, other: impl Iterator<Item = char>) -> usize {
    one.zip(other).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[String]) -> Vec<FoundFile> {
        let mut all: Vec<_> = paths
            .iter()
            .map(|path| FoundFile {
                path: FilePath::anywhere(path).expect("a path"),
                size_bytes: 10,
                modified_ns: 0,
            })
            .collect();
        all.sort_by_key(|file| absolute(&file.path));
        all
    }

    /// The patterns of the groups with their numbers of files, and the names of the other files.
    fn told(paths: &[String]) -> (Vec<String>, Vec<String>) {
        let files = files(paths);
        let (groups, rest) = groups(&files);
        let one = |group: &Group<'_>| {
            let shown = group.rendered(&files);
            let pattern = shown["pattern"].as_str().unwrap_or("-");
            assert_eq!(shown["size_bytes"], 10 * group.files.len());
            format!("{pattern}: {}", shown["count"])
        };
        (groups.iter().map(one).collect(), rest.iter().map(|it| absolute(&it.path)).collect())
    }

    #[test]
    fn names_that_differ_in_numbers_are_a_group_with_a_pattern_that_programs_can_use() {
        let months = |name: &str| {
            (1..=30).map(|n| format!("/data/s/{name}-2026-{n:02}.csv")).collect::<Vec<_>>()
        };
        let mut all = [months("sales"), months("web")].concat();
        all.push("/data/s/readme.md".into());
        let (groups, rest) = told(&all);
        assert_eq!(groups, ["/data/s/sales-2026-*.csv: 30", "/data/s/web-2026-*.csv: 30"]);
        assert_eq!(rest, ["/data/s/readme.md"]);
        let first = files(&all);
        let shown = super::groups(&first).0[0].rendered(&first);
        assert_eq!(shown["first"], "/data/s/sales-2026-01.csv");
        assert_eq!(shown["last"], "/data/s/sales-2026-30.csv");
    }

    #[test]
    fn folders_of_dates_and_names_of_objects_are_groups() {
        let days: Vec<_> = (1..=60).map(|n| format!("raw/2026/{:02}/{n}.json", n % 12)).collect();
        assert_eq!(told(&days).0, ["/mnt/data/raw/2026/*/*.json: 60"]);
        let objects: Vec<_> = (0..60u32)
            .map(|n| format!("/data/x/part-{:08x}.parquet", n.wrapping_mul(0x9E37_79B9)))
            .collect();
        assert_eq!(told(&objects).0, ["/data/x/part-*.parquet: 60"]);
    }

    #[test]
    fn names_of_words_are_groups_by_folder_and_type() {
        let cities = |folder: &str, end: &str| {
            (0..26u8)
                .map(|n| {
                    format!("/data/x/{folder}/{}{}.{end}", char::from(b'a' + n), "x".repeat(3))
                })
                .collect::<Vec<_>>()
        };
        let (groups, rest) = told(&[cities("a", "csv"), cities("b", "csv")].concat());
        assert_eq!(groups, ["/data/x/a/*xxx.csv: 26", "/data/x/b/*xxx.csv: 26"]);
        assert!(rest.is_empty());
    }

    #[test]
    fn a_pattern_that_other_files_have_as_well_is_left_out() {
        let mut all: Vec<_> = (0..60).map(|n| format!("/data/x/a{n}.csv")).collect();
        all.push("/data/x/a-total.csv".into());
        all.push("/data/x/[b].csv".into());
        let (groups, rest) = told(&all);
        assert_eq!((groups, rest.len()), (vec!["-: 60".to_owned()], 2));
    }

    #[test]
    fn whatever_the_names_are_each_file_is_in_one_place_and_the_groups_are_few() {
        let of = |n: usize| match n % 7 {
            0 => format!("/data/x/{n}/{}.e{n}", "y".repeat(n % 30 + 1)),
            1 => format!("/data/x/é{}", "é".repeat(n % 50)),
            _ => format!("/data/x/{}/a{n}", "z".repeat(n % 90 + 1)),
        };
        for count in [51, 500, 5000] {
            let all = files(&(0..count).map(of).collect::<Vec<_>>());
            let (groups, rest) = groups(&all);
            let in_groups: usize = groups.iter().map(|group| group.files.len()).sum();
            assert_eq!(in_groups + rest.len(), all.len());
            assert!(groups.len() <= MAX_GROUPS + 1 && rest.len() <= MAX_ALONE, "{}", rest.len());
        }
    }
}
