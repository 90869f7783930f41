//! The operator's own tools: programs for WASI, written by hand here, which clients use like any other tool.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use support::{
    On, Server, answered, assert_fields, ended, http, http_begin, name, program, text, until,
    web::Web,
};

use crate::http::read_until;

/// A program with this data, these functions, and this body of `_start`. `$print` takes an address and a length;
/// `$number` prints a number as a line. Both use the first 64 bytes of the memory.
fn wat(data: &str, functions: &str, start: &str) -> String {
    let import = |name: &str, params: &str| {
        format!(
            r#"(import "wasi_snapshot_preview1" "{name}" (func ${name} (param {params}) (result i32)))"#
        )
    };
    let imports = [
        import("fd_write", "i32 i32 i32 i32"),
        import("fd_read", "i32 i32 i32 i32"),
        import("fd_close", "i32"),
        import("fd_prestat_get", "i32 i32"),
        import("path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32"),
        import("path_symlink", "i32 i32 i32 i32 i32"),
        import("path_link", "i32 i32 i32 i32 i32 i32 i32"),
        import("path_filestat_get", "i32 i32 i32 i32 i32"),
        import("args_get", "i32 i32"),
        import("args_sizes_get", "i32 i32"),
        import("environ_get", "i32 i32"),
        import("environ_sizes_get", "i32 i32"),
        import("sock_accept", "i32 i32 i32"),
        import("sock_send", "i32 i32 i32 i32 i32"),
    ];
    format!(
        r#"(module {}
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 32)
  {data}
  (func $write (param $fd i32) (param $at i32) (param $len i32) (result i32)
    (i32.store (i32.const 0) (local.get $at)) (i32.store (i32.const 4) (local.get $len))
    (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))
  (func $print (param $at i32) (param $len i32)
    (drop (call $write (i32.const 1) (local.get $at) (local.get $len))))
  (func $digits (param $n i32)
    (if (i32.ge_u (local.get $n) (i32.const 10))
      (then (call $digits (i32.div_u (local.get $n) (i32.const 10)))))
    (i32.store8 (i32.const 16) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
    (call $print (i32.const 16) (i32.const 1)))
  (func $number (param $n i32)
    (call $digits (local.get $n)) (i32.store8 (i32.const 17) (i32.const 10))
    (call $print (i32.const 17) (i32.const 1)))
  ;; Opens what has this name, in the folder with descriptor 3: for reading, or made and for writing.
  (func $open (param $at i32) (param $len i32) (param $make i32) (result i32)
    (call $path_open (i32.const 3) (i32.const 1) (local.get $at) (local.get $len) (local.get $make)
      (i64.const -1) (i64.const -1) (i32.const 0) (i32.const 20)))
  (func $copy (param $from i32)
    (loop $more
      (i32.store (i32.const 24) (i32.const 1024)) (i32.store (i32.const 28) (i32.const 65536))
      (if (i32.eqz (call $fd_read (local.get $from) (i32.const 24) (i32.const 1) (i32.const 32)))
        (then (if (i32.load (i32.const 32)) (then
          (call $print (i32.const 1024) (i32.load (i32.const 32))) (br $more)))))))
  {functions}
  (func (export "_start") {start}))"#,
        imports.concat()
    )
}

/// A program that says hello.
fn hello() -> String {
    wat(r#"(data (i32.const 64) "hello\n")"#, "", "(call $print (i32.const 64) (i32.const 6))")
}

/// A program that prints its arguments and variables, the file `in.txt`, and its standard input.
fn mirror() -> String {
    let start = r"
      (drop (call $args_sizes_get (i32.const 40) (i32.const 44)))
      (drop (call $args_get (i32.const 512) (i32.const 70000)))
      (call $print (i32.const 70000) (i32.load (i32.const 44)))
      (drop (call $environ_sizes_get (i32.const 40) (i32.const 44)))
      (drop (call $environ_get (i32.const 512) (i32.const 70000)))
      (call $print (i32.const 70000) (i32.load (i32.const 44)))
      (if (i32.eqz (call $open (i32.const 64) (i32.const 6) (i32.const 0)))
        (then (call $copy (i32.load (i32.const 20)))))
      (call $copy (i32.const 0))";
    wat(r#"(data (i32.const 64) "in.txt")"#, "", start)
}

/// The smallest picture, in the text format's notation for bytes.
fn pixel() -> Vec<u8> {
    let mut png = vec![];
    let encoder = image::codecs::png::PngEncoder::new(&mut png);
    image::ImageEncoder::write_image(encoder, &[255, 0, 0], 1, 1, image::ExtendedColorType::Rgb8)
        .expect("encoded");
    png
}

/// A program that makes a text, a picture, and bytes that are neither, and changes its input file.
fn maker() -> String {
    let escaped = pixel().iter().map(|byte| format!("\\{byte:02x}")).collect::<Vec<_>>().concat();
    let data = format!(
        r#"(data (i32.const 64) "note.txt") (data (i32.const 80) "a.png") (data (i32.const 96) "b.bin")
           (data (i32.const 112) "in.txt") (data (i32.const 128) "\00\01\ff") (data (i32.const 256) "{escaped}")"#
    );
    let save = r"(func $save (param $name i32) (param $name_len i32) (param $at i32) (param $len i32)
        (drop (call $open (local.get $name) (local.get $name_len) (i32.const 1)))
        (drop (call $write (i32.load (i32.const 20)) (local.get $at) (local.get $len))))";
    let start = format!(
        r"(call $save (i32.const 64) (i32.const 8) (i32.const 64) (i32.const 4))
           (call $save (i32.const 80) (i32.const 5) (i32.const 256) (i32.const {}))
           (call $save (i32.const 96) (i32.const 5) (i32.const 128) (i32.const 3))
           (call $save (i32.const 112) (i32.const 6) (i32.const 64) (i32.const 4))",
        pixel().len()
    );
    wat(&data, save, &start)
}

const ENDLESS: &str = "(loop $on (br $on))";

/// Code that takes all available memory, and then traps.
const GREEDY: &str =
    r"(loop $on (br_if $on (i32.ne (memory.grow (i32.const 64)) (i32.const -1)))) unreachable";

/// A folder of tools.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, content).expect("written");
        path
    }

    /// Writes a tool's program and definition; `more` is added to the definition.
    fn define(&self, name: &str, wat: &str, more: Value) {
        self.write(&format!("{name}.wat"), wat);
        let mut definition = json!({
            "name": name, "description": format!("The tool {name}."), "wasm_file": format!("{name}.wat"),
        });
        definition.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        self.write(&format!("{name}.json"), definition.to_string());
    }

    async fn serve(&self, more: &[(&str, &str)]) -> Server {
        let settings = [&[("SANDBOX_TOOLS_FILE", self.path().to_str().expect("UTF-8"))], more];
        Server::start_with(On::Local, &settings.concat()).await
    }
}

fn one_text(name: &str) -> Value {
    json!({ "properties": { name: { "type": "string" } }, "required": [name] })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_ones_own_is_listed_and_called_as_any_other() {
    let folder = Folder::new();
    folder.define("hello", &hello(), json!({ "schema": one_text("x") }));
    folder.define("unused", "no module", json!({ "enabled": false }));
    let server = folder.serve(&[]).await;
    let tools = server.tools().await;
    let own = tools.iter().find(|tool| tool["name"] == "hello").expect("it is listed");
    assert_eq!(own["description"], "The tool hello.");
    assert_eq!(own["inputSchema"]["properties"]["x"]["type"], "string");
    assert_eq!(own["inputSchema"]["required"], json!(["x"]));
    assert_eq!(own["outputSchema"]["properties"]["stdout"]["type"], "string");
    assert!(tools.iter().any(|tool| tool["name"] == "run_python"));
    assert!(!tools.iter().any(|tool| tool["name"] == "unused"));
    let answer = server.call("hello", json!({ "x": "" })).await.ok();
    assert_fields!(answer, { "stdout": "hello\n", "exit_code": 0, "outcome": "ok" });
    assert_eq!(answer["artifacts"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_reach_its_arguments_variables_files_and_standard_input() {
    let folder = Folder::new();
    let schema = json!({ "properties": {
        "text": { "type": "string" }, "number": { "type": "number" }, "list": { "type": "array" },
    } });
    let more = json!({
        "schema": schema,
        "mnt_dir": "/mnt/data",
        "argv": ["mirror", "<{{.text}}>", "{{ .number }}{{\"{{\"}}"],
        "env": { "LIST": "{{.list}}" },
        "files": { "in.txt": "file: {{.text}}\n" },
        "stdin": "input: {{.text}}",
    });
    folder.define("mirror", &mirror(), more);
    let server = folder.serve(&[]).await;
    let arguments = json!({ "text": "ä {{.number}}", "number": 1.5, "list": [1, "b"] });
    let answer = server.call("mirror", arguments).await.ok();
    assert_eq!(
        answer["stdout"],
        "mirror\0<ä {{.number}}>\u{0}1.5{{\0LIST=[1,\"b\"]\0file: ä {{.number}}\ninput: ä {{.number}}"
    );
    assert_eq!(answer["artifacts"], json!([]), "what it was given is not new");
    // The program sees none of the server's environment, and a missing argument is empty.
    let answer = server.call("mirror", json!({})).await.ok();
    assert_eq!(answer["stdout"], "mirror\0<>\0{{\0LIST=\0file: \ninput: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_argument_arrives_whole_and_one_that_is_too_long_is_refused() {
    let folder = Folder::new();
    let more = json!({ "schema": one_text("text"), "stdin": "{{.text}}" });
    folder.define("mirror", &mirror(), more);
    let server = folder.serve(&[("SANDBOX_MAX_OUTPUT_BYTES", "320KiB")]).await;
    for text in ["é\"\\".repeat(50_000), "x\n".repeat(140_000)] {
        let answer = server.call("mirror", json!({ "text": text })).await.ok();
        let shown = answer["stdout"].as_str().expect("a text");
        assert!(shown == format!("mirror\0{text}") || answer["stdout_truncated"] == true);
        assert!(shown.starts_with(&format!("mirror\0{}", &text[..6000])), "{}", &shown[..100]);
        assert!(shown.ends_with(&text[text.len() - 6000..]));
    }
    let refused = server.call("mirror", json!({ "text": "x".repeat(1_100_000) })).await;
    assert_eq!(refused.error(), "invalid_argument");
    assert!(refused.json["message"].as_str().expect("a text").contains("at most 1MiB"));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_take_for_ever_to_check_cost_nobody_else() {
    let folder = Folder::new();
    let list = |most: &Value| json!({ "type": "array", "items": { "$ref": "#/$defs/t" }, "minItems": 1, "maxItems": most });
    let schema = json!({
        "$defs": { "t": { "anyOf": [list(&json!(1)), list(&json!(2)), { "type": "integer" }] } },
        "properties": { "a": { "$ref": "#/$defs/t" } },
    });
    folder.define("nested", &hello(), json!({ "schema": schema }));
    let server = folder.serve(&[]).await;
    let nested = |depth: usize, innermost: Value| json!({ "a": (0..depth).fold(innermost, |inner, _| json!([inner])) });
    server.call("nested", nested(5, json!(1))).await.ok();
    let wrong = server.call("nested", nested(2, json!("x"))).await;
    assert_eq!(wrong.error(), "invalid_argument");
    assert!(wrong.json["message"].as_str().expect("a text").contains("a: "), "{}", wrong.json);
    // More calls than there are threads, in case each occupies one.
    let endless = [(); 4].map(|()| server.begin("nested", nested(40, json!("x"))).1);
    server.request("tools/list", json!({})).await;
    for answer in endless {
        let answer = answered(answer).await;
        assert!(answer.to_string().contains("too long to find out"), "{answer}");
    }
    server.call("nested", nested(1, json!(1))).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn its_schema_decides_what_it_takes() {
    let folder = Folder::new();
    let schema = json!({ "type": "object", "properties": {
        "kind": { "enum": ["bar", "pie"] },
        "size": { "type": "object", "properties": { "width": { "type": "integer", "minimum": 1 } } },
    } });
    folder.define("chart", &hello(), json!({ "schema": schema, "required": ["kind"] }));
    let server = folder.serve(&[]).await;
    server.call("chart", json!({ "kind": "pie", "size": { "width": 3 } })).await.ok();
    server.call("chart", json!({ "kind": "pie", "size": null })).await.ok();
    for (arguments, said) in [
        (json!({}), "missing properties 'kind'"),
        (json!({ "kind": "line" }), "kind: value must be one of 'bar', 'pie'"),
        (json!({ "kind": "bar", "size": { "width": 0 } }), "size.width: must be >=1, but got 0"),
        (json!({ "kind": "bar", "colour": "red" }), "there is no argument \"colour\""),
    ] {
        let refused = server.call("chart", arguments).await;
        assert_eq!(refused.error(), "invalid_argument");
        let message = refused.json["message"].as_str().expect("a text");
        assert!(
            message.starts_with("chart does not take this: ") && message.contains(said),
            "{message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_it_makes_come_back_each_in_its_way() {
    let folder = Folder::new();
    folder.define("maker", &maker(), json!({ "files": { "in.txt": "old", "same.txt": "same" } }));
    let server = folder.serve(&[]).await;
    for _ in 0..2 {
        let answer = server.call("maker", json!({})).await;
        let [image] = answer.blocks("image")[..] else { panic!("one picture: {}", answer.raw) };
        assert_eq!(image["mimeType"], "image/png");
        let [resource] = answer.blocks("resource")[..] else { panic!("one file: {}", answer.raw) };
        assert_eq!(resource["resource"]["blob"], "AAH/");
        assert_eq!(resource["resource"]["uri"], "file:///b.bin");
        let told = answer.ok();
        let artifact = |name: &str, size: usize, mime: &str| json!({ "filename": name, "size_bytes": size, "mime_type": mime });
        let with_text = |name: &str| {
            let mut artifact = artifact(name, 4, "text/plain");
            artifact["text"] = "note".into();
            artifact
        };
        let expected = [
            artifact("a.png", pixel().len(), "image/png"),
            artifact("b.bin", 3, "application/octet-stream"),
            with_text("in.txt"),
            with_text("note.txt"),
        ];
        assert_eq!(told["artifacts"], json!(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_call_is_there_in_the_next() {
    let folder = Folder::new();
    // Increments a number in a global and one in its memory, and makes a file.
    let functions = "(global $count (mut i32) (i32.const 0))";
    let start = r"(global.set $count (i32.add (global.get $count) (i32.const 1)))
        (i32.store (i32.const 90000) (i32.add (i32.load (i32.const 90000)) (i32.const 1)))
        (call $number (global.get $count)) (call $number (i32.load (i32.const 90000)))
        (call $number (call $open (i32.const 64) (i32.const 1) (i32.const 5)))";
    folder.define("counter", &wat(r#"(data (i32.const 64) "f")"#, functions, start), json!({}));
    let server = folder.serve(&[]).await;
    for _ in 0..3 {
        // The flags require that the file does not exist before (O_CREAT and O_EXCL).
        assert_eq!(server.call("counter", json!({})).await.ok()["stdout"], "1\n1\n0\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_limit_ends_the_call_says_so_and_leaves_the_tool_as_it_was() {
    let folder = Folder::new();
    let memory = json!({ "memory_mb": 8 });
    let limited = [
        ("endless", wat("", "", ENDLESS), json!({ "deadline": 0.3 })),
        ("costly", wat("", "", ENDLESS), json!({ "fuel": 1_000_000 })),
        ("greedy", wat("", "", GREEDY), memory),
        (
            "large",
            "(module (memory (export \"memory\") 65536) (func (export \"_start\")))".into(),
            json!({ "memory_mb": 8 }),
        ),
        (
            "failing",
            wat("", "", "(call $number (i32.const 1)) (call $proc_exit (i32.const 7))"),
            json!({}),
        ),
        ("giving_up", wat("", "", "unreachable"), json!({})),
        (
            "deep",
            wat("", "(func $deeper (call $deeper) (call $deeper))", "(call $deeper)"),
            json!({}),
        ),
        // Code that runs before `_start` is limited, too.
        (
            "early",
            format!(
                "(module (memory (export \"memory\") 1) (func $init {ENDLESS}) (start $init) (func (export \"_start\")))"
            ),
            json!({ "deadline": 0.3 }),
        ),
        ("hello", hello(), json!({})),
    ];
    for (name, wat, more) in &limited {
        folder.define(name, wat, more.clone());
    }
    let server = folder.serve(&[]).await;
    for _ in 0..2 {
        for (name, outcome, exit_code, said) in [
            ("endless", "timeout", -1, "Execution timed out after 0.3 seconds"),
            ("early", "timeout", -1, "Execution timed out after 0.3 seconds"),
            ("costly", "out_of_fuel", -1, "all the instructions"),
            ("greedy", "out_of_memory", 137, "out of memory (limit 8MiB)"),
            ("large", "out_of_memory", 137, "out of memory (limit 8MiB)"),
            ("failing", "error", 7, ""),
            ("giving_up", "killed", 134, "SIGABRT"),
            ("deep", "killed", 139, "SIGSEGV"),
        ] {
            let ended = server.call(name, json!({})).await.ok();
            assert_eq!(ended["outcome"], outcome, "{name}: {ended}");
            assert_eq!(ended["exit_code"], exit_code, "{name}: {ended}");
            assert!(ended["stderr"].as_str().expect("a text").contains(said), "{name}: {ended}");
        }
        assert_eq!(server.call("hello", json!({})).await.ok()["stdout"], "hello\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_ends_and_others_go_on() {
    let folder = Folder::new();
    folder.define("endless", &wat("", "", ENDLESS), json!({}));
    let server = folder.serve(&[]).await;
    let pid = server.process.id().expect("running");
    for _ in 0..10 {
        // More calls than run at a time: each must end before the next ones can begin.
        let (id, _never) = server.begin("endless", json!({}));
        until("it is at work", async || agents(pid).iter().any(|agent| threads(*agent) > 2)).await;
        server.cancel(id);
        until("it has ended", async || agents(pid).iter().all(|agent| threads(*agent) <= 2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_calls_do_not_end_leaves_room_for_others() {
    let folder = Folder::new();
    folder.define("endless", &wat("", "", ENDLESS), json!({ "deadline": 3 }));
    let path = folder.path().to_str().expect("UTF-8");
    let tokens = "ann:ann-0123456789abcdef,ben:ben-0123456789abcdef";
    let settings = [("SANDBOX_TOOLS_FILE", path), ("SANDBOX_AUTH_TOKENS", tokens)];
    let web = Web::start(On::Local, &settings).await;
    let [ann, ben] = ["ann", "ben"].map(|who| web.caller(Some(&format!("{who}-0123456789abcdef"))));
    let pid = web.process.id().expect("running");
    // Without the reading thread, the watch thread: one thread for each call.
    let at_work =
        || agents(pid).iter().map(|agent| threads(*agent)).max().unwrap_or(0).saturating_sub(2);
    let many = futures::future::join_all((0..12).map(|_| ann.call("endless", json!({}))));
    let other = async {
        until("as many as may are at work", async || !agents(pid).is_empty() && at_work() == 4)
            .await;
        let beside = until("the other's is, too", async || at_work() == 5);
        let (ended, ()) = tokio::join!(ben.call("endless", json!({})), beside);
        assert_eq!(ended.ok()["outcome"], "timeout");
    };
    let (ended, ()) = tokio::join!(many, other);
    assert!(ended.into_iter().all(|answer| answer.ok()["outcome"] == "timeout"));
}

/// The processes that a server has started for tools.
fn agents(server: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{server}/task")).expect("Linux");
    let lists =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let all: Vec<u32> = lists
        .flat_map(|list| {
            list.split(' ').filter_map(|pid| pid.trim().parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    let is_tool = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"tool-agent"))
    };
    all.into_iter().filter(is_tool).collect()
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread")]
async fn when_its_process_is_killed_one_call_is_told_and_the_next_succeeds() {
    let folder = Folder::new();
    folder.define("endless", &wat("", "", ENDLESS), json!({}));
    folder.define("hello", &hello(), json!({}));
    let server = folder.serve(&[]).await;
    let pid = server.process.id().expect("running");
    let calling = server.call("endless", json!({}));
    let killing = async {
        until("it is at work", async || agents(pid).iter().any(|agent| threads(*agent) > 2)).await;
        for agent in agents(pid) {
            std::process::Command::new("kill")
                .args(["-9", &agent.to_string()])
                .status()
                .expect("sent");
        }
    };
    let (answer, ()) = tokio::join!(calling, killing);
    assert_eq!(answer.error(), "sandbox_died");
    assert!(answer.json["message"].as_str().expect("a text").contains("Try again once"));
    for _ in 0..2 {
        assert_eq!(server.call("hello", json!({})).await.ok()["stdout"], "hello\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_program_reaches_nothing_of_the_host() {
    let folder = Folder::new();
    let shown = folder.path().join("shown");
    fs::create_dir(&shown).expect("made");
    fs::write(shown.join("open.txt"), "for all").expect("written");
    fs::write(folder.path().join("secret.txt"), "for nobody").expect("written");
    // Links in a shown folder are not among these paths: they show their targets, because the operator put them there.
    let names = [
        "/etc/passwd",
        "../../etc/passwd",
        "../../../../../../../../etc/passwd",
        "/proc/self/environ",
        "/proc/self/mem",
        "/dev/null",
        "../secret.txt",
        "new/../../../etc/hostname",
        "link",
    ];
    let mut data = String::new();
    let mut start = String::new();
    // A link that the program makes itself leads only to its own files.
    data += r#"(data (i32.const 64) "/etc/passwd") (data (i32.const 80) "link")"#;
    start += r"(drop (call $path_symlink (i32.const 64) (i32.const 11) (i32.const 3) (i32.const 80) (i32.const 4)))";
    for (n, name) in names.iter().enumerate() {
        let at = 128 + 64 * n;
        let len = name.len();
        write!(data, r#"(data (i32.const {at}) "{name}")"#).expect("written");
        write!(
            start,
            "(call $number (call $open (i32.const {at}) (i32.const {len}) (i32.const 0)))"
        )
        .expect("written");
    }
    // In the shown folder, which has descriptor 5, after the program's own folder and the scratch space: make a file,
    // truncate one, and read it.
    data += r#"(data (i32.const 1000) "open.txt")"#;
    let in_shown = |how: u32, rights: i32| {
        format!(
            "(call $path_open (i32.const 5) (i32.const 1) (i32.const 1000) (i32.const 8) (i32.const {how}) \
             (i64.const {rights}) (i64.const -1) (i32.const 0) (i32.const 20))"
        )
    };
    write!(start, "(call $number {})", in_shown(8, -1)).expect("written");
    write!(start, "(call $number {})", in_shown(1, -1)).expect("written");
    write!(start, "(call $number {}) (call $copy (i32.load (i32.const 20)))", in_shown(0, 2))
        .expect("written");
    // Sockets, and a descriptor that is not open.
    start += "(call $number (call $sock_accept (i32.const 3) (i32.const 0) (i32.const 40)))
        (call $number (call $sock_send (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 40)))
        (call $number (call $fd_prestat_get (i32.const 6) (i32.const 40)))
        ;; Places outside of its memory.
        (call $number (call $fd_write (i32.const 1) (i32.const -8) (i32.const 1) (i32.const 8)))
        (call $number (call $fd_write (i32.const 1) (i32.const 0) (i32.const -1) (i32.const 8)))
        (call $number (call $open (i32.const -16) (i32.const 64) (i32.const 0)))";
    let more = json!({ "mnt_dir": "/mnt/data", "readonly_dirs": { "/shown": "shown" } });
    folder.define("hostile", &wat(&data, "", &start), more);
    let server = folder.serve(&[]).await;
    let told = server.call("hostile", json!({})).await.ok();
    let stdout = told["stdout"].as_str().expect("a text");
    let (answers, rest) =
        stdout.split_at(stdout.find("for all").expect("what is shown can be read"));
    let numbers: Vec<u32> = answers.lines().map(|line| line.parse().expect("a number")).collect();
    let (opened, in_shown) = numbers.split_at(names.len());
    assert!(opened.iter().all(|errno| *errno != 0), "{opened:?}");
    assert_eq!(in_shown[2], 0, "{in_shown:?}");
    assert!(in_shown[0] != 0, "it was cut: {in_shown:?}");
    let rest: Vec<u32> =
        rest["for all".len()..].lines().map(|line| line.parse().expect("a number")).collect();
    assert!(rest.iter().all(|errno| *errno != 0), "{rest:?}");
    assert_eq!(fs::read_to_string(shown.join("open.txt")).expect("there"), "for all");
    assert_eq!(fs::read_dir(&shown).expect("there").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_files_room_and_outputs_have_their_ends() {
    let folder = Folder::new();
    // Opens the same file until that fails; prints whether it succeeded less than 300 times, and the error number.
    let many = r"(local $count i32) (local $errno i32)
      (loop $more
        (local.set $errno (call $open (i32.const 64) (i32.const 1) (i32.const 1)))
        (if (i32.eqz (local.get $errno)) (then
          (local.set $count (i32.add (local.get $count) (i32.const 1))) (br $more))))
      (call $number (i32.lt_u (local.get $count) (i32.const 300))) (call $number (local.get $errno))";
    // Writes mebibytes to a file until that fails.
    let full = r"(local $count i32) (local $errno i32)
      (drop (call $open (i32.const 64) (i32.const 1) (i32.const 1)))
      (loop $more
        (local.set $errno (call $write (i32.load (i32.const 20)) (i32.const 0) (i32.const 1048576)))
        (if (i32.eqz (local.get $errno)) (then
          (local.set $count (i32.add (local.get $count) (i32.const 1))) (br $more))))
      (call $number (local.get $errno))";
    let loud = r"(local $count i32)
      (loop $more
        (call $print (i32.const 0) (i32.const 1048576))
        (local.set $count (i32.add (local.get $count) (i32.const 1)))
        (br_if $more (i32.lt_u (local.get $count) (i32.const 100))))";
    let data = r#"(data (i32.const 64) "f")"#;
    for (name, start) in [("many", many), ("full", full), ("loud", loud)] {
        folder.define(name, &wat(data, "", start), json!({}));
    }
    let server =
        folder.serve(&[("SANDBOX_DATA_LIMIT", "20MB"), ("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    // EMFILE and ENOSPC, by their numbers in WASI.
    assert_eq!(server.call("many", json!({})).await.ok()["stdout"], "1\n33\n");
    let full = server.call("full", json!({})).await.ok();
    assert_eq!(full["stdout"], "51\n");
    assert!(full["artifacts"][0]["not_returned"].is_string(), "{full}");
    let loud = server.call("loud", json!({})).await.ok();
    assert_eq!(loud["stdout_truncated"], true);
    assert!(loud["stdout"].as_str().expect("a text").len() < 60_000);
    let peak = server.peak_memory();
    assert!(peak < 200_000_000, "{peak}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_is_wrong_with_definitions_is_said_at_once_and_nothing_starts() {
    let folder = Folder::new();
    folder.write("hello.wat", hello());
    folder.write("text.wasm", "#!/bin/sh");
    folder.write(
        "env.wat",
        r#"(module (import "env" "system" (func)) (memory (export "memory") 1) (func (export "_start")))"#,
    );
    folder.write(
        "a.json",
        r#"{ "name": "a b", "wasm_file": "none.wasm", "argvs": [], "deadline": 0, "fuel": 1.5 }"#,
    );
    let good = json!({ "name": "good", "description": "x", "wasm_file": "hello.wat" });
    let with = |more: Value| {
        let mut definition = good.clone();
        definition.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        definition
    };
    let several = [
        good.clone(),
        with(json!({})),
        with(json!({ "name": "run_python" })),
        with(json!({ "name": "c", "argv": ["{{.nothing}}", 1, "{{if}}"], "env": { "A=B": "" } })),
        with(json!({ "name": "d", "schema": { "type": "array" }, "required": ["x"] })),
        with(json!({ "name": "e", "schema": { "properties": { "x": { "type": "strin" } } } })),
        with(
            json!({ "name": "f", "mnt_dir": "work", "files": { "../x": "", "/y": "", "a": "", "a/b": "" } }),
        ),
        with(
            json!({ "name": "g", "readonly_dirs": { "/": ".", "/none": "none" }, "memory_mb": 0 }),
        ),
        with(json!({ "name": "h", "wasm_file": "text.wasm" })),
        with(json!({ "name": "i", "wasm_file": "env.wat", "deadline_enabled": "yes" })),
        with(json!({ "name": "j", "wasm_file": "env.wat" })),
    ];
    folder.write("b.json", json!(several).to_string());
    folder.write("c.json", "{ \"name\": ");
    folder.write("ignored.txt", "no JSON");
    let home = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let settings = [("SANDBOX_TOOLS_FILE", path), ("SANDBOX_ENGINE", "local")];
    let (code, _, said) = ended(&mut program(home.path(), &settings)).await;
    assert_eq!(code, Some(64));
    for mistake in [
        "a.json: argvs: there is no such field (did you mean argv?)",
        "a.json: name: it must be 1 to 64",
        "a.json: description: it is missing",
        "a.json: wasm_file: there is no file",
        "a.json: deadline: it must be seconds",
        "a.json: fuel: it must be a whole number",
        "b.json: [1].name: another tool is called \"good\"",
        "b.json: [2].name: \"run_python\" is the name of a tool of the server's own",
        "b.json: [3].argv[0]: {{.nothing}} is not among schema.properties",
        "b.json: [3].argv[1]: it must be a text",
        "b.json: [3].argv[2]: {{if}} is no argument",
        "b.json: [3].env.A=B: it is no name",
        "b.json: [4].schema.type: it must be \"object\"",
        "b.json: [4].required: \"x\" is not among schema.properties",
        "b.json: [5].schema.properties.x.type: value must be one of",
        "b.json: [6].mnt_dir: it must be an absolute path",
        "b.json: [6].files.../x: it must be a relative path",
        "b.json: [6].files./y: it must be a relative path",
        "b.json: [6].files.a: another file lies in a folder of that name",
        "b.json: [7].readonly_dirs./: another folder is there",
        "b.json: [7].readonly_dirs./none: there is no folder",
        "b.json: [7].memory_mb: it must be a whole number",
        "b.json: [8].wasm_file: a module cannot be used: it is neither a module nor the text of one",
        "b.json: [9].deadline_enabled: it must be true or false",
        "b.json: [10].wasm_file: the engine cannot use it: unknown import: `env::system`",
        "c.json: it is not JSON",
    ] {
        assert!(said.contains(&format!("{path}/{mistake}")), "{mistake} is not among{said}");
    }
    // `doctor` also reads the definitions, and reports the same mistakes.
    let (_, report, _) = ended(program(home.path(), &settings).arg("doctor")).await;
    assert!(
        report.contains("FAIL  tools") && report.contains("c.json: it is not JSON"),
        "{report}"
    );
}

/// The number of notifications that the list of tools has changed.
fn told(server: &Server) -> usize {
    let heard = server.notifications();
    let heard = heard.lock().expect("no panic");
    heard.iter().filter(|it| it["method"] == "notifications/tools/list_changed").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_taken_over_and_clients_are_told() {
    let folder = Folder::new();
    folder.define("hello", &hello(), json!({}));
    let log = folder.path().join("server.log");
    let settings =
        [("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")), ("SANDBOX_LOG_LEVEL", "INFO")];
    let server = folder.serve(&settings).await;
    assert_eq!(server.tools().await.len(), 15);
    let names = async || {
        server.tools().await.iter().map(|it| text(&it["name"]).to_owned()).collect::<Vec<_>>()
    };
    folder.define("second", &hello(), json!({}));
    until("it is told", async || told(&server) == 1).await;
    assert!(names().await.contains(&"second".into()));
    // Another program for the same definition.
    folder.write("hello.wat", wat("", "", "(call $number (i32.const 42))"));
    until("it is told", async || told(&server) == 2).await;
    assert_eq!(server.call("hello", json!({})).await.ok()["stdout"], "42\n");
    // A definition with a mistake changes nothing, and is reported in the log.
    folder.write("third.json", "{");
    until("it is in the log", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("third.json"))
    })
    .await;
    assert_eq!(told(&server), 2);
    assert!(names().await.contains(&"second".into()));
    fs::remove_file(folder.path().join("third.json")).expect("removed");
    fs::remove_file(folder.path().join("second.json")).expect("removed");
    until("it is told", async || told(&server) >= 3).await;
    assert!(!names().await.contains(&"second".into()));
    let gone = server.request("tools/call", json!({ "name": "second", "arguments": {} })).await;
    assert!(
        gone["error"]["message"].as_str().expect("a text").contains("There is no tool \"second\"")
    );
    // SIGHUP makes the server read everything again, at once.
    let before = told(&server);
    server.signal("HUP");
    until("it is told", async || told(&server) > before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_clients_of_both_generations_are_told() {
    let folder = Folder::new();
    folder.define("hello", &hello(), json!({}));
    let web =
        Web::start(On::Local, &[("SANDBOX_TOOLS_FILE", folder.path().to_str().expect("UTF-8"))])
            .await;
    let caller = web.caller(None);
    let legacy = caller.open().await;
    let headers = [("Accept", "text/event-stream"), ("Mcp-Session-Id", &*legacy.id)];
    let url = format!("{}/mcp", web.base);
    let mut stream = http_begin("GET", &url, &headers, &[]).await;
    read_until(&mut stream, "\r\n\r\n").await;
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    let (message, more) = caller.modern("subscriptions/listen", filter);
    let own = caller.mcp_headers();
    let more: Vec<_> = more.iter().map(|(name, value)| (*name, &**value)).collect();
    let own = own.iter().map(|(name, value)| (&**name, &**value)).chain(more).collect::<Vec<_>>();
    let mut listening = http_begin("POST", &url, &own, message.to_string().as_bytes()).await;
    read_until(&mut listening, "subscriptions/acknowledged").await;
    assert_eq!(caller.call("hello", json!({})).await.ok()["stdout"], "hello\n");
    folder.define("second", &hello(), json!({}));
    for stream in [&mut stream, &mut listening] {
        read_until(stream, "notifications/tools/list_changed").await;
    }
    assert_eq!(caller.call("second", json!({})).await.ok()["stdout"], "hello\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_says_by_its_url_or_the_operator_by_a_setting_whether_they_are_offered() {
    let folder = Folder::new();
    folder.define("hello", &hello(), json!({}));
    let server = folder.serve(&[("SANDBOX_TOOLSETS", "own")]).await;
    let tools = server.tools().await;
    assert_eq!(tools.iter().map(|tool| &tool["name"]).collect::<Vec<_>>(), ["hello"]);
    let home = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let settings = [("SANDBOX_TOOLS_FILE", path), ("SANDBOX_TOOLSETS", "run")];
    let (code, _, said) = ended(&mut program(home.path(), &settings)).await;
    assert_eq!(code, Some(64));
    assert!(said.contains("nobody is offered the tools of SANDBOX_TOOLS_FILE; add own"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_other_tools_no_engine_is_needed() {
    let folder = Folder::new();
    folder.define("hello", &hello(), json!({}));
    let path = folder.path().to_str().expect("UTF-8");
    let home = tempfile::tempdir().expect("a folder");
    for (toolsets, needs_engine) in [("own", false), ("own,run", true)] {
        let settings = [
            ("SANDBOX_TOOLS_FILE", path),
            ("SANDBOX_TOOLSETS", toolsets),
            ("SANDBOX_ENGINE", "docker"),
            ("DOCKER_HOST", "unix:///nonexistent/engine.sock"),
        ];
        let server = Web::start(On::Docker, &settings).await;
        let ready = http("GET", &format!("{}/ready", server.base)).await;
        assert_eq!(ready.status, if needs_engine { 503 } else { 200 });
        let answer = server.caller(None).call("hello", json!({})).await;
        assert_eq!(answer.ok()["stdout"], "hello\n");
        let (code, said, _) = ended(program(home.path(), &settings).arg("doctor")).await;
        assert_eq!(code, Some(i32::from(needs_engine)), "{said}");
        assert_eq!(said.contains("none is needed"), !needs_engine, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_is_compiled_is_named_in_the_log_and_the_next_time_it_is_not_compiled() {
    let folder = Folder::new();
    folder.define("hello", &hello(), json!({}));
    let runtime = tempfile::tempdir().expect("a folder");
    for (round, compiled) in [("first", 1), ("second", 0)] {
        let log = runtime.path().join(round);
        let settings = [
            ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
            ("SANDBOX_LOG_LEVEL", "INFO"),
            ("SANDBOX_RUNTIME_DIR", runtime.path().to_str().expect("UTF-8")),
        ];
        let _server = folder.serve(&settings).await;
        let read = || fs::read_to_string(&log).unwrap_or_default();
        until("it is logged", async || read().contains("tools of your own")).await;
        let told = read();
        let lines = told.lines().filter(|line| line.contains("compiling the module"));
        let named = lines.filter(|line| line.contains("hello.wat")).count();
        assert_eq!(named, compiled, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_tool_is_given_or_says_is_logged() {
    let folder = Folder::new();
    let more = json!({ "schema": one_text("text"), "stdin": "{{.text}}", "argv": ["{{.text}}"] });
    folder.define("mirror", &mirror(), more);
    let log = folder.path().join("server.log");
    let settings =
        [("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")), ("SANDBOX_LOG_LEVEL", "TRACE")];
    let server = folder.serve(&settings).await;
    let mark = name("mark");
    server.call("mirror", json!({ "text": mark })).await.ok();
    server.call("mirror", json!({ "texts": mark })).await.error();
    until("both are logged", async || {
        fs::read_to_string(&log).is_ok_and(|log| log.matches("tool call").count() == 2)
    })
    .await;
    assert!(!fs::read_to_string(&log).expect("there").contains(&mark));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_of_the_form_of_others_works_as_it_is() {
    let folder = Folder::new();
    folder.write("tools/out/python-3.12.0.wasm", ::wat::parse_str(mirror()).expect("a module"));
    let definition = json!({
        "enabled": true,
        "name": "python3-slim",
        "description": "Run the given python code.",
        "schema": {
            "type": "object",
            "properties": { "code": { "type": "string", "description": "The python3 code to run." } },
        },
        "required": ["code"],
        "wasm_file": "./tools/out/python-3.12.0.wasm",
        "mnt_dir": "/",
        "files": { "in.txt": "{{.code}}" },
        "argv": ["python3", "/code.py"],
        "env": {},
        "fuel": 500_000_000_000u64,
        "fuel_enabled": true,
        "deadline": 120,
        "deadline_enabled": true,
    });
    // The definition is in a subfolder; the path of its module is relative to the server's working folder.
    let file = folder.write("config/python.json", definition.to_string());
    let settings = [("SANDBOX_TOOLS_FILE", file.to_str().expect("UTF-8"))];
    let home = tempfile::tempdir().expect("a folder");
    let mut command = program(home.path(), &settings);
    command.current_dir(folder.path());
    let server = Server::start_as(On::Local, command).await;
    let answer = server.call("python3-slim", json!({ "code": "print(1)" })).await.ok();
    assert_eq!(answer["stdout"], "python3\0/code.py\0print(1)");
}
