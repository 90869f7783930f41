//! The arguments of a call: corrected if the intent is clear, otherwise refused with what to do. Pure.
//!
//! ```text
//! JSON of the call --> other names --> what is there? --> numbers, switches, choices --> the tool's own type
//!                         |               |                     |
//!                    two at once    unknown, missing       of another type
//! ```
//!
//! A tool's input schema is complete, and calls are checked against it here. Clients see less of it ([`shown`]), as a
//! model reads each word of a schema in every conversation.

use model::text::{nearest, quoted};
use rmcp::model::JsonObject;
use serde_json::{Map, Number, Value, json};

use super::results::text::MAX_OFFSET;
use crate::{
    error::{Error, Result},
    notes::{Note, Notes},
};

/// Maximum number of unknown arguments that an error names.
const MAX_UNKNOWN: usize = 4;

/// Marks an argument that clients do not see, because it stands for another or does not work for them.
const HIDDEN: &str = "hidden";

/// Choices that clients see and that the tool itself checks, as they depend on what new sandboxes contain.
pub(super) const SHOWN_CHOICES: &str = "choices";

/// The same property, not shown to clients.
pub(super) fn hidden(mut property: Value) -> Value {
    property[HIDDEN] = true.into();
    property
}

/// The part of an input schema that clients see: names, types, choices and descriptions. Bounds are in the descriptions
/// if they matter, and are checked here.
pub(super) fn shown(schema: &Value) -> JsonObject {
    let mut properties = Map::new();
    for (name, property) in visible(schema) {
        let kept = [("type", "type"), ("enum", "enum"), (SHOWN_CHOICES, "enum")];
        let described = ("description", "description");
        let kept = kept.into_iter().chain([described]);
        let kept = kept.map(|(key, shown)| Some((shown.to_owned(), property.get(key)?.clone())));
        properties.insert(name.clone(), Value::Object(kept.flatten().collect()));
    }
    let mut shown = Map::new();
    shown.insert("type".into(), "object".into());
    shown.insert("properties".into(), properties.into());
    if let Some(required) = schema["required"].as_array().filter(|names| !names.is_empty()) {
        shown.insert("required".into(), json!(required));
    }
    shown
}

fn visible(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let all = schema["properties"].as_object().into_iter().flatten();
    all.filter(|(_, property)| property.get(HIDDEN).is_none())
}

/// The arguments of one tool.
#[derive(Debug)]
pub(super) struct Arguments {
    pub(super) tool: &'static str,
    /// The tool's input schema.
    pub(super) schema: Value,
    /// Other names of arguments, each with its name in the schema.
    pub(super) aliases: &'static [(&'static str, &'static str)],
    /// Adds arguments that follow from others.
    pub(super) imply: fn(&mut JsonObject),
}

impl Arguments {
    /// Returns the arguments as the schema has them, with notes on how they were corrected.
    ///
    /// # Errors
    /// If the intent is not clear. The error names all unknown and missing arguments at once.
    pub(super) fn read(&self, given: JsonObject) -> Result<(JsonObject, Notes)> {
        let mut given = self.by_their_names(given)?;
        // An argument that is null, or an empty session_id, counts as not given.
        let is_given = |name: &str, value: &Value| {
            !value.is_null() && (name != "session_id" || value.as_str() != Some(""))
        };
        given.retain(|name, value| is_given(name, value));
        (self.imply)(&mut given);
        self.check_names(&given)?;
        let mut notes = Notes::default();
        for (name, value) in &mut given {
            let property = &self.schema["properties"][name];
            match property["type"].as_str() {
                Some("integer") => read_number(name, property, value, &mut notes)?,
                Some("boolean") => read_switch(name, value)?,
                _ => read_text(name, property, value)?,
            }
        }
        Ok((given, notes))
    }

    fn by_their_names(&self, mut given: JsonObject) -> Result<JsonObject> {
        for (alias, name) in self.aliases {
            let Some(value) = given.remove(*alias).filter(|value| !value.is_null()) else {
                continue;
            };
            if given.get(*name).is_some_and(|value| !value.is_null()) {
                let mut names: Vec<_> =
                    self.aliases.iter().filter(|(_, of)| of == name).map(|(it, _)| *it).collect();
                names.insert(0, name);
                return Err(Error::InvalidArgument(format!(
                    "{} mean the same argument. Give only {name}.",
                    names.join(", ")
                )));
            }
            given.insert((*name).to_owned(), value);
        }
        Ok(given)
    }

    fn check_names(&self, given: &JsonObject) -> Result<()> {
        let properties = &self.schema["properties"];
        let unknown: Vec<_> =
            given.keys().filter(|name| properties.get(name).is_none()).map(|it| &**it).collect();
        let required = self.schema["required"].as_array().into_iter().flatten();
        let missing: Vec<_> =
            required.filter_map(Value::as_str).filter(|name| !given.contains_key(*name)).collect();
        if unknown.is_empty() && missing.is_empty() {
            return Ok(());
        }
        let known: Vec<_> = visible(&self.schema).map(|(name, _)| &**name).collect();
        let mut why = vec![];
        if !unknown.is_empty() {
            let named = unknown.iter().take(MAX_UNKNOWN).map(|name| {
                let meant = self.meant(name, &known);
                let meant = meant.map(|known| format!(" (did you mean {known}?)"));
                quoted(name) + &meant.unwrap_or_default()
            });
            let more = match unknown.len().saturating_sub(MAX_UNKNOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named = named.collect::<Vec<_>>().join(", ");
            let s = if unknown.len() == 1 { "" } else { "s" };
            why.push(format!("Unknown argument{s}: {named}{more}."));
        }
        if !missing.is_empty() {
            let named = missing.iter().map(|name| match *name {
                "session_id" => "session_id (from an earlier result)",
                "run_id" => "run_id (from the result of a run)",
                "filename" => "filename (such as sales.csv)",
                name => name,
            });
            why.push(format!("{} needs {}.", self.tool, named.collect::<Vec<_>>().join(", ")));
        }
        if !unknown.is_empty() {
            why.push(format!("{} takes {}.", self.tool, known.join(", ")));
        }
        Err(Error::InvalidArgument(why.join(" ")))
    }

    /// The argument that a misspelt name probably stands for.
    fn meant<'a>(&self, name: &str, known: &[&'a str]) -> Option<&'a str> {
        let aliases = self.aliases.iter().map(|(alias, _)| *alias);
        let all = known.iter().copied().chain(aliases);
        let near = nearest(name, all, 1).next()?;
        let of = self.aliases.iter().find(|(alias, _)| *alias == near).map_or(near, |(_, of)| of);
        known.iter().copied().find(|known| *known == of)
    }
}

/// Reads a whole number, and moves it into its bounds. Clients without integers write 30 as 30.0, and models as "30".
fn read_number(name: &str, property: &Value, value: &mut Value, notes: &mut Notes) -> Result<()> {
    let least = property["minimum"].as_u64().unwrap_or(0);
    let most = property["maximum"].as_u64().unwrap_or(MAX_OFFSET);
    let refuse = |value: &Value| {
        let most = if most == MAX_OFFSET { String::new() } else { format!(" to {most}") };
        let number = format!("{name} must be a whole number from {least}{most}");
        Err(Error::InvalidArgument(format!("{number}, not {}.", what(value))))
    };
    let number = match &*value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => number_in(text),
        _ => None,
    };
    let Some(number) = number.filter(|number| number.fract() == 0.0) else {
        return refuse(value);
    };
    #[expect(clippy::cast_precision_loss, reason = "the bounds are small enough to be exact")]
    let (low, high) = (least as f64, most as f64);
    let used = if number < low {
        least
    } else if number > high {
        most
    } else {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number within the bounds"
        )]
        {
            number as u64
        }
    };
    let given = std::mem::replace(value, Number::from(used).into());
    if number < low || number > high {
        let argument = name.to_owned();
        notes.push(Note::Clamped { argument, given, is_more: number > high, used });
    }
    Ok(())
}

/// Reads a text as a number. Rust also reads texts, such as "inf", that nothing else takes for numbers: these are
/// refused.
fn number_in(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
    if text.chars().all(is_plain) {
        text.parse().ok().filter(|n: &f64| n.is_finite())
    } else {
        None
    }
}

fn read_switch(name: &str, value: &mut Value) -> Result<()> {
    if let Some(text) = value.as_str() {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" => *value = true.into(),
            "false" => *value = false.into(),
            _ => {}
        }
    }
    if value.is_boolean() {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{name} must be true or false, not {}.", what(value))))
}

fn read_text(name: &str, property: &Value, value: &mut Value) -> Result<()> {
    let Some(text) = value.as_str() else {
        let how =
            if value.is_array() || value.is_object() { " Write it as one string." } else { "" };
        let why = format!("{name} must be a string, not {}.{how}", what(value));
        return Err(Error::InvalidArgument(why));
    };
    let Some(choices) = property["enum"].as_array() else { return Ok(()) };
    let choices: Vec<_> = choices.iter().filter_map(Value::as_str).collect();
    let chosen = choices.iter().find(|choice| choice.eq_ignore_ascii_case(text.trim()));
    let Some(chosen) = chosen else {
        let why = format!("{name} must be one of {}, not {}.", choices.join(", "), quoted(text));
        return Err(Error::InvalidArgument(why));
    };
    *value = (*chosen).into();
    Ok(())
}

/// Describes a value of a wrong type, in the words of JSON.
fn what(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arguments() -> Arguments {
        let schema = json!({
            "type": "object",
            "properties": {
                "session_id": { "type": "string", "pattern": "^a$" },
                "path": { "type": "string", "description": "Where." },
                "format": { "type": "string", "enum": ["auto", "base64"], "default": "auto" },
                "length": { "type": "integer", "minimum": 1, "maximum": 60 },
                "offset": { "type": "integer", "minimum": 0 },
                "overwrite": { "type": "boolean" },
                "language": { "type": "string", "hidden": true },
            },
            "required": ["session_id", "path"],
            "additionalProperties": false,
        });
        let aliases = &[("file_name", "path"), ("filename", "path")];
        Arguments { tool: "read_file", schema, aliases, imply: |_| {} }
    }

    fn read(more: Value) -> Result<(Value, Vec<String>)> {
        let mut all = json!({ "session_id": "s", "path": "a" });
        for (name, value) in more.as_object().expect("an object") {
            all[name] = value.clone();
        }
        let Value::Object(all) = all else { unreachable!() };
        let (read, notes) = arguments().read(all)?;
        Ok((read.into(), notes.sentences().collect()))
    }

    #[track_caller]
    fn refusal(more: Value) -> String {
        let error = read(more).expect_err("refused");
        assert_eq!(error.code(), "invalid_argument");
        let message = error.to_string();
        for of_rust in ["f64", "u64", "i64", "invalid type", "expected", "variant", "field"] {
            assert!(!message.contains(of_rust), "{message}");
        }
        message
    }

    #[test]
    fn numbers_are_read_as_they_are_meant() {
        for (given, used) in
            [(json!(30), 30), (json!(30.0), 30), (json!("30"), 30), (json!(" 30.0 "), 30)]
        {
            let (read, notes) = read(json!({ "length": given })).expect("read");
            assert_eq!((&read["length"], notes.len()), (&json!(used), 0), "{given}");
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_the_nearest_that_are_not_and_noted() {
        for (given, used, note) in [
            (json!(120), 60, "length 120 is more than the limit of 60; 60 was used."),
            (json!("120"), 60, "length \"120\" is more than the limit of 60; 60 was used."),
            (json!(0), 1, "length 0 is less than 1; 1 was used."),
            (json!(-5), 1, "length -5 is less than 1; 1 was used."),
            (json!(1e308), 60, "length 1e+308 is more than the limit of 60; 60 was used."),
        ] {
            let (read, notes) = read(json!({ "length": given })).expect("read");
            assert_eq!((&read["length"], &notes[..]), (&json!(used), &[note.to_owned()][..]));
        }
        let (read, notes) = read(json!({ "offset": u64::MAX })).expect("read");
        assert_eq!((&read["offset"], notes.len()), (&json!(MAX_OFFSET), 1));
    }

    #[test]
    fn switches_and_choices_are_read_as_they_are_meant() {
        let (given, _) = read(json!({ "overwrite": " True", "format": "BASE64 " })).expect("read");
        assert_eq!((&given["overwrite"], &given["format"]), (&json!(true), &json!("base64")));
        let (given, _) = read(json!({ "overwrite": "false" })).expect("read");
        assert_eq!(given["overwrite"], false);
    }

    #[test]
    fn what_is_null_is_as_if_it_was_left_out() {
        let all = json!({ "length": null, "format": null, "overwrite": null, "filename": null });
        let (given, _) = read(all).expect("read");
        assert_eq!(given, json!({ "session_id": "s", "path": "a" }));
        assert_eq!(refusal(json!({ "path": null })), "read_file needs path.");
    }

    #[test]
    fn another_name_of_an_argument_is_taken_but_not_two() {
        let (given, _) = read(json!({ "path": null, "filename": "b" })).expect("read");
        assert_eq!(given["path"], "b");
        for two in
            [json!({ "filename": "b" }), json!({ "path": null, "filename": "b", "file_name": "b" })]
        {
            let why = "path, file_name, filename mean the same argument. Give only path.";
            assert_eq!(refusal(two), why);
        }
    }

    #[test]
    fn unknown_and_missing_arguments_are_named_all_at_once() {
        assert_eq!(
            refusal(json!({ "lenght": 1, "colour": 2, "session_id": null })),
            "Unknown arguments: \"colour\", \"lenght\" (did you mean length?). read_file needs \
             session_id (from an earlier result). read_file takes format, length, offset, overwrite, path, \
             session_id."
        );
        let many: Map<_, _> = (0..600).map(|n| (format!("x\u{1b}{n}"), json!(n))).collect();
        let message = refusal(many.into());
        assert!(message.contains("and 596 more") && message.len() < 600, "{message}");
        let message = refusal(json!({ "x\u{1b}".repeat(500_000): 1 }));
        assert!(message.len() < 600 && !message.contains(char::is_control), "{message}");
        assert_eq!(
            refusal(json!({ "hidden": 1, "filenam": 1 })).matches("did you mean path").count(),
            1
        );
    }

    #[test]
    fn what_is_of_another_type_is_told_in_plain_words() {
        for (given, why) in [
            (json!({ "length": 1.5 }), "length must be a whole number from 1 to 60, not 1.5."),
            (
                json!({ "length": "soon" }),
                "length must be a whole number from 1 to 60, not \"soon\".",
            ),
            (
                json!({ "length": "inf" }),
                "length must be a whole number from 1 to 60, not \"inf\".",
            ),
            (json!({ "length": true }), "length must be a whole number from 1 to 60, not true."),
            (json!({ "offset": [] }), "offset must be a whole number from 0, not a list."),
            (json!({ "overwrite": 1 }), "overwrite must be true or false, not 1."),
            (json!({ "path": 7 }), "path must be a string, not 7."),
            (
                json!({ "path": ["a"] }),
                "path must be a string, not a list. Write it as one string.",
            ),
            (json!({ "format": "hex" }), "format must be one of auto, base64, not \"hex\"."),
        ] {
            assert_eq!(refusal(given), why);
        }
    }

    #[test]
    fn clients_are_shown_what_a_model_has_to_read() {
        let lean = json!({
            "type": "object",
            "properties": {
                "session_id": { "type": "string" },
                "path": { "type": "string", "description": "Where." },
                "format": { "type": "string", "enum": ["auto", "base64"] },
                "length": { "type": "integer" },
                "offset": { "type": "integer" },
                "overwrite": { "type": "boolean" },
            },
            "required": ["session_id", "path"],
        });
        assert_eq!(Value::Object(shown(&arguments().schema)), lean);
    }

    proptest! {
        #[test]
        fn numbers_are_within_their_bounds_or_refused(number: f64, text in "[-+]?[0-9.]{0,6}") {
            for given in [json!(number), json!(text)] {
                if let Ok((read, _)) = read(json!({ "length": given, "offset": given })) {
                    // A number that JSON cannot express becomes null.
                    if !given.is_null() {
                        prop_assert!((1..=60).contains(&read["length"].as_u64().expect("a number")));
                        prop_assert!(read["offset"].as_u64().expect("a number") <= MAX_OFFSET);
                    }
                }
            }
        }
    }
}
