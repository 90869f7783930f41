//! Access tokens of an authorization server: which are accepted, and what their claims mean here. Pure.

use std::{net::IpAddr, path::PathBuf};

use model::{Principal, text::quoted};
use url::{Host, Url};

use super::{
    Config, Transport,
    callers::Role,
    parse::{NO_USER, has_user},
    setting::{Mistaken, Row},
};

/// The prefix of the names of callers with access tokens. No caller with another token may have it.
pub const PREFIX: &str = "oauth.";

/// The value in a list that stands for every access token.
const ANY: &str = "*";

/// The access tokens that a server over HTTP accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuth {
    /// The issuer, exactly as tokens name it.
    pub issuer: String,
    /// Audiences of which a token must have one.
    pub audiences: Vec<String>,
    /// The URL of the issuer's keys, if it is not to be found through the issuer's metadata.
    pub jwks_url: Option<String>,
    /// Certificates of authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Scopes that a token must have.
    pub scopes: Vec<String>,
    /// The claim that identifies a caller.
    pub caller_claim: String,
    /// Roles by a claim. A token that matches none gives the role `user`.
    pub roles: ByClaim<Role>,
    /// Policies by a claim. If there are some, a token that matches none is refused.
    pub policies: ByClaim<String>,
}

/// Something that depends on the values of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByClaim<T> {
    /// The claim.
    pub claim: Option<String>,
    /// The values of the claim, each with what it gives. The first that a token has counts.
    pub values: Vec<(String, T)>,
}

impl<T> ByClaim<T> {
    /// The thing that a token gives whose claim has a value if `has` says so.
    pub fn of(&self, has: impl Fn(&str, &str) -> bool) -> Option<&T> {
        let is = |value: &str| {
            value == ANY || self.claim.as_deref().is_some_and(|claim| has(claim, value))
        };
        self.values.iter().find(|(value, _)| is(value)).map(|(_, given)| given)
    }
}

impl Config {
    /// The access tokens that are accepted, if the settings name an issuer. Over stdio none are.
    pub fn oauth(&self) -> Option<OAuth> {
        let issuer = self.oauth_issuer.clone().filter(|_| self.transport == Transport::Http)?;
        let own = |base: &String| [format!("{base}/mcp"), format!("{base}/mcp/")];
        let audiences = if self.oauth_audience.is_empty() {
            self.public_url.iter().flat_map(own).collect()
        } else {
            self.oauth_audience.clone()
        };
        Some(OAuth {
            issuer,
            audiences,
            jwks_url: self.oauth_jwks_url.clone(),
            ca_file: self.oauth_ca_file.clone(),
            scopes: self.oauth_scopes.clone(),
            caller_claim: self.oauth_caller_claim.clone(),
            roles: ByClaim {
                claim: self.oauth_role_claim.clone(),
                values: self.oauth_roles.clone(),
            },
            policies: ByClaim {
                claim: self.oauth_policy_claim.clone(),
                values: self.oauth_policies.clone(),
            },
        })
    }

    /// Mistakes in the settings for access tokens that are valid alone but not together.
    pub(super) fn oauth_contradictions(&self) -> Vec<String> {
        let mut mistakes = vec![];
        let is_set = [
            ("SANDBOX_OAUTH_AUDIENCE", !self.oauth_audience.is_empty()),
            ("SANDBOX_OAUTH_JWKS_URL", self.oauth_jwks_url.is_some()),
            ("SANDBOX_OAUTH_SCOPES", !self.oauth_scopes.is_empty()),
            ("SANDBOX_OAUTH_ROLES", !self.oauth_roles.is_empty()),
            ("SANDBOX_OAUTH_POLICIES", !self.oauth_policies.is_empty()),
        ];
        if self.oauth_issuer.is_none() {
            let alone = is_set.iter().filter(|(_, is_set)| *is_set);
            mistakes
                .extend(alone.map(|(name, _)| {
                    format!("{name}: has no effect without SANDBOX_OAUTH_ISSUER")
                }));
            return mistakes;
        }
        if self.oauth_audience.is_empty() && self.public_url.is_none() {
            mistakes.push(
                "SANDBOX_OAUTH_ISSUER: needs SANDBOX_PUBLIC_URL or SANDBOX_OAUTH_AUDIENCE, without which tokens for \
                 other servers could not be told from those for this one"
                    .into(),
            );
        }
        let by_claim = [
            ("ROLE_CLAIM", &self.oauth_role_claim, "ROLES", names(&self.oauth_roles)),
            ("POLICY_CLAIM", &self.oauth_policy_claim, "POLICIES", names(&self.oauth_policies)),
        ];
        for (claim, has, values, given) in by_claim {
            if has.is_some() && given.is_empty() {
                mistakes.push(format!(
                    "SANDBOX_OAUTH_{claim}: has no effect without SANDBOX_OAUTH_{values}"
                ));
            }
            if let Some(value) = given.iter().find(|value| has.is_none() && **value != ANY) {
                mistakes.push(format!(
                    "SANDBOX_OAUTH_{values}: has {}, and SANDBOX_OAUTH_{claim} names no claim",
                    quoted(value)
                ));
            }
        }
        for (_, policy) in &self.oauth_policies {
            if !self.callers.has_policy(policy) {
                mistakes
                    .push(format!("SANDBOX_OAUTH_POLICIES: there is no policy {}", quoted(policy)));
            }
        }
        let is_reserved = |caller: &&Principal| caller.name().starts_with(PREFIX);
        mistakes.extend(self.callers.with_tokens().find(is_reserved).map(|caller| {
            format!("SANDBOX_OAUTH_ISSUER: names that begin with {PREFIX} are those of its callers, and {caller} has a token")
        }));
        mistakes
    }
}

fn names<T>(values: &[(String, T)]) -> Vec<&str> {
    values.iter().map(|(value, _)| &**value).collect()
}

/// Whether a URL may be asked for keys: over TLS, or on this machine.
pub fn is_safe(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => IpAddr::from(ip).is_loopback(),
        Some(Host::Ipv6(ip)) => IpAddr::from(ip).is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback)
}

/// A URL that may be asked for keys, as it is written; `None` if it is empty.
pub(super) fn safe_url(row: &Row, value: &str) -> Result<Option<String>, Mistaken> {
    if value.is_empty() {
        return Ok(None);
    }
    if has_user(value) {
        return Err(vec![NO_USER.into()]);
    }
    let is_right = |url: &Url| {
        is_safe(url)
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    };
    match Url::parse(value) {
        Ok(url) if is_right(&url) => Ok(Some(value.to_owned())),
        _ => Err(vec![format!("{value:?} is not {}", row.form)]),
    }
}

/// Texts separated by commas.
#[expect(clippy::unnecessary_wraps, reason = "rows want it so")]
pub(super) fn items(_: &Row, value: &str) -> Result<Vec<String>, Mistaken> {
    Ok(split(value).map(str::to_owned).collect())
}

/// Scopes (RFC 6749), separated by commas.
pub(super) fn scopes(row: &Row, value: &str) -> Result<Vec<String>, Mistaken> {
    let scopes = items(row, value)?;
    let is_scope = |scope: &String| {
        scope.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
    };
    match scopes.iter().find(|scope| !is_scope(scope)) {
        Some(wrong) => Err(vec![format!("{wrong:?} is no scope")]),
        None => Ok(scopes),
    }
}

/// Pairs `value=policy`, or names of policies that are the values of the claim themselves.
pub(super) fn policies(_: &Row, value: &str) -> Result<Vec<(String, String)>, Mistaken> {
    pairs(value, "policy", |policy| Some(policy.to_owned()))
}

/// Pairs `value=role`, or names of roles that are the values of the claim themselves.
pub(super) fn roles(_: &Row, value: &str) -> Result<Vec<(String, Role)>, Mistaken> {
    let kind = "role: user, operator or auditor";
    pairs(value, kind, |name| Role::ALL.into_iter().find(|role| role.as_str() == name))
}

fn pairs<T>(
    value: &str,
    kind: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Vec<(String, T)>, Mistaken> {
    let (mut pairs, mut mistaken) = (vec![], vec![]);
    for item in split(value) {
        // A value may be a path or a URL with an equals sign, and no name here has one.
        let (value, name) = item.rsplit_once('=').unwrap_or((item, item));
        let (value, name) = (value.trim(), name.trim());
        match read(name).filter(|_| !value.is_empty() && !name.is_empty()) {
            Some(given) => pairs.push((value.to_owned(), given)),
            None => mistaken.push(format!("{item:?} names no {kind}")),
        }
    }
    if mistaken.is_empty() { Ok(pairs) } else { Err(mistaken) }
}

fn split(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &[(&str, &str)]) -> Result<Config, String> {
        let usual = [
            ("SANDBOX_TRANSPORT", "http"),
            ("SANDBOX_OAUTH_ISSUER", "https://login.example/realms/a/"),
            ("SANDBOX_PUBLIC_URL", "https://sandbox.example/"),
        ];
        let vars =
            usual.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::parse(vars).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn an_issuer_is_kept_to_the_letter_and_the_audience_is_the_own_url() {
        let oauth = config(&[]).expect("valid").oauth().expect("an issuer");
        assert_eq!(oauth.issuer, "https://login.example/realms/a/");
        assert_eq!(
            oauth.audiences,
            ["https://sandbox.example/mcp", "https://sandbox.example/mcp/"]
        );
        let other = config(&[("SANDBOX_OAUTH_AUDIENCE", "api://a, b")]).expect("valid");
        assert_eq!(other.oauth().expect("an issuer").audiences, ["api://a", "b"]);
        assert!(other.requires_auth());
        assert!(config(&[("SANDBOX_TRANSPORT", "stdio")]).expect("valid").oauth().is_none());
    }

    #[test]
    fn an_issuer_is_asked_over_tls_or_on_this_machine() {
        for safe in
            ["https://a.example", "http://127.0.0.1:80/x", "http://[::1]:1", "http://localhost"]
        {
            assert!(config(&[("SANDBOX_OAUTH_ISSUER", safe)]).is_ok(), "{safe}");
        }
        for wrong in [
            "http://a.example",
            "http://10.0.0.1",
            "http://localhost.example",
            "ftp://localhost",
            "https://a.example#b",
            "https://user@a.example",
            "a.example",
        ] {
            assert!(config(&[("SANDBOX_OAUTH_ISSUER", wrong)]).is_err(), "{wrong}");
            assert!(config(&[("SANDBOX_OAUTH_JWKS_URL", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_first_value_that_a_token_has_counts() {
        let settings = [
            ("SANDBOX_OAUTH_ROLE_CLAIM", "groups"),
            ("SANDBOX_OAUTH_ROLES", "cn=ops=operator, x=auditor, auditor"),
        ];
        let roles = config(&settings).expect("valid").oauth().expect("an issuer").roles;
        let of = |values: &[&str]| {
            roles.of(|claim, value| claim == "groups" && values.contains(&value)).copied()
        };
        assert_eq!(of(&["cn=ops"]), Some(Role::Operator));
        assert_eq!(of(&["x", "cn=ops"]), Some(Role::Operator));
        assert_eq!(of(&["auditor"]), Some(Role::Auditor));
        assert_eq!(of(&["x"]), Some(Role::Auditor));
        assert_eq!(of(&["operator", "user", "*"]), None);
    }

    #[test]
    fn settings_that_contradict_each_other_are_mistakes() {
        for (settings, mistake) in [
            (&[("SANDBOX_OAUTH_ROLES", "a=root")][..], "names no role"),
            (&[("SANDBOX_OAUTH_ROLES", "a=operator")], "SANDBOX_OAUTH_ROLE_CLAIM names no claim"),
            (&[("SANDBOX_OAUTH_ROLE_CLAIM", "groups")], "no effect without SANDBOX_OAUTH_ROLES"),
            (&[("SANDBOX_OAUTH_POLICIES", "*=gold")], "there is no policy"),
            (&[("SANDBOX_PUBLIC_URL", "")], "needs SANDBOX_PUBLIC_URL"),
            (
                &[("SANDBOX_OAUTH_ISSUER", ""), ("SANDBOX_OAUTH_SCOPES", "a")],
                "without SANDBOX_OAUTH_ISSUER",
            ),
            (&[("SANDBOX_AUTH_TOKENS", "oauth.ann:secret")], "oauth.ann has a token"),
        ] {
            let mistakes = config(settings).expect_err(mistake);
            assert!(mistakes.contains(mistake), "{mistakes}");
        }
    }
}
