//! The base of the URLs that the server returns: the address that the client itself uses.

use serde_json::{Value, json};
use support::{On, Response, http, http_with, name, web::*};

/// Sends a request to the server under another name of its host.
async fn asked_as(web: &Web, host: &str, method: &str, target: &str, body: &[u8]) -> Response {
    http_with(method, &format!("{}{target}", web.base), &[("Host", host)], body).await
}

/// Calls a tool as a client that knows the server by this host.
async fn call_as(web: &Web, host: &str, tool: &str, arguments: Value) -> Value {
    let caller = web.caller(None);
    let params = json!({ "name": tool, "arguments": arguments });
    let (message, mut headers) = caller.modern("tools/call", params);
    headers.push(("Host", host.to_owned()));
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    let response = caller.post(&message, &headers).await;
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    response.messages().last().expect("an answer")["result"]["structuredContent"].clone()
}

/// All URLs that a client gets that knows the server by this host.
async fn addresses(web: &Web, host: &str) -> Vec<String> {
    let session = name("addresses");
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned();
    let put = asked_as(web, host, "PUT", &format!("/files/{session}/a.txt"), b"1").await.json();
    let code = "open('b.txt', 'w').write('2')";
    let arguments = json!({ "session_id": session, "code": code });
    let run = call_as(web, host, "run_python", arguments).await;
    let listed = call_as(web, host, "list_artifacts", json!({ "session_id": session })).await;
    let upload = json!({ "session_id": session, "filename": "c.txt" });
    let upload = call_as(web, host, "upload_file", upload).await;
    let files = asked_as(web, host, "GET", &format!("/files/{session}/"), b"").await.json();
    vec![
        text(&put["download_url"]),
        text(&run["artifacts"][0]["download_url"]),
        text(&listed["artifacts"][0]["download_url"]),
        text(&listed["download_all_url"]),
        text(&upload["upload_url"]),
        text(&files["artifacts"][0]["download_url"]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_addresses_that_start_as_its_own_do() {
    let web = Web::start(On::Local, &[("SANDBOX_ALLOWED_HOSTS", "sandbox")]).await;
    let port = web.base.rsplit(':').next().expect("a port");
    // The last one has another port, because a port of the host may be forwarded to the server.
    for host in [&*format!("127.0.0.1:{port}"), &*format!("localhost:{port}"), "sandbox:8080"] {
        for address in addresses(&web, host).await {
            assert!(address.starts_with(&format!("http://{host}/files/")), "{address} for {host}");
            let here = address.replacen(&format!("http://{host}"), &web.base, 1);
            let found = http("GET", &here).await;
            assert_eq!(found.status, 200, "{address}: {}", String::from_utf8_lossy(&found.body));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_the_servers_is_in_no_address() {
    let web = Web::start(On::Local, &[]).await;
    let response = asked_as(&web, "evil.test", "PUT", "/files/s/a.txt", b"1").await;
    assert_eq!((response.status, response.json()["error"].as_str()), (421, Some("unknown_host")));
    // Headers of a proxy or a client do not change the URLs either.
    let told = [("X-Forwarded-Host", "evil.test"), ("X-Forwarded-Proto", "https")];
    let target = format!("{}/files/{}/a.txt", web.base, name("told"));
    let put = http_with("PUT", &target, &told, b"1").await.json();
    assert_eq!(put["download_url"], target);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_is_set_is_everybodys() {
    let public = "https://files.example.org/sandbox";
    let web = Web::start(On::Local, &[("SANDBOX_PUBLIC_URL", public)]).await;
    let port = web.base.rsplit(':').next().expect("a port");
    for host in [&*format!("localhost:{port}"), "files.example.org"] {
        for address in addresses(&web, host).await {
            assert!(address.starts_with(&format!("{public}/files/")), "{address} for {host}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_address_is_good_wherever_it_starts() {
    let settings = [("SANDBOX_AUTH_TOKENS", "ann:a-token"), ("SANDBOX_ALLOWED_HOSTS", "sandbox")];
    let web = Web::start(On::Local, &settings).await;
    let ann = web.caller(Some("a-token"));
    let target = format!("/files/{}/a.txt", name("signed"));
    let put = ann.send("PUT", &target, &[("Host", "sandbox:8080")], b"1").await.json();
    let address = put["download_url"].as_str().expect("an address");
    assert!(address.starts_with(&format!("http://sandbox:8080{target}?signature=")), "{address}");
    let here = address.replacen("http://sandbox:8080", &web.base, 1);
    assert_eq!(http("GET", &here).await.body, b"1");
}
