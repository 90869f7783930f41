//! The costs of sessions on Kubernetes for servers and the API server, measured with the real program, an API server in
//! this process, and agents in memory that cost nothing.
//!
//! ```sh
//! cargo test --release --all-features --test inside scale    # what is promised, with few sessions
//! TEST_SCALE=2000 cargo test --release --all-features --test inside scale -- --nocapture    # docs/scale.md
//! ```

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use backend::{Backend, Sandbox, Spec};
use bytes::Bytes;
use config::Config;
use config::server_key::ServerKey;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use llm_sandbox::peers::Proof;
use serde_json::{Value, json};
use support::{
    On, free_port,
    kubernetes::{Agent, Cluster},
    text,
    web::{MODERN, Web},
};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::double::{Cast, id};

/// The number of calls at a time, in steps that do not measure it.
const AT_ONCE: usize = 16;

/// The number of calls for a median.
const CALLS: usize = 2000;

/// The numbers of pods and callers of other servers, which these servers know.
const OTHERS: (usize, usize) = (10_000, 5_000);

/// A server, and a client that keeps its connections.
struct Server {
    web: Web,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// The resources that a process has used so far: bytes of memory, seconds of processor time.
#[derive(Debug, Clone, Copy)]
struct Usage {
    memory: f64,
    cpu: f64,
}

impl Server {
    async fn start(cluster: &Cluster, folder: &tempfile::TempDir) -> Self {
        let kubeconfig = cluster.kubeconfig.display().to_string();
        let key = support::key_in(folder.path());
        let peers = format!("127.0.0.1:{}", free_port());
        let settings = [
            ("SANDBOX_ENGINE", "kubernetes"),
            ("KUBECONFIG", &kubeconfig),
            ("SANDBOX_KEY_FILE", &key),
            ("SANDBOX_AUTH_TOKENS", "alice:a-token,bob:b-token"),
            ("SANDBOX_PEER_ADDRESS", &peers),
            ("SANDBOX_MAX_SESSIONS", "10000"),
            ("SANDBOX_PRELOAD", "none"),
        ];
        let web = Web::start(On::Kubernetes, &settings).await;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { web, client: Client::builder(TokioExecutor::new()).build(connector) }
    }

    /// Runs a program; returns how long that took.
    async fn run(&self, token: &str, session: &str) -> Duration {
        let arguments = json!({ "session_id": session, "code": "print('honest')" });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "run_python", "arguments": arguments,
            "_meta": { "io.modelcontextprotocol/protocolVersion": MODERN,
                       "io.modelcontextprotocol/clientCapabilities": {} },
        }});
        let request = Request::post(format!("{}/mcp", self.web.base))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", MODERN)
            .header("mcp-method", "tools/call")
            .header("mcp-name", "run_python")
            .body(Full::from(message.to_string()))
            .expect("a request");
        let begun = Instant::now();
        let response = self.client.request(request).await.expect("an answer");
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.expect("whole").to_bytes();
        let took = begun.elapsed();
        let said = String::from_utf8_lossy(&body);
        assert!(said.contains("honest"), "{said}");
        took
    }

    /// Runs a program in each of these sessions.
    async fn run_all(&self, token: &str, sessions: &[String]) {
        let all = stream::iter(sessions).for_each_concurrent(AT_ONCE, async |session| {
            self.run(token, session).await;
        });
        all.await;
    }

    fn usage(&self) -> Usage {
        let pid = self.web.process.id().expect("it runs");
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("Linux");
        let status = read("status");
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        let kib: f64 = memory.trim().trim_end_matches(" kB").parse().expect("a number");
        let stat = read("stat");
        let fields: Vec<_> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
        let ticks = |n: usize| fields[n].parse::<f64>().expect("a number");
        Usage { memory: kib * 1024.0, cpu: (ticks(11) + ticks(12)) / 100.0 }
    }
}

/// A cluster whose agents are in memory.
fn hollow() -> Cluster {
    let cast = Cast::default();
    Cluster::start_with(Arc::new(move |_| {
        let cast = cast.clone();
        Box::pin(async move {
            let spec = Spec::new(&Config::default(), &id("fake"), &model::OwnSettings::default());
            let Sandbox { id, reader, writer, gone } = cast.start(spec).await.expect("it starts");
            Agent { id, reader, writer, gone }
        })
    }))
}

/// The number of requests of each kind since the last call.
fn asked(cluster: &Cluster, before: &mut usize) -> BTreeMap<String, usize> {
    let requests = cluster.requests();
    let mut counts = BTreeMap::new();
    for request in &requests[*before..] {
        *counts.entry(request.clone()).or_default() += 1;
    }
    *before = requests.len();
    counts
}

fn names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{what}-{n}")).collect()
}

async fn close(server: &Server, token: &str, sessions: &[String]) {
    let caller = server.web.caller(Some(token));
    for session in sessions {
        caller.call("close_session", json!({ "session_id": session })).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_costs_the_api_server_four_requests_and_its_calls_none() {
    const SESSIONS: usize = 30;
    let (cluster, folder) = (hollow(), tempfile::tempdir().expect("a folder"));
    let a = Server::start(&cluster, &folder).await;
    let b = Server::start(&cluster, &folder).await;
    // After these calls, both servers have made their Leases, and the caller has a home.
    a.run_all("a-token", &names("first", 1)).await;
    b.run_all("b-token", &names("first", 1)).await;
    let (sessions, mut before) = (names("counted", SESSIONS), 0);
    asked(&cluster, &mut before);
    b.run_all("a-token", &sessions).await;
    for _ in 0..3 {
        a.run_all("a-token", &sessions).await;
        b.run_all("a-token", &sessions).await;
    }
    close(&b, "a-token", &sessions).await;
    cluster.until("pods", 2).await;
    let asked = asked(&cluster, &mut before);
    // Before a server deletes a pod, it checks whose pod it is by then.
    for kind in ["create pods", "exec pods", "get pods", "delete pods"] {
        assert_eq!(asked.get(kind), Some(&SESSIONS), "{kind} in {asked:?}");
    }
    for kind in ["patch pods", "create leases", "get leases"] {
        assert_eq!(asked.get(kind), None, "{kind} in {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_so_many_sessions_cost() {
    let Some(sessions) = std::env::var("TEST_SCALE").ok() else {
        return println!("skipped: TEST_SCALE=2000 measures so many sessions");
    };
    let sessions = names("scale", sessions.parse().expect("a number"));
    let count = float(sessions.len());
    let (cluster, folder) = (hollow(), tempfile::tempdir().expect("a folder"));
    let a = Server::start(&cluster, &folder).await;
    let b = Server::start(&cluster, &folder).await;
    a.run_all("a-token", &sessions[..1]).await;
    let mut before = 0;
    asked(&cluster, &mut before);

    let (idle, begun) = (a.usage(), Instant::now());
    a.run_all("a-token", &sessions[1..]).await;
    let (took, full) = (begun.elapsed().as_secs_f64(), a.usage());
    println!("sessions                       {count}");
    println!("  memory of a server, idle     {:.1} MB", idle.memory / 1e6);
    println!("  memory of a session          {:.1} kB", (full.memory - idle.memory) / count / 1e3);
    println!(
        "  starts                       {:.0} a second, {:.2} ms of a processor each",
        count / took,
        (full.cpu - idle.cpu) / count * 1e3
    );
    println!("  requests                     {:?}", asked(&cluster, &mut before));

    // Alternately, so that the load of the machine is the same for both.
    a.run("a-token", &sessions[0]).await;
    b.run("a-token", &sessions[0]).await;
    let (mut direct, mut forwarded) = (vec![], vec![]);
    for n in 0..CALLS {
        let session = &sessions[n % sessions.len()];
        direct.push(a.run("a-token", session).await);
        forwarded.push(b.run("a-token", session).await);
    }
    let (direct, forwarded) = (median(direct), median(forwarded));
    println!(
        "a call                         {direct:.2} ms, through another server {forwarded:.2} ms"
    );
    for (what, through) in [("at home", &a), ("elsewhere", &b)] {
        let (at, by, begun) = (a.usage(), b.usage(), Instant::now());
        let calls: Vec<_> = sessions.iter().cycle().take(CALLS * 2).cloned().collect();
        through.run_all("a-token", &calls).await;
        let took = begun.elapsed().as_secs_f64();
        let each = |now: Usage, then: Usage| (now.cpu - then.cpu) / float(calls.len()) * 1e3;
        println!(
            "calls that come {what:<15}{:.0} a second, {:.3} ms of a processor where they are answered, {:.3} ms where passed on",
            float(calls.len()) / took,
            each(a.usage(), at),
            each(b.usage(), by),
        );
    }

    asked(&cluster, &mut before);
    let (then, waited) = (a.usage(), Duration::from_secs(30));
    tokio::time::sleep(waited).await;
    let cpu = (a.usage().cpu - then.cpu) / waited.as_secs_f64();
    println!(
        "all of them idle               {:.1} % of a processor, requests in {} s: {:?}",
        cpu * 100.0,
        waited.as_secs(),
        asked(&cluster, &mut before)
    );

    // Now the cluster has many pods and callers of another server.
    let (pods, callers) = OTHERS;
    let (then, begun) = ((a.usage(), b.usage()), Instant::now());
    let cluster = Arc::new(cluster);
    let _others = add_others(&cluster, &folder, pods, callers).await;
    let c = Server::start(&cluster, &folder).await;
    c.run("b-token", "first-of-bob").await;
    println!("beside {pods} pods and {callers} callers");
    println!(
        "  a new server answers after   {:.0} ms, and has {:.1} MB",
        begun.elapsed().as_secs_f64() * 1e3,
        c.usage().memory / 1e6
    );
    tokio::time::sleep(waited).await;
    let b = b.usage();
    println!("  memory that a server takes   {:.1} MB", (b.memory - then.1.memory) / 1e6);
    asked(&cluster, &mut before);
    let idle = c.usage();
    tokio::time::sleep(waited).await;
    let cpu = (c.usage().cpu - idle.cpu) / waited.as_secs_f64();
    println!(
        "  a server idle                {:.1} % of a processor, requests of three in {} s: {:?}",
        cpu * 100.0,
        waited.as_secs(),
        asked(&cluster, &mut before)
    );
}

/// Adds pods and callers of another server, which exist until the returned handles are dropped.
async fn add_others(
    cluster: &Arc<Cluster>,
    folder: &tempfile::TempDir,
    pods: usize,
    callers: usize,
) -> [AbortOnDropHandle<()>; 2] {
    let name = "llm-sandbox-another";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let secret = ServerKey::from_file(&folder.path().join("key")).expect("a key");
    let proof = Proof::of(&secret);
    let listening = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = proof.accept(&mut stream, name).await;
        }
    });
    let mut lease = cluster
        .all("leases")
        .into_iter()
        .find(|it| it["metadata"]["labels"]["llm-sandbox.owner"].is_string())
        .expect("one");
    let another = |object: &mut Value, name: String| {
        object["metadata"]["name"] = name.into();
        object["metadata"]["uid"] = Value::Null;
    };
    lease["metadata"]["labels"]["llm-sandbox.owner"] = name.into();
    lease["spec"]["holderIdentity"] = name.into();
    another(&mut lease, name.into());
    cluster.add("leases", lease.clone());
    let renewed = cluster.clone();
    let renewing = tokio::spawn(async move {
        loop {
            lease["spec"]["renewTime"] = jiff::Timestamp::now().to_string().into();
            renewed.change("leases", lease.clone());
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let all = cluster.all("leases");
    let mut home =
        all.into_iter().find(|it| text(&it["metadata"]["name"]).contains("-caller-")).expect("one");
    home["spec"]["holderIdentity"] = name.into();
    home["metadata"]["annotations"]["llm-sandbox/address"] = address.into();
    home["metadata"]["ownerReferences"] = json!([]);
    for n in 0..callers {
        let key = format!("{n:032x}");
        home["metadata"]["labels"]["llm-sandbox.caller"] = key.clone().into();
        another(&mut home, format!("llm-sandbox-caller-{key}"));
        cluster.add("leases", home.clone());
    }
    let mut pod = cluster.all("pods").remove(0);
    pod["metadata"]["labels"]["llm-sandbox.owner"] = name.into();
    pod["metadata"]["ownerReferences"] = json!([]);
    for n in 0..pods {
        pod["metadata"]["labels"]["llm-sandbox.caller"] = format!("{:032x}", n % callers).into();
        another(&mut pod, format!("another-{n}"));
        cluster.add("pods", pod.clone());
    }
    [AbortOnDropHandle::new(listening), AbortOnDropHandle::new(renewing)]
}

fn float(count: usize) -> f64 {
    u32::try_from(count).expect("few enough").into()
}

/// The median in milliseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}
