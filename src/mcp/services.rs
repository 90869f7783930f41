//! What tools and resources work with: the sessions and files of one caller.

use std::sync::Arc;

use hyper::http::request::Parts;
use rmcp::{RoleServer, service::RequestContext};

use super::{results::budget::MessageBudget, roots::Answered};
use crate::{
    auth::Principal,
    config::Transport,
    export::Export,
    picture::ImageFitter,
    session::SessionId,
    sessions::Sessions,
    signed_urls::{Base, SessionKey, SignedUrls},
};

/// Everything a call needs of this program. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Services {
    /// As the caller sees them.
    pub(super) sessions: Sessions,
    /// Signs URLs of files, if files are served.
    pub(super) urls: Option<SignedUrls>,
    pub(super) transport: Transport,
    /// Makes images fit into a message.
    pub(super) images: ImageFitter,
    /// Where artifacts are also written, for a client on this machine.
    pub(super) export: Option<Arc<Export>>,
    /// What the client over stdio has said of its roots.
    pub(super) roots: Answered,
}

impl Services {
    pub(super) fn new(sessions: Sessions, urls: Option<SignedUrls>, transport: Transport) -> Self {
        let export = Export::new(sessions.config()).filter(|_| transport == Transport::Stdio);
        Self {
            sessions,
            urls,
            transport,
            images: ImageFitter::default(),
            export: export.map(Arc::new),
            roots: Answered::default(),
        }
    }

    /// The same, for the caller that sent this request.
    pub(super) fn seen_by(&self, context: &RequestContext<RoleServer>) -> Self {
        let head = context.extensions.get::<Parts>();
        let principal = head.and_then(|head| head.extensions.get::<Principal>());
        let sessions = self.sessions.seen_by(principal.cloned().unwrap_or_else(Principal::local));
        let base = head.and_then(|head| head.extensions.get::<Base>());
        let urls = self.urls.as_ref().map(|urls| urls.for_client(base));
        Self { sessions, urls, ..self.clone() }
    }

    /// How much fits into one message to the caller.
    pub(super) fn budget(&self) -> MessageBudget {
        MessageBudget::new(self.transport)
    }

    /// What signs the URLs of a session's files, if files are served and the session is still there.
    pub(super) fn links<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> Option<(&'a SignedUrls, SessionKey<'a>)> {
        let number = self.sessions.number(id)?;
        Some((self.urls.as_ref()?, SessionKey { id, number }))
    }
}
