//! Downloads over HTTP: all files of a session, as an archive or as a list.

use std::{collections::BTreeMap, fs};

use super::uploads::{get, put, refusal, rest, shell, start};
use serde_json::json;
use support::{On, PATIENCE, Response, http_begin, name, on_all, web::*};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

on_all! {
    archives_hold_every_file_as_it_is,
    an_archive_is_never_taken_for_whole_if_its_session_ends,
}

/// The files that an independent reader finds in an archive: a digest for each name.
async fn unpacked(archive: &[u8], format: &str) -> BTreeMap<String, String> {
    const ZIP: &str = "
import hashlib, json, sys, zipfile
with zipfile.ZipFile('archive') as archive:
    assert archive.testzip() is None
    assert all(it.date_time[:3] >= (2020, 1, 1) for it in archive.infolist()), archive.infolist()
    names = archive.namelist()
    assert len(set(names)) == len(names)
    print(json.dumps({name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}))
";
    const TAR: &str = "
import hashlib, json, tarfile
with tarfile.open('archive', 'r:') as archive:
    members = archive.getmembers()
    assert all(member.isfile() and member.mtime > 1_500_000_000 for member in members)
    assert len({member.name for member in members}) == len(members)
    found = {it.name: hashlib.sha256(archive.extractfile(it).read()).hexdigest() for it in members}
    print(json.dumps(found))
";
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("archive"), archive).expect("written");
    let reader = if format == "zip" { ZIP } else { TAR };
    let found = shell(folder.path(), "python3", &["-c", reader]).await;
    serde_json::from_str(&found).expect("JSON")
}

async fn archives_hold_every_file_as_it_is(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    let session = name("archive");
    let long = format!("long/{}/{}.csv", "folder ".repeat(20), "ü".repeat(100));
    let code = format!(
        "
import hashlib, json, os
files = {{f'many/{{n:03}}.txt': str(n).encode() * n for n in range(200)}}
files.update({{'a b.csv': b'x', 'ümlaut/東京/📈.bin': os.urandom(100_000), 'empty': b'',
               'block': b'y' * 512, 'block1': b'y' * 513, {}: b'long',
               'zeroes': bytes(3_000_000), 'a\\'b\"c<>|*?': b'odd'}})
for name, content in files.items():
    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)
    open(name, 'wb').write(content)
os.makedirs('no files here')
os.symlink('a b.csv', 'link')
print(json.dumps({{name: hashlib.sha256(content).hexdigest() for name, content in files.items()}}))
",
        json!(long)
    );
    let printed = caller.run(&session, &code).await;
    assert_eq!(printed["outcome"], "ok", "{printed}");
    let expected: BTreeMap<String, String> =
        serde_json::from_str(printed["stdout"].as_str().expect("text")).expect("JSON");
    assert_eq!(expected.len(), 208);
    for (format, mime) in [("zip", "application/zip"), ("tar", "application/x-tar")] {
        let archive = get(&caller, &format!("{session}/?format={format}")).await;
        assert_eq!((archive.status, archive.header("content-type")), (200, mime));
        assert!(archive.whole);
        let disposition = format!("attachment; filename=\"{session}.{format}\"");
        assert_eq!(archive.header("content-disposition"), disposition);
        assert_eq!(unpacked(&archive.body, format).await, expected, "{format}");
        if format == "tar" {
            assert_eq!(archive.body[156], b'0', "the type of an entry: a regular file");
        }
        let target = format!("/files/{session}?format={format}");
        let head = caller.send("HEAD", &target, &[], &[]).await;
        assert_eq!((head.status, head.header("content-type"), head.body.len()), (200, mime, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_of_nothing_and_one_of_a_large_file_are_whole() {
    let (_web, caller) = start(&[]).await;
    let (empty, large) = (name("empty"), name("large"));
    caller.run(&empty, "pass").await;
    let code = "
import hashlib, os
content = os.urandom(60_000_000)
open('large', 'wb').write(content)
print(hashlib.sha256(content).hexdigest(), end='')
";
    let run = caller.run(&large, code).await;
    for format in ["zip", "tar"] {
        let archive = get(&caller, &format!("{empty}/?format={format}")).await;
        assert_eq!((archive.status, archive.whole), (200, true));
        assert!(unpacked(&archive.body, format).await.is_empty());
        let archive = get(&caller, &format!("{large}/?format={format}")).await;
        assert!(archive.whole);
        let found = unpacked(&archive.body, format).await;
        assert_eq!(json!(found), json!({ "large": run["stdout"] }));
    }
}

/// Begins to download an archive that is far larger than all the buffers on the way, and reads none of it.
async fn begun(web: &Web, session: &str, format: &str) -> TcpStream {
    let url = format!("{}/files/{session}/?format={format}", web.base);
    let mut stream = http_begin("GET", &url, &[], &[]).await;
    let mut head = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("in time").expect("read");
    assert_eq!(&head, b"HTTP/1.1 200");
    stream
}

#[track_caller]
fn is_cut(rest: &[u8]) {
    let response = Response::parse(&[b"HTTP/1.1 200", rest].concat());
    assert_eq!(response.header("transfer-encoding"), "chunked", "so that its end can be seen");
    assert!(!response.whole, "{} bytes", response.body.len());
}

async fn an_archive_is_never_taken_for_whole_if_its_session_ends(on: On) {
    let (web, caller) = Web::open(on, &[]).await;
    for format in ["zip", "tar"] {
        let session = name("cut");
        let code = "import os; open('a', 'wb').write(os.urandom(60_000_000)); open('b', 'w')";
        caller.run(&session, code).await;
        let stream = begun(&web, &session, format).await;
        caller.call("close_session", json!({ "session_id": session })).await.ok();
        is_cut(&rest(stream).await);
        // The archive is cut even if another session has the name by then, with files of the same names.
        caller.run(&session, code).await;
        let stream = begun(&web, &session, format).await;
        caller.call("close_session", json!({ "session_id": session })).await.ok();
        caller.run(&session, code).await;
        is_cut(&rest(stream).await);
        caller.call("close_session", json!({ "session_id": session })).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_is_never_taken_for_whole_if_a_file_changes_or_goes() {
    let (web, caller) = start(&[]).await;
    for format in ["zip", "tar"] {
        for code in ["open('a', 'ab').write(b'more')", "import os; os.remove('b')"] {
            let session = name("changed");
            let make = "import os; open('a', 'wb').write(os.urandom(60_000_000)); open('b', 'w')";
            caller.run(&session, make).await;
            let stream = begun(&web, &session, format).await;
            caller.run(&session, code).await;
            is_cut(&rest(stream).await);
            caller.call("close_session", json!({ "session_id": session })).await.ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_a_session_are_listed() {
    let (web, caller) = start(&[]).await;
    let session = name("listed");
    put(&caller, &format!("{session}/b%20c.csv"), b"1,2").await;
    put(&caller, &format!("{session}/a/x.png"), b"").await;
    for target in ["", "/", "/?format=json", "?format=json", "/?other=zip"] {
        let listed = get(&caller, &format!("{session}{target}")).await;
        assert_eq!((listed.status, listed.header("content-type")), (200, "application/json"));
        let mut listed = listed.json();
        for file in listed["artifacts"].as_array_mut().expect("a list") {
            let modified = file.as_object_mut().expect("an object").remove("modified_at");
            assert!(modified.is_some_and(|at| at.as_str().is_some_and(|at| at.ends_with('Z'))));
        }
        let base = format!("{}/files/{session}", web.base);
        let expected = json!({
            "session_id": session,
            "artifacts": [
                { "path": "/mnt/data/a/x.png", "filename": "a/x.png", "size_bytes": 0,
                  "mime_type": "image/png", "download_url": format!("{base}/a/x.png") },
                { "path": "/mnt/data/b c.csv", "filename": "b c.csv", "size_bytes": 3,
                  "mime_type": "text/csv", "download_url": format!("{base}/b%20c.csv") },
            ],
        });
        assert_eq!(listed, expected, "{target}");
    }
    for format in ["rar", "", "ZIP", "zip%20", "zip/../tar"] {
        let refused = get(&caller, &format!("{session}/?format={format}")).await;
        assert_eq!(refusal(&refused), (400, "invalid_argument".into()), "{format:?}");
    }
    for session in [&*name("unknown"), "a.b", "..", "%C3%A9"] {
        for format in ["", "?format=zip", "?format=tar"] {
            let missing = get(&caller, &format!("{session}/{format}")).await;
            assert_eq!(refusal(&missing), (404, "not_found".into()), "{session}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_left_out_are_not_passed_over_in_silence() {
    let (_web, caller) = start(&[("SANDBOX_PRELOAD", "none")]).await;
    let session = name("many");
    // More names than one answer of the agent can contain.
    let code = "
import os
folder = '/'.join(['f' * 200] * 4)
os.makedirs(folder)
for n in range(9000): open(f'{folder}/{n:0150}', 'w').close()
";
    let made = caller.run(&session, code).await;
    assert_eq!(made["outcome"], "ok", "{made}");
    let listed = get(&caller, &format!("{session}/")).await.json();
    let count = listed["artifacts"].as_array().expect("a list").len();
    let omitted = listed["artifacts_omitted"].as_u64();
    assert!(count == 9000 || omitted.is_some_and(|omitted| omitted > 0), "{count} of 9000");
    for format in ["zip", "tar"] {
        let archive = get(&caller, &format!("{session}/?format={format}")).await;
        let is_all = archive.status == 200
            && archive.whole
            && unpacked(&archive.body, format).await.len() == 9000;
        assert!(is_all || !archive.whole || archive.status != 200, "{format}: neither all nor cut");
    }
}
