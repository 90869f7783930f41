//! A line and its link to the line before. Pure.
//!
//! ```text
//! {"seq":2,"prev":"<SHA-256 of line 1>", what the line says ,"mac":"<HMAC of all that is before it>"}\n
//! ```
//!
//! The hash covers every byte of a line, its newline included. The first line has 64 zeros in place of a hash. `mac` is
//! present if the server has a key; it covers `prev`, and so all lines before.

use std::{fmt, str::FromStr};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// The bytes between those that a MAC covers and the MAC.
const BEFORE_MAC: &[u8] = br#","mac":""#;

/// The bytes after the MAC.
const AFTER_MAC: &[u8] = b"\"}\n";

/// A SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Returns the hash of some bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(super) fn finished(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for Hash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        // Only lower case is accepted, so that a hash has one form.
        let hash = bytes.map(Self).filter(|hash| hash.to_string() == text);
        hash.ok_or("expected the 64 hexadecimal digits of a SHA-256, in lower case")
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut digits = [0; 64];
        hex::encode_to_slice(self.0, &mut digits).expect("32 bytes are 64 digits");
        serializer.serialize_str(
            std::str::from_utf8(&digits).expect("`encode_to_slice` writes ASCII digits"),
        )
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A line of a chain: its number, from 1, and its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The line's number.
    pub seq: u64,
    /// The line's hash.
    pub hash: Hash,
}

impl Position {
    /// The position before the first line.
    pub const START: Self = Self { seq: 0, hash: Hash([0; 32]) };
}

/// The key of a chain's lines, if it has one.
pub(super) type Key = Option<[u8; 32]>;

#[derive(Serialize)]
struct Line<'a, T> {
    seq: u64,
    prev: Hash,
    #[serde(flatten)]
    says: &'a T,
}

/// Makes the line that follows this position, with these contents. Also returns its position.
pub(super) fn line(after: Position, key: &Key, says: &impl Serialize) -> (Vec<u8>, Position) {
    let seq = after.seq + 1;
    let line = sealed(&Line { seq, prev: after.hash, says }, key);
    let hash = Hash::of(&line);
    (line, Position { seq, hash })
}

/// Writes an object as a line, with a MAC if there is a key.
pub(super) fn sealed(object: &impl Serialize, key: &Key) -> Vec<u8> {
    let mut line =
        serde_json::to_vec(object).expect("lines have only texts, numbers and keys that are texts");
    if let Some(key) = key {
        line.pop();
        let mac = hex::encode(mac(key, &line));
        line.extend_from_slice(BEFORE_MAC);
        line.extend_from_slice(mac.as_bytes());
        line.extend_from_slice(AFTER_MAC);
    } else {
        line.push(b'\n');
    }
    line
}

fn mac(key: &[u8; 32], bytes: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    mac.update(bytes);
    mac.finalize().into_bytes().into()
}

/// The result of checking a line's MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// The line has no MAC.
    None,
    /// The line has a MAC, and there is no key to check it.
    Unknown,
    /// The MAC is good.
    Good,
    /// The MAC is wrong, or was made with another key.
    Bad,
}

/// Checks the MAC of a line, newline included.
pub(super) fn seal(line: &[u8], key: &Key) -> Seal {
    let parts = line.strip_suffix(AFTER_MAC).and_then(|line| {
        let (before, digits) = line.split_at_checked(line.len().checked_sub(64)?)?;
        Some((before.strip_suffix(BEFORE_MAC)?, digits))
    });
    match (parts, key) {
        (None, _) => Seal::None,
        (Some(_), None) => Seal::Unknown,
        (Some((covered, digits)), Some(key)) => {
            let is_good = hex::encode(mac(key, covered)).as_bytes().ct_eq(digits);
            if bool::from(is_good) { Seal::Good } else { Seal::Bad }
        }
    }
}

/// The fields of a line by which other lines are checked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Known {
    pub(super) seq: u64,
    pub(super) prev: Hash,
    pub(super) time: String,
    /// The kind of a line that the server writes for itself.
    #[serde(default)]
    pub(super) event: Option<String>,
    /// The bytes between this line and the last whole line before it.
    #[serde(default)]
    pub(super) torn: Option<super::Digest>,
    /// The contents of the head file, if it did not name the last line.
    #[serde(default)]
    pub(super) head: Option<FoundHead>,
    /// The last line of the files that the server removed.
    #[serde(default)]
    pub(super) removed: Option<Position>,
}

/// A head file that did not name the last line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FoundHead {
    /// There was no readable head file.
    None,
    /// The head file named this line.
    Named(Position),
}

/// Parses a whole line, newline included; `None` for anything else.
pub(super) fn read(line: &[u8]) -> Option<Known> {
    serde_json::from_slice(line.strip_suffix(b"\n")?).ok()
}

/// Whether these bytes may be the beginning of the next line, from a server that was killed. Further such lines may
/// follow, from servers that were killed before they could report the first.
pub(super) fn may_be_torn(torn: &[u8], after: Position) -> bool {
    let begin = format!(r#"{{"seq":{},"prev":"{}","#, after.seq + 1, after.hash);
    let is_begun = |part: &[u8]| {
        let common = part.len().min(begin.len());
        part[..common] == begin.as_bytes()[..common]
    };
    !torn.starts_with(b"\n") && torn.split(|byte| *byte == b'\n').all(is_begun)
}
