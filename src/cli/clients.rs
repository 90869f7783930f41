//! The client programs on this machine, and how each is told to start this server.

use std::{
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use jsonc_parser::{ParseOptions, cst::CstRootNode, json};

/// The server's name in a client.
const NAME: &str = "sandbox";

/// The name under which this program is published in package indexes, and the command that it installs there.
pub(super) const DISTRIBUTION: &str = "llm-sandbox-server";

/// Maximum size of a client's file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Claude Desktop ends each call after 60 seconds.
const CLAUDE_DESKTOP_TIMEOUT: (&str, &str) = ("SANDBOX_EXEC_TIMEOUT_S", "50");

/// The server, as a client starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// Variables that it gets.
    pub(super) env: Vec<(String, String)>,
}

/// A client, and the place where its servers are listed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) name: &'static str,
    place: Place,
    server: Server,
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// A command of the client adds servers.
    Claude,
    /// A JSON file, which may have comments, with the servers in this member.
    File { path: PathBuf, member: &'static str },
}

/// The result of adding the server to a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    Now,
    Before,
}

/// The clients of the user with this home folder; `config` is the folder for settings of desktop programs.
pub(super) fn found(home: &Path, config: &Path, has_claude: bool, server: &Server) -> Vec<Client> {
    let file = |name, folder: PathBuf, file: &str, member| {
        let place = Place::File { path: folder.join(file), member };
        folder.is_dir().then(|| Client { name, place, server: server.with_path() })
    };
    let claude = Client { name: "Claude Code", place: Place::Claude, server: server.clone() };
    let desktop = "claude_desktop_config.json";
    let desktop = file("Claude Desktop", config.join("Claude"), desktop, "mcpServers");
    let desktop = desktop.map(|mut client| {
        let (name, value) = CLAUDE_DESKTOP_TIMEOUT;
        if !client.server.env.iter().any(|(given, _)| given == name) {
            client.server.env.push((name.into(), value.into()));
        }
        client
    });
    let cursor = file("Cursor", home.join(".cursor"), "mcp.json", "mcpServers");
    let code = file("VS Code", config.join("Code/User"), "mcp.json", "servers");
    has_claude.then_some(claude).into_iter().chain(desktop).chain(cursor).chain(code).collect()
}

/// The folder in which desktop programs keep their settings.
pub(super) fn settings_folder(home: &Path) -> PathBuf {
    if cfg!(target_os = "macos") {
        return home.join("Library/Application Support");
    }
    let named = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|it| it.is_absolute());
    named.unwrap_or_else(|| home.join(".config"))
}

/// Whether a program of this name is on the path.
pub(super) fn is_on_path(program: &str) -> bool {
    on_path(program).is_some()
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|it| it.is_file());
    found.and_then(|found| std::path::absolute(found).ok())
}

/// The command that starts a program at this path again. Programs that run packages without installing them keep
/// these in a cache, where a later version has another path.
pub(super) fn command_of(program: &Path) -> Vec<String> {
    let parts: Vec<_> = program.iter().map(|part| part.to_string_lossy()).collect();
    let has = |name: &str| parts.iter().any(|part| part == name);
    let runner: &[&str] = if has("_npx") {
        &["npx", "-y"]
    } else if has("uv") && parts.iter().any(|part| part.starts_with("archive-v")) {
        &["uvx"]
    } else if has("pipx") && (has(".cache") || has("cache")) {
        &["pipx", "run"]
    } else {
        return vec![program.to_string_lossy().into_owned()];
    };
    runner.iter().copied().chain([DISTRIBUTION]).map(str::to_owned).collect()
}

impl Client {
    /// The text to paste, and its place.
    pub(super) fn to_paste(&self) -> (String, String) {
        match &self.place {
            Place::Claude => {
                let line: Vec<_> = self.claude_command().iter().map(|word| quoted(word)).collect();
                ("in a terminal".into(), line.join(" "))
            }
            Place::File { path, member } => {
                (format!("in {}", path.display()), self.server.to_paste_as(member))
            }
        }
    }

    /// Adds the server to the client.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub(super) fn add(&self) -> Result<Added, String> {
        match &self.place {
            Place::Claude => self.add_by_command(),
            Place::File { path, member } => {
                let fail = |error: io::Error| format!("{}: {error}", path.display());
                let text = read(path).map_err(fail)?;
                // A link, as programs that manage such files make them, stays a link.
                let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                let changed = with_server(&text, member, &self.server);
                match changed.map_err(|why| format!("{} {why}", path.display()))? {
                    None => Ok(Added::Before),
                    Some(text) => replace(&path, &text).map(|()| Added::Now).map_err(fail),
                }
            }
        }
    }

    fn claude_command(&self) -> Vec<String> {
        let Server { command, env } = &self.server;
        let options = env.iter().flat_map(|(name, value)| ["-e".into(), format!("{name}={value}")]);
        ["claude", "mcp", "add", "--scope", "user", NAME]
            .map(str::to_owned)
            .into_iter()
            .chain(options)
            .chain(["--".into()])
            .chain(command.iter().cloned())
            .collect()
    }

    fn add_by_command(&self) -> Result<Added, String> {
        let words = self.claude_command();
        let output = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("claude does not start: {error}"))?;
        if output.status.success() {
            return Ok(Added::Now);
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        if said.contains("already exists") { Ok(Added::Before) } else { Err(said) }
    }
}

impl Server {
    /// This server with the whole path of its program: programs of a desktop search fewer folders than a shell does.
    fn with_path(&self) -> Self {
        let mut server = self.clone();
        if let Some(path) = on_path(&server.command[0]) {
            server.command[0] = path.to_string_lossy().into_owned();
        }
        server
    }

    /// The entry of this server in the form that most clients use.
    pub(super) fn to_paste(&self) -> String {
        self.to_paste_as("mcpServers")
    }

    fn to_paste_as(&self, member: &str) -> String {
        format!(r#"{{ "{member}": {{ "{NAME}": {} }} }}"#, self.entry(member))
    }

    /// The entry of this server in a client's file.
    fn entry(&self, member: &str) -> serde_json::Value {
        let mut entry = serde_json::json!({ "command": self.command[0] });
        // Only VS Code uses this member, and needs the type.
        if member == "servers" {
            entry["type"] = "stdio".into();
        }
        if self.command.len() > 1 {
            entry["args"] = self.command[1..].into();
        }
        for (name, value) in &self.env {
            entry["env"][name] = value.as_str().into();
        }
        entry
    }
}

/// The file's text with the server in this member; `None` if the file has the server.
///
/// # Errors
/// The reason why the file stays, as the end of a sentence.
fn with_server(text: &str, member: &str, server: &Server) -> Result<Option<String>, String> {
    if text.starts_with('\u{feff}') {
        return Err("begins with a byte order mark".into());
    }
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| format!("is not valid JSON: {error}"))?;
    let unexpected = || format!("does not have a JSON object in \"{member}\"");
    let object = root.object_value_or_create().ok_or_else(unexpected)?;
    let is_member = |name: Option<String>| name.as_deref() == Some(member);
    if object.properties().iter().filter(|it| is_member(it.decoded_name())).count() > 1 {
        return Err(format!("has \"{member}\" more than once"));
    }
    let servers = object.object_value_or_create(member).ok_or_else(unexpected)?;
    let entry = server.entry(member);
    if let Some(present) = servers.get(NAME) {
        if present.to_serde_value().as_ref() == Some(&entry) {
            return Ok(None);
        }
        return Err(format!("already has another server named {NAME}, which was not changed"));
    }
    servers.append(NAME, input(&entry));
    Ok(Some(root.to_string()))
}

fn input(value: &serde_json::Value) -> jsonc_parser::cst::CstInputValue {
    use serde_json::Value;
    match value {
        Value::Null => json!(null),
        Value::Bool(yes) => json!(*yes),
        Value::Number(number) => jsonc_parser::cst::CstInputValue::Number(number.to_string()),
        Value::String(text) => json!(text.as_str()),
        Value::Array(all) => all.iter().map(input).collect::<Vec<_>>().into(),
        Value::Object(all) => {
            all.iter().map(|(name, value)| (name.clone(), input(value))).collect::<Vec<_>>().into()
        }
    }
}

/// The text of a client's file; empty if there is none.
fn read(path: &Path) -> io::Result<String> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(String::new());
    }
    let found = fs::metadata(path)?;
    if !found.is_file() || found.len() > MAX_FILE_BYTES {
        return Err(io::Error::other("it is no file with the settings of a client"));
    }
    // The file that replaces it would be this user's, and the client might not read it.
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    fs::read_to_string(path)
}

/// Replaces a file at once, so that a client never reads half of it. The file's permissions stay.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("no file can be made in its folder ({})", error.kind()),
        )
    })?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    if let Ok(present) = fs::metadata(path) {
        file.as_file().set_permissions(present.permissions())?;
    }
    file.persist(path)?;
    Ok(())
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server { command: vec!["/opt/llm-sandbox".into()], env: vec![] }
    }

    #[test]
    fn a_program_that_is_only_in_a_cache_is_started_by_what_put_it_there() {
        for (path, command) in [
            ("/usr/bin/llm-sandbox", "/usr/bin/llm-sandbox"),
            ("/home/a/.cache/uv/archive-v0/x1/bin/llm-sandbox-server", "uvx llm-sandbox-server"),
            (
                "/home/a/.local/share/uv/tools/x/bin/llm-sandbox",
                "/home/a/.local/share/uv/tools/x/bin/llm-sandbox",
            ),
            ("/home/a/.npm/_npx/3f/node_modules/x/llm-sandbox", "npx -y llm-sandbox-server"),
            ("/home/a/.cache/pipx/99/bin/llm-sandbox", "pipx run llm-sandbox-server"),
        ] {
            assert_eq!(command_of(path.as_ref()).join(" "), command, "{path}");
        }
    }

    #[test]
    fn only_clients_with_a_folder_or_a_command_are_found() {
        let home = tempfile::tempdir().expect("a folder");
        let config = home.path().join(".config");
        let names = |has_claude| {
            let found = found(home.path(), &config, has_claude, &server());
            found.iter().map(|client| client.name).collect::<Vec<_>>()
        };
        assert_eq!(names(false), [""; 0]);
        for folder in [".config/Claude", ".cursor", ".config/Code/User"] {
            fs::create_dir_all(home.path().join(folder)).expect("made");
        }
        assert_eq!(names(true), ["Claude Code", "Claude Desktop", "Cursor", "VS Code"]);
    }

    #[test]
    fn the_rest_of_a_clients_file_stays_as_it_is() {
        let text = "{\n  // mine\n  \"theme\": 1,\n  \"servers\": {\n    \"a\": { \"command\": \"b\" }, // kept\n  },\n}\n";
        let changed = with_server(text, "servers", &server()).expect("valid").expect("changed");
        let mut rest = changed.lines();
        for line in text.lines() {
            assert!(rest.any(|changed| changed == line), "{line:?} is missing in:\n{changed}");
        }
        assert!(changed.contains(r#""command": "/opt/llm-sandbox""#), "{changed}");
        assert_eq!(with_server(&changed, "servers", &server()), Ok(None), "it has it");
    }

    #[test]
    fn a_file_that_is_missing_or_empty_gets_the_server_alone() {
        for text in ["", " \n", "{}"] {
            let changed = with_server(text, "mcpServers", &server()).expect("valid").expect("new");
            let json: serde_json::Value = serde_json::from_str(&changed).expect("JSON");
            assert_eq!(json["mcpServers"][NAME]["command"], "/opt/llm-sandbox");
        }
    }

    #[test]
    fn a_file_that_another_wrote_differently_is_not_changed() {
        for (text, why) in [
            ("{ \"mcpServers\": [] }", "JSON object"),
            ("[]", "JSON object"),
            ("{ \"mcpServers\": {}, \"mcpServers\": {} }", "more than once"),
            ("\u{feff}{}", "byte order mark"),
            ("{ nothing", "not valid JSON"),
            ("{ \"mcpServers\": { \"sandbox\": { \"command\": \"docker\" } } }", "another server"),
        ] {
            let error = with_server(text, "mcpServers", &server()).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_line_for_a_shell_keeps_its_words() {
        assert_eq!(quoted("SANDBOX_IMAGE=own:1"), "SANDBOX_IMAGE=own:1");
        assert_eq!(quoted("/My Files/it's"), r"'/My Files/it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
