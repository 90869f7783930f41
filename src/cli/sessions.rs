//! `llm-sandbox sessions`: lists and ends the sessions of all callers, for operators.

use std::{fs, path::PathBuf, process::ExitCode};

use bytesize::ByteSize;
use clap::{Args, Subcommand};
use config::Config;
use hyper::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use model::text::printable;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{EXIT_USAGE, client::Client};

#[derive(Debug, Args)]
pub(super) struct SessionsArgs {
    #[command(subcommand)]
    command: SessionsCommand,

    /// File with the token of an operator. Without it, the variable LLM_SANDBOX_TOKEN is read. A server without
    /// tokens needs none.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum SessionsCommand {
    /// List the sessions of all callers, with what they use.
    List {
        /// Print the server's answer as it is.
        #[arg(long)]
        json: bool,
    },
    /// End a session of a caller. Its files are deleted.
    End {
        /// The session's caller, as the list has it.
        caller: String,
        /// The session.
        session: String,
    },
}

/// The name of a column, and its cell for a session.
type Column = (&'static str, fn(&Value) -> String);

/// The columns of the list.
const COLUMNS: [Column; 10] = [
    ("CALLER", |it| text(&it["caller"])),
    ("SESSION", |it| text(&it["session_id"])),
    ("CLIENT", |it| text(&it["client"])),
    ("STATE", |it| text(&it["state"])),
    ("USED", |it| {
        let at =
            ["used_at", "archived_at", "created_at"].into_iter().find_map(|at| it[at].as_str());
        at.and_then(|at| at.parse().ok()).map(ago).unwrap_or_default()
    }),
    ("MEMORY", |it| bytes(&it["memory_bytes"])),
    ("PEAK", |it| bytes(&it["memory_peak_bytes"])),
    ("CPU", |it| it["cpu_seconds"].as_f64().map(|s| format!("{s:.1}s")).unwrap_or_default()),
    ("DISK", |it| bytes(&it["disk_bytes"])),
    ("RUNS", |it| match (it["runs"].as_u64(), it["last_outcome"].as_str()) {
        (Some(runs), Some(last)) => format!("{runs}, last {}", printable(last)),
        (Some(runs), None) => runs.to_string(),
        (None, _) => String::new(),
    }),
];

pub(super) async fn sessions(config: &Config, args: SessionsArgs) -> ExitCode {
    let token = match args.token_file {
        Some(path) => match fs::read_to_string(&path) {
            Ok(token) => Some(token.trim().to_owned()),
            Err(error) => {
                eprintln!("llm-sandbox: {}: {error}", path.display());
                return EXIT_USAGE.into();
            }
        },
        None => std::env::var("LLM_SANDBOX_TOKEN").ok(),
    };
    let client = Client::of(config).with(token);
    let done = match &args.command {
        SessionsCommand::List { json } => list(&client, *json).await,
        SessionsCommand::End { caller, session } => end(&client, caller, session).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("llm-sandbox: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn list(client: &Client<'_>, as_json: bool) -> Result<(), String> {
    let body = ask(client, Method::GET, "/sessions?all").await?;
    if as_json {
        print_line!("{body}");
        return Ok(());
    }
    let listed: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
    let sessions = listed["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let head = COLUMNS.map(|(name, _)| name.to_owned());
    let rows = sessions.iter().map(|session| COLUMNS.map(|(_, cell)| cell(session)));
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<_> = (0..COLUMNS.len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or_default())
        .collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        print_line!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    for server in listed["servers_without_answer"].as_array().into_iter().flatten() {
        eprintln!("llm-sandbox: server {} does not answer: its sessions are missing", text(server));
    }
    Ok(())
}

async fn end(client: &Client<'_>, caller: &str, session: &str) -> Result<(), String> {
    let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let path = format!("/sessions/{}?caller={}", encoded(session), encoded(caller));
    ask(client, Method::DELETE, &path).await?;
    print_line!("The session {} of {} has ended.", printable(session), printable(caller));
    Ok(())
}

/// The body of a successful answer.
async fn ask(client: &Client<'_>, method: Method, path: &str) -> Result<String, String> {
    let (status, body) = client
        .ask(method, path)
        .await
        .map_err(|error| format!("no server answers at {}: {error}", client.address))?;
    if status.is_success() {
        return Ok(body);
    }
    let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
    let message = parsed["message"].as_str().unwrap_or(&body);
    let advice = match status {
        StatusCode::UNAUTHORIZED => {
            " Set LLM_SANDBOX_TOKEN to the token of an operator, or give --token-file."
        }
        _ => "",
    };
    Err(format!("{status}: {}{advice}", printable(message)))
}

/// A text of the server for a terminal.
fn text(value: &Value) -> String {
    value.as_str().map(printable).unwrap_or_default()
}

fn bytes(value: &Value) -> String {
    value.as_u64().map(|bytes| ByteSize(bytes).display().si().to_string()).unwrap_or_default()
}

/// The time that has passed, in its largest unit.
fn ago(at: Timestamp) -> String {
    let passed = Timestamp::now().duration_since(at).max(SignedDuration::ZERO);
    let (seconds, minutes, hours) = (passed.as_secs(), passed.as_secs() / 60, passed.as_hours());
    match (seconds, minutes, hours) {
        (..60, ..) => format!("{seconds}s ago"),
        (_, ..60, _) => format!("{minutes}m ago"),
        (.., ..48) => format!("{hours}h ago"),
        _ => format!("{}d ago", hours / 24),
    }
}
