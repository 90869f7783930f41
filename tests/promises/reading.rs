//! Files and outputs as a model reads them: pictures as pictures, texts by the page, the rest in
//! base64, and nothing that a client cannot take. Everything is checked over both transports.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::format_collect,
    reason = "a test may panic, and need not be fast"
)]

use crate::support::{Answer, On, Server, http, name, web::*};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use image::{ImageFormat, RgbImage};
use serde_json::{Value, json};

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

impl Over {
    /// Most bytes of a message that every client takes.
    fn message(self) -> usize {
        match self {
            Self::Stdio => 10 << 20,
            Self::Http => 1 << 20,
        }
    }
}

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

    /// All pages of a tool that gives them, from the first.
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
    a_file_comes_in_base64_whole_or_in_parts,
    an_empty_file_is_empty_in_every_way,
    what_is_behind_the_end_is_nothing,
    where_and_how_much_must_make_sense,
    a_file_too_large_for_a_message_names_its_address,
    a_text_larger_than_any_message_still_comes_by_the_page,
    a_picture_is_read_as_a_picture,
    what_is_only_called_a_picture_is_read_as_what_it_is,
    a_cut_output_is_read_on_from_where_it_was_cut,
    standard_error_is_read_on_as_well,
    an_output_that_is_not_kept_is_not_found,
);

/// Texts of a page or of all pages.
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

    // What fits into one page is one, and there is no other.
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
    // Shorter than a character: what there is of it, and on.
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
        assert_eq!(read["content_base64"], STANDARD.encode(binary), "{name}");
        assert_eq!((read.get("text"), read.get("offset")), (None, None), "{name}");
    }
    // A text of which the first four kilobytes end within a character.
    let long = format!("a{}", "é".repeat(4000));
    client.upload(&id, "long", long.as_bytes()).await;
    assert_eq!(client.read(&id, "long", json!({})).await.ok()["text"], long);
    // To read it as text is what was asked for.
    let read = client.read(&id, "core", json!({ "format": "text" })).await.ok();
    assert_eq!((&read["text"], read.get("not_utf8")), (&json!("\0\u{1}\u{2}binary"), None));
    client.upload(&id, "bytes.png", b"\x89PNG\xFF").await;
    let read = client.read(&id, "bytes.png", json!({ "format": "text" })).await.ok();
    assert_eq!((&read["text"], &read["not_utf8"]), (&json!("\u{FFFD}PNG\u{FFFD}"), &json!(true)));
}

async fn a_text_that_is_not_utf8_is_shown_all_the_same(over: Over) {
    let client = Client::start(over).await;
    let id = name("latin");
    // As a spreadsheet on Windows saves it.
    let line = b"Gr\xF6\xDFe;Stra\xDFe;\xA4\r\n";
    client.upload(&id, "latin.csv", &line.repeat(3000)).await;
    let pages =
        client.pages("read_artifact", json!({ "session_id": id, "path": "latin.csv" })).await;
    let all = texts(&pages);
    assert_eq!(all, "Gr\u{FFFD}\u{FFFD}e;Stra\u{FFFD}e;\u{FFFD}\r\n".repeat(3000));
    assert!(pages.len() > 1 && pages.iter().all(|page| page["not_utf8"] == true));
}

async fn a_file_comes_in_base64_whole_or_in_parts(over: Over) {
    let client = Client::start(over).await;
    let id = name("base64");
    let content: Vec<u8> = (0..100_001_u32).flat_map(u32::to_le_bytes).take(250_001).collect();
    for path in ["data.bin", "data.csv", "data.png"] {
        client.upload(&id, path, &content).await;
        let whole = client.read(&id, path, json!({ "format": "base64" })).await.ok();
        assert!(STANDARD.decode(whole["content_base64"].as_str().unwrap()).unwrap() == content);
        assert_eq!((whole.get("offset"), whole.get("next_offset")), (None, None), "{path}");
        for more in [json!({ "offset": 0 }), json!({ "length": 100_000 }), json!({ "offset": 7 })] {
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
    // Of what is no text, a part is in base64 without being asked for.
    let part = client.read(&id, "data.bin", json!({ "offset": 1, "length": 2.0 })).await.ok();
    assert_eq!(part["content_base64"], STANDARD.encode(&content[1..3]));
    assert_eq!((&part["offset"], &part["next_offset"]), (&json!(1), &json!(3)));
}

async fn an_empty_file_is_empty_in_every_way(over: Over) {
    let client = Client::start(over).await;
    let id = name("empty");
    for (path, field) in
        [("a.csv", "text"), ("a", "text"), ("a.pdf", "content_base64"), ("a.png", "content_base64")]
    {
        client.upload(&id, path, b"").await;
        let read = client.read(&id, path, json!({})).await.ok();
        assert_eq!((&read[field], read.get("next_offset")), (&json!(""), None), "{path}");
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
    // What is out of bounds is the nearest that is not, and noted.
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

async fn a_file_too_large_for_a_message_names_its_address(over: Over) {
    let client = Client::start(over).await;
    let id = name("large");
    let largest: usize = if over == Over::Stdio { 3_900_000 } else { 350_000 };
    let content: Vec<u8> = (0..=largest).map(|n| (n % 251) as u8).collect();
    client.upload(&id, "fits.bin", &content[..largest]).await;
    let answer = client.read(&id, "fits.bin", json!({})).await;
    let len = answer.raw.to_string().len();
    assert!(len < over.message(), "{len} bytes");
    assert!(
        STANDARD.decode(answer.ok()["content_base64"].as_str().unwrap()).unwrap()
            == content[..largest]
    );

    for path in ["large.bin", "large.csv"] {
        client.upload(&id, path, &content).await;
        let refused = client.read(&id, path, json!({ "format": "base64" })).await;
        assert_eq!(refused.error(), "artifact_too_large");
        assert_eq!(refused.json["size_bytes"], content.len());
        let url = refused.json["download_url"].as_str().unwrap();
        assert!(http("GET", url).await.body == content);
    }
    // A part of it fits.
    let part = client.read(&id, "large.bin", json!({ "offset": largest, "length": 9 })).await.ok();
    assert_eq!(part["content_base64"], STANDARD.encode(&content[largest..]));

    // The setting holds, too.
    let client = Client::start_with(over, &[("SANDBOX_MAX_ARTIFACT_READ_BYTES", "1000")]).await;
    client.upload(&id, "fits.bin", &content[..1000]).await;
    client.upload(&id, "large.bin", &content[..1001]).await;
    client.read(&id, "fits.bin", json!({})).await.ok();
    let refused = client.read(&id, "large.bin", json!({})).await;
    assert_eq!(refused.error(), "artifact_too_large");
    assert_eq!(
        refused.json["message"],
        "large.bin is 1.1KB, exceeds 1KB limit. Use download_url instead."
    );
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
        assert!(len < over.message(), "{len} bytes");
        assert_eq!(answer.raw["content"][0]["type"], "image", "{}", answer.json);
        let block = &answer.raw["content"][0];
        let bytes = STANDARD.decode(block["data"].as_str().unwrap()).unwrap();
        let format = ImageFormat::from_mime_type(block["mimeType"].as_str().unwrap()).unwrap();
        let picture = image::load_from_memory_with_format(&bytes, format).unwrap();
        let json = answer.ok();
        assert_eq!((json.get("content_base64"), json.get("text")), (None, None));
        (bytes, format!("{}x{}", picture.width(), picture.height()), json)
    };
    // About 690 KB, which is the most over HTTP as it is.
    let fits = noise(480, 480);
    client.upload(&id, "fits.png", &fits).await;
    let (bytes, _, json) = read("fits.png").await;
    assert!(bytes == fits && json.get("scaled_to").is_none());
    assert_eq!(
        (&json["mime_type"], &json["size_bytes"]),
        (&json!("image/png"), &json!(fits.len()))
    );

    let large = noise(1000, 1000);
    client.upload(&id, "large.png", &large).await;
    let (bytes, size, json) = read("large.png").await;
    match over {
        Over::Stdio => assert!(bytes == large && json.get("scaled_to").is_none()),
        Over::Http => {
            assert!(bytes.len() <= 700_000);
            assert_eq!(json["scaled_to"], size);
        }
    }
    assert_eq!(json["size_bytes"], large.len(), "of the file");

    // More pixels than any interface takes, in few bytes.
    let mut long = std::io::Cursor::new(vec![]);
    RgbImage::new(9000, 10).write_to(&mut long, ImageFormat::Png).unwrap();
    client.upload(&id, "long.png", long.get_ref()).await;
    let (_, size, json) = read("long.png").await;
    assert_eq!((&*size, &json["scaled_to"]), ("8000x9", &json!("8000x9")));

    // And it is still a file like any other.
    let part = client.read(&id, "fits.png", json!({ "offset": 0, "length": 8 })).await.ok();
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
        match json.get("text") {
            Some(text) => assert_eq!(text.as_str().unwrap().as_bytes(), content),
            None => assert_eq!(json["content_base64"], STANDARD.encode(content)),
        }
    }
    // What nobody can look at comes with an address, and a reason that makes sense.
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

/// The worst that a page can hold: every byte is six in JSON, and seven in JSON in a text.
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
    assert!(len < over.message(), "read_artifact: {len} bytes");
    let page = json!({ "session_id": id, "run_id": run["run_id"], "length": 100_000 });
    let len = client.call("read_output", page).await.raw.to_string().len();
    assert!(len < over.message(), "read_output: {len} bytes");
}

async fn a_cut_output_is_read_on_from_where_it_was_cut(over: Over) {
    let client = Client::start_with(over, &[("SANDBOX_MAX_OUTPUT_BYTES", "1000")]).await;
    let id = name("cut");
    for (code, whole) in [
        ("for n in range(10_000): print(n)", (0..10_000).map(|n| format!("{n}\n")).collect()),
        ("print('é東😀' * 9000)", "é東😀".repeat(9000) + "\n"),
    ] as [(&str, String); 2]
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
            assert_eq!(
                (&page["total_bytes"], &page["kept_bytes"]),
                (&json!(whole.len()), &json!(whole.len()))
            );
            assert_eq!((&page["stream"], &page["run_id"]), (&json!("stdout"), &run["run_id"]));
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

/// The same, by a caller who does not say where.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_on_without_saying_where_misses_nothing() {
    let client = Client::start_with(Over::Stdio, &[("SANDBOX_MAX_OUTPUT_BYTES", "1000")]).await;
    let id = name("on");
    for character in ["x", "é", "東", "😀"] {
        // So that the cut goes through a character wherever it can.
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
    // A run that fails, of which only one output was cut.
    let code = "import sys\nprint('short')\nfor n in range(1000): print(n, file=sys.stderr)\n1/0";
    let run = client.run(&id, code).await;
    assert_eq!((&run["stdout_truncated"], &run["stderr_truncated"]), (&json!(false), &json!(true)));
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
        // One from which nothing is cut takes nobody's place.
        client.run(&id, "print('short')").await;
    }
    missing(&runs[0]).await;
    for (n, run) in runs.iter().enumerate().skip(1) {
        let page = read(run).await.ok();
        assert_eq!(page["text"], n.to_string().repeat(2000) + "\n");
    }
    // Of another session nobody hears.
    let other = name("other");
    client.run(&other, "pass").await;
    let arguments = json!({ "session_id": other, "run_id": runs[4], "offset": 0 });
    assert_eq!(client.call("read_output", arguments).await.error(), "not_found");
    client.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(read(&runs[4]).await.error(), "session_not_found");
    client.run(&id, "pass").await;
    missing(&runs[4]).await;
}
