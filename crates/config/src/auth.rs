//! Callers: their names, and the tokens that prove who they are. Pure.

use std::{collections::HashSet, fmt};

use model::Principal;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The tokens of callers. Only their digests are stored, so that nothing that is printed or dumped reveals a token.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tokens(Vec<(Principal, Token)>);

/// One token, stored as its digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

/// The prefix of a token's digest.
const DIGEST: &str = "sha256:";

impl Token {
    /// Reads a token of visible ASCII.
    ///
    /// # Errors
    /// If it is empty or has other characters; the error does not say which.
    pub fn parse(token: &str) -> Result<Self, String> {
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("is empty or contains characters other than visible ASCII".into());
        }
        Ok(Self(digest(token)))
    }

    /// Reads a token, or `sha256:` and the digest of one in hexadecimal.
    ///
    /// # Errors
    /// As of [`Self::parse`], or if the digest is not one; the error does not have the token.
    pub(super) fn parse_or_digest(text: &str) -> Result<Self, String> {
        let Some(digest) = text.strip_prefix(DIGEST) else { return Self::parse(text) };
        let mut bytes = [0; 32];
        hex::decode_to_slice(digest, &mut bytes)
            .map_err(|_| format!("has {DIGEST} without 64 hexadecimal digits"))?;
        Ok(Self(bytes))
    }

    /// Whether a text has the digest of a token in its place.
    pub(super) fn is_digest(text: &str) -> bool {
        text.starts_with(DIGEST)
    }

    /// Whether `token` is this one. The time that it takes reveals nothing about it.
    pub fn is(&self, token: &str) -> bool {
        self.0.ct_eq(&digest(token)).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads `name:token,...`. Several tokens may have one name, so that a token can be replaced while the old one is
    /// still in use.
    ///
    /// # Errors
    /// If an entry is not `name:token`, its name or token is invalid, or a token is listed twice; the error never
    /// contains a token.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut tokens = vec![];
        let mut seen = HashSet::new();
        for (n, entry) in list.split(',').map(str::trim).enumerate() {
            if entry.is_empty() {
                continue;
            }
            let (name, token) = entry
                .split_once(':')
                .ok_or_else(|| format!("entry {} is not name:token", n + 1))?;
            let caller = Principal::named(name).ok_or_else(|| {
                format!(
                    "the name in entry {} is empty or contains characters other than letters, \
                     digits, . _ and -",
                    n + 1
                )
            })?;
            if caller == Principal::local() {
                return Err("the name local is reserved for callers without a token".into());
            }
            let token = Token::parse(token).map_err(|why| format!("the token of {name} {why}"))?;
            if !seen.insert(token.0) {
                return Err(format!("the token of {name} is listed twice"));
            }
            tokens.push((caller, token));
        }
        Ok(Self(tokens))
    }

    /// The callers, each as often as it has tokens.
    pub(super) fn names(&self) -> impl Iterator<Item = &Principal> {
        self.0.iter().map(|(caller, _)| caller)
    }

    /// Whether a caller has a token.
    pub(super) fn has(&self, caller: &Principal) -> bool {
        self.names().any(|known| known == caller)
    }

    /// Adds a token. Returns false if a caller has it already.
    pub(super) fn add(&mut self, caller: Principal, token: Token) -> bool {
        let is_new = self.0.iter().all(|(_, known)| *known != token);
        if is_new {
            self.0.push((caller, token));
        }
        is_new
    }

    /// Whether callers need no token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the caller with this token. The time that it takes reveals nothing about the tokens: all digests are
    /// compared, each to its end.
    pub fn principal(&self, token: &str) -> Option<Principal> {
        let digest = digest(token);
        let mut found = None;
        for (principal, known) in &self.0 {
            if bool::from(known.0.ct_eq(&digest)) {
                found = Some(principal);
            }
        }
        found.cloned()
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(principal, _)| principal)).finish()
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_owner_and_nothing_else_does() {
        let tokens = Tokens::parse("alice:a1:b, n8n:secret,alice:new,").expect("valid");
        let name = |token| tokens.principal(token).map(|who| who.to_string());
        assert_eq!(name("a1:b").as_deref(), Some("alice"));
        assert_eq!(name("new").as_deref(), Some("alice"));
        assert_eq!(name("secret").as_deref(), Some("n8n"));
        for wrong in ["", "a1", "secret ", "Secret", "alice", "alice:new", "secretsecret"] {
            assert_eq!(name(wrong), None, "{wrong:?}");
        }
        assert!(Tokens::default().principal("").is_none());
    }

    #[test]
    fn mistakes_are_told_without_the_token() {
        for wrong in
            ["hunter2", ":hunter2", "a b:hunter2", "a:hunter2,b:hunter2", "local:hunter2", "a:"]
        {
            let mistake = Tokens::parse(wrong).expect_err(wrong);
            assert!(!mistake.contains("hunter2"), "{mistake}");
        }
        let shown = format!("{:?}", Tokens::parse("alice:hunter2").expect("valid"));
        assert!(shown.contains("alice") && !shown.contains("hunter2"), "{shown}");
    }
}
