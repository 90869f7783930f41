//! Tests of the archive with stores that fail in every way, and an agent that keeps files and variables in memory.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{TryStreamExt, stream::BoxStream};
use link::{Link, LinkOwner, Opening, Stream, Timing};
use model::{DataPath, Principal, SessionRecord};
use object_store::{
    CopyOptions, Error as ObjectError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result as ObjectResult, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use protocol::{
    frame::{self, Frame, Kind, MAX_BODY, PROTOCOL_VERSION},
    message::{
        AgentHello, Carried, Empty, Export, ExportDone, FileEntry, Get, GetDone, Import,
        ImportDone, ListDone, Put, PutDone, Stamp,
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::Instant,
};

use super::{
    Archive, Lookup, Manifest, SaveError,
    manifest::{self, tests::record},
    room::Room,
    store::Store,
};

/// How a store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Every request fails.
    Down,
    /// No request ends in time.
    Slow,
    /// Writing fails.
    Full,
    /// Writing a manifest fails.
    NoManifest,
}

/// A store in memory that fails in the way that a test sets.
#[derive(Debug)]
struct Faulty {
    inner: InMemory,
    fault: Mutex<Fault>,
    requests: AtomicUsize,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

impl Faulty {
    fn new() -> Arc<Self> {
        let fault = Mutex::new(Fault::None);
        Arc::new(Self { inner: InMemory::new(), fault, requests: AtomicUsize::new(0) })
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock() = fault;
    }

    async fn ask(&self, writes: Option<&Path>) -> ObjectResult<()> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = *self.fault.lock();
        let fails = match (fault, writes) {
            (Fault::None, _) | (Fault::Full | Fault::NoManifest, None) => false,
            (Fault::Slow, _) => {
                tokio::time::sleep(Duration::from_secs(100_000)).await;
                false
            }
            (Fault::Down | Fault::Full, _) => true,
            (Fault::NoManifest, Some(path)) => path.as_ref().ends_with("/manifest"),
        };
        if fails {
            return Err(ObjectError::Generic { store: "faulty", source: "it fails".into() });
        }
        Ok(())
    }

    /// The names of all objects, sorted.
    async fn names(&self) -> Vec<String> {
        let all: Vec<_> = self.inner.list(None).try_collect().await.expect("listed");
        let mut names: Vec<_> = all.into_iter().map(|it| it.location.to_string()).collect();
        names.sort();
        names
    }

    async fn change(&self, end: &str, change: impl Fn(&mut Vec<u8>)) {
        for name in self.names().await.into_iter().filter(|name| name.ends_with(end)) {
            let path = Path::from(name);
            let bytes = self.inner.get(&path).await.expect("there").bytes().await.expect("read");
            let mut bytes = bytes.to_vec();
            change(&mut bytes);
            self.inner.put(&path, bytes.into()).await.expect("put");
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        at: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> ObjectResult<PutResult> {
        self.ask(Some(at)).await?;
        self.inner.put_opts(at, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> ObjectResult<Box<dyn MultipartUpload>> {
        self.ask(Some(at)).await?;
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> ObjectResult<GetResult> {
        self.ask(None).await?;
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, ObjectResult<Path>>,
    ) -> BoxStream<'static, ObjectResult<Path>> {
        self.inner.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, ObjectResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> ObjectResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> ObjectResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// The files and variables of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Held {
    files: BTreeMap<String, Vec<u8>>,
    variables: Vec<u8>,
}

/// Starts an agent with these files and variables. Returns the link to it, and its present files and variables.
async fn agent(held: Held) -> (Link, LinkOwner, Arc<Mutex<Held>>) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let held = Arc::new(Mutex::new(held));
    tokio::spawn(serve(theirs, held.clone()));
    let (reader, writer) = tokio::io::split(ours);
    let stream = Stream { reader: Box::new(reader), writer: Box::new(writer) };
    let (link, owner) =
        Link::connect(stream, Timing::default(), Opening::default()).await.expect("greeted");
    (link, owner, held)
}

async fn serve(stream: DuplexStream, holds: Arc<Mutex<Held>>) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut open: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    loop {
        let mut len = [0; 4];
        if reader.read_exact(&mut len).await.is_err() {
            return;
        }
        let mut bytes = len.to_vec();
        bytes.resize(4 + u32::from_le_bytes(len) as usize, 0);
        reader.read_exact(&mut bytes[4..]).await.expect("whole");
        let frame = frame::read(&mut &bytes[..]).expect("a frame").expect("one");
        let (kind, head, body) = answer(&frame, &holds, &mut open);
        let mut out = vec![];
        frame::write(&mut out, frame.call, kind, &head, &[&body]).expect("written");
        if writer.write_all(&out).await.is_err() {
            return;
        }
    }
}

fn read<T: DeserializeOwned>(frame: &Frame) -> T {
    serde_json::from_slice(&frame.head).expect("a request")
}

fn answer(
    frame: &Frame,
    holds: &Mutex<Held>,
    open: &mut BTreeMap<u32, Vec<u8>>,
) -> (Kind, Vec<u8>, Vec<u8>) {
    let json = |it: &dyn erased::Json| it.json();
    let mut holds = holds.lock();
    let stamp = |size: usize| Stamp { ino: 1, size: size as u64, mtime_ns: 5, ctime_ns: 5 };
    let carried = Carried { variables: vec!["x".into()], ..Carried::default() };
    let (head, body) = match frame.kind {
        Kind::Hello => {
            let hello =
                AgentHello { version: PROTOCOL_VERSION, max_body: MAX_BODY, max_uploads: 16 };
            return (Kind::Hello, json(&hello), vec![]);
        }
        Kind::List => {
            let entries = holds.files.iter().map(|(path, content)| FileEntry {
                path: path.clone(),
                stamp: stamp(content.len()),
            });
            let entries: Vec<_> = entries.collect();
            (json(&ListDone { more: false, cut: false }), json(&entries))
        }
        Kind::Get => {
            let get: Get = read(frame);
            let content = &holds.files[&get.path];
            let start = usize::try_from(get.offset).expect("small").min(content.len());
            let end = (start + get.len).min(content.len());
            (json(&GetDone { stamp: stamp(content.len()) }), content[start..end].to_vec())
        }
        Kind::Put => {
            let put: Put = read(frame);
            let content = open.entry(put.upload).or_default();
            content.extend_from_slice(&frame.body);
            if put.last {
                let content = open.remove(&put.upload).expect("open");
                holds.files.insert(put.path, content);
            }
            (json(&PutDone { replaced: false }), vec![])
        }
        Kind::Export => {
            let export: Export = read(frame);
            let total = holds.variables.len() as u64;
            let done = ExportDone { live: true, count: 3, total };
            let start = usize::try_from(export.offset).expect("small");
            let piece = match export.begin {
                Some(_) => json(&carried),
                None => holds.variables[start..].to_vec(),
            };
            (json(&done), piece)
        }
        Kind::Import => {
            let import: Import = read(frame);
            holds.variables.extend_from_slice(&frame.body);
            (json(&ImportDone { count: import.count }), json(&carried))
        }
        _ => (json(&Empty {}), vec![]),
    };
    (Kind::Reply, head, body)
}

mod erased {
    /// A value that can be written as JSON.
    pub(super) trait Json {
        fn json(&self) -> Vec<u8>;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> Vec<u8> {
            serde_json::to_vec(self).expect("serializes")
        }
    }
}

/// Two servers with one store.
fn servers(objects: &Arc<Faulty>) -> [Archive; 2] {
    [(); 2].map(|()| {
        let store = Store::of(objects.clone(), Duration::from_secs(2));
        Archive::new(store, None, Duration::from_secs(3600), Room::default())
    })
}

fn held() -> Held {
    let large: Vec<u8> =
        (0..3 * MAX_BODY + 17).map(|n| u8::try_from(n % 251).expect("small")).collect();
    let small = (0..40).map(|n| (format!("small/{n}.txt"), vec![n; usize::from(n)]));
    let mut files: BTreeMap<_, _> = small.collect();
    files.insert("large.bin".into(), large);
    files.insert("empty".into(), vec![]);
    Held { files, variables: b"pickled".to_vec() }
}

/// The runs of a session, as bytes.
const RUNS: &[u8] = b"runs";

async fn save(archive: &Archive, who: &SessionRecord, held: Held) -> Result<u64, SaveError> {
    let (link, _owner, _) = agent(held).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut save = archive.save(who.clone(), deadline).await?;
    let written = async {
        save.files(&link).await?;
        save.variables(&link).await?;
        save.runs(RUNS.into()).await
    }
    .await;
    match written {
        Ok(()) => save.commit().await,
        Err(error) => {
            save.give_up().await;
            Err(error)
        }
    }
}

async fn found(archive: &Archive, who: &SessionRecord) -> Manifest {
    match archive.find(&who.caller, &who.session).await {
        Lookup::Found(found) => *found,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_saved_comes_back_on_another_server_and_to_nobody_else() {
    let objects = Faulty::new();
    let ([one, other], who) = (servers(&objects), record("reports"));
    save(&one, &who, held()).await.expect("saved");
    let manifest = found(&other, &who).await;
    let (link, _owner, new) = agent(Held::default()).await;
    let brought = other.restore(&who.key(), &manifest, &link).await.expect("restored");
    assert_eq!(*new.lock(), held());
    assert_eq!((brought.files, brought.files_lost), (held().files.len(), 0));
    assert_eq!(brought.variables.expect("some").variables, ["x"]);
    assert_eq!(other.runs(&who.key(), &manifest, 4).await.as_deref(), Some(RUNS));
    assert_eq!(other.runs(&who.key(), &manifest, 3).await, None, "they are too large");
    let somebody = Principal::named("somebody").expect("a name");
    assert!(matches!(other.find(&somebody, &who.session).await, Lookup::None));
    let another = "another".parse().expect("a name");
    assert!(matches!(other.find(&who.caller, &another).await, Lookup::None));
    for name in objects.names().await {
        assert!(!name.contains("reports") && !name.contains("local"), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_save_takes_the_place_of_the_one_before_and_leaves_nothing_of_it() {
    let objects = Faulty::new();
    let ([one, other], who) = (servers(&objects), record("reports"));
    save(&one, &who, held()).await.expect("saved");
    let before = objects.names().await.len();
    let first = found(&one, &who).await;
    save(&other, &who, held()).await.expect("saved");
    assert_ne!(found(&one, &who).await.generation, first.generation);
    // Without a secret in a file, each server has its own name for the URL.
    assert_eq!(objects.names().await.len(), before + 1);
    assert!(other.forget(&who.caller, &who.session).await.expect("forgotten"));
    assert!(!other.forget(&who.caller, &who.session).await.expect("nothing there"));
    assert!(objects.names().await.iter().all(|name| name.contains("/urls/")));
}

#[tokio::test(start_paused = true)]
async fn of_two_saves_at_once_one_is_there_whole() {
    for _ in 0..10 {
        let objects = Faulty::new();
        let ([one, other], who) = (servers(&objects), record("reports"));
        let mut two = held();
        two.files.insert("large.bin".into(), vec![1; 5000]);
        let (a, b) = tokio::join!(save(&one, &who, held()), save(&other, &who, two.clone()));
        assert!(a.is_ok() && b.is_ok());
        let manifest = found(&one, &who).await;
        let (link, _owner, new) = agent(Held::default()).await;
        let brought = one.restore(&who.key(), &manifest, &link).await.expect("restored");
        assert_eq!(brought.files_lost, 0);
        let new = new.lock().clone();
        assert!(new == held() || new == two);
    }
}

#[tokio::test(start_paused = true)]
async fn a_save_that_fails_leaves_what_was_there_before() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    save(&one, &who, held()).await.expect("saved");
    let (first, names) = (found(&one, &who).await, objects.names().await);
    for fault in [Fault::Down, Fault::Slow, Fault::Full, Fault::NoManifest] {
        objects.set(fault);
        assert!(
            save(&one, &who, Held::default()).await.is_err() || fault == Fault::None,
            "{fault:?}"
        );
        objects.set(Fault::None);
        assert_eq!(found(&one, &who).await, first, "{fault:?}");
        assert_eq!(objects.names().await, names, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_archive_that_cannot_be_reached_says_so_in_time_and_is_left_alone() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    save(&one, &who, held()).await.expect("saved");
    let manifest = found(&one, &who).await;
    for fault in [Fault::Down, Fault::Slow] {
        objects.set(fault);
        let begun = Instant::now();
        assert!(matches!(one.find(&who.caller, &who.session).await, Lookup::Unreachable));
        let (link, _owner, new) = agent(Held::default()).await;
        let brought = one.restore(&who.key(), &manifest, &link).await.expect("a sandbox is there");
        assert!(brought.unreachable && brought.files == 0 && new.lock().files.is_empty());
        assert!(one.forget(&who.caller, &who.session).await.is_err());
        assert!(begun.elapsed() < Duration::from_secs(60));
        objects.set(Fault::None);
        assert_eq!(found(&one, &who).await, manifest);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_damaged_is_left_out_and_counted_and_the_rest_comes_back() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    let expected = held();
    let total: usize = expected.files.values().map(Vec::len).sum();
    for (at, cut) in
        [(0, false), (total - 1, false), (total / 2, false), (total / 2, true), (0, true)]
    {
        save(&one, &who, held()).await.expect("saved");
        objects
            .change("/files", |bytes| if cut { bytes.truncate(at) } else { bytes[at] ^= 1 })
            .await;
        let manifest = found(&one, &who).await;
        let (link, _owner, new) = agent(Held::default()).await;
        let brought = one.restore(&who.key(), &manifest, &link).await.expect("restored");
        assert!(brought.files_lost > 0 && !brought.unreachable, "{at} {cut}: {brought:?}");
        for (path, content) in &new.lock().files {
            assert!(content == &expected.files[path], "{path} is not what was saved");
        }
        assert_eq!(new.lock().files.len(), brought.files);
    }
}

#[tokio::test(start_paused = true)]
async fn variables_that_are_not_what_was_saved_never_reach_a_sandbox() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    for change in [
        (|bytes: &mut Vec<u8>| bytes.truncate(2)) as fn(&mut Vec<u8>),
        |bytes| bytes[0] ^= 1,
        |bytes| bytes.push(0),
    ] {
        save(&one, &who, held()).await.expect("saved");
        objects.change("/variables", change).await;
        let manifest = found(&one, &who).await;
        let (link, _owner, new) = agent(Held::default()).await;
        let brought = one.restore(&who.key(), &manifest, &link).await.expect("restored");
        let is_longer = new.lock().variables == held().variables;
        assert!(brought.variables_damaged || is_longer);
        assert!(new.lock().variables.is_empty() || is_longer);
        assert_eq!(brought.files_lost, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_missing_and_manifests_that_are_torn_are_damage() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    save(&one, &who, held()).await.expect("saved");
    let manifest = found(&one, &who).await;
    for what in ["files", "variables"] {
        one.store().delete(&manifest.object(&who.key(), what)).await.expect("deleted");
    }
    let (link, _owner, new) = agent(Held::default()).await;
    let brought = one.restore(&who.key(), &manifest, &link).await.expect("restored");
    assert!(brought.variables_damaged && brought.files == 0 && new.lock().files.is_empty());
    objects.change("/manifest", |bytes| bytes.truncate(bytes.len() / 2)).await;
    assert!(matches!(one.find(&who.caller, &who.session).await, Lookup::Damaged));
    // A damaged session can still be forgotten.
    assert!(one.forget(&who.caller, &who.session).await.expect("forgotten"));
    assert!(matches!(one.find(&who.caller, &who.session).await, Lookup::None));
}

#[tokio::test(start_paused = true)]
async fn a_manifest_in_the_place_of_another_is_not_taken_for_it() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    let other =
        SessionRecord { caller: Principal::named("somebody").expect("a name"), ..who.clone() };
    save(&one, &other, held()).await.expect("saved");
    let theirs = one.store().get(&manifest::name(&other.key()), 1 << 20).await.expect("there");
    one.store().put(&manifest::name(&who.key()), theirs.to_vec()).await.expect("put");
    assert!(matches!(one.find(&who.caller, &who.session).await, Lookup::Damaged));
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_for_a_session_that_is_being_saved_waits_for_it() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    let saving = one.begin_saving(&who);
    let archive = one.clone();
    let (caller, session) = (who.caller.clone(), who.session.clone());
    let finding = tokio::spawn(async move { archive.find(&caller, &session).await });
    tokio::task::yield_now().await;
    assert!(!finding.is_finished());
    save(&one, &who, held()).await.expect("saved");
    assert!(!finding.is_finished());
    drop(saving);
    assert!(matches!(finding.await.expect("ended"), Lookup::Found(_)));
}

#[tokio::test(start_paused = true)]
async fn files_are_read_where_they_are_and_never_shorter_than_they_were() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    save(&one, &who, held()).await.expect("saved");
    let manifest = one.find_by_number(&who.session, who.number).await.expect("by its URL");
    assert!(one.find_by_number(&who.session, who.number + 1).await.is_none());
    let path = DataPath::relative("large.bin").expect("valid");
    let file = || one.file(&who.key(), &manifest, &path).expect("there");
    let content = &held().files["large.bin"];
    for range in [0..content.len() as u64, 5..6, 1_000_000..2_100_000, 3..3] {
        let pieces: Vec<Bytes> = file().range(range.clone()).try_collect().await.expect("read");
        let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).expect("small"));
        assert_eq!(pieces.concat(), content[start..end]);
    }
    objects.change("/files", |bytes| bytes.truncate(100_000)).await;
    let read: Result<Vec<_>, _> = file().range(0..content.len() as u64).try_collect().await;
    assert!(read.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_forgets_what_is_over_and_what_a_save_has_left_and_nothing_else() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    save(&one, &who, held()).await.expect("saved");
    let now = jiff::Timestamp::now().as_second();
    let names = objects.names().await;
    assert_eq!(one.sweep(now + 3000).await.expect("swept"), 0);
    assert_eq!(objects.names().await, names);
    // Objects of an interrupted save.
    let orphan = manifest::object_name(&who.key(), &"f".repeat(32), "files");
    one.store().put(&orphan, vec![1]).await.expect("put");
    let key = model::SessionKey::of(&who.caller, &"gone".parse().expect("a name"));
    let alone = manifest::object_name(&key, &"f".repeat(32), "files");
    one.store().put(&alone, vec![1]).await.expect("put");
    let kept =
        Archive::new(one.store().clone(), None, Duration::from_secs(1_000_000), Room::default());
    assert_eq!(kept.sweep(now + 3700).await.expect("swept"), 1);
    assert_eq!(objects.names().await, names);
    assert_eq!(one.sweep(now + 3700).await.expect("swept"), 1);
    assert_eq!(objects.names().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_check_writes_reads_and_deletes() {
    let objects = Faulty::new();
    let [one, _] = servers(&objects);
    one.check().await.expect("it works");
    assert!(objects.names().await.is_empty());
    for fault in [Fault::Down, Fault::Slow, Fault::Full] {
        objects.set(fault);
        assert!(one.check().await.is_err(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_costs_one_request() {
    let objects = Faulty::new();
    let ([one, _], who) = (servers(&objects), record("reports"));
    assert!(matches!(one.find(&who.caller, &who.session).await, Lookup::None));
    assert_eq!(objects.requests.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn one_caller_has_only_so_much_room_and_its_oldest_sessions_make_room_for_newer_ones() {
    let objects = Faulty::new();
    let store = || Store::of(objects.clone(), Duration::from_secs(2));
    let room = Room { of_caller: Some(25_000), free: 0 };
    let hour = Duration::from_secs(3600);
    let archive = Archive::new(store(), None, hour, room);
    let files = |bytes: usize| Held {
        files: BTreeMap::from([("a".to_owned(), vec![1; bytes])]),
        variables: vec![],
    };
    let is_there = async |archive: &Archive, who: &SessionRecord| {
        matches!(archive.find(&who.caller, &who.session).await, Lookup::Found(_))
    };
    let [one, two, three] = ["one", "two", "three"].map(record);
    let other =
        SessionRecord { caller: Principal::named("another").expect("a name"), ..record("one") };
    for who in [&other, &one, &two] {
        save(&archive, who, files(10_000)).await.expect("saved");
    }
    assert!(is_there(&archive, &one).await && is_there(&archive, &two).await);
    // Another server finds the sessions, and which is the oldest, by its own sweep.
    let archive = Archive::new(store(), None, hour, room);
    archive.sweep(jiff::Timestamp::now().as_second()).await.expect("swept");
    archive.0.usage.lock().0.get_mut(&one.key()).expect("counted").saved_at -= 10;
    save(&archive, &three, files(10_000)).await.expect("saved");
    let there = [&one, &two, &three, &other];
    let there = [
        is_there(&archive, there[0]).await,
        is_there(&archive, there[1]).await,
        is_there(&archive, there[2]).await,
        is_there(&archive, there[3]).await,
    ];
    assert_eq!(there, [false, true, true, true]);
    let error = save(&archive, &three, files(30_000)).await.expect_err("it is too large");
    assert!(matches!(error, SaveError::TooLarge { .. }), "{error}");
    assert!(is_there(&archive, &two).await && is_there(&archive, &three).await);
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_no_session_and_who_comes_back_hears_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&folder.path().display().to_string()).expect("a folder");
    let hour = Duration::from_secs(3600);
    let roomy = Archive::new(store.clone(), None, hour, Room::default());
    let full = Archive::new(store, None, hour, Room { of_caller: None, free: u64::MAX });
    let who = record("reports");
    let small = || Held { files: BTreeMap::from([("a".to_owned(), vec![1])]), variables: vec![] };
    save(&roomy, &who, small()).await.expect("saved");
    assert!(!found(&roomy, &who).await.is_outdated);
    let error = save(&full, &who, small()).await.expect_err("there is no room");
    assert!(matches!(error, SaveError::DiskFull { .. }), "{error}");
    full.mark_failed(&who).await;
    assert!(found(&roomy, &who).await.is_outdated);
    save(&roomy, &who, small()).await.expect("saved");
    assert!(!found(&roomy, &who).await.is_outdated, "it is the last one again");
}
