//! Files of the client's machine: uploads by path, and results that are written to a folder. The server reads only what
//! the client or the settings allow, and its answers do not reveal whether any other file exists.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use support::{
    Answer, On, Server, answered, assert_fields, http, http_with, name, on_both, program, until,
    web::*,
};

on_both!(
    files_in_a_folder_of_the_settings_are_uploaded,
    a_file_whose_content_is_not_given_is_put_to_an_address,
    artifacts_are_also_written_to_the_folder_of_the_settings,
    nothing_that_acts_where_it_lies_is_written_to_the_folder,
);

/// A readable folder, a forbidden one, and everything that leads from one to the other.
struct Desk {
    _folder: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
}

const SECRET: &str = "the secret of the outside";

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let (root, outside) = (base.join("the root"), base.join("the root outside"));
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(root.join("sales é.csv"), "a,b\n1,2\n").unwrap();
        fs::write(root.join("sub/deep.csv"), "deep").unwrap();
        fs::write(outside.join("secret.txt"), SECRET).unwrap();
        symlink(root.join("sub/deep.csv"), root.join("within")).unwrap();
        symlink(outside.join("secret.txt"), root.join("out")).unwrap();
        symlink("../the root outside/secret.txt", root.join("sub/relative-out")).unwrap();
        symlink(&outside, root.join("folder-out")).unwrap();
        symlink(outside.join("none"), root.join("dangling")).unwrap();
        symlink("/proc/self/environ", root.join("environment")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap();
        assert!(made.success());
        Self { _folder: folder, root, outside }
    }

    fn settings(&self) -> [(&'static str, &str); 1] {
        [("SANDBOX_UPLOAD_ROOTS", self.root.to_str().unwrap())]
    }

    fn uri(&self) -> String {
        format!("file://{}", self.root.to_str().unwrap().replace(' ', "%20"))
    }

    /// Paths that a client with this root must not be able to read.
    fn forbidden(&self) -> Vec<String> {
        let root = |name: &str| self.root.join(name).to_str().unwrap().to_owned();
        let outside = |name: &str| self.outside.join(name).to_str().unwrap().to_owned();
        vec![
            outside("secret.txt"),
            outside("none"),
            root("out"),
            root("sub/relative-out"),
            root("folder-out/secret.txt"),
            root("folder-out/none"),
            root("dangling"),
            root("environment"),
            root("none.csv"),
            root("../the root outside/secret.txt"),
            root("sub/../../the root outside/secret.txt"),
            format!("{}/../../../../../../../../etc/passwd", self.root.display()),
            "/etc/passwd".into(),
            "/etc/no-such-file".into(),
            "/proc/self/environ".into(),
            "/proc/self/cmdline".into(),
            "/dev/zero".into(),
            "/dev/stdin".into(),
            "sales é.csv".into(),
            "./sales é.csv".into(),
            "../the root/sales é.csv".into(),
            "~/sales.csv".into(),
            String::new(),
            "\0".into(),
            root("sales é.csv\0"),
            format!("file://{}", root("sales é.csv")),
        ]
    }

    /// Paths within the root that are not regular files.
    fn no_files(&self) -> Vec<String> {
        let root = |name: &str| self.root.join(name).to_str().unwrap().to_owned();
        vec![root(""), root("sub"), root("pipe")]
    }
}

fn upload(session: &str, file: &str, path: &Path) -> Value {
    json!({ "session_id": session, "filename": file, "local_path": path.to_str().unwrap() })
}

/// Checks that a path was refused as invalid, and that the answer reveals nothing else.
#[track_caller]
fn assert_refused(answer: &Answer, path: &str) {
    assert_eq!(answer.error(), "invalid_path", "{path:?}");
    let all = answer.raw.to_string();
    assert!(!all.contains(SECRET) && !all.contains("root:x:0"), "{all}");
}

/// The content of a session's file, read by a program.
async fn content(server: &Server, session: &str, file: &str) -> String {
    let code = format!("import sys; sys.stdout.write(open('{file}').read())");
    server.run(session, &code).await["stdout"].as_str().unwrap().to_owned()
}

async fn files_in_a_folder_of_the_settings_are_uploaded(on: On) {
    let desk = Desk::new();
    let (server, id) = (Server::start_with(on, &desk.settings()).await, name("listed"));
    for (file, path, size) in [
        ("sales.csv", "sales é.csv", 8),
        ("raw/deep.csv", "sub/deep.csv", 4),
        ("link.csv", "within", 4),
        ("dots.csv", "sub/../sales é.csv", 8),
    ] {
        let done = server.call("upload_file", upload(&id, file, &desk.root.join(path))).await.ok();
        assert_eq!((&done["session_id"], &done["size_bytes"]), (&json!(id), &json!(size)));
        assert_eq!(done["path"], format!("/mnt/data/{file}"));
    }
    assert_eq!(content(&server, &id, "sales.csv").await, "a,b\n1,2\n");
    assert_eq!(content(&server, &id, "link.csv").await, "deep");

    // As with any other upload, a file is replaced only on request.
    let mut again = upload(&id, "sales.csv", &desk.root.join("sub/deep.csv"));
    assert_eq!(server.call("upload_file", again.clone()).await.error(), "file_exists");
    again["overwrite"] = true.into();
    server.call("upload_file", again).await.ok();
    assert_eq!(content(&server, &id, "sales.csv").await, "deep");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_is_read_and_nobody_hears_whether_it_is_there() {
    let desk = Desk::new();
    let (server, id) = (Server::start_with(On::Local, &desk.settings()).await, name("forbidden"));
    server.upload(&id, "there", b"1").await.ok();
    let call = async |path: &str| {
        let arguments = json!({ "session_id": id, "filename": "got", "local_path": path });
        server.call("upload_file", arguments).await
    };
    for path in desk.forbidden().iter().chain(&desk.no_files()) {
        assert_refused(&call(path).await, path);
    }
    assert_eq!(server.files(&id).await, [("there".to_owned(), 1)], "nothing came");

    // The answers for existing files are the same as for missing ones.
    let told = async |path: &Path| {
        let path = path.to_str().unwrap();
        call(path).await.json.to_string().replace(path, "")
    };
    let missing = told(&desk.outside.join("none")).await;
    for there in ["secret.txt", "", "secret.txt/below"] {
        assert_eq!(told(&desk.outside.join(there)).await, missing, "{there}");
    }
    assert_eq!(told(&desk.root.join("out")).await, missing);
    assert_eq!(told(&desk.root.join("dangling")).await, missing);
    assert_eq!(told(Path::new("/etc/passwd")).await, missing);

    // A refused call creates no session either.
    let refused =
        server.call("upload_file", json!({ "filename": "a", "local_path": "/etc/passwd" }));
    assert_eq!(refused.await.json.get("session_id"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_kernel_tells_of_the_server_is_no_file_of_the_client() {
    let settings = [("SANDBOX_UPLOAD_ROOTS", "/"), ("SANDBOX_AUTH_TOKENS", "ann:hidden")];
    let (server, id) = (Server::start_with(On::Local, &settings).await, name("proc"));
    for path in ["/proc/self/environ", "/proc/self/cmdline", "/proc/self/maps", "/proc/1/environ"] {
        let done = server.call("upload_file", upload(&id, "got", Path::new(path))).await;
        assert_refused(&done, path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_roots_has_no_files() {
    let desk = Desk::new();
    let server = Server::start(On::Local).await;
    let heard = server.notifications();
    let path = desk.root.join("sales é.csv");
    let refused = server.call("upload_file", upload(&name("none"), "a", &path)).await;
    assert_refused(&refused, "no roots");
    assert!(heard.lock().unwrap().is_empty(), "a client that has none is not asked");
    // Files that the server cannot read are refused in the same way.
    let settings = desk.settings();
    let server = Server::start_with(On::Local, &settings).await;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // Root reads everything, and a test may be root.
    if fs::read(&path).is_err() {
        assert_refused(&server.call("upload_file", upload(&name("none"), "a", &path)).await, "0");
    }
}

/// Starts a server for a client of the initialize generation that has roots.
async fn legacy(settings: &[(&str, &str)]) -> Server {
    greeted(settings, json!({ "roots": { "listChanged": true } })).await.0
}

/// Starts a server for a client of the initialize generation with these capabilities; also returns whether the server
/// declared that the list of tools may change.
async fn greeted(settings: &[(&str, &str)], capabilities: Value) -> (Server, bool) {
    let server = Server::launch(On::Local, settings);
    let hello = json!({
        "protocolVersion": LEGACY,
        "capabilities": capabilities,
        "clientInfo": { "name": "tests", "version": "1" },
    });
    let answer = server.request("initialize", hello).await;
    server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let may_change =
        answer["result"]["capabilities"]["tools"].get("listChanged") == Some(&json!(true));
    (server, may_change)
}

/// Whether `upload_file` is offered with `local_path`.
async fn is_offered(server: &Server, meta: Option<Value>) -> bool {
    let params = meta.map_or_else(|| json!({}), |meta| json!({ "_meta": meta }));
    let listed = server.request("tools/list", params).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let upload = tools.iter().find(|tool| tool["name"] == "upload_file").unwrap();
    let is_argument = upload["inputSchema"]["properties"].get("local_path").is_some();
    assert_eq!(upload["description"].as_str().unwrap().contains("local_path"), is_argument);
    is_argument
}

/// The requests of this method that the client was sent.
fn heard(server: &Server, method: &str) -> Vec<Value> {
    let heard = server.notifications();
    let heard = heard.lock().unwrap();
    heard.iter().filter(|it| it["method"] == method).cloned().collect()
}

/// How often the client was notified that the list of tools has changed.
fn changes(server: &Server) -> usize {
    heard(server, "notifications/tools/list_changed").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn local_path_is_offered_to_clients_that_have_roots_and_where_the_settings_name_some() {
    let desk = Desk::new();
    let has_roots = json!({ "roots": {} });
    for (settings, capabilities, offered, may_change) in [
        (&[][..], json!({}), false, false),
        (&[], has_roots.clone(), true, true),
        (&desk.settings(), json!({}), true, false),
        (&desk.settings(), has_roots, true, false),
    ] {
        let about = format!("{settings:?} {capabilities}");
        let (server, told) = greeted(settings, capabilities).await;
        assert_eq!((is_offered(&server, None).await, told), (offered, may_change), "{about}");
    }
    // If the argument is not offered, a call with it is told what to do instead.
    let (server, _) = greeted(&[], json!({})).await;
    let arguments = json!({ "session_id": name("none"), "local_path": "/home/ann/sales.csv" });
    let refused = server.call("upload_file", arguments).await;
    assert_refused(&refused, "no roots");
    let message = refused.json["message"].as_str().unwrap();
    assert!(message.contains("no roots") && message.contains("upload_url"), "{message}");
    let refused = server.call("upload_file", json!({ "session_id": name("none") })).await;
    assert_eq!(refused.json["message"], "upload_file needs filename (such as sales.csv).");
    // In the generation without sessions, each request declares the client's capabilities.
    let meta = |capabilities: Value| {
        Some(json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }))
    };
    let server = Server::launch(On::Local, &[]);
    assert!(is_offered(&server, meta(json!({ "roots": {} }))).await);
    assert!(!is_offered(&server, meta(json!({}))).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn local_path_comes_and_goes_with_the_clients_roots() {
    let desk = Desk::new();
    let server = legacy(&[]).await;
    let path = desk.root.join("within");
    let call = async |answer: Value| {
        let mut arguments = upload(&name("roots"), "a", &path);
        arguments["overwrite"] = true.into();
        call_and_answer(&server, arguments, answer).await
    };
    call(roots(&[&desk.uri()])).await.ok();
    assert!(is_offered(&server, None).await);
    assert_eq!(changes(&server), 0, "as was said before");
    // The client answers for the first time that it has no roots.
    call(roots(&[])).await.error();
    assert_eq!(changes(&server), 1);
    assert!(!is_offered(&server, None).await);
    call(roots(&["file:///no/such/folder"])).await.error();
    assert_eq!(changes(&server), 1, "there are still none");
    // The client opens a folder, and notifies the server.
    for (answer, offered, told) in
        [(roots(&[&desk.uri()]), true, 2), (roots(&[&desk.uri()]), true, 2), (roots(&[]), false, 3)]
    {
        answer_to_change(&server, answer).await;
        until("the list is as it is to be", async || {
            is_offered(&server, None).await == offered && changes(&server) == told
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_roots_are_datasets_if_the_settings_say_so() {
    let desk = Desk::new();
    let folder = desk.root.file_name().unwrap().to_str().unwrap().replace(' ', "-");
    let server = legacy(&[("SANDBOX_MOUNT_ROOTS", "on")]).await;
    answer_question(&server, 0, roots(&[&desk.uri()])).await;
    let described = async || {
        let tools = server.tools().await;
        let tool = tools.into_iter().find(|tool| tool["name"] == "run_python").unwrap();
        tool["description"].as_str().unwrap().to_owned()
    };
    let dataset = format!("Data to read: /data/{folder} ({})", desk.root.display());
    until("the root is a dataset", async || described().await.contains(&dataset)).await;
    assert_eq!(changes(&server), 1);
    let session = name("mounted");
    let code = format!("print(open('../datasets/{folder}/within').read())");
    let ran = server.run(&session, &code).await;
    assert_eq!(ran["exit_code"], 0, "{ran}");
    // A session has the datasets that there were when it began.
    answer_to_change(&server, roots(&[])).await;
    until("the root is no dataset", async || !described().await.contains("/data/")).await;
    assert_eq!(server.run(&session, &code).await["exit_code"], 0);
    assert_eq!(server.run(&name("unmounted"), &code).await["exit_code"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_asked_for_its_roots_before_its_first_session_begins() {
    let desk = Desk::new();
    let folder = desk.root.file_name().unwrap().to_str().unwrap().replace(' ', "-");
    let server = legacy(&[("SANDBOX_MOUNT_ROOTS", "on")]).await;
    let code = format!("print(open('../datasets/{folder}/within').read())");
    let (_, answer) = server.begin("run_python", json!({ "code": code }));
    answer_question(&server, 0, roots(&[&desk.uri()])).await;
    answer_question(&server, 1, roots(&[&desk.uri()])).await;
    let answer = answered(answer).await;
    assert_eq!(answer["result"]["structuredContent"]["exit_code"], 0, "{answer}");
}

/// Tells the server that the client's roots have changed, and answers its request for them.
async fn answer_to_change(server: &Server, answer: Value) {
    let before = heard(server, "roots/list").len();
    server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" }));
    answer_question(server, before, answer).await;
}

/// Waits for the server's request for the client's roots that comes after so many, and answers it.
async fn answer_question(server: &Server, before: usize, mut answer: Value) {
    let questions = || heard(server, "roots/list");
    until("the client is asked", async || questions().len() > before).await;
    answer["jsonrpc"] = "2.0".into();
    answer["id"] = questions()[before]["id"].clone();
    server.send(&answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_roots_asks_nothing_of_clients_whose_list_does_not_depend_on_it() {
    let desk = Desk::new();
    for (settings, capabilities) in
        [(&[][..], json!({})), (&desk.settings(), json!({ "roots": { "listChanged": true } }))]
    {
        let (server, _) = greeted(settings, capabilities).await;
        server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" }));
        server.run(&name("roots"), "pass").await;
        assert!(server.notifications().lock().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_missing_in_a_root_is_told_from_one_outside() {
    let desk = Desk::new();
    let server = Server::start_with(On::Local, &desk.settings()).await;
    let message = async |path: &str| {
        let arguments = json!({ "session_id": name("missing"), "local_path": path });
        let refused = server.call("upload_file", arguments).await;
        assert_refused(&refused, path);
        refused.json["message"].as_str().unwrap().to_owned()
    };
    let missing = message(desk.root.join("Sales.csv").to_str().unwrap()).await;
    assert!(missing.contains("no file at") && missing.contains("has \"sales é.csv\""), "{missing}");
    let outside = message(desk.outside.join("Secret.txt").to_str().unwrap()).await;
    assert!(
        outside.contains("outside the folders") && !outside.contains("secret.txt\""),
        "{outside}"
    );
    let folder = message(desk.root.join("sub").to_str().unwrap()).await;
    assert!(folder.contains("is not a file"), "{folder}");
    assert!(message("sales.csv").await.contains("absolute path"));
    // A local file needs no filename: it has a name.
    let arguments =
        json!({ "session_id": name("own"), "local_path": desk.root.join("sub/deep.csv") });
    let done = server.call("upload_file", arguments).await.ok();
    assert_eq!(done["path"], "/mnt/data/deep.csv");
}

/// Calls `upload_file` and answers the server's request for the client's roots, which must arrive.
async fn call_and_answer(server: &Server, arguments: Value, answer: Value) -> Answer {
    let before = heard(server, "roots/list").len();
    let (_, result) = server.begin("upload_file", arguments);
    answer_question(server, before, answer).await;
    Answer::new(answered(result).await["result"].clone())
}

fn roots(uris: &[&str]) -> Value {
    let roots: Vec<_> = uris.iter().map(|uri| json!({ "uri": uri, "name": "project" })).collect();
    json!({ "result": { "roots": roots } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_sessions_is_asked_for_its_roots() {
    let desk = Desk::new();
    let server = legacy(&[]).await;
    let id = name("roots");
    let path = desk.root.join("sales é.csv");
    let within = [&*desk.uri(), "file:///no/such/folder"];
    let done = call_and_answer(&server, upload(&id, "a.csv", &path), roots(&within)).await.ok();
    assert_eq!(done["size_bytes"], 8);
    assert_eq!(content(&server, &id, "a.csv").await, "a,b\n1,2\n");
    for path in desk.forbidden().iter().filter(|path| path.starts_with('/')).chain(&desk.no_files())
    {
        let arguments = json!({ "session_id": id, "filename": "got", "local_path": path });
        assert_refused(&call_and_answer(&server, arguments, roots(&within)).await, path);
    }
    // The server asks for the roots each time: the client may have opened another folder since.
    let other = format!("file://{}", desk.root.join("sub").to_str().unwrap().replace(' ', "%20"));
    let arguments = upload(&id, "b.csv", &path);
    assert_refused(&call_and_answer(&server, arguments.clone(), roots(&[&other])).await, "sub");
    for answer in [
        roots(&[]),
        roots(&["https://example.org/", "nonsense", "", "file://elsewhere/etc", "/"]),
        json!({ "error": { "code": -32601, "message": "no such method" } }),
        json!({ "result": { "roots": "none" } }),
        json!({ "result": {} }),
    ] {
        let refused = call_and_answer(&server, arguments.clone(), answer.clone()).await;
        assert_refused(&refused, &answer.to_string());
    }
    assert_eq!(server.files(&id).await, [("a.csv".to_owned(), 8)]);
    // The root is the file itself.
    let itself = format!("file://{}/sub/deep.csv", desk.uri().strip_prefix("file://").unwrap());
    let arguments = upload(&id, "b.csv", &desk.root.join("sub/deep.csv"));
    call_and_answer(&server, arguments, roots(&[&itself])).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_settings_allow_needs_no_question() {
    let desk = Desk::new();
    let server = legacy(&desk.settings()).await;
    let id = name("both");
    server.call("upload_file", upload(&id, "a", &desk.root.join("within"))).await.ok();
    assert!(server.notifications().lock().unwrap().is_empty());
    // The client's roots are added to those of the settings.
    let outside = desk.outside.to_str().unwrap().replace(' ', "%20");
    let arguments = upload(&id, "b", &desk.outside.join("secret.txt"));
    let answer = roots(&[&format!("file://{outside}")]);
    call_and_answer(&server, arguments, answer).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_names_its_roots_holds_up_nobody_else() {
    let desk = Desk::new();
    let mut server = legacy(&[]).await;
    let id = name("silent");
    let (request, _answer) =
        server.begin("upload_file", upload(&id, "a", &desk.root.join("within")));
    until("the client is asked", async || !heard(&server, "roots/list").is_empty()).await;
    assert_eq!(server.run(&id, "print('well')").await["stdout"], "well\n");
    server.cancel(request);
    server.upload(&id, "b", b"1").await.ok();
    assert_eq!(server.files(&id).await, [("b".to_owned(), 1)]);
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_cancelled_while_its_client_was_asked_uploads_nothing() {
    let desk = Desk::new();
    let server = legacy(&[]).await;
    let id = name("cancelled");
    server.upload(&id, "there", b"1").await.ok();
    let (request, _answer) =
        server.begin("upload_file", upload(&id, "cancelled", &desk.root.join("within")));
    until("the client is asked", async || !heard(&server, "roots/list").is_empty()).await;
    server.cancel(request);
    answer_question(&server, 0, roots(&[&desk.uri()])).await;
    // Another upload of the same kind takes as long and begins later, so the cancelled one has ended by then.
    let arguments = upload(&id, "later", &desk.root.join("within"));
    call_and_answer(&server, arguments, roots(&[&desk.uri()])).await.ok();
    server.run(&id, "pass").await;
    assert_eq!(server.files(&id).await, [("later".to_owned(), 4), ("there".to_owned(), 1)]);
}

/// Makes a call as a client of the generation without sessions that has roots.
async fn modern(server: &Server, arguments: &Value, answers: Option<Value>) -> Value {
    let mut params = json!({
        "name": "upload_file",
        "arguments": arguments,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": { "roots": {} },
        },
    });
    if let Some(answers) = answers {
        params["inputResponses"] = answers;
    }
    let answer = server.request("tools/call", params).await;
    answer.get("result").cloned().unwrap_or_else(|| panic!("no result: {answer}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_sessions_is_told_to_say_its_roots_and_to_call_again() {
    let desk = Desk::new();
    let server = Server::launch(On::Local, &[]);
    let id = name("modern");
    let arguments = upload(&id, "a.csv", &desk.root.join("sales é.csv"));
    let first = modern(&server, &arguments, None).await;
    assert_eq!(first["resultType"], "input_required", "{first}");
    assert_eq!(first["inputRequests"]["roots"]["method"], "roots/list", "{first}");
    assert_eq!(first.get("content"), None, "{first}");

    let answers = |uris: &[&str]| {
        let answer = roots(uris);
        Some(json!({ "roots": answer["result"] }))
    };
    let uri = desk.uri();
    let done = modern(&server, &arguments, answers(&[&uri])).await;
    assert_eq!(done["resultType"], "complete", "{done}");
    assert_eq!(Answer::new(done).ok()["size_bytes"], 8);
    for path in desk.forbidden().iter().filter(|path| path.starts_with('/')).chain(&desk.no_files())
    {
        let arguments = json!({ "session_id": id, "filename": "got", "local_path": path });
        assert_refused(&Answer::new(modern(&server, &arguments, answers(&[&uri])).await), path);
    }
    // An invalid answer is not asked for again, because that could go on for ever.
    let arguments = upload(&id, "b.csv", &desk.root.join("sales é.csv"));
    for wrong in [
        answers(&[]).unwrap(),
        json!({ "roots": {} }),
        json!({ "roots": { "roots": [{ "uri": 7 }] } }),
        json!({ "roots": { "action": "decline" } }),
    ] {
        let refused = Answer::new(modern(&server, &arguments, Some(wrong.clone())).await);
        assert_refused(&refused, &wrong.to_string());
    }
    // An answer to another question does not count, so the server asks again.
    let asked = modern(&server, &arguments, Some(json!({ "other": { "roots": [] } }))).await;
    assert_eq!(asked["resultType"], "input_required");
    // The server does not ask if it needs no roots.
    let text = json!({ "session_id": id, "filename": "c.txt", "text": "1" });
    assert_eq!(modern(&server, &text, None).await["resultType"], "complete");
    // The server does not ask a client without roots either.
    let mut params = json!({ "name": "upload_file", "arguments": arguments });
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let refused = server.request("tools/call", params).await;
    assert_refused(&Answer::new(refused["result"].clone()), "no roots");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_is_streamed() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [("SANDBOX_UPLOAD_ROOTS", folder.path().to_str().unwrap())];
    let (server, id) = (Server::start_with(On::Local, &settings).await, name("stream"));
    server.upload(&id, "warm", b"1").await.ok();
    let whole: Vec<u8> =
        (0..50_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = folder.path().join("large.bin");
    fs::write(&path, &whole).unwrap();
    let before = server.peak_memory();
    let done = server.call("upload_file", upload(&id, "large.bin", &path)).await.ok();
    let grown = server.peak_memory() - before;
    assert_eq!(done["size_bytes"], 50_000_000);
    assert!(grown < 8 << 20, "the server grew by {grown} bytes");
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    let file = http("GET", listed["artifacts"][0]["download_url"].as_str().unwrap()).await;
    assert!(file.body == whole, "what comes down is what went up");

    // One byte more than the limit.
    fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    let refused = server.call("upload_file", upload(&id, "larger.bin", &path)).await;
    assert_eq!(refused.error(), "upload_too_large");
    assert_eq!(server.files(&id).await.len(), 2);
}

async fn a_file_whose_content_is_not_given_is_put_to_an_address(on: On) {
    let (server, id) = (Server::start(on).await, name("address"));
    let arguments = json!({ "session_id": id, "filename": "raw/sales é.csv" });
    let asked = server.call("upload_file", arguments.clone()).await.ok();
    assert_fields!(asked, {
        "session_id": id, "path": "/mnt/data/raw/sales é.csv", "size_bytes": null,
        "expires_in_s": 3600,
    });
    assert_eq!(server.files(&id).await, [], "there is a session, and nothing in it");
    let url = asked["upload_url"].as_str().unwrap().to_owned();
    let put = http_with("PUT", &url, &[], b"a,b\n").await;
    assert!(
        matches!(put.status, 200 | 201),
        "{}: {}",
        put.status,
        String::from_utf8_lossy(&put.body)
    );
    assert_eq!(content(&server, &id, "raw/sales é.csv").await, "a,b\n");

    // The URL is valid only for what was asked, and the call did not ask to replace a file.
    assert_eq!(http_with("PUT", &url, &[], b"other").await.status, 409);
    let elsewhere = url.replace("sales", "other");
    assert_eq!(http_with("PUT", &elsewhere, &[], b"other").await.status, 403);
    assert_eq!(content(&server, &id, "raw/sales é.csv").await, "a,b\n");
    let mut replace = arguments;
    replace["overwrite"] = true.into();
    let asked = server.call("upload_file", replace).await.ok();
    let put = http_with("PUT", asked["upload_url"].as_str().unwrap(), &[], b"new").await;
    assert_eq!(put.status, 200);
    assert_eq!(content(&server, &id, "raw/sales é.csv").await, "new");

    // A URL for a new session.
    let asked = server.call("upload_file", json!({ "filename": "a" })).await.ok();
    let session = asked["session_id"].as_str().unwrap();
    http_with("PUT", asked["upload_url"].as_str().unwrap(), &[], b"1").await;
    assert_eq!(server.files(session).await, [("a".to_owned(), 1)]);
    server.call("close_session", json!({ "session_id": session })).await.ok();
    let late = http_with("PUT", asked["upload_url"].as_str().unwrap(), &[], b"1").await;
    assert!(matches!(late.status, 403 | 404), "the session is gone: {}", late.status);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_written_as_it_is_and_contents_exclude_each_other() {
    let desk = Desk::new();
    let (server, id) = (Server::start_with(On::Local, &desk.settings()).await, name("text"));
    for (text, size) in [("é,東,😀\r\n\0", 14), ("", 0), ("not base64!", 11)] {
        let arguments =
            json!({ "session_id": id, "filename": "a.csv", "text": text, "overwrite": true });
        assert_eq!(server.call("upload_file", arguments).await.ok()["size_bytes"], size);
        let read = server.call("read_artifact", json!({ "session_id": id, "path": "a.csv" })).await;
        assert_eq!(read.ok()["text"], text);
    }
    let local = desk.root.join("within").to_str().unwrap().to_owned();
    let contents = [("text", "1"), ("content_base64", "AA=="), ("local_path", &*local)]
        .map(|(k, v)| (k, json!(v)));
    let with = |which: &[usize]| {
        let mut arguments = json!({ "session_id": id, "filename": "b" });
        for n in which {
            arguments[contents[*n].0] = contents[*n].1.clone();
        }
        arguments
    };
    for which in [&[0, 1][..], &[0, 2], &[1, 2], &[0, 1, 2]] {
        let refused = server.call("upload_file", with(which)).await;
        assert_eq!(refused.error(), "invalid_argument", "{which:?}");
    }
    for wrong in [json!(7), json!(["1"]), json!({})] {
        for name in ["text", "content_base64", "local_path"] {
            let mut arguments = json!({ "session_id": id, "filename": "b" });
            arguments[name] = wrong.clone();
            assert_eq!(server.call("upload_file", arguments).await.error(), "invalid_argument");
        }
    }
    assert_eq!(server.files(&id).await.len(), 1);
    // An argument may also be null.
    let mut arguments = with(&[0]);
    arguments["content_base64"] = Value::Null;
    arguments["local_path"] = Value::Null;
    server.call("upload_file", arguments).await.ok();
    let server = Server::start_with(On::Local, &[("SANDBOX_MAX_UPLOAD_BYTES", "1000")]).await;
    let text = |text: String| json!({ "session_id": id, "filename": "a", "text": text });
    server.call("upload_file", text("é".repeat(500))).await.ok();
    let refused = server.call("upload_file", text("é".repeat(500) + "x")).await;
    assert_eq!(refused.error(), "upload_too_large", "bytes, not characters");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_there_is_no_local_path() {
    let desk = Desk::new();
    let export = tempfile::tempdir().unwrap();
    let mut settings = desk.settings().to_vec();
    settings.push(("SANDBOX_EXPORT_DIR", export.path().to_str().unwrap()));
    let (_web, caller) = Web::open(On::Local, &settings).await;
    let listed = caller.ask("tools/list", json!({})).await;
    assert!(!listed[0].to_string().contains("local_path"), "nowhere is it named");
    let mcp = caller.open().await;
    for path in ["sales é.csv", "none"] {
        let arguments = upload(&name("http"), "a.csv", &desk.root.join(path));
        for refused in [
            caller.call("upload_file", arguments.clone()).await,
            mcp.call("upload_file", arguments.clone()).await,
        ] {
            assert_eq!(refused.error(), "invalid_argument");
            let message = refused.json["message"].as_str().unwrap();
            assert!(message.contains("stdio") && message.contains("upload_url"), "{message}");
        }
    }
    // Results are not written to a folder either, as no client over HTTP could see it.
    let run = caller.run(&name("http"), "open('a.csv', 'w').write('1')").await;
    assert_eq!(run["artifacts"][0].get("local_path"), None);
    assert_eq!(fs::read_dir(export.path()).unwrap().count(), 0);
}

/// All files below a folder, with their paths.
fn below(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut files, mut folders) = (vec![], vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

async fn artifacts_are_also_written_to_the_folder_of_the_settings(on: On) {
    let folder = tempfile::tempdir().unwrap();
    // The folder is created if it is missing.
    let export = folder.path().join("not/there yet");
    let server = exporting(on, &export).await;
    let id = name("export");
    server.upload(&id, "in.csv", b"uploaded").await.ok();
    let code = "import os\nos.makedirs('plots/é')\nopen('plots/é/a b.csv', 'w').write('first')\n\
                open('empty.csv', 'w')\nopen('large.csv', 'wb').write(bytes(range(256)) * 20_000)";
    let run = server.run(&id, code).await;
    let file = |name: &str, bytes: &[u8]| (format!("{id}/{name}"), bytes.to_vec());
    let large: Vec<u8> = (0..20_000).flat_map(|_| 0..=255).collect();
    assert!(
        below(&export)
            == [
                file("empty.csv", b""),
                file("large.csv", &large),
                file("plots/é/a b.csv", b"first")
            ],
        "what the run made, and nothing else"
    );
    for artifact in run["artifacts"].as_array().unwrap() {
        let path = export.join(&id).join(artifact["filename"].as_str().unwrap());
        assert_eq!(artifact["local_path"], path.to_str().unwrap());
        assert_eq!(fs::metadata(path).unwrap().len(), artifact["size_bytes"].as_u64().unwrap());
    }
    // The next run replaces the files that it changes, and no others.
    fs::write(export.join(&id).join("empty.csv"), "of the user").unwrap();
    let run = server.run(&id, "open('plots/é/a b.csv', 'w').write('second')").await;
    assert_eq!(run["artifacts"].as_array().map(Vec::len), Some(1));
    assert!(
        below(&export)
            == [
                file("empty.csv", b"of the user"),
                file("large.csv", &large),
                file("plots/é/a b.csv", b"second")
            ]
    );
    // A run that fails writes nothing, and neither does one that only removes files.
    let run = server.run(&id, "open('half.csv', 'w').write('x')\n1/0").await;
    assert_eq!(run["exit_code"], 1);
    server.run(&id, "import os; os.remove('empty.csv')").await;
    assert_eq!(below(&export).len(), 3);
    // The files belong to the user, so they stay when the session ends.
    server.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(below(&export).len(), 3);
}

/// A server that exports to this folder.
async fn exporting(on: On, folder: &Path) -> Server {
    Server::start_with(on, &[("SANDBOX_EXPORT_DIR", folder.to_str().unwrap())]).await
}

/// The fate of each file in an answer of `run_python`: its local path, or why it was not written.
fn told(run: &Value) -> Vec<(&str, Result<&str, &str>)> {
    let artifacts = run["artifacts"].as_array().unwrap().iter();
    let told = artifacts.map(|artifact| {
        let said = (artifact["local_path"].as_str(), artifact["not_exported"].as_str());
        let said = match said {
            (Some(path), None) => Ok(path),
            (None, Some(why)) => Err(why),
            _ => panic!("one of both: {artifact}"),
        };
        (artifact["filename"].as_str().unwrap(), said)
    });
    told.collect()
}

async fn nothing_that_acts_where_it_lies_is_written_to_the_folder(on: On) {
    let folder = tempfile::tempdir().unwrap();
    let export = folder.path().join("export");
    let server = exporting(on, &export).await;
    let (id, proof) = (name("acts"), folder.path().join("proof"));
    let code = format!(
        "import os\n\
         def make(path, text='x'):\n    \
             os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n    \
             open(path, 'w').write(text)\n    \
             os.chmod(path, 0o755)\n\
         command = 'touch {}'\n\
         config = '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = ' + command + '\\n'\n\
         for git in ('.git/', '.GIT/', 'sub/.git/', 'g\\u200cit/', 'bare/', ''):\n    \
             make(git + 'HEAD', 'ref: refs/heads/main\\n')\n    \
             make(git + 'config', config)\n    \
             make(git + 'objects/x.csv')\n    \
             make(git + 'refs/x.csv')\n\
         for path in ('conftest.py', 'sub/test_a.py', 'run.sh', 'Makefile', 'package.json', 'CLAUDE.md', \
                      '.env', '.mcp.json', 'a.pth', 'test_a.txt', 'main.tf.json', 'plots/2025/sales.csv', 'chart.png'):\n    \
             make(path)",
        proof.display()
    );
    let run = server.run(&id, &code).await;
    assert_eq!(run["exit_code"], 0, "{run}");
    let told = told(&run);
    let not_there = |file: &str| told.iter().any(|(name, said)| *name == file && said.is_err());
    for file in [".git/config", "g\u{200c}it/config", "conftest.py", "package.json", "test_a.txt"] {
        assert!(not_there(file), "{file}: {told:?}");
    }
    let written: Vec<_> = told.iter().filter_map(|(name, said)| said.ok().map(|_| *name)).collect();
    let harmless = ["objects/x.csv", "refs/x.csv"].map(str::to_owned);
    let harmless = harmless.iter().flat_map(|file| [file.clone(), format!("bare/{file}")]);
    let mut expected: Vec<_> =
        harmless.chain(["chart.png".into(), "plots/2025/sales.csv".into()]).collect();
    expected.sort();
    assert_eq!(written, expected);
    // The disk has exactly these files: plain ones, readable as the umask allows.
    let inside = export.join(&id);
    let there: Vec<_> = below(&inside).into_iter().map(|(path, _)| path).collect();
    assert_eq!(there, expected);
    for file in there {
        let mode = fs::metadata(inside.join(&file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !0o644, 0, "{file}: {mode:o}");
    }
    // If git is installed, it runs nothing here, because no folder is a repository.
    for place in [&inside, &inside.join("bare")] {
        let git = std::process::Command::new("git").arg("-C").arg(place).arg("status").output();
        assert!(git.is_err() || !git.unwrap().status.success(), "it is no repository");
        assert!(!proof.exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_exports_in_all_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let export = folder.path().join("export");
    let settings =
        [("SANDBOX_EXPORT_DIR", export.to_str().unwrap()), ("SANDBOX_EXPORT_LIMIT", "1MiB")];
    let server = Server::start_with(On::Local, &settings).await;
    let (one, other) = (name("limit"), name("limit"));
    let write = |name: &str, bytes: u32| format!("open('{name}', 'wb').write(bytes({bytes}))");
    let exported = async |session: &str, code: &str| {
        let run = server.run(session, code).await;
        let told = told(&run).into_iter().map(|(name, said)| (name.to_owned(), said.is_ok()));
        told.collect::<Vec<_>>()
    };
    let file = |name: &str, written| (name.to_owned(), written);
    let code = [write("a.csv", 600_000), write("b.csv", 600_000), write("c.csv", 200_000)];
    assert_eq!(
        exported(&one, &code.join("\n")).await,
        [file("a.csv", true), file("b.csv", false), file("c.csv", true)],
        "what is left out takes nothing"
    );
    assert_eq!(exported(&other, &code[1]).await, [file("b.csv", false)], "for all sessions");
    let run = server.run(&other, &code[1]).await;
    let why = told(&run)[0].1.unwrap_err();
    assert!(why.contains("SANDBOX_EXPORT_LIMIT"), "{why}");
    // Empty files and folders count, too.
    let many = "import os\nfor n in range(90):\n    os.mkdir(f'{n}')\n    open(f'{n}/a.csv', 'w')";
    let many = exported(&other, many).await;
    assert!(many.iter().any(|(_, written)| *written) && many.iter().any(|(_, written)| !written));
    let bytes: usize = below(&export).iter().map(|(_, content)| content.len()).sum();
    assert_eq!(bytes, 800_000, "nothing half is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_is_no_error_of_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let export = folder.path().join("export");
    let server = exporting(On::Local, &export).await;
    let id = name("blocked");
    fs::create_dir_all(export.join(&id).join("a.csv/below")).unwrap();
    fs::write(export.join(&id).join("folder"), "a file").unwrap();
    let code = "import os\nos.mkdir('folder')\n\
                for n in ('a.csv', 'b.csv', 'folder/c.csv'): open(n, 'w').write(n)";
    let run = server.run(&id, code).await;
    assert_eq!((&run["outcome"], run["artifacts"].as_array().unwrap().len()), (&json!("ok"), 3));
    let written = run["artifacts"].as_array().unwrap().iter();
    let written: Vec<_> = written.map(|artifact| artifact.get("local_path").is_some()).collect();
    assert_eq!(written, [false, true, false], "{run}");
    assert_eq!(run["artifacts"][0]["not_exported"], "the file could not be written");
    let left = below(&export);
    assert_eq!(left.len(), 2, "nothing half is left: {left:?}");

    // No file can be written if there is a file in place of the folder.
    fs::write(folder.path().join("file"), "").unwrap();
    let export = folder.path().join("file/export");
    let server = exporting(On::Local, &export).await;
    let run = server.run(&id, "open('a.csv', 'w').write('1')").await;
    assert_eq!((&run["outcome"], run["artifacts"][0].get("local_path")), (&json!("ok"), None));
    assert_eq!(run["artifacts"][0]["filename"], "a.csv");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_somebody_left_in_the_export_folder_is_replaced_and_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let server = exporting(On::Local, folder.path()).await;
    let id = name("link");
    let other = folder.path().join("other.txt");
    fs::write(&other, "kept").unwrap();
    fs::create_dir(folder.path().join(&id)).unwrap();
    symlink(&other, folder.path().join(&id).join("a.csv")).unwrap();
    server.run(&id, "open('a.csv', 'w').write('new')").await;
    assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    assert_eq!(fs::read_to_string(folder.path().join(&id).join("a.csv")).unwrap(), "new");
}

/// A project with a server that exports to `sandbox-files`, and a folder outside with a file that an export of `a.csv`
/// would replace if it followed a link there.
struct Project {
    base: tempfile::TempDir,
    server: Server,
    id: String,
}

const LINK: &str = "the export folder, or a folder in it, is a link";

impl Project {
    async fn exporting_to(setting: impl FnOnce(&Path) -> PathBuf) -> Self {
        let (base, id) = (tempfile::tempdir().unwrap(), name("project"));
        let (project, outside) = (base.path().join("project"), base.path().join("outside"));
        fs::create_dir(&project).unwrap();
        fs::create_dir_all(outside.join(&id)).unwrap();
        fs::write(outside.join("a.csv"), "kept").unwrap();
        let setting = setting(&project);
        let settings = [("SANDBOX_EXPORT_DIR", setting.to_str().unwrap())];
        let server = Server::start_as(On::Local, program(&project, &settings)).await;
        Self { base, server, id }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.base.path().join("project").join(below)
    }

    /// Runs a program that makes `a.csv` and `sub/a.csv`; returns where each was written, or why not.
    async fn run(&self) -> [Result<String, String>; 2] {
        let code = "import os\nos.makedirs('sub', exist_ok=True)\n\
                    for n in ('a.csv', 'sub/a.csv'): open(n, 'w').write('new')";
        let run = self.server.run(&self.id, code).await;
        assert_eq!(run["outcome"], "ok", "{run}");
        let [first, second] = told(&run)[..] else { panic!("two files: {run}") };
        [first, second].map(|(_, said)| said.map(str::to_owned).map_err(str::to_owned))
    }

    /// The files outside, where nothing may be written.
    fn outside(&self) -> Vec<(String, Vec<u8>)> {
        below(&self.base.path().join("outside"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_whose_export_folder_is_a_link_gets_no_files_through_it() {
    // A relative setting can be a link itself, pass through one, or be a link to a missing folder.
    for (setting, link, to) in [
        ("sandbox-files", "sandbox-files", "../outside"),
        ("./out/../sandbox-files/", "sandbox-files", "../outside"),
        ("sandbox-files/csv", "sandbox-files", "../outside"),
        ("sandbox-files", "sandbox-files", "../outside/new"),
    ] {
        let project = Project::exporting_to(|_| setting.into()).await;
        symlink(to, project.path(link)).unwrap();
        let refused = || Err(LINK.to_owned());
        assert_eq!(project.run().await, [refused(), refused()], "{setting} -> {to}");
        assert_eq!(project.outside(), [("a.csv".into(), b"kept".into())], "{setting} -> {to}");
        assert!(!project.base.path().join("outside/new").exists());
        // Without the link, the setting is an ordinary folder.
        fs::remove_file(project.path(link)).unwrap();
        let [written, _] = project.run().await;
        assert_eq!(fs::read_to_string(written.unwrap()).unwrap(), "new");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_place_of_a_sessions_folder_or_one_below_is_not_followed() {
    for absolute in [false, true] {
        let setting =
            |project: &Path| if absolute { project.join("files") } else { "files".into() };
        let project = Project::exporting_to(setting).await;
        let session = project.path("files").join(&project.id);
        fs::create_dir(project.path("files")).unwrap();
        symlink("../../outside", &session).unwrap();
        assert_eq!(project.run().await, [Err(LINK.to_owned()), Err(LINK.to_owned())]);
        fs::remove_file(&session).unwrap();
        fs::create_dir(&session).unwrap();
        symlink("../../../outside", session.join("sub")).unwrap();
        let written = session.join("a.csv").to_str().unwrap().to_owned();
        assert_eq!(project.run().await, [Ok(written), Err(LINK.to_owned())]);
        assert_eq!(project.outside(), [("a.csv".into(), b"kept".into())], "nothing came there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_folder_with_an_absolute_path_may_be_a_link() {
    let project = Project::exporting_to(|project| {
        symlink("../outside", project.join("files")).unwrap();
        project.join("files")
    });
    let project = project.await;
    let [written, _] = project.run().await;
    let written = PathBuf::from(written.unwrap());
    assert_eq!(written, project.path("files").join(&project.id).join("a.csv"));
    assert_eq!(fs::read_to_string(written).unwrap(), "new");
    assert_eq!(project.outside().len(), 3, "beside what was there");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_file_was_written_is_told_so_that_others_find_it() {
    let server = Server::start_with(On::Local, &[("SANDBOX_EXPORT_DIR", "exported")]).await;
    let run = server.run(&name("relative"), "open('a.csv', 'w').write('1')").await;
    let path = run["artifacts"][0]["local_path"].as_str().unwrap();
    // The client's working folder may differ from the server's.
    assert!(Path::new(path).is_absolute(), "{path}");
    assert_eq!(fs::read_to_string(path).unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_tell_of_files_on_the_clients_machine_only_where_there_are_any() {
    let schema = async |settings: &[(&str, &str)]| {
        let server = Server::start_with(On::Local, settings).await;
        let listed = server.request("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().unwrap().clone();
        let tool = |name| tools.iter().find(|tool| tool["name"] == name).unwrap().clone();
        (tool("upload_file"), tool("run_python"))
    };
    let exported = "/outputSchema/properties/artifacts/items/properties/local_path";
    let (upload, run) = schema(&[]).await;
    assert!(!upload.to_string().contains("local_path"), "the client has no roots: {upload}");
    assert_eq!(upload["inputSchema"]["required"], json!(["filename"]));
    assert_eq!(run.pointer(exported), None);
    let (upload, _) = schema(&[("SANDBOX_UPLOAD_ROOTS", "/")]).await;
    assert!(upload["inputSchema"]["properties"]["local_path"].is_object());
    assert_eq!(upload["inputSchema"].get("required"), None, "a file there has a name");
    let (_, run) = schema(&[("SANDBOX_EXPORT_DIR", "exported")]).await;
    assert!(run.pointer(exported).is_some(), "a result may have only what its schema names");
}
