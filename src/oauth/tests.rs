use config::Config;
use proptest::prelude::{prop_assert, prop_assert_eq, prop_assert_ne, proptest};
use serde_json::{Value, json};

#[cfg(feature = "oauth")]
use super::keys::Algorithm;
use super::{claims::principal, *};

/// Whether the signature of a token in compact form is of this key.
#[cfg(feature = "oauth")]
fn is_signed(key: Value, algorithm: Algorithm, token: &str) -> bool {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

    let keys = Key::all_in(&json!({ "keys": [key] })).expect("a set");
    let (message, signature) = token.rsplit_once('.').expect("two parts");
    let signature = URL_SAFE_NO_PAD.decode(signature).expect("base64");
    keys[0].has_signed(algorithm, message.as_bytes(), &signature)
}

#[cfg(feature = "oauth")]
#[test]
fn the_examples_of_the_standards_are_signed() {
    // RFC 7515, appendix A.3.
    let key = json!({
        "kid": "", "kty": "EC", "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    });
    let token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt\
                 cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8\
                 ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    assert!(is_signed(key.clone(), Algorithm::Es256, token));
    assert!(!is_signed(key, Algorithm::Es256, &token.replace("eyJpc3", "eyJpc4")));
    // RFC 8037, appendix A.4.
    let key = json!({
        "kid": "", "kty": "OKP", "crv": "Ed25519",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    });
    let token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PG\
                 cvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    assert!(is_signed(key, Algorithm::EdDsa, token));
}

#[test]
fn keys_that_cannot_sign_tokens_are_left_out() {
    let good = json!({ "kid": "a", "kty": "OKP", "crv": "Ed25519", "x": "A".repeat(43) });
    let with = |name: &str, value: Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    let count = |key: Value| Key::all_in(&json!({ "keys": [key] })).expect("a set").len();
    assert_eq!(count(good.clone()), 1);
    assert_eq!(count(with("use", json!("sig"))), 1);
    for (name, value) in [
        ("use", json!("enc")),
        ("key_ops", json!(["sign"])),
        ("alg", json!("HS256")),
        ("alg", json!("none")),
        ("alg", json!(7)),
        ("kid", Value::Null),
        ("crv", json!("X25519")),
        ("kty", json!("oct")),
        ("x", json!("AAAA")),
        ("x", json!("?")),
    ] {
        assert_eq!(count(with(name, value.clone())), 0, "{name}: {value}");
    }
    assert!(Key::all_in(&json!({ "keys": {} })).is_none());
    assert!(Key::all_in(&json!([])).is_none());
}

#[tokio::test]
async fn keys_are_valid_for_a_day_and_what_was_verified_is_forgotten_with_them() {
    let settings = Config::parse([
        ("SANDBOX_TRANSPORT".to_owned(), "http".to_owned()),
        ("SANDBOX_OAUTH_ISSUER".to_owned(), "https://login.test".to_owned()),
        ("SANDBOX_OAUTH_AUDIENCE".to_owned(), "a".to_owned()),
    ]);
    let oauth = OAuth::new(settings.expect("valid").oauth().expect("an issuer"));
    // {"alg":"EdDSA","kid":"a"}, and no claims.
    let token = "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.e30.AA";
    assert_eq!((oauth.verify(token), oauth.due(token)), (Err(Refused::NoKeys), Due::Now));
    assert_eq!(oauth.due("opaque"), Due::No);
    let key = json!({ "kid": "a", "kty": "OKP", "crv": "Ed25519", "x": "A".repeat(43) });
    let keys = || Key::all_in(&json!({ "keys": [key] })).expect("a set");
    let identity = Identity::of_test(&oauth.settings, now() + 600.0);
    let hash = Sha256::digest(token).into();
    oauth.replace(Ok(keys()));
    oauth.verified.lock().insert(hash, identity.clone());
    assert_eq!((oauth.verify(token), oauth.due(token)), (Ok(identity.clone()), Due::No));
    oauth.replace(Err("no answer".into()));
    oauth.replace(Ok(keys()));
    assert_eq!(oauth.verify(token), Ok(identity), "the keys are the same");
    for (age, due, is_known) in
        [(KEYS_FRESH, Due::Soon, true), (KEYS_OLD, Due::Now, true), (KEYS_LAST, Due::Now, false)]
    {
        // A machine that has just started has no earlier time.
        let Some(at) = Instant::now().checked_sub(age) else { return };
        oauth.keys.write().as_mut().expect("keys").at = at;
        assert_eq!((oauth.due(token), oauth.verify(token).is_ok()), (due, is_known), "{age:?}");
    }
    oauth.replace(Ok(vec![]));
    assert!(oauth.verified.lock().is_empty());
}

proptest! {
    #[test]
    fn every_value_of_a_claim_is_another_caller(a in ".{1,80}", b in ".{1,80}") {
        let of = |value: &str| principal("https://login.test", "sub", value);
        prop_assert!(is_caller(&of(&a)));
        prop_assert_eq!(of(&a) == of(&b), a == b);
        prop_assert_ne!(of(&a), principal("https://other.test", "sub", &a));
        prop_assert_ne!(of(&a), principal("https://login.test", "email", &a));
    }
}
