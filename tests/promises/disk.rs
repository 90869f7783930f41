//! Sessions with their files on disk: `SANDBOX_STORAGE=disk`.

use std::process::Command;

use serde_json::{Value, json};
use support::{On, Server, assert_fields, containers, name, noise, on_both, text, until, web::Web};

use crate::uploads::{put, refusal};

mod wasm {
    use support::On;

    support::tests! {
        a_run_that_fills_the_disk_is_told => super::a_run_that_fills_the_disk_is_ended_with_the_reason(On::Wasm);
        a_cell_that_fills_the_disk_keeps_its_variables => super::a_cell_that_fills_the_disk_keeps_its_variables(On::Wasm);
        an_upload_is_refused_when_the_disk_limit_is_reached =>
            super::an_upload_is_refused_when_the_disk_limit_is_reached(On::Wasm);
        a_folder_that_is_in_memory_or_missing_is_told => super::a_folder_that_is_in_memory_or_missing_is_told();
    }
}

// On the cluster of these tests an agent is not started by the pod's command, which has the limit.
on_both! {
    a_run_that_fills_the_disk_is_ended_with_the_reason,
    a_cell_that_fills_the_disk_keeps_its_variables,
    an_upload_is_refused_when_the_disk_limit_is_reached,
    ; on docker alone:
    a_container_has_its_files_in_a_volume_of_its_own,
    a_server_that_is_killed_leaves_no_volume,
}

const DISK: [(&str, &str); 2] = [("SANDBOX_STORAGE", "disk"), ("SANDBOX_DISK_LIMIT", "40MB")];

/// Writes 400 MB in files of a megabyte.
const WRITE: &str = "for n in range(400): open(f'{n}.bin', 'wb', 0).write(bytes(1_000_000))";

fn total(files: &[(String, u64)]) -> u64 {
    files.iter().map(|(_, size)| size).sum()
}

async fn a_run_that_fills_the_disk_is_ended_with_the_reason(on: On) {
    let (server, id) = (Server::start_with(on, &DISK).await, name("disk"));
    let run = server.run(&id, WRITE).await;
    let stderr = text(&run["stderr"]);
    let files = server.files(&id).await;
    if on == On::Wasm {
        // A write fails, as on any full disk, and the program has the exact limit.
        assert_eq!(run["outcome"], "error", "{run}");
        assert!(stderr.contains("No space left"), "{run}");
        assert_eq!(total(&files), 40_000_000);
    } else {
        assert_eq!(run["outcome"], "killed", "{run}");
        assert!(stderr.contains("no space left") && stderr.contains("40 MB"), "{run}");
        assert!((1_000_000..=40_000_000).contains(&total(&files)), "{}", total(&files));
    }
    let refused = server.upload(&id, "more", &noise(8_000_000)).await;
    assert_eq!(refused.error(), "quota_exceeded");
    let run = server.run(&id, "import os\nfor name in os.listdir(): os.remove(name)").await;
    assert_eq!(run["outcome"], "ok", "{run}");
    server.upload(&id, "more", &noise(8_000_000)).await.ok();
    let run = server.run(&id, "open('b', 'wb').write(bytes(20_000_000))").await;
    assert_eq!(run["outcome"], "ok", "{run}");
}

async fn a_cell_that_fills_the_disk_keeps_its_variables(on: On) {
    let (server, id) = (Server::start_with(on, &DISK).await, name("disk-cell"));
    server.cell(&id, "kept = 1").await.ok();
    // Slowly, so that there is time to end it in good order.
    let code = format!("import time\n{WRITE}; time.sleep(0.01)");
    let cell = server.cell(&id, &code).await.ok();
    assert!(cell.to_string().to_lowercase().contains("no space left"), "{cell}");
    assert!(total(&server.files(&id).await) <= 40_000_000);
    let cell = server.cell(&id, "kept").await.ok();
    assert!(cell.to_string().contains('1'), "{cell}");
    assert_eq!(cell["status"], "success", "{cell}");
}

async fn an_upload_is_refused_when_the_disk_limit_is_reached(on: On) {
    let (_web, caller) = Web::open(on, &DISK).await;
    let session = name("disk-upload");
    let content = noise(25_000_000);
    assert_eq!(put(&caller, &format!("{session}/a"), &content).await.status, 201);
    let refused = put(&caller, &format!("{session}/b"), &content).await;
    assert_eq!(refusal(&refused), (507, "quota_exceeded".into()));
    let refused = put(&caller, &format!("{session}/b"), &noise(40_000_001)).await;
    assert_eq!(refusal(&refused), (413, "upload_too_large".into()));
    assert_eq!(put(&caller, &format!("{session}/b"), &content[..14_000_000]).await.status, 201);
    let part = [("Range", "bytes=24999990-")];
    let read = caller.send("GET", &format!("/files/{session}/a"), &part, b"").await;
    assert_eq!((read.status, &read.body[..]), (206, &content[24_999_990..]));
    let info = caller.call("get_workspace_info", json!({ "session_id": session })).await;
    assert!(info.raw.to_string().contains("40"), "{}", info.raw);
}

async fn a_folder_that_is_in_memory_or_missing_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let doctor = async |tmp: &str| {
        let mut command = support::program(folder.path(), &[DISK[0], DISK[1], ("TMPDIR", tmp)]);
        On::Wasm.choose(&mut command);
        let (_, out, _) = support::ended(command.arg("doctor")).await;
        out.lines()
            .skip_while(|line| !line.contains(" disk "))
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let usual = doctor(folder.path().to_str().expect("UTF-8")).await;
    assert!(usual.starts_with("ok") && usual.contains("GB are free"), "{usual}");
    let in_memory = doctor("/dev/shm").await;
    assert!(in_memory.starts_with("warn") && in_memory.contains("in memory"), "{in_memory}");
    let missing = doctor("/nowhere").await;
    assert!(missing.starts_with("FAIL") && missing.contains("TMPDIR"), "{missing}");
    // A session that cannot have its files there is refused with the same words.
    let settings = [DISK[0], ("TMPDIR", "/nowhere")];
    let (server, id) = (Server::start_with(On::Wasm, &settings).await, name("nowhere"));
    let refused = server.call("run_python", json!({ "session_id": id, "code": "1" })).await;
    assert_eq!(refused.error(), "sandbox_unavailable");
    assert!(refused.raw.to_string().contains("TMPDIR"), "{}", refused.raw);
}

/// The names of the volumes of a session.
fn volumes(session: &str) -> Vec<String> {
    let label = format!("label=session_id={session}");
    let listed = Command::new("docker").args(["volume", "ls", "-q", "--filter", &label]).output();
    let listed = String::from_utf8(listed.expect("it runs").stdout).expect("UTF-8");
    listed.lines().map(str::to_owned).collect()
}

async fn a_container_has_its_files_in_a_volume_of_its_own() {
    let (server, id) = (Server::start_with(On::Docker, &DISK).await, name("disk-volume"));
    let arguments = json!({ "session_id": id, "memory_limit_mb": 100 });
    server.call("create_session", arguments).await.ok();
    // Files take none of the memory, and nobody else can reach them.
    let code = "import os, stat\nopen('a', 'wb').write(bytes(30_000_000))\n\
                s = os.stat('.')\nprint(stat.filemode(s.st_mode), s.st_gid == os.getgid())\n\
                print([line.split()[2] for line in open('/proc/mounts') if ' /mnt/data ' in line] != ['tmpfs'])";
    let run = server.run(&id, code).await;
    assert_eq!(run["stdout"], "drwxrwx--- True\nTrue\n", "{run}");
    let [container] = &containers(&id)[..] else { panic!("one container") };
    let shown = Command::new("docker").args(["inspect", container]).output().expect("it runs");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let mounts = shown[0]["Mounts"].as_array().expect("mounts");
    let [mount] = &mounts[..] else { panic!("one mount: {mounts:?}") };
    assert_fields!(mount, { "Type": "volume", "Driver": "local", "Destination": "/mnt/data" });
    assert_eq!(volumes(&id), [text(&mount["Name"])]);
    server.close(&id).await;
    until("the volume is removed", async || volumes(&id).is_empty()).await;
}

async fn a_server_that_is_killed_leaves_no_volume() {
    let (mut server, id) = (Server::start_with(On::Docker, &DISK).await, name("disk-killed"));
    server.run(&id, "open('a', 'wb').write(bytes(1_000_000))").await;
    assert_eq!(volumes(&id).len(), 1);
    server.kill().await;
    until("the volume is removed", async || volumes(&id).is_empty()).await;
}
