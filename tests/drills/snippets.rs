//! Snippets that are run in two ways and must do the same: files in the folders of their topics, with the differences
//! that are right stated in their headers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    fs,
    path::{Path, PathBuf},
};

use support::root;

/// Differences that are right or not worth a fix, by part of the result, each with its reason.
pub(crate) type Differs<P> = BTreeMap<P, String>;

/// All files below a folder of the repository, in the folders of their topics.
pub(crate) fn files_by_topic(folder: &str) -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        let entries =
            fs::read_dir(folder).unwrap_or_else(|_| panic!("no topic: {}", folder.display()));
        entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    entries(&root().join(folder)).iter().flat_map(|topic| entries(topic)).collect()
}

/// Topic and file of each snippet in this folder, without the ending, and its content. The environment variable of this
/// name selects some.
pub(crate) fn all(folder: &str, variable: &str) -> Vec<(String, String)> {
    let wanted = std::env::var(variable).unwrap_or_default();
    let read = |path: PathBuf| {
        let name =
            path.strip_prefix(root().join(folder)).expect("in the folder").with_extension("");
        (name.to_str().expect("a name").to_owned(), fs::read_to_string(path).expect("UTF-8"))
    };
    let mut all: Vec<_> = files_by_topic(folder).into_iter().map(read).collect();
    all.retain(|(name, _)| name.contains(&wanted));
    all.sort();
    all
}

/// Checks that every file in this folder is a snippet.
pub(crate) fn nothing_else_is_in(folder: &str) {
    for path in files_by_topic(folder) {
        assert!(path.extension().is_some_and(|end| end == "py"), "{} is never run", path.display());
    }
}

/// Reads a line of a header; returns whether it states a difference.
pub(crate) fn states_difference<P: Ord + Debug + Copy>(
    line: &str,
    snippet: &str,
    named: fn(&str) -> Option<P>,
    differs: &mut Differs<P>,
) -> bool {
    let Some(difference) = line.strip_prefix("# differs: ") else { return false };
    let (part, reason) = difference.split_once(": ").unwrap_or((difference, ""));
    let part = named(part).unwrap_or_else(|| panic!("{snippet}: there is no such part: {line}"));
    assert!(!reason.is_empty(), "{snippet}: why?");
    let twice = differs.insert(part, reason.to_owned());
    assert_eq!(twice, None, "{snippet}: {part:?} twice");
    true
}

/// The parts that differ and are not stated to, or are stated to differ and do not. `sides` names what is compared.
pub(crate) fn wrong_parts<P: Ord + Debug>(
    one: &BTreeMap<P, String>,
    other: &BTreeMap<P, String>,
    differs: &Differs<P>,
    sides: [&str; 2],
) -> Vec<String> {
    let wrong = one.iter().filter_map(|(part, one)| {
        match (difference(one, &other[part], sides), differs.get(part)) {
            (Some(difference), None) => Some(format!("{part:?} differs:\n{difference}")),
            (None, Some(reason)) => {
                Some(format!("{part:?} no longer differs, as it might: {reason}"))
            }
            _ => None,
        }
    });
    wrong.collect()
}

/// The lines from the first difference to the last; `None` if there is none.
fn difference(one: &str, other: &str, sides: [&str; 2]) -> Option<String> {
    /// Lines shown of each side, and characters of each line.
    const LINES: usize = 30;
    const WIDTH: usize = 300;

    if one == other {
        return None;
    }
    let [one, other] = [one, other].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let same_head = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[same_head..], &other[same_head..]);
    let ends = one.iter().rev().zip(other.iter().rev());
    let same_tail = ends.take_while(|(one, other)| one == other).count();
    let shown = |sign: &str, lines: &[&str]| {
        let lines = &lines[..lines.len() - same_tail];
        let line = |line: &&str| {
            let line: String = line.escape_debug().take(WIDTH).collect();
            format!("    {sign} {line}\n")
        };
        let mut shown: Vec<_> = lines.iter().take(LINES).map(line).collect();
        if lines.len() > LINES {
            shown.push(format!("    {sign} and {} more\n", lines.len() - LINES));
        }
        shown.concat()
    };
    let head = format!("    after {same_head} equal lines, - is {}, + {}\n", sides[0], sides[1]);
    Some(head + &shown("-", one) + &shown("+", other))
}

/// Fails if anything is wrong; each line begins with the name of its snippet.
pub(crate) fn assert_none_wrong(mut wrong: Vec<String>, snippets: usize) {
    wrong.sort();
    let names = wrong.iter().filter_map(|line| line.split([' ', ':']).next());
    let count = names.collect::<BTreeSet<_>>().len();
    assert!(wrong.is_empty(), "{count} of {snippets} snippets:\n\n{}", wrong.join("\n"));
}
