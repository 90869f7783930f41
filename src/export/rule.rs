//! Which files may be written on the host, by their paths alone. Pure.
//!
//! A name alone can cause actions on the host: git runs what `.git/config` says, pytest imports `conftest.py`, npm
//! reads `package.json`, an agent obeys `CLAUDE.md`, and on many file systems `.GIT`, `.g\u{200c}it` and `GIT~1` are
//! `.git` too. So only types that people view are written, under names that mean the same everywhere. All other files
//! can be downloaded.

use icu_normalizer::ComposingNormalizerBorrowed;
use icu_properties::{
    CodePointMapData, CodePointSetData,
    props::{DefaultIgnorableCodePoint, GeneralCategory, GeneralCategoryGroup},
};

use super::NotExported;

/// Extensions of images, documents and data that no tool runs. Excluded on purpose: programs and scripts; settings
/// (YAML, TOML, INI, XML); plain text, Markdown, JSON and HTML, which tools and agents read as tests, settings,
/// instructions or pages to build, under more names than a list could have; archives, which may contain anything; and
/// documents with macros or code of their own (XLS, XLSM, TEX, IPYNB).
const TYPES: &[&str] = &[
    "bmp", "csv", "docx", "feather", "geojson", "gif", "jpeg", "jpg", "jsonl", "ndjson", "odp",
    "ods", "odt", "parquet", "pdf", "png", "pptx", "svg", "tif", "tiff", "tsv", "webp", "xlsx",
];

/// ASCII characters that file systems, shells or commands interpret: separators, streams of NTFS and its short names,
/// patterns, quotes.
const SPECIAL: &str = "\"*/:<>?\\`|~";

/// Whether a file with this path, relative and with `/` between its parts, may be written.
pub(super) fn allows(path: &str) -> Result<(), NotExported> {
    for part in path.split('/') {
        if part.starts_with('.') {
            return Err(NotExported::Hidden);
        }
        if !is_plain(part) {
            return Err(NotExported::Name);
        }
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((_, extension)) = name.rsplit_once('.') else { return Err(NotExported::Type) };
    if !TYPES.contains(&&*extension.to_lowercase()) {
        return Err(NotExported::Type);
    }
    Ok(())
}

/// Whether a part of a path is the same name on every file system: none of its characters is left out, replaced or
/// equated with another, and no command reads it as an option.
fn is_plain(part: &str) -> bool {
    let ends = |at: Option<char>| at.is_none_or(|c| matches!(c, ' ' | '.' | '-'));
    !ends(part.chars().next())
        && !part.ends_with([' ', '.'])
        && part.chars().all(is_visible)
        // The compatibility form, so that wide, small and ligature characters are not mistaken for those that they look
        // like.
        && ComposingNormalizerBorrowed::new_nfkc().is_normalized(part)
        && !is_device(part)
}

fn is_visible(c: char) -> bool {
    const VISIBLE: GeneralCategoryGroup = GeneralCategoryGroup::Letter
        .union(GeneralCategoryGroup::Mark)
        .union(GeneralCategoryGroup::Number)
        .union(GeneralCategoryGroup::Punctuation)
        .union(GeneralCategoryGroup::Symbol);
    let category = CodePointMapData::<GeneralCategory>::new().get(c);
    let ignorable = CodePointSetData::new::<DefaultIgnorableCodePoint>();
    c == ' ' || (VISIBLE.contains(category) && !ignorable.contains(c) && !SPECIAL.contains(c))
}

/// Whether Windows reads a name as a device, whatever its extension.
fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).trim_end().to_lowercase();
    let numbered = |stem: &str| stem.len() == 1 && stem.bytes().all(|b| b.is_ascii_digit());
    match &*stem {
        "con" | "prn" | "aux" | "nul" | "conin$" | "conout$" => true,
        stem => ["com", "lpt"].iter().any(|port| stem.strip_prefix(port).is_some_and(numbered)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_people_look_at_is_exported_by_any_ordinary_name() {
        for path in [
            "chart.png",
            "plots/2025/Chart (final).PNG",
            "sales_by_region.csv",
            "été/東京 売上.xlsx",
            "बिक्री ไทย.csv",
            "Q1–Q3 results, 50% & more.pdf",
            "📈 revenue.svg",
            "report.v2.jsonl",
            "borders.geojson",
            "console/com10.csv",
            "a.b.c/nested.parquet",
        ] {
            assert_eq!(allows(path), Ok(()), "{path:?}");
        }
    }

    #[test]
    fn nothing_hidden_is_exported_nor_anything_below() {
        for path in [
            ".git/config",
            ".GIT/config",
            ".env",
            ".mcp.json",
            "sub/.git/a.csv",
            ".vscode/tasks.json",
            ".csv",
            "..a/b.png",
        ] {
            assert_eq!(allows(path), Err(NotExported::Hidden), "{path:?}");
        }
    }

    #[test]
    fn names_that_some_file_system_takes_for_another_are_not_exported() {
        for part in [
            "\u{200c}.git",
            "\u{feff}.git",
            "\u{ff0e}git",
            "\u{2024}git",
            "git~1",
            "GIT~1",
            "a.csv:b",
            "a.",
            "a ",
            " a",
            "-rf",
            "--checkpoint-action=exec=sh a",
            "CON",
            "aux.d",
            "nul .x",
            "COM1",
            "lpt9.a",
            "a\u{202e}b",
            "a\u{200d}b",
            "a\u{ad}b",
            "a\u{fe0f}b",
            "a\u{115f}b",
            "a\u{e000}b",
            "e\u{301}",
            "pac\u{212a}age",
            "\u{ff47}it",
            "a\u{a0}b",
            "a?b",
            "a*b",
            "a`id`b",
            "a\tb",
        ] {
            assert_eq!(allows(&format!("{part}/a.csv")), Err(NotExported::Name), "{part:?}");
            let last = allows(&format!("sub/{part}"));
            assert_eq!(last, Err(NotExported::Name), "{part:?}");
        }
        assert_eq!(allows("pac\u{212a}age.json"), Err(NotExported::Name));
        assert_eq!(allows("a\u{200c}.csv"), Err(NotExported::Name));
    }

    #[test]
    fn what_tools_run_or_read_by_themselves_is_not_exported() {
        for path in [
            "conftest.py",
            "test_a.py",
            "sitecustomize.py",
            "setup.cfg",
            "pyproject.toml",
            "tox.ini",
            "Makefile",
            "GNUmakefile",
            "rules.mk",
            "vite.config.js",
            "Dockerfile",
            "compose.yaml",
            "docker-compose.override.yml",
            "Cargo.toml",
            "build.gradle.kts",
            "pom.xml",
            "Gemfile",
            "Justfile",
            "a.code-workspace",
            "a.desktop",
            "desktop.ini",
            "autorun.inf",
            "a.lnk",
            "a.url",
            "a.pth",
            "Thumbs.db",
            "__pycache__/a.pyc",
            "repo/HEAD",
            "repo/objects/x",
            "repo/config",
            "notebook.ipynb",
            "bundle.zip",
            "macro.xlsm",
            "run.sh",
            "a.png.exe",
            "png",
        ] {
            assert_eq!(allows(path), Err(NotExported::Type), "{path:?}");
        }
    }

    #[test]
    fn text_that_tools_collect_by_name_is_not_exported_under_any_name() {
        for path in [
            "package.json",
            "sub/Package.JSON",
            "main.tf.json",
            "docker-bake.override.json",
            "results.json",
            "test_sales.txt",
            "CMakeLists.txt",
            "requirements-dev.txt",
            "notes.txt",
            "CLAUDE.md",
            "AGENTS.override.md",
            "CONVENTIONS.md",
            "report.md",
            "run.log",
        ] {
            assert_eq!(allows(path), Err(NotExported::Type), "{path:?}");
        }
    }

    proptest! {
        /// Exported paths mean the same name everywhere, and have a listed type.
        #[test]
        fn what_is_exported_has_no_other_reading(
            path in "([.~ :-]|[a-gG]|it|/|\\.git|\u{200c}|\u{ff0e}|é|e\u{301}|\u{1f4c8}){1,8}(\\.csv|\\.PNG|\\.py|)"
        ) {
            if allows(&path).is_ok() {
                let extension = path.rsplit('.').next().map(str::to_lowercase);
                prop_assert!(matches!(extension.as_deref(), Some("csv" | "png")), "{}", path);
                for part in path.split('/') {
                    prop_assert!(!part.is_empty() && !part.starts_with(['.', ' ', '-']), "{}", path);
                    prop_assert!(!part.ends_with(['.', ' ']) && !part.contains(['~', ':']), "{}", path);
                    let ignored = ['\u{200c}', '\u{ff0e}', '\u{301}'];
                    prop_assert!(!part.contains(ignored), "{}", path);
                }
            }
        }
    }
}
