//! The JSON Schema of the settings file, for editors.

use serde_json::{Map, Value, json};

use super::{
    callers::{Role, rows_in_policies},
    setting::{Form, Row},
    table,
};

/// The schema of a text that stands for a value elsewhere.
const REFERENCE: &str = r"^\$\{\w+\}$";

/// The schema of the settings file.
pub fn schema() -> Value {
    let mut root = of_rows(table::rows());
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Settings of llm-sandbox".into();
    root["properties"]["policies"] = json!({
        "description": "Settings that replace the server's for some callers, by a name. Each allows at most what the \
                        server's allows.",
        "type": ["object", "null"],
        "additionalProperties": of_rows(rows_in_policies()),
    });
    let text = json!({ "type": "string" });
    root["properties"]["callers"] = json!({
        "description": "Callers with their tokens, roles and policies, besides those of auth.tokens.",
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["name", "token"],
            "properties": {
                "name": text,
                "token": {
                    "description": "A token, sha256: and its digest, file:PATH, ${VARIABLE}, or a list of these.",
                    "anyOf": [text, { "type": "array", "items": text }],
                },
                "role": { "enum": Role::ALL.map(Role::as_str), "default": "user" },
                "policy": { "description": "A name of a policy.", "type": "string" },
            },
        },
    });
    root["properties"]["datasets"] = json!({
        "description": "Data that sandboxes can read at /data/NAME, besides those of files.datasets.",
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "additionalProperties": false,
            "required": ["name"],
            "properties": {
                "name": text,
                "path": { "description": "A folder of the machine with the engine.", "type": "string" },
                "volume": {
                    "description": "On Kubernetes: the source of a volume, as in a pod, such as \
                                    { persistentVolumeClaim: { claimName: sales } }.",
                    "type": "object",
                },
                "description": { "description": "One line for models.", "type": "string" },
                "callers": {
                    "description": "Names of the callers that can read it; all, if left out.",
                    "type": "array",
                    "items": text,
                },
            },
        },
    });
    root["properties"]["upstreams"] = json!({
        "description": "Servers of MCP and services over HTTP that programs in sandboxes can call, by a name \
                        (docs/calls.md).",
        "type": ["object", "null"],
        "propertyNames": { "pattern": "^[a-z][a-z0-9_]{0,31}$" },
        "additionalProperties": of_upstream(),
    });
    root
}

/// The schema of an upstream.
fn of_upstream() -> Value {
    let text = json!({ "type": "string" });
    let texts = |description: &str| json!({ "description": description, "anyOf": [text, { "type": "array", "items": text }] });
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    let map = |description: &str| json!({ "description": description, "type": "object", "additionalProperties": scalar });
    let whole = |description: &str, default: u64, max: u64| {
        json!({
            "description": description, "type": "integer", "minimum": 1, "maximum": max, "default": default,
        })
    };
    json!({
        "type": "object",
        "additionalProperties": false,
        "oneOf": [
            { "required": ["command"] }, { "required": ["url"] }, { "required": ["base_url"] },
        ],
        "properties": {
            "command": { "description": "A server of MCP over stdio: its program.", "type": "string" },
            "args": { "type": "array", "items": scalar },
            "env": map("Variables of its environment, which has PATH and HOME besides."),
            "cwd": { "description": "Its working folder, an absolute path.", "type": "string" },
            "url": { "description": "A server of MCP over streamable HTTP.", "type": "string" },
            "base_url": { "description": "A service over HTTP.", "type": "string" },
            "headers": map("Headers of each request. ${VARIABLE} and file:PATH stand for secrets."),
            "methods": texts("Methods that requests to a service can have; GET alone, if left out."),
            "paths": texts("Patterns of the paths of requests to a service; all, if left out."),
            "type": { "enum": ["stdio", "http", "streamable-http", "streamableHttp"] },
            "description": { "description": "One line for models.", "type": "string" },
            "allow": texts("Patterns of tools or methods that may be called, besides those that only read."),
            "ask": texts("Patterns of tools or methods of which a person must allow each call."),
            "callers": texts("Names of the callers that can use it; all, if left out."),
            "timeout_s": whole("Time limit of a call.", 60, 3600),
            "max_answer_mb": whole("The largest answer.", 10, 1000),
            "private": {
                "description": "Whether it may have a private or loopback address, or http://.",
                "type": "boolean",
                "default": false,
            },
            "idle_s": whole("Time without calls after which its process or connection ends.", 300, 86_400),
        },
    })
}

/// The schema of sections with these settings.
fn of_rows(rows: impl Iterator<Item = &'static Row>) -> Value {
    let mut root = section();
    for row in rows {
        let mut at = &mut root;
        let (sections, name) = row.key.rsplit_once('.').expect("each key is in a section");
        for name in sections.split('.') {
            at = at["properties"]
                .as_object_mut()
                .expect("a section has properties")
                .entry(name)
                .or_insert_with(section);
        }
        at["properties"][name] = of(row);
    }
    root
}

/// A section without keys. Null is a section whose keys are all comments.
fn section() -> Value {
    json!({ "type": ["object", "null"], "additionalProperties": false, "properties": {} })
}

/// The schema of a value.
fn of(row: &Row) -> Value {
    let text = json!({ "type": "string" });
    let item = json!({ "type": ["string", "number", "boolean"] });
    let or_reference = |schema: Value| json!([schema, { "type": "string", "pattern": REFERENCE }]);
    let forms = match row.form {
        Form::Size(..) => json!([{ "type": "number", "minimum": 0 }, text]),
        Form::Whole(min, max) | Form::Seconds(min, max) => {
            or_reference(json!({ "type": "integer", "minimum": min, "maximum": max }))
        }
        Form::Number(min, max) | Form::Minutes(min, max) => {
            or_reference(json!({ "type": "number", "minimum": min, "maximum": max }))
        }
        Form::OneOf(words) => {
            // YAML has a type for these two words.
            let switches = [true, false].map(Value::from).into_iter();
            let switches = switches.filter(|it| words.contains(&&*it.to_string()));
            let all = words.iter().map(|word| Value::from(*word)).chain(switches);
            or_reference(json!({ "enum": all.collect::<Vec<_>>() }))
        }
        Form::List(..) | Form::Secrets(_) => json!([text, { "type": "array", "items": item }]),
        Form::Secret(_) | Form::Words(_) => json!([item]),
    };
    let mut schema = Map::new();
    schema.insert("description".into(), format!("{} ({})", row.description, row.name).into());
    schema.insert("anyOf".into(), forms);
    if !row.default.is_empty() {
        schema.insert("default".into(), row.default.into());
    }
    schema.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_may_be_a_word_or_what_yaml_makes_of_it() {
        for row in table::rows() {
            let words: Vec<_> = of(row)["anyOf"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|form| form["enum"].as_array().cloned())
                .flatten()
                .collect();
            for word in ["true", "false"] {
                let switch: Value = serde_json::from_str(word).expect("a switch");
                let has = |value: &Value| words.contains(value);
                assert_eq!(has(&word.into()), has(&switch), "{}", row.key);
            }
        }
        assert!(schema()["properties"]["runtimes"].to_string().contains("true,false"));
    }
}
