//! A user id for each sandbox: resources that the kernel counts by user are not shared with other sandboxes.

use std::{
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use support::{On, Server, containers, name, text, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{UnixListener, UnixStream},
};

/// Functions that use resources which the kernel counts by user.
const COUNTED_BY_USER: &str = r"
import ctypes, errno, fcntl, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)

def pipes(count):
    # The sizes of so many new pipes, which are small when the user has too many.
    files = [os.pipe() for _ in range(count)]
    return {fcntl.fcntl(reader, 1032) for reader, _ in files}

def signals(most):
    # Queues signals to itself that it has blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    queued = 0
    while queued < most and libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0: queued += 1
    return queued

flight = socket.socketpair()
def in_flight(messages):
    # Sends descriptors that nobody receives.
    try:
        for _ in range(messages): socket.send_fds(flight[0], [b'x'], [0] * 250)
    except OSError as error: return errno.errorcode[error.errno]
    return 'sent'
";

#[tokio::test(flavor = "multi_thread")]
async fn what_one_sandbox_uses_up_of_its_user_no_other_misses() {
    let server = Server::start(On::Docker).await;
    let (greedy, modest) = (name("greedy"), name("modest"));
    // Takes all of them at the same time and keeps them; reports the result as the name of a file.
    let takes_all = r"
ready, told = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        pipes(500)
        os.write(told, b'1')
        signal.pause()
for _ in range(4): os.read(ready, 1)
small = max(pipes(1)) < 65536
open(f'{small} {signals(2000) < 2000} {in_flight(20)}', 'w')
signal.pause()";
    let takes_all = format!("{COUNTED_BY_USER}{takes_all}");
    let holding = server.call("run_python", json!({ "session_id": greedy, "code": takes_all }));
    let looking = async {
        until("one sandbox has used up all that is its user's", async || {
            server.files_if_any(&greedy).await == [("True True ETOOMANYREFS".to_owned(), 0)]
        })
        .await;
        let code = format!("{COUNTED_BY_USER}print(pipes(100), signals(900), in_flight(2))");
        let run = server.run(&modest, &code).await;
        assert_eq!(run["stdout"], "{65536} 900 sent\n", "{}", run["stderr"]);
        server.call("close_session", json!({ "session_id": greedy })).await.ok();
    };
    tokio::join!(holding, looking);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sandbox_has_a_user_of_its_own_who_has_a_name() {
    let server = Server::start(On::Docker).await;
    let code = "import getpass, os, pwd\nuser = pwd.getpwuid(os.getuid())\n\
                print(user.pw_uid)\n\
                print(user.pw_name == getpass.getuser() == f'sandbox{os.getuid()}')\n\
                print(user.pw_dir, os.path.expanduser('~'), os.path.expanduser(f'~{user.pw_name}'))";
    let mut users = vec![];
    for session in [name("one"), name("another")] {
        let run = server.run(&session, code).await;
        let (uid, rest) = text(&run["stdout"]).split_once('\n').expect("lines");
        assert_eq!(rest, "True\n/tmp/home /tmp/home /tmp/home\n", "{}", run["stderr"]);
        let inspected = Command::new("docker")
            .args(["inspect", "--format", "{{.Name}}", &containers(&session)[0]])
            .output()
            .expect("the docker client runs");
        let container = String::from_utf8(inspected.stdout).expect("text");
        assert_eq!(container.trim(), format!("/llm-sandbox-u{uid}"));
        users.push(uid.to_owned());
    }
    assert_ne!(users[0], users[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_run_looks_up_no_user() {
    let server = Server::start(On::Docker).await;
    // The library that knows the names of users is loaded at the first look-up.
    let asked = "print('extrausers' in open('/proc/self/maps').read())";
    let code = format!(
        "import pandas, matplotlib.pyplot\n{asked}\nimport os, pwd\npwd.getpwuid(os.getuid())\n{asked}"
    );
    assert_eq!(server.run(&name("unnamed"), &code).await["stdout"], "False\nTrue\n");
}

/// The real engine, except that it refuses the first requests for a container because their names are taken.
struct Engine {
    socket: PathBuf,
    /// Name and user of each requested container.
    asked: Mutex<Vec<(String, String)>>,
    taken: usize,
    _folder: tempfile::TempDir,
}

impl Engine {
    fn with_taken_names(taken: usize) -> Arc<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        let engine = Arc::new(Self { socket, asked: Mutex::default(), taken, _folder: folder });
        let shared = engine.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(shared.clone().answer(client));
            }
        });
        engine
    }

    fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().expect("not poisoned").clone()
    }

    /// Handles one request for each connection, or the stream of a container.
    async fn answer(self: Arc<Self>, mut client: UnixStream) {
        let (mut head, mut byte) = (vec![], [0]);
        while !head.ends_with(b"\r\n\r\n") && client.read_exact(&mut byte).await.is_ok() {
            head.extend_from_slice(&byte);
        }
        let mut head = String::from_utf8(head).expect("ASCII");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        client.read_exact(&mut body).await.expect("a body");
        if self.is_taken(&head, &body) {
            let refusal = "HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\n\
                           Connection: close\r\nContent-Length: 19\r\n\r\n{\"message\":\"taken\"}";
            let _ = client.write_all(refusal.as_bytes()).await;
            return;
        }
        if !head.contains("/attach?") {
            head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        }
        let mut engine = UnixStream::connect("/var/run/docker.sock").await.expect("connected");
        engine.write_all(head.as_bytes()).await.expect("sent");
        engine.write_all(&body).await.expect("sent");
        let _ = copy_bidirectional(&mut client, &mut engine).await;
    }

    fn is_taken(&self, head: &str, body: &[u8]) -> bool {
        let Some((_, name)) = head.split_once("/containers/create?name=") else { return false };
        let name = name.split(['&', ' ']).next().expect("a name").to_owned();
        let body: Value = serde_json::from_slice(body).expect("JSON");
        let mut asked = self.asked.lock().expect("not poisoned");
        asked.push((name, text(&body["User"]).to_owned()));
        asked.len() <= self.taken
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_id_that_another_container_has_is_passed_over() {
    let engine = Engine::with_taken_names(3);
    let server = Server::start_with(On::Docker, &[("DOCKER_HOST", &*engine.host())]).await;
    let run = server.run(&name("fourth"), "import os\nprint(os.getuid())").await;
    let asked = engine.asked();
    assert_eq!(asked.len(), 4);
    for (name, user) in &asked {
        let uid = name.strip_prefix("llm-sandbox-u").expect("a user id");
        assert_eq!(*user, format!("{uid}:1000"));
    }
    assert_eq!(run["stdout"], format!("{}\n", asked[3].0.trim_start_matches("llm-sandbox-u")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_a_free_user_id_is_told_as_such() {
    let engine = Engine::with_taken_names(usize::MAX);
    let server = Server::start_with(On::Docker, &[("DOCKER_HOST", &*engine.host())]).await;
    let refused = server.call("run_python", json!({ "code": "pass" })).await;
    assert_eq!(refused.error(), "sandbox_unavailable");
    let message = text(&refused.json["message"]);
    assert!(message.contains("No free user id was found for another sandbox"), "{message}");
    assert_eq!(engine.asked().len(), 16, "tried, and no more");
}
