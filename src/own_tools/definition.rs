//! The definition of a tool, read from JSON and checked; all mistakes are reported at once.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use model::text::{nearest, quoted};
use serde_json::{Map, Value, json};

use super::{check::Validator, template::Template};

/// Longest name of a tool, as models' interfaces accept.
const MAX_NAME: usize = 64;

/// Longest time of a call, in seconds.
const MAX_DEADLINE: f64 = 86_400.0;

/// Least and most memory of a call, in mebibytes. A 32-bit module cannot have more.
const MEMORY_MB: std::ops::RangeInclusive<u64> = 1..=4096;

const FIELDS: [&str; 17] = [
    "enabled",
    "name",
    "description",
    "schema",
    "required",
    "wasm_file",
    "mnt_dir",
    "files",
    "argv",
    "env",
    "stdin",
    "fuel",
    "fuel_enabled",
    "deadline",
    "deadline_enabled",
    "memory_mb",
    "readonly_dirs",
];

/// A tool as its operator has defined it.
#[derive(Debug, Clone)]
pub(super) struct Definition {
    /// The place that it was read from.
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) description: String,
    /// JSON Schema of an object.
    pub(super) schema: Value,
    pub(super) module: PathBuf,
    /// The tool's folder, as its program names it: absolute, and without a trailing slash.
    pub(super) folder: String,
    /// Files by path relative to the folder.
    pub(super) files: Vec<(String, Template)>,
    pub(super) argv: Vec<Template>,
    pub(super) env: Vec<(String, Template)>,
    pub(super) stdin: Template,
    /// Limit of instructions of a call, if there is one.
    pub(super) fuel: Option<u64>,
    pub(super) deadline: Duration,
    /// Bytes.
    pub(super) memory: u64,
    /// Folders of the host, by the absolute path at which the program finds them.
    pub(super) shown: Vec<(String, PathBuf)>,
}

/// The place of a definition: its file and, in a file with several, its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    /// `[2]`, or nothing.
    number: String,
}

impl Place {
    /// A mistake in a field of the definition.
    pub(super) fn mistake(&self, field: &str, why: impl Into<String>) -> Mistake {
        let dot = if self.number.is_empty() || field.is_empty() { "" } else { "." };
        let field = format!("{}{dot}{field}", self.number);
        Mistake { file: self.file.clone(), field, why: why.into() }
    }
}

/// The values for fields that a definition leaves out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    pub(super) fuel: Option<u64>,
    pub(super) deadline: Duration,
    /// Bytes.
    pub(super) memory: u64,
}

/// A mistake in a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) file: PathBuf,
    /// The field, unless the file itself is the mistake: `argv[1]`, or `[2].argv[1]` in a file with several
    /// definitions.
    pub(super) field: String,
    pub(super) why: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.why)
    }
}

/// Reads the definitions in a file: one, or an array of them. Definitions that are not enabled are skipped.
pub(super) fn read(
    file: &Path,
    defaults: Defaults,
    mistakes: &mut Vec<Mistake>,
) -> Vec<Definition> {
    let place = |number| Place { file: file.to_owned(), number };
    let mut at_top = |why: String| {
        mistakes.push(place(String::new()).mistake("", why));
        vec![]
    };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return at_top(format!("it cannot be read: {error}")),
    };
    let all = match serde_json::from_str(&text) {
        Ok(Value::Array(all)) => all,
        Ok(one @ Value::Object(_)) => {
            let read = Reader::read(place(String::new()), defaults, &one, mistakes);
            return read.into_iter().collect();
        }
        Ok(_) => return at_top("it must be an object, or an array of objects".into()),
        Err(error) => return at_top(format!("it is not JSON: {error}")),
    };
    let all = all.iter().enumerate();
    all.filter_map(|(n, one)| Reader::read(place(format!("[{n}]")), defaults, one, mistakes))
        .collect()
}

struct Reader {
    place: Place,
    defaults: Defaults,
    mistakes: Vec<Mistake>,
}

impl Reader {
    fn read(
        place: Place,
        defaults: Defaults,
        value: &Value,
        mistakes: &mut Vec<Mistake>,
    ) -> Option<Definition> {
        let mut reader = Self { place, defaults, mistakes: vec![] };
        let read = reader.definition(value);
        mistakes.extend(reader.mistakes);
        read
    }

    fn wrong(&mut self, field: &str, why: impl Into<String>) {
        self.mistakes.push(self.place.mistake(field, why));
    }

    fn definition(&mut self, value: &Value) -> Option<Definition> {
        let Value::Object(fields) = value else {
            self.wrong("", "it must be an object");
            return None;
        };
        if !self.flag(fields, "enabled", true) {
            return None;
        }
        for name in fields.keys().filter(|name| !FIELDS.contains(&&***name)) {
            let near = nearest(name, FIELDS.into_iter(), 1).next();
            let near = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
            self.wrong(name, format!("there is no such field{near}"));
        }
        let name = self.name(fields);
        let description = self.text(fields, "description").unwrap_or_else(|| {
            self.missing(fields, "description", "what a model is told of it");
            String::new()
        });
        let schema = self.schema(fields);
        let arguments: BTreeSet<_> = schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        let module = self.module(fields);
        let folder = match self.text(fields, "mnt_dir") {
            None => "/".to_owned(),
            Some(path) => self.guest_path("mnt_dir", &path),
        };
        let files = self.texts(fields, "files", &arguments);
        for (path, _) in &files {
            if !is_beneath(path) {
                let why = "it must be a relative path of a file in mnt_dir, without ..";
                self.wrong(&format!("files.{path}"), why);
            }
            if files.iter().any(|(other, _)| other.starts_with(&format!("{path}/"))) {
                self.wrong(&format!("files.{path}"), "another file lies in a folder of that name");
            }
        }
        let argv = self.argv(fields, &name, &arguments);
        let env = self.texts(fields, "env", &arguments);
        for (name, _) in &env {
            if name.is_empty() || name.contains(['=', '\0']) {
                self.wrong(&format!("env.{name}"), "it is no name of a variable");
            }
        }
        let stdin = self.text(fields, "stdin").unwrap_or_default();
        let stdin = self.template("stdin", &stdin, &arguments);
        let fuel = self.fuel(fields);
        let deadline = self.deadline(fields);
        let memory = self.memory(fields);
        let shown = self.shown(fields, &folder);
        self.mistakes.is_empty().then_some(Definition {
            place: self.place.clone(),
            name,
            description,
            schema,
            module,
            folder,
            files,
            argv,
            env,
            stdin,
            fuel,
            deadline,
            memory,
            shown,
        })
    }

    /// Reports that a field is missing, unless it exists; then another mistake was reported.
    fn missing(&mut self, fields: &Map<String, Value>, field: &str, what: &str) {
        if !fields.contains_key(field) {
            self.wrong(field, format!("it is missing: {what}"));
        }
    }

    fn text(&mut self, fields: &Map<String, Value>, field: &str) -> Option<String> {
        let text = fields.get(field)?.as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong(field, "it must be a text");
        }
        text
    }

    fn flag(&mut self, fields: &Map<String, Value>, field: &str, usual: bool) -> bool {
        match fields.get(field) {
            None => usual,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.wrong(field, "it must be true or false");
                usual
            }
        }
    }

    fn name(&mut self, fields: &Map<String, Value>) -> String {
        let name = self.text(fields, "name").unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() {
            self.missing(fields, "name", "what clients call it by");
        }
        if fields.get("name").is_some_and(Value::is_string)
            && (name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain))
        {
            let why =
                format!("it must be 1 to {MAX_NAME} of the characters A-Z, a-z, 0-9, _ and -");
            self.wrong("name", why);
        }
        name
    }

    fn schema(&mut self, fields: &Map<String, Value>) -> Value {
        let mut schema = fields.get("schema").cloned().unwrap_or_else(|| json!({}));
        let Some(object) = schema.as_object_mut() else {
            self.wrong("schema", "it must be an object, a JSON Schema");
            return json!({});
        };
        if object.entry("type").or_insert_with(|| "object".into()) != "object" {
            self.wrong("schema.type", "it must be \"object\", as arguments have names");
        }
        if !object.entry("properties").or_insert_with(|| json!({})).is_object() {
            self.wrong("schema.properties", "it must be an object, the arguments by name");
        }
        let names: Vec<_> = object["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        if let Some(required) = fields.get("required") {
            object.insert("required".into(), required.clone());
        }
        let required = object.get("required").cloned().unwrap_or_else(|| json!([]));
        for name in required.as_array().unwrap_or(&vec![]) {
            if !name.as_str().is_some_and(|name| names.iter().any(|known| known == name)) {
                self.wrong("required", format!("{name} is not among schema.properties"));
            }
        }
        if let Err(why) = Validator::of(&schema) {
            match why.split_once(": ") {
                Some((at, why)) => self.wrong(&format!("schema.{at}"), why),
                None => self.wrong("schema", why),
            }
        }
        schema
    }

    fn module(&mut self, fields: &Map<String, Value>) -> PathBuf {
        let Some(given) = self.text(fields, "wasm_file") else {
            self.missing(fields, "wasm_file", "the program, a file of WebAssembly");
            return PathBuf::new();
        };
        self.host_path("wasm_file", &given, Path::is_file, "file")
    }

    /// Resolves a path on the host: next to the definition, or in the folder in which the server was started.
    fn host_path(
        &mut self,
        field: &str,
        given: &str,
        is_it: impl Fn(&Path) -> bool,
        what: &str,
    ) -> PathBuf {
        let beside = self.place.file.parent().unwrap_or(Path::new("")).join(given);
        let found = [beside.clone(), PathBuf::from(given)].into_iter().find(|path| is_it(path));
        let found = found.and_then(|path| std::path::absolute(path).ok());
        found.unwrap_or_else(|| {
            self.wrong(field, format!("there is no {what} {}", beside.display()));
            beside
        })
    }

    /// Checks an absolute path of the program, and removes a trailing slash.
    fn guest_path(&mut self, field: &str, path: &str) -> String {
        let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if !path.starts_with('/') || parts.contains(&"..") || path.contains('\0') {
            self.wrong(field, "it must be an absolute path without ..");
        }
        format!("/{}", parts.join("/"))
    }

    fn template(&mut self, field: &str, text: &str, arguments: &BTreeSet<String>) -> Template {
        let template = Template::parse(text).unwrap_or_else(|why| {
            self.wrong(field, why);
            Template::parse("").expect("an empty template has no mistake")
        });
        for name in template.names().filter(|name| !arguments.contains(*name)) {
            self.wrong(field, format!("{{{{.{name}}}}} is not among schema.properties"));
        }
        template
    }

    /// Texts by name.
    fn texts(
        &mut self,
        fields: &Map<String, Value>,
        field: &str,
        arguments: &BTreeSet<String>,
    ) -> Vec<(String, Template)> {
        let Some(value) = fields.get(field) else { return vec![] };
        let Value::Object(texts) = value else {
            self.wrong(field, "it must be an object of texts");
            return vec![];
        };
        let mut read = vec![];
        for (name, value) in texts {
            let field = format!("{field}.{name}");
            match value {
                Value::String(text) => {
                    read.push((name.clone(), self.template(&field, text, arguments)));
                }
                _ => self.wrong(&field, "it must be a text"),
            }
        }
        read
    }

    fn argv(
        &mut self,
        fields: &Map<String, Value>,
        name: &str,
        arguments: &BTreeSet<String>,
    ) -> Vec<Template> {
        let own = json!([name]);
        let Value::Array(texts) = fields.get("argv").unwrap_or(&own) else {
            self.wrong("argv", "it must be an array of texts");
            return vec![];
        };
        let mut read = vec![];
        for (n, value) in texts.iter().enumerate() {
            let field = format!("argv[{n}]");
            match value {
                Value::String(text) => read.push(self.template(&field, text, arguments)),
                _ => self.wrong(&field, "it must be a text"),
            }
        }
        read
    }

    fn fuel(&mut self, fields: &Map<String, Value>) -> Option<u64> {
        let given = fields.get("fuel");
        let is_enabled = self.flag(fields, "fuel_enabled", given.is_some());
        let fuel = match given {
            None if fields.get("fuel_enabled") == Some(&true.into()) => {
                self.wrong("fuel", "it is missing, though fuel_enabled is true");
                None
            }
            None => self.defaults.fuel,
            Some(value) => {
                let fuel = whole(value).filter(|fuel| *fuel > 0);
                if fuel.is_none() {
                    self.wrong("fuel", "it must be a whole number of instructions, 1 or more");
                }
                fuel
            }
        };
        fuel.filter(|_| is_enabled || given.is_none() && fields.get("fuel_enabled").is_none())
    }

    fn deadline(&mut self, fields: &Map<String, Value>) -> Duration {
        let given = fields.get("deadline");
        let is_enabled = self.flag(fields, "deadline_enabled", given.is_some());
        let Some(value) = given else {
            if is_enabled {
                self.wrong("deadline", "it is missing, though deadline_enabled is true");
            }
            return self.defaults.deadline;
        };
        let seconds = value.as_f64().filter(|seconds| *seconds > 0.0 && *seconds <= MAX_DEADLINE);
        match seconds {
            None => {
                self.wrong(
                    "deadline",
                    format!("it must be seconds, more than 0 and at most {MAX_DEADLINE}"),
                );
                self.defaults.deadline
            }
            // Without a deadline of its own the tool has the default one: no call runs forever.
            Some(_) if !is_enabled => self.defaults.deadline,
            Some(seconds) => Duration::from_secs_f64(seconds),
        }
    }

    fn memory(&mut self, fields: &Map<String, Value>) -> u64 {
        let Some(value) = fields.get("memory_mb") else { return self.defaults.memory };
        let bytes = whole(value).filter(|mb| MEMORY_MB.contains(mb)).map(|mb| mb << 20);
        bytes.unwrap_or_else(|| {
            let (least, most) = MEMORY_MB.into_inner();
            self.wrong("memory_mb", format!("it must be a whole number from {least} to {most}"));
            self.defaults.memory
        })
    }

    fn shown(&mut self, fields: &Map<String, Value>, folder: &str) -> Vec<(String, PathBuf)> {
        let Some(value) = fields.get("readonly_dirs") else { return vec![] };
        let Value::Object(folders) = value else {
            self.wrong("readonly_dirs", "it must be an object: the program's path and the folder");
            return vec![];
        };
        let mut read: Vec<(String, PathBuf)> = vec![];
        for (path, value) in folders {
            let field = format!("readonly_dirs.{path}");
            let Value::String(given) = value else {
                self.wrong(&field, "it must be the path of a folder");
                continue;
            };
            let path = self.guest_path(&field, path);
            if path == "/" || path == folder || read.iter().any(|(other, _)| *other == path) {
                self.wrong(&field, "another folder is there");
            }
            let found = self.host_path(&field, given, Path::is_dir, "folder");
            read.push((path, found));
        }
        read
    }
}

/// A whole number, even if it is written with a decimal point.
fn whole(value: &Value) -> Option<u64> {
    let exact = |number: f64| number.fract() == 0.0 && (0.0..9e15).contains(&number);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is one")]
    let rounded = || value.as_f64().filter(|it| exact(*it)).map(|it| it as u64);
    value.as_u64().or_else(rounded)
}

/// Whether a relative path leads to a file within its folder.
fn is_beneath(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    !path.starts_with('/')
        && !path.contains('\0')
        && !path.split('/').any(|part| part == "..")
        && !matches!(name, "" | ".")
}

/// The mistakes of several definitions together: names that are taken.
pub(super) fn check_names(
    definitions: &[Definition],
    taken: impl Fn(&str) -> bool,
) -> Vec<Mistake> {
    let mut names = BTreeSet::new();
    let mut mistakes = vec![];
    for Definition { place, name, .. } in definitions {
        if taken(name) {
            let why = format!("{} is the name of a tool of the server's own", quoted(name));
            mistakes.push(place.mistake("name", why));
        } else if !names.insert(name) {
            mistakes
                .push(place.mistake("name", format!("another tool is called {}", quoted(name))));
        }
    }
    mistakes
}
