//! Files in and out.

use rmcp::model::Tool;
use serde_json::json;

use super::{
    Hints, artifact, new_session, next_offset, object, session_id_in, session_id_out, tool,
};
use crate::{
    artifact::human_size,
    config::{Config, Transport},
    mcp::{room::Room, text},
};

pub(super) fn upload_file(config: &Config, transport: Transport) -> Tool {
    let max = human_size(config.max_upload);
    let mut properties = json!({
        "session_id": session_id_in(true),
        "filename": {
            "type": "string",
            "description": "Name below /mnt/data, such as sales.csv or raw/sales.csv. Folders are \
                            made as needed.",
            "minLength": 1,
            "maxLength": 1024,
        },
        "content_base64": {
            "type": "string",
            "description": format!("The file's bytes in standard base64, at most {max} decoded."),
        },
        "text": {
            "type": "string",
            "description": "The file's content, if it is text; it is written as UTF-8.",
        },
        "overwrite": {
            "type": "boolean",
            "description": "Replace a file of that name instead of failing with file_exists.",
            "default": false,
        },
    });
    let mut ways = "as text, in base64".to_owned();
    if transport == Transport::Stdio {
        ways.push_str(", from local_path");
        properties["local_path"] = json!({
            "type": "string",
            "description": "Absolute path of a file on the client's machine, within its roots or \
                            the folders that the server's settings name. The best way for any file \
                            that is there already.",
        });
    }
    tool(
        "upload_file",
        "Upload a file",
        &format!(
            "Puts a file into /mnt/data of a session, where run_python finds it. Give its content \
             {ways}, or leave it out for an upload_url, to which whoever has the file puts it \
             (curl -T sales.csv '<upload_url>', or a person in a browser). At most {max} a \
             file; all files of a session together at most {}. Without session_id a new session is \
             started; pass the session_id that is returned to all later calls. Either the whole \
             file is there afterwards or none that was not there before.",
            human_size(config.data_limit)
        ),
        &object(properties, &["filename"]),
        &object(
            json!({
                "session_id": session_id_out(),
                "new_session": new_session(),
                "path": { "type": "string", "description": "Where the file is, or will be, for the code to open." },
                "size_bytes": { "type": "integer", "minimum": 0, "description": "Absent until the file is there." },
                "upload_url": { "type": "string", "description": "Where the file is to be put, if no content was given." },
                "expires_in_s": { "type": "integer", "minimum": 0, "description": "How long upload_url is good for." },
            }),
            &["session_id", "path"],
        ),
        Hints { read_only: false, destructive: true, idempotent: false },
    )
}

pub(super) fn list_artifacts() -> Tool {
    let modified_at = json!({
        "modified_at": { "type": "string", "description": "RFC 3339, UTC." },
    });
    tool(
        "list_artifacts",
        "List files",
        "Lists every file in /mnt/data of a session, sub-folders included, sorted by path.",
        &object(json!({ "session_id": session_id_in(false) }), &["session_id"]),
        &object(
            json!({
                "session_id": session_id_out(),
                "artifacts": { "type": "array", "items": artifact(modified_at, &["modified_at"]) },
                "artifacts_omitted": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "At least so many more files, left out because the list is too long.",
                },
                "download_all_url": {
                    "type": "string",
                    "description": "All of them as one ZIP file, for a person to download.",
                },
                "page_url": {
                    "type": "string",
                    "description": "A page that shows a person the session: files, charts, runs.",
                },
            }),
            &["session_id", "artifacts"],
        ),
        Hints { read_only: true, destructive: false, idempotent: true },
    )
}

pub(super) fn read_artifact(config: &Config, transport: Transport) -> Tool {
    let room = Room::new(transport);
    let [picture, base64] = [room.picture, room.base64].map(human_size);
    let large = if room.scales { "are scaled down" } else { "are for the person" };
    tool(
        "read_artifact",
        "Read a file",
        &format!(
            "Returns a file of a session. PNG, JPEG, GIF and WebP come as a picture to look at; text \
             (CSV, JSON, Markdown, code) as text, a page of {} at a time; any other file, and every \
             file with format base64, as content_base64. Limits: {} a file, and what fits into one \
             message: pictures over {picture} {large}, and base64 over {base64} comes in parts with \
             offset and length. Every file can be downloaded by its download_url. To work with a \
             file's content (PDF, XLSX), read it in run_python instead.",
            human_size(text::PAGE),
            human_size(config.max_artifact_read),
        ),
        &object(
            json!({
                "session_id": session_id_in(false),
                "path": {
                    "type": "string",
                    "description": "Absolute within /mnt/data, or relative to it.",
                    "minLength": 1,
                    "maxLength": 1100,
                },
                "format": {
                    "type": "string",
                    "enum": ["auto", "text", "base64"],
                    "description": "auto: pictures as pictures, text as text, the rest as base64.",
                    "default": "auto",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "First byte; next_offset of the page before.",
                },
                "length": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": room.base64,
                    "description": format!(
                        "Most bytes; {} if left out, at most {} of text.",
                        text::PAGE,
                        text::MOST
                    ),
                },
            }),
            &["session_id", "path"],
        ),
        &object(
            json!({
                "session_id": session_id_out(),
                "path": { "type": "string" },
                "filename": { "type": "string" },
                "mime_type": { "type": "string" },
                "size_bytes": { "type": "integer", "minimum": 0 },
                "text": { "type": "string", "description": "The page, when the file comes as text." },
                "content_base64": {
                    "type": "string",
                    "description": "Absent when the file comes as a picture or as text.",
                },
                "offset": { "type": "integer", "minimum": 0, "description": "Of the page's first byte." },
                "next_offset": next_offset(),
                "not_utf8": {
                    "type": "boolean",
                    "description": "The text has bytes that are no UTF-8, shown as U+FFFD.",
                },
                "scaled_to": {
                    "type": "string",
                    "description": "Width and height of the picture, if it is smaller than the file's.",
                },
            }),
            &["session_id", "path", "filename", "mime_type", "size_bytes"],
        ),
        Hints { read_only: true, destructive: false, idempotent: true },
    )
}
