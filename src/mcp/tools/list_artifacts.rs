//! `list_artifacts`.

use rmcp::model::CallToolResponse;
use serde_json::json;

use super::schema::{artifact, object, required_session, session_of_result};
use crate::sessions::List;
use crate::{
    error::Result,
    listing,
    mcp::{
        call::{Call, Log, OfSession, existing, success},
        results::budget::encoded_size,
        tool::{Description, Facts, Hints, Tool, Toolset},
    },
};

pub(super) struct ListArtifacts;

impl Tool for ListArtifacts {
    const NAME: &'static str = "list_artifacts";
    const TOOLSET: Toolset = Toolset::Run;
    type Arguments = OfSession;

    fn describe(_: &Facts) -> Description {
        let modified_at = json!({
            "modified_at": { "type": "string", "description": "RFC 3339, UTC." },
        });
        Description {
            title: "List files",
            text: "Lists the files in /mnt/data, with a download_url of each for the person."
                .into(),
            input: object(json!({ "session_id": required_session() }), &["session_id"]),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "artifacts": {
                        "type": "array",
                        "items": artifact(modified_at, &["modified_at"]),
                    },
                    "artifacts_omitted": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "At least this many more files are not listed, because the list is too long.",
                    },
                    "download_all_url": {
                        "type": "string",
                        "description": "All of them as one ZIP file, for a person to download.",
                    },
                    "page_url": {
                        "type": "string",
                        "description": "A page that shows the session to a person: files, charts, runs.",
                    },
                }),
                &["session_id", "artifacts"],
            ),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, arguments: OfSession, log: &mut Log) -> Result<CallToolResponse> {
        let id = existing(&arguments.session_id, log)?;
        let services = &call.services;
        let listing = services.sessions.perform(&id, List).await?;
        let links = services.links(&id);
        let limit = services.budget().listing;
        let mut artifacts = vec![];
        let mut size = 0;
        for artifact in &listing.artifacts {
            let rendered = listing::artifact_json_with_mtime(links, artifact);
            size += encoded_size(&rendered);
            if size > limit {
                break;
            }
            artifacts.push(rendered);
        }
        log.bytes = Some(size as u64);
        let omitted = listing.artifacts.len() - artifacts.len() + usize::from(listing.more);
        let mut result = json!({ "session_id": id.as_str(), "artifacts": artifacts });
        if omitted > 0 {
            result["artifacts_omitted"] = omitted.into();
        }
        if let Some((urls, session)) = links {
            result["download_all_url"] = urls.download_all(session).into();
            result["page_url"] = urls.page(session).into();
        }
        Ok(success(result).into())
    }
}
