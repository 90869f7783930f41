//! Charts that a run makes are part of its result, as pictures: small enough, complete, and of the declared type.
//! Everything that is not a picture stays a file.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may panic")]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use image::{DynamicImage, ImageFormat, RgbImage};
use serde_json::{Value, json};
use support::{Answer, On, Server, http, name, on_all, web::*};

on_all! {
    a_small_chart_comes_as_it_is_and_with_a_link,
    what_only_is_called_a_picture_stays_a_file,
    ; on docker alone:
    a_chart_of_matplotlib_is_seen,
}

/// Writes pictures without a library: `png(path, width, height)` in one colour, with `noise` in random colours.
const PNG: &str = r"
import os, random, struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
def png(path, width, height, noise=False, seed=1):
    rows = random.Random(seed)
    row = lambda: b'\0' + (rows.randbytes(3 * width) if noise else b'\x20\x60\xa0' * width)
    pixels = zlib.compress(b''.join(row() for _ in range(height)), 1)
    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    file = b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) + chunk(b'IDAT', pixels) + chunk(b'IEND', b'')
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    open(path, 'wb').write(file)
";

fn code(lines: &str) -> String {
    format!("{PNG}\n{lines}\n")
}

/// A picture of a result, decoded as its declared type.
struct Seen {
    mime: String,
    bytes: Vec<u8>,
    picture: DynamicImage,
}

#[track_caller]
fn seen(answer: &Answer) -> Vec<Seen> {
    let see = |block: &&Value| {
        let mime = block["mimeType"].as_str().unwrap().to_owned();
        let bytes = STANDARD.decode(block["data"].as_str().unwrap()).unwrap();
        let format = ImageFormat::from_mime_type(&mime).unwrap();
        let picture = image::load_from_memory_with_format(&bytes, format).unwrap();
        Seen { mime, bytes, picture }
    };
    answer.blocks("image").iter().map(see).collect()
}

#[track_caller]
fn kinds(answer: &Answer) -> Vec<&str> {
    let blocks = answer.raw["content"].as_array().unwrap();
    blocks.iter().map(|block| block["type"].as_str().unwrap()).collect()
}

async fn run(server: &Server, session: &str, code: &str) -> Answer {
    server.call("run_python", json!({ "session_id": session, "code": code })).await
}

async fn a_small_chart_comes_as_it_is_and_with_a_link(on: On) {
    let (server, id) = (Server::start(on).await, name("chart"));
    let answer = run(&server, &id, &code("png('plots/é 1.png', 40, 30)")).await;
    assert_eq!(kinds(&answer), ["text", "image", "resource_link"]);
    let url = answer.json["artifacts"][0]["download_url"].as_str().unwrap().to_owned();
    let file = http("GET", &url).await.body;
    let shown = seen(&answer);
    assert!(shown[0].bytes == file, "the very bytes");
    assert_eq!((&*shown[0].mime, shown[0].picture.width()), ("image/png", 40));
    let link = answer.blocks("resource_link")[0].clone();
    assert_eq!(
        link,
        json!({
            "type": "resource_link",
            "uri": format!("sandbox:///{id}/plots/%C3%A9%201.png"),
            "name": "plots/é 1.png",
            "mimeType": "image/png",
        }),
        "nothing that the JSON says already"
    );
    let read = server.request("resources/read", json!({ "uri": link["uri"] })).await;
    let blob = read["result"]["contents"][0]["blob"].as_str().unwrap().to_owned();
    assert!(STANDARD.decode(blob).unwrap() == file, "the link leads to it");
    // The JSON appears twice in the answer, so it contains only names.
    let json = answer.ok();
    assert!(json.to_string().len() < 1500, "{json}");

    // A picture is shown once: the next run did not make it.
    let next = run(&server, &id, "open('notes.txt', 'w').write('no picture')").await;
    assert_eq!(kinds(&next), ["text"]);
    assert_eq!(next.ok()["artifacts"].as_array().map(Vec::len), Some(1));
    let again = run(&server, &id, &code("png('plots/é 1.png', 40, 31)")).await;
    assert_eq!(seen(&again)[0].picture.height(), 31, "changed, and so shown again");
}

async fn what_only_is_called_a_picture_stays_a_file(on: On) {
    let (server, id) = (Server::start(on).await, name("fake"));
    let before = server.peak_memory();
    let lines = r"
png('good.png', 50, 40)
good = open('good.png', 'rb').read()
open('half.png', 'wb').write(good[:len(good) // 2])
open('damaged.png', 'wb').write(good.replace(b'IDAT', b'IDAT\x99'))
open('empty.png', 'wb').close()
open('text.png', 'w').write('see the table below')
open('page.png', 'w').write('<html><script>alert(1)</script>')
# Four hundred million pixels in fifty kilobytes.
side = 20_000
head = struct.pack('>IIBBBBB', side, side, 1, 0, 0, 0, 0)
pixels = zlib.compress(bytes((side // 8 + 1) * side), 9)
bomb = b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) + chunk(b'IDAT', pixels) + chunk(b'IEND', b'')
open('bomb.png', 'wb').write(bomb)
open('vector.svg', 'w').write('<svg xmlns=\'http://www.w3.org/2000/svg\'/>')";
    // The setting allows all of these, so a picture that is not shown was refused.
    let answer = run(&server, &id, &code(lines)).await;
    let shown = seen(&answer);
    assert_eq!(shown.iter().map(|seen| seen.picture.width()).collect::<Vec<_>>(), [50]);
    assert_eq!(answer.blocks("resource_link").len(), 7, "what is called a picture can be fetched");
    let json = answer.ok();
    let names = json["artifacts"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|file| file["filename"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "bomb.png",
            "damaged.png",
            "empty.png",
            "good.png",
            "half.png",
            "page.png",
            "text.png",
            "vector.svg",
        ]
    );
    let grown = server.peak_memory() - before;
    assert!(grown < 40 << 20, "the bomb cost {grown} bytes");
    assert_eq!(server.run(&id, "print('well')").await["stdout"], "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_chart_is_made_to_fit() {
    let (server, id) = (Server::start(On::Local).await, name("large"));
    let lines = "png('a-noise.png', 1200, 900, noise=True)\n\
                 png('b-wide.png', 4000, 100)\n\
                 png('c-long.png', 3, 5000)";
    let answer = run(&server, &id, &code(lines)).await;
    let shown = seen(&answer);
    for shown in &shown {
        let (width, height) = (shown.picture.width(), shown.picture.height());
        assert!(width.max(height) <= 1024 && shown.bytes.len() <= 150_000, "{width} by {height}");
    }
    let size = |n: usize| (shown[n].picture.width(), shown[n].picture.height());
    // Noise of this size does not fit into the limit, so it is scaled; its shape stays.
    let (width, height) = size(0);
    assert!(width.abs_diff(height * 4 / 3) <= 2 && width > 100, "{width} by {height}");
    assert_eq!((size(1), size(2)), ((1024, 26), (1, 1024)));
    assert_eq!((&*shown[0].mime, &*shown[1].mime), ("image/jpeg", "image/png"));
    let [red, green, blue, _] = shown[1].picture.to_rgba8().get_pixel(500, 10).0;
    assert!([red, green, blue] == [0x20, 0x60, 0xA0], "in its colour");
    // The links lead to the unscaled files.
    let json = answer.ok();
    let url = json["artifacts"][1]["download_url"].as_str().unwrap();
    let whole = image::load_from_memory(&http("GET", url).await.body).unwrap();
    assert_eq!((whole.width(), whole.height()), (4000, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_say_how_large_a_chart_may_be() {
    let settings = [("SANDBOX_INLINE_IMAGE_SIDE", "200"), ("SANDBOX_INLINE_IMAGE_BYTES", "20KB")];
    let server = Server::start_with(On::Local, &settings).await;
    let lines =
        "png('a.png', 200, 100)\npng('b.png', 201, 100)\npng('c.png', 180, 180, noise=True)";
    let answer = run(&server, &name("settings"), &code(lines)).await;
    let shown = seen(&answer);
    let file = http("GET", answer.json["artifacts"][0]["download_url"].as_str().unwrap()).await;
    assert!(shown[0].bytes == file.body, "as large as may be");
    assert_eq!(shown[1].picture.width(), 200);
    assert!(shown[2].bytes.len() <= 20_000 && shown[2].picture.width() <= 180);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_is_shown_with_the_type_of_its_content() {
    let (server, id) = (Server::start(On::Local).await, name("jpeg"));
    let sample = |format| {
        let mut bytes = std::io::Cursor::new(vec![]);
        let picture = RgbImage::from_fn(30, 20, |x, y| image::Rgb([x as u8 * 8, y as u8 * 12, 99]));
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    };
    let (jpeg, gif) = (sample(ImageFormat::Jpeg), sample(ImageFormat::Gif));
    server.upload(&id, "jpeg.bin", &jpeg).await.ok();
    server.upload(&id, "gif.bin", &gif).await.ok();
    let code = "import shutil\nshutil.copy('jpeg.bin', 'a.png')\nshutil.copy('gif.bin', 'b.jpg')";
    let answer = run(&server, &id, code).await;
    let shown = seen(&answer);
    assert_eq!((&*shown[0].mime, &*shown[1].mime), ("image/jpeg", "image/gif"));
    assert!(shown[0].bytes == jpeg && shown[1].bytes == gif);
    let read = server.call("read_artifact", json!({ "session_id": id, "path": "a.png" })).await;
    assert_eq!(seen(&read)[0].mime, "image/jpeg");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fails_shows_no_picture() {
    let server = Server::start(On::Local).await;
    for end in ["1/0", "import sys; sys.exit(3)", "os.abort()"] {
        let answer =
            run(&server, &name("failed"), &code(&format!("png('a.png', 9, 9)\n{end}"))).await;
        assert_eq!(kinds(&answer), ["text"], "{end}");
        assert_ne!(answer.ok()["exit_code"], 0);
    }
}

const FIVE: &str = "for n in range(5): png(f'{n}.png', 10 + n, 9)";

#[tokio::test(flavor = "multi_thread")]
async fn as_many_are_shown_as_the_call_asks_for_and_the_settings_allow() {
    let server = Server::start(On::Local).await;
    let call = async |server: &Server, asked: Value| {
        let mut arguments = json!({ "session_id": name("asked"), "code": code(FIVE) });
        if !asked.is_null() {
            arguments["inline_images"] = asked;
        }
        server.call("run_python", arguments).await
    };
    for (asked, images, links) in [
        (Value::Null, 3, 5),
        (json!(1), 1, 5),
        (json!(2.0), 2, 5),
        (json!(3), 3, 5),
        (json!(0), 0, 0),
    ] {
        let answer = call(&server, asked.clone()).await;
        let widths: Vec<_> = seen(&answer).iter().map(|seen| seen.picture.width()).collect();
        assert_eq!(widths, (10..10 + images).collect::<Vec<_>>(), "the first of them, {asked}");
        assert_eq!(answer.blocks("resource_link").len(), links, "{asked}");
        assert_eq!(answer.ok()["artifacts"].as_array().map(Vec::len), Some(5), "{asked}");
    }
    for more in [json!(1000), json!(1e300)] {
        let answer = call(&server, more.clone()).await;
        assert_eq!(seen(&answer).len(), 3, "never more than are allowed, {more}");
        let note = answer.ok()["notes"][0].clone();
        assert!(note.as_str().is_some_and(|it| it.contains("the limit of 3")), "{note}");
    }
    for wrong in [json!(1.5), json!("one"), json!(true)] {
        let refused = call(&server, wrong.clone()).await;
        assert_eq!(refused.error(), "invalid_argument", "{wrong}");
    }

    let server = Server::start_with(On::Local, &[("SANDBOX_INLINE_IMAGES", "0")]).await;
    for asked in [Value::Null, json!(3)] {
        assert_eq!(kinds(&call(&server, asked).await), ["text"]);
    }
    let server = Server::start_with(On::Local, &[("SANDBOX_INLINE_IMAGES", "4")]).await;
    assert_eq!(seen(&call(&server, Value::Null).await).len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_charts_ten_are_linked_and_all_are_listed() {
    let server = Server::start(On::Local).await;
    let lines = "for n in range(12): png(f'{n:02}.png', 9, 9)";
    let answer = run(&server, &name("many"), &code(lines)).await;
    assert_eq!((answer.blocks("image").len(), answer.blocks("resource_link").len()), (3, 10));
    assert_eq!(answer.ok()["artifacts"].as_array().map(Vec::len), Some(12));
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_that_are_none_do_not_use_up_the_places_of_those_that_are() {
    let server = Server::start(On::Local).await;
    let lines = "for n in range(5): open(f'{n}.png', 'w').write('none')\n\
                 for n in range(5, 8): png(f'{n}.png', 10, 9)";
    let answer = run(&server, &name("places"), &code(lines)).await;
    assert_eq!(seen(&answer).len(), 3);
}

/// Sends a call as a client of either generation, to a URL with this query; returns the whole response.
async fn ask(caller: &Caller, legacy: bool, query: &str, arguments: &Value) -> support::Response {
    let target = format!("/mcp{query}");
    let params = json!({ "name": "run_python", "arguments": arguments });
    let mut headers = caller.mcp_headers();
    let message = if legacy {
        let mcp = caller.open().await;
        headers.push(("Mcp-Session-Id".into(), mcp.id.clone()));
        headers.push(("MCP-Protocol-Version".into(), LEGACY.into()));
        json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params })
    } else {
        let (message, more) = caller.modern("tools/call", params);
        headers.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
        message
    };
    // `Caller` adds its token itself.
    headers.retain(|(name, _)| name != "Authorization");
    let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let response = caller.send("POST", &target, &headers, message.to_string().as_bytes()).await;
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    response
}

#[track_caller]
fn result(response: &support::Response) -> Answer {
    Answer::new(response.messages().last().unwrap()["result"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_http_asks_for_fewer_by_its_address() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    for legacy in [false, true] {
        for (query, asked, images) in [
            ("", None, 3),
            ("?inline_images=0", None, 0),
            ("?inline_images=0", Some(3), 0),
            ("?inline_images=1", None, 1),
            ("?other=0&inline_images=2", Some(3), 2),
            ("?inline_images=2", Some(1), 1),
            ("?inline_images=1000", None, 3),
        ] {
            let mut arguments = json!({ "session_id": name("query"), "code": code(FIVE) });
            if let Some(asked) = asked {
                arguments["inline_images"] = json!(asked);
            }
            let answer = result(&ask(&caller, legacy, query, &arguments).await);
            let session = arguments["session_id"].clone();
            caller.call("close_session", json!({ "session_id": session })).await.ok();
            let links = if images == 0 { 0 } else { 5 };
            assert_eq!(
                (seen(&answer).len(), answer.blocks("resource_link").len()),
                (images, links),
                "{query} {asked:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_of_charts_are_good_for_those_who_have_no_token() {
    let web = Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", "ann:one")]).await;
    let caller = web.caller(Some("one"));
    let arguments = json!({ "session_id": name("link"), "code": code("png('a.png', 9, 9)") });
    let answer = caller.call("run_python", arguments).await;
    let url = answer.json["artifacts"][0]["download_url"].as_str().unwrap();
    let file = http("GET", url).await;
    assert_eq!((file.status, file.header("content-type")), (200, "image/png"));
    assert!(file.body == seen(&answer)[0].bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_of_any_shape_costs_less_than_a_square_of_its_longest_side() {
    let server = Server::start(On::Local).await;
    for (width, height, shown) in [
        (2400, 1600, "1024x683"),
        (1600, 1600, "957x957"),
        (1024, 896, "1024x896"),
        (1024, 1024, "957x957"),
        (300, 1500, "205x1024"),
    ] {
        let answer =
            run(&server, &name("area"), &code(&format!("png('a.png', {width}, {height})"))).await;
        let picture = &seen(&answer)[0].picture;
        assert_eq!(format!("{}x{}", picture.width(), picture.height()), shown);
    }
    // The setting still limits the longest side.
    let server = Server::start_with(On::Local, &[("SANDBOX_INLINE_IMAGE_SIDE", "100")]).await;
    let answer = run(&server, &name("area"), &code("png('a.png', 300, 200)")).await;
    assert_eq!(seen(&answer)[0].picture.width(), 100);
}

/// The size of one event from which on some clients refuse it.
const EVENT: usize = 1 << 20;

/// Prints `printed` to both outputs until they are full, and draws pictures that do not compress; returns the size of
/// the message and the number of pictures, for each generation.
async fn full_message(printed: &str) -> Vec<(usize, usize)> {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let lines = format!(
        "import sys\n\
         for n in range(3): png(f'{{n}}.png', 1000, 700, noise=True, seed=n)\n\
         line = {printed}\n\
         for out in sys.stdout, sys.stderr: out.write(line * (100_000 // len(line)))"
    );
    let mut sizes = vec![];
    for legacy in [false, true] {
        let arguments = json!({ "session_id": name("full"), "code": code(&lines) });
        let response = ask(&caller, legacy, "", &arguments).await;
        let answer = result(&response);
        let shown = seen(&answer).len();
        assert_eq!(answer.ok()["outcome"], "ok");
        sizes.push((response.body.len(), shown));
    }
    sizes
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_and_full_outputs_share_a_message_that_every_client_takes() {
    for (len, shown) in full_message("'x' * 79 + '\\n'").await {
        assert!(len < EVENT, "{len} bytes");
        // Without pictures, this room would be wasted.
        assert!(shown >= 2, "{shown} pictures in {len} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_with_characters_that_are_escaped_leave_pictures_less_room() {
    // Lines as analyses print them, and the shortest.
    for printed in [r#"'{"a": "b", "c": ["d", "e"], "f": "g"}\n'"#, r"'1\n'"] {
        for (len, _) in full_message(printed).await {
            assert!(len < EVENT, "{printed}: {len} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_of_nothing_but_escapes_still_make_a_message_that_every_client_takes() {
    for printed in [r"'\n'", r#"'"'"#, r"'\\'", r"'\0'", r"'\x1b[1m'"] {
        for (len, _) in full_message(printed).await {
            assert!(len < EVENT, "{printed}: {len} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_out_for_want_of_room_in_the_message_can_be_read() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let id = name("room");
    let code = "import sys\nfor out in sys.stdout, sys.stderr: out.write('\"' * 99_000)";
    let run = caller.run(&id, code).await;
    for stream in ["stdout", "stderr"] {
        let shown = run[stream].as_str().unwrap();
        if run.get(format!("{stream}_truncated")).is_none() {
            assert_eq!(shown, "\"".repeat(99_000));
            continue;
        }
        let (mut all, mut offset) = (String::new(), Some(0));
        while let Some(from) = offset {
            let arguments = json!({
                "session_id": id, "run_id": run["run_id"], "stream": stream, "offset": from,
            });
            let page = caller.call("read_output", arguments).await.ok();
            all += page["text"].as_str().unwrap();
            offset = page.get("next_offset").and_then(Value::as_u64);
        }
        assert!(all == "\"".repeat(99_000), "{stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_with_the_longest_names_still_make_a_message_that_every_client_takes() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    // Each name has twelve hundred bytes as a part of a URL.
    let lines = "for n in range(100): png('/'.join(['\"' * 200] * 4) + f'/{n:03}.png', 9, 9)";
    let arguments = json!({ "session_id": name("long"), "code": code(lines) });
    let response = ask(&caller, false, "", &arguments).await;
    let answer = result(&response);
    assert_eq!(answer.blocks("resource_link").len(), 10);
    answer.ok();
    assert!(response.body.len() < EVENT, "{} bytes", response.body.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_and_as_large_as_can_be_set_still_make_a_message_that_every_client_takes() {
    let settings = [("SANDBOX_INLINE_IMAGES", "20"), ("SANDBOX_INLINE_IMAGE_BYTES", "2MB")];
    let server = Server::start_with(On::Local, &settings).await;
    let lines = "for n in range(8): png(f'{n}.png', 800, 800, noise=True, seed=n)";
    let answer = run(&server, &name("most"), &code(lines)).await;
    let len = answer.raw.to_string().len();
    assert!(len < EVENT, "{len} bytes");
    let shown = seen(&answer);
    // Two megabytes each, scaled to fit into the rest of the message.
    assert!(shown.len() >= 2 && shown[0].bytes.len() > 100_000, "{}", shown.len());
}

/// A chart of the usual library, used in the usual way.
async fn a_chart_of_matplotlib_is_seen() {
    let server = Server::start(On::Docker).await;
    let code = r"
import matplotlib.pyplot as plt
for n, dpi in enumerate((100, 300)):
    fig, ax = plt.subplots(figsize=(8, 5))
    ax.bar(['Jan', 'Feb', 'Mar'], [3, 1, 2], color='#ff0000')
    ax.set_title('Sales')
    fig.savefig(f'{n}.png', dpi=dpi)";
    let answer = run(&server, &name("matplotlib"), code).await;
    let shown = seen(&answer);
    let sizes: Vec<_> = shown.iter().map(|seen| seen.picture.width()).collect();
    assert_eq!(sizes, [800, 1024], "{}", answer.json);
    for shown in &shown {
        let red = shown.picture.to_rgb8().pixels().filter(|pixel| pixel.0 == [255, 0, 0]).count();
        assert!(red > 10_000, "the bars are red: {red}");
    }
    let url = answer.json["artifacts"][0]["download_url"].as_str().unwrap();
    assert!(shown[0].bytes == http("GET", url).await.body, "what fits comes as it is");
}
