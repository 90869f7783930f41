//! The relay before a real engine: it passes on the requests of a server, and no other.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command as Program,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use support::{
    On, PATIENCE, Response, Server, containers, docker,
    index::{Index, Wheel, engine_host},
    name, until,
    web::Web,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    process::Child,
    time::{sleep, timeout},
};

const ENGINE: &str = "/var/run/docker.sock";

fn program_of_relay(folder: &Path, settings: &[(&str, &str)]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(support::binary_beside("llm-sandbox-relay"));
    command.current_dir(folder).env("SANDBOX_LOG_LEVEL", "ERROR").envs(settings.iter().copied());
    command
}

/// A relay of its own for one test.
struct Relay {
    process: Child,
    socket: PathBuf,
    folder: Arc<tempfile::TempDir>,
}

impl Relay {
    async fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().expect("a folder")), settings).await
    }

    async fn start_in(folder: Arc<tempfile::TempDir>, settings: &[(&str, &str)]) -> Self {
        let socket = folder.path().join("engine.sock");
        let process = program_of_relay(folder.path(), settings)
            .arg("--listen")
            .arg(&socket)
            .kill_on_drop(true)
            .spawn()
            .expect("the relay starts");
        until("the relay listens", async || UnixStream::connect(&socket).await.is_ok()).await;
        Self { process, socket, folder }
    }

    fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    async fn server(&self) -> Server {
        Server::start_with(On::Docker, &[("DOCKER_HOST", &self.host())]).await
    }

    async fn ask(&self, method: &str, target: &str, body: &[u8]) -> Response {
        ask(&self.socket, method, target, body).await
    }

    /// Sends a request that the relay must refuse with an error in the engine's own form.
    async fn refuses(&self, method: &str, target: &str, body: &[u8]) {
        let response = self.ask(method, target, body).await;
        assert_eq!(response.status, 403, "{method} {target}");
        assert_eq!(response.header("content-type"), "application/json");
        assert!(response.json()["message"].as_str().is_some_and(|text| text.contains("relay")));
    }

    async fn end(mut self, signal: &str) -> Option<i32> {
        let pid = self.process.id().expect("running").to_string();
        let sent = Program::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.expect("kill runs").success());
        let ended = timeout(PATIENCE, self.process.wait()).await;
        ended.expect("ends in time").expect("waited").code()
    }
}

/// One request over a socket.
async fn ask(socket: &Path, method: &str, target: &str, body: &[u8]) -> Response {
    let exchange = async {
        let mut stream = UnixStream::connect(socket).await.expect("connected");
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        // The relay may refuse it before it has read all of it.
        let _ = stream.write_all(body).await;
        let mut all = vec![];
        let _ = stream.read_to_end(&mut all).await;
        all
    };
    Response::parse(&timeout(PATIENCE, exchange).await.expect("in time"))
}

/// The name and description of the container that a server with the usual settings requests for a session. Its engine
/// is the real one, except for that request. A container made from them belongs to the returned server: other servers
/// remove it after that one has ended.
async fn description_of_a_sandbox(session: &str) -> (Server, String, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("recorder.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let recorded = Arc::<Mutex<Option<(String, Value)>>>::default();
    let record = recorded.clone();
    let recording = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut head, mut byte) = (vec![], [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
                head.extend_from_slice(&byte);
            }
            let text = String::from_utf8(head).expect("ASCII");
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
            stream.read_exact(&mut body).await.expect("a body");
            let target = text.split(' ').nth(1).expect("a target");
            if let Some(query) = target.strip_prefix("/containers/create?name=") {
                let name = query.split('&').next().expect("a name").to_owned();
                let description = serde_json::from_slice(&body).expect("JSON");
                *record.lock().expect("not poisoned") = Some((name, description));
                let refusal = "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}";
                let _ = stream.write_all(refusal.as_bytes()).await;
                continue;
            }
            let answer = ask(Path::new(ENGINE), "GET", target, b"").await;
            let body = String::from_utf8(answer.body).expect("JSON");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let host = format!("unix://{}", socket.display());
    let server = Server::start_with(On::Docker, &[("DOCKER_HOST", &host)]).await;
    let run = json!({ "session_id": session, "code": "pass" });
    assert_eq!(server.call("run_python", run).await.error(), "sandbox_unavailable");
    recording.abort();
    let recorded = recorded.lock().expect("not poisoned").take();
    let (name, description) = recorded.expect("a container was asked for");
    (server, name, description)
}

/// A waiting container that is not of this program; removed when dropped.
struct Foreign(String);

impl Foreign {
    fn start() -> Self {
        let own = name("foreign");
        let options = ["--network=none", "--entrypoint=sleep", "--label=session_id=foreign"];
        let run =
            [&["run", "--detach", "--name", &own], &options[..], &["llm-sandbox:latest", "600"]];
        Self(docker(&run.concat()))
    }

    fn state(&self) -> String {
        docker(&["inspect", "--format", "{{.State.Status}}", &self.0])
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = Program::new("docker").args(["rm", "--force", "--volumes", &self.0]).output();
    }
}

async fn until_gone(session: &str) {
    until("the container is gone", async || containers(session).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_session_goes_through_it() {
    let relay = Relay::start(&[]).await;
    let server = relay.server().await;
    let session = name("relayed");
    let large = vec![b'x'; 20_000_000];
    server.upload(&session, "large.bin", &large).await.ok();
    let code = "import os\nprint(os.path.getsize('large.bin'))\nopen('b.txt', 'w').write('b')";
    let run = server.run(&session, code).await;
    assert_eq!((&run["outcome"], &run["stdout"]), (&"ok".into(), &"20000000\n".into()));
    let files = server.files(&session).await;
    assert_eq!(files, [("b.txt".to_owned(), 1), ("large.bin".to_owned(), 20_000_000)]);
    let url = server.url(&session, "large.bin").await;
    assert_eq!(support::http("GET", &url).await.body, large);
    // The relay does not end a stream that is silent for 12 s.
    let slow = server.run(&session, "import time; time.sleep(12); print(1)").await;
    assert_eq!(slow["stdout"], "1\n");
    server.call("close_session", json!({ "session_id": session })).await.ok();
    assert_eq!(containers(&session), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_fetched_through_it_where_they_are_on_and_nowhere_else() {
    let index = Index::start_on(&engine_host()).await;
    index.add(Wheel::new("relayed", "1.0"));
    // Room for a session and its like, and for what fetches packages.
    let relay = Relay::start(&[
        ("SANDBOX_PACKAGES", "any"),
        ("SANDBOX_MAX_SESSIONS", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
    ])
    .await;
    let host = relay.host();
    let mut settings = index.settings();
    settings.extend([
        ("DOCKER_HOST", &*host),
        ("SANDBOX_MAX_SESSIONS", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
    ]);
    let server = Server::start_with(On::Docker, &settings).await;
    let cell = json!({ "code": "import relayed; relayed.version" });
    let package = json!({ "package": "relayed" });
    server.call("install_package", package.clone()).await.ok();
    assert_eq!(server.call("execute_code", cell).await.ok()["result"], "'1.0'");
    // A server with packages enabled gets no sandbox at all from a relay with packages disabled.
    let without = Relay::start(&[]).await;
    let host = without.host();
    let mut settings = index.settings();
    settings.push(("DOCKER_HOST", &host));
    let server = Server::start_with(On::Docker, &settings).await;
    let refused = server.call("install_package", package).await;
    assert_eq!(refused.error(), "sandbox_unavailable");
    assert_eq!(index.asked().iter().filter(|it| *it == "relayed").count(), 2, "once, in two steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_have_less_memory_behind_it() {
    let relay = Relay::start(&[]).await;
    let server = relay.server().await;
    let session = name("little");
    let arguments = json!({ "session_id": session, "memory_limit_mb": 64 });
    server.call("create_session", arguments).await.ok();
    let [container] = &containers(&session)[..] else { panic!("one container") };
    let limit = docker(&["inspect", "--format", "{{.HostConfig.Memory}}", container]);
    assert_eq!(limit, "64000000");
    assert_eq!(server.run(&session, "print(1)").await["stdout"], "1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_behind_it_leaves_no_container() {
    let relay = Relay::start(&[]).await;
    let prefix = name("behind");
    for round in 0..8_u64 {
        let mut server = relay.server().await;
        let sessions: Vec<_> = (0..3).map(|n| format!("{prefix}-{round}-{n}")).collect();
        for session in &sessions {
            let arguments = json!({ "session_id": session, "code": "while True: print(1)" });
            let _answer = server.begin("run_python", arguments);
        }
        // Each round kills the server at another moment.
        sleep(Duration::from_millis(round * 120)).await;
        // In a container the guard would die with the server, so it is killed here, too.
        let pid = server.process.id().expect("running");
        let _ = Program::new("pkill").args(["-KILL", "-P", &pid.to_string()]).status();
        server.process.start_kill().expect("killed");
        server.exit_code().await;
        for session in &sessions {
            until_gone(session).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_ends_or_is_killed_leaves_no_container_and_the_server_works_with_the_next() {
    for signal in ["TERM", "KILL"] {
        let relay = Relay::start(&[]).await;
        let server = relay.server().await;
        let session = name("without");
        assert_eq!(server.run(&session, "print(1)").await["stdout"], "1\n");
        let socket = relay.socket.clone();
        let folder = socket.parent().expect("a folder").to_owned();
        let Relay { process, folder: _folder, .. } = relay;
        let ending = Relay {
            process,
            socket: socket.clone(),
            folder: Arc::new(tempfile::tempdir().unwrap()),
        };
        let code = ending.end(signal).await;
        assert_eq!(code, (signal == "TERM").then_some(0));
        until_gone(&session).await;

        let mut next = program_of_relay(&folder, &[])
            .arg("--listen")
            .arg(&socket)
            .kill_on_drop(true)
            .spawn()
            .expect("starts");
        until("the next listens", async || UnixStream::connect(&socket).await.is_ok()).await;
        let lost = server.call("list_artifacts", json!({ "session_id": session })).await;
        assert_eq!(lost.error(), "session_not_found");
        assert_eq!(server.run(&session, "print(2)").await["stdout"], "2\n");
        drop(server);
        until_gone(&session).await;
        next.start_kill().expect("killed");
        let _ = timeout(PATIENCE, next.wait()).await.expect("ends in time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_is_started_only_when_it_is_held_and_removed_if_nobody_holds_it() {
    let relay = Relay::start(&[]).await;
    let session = name("unheld");
    let (_server, name, description) = description_of_a_sandbox(&session).await;
    let body = description.to_string();
    let create = format!("/v1.45/containers/create?name={name}");
    let made = relay.ask("POST", &create, body.as_bytes()).await;
    assert_eq!(made.status, 201, "{}", made.json());
    let id = made.json()["Id"].as_str().expect("an id").to_owned();
    assert_eq!(containers(&session), std::slice::from_ref(&id));
    relay.refuses("POST", &format!("/containers/{id}/start"), b"").await;
    assert_eq!(docker(&["inspect", "--format", "{{.State.Status}}", &id]), "created");
    // No client attaches, so the relay removes it.
    until_gone(&session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn datasets_and_files_on_disk_are_the_same_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["sales", "other"] {
        std::fs::create_dir(folder.path().join(name)).expect("made");
        std::fs::write(folder.path().join(name).join("a.csv"), "id\n1\n").expect("written");
    }
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("set");
    let at = |name: &str| format!("{name}={}", folder.path().join(name).display());
    let disk = [("SANDBOX_STORAGE", "disk"), ("SANDBOX_DISK_LIMIT", "40MB")];
    let relay = Relay::start(&[&[("SANDBOX_DATASETS", &*at("sales"))], &disk[..]].concat()).await;
    let server = async |datasets: &str| {
        let host = relay.host();
        let own = [("DOCKER_HOST", &*host), ("SANDBOX_DATASETS", datasets)];
        Server::start_with(On::Docker, &[&own, &disk[..]].concat()).await
    };
    let right = server(&at("sales")).await;
    let session = name("data");
    let run = right.run(&session, "print(open('/data/sales/a.csv').read(), end='')").await;
    assert_eq!(run["stdout"], "id\n1\n", "{run}");
    let fill = "for n in range(400): open(f'{n}', 'wb', 0).write(bytes(1_000_000))";
    let run = right.run(&session, fill).await;
    assert!(run["stderr"].as_str().is_some_and(|it| it.contains("no space left")), "{run}");
    for more in [at("other"), format!("{},{}", at("sales"), at("other")), "sales=/srv".into()] {
        let other = server(&more).await;
        let arguments = json!({ "session_id": name("refused"), "code": "pass" });
        let refused = other.call("run_python", arguments).await;
        assert_eq!(refused.error(), "sandbox_unavailable", "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_container_is_made_but_the_one_that_the_settings_describe() {
    let relay = Relay::start(&[]).await;
    let session = name("wanted");
    let (_server, own, description) = description_of_a_sandbox(&session).await;
    for (pointer, value) in [
        ("/HostConfig/Privileged", json!(true)),
        ("/HostConfig/Binds", json!(["/:/host"])),
        ("/HostConfig/Mounts", json!([{ "Type": "bind", "Source": "/", "Target": "/host" }])),
        ("/HostConfig/NetworkMode", json!("host")),
        ("/HostConfig/PidMode", json!("host")),
        ("/HostConfig/CapAdd", json!(["ALL"])),
        ("/HostConfig/SecurityOpt", json!([])),
        ("/HostConfig/Memory", json!(0)),
        ("/Image", json!("debian:trixie-slim")),
        ("/Entrypoint", json!(["/bin/sh"])),
        ("/User", json!("0:0")),
        ("/User", json!("1000:1000")),
        ("/Labels/app", json!("another")),
    ] {
        let mut changed = description.clone();
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        changed.pointer_mut(parent).expect("is there")[field] = value;
        let create = format!("/containers/create?name={own}");
        relay.refuses("POST", &create, changed.to_string().as_bytes()).await;
    }
    let body = description.to_string();
    // The name contains the user id, and each user id belongs to one sandbox.
    let (_other, other_name, _) = description_of_a_sandbox(&session).await;
    assert_ne!(own, other_name);
    for name in ["", "?name=another", "?name=llm-sandbox-u1000", &format!("?name={other_name}")] {
        relay.refuses("POST", &format!("/containers/create{name}"), body.as_bytes()).await;
    }
    // If a field occurs twice, one parser reads the first and another the last.
    let twice = body.replacen("\"Image\":", "\"Image\":\"debian:trixie-slim\",\"image\":", 1);
    relay.refuses("POST", &format!("/containers/create?name={own}"), twice.as_bytes()).await;
    let endless = vec![b' '; 4 << 20];
    let response = relay.ask("POST", &format!("/containers/create?name={own}"), &endless).await;
    assert_eq!(response.status, 400);
    assert_eq!(containers(&session), Vec::<String>::new());
    // A relay with other settings refuses this container, too.
    for other in [("SANDBOX_MEMORY_LIMIT", "400MB"), ("SANDBOX_PIDS_LIMIT", "256")] {
        let other = Relay::start(&[other]).await;
        other.refuses("POST", &format!("/containers/create?name={own}"), body.as_bytes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_others_cannot_be_touched() {
    let relay = Relay::start(&[]).await;
    let foreign = Foreign::start();
    // The same is tested with a sandbox of another server that is running.
    let neighbour = Server::start(On::Docker).await;
    let session = name("neighbour");
    neighbour.run(&session, "open('a', 'w').write('mine')").await;
    let sandbox = containers(&session).remove(0);
    for id in [&foreign.0, &sandbox] {
        for (method, action) in [
            ("DELETE", "?force=true&v=true"),
            ("POST", "/attach?logs=false&stream=true&stdin=true&stdout=true&stderr=true"),
            ("POST", "/start"),
            ("POST", "/wait?condition=removed"),
            ("POST", "/kill"),
            ("POST", "/stop"),
            ("POST", "/exec"),
            ("POST", "/update"),
            ("POST", "/pause"),
            ("GET", "/json"),
            ("GET", "/logs?stdout=true"),
            ("GET", "/archive?path=/"),
            ("GET", "/export"),
            ("GET", "/top"),
        ] {
            relay.refuses(method, &format!("/containers/{id}{action}"), b"").await;
        }
    }
    assert_eq!(foreign.state(), "running");
    let read = json!({ "session_id": session, "path": "a" });
    assert_eq!(neighbour.call("read_artifact", read).await.ok()["text"], "mine");

    // The foreign container is not listed; the other server's sandbox is, because a sweep has to check it.
    let ours = "all=true&filters=%7B%22label%22%3A%5B%22app%3Dllm-sandbox%22%5D%7D";
    let listed = relay.ask("GET", &format!("/containers/json?{ours}"), b"").await.json();
    let is_listed = |id: &str| listed.as_array().unwrap().iter().any(|found| found["Id"] == *id);
    assert!(is_listed(&sandbox) && !is_listed(&foreign.0));

    // A container that another server has created and not started yet belongs to that server for a while.
    let unstarted = name("unstarted");
    let label = format!("session_id={unstarted}");
    let made = docker(&[
        "create",
        "--label",
        "app=llm-sandbox",
        "--label",
        &label,
        "--label",
        "llm-sandbox.owner=v1/elsewhere/1/1/1",
        "llm-sandbox:latest",
    ]);
    let made = Foreign(made);
    relay.refuses("DELETE", &format!("/containers/{}?force=true&v=true", made.0), b"").await;
    assert_eq!(made.state(), "created");

    // A container without an owner that was never started is a leftover.
    let leftover = name("leftover");
    let label = format!("session_id={leftover}");
    until("the relay has removed one, and no server that happened to start", async || {
        let create = ["create", "--label", "app=llm-sandbox", "--label", &label];
        let made = docker(&[&create[..], &["llm-sandbox:latest"]].concat());
        let remove = format!("/containers/{made}?force=true&v=true");
        let status = relay.ask("DELETE", &remove, b"").await.status;
        assert!(matches!(status, 204 | 404 | 409), "{status}");
        status == 204
    })
    .await;
    assert_eq!(containers(&leftover), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_of_the_engine_can_be_reached() {
    let relay = Relay::start(&[]).await;
    for (method, target) in [
        ("POST", "/build"),
        ("POST", "/session"),
        ("POST", "/grpc"),
        ("POST", "/images/create?fromImage=alpine"),
        ("POST", "/images/load"),
        ("GET", "/images/json"),
        ("GET", "/images/debian:trixie-slim/json"),
        ("DELETE", "/images/llm-sandbox:latest"),
        ("POST", "/commit?container=x"),
        ("GET", "/volumes"),
        ("POST", "/volumes/create"),
        ("POST", "/networks/create"),
        ("POST", "/plugins/pull?remote=x"),
        ("POST", "/swarm/init"),
        ("GET", "/secrets"),
        ("GET", "/events"),
        ("GET", "/system/df"),
        ("POST", "/containers/prune"),
        ("GET", "/v1.24/containers/json"),
        ("GET", "/containers/json?all=true"),
    ] {
        relay.refuses(method, target, b"{}").await;
    }
    assert_eq!(relay.ask("GET", "/_ping", b"").await.body, b"OK");
    let image = format!("/images/{}/json", support::image());
    assert_eq!(relay.ask("GET", &image, b"").await.status, 200);
    assert_eq!(relay.ask("GET", "/version", b"").await.status, 200);
    // The information about the host has only the fields that a server reads: no name, no registries, no proxies.
    let info = relay.ask("GET", "/info", b"").await.json();
    let known: Vec<_> = info.as_object().expect("an object").keys().cloned().collect();
    let read = [
        "CgroupVersion",
        "CpuCfsQuota",
        "DefaultRuntime",
        "MemoryLimit",
        "NCPU",
        "PidsLimit",
        "Runtimes",
        "SecurityOptions",
        "SwapLimit",
    ];
    assert_eq!(known, read);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_an_engine_says_so_and_one_socket_has_one_relay() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("engine.sock");
    let start = |settings: &[(&str, &str)]| {
        program_of_relay(folder.path(), settings)
            .args(["--engine", "/no/such.sock", "--listen"])
            .arg(&socket)
            .kill_on_drop(true)
            .spawn()
            .expect("starts")
    };
    let mut relay = start(&[]);
    until("the relay listens", async || UnixStream::connect(&socket).await.is_ok()).await;
    let answer = ask(&socket, "GET", "/_ping", b"").await;
    assert_eq!(answer.status, 502);
    assert!(answer.json()["message"].as_str().is_some_and(|why| why.contains("socket")));
    let health = |socket: &Path| {
        let asked = program_of_relay(folder.path(), &[])
            .args(["--health", "--listen"])
            .arg(socket)
            .output();
        async { timeout(PATIENCE, asked).await.expect("in time").expect("ran").status.code() }
    };
    assert_eq!(health(&socket).await, Some(1));
    let mut second = start(&[]);
    let ended = timeout(PATIENCE, second.wait()).await.expect("ends in time").expect("waited");
    assert_eq!(ended.code(), Some(69));
    relay.start_kill().expect("killed");
    let _ = timeout(PATIENCE, relay.wait()).await.expect("ends in time");
    assert_eq!(health(&socket).await, Some(1));
    let well = Relay::start(&[]).await;
    assert_eq!(health(&well.socket).await, Some(0));
}

/// With this setting sessions survive the relay of their streams, and their server.
const HOLDS: (&str, &str) = ("SANDBOX_HOLD_S", "60");

async fn cell(server: &Web, session: &str, code: &str) -> Value {
    let arguments = json!({ "session_id": session, "code": code });
    server.caller(None).call("execute_code", arguments).await.json
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_and_a_server_that_are_replaced_end_no_session_that_holds() {
    let mut relay = Relay::start(&[HOLDS]).await;
    let (host, folder, id) = (relay.host(), relay.folder.clone(), name("relay-held"));
    let key = folder.path().join("key").display().to_string();
    let settings =
        [("DOCKER_HOST", &*host), HOLDS, ("SANDBOX_KEY_FILE", &key), ("SANDBOX_POOL_SIZE", "1")];
    let mut server = Web::start(On::Docker, &settings).await;
    assert_eq!(cell(&server, &id, "x = [0]").await["status"], "success");

    // The relay alone is replaced, in the middle of a cell.
    for signal in ["KILL", "TERM"] {
        let code = "open('begun', 'w').close()\nimport time\n\
                    for i in range(100): print(i); time.sleep(.02)\nx.append(1)\nlen(x)";
        let running = cell(&server, &id, code);
        let replacing = async {
            let begun = async || {
                let files = server.caller(None).files(&id).await;
                files.iter().any(|(name, _)| name == "begun")
            };
            until("it runs", begun).await;
            relay.end(signal).await;
            Relay::start_in(folder.clone(), &[HOLDS]).await
        };
        let (answer, next) = tokio::join!(running, replacing);
        relay = next;
        assert_eq!(answer["status"], "success", "{signal}: {answer}");
        assert!(support::text(&answer["stdout"]).ends_with("99\n"), "{signal}: {answer}");
        assert_eq!(cell(&server, &id, "import os; os.remove('begun')").await["status"], "success");
    }
    // Both are replaced, as in an upgrade.
    server.signal("TERM");
    assert_eq!(server.exit_code().await, Some(0));
    relay.end("TERM").await;
    relay = Relay::start_in(folder.clone(), &[HOLDS]).await;
    let server = Web::start(On::Docker, &settings).await;
    assert_eq!(cell(&server, &id, "len(x)").await["result"], "3");
    let closed = server.caller(None).call("close_session", json!({ "session_id": id })).await;
    closed.ok();
    assert_eq!(containers(&id), Vec::<String>::new());
    relay.end("TERM").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_starts_no_process_but_in_containers_that_hold_and_only_the_one() {
    let relay = Relay::start(&[HOLDS]).await;
    let id = name("relay-exec");
    let server = Server::start_with(On::Docker, &[("SANDBOX_POOL_SIZE", "0")]).await;
    server.upload(&id, "a", b"1").await.ok();
    let [container] = &containers(&id)[..] else { panic!("one container") };
    let full = Program::new("docker").args(["inspect", "--format", "{{.Id}}", container]).output();
    let full = String::from_utf8(full.expect("the docker client runs").stdout).expect("text");
    let exec = format!("/containers/{}/exec", full.trim());
    relay.refuses("POST", &exec, br#"{"Cmd":["sh"]}"#).await;
    let without = Relay::start(&[]).await;
    without.refuses("POST", &exec, b"{}").await;

    let host = relay.host();
    let settings = [("DOCKER_HOST", &*host), HOLDS, ("SANDBOX_POOL_SIZE", "0")];
    let held = Server::start_with(On::Docker, &settings).await;
    let other = name("relay-exec-held");
    held.upload(&other, "a", b"1").await.ok();
    let [container] = &containers(&other)[..] else { panic!("one container") };
    let full = Program::new("docker").args(["inspect", "--format", "{{.Id}}", container]).output();
    let full = String::from_utf8(full.expect("the docker client runs").stdout).expect("text");
    let exec = format!("/containers/{}/exec", full.trim());
    // The relay starts this one program, whatever the request names.
    let made = relay.ask("POST", &exec, br#"{"Cmd":["sh","-c","touch /mnt/data/b"]}"#).await;
    assert_eq!(made.status, 201);
    let json = made.json();
    let id_of_exec = support::text(&json["Id"]);
    let inspected = ask(Path::new(ENGINE), "GET", &format!("/exec/{id_of_exec}/json"), b"").await;
    let command = &inspected.json()["ProcessConfig"];
    assert_eq!(command["entrypoint"], "/opt/sandbox/connect");
    assert_eq!(command["arguments"], json!(["--connect"]));
    relay.refuses("POST", &format!("/exec/{}/start", "0".repeat(64)), b"{}").await;
}
