//! Hostile input from both sides: arguments that callers send, and files that programs leave.
//!
//! Every value of a list is tried in the place of every argument of every tool. Tools and arguments come from the
//! tools' own schemas, so that new ones are tried as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};
use support::{
    Answer, On, PATIENCE, PATIENT, Server, http, name, on_both, rounds,
    web::{Caller, Web},
};

on_both! {
    every_bad_argument_of_every_tool_has_its_code_and_a_useful_sentence,
    a_request_that_is_no_json_is_answered_all_the_same,
    tens_of_thousands_of_files_are_counted_and_listed,
    a_file_that_is_replaced_while_it_is_read_is_one_version_or_an_error,
    ; on docker alone:
    whatever_a_program_leaves_is_listed_and_served_or_not_there,
}

/// Texts that are not names of files.
const BAD_NAMES: &[&str] = &[
    "",
    ".",
    "..",
    "../up",
    "../../../../etc/passwd",
    "a/../../up",
    "a/..",
    "a/./b",
    "./a",
    "/",
    "//",
    "/etc/passwd",
    "/mnt/data",
    "/mnt/data/",
    "/mnt/data/../../etc/passwd",
    "/mnt/database/a",
    "/proc/self/environ",
    "a//b",
    "a/",
    "..\\..\\windows",
    "\\\\host\\share",
    "C:\\a",
    "a\0b",
    "\0",
    "../\0",
    "line\nbreak",
    "\r\n",
    "\t",
    "\u{1b}[31mred",
    "\u{7f}",
    "\u{85}",
    "\u{9b}31m",
    "file:///etc/passwd",
    "https://192.0.2.1/a",
];

/// Texts that look dangerous and are ordinary names: each is the name of exactly that file.
const ODD_NAMES: &[&str] = &[
    "...",
    "..a",
    "%2e%2e",
    "%2e%2e%2fetc%2fpasswd",
    "..%2f..%2fetc%2fpasswd",
    "%252e%252e%252f",
    "%00",
    "%5c..",
    // One dot leaders, full-width dots and slashes, a division slash: none of them is a real dot or slash.
    "\u{2024}\u{2024}\u{2215}up",
    "\u{ff0e}\u{ff0e}\u{ff0f}etc\u{ff0f}passwd",
    "\u{2215}etc\u{2215}passwd",
    // Cyrillic, combining, joined, right-to-left and invisible characters.
    "\u{441}\u{435}\u{455}\u{455}.csv",
    "e\u{301}.csv",
    "\u{1f468}\u{200d}\u{1f469}.png",
    "\u{202e}gnp.exe",
    "\u{200b}",
    "\u{feff}a",
    "\u{2028}",
    " ",
    " a ",
    "-rf",
    "--help",
    "~",
    "~root",
    "$(id)",
    "`id`",
    "a;b|c&d",
    "' OR 1=1 --",
    "\"quoted\"",
    "{{7*7}}",
    "%s%n",
    "<script>alert(1)",
    "*",
    "?",
    "#",
    "a?b#c",
    "CON",
    "null",
    "undefined",
    "0",
    "true",
    "[]",
    "{}",
    "main.py",
    ".upload-1",
];

/// Texts that are not base64 in any alphabet or padding.
const BAD_BASE64: &[&str] = &[
    "A",
    "A===",
    "====",
    "=AAA",
    "AA==AA==",
    "A=A=",
    "AB==",
    "AAB=",
    "AA ==",
    "AA==\0",
    "\u{ff21}A==",
    "data:text/plain,AA==",
    "data:text/plain;base64,AA==AA==",
    "data:",
    "AAAA\\n",
    "%41%41%3D%3D",
    "{\"a\":1}",
];

/// A value, and whether it is the name of a file.
struct Hostile {
    value: Value,
    is_name: bool,
}

fn all_values() -> Vec<Hostile> {
    let not_a_name = |value| Hostile { value, is_name: false };
    let mut all: Vec<_> = BAD_NAMES.iter().map(|text| not_a_name(json!(text))).collect();
    all.extend(
        BAD_BASE64
            .iter()
            .map(|text| Hostile { value: json!(text), is_name: !text.contains(['\0', '\\']) }),
    );
    all.extend(ODD_NAMES.iter().map(|text| Hostile { value: json!(text), is_name: true }));
    for text in ["x".repeat(10_000), "x/".repeat(65) + "x", "x".repeat(256), "é".repeat(128)] {
        all.push(not_a_name(text.into()));
    }
    for text in ["x".repeat(255), "é".repeat(127), "x/".repeat(64) + "x"] {
        all.push(Hostile { value: text.into(), is_name: true });
    }
    let mut deep = json!("a");
    for _ in 0..100 {
        deep = json!([deep]);
    }
    // Messages with more keys are refused without being parsed, see exhaustion.rs.
    let wide: Map<_, _> = (0..600).map(|n| (format!("key {n}"), n.into())).collect();
    all.extend(
        [
            json!(null),
            json!(true),
            json!(false),
            json!(0),
            json!(-1),
            json!(61),
            json!(1.5),
            json!(1e308),
            json!(u64::MAX),
            json!(i64::MIN),
            json!([]),
            json!(["a"]),
            json!({}),
            json!({ "a": "b" }),
            deep,
            wide.into(),
            "x".repeat(1_000_000).into(),
        ]
        .map(not_a_name),
    );
    all
}

/// Tools that start a session if there is none with the given name.
const STARTS_SESSIONS: [&str; 4] = ["create_session", "execute_code", "run_python", "upload_file"];

/// The result that a value must have as an argument: an error with this code, or none that concerns the argument.
fn expected(tool: &str, argument: &str, optional: bool, hostile: &Hostile) -> Option<&'static str> {
    let value = &hostile.value;
    if optional && value.is_null() {
        return None;
    }
    // A text that means a number or a switch is accepted, and a number out of bounds becomes the nearest bound.
    let says = |text: &str| text.trim().to_ascii_lowercase();
    let is_whole = |number: f64| number.fract() == 0.0;
    match argument {
        "overwrite" | "files" | "background" => {
            let fits = value.is_boolean()
                || value.as_str().is_some_and(|text| matches!(&*says(text), "true" | "false"));
            return (!fits).then_some("invalid_argument");
        }
        // A number below 1 is invalid, and there are not as many cells to undo as the others ask for.
        "undo" => {
            let number = value.as_str().and_then(|text| says(text).parse().ok());
            let number = number.or(value.as_f64()).filter(|number| is_whole(*number));
            let is_positive = number.is_some_and(|number| number >= 1.0);
            return Some(if is_positive { "nothing_to_undo" } else { "invalid_argument" });
        }
        // The file of the test is no PDF document.
        "page" => return Some("invalid_argument"),
        "offset" | "length" | "inline_images" | "timeout_s" | "timeout" | "memory_limit_mb"
        | "disk_limit_mb" | "timeout_seconds" | "wait_s" => {
            let number = value.as_str().and_then(|text| says(text).parse().ok());
            let fits = number.or(value.as_f64()).is_some_and(is_whole);
            return (!fits).then_some("invalid_argument");
        }
        _ => {}
    }
    let Some(text) = value.as_str() else { return Some("invalid_argument") };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    match argument {
        // An empty session_id counts as omitted.
        "session_id" if text.is_empty() => (!optional).then_some("invalid_argument"),
        "session_id" if text.len() > 64 || !text.bytes().all(allowed) => Some("invalid_session_id"),
        "session_id" if STARTS_SESSIONS.contains(&tool) => None,
        "session_id" => Some("session_not_found"),
        "filename" => (!hostile.is_name).then_some("invalid_filename"),
        "path" if tool == "list_artifacts" && matches!(text, "" | "/mnt/data" | "/mnt/data/") => {
            None
        }
        "path" if tool == "list_artifacts" && text == "a/" => Some("not_found"),
        "path" => Some(if hostile.is_name { "not_found" } else { "invalid_path" }),
        "content_base64" => (!is_base64(text)).then_some("invalid_base64"),
        // No run has such an execution_id.
        "text" | "stdin" | "execution_id" => None,
        "local_path" => Some("invalid_path"),
        "run_id" => Some("not_found"),
        "code" if text.len() > 100_000 => Some("code_too_large"),
        "code" => text.trim().is_empty().then_some("invalid_argument"),
        "format" | "stream" => Some("invalid_argument"),
        "language" => (!text.trim().is_empty()).then_some("unsupported_language"),
        other => panic!("say here what a bad {other} of {tool} leads to"),
    }
}

/// Whether a text is base64: wrapped or not, in either alphabet, with any part of its padding.
fn is_base64(text: &str) -> bool {
    let text = text.replace(['\r', '\n'], "").replace('-', "+").replace('_', "/");
    let text = text.strip_prefix("data:text/plain;base64,").unwrap_or(&text);
    let content = text.trim_end_matches('=');
    let missing = (4 - content.len() % 4) % 4;
    text.len() <= content.len() + missing
        && STANDARD.decode(content.to_owned() + &"=".repeat(missing)).is_ok()
}

/// The codes that docs/tools.md documents.
fn documented_codes() -> BTreeSet<&'static str> {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tools.md"));
    let table = page.split("\n## Errors\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = table.expect("a chapter").lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|code| code.trim_matches('`'))
        .collect()
}

#[track_caller]
fn assert_refused(answer: &Answer, code: &str, about: &str, documented: &BTreeSet<&str>) {
    assert_eq!(answer.error(), code, "{}", answer.json);
    assert!(documented.contains(code), "{code} is not in docs/tools.md");
    let message = answer.json["message"].as_str().expect("a text");
    assert!((15..600).contains(&message.len()), "{message}");
    assert!(!message.chars().any(char::is_control), "{message:?} may go to a terminal");
    let subject = match code {
        "invalid_filename" => "filename",
        "invalid_path" => "path",
        "invalid_base64" => "content_base64",
        "invalid_session_id" => "session_id",
        "code_too_large" => "code",
        "invalid_argument" => about,
        "unsupported_language" => "The languages are python",
        _ => "",
    };
    assert!(message.contains(subject), "{message:?} does not say that it is about {subject}");
}

/// Valid values for all required arguments of a tool.
fn good_arguments(required: &[Value], session: &str, run: &Value) -> Map<String, Value> {
    let good = |argument: &str| match argument {
        "session_id" => json!(session),
        "filename" => json!("new.csv"),
        "content_base64" => json!("AA=="),
        "path" => json!("kept.csv"),
        "code" => json!("pass"),
        "run_id" => run.clone(),
        "execution_id" => json!("run_1"),
        other => panic!("say here what a good {other} is"),
    };
    let names = required.iter().filter_map(Value::as_str);
    let mut all: Map<_, _> = names.map(|name| (name.to_owned(), good(name))).collect();
    if all.contains_key("filename") {
        // Without content the tool would return an address and write nothing.
        all.insert("content_base64".to_owned(), good("content_base64"));
    }
    all
}

async fn every_bad_argument_of_every_tool_has_its_code_and_a_useful_sentence(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let roots = folder.path().to_str().expect("UTF-8");
    // The tool has the argument local_path only if the server has upload roots.
    let server = Server::start_with(on, &[("SANDBOX_UPLOAD_ROOTS", roots)]).await;
    let id = name("hostile");
    server.upload(&id, "kept.csv", b"kept").await.ok();
    let documented = documented_codes();
    assert!(documented.len() > 10, "{documented:?}");
    let listed = server.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("tools").clone();

    let cut = server.run(&id, "print('x' * 200_000)").await["run_id"].clone();
    let mut tried = 0;
    let mut files = BTreeSet::from(["kept.csv".to_owned()]);
    for tool in &tools {
        let (tool, schema) = (tool["name"].as_str().expect("a name"), &tool["inputSchema"]);
        let mut required = schema["required"].as_array().cloned().unwrap_or_default();
        if tool == "upload_file" {
            assert!(required.is_empty(), "a file of the client has a name");
            required.push(json!("filename"));
        }
        let required = &required;
        let good = good_arguments(required, &id, &cut);

        for argument in required.iter().filter_map(Value::as_str) {
            let mut without = good.clone();
            without.remove(argument);
            let refused = server.call(tool, without.into()).await;
            assert_refused(&refused, "invalid_argument", argument, &documented);
            tried += 1;
        }
        let long = "x".repeat(1_000_000);
        for text in BAD_NAMES.iter().chain(ODD_NAMES).copied().chain([&*long]) {
            let mut more = good.clone();
            more.insert(text.to_owned(), json!(1));
            let refused = server.call(tool, more.into()).await;
            assert_refused(&refused, "invalid_argument", "Unknown argument", &documented);
            tried += 1;
        }
        for argument in schema["properties"].as_object().expect("an object").keys() {
            let optional = !required.contains(&json!(argument));
            for hostile in all_values() {
                let code = expected(tool, argument, optional, &hostile);
                // Valid values of these arguments would start a sandbox or a program each, and show nothing new.
                let is_for_real =
                    matches!(&**argument, "session_id" | "code" | "files" | "background")
                        || matches!(tool, "create_session" | "execute_code" | "reset_workspace");
                let taken = code.is_none() && is_for_real;
                if taken {
                    continue;
                }
                let mut arguments = good.clone();
                if schema["properties"].get("session_id").is_some() {
                    arguments.entry("session_id").or_insert(json!(id));
                }
                if matches!(&**argument, "text" | "local_path") {
                    // The tool accepts only one kind of content.
                    arguments.remove("content_base64");
                }
                arguments.insert(argument.clone(), hostile.value.clone());
                let answer = server.call(tool, arguments.into()).await;
                tried += 1;
                if let Some(code) = code {
                    assert_refused(&answer, code, argument, &documented);
                    continue;
                }
                let used = if answer.raw["isError"] == true {
                    // An earlier value of another argument has created the file.
                    assert_refused(&answer, "file_exists", "", &documented);
                    continue;
                } else {
                    answer.ok()
                };
                if matches!(tool, "cancel_execution" | "get_execution_result") {
                    assert_eq!(used["status"], "not_found");
                } else if used["session_id"] != id {
                    let other = json!({ "session_id": used["session_id"] });
                    server.call("close_session", other).await.ok();
                } else if used.get("upload_url").is_some() {
                    assert!(hostile.value.is_null(), "{argument} was taken for nothing");
                } else if let Some(path) = used["path"].as_str() {
                    files.insert(path.strip_prefix("/mnt/data/").expect("within").to_owned());
                }
            }
        }
    }
    println!("{tried} hostile arguments on {on:?}");
    assert!(tried > 1_500, "{tried}");

    let listed: BTreeSet<_> = server.files(&id).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(listed, files, "what was refused wrote nothing, what was not, just that");
    for text in ODD_NAMES.iter().filter(|text| **text != "main.py") {
        assert!(files.contains(*text), "{text:?}");
    }
    only_names_of_files_lead_to_files(&server, &id, &files).await;
}

/// Requests the same texts in URLs, with every byte encoded.
async fn only_names_of_files_lead_to_files(server: &Server, id: &str, files: &BTreeSet<String>) {
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let template = listed["download_url_template"].as_str().expect("a URL");
    let urls: BTreeMap<_, _> = server
        .files(id)
        .await
        .into_iter()
        .map(|(name, _)| {
            let encoded = utf8_percent_encode(&name, NON_ALPHANUMERIC).to_string();
            (name, template.replace("{filename}", &encoded))
        })
        .collect();
    let page = listed["page_url"].as_str().expect("a URL");
    let (base, signature) = page.split_once('?').expect("it is signed");
    for text in BAD_NAMES.iter().chain(ODD_NAMES) {
        let encoded = utf8_percent_encode(text, NON_ALPHANUMERIC);
        let response = http("GET", &format!("{base}{encoded}?{signature}")).await;
        if text.is_empty() {
            let listed = response.json()["artifacts"].as_array().map(Vec::len);
            assert_eq!((response.status, listed), (200, Some(files.len())), "the list of them");
            continue;
        }
        let refused = matches!(response.status, 401 | 403 | 404);
        assert!(refused, "the page's right opens no file, {text:?}: {}", response.status);
        if files.contains(*text) {
            let url = &urls[*text];
            let response = http("GET", url).await;
            assert_eq!((response.status, &response.body[..]), (200, &[0][..]), "{text:?}");
        }
    }
}

async fn a_request_that_is_no_json_is_answered_all_the_same(on: On) {
    let server = Server::start(on).await;
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    for session in [
        r#""\ud83d""#,
        r#""\udc00\ud800""#,
        "1e999",
        "nul",
        "\"a\nb\"",
        "\"\0\"",
        &deep,
        "'a'",
        "01",
    ] {
        let (id, answer) = server.expect_answer();
        server.send_line(format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":\
             {{\"name\":\"list_artifacts\",\"arguments\":{{\"session_id\":{session}}}}}}}"
        ));
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        let answer = answer.expect("in time").expect("answered");
        assert_eq!(answer["error"]["code"], -32700, "{session}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("JSON")));
    }
    assert_eq!(server.run(&name("json"), "print('well')").await["stdout"], "well\n");
}

async fn tens_of_thousands_of_files_are_counted_and_listed(on: On) {
    // Plain processes have no limit of files, so the test writes more than containers may have.
    let (count, most) = if on == On::Local { (20_000, 20_000) } else { (16_000, 16_383) };
    let (server, id) = (Server::start(on).await, name("many"));
    let code = format!("for n in range({count}): open(f'{{n:05}}', 'w')");
    let run = server.run(&id, &code).await;
    assert_eq!(run["artifacts"].as_array().map(Vec::len), Some(50));
    assert_eq!(run["artifacts_omitted"], count - 50);
    let page = async |offset: u64| {
        let arguments = json!({ "session_id": id, "offset": offset });
        server.call("list_artifacts", arguments).await.ok()
    };
    let listed = page(count - 1).await;
    assert_eq!((&listed["total"], listed.get("incomplete")), (&json!(count), None));
    assert_eq!(listed["artifacts"][0]["filename"], format!("{:05}", count - 1));
    assert!(count <= most);
    if on == On::Local {
        return;
    }

    // Names of the maximum length, written in a script with characters that JSON could escape.
    let code = "import os\nfor n in range(16_000):\n    os.remove(f'{n:05}')\n    \
                open(f'{n:05}' + '\\u00e9' * 125, 'w')";
    assert_eq!(server.run(&id, code).await["outcome"], "ok");
    let listed = page(0).await;
    let total = listed["total"].as_u64().expect("a count");
    assert!(total == 16_000 || listed["incomplete"] == true, "{total}");
    assert!(listed.to_string().chars().count() < 40_000 && total > 1_000, "{total}");
    assert_eq!(page(total - 1).await["artifacts"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed["artifacts"][0]["filename"].as_str().map(str::len), Some(255));

    // Names that no caller can ask for. They are not listed, but the listing must still say that there is more.
    let code = "import os\nfor name in os.listdir(): os.remove(name)\n\
                for n in range(15_000): open(f'{n:05}' + '\\x01' * 250, 'w')\nopen('zzz', 'w')";
    assert_eq!(server.run(&id, code).await["outcome"], "ok");
    let listed = page(0).await;
    assert_eq!(listed["incomplete"], true, "{listed}");
    assert_eq!(server.upload(&id, "zzz", b"").await.error(), "file_exists");
}

async fn a_file_that_is_replaced_while_it_is_read_is_one_version_or_an_error(on: On) {
    let server = Server::start_with(on, &[PATIENT]).await;
    let id = name("replaced");
    // Replaced as careful programs do; grown and truncated; and exchanged for links to files outside, as a file and as
    // a folder on the path.
    let code = r"
import os
os.makedirs('folder')
open('folder/passwd', 'w').write('ours')
turn = 0
while turn <= 10 or not os.path.exists('stop'):
    turn += 1
    with open('next', 'wb') as file: file.write(bytes([97 + turn % 26]) * 300_000)
    os.replace('next', 'whole')
    with open('ragged', 'ab') as file: file.write(b'x' * 10_000)
    if turn % 5 == 0: os.truncate('ragged', 0)
    os.symlink('/etc/passwd', 'link')
    os.replace('link', 'passwd')
    os.rename('folder', 'aside')
    os.symlink('/etc', 'folder')
    os.remove('folder')
    os.rename('aside', 'folder')
    open('link', 'w').write('ours')
    os.replace('link', 'passwd')
print(True)";
    let reads = async {
        support::until("it writes", async || server.files_if_any(&id).await.len() > 2).await;
        let (mut whole, mut changed) = (0, 0);
        // On a busy machine fewer rounds, because the run has a time limit.
        let began = Instant::now();
        let has_time = || began.elapsed() < PATIENCE / 3;
        while whole < 3 || whole + changed < rounds(15, 40) && has_time() {
            for path in ["whole", "ragged", "passwd", "folder/passwd"] {
                let arguments = json!({
                    "session_id": id, "path": path, "format": "base64", "length": 350_000,
                });
                let answer = server.call("read_artifact", arguments).await;
                if answer.raw["isError"] == true {
                    let allowed = ["invalid_argument", "invalid_path", "not_found"];
                    assert!(allowed.contains(&answer.error()), "{path}: {}", answer.json);
                    changed += usize::from(path == "whole");
                    continue;
                }
                let json = answer.ok();
                let content = json["content_base64"].as_str().expect("a text");
                let content = STANDARD.decode(content).expect("base64");
                match path {
                    "whole" => {
                        assert_eq!(content.len(), 300_000);
                        assert!(content.iter().all(|byte| *byte == content[0]), "of two versions");
                        whole += 1;
                    }
                    "ragged" => assert!(content.iter().all(|byte| *byte == b'x')),
                    _ => assert!(matches!(&content[..], b"" | b"ours"), "{path} leads out"),
                }
            }
        }
        server.upload(&id, "stop", b"").await.ok();
    };
    let (run, ()) = tokio::join!(server.run(&id, code), reads);
    assert_eq!(run["stdout"], "True\n", "{run}");
}

/// Creates every kind of entry that a folder can have.
const ODD_FILES: &str = r"
import os, socket
open('plain', 'w').write('plain')
os.link('plain', 'hard')
for name, target in {
    'to-file': 'plain', 'to-secret': '/etc/passwd', 'to-agent': '/proc/1/environ', 'to-self': 'to-self',
    'to-folder': '.', 'to-root': '/', 'to-nothing': 'nothing', 'to-fd': '/proc/self/fd/0', 'to-up': '..',
    'to-magic': '/proc/self/cwd/plain', 'to-long': 'x' * 4000,
}.items(): os.symlink(target, name)
try: os.link('/etc/passwd', 'hard-secret')
except OSError: pass
os.mkfifo('fifo')
sock = socket.socket(socket.AF_UNIX); sock.bind('socket')
os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 60_000_000)
for name in b'line\nbreak', b'\xff\xfe', b'tab\t', b'back\\slash', b'\x1b[2J', b'nel\xc2\x85': open(name, 'w')
for name in 'x' * 255, '\u00e9' * 127, ' ', '-rf', '%2e%2e', 'a\u202eb', '\'quote\'', '&lt;': open(name, 'w')
os.makedirs('folder/empty')
os.makedirs('closed'); open('closed/in', 'w'); os.chmod('closed', 0)
open('unreadable', 'w'); os.chmod('unreadable', 0)
os.utime('plain', ns=(0, 2**62))
here = os.getcwd()
for depth in range(300):
    os.mkdir('d'); os.chdir('d')
    if depth in (30, 200): open('deep', 'w')
os.chdir(here)
";

async fn whatever_a_program_leaves_is_listed_and_served_or_not_there() {
    // A server without tokens, so that every path can be requested.
    let (_web, caller) = Web::open(On::Docker, &[]).await;
    let id = name("artifacts");
    let run = caller.run(&id, ODD_FILES).await;
    assert_eq!(run["outcome"], "ok", "{run}");
    let deep = "d/".repeat(31) + "deep";
    let long = "x".repeat(255);
    let accents = "é".repeat(127);
    let good: BTreeSet<_> = [
        "plain",
        "hard",
        "sparse",
        &long,
        &accents,
        " ",
        "-rf",
        "%2e%2e",
        "a\u{202e}b",
        "'quote'",
        "&lt;",
        "unreadable",
        &deep,
    ]
    .map(str::to_owned)
    .into();
    let listed: BTreeSet<_> = caller.files(&id).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(listed, good);
    let told: BTreeSet<_> = run["artifacts"]
        .as_array()
        .expect("an array")
        .iter()
        .filter_map(|artifact| artifact["filename"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(told, good);

    good_files_are_served(&caller, &id, &good).await;
    links_and_special_files_are_not(&caller, &id).await;
    nothing_is_written_through_them(&caller, &id).await;
}

async fn read(caller: &Caller, id: &str, path: &str) -> Answer {
    let arguments = json!({ "session_id": id, "path": path, "format": "base64" });
    caller.call("read_artifact", arguments).await
}

async fn get(caller: &Caller, id: &str, path: &str) -> support::Response {
    let path = utf8_percent_encode(path, NON_ALPHANUMERIC).to_string();
    caller.send("GET", &format!("/files/{id}/{path}"), &[], &[]).await
}

async fn good_files_are_served(caller: &Caller, id: &str, good: &BTreeSet<String>) {
    for path in good {
        let content = match &**path {
            "plain" | "hard" => &b"plain"[..],
            _ => b"",
        };
        match &**path {
            "sparse" => {
                assert_eq!(read(caller, id, path).await.ok()["next_offset"], 30_000);
                let response = get(caller, id, path).await;
                assert_eq!(response.body.len(), 60_000_000);
            }
            "unreadable" => {
                assert_eq!(read(caller, id, path).await.error(), "invalid_path");
                assert_eq!(get(caller, id, path).await.status, 404);
            }
            _ => {
                assert_eq!(
                    read(caller, id, path).await.ok()["content_base64"],
                    STANDARD.encode(content)
                );
                assert_eq!(get(caller, id, path).await.body, content, "{path}");
            }
        }
    }
}

async fn links_and_special_files_are_not(caller: &Caller, id: &str) {
    for (path, code) in [
        ("to-file", "invalid_path"),
        ("to-secret", "invalid_path"),
        ("to-agent", "invalid_path"),
        ("to-self", "invalid_path"),
        ("to-folder", "invalid_path"),
        ("to-folder/plain", "invalid_path"),
        ("to-root/etc/passwd", "invalid_path"),
        ("to-nothing", "invalid_path"),
        ("to-fd", "invalid_path"),
        ("to-up/data/plain", "invalid_path"),
        ("to-magic", "invalid_path"),
        ("to-long", "invalid_path"),
        ("hard-secret", "not_found"),
        ("fifo", "not_found"),
        ("socket", "not_found"),
        ("folder", "not_found"),
        ("folder/empty", "not_found"),
        ("plain/below", "invalid_path"),
        ("closed/in", "invalid_path"),
    ] {
        assert_eq!(read(caller, id, path).await.error(), code, "{path}");
        assert_eq!(get(caller, id, path).await.status, 404, "{path}");
    }
}

/// Uploads through these entries are refused; entries that are not folders can be replaced themselves.
async fn nothing_is_written_through_them(caller: &Caller, id: &str) {
    for path in [
        "to-root/tmp/a",
        "to-up/data/a",
        "to-folder/a",
        "fifo/a",
        "socket/a",
        "closed/a",
        "folder",
        "d",
    ] {
        let arguments = json!({
            "session_id": id, "filename": path, "content_base64": "", "overwrite": true,
        });
        assert_eq!(
            caller.call("upload_file", arguments).await.error(),
            "invalid_filename",
            "{path}"
        );
    }
    for path in ["to-secret", "to-self", "fifo", "socket", "unreadable"] {
        assert_eq!(caller.upload(id, path, b"new").await.error(), "file_exists", "{path}");
        let arguments = json!({
            "session_id": id, "filename": path, "content_base64": STANDARD.encode("new"),
            "overwrite": true,
        });
        caller.call("upload_file", arguments).await.ok();
        assert_eq!(get(caller, id, path).await.body, b"new", "{path}");
    }
    let next = caller.run(id, "import os; print(os.path.islink('to-secret'))").await;
    assert_eq!(next["stdout"], "False\n");
}
