//! Checks which host names a request may be for, and which sites' pages may call the server.
//!
//! A page on the web can point its own host name at this machine (DNS rebinding) and then read the answers as
//! if they were its own. The browser still sends that name as the `Host`, so requests with a foreign name are
//! refused. An address is not a name, so it cannot be pointed elsewhere.
//!
//! A page can also send requests to other servers, and browsers say which site it is from (`Origin`). Only
//! our own pages may, and those of the sites in the settings. Images, scripts and similar that a page embeds
//! come without an `Origin`; for them browsers say whether page and server belong to one site
//! (`Sec-Fetch-Site`). Only signed URLs may be embedded elsewhere.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Request, Uri, header, uri::Authority};
use config::Config;
use url::Url;

use crate::signed_urls::session_and_signature;

/// The names and addresses that a request may be for.
#[derive(Debug)]
pub(super) struct Hosts {
    bound: IpAddr,
    /// In lower case, without a trailing dot.
    names: Vec<String>,
    /// Origins other than the request's own host.
    origins: Vec<String>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request names no host, or more than one.
    Unclear,
    /// The request is for another host.
    Another,
    /// The request comes from a page of another site.
    Foreign,
}

impl Hosts {
    /// The names of a server that is bound to this address.
    pub(super) fn new(config: &Config, bound: IpAddr) -> Self {
        let public = config.public_url.as_ref().and_then(|url| Url::parse(url).ok());
        let public_name = public.as_ref().and_then(Url::host_str).map(normal);
        let listed = config.allowed_hosts.iter().map(|host| normal(host));
        let names = listed.chain(public_name).chain(["localhost".to_owned()]).collect();
        let public_origin = public.map(|url| url.origin().ascii_serialization());
        let origins = config.allowed_origins.iter().cloned().chain(public_origin).collect();
        Self { bound: bound.to_canonical(), names, origins }
    }

    /// Checks the host that a request is for, and the site that it comes from; returns the host. The host's
    /// port is ignored: in an attack by DNS rebinding it is the right one.
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<Authority, Refusal> {
        let authority = wanted(request).ok_or(Refusal::Unclear)?;
        if !self.allows(authority.host()) {
            return Err(Refusal::Another);
        }
        if is_embedded_elsewhere(request.headers()) && !is_signed(request.uri()) {
            return Err(Refusal::Foreign);
        }
        let mut origins = request.headers().get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(authority),
            (Some(origin), None) if self.is_of_ours(origin, &authority) => Ok(authority),
            _ => Err(Refusal::Foreign),
        }
    }

    fn is_of_ours(&self, origin: &HeaderValue, authority: &Authority) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let own = ["http", "https"].map(|scheme| Url::parse(&format!("{scheme}://{authority}")));
        let own = own.into_iter().flatten().map(|url| url.origin().ascii_serialization());
        is_listed(&self.origins, origin) || own.into_iter().any(|own| own == origin)
    }

    fn allows(&self, host: &str) -> bool {
        let host = normal(host);
        let literal = host.parse::<IpAddr>().is_ok_and(|address| {
            let address = address.to_canonical();
            address.is_loopback() || address == self.bound || self.bound.is_unspecified()
        });
        literal || self.names.contains(&host)
    }
}

/// Whether an origin is in a list; an entry may allow any port (`http://localhost:*`).
pub(super) fn is_listed(listed: &[String], origin: &str) -> bool {
    listed.iter().any(|listed| match listed.strip_suffix(":*") {
        None => listed == origin,
        Some(site) => origin.strip_prefix(site).is_some_and(|rest| match rest.strip_prefix(':') {
            None => rest.is_empty(),
            Some(port) => port.parse::<u16>().is_ok_and(|number| number.to_string() == port),
        }),
    })
}

/// Whether a URL has a signature, good or not.
pub(super) fn is_signed(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    let session = uri.path().strip_prefix("/files/").and_then(|path| path.split('/').next());
    session.is_some_and(|session| session_and_signature(session).1.is_some())
        || form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "signature")
}

/// Whether a page of another origin embeds the answer, without reading it.
fn is_embedded_elsewhere(headers: &HeaderMap) -> bool {
    let says = |name: &str, what: &str| headers.get(name).is_some_and(|value| value == what);
    says("sec-fetch-mode", "no-cors")
        && (says("sec-fetch-site", "cross-site") || says("sec-fetch-site", "same-site"))
}

/// The host that the request names: in its target (which has priority, RFC 9112 section 3.2.2) or its `Host`.
pub(super) fn wanted<B>(request: &Request<B>) -> Option<Authority> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let authority = match (request.uri().authority(), hosts.next(), hosts.next()) {
        (Some(authority), _, None) => authority.clone(),
        (None, Some(host), None) => Authority::try_from(host.as_bytes()).ok()?,
        _ => return None,
    };
    (!authority.as_str().contains('@')).then_some(authority)
}

/// The normal form of a name or address.
fn normal(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn hosts(bound: impl Into<IpAddr>) -> Hosts {
        let config = Config {
            public_url: Some("https://Files.example.org:8443/sandbox".into()),
            allowed_hosts: vec!["sandbox.internal".into(), "203.0.113.7".into(), "::2".into()],
            allowed_origins: vec![
                "https://app.example.org".into(),
                "http://dev.example.org:*".into(),
                "http://[::1]:*".into(),
            ],
            ..Config::default()
        };
        Hosts::new(&config, bound.into())
    }

    fn check(hosts: &Hosts, host: &str) -> Result<(), Refusal> {
        let request = Request::builder().uri("/a").header("host", host).body(()).expect("valid");
        hosts.check(&request).map(drop)
    }

    #[test]
    fn a_server_goes_by_its_own_names_and_no_others() {
        let hosts = hosts(Ipv4Addr::new(192, 0, 2, 1));
        for own in [
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "192.0.2.1:1",
            "files.example.org",
            "FILES.EXAMPLE.ORG.:8443",
            "sandbox.internal",
            "203.0.113.7",
            "[::2]:80",
        ] {
            assert_eq!(check(&hosts, own), Ok(()), "{own}");
        }
        for other in [
            "example.org",
            "evil.files.example.org",
            "files.example.org.evil.test",
            "localhost.evil.test",
            "127.0.0.1.evil.test",
            "192.0.2.2",
            "[::3]",
            "0.0.0.0",
        ] {
            assert_eq!(check(&hosts, other), Err(Refusal::Another), "{other}");
        }
    }

    #[test]
    fn a_server_on_all_addresses_goes_by_any_address() {
        for bound in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            let hosts = hosts(bound);
            for own in ["198.51.100.4:8080", "[2001:db8::1]", "0.0.0.0", "localhost"] {
                assert_eq!(check(&hosts, own), Ok(()), "{own}");
            }
            assert_eq!(check(&hosts, "evil.test"), Err(Refusal::Another));
            assert_eq!(check(&hosts, "198.51.100.4.evil.test"), Err(Refusal::Another));
        }
    }

    #[test]
    fn a_request_says_once_what_host_it_is_for() {
        let hosts = hosts(Ipv4Addr::LOCALHOST);
        for unclear in ["", "user@localhost", "local host", "localhost/", "localhost,evil.test"] {
            let refused = check(&hosts, unclear);
            assert!(refused.is_err(), "{unclear}");
        }
        let request = |uri: &str, own: &[&str]| {
            let mut request = Request::builder().uri(uri);
            for host in own {
                request = request.header("host", *host);
            }
            hosts.check(&request.body(()).expect("valid")).map(drop)
        };
        assert_eq!(request("/a", &[]), Err(Refusal::Unclear));
        assert_eq!(request("/a", &["localhost", "localhost"]), Err(Refusal::Unclear));
        assert_eq!(request("http://localhost/a", &["evil.test"]), Ok(()));
        assert_eq!(request("http://evil.test/a", &["localhost"]), Err(Refusal::Another));
    }

    #[test]
    fn only_signed_urls_are_embedded_in_pages_of_others() {
        let hosts = hosts(Ipv4Addr::LOCALHOST);
        let check = |uri: &str, mode: &str, site: &str| {
            let request = Request::builder().uri(uri).header("host", "localhost");
            let request = request.header("sec-fetch-mode", mode).header("sec-fetch-site", site);
            hosts.check(&request.body(()).expect("valid")).map(drop)
        };
        let plain = "/files/s/a.png";
        let signed = ["/files/s/a.png?signature=ab", "/files/s~ab/a.png"];
        for site in ["cross-site", "same-site"] {
            for plain in [plain, "/files/s/a~b.png", "/sessions/s~ab"] {
                assert_eq!(check(plain, "no-cors", site), Err(Refusal::Foreign), "{site}");
            }
            for signed in signed {
                assert_eq!(check(signed, "no-cors", site), Ok(()), "{site}");
            }
            assert_eq!(check(plain, "navigate", site), Ok(()), "a link that was followed");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(check(plain, "no-cors", site), Ok(()), "{site}");
        }
    }

    #[test]
    fn only_our_own_pages_and_those_of_named_sites_may_talk_to_it() {
        let hosts = hosts(Ipv4Addr::LOCALHOST);
        let check = |host: &str, origins: &[&str]| {
            let mut request = Request::builder().uri("/a").header("host", host);
            for origin in origins {
                request = request.header("origin", *origin);
            }
            hosts.check(&request.body(()).expect("valid")).map(drop)
        };
        for (host, origin) in [
            ("localhost:8080", "http://localhost:8080"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("[::1]:8080", "http://[::1]:8080"),
            ("localhost", "http://localhost"),
            ("files.example.org", "https://files.example.org:8443"),
            ("localhost:8080", "https://app.example.org"),
            ("localhost:8080", "http://dev.example.org"),
            ("localhost:8080", "http://dev.example.org:3000"),
            ("localhost:8080", "http://[::1]:5173"),
        ] {
            assert_eq!(check(host, &[origin]), Ok(()), "{origin} at {host}");
        }
        for origin in [
            "http://localhost:3000",
            "http://localhost",
            "http://evil.test",
            "https://app.example.org:444",
            "https://app.example.org.evil.test",
            "https://dev.example.org:3000",
            "http://dev.example.org.evil.test",
            "http://dev.example.org:",
            "http://dev.example.org:1@evil.test",
            "http://dev.example.org:03000",
            "http://dev.example.org:*",
            "http://a.dev.example.org:3000",
            "null",
            "",
            "localhost:8080",
        ] {
            assert_eq!(check("localhost:8080", &[origin]), Err(Refusal::Foreign), "{origin}");
        }
        let twice = ["http://localhost:8080", "http://evil.test"];
        assert_eq!(check("localhost:8080", &twice), Err(Refusal::Foreign));
        assert_eq!(check("evil.test", &["http://evil.test"]), Err(Refusal::Another));
    }
}
