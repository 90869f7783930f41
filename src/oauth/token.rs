//! The form of an access token: a JSON Web Token (RFC 7519) in its compact form, with a header that leaves no choice.
//!
//! Only the issuer's published keys count. Headers that bring or name a key of their own (`jwk`, `jku`, `x5u`, `x5c`)
//! have no effect.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{
    MAX_TOKEN, Refused,
    keys::{Algorithm, Key},
};

const NO_TOKEN: Refused =
    Refused::Invalid("is neither one of this server's tokens nor a JSON Web Token");

/// Types of access tokens (RFC 9068), in lower case. Many issuers write the general one.
const TYPES: [&str; 4] = ["at+jwt", "application/at+jwt", "jwt", "application/jwt"];

/// A token whose signature was not checked.
#[derive(Debug)]
pub(super) struct Token<'a> {
    algorithm: Algorithm,
    /// The name of the key that signed it.
    key: String,
    /// Whether the header says that it is an access token.
    pub(super) is_for_access: bool,
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, Refused> {
        if token.len() > MAX_TOKEN {
            return Err(Refused::Invalid("is longer than 12 KiB"));
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(NO_TOKEN)?;
        let (header, claims) = signed.split_once('.').ok_or(NO_TOKEN)?;
        if claims.contains('.') {
            return Err(NO_TOKEN);
        }
        let Object(header) = decoded(header).ok_or(NO_TOKEN)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| NO_TOKEN)?;
        if header.contains_key("crit") {
            return Err(Refused::Invalid(
                "has critical headers (crit), none of which is supported",
            ));
        }
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::named);
        let algorithm = algorithm.ok_or(Refused::Invalid(
            "is not signed with one of RS256, PS256, ES256 and EdDSA (alg)",
        ))?;
        let kind = match header.get("typ") {
            None => "jwt".to_owned(),
            Some(kind) => kind.as_str().unwrap_or_default().to_ascii_lowercase(),
        };
        if !TYPES.contains(&&*kind) {
            return Err(Refused::Invalid("has a type that is neither at+jwt nor JWT (typ)"));
        }
        let key = header.get("kid").and_then(Value::as_str);
        let key = key.ok_or(Refused::Invalid("does not name its key (kid)"))?.to_owned();
        let is_for_access = kind.ends_with("at+jwt");
        Ok(Self { algorithm, key, is_for_access, signed, claims, signature })
    }

    /// Whether one of these keys may have signed it.
    pub(super) fn is_of(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| key.is(&self.key, self.algorithm))
    }

    /// Checks the signature.
    ///
    /// # Errors
    /// If none of these keys made it.
    pub(super) fn check_signature(&self, keys: &[Key]) -> Result<(), Refused> {
        let mut own = keys.iter().filter(|key| key.is(&self.key, self.algorithm)).peekable();
        if own.peek().is_none() {
            return Err(Refused::Invalid(
                "names a key that the issuer does not publish for its algorithm (kid, alg)",
            ));
        }
        let signed = self.signed.as_bytes();
        let is_signed = own.any(|key| key.has_signed(self.algorithm, signed, &self.signature));
        if is_signed { Ok(()) } else { Err(Refused::Invalid("has an invalid signature")) }
    }

    /// The claims, which are the issuer's only if the signature is.
    pub(super) fn claims(&self) -> Result<Map<String, Value>, Refused> {
        let claims = decoded(self.claims);
        claims
            .map(|Object(claims)| claims)
            .ok_or(Refused::Invalid("has claims that are not a JSON object"))
    }
}

fn decoded(part: &str) -> Option<Object> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// A JSON object in which no name occurs twice: programs disagree about which of the two values counts.
struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor).map(Self)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, value)) = entries.next_entry::<String, Value>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name occurs twice"));
            }
        }
        Ok(object)
    }
}
