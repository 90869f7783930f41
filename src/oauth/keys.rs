//! The public keys of an authorization server (RFC 7517), and what they sign.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

/// Maximum number of keys of an authorization server.
const MAX_KEYS: usize = 100;

/// The algorithms of signatures (RFC 7518, RFC 8037). None has a secret that both sides know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Ps256,
    Es256,
    EdDsa,
}

impl Algorithm {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "PS256" => Some(Self::Ps256),
            "ES256" => Some(Self::Es256),
            // The second name is that of RFC 9864.
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    name: String,
    /// The only algorithm that the key is for, if the issuer names one.
    algorithm: Option<Algorithm>,
    kind: Kind,
}

/// The kind of a key, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// The uncompressed point.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Key {
    /// The keys in a set that can sign access tokens; others are left out. `None` if this is no set of keys.
    pub(super) fn all_in(set: &Value) -> Option<Vec<Self>> {
        let keys = set["keys"].as_array()?;
        Some(keys.iter().take(MAX_KEYS).filter_map(Self::parse).collect())
    }

    fn parse(key: &Value) -> Option<Self> {
        let has = |operation: &str| {
            key["key_ops"].as_array().is_none_or(|all| all.iter().any(|it| it == operation))
        };
        if !matches!(key["use"].as_str(), None | Some("sig")) || !has("verify") {
            return None;
        }
        let bytes =
            |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str()?.trim_end_matches('=')).ok();
        let coordinate = |name: &str| bytes(name).filter(|bytes| bytes.len() == 32);
        let kind = match (key["kty"].as_str()?, key["crv"].as_str()) {
            ("RSA", _) => {
                Kind::Rsa { n: without_zeros(bytes("n")?), e: without_zeros(bytes("e")?) }
            }
            ("EC", Some("P-256")) => {
                Kind::P256([vec![4], coordinate("x")?, coordinate("y")?].concat())
            }
            ("OKP", Some("Ed25519")) => Kind::Ed25519(coordinate("x")?),
            _ => return None,
        };
        let algorithm = match &key["alg"] {
            Value::Null => None,
            name => Some(Algorithm::named(name.as_str()?)?),
        };
        Some(Self { name: key["kid"].as_str()?.to_owned(), algorithm, kind })
    }

    /// Whether this is the key of this name, and signs with this algorithm.
    pub(super) fn is(&self, name: &str, algorithm: Algorithm) -> bool {
        let fits = match &self.kind {
            Kind::Rsa { .. } => matches!(algorithm, Algorithm::Rs256 | Algorithm::Ps256),
            Kind::P256(_) => algorithm == Algorithm::Es256,
            Kind::Ed25519(_) => algorithm == Algorithm::EdDsa,
        };
        fits && self.name == name && self.algorithm.is_none_or(|own| own == algorithm)
    }

    /// Whether the key has signed a message with this algorithm. RSA keys have 2048 to 8192 bits.
    #[cfg(feature = "oauth")]
    pub(super) fn has_signed(
        &self,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        use ring::signature::{
            ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256,
            RsaPublicKeyComponents, UnparsedPublicKey,
        };

        let checked = match (&self.kind, algorithm) {
            (Kind::Rsa { n, e }, Algorithm::Rs256) => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            (Kind::Rsa { n, e }, Algorithm::Ps256) => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PSS_2048_8192_SHA256,
                message,
                signature,
            ),
            (Kind::P256(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Kind::Ed25519(point), Algorithm::EdDsa) => {
                UnparsedPublicKey::new(&ED25519, point).verify(message, signature)
            }
            _ => return false,
        };
        checked.is_ok()
    }

    #[cfg(not(feature = "oauth"))]
    #[expect(clippy::unused_self, reason = "as above")]
    pub(super) fn has_signed(&self, _: Algorithm, _: &[u8], _: &[u8]) -> bool {
        false
    }
}

/// A number without zeros at its start, which some issuers write.
fn without_zeros(number: Vec<u8>) -> Vec<u8> {
    number.into_iter().skip_while(|byte| *byte == 0).collect()
}
