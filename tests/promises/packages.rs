//! Packages in sandboxes that have no network: `install_package`, with an index on this machine.

use serde_json::{Value, json};

use support::{
    On, Server, assert_fields, docker,
    index::{Index, Wheel, engine_host},
    name, on_all, text, until,
    web::*,
};

on_all! {
    a_package_is_there_at_once_for_cells_and_programs,
    what_is_taken_back_or_reset_does_not_uninstall,
    versions_and_extras_are_those_that_were_asked_for,
    what_does_not_go_together_is_refused_in_one_sentence,
    a_version_that_does_not_exist_is_not_called_a_conflict,
    a_session_has_its_own_packages_and_no_others,
    packages_that_the_operator_does_not_allow_are_refused,
    an_index_that_lies_is_refused_and_leaves_nothing,
    nothing_of_a_package_runs_before_it_is_there,
    what_is_too_large_is_refused,
    a_call_that_is_cancelled_installs_nothing,
    slow_installations_of_one_caller_do_not_hold_up_another,
    what_was_fetched_serves_others_without_the_index,
    a_missing_module_is_told_with_the_tool_that_installs_it,
    a_session_that_comes_back_from_the_archive_says_what_to_install_again_if_anything;
    on docker alone:
    the_sandbox_has_no_network_while_a_package_is_installed,
    nothing_is_left_of_what_fetches_packages,
    pip_in_the_sandbox_names_the_tool_only_where_it_helps,
}

/// Tests for the embedded engine alone.
mod of_wasm {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_compiled_package_is_refused_with_what_is_there_instead() {
        super::a_compiled_package_is_refused_with_what_is_there_instead().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn packages_are_kept_with_their_session() {
        super::packages_are_kept_with_their_session().await;
    }
}

/// Starts an index that the fetchers of this engine can reach.
async fn index(on: On) -> Index {
    if on == On::Docker { Index::start_on(&engine_host()).await } else { Index::start().await }
}

async fn server(on: On, index: &Index) -> Server {
    Server::start_with(on, &index.settings()).await
}

async fn install(server: &Server, package: &str) -> Value {
    server.call("install_package", json!({ "package": package })).await.ok()
}

/// A call that must be refused with this code; returns the message.
pub(super) async fn refused(server: &Server, arguments: Value, code: &str) -> String {
    let answer = server.call("install_package", arguments).await;
    assert_eq!(answer.error(), code, "{}", answer.json);
    text(&answer.json["message"]).to_owned()
}

/// A server with these settings that has two callers.
pub(super) async fn alice_and_bob(on: On, mut settings: Vec<(&str, &str)>) -> (Web, [Caller; 2]) {
    settings.push(("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b"));
    let web = Web::start(on, &settings).await;
    let callers = ["secret-a", "secret-b"].map(|token| web.caller(Some(token)));
    (web, callers)
}

async fn cell(server: &Server, code: &str) -> Value {
    server.call("execute_code", json!({ "code": code })).await.ok()
}

async fn a_package_is_there_at_once_for_cells_and_programs(on: On) {
    let index = index(on).await;
    index.add(Wheel::new("greeting", "1.0").requires("words>=1"));
    index.add(Wheel::new("words", "1.2").file("words/more/__init__.py", "all = ['hello']\n"));
    let server = server(on, &index).await;
    let before = "
try:
    import greeting
except ImportError as error:
    print(error)
interpreter = id(object)
";
    assert_eq!(cell(&server, before).await["stdout"], "No module named 'greeting'\n");
    let installed = install(&server, "greeting").await;
    let new = json!([
        { "name": "greeting", "version": "1.0" }, { "name": "words", "version": "1.2" },
    ]);
    assert_fields!(installed, {
        "installed": new, "success": true, "package": "greeting", "version_installed": "1.0",
    });
    let used = "
import greeting, words.more
from importlib import metadata
print(greeting.version, words.more.all, metadata.version('words'), interpreter == id(object))
";
    let expected = "1.0 ['hello'] 1.2 True\n";
    assert_eq!(cell(&server, used).await["stdout"], expected, "the interpreter that was running");
    let session = text(&installed["session_id"]).to_owned();
    let program = "import greeting, words.more\nprint(greeting.version, words.more.all)";
    assert_eq!(server.run(&session, program).await["stdout"], "1.0 ['hello']\n");
    let again = install(&server, "Greeting").await;
    assert_eq!((&again["installed"], &again["version_installed"]), (&json!([]), &json!("1.0")));
    assert!(text(&again["message"]).ends_with("is there already: import it."), "{again}");
    // Preinstalled packages count as installed, too.
    let there = install(&server, if on == On::Wasm { "pandas" } else { "pip" }).await;
    assert_eq!(there["installed"], json!([]), "{there}");
}

async fn what_is_taken_back_or_reset_does_not_uninstall(on: On) {
    let index = index(on).await;
    index.add(Wheel::new("lasting", "1.0"));
    let server = server(on, &index).await;
    cell(&server, "x = 1").await;
    install(&server, "lasting").await;
    cell(&server, "import lasting\nx = 2").await;
    server.call("reset_workspace", json!({ "undo": 2 })).await.ok();
    let after = cell(&server, "'x' in globals(), 'lasting' in globals()").await;
    assert_eq!(after["result"], "(False, False)");
    let code = "import lasting; lasting.version";
    assert_eq!(cell(&server, code).await["result"], "'1.0'");
    let stopped = json!({ "code": "import lasting\nwhile True: pass", "timeout": 1 });
    assert_eq!(server.call("execute_code", stopped).await.ok()["state"], "rolled_back");
    assert_eq!(cell(&server, code).await["result"], "'1.0'");
    server.call("reset_workspace", json!({ "files": true })).await.ok();
    assert_eq!(cell(&server, code).await["result"], "'1.0'");
}

async fn versions_and_extras_are_those_that_were_asked_for(on: On) {
    let index = index(on).await;
    for version in ["0.8", "0.9", "1.0"] {
        let wheel = Wheel::new("speech", version);
        index.add(wheel.requires("louder; extra == \"loud\""));
    }
    index.add(Wheel::new("louder", "3.0"));
    let server = server(on, &index).await;
    let call = async |arguments: Value| server.call("install_package", arguments).await;
    let old = call(json!({ "package": "speech", "version": "0.9", "session_id": name("old") }))
        .await
        .ok();
    assert_eq!(
        (&old["version_installed"], &old["installed"][0]["version"]),
        (&json!("0.9"), &json!("0.9"))
    );
    let loud = call(json!({ "package": "speech[loud]<1", "session_id": name("loud") })).await.ok();
    let new =
        json!([{ "name": "louder", "version": "3.0" }, { "name": "speech", "version": "0.9" }]);
    assert_eq!(loud["installed"], new);
    let missing =
        refused(&server, json!({ "package": "speech", "version": "7" }), "package_not_found").await;
    assert!(missing.contains("The index has: 0.8, 0.9, 1.0."), "{missing}");
    let nothing = refused(&server, json!({ "package": "silence" }), "package_not_found").await;
    assert!(nothing.starts_with("The package index for Python has no silence."), "{nothing}");
    refused(&server, json!({ "package": "../speech" }), "invalid_argument").await;
    index.add_file("sources", "sources-1.0.tar.gz", "", b"never looked at".to_vec());
    let source = refused(&server, json!({ "package": "sources" }), "package_not_found").await;
    assert!(source.contains("nothing is built from source (it has 1.0)"), "{source}");
    assert!(!index.asked().contains(&"sources-1.0.tar.gz".to_owned()), "it is not even downloaded");
}

async fn what_does_not_go_together_is_refused_in_one_sentence(on: On) {
    let index = index(on).await;
    index.add(Wheel::new("base", "1.0"));
    index.add(Wheel::new("base", "2.0"));
    index.add(Wheel::new("needy", "1.0").requires("base>=2"));
    let server = server(on, &index).await;
    let first = json!({ "package": "base", "version": "1.0" });
    server.call("install_package", first).await.ok();
    let message = refused(&server, json!({ "package": "needy" }), "package_conflict").await;
    assert!(message.contains("base>=2") && message.contains("base==1.0"), "{message}");
    assert_eq!(cell(&server, "import base; base.version").await["result"], "'1.0'");
    // A package must not overwrite a file of another with other content. Identical files do not conflict.
    let same = Wheel::new("twin", "1.0").file("shared/__init__.py", "x = 1\n");
    index.add(same);
    let same = Wheel::new("other_twin", "1.0").file("shared/__init__.py", "x = 1\n");
    index.add(same);
    index.add(Wheel::new("thief", "1.0").file("base/__init__.py", "version = 'stolen'\n"));
    install(&server, "twin").await;
    install(&server, "other-twin").await;
    refused(&server, json!({ "package": "thief" }), "package_conflict").await;
    let code = "import base, shared; (base.version, shared.x)";
    assert_eq!(cell(&server, code).await["result"], "('1.0', 1)");
}

async fn a_version_that_does_not_exist_is_not_called_a_conflict(on: On) {
    let index = index(on).await;
    for version in ["1.0", "1.1"] {
        index.add(Wheel::new("humane", version));
    }
    let server = server(on, &index).await;
    install(&server, "humane").await;
    let message =
        refused(&server, json!({ "package": "humane", "version": "9.9" }), "package_not_found")
            .await;
    assert!(message.starts_with("There is no humane==9.9 for the Python here."), "{message}");
    assert!(message.contains("The index has: 1.0, 1.1."), "{message}");
    refused(&server, json!({ "package": "humane", "version": "1.0" }), "package_conflict").await;
}

async fn a_session_has_its_own_packages_and_no_others(on: On) {
    let index = index(on).await;
    index.add(Wheel::new("secretly", "1.0"));
    let (_web, [alice, bob]) = alice_and_bob(on, index.settings()).await;
    let session = name("own");
    let package = json!({ "package": "secretly", "session_id": session });
    alice.call("install_package", package).await.ok();
    let look = json!({ "session_id": session, "code": "
import importlib.util
print(importlib.util.find_spec('secretly') is not None)" });
    assert_eq!(alice.call("run_python", look.clone()).await.ok()["stdout"], "True\n");
    assert_eq!(bob.call("run_python", look.clone()).await.ok()["stdout"], "False\n");
    alice.close(&session).await;
    assert_eq!(alice.call("run_python", look).await.ok()["stdout"], "False\n", "gone with it");
}

async fn packages_that_the_operator_does_not_allow_are_refused(on: On) {
    let index = index(on).await;
    index.add(Wheel::new("good", "1.0").requires("helper"));
    index.add(Wheel::new("good", "2.0").requires("helper"));
    index.add(Wheel::new("helper", "1.0"));
    let tools = async |server: &Server| {
        let listed = server.request("tools/list", json!({})).await;
        listed["result"]["tools"].to_string().contains("\"install_package\"")
    };
    let mut settings = index.settings();
    settings[0].1 = "Good<2, other";
    let listed = Server::start_with(on, &settings).await;
    assert!(tools(&listed).await);
    let can_install = async |server: &Server| {
        let listed = server.call("list_runtimes", json!({})).await.ok();
        listed["runtimes"][0]["features"].to_string().contains("\"packages\"")
    };
    assert!(can_install(&listed).await);
    let installed = install(&listed, "good").await;
    assert_eq!(installed["version_installed"], "1.0", "the version that is allowed");
    assert_eq!(installed["installed"][1]["name"], "helper", "with what it needs");
    let helper = refused(
        &listed,
        json!({ "package": "helper", "session_id": name("x") }),
        "package_not_allowed",
    )
    .await;
    assert!(helper.ends_with("These may: Good<2, other."), "{helper}");
    settings[0].1 = "off";
    let off = Server::start_with(on, &settings).await;
    assert!(!tools(&off).await && !can_install(&off).await, "nobody is told of it");
    refused(&off, json!({ "package": "good" }), "packages_disabled").await;
}

async fn an_index_that_lies_is_refused_and_leaves_nothing(on: On) {
    let index = index(on).await;
    let evil = "open('/mnt/data/evil', 'w')\n";
    index.add_falsely(Wheel::new("other", "1.0"));
    index.add(Wheel::new("climber", "1.0").file("../../mnt/data/evil", "x"));
    index.add(Wheel::new("absolute", "1.0").file("/mnt/data/evil", "x"));
    index.add(Wheel::new("linked", "1.0").link("linked/there", "/mnt/data"));
    index.add(Wheel::new("shadow", "1.0").file("json/__init__.py", evil));
    index.add(Wheel::new("starter", "1.0").file("sitecustomize.py", evil));
    index.add(Wheel::new("twice", "1.0").file("twice/__init__.py", evil));
    index.add(Wheel::new("unlisted", "1.0").unlisted("unlisted/more.py", evil));
    index.add(Wheel::new("liar", "1.0").lie("liar/more.py", evil));
    // The file has the name of a wheel, but other content.
    index.add_file("broken", "broken-1.0-py3-none-any.whl", "", b"PK\x03\x04 no".to_vec());
    index.add(Wheel::new("honest", "1.0"));
    let server = server(on, &index).await;
    cell(&server, "import sys").await;
    let all = [
        "other", "climber", "absolute", "linked", "shadow", "starter", "twice", "unlisted", "liar",
    ];
    for package in all {
        let message = refused(&server, json!({ "package": package }), "package_refused").await;
        assert!(
            message.contains("nothing was installed") && message.contains(package),
            "{message}"
        );
    }
    // pip does not consider an unreadable file a package.
    let broken = server.call("install_package", json!({ "package": "broken" })).await;
    assert!(broken.error().starts_with("package_"), "{broken:?}");
    install(&server, "honest").await;
    let look = "
import honest, json, os, sys
found = [folder for folder in sys.path if os.path.isdir(folder + '/honest')]
print(sorted(os.listdir(found[0])), os.listdir('/mnt/data') if os.path.isdir('/mnt/data') else [])
";
    let seen = cell(&server, look).await;
    assert_eq!(seen["stdout"], "['honest', 'honest-1.0.dist-info'] []\n", "{seen}");
}

async fn nothing_of_a_package_runs_before_it_is_there(on: On) {
    let index = index(on).await;
    index.add_file("source", "source-1.0.tar", "", index.source_that_tells());
    let files = index.url.replace("/simple/", "/files");
    let address = format!("source @ {files}/source-1.0.tar");
    index.add(Wheel::new("direct", "1.0").requires(&address));
    index.add(Wheel::new("local", "1.0").requires("passwd @ file:///etc/passwd"));
    let git = format!("cloned @ git+{files}/cloned.git");
    index.add(Wheel::new("versioned", "1.0").requires(&git));
    let server = server(on, &index).await;
    for package in ["source", "direct", "local", "versioned"] {
        let refused = server.call("install_package", json!({ "package": package })).await;
        assert!(refused.error().starts_with("package_"), "{refused:?}");
    }
    let asked = index.asked();
    for never in ["ran", "source-1.0.tar", "cloned.git"] {
        assert!(!asked.contains(&never.to_owned()), "{never}: {asked:?}");
    }
}

async fn what_is_too_large_is_refused(on: On) {
    let index = index(on).await;
    // A bomb, which is a thousandth of its size in transfer.
    index.add(Wheel::new("bomb", "1.0").file("bomb/zeros", vec![0; 40_000_000]));
    let noise = support::noise(9_000_000);
    index.add(Wheel::new("heavy", "1.0").file("heavy/noise", noise));
    index.add(Wheel::new("light", "1.0"));
    let mut settings = index.settings();
    settings.push(("SANDBOX_PACKAGES_LIMIT", "8MB"));
    let server = Server::start_with(on, &settings).await;
    for package in ["bomb", "heavy"] {
        refused(&server, json!({ "package": package }), "package_too_large").await;
    }
    install(&server, "light").await;
    assert_eq!(cell(&server, "import light; light.version").await["result"], "'1.0'");
}

async fn a_call_that_is_cancelled_installs_nothing(on: On) {
    let index = index(on).await;
    index.hang("slow");
    index.add(Wheel::new("quick", "1.0"));
    let folder = tempfile::tempdir().expect("a folder");
    let audit = folder.path().join("audit.jsonl").display().to_string();
    let mut settings = index.settings();
    settings.push(("SANDBOX_AUDIT_FILE", &audit));
    let server = Server::start_with(on, &settings).await;
    cell(&server, "x = 1").await;
    let (id, answer) = server.begin("install_package", json!({ "package": "slow" }));
    until("the index is asked", async || index.asked().contains(&"slow".to_owned())).await;
    server.cancel(id);
    drop(answer);
    // The session and its turn are free again.
    install(&server, "quick").await;
    assert_eq!(cell(&server, "import quick; x").await["result"], "1");
    let lines = std::fs::read_to_string(&audit).expect("lines");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let installs = lines.filter(|line| line["tool"] == "install_package");
    let outcomes: Vec<_> = installs.map(|line| line["outcome"].clone()).collect();
    assert_eq!(outcomes, ["cancelled", "ok"]);
}

async fn slow_installations_of_one_caller_do_not_hold_up_another(on: On) {
    let index = index(on).await;
    let slow = ["slow-a", "slow-b", "slow-c"];
    for package in slow {
        index.hang(package);
    }
    index.add(Wheel::new("quick", "1.0"));
    let (_web, [ann, bob]) = alice_and_bob(on, index.settings()).await;
    let install = async |caller: &Caller, package: &str| {
        caller
            .call("install_package", json!({ "package": package, "session_id": name(package) }))
            .await
    };
    let asked = async || {
        until("the index is asked", async || index.asked().iter().any(|it| it.starts_with("slow")))
            .await;
        let quick = install(&bob, "quick").await.ok();
        assert_eq!(quick["version_installed"], "1.0");
    };
    tokio::select! {
        answers = futures::future::join_all(slow.map(|package| install(&ann, package))) => panic!("{answers:?}"),
        () = asked() => {}
    }
}

async fn what_was_fetched_serves_others_without_the_index(on: On) {
    let index = index(on).await;
    index.add(Wheel::new("shared", "1.0"));
    let server = server(on, &index).await;
    let install = async |session: &str| {
        let arguments = json!({ "package": "shared", "session_id": session });
        server.call("install_package", arguments).await.ok()
    };
    let first = install(&name("first")).await;
    let asked = index.asked();
    let second = install(&name("second")).await;
    assert_eq!(first["installed"], second["installed"]);
    assert_eq!(index.asked(), asked, "it was not asked again");
}

async fn a_missing_module_is_told_with_the_tool_that_installs_it(on: On) {
    let index = index(on).await;
    let server = server(on, &index).await;
    let missing = cell(&server, "import nowhere").await;
    let note = "\"nowhere\" is not installed. If no library that is there will do, install_package installs it.";
    assert_eq!(missing["notes"][0], note, "{missing}");
    // The note does not suggest a package that the operator forbids.
    let mut settings = index.settings();
    settings.retain(|(name, _)| *name != "SANDBOX_PACKAGES");
    settings.push(("SANDBOX_PACKAGES", "humanize, greeting<2"));
    let server = Server::start_with(on, &settings).await;
    let missing = cell(&server, "import nowhere").await;
    let note = "\"nowhere\" is not installed. install_package installs only these: \"humanize, greeting<2\".";
    assert_eq!(missing["notes"][0], note, "{missing}");
}

async fn a_session_that_comes_back_from_the_archive_says_what_to_install_again_if_anything(on: On) {
    let index = index(on).await;
    index.add(Wheel::new("wanted", "1.0").requires("helper"));
    index.add(Wheel::new("helper", "1.0"));
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("archive").display().to_string();
    let key = support::key_in(folder.path());
    let mut settings = index.settings();
    settings.extend([("SANDBOX_ARCHIVE", &*archive), ("SANDBOX_KEY_FILE", &key)]);
    let session = name("back");
    let cell = async |server: &Server, code: &str| server.cell(&session, code).await.ok();
    let mut first = Server::start_with(on, &settings).await;
    let package = json!({ "package": "wanted", "session_id": session });
    first.call("install_package", package).await.ok();
    cell(&first, "import wanted\nx = wanted.version").await;
    first.close_input();
    first.exit_code().await;
    let second = Server::start_with(on, &settings).await;
    let back = cell(&second, "x").await;
    assert_eq!(back["result"], "'1.0'", "{back}");
    let again = json!("Packages did not come back, install them first: \"wanted==1.0\".");
    let is_told = back["notes"].as_array().is_some_and(|notes| notes.contains(&again));
    // The embedded engine restores its state exactly, with the packages.
    assert_eq!(is_told, on != On::Wasm, "{back}");
    if on == On::Wasm {
        assert_eq!(cell(&second, "import helper; wanted.version").await["result"], "'1.0'");
    }
}

async fn the_sandbox_has_no_network_while_a_package_is_installed() {
    let index = index(On::Docker).await;
    index.add(Wheel::new("fetched", "1.0"));
    index.hang("slow");
    let (_web, caller) = Web::open(On::Docker, &index.settings()).await;
    let session = name("probe");
    let target = index.url.split('/').nth(2).expect("an address").to_owned();
    let (host, port) = target.rsplit_once(':').expect("a port");
    let probe = format!(
        "
import os, socket
print(sorted(os.listdir('/sys/class/net')))
for family in (socket.AF_INET, socket.AF_INET6):
    try:
        socket.socket(family, socket.SOCK_STREAM).connect(('{host}', {port}))
        print('reached')
    except OSError as error:
        print('not reached')
"
    );
    let run = json!({ "session_id": session, "code": probe });
    let look = async || caller.call("run_python", run.clone()).await.ok()["stdout"].clone();
    let alone = json!("['lo']\nnot reached\nnot reached\n");
    assert_eq!(look().await, alone, "before");
    let slow = json!({ "package": "slow", "session_id": session });
    tokio::select! {
        answer = caller.call("install_package", slow) => panic!("{answer:?}"),
        () = async {
            until("the index is asked", async || index.asked().contains(&"slow".to_owned())).await;
            assert_eq!(look().await, alone, "during");
        } => {}
    }
    let fetched = json!({ "package": "fetched", "session_id": name("other") });
    caller.call("install_package", fetched).await.ok();
    assert_eq!(look().await, alone, "after");
}

/// The containers that fetch packages.
fn fetchers() -> Vec<String> {
    let listed = docker(&["ps", "--all", "--quiet", "--filter", "label=llm-sandbox.fetcher"]);
    listed.lines().map(str::to_owned).collect()
}

async fn nothing_is_left_of_what_fetches_packages() {
    let index = index(On::Docker).await;
    index.hang("never");
    let mut server = Server::start_with(On::Docker, &index.settings()).await;
    let before = fetchers();
    server.begin("install_package", json!({ "package": "never", "session_id": name("n") }));
    until("it is asked", async || index.asked().contains(&"never".to_owned())).await;
    let own: Vec<_> = fetchers().into_iter().filter(|it| !before.contains(it)).collect();
    assert!(!own.is_empty());
    let is_there = || fetchers().iter().any(|it| own.contains(it));
    let words: Vec<_> = ["inspect"].into_iter().chain(own.iter().map(|it| &**it)).collect();
    let described: Value = serde_json::from_str(&docker(&words)).expect("JSON");
    for container in described.as_array().expect("an array") {
        let host = &container["HostConfig"];
        assert_eq!((&container["Mounts"], &host["Binds"]), (&json!([]), &Value::Null));
        assert_eq!((&host["ReadonlyRootfs"], &host["CapDrop"]), (&json!(true), &json!(["ALL"])));
        assert!(
            !container["Config"]["Env"].to_string().contains(&index.url),
            "nor in its environment"
        );
    }
    server.kill().await;
    server.exit_code().await;
    until("it is gone", async || !is_there()).await;
}

async fn pip_in_the_sandbox_names_the_tool_only_where_it_helps() {
    let index = index(On::Docker).await;
    let code = "import subprocess\nprint(subprocess.run(['pip', 'install', 'nowhere'], capture_output=True, text=True).stderr)";
    let mut settings = index.settings();
    let on = Server::start_with(On::Docker, &settings).await;
    let said = on.run(&name("on"), code).await;
    assert!(text(&said["stdout"]).contains("The tool install_package can install"), "{said}");
    settings[0].1 = "off";
    let off = Server::start_with(On::Docker, &settings).await;
    let said = off.run(&name("off"), code).await;
    let said = text(&said["stdout"]);
    assert!(said.contains("nowhere cannot be installed. Use what is installed"), "{said}");
    assert!(!said.contains("install_package"), "{said}");
}

async fn a_compiled_package_is_refused_with_what_is_there_instead() {
    let index = index(On::Wasm).await;
    // A wheel for this machine, and none for other platforms.
    let compiled = Wheel::new("rapidfuzz", "3.1").tag("cp311-abi3-manylinux_2_17_x86_64");
    index.add(compiled);
    index.add(Wheel::new("reports", "1.0").requires("pandas>=1").requires("numpy"));
    let server = server(On::Wasm, &index).await;
    let message = refused(&server, json!({ "package": "rapidfuzz" }), "package_not_found").await;
    assert!(
        message.contains("in Python alone") && message.contains("difflib is there"),
        "{message}"
    );
    // A package can be installed if the compiled packages that it needs are preinstalled.
    let installed = install(&server, "reports").await;
    assert_eq!(installed["installed"], json!([{ "name": "reports", "version": "1.0" }]));
    assert_eq!(cell(&server, "import reports; reports.version").await["result"], "'1.0'");
    let write = "open(reports.__file__, 'w')";
    assert_eq!(cell(&server, write).await["status"], "execution_error", "nor can it be changed");
}

async fn packages_are_kept_with_their_session() {
    let index = index(On::Wasm).await;
    index.add(Wheel::new("kept", "1.0"));
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").display().to_string();
    let mut settings = index.settings();
    settings.push(("SANDBOX_STATE_DIR", &state));
    let session = name("kept");
    let cell = async |server: &Server, code: &str| server.cell(&session, code).await.ok();
    let mut first = Server::start_with(On::Wasm, &settings).await;
    let package = json!({ "package": "kept", "session_id": session });
    first.call("install_package", package).await.ok();
    assert_eq!(cell(&first, "import kept; x = kept.version").await["status"], "success");
    first.close_input();
    first.exit_code().await;
    let second = Server::start_with(On::Wasm, &settings).await;
    assert_eq!(
        cell(&second, "import importlib; importlib.reload(kept); kept.version, x").await["result"],
        "('1.0', '1.0')"
    );
}
