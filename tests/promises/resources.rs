//! Files of sessions as MCP resources, for clients that pick files to show or to attach: over both transports and in
//! both generations of the protocol.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{On, Server, assert_fields, http, name, web::*};

/// The size of a message from which on some clients refuse it.
const TOO_LONG: usize = 1 << 20;

/// All kinds of clients.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Stdio,
    ModernStdio,
    Http,
    ModernHttp,
}

const KINDS: [Kind; 4] = [Kind::Stdio, Kind::ModernStdio, Kind::Http, Kind::ModernHttp];

impl Kind {
    fn is_modern(self) -> bool {
        matches!(self, Self::ModernStdio | Self::ModernHttp)
    }

    fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::ModernHttp)
    }

    /// The protocol's error code for a missing resource.
    fn not_found(self) -> i32 {
        if self.is_modern() { -32602 } else { -32002 }
    }
}

/// A client and its server.
struct Client {
    kind: Kind,
    server: Option<Server>,
    web: Option<(Caller, Web)>,
}

impl Client {
    async fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[]).await
    }

    async fn start_with(kind: Kind, settings: &[(&str, &str)]) -> Self {
        if kind.is_http() {
            let web = Web::start(On::Local, settings).await;
            return Self { kind, server: None, web: Some((web.caller(None), web)) };
        }
        let server = match kind {
            Kind::Stdio => Server::start_with(On::Local, settings).await,
            _ => Server::launch(On::Local, settings),
        };
        Self { kind, server: Some(server), web: None }
    }

    /// Sends a request; returns the whole message of the answer.
    async fn ask(&self, method: &str, mut params: Value) -> Value {
        match (&self.server, &self.web) {
            (Some(server), _) => {
                if self.kind.is_modern() {
                    params["_meta"] = json!({
                        "io.modelcontextprotocol/protocolVersion": MODERN,
                        "io.modelcontextprotocol/clientCapabilities": {},
                    });
                }
                server.request(method, params).await
            }
            (None, Some((caller, _))) => ask(caller, self.kind.is_modern(), method, params).await,
            (None, None) => unreachable!("one of both"),
        }
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await;
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        answer["result"]["structuredContent"].clone()
    }

    async fn upload(&self, session: &str, name: &str, content: &[u8]) {
        let content = STANDARD.encode(content);
        let arguments =
            json!({ "session_id": session, "filename": name, "content_base64": content });
        self.call("upload_file", arguments).await;
    }

    async fn run(&self, session: &str, code: &str) {
        let arguments = json!({ "session_id": session, "code": code, "inline_images": 0 });
        assert_eq!(self.call("run_python", arguments).await["outcome"], "ok");
    }

    async fn read(&self, uri: &str) -> Value {
        self.ask("resources/read", json!({ "uri": uri })).await
    }

    /// The content of an existing resource.
    async fn content(&self, uri: &str) -> Value {
        let answer = self.read(uri).await;
        let contents =
            answer["result"]["contents"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!((contents.len(), &contents[0]["uri"]), (1, &json!(uri)));
        contents[0].clone()
    }

    /// All pages of the list.
    async fn pages(&self) -> Vec<Vec<Value>> {
        let (mut pages, mut params) = (vec![], json!({}));
        loop {
            let answer = self.ask("resources/list", params).await;
            let len = answer.to_string().len();
            assert!(len < TOO_LONG, "{len} bytes");
            let result = &answer["result"];
            pages
                .push(result["resources"].as_array().unwrap_or_else(|| panic!("{answer}")).clone());
            let Some(cursor) = result.get("nextCursor") else { return pages };
            assert!(pages.len() < 100, "it ends");
            params = json!({ "cursor": cursor });
        }
    }

    async fn uris(&self) -> Vec<String> {
        let resources = self.pages().await.concat();
        resources.iter().map(|file| file["uri"].as_str().unwrap().to_owned()).collect()
    }
}

async fn ask(caller: &Caller, modern: bool, method: &str, params: Value) -> Value {
    if !modern {
        return caller.open().await.ask(method, params).await.pop().unwrap();
    }
    let (message, headers) = caller.modern(method, params);
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    // Some errors have an HTTP status other than 200.
    caller.post(&message, &headers).await.messages().pop().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_lists_and_reads_what_there_is() {
    for kind in KINDS {
        let client = Client::start(kind).await;
        assert_eq!(client.uris().await, Vec::<String>::new(), "{kind:?}");
        let (a, b) = (format!("a-{}", name("list")), format!("b-{}", name("list")));
        client.upload(&b, "sales.csv", b"a,b\n1,2\n").await;
        client.upload(&a, "plots/\u{e9} 1%.png", b"no picture, but one of that name").await;
        client.upload(&a, "model.pkl", b"\x80\x04\xFF").await;

        let pages = client.pages().await;
        assert_eq!(pages.len(), 1);
        assert_eq!(
            pages[0],
            [
                json!({
                    "uri": format!("sandbox:///{a}/model.pkl"), "name": "model.pkl",
                    "mimeType": "application/octet-stream", "size": 3,
                }),
                json!({
                    "uri": format!("sandbox:///{a}/plots/%C3%A9%201%25.png"), "name": "plots/é 1%.png",
                    "mimeType": "image/png", "size": 32,
                }),
                json!({
                    "uri": format!("sandbox:///{b}/sales.csv"), "name": "sales.csv",
                    "mimeType": "text/csv", "size": 8,
                }),
            ],
            "{kind:?}"
        );
        let content = client.content(pages[0][2]["uri"].as_str().unwrap()).await;
        assert_fields!(content, { "text": "a,b\n1,2\n", "blob": null, "mimeType": "text/csv" });
        let content = client.content(pages[0][1]["uri"].as_str().unwrap()).await;
        let blob = STANDARD.encode(b"no picture, but one of that name");
        assert_fields!(content, { "blob": blob, "text": null, "mimeType": "image/png" });
        let content = client.content(pages[0][0]["uri"].as_str().unwrap()).await;
        assert_eq!(content["blob"], STANDARD.encode(b"\x80\x04\xFF"));

        client.call("close_session", json!({ "session_id": a })).await;
        assert_eq!(client.uris().await, [format!("sandbox:///{b}/sales.csv")]);
        let gone = client.read(&format!("sandbox:///{a}/model.pkl")).await;
        assert_eq!(gone["error"]["code"], kind.not_found(), "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_is_told_how_files_are_addressed() {
    for kind in KINDS {
        let client = Client::start(kind).await;
        let answer = client.ask("resources/templates/list", json!({})).await;
        let templates = answer["result"]["resourceTemplates"].as_array().unwrap();
        let uris: Vec<_> = templates.iter().map(|it| it["uriTemplate"].as_str().unwrap()).collect();
        let expected = ["sandbox:///{session_id}/{+path}", "sandbox:///{session_id}"];
        assert_eq!(uris, expected, "{kind:?}");
        assert!(templates[0]["description"].as_str().unwrap().contains("/mnt/data"));
    }
    let server = Server::launch(On::Local, &[]);
    let hello = json!({
        "protocolVersion": LEGACY, "capabilities": {},
        "clientInfo": { "name": "tests", "version": "1" },
    });
    let answer = server.request("initialize", hello).await;
    assert!(answer["result"]["capabilities"]["resources"].is_object(), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runs_of_a_session_are_a_resource() {
    for kind in KINDS {
        let client = Client::start(kind).await;
        let id = name("runs");
        client.run(&id, "print('first')").await;
        client.call("run_python", json!({ "session_id": id, "code": "1 / 0" })).await;
        let uri = format!("sandbox:///{id}");
        let read = client.ask("resources/read", json!({ "uri": uri })).await;
        let contents = &read["result"]["contents"][0];
        assert_eq!(contents["mimeType"], "application/json", "{read}");
        let shown: Value = serde_json::from_str(contents["text"].as_str().unwrap()).unwrap();
        let outcomes: Vec<_> =
            shown["runs"].as_array().unwrap().iter().map(|run| &run["outcome"]).collect();
        assert_eq!(outcomes, ["error", "ok"], "{shown}");
        assert_eq!(shown["runs"][1]["stdout"], "first\n", "{shown}");
        let missing = client.ask("resources/read", json!({ "uri": "sandbox:///none" })).await;
        assert_eq!(missing["error"]["code"], kind.not_found(), "{missing}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_list_comes_by_the_page() {
    for kind in KINDS {
        let client = Client::start(kind).await;
        let (a, b, c) =
            ("a".to_owned() + &name("p"), "b".to_owned() + &name("p"), "c".to_owned() + &name("p"));
        client
            .run(&a, "import os\nos.mkdir('d')\nfor n in range(250): open(f'd/{n:03}', 'w')")
            .await;
        client.upload(&b, "one", b"1").await;
        client.run(&c, "for n in range(200): open(f'{n:03}', 'w')").await;
        let pages = client.pages().await;
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [200, 200, 51], "{kind:?}");
        let uris = client.uris().await;
        let of_a = (0..250).map(|n| format!("sandbox:///{a}/d/{n:03}"));
        let of_b = [format!("sandbox:///{b}/one")];
        let of_c = (0..200).map(|n| format!("sandbox:///{c}/{n:03}"));
        assert!(uris.into_iter().eq(of_a.chain(of_b).chain(of_c)), "each once and in order");

        // A cursor stays valid after the file at its place was removed.
        let first = client.ask("resources/list", json!({})).await;
        let cursor = first["result"]["nextCursor"].clone();
        client.run(&a, "import shutil; shutil.rmtree('d')").await;
        let next = client.ask("resources/list", json!({ "cursor": cursor })).await;
        assert_eq!(next["result"]["resources"][0]["uri"], format!("sandbox:///{b}/one"));
        client.call("close_session", json!({ "session_id": a })).await;
        let next = client.ask("resources/list", json!({ "cursor": cursor })).await;
        assert_eq!(next["result"]["resources"][0]["uri"], format!("sandbox:///{b}/one"));
        for wrong in ["", "7", "sandbox:///", "sandbox:///a/../b", "file:///etc/passwd"] {
            let refused = client.ask("resources/list", json!({ "cursor": wrong })).await;
            assert_eq!(refused["error"]["code"], -32602, "{wrong}: {refused}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_longest_names_fits_into_a_message() {
    let client = Client::start(Kind::ModernHttp).await;
    // Names of 1024 bytes, most of which take three in a URL and two in JSON.
    let code = "import os\nfolder = '/'.join(['\"' * 201] * 4)\nos.makedirs(folder)\n\
                for n in range(250): open(f'{folder}/' + '\"' * 208 + f'{n:03}.xlsx', 'w')";
    client.run(&"s".repeat(64), code).await;
    assert_eq!(client.pages().await.concat().len(), 250);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_nothing_is_told_as_such() {
    for kind in KINDS {
        let client = Client::start(kind).await;
        let id = name("none");
        client.upload(&id, "a.txt", b"1").await;
        client.run(&id, "import os\nos.mkdir('folder')\nos.mkfifo('pipe')\nos.symlink('/etc/passwd', 'link')").await;
        for uri in [
            format!("sandbox:///{id}/b.txt"),
            format!("sandbox:///{id}/folder"),
            format!("sandbox:///{id}/pipe"),
            format!("sandbox:///{id}/link"),
            format!("sandbox:///{id}/"),
            format!("sandbox:///{id}//a.txt"),
            format!("sandbox:///{id}/../{id}/a.txt"),
            format!("sandbox:///{id}/%2e%2e/%2e%2e/etc/passwd"),
            format!("sandbox:///{id}/%2Fetc%2Fpasswd"),
            format!("sandbox:///{id}/a.txt%00"),
            format!("sandbox:///{id}/%FF"),
            format!("sandbox://{id}/a.txt"),
            "file:///mnt/data/a.txt".into(),
            "sandbox:///no%20session/a.txt".into(),
            format!("sandbox:///{}/a.txt", name("other")),
            "file:///etc/passwd".into(),
            "nonsense".into(),
            String::new(),
        ] {
            let answer = client.read(&uri).await;
            assert_eq!(answer["error"]["code"], kind.not_found(), "{kind:?} {uri}: {answer}");
        }
        assert_eq!(client.content(&format!("sandbox:///{id}/a.txt")).await["text"], "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_for_a_message_is_refused_with_its_address() {
    for kind in KINDS {
        let client = Client::start(kind).await;
        let id = name("large");
        let largest = 700_000_usize;
        for (path, field, byte) in [("a.bin", "blob", 0), ("a.txt", "text", b'x')] {
            client.upload(&id, path, &vec![byte; largest]).await;
            let uri = format!("sandbox:///{id}/{path}");
            let answer = client.read(&uri).await;
            let len = answer.to_string().len();
            assert!(len < TOO_LONG, "{len} bytes");
            assert!(answer["result"]["contents"][0][field].as_str().unwrap().len() >= largest);

            client.run(&id, &format!("open('{path}', 'a').write('x')")).await;
            let refused = client.read(&uri).await;
            let data = &refused["error"]["data"];
            assert_eq!(refused["error"]["code"], -32602, "{kind:?} {refused}");
            assert_fields!(data, { "error": "artifact_too_large", "size_bytes": largest + 1 });
            let file = http("HEAD", data["download_url"].as_str().unwrap()).await;
            assert_eq!(file.header("content-length"), (largest + 1).to_string());
        }
    }
    let client =
        Client::start_with(Kind::ModernHttp, &[("SANDBOX_MAX_ARTIFACT_READ_BYTES", "1000")]).await;
    let id = name("limit");
    client.upload(&id, "a.txt", &[b'x'; 1001]).await;
    let refused = client.read(&format!("sandbox:///{id}/a.txt")).await;
    assert_eq!(refused["error"]["data"]["error"], "artifact_too_large", "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_of_which_every_byte_is_escaped_fits_into_a_message_or_is_refused() {
    for kind in [Kind::ModernHttp, Kind::Stdio] {
        let client = Client::start(kind).await;
        let id = name("escaped");
        let largest = 700_000_usize;
        for byte in [b'"', b'\n', b'\x01'] {
            client
                .run(&id, &format!("open('a.json', 'wb').write(bytes([{byte}]) * {largest})"))
                .await;
            let len = client.read(&format!("sandbox:///{id}/a.json")).await.to_string().len();
            assert!(len < TOO_LONG, "{kind:?}: {len} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_not_utf8_comes_byte_by_byte() {
    let client = Client::start(Kind::ModernHttp).await;
    let id = name("latin");
    client.upload(&id, "a.csv", b"Gr\xF6\xDFe\n").await;
    let content = client.content(&format!("sandbox:///{id}/a.csv")).await;
    assert_fields!(content, { "blob": STANDARD.encode(b"Gr\xF6\xDFe\n"), "text": null });
    client.upload(&id, "empty.csv", b"").await;
    assert_eq!(client.content(&format!("sandbox:///{id}/empty.csv")).await["text"], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_others_are_neither_listed_nor_read() {
    let web = Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", "ann:one,bob:two")]).await;
    let (ann, bob) = (web.caller(Some("one")), web.caller(Some("two")));
    let id = name("ann");
    ann.call("upload_file", json!({ "session_id": id, "filename": "a.txt", "text": "secret" }))
        .await
        .ok();
    let uri = format!("sandbox:///{id}/a.txt");
    for modern in [true, false] {
        let list = async |caller: &Caller| {
            ask(caller, modern, "resources/list", json!({})).await["result"]["resources"].clone()
        };
        assert_eq!(list(&ann).await[0]["uri"], uri);
        assert_eq!(list(&bob).await, json!([]));
        let read = async |caller, uri: &str| {
            ask(caller, modern, "resources/read", json!({ "uri": uri })).await
        };
        assert_eq!(read(&ann, &uri).await["result"]["contents"][0]["text"], "secret");
        let mut refused = read(&bob, &uri).await;
        let other = format!("sandbox:///{}/a.txt", name("none"));
        let mut missing = read(&bob, &other).await;
        for (answer, uri) in [(&mut refused, &uri), (&mut missing, &other)] {
            let error = answer["error"].to_string().replace(&**uri, "");
            answer["error"] = serde_json::from_str(&error).expect("JSON");
        }
        assert_eq!(refused["error"], missing["error"], "nor is it told whether they are there");
        assert!(refused["error"].is_object());
        // A cursor is a place in the caller's own list.
        let listed = ask(&bob, modern, "resources/list", json!({ "cursor": uri })).await;
        assert_eq!(listed["result"]["resources"], json!([]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_listed_and_read_while_a_program_runs() {
    let client = Client::start(Kind::ModernHttp).await;
    let id = name("beside");
    let code = "import os, time\nopen('made.txt', 'w').write('so far')\n\
                while not os.path.exists('go'): time.sleep(0.01)";
    let beside = async {
        let uri = format!("sandbox:///{id}/made.txt");
        support::until("the file is there", async || {
            client.read(&uri).await["result"]["contents"][0]["text"] == "so far"
        })
        .await;
        assert_eq!(client.uris().await, [uri]);
        client.upload(&id, "go", b"").await;
    };
    tokio::join!(client.run(&id, code), beside);
}
