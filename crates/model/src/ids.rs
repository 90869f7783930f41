//! The ids of sessions and runs.

use std::{fmt, str::FromStr, sync::Arc};

use jiff::{Timestamp, civil, tz::TimeZone};
use serde::{Deserialize, Serialize};

/// The prefix of the ids that are minted here.
const MINTED: &str = "sess_";

/// An id of a run, for its length.
const MINTED_RUN: &str = "run_20260101T000000Z_0123";

/// Names a session: `[A-Za-z0-9_-]{1,64}`, chosen by the caller or minted here.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

/// A text that cannot be a session's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "session_id must be 1 to 64 of the characters A-Z, a-z, 0-9, _ and -. Pass that of an earlier result."
)]
pub struct InvalidSessionId;

impl SessionId {
    /// Makes a new id: `sess_` and 12 hexadecimal digits of a random UUID.
    pub fn mint() -> Self {
        let uuid = uuid::Uuid::new_v4().simple().to_string();
        Self(format!("{MINTED}{}", &uuid[..12]).into())
    }

    /// Whether the id has the form of a minted id, and so was not chosen by a caller.
    pub fn is_minted(&self) -> bool {
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        let digits = self.0.strip_prefix(MINTED);
        digits.is_some_and(|digits| digits.len() == 12 && digits.bytes().all(is_hex))
    }

    /// The id as the caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidSessionId)
        }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that cannot be a run's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a run")]
pub struct InvalidRunId;

/// Names a run: `run_<YYYYMMDD>T<HHMMSS>Z_<4 hexadecimal digits>`, in UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RunId(Arc<str>);

impl RunId {
    /// Makes a new id from the present time.
    pub fn mint() -> Self {
        let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
        let uuid = uuid::Uuid::new_v4().simple().to_string();
        Self(format!("run_{now}_{}", &uuid[..4]).into())
    }

    /// When the id with this text was made, to the second.
    pub fn minted_at(id: &str) -> Option<Timestamp> {
        let time = id.strip_prefix("run_")?.split('_').next()?;
        let time = civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).ok()?;
        TimeZone::UTC.to_timestamp(time).ok()
    }

    /// The id as it is shown.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl TryFrom<String> for RunId {
    type Error = InvalidRunId;

    /// Reads a stored id.
    fn try_from(text: String) -> Result<Self, InvalidRunId> {
        let is_id = text.len() == MINTED_RUN.len() && text.starts_with("run_");
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if is_id && text.bytes().all(allowed) { Ok(Self(text.into())) } else { Err(InvalidRunId) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_session_id_is_what_the_contract_says(text in "\\PC{0,70}") {
            let valid = !text.is_empty()
                && text.len() <= 64
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            prop_assert_eq!(text.parse::<SessionId>().is_ok(), valid);
        }
    }

    #[test]
    fn minted_ids_have_the_documented_form() {
        let session = SessionId::mint();
        let digits = session.as_str().strip_prefix("sess_").expect("prefix");
        assert!(digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(session, SessionId::mint());
        assert!(session.is_minted());
        for own in
            ["sess_", "sess_0123456789a", "sess_0123456789AB", "sess_0123456789abc", "invoices"]
        {
            assert!(!own.parse::<SessionId>().expect("valid").is_minted(), "{own}");
        }

        let run = RunId::mint().to_string();
        let age = RunId::minted_at(&run).map(|then| Timestamp::now().duration_since(then));
        assert!(age.is_some_and(|age| (0..60).contains(&age.as_secs())), "{age:?}");
        assert_eq!(RunId::minted_at("run_none"), None);
        let shape: String =
            run.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).take(20).collect();
        assert_eq!(shape, "run_00000000T000000Z");
        assert_eq!(run.len(), "run_20260206T123456Z_a1b2".len());
    }
}
