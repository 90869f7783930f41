//! Packages from the index that this machine uses, in containers.

use serde_json::{Value, json};

use support::{On, Server, name, text};

#[tokio::test(flavor = "multi_thread")]
async fn packages_of_the_real_index_are_installed_and_used_at_once() {
    let settings = [("SANDBOX_PACKAGES", "rapidfuzz,humanize")];
    let (server, session) = (Server::start_with(On::Docker, &settings).await, name("real"));
    let cell = async |code: &str| -> Value {
        let cell = json!({ "code": code, "session_id": session });
        server.call("execute_code", cell).await.ok()
    };
    cell("running = True").await;
    // The first is compiled, the second is pure Python.
    for package in ["rapidfuzz", "humanize"] {
        let package = json!({ "package": package, "session_id": session });
        let installed = server.call("install_package", package).await.ok();
        assert!(!text(&installed["version_installed"]).is_empty(), "{installed}");
    }
    let code = "
import humanize
from rapidfuzz import fuzz, fuzz_cpp
print(running, round(fuzz.ratio('kitten', 'sitting'), 1), humanize.intcomma(1234567))
";
    let expected = "True 61.5 1,234,567\n";
    let used = cell(code).await;
    assert_eq!(used["stdout"], expected, "{used}");
    let program = server.run(&session, &code.replace("running, ", "True, ")).await;
    assert_eq!(program["stdout"], expected, "{program}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_engine_has_a_pure_package_of_the_real_index_at_once() {
    let server = Server::start_with(On::Wasm, &[("SANDBOX_PACKAGES", "any")]).await;
    let cell = async |code: &str| -> Value {
        server.call("execute_code", json!({ "code": code })).await.ok()
    };
    cell("running = True").await;
    server.call("install_package", json!({ "package": "humanize" })).await.ok();
    let used = cell("import humanize; (running, humanize.intcomma(1234567))").await;
    assert_eq!(used["result"], "(True, '1,234,567')", "{used}");
    let compiled = server.call("install_package", json!({ "package": "rapidfuzz" })).await;
    assert_eq!(compiled.error(), "package_not_found");
    assert!(text(&compiled.json["message"]).contains("difflib is there"), "{compiled:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_of_the_real_registry_are_installed_and_used_at_once() {
    let settings = [("SANDBOX_PACKAGES", "npm:lodash, npm:nanoid, npm:@node-rs/crc32")];
    let server = Server::start_with(On::Docker, &settings).await;
    let cell = async |code: &str| -> Value {
        let cell = json!({ "code": code, "language": "javascript" });
        server.call("execute_code", cell).await.ok()
    };
    cell("let running = true").await;
    // The first is for require(), the second for import alone, and the third is compiled.
    for package in ["lodash", "nanoid", "@node-rs/crc32"] {
        let package = json!({ "package": package, "language": "javascript" });
        let installed = server.call("install_package", package).await.ok();
        assert!(!text(&installed["version_installed"]).is_empty(), "{installed}");
    }
    let code = "
import { nanoid } from 'nanoid';
const { crc32 } = require('@node-rs/crc32');
console.log(running, require('lodash').chunk([1, 2, 3], 2), nanoid().length, crc32('llm'));
";
    let used = cell(code).await;
    assert_eq!(used["stdout"], "true [ [ 1, 2 ], [ 3 ] ] 21 1153946136\n", "{used}");
}
