//! Facts about a run that its outputs do not contain, for all runtimes.

use std::path::Path;

use protocol::message::{FileEntry, MissingFile, Names};

use crate::tree::{self, Snapshot};

/// The maximum number of names of a kind. The server shows as many as fit into a sentence.
const MAX_NAMES: usize = 10;

/// The maximum number of files that are compared with a name, and of characters of each: the caller waits for it.
const MAX_COMPARED: (usize, usize) = (2000, 60);

/// The maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 200;

/// Files in this folder, outside the data area, that a program has created or changed, except hidden and temporary
/// ones. `own` is the path of the program's text.
pub fn elsewhere(before: &Snapshot, after: Snapshot, own: &str, folder: &Path) -> Names {
    let is_told = |entry: &FileEntry| {
        let mut parts = entry.path.split('/');
        entry.path != own && parts.all(|part| !part.starts_with(['.', '_']) && !is_temporary(part))
    };
    let paths = tree::changed(before, after).into_iter().filter(is_told);
    names(paths.map(|entry| folder.join(entry.path).to_string_lossy().into_owned()))
}

/// Whether libraries make up such a name for a temporary file or folder.
fn is_temporary(name: &str) -> bool {
    name.starts_with("tmp")
}

/// Describes a missing file, with the files that exist: those with similar names come first.
pub fn missing_file(name: &str, there: &Snapshot) -> MissingFile {
    let (most, chars) = MAX_COMPARED;
    let folded = |path: &str| -> String {
        last_part(path).chars().take(chars).flat_map(char::to_lowercase).collect()
    };
    let wanted = folded(name);
    let mut files: Vec<_> = there.keys().take(most).collect();
    files.sort_by_cached_key(|path| {
        let similarity = strsim::jaro_winkler(&wanted, &folded(path));
        // The most similar first; floats have no order of their own.
        #[expect(clippy::cast_possible_truncation, reason = "from 0 to 1,000")]
        let rank = (similarity * -1e3) as i64;
        rank
    });
    let mut names = names(files.into_iter().cloned());
    names.more = there.len() - names.names.len();
    MissingFile { name: cut(name), there: names, in_datasets: Names::default() }
}

/// How similar a name must be to a missing one to be told: a letter or two differ.
const SIMILAR: f64 = 0.93;

/// The files of datasets that have the name of a missing file or a similar one, the most similar first.
pub fn in_datasets(missing: &str, datasets: &Snapshot) -> Names {
    let wanted = last_part(missing).to_lowercase();
    let similar = datasets.keys().filter_map(|path| {
        let similarity = strsim::jaro_winkler(&wanted, &last_part(path).to_lowercase());
        (similarity >= SIMILAR).then_some((similarity, path))
    });
    let mut similar: Vec<_> = similar.collect();
    similar.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    names(similar.into_iter().map(|(_, path)| path.clone()))
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(path)
}

fn names(all: impl Iterator<Item = String>) -> Names {
    let mut all = all;
    let names = all.by_ref().take(MAX_NAMES).map(|name| cut(&name)).collect();
    Names { names, more: all.count() }
}

/// Cuts a name to its first characters.
pub fn cut(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use protocol::message::Stamp;

    use super::*;

    fn snapshot(paths: &[&str]) -> Snapshot {
        let stamp = Stamp { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };
        paths.iter().map(|path| ((*path).to_owned(), stamp)).collect()
    }

    #[test]
    fn files_with_similar_names_come_first() {
        let there = snapshot(&["book.xlsx", "deep/Sales_2024.csv", "readme.md"]);
        let missing = missing_file("/Users/me/sales-2024.CSV", &there);
        assert_eq!(missing.name, "/Users/me/sales-2024.CSV");
        assert_eq!(missing.there.names[0], "deep/Sales_2024.csv");
        assert_eq!(missing.there.names.len(), 3);
        assert_eq!(missing_file("a", &snapshot(&[])).there, Names::default());
    }

    #[test]
    fn files_of_datasets_are_told_by_their_names_alone() {
        let datasets =
            snapshot(&["/data/a/2026/sales.csv", "/data/a/Sales_1.csv", "/data/b/book.xlsx"]);
        let told = |name| in_datasets(name, &datasets).names;
        assert_eq!(told("sales.csv")[0], "/data/a/2026/sales.csv");
        assert_eq!(told("/mnt/data/x/SALES_1.csv")[0], "/data/a/Sales_1.csv");
        assert_eq!(told("other.txt"), [""; 0]);
    }

    #[test]
    fn of_many_files_some_are_named_and_the_rest_are_counted() {
        let many: Vec<_> = (0..30).map(|n| format!("{n}.csv")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let there = missing_file(&"x".repeat(999), &snapshot(&many)).there;
        assert_eq!((there.names.len(), there.more), (MAX_NAMES, 20));
    }

    #[test]
    fn what_a_program_leaves_outside_the_data_area_is_told_unless_it_is_to_be_hidden() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str| fs::write(dir.path().join(name), name).expect("written");
        fs::create_dir_all(dir.path().join("home/.cache")).expect("made");
        fs::create_dir(dir.path().join("tmpfolder")).expect("made");
        write("old.png");
        let look = || tree::scratch(dir.path());
        let before = look();
        let changed = || elsewhere(&before, look(), "main.py", dir.path());
        assert_eq!(changed(), Names::default());
        for name in [
            "main.py",
            "new.png",
            "home/report.pdf",
            "home/.history",
            "home/.cache/x",
            "tmpabc",
            "tmpfolder/x",
        ] {
            write(name);
        }
        let told = changed().names;
        let expected = ["home/report.pdf", "new.png"].map(|name| dir.path().join(name));
        assert_eq!(told, expected.map(|path| path.to_string_lossy().into_owned()));
    }
}
