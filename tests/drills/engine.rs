//! Drills that need an engine of their own: one that can be killed, and one that has gVisor.
//!
//! The engine runs beside the machine's own and shares nothing with it: other folders, another socket, another network
//! namespace (an engine removes the bridge that it finds), another containerd.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;
use support::{On, Server, name, program, until};
use tokio::time::timeout;

/// An engine with our image.
pub(super) struct Engine {
    process: Child,
    folder: PathBuf,
}

impl Engine {
    /// Starts an engine; `None`, after a line with the reason, if that is impossible on this machine.
    pub(super) fn start() -> Option<Self> {
        let skip = |why: &str| {
            println!("skipped: {why}");
            None
        };
        let has = |program: &str| {
            Command::new(program)
                .arg("--version")
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let root = Command::new("id").arg("-u").output().expect("id runs").stdout == b"0\n";
        if !root {
            return skip("only root can start an engine of its own");
        }
        if !has("dockerd") || !has("unshare") {
            return skip("there is no dockerd or no unshare on this machine");
        }
        // Short, because the paths of sockets have at most 108 bytes.
        let folder = PathBuf::from(format!("/run/{}", name("sb")));
        fs::create_dir_all(&folder).expect("made");
        let runtime = "#!/bin/sh\nexec runsc --network=none \"$@\"\n";
        fs::write(folder.join("runsc"), runtime).expect("written");
        run(Command::new("chmod").arg("0755").arg(folder.join("runsc")));
        let process = Self::launch(&folder);
        let engine = Self { process, folder };
        engine.wait_until_it_answers();
        let mut save =
            Command::new("docker").args(["save", &support::image()]).stdout(Stdio::piped()).spawn();
        let save = save.as_mut().expect("the docker client runs");
        let image = save.stdout.take().expect("piped");
        run(engine.docker().arg("load").stdin(image));
        assert!(save.wait().expect("ends").success());
        Some(engine)
    }

    fn launch(folder: &Path) -> Child {
        let log = fs::File::create(folder.join("log")).expect("made");
        let at = |name: &str| folder.join(name).into_os_string();
        Command::new("unshare")
            .args(["--net", "dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none"])
            .args(["--containerd-namespace", "sandbox-test"])
            .args(["--containerd-plugins-namespace", "sandbox-test-plugins"])
            .arg("--host")
            .arg(format!("unix://{}", folder.join("engine.sock").display()))
            .args(["--data-root".into(), at("data"), "--exec-root".into(), at("exec")])
            .args(["--pidfile".into(), at("pid")])
            .arg("--add-runtime")
            .arg(format!("runsc={}", folder.join("runsc").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("unshare runs")
    }

    pub(super) fn host(&self) -> String {
        format!("unix://{}", self.folder.join("engine.sock").display())
    }

    fn docker(&self) -> Command {
        let mut command = Command::new("docker");
        command.env("DOCKER_HOST", self.host());
        command
    }

    fn wait_until_it_answers(&self) {
        let start = Instant::now();
        let answers = || {
            let version = self.docker().args(["version"]).output();
            version.expect("the docker client runs").status.success()
        };
        while !answers() {
            assert!(
                start.elapsed() < support::PATIENCE,
                "{}",
                fs::read_to_string(self.folder.join("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop(&mut self, signal: &str) {
        run(Command::new("kill").args(["-s", signal, &self.process.id().to_string()]));
        self.process.wait().expect("ends");
    }

    fn start_again(&mut self) {
        self.process = Self::launch(&self.folder);
        self.wait_until_it_answers();
    }

    fn sessions(&self) -> Vec<String> {
        self.listed(&["ps", "--all", "--format", "{{.Label \"session_id\"}}"])
    }

    fn listed(&self, arguments: &[&str]) -> Vec<String> {
        let output = self.docker().args(arguments).output().expect("the docker client runs");
        String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
        // Mounts that a killed engine left.
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let ours = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for mount in ours.filter(|mount| mount.starts_with(&*self.folder.to_string_lossy())) {
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn run(command: &mut Command) {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_costs_its_sessions_and_nothing_else() {
    let Some(mut engine) = Engine::start() else { return };
    let host = engine.host();
    let settings = [("DOCKER_HOST", &*host), ("SANDBOX_STORAGE", "disk")];
    let mut server = Server::start_with(On::Docker, &settings).await;

    for signal in ["KILL", "TERM"] {
        let (idle, busy) = (name("idle"), name("busy"));
        server.upload(&idle, "a", b"1").await.ok();
        let code = "open('started', 'w')\nimport time; time.sleep(600)";
        let stop = async {
            until("it runs", async || !server.files_if_any(&busy).await.is_empty()).await;
            engine.stop(signal);
        };
        let arguments = json!({ "session_id": busy, "code": code });
        let (answer, ()) = tokio::join!(server.call("run_python", arguments), stop);
        assert_eq!(answer.error(), "sandbox_died", "{signal}");
        let message = answer.json["message"].as_str().expect("text");
        assert!(message.contains("all its files are lost"), "{message}");
        until("the idle session is lost as well", async || {
            let answer = server.call("list_artifacts", json!({ "session_id": idle })).await;
            matches!(answer.error(), "session_not_found" | "sandbox_died")
        })
        .await;
        let refused = server.call("run_python", json!({ "code": "print(1)" })).await;
        assert_eq!(refused.error(), "sandbox_unavailable", "{signal}");

        engine.start_again();
        let fresh = name("fresh");
        assert_eq!(server.run(&fresh, "print('again')").await["stdout"], "again\n");
        until("what the engine held before is gone", async || engine.sessions() == [&*fresh]).await;
        server.call("close_session", json!({ "session_id": fresh })).await.ok();
    }
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
    assert_eq!(engine.sessions(), Vec::<String>::new());
    // Their files were in volumes. A killed engine forgets whose they were, and the next server removes them.
    let _next = Server::start_with(On::Docker, &settings).await;
    let volumes = async || engine.listed(&["volume", "ls", "--quiet"]).is_empty();
    until("no volume is left", volumes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_finds_every_promise_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, checks) = probe(folder.path(), &[]).await;
    assert_eq!(code, Some(0), "{checks}");
    let [kept, not_shown] = ["\nok    ", "\nn/a   "].map(|mark| checks.matches(mark).count());
    // Some kernels do not count swap.
    let swap = checks.matches("\nn/a   no swap").count();
    assert_eq!((kept + swap, not_shown), (34, swap), "{checks}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_holds_under_gvisor_but_for_what_it_cannot_show() {
    if Command::new("runsc").arg("--version").output().is_err() {
        return println!("skipped: there is no runsc on this machine");
    }
    let Some(engine) = Engine::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let host = engine.host();
    let settings = [("DOCKER_HOST", &*host), ("SANDBOX_RUNTIME", "runsc")];
    let (code, checks) = probe(folder.path(), &settings).await;
    assert_eq!(code, Some(0), "{checks}");
    let not_shown = checks.lines().filter(|line| line.starts_with("n/a   "));
    let not_shown: Vec<_> = not_shown.map(|line| line[6..32].trim_end()).collect();
    assert_eq!(
        not_shown,
        [
            "seccomp filter",
            "system calls",
            "kinds of sockets",
            "memory of sockets",
            "agent not readable",
            "agent not killable",
            "agent's limits",
            "memory limit",
            "no swap",
            "process limit",
            "processor limit",
            "files in /mnt/data",
            "files in /tmp",
            "processes run out",
            "memory runs out",
        ]
    );

    let (server, id) = (Server::start_with(On::Docker, &settings).await, name("gvisor"));
    server.upload(&id, "in/a.csv", b"x\n1\n2\n").await.ok();
    let code = "import pandas as pd\nprint(pd.read_csv('in/a.csv').x.sum())\nopen('b', 'w')";
    let run = server.run(&id, code).await;
    assert_eq!((&run["stdout"], &run["artifacts"][0]["filename"]), (&json!("3\n"), &json!("b")));
    let refused = server.upload(&id, "in/a.csv", b"other").await;
    assert_eq!(refused.error(), "file_exists");
    let code = "import os, pwd\nuid = os.getuid()\nprint(50000 <= uid <= 59999)\n\
                print(pwd.getpwuid(uid).pw_name == f'sandbox{uid}')";
    assert_eq!(server.run(&id, code).await["stdout"], "True\nTrue\n");
    drop(server);

    // Under gVisor copies of processes take more memory.
    let more = [&settings[..], &[("SANDBOX_MEMORY_LIMIT", "1GB")]].concat();
    let server = Server::start_with(On::Docker, &more).await;
    for (language, code, timeout, status, state, result) in [
        ("python", "x = [1]; half = iter('ab'); next(half)", 60, "success", "kept", json!("'a'")),
        ("python", "x.append(2)\nwhile True: pass", 1, "timeout", "rolled_back", json!(null)),
        (
            "python",
            "import os\nx.clear(); os._exit(3)",
            60,
            "execution_error",
            "rolled_back",
            json!(null),
        ),
        ("python", "x, next(half)", 60, "success", "kept", json!("([1], 'b')")),
        ("javascript", "let y = 1; y", 60, "success", "kept", json!("1")),
        ("javascript", "y = 2; while (true);", 1, "timeout", "kept", json!(null)),
        ("javascript", "y", 60, "success", "kept", json!("2")),
    ] {
        let cell = json!({ "language": language, "code": code, "timeout": timeout });
        let cell = server.call("execute_code", cell).await.ok();
        let came = (&cell["status"], &cell["state"], &cell["result"]);
        assert_eq!(came, (&json!(status), &json!(state), &result), "{code}: {cell}");
    }
}

/// The part of the doctor's output that checks a sandbox from inside.
pub(super) async fn probe(folder: &Path, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = program(folder, settings).args(["doctor", "--probe"]).output();
    let output = timeout(support::PATIENCE, output).await.expect("in time").expect("starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let (_, within) = text.split_once("Inside a sandbox:").unwrap_or(("", &*text));
    (output.status.code(), within.to_owned())
}
