//! Files of sessions as MCP resources: `sandbox:///<session>/<path>`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::{
    DataPath, SessionId,
    artifact::{self},
    text::encoding::SNIFFED,
};
use percent_encoding::percent_decode_str;
use rmcp::{
    ErrorData,
    model::{
        ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult, Resource,
        ResourceContents, ResourceTemplate,
    },
};
use serde_json::json;

use super::{
    app,
    results::{budget, read, text},
    services::Services,
};
use crate::error::Error;
use crate::sessions::{List, Open};

/// Maximum number of files in one answer; there is a cursor for more.
const PAGE: usize = 200;

const SCHEME: &str = "sandbox:///";

/// The URI of a file of a session.
pub(super) fn uri(id: &SessionId, path: &DataPath) -> String {
    format!("{SCHEME}{id}/{}", artifact::encoded(path))
}

fn parse(uri: &str) -> Option<(SessionId, DataPath)> {
    let (id, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let path = percent_decode_str(path).decode_utf8().ok()?;
    Some((id.parse().ok()?, DataPath::relative(&path).ok()?))
}

/// The session of a URI that names no file of it.
fn session(uri: &str) -> Option<SessionId> {
    uri.strip_prefix(SCHEME)?.parse().ok()
}

pub(super) fn templates() -> ListResourceTemplatesResult {
    let file = ResourceTemplate::new(format!("{SCHEME}{{session_id}}/{{+path}}"), "file")
        .with_title("File in a session")
        .with_description("A file in a session's /mnt/data, including subfolders.");
    let runs = ResourceTemplate::new(format!("{SCHEME}{{session_id}}"), "runs")
        .with_title("Runs of a session")
        .with_description("The newest runs of a session, as JSON.");
    ListResourceTemplatesResult::with_all_items(vec![file, runs])
}

/// The files of all the caller's sessions, by session and path. The cursor is the URI of the last one.
///
/// # Errors
/// If the cursor is invalid.
pub(super) async fn list(
    services: &Services,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, ErrorData> {
    let after = match cursor {
        None => None,
        Some(cursor) => {
            Some(parse(cursor).ok_or_else(|| ErrorData::invalid_params("no such cursor", None))?)
        }
    };
    let (mut resources, mut size) = (vec![], 0);
    let mut next_cursor = None;
    'all: for id in services.sessions.names() {
        if after.as_ref().is_some_and(|(last, _)| id < *last) {
            continue;
        }
        // A session that ends meanwhile has no files.
        let Ok(listing) = services.sessions.perform(&id, List).await else { continue };
        for file in listing.artifacts {
            if after.as_ref().is_some_and(|(last, path)| id == *last && file.path <= *path) {
                continue;
            }
            if resources.len() == PAGE || size > budget::LISTING {
                next_cursor = resources.last().map(|last: &Resource| last.uri.clone());
                break 'all;
            }
            let resource = Resource::new(uri(&id, &file.path), file.path.as_str())
                .with_mime_type(file.path.mime())
                .with_size(file.size_bytes);
            size += serde_json::to_string(&resource).map_or(0, |text| text.len());
            resources.push(resource);
        }
    }
    let mut result = ListResourcesResult::with_all_items(resources);
    result.next_cursor = next_cursor;
    Ok(result)
}

/// Reads a file: as text if it is text, otherwise in base64.
///
/// # Errors
/// If there is no such file, it does not fit into a message, or it cannot be read.
pub(super) async fn read(services: &Services, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let not_found = || {
        let data = json!({ "uri": uri });
        ErrorData::resource_not_found(format!("There is no file {uri}."), Some(data))
    };
    if uri == app::URI {
        return Ok(app::contents());
    }
    if let Some(id) = session(uri) {
        return runs(services, &id, uri).await.ok_or_else(not_found);
    }
    let (id, path) = parse(uri).ok_or_else(not_found)?;
    let reader = match services.sessions.perform(&id, Open { path: path.clone().into() }).await {
        Ok(reader) => reader,
        Err(error @ (Error::Internal(_) | Error::SandboxDied(_))) => return Err(failed(&error)),
        Err(_) => return Err(not_found()),
    };
    let mime = path.mime();
    // A message contains a resource once, but the result of a tool twice.
    read::check_size(services, &id, &reader, budget::RESOURCE).map_err(|error| failed(&error))?;
    let bytes = read::whole(&reader, &id).await.map_err(|error| failed(&error))?;
    let start = &bytes[..bytes.len().min(SNIFFED)];
    let text = std::str::from_utf8(&bytes).ok().filter(|_| text::reads_as_text(mime, start));
    // Control characters take up to six bytes each in JSON. A text that does not fit because of them goes in base64,
    // which always fits.
    let fits = |text: &&str| serde_json::Value::from(*text).to_string().len() <= budget::PAGE;
    let text = text.filter(fits);
    let contents = match text {
        Some(text) => ResourceContents::text(text, uri),
        None => ResourceContents::blob(STANDARD.encode(&bytes), uri),
    };
    Ok(ReadResourceResult::new(vec![contents.with_mime_type(mime)]))
}

/// The newest runs of a session, as the page has them; `None` if there is no such session.
async fn runs(services: &Services, id: &SessionId, uri: &str) -> Option<ReadResourceResult> {
    services.sessions.awake(id).await.ok()?;
    let info = services.sessions.get(id)?.info();
    let mut shown = json!({ "session_id": id.as_str() });
    info.add_runs(&mut shown, services.urls.as_ref(), &services.sessions);
    let contents = ResourceContents::text(shown.to_string(), uri);
    Some(ReadResourceResult::new(vec![contents.with_mime_type("application/json")]))
}

/// The session that a URI names, if the URI is valid.
pub(super) fn session_of(uri: &str) -> Option<String> {
    session(uri).or_else(|| Some(parse(uri)?.0)).map(|id| id.to_string())
}

/// The error of a request, with the fields that a tool's error would have.
pub(super) fn failed(error: &Error) -> ErrorData {
    match error {
        Error::Internal(_) => ErrorData::internal_error(error.to_string(), Some(error.to_json())),
        _ => ErrorData::invalid_params(error.to_string(), Some(error.to_json())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_uri_names_its_file(path in "[^/\u{0}-\u{1f}\u{7f}-\u{9f}\\\\]{1,20}(/[a-z é%?#]{1,20})?") {
            prop_assume!(DataPath::relative(&path).is_ok());
            let (id, path) = (SessionId::mint(), DataPath::relative(&path).expect("valid"));
            prop_assert_eq!(parse(&uri(&id, &path)), Some((id, path)));
        }

        #[test]
        fn other_uris_name_nothing(uri in "(sandbox:)?/{0,3}\\PC{0,20}") {
            if let Some((id, path)) = parse(&uri) {
                prop_assert!(!path.as_str().contains("..") || !path.as_str().starts_with('/'));
                prop_assert!(!id.as_str().is_empty());
            }
        }
    }
}
