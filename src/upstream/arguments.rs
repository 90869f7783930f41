//! A light check of arguments before a call: names that are missing or unknown, and types. The upstream checks the rest.
//! Pure, and its time grows only with the length of schema and arguments.

use model::text::{nearest, quoted};
use serde_json::{Map, Value};

/// The maximum number of values or names that a message lists.
const MAX_LISTED: usize = 20;

/// Keywords with which a schema can have arguments that `properties` does not.
const OTHERS: [&str; 8] = [
    "patternProperties",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
    "$dynamicRef",
];

/// Checks arguments against the schema of a tool. The message is for the model.
pub(super) fn check(schema: &Map<String, Value>, given: &Map<String, Value>) -> Result<(), String> {
    let none = Map::new();
    let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let missing = required.filter_map(Value::as_str).filter(|name| !given.contains_key(*name));
    let missing: Vec<_> = missing.take(MAX_LISTED).collect();
    if !missing.is_empty() {
        let is_or_are = if missing.len() == 1 { "is" } else { "are" };
        return Err(format!("{} {is_or_are} missing", missing.join(", ")));
    }
    let is_closed = match schema.get("additionalProperties") {
        Some(others) => *others == Value::Bool(false),
        None => !known.is_empty(),
    };
    let is_closed = is_closed && !OTHERS.iter().any(|keyword| schema.contains_key(*keyword));
    let is_unknown = |name: &&String| is_closed && !known.contains_key(*name);
    if let Some(name) = given.keys().find(is_unknown) {
        let names = || known.keys().map(String::as_str);
        let meant = match nearest(name, names(), 1).next() {
            Some(near) => format!("; did you mean {near}?"),
            None if known.is_empty() => "; there are none".into(),
            None => {
                let listed: Vec<_> = names().take(MAX_LISTED).collect();
                format!("; there are: {}", listed.join(", "))
            }
        };
        return Err(format!("there is no argument {}{meant}", quoted(name)));
    }
    for (name, value) in given {
        if let Some(schema) = known.get(name).and_then(Value::as_object) {
            check_value(schema, value).map_err(|why| format!("{name}: {why}"))?;
        }
    }
    Ok(())
}

/// Checks the type of a value, and whether it is one of those that the schema lists.
fn check_value(schema: &Map<String, Value>, value: &Value) -> Result<(), String> {
    let types: Vec<_> = match schema.get("type") {
        Some(Value::String(name)) => vec![&**name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    if !types.is_empty() && !types.iter().any(|name| is_of(name, value)) {
        return Err(format!("is {}, and must be of type {}", kind(value), types.join(" or ")));
    }
    if let Some(Value::Array(all)) = schema.get("enum")
        && !all.contains(value)
    {
        let shown = all.iter().take(MAX_LISTED).map(ToString::to_string).collect::<Vec<_>>();
        return Err(format!("must be one of {}", shown.join(", ")));
    }
    Ok(())
}

/// Whether a value has a type of JSON Schema. Unknown types fit every value.
fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|it| it.fract() == 0.0)
        }
        _ => true,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(schema: Value, given: Value) -> Result<(), String> {
        let object = |value: Value| value.as_object().expect("an object").clone();
        check(&object(schema), &object(given))
    }

    #[test]
    fn missing_unknown_and_wrong_arguments_are_told_by_name() {
        let schema = json!({
            "properties": {
                "query": { "type": "string" },
                "limit": { "type": ["integer", "null"] },
                "order": { "enum": ["up", "down"] },
            },
            "required": ["query"],
        });
        let with = |given| checked(schema.clone(), given);
        assert_eq!(with(json!({ "query": "x", "limit": null, "order": "up" })), Ok(()));
        assert_eq!(with(json!({ "query": "x", "limit": 2.0 })), Ok(()));
        for (given, why) in [
            (json!({}), "query is missing"),
            (json!({ "query": "x", "limits": 1 }), "\"limits\"; did you mean limit?"),
            (json!({ "query": 1 }), "query: is a number, and must be of type string"),
            (json!({ "query": "x", "limit": 1.5 }), "must be of type integer or null"),
            (json!({ "query": "x", "order": "left" }), "must be one of \"up\", \"down\""),
        ] {
            let told = with(given).expect_err("refused");
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn a_schema_that_leaves_other_arguments_open_has_them_passed_on() {
        for schema in [
            json!({}),
            json!({ "properties": {} }),
            json!({ "properties": { "a": {} }, "additionalProperties": true }),
            json!({ "properties": { "a": {} }, "anyOf": [{ "properties": { "b": {} } }] }),
            json!({ "properties": 7, "required": "x", "type": [] }),
        ] {
            assert_eq!(checked(schema, json!({ "b": 1 })), Ok(()));
        }
        assert!(checked(json!({ "additionalProperties": false }), json!({ "b": 1 })).is_err());
    }
}
