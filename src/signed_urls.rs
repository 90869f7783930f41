//! The URLs that callers get: to download a file, to upload one, and to look at a session.
//!
//! A person's browser has no token, nor has a workflow's download node. Unless everybody has access, the URL itself
//! says what it is valid for and until when, and a keyed hash proves that this server wrote it. It is bound to one
//! session by the session's number, not only by its name: a later session of that name, or another caller's, is another
//! session. The URL contains the number, so that the server can tell whether the session of a genuine URL still exists.
//! The key is derived from the server's secret: without `SANDBOX_KEY_FILE` the secret is made at the start and never
//! leaves the process.
//!
//! A model pays for each character of the URLs that it reads, so all of this is one short word:
//!
//! ```text
//! word: base64url of   number (LEB128) | expires: u32, seconds since the epoch | hash: 16 bytes
//!
//! /files/sess_1/a.csv?signature=word       one file, all of them, the page, an upload
//! /files/sess_1~word/a.csv                 any file: if there are many, the client fills in the names
//! ?expires=1764000000&signature=7-3f9a...  the longer form of the first, which is still accepted
//! ```

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use config::{Config, server_key::ServerKey};
use hmac::{Hmac, KeyInit, Mac};
use model::{
    DataPath, Existing, SessionId,
    artifact::{self},
};
use sha2::Sha256;

/// Makes URLs, and checks those that it made. Clones share the key.
#[derive(Clone)]
pub struct SignedUrls {
    base: Base,
    shared: Arc<Shared>,
}

/// The start of all URLs, without a slash at its end.
#[derive(Debug, Clone)]
pub struct Base(Arc<str>);

impl Base {
    /// The base for a client that reached the server by this scheme, at this host and port.
    pub fn at(scheme: &str, host: &str) -> Self {
        Self(format!("{scheme}://{host}").into())
    }
}

impl From<String> for Base {
    fn from(base: String) -> Self {
        Self(base.into())
    }
}

struct Shared {
    /// Whether the settings name the base, which then holds for all clients.
    is_public: bool,
    key: [u8; 32],
    ttl: Duration,
    /// Whether looking and downloading need a token, or a signature in its place.
    signs_downloads: bool,
}

/// One session of a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberedSession<'a> {
    /// The session's name.
    pub(crate) id: &'a SessionId,
    /// Distinguishes the session from earlier and later sessions of that name.
    pub(crate) number: u64,
}

/// The operation that a URL allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant<'a> {
    /// Reading this file; all files as one ZIP file if none is named.
    Read(Option<&'a DataPath>),
    /// Reading any file, one at a time.
    ReadAny,
    /// Looking at the session: its runs and its files.
    Look,
    /// Writing this file.
    Write {
        /// Path of the file.
        path: &'a DataPath,
        /// Whether an existing file of that name is kept or replaced.
        existing: Existing,
    },
}

/// The part of a URL that proves that it is genuine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Number of the session that the URL was made for.
    pub(crate) number: u64,
    /// When the URL expires, in seconds since the epoch.
    pub(crate) expires: u64,
    /// The keyed hash.
    mac: [u8; MAC],
}

/// Purpose of the derived key, see [`ServerKey::derive`].
const PURPOSE: &str = "llm-sandbox signed urls 1";

/// Length of the hash that a URL carries, in bytes. Half a hash is long enough (RFC 2104, section 5), and models pay
/// for each character of a URL.
const MAC: usize = 16;

/// Length of the time at which a URL expires, in bytes. Four bytes suffice until the year 2106.
const EXPIRES: usize = 4;

/// Separates a session's name, which cannot contain it, from the signature of a URL for any of its files.
const SEPARATOR: char = '~';

impl Signature {
    /// Reads the value of `signature`. Each signature has one valid spelling.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(word).ok()?;
        let (rest, mac) = bytes.split_last_chunk::<MAC>()?;
        let (number, expires) = rest.split_last_chunk::<EXPIRES>()?;
        let expires = u32::from_be_bytes(*expires).into();
        let signature = Self { number: from_leb128(number)?, expires, mac: *mac };
        (signature.word() == word).then_some(signature)
    }

    /// Reads the longer form, with `expires` beside it. Each signature has one valid spelling.
    pub(crate) fn parse_long(expires: &str, signature: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok().filter(|n: &u64| n.to_string() == text);
        let (of, digits) = signature.split_once('-')?;
        let mut mac = [0; MAC];
        hex::decode_to_slice(digits, &mut mac).ok()?;
        let is_canonical = hex::encode(mac) == digits;
        is_canonical.then_some(())?;
        Some(Self { number: number(of)?, expires: number(expires)?, mac })
    }

    /// The signature as it is written in a URL.
    fn word(&self) -> String {
        let expires = u32::try_from(self.expires).unwrap_or(u32::MAX).to_be_bytes();
        URL_SAFE_NO_PAD.encode([&leb128(self.number)[..], &expires, &self.mac].concat())
    }
}

/// Encodes a number in LEB128: seven bits a byte, the lowest first; all bytes but the last have the eighth bit set.
fn leb128(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![];
    loop {
        let low = (number & 0x7F) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Decodes a number in LEB128; `None` if it is invalid or too large. The caller has to refuse zeros at the end.
fn from_leb128(bytes: &[u8]) -> Option<u64> {
    let (last, others) = bytes.split_last()?;
    let ends_once = last & 0x80 == 0 && others.iter().all(|byte| byte & 0x80 != 0);
    (ends_once && bytes.len() <= 10).then_some(())?;
    bytes.iter().rev().try_fold(0_u64, |number, byte| {
        number.checked_mul(0x80)?.checked_add(u64::from(byte & 0x7F))
    })
}

/// Splits a session's part of a URL into the name and, if it is there, the signature for any of its files.
pub(crate) fn session_and_signature(segment: &str) -> (&str, Option<&str>) {
    match segment.split_once(SEPARATOR) {
        Some((session, signature)) => (session, Some(signature)),
        None => (segment, None),
    }
}

/// Why a URL is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureError {
    /// The URL has expired.
    Expired,
    /// The signature is not the server's, or was made for something else.
    Invalid,
}

impl SignedUrls {
    /// Makes URLs below this base.
    pub fn new(base: Base, config: &Config) -> Self {
        let key = config.server_key.clone().unwrap_or_else(ServerKey::random).derive(PURPOSE);
        let shared = Shared {
            is_public: config.public_url.is_some(),
            key,
            ttl: config.url_ttl,
            signs_downloads: config.requires_auth(),
        };
        Self { base, shared: Arc::new(shared) }
    }

    /// The URLs for a client that reached the server at this base: another container uses another host name than a
    /// browser on the host does. Signatures do not depend on the base. If the settings name a base, all clients get
    /// that one.
    #[must_use]
    pub(crate) fn for_client(&self, base: Option<&Base>) -> Self {
        match base {
            Some(base) if !self.shared.is_public => {
                Self { base: base.clone(), shared: self.shared.clone() }
            }
            _ => self.clone(),
        }
    }

    /// The start of all URLs, without a slash at its end.
    pub(crate) fn base(&self) -> &str {
        &self.base.0
    }

    /// URL to download a file.
    pub(crate) fn download(&self, session: NumberedSession, path: &DataPath) -> String {
        let url = artifact::download_url(&self.base.0, session.id.as_str(), path.as_str());
        self.signed_if_needed(url, session, Grant::Read(Some(path)))
    }

    /// URL to download any of the files: `{filename}` stands for its name, percent-encoded.
    pub(crate) fn download_any(&self, session: NumberedSession) -> String {
        let signature = self.shared.signs_downloads.then(|| self.sign(session, Grant::ReadAny));
        let signed = signature.map_or_else(String::new, |word| format!("{SEPARATOR}{word}"));
        format!("{}/files/{}{signed}/{{filename}}", self.base.0, session.id)
    }

    /// URL to download all files as one ZIP file.
    pub(crate) fn download_all(&self, session: NumberedSession) -> String {
        let url = format!("{}/files/{}/?format=zip", self.base.0, session.id);
        self.signed_if_needed(url, session, Grant::Read(None))
    }

    /// URL of the page on which a person can look at the session.
    pub(crate) fn page(&self, session: NumberedSession) -> String {
        let url = format!("{}/files/{}/", self.base.0, session.id);
        self.signed_if_needed(url, session, Grant::Look)
    }

    /// URL of the same page for clients with a token. It has no signature: a session that has not been started has no
    /// number to sign.
    pub(crate) fn page_by_token(&self, id: &SessionId) -> String {
        format!("{}/files/{id}/", self.base.0)
    }

    /// URL of a session's runs as a `format`: `ipynb` or `py`. It is valid wherever the page is.
    pub(crate) fn record(&self, session: NumberedSession, format: &str) -> String {
        let url = format!("{}/files/{}/?format={format}", self.base.0, session.id);
        self.signed_if_needed(url, session, Grant::Look)
    }

    /// URL to upload a file.
    pub(crate) fn upload(
        &self,
        session: NumberedSession,
        path: &DataPath,
        existing: Existing,
    ) -> String {
        let url = artifact::download_url(&self.base.0, session.id.as_str(), path.as_str());
        let url = format!("{url}?overwrite={}", existing.is_overwritten());
        self.signed_if_needed(url, session, Grant::Write { path, existing })
    }

    /// How long a URL is valid, in seconds.
    pub(crate) fn ttl_s(&self) -> u64 {
        self.shared.ttl.as_secs().max(1)
    }

    /// How long a URL of a file is valid, in seconds; `None` if it does not expire.
    pub(crate) fn expire_in_s(&self) -> Option<u64> {
        self.shared.signs_downloads.then(|| self.ttl_s())
    }

    /// Checks the signature of a request, but not whether the session of its number still exists.
    ///
    /// # Errors
    /// If the signature is not the server's, was made for something else, or has expired.
    pub(crate) fn check(
        &self,
        id: &SessionId,
        grant: Grant,
        signature: &Signature,
    ) -> Result<(), SignatureError> {
        let session = NumberedSession { id, number: signature.number };
        // In constant time.
        self.mac(session, grant, signature.expires)
            .verify_truncated_left(&signature.mac)
            .map_err(|_| SignatureError::Invalid)?;
        if signature.expires > since_epoch().as_secs() {
            Ok(())
        } else {
            Err(SignatureError::Expired)
        }
    }

    /// Signs a URL if that is needed. Writing always needs a signature: a client that sends a file has nothing else.
    fn signed_if_needed(&self, url: String, session: NumberedSession, grant: Grant) -> String {
        if !matches!(grant, Grant::Write { .. }) && !self.shared.signs_downloads {
            return url;
        }
        let separator = if url.contains('?') { '&' } else { '?' };
        format!("{url}{separator}signature={}", self.sign(session, grant))
    }

    fn sign(&self, session: NumberedSession, grant: Grant) -> String {
        // Rounded up, so that the URL is valid for at least as long as announced.
        let expires = (since_epoch() + self.shared.ttl).as_secs() + 1;
        let expires = expires.min(u32::MAX.into());
        let mac = self.mac(session, grant, expires).finalize().into_bytes();
        let mac = mac[..MAC].try_into().expect("a SHA-256 MAC has more bytes than `MAC`");
        Signature { number: session.number, expires, mac }.word()
    }

    fn mac(&self, session: NumberedSession, grant: Grant, expires: u64) -> Hmac<Sha256> {
        let (verb, path) = match grant {
            Grant::Look => ("look", ""),
            Grant::Read(None) => ("read all", ""),
            Grant::ReadAny => ("read any", ""),
            Grant::Read(Some(path)) => ("read", path.as_str()),
            Grant::Write { path, existing: Existing::Keep } => ("write", path.as_str()),
            Grant::Write { path, existing: Existing::Replace } => ("overwrite", path.as_str()),
        };
        let mut mac = Hmac::new_from_slice(&self.shared.key).expect("a key may have any length");
        // Only the last part can contain a line break.
        let text = format!("{verb}\n{}\n{}\n{expires}\n{path}", session.id, session.number);
        mac.update(text.as_bytes());
        mac
    }
}

impl std::fmt::Debug for SignedUrls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignedUrls").field("base", &self.base.0).finish_non_exhaustive()
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(vars: &[(&str, &str)]) -> SignedUrls {
        let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        SignedUrls::new(Base::at("http", "h:1"), &Config::parse(vars).expect("valid"))
    }

    /// The setting of a server that is open to everybody on its machine.
    const OPEN: (&str, &str) = ("SANDBOX_TRANSPORT", "http");

    fn signature(address: &str) -> Signature {
        let of_path = || {
            let (_, rest) = address.split_once("/files/").expect("of a file");
            let (segment, _) = rest.split_once('/').expect("a session");
            session_and_signature(segment).1.expect("in its session's part")
        };
        let word = address.split_once("signature=").map_or_else(of_path, |(_, word)| word);
        Signature::parse(word).expect("as it was made")
    }

    #[test]
    fn addresses_are_plain_where_everybody_may_come_in_and_nowhere_else() {
        let (id, path) = (SessionId::mint(), DataPath::relative("a b.csv").expect("valid"));
        let session = NumberedSession { id: &id, number: 1 };
        let plain = addresses(&[OPEN]).download(session, &path);
        assert_eq!(plain, format!("http://h:1/files/{id}/a%20b.csv"));
        let any = addresses(&[OPEN]).download_any(session);
        assert_eq!(any, format!("http://h:1/files/{id}/{{filename}}"));
        for settings in [&[][..], &[OPEN, ("SANDBOX_AUTH_TOKENS", "a:b")]] {
            let signed = addresses(settings).download(session, &path);
            assert!(signed.starts_with(&format!("{plain}?signature=")), "{signed}");
            let any = addresses(settings).download_any(session);
            assert!(any.starts_with(&format!("http://h:1/files/{id}~")), "{any}");
            assert!(any.ends_with("/{filename}"), "{any}");
        }
    }

    #[test]
    fn a_signature_is_short_and_there_is_one_way_to_write_it() {
        let mac = *b"0123456789abcdef";
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let signature = Signature { number, expires: 1_764_000_000, mac };
            let word = signature.word();
            assert_eq!(Signature::parse(&word), Some(signature), "{word}");
            assert!(number > 127 || word.len() == 28, "{word}");
            for other in [
                format!("{word}="),
                format!("{word}A"),
                format!(" {word}"),
                format!("{word}\n"),
                word[..word.len() - 1].to_owned(),
                word[1..].to_owned(),
            ] {
                let parsed = Signature::parse(&other);
                assert!(parsed.is_none_or(|parsed| parsed.word() == other), "{other:?}");
            }
        }
        // The same number with one more zero byte, and the same signature with unused bits set.
        let padded = [&[0x87, 0x00][..], &[0; EXPIRES], &mac].concat();
        assert_eq!(Signature::parse(&URL_SAFE_NO_PAD.encode(padded)), None);
        let two = Signature { number: 300, expires: 1, mac }.word();
        let last = two.chars().last().expect("some");
        assert!("AQgw".contains(last), "{two}");
        assert_eq!(Signature::parse(&format!("{}B", &two[..two.len() - 1])), None);
        // A number that does not fit into 64 bits.
        let large = [&[0xFF; 9][..], &[0x7F], &[0; EXPIRES], &mac].concat();
        assert_eq!(Signature::parse(&URL_SAFE_NO_PAD.encode(large)), None);
        for nothing in ["", "A", "+/+/", "~", "7-0123456789abcdef0123456789abcdef"] {
            assert_eq!(Signature::parse(nothing), None, "{nothing:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_read_as_a_signature_is_written_so(word in "[A-Za-z0-9_=-]{20,44}") {
            if let Some(signature) = Signature::parse(&word) {
                proptest::prop_assert_eq!(signature.word(), word);
            }
        }
    }

    #[test]
    fn the_longer_form_is_understood_and_there_is_one_way_to_write_it() {
        let mac = "0123456789abcdef0123456789abcdef";
        let good = Signature::parse_long("1764000000", &format!("7-{mac}")).expect("good");
        assert_eq!((good.number, good.expires), (7, 1_764_000_000));
        for expires in
            ["", "01764000000", "+1764000000", " 1764000000", "1e9", "-1", "18446744073709551616"]
        {
            assert_eq!(Signature::parse_long(expires, &format!("7-{mac}")), None, "{expires:?}");
        }
        for signature in [
            mac.to_owned(),
            format!("-{mac}"),
            format!("07-{mac}"),
            format!("+7-{mac}"),
            format!("7-{}", mac.to_uppercase()),
            format!("7-{}", &mac[2..]),
            format!("7-{mac}00"),
            format!("7-{mac} "),
            format!("7--{mac}"),
            "7-".to_owned(),
            String::new(),
        ] {
            assert_eq!(Signature::parse_long("1764000000", &signature), None, "{signature:?}");
        }
        // Both forms say the same about what was signed.
        let addresses = addresses(&[]);
        let (id, path) = (SessionId::mint(), DataPath::relative("a").expect("valid"));
        let session = NumberedSession { id: &id, number: 7 };
        let short = signature(&addresses.download(session, &path));
        let long = format!("7-{}", hex::encode(short.mac));
        let long = Signature::parse_long(&short.expires.to_string(), &long).expect("good");
        assert_eq!(addresses.check(&id, Grant::Read(Some(&path)), &long), Ok(()));
    }

    #[test]
    fn addresses_start_with_what_their_client_knows_unless_the_settings_say_what() {
        let (id, path) = (SessionId::mint(), DataPath::relative("a").expect("valid"));
        let session = NumberedSession { id: &id, number: 1 };
        let shown = |addresses: &SignedUrls, at: Option<&str>| {
            addresses
                .for_client(at.map(|host| Base::at("http", host)).as_ref())
                .download(session, &path)
        };
        let own = addresses(&[OPEN]);
        assert_eq!(shown(&own, Some("sandbox:8080")), format!("http://sandbox:8080/files/{id}/a"));
        assert_eq!(shown(&own, None), format!("http://h:1/files/{id}/a"));
        let public = addresses(&[OPEN, ("SANDBOX_PUBLIC_URL", "https://files.example.org")]);
        assert_eq!(shown(&public, Some("sandbox:8080")), format!("http://h:1/files/{id}/a"));
    }

    #[test]
    fn a_signature_is_good_wherever_the_address_starts() {
        let addresses = addresses(&[("SANDBOX_AUTH_TOKENS", "a:b")]);
        let (id, path) = (SessionId::mint(), DataPath::relative("a").expect("valid"));
        let session = NumberedSession { id: &id, number: 1 };
        let elsewhere = addresses.for_client(Some(&Base::at("http", "sandbox:8080")));
        let signature = signature(&elsewhere.download(session, &path));
        assert_eq!(addresses.check(&id, Grant::Read(Some(&path)), &signature), Ok(()));
    }

    #[test]
    fn an_address_is_good_for_what_it_was_made_for_and_nothing_else() {
        let addresses = addresses(&[("SANDBOX_AUTH_TOKENS", "a:b")]);
        let (id, other) = (SessionId::mint(), SessionId::mint());
        let path = DataPath::relative("a.csv").expect("valid");
        let another = DataPath::relative("b.csv").expect("valid");
        let session = NumberedSession { id: &id, number: 1 };
        let all = [
            (addresses.download(session, &path), Grant::Read(Some(&path))),
            (addresses.download(session, &another), Grant::Read(Some(&another))),
            (addresses.download_all(session), Grant::Read(None)),
            (addresses.download_any(session), Grant::ReadAny),
            (addresses.page(session), Grant::Look),
            (
                addresses.upload(session, &path, Existing::Keep),
                Grant::Write { path: &path, existing: Existing::Keep },
            ),
            (
                addresses.upload(session, &path, Existing::Replace),
                Grant::Write { path: &path, existing: Existing::Replace },
            ),
        ];
        for (address, grant) in &all {
            let signature = signature(address);
            for (_, asked) in &all {
                let good = addresses.check(&id, *asked, &signature);
                assert_eq!(good.is_ok(), asked == grant, "{address} for {asked:?}");
            }
            assert_eq!(addresses.check(&other, *grant, &signature), Err(SignatureError::Invalid));
            let later = Signature { expires: signature.expires + 1, ..signature.clone() };
            let another = Signature { number: 2, ..signature.clone() };
            let mut flipped = signature.clone();
            flipped.mac[0] ^= 1;
            for wrong in [later, another, flipped] {
                assert_eq!(addresses.check(&id, *grant, &wrong), Err(SignatureError::Invalid));
            }
        }
    }

    #[test]
    fn an_address_expires() {
        let addresses = addresses(&[("SANDBOX_AUTH_TOKENS", "a:b")]);
        let id = SessionId::mint();
        let session = NumberedSession { id: &id, number: 1 };
        let expires = since_epoch().as_secs();
        let mac = addresses.mac(session, Grant::Read(None), expires).finalize().into_bytes();
        let mac = mac[..MAC].try_into().expect("as long");
        let late = Signature { number: 1, expires, mac };
        assert_eq!(addresses.check(&id, Grant::Read(None), &late), Err(SignatureError::Expired));
    }

    #[test]
    fn servers_with_one_secret_know_each_others_addresses_and_no_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key").display().to_string();
        let (id, file) = (SessionId::mint(), DataPath::relative("a.csv").expect("valid"));
        let session = NumberedSession { id: &id, number: 1 };
        let with_secret = [("SANDBOX_KEY_FILE", &*path)];
        let signature = signature(&addresses(&with_secret).download(session, &file));
        let knows = |vars: &[(&str, &str)]| {
            addresses(vars).check(&id, Grant::Read(Some(&file)), &signature)
        };
        assert_eq!(knows(&with_secret), Ok(()));
        assert_eq!(knows(&[]), Err(SignatureError::Invalid));
    }
}
