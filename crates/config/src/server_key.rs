//! The server's secret, from which it derives its other keys, such as that of URLs. If the secret is in a file, all
//! servers that have the file share it, one after another or at once.

use std::{fmt, fs, io, os::unix::fs::PermissionsExt, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::secret_file;

/// Length of the secret, in bytes.
const BYTES: usize = 32;

/// Permissions that the file must not have. A group may read it, as that is how secrets are mounted into containers.
const NOT_ALLOWED: u32 = 0o027;

/// Maximum number of bytes that are read of the file.
const MAX_FILE: usize = 256;

/// The server's secret.
#[derive(Clone)]
pub struct ServerKey([u8; BYTES]);

impl ServerKey {
    /// Makes a new random secret.
    pub fn random() -> Self {
        let mut key = [0; BYTES];
        getrandom::fill(&mut key).expect("the system has random bytes");
        Self(key)
    }

    /// Reads the secret from a file: 32 bytes as hexadecimal digits or base64. Creates the file if it does not exist.
    ///
    /// # Errors
    /// If the file can be neither read nor created, others can read it, or it contains something else.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let text = match read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
            text => text?,
        };
        Self::parse(text.trim()).ok_or_else(|| {
            io::Error::other("it does not hold 32 bytes as hexadecimal digits or base64")
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = hex::decode(text).ok().or_else(|| STANDARD.decode(text).ok())?;
        bytes.try_into().ok().map(Self)
    }

    /// Identifies this secret without revealing anything of it: 16 hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        hex::encode(&self.derive("llm-sandbox fingerprint 1")[..8])
    }

    /// Derives the key for a purpose. It reveals neither the key for another purpose nor the secret.
    pub fn derive(&self, purpose: &str) -> [u8; BYTES] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.update(purpose.as_bytes());
        mac.finalize().into_bytes().into()
    }
}

impl PartialEq for ServerKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerKey").finish_non_exhaustive()
    }
}

fn read(path: &Path) -> io::Result<String> {
    let file = fs::File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & NOT_ALLOWED != 0 {
        return Err(io::Error::other(format!(
            "others can read it or write to it (mode {:o}): `chmod g-w,o=` it",
            mode & 0o777
        )));
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, MAX_FILE as u64), &mut text)?;
    Ok(text)
}

fn make(path: &Path) -> io::Result<String> {
    let text = format!("{}\n", hex::encode(ServerKey::random().0));
    if secret_file::make(path, &text)? { Ok(text) } else { read(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_made_for_its_owner_alone_and_then_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let made = ServerKey::from_file(&path).expect("made");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(ServerKey::from_file(&path).expect("read"), made);
        let another = ServerKey::from_file(&folder.path().join("another")).expect("made");
        assert_ne!(another, made);
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2, "nothing beside them");
    }

    #[test]
    fn it_stands_there_as_hexadecimal_digits_or_base64_and_nothing_else_does() {
        let key = ServerKey([7; BYTES]);
        for text in [hex::encode([7; BYTES]), STANDARD.encode([7; BYTES])] {
            assert_eq!(ServerKey::parse(&text), Some(key.clone()), "{text}");
        }
        for wrong in ["", "07", &hex::encode([7; 31]), &hex::encode([7; 33]), "a key"] {
            assert_eq!(ServerKey::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_and_one_of_a_group_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        ServerKey::from_file(&path).expect("made");
        for (mode, is_good) in [(0o644, false), (0o660, false), (0o604, false), (0o440, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            let read = ServerKey::from_file(&path);
            assert_eq!(read.is_ok(), is_good, "{mode:o}: {read:?}");
        }
        assert!(ServerKey::from_file(&folder.path().join("no/such/key")).is_err());
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own() {
        let (key, other) = (ServerKey([1; BYTES]), ServerKey([2; BYTES]));
        assert_eq!(key.derive("urls"), key.derive("urls"));
        assert_ne!(key.derive("urls"), key.derive("archive"));
        assert_ne!(key.derive("urls"), other.derive("urls"));
    }
}
