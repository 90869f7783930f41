//! Drills for containers: isolation, memory, leftovers, several servers on one engine.

use serde_json::json;
use support::{Image, On, Server, assert_fields, containers, docker, image, name, text, until};

#[tokio::test(flavor = "multi_thread")]
async fn running_out_of_memory_ends_the_run_and_not_the_session() {
    let (server, id) = (Server::start(On::Docker).await, name("memory"));
    server.upload(&id, "kept.csv", b"1").await.ok();
    let code = "print('before')\nhoard = []\nwhile True: hoard.append(bytearray(10_000_000))";
    let run = server.run(&id, code).await;
    assert_fields!(run, { "exit_code": 137, "outcome": "out_of_memory", "stdout": "before\n" });
    assert!(text(&run["stderr"]).ends_with("out of memory (limit 512MB)"), "{run}");
    let next = server.run(&id, "print(open('kept.csv').read())").await;
    assert_eq!(next["stdout"], "1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_data_area_is_told_as_such() {
    let settings = [("SANDBOX_DATA_LIMIT", "4MB"), ("SANDBOX_MAX_UPLOAD_BYTES", "4MB")];
    let (server, id) = (Server::start_with(On::Docker, &settings).await, name("full"));
    let code = "try: open('fill', 'wb').write(bytes(10_000_000))\n\
                except OSError as error: print(error.strerror)";
    assert_eq!(server.run(&id, code).await["stdout"], "No space left on device\n");
    let refused = server.upload(&id, "more", &vec![7; 2_000_000]).await;
    assert_eq!(refused.error(), "quota_exceeded");
    server.run(&id, "import os; os.remove('fill')").await;
    server.upload(&id, "more", &vec![7; 2_000_000]).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_scratch_area_does_not_stop_the_next_run() {
    let (server, id) = (Server::start(On::Docker).await, name("scratch"));
    let code = "try: open('/tmp/fill', 'wb').write(bytes(100_000_000))\n\
                except OSError as error: print(error.strerror)";
    assert_eq!(server.run(&id, code).await["stdout"], "No space left on device\n");
    assert_eq!(server.run(&id, "print('next')").await["stdout"], "next\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_too_long_to_be_told_cost_no_memory() {
    let (server, id) = (Server::start(On::Docker).await, name("deep"));
    server.upload(&id, "told.txt", b"1").await.ok();
    // Each file has a path of 15 kB; all paths together have 250 MB.
    let code = "import os\nname, fd = 'n' * 255, os.open('.', os.O_RDONLY)\n\
                for _ in range(60):\n\
                \x20   os.mkdir(name, dir_fd=fd)\n\
                \x20   inner = os.open(name, os.O_RDONLY, dir_fd=fd); os.close(fd); fd = inner\n\
                for i in range(16000): os.close(os.open(str(i), os.O_CREAT | os.O_WRONLY, dir_fd=fd))";
    assert_eq!(server.run(&id, code).await["outcome"], "ok");
    assert_eq!(server.files(&id).await, [("told.txt".to_owned(), 1)]);
    assert_eq!(server.run(&id, "print('well')").await["stdout"], "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_fill_the_data_area_and_never_the_memory() {
    let settings = [("SANDBOX_MEMORY_LIMIT", "128MB")];
    let (server, id) = (Server::start_with(On::Docker, &settings).await, name("small"));
    let mut refused = None;
    for number in 0..8 {
        let answer = server.upload(&id, &format!("{number}"), &vec![7; 10_000_000]).await;
        refused = refused.or((answer.raw["isError"] == true).then(|| answer.error().to_owned()));
    }
    assert_eq!(refused.as_deref(), Some("quota_exceeded"));
    assert_eq!(server.files(&id).await.len(), 6, "64 MB of ten each");
}

#[tokio::test(flavor = "multi_thread")]
async fn code_cannot_reach_the_agent_the_network_or_the_host() {
    let server = Server::start(On::Docker).await;
    let code = r"
import ctypes, os, socket
def attempt(what, act):
    try: print(what, act())
    except Exception as error: print(what, type(error).__name__)
status = dict(line.split(':\t', 1) for line in open('/proc/self/status').read().splitlines())
print('ids', 50000 <= os.getuid() <= 59999, os.geteuid() == os.getuid(), os.getgid(), os.getgroups())
print('capabilities', {int(status[name], 16) for name in status if name.startswith('Cap')})
print('flags', status['NoNewPrivs'], status['Seccomp'])
attempt('memory', lambda: open('/proc/1/mem', 'rb'))
attempt('stream', lambda: open('/proc/1/fd/1', 'wb'))
attempt('environment', lambda: open('/proc/1/environ').read())
attempt('agent file', lambda: open('/opt/sandbox/agent', 'ab'))
attempt('kill', lambda: os.kill(1, 9))
print('trace', ctypes.CDLL(None).ptrace(16, 1, 0, 0))
attempt('root', lambda: open('/etc/new', 'w'))
attempt('interfaces', lambda: os.listdir('/sys/class/net'))
attempt('connect', lambda: socket.create_connection(('192.0.2.1', 80), 2))
attempt('name', lambda: socket.gethostbyname('example.org'))
attempt('localhost', lambda: socket.gethostbyname('localhost'))
attempt('socket', lambda: os.stat('/var/run/docker.sock'))
print('host variables', [name for name in os.environ if name.startswith('SANDBOX_')])
";
    let run = server.run(&name("contained"), code).await;
    let expected = "\
ids True True 1000 [1000]
capabilities {0}
flags 1 2
memory PermissionError
stream PermissionError
environment PermissionError
agent file PermissionError
kill None
trace -1
root OSError
interfaces ['lo']
connect OSError
name gaierror
localhost 127.0.0.1
socket FileNotFoundError
host variables []
";
    // `kill` is allowed and has no effect: the kernel protects PID 1 from signals from inside.
    assert_eq!(run["stdout"], expected, "{}", run["stderr"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_only_of_the_listed_families_types_and_protocols() {
    // The profile for kernels that count the memory of all these sockets.
    let profile = support::root().join("sandbox-image/seccomp.json");
    let profile = format!("seccomp={}", profile.display());
    let code = r"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def result(descriptor):
    if descriptor < 0: return errno.errorcode[ctypes.get_errno()]
    os.close(descriptor)
    return 'made'
numbers = range(-1, 20), range(12), [*range(-1, 20), 33, 58, 132, 136, 255, 262]
found = {}
for family in [*range(-1, 48), 255, 1 << 16]:
    for kind in range(12):
        for protocol in numbers[2]:
            # With SOCK_CLOEXEC, SOCK_NONBLOCK, both and neither.
            results = {result(libc.socket(family, kind | flags, protocol)) for flags in (0, 0x80000, 0x800, 0x80800)}
            assert len(results) == 1, (family, kind, protocol, results)
            found[family, kind, protocol] = results.pop()
print([key for key, what in found.items() if what == 'made'])
print({what for (family, _, _), what in found.items() if family not in (1, 2, 10)})
print([found[2, kind, protocol] for kind, protocol in ((1, 262), (1, 132), (2, 136), (2, 1), (3, 1), (5, 132))])
pairs = (ctypes.c_int * 2)()
print([what for what in range(48) if libc.socketpair(what, 1, 0, pairs) == 0])
print(libc.socketpair(2, 1, 0, pairs), errno.errorcode[ctypes.get_errno()])";
    let found = docker(&[
        "run",
        "--rm",
        "--network=none",
        "--cap-drop=ALL",
        "--user=50000:1000",
        "--security-opt=no-new-privileges",
        "--security-opt",
        &profile,
        "--entrypoint=python3",
        &image(),
        "-c",
        code,
    ]);
    let expected = "\
[(1, 1, 0), (1, 1, 1), (1, 2, 0), (1, 2, 1), (1, 5, 0), (1, 5, 1), (2, 1, 0), (2, 1, 6), (2, 2, 0), (2, 2, 17), \
(10, 1, 0), (10, 1, 6), (10, 2, 0), (10, 2, 17)]
{'EAFNOSUPPORT'}
['EPROTONOSUPPORT', 'EPROTONOSUPPORT', 'EPROTONOSUPPORT', 'EPERM', 'EPERM', 'EPERM']
[1]
-1 ENOTSUP";
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_memory_of_sockets_is_uncounted() {
    let server = Server::start(On::Docker).await;
    // Fills the buffers of both ends of connections to itself, and of datagrams that are not read.
    let code = r"
import errno, os, socket
def counted():
    with open('/sys/fs/cgroup/memory.current') as file: return int(file.read())
def stream(family, address):
    with socket.create_server((address, 0), family=family, backlog=64) as server:
        held = []
        for _ in range(16):
            held += [socket.create_connection(server.getsockname()[:2]), server.accept()[0]]
        for end in held:
            end.setblocking(False)
            try:
                while True: end.send(bytes(65536))
            except BlockingIOError: pass
        return held
def datagram(family, address):
    held = []
    for _ in range(64):
        held.append(socket.socket(family, socket.SOCK_DGRAM))
        held[-1].bind((address, 0))
        for _ in range(4): held[-1].sendto(bytes(32768), held[-1].getsockname())
    return held
for fill in stream, datagram:
    for family, address in (socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'):
        held = None
        try:
            before = counted() if os.path.exists('/sys/fs/cgroup/memory.current') else 0
            held = fill(family, address)
            print('uncounted' if counted() - before < 4_000_000 else 'counted')
        except OSError as error: print(errno.errorcode[error.errno])
one, other = socket.socketpair()
one.send(b'kept')
print(other.recv(4).decode())";
    let run = server.run(&name("sockets"), code).await;
    let expected = match &*docker(&["info", "--format", "{{.CgroupVersion}}"]) {
        "2" => "counted\n",
        _ => "EAFNOSUPPORT\n",
    };
    assert_eq!(run["stdout"], format!("{}kept\n", expected.repeat(4)), "{}", run["stderr"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_kernel_has_once_for_the_whole_host_is_out_of_reach() {
    let server = Server::start(On::Docker).await;
    let code = r"
import ctypes, errno, os, platform, subprocess
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
io_setup, sync = (206, 162) if x86 else (0, 81)
for call in io_setup, sync: print(libc.syscall(call, 1, ctypes.byref(ctypes.c_ulong())), errno.errorcode[ctypes.get_errno()])
print(libc.syncfs(0), errno.errorcode[ctypes.get_errno()])
# Nobody who asks for it is stopped by that, and files can still be written out.
os.sync()
with open('file', 'w') as file:
    os.fsync(file.fileno())
    os.fdatasync(file.fileno())
print(subprocess.run(['sync']).returncode, subprocess.run(['sync', 'file']).returncode)
print(os.listdir('/proc/pressure') if os.path.exists('/proc/pressure') else [])";
    let run = server.run(&name("global"), code).await;
    assert_eq!(run["stdout"], "-1 EPERM\n-1 EPERM\n-1 EPERM\n0 0\n[]\n", "{}", run["stderr"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_libraries_work_and_every_script_is_drawn() {
    let server = Server::start(On::Docker).await;
    let code = r"
import warnings
warnings.simplefilter('error')
import matplotlib.pyplot as plt, numpy as np, pandas as pd, scipy.stats, seaborn as sns
df = pd.DataFrame({'x': np.arange(10), 'y': np.arange(10) ** 2})
df.to_parquet('a.parquet'); df.to_excel('a.xlsx', index=False); df.to_csv('a.csv', index=False)
assert pd.read_parquet('a.parquet').equals(df) and pd.read_excel('a.xlsx').equals(df)
for number, style in enumerate((lambda: None, sns.set_theme)):
    style()
    fig, ax = plt.subplots()
    sns.lineplot(df, x='x', y='y', ax=ax)
    ax.set_title('売上 销售 매출 Umsätze 📈')
    fig.savefig(f'chart_{number}.png')
print(round(scipy.stats.linregress(df.x, df.y).slope))
from reportlab.platypus import Paragraph, SimpleDocTemplate
from reportlab.lib.styles import getSampleStyleSheet
SimpleDocTemplate('a.pdf').build([Paragraph('Report', getSampleStyleSheet()['Title'])])
";
    let run = server.run(&name("libraries"), code).await;
    assert_eq!((&run["stdout"], &run["stderr"]), (&json!("9\n"), &json!("")));
    let made = run["artifacts"].as_array().expect("an array").iter();
    let names: Vec<_> = made.map(|file| text(&file["filename"])).collect();
    assert_eq!(names, ["a.csv", "a.parquet", "a.pdf", "a.xlsx", "chart_0.png", "chart_1.png"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_in_the_image_gives_other_rights() {
    let server = Server::start(On::Docker).await;
    let code = r"
import os
found = []
for folder, folders, files in os.walk('/'):
    folders[:] = [f for f in folders if os.path.join(folder, f) not in ('/proc', '/sys')]
    for name in files:
        path = os.path.join(folder, name)
        if not os.path.islink(path) and os.lstat(path).st_mode & 0o6000: found.append(path)
print(found)
";
    assert_eq!(server.run(&name("setuid"), code).await["stdout"], "[]\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_dies_costs_its_session_only() {
    let server = Server::start(On::Docker).await;
    let (id, other) = (name("dies"), name("lives"));
    server.upload(&other, "a", b"1").await.ok();
    server.upload(&id, "a", b"1").await.ok();
    let code = "open('started', 'w')\nimport time; time.sleep(600)";
    let kill = async {
        until("it runs", async || server.files_if_any(&id).await.len() == 2).await;
        docker(&["kill", &containers(&id)[0]]);
    };
    let arguments = json!({ "session_id": id, "code": code });
    let (answer, ()) = tokio::join!(server.call("run_python", arguments), kill);
    assert_eq!(answer.error(), "sandbox_died");
    assert!(text(&answer.json["message"]).contains("all its files are lost"));
    let gone = server.call("list_artifacts", json!({ "session_id": id })).await;
    assert_eq!(gone.error(), "session_not_found");
    assert_eq!(server.files(&other).await, [("a".to_owned(), 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_machine_do_not_notice_each_other() {
    // Both have the same port, and clean up every 0.6 s.
    let port = support::free_port();
    let settings = [("SANDBOX_HTTP_PORT", &*port), ("SANDBOX_CLEANUP_INTERVAL_M", "0.01")];
    let first = Server::start_with(On::Docker, &settings).await;
    let id = name("first");
    first.upload(&id, "a.txt", b"1").await.ok();
    let url = first.url(&id, "a.txt").await;

    let mut second = Server::start_with(On::Docker, &settings).await;
    let other = name("second");
    second.upload(&other, "a.txt", b"2").await.ok();
    assert_eq!(
        second.call("list_artifacts", json!({ "session_id": id })).await.error(),
        "session_not_found"
    );
    assert_eq!(support::http("GET", &second.url(&other, "a.txt").await).await.body, b"2");

    second.process.start_kill().expect("killed");
    second.exit_code().await;
    until("nothing of the dead one is left", async || containers(&other).is_empty()).await;
    assert_eq!(first.files(&id).await, [("a.txt".to_owned(), 1)]);
    assert_eq!(support::http("GET", &url).await.body, b"1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_is_told_with_its_remedy() {
    let settings = [("SANDBOX_IMAGE", "llm-sandbox-no-such-image:latest")];
    let server = Server::start_with(On::Docker, &settings).await;
    let answer = server.call("run_python", json!({ "code": "print(1)" })).await;
    assert_eq!(answer.error(), "sandbox_unavailable");
    assert!(text(&answer.json["message"]).contains("llm-sandbox image build"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_without_an_agent_is_told_with_its_remedy() {
    let settings = [("SANDBOX_IMAGE", "debian:trixie-slim")];
    let (server, id) = (Server::start_with(On::Docker, &settings).await, name("no-agent"));
    let answer = server.call("run_python", json!({ "session_id": id, "code": "1" })).await;
    assert_eq!(answer.error(), "sandbox_unavailable");
    assert_eq!(containers(&id), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_not_there_is_told_and_the_server_goes_on() {
    let settings = [("DOCKER_HOST", "unix:///nonexistent/docker.sock")];
    let server = Server::start_with(On::Docker, &settings).await;
    for _ in 0..2 {
        let answer = server.call("run_python", json!({ "code": "print(1)" })).await;
        assert_eq!(answer.error(), "sandbox_unavailable");
        assert!(text(&answer.json["message"]).contains("No Docker engine answers"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_ones_own_says_which_libraries_models_are_told_of() {
    let own = Image(format!("{}:latest", name("own-image").to_lowercase()));
    let described = async || {
        let server = Server::start_with(On::Docker, &[("SANDBOX_IMAGE", &own.0)]).await;
        let listed = server.request("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().expect("an array").clone();
        let run = tools.iter().find(|tool| tool["name"] == "run_python").expect("is listed");
        text(&run["description"]).to_owned()
    };
    own.build("");
    let inherited = described().await;
    assert!(inherited.contains("Libraries: pandas, numpy, "), "{inherited}");
    let libraries = r#"{"runtimes":[{"name":"python","libraries":[{"name":"polars"}]}]}"#;
    own.build(&format!("LABEL llm-sandbox.template='{libraries}'"));
    let own_words = described().await;
    assert!(own_words.contains("Libraries: polars; "), "{own_words}");
}
