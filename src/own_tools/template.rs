//! Texts with placeholders for the arguments of a call: `{{.name}}`. Pure.

use serde_json::{Map, Value};

/// A text with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Argument(String),
}

impl Template {
    /// Parses a text. `{{"{{"}}` stands for two braces.
    ///
    /// # Errors
    /// If anything but the name of an argument is between two braces: a sentence that says what.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = vec![];
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let unclosed = || format!("{{{{ without }}}} at {:?}", short(&rest[before.len()..]));
            pieces.push(Piece::Text(before.to_owned()));
            rest = if let Some(after) = after.strip_prefix("\"{{\"}}") {
                pieces.push(Piece::Text("{{".into()));
                after
            } else {
                let (inner, after) = after.split_once("}}").ok_or_else(unclosed)?;
                let name = inner.trim().strip_prefix('.').filter(|name| is_name(name));
                let name = name.ok_or_else(|| {
                    format!("{{{{{inner}}}}} is no argument; write {{{{.name}}}} for its value")
                })?;
                pieces.push(Piece::Argument(name.to_owned()));
                after
            };
        }
        pieces.push(Piece::Text(rest.to_owned()));
        pieces.retain(|piece| *piece != Piece::Text(String::new()));
        Ok(Self(pieces))
    }

    /// The arguments that the text names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Argument(name) => Some(&**name),
            Piece::Text(_) => None,
        })
    }

    /// The text of a call: strings as they are, other values as JSON, and nothing for missing arguments.
    pub(super) fn render(&self, arguments: &Map<String, Value>) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(part) => text += part,
                Piece::Argument(name) => match arguments.get(name) {
                    None | Some(Value::Null) => {}
                    Some(Value::String(value)) => text += value,
                    Some(value) => text += &value.to_string(),
                },
            }
        }
        text
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'))
}

fn short(text: &str) -> String {
    text.chars().take(20).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn render(template: &str, arguments: Value) -> String {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        Template::parse(template).expect(template).render(&arguments)
    }

    #[test]
    fn arguments_stand_where_they_are_named() {
        let arguments =
            json!({ "a": "1 {{.b}}", "b": 2.5, "c": [true, null], "d": null, "ä-1": "ü" });
        for (template, text) in [
            ("{{.a}}", "1 {{.b}}"),
            ("<{{ .b }}|{{.c}}|{{.d}}|{{.e}}>", "<2.5|[true,null]||>"),
            ("{ } {{\"{{\"}}.a}} {{.ä-1}}", "{ } {{.a}} ü"),
            ("", ""),
        ] {
            assert_eq!(render(template, arguments.clone()), text);
        }
    }

    #[test]
    fn what_is_no_argument_is_refused() {
        for (template, why) in [
            ("a {{.b", "without }} at \"{{.b\""),
            ("{{b}}", "{{b}} is no argument"),
            ("{{if .b}}x{{end}}", "{{if .b}} is no argument"),
            ("{{.}}", "{{.}} is no argument"),
        ] {
            let error = Template::parse(template).expect_err(template);
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_an_argument_is_it_is_one_text(value in "\\PC{0,40}", before in "[^{}]{0,9}") {
            let template = format!("{before}{{{{.x}}}}{before}");
            let text = render(&template, json!({ "x": value }));
            prop_assert_eq!(text, format!("{before}{value}{before}"));
        }
    }
}
