//! The services that tools and resources use: the sessions and files of one caller.

use std::{borrow::Cow, sync::Arc};

use config::Transport;
use hyper::http::request::Parts;
use model::{Principal, SessionId, text::printable};
use rmcp::{RoleServer, model::Implementation, service::RequestContext};
use tokio_util::sync::CancellationToken;

use super::roots::Answered;
use crate::{
    error::{Error, Result},
    export::Export,
    picture::ImageFitter,
    sessions::{Sessions, Workspace},
    signed_urls::{Base, NumberedSession, SignedUrls},
};

/// Message for an invalid name of a workspace.
const INVALID_NAME: &str = "The workspace that this client's URL names (?workspace=) must be 1 to 64 \
                            of the characters A-Z, a-z, 0-9, _ and -. Tell the person to change the \
                            URL.";

/// The value of a parameter in the URL of the client's request.
pub(super) fn by_url(context: &RequestContext<RoleServer>, name: &str) -> Option<String> {
    let query = context.extensions.get::<Parts>()?.uri.query()?;
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Parameters that the URL of a client may have.
pub(super) const KNOWN_IN_URL: [&str; 3] = ["workspace", "toolsets", "inline_images"];

/// Names of clients that have not introduced themselves: rmcp's, and that of `http::outlived`.
const MADE_UP: [&str; 2] = ["rmcp", "unknown"];

/// Characters that are stored of a client's name and version, each.
const MAX_CLIENT_CHARS: usize = 60;

/// Similarity above which one name counts as another one misspelt, from 0 to 1.
const ALIKE: f64 = 0.7;

/// The parameter of a client's URL that looks like a misspelt known one. Other parameters are ignored, as hosts and
/// proxies add their own.
pub(super) fn misspelt_in_url(context: &RequestContext<RoleServer>) -> Option<String> {
    let query = context.extensions.get::<Parts>()?.uri.query()?;
    let mut names = form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
    names.find(|name| is_misspelt(name)).map(Cow::into_owned)
}

fn is_misspelt(name: &str) -> bool {
    let alike = |known: &&str| strsim::normalized_damerau_levenshtein(known, name) >= ALIKE;
    !KNOWN_IN_URL.contains(&name) && KNOWN_IN_URL.iter().any(alike)
}

/// Everything a call needs of this program. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Services {
    /// The sessions, as the caller sees them.
    pub(super) sessions: Sessions,
    /// Signs URLs of files, if files are served.
    pub(super) urls: Option<SignedUrls>,
    pub(super) transport: Transport,
    /// Makes images fit into a message.
    pub(super) images: ImageFitter,
    /// Copies artifacts to a folder, for a client on this machine.
    pub(super) export: Option<Arc<Export>>,
    /// The answer of the client over stdio to the question for its roots.
    pub(super) roots: Answered,
}

/// The MCP session of a request, which is known to be its sender's.
#[derive(Debug, Clone)]
pub(super) struct OfMcpSession {
    pub(super) id: Arc<str>,
    /// Cancelled when it has ended.
    pub(super) ended: CancellationToken,
    /// Marks it as in use, also while a run of the request goes on in the background.
    pub(super) _in_use: Arc<()>,
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

    /// The services for the caller that sent this request.
    pub(super) fn seen_by(&self, context: &RequestContext<RoleServer>) -> Self {
        let head = context.extensions.get::<Parts>();
        let principal = head.and_then(|head| head.extensions.get::<Principal>());
        let sessions = self.sessions.seen_by(principal.cloned().unwrap_or_else(Principal::local));
        let sessions = sessions.with(client(context));
        let base = head.and_then(|head| head.extensions.get::<Base>());
        let urls = self.urls.as_ref().map(|urls| urls.for_client(base));
        Self { sessions, urls, ..self.clone() }
    }
    /// The signer of a session's URLs, and the session's key; `None` if files are not served, the session has ended, or
    /// it ends with its call.
    pub(super) fn links<'a>(
        &'a self,
        id: &'a SessionId,
    ) -> Option<(&'a SignedUrls, NumberedSession<'a>)> {
        let live = self.sessions.get(id).filter(|live| !live.is_stateless())?;
        Some((self.urls.as_ref()?, NumberedSession { id, number: live.number() }))
    }
}

/// The name and version of the client's program, as it says.
fn client(context: &RequestContext<RoleServer>) -> Option<Arc<str>> {
    let of_peer = || {
        let peer = context.peer.peer_info()?.client_info.clone();
        (!MADE_UP.contains(&&*peer.name)).then_some(peer)
    };
    let Implementation { name, version, .. } = context.meta.client_info().or_else(of_peer)?;
    let shown = |text: &str| printable(text).chars().take(MAX_CLIENT_CHARS).collect::<String>();
    Some(format!("{} {}", shown(&name), shown(&version)).trim().into())
}

/// The workspace of a call that names no session, by the client's URL or connection.
///
/// # Errors
/// If the URL names an invalid workspace.
pub(super) fn workspace(context: &RequestContext<RoleServer>) -> Result<Workspace> {
    // Over stdio there is one client, which has started this process for itself.
    let Some(head) = context.extensions.get::<Parts>() else {
        return Ok(Workspace::default_of_caller());
    };
    if let Some(name) = by_url(context, "workspace") {
        let name = name.parse().map_err(|_| Error::InvalidArgument(INVALID_NAME.into()))?;
        return Ok(Workspace::named(name));
    }
    Ok(match head.extensions.get::<OfMcpSession>() {
        Some(of) => Workspace::of_mcp_session(of.id.clone(), of.ended.clone()),
        None => Workspace::default_of_caller(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_almost_one_of_ours_counts_as_misspelt() {
        for name in ["worspace", "Workspace", "workspaces", "toolset", "tool_sets", "inline_image"]
        {
            assert!(is_misspelt(name), "{name}");
        }
        for name in ["workspace", "toolsets", "inline_images", "other", "api_key", "sessionId", ""]
        {
            assert!(!is_misspelt(name), "{name}");
        }
    }
}
