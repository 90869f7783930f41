//! The manifest of an archived session: the object that is written last and describes the others. Pure.
//!
//! ```text
//! sha256 <hexadecimal>            or hmac-sha256, with the server's secret, if it has one in a file
//! { the manifest, JSON }
//! ```

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use model::{Artifact, DataPath, OwnSettings, Principal, SessionId, SessionKey, SessionRecord};
use protocol::message::Carried;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of manifests that this program writes and reads.
const VERSION: u32 = 1;

/// The prefixes of the first line: of a hash, and of a hash with a key.
const PLAIN: &str = "sha256 ";
const KEYED: &str = "hmac-sha256 ";

/// The maximum size of a manifest, in bytes: with the maximum number of files and the longest names.
pub(super) const MAX_BYTES: usize = 32 << 20;

/// The manifest of an archived session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    /// The session's caller.
    pub(super) caller: String,
    /// The session's name.
    pub(super) session: String,
    /// The workspace whose session it is, if the workspace has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) workspace: Option<SessionKey>,
    /// The session's own settings, which replace the server's.
    pub(crate) own: OwnSettings,
    /// The session's number, to which URLs are bound, and the servers for which it is valid.
    pub(super) number: u64,
    pub(super) numbers_of: String,
    /// Time of the save, in seconds since the epoch.
    pub(crate) saved_at: i64,
    /// Time until the saved session expires, in seconds.
    pub(super) keep_s: u64,
    /// The name of this save, which is also the folder of its other objects.
    pub(super) generation: String,
    /// The session's files, in the order in which their bytes follow each other.
    pub(crate) files: Vec<FileRecord>,
    /// Whether there were more files than are listed.
    #[serde(default)]
    pub(crate) more_files: bool,
    /// The session's Python variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variables: Option<VariablesRecord>,
    /// The exact state, for an engine that can continue from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<ObjectRecord>,
    /// The session's runs. Earlier versions saved none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<ObjectRecord>,
    /// Languages whose variables were not saved.
    #[serde(default)]
    pub(crate) languages_lost: Vec<String>,
    /// Packages that were installed. Only the exact state has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) packages: Vec<String>,
    /// Whether a later save failed.
    #[serde(skip)]
    pub(crate) is_outdated: bool,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Hexadecimal.
    pub(crate) sha256: String,
    /// Nanoseconds since the epoch.
    pub(crate) modified_ns: i64,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRecord {
    pub(crate) size: u64,
    /// Hexadecimal.
    pub(crate) sha256: String,
}

/// Variables that were exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VariablesRecord {
    /// The object that contains them.
    pub(crate) object: ObjectRecord,
    /// The number of cells that their interpreter had run.
    pub(crate) count: u64,
    /// The names of the variables, and of those that could not be saved.
    pub(crate) carried: Carried,
}

/// The part of a manifest that every version has.
#[derive(Deserialize)]
struct OfVersion {
    version: u32,
}

/// The reason why a manifest cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unreadable(pub(super) &'static str);

impl Manifest {
    /// Creates a manifest without contents.
    pub(super) fn new(
        record: &SessionRecord,
        numbers_of: &str,
        keep_s: u64,
        generation: String,
    ) -> Self {
        Self {
            version: VERSION,
            caller: record.caller.name().to_owned(),
            session: record.session.to_string(),
            workspace: record.workspace_key(),
            own: record.own.clone(),
            number: record.number,
            numbers_of: numbers_of.to_owned(),
            saved_at: Timestamp::now().as_second(),
            keep_s,
            generation,
            files: vec![],
            more_files: false,
            variables: None,
            state: None,
            runs: None,
            languages_lost: vec![],
            packages: vec![],
            is_outdated: false,
        }
    }

    /// The size of the session's objects, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let files = self.files.iter().map(|file| file.size);
        let objects = self.variables.iter().map(|it| &it.object);
        let objects = objects.chain(&self.state).chain(&self.runs);
        files.chain(objects.map(|it| it.size)).fold(0, u64::saturating_add)
    }

    /// Returns the manifest as bytes, with a hash, or with a keyed hash if there is a key.
    pub(super) fn to_bytes(&self, key: Option<&[u8]>) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("a manifest has only keys that are strings");
        let line = match key {
            Some(key) => {
                format!("{KEYED}{}\n", hex::encode(mac(key, &json).finalize().into_bytes()))
            }
            None => format!("{PLAIN}{}\n", hex::encode(Sha256::digest(&json))),
        };
        [line.as_bytes(), &json].concat()
    }

    /// Parses the bytes of a manifest. With a key, accepts only a manifest that was written with the same key.
    pub(super) fn from_bytes(bytes: &[u8], key: Option<&[u8]>) -> Result<Self, Unreadable> {
        let torn = Unreadable("it is not what was written");
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(torn)?;
        let (line, json) = (&bytes[..end], &bytes[end + 1..]);
        let line = std::str::from_utf8(line).map_err(|_| torn)?;
        let digest = |digits: &str| hex::decode(digits).map_err(|_| torn);
        match (key, line.strip_prefix(KEYED), line.strip_prefix(PLAIN)) {
            (Some(key), Some(digits), _) => {
                mac(key, json).verify_slice(&digest(digits)?).map_err(|_| {
                    Unreadable("it was changed, or written by a server with another secret")
                })?;
            }
            (Some(_), None, _) => {
                return Err(Unreadable("it was written by a server without this one's secret"));
            }
            (None, None, Some(digits)) => {
                if digest(digits)? != Sha256::digest(json)[..] {
                    return Err(torn);
                }
            }
            (None, Some(_), _) => {
                return Err(Unreadable("it was written by a server with a secret of its own"));
            }
            (None, None, None) => return Err(torn),
        }
        // Another version may have another form.
        let OfVersion { version } = serde_json::from_slice(json).map_err(|_| torn)?;
        if version != VERSION {
            return Err(Unreadable("it is of another version"));
        }
        let manifest: Self = serde_json::from_slice(json).map_err(|_| torn)?;
        let is_name =
            |text: &str| text.len() == 32 && text.bytes().all(|it| it.is_ascii_hexdigit());
        let all = manifest.files.iter().try_fold(0_u64, |all, file| all.checked_add(file.size));
        let are_paths = manifest.files.iter().all(|file| DataPath::relative(&file.path).is_ok());
        let is_sound = is_name(&manifest.generation) && all.is_some() && are_paths;
        if is_sound { Ok(manifest) } else { Err(torn) }
    }

    /// Whether this is the manifest of this caller's session of this name.
    pub(super) fn is_of(&self, caller: &Principal, session: &SessionId) -> bool {
        self.caller == caller.name() && self.session == session.as_str()
    }

    /// The session's name.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session.parse().ok()
    }

    /// The unique name of this save.
    pub(crate) fn generation(&self) -> &str {
        &self.generation
    }

    /// The name of the session's caller.
    pub(crate) fn caller_name(&self) -> &str {
        &self.caller
    }

    /// The workspace whose session it is.
    pub(crate) fn workspace(&self) -> Option<SessionKey> {
        self.workspace.clone().filter(SessionKey::is_valid)
    }

    /// Whether the archived session has expired at `now`.
    pub(super) fn is_over(&self, now: i64) -> bool {
        let kept = u64::try_from(now.saturating_sub(self.saved_at)).unwrap_or(0);
        kept > self.keep_s
    }

    /// The session's files, as a listing shows them.
    pub(crate) fn artifacts(&self) -> Vec<Artifact> {
        let artifacts = self.files.iter().filter_map(|file| {
            let path = DataPath::relative(&file.path).ok()?;
            Some(Artifact { path, size_bytes: file.size, modified_ns: file.modified_ns })
        });
        artifacts.collect()
    }

    /// A file, and the offset of its bytes in the object of all files.
    pub(crate) fn file(&self, path: &DataPath) -> Option<(&FileRecord, u64)> {
        let mut at = 0;
        for file in &self.files {
            if file.path == path.as_str() {
                return Some((file, at));
            }
            at += file.size;
        }
        None
    }

    /// Name of one of its objects.
    pub(crate) fn object(&self, key: &SessionKey, what: &str) -> String {
        object_name(key, &self.generation, what)
    }
}

/// The objects of a session beside its manifest.
pub(super) const OBJECTS: [&str; 4] = ["files", "variables", "state", "runs"];

/// Name of an object of a session.
pub(super) fn object_name(key: &SessionKey, generation: &str, what: &str) -> String {
    format!("{}/{generation}/{what}", folder(key))
}

/// The folder of a session's objects.
pub(super) fn folder(key: &SessionKey) -> String {
    format!("sessions/{}", key.as_str())
}

/// The name of the object that says when a later save failed.
pub(super) fn failed_name(key: &SessionKey) -> String {
    format!("{}/failed", folder(key))
}

/// Name of a session's manifest.
pub(super) fn name(key: &SessionKey) -> String {
    format!("{}/manifest", folder(key))
}

fn mac(key: &[u8], json: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    mac.update(json);
    mac
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn record(name: &str) -> SessionRecord {
        SessionRecord {
            caller: Principal::local(),
            session: name.parse().expect("a name"),
            number: 7,
            since: Timestamp::UNIX_EPOCH,
            workspace: None,
            own: OwnSettings::default(),
            datasets: vec![],
        }
    }

    fn manifest() -> Manifest {
        let files = ["a.csv", "sub/ü.txt"].map(|path| FileRecord {
            path: path.into(),
            size: 5,
            sha256: "00".into(),
            modified_ns: -1,
        });
        let new = Manifest::new(&record("reports"), "me", 60, "0".repeat(32));
        Manifest { files: files.into(), ..new }
    }

    #[test]
    fn what_is_written_is_read_with_the_same_key_only() {
        let manifest = manifest();
        for key in [None, Some(&b"secret"[..])] {
            let bytes = manifest.to_bytes(key);
            assert_eq!(Manifest::from_bytes(&bytes, key).as_ref(), Ok(&manifest));
            for other in [None, Some(&b"other"[..])] {
                assert_eq!(Manifest::from_bytes(&bytes, other).is_ok(), other == key);
            }
        }
    }

    #[test]
    fn files_lie_one_after_another() {
        let manifest = manifest();
        let at = |path: &str| {
            let path = DataPath::relative(path).expect("valid");
            manifest.file(&path).map(|(_, at)| at)
        };
        assert_eq!((at("a.csv"), at("sub/ü.txt"), at("b")), (Some(0), Some(5), None));
    }

    #[test]
    fn one_is_over_when_its_time_is() {
        let manifest = manifest();
        assert!(
            !manifest.is_over(manifest.saved_at + 60) && manifest.is_over(manifest.saved_at + 61)
        );
        assert!(!manifest.is_over(0), "a clock that was put back");
    }

    #[test]
    fn sizes_and_names_that_cannot_be_are_refused() {
        let mut long = manifest();
        long.files[0].size = u64::MAX;
        let mut out = manifest();
        out.files[0].path = "../x".into();
        let mut elsewhere = manifest();
        elsewhere.generation = "../../other".into();
        let other = Manifest { version: 2, ..manifest() };
        for wrong in [long, out, elsewhere, other] {
            assert!(Manifest::from_bytes(&wrong.to_bytes(None), None).is_err());
        }
    }

    proptest! {
        #[test]
        fn a_manifest_that_is_torn_or_changed_is_not_used(at in 0_usize..2000, bit in 0_u8..8, cut: bool, keyed: bool) {
            let key = keyed.then_some(&b"secret"[..]);
            let whole = manifest().to_bytes(key);
            let at = at % whole.len();
            let mut bytes = whole.clone();
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 1 << bit;
            }
            // The case of hexadecimal digits is not significant.
            let is_same = bytes.eq_ignore_ascii_case(&whole) && at < 80;
            prop_assert!(is_same || Manifest::from_bytes(&bytes, key).is_err());
        }
    }
}
