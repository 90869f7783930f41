//! Files as callers name them: names, paths, MIME types, URLs. Pure.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::limits::MAX_PATH;

/// The folder in every sandbox whose files live as long as the session.
pub const DATA_DIR: &str = "/mnt/data";

/// Longest name of one file or folder, in bytes (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// Most folders in a path. The agent looks no deeper, so what lies there could never be listed.
const MAX_FOLDERS: usize = 64;

/// What becomes of a file that is there already under the name of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the new one is refused.
    Keep,
    /// The new one takes its place.
    Replace,
}

impl Existing {
    /// As a caller says it: whether it may be overwritten.
    pub fn overwritten_if(overwrite: bool) -> Self {
        if overwrite { Self::Replace } else { Self::Keep }
    }

    /// As a caller says it.
    pub fn is_overwritten(self) -> bool {
        self == Self::Replace
    }
}

/// Why a text is not a path in the data area, to follow the path's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// There is nothing.
    #[error("is empty")]
    Empty,
    /// More than [`MAX_PATH`].
    #[error("is longer than {MAX_PATH} bytes")]
    TooLong,
    /// Absolute where it must not be.
    #[error("must be relative to {DATA_DIR}")]
    Absolute,
    /// Absolute, and elsewhere.
    #[error("is not within {DATA_DIR}")]
    Outside,
    /// Of another system, or a name that looks so.
    #[error("contains a backslash; use / between folders")]
    Backslash,
    /// Such as a line feed.
    #[error("contains a control character")]
    ControlCharacter,
    /// More than the agent looks into.
    #[error("has more than {MAX_FOLDERS} folders")]
    TooDeep,
    /// Two slashes, or one at the end.
    #[error("has an empty part")]
    EmptyPart,
    /// It would lead elsewhere.
    #[error("must not contain . or .. as a part")]
    Dots,
    /// A name that no file can have.
    #[error("has a part longer than {MAX_NAME} bytes")]
    LongPart,
}

/// A path beneath [`DATA_DIR`], relative, without `.`, `..`, empty parts, backslashes or control
/// characters. What it leads to is for the kernel to say: nothing here looks at a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DataPath(String);

impl DataPath {
    /// Checks a relative path.
    ///
    /// # Errors
    /// It cannot be a path in the data area.
    pub fn relative(path: &str) -> Result<Self, InvalidPath> {
        if path.is_empty() {
            return Err(InvalidPath::Empty);
        }
        if path.len() > MAX_PATH {
            return Err(InvalidPath::TooLong);
        }
        if path.starts_with('/') {
            return Err(InvalidPath::Absolute);
        }
        if path.contains('\\') {
            return Err(InvalidPath::Backslash);
        }
        if path.chars().any(char::is_control) {
            return Err(InvalidPath::ControlCharacter);
        }
        if path.split('/').count() > MAX_FOLDERS + 1 {
            return Err(InvalidPath::TooDeep);
        }
        for part in path.split('/') {
            match part {
                "" => return Err(InvalidPath::EmptyPart),
                "." | ".." => return Err(InvalidPath::Dots),
                _ if part.len() > MAX_NAME => return Err(InvalidPath::LongPart),
                _ => {}
            }
        }
        Ok(Self(path.to_owned()))
    }

    /// Checks a path that may also be absolute, within [`DATA_DIR`].
    ///
    /// # Errors
    /// As of [`relative`](Self::relative), or it is outside.
    pub fn anywhere(path: &str) -> Result<Self, InvalidPath> {
        match path.strip_prefix(DATA_DIR).and_then(|rest| rest.strip_prefix('/')) {
            Some(rest) => Self::relative(rest),
            None if path.starts_with('/') => Err(InvalidPath::Outside),
            None => Self::relative(path),
        }
    }

    /// Relative to [`DATA_DIR`].
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// As the code in the sandbox sees it.
    pub fn absolute(&self) -> String {
        format!("{DATA_DIR}/{}", self.0)
    }

    /// Its MIME type, by the name's extension.
    pub fn mime(&self) -> &'static str {
        mime_of(self.name())
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// MIME type by extension; `application/octet-stream` if there is none that is known.
pub fn mime_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).as_deref() {
        // Of the types that data analysis makes, the one that the table does not have.
        Some("parquet") => "application/vnd.apache.parquet",
        _ => mime_guess::from_path(name).first_raw().unwrap_or("application/octet-stream"),
    }
}

/// Whether a type is one of the images that MCP clients show.
pub fn is_picture(mime: &str) -> bool {
    matches!(mime, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

/// Everything but RFC 3986's unreserved characters and the slash.
const SEGMENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// URL of a file, below the base of the artifact server (no slash at its end).
pub fn download_url(base: &str, session: &str, path: &str) -> String {
    format!("{base}/files/{session}/{}", utf8_percent_encode(path, SEGMENT))
}

/// A path as part of a URL.
pub fn encoded(path: &DataPath) -> String {
    utf8_percent_encode(&path.0, SEGMENT).to_string()
}

/// Everything that RFC 8187 does not allow as it is.
const EXT_VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// A `Content-Disposition` (RFC 6266) that gives the file's name: in ASCII for old readers, in
/// UTF-8 for the others. Images and plain text are shown in place, the rest is saved.
pub fn content_disposition(name: &str, mime: &str) -> String {
    let kind = if is_picture(mime) || mime == "text/plain" { "inline" } else { "attachment" };
    let ascii: String = name
        .chars()
        .map(|c| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\' | '%') { c } else { '_' })
        .collect();
    let plain = format!("{kind}; filename=\"{ascii}\"");
    if ascii == name {
        return plain;
    }
    format!("{plain}; filename*=UTF-8''{}", utf8_percent_encode(name, EXT_VALUE))
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_names_are_taken_as_they_are() {
        for name in ["sales.csv", "plots/a.png", "ventes été 2025.csv", "東京.png", "..a", "%2e%2e"]
        {
            assert_eq!(DataPath::relative(name).expect(name).as_str(), name);
        }
        assert_eq!(DataPath::anywhere("/mnt/data/a/b.csv").expect("inside").as_str(), "a/b.csv");
    }

    #[test]
    fn a_refusal_says_the_numbers_that_hold() {
        let why = |path: &str| DataPath::relative(path).expect_err("refused").to_string();
        assert_eq!(why(&"x/".repeat(513)), "is longer than 1024 bytes");
        assert_eq!(why(&("x/".repeat(65) + "x")), "has more than 64 folders");
        assert_eq!(why(&"x".repeat(256)), "has a part longer than 255 bytes");
        assert_eq!(why("/a"), "must be relative to /mnt/data");
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = "x".repeat(256);
        let deep = "x/".repeat(65) + "x";
        assert!(DataPath::relative(&deep[2..]).is_ok());
        for name in [
            "",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/./b",
            "/etc/passwd",
            "a//b",
            "a/",
            "a\\b",
            "a\0b",
            "a\nb",
            "\u{7f}",
            "\u{85}",
            &long,
            &deep,
        ] {
            assert!(DataPath::relative(name).is_err(), "{name:?}");
        }
        for path in ["/mnt/data", "/mnt/data/", "/mnt/database/a", "/mnt/data/../b", "/etc/passwd"]
        {
            assert!(DataPath::anywhere(path).is_err(), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn no_accepted_path_leaves_the_data_folder(path in "(\\.|/|\\.\\.|a|\\\\|\u{0}|é){0,12}") {
            if let Ok(path) = DataPath::anywhere(&path) {
                let mut depth = 0;
                for part in path.as_str().split('/') {
                    depth += if part == ".." { -1 } else { 1 };
                    prop_assert!(depth > 0 && !part.is_empty());
                }
                prop_assert!(path.absolute().starts_with("/mnt/data/"));
            }
        }

        #[test]
        fn a_download_url_decodes_to_its_path(path in "[^/\u{0}-\u{1f}\\\\]{1,20}(/[^/\u{0}-\u{1f}\\\\]{1,20})?") {
            let url = download_url("http://h:1", "sess_1", &path);
            prop_assert!(url.is_ascii() && !url.contains(['?', '#', ' ']));
            let back = percent_decode_str(url.strip_prefix("http://h:1/files/sess_1/").expect("prefix"));
            prop_assert_eq!(back.decode_utf8()?, path);
        }

        #[test]
        fn a_disposition_is_one_safe_header_line(name in ".{1,60}") {
            let header = content_disposition(&name, "application/pdf");
            prop_assert!(header.bytes().all(|b| (b' '..=b'~').contains(&b)), "{}", header);
            prop_assert_eq!(header.matches('"').count(), 2);
        }
    }

    #[test]
    fn the_types_of_a_report_are_known() {
        let types = [
            ("a.png", "image/png"),
            ("a.JPG", "image/jpeg"),
            ("a.csv", "text/csv"),
            ("report.pdf", "application/pdf"),
            ("a.parquet", "application/vnd.apache.parquet"),
            ("a.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
            ("a.html", "text/html"),
            ("a.json", "application/json"),
            ("a.svg", "image/svg+xml"),
            ("a", "application/octet-stream"),
            ("a.unknown-kind", "application/octet-stream"),
        ];
        for (name, mime) in types {
            assert_eq!(mime_of(name), mime, "{name}");
        }
    }
}
