//! Datasets: data of the operator that sandboxes read at `/data`, and nothing more.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use serde_json::json;
use support::{On, Server, name, program, text, until, web::*};

// A folder is no dataset of pods, unless the cluster's operator allows it.
support::on_both! {
    a_program_reads_a_dataset_that_nothing_can_change,
    the_model_learns_of_datasets_and_their_files,
    no_path_leads_out_of_a_dataset,
    a_folder_of_many_files_is_listed_by_the_patterns_of_their_names,
    a_path_that_does_not_exist_is_answered_with_the_nearest_ones,
    a_program_of_any_language_that_misses_a_file_hears_which_dataset_has_it,
}

mod wasm {
    use super::*;

    support::tests! {
        a_program_reads_a_dataset_that_nothing_can_change =>
            super::a_program_reads_a_dataset_that_nothing_can_change(On::Wasm);
        the_model_learns_of_datasets_and_their_files =>
            super::the_model_learns_of_datasets_and_their_files(On::Wasm);
        no_path_leads_out_of_a_dataset => super::no_path_leads_out_of_a_dataset(On::Wasm);
        a_program_of_any_language_that_misses_a_file_hears_which_dataset_has_it =>
            super::a_program_of_any_language_that_misses_a_file_hears_which_dataset_has_it(On::Wasm);
    }
}

/// A folder that all users may read, with the files of a dataset.
fn exports() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    allow(folder.path());
    fs::create_dir(folder.path().join("2026")).expect("made");
    fs::write(folder.path().join("sales.csv"), "city,sold\nOslo,3\nRoma,4\n").expect("written");
    fs::write(folder.path().join("2026/May.csv"), "city,sold\nOslo,1\n").expect("written");
    folder
}

fn allow(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("permitted");
}

fn setting(name: &str, folder: &tempfile::TempDir) -> String {
    format!("{name}={}", folder.path().display())
}

/// The folder of datasets as programs see it.
fn data(on: On) -> &'static str {
    if on == On::Local { "../datasets" } else { "/data" }
}

async fn with_sales(on: On, folder: &tempfile::TempDir) -> Server {
    let datasets = setting("sales", folder);
    Server::start_with(on, &[("SANDBOX_DATASETS", &datasets)]).await
}

async fn a_program_reads_a_dataset_that_nothing_can_change(on: On) {
    let folder = exports();
    let server = with_sales(on, &folder).await;
    let session = name("dataset");
    let code = format!(
        "import os, csv\nroot = '{}/sales'\nprint(sorted(os.listdir(root)))\n\
         print(sum(int(row['sold']) for row in csv.DictReader(open(root + '/sales.csv'))))\n\
         print(open(root + '/2026/May.csv').read())",
        data(on)
    );
    let ran = server.run(&session, &code).await;
    assert_eq!(text(&ran["stdout"]), "['2026', 'sales.csv']\n7\ncity,sold\nOslo,1\n\n", "{ran}");
    // A file that the operator adds is there at once.
    fs::write(folder.path().join("new.txt"), "new").expect("written");
    let ran =
        server.run(&session, &format!("print(open('{}/sales/new.txt').read())", data(on))).await;
    assert_eq!(text(&ran["stdout"]), "new\n", "{ran}");
    if on == On::Local {
        return;
    }
    let code = "
import errno, os
def attempt(what):
    try:
        what()
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EROFS)
    return what
here = '/data/sales/sales.csv'
print([attempt(what) for what in (
    lambda: open(here, 'w'), lambda: open(here, 'a'), lambda: open('/data/sales/x', 'w'),
    lambda: open('/data/x', 'w'), lambda: os.remove(here), lambda: os.mkdir('/data/sales/x'),
    lambda: os.rmdir('/data/sales/2026'), lambda: os.rename(here, '/data/sales/y'),
    lambda: os.rename(here, '/mnt/data/y'), lambda: os.link(here, '/mnt/data/z'),
    lambda: os.symlink('/etc', '/data/sales/l'), lambda: os.truncate(here, 0),
    lambda: os.utime(here, (1, 1)), lambda: os.rename('/data/sales', '/data/other'),
)])";
    let ran = server.run(&session, code).await;
    let all = format!("[{}]\n", vec!["True"; 14].join(", "));
    assert_eq!(text(&ran["stdout"]), all, "{ran}");
    assert_eq!(fs::read(folder.path().join("sales.csv")).expect("there").len(), 24);
}

async fn the_model_learns_of_datasets_and_their_files(on: On) {
    let folder = exports();
    let server = with_sales(on, &folder).await;
    let session = name("learns");
    let tools = server.tools().await;
    let described = tools.iter().find(|tool| tool["name"] == "run_python").expect("listed");
    let described = text(&described["description"]).to_owned();
    assert!(described.contains("Data to read: /data/sales; "), "{described}");
    let runtimes = server.call("list_runtimes", json!({})).await.ok();
    assert_eq!(runtimes["datasets"], json!([{ "path": "/data/sales" }]));
    server.cell(&session, "1").await.ok();
    let info = server.call("get_workspace_info", json!({ "session_id": session })).await.ok();
    assert_eq!(info["datasets"], json!([{ "path": "/data/sales" }]), "{info}");
    let list = async |path: &str| {
        server.call("list_artifacts", json!({ "session_id": session, "path": path })).await
    };
    let listed = list("/data/sales").await.ok();
    let paths: Vec<_> = listed["artifacts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| text(&it["path"]))
        .collect();
    assert_eq!(paths, ["/data/sales/2026/May.csv", "/data/sales/sales.csv"], "{listed}");
    assert_eq!(listed["total"], 2);
    assert_eq!(list("/data/sales/2026/").await.ok()["total"], 1);
    let one = list("/data/sales/sales.csv").await.ok();
    assert_eq!(
        (&one["total"], &one["artifacts"][0]["size_bytes"]),
        (&json!(1), &json!(24)),
        "{one}"
    );
    assert_eq!(one["artifacts"][0].get("download_url"), None);
    let summary = &one["artifacts"][0]["summary"];
    let columns = json!(["city: text: Oslo | Roma", "sold: int: 3 | 4"]);
    assert_eq!((&summary["rows"], &summary["columns"]), (&json!(2), &columns), "{one}");
    for missing in ["/data/sales/none.csv", "/data/other"] {
        assert_eq!(list(missing).await.error(), "not_found", "{missing}");
    }
    let path = "/data/sales/sales.csv";
    let read =
        server.call("read_artifact", json!({ "session_id": session, "path": path })).await.ok();
    assert_eq!(text(&read["text"]), "city,sold\nOslo,3\nRoma,4\n", "{read}");
    let ran = server.run(&session, "open('May.csv')").await;
    let notes = ran["notes"].to_string();
    assert!(notes.contains("\\\"/data/sales/2026/May.csv\\\""), "{notes}");
}

async fn a_folder_of_many_files_is_listed_by_the_patterns_of_their_names(on: On) {
    let folder = exports();
    for n in 1..=100 {
        let table = format!("day,sold\n2026-01-01,{n}\n");
        let name = format!("2026/sales-{n:03}.csv");
        fs::write(folder.path().join(name), table).expect("written");
        fs::write(folder.path().join(format!("2026/chart_{n}.png")), "no image").expect("written");
    }
    let server = with_sales(on, &folder).await;
    // There is no session yet.
    let first = server.call("list_artifacts", json!({ "path": "/data/sales" })).await.ok();
    assert_eq!(first["new_session"], true, "{first}");
    let mut listed = first;
    // A busy machine may not make the summary in time.
    until("a group of tables has a summary", async || {
        listed = server.call("list_artifacts", json!({ "path": "/data/sales" })).await.ok();
        !listed["groups"][1]["summary"].is_null()
    })
    .await;
    let groups = listed["groups"].as_array().expect("groups");
    let told: Vec<_> = groups.iter().map(|it| (text(&it["pattern"]), &it["count"])).collect();
    let count = &json!(100);
    let expected =
        [("/data/sales/2026/chart_*.png", count), ("/data/sales/2026/sales-*.csv", count)];
    assert_eq!(told, expected, "{listed}");
    let sales = &groups[1];
    assert_eq!(sales["first"], "/data/sales/2026/sales-001.csv", "{sales}");
    assert_eq!(sales["last"], "/data/sales/2026/sales-100.csv", "{sales}");
    assert_eq!(sales["summary"]["columns"][1], "sold: int: 1", "{sales}");
    let alone = listed["artifacts"].as_array().expect("files");
    let alone: Vec<_> = alone.iter().map(|it| text(&it["path"])).collect();
    assert_eq!(alone, ["/data/sales/2026/May.csv", "/data/sales/sales.csv"]);
    assert_eq!((&listed["total"], &listed["next_offset"]), (&json!(202), &json!(0)));
    // With the offset come the files one by one.
    let session = text(&listed["session_id"]);
    let ask = json!({ "session_id": session, "path": "/data/sales", "offset": 0 });
    let page = server.call("list_artifacts", ask).await.ok();
    assert_eq!((page.get("groups"), &page["next_offset"]), (None, &json!(50)), "{page}");
    let all = server.call("list_artifacts", json!({ "path": "/data" })).await.ok();
    assert_eq!(all["datasets"], json!([{ "path": "/data/sales" }]), "{all}");
    assert_eq!((&all["total"], text(&all["session_id"])), (&json!(202), session), "{all}");
}

async fn a_path_that_does_not_exist_is_answered_with_the_nearest_ones(on: On) {
    let folder = exports();
    let server = with_sales(on, &folder).await;
    let session = name("nearest");
    let paths = [
        ("/data/sale", "There is \"/data/sales\"."),
        ("/data/weather/a.csv", "There is \"/data/sales\"."),
        ("/data/sales/2025", "There are \"/data/sales/2026\", "),
        ("/data/sales/sale.csv", "\"/data/sales/sales.csv\""),
    ];
    for tool in ["list_artifacts", "read_artifact"] {
        for (path, near) in paths {
            let asked = server.call(tool, json!({ "session_id": session, "path": path })).await;
            assert_eq!(asked.error(), "not_found", "{tool} {path}");
            assert!(text(&asked.json["message"]).contains(near), "{tool} {path}: {}", asked.json);
        }
    }
}

async fn a_program_of_any_language_that_misses_a_file_hears_which_dataset_has_it(on: On) {
    let folder = exports();
    let server = with_sales(on, &folder).await;
    let programs = [
        ("python", "open('May.csv')"),
        ("javascript", "require('fs').readFileSync('May.csv')"),
        ("bash", "cat May.csv"),
    ];
    for (language, code) in programs {
        if (on, language) == (On::Wasm, "bash") {
            continue;
        }
        let ran = server.call("execute_code", json!({ "language": language, "code": code })).await;
        let notes = ran.ok()["notes"].to_string();
        assert!(notes.contains("\\\"/data/sales/2026/May.csv\\\""), "{language}: {notes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn datasets_are_named_before_there_is_a_workspace() {
    let folder = exports();
    let server = with_sales(On::Local, &folder).await;
    let info = server.call("get_workspace_info", json!({})).await.ok();
    assert_eq!(info["datasets"], json!([{ "path": "/data/sales" }]), "{info}");
    let listed = server.call("list_artifacts", json!({})).await;
    assert_eq!(listed.error(), "invalid_argument");
    let session = name("started");
    let ask = json!({ "session_id": session, "path": "/data/sales/2026" });
    let listed = server.call("list_artifacts", ask).await.ok();
    assert_eq!((&listed["new_session"], &listed["total"]), (&json!(true), &json!(1)), "{listed}");
    let listed = server.call("list_artifacts", json!({ "session_id": session })).await.ok();
    assert_eq!((&listed["total"], listed.get("new_session")), (&json!(0), None), "{listed}");
}

async fn no_path_leads_out_of_a_dataset(on: On) {
    let (folder, outside) = (exports(), exports());
    let secret = outside.path().join("sales.csv");
    symlink(&secret, folder.path().join("file.csv")).expect("linked");
    symlink(outside.path(), folder.path().join("folder")).expect("linked");
    symlink("../../../../../../etc", folder.path().join("up")).expect("linked");
    symlink("2026/May.csv", folder.path().join("within.csv")).expect("linked");
    let server = with_sales(on, &folder).await;
    let session = name("out");
    server.run(&session, "1").await;
    let paths =
        ["file.csv", "folder/sales.csv", "up/passwd", "../sales/sales.csv", "2026/../sales.csv"];
    for path in paths {
        let path = format!("/data/sales/{path}");
        let ask = json!({ "session_id": session, "path": path });
        let read = server.call("read_artifact", ask.clone()).await;
        assert_eq!(read.error(), "invalid_path", "{path}");
        let listed = server.call("list_artifacts", ask).await;
        assert_eq!(listed.error(), "invalid_path", "{path}");
    }
    let listed = server
        .call("list_artifacts", json!({ "session_id": session, "path": "/data/sales" }))
        .await;
    assert_eq!(listed.ok()["total"], 2, "links are not listed");
    if on == On::Local {
        return;
    }
    let code = "
def attempt(path):
    try:
        return open('/data/sales/' + path).read(9)
    except OSError as error:
        return type(error).__name__
print(attempt('file.csv'), attempt('folder/sales.csv'), attempt('within.csv'))";
    let ran = server.run(&session, code).await;
    let stdout = text(&ran["stdout"]);
    assert!(!stdout.contains("city,sold city") && stdout.ends_with("city,sold\n"), "{ran}");
}

const TEAM: &str = "
policies:
  few: { files: { datasets: [web] } }
callers:
  - { name: ann, token: secret-ann }
  - { name: ben, token: secret-ben, policy: few }
  - { name: cat, token: secret-cat }
datasets:
  - { name: sales, path: SALES, description: Monthly exports, callers: [ann, ben] }
  - { name: web, path: WEB }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_reads_the_datasets_that_it_may_and_no_others_also_from_the_pool() {
    let (sales, web) = (exports(), exports());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    let place = |it: &tempfile::TempDir| it.path().display().to_string();
    let team = TEAM.replace("SALES", &place(&sales)).replace("WEB", &place(&web));
    fs::write(&file, &team).expect("written");
    let path = file.to_str().expect("UTF-8");
    let settings = [("SANDBOX_CONFIG_FILE", path), ("SANDBOX_POOL_SIZE", "1")];
    let server = Web::start(On::Local, &settings).await;
    let caller = |who: &str| server.caller(Some(&format!("secret-{who}")));
    let names = async |who: &str| {
        let code = "import os; print(sorted(os.listdir('../datasets')))";
        let ran = caller(who).call("run_python", json!({ "code": code })).await.ok();
        let runtimes = caller(who).call("list_runtimes", json!({})).await.ok();
        let listed = runtimes["datasets"].as_array().cloned().unwrap_or_default();
        let listed: Vec<_> =
            listed.iter().map(|it| text(&it["path"]).replace("/data/", "")).collect();
        let stdout = text(&ran["stdout"]).trim().replace('\'', "\"");
        assert_eq!(serde_json::from_str::<Vec<String>>(&stdout).expect("a list"), listed, "{who}");
        listed
    };
    assert_eq!(names("ann").await, ["sales", "web"]);
    assert_eq!(names("ben").await, ["web"]);
    assert_eq!(names("cat").await, ["web"]);
    // The file is read again without a restart.
    fs::write(&file, team.replace(", callers: [ann, ben]", "")).expect("written");
    server.signal("HUP");
    until("the caller has both", async || {
        let runtimes = caller("cat").call("list_runtimes", json!({})).await.ok();
        runtimes["datasets"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await;
    assert_eq!(names("cat").await, ["sales", "web"]);
    assert_eq!(names("ben").await, ["web"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_a_dataset_has_is_not_uploaded_again() {
    let folder = exports();
    let datasets = setting("sales", &folder);
    let server = Server::start_with(On::Local, &[("SANDBOX_DATASETS", &*datasets)]).await;
    let file = folder.path().join("2026/May.csv");
    let uploaded = server.call("upload_file", json!({ "local_path": file })).await.ok();
    assert_eq!(uploaded["path"], "/data/sales/2026/May.csv", "{uploaded}");
    assert!(uploaded["notes"].to_string().contains("nothing was copied"), "{uploaded}");
    let listed =
        server.call("list_artifacts", json!({ "session_id": uploaded["session_id"] })).await;
    assert_eq!(listed.ok()["total"], 0);
}

async fn doctor(datasets: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = [("SANDBOX_DATASETS", datasets), ("SANDBOX_ENGINE", "local")];
    let mut command = program(folder.path(), &settings);
    // Settings that cannot be used are told on standard error.
    let (_, out, err) = support::ended(command.arg("doctor")).await;
    out + &err
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_tells_of_a_dataset_that_cannot_be_read_or_is_dangerous() {
    let folder = exports();
    let place = folder.path().display().to_string();
    let said = doctor(&format!("sales={place}")).await;
    assert!(said.contains(&format!("/data/sales: {place}, 2 files")), "{said}");
    let said = doctor(&format!("sales={place}/none")).await;
    assert!(said.contains("FAIL  dataset    /data/sales"), "{said}");
    let said = doctor(&format!("sales={place}/sales.csv")).await;
    assert!(said.contains("is no folder"), "{said}");
    symlink("/proc", folder.path().join("link")).expect("linked");
    let said = doctor(&format!("sales={place}/link")).await;
    assert!(said.contains("is a folder of the system"), "{said}");
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("s")).expect("bound");
    let said = doctor(&format!("sales={place}")).await;
    assert!(said.contains("has 1 sockets, pipes or devices"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_dataset_that_cannot_be_shown_is_not_said_to_have_a_url() {
    let folder = exports();
    fs::write(
        folder.path().join("a.zip"),
        b"PK\x05\x06".iter().chain(&[0; 18]).copied().collect::<Vec<_>>(),
    )
    .expect("written");
    let server = with_sales(On::Local, &folder).await;
    let session = name("kind");
    server.run(&session, "open('a.bin', 'wb').write(bytes([0, 159, 146, 150, 1, 2]))").await;
    for (path, has_url) in [("/data/sales/a.zip", false), ("a.bin", true)] {
        let ask = json!({ "session_id": session, "path": path });
        let read = server.call("read_artifact", ask).await.ok();
        assert!(text(&read["advice"]).contains("run_python"), "{read}");
        assert_eq!(text(&read["advice"]).contains("download_url"), has_url, "{read}");
    }
}
