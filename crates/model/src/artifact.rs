//! Files as callers name them: names, paths, MIME types, URLs.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{limits::MAX_PATH, message::FileEntry};
use serde::{Deserialize, Serialize};

use crate::DATASETS_DIR;

/// The folder in every sandbox whose files live as long as the session.
pub const DATA_DIR: &str = "/mnt/data";

/// Prefixes of links to a sandbox's files, as models have learnt to write them.
const LINKS: [&str; 2] = ["sandbox:", "file://"];

/// The maximum length of the name of a file or folder, in bytes (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// The maximum number of folders in a path. The agent looks no deeper, so deeper files could not be listed.
const MAX_FOLDERS: usize = 64;

/// The treatment of an existing file that has the name of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// The existing file stays, and the new one is refused.
    Keep,
    /// The new file replaces the existing one.
    Replace,
}

impl Existing {
    /// Converts a caller's argument that says whether a file may be overwritten.
    pub fn overwritten_if(overwrite: bool) -> Self {
        if overwrite { Self::Replace } else { Self::Keep }
    }

    /// Whether the existing file may be overwritten.
    pub fn is_overwritten(self) -> bool {
        self == Self::Replace
    }
}

/// Why a text is not a path in the data area. The message is a predicate, to follow the path's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// The path is empty.
    #[error("is empty; give a name such as sales.csv")]
    Empty,
    /// The path is longer than [`MAX_PATH`] bytes.
    #[error("is longer than {MAX_PATH} bytes; shorten it")]
    TooLong,
    /// The path is absolute, and must be relative.
    #[error("must be relative to {DATA_DIR}")]
    Absolute,
    /// The path is absolute, and outside the data area.
    #[error(
        "is outside {DATA_DIR}: only files in {DATA_DIR} can be read. Copy it there with run_python, then \
         read the copy"
    )]
    Outside,
    /// The path is the data area itself.
    #[error("is a folder. Name a file in it; list_artifacts lists them")]
    Folder,
    /// The path has a backslash, such as a path of another system.
    #[error("contains a backslash; use / between folders")]
    Backslash,
    /// The path has a control character, such as a line feed.
    #[error("contains a control character; leave it out")]
    ControlCharacter,
    /// The path has more folders than the agent looks into.
    #[error("has more than {MAX_FOLDERS} folders; use fewer")]
    TooDeep,
    /// The path has two slashes in a row, or one at its end.
    #[error("has an empty part; use one / between folders and none at the end")]
    EmptyPart,
    /// The path has a part `.` or `..`, and would lead elsewhere.
    #[error(
        "must not contain . or .. as a part; name the file from {DATA_DIR} on, as list_artifacts does"
    )]
    Dots,
    /// The path has a part that is too long for the name of a file.
    #[error("has a part longer than {MAX_NAME} bytes; shorten it")]
    LongPart,
}

/// A path beneath [`DATA_DIR`], relative, without `.`, `..`, empty parts, backslashes or control
/// characters. The kernel resolves it: nothing here looks at a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DataPath(String);

impl DataPath {
    /// Checks a relative path.
    ///
    /// # Errors
    /// If it cannot be a path in the data area.
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

    /// Checks a path that may also be absolute, within [`DATA_DIR`], or a link to such a path as models
    /// write them.
    ///
    /// # Errors
    /// As for [`relative`](Self::relative), or if it is outside.
    pub fn anywhere(path: &str) -> Result<Self, InvalidPath> {
        let linked = LINKS.iter().find_map(|scheme| path.strip_prefix(scheme));
        let path = linked.filter(|path| path.starts_with(DATA_DIR)).unwrap_or(path);
        match path.strip_prefix(DATA_DIR).map(|rest| rest.strip_prefix('/').ok_or(rest)) {
            Some(Ok("") | Err("")) => Err(InvalidPath::Folder),
            Some(Ok(rest)) => Self::relative(rest),
            _ if path.starts_with('/') => Err(InvalidPath::Outside),
            _ => Self::relative(path),
        }
    }

    /// The path relative to [`DATA_DIR`].
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The absolute path, as code in the sandbox sees it.
    pub fn absolute(&self) -> String {
        format!("{DATA_DIR}/{}", self.0)
    }

    /// The file's MIME type, by the name's extension.
    pub fn mime(&self) -> &'static str {
        mime_of(self.name())
    }
}

impl From<DataPath> for String {
    fn from(path: DataPath) -> Self {
        path.0
    }
}

impl TryFrom<String> for DataPath {
    type Error = InvalidPath;

    /// Reads a stored path, which is relative.
    fn try_from(path: String) -> Result<Self, InvalidPath> {
        Self::relative(&path)
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The path of a file that a caller may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilePath {
    /// A file of the data area.
    Own(DataPath),
    /// A file of a dataset: its path beneath [`DATASETS_DIR`].
    OfDataset(DataPath),
}

impl From<DataPath> for FilePath {
    fn from(path: DataPath) -> Self {
        Self::Own(path)
    }
}

impl FilePath {
    /// Checks a path as [`DataPath::anywhere`] does, which may also be beneath [`DATASETS_DIR`].
    ///
    /// # Errors
    /// As for [`DataPath::anywhere`].
    pub fn anywhere(path: &str) -> Result<Self, InvalidPath> {
        match beneath_datasets(path) {
            Some(rest) => DataPath::relative(rest.trim_end_matches('/')).map(Self::OfDataset),
            None => DataPath::anywhere(path).map(Self::Own),
        }
    }

    /// The file of the data area, if it is one.
    pub fn own(&self) -> Option<&DataPath> {
        match self {
            Self::Own(path) => Some(path),
            Self::OfDataset(_) => None,
        }
    }

    /// The path of an entry of a listing; `None` for a name that no caller could request.
    fn of_entry(path: &str) -> Option<Self> {
        match beneath_datasets(path) {
            Some(rest) => DataPath::relative(rest).ok().map(Self::OfDataset),
            None => DataPath::relative(path).ok().map(Self::Own),
        }
    }

    /// The folder of its dataset, if it is in one.
    pub fn dataset(&self) -> Option<Self> {
        match self {
            Self::Own(_) => None,
            Self::OfDataset(path) => {
                let name = path.as_str().split('/').next().unwrap_or_default();
                Some(Self::OfDataset(DataPath(name.to_owned())))
            }
        }
    }

    /// The path as the agent has it: relative to [`DATA_DIR`], or absolute.
    pub fn to_text(&self) -> String {
        match self {
            Self::Own(path) => path.as_str().to_owned(),
            Self::OfDataset(path) => format!("{DATASETS_DIR}/{path}"),
        }
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        let (Self::Own(path) | Self::OfDataset(path)) = self;
        path.name()
    }

    /// The file's MIME type, by the name's extension.
    pub fn mime(&self) -> &'static str {
        mime_of(self.name())
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// A file of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundFile {
    /// The file's path.
    pub path: FilePath,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Nanoseconds since the epoch.
    pub modified_ns: i64,
}

impl FoundFile {
    /// Converts an entry of a listing; `None` for a name that no caller could request, such as one with a newline.
    pub fn from_entry(entry: &FileEntry) -> Option<Self> {
        Some(Self {
            path: FilePath::of_entry(&entry.path)?,
            size_bytes: entry.stamp.size,
            modified_ns: entry.stamp.mtime_ns,
        })
    }
}

/// The rest of a path that is beneath [`DATASETS_DIR`].
fn beneath_datasets(path: &str) -> Option<&str> {
    let path = LINKS.iter().find_map(|scheme| path.strip_prefix(scheme)).unwrap_or(path);
    path.strip_prefix(DATASETS_DIR)?.strip_prefix('/')
}

/// A file that a caller may fetch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Artifact {
    /// The file's path.
    pub path: DataPath,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Nanoseconds since the epoch.
    pub modified_ns: i64,
}

impl Artifact {
    /// Converts an entry of a listing; `None` for a name that no caller could request, such as one with a newline.
    pub fn from_entry(entry: FileEntry) -> Option<Self> {
        Some(Self {
            path: DataPath::relative(&entry.path).ok()?,
            size_bytes: entry.stamp.size,
            modified_ns: entry.stamp.mtime_ns,
        })
    }
}

/// The MIME type for a name's extension; `application/octet-stream` if the extension is unknown.
pub fn mime_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).as_deref() {
        // The one type of data analysis that the table does not have.
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
        for link in ["", "sandbox:", "file://"] {
            let path = format!("{link}/mnt/data/a/b.csv");
            assert_eq!(DataPath::anywhere(&path).expect("inside").as_str(), "a/b.csv");
        }
        assert_eq!(DataPath::anywhere("sandbox:a").expect("a name").as_str(), "sandbox:a");
    }

    #[test]
    fn a_refusal_says_the_numbers_that_hold() {
        let why = |path: &str| DataPath::relative(path).expect_err("refused").to_string();
        assert_eq!(why(&"x/".repeat(513)), "is longer than 1024 bytes; shorten it");
        assert_eq!(why(&("x/".repeat(65) + "x")), "has more than 64 folders; use fewer");
        assert_eq!(why(&"x".repeat(256)), "has a part longer than 255 bytes; shorten it");
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
        let refusal = |path: &str| DataPath::anywhere(path).expect_err(path);
        for path in ["/mnt/data", "/mnt/data/", "sandbox:/mnt/data", "file:///mnt/data/"] {
            assert_eq!(refusal(path), InvalidPath::Folder, "{path:?}");
        }
        for path in ["/mnt/database/a", "/mnt/database", "/etc/passwd", "/tmp/a.png"] {
            assert_eq!(refusal(path), InvalidPath::Outside, "{path:?}");
        }
        for path in
            ["/mnt/data/../b", "sandbox:/mnt/data/../b", "file:///etc/passwd", "/mnt/data//a"]
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
