//! Uploads in pieces, from senders of any kind: they end correctly, and delay no other request.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use backend::local::Local;
use bytes::Bytes;
use config::Config;
use futures::{StreamExt, stream};
use llm_sandbox::{
    content::Content,
    error::{Error, Result},
    sessions::{List, Open, Options, Sessions, Upload, Uploaded},
};
use model::{DataPath, Existing, SessionId};
use protocol::{
    frame::Kind,
    message::{Abandon, Put},
};
use tokio::task::JoinSet;

use crate::double::{self, Agent, Cast, id, run, soon, until, upload, use_all_of};

fn local() -> Sessions {
    Sessions::new(Config::default(), Arc::new(Local::new().unwrap()), Options::default())
}

async fn send(
    sessions: &Sessions,
    session: &SessionId,
    name: &str,
    content: Content,
    overwrite: bool,
) -> Result<Uploaded> {
    let path = DataPath::relative(name).unwrap();
    let existing = Existing::overwritten_if(overwrite);
    soon(sessions.perform_or_create(Some(session.clone()), Upload { path, content, existing }))
        .await
        .1
}

/// `count` pieces of a thousand bytes, followed by `then`.
fn pieces(
    count: usize,
    then: impl futures::Stream<Item = Result<Bytes>> + Send + 'static,
) -> Content {
    let pieces = (0..count).map(|n| Ok(vec![u8::try_from(n % 251).unwrap(); 1000].into()));
    Content::new(stream::iter(pieces).chain(then))
}

fn stops() -> impl futures::Stream<Item = Result<Bytes>> + Send + 'static {
    let why = Error::UploadTooLarge { size_bytes: 2, limit: 1 };
    stream::iter([Err(why)])
}

async fn names(sessions: &Sessions, session: &SessionId) -> Vec<(String, u64)> {
    let listing = soon(sessions.perform(session, List)).await.unwrap();
    let name = |file: model::Artifact| (file.path.to_string(), file.size_bytes);
    listing.artifacts.into_iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_comes_in_pieces_is_written_as_a_whole() {
    let sessions = local();
    let session: SessionId = "uploads".parse().unwrap();
    for (overwrite, replaced) in [(false, false), (true, true)] {
        let done = send(&sessions, &session, "a", pieces(2500, stream::empty()), overwrite).await;
        assert_eq!(done.unwrap(), Uploaded { size_bytes: 2_500_000, replaced });
    }
    let refused = send(&sessions, &session, "a", pieces(2500, stream::pending()), false).await;
    assert_eq!(refused.unwrap_err().code(), "file_exists", "before the last piece");
    let path = DataPath::relative("a").unwrap();
    let bytes = soon(sessions.perform(&session, Open { path: path.into() }).await.unwrap().read())
        .await
        .unwrap();
    let whole: Vec<u8> = (0..2500).flat_map(|n| [u8::try_from(n % 251).unwrap(); 1000]).collect();
    assert!(bytes == whole);
    let done = send(&sessions, &session, "empty", pieces(0, stream::empty()), false).await;
    assert_eq!(done.unwrap(), Uploaded { size_bytes: 0, replaced: false });
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_sender_stops_leaves_nothing() {
    let sessions = local();
    let session: SessionId = "uploads".parse().unwrap();
    // More uploads than can be open: each must free its place.
    for n in 0..40 {
        let content = pieces(if n % 2 == 0 { 1 } else { 300 }, stops());
        let done = send(&sessions, &session, "a", content, true).await;
        assert_eq!(done.unwrap_err().code(), "upload_too_large");
    }
    assert_eq!(names(&sessions, &session).await, []);
    send(&sessions, &session, "a", pieces(300, stream::empty()), false).await.unwrap();
    assert_eq!(names(&sessions, &session).await, [("a".to_owned(), 300_000)]);
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_told_of_an_upload_that_ends_early_if_it_knows_of_it() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let cast = Cast::default().with("abandoned", move |mut agent: Agent| {
        let count = count.clone();
        async move {
            agent.hello().await;
            let mut open = None;
            while let Some(asked) = agent.asked().await {
                match asked.kind {
                    Kind::Put => {
                        let put: Put = serde_json::from_slice(&asked.head).unwrap();
                        open = Some(put.upload);
                    }
                    Kind::Abandon => {
                        let abandon: Abandon = serde_json::from_slice(&asked.head).unwrap();
                        assert_eq!(open.take(), Some(abandon.upload));
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    _ => {}
                }
                agent.honestly(&asked).await;
            }
        }
    });
    let sessions = cast.sessions(1);
    let session = id("abandoned");
    for (size, expected) in [(1, 0), (300, 1)] {
        let done = send(&sessions, &session, "a", pieces(size, stops()), true).await;
        assert_eq!(done.unwrap_err().code(), "upload_too_large");
        assert_eq!(told.load(Ordering::SeqCst), expected, "before its sender hears");
    }
    use_all_of(&sessions, "abandoned").await;
    soon(sessions.host().shutdown()).await;
}

/// Begins more uploads than can be open; none of them ever ends.
fn endless(sessions: &Sessions, session: &SessionId) -> JoinSet<Result<Uploaded>> {
    let mut uploads = JoinSet::new();
    for n in 0..40 {
        let (sessions, session) = (sessions.clone(), session.clone());
        uploads.spawn(async move {
            let content = pieces(if n % 4 == 0 { 0 } else { 300 }, stream::pending());
            send(&sessions, &session, &format!("slow-{n}"), content, true).await
        });
    }
    uploads
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_uploads_hold_up_nothing_else() {
    // The number of open uploads, counted by the agent.
    let open = Arc::new(AtomicUsize::new(0));
    let count = open.clone();
    let cast = Cast::default().with("slow", move |mut agent: Agent| {
        let count = count.clone();
        async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                if asked.kind == Kind::Put {
                    let put: Put = serde_json::from_slice(&asked.head).unwrap();
                    let is_new = put.offset == 0 && put.path.starts_with("slow");
                    count.fetch_add(is_new.into(), Ordering::SeqCst);
                }
                agent.honestly(&asked).await;
            }
        }
    });
    let sessions = cast.sessions(1);
    let session = id("slow");
    let mut uploads = endless(&sessions, &session);
    until("many are open", || open.load(Ordering::SeqCst) == 16).await;
    run(&sessions, "slow").await.unwrap();
    assert_eq!(soon(sessions.perform(&session, List)).await.unwrap().artifacts.len(), 1);
    double::open(&sessions, "slow").await.unwrap();
    // A small upload that is complete at once does not wait for the slow ones.
    send(&sessions, &session, "small", vec![1; 1000].into(), true).await.unwrap();
    assert_eq!(open.load(Ordering::SeqCst), 16, "and no more than that");
    soon(sessions.close(&session)).await.unwrap();
    while let Some(done) = soon(uploads.join_next()).await {
        assert_eq!(done.unwrap().unwrap_err().code(), "session_not_found");
    }
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_uploads_are_seen_by_no_program_and_stop_none() {
    let sessions = local();
    let session: SessionId = "uploads".parse().unwrap();
    send(&sessions, &session, "there", vec![1].into(), false).await.unwrap();
    let mut uploads = endless(&sessions, &session);
    for n in 0..10 {
        send(&sessions, &session, "small", vec![1; n].into(), true).await.unwrap();
        let names = names(&sessions, &session).await;
        assert_eq!(names, [("small".to_owned(), n as u64), ("there".to_owned(), 1)]);
    }
    assert!(soon(sessions.host().shutdown()).await);
    while let Some(done) = soon(uploads.join_next()).await {
        done.unwrap().unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_closes_under_an_upload_that_never_ends() {
    let sessions = local();
    for count in [0, 300] {
        let session: SessionId = "uploads".parse().unwrap();
        let close = async {
            until("the session is there", || sessions.host().count() == 1).await;
            soon(sessions.close(&session)).await.unwrap();
        };
        let content = pieces(count, stream::pending());
        let (done, ()) = tokio::join!(send(&sessions, &session, "a", content, false), close);
        assert_eq!(done.unwrap_err().code(), "session_not_found");
        assert_eq!(sessions.host().count(), 0);
    }
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_dies_ends_an_upload_that_never_would() {
    let cast = Cast::default().with("dies", |mut agent: Agent| async move {
        agent.hello().await;
        let asked = agent.asked().await.unwrap();
        agent.honestly(&asked).await;
    });
    let sessions = cast.sessions(1);
    let content = pieces(300, stream::pending());
    let done = send(&sessions, &id("dies"), "a", content, false).await;
    assert_eq!(done.unwrap_err().code(), "sandbox_died");
    until("the session has ended", || sessions.host().count() == 0).await;
    soon(sessions.host().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_under_way_keeps_its_session_in_use() {
    let cast = Cast::default();
    let config = Config { session_ttl: std::time::Duration::from_millis(300), ..Config::default() };
    let sessions = Sessions::new(config, Arc::new(cast), double::options());
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let last = stream::once(async move {
        let _ = receiver.await;
        Ok(Bytes::from_static(b"last"))
    });
    let slow = id("slow");
    let upload_slowly = send(&sessions, &slow, "a", pieces(300, last), false);
    // Another session of the same age expires because it is not used, as this one would without the upload.
    let outlive = async {
        upload(&sessions, "other").await.unwrap();
        until("the other has ended", || sessions.host().count() == 1).await;
        sender.send(()).unwrap();
    };
    let (done, ()) = tokio::join!(upload_slowly, outlive);
    assert_eq!(done.unwrap().size_bytes, 300_004);
    soon(sessions.host().shutdown()).await;
}
