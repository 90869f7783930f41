//! A Kubernetes API server in this process, with the components behind it: a kubelet whose containers are plain agents,
//! and a garbage collector. It behaves like a real one as far as this project's server can tell; a test can make it
//! behave like a real one in trouble.
//!
//! The API has pods, their exec, Leases and reviews of the client's own rights: create, get, list, watch, patch and
//! delete, with versions, selectors, bookmarks, preconditions and grace periods.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::{Response, StatusCode, header},
};
use futures::{
    FutureExt, SinkExt, StreamExt,
    future::{self, BoxFuture, Shared},
    stream,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    process::{Child, Command},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};
use tokio_util::sync::CancellationToken;

use super::{On, Server, binary_beside, root};

/// The namespace of all objects.
pub const NAMESPACE: &str = "sandboxes";

/// The delay until the garbage collector removes orphans.
const COLLECTION: Duration = Duration::from_millis(50);

/// The time that a container takes to start, and that a kubelet takes to notice the end of one.
const KUBELET: Duration = Duration::from_millis(30);

/// The interval between two bookmarks.
const BOOKMARKS: Duration = Duration::from_millis(200);

/// A cluster of one test, or one that tests share.
pub struct Cluster {
    pub url: String,
    pub kubeconfig: PathBuf,
    fake: Arc<Fake>,
    _folder: tempfile::TempDir,
}

/// The agent of a pod, with one stream.
pub struct Agent {
    pub id: String,
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Resolves when the agent has ended.
    pub gone: Shared<BoxFuture<'static, ()>>,
}

/// Starts an agent, or connects another stream to the agent with this id.
pub type Agents = Arc<dyn Fn(Option<String>) -> BoxFuture<'static, Agent> + Send + Sync>;

/// The fate of new pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Behaviour {
    #[default]
    Runs,
    /// The container waits for this reason.
    Waits(&'static str),
    /// No node has room for the pod.
    Unschedulable,
    /// The container ends as soon as it has started, for this reason.
    Ends(&'static str),
    /// The pod never gets a status.
    Silent,
}

/// The trouble that a request meets instead of its answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Trouble {
    /// The answer is this status and message.
    Status(u16, String),
    /// The request is neither carried out nor answered.
    Ignored,
    /// The request is carried out and never answered.
    Swallowed,
    /// The request is answered after this time.
    Late(Duration),
}

struct Fault {
    verb: &'static str,
    resource: &'static str,
    trouble: Trouble,
    times: usize,
}

struct Fake {
    state: Mutex<State>,
    /// The newest version, and how often all watches were ended.
    changed: watch::Sender<(u64, u64)>,
    agents: Agents,
}

#[derive(Default)]
struct State {
    version: u64,
    /// The version up to which the history is forgotten.
    compacted: u64,
    objects: BTreeMap<(String, String), Value>,
    history: Vec<Change>,
    faults: Vec<Fault>,
    behaviour: Behaviour,
    /// Ends the streams of a pod.
    streams: HashMap<String, CancellationToken>,
    /// The agents of pods: their ids, and tokens that end them.
    agents: HashMap<String, (String, CancellationToken)>,
    /// Verbs and resources that the API denies.
    denied: Vec<(String, String)>,
    max_pods: Option<usize>,
    only_v4: bool,
    requests: Vec<String>,
}

struct Change {
    version: u64,
    resource: String,
    kind: &'static str,
    object: Value,
}

/// The object or collection that a request is for.
struct Target {
    resource: &'static str,
    name: Option<String>,
    below: Option<String>,
}

impl Cluster {
    /// The cluster that all tests of this program share which need no trouble.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts a new cluster. It ends with the program.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().to_owned();
        Self::start_in(folder, Arc::new(move |known| future::ready(process(&below, known)).boxed()))
    }

    /// Starts a new cluster with these agents.
    pub fn start_with(agents: Agents) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), agents)
    }

    fn start_in(folder: tempfile::TempDir, agents: Agents) -> Self {
        let fake =
            Arc::new(Fake { state: Mutex::default(), changed: watch::Sender::default(), agents });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("set");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let served = fake.clone();
        // The cluster has a runtime of its own: a test's runtime ends with the test, and the shared cluster outlives
        // it.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let handler = move |request| served.clone().answer(request);
                let _ = axum::serve(listener, Router::new().fallback(handler)).await;
            });
        });
        let kubeconfig = folder.path().join("config");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{ "name": "fake", "cluster": { "server": url } }],
            "users": [{ "name": "fake", "user": {} }],
            "contexts": [{
                "name": "fake", "context": { "cluster": "fake", "user": "fake", "namespace": NAMESPACE },
            }],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("written");
        Self { url, kubeconfig, fake, _folder: folder }
    }

    /// A server over stdio whose sandboxes are pods of this cluster.
    pub async fn server(&self, settings: &[(&str, &str)]) -> Server {
        let kubeconfig = self.kubeconfig.display().to_string();
        let settings = [&[("KUBECONFIG", &*kubeconfig)][..], settings].concat();
        Server::start_with(On::Kubernetes, &settings).await
    }

    /// All objects of a resource, such as `pods`.
    pub fn all(&self, resource: &str) -> Vec<Value> {
        let state = self.fake.state.lock().unwrap();
        let all = state.objects.iter().filter(|((kind, _), _)| kind == resource);
        all.map(|(_, object)| object.clone()).collect()
    }

    /// Names of all objects of a resource.
    pub fn names(&self, resource: &str) -> Vec<String> {
        self.all(resource)
            .iter()
            .map(|it| super::text(&it["metadata"]["name"]).to_owned())
            .collect()
    }

    /// Waits until the resource has `count` objects.
    pub async fn until(&self, resource: &str, count: usize) {
        let what = format!("{count} {resource}");
        super::until(&what, async || self.all(resource).len() == count).await;
    }

    /// Adds an object as another client would, and returns its uid.
    pub fn add(&self, resource: &'static str, object: Value) -> String {
        let made = self.fake.put(resource, object, "ADDED");
        super::text(&made["metadata"]["uid"]).to_owned()
    }

    /// Changes an object as another client would.
    pub fn change(&self, resource: &'static str, object: Value) {
        self.fake.put(resource, object, "MODIFIED");
    }

    /// Releases the callers whose home is at this address, as if their server were considered dead.
    pub fn forsake(&self, address: &str) {
        for mut lease in self.all("leases") {
            if lease["metadata"]["annotations"]["llm-sandbox/address"] == address {
                lease["spec"]["holderIdentity"] = "".into();
                self.fake.put("leases", lease, "MODIFIED");
            }
        }
    }

    /// Sets the fate of new pods from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        self.fake.state.lock().unwrap().behaviour = behaviour;
    }

    /// Sets the trouble that the next `times` requests of this kind meet.
    pub fn trouble(
        &self,
        verb: &'static str,
        resource: &'static str,
        trouble: Trouble,
        times: usize,
    ) {
        let fault = Fault { verb, resource, trouble, times };
        self.fake.state.lock().unwrap().faults.push(fault);
    }

    /// Ends all trouble: removes faults and the quota, and lets new pods run.
    pub fn recover(&self) {
        let mut state = self.fake.state.lock().unwrap();
        state.faults.clear();
        state.behaviour = Behaviour::Runs;
        state.max_pods = None;
    }

    /// Denies this verb on this resource.
    pub fn deny(&self, verb: &str, resource: &str) {
        self.fake.state.lock().unwrap().denied.push((verb.into(), resource.into()));
    }

    /// Sets a quota of pods.
    pub fn allow_pods(&self, count: usize) {
        self.fake.state.lock().unwrap().max_pods = Some(count);
    }

    /// Makes the cluster one of an older version, which supports only v4 of the channel protocol.
    pub fn speak_v4(&self) {
        self.fake.state.lock().unwrap().only_v4 = true;
    }

    /// Forgets the history and ends all watches, which have to list again.
    pub fn forget_history(&self) {
        {
            let mut state = self.fake.state.lock().unwrap();
            state.version += 1;
            state.compacted = state.version;
            state.history.clear();
        }
        self.fake.changed.send_modify(|(_, epoch)| *epoch += 1);
    }

    /// Evicts a pod, as a node that is short of memory does.
    pub fn evict(&self, pod: &str) {
        let status = json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." });
        self.fake.set_status(pod, status);
        self.fake.end_agent(pod);
    }

    /// Breaks the streams to a pod, as an API server that restarts does.
    pub fn cut(&self, pod: &str) {
        self.fake.end_streams(pod);
    }

    /// Deletes an object as another client would.
    pub fn delete(&self, resource: &'static str, name: &str) {
        Fake::remove(&self.fake, resource, name);
    }

    /// Makes all Leases overdue: their last renewal was in 2020.
    pub fn age_leases(&self) {
        for mut lease in self.all("leases") {
            lease["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z".into();
            self.fake.put("leases", lease, "MODIFIED");
        }
    }

    /// The requests so far, as verb and resource.
    pub fn requests(&self) -> Vec<String> {
        self.fake.state.lock().unwrap().requests.clone()
    }
}

fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    reply(code, &status)
}

fn reply(code: u16, json: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(json.to_string()))
        .expect("a response")
}

fn target(path: &str) -> Option<Target> {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let (resource, rest) = match &parts[..] {
        ["api", "v1", "namespaces", NAMESPACE, "pods", rest @ ..] => ("pods", rest),
        ["apis", "coordination.k8s.io", "v1", "namespaces", NAMESPACE, "leases", rest @ ..] => {
            ("leases", rest)
        }
        ["apis", "apps", "v1", "namespaces", NAMESPACE, "replicasets", rest @ ..] => {
            ("replicasets", rest)
        }
        ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] => ("reviews", &[][..]),
        ["version"] => ("version", &[][..]),
        _ => return None,
    };
    let at = |n: usize| rest.get(n).map(|part: &&str| (*part).to_owned());
    Some(Target { resource, name: at(0), below: at(1) })
}

impl Fake {
    async fn answer(self: Arc<Self>, request: Request) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path().to_owned();
        let Some(target) = target(&path) else {
            let namespace = path.split('/').skip_while(|part| *part != "namespaces").nth(1);
            let message = format!("namespaces \"{}\" not found", namespace.unwrap_or(&path));
            return Ok(status(404, "NotFound", &message));
        };
        let query: HashMap<String, String> =
            form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let is_watch = query.get("watch").is_some_and(|it| it == "true" || it == "1");
        let verb = match (request.method().as_str(), &target.name) {
            _ if target.below.is_some() => "exec",
            ("GET", None) if is_watch => "watch",
            ("GET", None) => "list",
            ("GET", Some(_)) => "get",
            ("POST", _) => "create",
            ("PATCH", _) => "patch",
            ("DELETE", _) => "delete",
            _ => return Ok(status(405, "MethodNotAllowed", "no such verb")),
        };
        let trouble = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(format!("{verb} {}", target.resource));
            let denied = (verb.to_owned(), target.resource.to_owned());
            if state.denied.contains(&denied) {
                let message = format!(
                    "{} is forbidden: User \"fake\" cannot {verb} resource",
                    target.resource
                );
                return Ok(status(403, "Forbidden", &message));
            }
            let mut faults = state.faults.iter_mut();
            let fault =
                faults.find(|it| it.verb == verb && it.resource == target.resource && it.times > 0);
            fault.map(|fault| {
                fault.times -= 1;
                fault.trouble.clone()
            })
        };
        match trouble {
            Some(Trouble::Status(code, message)) => return Ok(status(code, "", &message)),
            Some(Trouble::Ignored) => return std::future::pending().await,
            Some(Trouble::Swallowed) => {
                self.carry_out(verb, target, query, request).await;
                return std::future::pending().await;
            }
            Some(Trouble::Late(after)) => sleep(after).await,
            None => {}
        }
        Ok(self.carry_out(verb, target, query, request).await)
    }

    async fn carry_out(
        self: Arc<Self>,
        verb: &str,
        target: Target,
        query: HashMap<String, String>,
        request: Request,
    ) -> Response<Body> {
        let Target { resource, name, .. } = target;
        if resource == "version" {
            return reply(
                200,
                &json!({
                    "major": "1", "minor": "33", "gitVersion": "v1.33.0-fake", "gitCommit": "", "gitTreeState": "",
                    "buildDate": "", "goVersion": "", "compiler": "", "platform": "linux/amd64",
                }),
            );
        }
        if verb == "exec" {
            return self.exec(&name.expect("of a pod"), request);
        }
        let (_, body) = request.into_parts();
        let body = if verb == "watch" {
            Vec::new()
        } else {
            to_bytes(body, 1 << 20).await.expect("a body").into()
        };
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let name = name.unwrap_or_default();
        let selector = query.get("labelSelector").cloned().unwrap_or_default();
        match verb {
            "create" if resource == "reviews" => self.review(body),
            "create" => self.create(resource, body, query.contains_key("dryRun")),
            "list" => {
                let state = self.state.lock().unwrap();
                let items = state.objects.iter().filter(|((kind, _), _)| kind == resource);
                let number = |name: &str| query.get(name).and_then(|it| it.parse().ok());
                let (from, limit) = (number("continue").unwrap_or(0), number("limit"));
                let mut items: Vec<_> = items
                    .map(|(_, it)| it)
                    .filter(|it| is_selected(it, &selector))
                    .skip(from)
                    .collect();
                let mut metadata = json!({ "resourceVersion": state.version.to_string() });
                if let Some(limit) = limit.filter(|limit| (1..items.len()).contains(limit)) {
                    items.truncate(limit);
                    metadata["continue"] = (from + limit).to_string().into();
                }
                reply(
                    200,
                    &json!({
                        "kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items,
                    }),
                )
            }
            "watch" => self.watch(resource, selector, &query),
            "get" => self
                .get(resource, &name)
                .map_or_else(|| not_found(resource, &name), |it| reply(200, &it)),
            "patch" => self.patch(resource, &name, &body),
            _ => self.delete(resource, &name, &body),
        }
    }

    fn get(&self, resource: &str, name: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(&(resource.into(), name.into())).cloned()
    }

    /// Writes an object with a new version, and notifies the watches.
    fn put(&self, resource: &str, mut object: Value, kind: &'static str) -> Value {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        let version = state.version;
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = uuid::Uuid::new_v4().to_string().into();
            metadata["namespace"] = NAMESPACE.into();
            metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        metadata["resourceVersion"] = version.to_string().into();
        let key = (resource.to_owned(), super::text(&metadata["name"]).to_owned());
        if kind == "DELETED" {
            state.objects.remove(&key);
        } else {
            state.objects.insert(key, object.clone());
        }
        state.history.push(Change {
            version,
            resource: resource.into(),
            kind,
            object: object.clone(),
        });
        drop(state);
        self.changed.send_modify(|(newest, _)| *newest = version.max(*newest));
        object
    }

    fn review(&self, mut review: Value) -> Response<Body> {
        let asked = &review["spec"]["resourceAttributes"];
        let verb = match asked["subresource"].as_str() {
            Some(below) => below.to_owned(),
            None => super::text(&asked["verb"]).to_owned(),
        };
        let denied = (verb, super::text(&asked["resource"]).to_owned());
        let allowed = !self.state.lock().unwrap().denied.contains(&denied);
        review["status"] = json!({ "allowed": allowed });
        reply(201, &review)
    }

    fn create(
        self: &Arc<Self>,
        resource: &'static str,
        object: Value,
        is_dry: bool,
    ) -> Response<Body> {
        let name = super::text(&object["metadata"]["name"]).to_owned();
        if self.get(resource, &name).is_some() {
            return status(409, "AlreadyExists", &format!("{resource} \"{name}\" already exists"));
        }
        if resource == "pods" {
            let used = self
                .state
                .lock()
                .unwrap()
                .objects
                .keys()
                .filter(|(kind, _)| kind == "pods")
                .count();
            let max = self.state.lock().unwrap().max_pods;
            if let Some(why) = refuses(&object["spec"], used, max) {
                return status(403, "Forbidden", &format!("pods \"{name}\" is forbidden: {why}"));
            }
        }
        if is_dry {
            return reply(201, &object);
        }
        let object = self.put(resource, object, "ADDED");
        if resource == "pods" {
            tokio::spawn(self.clone().kubelet(name.clone()));
        }
        self.collect_later();
        reply(201, &object)
    }

    fn patch(&self, resource: &str, name: &str, patch: &Value) -> Response<Body> {
        let Some(mut object) = self.get(resource, name) else { return not_found(resource, name) };
        let wanted = &patch["metadata"]["resourceVersion"];
        if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
            return status(409, "Conflict", "the object has been modified");
        }
        merge(&mut object, patch);
        reply(200, &self.put(resource, object, "MODIFIED"))
    }

    fn delete(
        self: &Arc<Self>,
        resource: &'static str,
        name: &str,
        options: &Value,
    ) -> Response<Body> {
        let Some(mut object) = self.get(resource, name) else { return not_found(resource, name) };
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return status(409, "Conflict", "Precondition failed");
            }
        }
        let grace = options["gracePeriodSeconds"]
            .as_u64()
            .or(object["spec"]["terminationGracePeriodSeconds"].as_u64());
        if resource == "pods" && grace != Some(0) {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z".into();
            let object = self.put(resource, object, "MODIFIED");
            let (fake, name) = (self.clone(), name.to_owned());
            tokio::spawn(async move {
                sleep(KUBELET).await;
                Self::remove(&fake, resource, &name);
            });
            return reply(200, &object);
        }
        Self::remove(self, resource, name);
        reply(200, &object)
    }

    /// Removes an object at once, and soon after it the objects that it owns.
    fn remove(self: &Arc<Self>, resource: &'static str, name: &str) {
        let Some(object) = self.get(resource, name) else { return };
        self.put(resource, object, "DELETED");
        if resource == "pods" {
            self.end_agent(name);
        }
        self.collect_later();
    }

    /// Removes the objects whose owners no longer exist, after a delay.
    fn collect_later(self: &Arc<Self>) {
        let fake = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(COLLECTION);
            let orphans: Vec<_> = {
                let state = fake.state.lock().unwrap();
                let is_there = |owner: &Value| {
                    state.objects.values().any(|it| it["metadata"]["uid"] == owner["uid"])
                };
                let all = state.objects.iter().filter(|(_, object)| {
                    let owners = object["metadata"]["ownerReferences"].as_array();
                    owners.is_some_and(|owners| !owners.is_empty() && !owners.iter().any(is_there))
                });
                all.map(|(key, _)| key.clone()).collect()
            };
            for (resource, name) in orphans {
                let resource = if resource == "pods" { "pods" } else { "leases" };
                Self::remove(&fake, resource, &name);
            }
        });
    }

    fn watch(
        self: Arc<Self>,
        resource: &'static str,
        selector: String,
        query: &HashMap<String, String>,
    ) -> Response<Body> {
        let from: u64 = query.get("resourceVersion").and_then(|it| it.parse().ok()).unwrap_or(0);
        let seconds = query.get("timeoutSeconds").and_then(|it| it.parse().ok()).unwrap_or(300);
        let until = tokio::time::Instant::now() + Duration::from_secs(seconds);
        let wants_bookmarks = query.contains_key("allowWatchBookmarks");
        let changed = self.changed.subscribe();
        let epoch = changed.borrow().1;
        let state = (self, changed, from, false);
        let events = stream::unfold(state, move |(fake, mut changed, from, over)| {
            let selector = selector.clone();
            async move {
                if over {
                    return None;
                }
                loop {
                    let (lines, newest, is_lost) = {
                        let state = fake.state.lock().unwrap();
                        // The changes are in the order of their versions.
                        let first = state.history.partition_point(|it| it.version <= from);
                        let new = state.history[first..].iter();
                        let new = new.filter(|it| it.resource == resource);
                        let new = new.filter(|it| is_selected(&it.object, &selector));
                        let lines: String = new.map(|it| line(it.kind, &it.object)).collect();
                        (lines, state.version, from < state.compacted)
                    };
                    if is_lost {
                        let gone = json!({
                            "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired",
                            "message": "too old resource version", "metadata": {},
                        });
                        return Some((line("ERROR", &gone), (fake, changed, from, true)));
                    }
                    if !lines.is_empty() {
                        return Some((lines, (fake, changed, newest, false)));
                    }
                    if changed.borrow_and_update().1 != epoch
                        || tokio::time::Instant::now() >= until
                    {
                        return None;
                    }
                    if timeout(BOOKMARKS, changed.changed()).await.is_err() && wants_bookmarks {
                        let mark = json!({
                            "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": newest.to_string() },
                        });
                        return Some((line("BOOKMARK", &mark), (fake, changed, newest, false)));
                    }
                }
            }
        });
        let body = Body::from_stream(events.map(Ok::<_, Infallible>));
        Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .expect("a response")
    }

    /// Sets the status of a new pod as a node does.
    async fn kubelet(self: Arc<Self>, pod: String) {
        let behaviour = self.state.lock().unwrap().behaviour.clone();
        if behaviour == Behaviour::Silent {
            return;
        }
        if behaviour == Behaviour::Unschedulable {
            let condition = json!({
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 Insufficient memory.",
            });
            return self.set_status(&pod, json!({ "phase": "Pending", "conditions": [condition] }));
        }
        self.set_status(
            &pod,
            container("Pending", json!({ "waiting": { "reason": "ContainerCreating" } })),
        );
        sleep(KUBELET).await;
        match behaviour {
            Behaviour::Waits(reason) => {
                let waiting = json!({ "waiting": { "reason": reason, "message": "so it says" } });
                self.set_status(&pod, container("Pending", waiting));
            }
            Behaviour::Ends(reason) => {
                let ended = json!({ "terminated": { "exitCode": 1, "reason": reason } });
                self.set_status(&pod, container("Failed", ended));
            }
            _ => self.set_status(&pod, container("Running", json!({ "running": {} }))),
        }
    }

    fn set_status(&self, pod: &str, status: Value) {
        let Some(mut object) = self.get("pods", pod) else { return };
        object["status"] = status;
        self.put("pods", object, "MODIFIED");
    }

    fn end_streams(&self, pod: &str) {
        if let Some(streams) = self.state.lock().unwrap().streams.remove(pod) {
            streams.cancel();
        }
    }

    /// Starts PID 1 of a pod; the first stream belongs to it.
    async fn start_agent(self: &Arc<Self>, pod: &str) -> Agent {
        let agent = (self.agents)(None).await;
        let (ended, gone) = (CancellationToken::new(), agent.gone.clone());
        let known = (agent.id.clone(), ended.clone());
        self.state.lock().unwrap().agents.insert(pod.to_owned(), known);
        let (fake, pod) = (self.clone(), pod.to_owned());
        tokio::spawn(async move {
            // The agent was killed with its pod, which no longer exists.
            if ended.run_until_cancelled(gone).await.is_none() {
                return;
            }
            // The kubelet notices.
            sleep(KUBELET).await;
            let is_running =
                fake.get("pods", &pod).is_some_and(|it| it["status"]["phase"] == "Running");
            if is_running {
                let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed" } });
                fake.set_status(&pod, container("Succeeded", ended));
            }
        });
        agent
    }

    /// Kills PID 1 of a pod.
    fn end_agent(&self, pod: &str) {
        if let Some((_, ended)) = self.state.lock().unwrap().agents.remove(pod) {
            ended.cancel();
        }
        self.end_streams(pod);
    }

    /// Runs an agent in a pod, with its streams on a websocket.
    fn exec(self: Arc<Self>, pod: &str, mut request: Request) -> Response<Body> {
        let is_running = self.get("pods", pod).is_some_and(|it| it["status"]["phase"] == "Running");
        if !is_running {
            return status(500, "InternalError", "container not found (\"agent\")");
        }
        let header =
            |name| request.headers().get(name).and_then(|it| it.to_str().ok()).unwrap_or_default();
        let protocols = header(header::SEC_WEBSOCKET_PROTOCOL).to_owned();
        let key = derive_accept_key(header(header::SEC_WEBSOCKET_KEY).as_bytes());
        let only_v4 = self.state.lock().unwrap().only_v4;
        let is_v5 = !only_v4 && protocols.contains("v5.channel.k8s.io");
        let protocol = if is_v5 { "v5.channel.k8s.io" } else { "v4.channel.k8s.io" };
        let upgraded = hyper::upgrade::on(&mut request);
        let ended = CancellationToken::new();
        let pod = pod.to_owned();
        let streams = &mut self.state.lock().unwrap().streams;
        let ended = streams.entry(pod.clone()).or_insert(ended).clone();
        let fake = self.clone();
        tokio::spawn(async move {
            let Ok(upgraded) = upgraded.await else { return };
            let socket =
                WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            let known = fake.state.lock().unwrap().agents.get(&pod).cloned();
            let agent = match known {
                Some((agent, _)) => (fake.agents)(Some(agent)).await,
                None => fake.start_agent(&pod).await,
            };
            ended.run_until_cancelled(bridge(socket, agent, is_v5)).await;
        });
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::UPGRADE, "websocket")
            .header(header::CONNECTION, "Upgrade")
            .header(header::SEC_WEBSOCKET_ACCEPT, key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, protocol)
            .body(Body::empty())
            .expect("a response")
    }
}

/// A process of a pod, with the pod's folder if it is the agent.
struct Process {
    child: Child,
    own: PathBuf,
}

impl Drop for Process {
    /// Kills the agent's children first: interpreters that it has stopped would never end otherwise.
    fn drop(&mut self) {
        if let Some(pid) = self.child.id() {
            let children = ["-KILL", "-P", &pid.to_string()];
            let _ = std::process::Command::new("pkill").args(children).status();
        }
        let _ = std::fs::remove_dir_all(&self.own);
    }
}

/// Starts an agent as a plain process in a new folder below `below`, or connects to a known one. Its id is its process
/// id.
fn process(below: &Path, known: Option<String>) -> Agent {
    let own = below.join(uuid::Uuid::new_v4().simple().to_string());
    let mut command = Command::new(binary_beside("agent"));
    match &known {
        Some(agent) => command.args(["--connect", agent]).env_clear(),
        None => serving(&mut command, &own),
    };
    // The agent may outlive this process, so it must not keep this process's standard error open.
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = pipes.kill_on_drop(true).spawn().expect("an agent starts");
    let reader = Box::new(child.stdout.take().expect("piped"));
    let writer = Box::new(child.stdin.take().expect("piped"));
    let pid = child.id().expect("it runs").to_string();
    let process = Process { child, own };
    let ended = async {
        let mut process = process;
        let _ = process.child.wait().await;
    };
    let gone = if known.is_some() {
        // This process is only the stream.
        tokio::spawn(ended);
        future::pending().boxed()
    } else {
        ended.boxed()
    };
    Agent { id: known.unwrap_or(pid), reader, writer, gone: gone.shared() }
}

/// Sets the arguments and the environment of an agent that serves in this folder.
fn serving<'a>(command: &'a mut Command, own: &Path) -> &'a mut Command {
    let [data, scratch, packages] = ["data", "scratch", "packages"].map(|name| own.join(name));
    let (runtimes, bin) = (root().join("sandbox-image/runtimes"), own.join("bin"));
    for folder in [&data, &scratch, &packages, &bin] {
        std::fs::create_dir_all(folder).expect("made");
    }
    std::os::unix::fs::symlink(binary_beside("agent"), bin.join("tool")).expect("made");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path)));
    let modules = std::env::join_paths([&packages, &runtimes.join("python/modules")]);
    // Above all programs, as in the image.
    std::os::unix::fs::symlink(packages.join("node_modules"), own.join("node_modules"))
        .expect("made");
    command
        .args([&data, &scratch, &runtimes, &packages])
        .env_clear()
        .env("PATH", path.expect("no colons"))
        .env("HOME", scratch.join("home"))
        .env("LANG", "C.UTF-8")
        .env("PYTHONPATH", modules.expect("no colons"))
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Copies both directions between a websocket and an agent until one of them ends.
async fn bridge(
    socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
    agent: Agent,
    is_v5: bool,
) {
    let Agent { mut reader, writer, gone, .. } = agent;
    let (mut sink, mut stream) = socket.split();
    let input = async {
        let mut writer = Some(writer);
        while let Some(Ok(message)) = stream.next().await {
            match message {
                Message::Binary(bytes) if bytes.first() == Some(&0) => {
                    let Some(writer) = &mut writer else { continue };
                    if writer.write_all(&bytes[1..]).await.is_err() || writer.flush().await.is_err()
                    {
                        break;
                    }
                }
                Message::Binary(bytes) if is_v5 && bytes[..] == [255, 0] => writer = None,
                Message::Close(_) => break,
                _ => {}
            }
        }
    };
    let output = async {
        // A real API server sends these before anything else.
        for channel in 1..=3 {
            let _ = sink.send(Message::binary(vec![channel])).await;
        }
        let mut buffer = vec![0; 32 << 10];
        loop {
            match reader.read(&mut buffer[1..]).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    buffer[0] = 1;
                    if sink.send(Message::binary(buffer[..=count].to_vec())).await.is_err() {
                        return;
                    }
                }
            }
        }
        let status = json!({ "metadata": {}, "status": "Success" }).to_string();
        let _ = sink.send(Message::binary([&[3], status.as_bytes()].concat())).await;
        let _ = sink.close().await;
    };
    // When the input is closed, the agent ends, and its output with it.
    let both = async { tokio::join!(input, output) };
    tokio::select! { _ = both => {}, () = gone => {} }
}

fn container(phase: &str, state: Value) -> Value {
    json!({
        "phase": phase,
        "containerStatuses": [{
            "name": "agent", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
        }],
    })
}

fn not_found(resource: &str, name: &str) -> Response<Body> {
    status(404, "NotFound", &format!("{resource} \"{name}\" not found"))
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// Whether an object matches all terms of a selector such as `a=b,c,d!=e`.
fn is_selected(object: &Value, selector: &str) -> bool {
    let labels = &object["metadata"]["labels"];
    selector.split(',').filter(|it| !it.is_empty()).all(|term| match term.split_once('=') {
        Some((key, value)) if key.ends_with('!') => labels[&key[..key.len() - 1]] != value,
        Some((key, value)) => labels[key] == value,
        None => !labels[term].is_null(),
    })
}

/// The reason why the cluster refuses a pod: its quota, an unknown runtime class, or Pod Security at the level
/// `restricted`.
fn refuses(spec: &Value, used: usize, max: Option<usize>) -> Option<String> {
    if max.is_some_and(|max| used >= max) {
        return Some(format!(
            "exceeded quota: sandboxes, requested: pods=1, used: pods={used}, limited: pods={used}"
        ));
    }
    let class = &spec["runtimeClassName"];
    if !class.is_null() && class != "gvisor" {
        return Some(format!("pod rejected: RuntimeClass {class} not found"));
    }
    let (pod, container) = (&spec["securityContext"], &spec["containers"][0]["securityContext"]);
    let kinds = spec["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_restricted = pod["runAsNonRoot"] == true
        && pod["runAsUser"] != 0
        && ["RuntimeDefault", "Localhost"]
            .iter()
            .any(|kind| pod["seccompProfile"]["type"] == *kind)
        && container["allowPrivilegeEscalation"] == false
        && container["privileged"] != true
        && container["capabilities"] == json!({ "drop": ["ALL"] })
        && ["hostNetwork", "hostPID", "hostIPC"].iter().all(|field| spec[field] != true)
        && kinds.iter().all(|volume| volume.get("emptyDir").is_some());
    (!is_restricted).then(|| "violates PodSecurity \"restricted:latest\"".into())
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return *target = patch.clone() };
    for (key, value) in fields {
        merge(&mut target[key], value);
    }
}
