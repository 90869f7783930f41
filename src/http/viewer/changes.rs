//! The wait of a request for changes of sessions (long poll), and the tag of the state that its client knows.

use std::{sync::LazyLock, time::Duration};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use model::SessionId;
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use super::waiters::Waiters;
use crate::{
    archive::Listed,
    sessions::{ArchivedSession, SessionInfo, Sessions},
};

/// Longest wait for changes: less than the timeout of any proxy on the way.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The sessions that a request asks for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// All sessions of the caller.
    All,
    /// The session of this name.
    One(&'a SessionId),
}

/// The sessions that were found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) looks: Vec<SessionInfo>,
    pub(super) archived: Vec<Listed>,
}

impl Wanted<'_> {
    async fn seen(self, sessions: &Sessions) -> Seen {
        match self {
            Self::All => {
                // A session that ends between the two is in neither list. Its end is a change, so the client
                // learns of it.
                let archived = match sessions.archived() {
                    Some(archived) => archived.list().await,
                    None => vec![],
                };
                let names = sessions.names();
                let looks = names.iter().filter_map(|id| Some(sessions.get(id)?.info()));
                Seen { looks: looks.collect(), archived }
            }
            Self::One(id) => {
                let looks = sessions.get(id).map(|live| live.info()).into_iter().collect();
                Seen { looks, archived: vec![] }
            }
        }
    }
}

/// The result of waiting for changes.
#[derive(Debug)]
pub(super) enum Update {
    Some(Seen, Tag),
    /// The client knows the current state, which has this tag.
    None(Tag),
}

/// Waits for a state that the client does not know, at most for the time that it asked for.
pub(super) async fn update(
    asked: &HeaderMap,
    waiters: &Waiters,
    sessions: &Sessions,
    wanted: Wanted<'_>,
) -> Update {
    let mut changes = sessions.host().changes();
    let place = waiters.take(sessions.caller());
    let wait = if place.is_some() { wait(asked) } else { Duration::ZERO };
    let enough = async {
        // A server that ends does not wait.
        tokio::select! { () = sleep(wait) => {}, () = sessions.host().ending() => {} }
    };
    tokio::pin!(enough);
    loop {
        changes.mark_unchanged();
        let seen = wanted.seen(sessions).await;
        let tag = Tag::of(&seen, wanted);
        if !tag.is_known(asked) {
            return Update::Some(seen, tag);
        }
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = &mut enough => {
                return Update::None(tag);
            }
        }
    }
}

/// Waits for the first change of a session that does not change by itself, for as long as the client asked.
pub(super) async fn until_changed(asked: &HeaderMap, waiters: &Waiters, sessions: &Sessions) {
    let mut changes = sessions.host().changes();
    let place = waiters.take(sessions.caller());
    let wait = if place.is_some() { wait(asked) } else { Duration::ZERO };
    tokio::select! {
        () = sleep(wait) => {}
        _ = changes.changed() => {}
        () = sessions.host().ending() => {}
    }
}

/// The seconds of `Prefer: wait=<seconds>`, within bounds; 0 if it cannot be parsed.
fn wait(headers: &HeaderMap) -> Duration {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut each = preferences.flat_map(|value| value.split([',', ';']));
    let seconds = each.find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait.then(|| value.trim().parse::<u32>().ok()).flatten()
    });
    Duration::from_secs(seconds.unwrap_or(0).into()).min(MAX_WAIT)
}

/// Distinguishes this server process from the previous one.
static PROCESS: LazyLock<uuid::Uuid> = LazyLock::new(uuid::Uuid::new_v4);

/// The tag of a state of sessions. It is not a hash of the answer, because the URLs in it change with every answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag(String);

impl Tag {
    fn of(seen: &Seen, wanted: Wanted<'_>) -> Self {
        let mut hash = Sha256::new();
        // Numbers and versions start again with each server.
        hash.update(*PROCESS);
        for look in &seen.looks {
            hash.update(look.number.to_le_bytes());
            hash.update(look.history.version().to_le_bytes());
            // Output is only in the answer about one session.
            if matches!(wanted, Wanted::One(_)) {
                hash.update(look.history.looks().to_le_bytes());
            }
        }
        for Listed { id, saved } in &seen.archived {
            hash.update(id.as_str());
            hash.update(saved.as_second().to_le_bytes());
        }
        Self(format!("W/\"{}\"", hex::encode(&hash.finalize()[..8])))
    }

    /// The tag of an archived session, which does not change.
    pub(super) fn of_archived(archived: &ArchivedSession) -> Self {
        let hash = Sha256::digest(archived.manifest.generation());
        Self(format!("W/\"{}\"", hex::encode(&hash[..8])))
    }

    pub(super) fn is_known(&self, asked: &HeaderMap) -> bool {
        let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        known.is_some_and(|known| known.split(',').any(|tag| tag.trim() == self.0))
    }

    pub(super) fn not_modified(&self) -> Response {
        (StatusCode::NOT_MODIFIED, self.headers()).into_response()
    }

    pub(super) fn headers(&self) -> [(HeaderName, HeaderValue); 1] {
        [(header::ETAG, HeaderValue::from_str(&self.0).expect("hexadecimal digits"))]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend::local::Local;
    use config::{Config, auth::Tokens};
    use futures::FutureExt;

    use super::*;
    use crate::sessions::Options;

    /// No sessions, and a request that knows that there are none and would wait for some.
    fn nothing_new() -> (Sessions, HeaderMap) {
        let backend = Arc::new(Local::new().expect("a backend"));
        let mut asked = HeaderMap::new();
        let tag = Tag::of(&Seen::default(), Wanted::All).headers()[0].1.clone();
        asked.insert(header::IF_NONE_MATCH, tag);
        asked.insert("prefer", HeaderValue::from_static("wait=30"));
        (Sessions::new(Config::default(), backend, Options::default()), asked)
    }

    #[tokio::test]
    async fn those_who_wait_leave_room_for_those_who_ask() {
        let (sessions, asked) = nothing_new();
        let waiters = Waiters::new(1);
        let first = update(&asked, &waiters, &sessions, Wanted::All);
        tokio::pin!(first);
        assert!(first.as_mut().now_or_never().is_none(), "it waits");
        let nothing = tokio::select! {
            biased;
            _ = &mut first => panic!("the first has waited to its end"),
            next = update(&asked, &waiters, &sessions, Wanted::All) => next,
        };
        assert!(matches!(nothing, Update::None(_)), "there is nothing new");
    }

    #[tokio::test]
    async fn a_caller_who_waits_as_often_as_it_may_leaves_places_for_others_to_wait() {
        let (sessions, asked) = nothing_new();
        let tokens = Tokens::parse("ann:a,bob:b").expect("valid");
        let [ann, bob] =
            ["a", "b"].map(|token| sessions.seen_by(tokens.principal(token).expect("known")));
        let waiters = Waiters::new(2);
        let first = update(&asked, &waiters, &ann, Wanted::All);
        tokio::pin!(first);
        assert!(first.as_mut().now_or_never().is_none(), "she waits");
        let second = update(&asked, &waiters, &ann, Wanted::All).await;
        assert!(matches!(second, Update::None(_)), "she has her half, and there is nothing new");
        let his = update(&asked, &waiters, &bob, Wanted::All);
        assert!(his.now_or_never().is_none(), "he waits");
    }

    #[test]
    fn a_wait_is_what_was_asked_for_within_bounds() {
        let wait = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", HeaderValue::from_str(value).expect("a value"));
            wait(&headers).as_secs()
        };
        assert_eq!(wait("wait=20"), 20);
        assert_eq!(wait("respond-async, Wait = 5"), 5);
        assert_eq!(wait("wait=4000000000"), 30);
        for unclear in ["wait", "wait=-1", "wait=soon", "", "return=minimal"] {
            assert_eq!(wait(unclear), 0, "{unclear}");
        }
        assert_eq!(super::wait(&HeaderMap::new()), Duration::ZERO);
    }
}
