//! Asks an authorization server for its keys, and the only place here with a client for HTTP.
//!
//! The keys' URL is in the server's metadata, at one of three places (RFC 8414, OpenID Connect Discovery), unless the
//! settings have it. Redirects are not followed, and answers are limited in size and time.

use config::OAuth;

use super::keys::Key;

#[cfg(feature = "oauth")]
pub(super) use self::client::fetch;

/// Fetches the keys.
///
/// # Errors
/// Always: this program cannot.
#[cfg(not(feature = "oauth"))]
#[expect(clippy::unused_async, reason = "as the other")]
pub(super) async fn fetch(_: &OAuth) -> Result<Vec<Key>, String> {
    Err("this program was built without OAuth".into())
}

#[cfg(feature = "oauth")]
mod client {
    use std::{error::Error, fs, time::Duration};

    use config::oauth::is_safe;
    use reqwest::{Certificate, Client, redirect::Policy};
    use serde_json::Value;
    use tokio::time::timeout;
    use url::Url;

    use super::{Key, OAuth};

    /// Time limit for a connection, and for everything.
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Maximum size of an answer in bytes.
    const MAX_BYTES: usize = 512 << 10;

    /// Fetches the keys.
    ///
    /// # Errors
    /// If there is no valid answer in time; the message is for the log.
    pub(in super::super) async fn fetch(settings: &OAuth) -> Result<Vec<Key>, String> {
        let fetching = async {
            let url = match &settings.jwks_url {
                Some(url) => url.clone(),
                None => keys_url(settings).await?,
            };
            let set = get(settings, &url).await?;
            let keys = Key::all_in(&set).filter(|keys| !keys.is_empty());
            keys.ok_or_else(|| format!("{url}: has no key for RS256, PS256, ES256 or EdDSA"))
        };
        timeout(TIMEOUT, fetching)
            .await
            .unwrap_or_else(|_| Err("there is no answer in time".into()))
    }

    /// A new client each time: certificates may have changed, and connections are not needed for long.
    fn client(settings: &OAuth, url: &Url) -> Result<Client, String> {
        // The client comes without a provider of cryptography. An error means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT);
        if url.scheme() == "http" {
            // It is on this machine. A proxy would be asked in plain text, and could answer with keys of its own.
            client = client.no_proxy();
        }
        if let Some(path) = &settings.ca_file {
            let shown = path.display();
            let pem = fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
            let certificates = Certificate::from_pem_bundle(&pem);
            let certificates =
                certificates.map_err(|error| format!("{shown}: {}", chain(&error)))?;
            client = client.tls_certs_merge(certificates);
        }
        client.build().map_err(|error| chain(&error))
    }

    /// The URL of the keys, by the metadata of the issuer.
    async fn keys_url(settings: &OAuth) -> Result<String, String> {
        let mut failed = vec![];
        for place in places(&settings.issuer) {
            match get(settings, &place).await {
                Ok(metadata) if metadata["issuer"] != *settings.issuer => {
                    failed.push(format!("{place}: is of another issuer"));
                }
                Ok(metadata) => match metadata["jwks_uri"].as_str() {
                    Some(url) => return Ok(url.to_owned()),
                    None => failed.push(format!("{place}: has no jwks_uri")),
                },
                Err(why) => failed.push(why),
            }
        }
        Err(failed.join("; "))
    }

    /// The places of an issuer's metadata.
    fn places(issuer: &str) -> Vec<String> {
        let issuer = issuer.trim_end_matches('/');
        let start = issuer.find("://").map_or(0, |at| at + 3);
        let end = issuer[start..].find('/').map_or(issuer.len(), |at| start + at);
        let (origin, path) = issuer.split_at(end);
        let mut places = vec![
            format!("{origin}/.well-known/oauth-authorization-server{path}"),
            format!("{origin}/.well-known/openid-configuration{path}"),
            format!("{issuer}/.well-known/openid-configuration"),
        ];
        places.dedup();
        places
    }

    async fn get(settings: &OAuth, url: &str) -> Result<Value, String> {
        let told = |why: String| format!("{url}: {why}");
        let safe = Url::parse(url).ok().filter(is_safe);
        let safe =
            safe.ok_or_else(|| told("is neither an https URL nor one of this machine".into()))?;
        let request = client(settings, &safe)?.get(safe).header("Accept", "application/json");
        let mut answer = request.send().await.map_err(|error| told(chain(&error.without_url())))?;
        if answer.status() != 200 {
            return Err(told(format!("answers {}", answer.status().as_u16())));
        }
        let mut body = vec![];
        while let Some(piece) =
            answer.chunk().await.map_err(|error| told(chain(&error.without_url())))?
        {
            if body.len() + piece.len() > MAX_BYTES {
                return Err(told("the answer is too long".into()));
            }
            body.extend_from_slice(&piece);
        }
        serde_json::from_slice(&body).map_err(|_| told("the answer is not JSON".into()))
    }

    /// An error with its causes.
    fn chain(error: &(dyn Error + 'static)) -> String {
        let causes = std::iter::successors(Some(error), |&error| error.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn metadata_is_looked_for_where_the_standards_say() {
            assert_eq!(
                places("https://a.example/"),
                [
                    "https://a.example/.well-known/oauth-authorization-server",
                    "https://a.example/.well-known/openid-configuration",
                ]
            );
            assert_eq!(
                places("https://a.example:8443/realms/b"),
                [
                    "https://a.example:8443/.well-known/oauth-authorization-server/realms/b",
                    "https://a.example:8443/.well-known/openid-configuration/realms/b",
                    "https://a.example:8443/realms/b/.well-known/openid-configuration",
                ]
            );
        }
    }
}
