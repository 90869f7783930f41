//! Packages for JavaScript in sandboxes that have no network: `install_package`, with a registry on this machine.

use serde_json::{Value, json};
use tar::EntryType;

use support::{
    On, Server, assert_fields,
    index::engine_host,
    name, on_all,
    registry::{Package, Registry},
    text, until,
};

use crate::packages::{alice_and_bob, refused};

on_all! {
    ;
    not on wasm:
    a_package_is_there_at_once_for_require_and_import,
    each_package_has_the_versions_that_it_needs,
    versions_are_those_that_were_asked_for_and_stay,
    what_is_reset_does_not_uninstall,
    a_session_has_its_own_packages_and_no_others,
    packages_that_the_operator_does_not_allow_are_refused,
    a_registry_that_lies_is_refused_and_leaves_nothing,
    a_package_by_its_address_is_refused,
    install_scripts_do_not_run,
    what_is_too_large_is_refused,
    what_is_made_for_other_systems_is_left_out_if_it_can_be,
    a_call_that_is_cancelled_installs_nothing,
    what_was_fetched_serves_others_without_the_registry,
    a_missing_package_is_told_with_the_tool_that_installs_it;
    on docker alone:
    npm_in_the_sandbox_names_the_tool_only_where_it_helps,
}

/// Tests for the embedded engine alone.
mod of_wasm {
    #[tokio::test(flavor = "multi_thread")]
    async fn packages_for_javascript_are_refused() {
        super::packages_for_javascript_are_refused().await;
    }
}

/// Starts a registry that the fetchers of this engine can reach.
async fn registry(on: On) -> Registry {
    let host = if on == On::Docker { engine_host() } else { "127.0.0.1".into() };
    Registry::start_on(&host).await
}

async fn server(on: On, registry: &Registry) -> Server {
    Server::start_with(on, &registry.settings()).await
}

fn javascript(package: &str) -> Value {
    json!({ "package": package, "language": "javascript" })
}

/// The same in a session of its own.
fn elsewhere(package: &str) -> Value {
    json!({ "package": package, "language": "javascript", "session_id": name("other") })
}

async fn install(server: &Server, package: &str) -> Value {
    server.call("install_package", javascript(package)).await.ok()
}

async fn cell(server: &Server, code: &str) -> Value {
    let cell = json!({ "code": code, "language": "javascript" });
    server.call("execute_code", cell).await.ok()
}

async fn a_package_is_there_at_once_for_require_and_import(on: On) {
    let registry = registry(on).await;
    registry.add(Package::new("greeting", "1.0.0").requires("@words/all", "^1.1"));
    let words = Package::new("@words/all", "1.2.0");
    let modern = "export const hello = 'hello';\n";
    let exports = json!({ ".": "./index.js", "./modern": "./modern.mjs" });
    registry.add(words.says("exports", exports).file("package/modern.mjs", modern));
    let server = server(on, &registry).await;
    let before = "
let kept = 1;
try { require('greeting') } catch (error) { console.log(error.code) }
try { await import('greeting') } catch (error) { console.log(error.code) }
";
    let codes = "MODULE_NOT_FOUND\nERR_MODULE_NOT_FOUND\n";
    assert_eq!(cell(&server, before).await["stdout"], codes);
    let installed = install(&server, "greeting").await;
    let new = json!([
        { "name": "@words/all", "version": "1.2.0" }, { "name": "greeting", "version": "1.0.0" },
    ]);
    assert_fields!(installed, {
        "installed": new, "success": true, "package": "greeting", "version_installed": "1.0.0",
    });
    let used = "
import { hello } from '@words/all/modern';
const { version } = await import('greeting');
console.log(require('greeting').version, version, require('@words/all').version, hello, kept);
";
    let used = cell(&server, used).await;
    assert_eq!(
        used["stdout"], "1.0.0 1.0.0 1.2.0 hello 1\n",
        "the interpreter that was running: {used}"
    );
    let again = install(&server, "npm:greeting").await;
    assert_eq!((&again["installed"], &again["version_installed"]), (&json!([]), &json!("1.0.0")));
    assert!(
        text(&again["message"]).ends_with("is there already: require or import it."),
        "{again}"
    );
    // Modules of Node count as installed, too.
    let there = install(&server, "fs").await;
    assert_eq!(there["installed"], json!([]), "{there}");
}

async fn each_package_has_the_versions_that_it_needs(on: On) {
    let registry = registry(on).await;
    for version in ["1.0.0", "2.0.0"] {
        registry.add(Package::new("shared", version));
    }
    let old = "exports.version = require('shared').version;\n";
    registry
        .add(Package::new("old", "1.0.0").requires("shared", "^1").file("package/index.js", old));
    let server = server(on, &registry).await;
    install(&server, "shared").await;
    let installed = install(&server, "old").await;
    let names: Vec<_> = installed["installed"].as_array().expect("a list").iter().collect();
    assert_eq!(names.len(), 2, "{installed}");
    let code = "console.log(require('old').version, require('shared').version)";
    assert_eq!(cell(&server, code).await["stdout"], "1.0.0 2.0.0\n");
}

async fn versions_are_those_that_were_asked_for_and_stay(on: On) {
    let registry = registry(on).await;
    for version in ["1.0.0", "1.5.0", "2.0.0"] {
        registry.add(Package::new("steps", version));
    }
    let server = server(on, &registry).await;
    let older = json!({ "package": "steps", "version": "^1", "language": "js" });
    let installed = server.call("install_package", older).await.ok();
    assert_eq!(installed["version_installed"], "1.5.0");
    let again = install(&server, "steps@>=1,<2").await;
    assert_eq!((&again["installed"], &again["version_installed"]), (&json!([]), &json!("1.5.0")));
    let other = refused(&server, javascript("steps@2.0.0"), "package_conflict").await;
    assert!(other.contains("steps is there in version 1.5.0"), "{other}");
    assert_eq!(cell(&server, "console.log(require('steps').version)").await["stdout"], "1.5.0\n");
    let session = json!({ "package": "steps@^3", "language": "js", "session_id": name("other") });
    let none = refused(&server, session, "package_not_found").await;
    assert!(none.contains("1.0.0, 1.5.0, 2.0.0"), "{none}");
    refused(&server, javascript("nowhere"), "package_not_found").await;
    for wrong in ["../x", "steps@file:/etc", "https://example.org/x.tgz", "u/r", "steps@1 || 2"] {
        refused(&server, javascript(wrong), "invalid_argument").await;
    }
    let shell = json!({ "package": "jq", "language": "bash" });
    refused(&server, shell, "unsupported_language").await;
}

async fn what_is_reset_does_not_uninstall(on: On) {
    let registry = registry(on).await;
    registry.add(Package::new("lasting", "1.0.0"));
    let server = server(on, &registry).await;
    install(&server, "lasting").await;
    assert_eq!(cell(&server, "let x = require('lasting')").await["status"], "success");
    server.call("reset_workspace", json!({ "language": "javascript" })).await.ok();
    let code = "console.log(typeof x, require('lasting').version)";
    assert_eq!(cell(&server, code).await["stdout"], "undefined 1.0.0\n");
}

async fn a_session_has_its_own_packages_and_no_others(on: On) {
    let registry = registry(on).await;
    registry.add(Package::new("secretly", "1.0.0"));
    let (_web, [alice, bob]) = alice_and_bob(on, registry.settings()).await;
    let session = name("same");
    let mut package = javascript("secretly");
    package["session_id"] = session.as_str().into();
    alice.call("install_package", package).await.ok();
    let code = "
try { console.log(require('secretly').version) } catch (error) { console.log(error.code) }";
    let look = json!({ "session_id": session, "language": "javascript", "code": code });
    assert_eq!(alice.call("execute_code", look.clone()).await.ok()["stdout"], "1.0.0\n");
    let seen = bob.call("execute_code", look).await.ok();
    assert_eq!(seen["stdout"], "MODULE_NOT_FOUND\n");
}

async fn packages_that_the_operator_does_not_allow_are_refused(on: On) {
    let registry = registry(on).await;
    registry.add(Package::new("good", "1.0.0").requires("helper", "*"));
    registry.add(Package::new("good", "2.0.0").requires("helper", "*"));
    registry.add(Package::new("helper", "1.0.0"));
    let mut settings = registry.settings();
    settings[0].1 = "humanize, npm:good@<2, npm:@other/one";
    let server = Server::start_with(on, &settings).await;
    let installed = install(&server, "good").await;
    assert_eq!(installed["version_installed"], "1.0.0", "the version that is allowed");
    assert_eq!(installed["installed"][1]["name"], "helper", "with what it needs");
    for other in ["helper", "humanize"] {
        let message = refused(&server, elsewhere(other), "package_not_allowed").await;
        let listed = "These may: humanize, npm:good@<2, npm:@other/one.";
        assert!(message.ends_with(listed), "{message}");
    }
    refused(&server, json!({ "package": "good", "session_id": name("y") }), "package_not_allowed")
        .await;
}

async fn a_registry_that_lies_is_refused_and_leaves_nothing(on: On) {
    let registry = registry(on).await;
    let evil = "require('fs').writeFileSync('/mnt/data/evil', '')\n";
    let other = format!("sha512-{}==", "A".repeat(86));
    let package = |name: &str| Package::new(name, "1.0.0");
    registry.add(package("other").dist("integrity", json!(other)));
    registry.add(package("weak").dist("integrity", json!("sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=")));
    registry.add(package("local").dist("tarball", json!("file:///etc/passwd")));
    registry.add(package("climber").file("package/../../../evil.js", evil));
    registry.add(package("absolute").file("/opt/packages/node_modules/evil.js", evil));
    registry.add(package("linked").entry(EntryType::Symlink, "package/there", "/etc"));
    registry.add(package("twice").entry(EntryType::Regular, "package/index.js", evil));
    registry.add(package("honest"));
    // The folder of its dependency would be outside of the packages' folder.
    registry.add(package("elsewhere").requires("../../evil", "*"));
    let server = server(on, &registry).await;
    cell(&server, "1").await;
    for package in ["other", "weak", "local", "climber", "absolute", "linked", "twice"] {
        let message = refused(&server, javascript(package), "package_refused").await;
        assert!(
            message.contains("nothing was installed") && message.contains(package),
            "{message}"
        );
    }
    let elsewhere = server.call("install_package", javascript("elsewhere")).await;
    assert!(elsewhere.error().starts_with("package_"), "{elsewhere:?}");
    install(&server, "honest").await;
    let look = "
const path = require('path');
const folder = path.dirname(path.dirname(require.resolve('honest')));
const fs = require('fs');
console.log(fs.readdirSync(folder), fs.readdirSync(path.dirname(folder)), fs.readdirSync('.'));
";
    let seen = cell(&server, look).await;
    assert_eq!(seen["stdout"], "[ 'honest' ] [ 'node_modules' ] []\n", "{seen}");
}

async fn a_package_by_its_address_is_refused(on: On) {
    let registry = registry(on).await;
    registry.add(Package::new("hidden", "1.0.0"));
    let address = format!("{}files/hidden-1.0.0.tgz", registry.url);
    let git = format!("git+{}cloned.git", registry.url);
    for (package, needed) in [
        ("remote", &*address),
        ("cloned", &git),
        ("hosted", "github:someone/something"),
        ("passwords", "file:/etc/passwd"),
        ("folder", "file:/etc"),
    ] {
        registry.add(Package::new(package, "1.0.0").requires("hidden", needed));
    }
    let server = server(on, &registry).await;
    for package in ["remote", "cloned", "hosted", "passwords", "folder"] {
        let message = refused(&server, javascript(package), "package_refused").await;
        assert!(message.contains("only packages of the index are taken"), "{package}: {message}");
    }
    let asked = registry.asked();
    assert!(
        !asked.iter().any(|it| it.starts_with("hidden") || it.starts_with("cloned.")),
        "{asked:?}"
    );
}

async fn install_scripts_do_not_run(on: On) {
    let registry = registry(on).await;
    let told = format!("fetch('{}ran')", registry.url);
    let script = json!({ "preinstall": "node tell.js", "postinstall": "node tell.js", "prepare": "node tell.js" });
    let package = Package::new("scripted", "1.0.0").says("scripts", script);
    registry.add(package.file("package/tell.js", told));
    let server = server(on, &registry).await;
    let installed = install(&server, "scripted").await;
    let message = text(&installed["message"]);
    assert!(message.contains("Install scripts are never run, and scripted has one"), "{message}");
    assert_eq!(
        cell(&server, "console.log(require('scripted').version)").await["stdout"],
        "1.0.0\n"
    );
    assert!(!registry.asked().contains(&"ran".to_owned()));
}

async fn what_is_too_large_is_refused(on: On) {
    let registry = registry(on).await;
    // A bomb, which is a thousandth of its size in transfer.
    registry.add(Package::new("bomb", "1.0.0").file("package/zeros", vec![0; 40_000_000]));
    let noise = support::noise(9_000_000);
    registry.add(Package::new("heavy", "1.0.0").file("package/noise", noise));
    registry.add(Package::new("light", "1.0.0"));
    let mut settings = registry.settings();
    settings.push(("SANDBOX_PACKAGES_LIMIT", "8MB"));
    let server = Server::start_with(on, &settings).await;
    for package in ["bomb", "heavy"] {
        refused(&server, javascript(package), "package_too_large").await;
    }
    install(&server, "light").await;
    assert_eq!(cell(&server, "console.log(require('light').version)").await["stdout"], "1.0.0\n");
}

async fn what_is_made_for_other_systems_is_left_out_if_it_can_be(on: On) {
    let registry = registry(on).await;
    registry.add(Package::new("for-apples", "1.0.0").says("os", json!(["darwin"])));
    registry.add(Package::new("for-penguins", "1.0.0").says("os", json!(["linux"])));
    let either = json!({ "for-apples": "1.0.0", "for-penguins": "1.0.0" });
    registry.add(Package::new("either", "1.0.0").says("optionalDependencies", either));
    registry.add(Package::new("strict", "1.0.0").requires("for-apples", "*"));
    let server = server(on, &registry).await;
    let installed = install(&server, "either").await;
    let new = json!([
        { "name": "either", "version": "1.0.0" }, { "name": "for-penguins", "version": "1.0.0" },
    ]);
    assert_eq!(installed["installed"], new);
    refused(&server, javascript("for-apples"), "package_not_found").await;
    let refused = refused(&server, elsewhere("strict"), "package_not_found").await;
    assert!(refused.contains("not made for the system here"), "{refused}");
}

async fn a_call_that_is_cancelled_installs_nothing(on: On) {
    let registry = registry(on).await;
    registry.hang("slow");
    registry.add(Package::new("quick", "1.0.0"));
    let server = server(on, &registry).await;
    cell(&server, "let x = 1").await;
    let (id, answer) = server.begin("install_package", javascript("slow"));
    until("it is asked", async || registry.asked().contains(&"slow".to_owned())).await;
    server.cancel(id);
    drop(answer);
    // The session and its turn are free again.
    install(&server, "quick").await;
    let code = "console.log(require('quick').version, x)";
    assert_eq!(cell(&server, code).await["stdout"], "1.0.0 1\n");
}

async fn what_was_fetched_serves_others_without_the_registry(on: On) {
    let registry = registry(on).await;
    registry.add(Package::new("shared", "1.0.0"));
    let server = server(on, &registry).await;
    let install = async |session: &str| {
        let mut arguments = javascript("shared");
        arguments["session_id"] = session.into();
        server.call("install_package", arguments).await.ok()
    };
    let first = install(&name("first")).await;
    let asked = registry.asked();
    let second = install(&name("second")).await;
    assert_eq!(first["installed"], second["installed"]);
    assert_eq!(registry.asked(), asked, "it was not asked again");
}

async fn a_missing_package_is_told_with_the_tool_that_installs_it(on: On) {
    let registry = registry(on).await;
    let server = server(on, &registry).await;
    let missing = cell(&server, "require('nowhere')").await;
    let note = "\"nowhere\" is not installed. If nothing that is there will do, install_package with language \
                javascript installs it.";
    assert_eq!(missing["notes"][0], note, "{missing}");
}

async fn npm_in_the_sandbox_names_the_tool_only_where_it_helps() {
    let registry = registry(On::Docker).await;
    let code = "import subprocess\nprint(subprocess.run(['npm', 'install', 'nowhere'], capture_output=True, text=True).stderr)";
    let mut settings = registry.settings();
    let on = Server::start_with(On::Docker, &settings).await;
    let said = on.run(&name("on"), code).await;
    let tool = "The tool install_package, with language javascript, can install npm packages.";
    assert!(text(&said["stdout"]).contains(tool), "{said}");
    settings[0].1 = "off";
    let off = Server::start_with(On::Docker, &settings).await;
    let said = off.run(&name("off"), code).await;
    let said = text(&said["stdout"]);
    assert!(said.contains("nowhere cannot be installed. Use Node's own modules"), "{said}");
    assert!(!said.contains("install_package"), "{said}");
}

async fn packages_for_javascript_are_refused() {
    let registry = registry(On::Wasm).await;
    let server = server(On::Wasm, &registry).await;
    let message = refused(&server, javascript("lodash"), "packages_disabled").await;
    assert!(message.starts_with("Packages for JavaScript cannot be installed"), "{message}");
    let listed = server.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("tools");
    let tool = tools.iter().find(|tool| tool["name"] == "install_package").expect("listed");
    assert!(!tool.to_string().contains("javascript"), "nor are they told of: {tool}");
}
