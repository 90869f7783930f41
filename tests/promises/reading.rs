//! Files and outputs as a model reads them: pictures as pictures, texts in pages, other files in base64, and no message
//! that a client refuses. Everything is checked over both transports.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::format_collect,
    reason = "a test may panic, and need not be fast"
)]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use image::{ImageFormat, RgbImage};
use serde_json::{Value, json};
use support::{Answer, On, Server, assert_fields, http, name, web::*};

/// A client and its server.
enum Client {
    Stdio(Server),
    Http(Caller, #[expect(dead_code, reason = "it lives as long")] Web),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Over {
    Stdio,
    Http,
}

/// The size of a message from which on some clients refuse it.
const TOO_LONG: usize = 1 << 20;

impl Client {
    async fn start(over: Over) -> Self {
        Self::start_with(over, &[]).await
    }

    async fn start_with(over: Over, settings: &[(&str, &str)]) -> Self {
        match over {
            Over::Stdio => Self::Stdio(Server::start_with(On::Local, settings).await),
            Over::Http => {
                let web = Web::start(On::Local, settings).await;
                Self::Http(web.caller(None), web)
            }
        }
    }

    async fn call(&self, tool: &str, arguments: Value) -> Answer {
        match self {
            Self::Stdio(server) => server.call(tool, arguments).await,
            Self::Http(caller, _) => caller.call(tool, arguments).await,
        }
    }

    async fn run(&self, session: &str, code: &str) -> Value {
        self.call("run_python", json!({ "session_id": session, "code": code })).await.ok()
    }

    async fn upload(&self, session: &str, name: &str, content: &[u8]) {
        let content = STANDARD.encode(content);
        let arguments =
            json!({ "session_id": session, "filename": name, "content_base64": content });
        self.call("upload_file", arguments).await.ok();
    }

    /// Reads a file, with more arguments.
    async fn read(&self, session: &str, path: &str, more: Value) -> Answer {
        let mut arguments = json!({ "session_id": session, "path": path });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.call("read_artifact", arguments).await
    }

    /// All pages of a tool that answers in pages, from the first.
    async fn pages(&self, tool: &str, arguments: Value) -> Vec<Value> {
        let (mut pages, mut arguments) = (vec![], arguments);
        loop {
            let page = self.call(tool, arguments.clone()).await.ok();
            let next = page.get("next_offset").cloned();
            let here = page["offset"].as_u64().unwrap();
            pages.push(page);
            let Some(next) = next else { return pages };
            assert!(next.as_u64().unwrap() > here, "it goes on");
            assert!(pages.len() < 10_000, "it ends");
            arguments["offset"] = next;
        }
    }
}

/// Makes two tests of each function: one over standard input and output, one over HTTP.
macro_rules! over_both {
    ($($test:ident),* $(,)?) => {
        mod stdio {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test(super::Over::Stdio).await })*
        }
        mod http {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test(super::Over::Http).await })*
        }
    };
}

over_both!(
    a_text_comes_by_the_page_and_all_pages_are_the_text,
    pages_of_any_length_cut_no_character,
    what_a_file_is_decides_how_it_comes,
    a_text_that_is_not_utf8_is_shown_all_the_same,
    a_file_comes_in_base64_by_the_page_and_only_if_asked_to,
    an_empty_file_is_empty_in_every_way,
    what_is_behind_the_end_is_nothing,
    where_and_how_much_must_make_sense,
    no_part_of_a_file_is_larger_than_a_message,
    a_text_larger_than_any_message_still_comes_by_the_page,
    a_picture_is_read_as_a_picture,
    what_is_only_called_a_picture_is_read_as_what_it_is,
    a_cut_output_is_read_on_from_where_it_was_cut,
    standard_error_is_read_on_as_well,
    an_output_that_is_not_kept_is_not_found,
);

/// The joined texts of pages.
fn texts(pages: &[Value]) -> String {
    pages.iter().map(|page| page["text"].as_str().unwrap()).collect()
}

async fn a_text_comes_by_the_page_and_all_pages_are_the_text(over: Over) {
    let client = Client::start(over).await;
    let id = name("pages");
    let whole: String = (0..9000).map(|n| format!("{n},été,東京,😀\n")).collect();
    client.upload(&id, "cities.csv", whole.as_bytes()).await;
    let pages =
        client.pages("read_artifact", json!({ "session_id": id, "path": "cities.csv" })).await;
    assert!(pages.len() > 5);
    assert!(texts(&pages) == whole, "pages together are the file");
    for page in &pages {
        assert!(page["text"].as_str().unwrap().len() <= 30_000);
        assert_eq!((&page["mime_type"], page.get("not_utf8")), (&json!("text/csv"), None));
        assert_eq!((page.get("content_base64"), &page["size_bytes"]), (None, &json!(whole.len())));
    }
    assert_eq!(pages[0]["offset"], 0);

    // A short text has one page.
    client.upload(&id, "note.md", "# Résumé\n".as_bytes()).await;
    let page = client.read(&id, "note.md", json!({})).await.ok();
    assert_eq!((&page["text"], page.get("next_offset")), (&json!("# Résumé\n"), None));
    assert_eq!((&page["offset"], &page["filename"]), (&json!(0), &json!("note.md")));
}

async fn pages_of_any_length_cut_no_character(over: Over) {
    let client = Client::start(over).await;
    let id = name("borders");
    let whole = "aé東😀".repeat(9);
    client.upload(&id, "a.txt", whole.as_bytes()).await;
    for length in [4, 5, 6, 7, 8, 11, 90] {
        let arguments = json!({ "session_id": id, "path": "a.txt", "length": length });
        let pages = client.pages("read_artifact", arguments).await;
        assert!(texts(&pages) == whole, "{length}");
        assert!(pages.iter().all(|page| page["text"].as_str().unwrap().len() <= length));
    }
    // A length that is shorter than a character: each page has one byte.
    let arguments = json!({ "session_id": id, "path": "a.txt", "length": 1 });
    assert_eq!(client.pages("read_artifact", arguments).await.len(), whole.len());
}

async fn what_a_file_is_decides_how_it_comes(over: Over) {
    let client = Client::start(over).await;
    let id = name("kinds");
    let text = "key = 'value'\n".as_bytes();
    let binary = &b"\0\x01\x02binary"[..];
    for name in ["a.txt", "a.json", "a.py", "a.html", "a.xml", "a.svg", "a.yaml", "a.toml", "a.sql"]
    {
        client.upload(&id, name, text).await;
        let read = client.read(&id, name, json!({})).await.ok();
        assert_eq!(read["text"], "key = 'value'\n", "{name}");
    }
    for name in ["Makefile", "a.unknown-kind", "result.cfg2"] {
        client.upload(&id, name, text).await;
        let read = client.read(&id, name, json!({})).await.ok();
        assert_eq!(read["text"], "key = 'value'\n", "{name} is text, if nothing says so");
        assert_eq!(read["mime_type"], "application/octet-stream", "{name}");
    }
    for name in ["model.bin2", "core", "a.xlsx", "a.pdf", "a.parquet", "a.zip"] {
        client.upload(&id, name, binary).await;
        let read = client.read(&id, name, json!({})).await.ok();
        let kind =
            if name == "model.bin2" || name == "core" { "binary data" } else { "not a valid " };
        assert!(read["kind"].as_str().unwrap().starts_with(kind), "{read}");
        assert!(read["advice"].as_str().unwrap().contains("run_python"), "{read}");
        let url = read["download_url"].as_str().unwrap();
        assert!(http("GET", url).await.body == binary);
        let whole = client.read(&id, name, json!({ "format": "base64" })).await.ok();
        assert_eq!(whole["content_base64"], STANDARD.encode(binary), "{name}");
        for field in ["text", "content_base64", "offset", "next_offset"] {
            assert_eq!(read.get(field), None, "{name}");
        }
    }
    // The content decides the kind, not the name.
    for (name, start, kind) in [
        ("book.xlsx", &b"PK\x03\x04\0PK\x05\x06"[..], "Excel workbook"),
        ("half.xlsx", b"PK\x03\x04\0", "cut-off Excel workbook"),
        ("a.docx", b"PK\x03\x04\0PK\x05\x06", "Word document"),
        ("r.pdf", b"%PDF-1.7\n\0%%EOF\n", "PDF document"),
        ("r.csv", b"%PDF-1.7\n%%EOF\n", "PDF document"),
        ("t.parquet", b"PAR1\0PAR1", "Parquet file"),
        ("half.parquet", b"PAR1\0", "cut-off Parquet file"),
        ("data.db", b"SQLite format 3\0", "SQLite database"),
        ("m.pkl", b"\x80\x04\0", "pickle"),
        ("no-ending", b"SQLite format 3\0", "SQLite database"),
        (
            "wrong.pdf",
            b"PK\x03\x04\0PK\x05\x06",
            "ZIP archive, not a PDF document as its name says",
        ),
        ("sales.csv", b"\x1F\x8B\x08\0\0\0\0\0\0\x03", "gzip file"),
        ("book.csv", b"PK\x03\x04\x14\0\x06\0xl/workbook.xmlPK\x05\x06", "Excel workbook"),
    ] {
        client.upload(&id, name, start).await;
        assert_eq!(client.read(&id, name, json!({})).await.ok()["kind"], kind, "{name}");
    }
    // A text whose first four kilobytes end within a character.
    let long = format!("a{}", "é".repeat(4000));
    client.upload(&id, "long", long.as_bytes()).await;
    assert_eq!(client.read(&id, "long", json!({})).await.ok()["text"], long);
    // The format `text` shows every file as text.
    let read = client.read(&id, "core", json!({ "format": "text" })).await.ok();
    assert_eq!((&read["text"], read.get("not_utf8")), (&json!("\0\u{1}\u{2}binary"), None));
    client.upload(&id, "bytes.png", b"\x89PNG\xFF").await;
    let read = client.read(&id, "bytes.png", json!({ "format": "text" })).await.ok();
    assert_eq!((&read["text"], &read["not_utf8"]), (&json!("\u{FFFD}PNG\u{FFFD}"), &json!(true)));
}

async fn a_text_that_is_not_utf8_is_shown_all_the_same(over: Over) {
    let client = Client::start(over).await;
    let id = name("latin");
    // The encoding of spreadsheets on Windows.
    let line = b"Gr\xF6\xDFe;Stra\xDFe;\xA4\r\n";
    client.upload(&id, "latin.csv", &line.repeat(3000)).await;
    let pages =
        client.pages("read_artifact", json!({ "session_id": id, "path": "latin.csv" })).await;
    let all = texts(&pages);
    assert_eq!(all, "Größe;Straße;¤\r\n".repeat(3000));
    assert!(pages.len() > 1 && pages.iter().all(|page| page["encoding"] == "cp1252"));
    assert!(pages.iter().all(|page| page.get("not_utf8").is_none()));
    assert!(pages.iter().all(|page| page["encoding_is_guess"] == true));
    // In the encoding of Chinese editions: "日期,渠道", "抖音" and "微信".
    let rows = b"\xC8\xD5\xC6\xDA,\xC7\xFE\xB5\xC0\n1,\xB6\xB6\xD2\xF4\n2,\xCE\xA2\xD0\xC5\n";
    client.upload(&id, "gbk.csv", &rows.repeat(3)).await;
    let read = client.read(&id, "gbk.csv", json!({})).await.ok();
    assert_eq!(read["text"], "日期,渠道\n1,抖音\n2,微信\n".repeat(3));
    assert_eq!((&read["encoding"], &read["encoding_is_guess"]), (&json!("gb18030"), &json!(true)));
    // A byte order mark determines the encoding, and is not part of the text.
    client.upload(&id, "mark.csv", b"\xEF\xBB\xBFOrder ID\n1\n").await;
    let read = client.read(&id, "mark.csv", json!({})).await.ok();
    assert_eq!((&read["text"], &read["encoding"]), (&json!("Order ID\n1\n"), &json!("utf-8-sig")));
    assert_eq!(read.get("encoding_is_guess"), None);
    // The other export format of spreadsheets: UTF-16.
    let text = "Größe;東京;😀\n".repeat(3000);
    for (path, big) in [("little.csv", false), ("big.csv", true), ("no-ending", false)] {
        let units = std::iter::once(0xFEFF).chain(text.encode_utf16());
        let bytes = units.map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() });
        client.upload(&id, path, &bytes.flatten().collect::<Vec<_>>()).await;
        for length in [29_999, 30_000, 41] {
            let arguments = json!({ "session_id": id, "path": path, "length": length });
            if length < 100 {
                // Only one page of this length, because there are too many of them.
                let page = client.call("read_artifact", arguments).await.ok();
                assert!(text.starts_with(page["text"].as_str().unwrap()), "{page}");
                continue;
            }
            let pages = client.pages("read_artifact", arguments).await;
            assert!(texts(&pages) == text, "{path} by {length}");
            assert!(pages.iter().all(|page| page["encoding"] == "utf-16"), "{path}");
        }
    }
    // A UTF-8 text with one invalid byte stays UTF-8.
    client
        .upload(&id, "torn.txt", "aé\n".repeat(9).as_bytes().strip_suffix(b"\xA9\n").unwrap())
        .await;
    let torn = client.read(&id, "torn.txt", json!({})).await.ok();
    assert_eq!((&torn["not_utf8"], torn.get("encoding")), (&json!(true), None));
}

async fn a_file_comes_in_base64_by_the_page_and_only_if_asked_to(over: Over) {
    let client = Client::start(over).await;
    let id = name("base64");
    let content: Vec<u8> = (0..100_001_u32).flat_map(u32::to_le_bytes).take(250_001).collect();
    for path in ["data.bin", "data.csv", "data.png"] {
        client.upload(&id, path, &content).await;
        let first = client.read(&id, path, json!({ "format": "base64" })).await.ok();
        assert_eq!(
            (&first["offset"], &first["next_offset"]),
            (&json!(0), &json!(30_000)),
            "{path}"
        );
        let longest = json!({ "format": "base64", "length": 250_001 });
        let whole = client.read(&id, path, longest).await.ok();
        assert!(STANDARD.decode(whole["content_base64"].as_str().unwrap()).unwrap() == content);
        assert_eq!(whole.get("next_offset"), None, "{path}");
        for more in [
            json!({}),
            json!({ "offset": 0 }),
            json!({ "length": 100_000 }),
            json!({ "offset": 7 }),
        ] {
            let mut arguments = json!({ "session_id": id, "path": path, "format": "base64" });
            arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let parts = client.pages("read_artifact", arguments).await;
            let part =
                |part: &Value| STANDARD.decode(part["content_base64"].as_str().unwrap()).unwrap();
            let together: Vec<u8> = parts.iter().flat_map(part).collect();
            let start = usize::try_from(more["offset"].as_u64().unwrap_or(0)).unwrap();
            assert!(together == content[start..], "{path} {more}");
            let len = more["length"].as_u64().unwrap_or(30_000);
            assert_eq!(parts.len() as u64, (content.len() - start).div_ceil(len as usize) as u64);
        }
    }
    let part = json!({ "format": "base64", "offset": 1, "length": 2.0 });
    let part = client.read(&id, "data.bin", part).await.ok();
    assert_eq!(part["content_base64"], STANDARD.encode(&content[1..3]));
    assert_eq!((&part["offset"], &part["next_offset"]), (&json!(1), &json!(3)));
    // A part of a binary file is no more useful as text than the whole, so it is only described.
    let part = client.read(&id, "data.bin", json!({ "offset": 1, "length": 2 })).await.ok();
    assert_eq!((part.get("content_base64"), &part["kind"]), (None, &json!("binary data")));
}

async fn an_empty_file_is_empty_in_every_way(over: Over) {
    let client = Client::start(over).await;
    let id = name("empty");
    for (path, field, content) in [
        ("a.csv", "text", ""),
        ("a", "text", ""),
        ("a.pdf", "kind", "empty file"),
        ("a.png", "kind", "empty file"),
    ] {
        client.upload(&id, path, b"").await;
        let read = client.read(&id, path, json!({})).await.ok();
        assert_eq!((&read[field], read.get("next_offset")), (&json!(content), None), "{path}");
        assert_eq!(read["size_bytes"], 0);
        for more in [json!({ "format": "text" }), json!({ "format": "base64" })] {
            let field = if more["format"] == "text" { "text" } else { "content_base64" };
            assert_eq!(client.read(&id, path, more).await.ok()[field], "", "{path}");
        }
    }
}

async fn what_is_behind_the_end_is_nothing(over: Over) {
    let client = Client::start(over).await;
    let id = name("end");
    client.upload(&id, "a.txt", b"12345").await;
    for offset in [5_u64, 6, 1 << 30, 1 << 53] {
        for (format, field) in [("text", "text"), ("base64", "content_base64")] {
            let read = client.read(&id, "a.txt", json!({ "format": format, "offset": offset }));
            let read = read.await.ok();
            assert_eq!((&read[field], read.get("next_offset")), (&json!(""), None), "{offset}");
            assert_eq!((&read["offset"], &read["size_bytes"]), (&json!(offset), &json!(5)));
        }
    }
    let read = client.read(&id, "a.txt", json!({ "offset": 4, "length": 100 })).await.ok();
    assert_eq!((&read["text"], read.get("next_offset")), (&json!("5"), None));
}

async fn where_and_how_much_must_make_sense(over: Over) {
    let client = Client::start(over).await;
    let id = name("bad");
    client.upload(&id, "a.txt", b"12345").await;
    for wrong in [
        json!({ "offset": 0.5 }),
        json!({ "offset": "first" }),
        json!({ "length": 1.5 }),
        json!({ "length": [] }),
        json!({ "format": "image" }),
        json!({ "format": 1 }),
        json!({ "page": 1 }),
    ] {
        let refused = client.read(&id, "a.txt", wrong.clone()).await;
        assert_eq!(refused.error(), "invalid_argument", "{wrong}");
    }
    // Values out of bounds are replaced by the nearest valid ones, with a note.
    for (meant, text) in [
        (json!({ "offset": -1 }), "12345"),
        (json!({ "offset": 1e300 }), ""),
        (json!({ "length": 0 }), "1"),
        (json!({ "length": -5 }), "1"),
        (json!({ "length": 10_000_000 }), "12345"),
    ] {
        let arguments = {
            let mut it = meant.clone();
            it["format"] = json!("TEXT");
            it
        };
        let read = client.read(&id, "a.txt", arguments).await.ok();
        assert_eq!(
            (&read["text"], read["notes"].as_array().map(Vec::len)),
            (&json!(text), Some(1))
        );
    }
    let run = client.run(&id, "print('x' * 200_000)").await;
    for wrong in [
        json!({ "offset": 0.5 }),
        json!({ "stream": "stdin" }),
        json!({ "stream": 1 }),
        json!({ "lines": 1 }),
    ] {
        let mut arguments = json!({ "session_id": id, "run_id": run["run_id"] });
        arguments.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        assert_eq!(
            client.call("read_output", arguments).await.error(),
            "invalid_argument",
            "{wrong}"
        );
    }
    assert_eq!(client.read(&id, "b.txt", json!({ "offset": 1 })).await.error(), "not_found");
}

async fn no_part_of_a_file_is_larger_than_a_message(over: Over) {
    let client = Client::start(over).await;
    let id = name("large");
    let largest = 350_000_usize;
    let content: Vec<u8> = (0..=largest).map(|n| (n % 251) as u8).collect();
    client.upload(&id, "large.bin", &content).await;
    let longest = json!({ "format": "base64", "length": largest });
    let answer = client.read(&id, "large.bin", longest.clone()).await;
    let len = answer.raw.to_string().len();
    assert!(len < TOO_LONG, "{len} bytes");
    let part = answer.ok();
    assert!(
        STANDARD.decode(part["content_base64"].as_str().unwrap()).unwrap() == content[..largest]
    );
    assert_eq!(part["next_offset"], largest);
    let last = json!({ "format": "base64", "offset": largest, "length": 9 });
    let part = client.read(&id, "large.bin", last).await.ok();
    assert_eq!(part["content_base64"], STANDARD.encode(&content[largest..]));

    // The setting also limits parts and whole images.
    let client = Client::start_with(over, &[("SANDBOX_MAX_ARTIFACT_READ_BYTES", "1000")]).await;
    client.upload(&id, "large.bin", &content[..1001]).await;
    let part = client.read(&id, "large.bin", longest).await.ok();
    assert_eq!(part["next_offset"], 1000);
    client.upload(&id, "large.png", &noise(30, 30)).await;
    let refused = client.read(&id, "large.png", json!({})).await;
    assert_eq!(refused.error(), "artifact_too_large");
    assert_eq!(
        refused.json["message"],
        "large.png is 2.8KB, exceeds 1KB limit. Use download_url instead."
    );
    assert_eq!(refused.json["size_bytes"], noise(30, 30).len());
    let url = refused.json["download_url"].as_str().unwrap();
    assert!(http("GET", url).await.body == noise(30, 30));
}

async fn a_text_larger_than_any_message_still_comes_by_the_page(over: Over) {
    let client = Client::start(over).await;
    let id = name("long");
    let code =
        "with open('long.csv', 'w') as f:\n    for n in range(2_000_000): f.write(f'{n:09}\\n')";
    client.run(&id, code).await;
    let arguments = json!({ "offset": 19_999_990, "length": 100_000 });
    let page = client.read(&id, "long.csv", arguments).await.ok();
    assert_eq!((&page["text"], page.get("next_offset")), (&json!("001999999\n"), None));
    let page = client.read(&id, "long.csv", json!({})).await.ok();
    assert!(page["text"].as_str().unwrap().starts_with("000000000\n000000001\n"));
    assert_eq!((&page["next_offset"], &page["size_bytes"]), (&json!(30_000), &json!(20_000_000)));
}

/// A PNG of noise, of three bytes a pixel and a little more.
fn noise(width: u32, height: u32) -> Vec<u8> {
    let mut state = 1_u32;
    let picture = RgbImage::from_fn(width, height, |_, _| {
        image::Rgb(std::array::from_fn(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        }))
    });
    let mut bytes = std::io::Cursor::new(vec![]);
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

async fn a_picture_is_read_as_a_picture(over: Over) {
    let client = Client::start(over).await;
    let id = name("picture");
    let read = async |path: &str| {
        let answer = client.read(&id, path, json!({})).await;
        let len = answer.raw.to_string().len();
        assert!(len < TOO_LONG, "{len} bytes");
        assert_eq!(answer.raw["content"][0]["type"], "image", "{}", answer.json);
        let block = &answer.raw["content"][0];
        let bytes = STANDARD.decode(block["data"].as_str().unwrap()).unwrap();
        let format = ImageFormat::from_mime_type(block["mimeType"].as_str().unwrap()).unwrap();
        let picture = image::load_from_memory_with_format(&bytes, format).unwrap();
        let json = answer.ok();
        assert_eq!((json.get("content_base64"), json.get("text")), (None, None));
        (bytes, format!("{}x{}", picture.width(), picture.height()), json)
    };
    // About 690 KB: just below the 700,000 bytes that are sent unscaled.
    let fits = noise(480, 480);
    client.upload(&id, "fits.png", &fits).await;
    let (bytes, _, json) = read("fits.png").await;
    assert!(bytes == fits && json.get("scaled_to").is_none());
    assert_fields!(json, { "mime_type": "image/png", "size_bytes": fits.len() });

    // 3 MB, which is 4 MB in base64: more than clients accept.
    let large = noise(1000, 1000);
    client.upload(&id, "large.png", &large).await;
    let (bytes, size, json) = read("large.png").await;
    assert!(bytes.len() <= 700_000);
    assert_eq!((&json["size_bytes"], &json["scaled_to"]), (&json!(large.len()), &json!(size)));

    // More pixels than model interfaces process, in few bytes.
    for ((width, height), expected) in
        [((9000, 10), "1568x2"), ((2500, 2500), "1568x1568"), ((1568, 1568), "1568x1568")]
    {
        let mut file = std::io::Cursor::new(vec![]);
        RgbImage::new(width, height).write_to(&mut file, ImageFormat::Png).unwrap();
        let path = format!("{width}x{height}.png");
        client.upload(&id, &path, file.get_ref()).await;
        let (_, size, json) = read(&path).await;
        assert_eq!(size, expected);
        let scaled_to = json.get("scaled_to").and_then(Value::as_str);
        assert_eq!(scaled_to, (width > 1568).then_some(expected));
    }

    // The name makes no difference.
    client.upload(&id, "chart.dat", &fits).await;
    assert!(read("chart.dat").await.0 == fits);

    // An image can also be read as a file, in base64.
    let part = json!({ "format": "base64", "offset": 0, "length": 8 });
    let part = client.read(&id, "fits.png", part).await.ok();
    assert_eq!(part["content_base64"], STANDARD.encode(b"\x89PNG\r\n\x1a\n"));
}

async fn what_is_only_called_a_picture_is_read_as_what_it_is(over: Over) {
    let client = Client::start(over).await;
    let id = name("fake");
    for content in [&b"no picture"[..], b"\x89PNG\r\n\x1a\nhalf", &noise(30, 30)[..1000]] {
        client
            .call(
                "upload_file",
                json!({
                    "session_id": id, "filename": "a.png", "overwrite": true,
                    "content_base64": STANDARD.encode(content),
                }),
            )
            .await
            .ok();
        let answer = client.read(&id, "a.png", json!({})).await;
        assert_eq!(answer.blocks("image").len(), 0);
        let json = answer.ok();
        if let Some(text) = json.get("text") {
            assert_eq!(text.as_str().unwrap().as_bytes(), content);
            continue;
        }
        assert_eq!(json["kind"], "damaged PNG image");
        assert!(json["advice"].as_str().unwrap().contains("save it again"), "{json}");
        assert_eq!(json.get("content_base64"), None);
    }
    // An image that cannot be shown comes with a URL and a reason that makes sense.
    let code = "
import struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
side = 20_000
head = struct.pack('>IIBBBBB', side, side, 1, 0, 0, 0, 0)
pixels = zlib.compress(bytes((side // 8 + 1) * side), 9)
open('bomb.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', pixels) + chunk(b'IEND', b''))";
    let run =
        client.call("run_python", json!({ "session_id": id, "code": code, "inline_images": 0 }));
    assert_eq!(run.await.ok()["outcome"], "ok");
    let refused = client.read(&id, "bomb.png", json!({})).await;
    assert_eq!(refused.error(), "artifact_too_large");
    let url = refused.json["download_url"].as_str().unwrap();
    assert_eq!(http("HEAD", url).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_of_too_many_pixels_is_not_said_to_have_too_many_bytes() {
    let client = Client::start(Over::Stdio).await;
    let id = name("bomb");
    let mut large = std::io::Cursor::new(vec![]);
    image::GrayImage::new(6000, 6000).write_to(&mut large, ImageFormat::Png).unwrap();
    client.upload(&id, "large.png", large.get_ref()).await;
    let refused = client.read(&id, "large.png", json!({})).await;
    assert_eq!(refused.error(), "artifact_too_large");
    let message = refused.json["message"].as_str().unwrap();
    assert!(!message.contains("exceeds 0B"), "{message}");
}

/// The worst case of a page: every byte takes six in JSON, and seven in JSON within a text.
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_page_of_control_characters_fits_into_a_message() {
    for over in [Over::Stdio, Over::Http] {
        the_longest_page_fits(over).await;
    }
}

async fn the_longest_page_fits(over: Over) {
    let client = Client::start(over).await;
    let id = name("worst");
    let code = "open('a.txt', 'w').write('\\0' * 200_000)\nprint('\\0' * 400_000)";
    let arguments = json!({ "session_id": id, "code": code, "inline_images": 0 });
    let run = client.call("run_python", arguments).await.json;
    let page = json!({ "format": "text", "length": 100_000 });
    let len = client.read(&id, "a.txt", page).await.raw.to_string().len();
    assert!(len < TOO_LONG, "read_artifact: {len} bytes");
    let page = json!({ "session_id": id, "run_id": run["run_id"], "length": 100_000 });
    let len = client.call("read_output", page).await.raw.to_string().len();
    assert!(len < TOO_LONG, "read_output: {len} bytes");
}

async fn a_cut_output_is_read_on_from_where_it_was_cut(over: Over) {
    let client = Client::start_with(over, &[("SANDBOX_MAX_OUTPUT_BYTES", "1000")]).await;
    let id = name("cut");
    for (code, whole) in [
        ("for n in range(10_000): print(n)", (0..10_000).map(|n| format!("{n}\n")).collect()),
        ("print('é東😀' * 9000)", "é東😀".repeat(9000) + "\n"),
        (
            "for n in range(10_000): print(f'\\r{n}', end='\\n' * (n % 2))",
            (0..10_000).filter(|n| n % 2 == 1).map(|n| format!("{n}\n")).collect(),
        ),
    ] as [(&str, String); 3]
    {
        let run = client.run(&id, code).await;
        assert_eq!(run["stdout_truncated"], true);
        let shown = run["stdout"].as_str().unwrap();
        let (head, _) = shown.split_once("\n[... ").unwrap();
        let from = |offset: Option<u64>, length: u64| {
            let mut arguments =
                json!({ "session_id": id, "run_id": run["run_id"], "length": length });
            if let Some(offset) = offset {
                arguments["offset"] = offset.into();
            }
            arguments
        };
        let pages = client.pages("read_output", from(Some(0), 30_000)).await;
        assert!(texts(&pages) == whole, "all from the start");
        for page in &pages {
            assert_fields!(page, {
                "total_bytes": whole.len(), "kept_bytes": whole.len(), "stream": "stdout",
                "run_id": run["run_id"],
            });
        }
        for length in [997, 30_000, 100_000] {
            let pages = client.pages("read_output", from(Some(head.len() as u64), length)).await;
            assert!(head.to_owned() + &texts(&pages) == whole, "{code} by {length}");
        }
        let behind = client.call("read_output", from(Some(whole.len() as u64), 9)).await.ok();
        assert_eq!((&behind["text"], behind.get("next_offset")), (&json!(""), None));
        let far = client.call("read_output", from(Some(1 << 53), 9)).await.ok();
        assert_eq!((&far["text"], far.get("next_offset")), (&json!(""), None));
    }
}

/// The same, by a caller that sends no offset.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_on_without_saying_where_misses_nothing() {
    let client = Client::start_with(Over::Stdio, &[("SANDBOX_MAX_OUTPUT_BYTES", "1000")]).await;
    let id = name("on");
    for character in ["x", "é", "東", "😀"] {
        // So that the cut splits a character at every possible position.
        for before in 0..character.len() {
            let whole = "-".repeat(before) + &character.repeat(2000);
            let run = client.run(&id, &format!("import sys; sys.stdout.write('{whole}')")).await;
            let (head, _) = run["stdout"].as_str().unwrap().split_once("\n[... ").unwrap();
            let arguments = json!({ "session_id": id, "run_id": run["run_id"] });
            let rest = texts(&client.pages("read_output", arguments).await);
            let together = head.to_owned() + &rest;
            assert!(together == whole, "{before} and {character}: {}", &rest[..9]);
        }
    }
}

async fn standard_error_is_read_on_as_well(over: Over) {
    let client = Client::start_with(over, &[("SANDBOX_MAX_OUTPUT_BYTES", "1000")]).await;
    let id = name("stderr");
    // A run that fails, with only one output cut.
    let code = "import sys\nprint('short')\nfor n in range(1000): print(n, file=sys.stderr)\n1/0";
    let run = client.run(&id, code).await;
    assert_eq!((run.get("stdout_truncated"), &run["stderr_truncated"]), (None, &json!(true)));
    let arguments =
        json!({ "session_id": id, "run_id": run["run_id"], "stream": "stderr", "offset": 0 });
    let pages = client.pages("read_output", arguments.clone()).await;
    let all = texts(&pages);
    assert!(all.starts_with("0\n1\n2\n") && all.contains("\n999\nTraceback"), "{all}");
    assert!(all.ends_with("ZeroDivisionError: division by zero\n"), "{all}");
    assert_eq!((pages.len(), &pages[0]["stream"]), (1, &json!("stderr")));
    let mut other = arguments;
    other["stream"] = "stdout".into();
    assert_eq!(client.call("read_output", other).await.error(), "not_found", "nothing was cut");
}

async fn an_output_that_is_not_kept_is_not_found(over: Over) {
    let client = Client::start_with(over, &[("SANDBOX_MAX_OUTPUT_BYTES", "1000")]).await;
    let id = name("kept");
    let read = async |run: &Value| {
        client.call("read_output", json!({ "session_id": id, "run_id": run, "offset": 0 })).await
    };
    let missing = async |run: &Value| {
        let refused = read(run).await;
        assert_eq!(refused.error(), "not_found", "{run}");
        let message = refused.json["message"].as_str().unwrap();
        assert!(message.contains("run the code again") && message.len() < 600, "{message}");
    };
    let uncut = client.run(&id, "print('short')").await;
    missing(&uncut["run_id"]).await;
    for other in ["", "run_20250101T000000Z_0000", "../x", &"x".repeat(5000), "\u{0}\n"] {
        missing(&json!(other)).await;
    }
    let mut runs = vec![];
    for n in 0..5 {
        let run = client.run(&id, &format!("print('{n}' * 2000)")).await;
        runs.push(run["run_id"].clone());
        // A run whose output was not cut replaces no kept output.
        client.run(&id, "print('short')").await;
    }
    missing(&runs[0]).await;
    for (n, run) in runs.iter().enumerate().skip(1) {
        let page = read(run).await.ok();
        assert_eq!(page["text"], n.to_string().repeat(2000) + "\n");
    }
    // Outputs of one session cannot be read in another.
    let other = name("other");
    client.run(&other, "pass").await;
    let arguments = json!({ "session_id": other, "run_id": runs[4], "offset": 0 });
    assert_eq!(client.call("read_output", arguments).await.error(), "not_found");
    client.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(read(&runs[4]).await.error(), "session_not_found");
    client.run(&id, "pass").await;
    missing(&runs[4]).await;
}
