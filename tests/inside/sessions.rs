//! The registry of sessions on plain processes: when sessions expire, and what several callers that look at one share.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use backend::local::Local;
use config::Config;
use llm_sandbox::sessions::{Options, Program, RuntimeName, Sessions};
use model::{OwnSettings, SessionId};
use support::{PATIENCE, name, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_its_own_time_to_live_ends_after_that_and_is_said_to_have() {
    let backend = Arc::new(Local::new().expect("a backend"));
    let config = Config { preload: None, pool_size: 0, ..Config::default() };
    let sessions = Sessions::new(config, backend, Options::default());
    let ttl = Some(Duration::from_secs(2));
    let short = sessions
        .create(None, OwnSettings { ttl, ..OwnSettings::default() })
        .await
        .expect("created");
    let usual = sessions.create(None, OwnSettings::default()).await.expect("created");
    until("the short one expires", async || sessions.names().len() == 1).await;
    assert_eq!(sessions.names(), [usual.id]);
    let gone = sessions.close(&short.id).await.expect_err("it has ended");
    assert!(gone.to_string().contains("unused for 2 s"), "{gone}");
    assert!(sessions.host().shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_session_expires_moves_with_its_use() {
    let backend = Arc::new(Local::new().expect("a backend"));
    let config = Config { preload: None, pool_size: 0, ..Config::default() };
    let sessions = Sessions::new(config, backend, Options::default());
    let made = sessions.create(None, OwnSettings::default()).await.expect("created");
    let created = Instant::now();
    // Each look is inexact by the time that the machine takes for it.
    let moved = || {
        let expires = sessions.get(&made.id).map(|it| it.info()).expect("there").expires;
        expires.duration_since(made.expires).as_millis().unsigned_abs()
    };
    until("time passes", async || created.elapsed() > Duration::from_secs(1)).await;
    until("looking does not move it", async || moved() < created.elapsed().as_millis() / 2).await;
    until("use moves it by the time that has passed", async || {
        let (_, touched) = sessions.ensure(made.id.clone()).await;
        touched.expect("there");
        moved() >= created.elapsed().as_millis() / 2
    })
    .await;
    assert!(sessions.host().shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_look_share_one_listing_until_there_may_be_other_files() {
    let sessions = Sessions::new(
        Config::default(),
        Arc::new(Local::new().expect("a backend")),
        Options::default(),
    );
    let id: SessionId = name("shared").parse().expect("valid");
    let run = |code: &'static str| {
        let program = Program::new(RuntimeName::PYTHON, code, PATIENCE);
        async { sessions.run(Some(id.clone()), program).await.1.expect("it ran") }
    };
    let listing = || async { sessions.get(&id).expect("live").view().await.expect("listed") };
    run("open('a', 'w')").await;
    let (first, second) = tokio::join!(listing(), listing());
    assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&first, &listing().await));
    assert_eq!(first.files.artifacts.len(), 1);
    run("open('b', 'w')").await;
    assert_eq!(listing().await.files.artifacts.len(), 2);
    assert!(sessions.host().shutdown().await);
}
