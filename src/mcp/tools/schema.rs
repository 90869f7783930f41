//! Parts of the tools' schemas. They are written out rather than derived: texts and bounds depend on the settings, and
//! several clients understand only the plainest of JSON Schema (no `$ref`, no bare `true`, no `oneOf`). Calls are
//! checked against input schemas; clients see less of them ([`shown`](crate::mcp::arguments::shown)), so that bounds
//! and defaults here cost a model nothing.

use backend::Template;
use serde_json::{Value, json};

use crate::mcp::{arguments::SHOWN_CHOICES, languages::Language};

/// An object of these fields and no others.
pub(in crate::mcp) fn object(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// A file in a result, with these fields besides those of all files.
pub(super) fn artifact(more: Value, required: &[&str]) -> Value {
    let mut properties = json!({
        "path": { "type": "string", "description": "Absolute." },
        "filename": { "type": "string", "description": "Relative to /mnt/data." },
        "size_bytes": { "type": "integer", "minimum": 0 },
        "mime_type": { "type": "string" },
        "download_url": { "type": "string", "description": "For a person to open or download." },
    });
    let all = properties.as_object_mut().expect("the JSON above is an object");
    if let Value::Object(more) = more {
        all.extend(more);
    }
    let basic = ["path", "filename", "size_bytes", "mime_type"];
    object(properties, &[&basic, required].concat())
}

/// The summary of a table in a result.
pub(super) fn summary() -> Value {
    let text = || json!({ "type": "string" });
    let texts = || json!({ "type": "array", "items": { "type": "string" } });
    let count = || json!({ "type": "integer", "minimum": 0 });
    let line = json!({ "type": "integer", "minimum": 1 });
    let described = |mut schema: Value, description: &str| {
        schema["description"] = description.into();
        schema
    };
    let properties = json!({
        "kind": described(text(), "As the content shows, whatever the name says."),
        "compression": described(text(), "\"gzip\", if the text is packed with it."),
        "encoding": described(text(), "Python's name of it."),
        "separator": text(),
        "decimal": described(text(), "What is before the fraction of numbers, if not a point."),
        "thousands": described(text(), "What groups the digits of numbers."),
        "header": boolean("False if the first row seems to be no header."),
        "header_line": described(
            line,
            "The header's line in the file (in a sheet, its row), counted from 1, if not the first. The first row's without a header.",
        ),
        "within": described(text(), "The key of a JSON object that has the rows."),
        "rows": count(),
        "rows_at_least": described(count(), "The rows that were counted, of a file that has more."),
        "columns_from_first_rows": described(
            count(),
            "Columns, with their types and missing values, are those of so many first rows, if not of all.",
        ),
        "sheets": described(texts(), "Of a workbook, whose columns are those of the first."),
        "more_sheets": count(),
        "columns": described(texts(), "Name, type, number of missing values, and examples."),
        "more_columns": count(),
    });
    described(
        object(properties, &["kind", "columns"]),
        "What is in a table, if it was quickly found.",
    )
}

/// A text, with its description.
pub(super) fn string(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

/// A boolean, with its description.
pub(super) fn boolean(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

/// The session that a call has to name. Only run_python describes where it comes from.
pub(super) fn required_session() -> Value {
    json!({ "type": "string" })
}

/// The session that a result names.
pub(super) fn session_of_result() -> Value {
    json!({ "type": "string" })
}

pub(super) fn new_session() -> Value {
    json!({
        "type": "boolean",
        "description": "True if no session had that name: a new one was started, without files.",
    })
}

/// The notes of a result: facts that a caller could not see otherwise.
pub(in crate::mcp) fn notes() -> Value {
    json!({
        "type": "array",
        "description": "What is not seen otherwise, and what to do next.",
        "items": { "type": "string" },
    })
}

pub(super) fn next_offset() -> Value {
    json!({ "type": "integer", "minimum": 0, "description": "Where to continue; absent at the end." })
}

/// The language of a call: one of those that there are; Python if none is named.
pub(super) fn language(template: &Template) -> Value {
    let names: Vec<_> = Language::of(template).map(|it| it.name().to_owned()).collect();
    let mut argument = json!({ "type": "string" });
    argument[SHOWN_CHOICES] = names.into();
    argument
}

/// The session whose workspace a call means; without one, that of the client.
pub(super) fn optional_session() -> Value {
    json!({ "type": "string" })
}

/// The field of a result that says that the client has no workspace yet.
pub(super) fn no_workspace() -> Value {
    json!({ "type": "null", "description": "Null if there is no workspace yet; otherwise absent." })
}

pub(super) fn new_workspace() -> Value {
    json!({
        "type": "boolean",
        "description": "True if the workspace was made for this call: it has no variables or files from \
                        before.",
    })
}

/// Datasets, as [`listed_datasets`](super::listed_datasets) makes them.
pub(in crate::mcp) fn datasets() -> Value {
    let dataset = object(
        json!({ "path": { "type": "string" }, "description": { "type": "string" } }),
        &["path"],
    );
    json!({ "type": "array", "description": "Data to read.", "items": dataset })
}
