//! Access tokens of an authorization server: which are accepted, whom they name, and what happens if the authorization
//! server changes its keys or does not answer.

use std::{
    fs::{self, File},
    process::Stdio,
};

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use support::{
    On, Response, free_port, http, http_with,
    issuer::{Issuer, Signer, Told, encoded, now},
    name, program, text, until,
    web::*,
};

use crate::auth::refusal;

/// The public URL of the servers here, and what tokens for them are for.
const URL: &str = "https://sandbox.test";
const AUDIENCE: &str = "https://sandbox.test/mcp";

const METADATA: &str = "/.well-known/oauth-protected-resource";

/// A server that accepts the tokens of an issuer, besides one token of its own.
async fn start(issuer: &Issuer, more: &[(&str, &str)]) -> Web {
    let settings = [
        ("SANDBOX_OAUTH_ISSUER", &*issuer.url),
        ("SANDBOX_PUBLIC_URL", URL),
        ("SANDBOX_AUTH_TOKENS", "ann:secret-ann"),
        ("SANDBOX_PRELOAD", "none"),
    ];
    Web::start(On::Local, &[&settings, more].concat()).await
}

fn bearer(web: &Web, issuer: &Issuer, subject: &str) -> Caller {
    web.caller(Some(&issuer.token(&issuer.claims(AUDIENCE, subject))))
}

/// Valid claims with others; null removes one.
fn claims(issuer: &Issuer, changed: &Value) -> Value {
    let mut claims = issuer.claims(AUDIENCE, "ann");
    for (name, value) in changed.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    claims
}

async fn sessions(web: &Web, token: &str) -> Response {
    web.caller(Some(token)).send("GET", "/sessions", &[], &[]).await
}

/// Checks that a token is refused as invalid, for a reason with these words.
async fn is_invalid(web: &Web, token: &str, why: &str) {
    let answer = sessions(web, token).await;
    assert_eq!(refusal(&answer), (401, "unauthorized".into()), "{why}");
    let challenge = answer.header("www-authenticate");
    assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
    assert!(challenge.contains("error_description=\"The access token "), "{challenge}");
    assert!(challenge.contains(why), "{why}: {challenge}");
    assert!(text(&answer.json()["message"]).contains(why), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_access_token_and_a_token_of_the_server_open_it_for_both_generations_of_clients() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[]).await;
    let run = json!({ "code": "print(6 * 7)" });
    for caller in [bearer(&web, &issuer, "ann"), web.caller(Some("secret-ann"))] {
        assert_eq!(caller.call("run_python", run.clone()).await.ok()["stdout"], "42\n");
        let session = caller.open().await;
        assert_eq!(session.call("run_python", run.clone()).await.ok()["stdout"], "42\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_token_is_told_where_to_get_one() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[("SANDBOX_OAUTH_SCOPES", "sandbox.use,sandbox.read")]).await;
    let nobody = web.caller(None);
    let metadata = format!("{URL}{METADATA}/mcp");
    for (method, path) in [("POST", "/mcp"), ("GET", "/sessions"), ("GET", "/files/none/none")] {
        let answer = nobody.send(method, path, &[], &[]).await;
        assert_eq!(refusal(&answer), (401, "unauthorized".into()), "{path}");
        assert_eq!(
            answer.header("www-authenticate"),
            format!(
                "Bearer realm=\"llm-sandbox\", resource_metadata=\"{metadata}\", \
                 scope=\"sandbox.use sandbox.read\""
            )
        );
    }
    for path in ["", "/mcp", "/mcp/"] {
        let answer = nobody.send("GET", &format!("{METADATA}{path}"), &[], &[]).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
        assert_eq!(
            answer.json(),
            json!({
                "resource": AUDIENCE,
                "resource_name": "llm-sandbox",
                "authorization_servers": [issuer.url],
                "bearer_methods_supported": ["header"],
                "scopes_supported": ["sandbox.use", "sandbox.read"],
            })
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_public_url_names_the_one_that_its_client_used() {
    let issuer = Issuer::start().await;
    let settings = [("SANDBOX_PUBLIC_URL", ""), ("SANDBOX_OAUTH_AUDIENCE", "api://sandbox,other")];
    let web = start(&issuer, &settings).await;
    let metadata = http("GET", &format!("{}{METADATA}", web.base)).await.json();
    assert_eq!(metadata["resource"], format!("{}/mcp", web.base));
    let challenge = web.caller(None).send("POST", "/mcp", &[], &[]).await;
    let named = format!("resource_metadata=\"{}{METADATA}/mcp\"", web.base);
    assert!(challenge.header("www-authenticate").ends_with(&named));
    for (audience, status) in
        [("api://sandbox", 200), ("other", 200), (&format!("{}/mcp", web.base), 401)]
    {
        let token = issuer.token(&issuer.claims(audience, "ann"));
        assert_eq!(sessions(&web, &token).await.status, status, "{audience}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_an_authorization_server_names_none() {
    let (web, alice, _) = Web::of_two(On::Local, &[]).await;
    assert_eq!(alice.send("GET", METADATA, &[], &[]).await.status, 404);
    let refused = web.caller(Some("a.b.c")).send("GET", "/sessions", &[], &[]).await;
    assert_eq!(
        refused.header("www-authenticate"),
        "Bearer realm=\"llm-sandbox\", error=\"invalid_token\""
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_a_valid_token_is_accepted() {
    let issuer = Issuer::start().await;
    let (rsa, ed, other) = (Signer::rsa(), Signer::ed25519(), Signer::p256());
    let with = |mut key: Value, more: &[(&str, Value)]| {
        for (name, value) in more {
            key[*name] = value.clone();
        }
        key
    };
    issuer.keys(&[
        json!({ "kty": "unknown", "kid": "first" }),
        json!("no key"),
        with(issuer.signer.jwk("first"), &[("alg", json!("ES256")), ("use", json!("sig"))]),
        with(rsa.jwk("rsa"), &[("key_ops", json!(["verify"]))]),
        ed.jwk("ed"),
        // The key that signed the token counts, of two with one name.
        other.jwk("ed"),
    ]);
    let web = start(&issuer, &[]).await;
    let usual = issuer.claims(AUDIENCE, "ann");
    for (signer, alg, kid) in [
        (&rsa, "RS256", "rsa"),
        (&rsa, "PS256", "rsa"),
        (&ed, "EdDSA", "ed"),
        (&ed, "Ed25519", "ed"),
        (&other, "ES256", "ed"),
    ] {
        let token = signer.sign(&json!({ "alg": alg, "kid": kid }), &usual);
        assert_eq!(sessions(&web, &token).await.status, 200, "{alg}");
    }
    for typ in ["at+jwt", "AT+JWT", "application/at+jwt", "JWT", "jwt"] {
        let header =
            json!({ "alg": "ES256", "typ": typ, "kid": "first", "jku": "http://127.0.0.1:9/" });
        assert_eq!(sessions(&web, &issuer.signer.sign(&header, &usual)).await.status, 200, "{typ}");
    }
    for more in [
        json!({ "aud": format!("{AUDIENCE}/") }),
        json!({ "aud": ["https://other.test", AUDIENCE] }),
        // The clocks may differ by half a minute.
        json!({ "exp": now() - 10 }),
        json!({ "exp": 4_102_444_800.5 }),
        json!({ "nbf": now() + 10 }),
        json!({ "iat": null, "nonce": "n", "scope": "openid" }),
    ] {
        let token = issuer.token(&claims(&issuer, &more));
        assert_eq!(sessions(&web, &token).await.status, 200, "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_wrong_claims_is_refused_and_the_answer_says_why() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[]).await;
    for (changed, why) in [
        (json!({ "iss": format!("{}/", issuer.url) }), "another issuer"),
        (json!({ "iss": null }), "another issuer"),
        (json!({ "iss": [issuer.url] }), "another issuer"),
        (json!({ "aud": "https://other.test/mcp" }), "for another server"),
        (json!({ "aud": URL }), "for another server"),
        (json!({ "aud": format!("{AUDIENCE}/x") }), "for another server"),
        (json!({ "aud": "https://SANDBOX.test/mcp" }), "for another server"),
        (json!({ "aud": format!("https://other.test {AUDIENCE}") }), "for another server"),
        (json!({ "aud": { "a": AUDIENCE } }), "for another server"),
        (json!({ "aud": [] }), "for another server"),
        (json!({ "aud": null }), "for another server"),
        (json!({ "exp": now() - 40 }), "expired"),
        (json!({ "exp": null }), "no time of expiry"),
        (json!({ "exp": (now() + 600).to_string() }), "a time that is no number"),
        (json!({ "nbf": now() + 300 }), "not valid yet"),
        (json!({ "nbf": "later" }), "a time that is no number"),
        (json!({ "sub": null }), "does not name its caller"),
        (json!({ "sub": "" }), "does not name its caller"),
        (json!({ "sub": 7 }), "does not name its caller"),
        (json!({ "at_hash": "x" }), "ID token"),
        (json!({ "events": {} }), "ID token"),
        (json!({ "cnf": { "jkt": "x" } }), "bound to a key"),
    ] {
        is_invalid(&web, &issuer.token(&claims(&issuer, &changed)), why).await;
    }
    // Tokens of the general type can be told from ID tokens by their claims alone.
    for changed in [json!({ "nonce": "n" }), json!({ "typ": "ID" }), json!({ "token_use": "id" })] {
        let header = json!({ "alg": "ES256", "typ": "JWT", "kid": "first" });
        let token = issuer.signer.sign(&header, &claims(&issuer, &changed));
        is_invalid(&web, &token, "ID token").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_the_issuer_has_not_signed_for_its_header_is_refused() {
    let issuer = Issuer::start().await;
    let (rsa, ed, stranger) = (Signer::rsa(), Signer::ed25519(), Signer::p256());
    let mut only_pss = rsa.jwk("pss");
    only_pss["alg"] = "PS256".into();
    let mut for_encryption = ed.jwk("enc");
    for_encryption["use"] = "enc".into();
    let secret = json!({ "kty": "oct", "kid": "secret", "k": encoded(b"secret"), "alg": "HS256" });
    let keys = [issuer.signer.jwk("first"), rsa.jwk("rsa"), only_pss, for_encryption, secret];
    issuer.keys(&keys);
    let web = start(&issuer, &[]).await;
    let good = issuer.claims(AUDIENCE, "ann");
    let header = |alg: &str, kid: &str| json!({ "alg": alg, "typ": "at+jwt", "kid": kid });
    let first = |more: Value| {
        let mut header = header("ES256", "first");
        let more = more.as_object().expect("an object").clone();
        header.as_object_mut().expect("an object").extend(more);
        header
    };

    let invalid = "invalid signature";
    is_invalid(&web, &stranger.sign(&header("ES256", "first"), &good), invalid).await;
    let embedded = json!({ "jwk": stranger.jwk("first"), "jku": format!("{}/other", issuer.url) });
    issuer.tell("/other", Told::Json(json!({ "keys": [stranger.jwk("first")] })));
    is_invalid(&web, &stranger.sign(&first(embedded), &good), invalid).await;
    assert_eq!(issuer.asked("/other"), 0);
    let (valid, other) = (issuer.token(&good), issuer.token(&issuer.claims(AUDIENCE, "ben")));
    let parts: Vec<_> = valid.split('.').collect();
    let of_other: Vec<_> = other.split('.').collect();
    is_invalid(&web, &[parts[0], of_other[1], parts[2]].join("."), invalid).await;
    is_invalid(&web, &[parts[0], parts[1], ""].join("."), invalid).await;
    is_invalid(&web, &[parts[0], parts[1], "AAAA"].join("."), invalid).await;

    let unknown = "names a key that the issuer does not publish";
    is_invalid(&web, &rsa.sign(&header("RS256", "pss"), &good), unknown).await;
    is_invalid(&web, &issuer.signer.sign(&header("RS256", "first"), &good), unknown).await;
    is_invalid(&web, &ed.sign(&header("EdDSA", "enc"), &good), unknown).await;
    is_invalid(&web, &stranger.sign(&header("ES256", "third"), &good), unknown).await;
    let unnamed = issuer.signer.sign(&json!({ "alg": "ES256", "typ": "at+jwt" }), &good);
    is_invalid(&web, &unnamed, "does not name its key").await;

    // No algorithm that needs no secret of the issuer's, whatever is taken for the key.
    let algorithm = "not signed with one of";
    for alg in ["none", "None", "RS384", "ES384", "", "HS256"] {
        let unsigned = issuer.signer.sign(&header(alg, "first"), &good);
        is_invalid(&web, &unsigned, algorithm).await;
        let (signed, _) = unsigned.rsplit_once('.').expect("parts");
        is_invalid(&web, &format!("{signed}."), algorithm).await;
    }
    let public = rsa.jwk("rsa");
    for secret in [public["n"].to_string(), public.to_string(), "secret".into(), String::new()] {
        let text = format!(
            "{}.{}",
            encoded(header("HS256", "rsa").to_string().as_bytes()),
            encoded(good.to_string().as_bytes())
        );
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
        mac.update(text.as_bytes());
        let token = format!("{text}.{}", encoded(&mac.finalize().into_bytes()));
        is_invalid(&web, &token, algorithm).await;
    }

    let critical = first(json!({ "crit": ["exp"], "exp": now() + 600 }));
    is_invalid(&web, &issuer.signer.sign(&critical, &good), "critical").await;
    for typ in [json!("id+jwt"), json!("secevent+jwt"), json!("logout+jwt"), json!(1), json!("")] {
        let other = first(json!({ "typ": typ }));
        is_invalid(&web, &issuer.signer.sign(&other, &good), "a type that is neither").await;
    }

    // Two values of one name, of which programs take one or the other.
    let own = header("ES256", "first").to_string();
    let twice = |object: &Value, more: &str| {
        let object = object.to_string();
        format!("{},{more}}}", object.strip_suffix('}').expect("an object"))
    };
    let token = issuer.signer.sign_text(&own, &twice(&good, "\"sub\":\"root\""));
    is_invalid(&web, &token, "claims that are not a JSON object").await;
    let neither = "neither one of this server's tokens nor a JSON Web Token";
    let token =
        issuer.signer.sign_text(&twice(&header("ES256", "first"), "\"alg\":\"none\""), "{}");
    is_invalid(&web, &token, neither).await;
    for token in
        ["opaque", "a.b", "a.b.c", "..", "a.b.c.d.e", &format!("{valid}."), &format!("{valid}=")]
    {
        is_invalid(&web, token, neither).await;
    }
    for claims in ["[]", "null", "{", ""] {
        let token = issuer.signer.sign_text(&own, claims);
        is_invalid(&web, &token, "claims that are not a JSON object").await;
    }
    let long = claims(&issuer, &json!({ "long": "x".repeat(9500) }));
    is_invalid(&web, &issuer.token(&long), "longer than 12 KiB").await;
    assert_eq!(sessions(&web, &valid).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_counts_in_one_authorization_header_and_nowhere_else() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[]).await;
    let token = issuer.token(&issuer.claims(AUDIENCE, "ann"));
    for query in [format!("access_token={token}"), format!("token={token}")] {
        for path in ["/sessions", "/mcp", "/files/none/none"] {
            assert_eq!(http("GET", &format!("{}{path}?{query}", web.base)).await.status, 401);
        }
    }
    let form = format!("access_token={token}");
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    let answer = http_with("POST", &format!("{}/mcp", web.base), &headers, form.as_bytes()).await;
    assert_eq!(answer.status, 401);
    let good = format!("Bearer {token}");
    for other in ["Bearer other", "Basic YTpi", &*good] {
        let two = [("Authorization", &*good), ("Authorization", other)];
        let answer = http_with("GET", &format!("{}/sessions", web.base), &two, &[]).await;
        assert_eq!(answer.status, 401, "{other}");
    }
    for scheme in ["DPoP", "Basic", "Token"] {
        let one = [("Authorization", &*format!("{scheme} {token}"))];
        assert_eq!(
            http_with("GET", &format!("{}/sessions", web.base), &one, &[]).await.status,
            401
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_keys_are_found_while_the_server_runs_and_strangers_do_not_make_it_ask_often() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[]).await;
    let old = issuer.token(&issuer.claims(AUDIENCE, "ann"));
    assert_eq!(sessions(&web, &old).await.status, 200);
    let next = Signer::ed25519();
    let new =
        next.sign(&json!({ "alg": "EdDSA", "kid": "second" }), &issuer.claims(AUDIENCE, "ann"));
    is_invalid(&web, &new, "names a key that the issuer does not publish").await;
    issuer.keys(&[issuer.signer.jwk("first"), next.jwk("second")]);
    assert_eq!(sessions(&web, &new).await.status, 200);
    assert_eq!(sessions(&web, &old).await.status, 200);
    // A key that is withdrawn is known until keys are fetched again, and so are the tokens that it has signed.
    issuer.keys(&[next.jwk("second")]);
    let before = issuer.asked("/keys");
    for n in 0..40 {
        let header = json!({ "alg": "EdDSA", "kid": format!("stranger-{n}") });
        let token = next.sign(&header, &issuer.claims(AUDIENCE, "ann"));
        is_invalid(&web, &token, "names a key that the issuer does not publish").await;
    }
    let asked = issuer.asked("/keys") - before;
    // At most five at once, and one in ten seconds.
    assert!((1..20).contains(&asked), "{asked}");
    is_invalid(&web, &old, "names a key that the issuer does not publish").await;
    assert_eq!(sessions(&web, &new).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_without_its_authorization_server_and_recovers_when_that_answers() {
    let mut issuer = Issuer::absent("");
    let web = start(&issuer, &[]).await;
    let token = issuer.token(&issuer.claims(AUDIENCE, "ann"));
    let answer = sessions(&web, &token).await;
    assert_eq!(refusal(&answer), (503, "authorization_server_unavailable".into()));
    assert_eq!((answer.header("retry-after"), answer.header("www-authenticate")), ("10", ""));
    // Everything else works meanwhile.
    assert_eq!(sessions(&web, "secret-ann").await.status, 200);
    is_invalid(&web, "opaque", "neither one of this server's tokens").await;
    assert_eq!(http("GET", &format!("{}{METADATA}", web.base)).await.status, 200);
    issuer.up().await;
    until("the keys are known", async || sessions(&web, &token).await.status == 200).await;
    // Known keys remain valid if it fails again.
    issuer.down().await;
    let other = issuer.token(&issuer.claims(AUDIENCE, "ben"));
    assert_eq!(sessions(&web, &other).await.status, 200);
    let header = json!({ "alg": "ES256", "kid": "unknown" });
    let unknown = issuer.signer.sign(&header, &issuer.claims(AUDIENCE, "ann"));
    is_invalid(&web, &unknown, "names a key that the issuer does not publish").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_found_by_each_kind_of_metadata_and_by_their_url() {
    let path = "/realms/a";
    let places = [
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
        format!("{path}/.well-known/openid-configuration"),
    ];
    for place in places.iter().map(Some).chain([None]) {
        let mut issuer = Issuer::absent(path);
        let keys = format!("{}/keys", issuer.url.strip_suffix(path).expect("its path"));
        issuer.forget(&places[0]);
        if let Some(place) = place {
            issuer.tell(place, Told::Json(json!({ "issuer": issuer.url, "jwks_uri": keys })));
        }
        issuer.up().await;
        let settings = [("SANDBOX_OAUTH_JWKS_URL", &*keys)];
        let web = start(&issuer, if place.is_none() { &settings } else { &[] }).await;
        let token = issuer.token(&issuer.claims(AUDIENCE, "ann"));
        assert_eq!(sessions(&web, &token).await.status, 200, "{place:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_taken_from_nowhere_but_where_the_issuer_says() {
    let metadata = "/.well-known/oauth-authorization-server";
    let stranger = Issuer::start().await;
    for case in [
        "redirected metadata",
        "redirected keys",
        "another issuer",
        "unsafe",
        "too long",
        "no JSON",
    ] {
        let issuer = Issuer::start().await;
        let keys = format!("{}/keys", stranger.url);
        let of =
            |issuer: &str, keys: &str| Told::Json(json!({ "issuer": issuer, "jwks_uri": keys }));
        stranger.tell("/metadata", of(&issuer.url, &keys));
        stranger.keys(&[issuer.signer.jwk("first")]);
        match case {
            "redirected metadata" => {
                issuer.tell(metadata, Told::Redirect(format!("{}/metadata", stranger.url)));
            }
            "redirected keys" => issuer.tell("/keys", Told::Redirect(keys)),
            "another issuer" => issuer.tell(metadata, of(&stranger.url, &keys)),
            "unsafe" => {
                // The same machine, by a name of which the server does not know that.
                let unsafe_url = keys.replace("127.0.0.1", "localhost.localdomain");
                issuer.tell(metadata, of(&issuer.url, &unsafe_url));
            }
            "too long" => {
                let padding = "x".repeat(600 << 10);
                issuer.tell(
                    "/keys",
                    Told::Json(json!({ "keys": [issuer.signer.jwk("first")], "x": padding })),
                );
            }
            _ => issuer.tell("/keys", Told::Text("<html>".into())),
        }
        let web = start(&issuer, &[]).await;
        let token = issuer.token(&issuer.claims(AUDIENCE, "ann"));
        let answer = sessions(&web, &token).await;
        assert_eq!(refusal(&answer).0, 503, "{case}");
        assert_eq!((stranger.asked("/metadata"), stranger.asked("/keys")), (0, 0), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_a_required_scope_is_refused_and_the_answer_names_the_scopes() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[("SANDBOX_OAUTH_SCOPES", "use,read")]).await;
    for (scope, is_enough) in [
        (json!({ "scope": "openid use read" }), true),
        (json!({ "scp": ["read", "use"] }), true),
        (json!({ "scp": "use read" }), true),
        (json!({ "scope": "use" }), false),
        (json!({ "scope": "user reader" }), false),
        (json!({ "scope": "use,read" }), false),
        (json!({}), false),
    ] {
        let answer = sessions(&web, &issuer.token(&claims(&issuer, &scope))).await;
        if is_enough {
            assert_eq!(answer.status, 200, "{scope}");
            continue;
        }
        assert_eq!(refusal(&answer), (403, "insufficient_scope".into()), "{scope}");
        let challenge = answer.header("www-authenticate");
        assert!(challenge.contains("error=\"insufficient_scope\""), "{challenge}");
        assert!(challenge.contains("scope=\"use read\""), "{challenge}");
        assert!(challenge.contains("resource_metadata="), "{challenge}");
    }
    // At MCP's URL, in a message of the protocol.
    let caller = bearer(&web, &issuer, "ann");
    let refused =
        caller.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }), &[]).await;
    assert_eq!(refusal(&refused), (403, "insufficient_scope".into()));
}

const TEAM: &str = "
policies:
  gold: { sandbox: { max_timeout: 9 } }
  basic: { sandbox: { max_timeout: 7 }, files: { max_upload_bytes: 10 } }
auth:
  oauth:
    role_claim: realm_access.roles
    roles: [cn=ops=operator, auditor]
    policy_claim: https://claims.test/plan
    policies: [paid=gold, basic]
";

/// A server with the settings file above, which a test can change.
async fn team(issuer: &Issuer, folder: &std::path::Path) -> Web {
    let file = folder.join("config.yaml");
    fs::write(&file, TEAM).expect("written");
    start(issuer, &[("SANDBOX_CONFIG_FILE", file.to_str().expect("UTF-8"))]).await
}

async fn timeout_of(caller: &Caller) -> String {
    let answers = caller.ask("tools/list", json!({})).await;
    let tools = answers.last().expect("an answer")["result"]["tools"].clone();
    let tools = tools.as_array().expect("a list");
    let tool = tools.iter().find(|tool| tool["name"] == "run_python").expect("listed");
    text(&tool["inputSchema"]["properties"]["timeout_s"]["description"]).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_give_callers_their_policies_and_roles_and_the_settings_change_while_it_runs() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let web = team(&issuer, folder.path()).await;
    let caller = |subject: &str, plan: Value, roles: Value| {
        let mut claims = issuer.claims(AUDIENCE, subject);
        claims["https://claims.test/plan"] = plan;
        claims["realm_access"] = json!({ "roles": roles });
        web.caller(Some(&issuer.token(&claims)))
    };
    let gold = caller("a", json!("paid"), json!([]));
    let basic = caller("b", json!(["other", "basic"]), json!(["other"]));
    assert_eq!(timeout_of(&gold).await, "Default and limit: 9.");
    assert_eq!(timeout_of(&basic).await, "Default and limit: 7.");
    for plan in [Value::Null, json!("gold"), json!("*"), json!({ "paid": 1 })] {
        let answer = caller("c", plan.clone(), json!([])).send("GET", "/sessions", &[], &[]).await;
        assert_eq!(refusal(&answer), (403, "no_policy".into()), "{plan}");
    }
    // Roles are those of the token itself.
    let operator = caller("d", json!("basic"), json!(["x", "cn=ops"]));
    let all = async |caller: &Caller| caller.send("GET", "/sessions?all", &[], &[]).await.status;
    assert_eq!((all(&gold).await, all(&operator).await), (403, 200));
    let same_person = caller("d", json!("basic"), json!(["operator"]));
    assert_eq!((all(&same_person).await, all(&operator).await), (403, 200));
    let auditor = caller("e", json!("basic"), json!("auditor"));
    assert_eq!(auditor.send("GET", "/sessions", &[], &[]).await.status, 403);
    assert_eq!(auditor.send("GET", "/metrics", &[], &[]).await.status, 200);
    // The newest token of a caller decides on its policy, whichever was used last.
    let mut older = issuer.claims(AUDIENCE, "b");
    older["https://claims.test/plan"] = "paid".into();
    older["iat"] = (now() - 60).into();
    assert_eq!(timeout_of(&web.caller(Some(&issuer.token(&older)))).await, "Default and limit: 7.");

    let changed = TEAM.replace("max_timeout: 7", "max_timeout: 8").replace("paid=gold", "vip=gold");
    fs::write(folder.path().join("config.yaml"), changed.replace("cn=ops=operator, ", ""))
        .expect("written");
    web.signal("HUP");
    until("the settings are read", async || timeout_of(&basic).await == "Default and limit: 8.")
        .await;
    assert_eq!(gold.send("GET", "/sessions", &[], &[]).await.status, 403);
    assert_eq!(all(&operator).await, 403);
    // Scopes, too; and no other access token is accepted when there is no issuer any more.
    let scoped = format!("{TEAM}    scopes: [none.has]\n");
    fs::write(folder.path().join("config.yaml"), scoped).expect("written");
    web.signal("HUP");
    until("a scope is required", async || {
        refusal(&gold.send("GET", "/sessions", &[], &[]).await).1 == "insufficient_scope"
    })
    .await;
    assert_eq!(sessions(&web, "secret-ann").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_caller_can_choose_between_the_policies_of_its_tokens() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let web = team(&issuer, folder.path()).await;
    let (same, none, to_come) = (json!(now()), Value::Null, json!(now() + 1_000_000_000));
    for (subject, issued) in [("same", same), ("none", none), ("to-come", to_come)] {
        let caller = |plan: &str| {
            let changed =
                json!({ "sub": subject, "iat": issued, "https://claims.test/plan": plan });
            web.caller(Some(&issuer.token(&claims(&issuer, &changed))))
        };
        assert_eq!(timeout_of(&caller("paid")).await, "Default and limit: 9.", "{subject}");
        for plan in ["basic", "paid"] {
            assert_eq!(
                timeout_of(&caller(plan)).await,
                "Default and limit: 7.",
                "{subject}, {plan}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_proxy_is_asked_for_keys_on_this_machine() {
    let mut issuer = Issuer::start().await;
    let keys = format!("{}/keys", issuer.url);
    issuer.url = "https://issuer.test".into();
    let settings = [
        ("SANDBOX_OAUTH_JWKS_URL", &*keys),
        ("HTTP_PROXY", "http://127.0.0.1:1"),
        ("http_proxy", "http://127.0.0.1:1"),
    ];
    let web = start(&issuer, &settings).await;
    let caller = bearer(&web, &issuer, "ann");
    assert_eq!(caller.send("GET", "/sessions", &[], &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_sessions_belong_to_its_subject_alone_and_no_other_token_has_them() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[]).await;
    let session = name("own");
    // Names that look the same after everything but plain characters is removed, or that are cut off.
    let long = "x".repeat(300);
    let subjects = [
        "ann",
        "a/n",
        "a:n",
        "a n",
        "ä",
        "ann\u{0}",
        &*long,
        &format!("{long}y"),
        "local",
        "oauth.ann",
    ];
    for (n, subject) in subjects.iter().enumerate() {
        let caller = bearer(&web, &issuer, subject);
        let run = json!({ "session_id": session, "code": format!("x = {n}") });
        assert_eq!(caller.call("execute_code", run).await.ok()["new_session"], true, "{subject:?}");
    }
    let ann = web.caller(Some("secret-ann"));
    let run = json!({ "session_id": session, "code": "x = 'static'" });
    assert_eq!(ann.call("execute_code", run).await.ok()["new_session"], true);
    for (n, subject) in subjects.iter().enumerate() {
        // Another token of the same subject.
        let mut claims = issuer.claims(AUDIENCE, subject);
        claims["jti"] = "another".into();
        let caller = web.caller(Some(&issuer.token(&claims)));
        let run = json!({ "session_id": session, "code": "x" });
        assert_eq!(caller.call("execute_code", run).await.ok()["result"], n.to_string());
    }
    // An MCP session is its caller's, too.
    let open = bearer(&web, &issuer, "ann");
    let open = open.open().await;
    let other = Mcp { caller: &bearer(&web, &issuer, "ben"), id: open.id.clone() };
    let list = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list" });
    assert_eq!(other.post(&list).await.status, 404);
    assert_eq!(open.post(&list).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_that_names_a_caller_is_a_setting() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[("SANDBOX_OAUTH_CALLER_CLAIM", "email")]).await;
    let of = |email: Value, subject: &str| {
        let mut claims = issuer.claims(AUDIENCE, subject);
        claims["email"] = email;
        web.caller(Some(&issuer.token(&claims)))
    };
    let put = |caller: Caller| async move {
        caller.send("PUT", "/files/same/a.txt", &[], b"1").await.status
    };
    assert_eq!(put(of(json!("ann@a.test"), "1")).await, 201);
    assert_eq!(put(of(json!("ann@a.test"), "2")).await, 200, "the same caller");
    assert_eq!(put(of(json!("ann-a.test"), "1")).await, 201, "another one");
    assert_eq!(put(of(json!(null), "1")).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_mcp_session_ends_to_be_answered_when_its_token_has_expired() {
    let issuer = Issuer::start().await;
    let web = start(&issuer, &[]).await;
    let mut short = issuer.claims(AUDIENCE, "ann");
    short["exp"] = (now() - 26).into();
    let caller = web.caller(Some(&issuer.token(&short)));
    let session = caller.open().await;
    let list = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list" });
    until("the token has expired", async || session.post(&list).await.status == 401).await;
    // A new token of the same caller continues it.
    let renewed = bearer(&web, &issuer, "ann");
    let session = Mcp { caller: &renewed, id: session.id.clone() };
    assert_eq!(session.post(&list).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_urls_and_the_page_of_a_caller_work_without_a_token_and_within_its_policy() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let key = support::key_in(folder.path());
    let file = folder.path().join("config.yaml");
    fs::write(&file, TEAM).expect("written");
    let settings = [
        ("SANDBOX_CONFIG_FILE", file.to_str().expect("UTF-8")),
        ("SANDBOX_KEY_FILE", &*key),
        ("SANDBOX_OAUTH_POLICY_CLAIM", "plan"),
    ];
    let web = start(&issuer, &settings).await;
    let mut claims = issuer.claims(AUDIENCE, "ann");
    claims["plan"] = "basic".into();
    let caller = web.caller(Some(&issuer.token(&claims)));
    let session = name("signed");
    assert_eq!(caller.send("PUT", &format!("/files/{session}/a.txt"), &[], b"1").await.status, 201);
    let listed = caller.call("list_artifacts", json!({ "session_id": session })).await.ok();
    let own = |url: &Value| text(url).replace(URL, &web.base);
    let download = support::url_in(&listed, "a.txt").replace(URL, &web.base);
    assert_eq!(http("GET", &download).await.body, b"1");
    assert_eq!(http("GET", &own(&listed["page_url"])).await.status, 200);
    let state = own(&listed["page_url"]).replace("/files/", "/sessions/").replacen("/?", "?", 1);
    assert_eq!(http("GET", &state).await.json()["session_id"], json!(session));
    assert_eq!(http("GET", &download.replace("a.txt", "b.txt")).await.status, 403);
    let asked = json!({ "session_id": session, "filename": "up.txt" });
    let upload = own(&caller.call("upload_file", asked).await.ok()["upload_url"]);
    assert_eq!(http_with("PUT", &upload, &[], b"more than ten bytes").await.status, 413);
    assert_eq!(http_with("PUT", &upload, &[], b"ten").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_and_no_claim_is_logged() {
    let issuer = Issuer::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let port = free_port();
    let settings = [
        ("SANDBOX_OAUTH_ISSUER", &*issuer.url),
        ("SANDBOX_PUBLIC_URL", URL),
        ("SANDBOX_LOG_LEVEL", "TRACE"),
        ("SANDBOX_HTTP_PORT", &*port),
    ];
    let mut command = program(folder.path(), &settings);
    command.args(["serve", "--http", "--no-isolation"]).stderr(File::create(&log).expect("made"));
    let _server = command.stdout(Stdio::null()).kill_on_drop(true).spawn().expect("starts");
    let base = format!("http://127.0.0.1:{port}");
    until("it listens", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).await.is_ok()
    })
    .await;
    let secret = claims(&issuer, &json!({ "email": "zqsecretzq" }));
    let good = issuer.token(&secret);
    let expired = issuer.token(&claims(&issuer, &json!({ "exp": 1, "email": "zqsecretzq" })));
    for (token, status) in [(&good, 200), (&expired, 401)] {
        let header = [("Authorization", &*format!("Bearer {token}"))];
        assert_eq!(
            http_with("GET", &format!("{base}/sessions"), &header, &[]).await.status,
            status
        );
    }
    let logged = fs::read_to_string(&log).expect("UTF-8");
    assert!(logged.contains("the authorization server has these keys"), "{logged}");
    assert!(!logged.contains("zqsecretzq"));
    for part in good.split('.').chain(expired.split('.')).skip(1) {
        assert!(!logged.contains(part), "a part of a token");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_an_authorization_server_needs_no_tokens_of_its_own_to_be_reached_by_others()
{
    let issuer = Issuer::start().await;
    let settings = [("SANDBOX_AUTH_TOKENS", "")];
    let web = start(&issuer, &settings).await;
    let nobody = web.caller(None).send("GET", "/sessions", &[], &[]).await;
    assert_eq!(refusal(&nobody), (401, "unauthorized".into()));
    assert_eq!(bearer(&web, &issuer, "ann").send("GET", "/sessions", &[], &[]).await.status, 200);
}
