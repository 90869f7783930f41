//! `llm-sandbox image build` and `llm-sandbox image pull`.

use std::{
    env, fs, io,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use backend::{Backend, BuildRequest, Builder, Recipes};
use config::Config;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use model::text::human_size;

use super::{BuildArgs, EXIT_UNAVAILABLE, EXIT_USAGE, backend};

/// The published image for this program, if the program was built for a release.
pub(super) const PUBLISHED: Option<&str> = option_env!("LLM_SANDBOX_PUBLISHED_IMAGE");

/// Provides the image if the engine has none that this program can use: the published one, or else one that is built
/// here.
pub(super) async fn provide(config: &Config) -> ExitCode {
    let backend = match backend(config) {
        Ok(backend) => backend,
        Err(code) => return code,
    };
    if backend.ready().await.is_ok() {
        print_line!("The image {} exists.", config.image);
        return ExitCode::SUCCESS;
    }
    if PUBLISHED.is_some() && pull(config, PUBLISHED).await == ExitCode::SUCCESS {
        return ExitCode::SUCCESS;
    }
    build(config, BuildArgs::default()).await
}

/// Pulls an image, and uses it as the sandbox image.
pub(super) async fn pull(config: &Config, image: Option<&str>) -> ExitCode {
    let Some(image) = image else {
        return fail(
            "Name the image to pull, or build one with `llm-sandbox image build`: no image was published for this program.",
            EXIT_USAGE,
        );
    };
    let backend = match backend(config) {
        Ok(backend) => backend,
        Err(code) => return code,
    };
    let builder = match builder(config, &*backend) {
        Ok(builder) => builder,
        Err(code) => return code,
    };
    let started = Instant::now();
    print_line!("Pulling {image} ...");
    let mut progress = Progress::new();
    let pulled = builder.pull(image, &mut |line| progress.line(line)).await;
    progress.end();
    match pulled {
        Ok(()) => {
            let seconds = started.elapsed().as_secs();
            print_line!("{} is this image now; it took {seconds} s.", config.image);
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error.to_string(), EXIT_UNAVAILABLE),
    }
}

fn builder<'a>(config: &Config, backend: &'a dyn Backend) -> Result<&'a dyn Builder, ExitCode> {
    backend.abilities().builder.ok_or_else(|| {
        let engine = config.engine.as_str();
        fail(&format!("SANDBOX_ENGINE is {engine}, which needs no image"), EXIT_USAGE)
    })
}

pub(super) async fn build(config: &Config, args: BuildArgs) -> ExitCode {
    let backend = match backend(config) {
        Ok(backend) => backend,
        Err(code) => return code,
    };
    let builder = match builder(config, &*backend) {
        Ok(builder) => builder,
        Err(code) => return code,
    };
    let base_image = args.base_image.as_deref();
    let recipes = match args.with.as_deref().map(Recipes::parse).transpose() {
        Ok(recipes) => recipes,
        Err(error) => return fail(&error.to_string(), EXIT_USAGE),
    };
    match builder.is_current(base_image, recipes.as_ref()).await {
        Ok(true) if args.if_needed => {
            print_line!("The image {} exists and is up to date.", config.image);
            return ExitCode::SUCCESS;
        }
        Ok(_) => {}
        Err(error) => return fail(&error.to_string(), EXIT_UNAVAILABLE),
    }
    let certificates = match certificates(args.ca_certificates.as_deref()) {
        Ok(certificates) => certificates,
        Err(error) => return fail(&error, EXIT_USAGE),
    };
    let started = Instant::now();
    print_line!("Building {} (the first time takes a few minutes) ...", config.image);
    let mut progress = Progress::new();
    let request = BuildRequest {
        base_image,
        recipes: recipes.as_ref(),
        args: passed_on().chain(args.variables).collect(),
        certificates: &certificates,
    };
    let size = match builder.build(request, &mut |line| progress.line(line)).await {
        // The engine does not report the size.
        Ok(0) => String::new(),
        Ok(size) => format!(", {}", human_size(size / 1_000_000 * 1_000_000)),
        Err(error) => {
            progress.show_tail();
            return fail(&error.to_string(), EXIT_UNAVAILABLE);
        }
    };
    progress.end();
    print_line!("Built {}{size}, in {} s.", config.image, started.elapsed().as_secs());
    ExitCode::SUCCESS
}

fn fail(why: &str, code: u8) -> ExitCode {
    eprintln!("llm-sandbox: {why}");
    code.into()
}

/// Variables that a build needs behind a proxy or with a private index.
fn passed_on() -> impl Iterator<Item = (String, String)> {
    const NAMES: [&str; 7] = [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "PIP_INDEX_URL",
    ];
    NAMES.into_iter().filter_map(|name| Some((name.to_owned(), env::var(name).ok()?)))
}

/// The certificates that this machine trusts. A named file must exist; the system's files may be missing.
fn certificates(named: Option<&Path>) -> Result<Vec<u8>, String> {
    let read = |path: &Path| {
        fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
    };
    if let Some(path) = named {
        return read(path);
    }
    if let Some(path) = env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        return read(&PathBuf::from(path));
    }
    // Debian and its derivatives; Fedora and its derivatives.
    let usual = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
    Ok(usual.iter().find_map(|path| fs::read(path).ok()).unwrap_or_default())
}

/// Shows the builder's steps with the time of each and, on a terminal, the newest line below.
struct Progress {
    bar: ProgressBar,
    step: Option<(String, Instant)>,
    tail: Vec<String>,
}

/// Maximum number of lines shown when a build fails.
const FAILURE_LINES: usize = 30;

impl Progress {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            bar.set_style(style.expect("the constant template is valid"));
            bar.enable_steady_tick(Duration::from_millis(100));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, step: None, tail: vec![] }
    }

    fn line(&mut self, line: &str) {
        if line.starts_with("Step ") {
            self.step_done();
            let short: String = line.chars().take(100).collect();
            self.step = Some((short, Instant::now()));
        }
        if self.tail.len() == FAILURE_LINES {
            self.tail.remove(0);
        }
        self.tail.push(line.to_owned());
        self.bar.set_message(line.to_owned());
    }

    fn step_done(&mut self) {
        if let Some((step, started)) = self.step.take() {
            let seconds = started.elapsed().as_secs_f64();
            self.bar.suspend(|| print_line!("  {seconds:6.1} s  {step}"));
        }
    }

    fn end(&mut self) {
        self.step_done();
        self.bar.finish_and_clear();
    }

    fn show_tail(&mut self) {
        self.bar.finish_and_clear();
        for line in &self.tail {
            eprintln!("  | {line}");
        }
    }
}
