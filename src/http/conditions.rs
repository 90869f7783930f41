//! The answer to a request, by its conditions and its range (RFC 9110, sections 13 and 14). Pure.

use std::{
    ops::Range,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, Method, header};
use headers::{
    ETag, HeaderMapExt, IfMatch, IfModifiedSince, IfNoneMatch, IfUnmodifiedSince, LastModified,
};
use http_range_header::{
    EndPosition, RangeUnsatisfiableError, StartPosition, SyntacticallyCorrectRange,
    parse_range_header,
};
use protocol::message::Stamp;

/// The version of a file.
#[derive(Debug, Clone)]
pub(super) struct Version {
    /// A strong tag: every change to the file changes it.
    pub(super) etag: ETag,
    /// In whole seconds.
    pub(super) modified: SystemTime,
    /// In bytes.
    pub(super) size: u64,
}

/// The kind of answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// 200, the whole file.
    Whole,
    /// 206, these bytes.
    Part(Range<u64>),
    /// 304.
    NotModified,
    /// 412: the file is not the version that the client means.
    AnotherVersion,
    /// 416: the file has no such bytes.
    NoSuchBytes,
}

impl Version {
    /// The version of a file as it was opened.
    pub(super) fn of(stamp: &Stamp) -> Self {
        let Stamp { ino, size, mtime_ns, ctime_ns, .. } = stamp;
        let etag = format!("\"{ino:x}-{size:x}-{mtime_ns:x}-{ctime_ns:x}\"");
        // HTTP dates have whole seconds and no year after 9999; times before 1970 become 1970.
        let seconds = u64::try_from(mtime_ns / 1_000_000_000).unwrap_or(0).min(253_402_300_799);
        Self {
            etag: etag.parse().expect("digits and hyphens in quotes are an ETag"),
            modified: UNIX_EPOCH + Duration::from_secs(seconds),
            size: *size,
        }
    }

    /// Decides, in the order of RFC 9110, section 13.2.2.
    pub(super) fn answer(&self, method: &Method, headers: &HeaderMap) -> Answer {
        let meant = match headers.typed_get::<IfMatch>() {
            Some(tags) => tags.precondition_passes(&self.etag),
            None => headers
                .typed_get::<IfUnmodifiedSince>()
                .is_none_or(|date| date.precondition_passes(self.modified)),
        };
        if !meant {
            return Answer::AnotherVersion;
        }
        let wanted = match headers.typed_get::<IfNoneMatch>() {
            Some(tags) => tags.precondition_passes(&self.etag),
            // A tag that cannot be parsed still means that the date must be ignored.
            None if headers.contains_key(header::IF_NONE_MATCH) => true,
            None => headers
                .typed_get::<IfModifiedSince>()
                .is_none_or(|date| date.is_modified(self.modified)),
        };
        if !wanted {
            return Answer::NotModified;
        }
        // Ranges are defined only for GET (section 14.2).
        match headers.get(header::RANGE).and_then(|range| range.to_str().ok()) {
            Some(range) if method == Method::GET && self.is_that_of_if_range(headers) => {
                self.part(range)
            }
            _ => Answer::Whole,
        }
    }

    /// Whether the file is the version that `If-Range` names; true without that header. A date must match
    /// exactly: `headers::IfRange` would also accept a later one.
    fn is_that_of_if_range(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::IF_RANGE) else { return true };
        let [mut own_tag, mut own_date] = [HeaderMap::new(), HeaderMap::new()];
        own_tag.typed_insert(self.etag.clone());
        own_date.typed_insert(LastModified::from(self.modified));
        own_tag.get(header::ETAG) == Some(value)
            || own_date.get(header::LAST_MODIFIED) == Some(value)
    }

    /// Answers a `Range` header with one range. A list, or a header that cannot be parsed, gets the whole
    /// file, as section 14.2 allows.
    fn part(&self, header: &str) -> Answer {
        let range = match parse_range_header(header) {
            // Some clients send a range with every request. An empty file is sent whole.
            _ if self.size == 0 => return Answer::Whole,
            Ok(parsed) if parsed.ranges.len() == 1 => parsed.ranges[0],
            Err(RangeUnsatisfiableError::ZeroSuffix) if !header.contains(',') => {
                return Answer::NoSuchBytes;
            }
            _ => return Answer::Whole,
        };
        let SyntacticallyCorrectRange { start, end } = range;
        match (start, end) {
            (StartPosition::FromLast(len), _) => {
                Answer::Part(self.size.saturating_sub(len)..self.size)
            }
            (StartPosition::Index(start), EndPosition::Index(end)) if end < start => Answer::Whole,
            (StartPosition::Index(start), _) if start >= self.size => Answer::NoSuchBytes,
            (StartPosition::Index(start), EndPosition::LastByte) => Answer::Part(start..self.size),
            (StartPosition::Index(start), EndPosition::Index(end)) => {
                Answer::Part(start..self.size.min(end.saturating_add(1)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_part_is_some_of_the_file(
            range in "(bytes=)?[0-9]{0,3}-[0-9]{0,3}(,[0-9]{0,2}-[0-9]{0,2})?|\\PC{0,12}",
            size in 0..200_u64,
        ) {
            let stamp = Stamp { ino: 1, size, mtime_ns: -1, ctime_ns: 1 };
            if let Answer::Part(part) = Version::of(&stamp).part(&range) {
                prop_assert!(part.start < part.end && part.end <= size, "{:?}", part);
            }
        }

        #[test]
        fn any_time_has_a_date(mtime_ns: i64) {
            let version = Version::of(&Stamp { ino: 1, size: 1, mtime_ns, ctime_ns: 1 });
            let mut headers = HeaderMap::new();
            headers.typed_insert(LastModified::from(version.modified));
            headers.typed_insert(IfModifiedSince::from(version.modified));
            prop_assert_eq!(version.answer(&Method::GET, &headers), Answer::NotModified);
        }
    }
}
