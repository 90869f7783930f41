//! Sessions whose sandboxes are saved on disk, on plain processes: calls while a session ends, and the numbers that its
//! URLs are bound to.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use backend::{
    Abilities, Backend, BackendError, ListedSandbox, Sandbox, SavesSandboxes, Spec, Template,
    local::Local,
};
use config::{Config, server_key::ServerKey};
use futures::{FutureExt, future::BoxFuture};
use llm_sandbox::{
    archive::Archive,
    sessions::{List, Options, Sessions},
};
use model::{OwnSettings, Principal, SessionId, SessionKey};
use support::until;
use tokio::time::sleep;

/// How long the end of each sandbox takes: a call of the test fits into it.
const ENDS_IN: Duration = Duration::from_millis(500);

/// Plain processes that are taken for saved as soon as they have started. They resume from nothing.
#[derive(Debug)]
struct Saving {
    processes: Local,
    folder: Arc<Folder>,
}

/// The saved sandboxes: whether there is a state, and the record.
#[derive(Debug, Default)]
struct Folder(Mutex<HashMap<SessionKey, (bool, Option<String>)>>);

impl Folder {
    fn at<T>(&self, key: &SessionKey, look: impl FnOnce(&mut (bool, Option<String>)) -> T) -> T {
        look(self.0.lock().expect("no test panics within").entry(key.clone()).or_default())
    }
}

impl Backend for Saving {
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        async {
            let key = spec.saved_as.clone();
            let mut sandbox = self.processes.start(spec).await?;
            if let Some(key) = key {
                self.folder.at(&key, |it| it.0 = true);
            }
            let gone = sandbox.gone;
            sandbox.gone = async move {
                gone.await;
                sleep(ENDS_IN).await;
            }
            .boxed()
            .shared();
            Ok(sandbox)
        }
        .boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>> {
        self.processes.list()
    }

    fn remove(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        self.processes.remove(id)
    }

    fn template(&self) -> BoxFuture<'_, Option<Template>> {
        self.processes.template()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        self.processes.ready()
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { saved: Some(&*self.folder), ..Abilities::default() }
    }
}

impl SavesSandboxes for Folder {
    fn has(&self, key: &SessionKey) -> bool {
        self.at(key, |it| it.0)
    }

    fn path(&self, _: &SessionKey) -> PathBuf {
        PathBuf::from("/nowhere")
    }

    fn forget(&self, key: &SessionKey) {
        self.at(key, |it| *it = (false, None));
    }

    fn store_record(&self, key: &SessionKey, text: &str) {
        self.at(key, |it| it.1 = Some(text.to_owned()));
    }

    fn record(&self, key: &SessionKey) -> Option<String> {
        self.at(key, |it| it.1.clone())
    }

    fn records(&self) -> Vec<String> {
        let all = self.0.lock().expect("no test panics within");
        all.values().filter_map(|(_, record)| record.clone()).collect()
    }
}

fn config() -> Config {
    Config { preload: None, pool_size: 0, ..Config::default() }
}

/// A server whose sandboxes are saved in this folder.
fn server(folder: &Arc<Folder>, config: Config, options: Options) -> Sessions {
    let processes = Local::new().expect("a backend");
    Sessions::new(config, Arc::new(Saving { processes, folder: folder.clone() }), options)
}

fn id(name: &str) -> SessionId {
    name.parse().expect("a valid name")
}

fn lives_for(ttl: Duration) -> OwnSettings {
    OwnSettings { ttl: Some(ttl), ..OwnSettings::default() }
}

/// How a session ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Closed,
    Expired,
}

/// Begins to end the session of this name. Returns when its name is free, and the task that ends it.
async fn begin_to_end(
    sessions: &Sessions,
    id: &SessionId,
    end: End,
) -> tokio::task::JoinHandle<()> {
    let (closes, it) = (sessions.clone(), id.clone());
    let ending = tokio::spawn(async move {
        if matches!(end, End::Closed) {
            closes.close(&it).await.expect("closed");
        }
    });
    until("its name is free", async || sessions.names().is_empty()).await;
    ending
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_while_a_session_ends_begins_with_nothing_of_it_and_loses_nothing_of_its_own() {
    for end in [End::Closed, End::Expired] {
        let folder = Arc::<Folder>::default();
        let sessions = server(&folder, config(), Options::default());
        let (id, first) = (id("n"), lives_for(Duration::from_secs(1)));
        let key = SessionKey::of(sessions.caller(), &id);
        sessions.create(Some(id.clone()), first).await.expect("created");

        let ending = begin_to_end(&sessions, &id, end).await;
        let looked = sessions.perform(&id, List).await.expect_err("there is no session");
        assert_eq!(looked.code(), "session_not_found", "{end:?}");
        ending.await.expect("ended");
        let own = lives_for(Duration::from_secs(600));
        sessions.create(Some(id.clone()), own.clone()).await.expect("created");

        let ending = begin_to_end(&sessions, &id, End::Closed).await;
        let short = lives_for(Duration::from_secs(1));
        sessions.create(Some(id.clone()), short).await.expect("with limits of its own");
        ending.await.expect("closed");

        let ending = begin_to_end(&sessions, &id, end).await;
        let (opened, there) = sessions.ensure(id.clone()).await;
        there.expect("started");
        assert!(opened.is_new, "{end:?}: {opened:?}");
        ending.await.expect("ended");
        assert!(folder.record(&key).is_some(), "{end:?}: the new session is recorded");
        assert!(sessions.host().shutdown().await);

        let next = server(&folder, config(), Options::default());
        let (opened, there) = next.ensure(id.clone()).await;
        there.expect("started");
        assert!(!opened.is_new, "{end:?}: it goes on");
        assert!(next.host().shutdown().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_while_a_restored_session_is_closed_does_not_restore_it_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let archive = Some(dir.path().display().to_string());
    let config = Config { archive, min_free: 0, ..config() };
    let archive = Archive::of(&config).expect("a folder");
    let sessions = server(&Arc::default(), config, Options { archive, ..Options::default() });
    let id = id("n");
    sessions.create(Some(id.clone()), lives_for(Duration::from_secs(1))).await.expect("created");
    let upload = llm_sandbox::sessions::Upload {
        path: model::DataPath::relative("a.txt").expect("a valid name"),
        content: b"old".to_vec().into(),
        existing: model::Existing::Keep,
    };
    sessions.perform(&id, upload).await.expect("uploaded");
    begin_to_end(&sessions, &id, End::Expired).await;
    let restored = sessions.perform(&id, List).await.expect("restored");
    assert_eq!(restored.artifacts.len(), 1);

    let ending = begin_to_end(&sessions, &id, End::Closed).await;
    let own = lives_for(Duration::from_secs(600));
    sessions.create(Some(id.clone()), own).await.expect("created");
    let empty = sessions.perform(&id, List).await.expect("listed");
    assert_eq!(empty.artifacts.len(), 0);
    ending.await.expect("closed");
    assert!(sessions.host().shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_names_one_session_only_whoever_recorded_it() {
    let [ann, bob] = ["ann", "bob"].map(|name| Principal::named(name).expect("a valid name"));
    let id = id("x");
    let keys = [&ann, &bob].map(|who| SessionKey::of(who, &id));
    let nameless =
        r#"{"session":"x","workspace":null,"own":{"memory":null,"ttl":null},"begun_s":1700000000}"#;
    for of_earlier_version in [false, true] {
        let folder = Arc::<Folder>::default();
        // Two servers without a key: each counts its sessions from the same number.
        for who in [&ann, &bob] {
            let sessions = server(&folder, config(), Options::default());
            sessions.seen_by(who.clone()).ensure(id.clone()).await.1.expect("started");
            assert!(sessions.host().shutdown().await);
        }
        if of_earlier_version {
            for key in &keys {
                folder.store_record(key, nameless);
            }
        }
        let key = ServerKey::random();
        let with_key = || {
            let config = Config { server_key: Some(key.clone()), ..config() };
            server(&folder, config, Options::default())
        };
        // One after another: neither sees that the other's number is in use.
        let mut numbers = vec![];
        for who in [&ann, &bob] {
            let sessions = with_key();
            let own = sessions.seen_by(who.clone());
            own.awake(&id).await.expect("woken");
            numbers.push(own.get(&id).expect("live").number());
            assert!(sessions.host().shutdown().await);
        }
        assert_ne!(numbers[0], numbers[1]);

        // The numbers are those of later servers with the key, too.
        let sessions = with_key();
        for (who, number) in [(&ann, numbers[0]), (&bob, numbers[1])] {
            let own = sessions.seen_by(who.clone());
            own.only(number).perform(&id, List).await.expect("its number");
            assert_eq!(own.get(&id).map(|it| it.number()), Some(number));
        }
        assert!(sessions.host().shutdown().await);

        // If a session is closed, its number names no session.
        let sessions = with_key();
        let hers = sessions.seen_by(ann.clone());
        hers.close(&id).await.expect("closed");
        for who in [&ann, &bob] {
            let only = sessions.seen_by(who.clone()).only(numbers[0]);
            let gone = only.perform(&id, List).await.expect_err("there is no such session");
            assert_eq!(gone.code(), "session_not_found");
        }
        assert!(sessions.host().shutdown().await);
    }
}
