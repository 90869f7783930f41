//! Files of a session as both edges show them: in JSON, with the URLs that a person can open.

use model::{Artifact, DataPath, FilePath, FoundFile};
use serde_json::{Value, json};

use crate::signed_urls::{NumberedSession, SignedUrls};

/// Renders a file of a session.
pub(crate) fn file(
    links: Option<(&SignedUrls, NumberedSession)>,
    path: &DataPath,
    size_bytes: u64,
) -> Value {
    let mut shown = json!({
        "path": path.absolute(),
        "filename": path.as_str(),
        "size_bytes": size_bytes,
        "mime_type": path.mime(),
    });
    if let Some((urls, session)) = links {
        shown["download_url"] = urls.download(session, path).into();
    }
    shown
}

/// Renders a file that a run made.
pub(crate) fn artifact(
    links: Option<(&SignedUrls, NumberedSession)>,
    artifact: &Artifact,
) -> Value {
    file(links, &artifact.path, artifact.size_bytes)
}

/// Renders a file that a run made, with the time of its last change.
pub(crate) fn artifact_json_with_mtime(
    links: Option<(&SignedUrls, NumberedSession)>,
    file: &Artifact,
) -> Value {
    let mut shown = artifact(links, file);
    shown["modified_at"] = rfc3339(file.modified_ns).into();
    shown
}

/// Renders a file that can be read.
pub(crate) fn readable(
    links: Option<(&SignedUrls, NumberedSession)>,
    path: &FilePath,
    size_bytes: u64,
) -> Value {
    match path {
        FilePath::Own(path) => file(links, path, size_bytes),
        // A person has the files of datasets already.
        FilePath::OfDataset(below) => json!({
            "path": path.to_text(),
            "filename": below.as_str(),
            "size_bytes": size_bytes,
            "mime_type": path.mime(),
        }),
    }
}

/// Renders a file of a listing, with the time of its last change to the second.
pub(crate) fn entry(links: Option<(&SignedUrls, NumberedSession)>, found: &FoundFile) -> Value {
    let mut shown = readable(links, &found.path, found.size_bytes);
    shown["modified_at"] = time(found.modified_ns, "%Y-%m-%dT%H:%M:%SZ").into();
    shown
}

fn rfc3339(ns: i64) -> String {
    time(ns, "%Y-%m-%dT%H:%M:%S.%3fZ")
}

fn time(ns: i64, format: &str) -> String {
    jiff::Timestamp::from_nanosecond(ns.into()).map_or_else(
        // A program may set any time. A time beyond the year 9999 cannot be rendered.
        |_| "9999-12-31T23:59:59Z".into(),
        |time| time.strftime(format).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_that_a_program_can_set_is_rendered() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_500_000_000), "1970-01-01T00:00:01.500Z");
        for ns in [i64::MIN, -1, i64::MAX] {
            assert!(rfc3339(ns).ends_with('Z'));
        }
    }
}
