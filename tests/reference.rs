//! Documents with generated parts: they are written from the program, and compared with it here.
//!
//! ```sh
//! UPDATE_DOCS=1 cargo test --all-features --test reference     # writes them
//! ```
//!
//! The text between `<!-- generated: NAME -->` and `<!-- end -->` in a page is generated; the rest is written by hand.
//! All links between pages must work.

use std::{
    collections::BTreeSet,
    env,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Write as _},
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use config::table::{Form, GROUPS, Row};
use serde_json::{Value, json};
use support::{binary, root};

/// The longest that the program may take for an answer. It only ends programs that hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// The width of wrapped lines, in characters.
const WIDTH: usize = 104;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compares a file with the wanted text, or writes that.
#[track_caller]
fn settle(path: &str, wanted: &str) {
    if read(path) == wanted {
        return;
    }
    assert!(
        env::var_os("UPDATE_DOCS").is_some(),
        "{path} is not what the program knows; UPDATE_DOCS=1 cargo test --all-features --test reference writes it"
    );
    fs::write(root().join(path), wanted).expect("written");
}

/// Compares the generated part of a page with the wanted text, or writes that.
#[track_caller]
fn settle_part(path: &str, name: &str, text: &str) {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end -->");
    let page = read(path);
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{path} has no {begin}"));
    let (_, after) = rest.split_once(end).expect("it ends");
    settle(path, &format!("{before}{begin}\n{}\n\n{end}{after}", text.trim()));
}

/// The program as a new user has it, without settings.
fn program(folder: &Path) -> Command {
    let mut program = Command::new(binary());
    for (name, _) in
        env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SANDBOX_"))
    {
        program.env_remove(name);
    }
    program.current_dir(folder);
    program
}

// Settings.

/// The form of a value, as a sentence.
fn form(form: &Form) -> String {
    let shown = form.to_string();
    // The head of the page explains the units.
    let shown = shown.split(", written").next().expect("the first part");
    let sentence = match form.unit() {
        Some(unit) => format!("{unit}: {shown}."),
        None => format!("{shown}."),
    };
    sentence[..1].to_uppercase() + &sentence[1..]
}

fn setting(row: &Row) -> String {
    let default = match row.default {
        "" => "Not set by default".to_owned(),
        default => format!("Default: `{default}`"),
    };
    let description = row.description.replace('<', "&lt;");
    let Row { name, key, form: expected, .. } = row;
    format!("\n### {name}\n\n`{key}`: {description}\n\n{default}. {}\n", form(expected))
}

#[test]
fn the_page_of_settings_is_the_table() {
    let mut text = "## All of them\n\n| variable | key | default |\n|---|---|---|\n".to_owned();
    for row in GROUPS.iter().flat_map(|group| group.rows) {
        let default = match row.default {
            "" => "not set".to_owned(),
            default => format!("`{}`", default.replace(',', ", ")),
        };
        let (name, link) = (row.name, row.name.to_lowercase());
        let _ = writeln!(text, "| [`{name}`](#{link}) | `{}` | {default} |", row.key);
    }
    for group in GROUPS {
        let rows: String = group.rows.iter().map(setting).collect();
        let _ = write!(text, "\n## {}\n{rows}", group.title);
    }
    settle_part("docs/settings.md", "settings", &text);
}

#[test]
fn the_schema_of_the_settings_file_is_the_table() {
    settle("docs/config.schema.json", &format!("{:#}\n", config::schema()));
}

/// Wraps a text into lines of at most [`WIDTH`] characters; each begins with `begin`.
fn wrapped(text: &str, begin: &str) -> String {
    let mut lines = vec![begin.to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if line.len() > begin.len() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{begin}{word}"));
        } else {
            if line.len() > begin.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[test]
fn the_example_file_is_the_table() {
    let example = read(".env.example");
    let head = example.split("\n# --- ").next().expect("a head");
    let mut text = head.to_owned();
    for group in GROUPS {
        let title = format!("# --- {} ", group.title);
        let _ = writeln!(text, "\n{title:-<95}");
        for row in group.rows {
            let comment = wrapped(row.description, "# ");
            let _ = write!(text, "\n{comment}\n#{}={}\n", row.name, row.default);
        }
    }
    settle(".env.example", &text);
}

// The image.

#[test]
fn the_table_of_the_image_has_every_library_in_the_version_that_is_pinned() {
    let page = read("docs/image.md");
    let pinned = read("sandbox-image/runtimes/python/requirements.txt");
    let names = read("sandbox-image/runtimes/python/requirements.in");
    for name in names.lines().filter(|line| !line.starts_with('#')) {
        let pin = format!("\n{name}==");
        let (_, rest) = pinned.split_once(&pin).unwrap_or_else(|| panic!("{name} is not pinned"));
        let version = rest.split(' ').next().expect("the first word");
        assert!(
            page.contains(&format!("\n| {name} {version} | ")),
            "docs/image.md: {name} {version}: python3 docs/sizes.py measures the image anew"
        );
    }
}

// Commands.

/// A line of help, wrapped below the column in which its description begins.
fn narrow(line: &str) -> String {
    if line.len() <= WIDTH {
        return line.to_owned();
    }
    let text = line.trim_start();
    let blank = line.len() - text.len();
    let gap = text.find("  ").map_or(0, |gap| text.len() - text[gap..].trim_start().len());
    let (name, description) = line.split_at(blank + gap);
    let indent = " ".repeat(name.len());
    let lines = wrapped(description, &indent);
    format!("{name}{}", lines.strip_prefix(&indent).unwrap_or(&lines))
}

/// The help of a command and of its subcommands.
fn help(folder: &Path, command: &[String], text: &mut String) {
    let output = program(folder).args(command).arg("--help").output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success() && !said.is_empty(), "{command:?}");
    let lines: Vec<_> = said.lines().map(str::trim_end).collect();
    let shown: Vec<_> = lines.iter().map(|line| narrow(line)).collect();
    let name = [&["llm-sandbox".to_owned()], command].concat().join(" ");
    let _ = write!(text, "### `{name}`\n\n```text\n{}\n```\n\n", shown.join("\n").trim());
    let listed = lines.iter().skip_while(|line| **line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        let Some(below) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) else {
            continue;
        };
        let below = below.split(' ').next().expect("a name");
        if below != "help" {
            help(folder, &[command, &[below.to_owned()]].concat(), text);
        }
    }
}

#[test]
fn the_page_of_commands_is_what_the_program_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = String::new();
    help(folder.path(), &[], &mut text);
    settle_part("docs/cli.md", "commands", &text);
}

// Tools.

/// The tools that a server lists over standard input and output.
fn tools() -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = program(folder.path())
        .arg("--no-isolation")
        .envs([("SANDBOX_HTTP_PORT", "0"), ("SANDBOX_LOG_FILE", ""), ("SANDBOX_POOL_SIZE", "0")])
        .env("SANDBOX_LOG_LEVEL", "ERROR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = server.stdin.take().expect("piped");
    let hello = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": { "roots": {} },
        "clientInfo": { "name": "reference", "version": "1" },
    });
    for message in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {} }),
    ] {
        writeln!(input, "{message}").expect("sent");
    }
    let output = BufReader::new(server.stdout.take().expect("piped"));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in output.lines() {
            let message: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            if message["id"] == 2 {
                let _ = sender.send(message);
            }
        }
    });
    let answer = receiver.recv_timeout(ANSWER_TIMEOUT);
    drop(input);
    let ended = server.wait().expect("it ends");
    let answer = answer.expect("answered in time");
    assert!(ended.success());
    answer["result"]["tools"].as_array().expect("a list").clone()
}

/// A text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

/// A type and its bounds.
fn kind(schema: &Value) -> String {
    let mut kind = schema["type"].as_str().expect("a type").to_owned();
    if let Some(item) = schema["items"]["type"].as_str() {
        let _ = write!(kind, " of {item}s");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> = values.iter().map(|value| format!("`{}`", plain(value))).collect();
        kind = values.join(", ");
    }
    let range = |least: &str, most: &str| match (schema[least].as_u64(), schema[most].as_u64()) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("from {least}")),
        (None, Some(most)) => Some(format!("up to {most}")),
        (None, None) => None,
    };
    if let Some(range) = range("minimum", "maximum") {
        let _ = write!(kind, ", {range}");
    }
    if let Some(range) = range("minLength", "maxLength") {
        let _ = write!(kind, ", {range} characters");
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        let _ = write!(kind, ", `{pattern}`");
    }
    if !schema["default"].is_null() {
        let _ = write!(kind, "; default `{}`", plain(&schema["default"]));
    }
    kind
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A row for each property, and for each property of objects and lists below it.
fn properties(schema: &Value, prefix: &str, optional: &str, text: &mut String) {
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let needed = required.iter().any(|it| *it == name);
        let description = cell(property["description"].as_str().unwrap_or_default());
        let mark = if needed { "" } else { optional };
        let _ = writeln!(
            text,
            "| `{prefix}{name}`{mark} | {} | {description} |",
            cell(&kind(property))
        );
        properties(property, &format!("{prefix}{name}."), optional, text);
        properties(&property["items"], &format!("{prefix}{name}[]."), optional, text);
    }
}

#[test]
fn the_page_of_tools_is_what_the_server_says() {
    let mut text = "The descriptions are those of a server over stdio with default settings, for a client that has roots. \
                    Other clients get no `local_path`, and must pass `filename`. Settings change the limits. A `?` marks \
                    an argument that can be left out, or a field that a result may lack.\n\n"
        .to_owned();
    for tool in tools() {
        let name = tool["name"].as_str().expect("a name");
        let description = tool["description"].as_str().expect("a description").replace('<', "&lt;");
        let _ = write!(text, "### `{name}`\n\n{description}\n\n");
        let hints =
            [("readOnlyHint", "reads only"), ("destructiveHint", "may replace or remove files")];
        let hints: Vec<_> = hints
            .iter()
            .filter(|(hint, _)| tool["annotations"][hint] == true)
            .map(|hint| hint.1)
            .collect();
        if !hints.is_empty() {
            let _ = write!(text, "Hints to clients: {}.\n\n", hints.join(", "));
        }
        for (title, schema) in [("argument", "inputSchema"), ("result", "outputSchema")] {
            let _ = write!(text, "| {title} | type | |\n|---|---|---|\n");
            properties(&tool[schema], "", "?", &mut text);
            text.push('\n');
        }
    }
    settle_part("docs/tools.md", "tools", &text);
}

// Measurements.

#[test]
fn the_figures_in_the_pages_are_those_that_were_measured() {
    let report = root().join("tests/bench/report.py");
    let output = Command::new("python3").arg("-B").arg(report).arg("--check").output();
    let output = output.expect("Python is there, as for other tests");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

// Links.

/// All files of this project below a folder whose names have this ending.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    const NOT_OURS: [&str; 6] = [".git", "target", "node_modules", ".venv", "out", "logs"];
    for entry in fs::read_dir(folder).expect("listed") {
        let path = entry.expect("listed").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() && !path.is_symlink() && !NOT_OURS.contains(&&*name) {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

/// A page without its blocks of code.
fn prose(page: &str) -> String {
    let mut text = String::new();
    for (number, part) in page.split("\n```").enumerate() {
        if number % 2 == 0 {
            text += part;
            text.push('\n');
        }
    }
    text
}

/// The targets of a page's links.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// The anchors that GitHub gives to a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let slug = |title: &str| -> String {
        title
            .trim()
            .to_lowercase()
            .chars()
            .filter(kept)
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings.map(|line| slug(line.trim_start_matches('#'))).collect()
}

/// A path without `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

#[test]
fn links_between_pages_lead_somewhere() {
    if env::var_os("UPDATE_DOCS").is_some() {
        // The pages are being written at the same time.
        return;
    }
    let mut found = vec![];
    files(root(), "md", &mut found);
    assert!(found.len() > 20, "{found:?}");
    let mut wrong = vec![];
    for path in &found {
        let page = prose(&fs::read_to_string(path).expect("a page"));
        for link in links(&page) {
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if target.is_empty() {
                path.clone()
            } else {
                resolved(&path.parent().expect("a folder").join(target))
            };
            let is_there = file.exists()
                && (anchor.is_empty()
                    || anchors(&prose(&fs::read_to_string(&file).expect("a page")))
                        .contains(anchor));
            if !is_there {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "these lead nowhere: {wrong:#?}");
}

#[test]
fn the_first_page_is_one_page() {
    let page = read("README.md");
    assert!(page.lines().count() <= 150, "{} lines", page.lines().count());
    let long: Vec<_> = page.lines().filter(|line| line.chars().count() >= 120).collect();
    assert!(long.is_empty(), "{long:#?}");
}

/// Checks that the tests in nextest's profiles exist. A filter that matches no test causes no error, so a renamed test
/// would silently leave the gate.
#[test]
fn every_test_that_a_profile_names_exists() {
    let profiles = read(".config/nextest.toml");
    let lines = profiles.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = lines.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let named: BTreeSet<_> = words.filter(|word| word.matches('_').count() >= 3).collect();
    assert!(named.len() > 40, "{named:?}");
    let mut sources = vec![];
    for folder in ["promises", "inside", "drills"] {
        files(&root().join("tests").join(folder), "rs", &mut sources);
    }
    let sources: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    // A name alone on its line is the name of one test; others can be the beginning of several names.
    let whole: BTreeSet<_> =
        profiles.lines().map(|line| line.trim().trim_start_matches("| ")).collect();
    let is_there = |name: &str| {
        let end = if whole.contains(name) { "(" } else { "" };
        sources.contains(&format!("fn {name}{end}"))
    };
    let missing: Vec<_> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "no test is called {missing:?}");
}
