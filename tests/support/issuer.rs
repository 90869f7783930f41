//! An authorization server that serves its metadata and keys, and a hand that signs any token.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
        RSA_PSS_SHA256, RsaKeyPair,
    },
};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

/// A private key, with which only tests sign.
const RSA: &[u8] = include_bytes!("rsa.pk8");

/// A key pair of an issuer.
pub enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    /// The RSA key, which is always the same.
    pub fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::from_pkcs8(RSA).expect("a key"))
    }

    /// A new key for ES256.
    pub fn p256() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("made");
        Self::P256(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).expect("a key"))
    }

    /// A new key for EdDSA.
    pub fn ed25519() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("made");
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).expect("a key"))
    }

    /// The public key as a JSON Web Key of this name.
    pub fn jwk(&self, kid: &str) -> Value {
        let mut key = match self {
            Self::Rsa(key) => {
                let PublicKeyComponents::<Vec<u8>> { n, e } = key.public().into();
                json!({ "kty": "RSA", "n": encoded(&n), "e": encoded(&e) })
            }
            Self::P256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": encoded(x), "y": encoded(y) })
            }
            Self::Ed25519(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encoded(key.public_key().as_ref()) })
            }
        };
        key["kid"] = kid.into();
        key
    }

    /// A token with this header and these claims.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    /// Does the same with texts, which need not be what they should be.
    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encoded(header.as_bytes()), encoded(claims.as_bytes()));
        let (random, message) = (SystemRandom::new(), signed.as_bytes());
        let signature = match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                let padding: &dyn ring::signature::RsaEncoding =
                    if header.contains("PS256") { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                key.sign(padding, &random, message, &mut signature).expect("signed");
                signature
            }
            Self::P256(key) => key.sign(&random, message).expect("signed").as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(message).as_ref().to_vec(),
        };
        format!("{signed}.{}", encoded(&signature))
    }
}

/// Base64 as in tokens.
pub fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The time in seconds since 1970.
pub fn now() -> i64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(time.as_secs()).expect("small")
}

/// An answer of an issuer.
#[derive(Clone)]
pub enum Told {
    Json(Value),
    Redirect(String),
    Text(String),
}

#[derive(Default)]
struct Answers {
    by_path: Vec<(String, Told)>,
    asked: Vec<String>,
}

/// An authorization server on this machine.
pub struct Issuer {
    /// Its name in tokens.
    pub url: String,
    address: SocketAddr,
    answers: Arc<Mutex<Answers>>,
    serving: Option<AbortOnDropHandle<()>>,
    /// The key of [`Self::token`].
    pub signer: Signer,
}

impl Issuer {
    /// Starts an issuer that has one key, `first`, for ES256.
    pub async fn start() -> Self {
        let mut issuer = Self::absent("");
        issuer.up().await;
        issuer
    }

    /// An issuer that does not answer yet; the path of its name begins with a slash, or is empty.
    pub fn absent(path: &str) -> Self {
        let address: SocketAddr =
            format!("127.0.0.1:{}", super::free_port()).parse().expect("an address");
        let (url, signer) = (format!("http://{address}{path}"), Signer::p256());
        let issuer = Self { url, address, answers: Arc::default(), serving: None, signer };
        let metadata = format!("/.well-known/oauth-authorization-server{path}");
        let keys = format!("http://{address}/keys");
        issuer.tell(&metadata, Told::Json(json!({ "issuer": issuer.url, "jwks_uri": keys })));
        issuer.keys(&[issuer.signer.jwk("first")]);
        issuer
    }

    /// Answers from now on.
    pub async fn up(&mut self) {
        let listener = tokio::net::TcpListener::bind(self.address).await.expect("a free port");
        let router = Router::new().fallback(answer).with_state(self.answers.clone());
        let serving =
            tokio::spawn(async move { axum::serve(listener, router).await.expect("serves") });
        self.serving = Some(AbortOnDropHandle::new(serving));
    }

    /// Answers no more.
    pub async fn down(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    /// Replaces the answer at a path.
    pub fn tell(&self, path: &str, told: Told) {
        let mut answers = self.answers.lock().expect("not poisoned");
        answers.by_path.retain(|(known, _)| known != path);
        answers.by_path.push((path.to_owned(), told));
    }

    /// Removes the answer at a path.
    pub fn forget(&self, path: &str) {
        self.answers.lock().expect("not poisoned").by_path.retain(|(known, _)| known != path);
    }

    /// Replaces the keys.
    pub fn keys(&self, keys: &[Value]) {
        self.tell("/keys", Told::Json(json!({ "keys": keys })));
    }

    /// How often a path was asked for.
    pub fn asked(&self, path: &str) -> usize {
        let answers = self.answers.lock().expect("not poisoned");
        answers.asked.iter().filter(|asked| *asked == path).count()
    }

    /// Valid claims for a server with this audience.
    pub fn claims(&self, audience: &str, subject: &str) -> Value {
        json!({
            "iss": self.url, "aud": audience, "sub": subject, "client_id": "tests",
            "iat": now(), "exp": now() + 600,
        })
    }

    /// A token with these claims, signed with the first key.
    pub fn token(&self, claims: &Value) -> String {
        self.signer.sign(&json!({ "alg": "ES256", "typ": "at+jwt", "kid": "first" }), claims)
    }
}

async fn answer(State(answers): State<Arc<Mutex<Answers>>>, uri: Uri) -> Response {
    let mut answers = answers.lock().expect("not poisoned");
    answers.asked.push(uri.path().to_owned());
    match answers.by_path.iter().find(|(path, _)| path == uri.path()).map(|(_, told)| told.clone())
    {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Told::Json(value)) => value.to_string().into_response(),
        Some(Told::Text(text)) => text.into_response(),
        Some(Told::Redirect(to)) => (StatusCode::FOUND, [("location", to)]).into_response(),
    }
}
