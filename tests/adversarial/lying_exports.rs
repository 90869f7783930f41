//! Agents that lie about variables that are saved to the archive or restored from it: only their own session loses by
//! it.

use crate::double::{Agent, Asked, Cast, carried, id, inspect, run, run_cell, soon};
use llm_sandbox::sessions::Sessions;
use protocol::{frame::Kind, limits::MAX_VARIABLES};
use serde_json::json;

/// The number of sessions in the archive.
fn archived(folder: &std::path::Path) -> usize {
    let all = std::fs::read_dir(folder.join("sessions")).into_iter().flatten().flatten();
    all.filter(|it| it.path().join("manifest").exists()).count()
}

/// An agent that answers requests of this kind with this head and body, and all others honestly.
fn liar(
    kind: Kind,
    head: Vec<u8>,
    body: Vec<u8>,
) -> impl Fn(Agent) -> futures::future::BoxFuture<'static, ()> {
    move |mut agent| {
        let (head, body) = (head.clone(), body.clone());
        Box::pin(async move {
            agent.hello().await;
            while let Some(asked) = agent.asked().await {
                match asked {
                    Asked { kind: asked_kind, call, .. } if asked_kind == kind => {
                        agent
                            .reply(
                                call,
                                &serde_json::from_slice::<serde_json::Value>(&head).expect("JSON"),
                                &body,
                            )
                            .await;
                    }
                    asked => agent.honestly(&asked).await,
                }
            }
        })
    }
}

async fn end(sessions: Sessions) {
    assert!(soon(sessions.host().shutdown()).await, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn lies_about_what_is_written_down_cost_their_own_session_only() {
    let named = |name: &str| json!({ "variables": [name] }).to_string().into_bytes();
    let done =
        |total: u64| json!({ "live": true, "count": 1, "total": total }).to_string().into_bytes();
    for (lie, head, body) in [
        ("too many variables", done(1), carried(MAX_VARIABLES + 1)),
        ("a name that is too long", done(1), named(&"x".repeat(1000))),
        ("no JSON", done(1), b"x = 1".to_vec()),
        ("more than there may be", done(u64::MAX), carried(1)),
        ("bytes that never come", done(1 << 20), carried(1)),
        ("half an answer", b"{}".to_vec(), vec![]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let cast = Cast::default().with("liar", liar(Kind::Export, head, body));
        let sessions = cast.archived_in(folder.path());
        for session in ["liar", "honest"] {
            run_cell(&sessions, session).await.expect("run");
        }
        end(sessions).await;
        assert_eq!(archived(folder.path()), 1, "{lie}");
        let sessions = cast.archived_in(folder.path());
        let held = soon(inspect(&sessions, "honest")).await.expect("brought back");
        assert!(held.is_some(), "{lie}");
        end(sessions).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lies_about_what_was_taken_over_leave_the_archive_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let honest = Cast::default();
    let sessions = honest.archived_in(folder.path());
    run_cell(&sessions, "liar").await.expect("run");
    end(sessions).await;
    for (lie, body) in [
        ("too many variables", carried(MAX_VARIABLES + 1)),
        ("no JSON", b"x = 1".to_vec()),
        ("no UTF-8", b"{\"imports\":[\"\xff\"]}".to_vec()),
    ] {
        let cast =
            Cast::default().with("liar", liar(Kind::Import, b"{\"count\":1}".to_vec(), body));
        let sessions = cast.archived_in(folder.path());
        let died = run(&sessions, "liar").await;
        assert!(died.is_err(), "{lie}");
        assert!(run(&sessions, "honest").await.is_ok(), "{lie}");
        soon(sessions.close(&id("honest"))).await.expect("closed");
        end(sessions).await;
        assert_eq!(archived(folder.path()), 1, "{lie}");
    }
    let sessions = honest.archived_in(folder.path());
    assert!(run(&sessions, "liar").await.is_ok());
    end(sessions).await;
}
