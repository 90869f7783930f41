//! The definition of a tool, read from JSON and checked; all mistakes are reported at once.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use model::text::nearest;
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
    /// The location that the definition was read from.
    pub(super) location: Location,
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

/// The location of a definition: its file and, in a file with several, its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) file: PathBuf,
    /// `[2]`, or nothing.
    number: String,
}

impl Location {
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
    let location = |number| Location { file: file.to_owned(), number };
    let mut at_top = |why: String| {
        mistakes.push(location(String::new()).mistake("", why));
        vec![]
    };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return at_top(format!("it cannot be read: {error}")),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Array(all)) => {
            let mut read =
                |(n, one)| Reader::read(location(format!("[{n}]")), defaults, one, mistakes);
            all.iter().enumerate().filter_map(&mut read).collect()
        }
        Ok(one @ Value::Object(_)) => {
            Vec::from_iter(Reader::read(location(String::new()), defaults, &one, mistakes))
        }
        Ok(_) => at_top("it must be an object, or an array of objects".into()),
        Err(error) => at_top(format!("it is not JSON: {error}")),
    }
}

struct Reader<'a> {
    location: Location,
    defaults: Defaults,
    fields: &'a Map<String, Value>,
    /// The names in `schema.properties`.
    arguments: BTreeSet<String>,
    mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    fn read(
        location: Location,
        defaults: Defaults,
        value: &'a Value,
        mistakes: &mut Vec<Mistake>,
    ) -> Option<Definition> {
        let Value::Object(fields) = value else {
            mistakes.push(location.mistake("", "it must be an object"));
            return None;
        };
        let arguments = BTreeSet::new();
        let mut reader = Self { location, defaults, fields, arguments, mistakes: vec![] };
        let read = reader.definition();
        mistakes.extend(reader.mistakes);
        read
    }

    fn wrong(&mut self, field: &str, why: impl Into<String>) {
        self.mistakes.push(self.location.mistake(field, why));
    }

    fn definition(&mut self) -> Option<Definition> {
        if !self.flag("enabled", true) {
            return None;
        }
        for name in self.fields.keys().filter(|name| !FIELDS.contains(&&***name)) {
            let near = nearest(name, FIELDS.into_iter(), 1).next();
            let near = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
            self.wrong(name, format!("there is no such field{near}"));
        }
        let name = self.name();
        let description = self.text("description").unwrap_or_else(|| {
            self.missing("description", "what a model is told of it");
            String::new()
        });
        let schema = self.schema();
        self.arguments = properties(&schema).cloned().collect();
        let module = self.module();
        let folder = match self.text("mnt_dir") {
            None => "/".to_owned(),
            Some(path) => self.guest_path("mnt_dir", &path),
        };
        let files = self.texts("files");
        for (path, _) in &files {
            if !is_beneath(path) {
                let why = "it must be a relative path of a file in mnt_dir, without ..";
                self.wrong(&format!("files.{path}"), why);
            }
            if files.iter().any(|(other, _)| other.starts_with(&format!("{path}/"))) {
                self.wrong(&format!("files.{path}"), "another file lies in a folder of that name");
            }
        }
        let argv = self.argv(&name);
        let env = self.texts("env");
        for (name, _) in &env {
            if name.is_empty() || name.contains(['=', '\0']) {
                self.wrong(&format!("env.{name}"), "it is no name of a variable");
            }
        }
        let stdin = self.text("stdin").unwrap_or_default();
        let stdin = self.template("stdin", &stdin);
        let fuel = self.fuel();
        let deadline = self.deadline();
        let memory = self.memory();
        let shown = self.shown(&folder);
        self.mistakes.is_empty().then_some(Definition {
            location: self.location.clone(),
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
    fn missing(&mut self, field: &str, what: &str) {
        if !self.fields.contains_key(field) {
            self.wrong(field, format!("it is missing: {what}"));
        }
    }

    fn text(&mut self, field: &str) -> Option<String> {
        let value = self.fields.get(field)?;
        self.text_in(field, value).map(str::to_owned)
    }

    fn text_in<'v>(&mut self, field: &str, value: &'v Value) -> Option<&'v str> {
        let text = value.as_str();
        if text.is_none() {
            self.wrong(field, "it must be a text");
        }
        text
    }

    fn flag(&mut self, field: &str, usual: bool) -> bool {
        match self.fields.get(field) {
            None => usual,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.wrong(field, "it must be true or false");
                usual
            }
        }
    }

    fn name(&mut self) -> String {
        let name = self.text("name").unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() {
            self.missing("name", "what clients call it by");
        }
        if self.fields.get("name").is_some_and(Value::is_string)
            && (name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain))
        {
            let why =
                format!("it must be 1 to {MAX_NAME} of the characters A-Z, a-z, 0-9, _ and -");
            self.wrong("name", why);
        }
        name
    }

    fn schema(&mut self) -> Value {
        let mut schema = self.fields.get("schema").cloned().unwrap_or_else(|| json!({}));
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
        if let Some(required) = self.fields.get("required") {
            object.insert("required".into(), required.clone());
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            if !properties(&schema).any(|known| name == known) {
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

    fn module(&mut self) -> PathBuf {
        let Some(given) = self.text("wasm_file") else {
            self.missing("wasm_file", "the program, a file of WebAssembly");
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
        let beside = self.location.file.parent().unwrap_or(Path::new("")).join(given);
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

    fn template(&mut self, field: &str, text: &str) -> Template {
        let template = Template::parse(text).unwrap_or_else(|why| {
            self.wrong(field, why);
            Template::parse("").expect("an empty template has no mistake")
        });
        for name in template.names() {
            if !self.arguments.contains(name) {
                self.wrong(field, format!("{{{{.{name}}}}} is not among schema.properties"));
            }
        }
        template
    }

    /// Reads a text with the values of arguments in it.
    fn template_in(&mut self, field: &str, value: &Value) -> Option<Template> {
        let text = self.text_in(field, value)?;
        Some(self.template(field, text))
    }

    /// Texts by name.
    fn texts(&mut self, field: &str) -> Vec<(String, Template)> {
        let Some(value) = self.fields.get(field) else { return vec![] };
        let Value::Object(texts) = value else {
            self.wrong(field, "it must be an object of texts");
            return vec![];
        };
        let one = |(name, value): (&String, &Value)| {
            Some((name.clone(), self.template_in(&format!("{field}.{name}"), value)?))
        };
        texts.iter().filter_map(one).collect()
    }

    fn argv(&mut self, name: &str) -> Vec<Template> {
        let own = json!([name]);
        let Value::Array(texts) = self.fields.get("argv").unwrap_or(&own) else {
            self.wrong("argv", "it must be an array of texts");
            return vec![];
        };
        let texts = texts.iter().enumerate();
        texts.filter_map(|(n, value)| self.template_in(&format!("argv[{n}]"), value)).collect()
    }

    fn fuel(&mut self) -> Option<u64> {
        let given = self.fields.get("fuel");
        let is_enabled = self.flag("fuel_enabled", given.is_some());
        let fuel = match given {
            None if self.fields.get("fuel_enabled") == Some(&true.into()) => {
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
        fuel.filter(|_| is_enabled || given.is_none() && self.fields.get("fuel_enabled").is_none())
    }

    fn deadline(&mut self) -> Duration {
        let given = self.fields.get("deadline");
        let is_enabled = self.flag("deadline_enabled", given.is_some());
        let Some(value) = given else {
            if is_enabled {
                self.wrong("deadline", "it is missing, though deadline_enabled is true");
            }
            return self.defaults.deadline;
        };
        let seconds = value.as_f64().filter(|seconds| *seconds > 0.0 && *seconds <= MAX_DEADLINE);
        match seconds {
            None => {
                let why = format!("it must be seconds, more than 0 and at most {MAX_DEADLINE}");
                self.wrong("deadline", why);
                self.defaults.deadline
            }
            // Without a deadline of its own the tool has the default one: no call runs forever.
            Some(_) if !is_enabled => self.defaults.deadline,
            Some(seconds) => Duration::from_secs_f64(seconds),
        }
    }

    fn memory(&mut self) -> u64 {
        let Some(value) = self.fields.get("memory_mb") else { return self.defaults.memory };
        let bytes = whole(value).filter(|mb| MEMORY_MB.contains(mb)).map(|mb| mb << 20);
        bytes.unwrap_or_else(|| {
            let (least, most) = MEMORY_MB.into_inner();
            self.wrong("memory_mb", format!("it must be a whole number from {least} to {most}"));
            self.defaults.memory
        })
    }

    fn shown(&mut self, folder: &str) -> Vec<(String, PathBuf)> {
        let Some(value) = self.fields.get("readonly_dirs") else { return vec![] };
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

/// The names of the arguments that a schema describes.
fn properties(schema: &Value) -> impl Iterator<Item = &String> {
    schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name)
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
