//! Files of a session: uploads and downloads through the tools and by URL.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;
use support::{
    Answer, On, Server, assert_fields, http, name, noise, on_all, text, until, until_uploaded,
    url_in, web::Web,
};
use tokio::join;

on_all! {
    new_and_changed_files_are_artifacts_and_no_others,
    a_run_that_fails_has_no_artifacts,
    thousands_of_files_do_not_flood_the_result,
    a_file_of_the_largest_size_round_trips_byte_exact,
    one_byte_too_many_is_refused_and_leaves_nothing,
    an_upload_replaces_only_when_asked_to,
    an_empty_file_is_a_file,
    files_come_and_go_while_a_program_runs,
    a_list_of_hostile_names_still_fits_into_a_message,
    a_picture_comes_as_a_picture_and_once,
    of_what_is_neither_text_nor_a_picture_its_kind_is_told,
    a_file_too_large_for_a_message_comes_as_a_url,
    files_are_listed_by_path_with_all_that_is_known_of_them,
    many_files_are_listed_by_the_page_with_one_url_for_all,
    files_are_served_with_their_types_and_nothing_else_is,
    ; not on wasm: links_and_special_files_are_neither_listed_nor_served,
}

async fn new_and_changed_files_are_artifacts_and_no_others(on: On) {
    let (server, id) = (Server::start(on).await, name("artifacts"));
    server.upload(&id, "in.csv", b"a,b\n").await.ok();
    server.upload(&id, "same.csv", b"a,b\n").await.ok();
    let code = "import os, pathlib\nos.mkdir('plots')\nopen('plots/é 1.png', 'wb').write(b'12345')\n\
                was = os.stat('in.csv')\nopen('in.csv', 'w').write('b,a\\n')\n\
                os.utime('in.csv', ns=(was.st_atime_ns, was.st_mtime_ns))\nopen('same.csv').read()";
    let run = server.run(&id, code).await;
    let artifacts = run["artifacts"].as_array().expect("an array");
    assert_eq!(artifacts.len(), 2, "a file that hides its change is told, an unchanged one is not");
    let url = text(&artifacts[1]["download_url"]);
    assert!(url.contains(&format!("/files/{id}/plots/%C3%A9%201.png?signature=")), "{url}");
    assert_eq!(http("GET", url).await.body, b"12345");
    assert_eq!(artifacts[0]["filename"], "in.csv");
    let mut picture = artifacts[1].clone();
    picture.as_object_mut().expect("an object").remove("download_url");
    assert_eq!(
        picture,
        json!({
            "path": "/mnt/data/plots/é 1.png",
            "filename": "plots/é 1.png",
            "size_bytes": 5,
            "mime_type": "image/png",
        })
    );
}

async fn a_run_that_fails_has_no_artifacts(on: On) {
    let server = Server::start(on).await;
    let run = server.run(&name("failed"), "open('half.csv', 'w').write('x')\n1/0").await;
    assert_eq!((&run["exit_code"], &run["artifacts"]), (&json!(1), &json!([])));
}

async fn thousands_of_files_do_not_flood_the_result(on: On) {
    let (server, id) = (Server::start(on).await, name("many"));
    let run = server.run(&id, "for i in range(6000): open(f'{i:05}' + 'x' * 100, 'w')").await;
    assert_eq!(run["artifacts"].as_array().map(Vec::len), Some(50));
    assert_eq!(run["artifacts_omitted"], 5950);
    let last = json!({ "session_id": id, "offset": 5990 });
    let last = server.call("list_artifacts", last).await.ok();
    assert_eq!((&last["total"], last.get("next_offset")), (&json!(6000), None));
    assert_eq!(last["artifacts"].as_array().map(Vec::len), Some(10));
}

async fn a_file_of_the_largest_size_round_trips_byte_exact(on: On) {
    let (server, id) = (Server::start(on).await, name("largest"));
    let content = noise(50_000_000);
    let uploaded = server.upload(&id, "big.bin", &content).await.ok();
    assert_fields!(uploaded, { "path": "/mnt/data/big.bin", "size_bytes": 50_000_000 });

    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let response = http("GET", text(&listed["artifacts"][0]["download_url"])).await;
    assert_eq!(response.header("content-length"), "50000000");
    assert!(response.body == content, "what comes down is what went up");
}

async fn one_byte_too_many_is_refused_and_leaves_nothing(on: On) {
    let (server, id) = (Server::start(on).await, name("too-large"));
    server.upload(&id, "small", b"x").await.ok();
    let refused = server.upload(&id, "big.bin", &vec![7; 50_000_001]).await;
    assert_eq!(refused.error(), "upload_too_large");
    assert_eq!(server.files(&id).await, [("small".to_owned(), 1)]);
    // A refused upload that would have created a session creates none.
    let refused = server.upload(&name("none"), "big.bin", &vec![7; 50_000_001]).await;
    assert_eq!(refused.error(), "upload_too_large");
}

async fn an_upload_replaces_only_when_asked_to(on: On) {
    let (server, id) = (Server::start(on).await, name("replace"));
    server.upload(&id, "raw/sales.csv", b"old").await.ok();
    let refused = server.upload(&id, "raw/sales.csv", b"new").await;
    assert_eq!(refused.error(), "file_exists");
    assert_eq!(
        refused.json["message"],
        "raw/sales.csv already exists. Set overwrite=true to replace."
    );
    assert_eq!(read(&server, &id, "raw/sales.csv").await, b"old");
    let arguments = json!({
        "session_id": id,
        "filename": "raw/sales.csv",
        "content_base64": STANDARD.encode("newer"),
        "overwrite": true,
    });
    server.call("upload_file", arguments).await.ok();
    assert_eq!(read(&server, &id, "raw/sales.csv").await, b"newer");
}

async fn an_empty_file_is_a_file(on: On) {
    let (server, id) = (Server::start(on).await, name("empty"));
    server.upload(&id, "empty.csv", b"").await.ok();
    assert_eq!(server.files(&id).await, [("empty.csv".to_owned(), 0)]);
    assert_eq!(read(&server, &id, "empty.csv").await, b"");
}

async fn files_come_and_go_while_a_program_runs(on: On) {
    let (server, id) = (Server::start(on).await, name("beside"));
    // The file gets its name when it is complete.
    let make = "import os\nopen('new', 'w').write('while running')\nos.rename('new', 'made')\n";
    let code = format!("{make}{}", until_uploaded("go"));
    let uploads = async {
        until("the program made its file", async || {
            server.files_if_any(&id).await.iter().any(|(name, _)| name == "made")
        })
        .await;
        assert_eq!(read(&server, &id, "made").await, b"while running");
        server.upload(&id, "go", b"").await.ok();
    };
    let (run, ()) = join!(server.run(&id, &code), uploads);
    assert_eq!(run["stdout"], "seen\n");
}

async fn a_list_of_hostile_names_still_fits_into_a_message(on: On) {
    let (server, id) = (Server::start(on).await, name("names"));
    // The names that grow most when they are written as JSON, and again as JSON in a text.
    let code = "for i in range(9000): open('\"' * 250 + str(i), 'w')";
    assert_eq!(server.run(&id, code).await["outcome"], "ok");
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await;
    let len = listed.raw.to_string().len();
    assert!(len < 150_000, "{len} bytes");
    let listed = listed.ok();
    let total = listed["total"].as_u64().expect("a count");
    assert!(total == 9000 || listed["incomplete"] == true, "{total}");
    let last = json!({ "session_id": id, "offset": total - 1 });
    let last = server.call("list_artifacts", last).await.ok();
    assert_eq!(last["artifacts"].as_array().map(Vec::len), Some(1));
    // A page of names with the maximum length has fewer entries.
    let code = "import os, shutil\nfor name in os.listdir(): os.remove(name)\n\
                folder = '/'.join(['é' * 120] * 4)\nos.makedirs(folder)\n\
                for n in range(60): open(f'{folder}/{n:02}', 'w')";
    assert_eq!(server.run(&id, code).await["outcome"], "ok");
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    assert!(listed.to_string().chars().count() < 40_000);
    assert_eq!((&listed["total"], server.files(&id).await.len()), (&json!(60), 60));
}

async fn a_picture_comes_as_a_picture_and_once(on: On) {
    let (server, id) = (Server::start(on).await, name("picture"));
    let bytes = STANDARD.decode(PNG).expect("base64");
    server.upload(&id, "chart.png", &bytes).await.ok();
    for path in ["chart.png", "/mnt/data/chart.png"] {
        let answer = server.call("read_artifact", json!({ "session_id": id, "path": path })).await;
        let blocks = answer.raw["content"].as_array().expect("blocks").clone();
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[0], json!({ "type": "image", "data": PNG, "mimeType": "image/png" }));
        let metadata = answer.ok();
        assert_eq!(
            metadata,
            json!({
                "session_id": id,
                "path": "/mnt/data/chart.png",
                "filename": "chart.png",
                "mime_type": "image/png",
                "size_bytes": bytes.len(),
            })
        );
    }
    let arguments = json!({ "session_id": id, "path": "chart.png", "format": "base64" });
    let answer = server.call("read_artifact", arguments).await;
    assert_eq!(answer.raw["content"].as_array().map(Vec::len), Some(1));
    let whole = answer.ok();
    assert_eq!((&whole["content_base64"], whole.get("next_offset")), (&json!(PNG), None));
}

async fn of_what_is_neither_text_nor_a_picture_its_kind_is_told(on: On) {
    let (server, id) = (Server::start(on).await, name("kind"));
    let content = [b"%PDF-1.7\n", &noise(2_500_000)[..], b"%%EOF\n"].concat();
    server.upload(&id, "report.pdf", &content).await.ok();
    let answer =
        server.call("read_artifact", json!({ "session_id": id, "path": "report.pdf" })).await;
    let json = answer.ok();
    let url = text(&json["download_url"]).to_owned();
    assert_eq!(
        json,
        json!({
            "session_id": id,
            "path": "/mnt/data/report.pdf",
            "filename": "report.pdf",
            "mime_type": "application/pdf",
            "size_bytes": content.len(),
            "kind": "PDF document",
            "advice": "Open it in run_python, pypdf.PdfReader(\"report.pdf\"); or give the person its \
                       download_url.",
            "download_url": url,
        })
    );
    assert!(http("GET", &url).await.body == content);
    let missing =
        server.call("read_artifact", json!({ "session_id": id, "path": "other.pdf" })).await;
    assert_eq!(missing.error(), "not_found");
}

async fn a_file_too_large_for_a_message_comes_as_a_url(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_ARTIFACT_READ_BYTES", "2MB")]).await;
    let id = name("large");
    server.upload(&id, "chart.png", &vec![7; 2_000_001]).await.ok();
    let refused =
        server.call("read_artifact", json!({ "session_id": id, "path": "chart.png" })).await;
    assert_eq!(refused.error(), "artifact_too_large");
    assert_eq!(
        refused.json["message"],
        "chart.png is 2.1MB, exceeds 2MB limit. Use download_url instead."
    );
    assert_eq!(refused.json["size_bytes"], 2_000_001);
    let response = http("GET", text(&refused.json["download_url"])).await;
    assert_eq!(response.body.len(), 2_000_001);
}

async fn files_are_listed_by_path_with_all_that_is_known_of_them(on: On) {
    let (server, id) = (Server::start(on).await, name("list"));
    for name in ["b.csv", "a/z.txt", "a.png", "a/b/c.parquet"] {
        server.upload(&id, name, b"123").await.ok();
    }
    server.run(&id, "import os; os.utime('b.csv', (0, 1.5))").await;
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let artifacts = listed["artifacts"].as_array().expect("an array");
    let names: Vec<_> = artifacts.iter().map(|file| text(&file["filename"])).collect();
    assert_eq!(names, ["a.png", "a/b/c.parquet", "a/z.txt", "b.csv"]);
    let last = &artifacts[3];
    assert_eq!(
        *last,
        json!({
            "path": "/mnt/data/b.csv",
            "filename": "b.csv",
            "size_bytes": 3,
            "mime_type": "text/csv",
            "modified_at": "1970-01-01T00:00:01Z",
            "download_url": last["download_url"],
        })
    );
    assert_eq!(http("GET", text(&last["download_url"])).await.body, b"123");
    assert_eq!((&listed["total"], listed.get("next_offset")), (&json!(4), None));
    assert_eq!(listed.get("download_url_template"), None, "each has its own");
}

async fn many_files_are_listed_by_the_page_with_one_url_for_all(on: On) {
    let (server, id) = (Server::start(on).await, name("pages"));
    let code = "import os\nos.mkdir('é 1')\nfor n in range(118): open(f'{n:03}.txt', 'w').write(str(n))\n\
                for name in 'a#b?c%20d.txt', 'é 1/z.txt': open(name, 'w').write(name)";
    assert_eq!(server.run(&id, code).await["outcome"], "ok");
    let list = async |more: serde_json::Value| {
        let mut arguments = json!({ "session_id": id });
        arguments
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("one").clone());
        server.call("list_artifacts", arguments).await
    };
    let first = list(json!({})).await.ok();
    assert_eq!(first["artifacts"].as_array().map(Vec::len), Some(50));
    assert_eq!((&first["total"], &first["next_offset"]), (&json!(120), &json!(50)));
    assert!(
        text(&first["page_url"]).contains(&id) && text(&first["download_all_url"]).contains(&id)
    );
    let fields = ["filename", "mime_type", "modified_at", "path", "size_bytes"].map(str::to_owned);
    let known = first["artifacts"][7].as_object().map(|file| file.keys().cloned().collect());
    assert_eq!(known, Some(fields.to_vec()));
    let third = list(json!({ "offset": 100 })).await.ok();
    assert_eq!(third["artifacts"].as_array().map(Vec::len), Some(20));
    assert_eq!((&third["total"], third.get("next_offset")), (&json!(120), None));
    assert_eq!((third.get("page_url"), third.get("download_all_url")), (None, None), "told once");
    for (page, file, content) in [
        (&first, "007.txt", "7"),
        (&third, "a#b?c%20d.txt", "a#b?c%20d.txt"),
        (&third, "é 1/z.txt", "é 1/z.txt"),
    ] {
        let response = http("GET", &url_in(page, file)).await;
        assert_eq!((response.status, response.body), (200, content.as_bytes().to_vec()), "{file}");
    }
    for offset in [120, 1_u64 << 40] {
        let behind = list(json!({ "offset": offset })).await.ok();
        assert_eq!((&behind["artifacts"], &behind["total"]), (&json!([]), &json!(120)));
        assert_eq!(behind.get("next_offset"), None);
    }
    assert_eq!(list(json!({ "offset": -1 })).await.ok()["next_offset"], 50, "as if it was 0");
    for wrong in [json!(0.5), json!([])] {
        assert_eq!(list(json!({ "offset": wrong })).await.error(), "invalid_argument");
    }
}

async fn links_and_special_files_are_neither_listed_nor_served(on: On) {
    // Without tokens, so that the test can request every path.
    let web = Web::start(on, &[]).await;
    let server = web.caller(None);
    let id = name("links");
    let code = "import os\nos.symlink('/etc/passwd', 'passwd')\nos.symlink('/', 'root')\n\
                os.mkfifo('fifo')\nopen('a.txt', 'w').write('a')\nos.mkdir('folder')\n\
                os.symlink('a.txt', 'b.txt')\nopen('line\\nbreak.txt', 'w')\n\
                open(b'\\xff.txt', 'w')";
    let run = server.run(&id, code).await;
    assert_eq!(run["artifacts"].as_array().map(Vec::len), Some(1), "{run}");
    assert_eq!(server.files(&id).await, [("a.txt".to_owned(), 1)]);
    for (path, code) in [
        ("passwd", "invalid_path"),
        ("root/etc/passwd", "invalid_path"),
        ("fifo", "not_found"),
        ("folder", "not_found"),
        ("b.txt", "invalid_path"),
    ] {
        let refused = server.call("read_artifact", json!({ "session_id": id, "path": path })).await;
        assert_eq!(refused.error(), code, "{path}");
        let target = format!("/files/{id}/{path}");
        assert_eq!(server.send("GET", &target, &[], &[]).await.status, 404, "{path}");
    }
    let refused = server.upload(&id, "root/tmp/out.txt", b"x").await;
    assert_eq!(refused.error(), "invalid_filename");
}

async fn files_are_served_with_their_types_and_nothing_else_is(on: On) {
    let web = Web::start(on, &[]).await;
    let server = web.caller(None);
    let id = name("http");
    server.upload(&id, "ventes été.csv", b"a;b\n").await.ok();
    server.upload(&id, "page.html", b"<script>").await.ok();
    let url = format!("{}/files/{id}/ventes%20%C3%A9t%C3%A9.csv", web.base);
    let response = http("GET", &url).await;
    assert_eq!((response.status, &response.body[..]), (200, &b"a;b\n"[..]));
    assert_eq!(response.header("content-type"), "text/csv; charset=utf-8");
    assert_eq!(response.header("content-length"), "4");
    assert_eq!(
        response.header("content-disposition"),
        "attachment; filename=\"ventes _t_.csv\"; filename*=UTF-8''ventes%20%C3%A9t%C3%A9.csv"
    );
    assert_eq!(response.header("x-content-type-options"), "nosniff");
    // The content type tells browsers the encoding of the text.
    for (path, content, charset) in [
        ("utf16.csv", &b"\xFF\xFEa\0;\0b\0\n\0"[..], "utf-16le"),
        ("cyrillic.csv", b"\xC4\xE0\xF2\xE0;\xCA\xE0\xED\xE0\xEB\n1;\xDF\xED\xE4\xE5\xEA\xF1 \xC4\xE8\xF0\xE5\xEA\xF2\n", "windows-1251"),
        ("empty.csv", b"", "utf-8"),
    ] {
        server.upload(&id, path, content).await.ok();
        let response = http("GET", &format!("{}/files/{id}/{path}", web.base)).await;
        assert_eq!((response.status, &response.body[..]), (200, content), "{path}");
        assert_eq!(response.header("content-type"), format!("text/csv; charset={charset}"));
    }
    // So it does for a text whose type is not one of text, unless that is UTF-8.
    for (path, content, kind) in [
        ("a.json", &b"\xFF\xFE{\0}\0"[..], "application/json; charset=utf-16le"),
        ("b.json", b"{}", "application/json"),
        ("a.bin", b"\x00\x01\xFF\xFE\x80", "application/octet-stream"),
    ] {
        server.upload(&id, path, content).await.ok();
        let response = http("GET", &format!("{}/files/{id}/{path}", web.base)).await;
        assert_eq!((response.header("content-type"), &response.body[..]), (kind, content));
    }
    assert!(response.header("content-security-policy").starts_with("sandbox"));
    assert!(response.header("last-modified").ends_with(" GMT"));
    assert!(response.header("etag").starts_with('"'));

    let head = http("HEAD", &url).await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "4", 0));
    assert_eq!(http("DELETE", &url).await.status, 405);
    for path in [
        "missing.csv",
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2fetc%2fpasswd",
        "a%00b",
        "%ff",
        "page.html/below",
    ] {
        let response = server.send("GET", &format!("/files/{id}/{path}"), &[], &[]).await;
        assert!(matches!(response.status, 400 | 404), "{path}: {}", response.status);
    }
    let base = &web.base;
    let health = http("GET", &format!("{base}/health")).await;
    assert_eq!(health.status, 200);
    assert_eq!(health.json(), json!({ "status": "healthy", "server": "llm-sandbox" }));
    assert_eq!(http("GET", &format!("{base}/ready")).await.status, 200);
    assert_eq!(http("GET", &format!("{base}/files/no%20session/a")).await.status, 404);
    assert_eq!(http("GET", &format!("{base}/elsewhere")).await.status, 404);
}

/// The smallest valid PNG.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

async fn read(server: &Server, id: &str, path: &str) -> Vec<u8> {
    let arguments = json!({ "session_id": id, "path": path, "format": "base64" });
    let answer: Answer = server.call("read_artifact", arguments).await;
    STANDARD.decode(text(&answer.ok()["content_base64"])).expect("base64")
}
