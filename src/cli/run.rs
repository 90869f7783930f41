//! `llm-sandbox run`: runs a script in a fresh sandbox, for a person at a shell.

use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use backend::Runtime;
use config::{Config, LogFile, Tracebacks};
use model::{DataPath, Existing, Outcome, SessionId, text::human_size};

use super::{EXIT_UNAVAILABLE, EXIT_USAGE, RunArgs, backend, log, stop_signal};
use crate::{
    error::Error,
    export,
    session::RunReport,
    sessions::{Open, Opened, Options, Program, RuntimeName, Sessions, Upload},
};

/// Exit code of a script that was killed at its deadline, as with timeout(1).
const EXIT_TIMEOUT: u8 = 124;

/// The reason why the script has no result.
enum Failed {
    /// Bad arguments.
    Usage(String),
    /// A fault of the machine, not of the script.
    Unavailable(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::SandboxUnavailable(_)
            | Error::SandboxDied(_)
            | Error::ToolDied
            | Error::Internal(_) => Self::Unavailable(error.to_string()),
            other => Self::Usage(other.to_string()),
        }
    }
}

pub(super) async fn run(mut config: Config, args: RunArgs) -> ExitCode {
    // A person at a shell may run and read larger texts; the limits for models protect their context.
    config.max_code = 1 << 20;
    config.max_output = config.max_output.max(100_000);
    config.tracebacks = Tracebacks::Full;
    // This command has no log: errors are printed here, once.
    config.log_file = LogFile::None;
    config.log_level = tracing::Level::ERROR;
    let _log = log::start(&config, log::Usual::WorkingFolder);
    let backend = match backend(&config) {
        Ok(backend) => backend,
        Err(code) => return code,
    };
    let sessions = Sessions::new(config, backend.clone(), Options::default());
    let code = match in_session(&sessions, args).await {
        Ok(report) => exit_code(&report),
        Err(Failed::Usage(why)) => {
            eprintln!("llm-sandbox: {why}");
            EXIT_USAGE
        }
        Err(Failed::Unavailable(why)) => {
            eprintln!("llm-sandbox: {why}");
            EXIT_UNAVAILABLE
        }
    };
    sessions.host().shutdown().await;
    backend.close().await;
    code.into()
}

async fn in_session(sessions: &Sessions, args: RunArgs) -> Result<RunReport, Failed> {
    let config = sessions.config();
    // Without an engine the languages are unknown; that error is reported when the program is to run.
    let there = sessions.template().await.runtimes;
    let language = language(&args.script, &there)?;
    let code = read_file(&args.script)?;
    if code.len() > config.max_code {
        let (size_bytes, limit) = (code.len() as u64, config.max_code as u64);
        return Err(Error::CodeTooLarge { size_bytes, limit }.into());
    }
    let stdin = args.stdin.as_deref().map(read_stdin).transpose()?;
    if code.len() + stdin.as_ref().map_or(0, Vec::len) > protocol::frame::MAX_BODY {
        return Err(Failed::Usage(
            "The script and its standard input together may be at most 1MiB.".into(),
        ));
    }
    // Not before standard input is read: until then an interrupt ends the program as usual.
    let stop = stop_signal().map_err(|error| Failed::Unavailable(error.to_string()))?;
    let limit = config.exec_timeout;
    let usual = config.default_timeout.unwrap_or(limit);
    let timeout = args.timeout.map_or(usual, Duration::from_secs);
    if timeout.is_zero() || timeout > limit {
        let limit = limit.as_secs();
        return Err(Failed::Usage(format!("--timeout must be from 1 to {limit} seconds.")));
    }

    if !there.is_empty() && there.iter().all(|runtime| runtime.name != language.as_str()) {
        return Err(Failed::Usage(format!(
            "{}: {} does not run on this engine (SANDBOX_ENGINE={}).",
            args.script.display(),
            language.as_str(),
            config.engine.as_str()
        )));
    }
    let mut session = None;
    for file in &args.files {
        session = Some(upload(sessions, session, file).await?);
    }
    let program = Program {
        stdin: stdin.map(Into::into),
        cancel: stop,
        ..Program::new(language, code, timeout)
    };
    let (Opened { id, .. }, report) = sessions.run(session, program).await;
    let report = report?;
    show(&report);
    if let Some(out) = &args.out {
        for artifact in &report.artifacts {
            save(sessions, &id, &artifact.path, out).await?;
            let size = human_size(artifact.size_bytes);
            eprintln!("saved {} ({size})", out.join(artifact.path.as_str()).display());
        }
        if report.artifacts_omitted > 0 {
            eprintln!("{} more files were not saved", report.artifacts_omitted);
        }
    }
    Ok(report)
}

/// The language of a script, by the extension of its name.
fn language(script: &Path, there: &[Runtime]) -> Result<RuntimeName, Failed> {
    let of = |path: &Path| path.extension().and_then(|ending| ending.to_str().map(str::to_owned));
    let file = |runtime: &Runtime| runtime.file.as_deref().and_then(|file| of(Path::new(file)));
    let Some(ending) = of(script) else { return Ok(RuntimeName::PYTHON) };
    match &*ending {
        "py" => return Ok(RuntimeName::PYTHON),
        "js" | "cjs" | "mjs" => return Ok(RuntimeName::JAVASCRIPT),
        "sh" | "bash" => return Ok(RuntimeName::BASH),
        _ => {}
    }
    let is_of =
        |runtime: &&Runtime| file(runtime).is_some_and(|file| file.eq_ignore_ascii_case(&ending));
    if let Some(runtime) = there.iter().find(is_of) {
        return Ok(runtime.name.clone().into());
    }
    let others = there.iter().filter_map(file).map(|ending| format!(", .{ending}"));
    Err(Failed::Usage(format!(
        "{}: the extension of a script is one of .py, .js, .cjs, .mjs, .sh, .bash{}.",
        script.display(),
        others.collect::<String>()
    )))
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failed> {
    fs::read(path).map_err(|error| Failed::Usage(format!("{}: {error}", path.display())))
}

fn read_stdin(path: &Path) -> Result<Vec<u8>, Failed> {
    if path != Path::new("-") {
        return read_file(path);
    }
    let mut all = vec![];
    io::stdin()
        .read_to_end(&mut all)
        .map_err(|error| Failed::Usage(format!("standard input: {error}")))?;
    Ok(all)
}

/// Uploads a file into the given session or a new one.
async fn upload(
    sessions: &Sessions,
    session: Option<SessionId>,
    file: &Path,
) -> Result<SessionId, Failed> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let path = DataPath::relative(name)
        .map_err(|why| Failed::Usage(format!("{}: the name {why}", file.display())))?;
    let bytes = read_file(file)?;
    let (size_bytes, limit) = (bytes.len() as u64, sessions.config().max_upload);
    if size_bytes > limit {
        return Err(Error::UploadTooLarge { size_bytes, limit }.into());
    }
    let (opened, done) = sessions
        .perform_or_create(
            session,
            Upload { path, content: bytes.into(), existing: Existing::Keep },
        )
        .await;
    done?;
    Ok(opened.id)
}

fn show(report: &RunReport) {
    let _ = io::stdout().write_all(report.stdout.text.as_bytes());
    let _ = io::stdout().flush();
    let stderr = &report.stderr.text;
    let _ = io::stderr().write_all(stderr.as_bytes());
    if !stderr.is_empty() && !stderr.ends_with('\n') {
        eprintln!();
    }
}

async fn save(
    sessions: &Sessions,
    id: &SessionId,
    path: &DataPath,
    out: &Path,
) -> Result<(), Failed> {
    let reader = sessions.perform(id, Open { path: path.clone().into() }).await?;
    let saved = export::save(reader, out, Path::new(path.as_str())).await;
    saved.map_err(|error| {
        Failed::Unavailable(format!("{}: {error}", out.join(path.as_str()).display()))
    })
}

/// The script's exit code, as a shell would show it.
fn exit_code(report: &RunReport) -> u8 {
    match report.outcome {
        Outcome::Timeout => EXIT_TIMEOUT,
        _ => u8::try_from(report.exit_code).unwrap_or(1),
    }
}
