//! HTTPS: who is served, which certificates can be used, and how new ones come into use.

use std::{fs, os::unix::fs::symlink, path::Path};

use serde_json::json;
use support::{
    On, PATIENCE, Response, ended, name, program, text,
    tls::{
        self, Certificate,
        rustls::version::{TLS12, TLS13},
    },
    until,
    web::*,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Starts a server with the certificate in this folder, and with these settings.
async fn start(folder: &Path, more: &[(&str, &str)]) -> Web {
    let files = tls::settings(folder);
    let files = files.each_ref().map(|(name, path)| (*name, path.as_str()));
    Web::start(On::Local, &[&files[..], more].concat()).await
}

/// The host and port of a server.
fn host(web: &Web) -> &str {
    web.base.split_once("://").expect("a scheme").1
}

/// Whether new connections are with this certificate.
async fn presents(web: &Web, certificate: &Certificate) -> bool {
    let stream = tls::connect(host(web)).await.expect("connected");
    let (_, session) = stream.get_ref();
    session.peer_certificates().expect("verified")[0] == certificate.der
}

/// Sends these bytes, and returns all that comes back.
async fn exchange(web: &Web, bytes: &[u8]) -> Vec<u8> {
    let exchange = async {
        let mut stream = TcpStream::connect(host(web)).await.expect("connected");
        stream.write_all(bytes).await.expect("sent");
        let mut all = vec![];
        stream.read_to_end(&mut all).await.expect("received");
        all
    };
    timeout(PATIENCE, exchange).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_works_over_https_from_its_first_message_to_a_download() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificate::new().write(folder.path());
    let web = start(folder.path(), &[TOKENS]).await;
    let alice = web.caller(Some("secret-a"));
    let run = json!({ "name": "run_python", "arguments": {
        "session_id": name("https"), "code": "open('a.txt', 'w').write('1' * 3_000_000)"
    } });
    let messages = alice.open().await.ask("tools/call", run).await;
    let result = &messages.last().expect("an answer")["result"]["structuredContent"];
    let url = text(&result["artifacts"][0]["download_url"]);
    assert!(url.starts_with(&format!("{}/files/", web.base)), "{url}");
    assert!(url.starts_with("https://"), "{url}");
    assert_eq!(support::http("GET", url).await.body.len(), 3_000_000);
    assert_eq!(web.caller(None).send("GET", "/sessions", &[], &[]).await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_1_2_or_1_3_and_http_is_1_1() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificate::new().write(folder.path());
    let web = start(folder.path(), &[]).await;
    for version in [&TLS12, &TLS13] {
        let stream = tls::connect_by(host(&web), &[version], &["h2", "http/1.1"]).await;
        let stream = stream.expect("connected");
        let (_, session) = stream.get_ref();
        assert_eq!(session.protocol_version(), Some(version.version));
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    assert!(tls::connect_by(host(&web), &[&TLS13], &["h2"]).await.is_err());
    // The greeting of a client of TLS 1.1 that has one suite, which 1.2 has as well, and SHA-256 with ECDSA.
    let mut hello = vec![3, 2];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0xc0, 0x09, 1, 0, 0, 8, 0, 13, 0, 4, 0, 2, 4, 3]);
    let length = u8::try_from(hello.len()).expect("short");
    let head = [22, 3, 1, 0, length + 4, 1, 0, 0, length];
    let alert = exchange(&web, &[&head[..], &hello].concat()).await;
    let protocol_version = [2, 70];
    assert_eq!((alert[0], &alert[5..]), (21, &protocol_version[..]), "{alert:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_sends_its_token_only_to_the_server_with_the_certificate_of_the_settings() {
    let (folder, other) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    Certificate::new().write(folder.path());
    Certificate::new().write(other.path());
    let web = start(folder.path(), &[]).await;
    let (_, port) = host(&web).rsplit_once(':').expect("a port");
    for (certificate, code) in [(&folder, 0), (&other, 1)] {
        let files = tls::settings(certificate.path());
        let files = files.each_ref().map(|(name, path)| (*name, path.as_str()));
        let own = [("SANDBOX_HTTP_PORT", port), ("LLM_SANDBOX_TOKEN", "secret")];
        let settings = [&files[..], &own].concat();
        let mut command = program(folder.path(), &settings);
        let (ended, out, err) = support::ended(command.args(["sessions", "list"])).await;
        assert_eq!(ended, Some(code), "{out}{err}");
        // Without a token, any certificate does: a server with a former one is healthy.
        let mut command = program(folder.path(), &settings);
        let (ended, out, _) = support::ended(command.arg("health")).await;
        assert!(ended.is_some() && out.contains("ready"), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_speak_tls_is_told_so() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificate::new().write(folder.path());
    let web = start(folder.path(), &[]).await;
    let answer = exchange(&web, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let answer = Response::parse(&answer);
    assert_eq!(answer.status, 400);
    assert!(String::from_utf8_lossy(&answer.body).contains("https://"));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_begin_no_handshake_hold_up_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificate::new().write(folder.path());
    let web = start(folder.path(), &[]).await;
    let mut silent = vec![];
    for n in 0..64 {
        let mut stream = TcpStream::connect(host(&web)).await.expect("connected");
        if n % 2 == 0 {
            // The begin of a greeting.
            stream.write_all(&[22, 3, 1, 1]).await.expect("sent");
        }
        silent.push(stream);
    }
    let answer = web.caller(None).send("GET", "/health", &[], &[]).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_server_says_why_it_cannot_use_a_certificate_and_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (Certificate::new(), Certificate::new());
    let long_ago = Certificate::until(2001);
    let none = String::new();
    for (cert, key, why) in [
        (Some(&one.cert), Some(&other.key), "key.pem: it is not the key of the certificate in"),
        (None, Some(&one.key), "cert.pem: No such file"),
        (Some(&one.cert), None, "key.pem: No such file"),
        (Some(&none), Some(&one.key), "cert.pem: it has no certificate"),
        (Some(&one.key), Some(&one.key), "cert.pem: it has no certificate"),
        (Some(&one.cert), Some(&one.cert), "key.pem: it has no private key"),
        (Some(&long_ago.cert), Some(&one.key), "key.pem: it is not the key"),
    ] {
        for (file, content) in [("cert.pem", cert), ("key.pem", key)] {
            let path = folder.path().join(file);
            match content {
                Some(content) => fs::write(path, content).expect("written"),
                None => fs::remove_file(path).expect("removed"),
            }
        }
        let files = tls::settings(folder.path());
        let files = files.each_ref().map(|(name, path)| (*name, path.as_str()));
        for arguments in [&["serve", "--http"][..], &["config", "check"]] {
            let mut command = program(folder.path(), &files);
            let (code, _, said) = ended(command.arg("--no-isolation").args(arguments)).await;
            assert_eq!(code, Some(64), "{why}: {said}");
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_certificate_that_has_expired_starts_and_warns() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificate::until(2001).write(folder.path());
    let log = folder.path().join("server.log");
    let files = tls::settings(folder.path());
    let mut command = program(folder.path(), &[]);
    let mut server = command
        .envs(files)
        .env("SANDBOX_LOG_LEVEL", "WARN")
        .env("SANDBOX_LOG_FILE", &log)
        .args(["serve", "--http", "--no-isolation"])
        .kill_on_drop(true)
        .spawn()
        .expect("started");
    until("a warning", async || {
        assert_eq!(server.try_wait().expect("asked"), None, "it has ended");
        fs::read_to_string(&log).is_ok_and(|log| log.contains("expired at 2001-01-01"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_used_and_no_request_ends_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (Certificate::new(), Certificate::new());
    // As Kubernetes mounts a Secret: the files are links into a folder, which is exchanged as a whole.
    old.write(&folder.path().join("1"));
    new.write(&folder.path().join("2"));
    symlink("1", folder.path().join("now")).expect("linked");
    for file in ["cert.pem", "key.pem"] {
        symlink(Path::new("now").join(file), folder.path().join(file)).expect("linked");
    }
    let web = start(folder.path(), &[]).await;
    let caller = web.caller(None);
    assert!(presents(&web, &old).await);
    let session = name("renewed");
    caller.run(&session, "print(1)").await;
    let code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint(2)";
    let running =
        caller.call("run_python", json!({ "session_id": session, "code": code, "timeout_s": 60 }));
    let renewing = async {
        symlink("2", folder.path().join("next")).expect("linked");
        fs::rename(folder.path().join("next"), folder.path().join("now")).expect("renamed");
        until("the new certificate is used", async || presents(&web, &new).await).await;
        let go = format!("/files/{session}/go");
        assert_eq!(caller.send("PUT", &go, &[], b"1").await.status, 201);
    };
    let (answer, ()) = tokio::join!(running, renewing);
    assert_eq!(answer.ok()["stdout"], "2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_that_cannot_be_used_leaves_the_former_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (Certificate::new(), Certificate::new());
    old.write(folder.path());
    let log = folder.path().join("server.log");
    let settings =
        [("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")), ("SANDBOX_LOG_LEVEL", "INFO")];
    let web = start(folder.path(), &settings).await;
    let refused = || {
        let log = fs::read_to_string(&log).expect("there");
        log.matches("key.pem: it is not the key of the certificate in").count()
    };
    fs::write(folder.path().join("cert.pem"), &new.cert).expect("written");
    until("it is refused", async || refused() == 1).await;
    assert!(presents(&web, &old).await);
    // A signal has the files read again, although they have not changed.
    web.signal("HUP");
    until("it is refused again", async || refused() == 2).await;
    assert!(presents(&web, &old).await);
    fs::write(folder.path().join("key.pem"), &new.key).expect("written");
    web.signal("HUP");
    until("the new certificate is used", async || presents(&web, &new).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_the_doctor_reach_a_server_that_speaks_https() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificate::new().write(folder.path());
    let web = start(folder.path(), &[]).await;
    let files = tls::settings(folder.path());
    let port = web.base.rsplit(':').next().expect("a port");
    let command = |arguments: &[&str]| {
        let mut command = program(folder.path(), &[("SANDBOX_HTTP_PORT", port)]);
        command.envs(files.clone()).arg("--no-isolation").args(arguments);
        command
    };
    let (code, said, _) = ended(&mut command(&["health"])).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ready"), "{said}");
    let (_, said, _) = ended(&mut command(&["doctor"])).await;
    for line in ["it names localhost, and is valid until 4000-01-01", "https://127.0.0.1:"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(said.contains("in use by an llm-sandbox server"), "{said}");
}

#[tokio::test]
async fn tokens_over_plain_http_are_refused_on_addresses_that_others_reach() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.yaml"), "callers: [{ name: ann, token: a }]\n")
        .expect("written");
    let set = [("SANDBOX_HTTP_HOST", "0.0.0.0"), ("SANDBOX_AUTH_TOKENS", "ann:a")];
    let in_file = [set[0], ("SANDBOX_CONFIG_FILE", "config.yaml")];
    for settings in [set, in_file] {
        let mut server = program(folder.path(), &settings);
        let (code, _, said) = ended(server.args(["--no-isolation", "serve", "--http"])).await;
        assert_eq!(code, Some(64), "{said}");
        for way in ["tls.cert", "127.0.0.1", "SANDBOX_ALLOW_INSECURE_HTTP=true"] {
            assert!(said.contains(way), "{way}: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_taken_at_every_address_over_https() {
    let folder = tempfile::tempdir().expect("a folder");
    Certificate::new().write(folder.path());
    let web = start(folder.path(), &[TOKENS, ("SANDBOX_HTTP_HOST", "0.0.0.0")]).await;
    let alice = web.caller(Some("secret-a"));
    assert_eq!(alice.send("GET", "/sessions", &[], &[]).await.status, 200);
}
