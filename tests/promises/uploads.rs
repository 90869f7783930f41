//! Uploads over HTTP as people send them: by curl, by forms, in a browser.
//!
//! An upload that breaks off, is too large or has a wrong target leaves nothing behind, and its sender can read why.

use std::{fs, path::Path};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{
    On, PATIENCE, Response, assert_fields, http, http_begin, http_with, name, noise, on_all, until,
    web::*,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
    time::timeout,
};

on_all! {
    what_is_put_is_exactly_what_the_program_reads,
    an_upload_that_breaks_off_leaves_nothing,
    ; on docker alone:
    a_data_area_that_is_full_says_so_and_keeps_what_it_has,
}

pub(super) use crate::auth::refusal;

/// The most by which the server's memory may grow while it forwards tens of megabytes.
const GROWTH: u64 = 24 << 20;

/// The length of the chunks in a chunked body.
const CHUNK: usize = 60_000;

pub(super) async fn start(settings: &[(&str, &str)]) -> (Web, Caller) {
    let (web, caller) = Web::open(On::Local, settings).await;
    (web, caller)
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The content as a chunked body.
fn chunked(content: &[u8]) -> Vec<u8> {
    let mut body = vec![];
    for chunk in content.chunks(CHUNK) {
        body.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        body.extend_from_slice(chunk);
        body.extend(b"\r\n");
    }
    body.extend(b"0\r\n\r\n");
    body
}

const CHUNKED: [(&str, &str); 1] = [("Transfer-Encoding", "chunked")];

const FORM: [(&str, &str); 1] = [("Content-Type", "multipart/form-data; boundary=b0undary")];

/// A form of fields, each with a name, a filename if it is a file, and content.
fn form(fields: &[(&str, Option<&str>, &[u8])]) -> Vec<u8> {
    let mut body = vec![];
    for (name, filename, content) in fields {
        let filename = filename.map_or(String::new(), |it| format!("; filename=\"{it}\""));
        let head = format!(
            "--b0undary\r\nContent-Disposition: form-data; name=\"{name}\"{filename}\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend(head.bytes());
        body.extend_from_slice(content);
        body.extend(b"\r\n");
    }
    body.extend(b"--b0undary--\r\n");
    body
}

pub(super) async fn put(caller: &Caller, target: &str, content: &[u8]) -> Response {
    caller.send("PUT", &format!("/files/{target}"), &[], content).await
}

pub(super) async fn get(caller: &Caller, target: &str) -> Response {
    caller.send("GET", &format!("/files/{target}"), &[], &[]).await
}

/// Names and sizes of a session's files, as listed over HTTP.
async fn list(caller: &Caller, session: &str) -> Vec<(String, u64)> {
    let listed = get(caller, &format!("{session}/")).await;
    assert_eq!(listed.status, 200, "{}", listed.json());
    let files = listed.json()["artifacts"].as_array().expect("a list").clone();
    let entry = |file: &Value| {
        let name = file["filename"].as_str().expect("a name").to_owned();
        (name, file["size_bytes"].as_u64().expect("a size"))
    };
    files.iter().map(entry).collect()
}

/// All names that a program sees, including hidden files.
async fn seen(caller: &Caller, session: &str) -> String {
    let code = "import os; print(sorted(os.path.join(d, n)[2:] for d, _, names in os.walk('.') for n in names))";
    caller.run(session, code).await["stdout"].as_str().expect("text").trim().to_owned()
}

async fn sessions(web: &Web) -> u64 {
    let ready = http("GET", &format!("{}/ready", web.base)).await;
    ready.json()["sessions"].as_u64().expect("a number")
}

/// The URL to upload a file to.
async fn upload_url(caller: &Caller, session: &str, file: &str, overwrite: bool) -> String {
    let arguments = json!({ "session_id": session, "filename": file, "overwrite": overwrite });
    let result = caller.call("upload_file", arguments).await.ok();
    assert_fields!(result, { "session_id": session, "path": format!("/mnt/data/{file}") });
    assert!(result["expires_in_s"].as_u64().is_some_and(|seconds| seconds > 0), "{result}");
    result["upload_url"].as_str().expect("an address").to_owned()
}

/// Runs a program of the host; returns its output.
pub(super) async fn shell(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program).args(arguments).current_dir(folder).kill_on_drop(true).output();
    let ran = timeout(PATIENCE, ran).await.expect("in time").expect("starts");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(ran.stdout).expect("UTF-8")
}

/// Runs curl, which prints the answer's body and, on the last line, its status.
async fn curl(folder: &Path, arguments: &[&str]) -> (u16, String) {
    let common = ["--silent", "--show-error", "--noproxy", "*", "--write-out", "\n%{http_code}"];
    let printed = shell(folder, "curl", &[&common, arguments].concat()).await;
    let (body, status) = printed.rsplit_once('\n').expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

/// Reads the rest of an answer.
pub(super) async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut all = vec![];
    // A reset shows just as well as an early end that the answer is incomplete.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("in time");
    all
}

async fn what_is_put_is_exactly_what_the_program_reads(on: On) {
    let (web, caller) = Web::open(on, &[]).await;
    let session = name("put");
    let first = noise(3_000_001);
    let made = put(&caller, &format!("{session}/in/first.bin"), &first).await;
    assert_eq!((made.status, made.header("content-type")), (201, "application/json"));
    let url = format!("{}/files/{session}/in/first.bin", web.base);
    let expected = json!({
        "session_id": session,
        "path": "/mnt/data/in/first.bin",
        "filename": "in/first.bin",
        "size_bytes": first.len(),
        "mime_type": "application/octet-stream",
        "download_url": url,
    });
    assert_eq!(made.json(), expected);
    let code =
        "import hashlib; print(hashlib.sha256(open('in/first.bin', 'rb').read()).hexdigest())";
    assert_eq!(caller.run(&session, code).await["stdout"], digest(&first) + "\n");
    assert!(http("GET", &url).await.body == first);

    let second = noise(1000);
    let replaced = put(&caller, &format!("{session}/in/first.bin"), &second).await;
    assert_eq!((replaced.status, &replaced.json()["size_bytes"]), (200, &1000.into()));
    assert_eq!(caller.run(&session, code).await["stdout"], digest(&second) + "\n");
    let target = format!("/files/{session}/in/first.bin");
    for body in [&b"third"[..], &first] {
        let kept = caller.send("PUT", &target, &[("If-None-Match", "*")], body).await;
        assert_eq!(refusal(&kept), (412, "file_exists".into()));
    }
    assert!(http("GET", &url).await.body == second);
    let only_new = [("If-None-Match", "*")];
    let made = caller.send("PUT", &format!("/files/{session}/b"), &only_new, b"").await;
    assert_eq!((made.status, &made.json()["size_bytes"]), (201, &0.into()));
    let target = format!("/files/{session}/c");
    let in_chunks = caller.send("PUT", &target, &CHUNKED, &chunked(&first)).await;
    assert_eq!(in_chunks.status, 201);
    assert!(get(&caller, &format!("{session}/c")).await.body == first);
    let target = format!("/files/{session}/d");
    let nothing = caller.send("PUT", &target, &CHUNKED, &chunked(b"")).await;
    assert_eq!(nothing.status, 201);
    let listed = list(&caller, &session).await;
    let expected = [("b", 0), ("c", 3_000_001), ("d", 0), ("in/first.bin", 1000)];
    assert_eq!(listed, expected.map(|(name, size)| (name.to_owned(), size)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_the_name_that_its_address_says() {
    let (_web, caller) = start(&[]).await;
    let session = name("names");
    for (encoded, file) in [
        ("plain.csv", "plain.csv"),
        ("a%20b.csv", "a b.csv"),
        ("a+b.csv", "a+b.csv"),
        ("%C3%BCmlaut%20%C3%9F.csv", "ümlaut ß.csv"),
        ("%E6%9D%B1%E4%BA%AC/%E5%A3%B2%E4%B8%8A.xlsx", "東京/売上.xlsx"),
        ("%F0%9F%93%88.png", "📈.png"),
        ("sub/deep/er/a.csv", "sub/deep/er/a.csv"),
        ("enc%2Foded%2Fb.csv", "enc/oded/b.csv"),
        ("100%25.csv", "100%.csv"),
        ("%252F", "%2F"),
        ("a%3Fb%23c%26d=e;f,g:h@i!$'()*", "a?b#c&d=e;f,g:h@i!$'()*"),
        ("%22quoted%22%3C%3E%7C%60", "\"quoted\"<>|`"),
        (".hidden", ".hidden"),
        ("..a", "..a"),
        ("%20", " "),
        ("-rf%20~", "-rf ~"),
    ] {
        let made = put(&caller, &format!("{session}/{encoded}"), file.as_bytes()).await;
        assert_eq!(made.status, 201, "{encoded}: {}", made.json());
        assert_eq!(made.json()["filename"], file);
        let url = made.json()["download_url"].as_str().expect("an address").to_owned();
        assert_eq!(http("GET", &url).await.body, file.as_bytes(), "{url}");
        let code = format!("print(open({}).read(), end='')", json!(file));
        assert_eq!(caller.run(&session, &code).await["stdout"], file);
        assert!(list(&caller, &session).await.contains(&(file.to_owned(), file.len() as u64)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_no_file_can_have_are_refused_and_make_no_session() {
    let (web, caller) = start(&[]).await;
    let long = "a".repeat(256);
    let longer = ["b".repeat(200).as_str(); 6].join("/");
    let deep = ["d"; 66].join("/");
    for path in [
        "..",
        ".",
        "%2e%2e",
        "%2E%2E/a",
        "a/../b",
        "a/./b",
        "a//b",
        "a/",
        "%2Fetc%2Fpasswd",
        "/etc/passwd",
        "a%00b",
        "a%0Ab",
        "a%0D%0Ab",
        "a%7Fb",
        "a%5Cb",
        "%FF",
        "a%C3",
        &long,
        &longer,
        &deep,
    ] {
        let put = put(&caller, &format!("s/{path}"), b"1").await;
        assert_eq!(refusal(&put), (400, "invalid_filename".into()), "{path}");
    }
    for id in ["a.b", "a%20b", "%C3%A9", "..", &"s".repeat(65)] {
        let put = put(&caller, &format!("{id}/a"), b"1").await;
        assert_eq!(refusal(&put), (400, "invalid_session_id".into()), "{id}");
    }
    assert_eq!(put(&caller, "s/", b"1").await.status, 405);
    assert_eq!(put(&caller, "s", b"1").await.status, 405);
    // As tools refuse it.
    let put_stateless = put(&caller, "__stateless__/a", b"1").await;
    let body = form(&[("a", Some("a"), b"1")]);
    let sent_stateless = caller.send("POST", "/files/__stateless__/", &FORM, &body).await;
    for refused in [put_stateless, sent_stateless] {
        assert_eq!(refusal(&refused), (400, "invalid_argument".into()));
    }
    assert_eq!(sessions(&web).await, 0);
    // An existing file or folder can make a name invalid.
    assert_eq!(put(&caller, "s/file", b"1").await.status, 201);
    assert_eq!(put(&caller, "s/folder/file", b"1").await.status, 201);
    for path in ["file/below", "folder"] {
        let put = put(&caller, &format!("s/{path}"), b"1").await;
        assert_eq!(refusal(&put), (400, "invalid_filename".into()), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_named_is_refused_in_json_as_all_else() {
    let (_web, caller) = start(&[]).await;
    for (method, target, status) in
        [("GET", "/files/%FF/", 404), ("GET", "/files/%FF/a", 404), ("POST", "/files/%FF/", 400)]
    {
        let body = if method == "POST" { form(&[("a", Some("a"), b"1")]) } else { vec![] };
        let response = caller.send(method, target, &FORM, &body).await;
        assert_eq!(refusal(&response).0, status, "{method} {target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_too_large_is_refused_and_the_old_one_stays() {
    let (web, caller) = start(&[("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    let session = name("large");
    let target = format!("/files/{session}/a");
    let (full, larger) = (noise(1_000_000), noise(1_000_001));
    let too_large = (413, "upload_too_large".to_owned());
    let declared = caller.send("PUT", &target, &[], &larger).await;
    assert_eq!(refusal(&declared), too_large);
    assert_eq!(sessions(&web).await, 0, "none was made for what was refused");
    assert_eq!(caller.send("PUT", &target, &[], &full).await.status, 201);
    // The server refuses an upload that is far too large without waiting for the body.
    let head = [("Content-Length", "1000000000000")];
    let url = format!("{}{target}", web.base);
    let stream = http_begin("PUT", &url, &head, b"the beginning").await;
    assert_eq!(refusal(&Response::parse(&rest(stream).await)), too_large);
    for body in [chunked(&larger), chunked(&noise(9_000_000))] {
        let in_chunks = caller.send("PUT", &target, &CHUNKED, &body).await;
        assert_eq!(refusal(&in_chunks), too_large);
    }
    assert!(get(&caller, &format!("{session}/a")).await.body == full);
    assert_eq!(caller.send("PUT", &target, &CHUNKED, &chunked(&full)).await.status, 200);
    let other = caller.send("PUT", &format!("{target}2"), &CHUNKED, &chunked(&larger)).await;
    assert_eq!(refusal(&other), too_large);
    assert_eq!(seen(&caller, &session).await, "['a']");
}

async fn a_data_area_that_is_full_says_so_and_keeps_what_it_has() {
    let settings = [("SANDBOX_DATA_LIMIT", "4MB"), ("SANDBOX_MAX_UPLOAD_BYTES", "3MB")];
    let (_web, caller) = Web::open(On::Docker, &settings).await;
    let session = name("full");
    let (old, new) = (noise(3_000_000), noise(2_000_000));
    assert_eq!(put(&caller, &format!("{session}/a"), &old).await.status, 201);
    for file in ["a", "b"] {
        let full = put(&caller, &format!("{session}/{file}"), &new).await;
        assert_eq!(refusal(&full), (507, "quota_exceeded".into()), "{file}");
        let body = form(&[("x", Some(file), &new)]);
        let full = caller.send("POST", &format!("/files/{session}/"), &FORM, &body).await;
        assert_eq!(refusal(&full), (507, "quota_exceeded".into()), "{file}");
    }
    assert!(get(&caller, &format!("{session}/a")).await.body == old);
    assert_eq!(seen(&caller, &session).await, "['a']");
    // The refused files take up no room any more.
    assert_eq!(put(&caller, &format!("{session}/b"), &noise(900_000)).await.status, 201);
    caller.run(&session, "import os; os.remove('a')").await;
    assert_eq!(put(&caller, &format!("{session}/c"), &new).await.status, 201);
}

async fn an_upload_that_breaks_off_leaves_nothing(on: On) {
    let (web, caller) = Web::open(on, &[]).await;
    let session = name("broken");
    let content = noise(700_000);
    assert_eq!(put(&caller, &format!("{session}/old"), b"old").await.status, 201);
    let declared = [("Content-Length", "1000000")];
    let mut without_end = chunked(&content);
    without_end.truncate(without_end.len() - 5);
    let in_a_chunk = &without_end[..without_end.len() - 100];
    let whole_form = form(&[("x", Some("old"), &content)]);
    let in_a_form = &whole_form[..whole_form.len() - 1000];
    let form_without_end = &whole_form[..whole_form.len() - 14];
    let form_head = [FORM[0], ("Content-Length", "2000000")];
    let form_chunks = [FORM[0], CHUNKED[0]];
    let cut_form = chunked(in_a_form);
    for (method, path, headers, body) in [
        ("PUT", "old", &declared[..], &content[..]),
        ("PUT", "new", &declared, &content),
        ("PUT", "tiny", &declared, b"1"),
        ("PUT", "none", &declared, b""),
        ("PUT", "old", &CHUNKED, &without_end),
        ("PUT", "new", &CHUNKED, in_a_chunk),
        ("PUT", "folder/new", &CHUNKED, &without_end[..CHUNK * 3]),
        ("POST", "", &form_head, in_a_form),
        ("POST", "", &form_head, form_without_end),
        ("POST", "", &form_chunks, &cut_form),
        ("POST", "old", &form_head, in_a_form),
    ] {
        let url = format!("{}/files/{session}/{path}", web.base);
        let mut stream = http_begin(method, &url, headers, body).await;
        // The server has noticed the end by the time it closes the connection.
        let _ = stream.shutdown().await;
        let answer = rest(stream).await;
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{method} {path}: {answer:?}");
        assert_eq!(seen(&caller, &session).await, "['old']", "{method} {path}");
        assert_eq!(get(&caller, &format!("{session}/old")).await.body, b"old");
    }
    // So many that each must release its place; the client does not read the answers.
    for n in 0..40 {
        let url = format!("{}/files/{session}/many-{n}", web.base);
        drop(http_begin("PUT", &url, &declared, &content[..300_000]).await);
    }
    assert_eq!(put(&caller, &format!("{session}/last"), &content).await.status, 201);
    assert_eq!(seen(&caller, &session).await, "['last', 'old']");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_pass_through_and_are_not_held() {
    let (web, caller) = start(&[("SANDBOX_PRELOAD", "none")]).await;
    let session = name("memory");
    let content = noise(50_000_000);
    // Any use of the server takes this memory.
    let target = format!("/files/{session}/a");
    caller.send("PUT", &target, &[], &content[..2_000_000]).await;
    caller.send("POST", "/files", &FORM, &form(&[("x", Some("a"), b"1")])).await;
    get(&caller, &format!("{session}/?format=zip")).await;
    let before = web.peak_memory();
    let small = |what: &str| {
        let growth = web.peak_memory().saturating_sub(before);
        assert!(growth < GROWTH, "{what}: {growth} bytes more");
    };
    let made = caller.send("PUT", &target, &[], &content).await;
    assert_eq!(made.status, 200);
    small("as a body");
    let made = caller.send("PUT", &target, &CHUNKED, &chunked(&content)).await;
    assert_eq!(made.status, 200);
    small("as a body in chunks");
    let body = form(&[("x", Some("b"), &content)]);
    let made = caller.send("POST", &format!("/files/{session}/"), &FORM, &body).await;
    assert_eq!(made.status, 201, "{}", made.json());
    small("in a form");
    let body = form(&[("not a file", None, &content), ("x", Some("c"), b"1")]);
    let made = caller.send("POST", &format!("/files/{session}/"), &FORM, &body).await;
    assert_eq!(made.status, 201, "{}", made.json());
    small("in a form, but no file");
    assert!(get(&caller, &format!("{session}/a")).await.body == content);
    for format in ["zip", "tar"] {
        let archive = get(&caller, &format!("{session}/?format={format}")).await;
        assert!(archive.whole && archive.body.len() > 100_000_000);
        small(format);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_never_comes_to_a_file_is_not_held() {
    let (web, caller) = start(&[("SANDBOX_PRELOAD", "none")]).await;
    let session = name("endless");
    put(&caller, &format!("{session}/a"), &noise(2_000_000)).await;
    let before = web.peak_memory();
    let filler = vec![b'x'; 60_000_000];
    let preamble = filler.clone();
    let head = [b"--b0undary\r\nContent-Disposition: ", &filler[..]].concat();
    for body in [preamble, head] {
        let target = format!("/files/{session}/");
        let refused = caller.send("POST", &target, &FORM, &body).await;
        assert_eq!(refusal(&refused), (400, "invalid_argument".into()));
        let growth = web.peak_memory().saturating_sub(before);
        assert!(growth < GROWTH, "{growth} bytes more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_can_be_put_while_a_program_runs() {
    let (_web, caller) = start(&[]).await;
    let session = name("beside");
    let code = "
import os, time
open('started', 'w').close()
ticks = 0
while not os.path.exists('go'):
    ticks += 1
    assert not any('.upload' in name for name in os.listdir('.'))
    time.sleep(0.001)
print(os.path.getsize('large'), open('go').read())
";
    let content = noise(40_000_000);
    let (run, ()) = tokio::join!(caller.run(&session, code), async {
        until("the program runs", async || {
            let listed = get(&caller, &format!("{session}/")).await;
            listed.status == 200 && listed.json().to_string().contains("started")
        })
        .await;
        assert_eq!(put(&caller, &format!("{session}/large"), &content).await.status, 201);
        let busy = caller.call("run_python", json!({ "session_id": session, "code": "1" })).await;
        assert_eq!(busy.error(), "session_busy", "it still runs");
        assert_eq!(put(&caller, &format!("{session}/go"), b"on").await.status, 201);
    });
    assert_fields!(run, { "stdout": "40000000 on\n", "outcome": "ok" });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_puts_its_files_into_a_new_session_or_one_that_is_named() {
    let (web, caller) = start(&[]).await;
    let (first, second) = (noise(400_000), b"a,b\r\n1,2\r\n--b0undar\r\n".to_vec());
    let body = form(&[
        ("note", None, b"this is no file"),
        ("data", Some("first.bin"), &first),
        ("data", Some("sub/ü b.csv"), &second),
        ("nothing", Some(""), b""),
        ("empty", Some("empty"), b""),
    ]);
    let made = caller.send("POST", "/files", &FORM, &body).await;
    assert_eq!(made.status, 201, "{}", made.json());
    let made = made.json();
    let session = made["session_id"].as_str().expect("an id").to_owned();
    assert!(session.starts_with("sess_"), "{session}");
    let files = made["files"].as_array().expect("a list");
    let names: Vec<_> = files.iter().map(|file| file["filename"].as_str().expect("text")).collect();
    assert_eq!(names, ["first.bin", "sub/ü b.csv", "empty"]);
    for (file, content) in files.iter().zip([&first[..], &second, b""]) {
        assert_eq!(file["size_bytes"], content.len());
        let url = file["download_url"].as_str().expect("an address");
        assert!(http("GET", url).await.body == content, "{file}");
    }
    assert_eq!(seen(&caller, &session).await, "['empty', 'first.bin', 'sub/ü b.csv']");

    for target in [format!("/files/{session}/"), format!("/files/{session}")] {
        let body = form(&[("x", Some("empty"), b"no longer")]);
        let replaced = caller.send("POST", &target, &FORM, &body).await;
        assert_eq!(replaced.status, 200, "{}", replaced.json());
        let only_new = [FORM[0], ("If-None-Match", "*")];
        let body = form(&[("x", Some("empty"), b"2")]);
        let kept = caller.send("POST", &target, &only_new, &body).await;
        assert_eq!(refusal(&kept), (412, "file_exists".into()));
        assert_eq!(get(&caller, &format!("{session}/empty")).await.body, b"no longer");
    }
    let wanted = name("form");
    let body = form(&[("x", Some("a"), b"1")]);
    let made = caller.send("POST", &format!("/files/{wanted}/"), &FORM, &body).await;
    assert_eq!((made.status, &made.json()["session_id"]), (201, &json!(wanted)));
    assert_eq!(sessions(&web).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_sends_forms_and_files_as_people_write_it() {
    let (web, caller) = start(&[("SANDBOX_AUTH_TOKENS", "me:secret")]).await;
    drop(caller);
    let caller = web.caller(Some("secret"));
    let folder = tempfile::tempdir().expect("a folder");
    let (large, small) = (noise(5_000_000), "x,y\n1,2\n");
    fs::write(folder.path().join("large file.bin"), &large).expect("written");
    fs::write(folder.path().join("ü.csv"), small).expect("written");
    let token = ["-H", "Authorization: Bearer secret"];
    let files = ["-F", "a=@large file.bin", "-F", "b=@ü.csv"];
    let url = format!("{}/files", web.base);
    let (status, said) = curl(folder.path(), &[&token[..], &files, &[&url]].concat()).await;
    assert_eq!(status, 201, "{said}");
    let made: Value = serde_json::from_str(&said).expect("JSON");
    let session = made["session_id"].as_str().expect("an id").to_owned();
    let code = "import hashlib; print(hashlib.sha256(open('large file.bin', 'rb').read()).hexdigest(), open('ü.csv').read())";
    let expected = format!("{} {small}\n", digest(&large));
    assert_eq!(caller.run(&session, code).await["stdout"], expected);

    // curl appends the file's name to a URL that ends with a slash.
    let url = format!("{}/files/{session}/sub/", web.base);
    let given = [&token[..], &["-T", "ü.csv", &url]].concat();
    let (status, said) = curl(folder.path(), &given).await;
    assert_eq!(status, 201, "{said}");
    assert_eq!(get(&caller, &format!("{session}/sub/%C3%BC.csv")).await.body, small.as_bytes());
    // The download URL needs no token, and -OJ saves the file under its name.
    let listed = get(&caller, &format!("{session}/")).await.json();
    let files = listed["artifacts"].as_array().expect("a list");
    let large_one = files.iter().find(|file| file["filename"] == "large file.bin");
    let url = large_one.expect("listed")["download_url"].as_str().expect("an address");
    let saved = tempfile::tempdir().expect("a folder");
    assert_eq!(curl(saved.path(), &["-OJ", url]).await.0, 200);
    assert!(fs::read(saved.path().join("large file.bin")).expect("saved") == large);
    // An upload that is refused while curl is sending is still read, so that curl gets the answer.
    let url = format!("{}/files/{session}/large%20file.bin", web.base);
    for headers in [&["-H", "If-None-Match: *"][..], &["-H", "If-None-Match: *", "-H", "Expect:"]] {
        let given = [&token[..], headers, &["-T", "large file.bin", &url]].concat();
        let (status, said) = curl(folder.path(), &given).await;
        assert_eq!(status, 412, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_form_with_a_file_is_refused_as_what_it_is() {
    let (web, caller) = start(&[]).await;
    for body in [form(&[]), form(&[("x", None, b"1")]), form(&[("x", Some(""), b"")])] {
        let refused = caller.send("POST", "/files", &FORM, &body).await;
        assert_eq!(refusal(&refused), (400, "invalid_argument".into()));
    }
    let whole = form(&[("x", Some("a"), b"1")]);
    for kind in [
        "",
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=b0undary",
        "é",
    ] {
        let refused = caller.send("POST", "/files", &[("Content-Type", kind)], &whole).await;
        assert!(matches!(refusal(&refused).0, 400 | 415), "{kind}: {}", refused.json());
    }
    let refused = caller.send("POST", "/files", &[], &whole).await;
    assert_eq!(refusal(&refused), (415, "unsupported_media_type".into()));
    for body in [
        &b"no boundary at all"[..],
        b"--b0undary",
        b"--b0undary\r\nContent-Disposition: form-data; name=\"x\"; filename=\"a\"\r\n",
        b"--b0undary\r\nContent-Disposition: form-data; name=\"x\"; filename=\"a\"\r\n\r\nendless",
        b"--b0undary\r\nno header\r\n\r\n1\r\n--b0undary--",
        b"--another\r\nContent-Disposition: form-data; name=\"x\"; filename=\"a\"\r\n\r\n1\r\n--another--",
    ] {
        let refused = caller.send("POST", "/files", &FORM, body).await;
        assert_eq!(refusal(&refused).0, 400, "{}", String::from_utf8_lossy(body));
    }
    for file in ["../a", "/etc/passwd", "C:\\fakepath\\a.csv", ".", "a//b"] {
        let body = form(&[("x", Some(file), b"1")]);
        let refused = caller.send("POST", "/files", &FORM, &body).await;
        assert_eq!(refusal(&refused), (400, "invalid_filename".into()), "{file}");
    }
    let bad_session = caller.send("POST", "/files/a.b/", &FORM, &whole).await;
    assert_eq!(refusal(&bad_session), (400, "invalid_session_id".into()));
    assert_eq!(sessions(&web).await, 0, "none is left of all these");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_with_a_file_that_is_too_large_keeps_what_came_before_it() {
    let (_web, caller) = start(&[("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    let session = name("parts");
    let body = form(&[("x", Some("small"), b"1"), ("y", Some("large"), &noise(1_000_001))]);
    let refused = caller.send("POST", &format!("/files/{session}/"), &FORM, &body).await;
    assert_eq!(refusal(&refused), (413, "upload_too_large".into()));
    let written = refused.json()["files"].as_array().expect("what came before").clone();
    assert_eq!(written.len(), 1, "{written:?}");
    assert_eq!(written[0]["filename"], "small");
    assert_eq!(list(&caller, &session).await, [("small".to_owned(), 1)]);
    // The limit applies to each file, not to their sum.
    let half = noise(600_000);
    let body = form(&[("x", Some("a"), &half), ("y", Some("b"), &half)]);
    let made = caller.send("POST", &format!("/files/{session}/"), &FORM, &body).await;
    assert_eq!(made.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_fails_leaves_no_session_that_nobody_knows() {
    let (web, caller) = start(&[("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    let large = form(&[("x", Some("small"), b"1"), ("y", Some("large"), &noise(1_000_001))]);
    let mut cut = form(&[("x", Some("small"), b"1"), ("y", Some("b"), b"2")]);
    cut.truncate(cut.len() - 16);
    let named = form(&[("x", Some("small"), b"1"), ("y", Some("../b"), b"2")]);
    for body in [large, cut, named] {
        let refused = caller.send("POST", "/files", &FORM, &body).await;
        assert!(refused.status >= 400);
        // Unless the answer names the new session.
        if refused.json().get("session_id").is_none() {
            assert_eq!(sessions(&web).await, 0, "{}", refused.json());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_whose_sender_leaves_leaves_no_session_that_nobody_knows() {
    let (web, _) = start(&[]).await;
    let large = noise(900_000);
    let first = form(&[("x", Some("a"), &large)]);
    let second = form(&[("w", Some("first"), b"1"), ("x", Some("a"), &large)]);
    for body in [first, second] {
        let url = format!("{}/files", web.base);
        let head = [FORM[0], ("Content-Length", "1000000")];
        let stream = http_begin("POST", &url, &head, &body[..500_000]).await;
        until("its session is there", async || sessions(&web).await == 1).await;
        drop(stream);
        until("its session is gone", async || sessions(&web).await == 0).await;
    }
}

#[tokio::test]
async fn a_url_that_replaces_nothing_does_not_once_it_is_changed_either() {
    let (_web, caller) = start(&[]).await;
    let session = name("replaces");
    let url = upload_url(&caller, &session, "a.txt", false).await;
    assert_eq!(http_with("PUT", &url, &[], b"first").await.status, 201);
    for changed in [url.replace("overwrite=false&", ""), url.replace("=false&", "&")] {
        assert_ne!(changed, url);
        assert_eq!(http_with("PUT", &changed, &[], b"second").await.status, 409, "{changed}");
    }
    let read = caller.run(&session, "print(open('a.txt').read())").await;
    assert_eq!(read["stdout"], "first\n");
}

/// Some of these refusals are known before the body arrives, others only from the body.
#[tokio::test(flavor = "multi_thread")]
async fn who_sends_all_before_listening_still_reads_why_it_was_refused() {
    let settings = [
        ("SANDBOX_AUTH_TOKENS", "me:secret"),
        ("SANDBOX_MAX_UPLOAD_BYTES", "30MB"),
        ("SANDBOX_MAX_SESSIONS", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
    ];
    let (web, nobody) = start(&settings).await;
    let caller = web.caller(Some("secret"));
    let session = name("reads");
    assert_eq!(put(&caller, &format!("{session}/a"), b"1").await.status, 201);
    // Python's requests and many other clients send everything before they read.
    let (content, larger) = (noise(20_000_000), noise(31_000_000));
    let target = format!("/files/{session}/a");
    let only_new = [("If-None-Match", "*")];
    let url = upload_url(&caller, &session, "a", false).await;
    let upload = url.strip_prefix(&web.base).expect("ours").to_owned();
    let other = format!("/files/{}/a", name("other"));
    let mut unread = vec![];
    for (what, caller, target, headers, body, status) in [
        ("no token", &nobody, &target, &[][..], &content, 401),
        ("too large", &caller, &target, &[], &larger, 413),
        ("there already", &caller, &target, &only_new, &content, 412),
        ("there already, by address", &nobody, &upload, &[], &content, 409),
        ("no place", &caller, &other, &[], &content, 503),
        ("too large in chunks", &caller, &target, &CHUNKED, &chunked(&larger), 413),
    ] {
        if !reads(&web, caller, "PUT", target, headers, body, status).await {
            unread.push(what);
        }
    }
    assert_eq!(unread, Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_a_whole_form_before_listening_still_reads_why_it_was_refused() {
    let settings = [("SANDBOX_AUTH_TOKENS", "me:secret"), ("SANDBOX_MAX_UPLOAD_BYTES", "10MB")];
    let (web, nobody) = start(&settings).await;
    let caller = web.caller(Some("secret"));
    let session = name("reads");
    assert_eq!(put(&caller, &format!("{session}/a"), b"1").await.status, 201);
    let all = format!("/files/{session}/");
    let content = noise(20_000_000);
    let large = form(&[("x", Some("a"), &content)]);
    let bad_name = form(&[("x", Some("../a"), &content)]);
    let other = [("Content-Type", "application/octet-stream")];
    let only_new = [FORM[0], ("If-None-Match", "*")];
    let mut unread = vec![];
    for (what, caller, headers, body, status) in [
        ("no token", &nobody, &FORM[..], &large, 401),
        ("no form", &caller, &other, &content, 415),
        ("too large", &caller, &FORM, &large, 413),
        ("no such name", &caller, &FORM, &bad_name, 400),
        ("there already", &caller, &only_new, &large, 412),
    ] {
        if !reads(&web, caller, "POST", &all, headers, body, status).await {
            unread.push(what);
        }
    }
    assert_eq!(unread, Vec::<&str>::new());
}

/// Whether a client that sends everything before it reads gets this status.
async fn reads(
    web: &Web,
    caller: &Caller,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    status: u16,
) -> bool {
    let token = caller.token.as_ref().map(|token| format!("Bearer {token}"));
    let mut headers = headers.to_vec();
    headers.extend(token.as_ref().map(|token| ("Authorization", &**token)));
    let length = body.len().to_string();
    if headers.iter().all(|(name, _)| *name != "Transfer-Encoding") {
        headers.push(("Content-Length", &length));
    }
    let mut stream = http_begin(method, &format!("{}{target}", web.base), &headers, &[]).await;
    let mut answer = vec![];
    let exchange = async {
        stream.write_all(body).await?;
        stream.read_to_end(&mut answer).await
    };
    // Clients on Linux can still read an answer after a reset, but other clients stop at the failed write.
    let read = timeout(PATIENCE, exchange).await.expect("in time").is_ok();
    read && answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_before_sending_is_not_told_to_send_what_is_refused() {
    let (web, caller) = start(&[("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    let session = name("expect");
    let url = format!("{}/files/{session}/a", web.base);
    let head = [("Expect", "100-continue"), ("Content-Length", "2000000")];
    let stream = http_begin("PUT", &url, &head, b"").await;
    let answer = String::from_utf8(rest(stream).await).expect("UTF-8");
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let head = [("Expect", "100-continue"), ("Content-Length", "3")];
    let mut stream = http_begin("PUT", &url, &head, b"").await;
    let mut begun = [0; 25];
    timeout(PATIENCE, stream.read_exact(&mut begun)).await.expect("in time").expect("read");
    assert_eq!(&begun, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"yes").await.expect("sent");
    assert!(rest(stream).await.starts_with(b"HTTP/1.1 201"));
    assert_eq!(get(&caller, &format!("{session}/a")).await.body, b"yes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_file_is_not_taken_for_all_of_it() {
    let (_web, caller) = start(&[]).await;
    let session = name("part");
    assert_eq!(put(&caller, &format!("{session}/a"), b"0123456789").await.status, 201);
    // curl -C - sends this header to continue an upload.
    let part = [("Content-Range", "bytes 5-9/10")];
    let refused = caller.send("PUT", &format!("/files/{session}/a"), &part, b"56789").await;
    assert_eq!(refusal(&refused).0, 400, "RFC 9110, section 14.5");
    assert_eq!(get(&caller, &format!("{session}/a")).await.body, b"0123456789");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_not_to_overwrite_is_heard() {
    let (_web, caller) = start(&[]).await;
    let session = name("kept");
    let target = format!("/files/{session}/a?overwrite=false");
    assert_eq!(caller.send("PUT", &target, &[], b"old").await.status, 201);
    let kept = caller.send("PUT", &target, &[], b"new").await;
    assert_eq!(refusal(&kept), (409, "file_exists".into()));
    assert_eq!(get(&caller, &format!("{session}/a")).await.body, b"old");
    let target = format!("/files/{session}/a?overwrite=true");
    assert_eq!(caller.send("PUT", &target, &[], b"new").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_put_to_the_address_that_was_given_for_it() {
    let (web, nobody) = start(&[("SANDBOX_AUTH_TOKENS", "me:secret")]).await;
    let caller = web.caller(Some("secret"));
    let folder = tempfile::tempdir().expect("a folder");
    let content = noise(2_000_000);
    fs::write(folder.path().join("local name.bin"), &content).expect("written");
    let made = caller.call("upload_file", json!({ "filename": "in/a b.bin" })).await.ok();
    let session = made["session_id"].as_str().expect("a new session").to_owned();
    let url = made["upload_url"].as_str().expect("an address");
    let (status, said) = curl(folder.path(), &["-T", "local name.bin", url]).await;
    assert_eq!(status, 201, "{said}");
    let code = "import hashlib; print(hashlib.sha256(open('in/a b.bin', 'rb').read()).hexdigest())";
    assert_eq!(caller.run(&session, code).await["stdout"], digest(&content) + "\n");
    let again = http_with("PUT", url, &[], b"another").await;
    assert_eq!(refusal(&again), (409, "file_exists".into()));
    let url = upload_url(&caller, &session, "in/a b.bin", true).await;
    for content in [b"second", b"third!"] {
        let again = http_with("PUT", &url, &[], content).await;
        assert_eq!((again.status, &again.json()["size_bytes"]), (200, &6.into()));
        assert_eq!(get(&caller, &format!("{session}/in/a%20b.bin")).await.body, content);
    }
    assert_eq!(seen(&caller, &session).await, "['in/a b.bin']");
    // The answer to an upload has a URL at which its sender can download the file.
    let put = http_with("PUT", &url, &[], b"fourth").await.json();
    let download = put["download_url"].as_str().expect("an address");
    assert_eq!(http("GET", download).await.body, b"fourth");
    drop(nobody);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upload_form_shows_a_hostile_filename_as_text() {
    let (web, _) = start(&[]).await;
    let caller = web.caller(None);
    let file = "<img src=x onerror=alert(1)>{session}&\".csv";
    let url = upload_url(&caller, &name("hostile"), file, true).await;
    let page = http_with("GET", &url, &[("Accept", "text/html,*/*;q=0.8")], &[]).await;
    let text = String::from_utf8(page.body).expect("UTF-8");
    assert!(text.contains("&lt;img src=x onerror=alert(1)&gt;{session}&amp;&quot;.csv"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_puts_a_file_by_the_form_behind_the_address() {
    for tokens in ["", "me:secret"] {
        let (web, _) = start(&[("SANDBOX_AUTH_TOKENS", tokens)]).await;
        let caller = web.caller(Some("secret"));
        let session = name("person");
        let url = upload_url(&caller, &session, "wanted.csv", true).await;
        let page = http_with("GET", &url, &[("Accept", "text/html,*/*;q=0.8")], &[]).await;
        assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
        let text = String::from_utf8(page.body.clone()).expect("UTF-8");
        // The form posts to the page's own URL.
        assert!(text.contains("multipart/form-data") && !text.contains("action="), "{text}");
        let policy = page.header("content-security-policy");
        assert!(policy.contains("form-action 'self'") && !policy.contains("sandbox"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for told in ["wanted.csv", &session, "<dd>50MB</dd>"] {
            assert!(text.contains(told), "the form says {told}: {text}");
        }

        for file in ["their name.csv", "../../etc/passwd", "C:\\fakepath\\a.csv", "/x", "other"] {
            let body = form(&[("file", Some(file), file.as_bytes())]);
            let sent = http_with("POST", &url, &[FORM[0], ("Origin", &web.base)], &body).await;
            assert_eq!(sent.status, 200, "{file}: {}", String::from_utf8_lossy(&sent.body));
            assert!(sent.header("content-type").starts_with("text/html"));
            let stored = get(&caller, &format!("{session}/wanted.csv")).await;
            assert_eq!(stored.body, file.as_bytes());
        }
        let read = "print(open('wanted.csv').read(), end='')";
        assert_eq!(caller.run(&session, read).await["stdout"], "other");
        assert_eq!(seen(&caller, &session).await, "['wanted.csv']");
        let two = form(&[("file", Some("a"), b"first"), ("file", Some("b"), b"second")]);
        let sent = http_with("POST", &url, &FORM, &two).await;
        assert_eq!(sent.status, 200);
        assert_eq!(get(&caller, &format!("{session}/wanted.csv")).await.body, b"first");
        let none = http_with("POST", &url, &FORM, &form(&[("file", Some(""), b"")])).await;
        assert_eq!(refusal(&none), (400, "invalid_argument".into()));
        let once = upload_url(&caller, &session, "wanted.csv", false).await;
        let kept = http_with("POST", &once, &FORM, &form(&[("f", Some("a"), b"2")])).await;
        assert_eq!(kept.status, 409);
        assert_eq!(get(&caller, &format!("{session}/wanted.csv")).await.body, b"first");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_sends_the_form_as_from_its_own_site() {
    let (_web, caller) = start(&[]).await;
    let url = upload_url(&caller, &name("browser"), "a.csv", false).await;
    let page = http("GET", &url).await;
    // Browsers post with `Origin: null` from a page without referrers (Fetch, section 3.2), which is not the server's
    // own origin.
    let policy = page.header("referrer-policy");
    assert!(matches!(policy, "same-origin" | "strict-origin" | "origin"), "{policy}");
}
