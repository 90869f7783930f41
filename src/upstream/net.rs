//! The addresses that upstreams over HTTP may have, and the client for HTTP.
//!
//! An address is checked after its name is resolved, and the connection goes to the addresses that were checked. No
//! redirect is followed, so that no answer leads elsewhere, and no proxy is used, which would resolve names itself.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use config::upstreams::Hidden;
use reqwest::{
    dns::{Addrs, Name, Resolve, Resolving},
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use url::{Host, Url};

/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which an unused connection stays open.
const POOL_IDLE: Duration = Duration::from_secs(60);

/// The name under which services know this client.
const USER_AGENT: &str = concat!("llm-sandbox/", env!("CARGO_PKG_VERSION"));

/// An upstream that has only addresses that it may not have.
#[derive(Debug)]
struct Private;

impl fmt::Display for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "it has a private or local address, which the operator has not allowed (private: true)",
        )
    }
}

impl Error for Private {}

/// Resolves names to the addresses that may be reached.
#[derive(Debug)]
struct Resolver {
    private: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let private = self.private;
        Box::pin(async move {
            let all = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let all: Vec<SocketAddr> = all.collect();
            let reachable = |address: &SocketAddr| private || is_public(address.ip());
            let allowed: Vec<_> = all.into_iter().filter(reachable).collect();
            if allowed.is_empty() {
                return Err(Private.into());
            }
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

/// A client for requests to one host.
///
/// # Errors
/// If the host is an address that it may not be, or the client cannot be made.
pub(super) fn client(url: &Url, private: bool) -> Result<reqwest::Client, String> {
    // A host that is an address is not resolved.
    let address = match url.host() {
        Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
        Some(Host::Domain(_)) | None => None,
    };
    if !private && address.is_some_and(|address| !is_public(address)) {
        return Err(Private.to_string());
    }
    // The client comes without a provider of cryptography. An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
        .user_agent(USER_AGENT)
        .dns_resolver(Arc::new(Resolver { private }));
    client.build().map_err(|error| chain(&error))
}

/// The headers of the settings.
///
/// # Errors
/// If a value cannot be a header.
pub(super) fn headers(settings: &BTreeMap<String, Hidden>) -> Result<HeaderMap, String> {
    let header = |(name, value): (&String, &Hidden)| {
        let mut value = HeaderValue::from_str(value.reveal()).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    };
    let all = settings.iter().map(|entry| {
        header(entry).ok_or_else(|| format!("the header {} of the settings is invalid", entry.0))
    });
    all.collect()
}

/// An error with its causes, without the URL, which can have secrets.
pub(super) fn told(error: reqwest::Error) -> String {
    chain(&error.without_url())
}

/// An error with its causes.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut all = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !all.ends_with(&text) {
            all = format!("{all}: {text}");
        }
        source = cause.source();
    }
    all
}

/// Whether an address is one of the public Internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_for_protocols = (a, b, c) == (192, 0, 0);
    let is_for_benchmarks = a == 198 && (b == 18 || b == 19);
    !(a == 0
        || a >= 224
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || is_shared
        || is_for_protocols
        || is_for_benchmarks)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    let segments = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match (segments[0], segments[1]) {
        // Addresses of IPv4 behind a translator, and in 6to4.
        (0x64, 0xff9b) => segments[2..6] == [0; 4] && is_public_v4(v4(segments[6], segments[7])),
        (0x2002, _) => is_public_v4(v4(segments[1], segments[2])),
        // Teredo and others for protocols; documentation.
        (0x2001, 0..0x200 | 0xdb8) => false,
        // Only these are assigned: global unicast.
        (first, _) => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        let is = |text: &str| is_public(text.parse().expect("an address"));
        for public in
            ["1.1.1.1", "172.15.0.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::"]
        {
            assert!(is(public), "{public}");
        }
        for other in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "::127.0.0.1",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
