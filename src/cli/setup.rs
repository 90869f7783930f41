//! `llm-sandbox setup`: from a program that was just installed to a server that clients can start.
//!
//! ```text
//! engine (Docker if it answers, else the embedded one) --> its image or runtime --> doctor --> clients
//! ```

use std::process::ExitCode;

use backend::factory::Choice;
use clap::Args;
use config::{Config, Engine};

use super::{
    clients::{self, Added, Client},
    doctor, image,
};

#[derive(Debug, Args)]
pub(super) struct SetupArgs {
    /// Also add the server to the clients that are found.
    #[arg(long)]
    write: bool,
}

/// Installs what the engine needs, checks it, and prints how each client of this machine starts the server. The exit
/// code is that of the first step that fails.
pub(super) async fn setup(config: Config, args: &SetupArgs) -> ExitCode {
    let config = match config.engine {
        Engine::Auto => {
            let Choice { engine, why, .. } = backend::factory::installable(&config).await;
            print_line!("Engine: {} ({why}).", engine.as_str());
            if engine == Engine::Wasm {
                print_line!(
                    "If you prefer Docker, end this with Ctrl-C, and run it again when its engine can be used."
                );
            }
            Config { engine, engine_reason: Some(why), ..config }
        }
        _ => config,
    };
    let installed = match config.engine {
        Engine::Docker => image::provide(&config).await,
        #[cfg(feature = "wasm")]
        Engine::Wasm => {
            use super::runtime::{InstallArgs, install};
            install(&config, InstallArgs { if_needed: true, ..InstallArgs::default() }).await
        }
        // An administrator prepares a cluster; plain processes need nothing.
        _ => ExitCode::SUCCESS,
    };
    if installed != ExitCode::SUCCESS {
        return installed;
    }
    print_line!("");
    let state = match doctor::look(&config, false).await {
        Ok(state) => state,
        Err(code) => return code,
    };
    if !state.is_healthy {
        let next = "Not ready: do what the arrows say, then run `llm-sandbox setup` again.";
        print_line!("\n{}", doctor::as_started(next));
        return ExitCode::FAILURE;
    }
    tell_clients(&config, args.write)
}

fn tell_clients(config: &Config, write: bool) -> ExitCode {
    let home = std::env::home_dir().unwrap_or_default();
    let folder = clients::settings_folder(&home);
    let server = doctor::server(config);
    let found = clients::found(&home, &folder, clients::is_on_path("claude"), &server);
    print_line!("");
    if found.is_empty() {
        let why = if home.is_dir() {
            "No client was found on this machine"
        } else {
            "HOME names no folder, so no client was looked for"
        };
        print_line!("Ready. {why}. Most clients take this entry:\n  {}", server.to_paste());
        return ExitCode::SUCCESS;
    }
    if !write {
        print_line!("Ready. Add the server to a client, or let `llm-sandbox setup --write` do it:");
    }
    let mut code = ExitCode::SUCCESS;
    for client in found {
        if write {
            if !add(&client) {
                code = ExitCode::FAILURE;
            }
        } else {
            let (place, text) = client.to_paste();
            print_line!("\n{}, {place}:\n  {text}", client.name);
        }
    }
    code
}

/// Adds the server to a client, and says so; false if it fails.
fn add(client: &Client) -> bool {
    match client.add() {
        Ok(Added::Now) => print_line!("{}: added; start it again to see the server.", client.name),
        Ok(Added::Before) => print_line!("{}: it has the server.", client.name),
        Err(why) => {
            let (place, text) = client.to_paste();
            print_line!("{}: not added, because {why}. To add it, {place}:\n  {text}", client.name);
            return false;
        }
    }
    true
}
