//! The tools of an upstream, and the search in them. What an upstream says of its tools is untrusted: the number, the
//! descriptions and the schemas are limited.

use std::sync::Arc;

use model::text::without_controls;
use serde_json::{Map, Value, json};

use super::Verdict;

/// The maximum number of tools of an upstream.
pub(super) const MAX_TOOLS: usize = 1000;

/// The maximum size of an upstream's tools, in bytes of JSON.
pub(super) const MAX_BYTES: usize = 4_000_000;

/// Longest name of a tool, in bytes.
const MAX_NAME: usize = 128;

/// Longest description, in characters.
const MAX_DESCRIPTION: usize = 4000;

/// Longest summary, in characters.
const MAX_SUMMARY: usize = 200;

/// Largest schema, in bytes of JSON.
const MAX_SCHEMA: usize = 100_000;

/// A tool of an upstream.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) description: String,
    pub(super) input_schema: Arc<Map<String, Value>>,
    pub(super) output_schema: Option<Arc<Map<String, Value>>>,
    /// Whether the upstream says that the tool changes nothing.
    pub(super) read_only: bool,
}

/// The tools of an upstream, by name.
#[derive(Debug, Default)]
pub(super) struct Catalogue(Vec<Tool>);

impl Catalogue {
    /// A catalogue of these tools; of two with the same name the first.
    pub(super) fn new(mut tools: Vec<Tool>) -> Self {
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        tools.dedup_by(|a, b| a.name == b.name);
        Self(tools)
    }

    /// All tools.
    pub(super) fn tools(&self) -> &[Tool] {
        &self.0
    }

    /// The tool with this name.
    pub(super) fn tool(&self, name: &str) -> Option<&Tool> {
        let at = self.0.binary_search_by(|tool| (*tool.name).cmp(name)).ok()?;
        Some(&self.0[at])
    }
}

impl Tool {
    /// A tool as an upstream lists it; `None` if its name or its schema of arguments cannot be used. A schema of
    /// answers that is too large is left out.
    pub(super) fn listed(
        name: &str,
        title: Option<&str>,
        description: Option<&str>,
        input_schema: Arc<Map<String, Value>>,
        output_schema: Option<Arc<Map<String, Value>>>,
        read_only: bool,
    ) -> Option<Self> {
        let is_name = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.chars().all(|c| c.is_ascii_graphic() && !"\"\\`".contains(c));
        let fits = |schema: &Arc<Map<String, Value>>| size(schema) <= MAX_SCHEMA;
        if !is_name || !fits(&input_schema) {
            return None;
        }
        let text = |text: Option<&str>| {
            let lines = text.unwrap_or_default().lines();
            let lines: Vec<_> = lines.map(|line| without_controls(line.chars())).collect();
            cut(lines.join("\n"), MAX_DESCRIPTION)
        };
        Some(Self {
            name: name.to_owned(),
            title: text(title),
            description: text(description),
            input_schema,
            output_schema: output_schema.filter(fits),
            read_only,
        })
    }

    /// The first line of the description, or else the title.
    pub(super) fn summary(&self) -> &str {
        let lines = self.description.lines().chain(std::iter::once(&*self.title));
        let first = lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let end = first.char_indices().nth(MAX_SUMMARY).map_or(first.len(), |(at, _)| at);
        &first[..end]
    }

    /// The tool as programs see it.
    pub(super) fn describe(&self, verdict: Option<Verdict>) -> Value {
        let rights = match verdict {
            Some(Verdict::Allowed) => "allowed",
            Some(Verdict::Ask) => "ask",
            None => "denied",
        };
        let mut shown = json!({
            "name": self.name, "description": self.description, "input_schema": *self.input_schema,
            "read_only": self.read_only, "rights": rights,
        });
        if let Some(schema) = &self.output_schema {
            shown["output_schema"] = Value::Object((**schema).clone());
        }
        if !self.title.is_empty() {
            shown["title"] = (*self.title).into();
        }
        shown
    }

    /// How well the tool fits the words of a search; 0 if it lacks one. `context` is what is said of its upstream.
    pub(super) fn score(&self, wanted: &[String], context: &str) -> u32 {
        let (name, title) = (words(&self.name), words(&self.title));
        let (description, context) = (words(&self.description), words(context));
        let mut score = 1;
        for word in wanted {
            // An ending such as a plural's does not matter, in either direction.
            let has = |words: &[String]| {
                words.iter().any(|it| it == word || near(it, word) || near(word, it))
            };
            let is_exact = |words: &[String]| words.contains(word);
            score += match () {
                () if is_exact(&name) => 10,
                () if has(&name) => 8,
                () if has(&title) => 5,
                () if has(&description) => 3,
                () if has(&context) => 1,
                () => return 0,
            };
        }
        score
    }
}

/// Whether a word begins with another that is nearly as long.
fn near(long: &str, short: &str) -> bool {
    short.len() >= 3 && long.starts_with(short)
}

/// The words of a text in lower case. Those of a name in camel case are also words.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut before = ' ';
    for c in text.chars() {
        let begins = before.is_lowercase() && c.is_uppercase();
        if !c.is_alphanumeric() || begins {
            all.push(String::new());
        }
        if c.is_alphanumeric() {
            all.last_mut().expect("never empty").extend(c.to_lowercase());
        }
        before = c;
    }
    all.retain(|word| !word.is_empty());
    all
}

/// The size of a schema, in bytes of JSON.
pub(super) fn size(schema: &Map<String, Value>) -> usize {
    serde_json::to_vec(schema).map_or(usize::MAX, |json| json.len())
}

/// Cuts a text after this many characters.
pub(super) fn cut(mut text: String, most: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(most) {
        text.truncate(at);
        text.push('…');
    }
    text
}
