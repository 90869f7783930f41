//! The settings: one row for each, with everything about it. The parser uses these rows; `docs/settings.md`
//! and `.env.example` are generated from them, and a test compares.
//!
//! A new setting is a row here, a field of [`Config`](super::Config), and the line that reads it there.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

use model::package::Allowed;
use protocol::limits::MAX_UNDO;
use sandbox_container::defaults;

pub use super::setting::{Form, Row};
use super::{
    choices::{Engine, LogFile, LogFormat, Tracebacks, Transport},
    parse::{
        archive, dns_label, folders, host_and_port, hosts, log_file, minutes, modules, network,
        optional, origins, packages, server_key, socket_address, text, timezone, token, toolsets,
        url, whole, word,
    },
    setting::Setting,
    toolsets::Toolsets,
};
use crate::{auth::Token, server_key::ServerKey};

/// Settings that belong together.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// The subject of the settings.
    pub title: &'static str,
    /// In a good order for readers.
    pub rows: &'static [Row],
}

/// Declares each setting under its name, and all of them in [`GROUPS`].
macro_rules! settings {
    ($($title:literal {
        $($name:ident: $type:ty = $default:expr, $form:expr, $parse:expr, $description:literal;)*
    })*) => {
        $($(
            pub(super) const $name: Setting<$type> = Setting {
                row: Row {
                    name: concat!("SANDBOX_", stringify!($name)),
                    default: $default,
                    form: $form,
                    description: $description,
                },
                parse: $parse,
            };
        )*)*

        /// All settings.
        pub const GROUPS: &[Group] = &[$(Group { title: $title, rows: &[$($name.row),*] }),*];
    };
}

/// Most bytes of one output that can be kept. Two outputs and the list of changed files share a frame, and,
/// at thirteen bytes for each NUL in the worst case, a message of less than 10 MiB.
const MAX_OUTPUT: u64 = 320 << 10;

/// Most bytes of code: it is sent in one frame.
const MAX_CODE: u64 = 1 << 20;

/// Most bytes of an image in a result: images share a message that every client must accept.
const MAX_INLINE_IMAGE: u64 = 2_000_000;

/// A file arrives as base64 in one JSON line, which is completely held in memory.
const MAX_UPLOAD: u64 = 1 << 30;

settings! {
    "Limits of a sandbox" {
        MEMORY_LIMIT: u64 = defaults::MEMORY_LIMIT, Form::Size(defaults::MEMORY_BYTES.0, defaults::MEMORY_BYTES.1), whole,
            "Memory, without swap. Files in /mnt/data and /tmp count towards it.";
        CPU_LIMIT: f64 = defaults::CPU_LIMIT, Form::Number(defaults::CPUS.0, defaults::CPUS.1), super::parse::number,
            "Processors; more than the host has means all of them.";
        PIDS_LIMIT: u32 = defaults::PIDS_LIMIT, Form::Whole(defaults::PIDS.0, defaults::PIDS.1), whole,
            "Processes and threads.";
        DATA_LIMIT: u64 = "256MB", Form::Size(defaults::DATA_BYTES.0, defaults::DATA_BYTES.1), whole,
            "Size of /mnt/data, which can hold at most 16384 files. It is kept in memory and may be at \
             most three quarters of SANDBOX_MEMORY_LIMIT. If that is set below its default, the default \
             here is half of it. If it is more than SANDBOX_MEMORY_LIMIT less 250MB, no libraries are preloaded \
             (SANDBOX_PRELOAD): raise both, as docs/larger-data.md says.";
        EXEC_TIMEOUT_S: Duration = "60", Form::Seconds(1, 86_400),
            |row, value| whole(row, value).map(Duration::from_secs),
            "Longest run, and the default of timeout_s. A run that takes longer is killed. Above 60, some \
             clients must be told to wait: n8n's MCP nodes by their option Timeout, the TypeScript SDK by \
             the option timeout of a request. Claude Code waits by itself.";
    }
    "Input and output" {
        TIMEZONE: Option<String> = "UTC", Form::Words("the name of a time zone, such as Europe/Berlin"), timezone,
            "Time zone of programs, by its IANA name, for datetime.now() and time.localtime(). JavaScript on the \
             embedded engine keeps UTC.";
        MAX_UPLOAD_BYTES: u64 = "50MB", Form::Size(1, MAX_UPLOAD), whole,
            "Largest upload, at most 1GiB. As base64 it arrives in one message and is held in memory \
             meanwhile; sent to /files or an upload_url, or read from local_path, it is streamed. The \
             default is never more than SANDBOX_DATA_LIMIT.";
        MAX_ARTIFACT_READ_BYTES: u64 = "10MB", Form::Size(1, MAX_UPLOAD), whole,
            "Largest image that read_artifact shows, scaled down if need be, and most bytes that it returns \
             as base64 at a time. Whatever is set here, one message over stdio holds at most 3.9MB as base64 \
             (some clients drop a connection at a message of 10MiB), and over HTTP 350KB (some refuse more \
             than 1MiB). Text comes in pages, and every file can be downloaded by its URL.";
        INLINE_IMAGES: usize = "3", Form::Whole(0, 20), whole,
            "Charts returned with the result of the run that made them; 0 for none. Clients can ask for \
             fewer: with the argument inline_images of a call, or for all calls with the URL \
             /mcp?inline_images=0.";
        INLINE_IMAGE_SIDE: u32 = "1024", Form::Whole(64, 8000), whole,
            "Such a chart is scaled down if a side has more pixels than this, or all of it more than a \
             rectangle of this side and seven eighths of it (1024x896): models pay by the pixel, and a \
             square would cost half as much again as an ordinary chart.";
        INLINE_IMAGE_BYTES: usize = "150KB", Form::Size(1000, MAX_INLINE_IMAGE), whole,
            "Such a chart is scaled down if its file has more bytes than this.";
        UPLOAD_ROOTS: Vec<PathBuf> = "", Form::Words("folders separated by :"), folders,
            "Folders, separated by :, from which upload_file may read a local_path over stdio, besides the \
             roots that the client itself names. Links are resolved; nothing else can be read.";
        EXPORT_DIR: Option<PathBuf> = "", Form::Words("a folder"),
            |row, value| optional(row, value).map(|path| path.map(PathBuf::from)),
            "Folder to which artifacts of successful runs are also written, over stdio: those of each \
             session in a subfolder with its name. Only documents, images and data are written (PDF, PNG, \
             CSV, XLSX, JSONL and similar), as plain files; nothing hidden, no code, no TXT, MD or JSON. \
             docs/tools.md has the list. A path that is not absolute is relative to the working folder and \
             must not pass through a link.";
        EXPORT_LIMIT: u64 = "500MB", Form::Size(1 << 20, 1 << 40), whole,
            "How much one server may write there in total until it ends; each file and folder counts 4096 \
             bytes on top of its content. Files beyond the limit are not exported, and the model is told so.";
        HISTORY_DIR: Option<PathBuf> = "", Form::Words("a folder"),
            |row, value| optional(row, value).map(|path| path.map(PathBuf::from)),
            "Folder for the code, the outputs and the pictures of a session's runs, created if it does not exist, so that \
             its notebook has all of them: up to 2,000 runs and 256MiB a session. Without it a session remembers its last 500 runs, \
             within 16MB for all sessions, and as much again of its newest pictures. The files have no names and \
             disappear with their session, or with the server.";
        MAX_OUTPUT_BYTES: usize = "20KB", Form::Size(1000, MAX_OUTPUT), whole,
            "How much of stdout and of stderr a result shows (the start and the end), at most 320KiB. \
             read_output reads the rest.";
        TRACEBACKS: Tracebacks = "short", Form::Words("short or full"), word,
            "How tracebacks are shown: short, with the program's own frames and the innermost one, so that \
             they cost a model a quarter (read_output has all of it), or full.";
        MAX_CODE_BYTES: usize = "100KB", Form::Size(1, MAX_CODE), whole,
            "Largest program, at most 1MiB.";
        TOOLSETS: Toolsets = "run,code,sessions,own", Form::Words("some of run, code, sessions and own, separated by commas"), toolsets,
            "Tools that clients are offered: run has programs and files in and out, code has cells in a \
             workspace that remembers them, sessions has sessions with limits of their own, own has those of \
             SANDBOX_TOOLS_FILE. Each costs a model some tokens a conversation (docs/tokens.md). One client can \
             ask for fewer with the URL /mcp?toolsets=run. Without code, nothing is prepared for cells.";
        PACKAGES: Allowed = defaults::PACKAGES, Form::Words("off, any, or packages separated by commas"), packages,
            "Packages that models may install with the tool install_package (docs/packages.md): off; a list such as \
             rapidfuzz,humanize>=4,<5,npm:lodash, for Python and JavaScript, together with their dependencies; or any. \
             Sandboxes still have no network: a separate container fetches packages from the index that pip or npm is \
             configured to use on this machine, and the server checks them.";
        PACKAGES_LIMIT: u64 = defaults::PACKAGES_LIMIT, Form::Size(defaults::PACKAGES_BYTES.0, defaults::PACKAGES_BYTES.1), whole,
            "Size of all packages of a session, which are kept in memory and count towards SANDBOX_MEMORY_LIMIT. As \
             much may be downloaded for one call.";
        PACKAGES_TIMEOUT_S: Duration = "120", Form::Seconds(5, 3600),
            |row, value| whole(row, value).map(Duration::from_secs),
            "Longest time for fetching a package and its dependencies.";
        PACKAGES_CACHE: u64 = "500MB", Form::Size(0, 1 << 40), whole,
            "Fetched packages are cached for all sessions, up to this size, as files without a name in the folder for \
             temporary files (TMPDIR). They disappear with the server. After an hour the server asks the index again.";
        PACKAGES_NETWORK: String = defaults::PACKAGES_NETWORK, Form::Words("the name of a network of the engine"), network,
            "Docker network of the containers in which packages are fetched. Choose one from which the package index \
             can be reached, and nothing else if you can.";
        TOOLS_FILE: Option<PathBuf> = "", Form::Words("a file or a folder"),
            |row, value| optional(row, value).map(|path| path.map(PathBuf::from)),
            "JSON file, or folder of such files, that defines tools of your own: programs for WASI that the \
             embedded engine runs, whichever engine makes the sandboxes (docs/own-tools.md). A change is taken \
             over within a second or two, and at once with SIGHUP.";
    }
    "Sessions" {
        MAX_SESSIONS: usize = defaults::MAX_SESSIONS, Form::Whole(defaults::SESSIONS.0, defaults::SESSIONS.1), whole,
            "Concurrent sessions with a place of their own: a container or processes that hold memory. Sessions that \
             hibernate may give theirs away (SANDBOX_MAX_HIBERNATED).";
        MAX_SESSIONS_PER_CLIENT: usize = defaults::MAX_SESSIONS, Form::Whole(1, 10_000), whole,
            "Concurrent sessions of one client, that is, of one name in SANDBOX_AUTH_TOKENS. The default \
             is SANDBOX_MAX_SESSIONS.";
        SESSION_TTL_M: Duration = "30", Form::Minutes(0.01, 1e6), minutes,
            "A session that is unused for this long is closed. A running program counts as use.";
        MAX_HIBERNATED: usize = "100", Form::Whole(0, 10_000), whole,
            "When the limit of sessions is reached, the session that has been unused for longest hibernates at once and \
             gives its place to the new one; it needs a place again before its next run. A client can have this many \
             sessions without a place besides those of SANDBOX_MAX_SESSIONS, and all of them together can hold about \
             twice SANDBOX_MEMORY_LIMIT; beyond that, the one of them that has been unused for longest ends, if the \
             server made its id. A session in use keeps its place, and so does one whose \
             files and variables need more than half of SANDBOX_MEMORY_LIMIT. A session of another client gives its \
             place away only if that client has more places. The default is 0 with Kubernetes, where every pod counts.";
        EVICT_IDLE_M: Option<Duration> = "10", Form::Minutes(0.0, 1e6),
            |row, value| minutes(row, value).map(|idle| (!idle.is_zero()).then_some(idle)),
            "When the limit of sessions is reached and none can hibernate (SANDBOX_MAX_HIBERNATED), a new session \
             replaces the one of the same client that has been unused for longest, if the server made its id and it has \
             been unused for at least this long. A session named by its client is never replaced, nor is one in use. 0 means never.";
        POOL_SIZE: usize = "1", Form::Whole(0, 10_000), whole,
            "Sandboxes kept ready, with their libraries loaded, for sessions that the client does not \
             name: the first call of such a session is as fast as any other. They count as sessions, but \
             make room when SANDBOX_MAX_SESSIONS is reached. 0 for none.";
        // Modules that a data analysis imports, in the order in which a first run is likely to need them, and
        // modules of the standard library that load slowly. An idle session then needs less than 200 MB.
        PRELOAD: Option<Vec<String>> = "numpy,pandas,matplotlib.pyplot,matplotlib.backends.backend_agg,seaborn,scipy.stats,pyarrow.parquet,asyncio,multiprocessing.pool,concurrent.futures.thread,sqlite3",
            Form::Words("module names separated by commas, or none"), modules,
            "Modules that are loaded once in each sandbox, so that no run has to import them; those that \
             the image lacks are skipped, with a warning in the log. Worth adding if you need them: \
             openpyxl, reportlab.platypus (5 MB and 45 ms each). With json alone, which loads the interpreter, a \
             session takes 160 MB less and a run that imports pandas half a second longer. With none, each run starts \
             a new interpreter, and notes on errors know less of them. If full /mnt/data and /tmp would leave less \
             than 180MB of memory (below 480MB, or with a SANDBOX_DATA_LIMIT too large for the memory), the default is \
             json; if they would leave less than 95MB, it is none. The log of a server and `llm-sandbox doctor` then \
             say how much memory would suffice.";
        UNDO: u32 = "5", Form::Whole(0, MAX_UNDO as _), whole,
            "Cells of a workspace that can be undone. The server keeps a copy of the interpreter for each, of about 3 MB \
             plus its later changes, and fewer copies if memory is short.";
        HIBERNATE_AFTER_M: Duration = "5", Form::Minutes(0.01, 1e6), minutes,
            "A session that is unused for this long hibernates: it unloads what is preloaded, which is \
             most of its memory, or with SANDBOX_STATE_DIR all of it. Its next run takes longer, up to a second; \
             those after it do not.";
        HOLD_S: Duration = "0", Form::Seconds(defaults::HOLD_SECONDS.0, defaults::HOLD_SECONDS.1),
            |row, value| whole(row, value).map(Duration::from_secs),
            "A sandbox outlives the connection to it for this long: programs continue, and the server connects again, \
             for example after a restart of the relay. Over HTTP with SANDBOX_KEY_FILE the next server does so, too: an \
             upgrade ends no session. The default is 60 with Kubernetes. 0 ends a \
             sandbox with its connection. Not for the embedded engine, which has SANDBOX_STATE_DIR.";
        CLEANUP_INTERVAL_M: Duration = "5", Form::Minutes(0.01, 1e6), minutes,
            "How often to look for containers of servers that have died.";
    }
    "Engine" {
        ENGINE: Engine = "auto", Form::Words("auto, docker, kubernetes, wasm or local"), word,
            "Engine that starts the sandboxes: docker, containers; kubernetes, pods of a cluster (docs/kubernetes.md); \
             wasm, the embedded engine, which needs neither Docker nor root (docs/embedded-engine.md); or auto, \
             docker or wasm, whichever can be used when the server starts. The last choice, local, runs programs as plain processes, WHICH ISOLATES \
             NOTHING: for tests of the server itself.";
        FUEL: Option<u64> = "0", Form::Whole(0, 1 << 60),
            |row, value| whole(row, value).map(|fuel: u64| (fuel > 0).then_some(fuel)),
            "Instructions that one run or cell may use with the embedded engine, which counts them; 0 for as \
             many as its time allows. A second of Python takes some 15,000,000,000.";
        RUNTIME_DIR: Option<PathBuf> = "", Form::Words("a folder"),
            |row, value| optional(row, value).map(|path| path.map(PathBuf::from)),
            "Folder of the embedded engine's runtime, which `llm-sandbox runtime install` makes. Only its \
             owner may be able to write to it. By default it is ~/.cache/llm-sandbox (below XDG_CACHE_HOME, \
             if that is set).";
        STATE_DIR: Option<PathBuf> = "", Form::Words("a folder"),
            |row, value| optional(row, value).map(|path| path.map(PathBuf::from)),
            "Folder in which the embedded engine keeps its sandboxes, variables and files, when the server \
             ends or is killed: with the next server each session continues at its next call. Closed and \
             expired sessions are not kept. Only its owner may be able to write to it. Without it sessions end \
             with the server. With it no sandboxes are kept ready (SANDBOX_POOL_SIZE).";
        ARCHIVE: Option<String> = "", Form::Words("a folder, or s3://bucket/prefix"), archive,
            "Archive for sessions that end without being closed: when they expire, when the server ends, or to make room. \
             The next use of the session's name restores its files and the variables that could be saved, on any server \
             with the same archive (docs/archive.md). A folder, or s3://bucket/prefix with the usual variables \
             AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL. Anyone who can read the archive \
             can read the data. Without an archive such sessions are lost.";
        ARCHIVE_DAYS: Duration = "7", Form::Number(0.0001, 3650.0),
            |row, value| super::parse::number(row, value).map(|days| Duration::from_secs_f64(days * 86_400.0)),
            "For how many days an archived session is kept.";
        ARCHIVE_CLIENT_LIMIT: Option<u64> = "10GB", Form::Size(0, 1 << 50),
            |row, value| whole(row, value).map(|most: u64| (most > 0).then_some(most)),
            "Most that the archived sessions of one client take together. When a session is archived and they would \
             take more, the client's oldest ones are deleted. 0 for no limit.";
        MIN_FREE: u64 = "1GB", Form::Size(0, 1 << 50), whole,
            "Space that stays free on the disks of SANDBOX_ARCHIVE and SANDBOX_HISTORY_DIR. With less, no session is \
             archived, and the log says so; if an older state of the session comes back later, its notes say that a \
             newer one was not saved. A session's runs are then kept in memory alone, as without SANDBOX_HISTORY_DIR.";
        SHUTDOWN_TIMEOUT_S: Duration = "10", Form::Seconds(1, 3600),
            |row, value| whole(row, value).map(Duration::from_secs),
            "How long a server that ends waits for its sessions to end. With SANDBOX_ARCHIVE the default is 25, as \
             they are saved first. The program that stops the server must wait longer: Docker Compose waits for 30 seconds.";
        IMAGE: String = defaults::IMAGE, Form::Words("the name of an image"), text,
            "Image of the sandboxes: the one that `llm-sandbox image build` builds, or your own based on \
             it. On Kubernetes its name in a registry that the nodes reach, with a tag that is not used again: \
             nodes keep what they have under a name.";
        RUNTIME: Option<String> = "", Form::Words("the name of a runtime"), optional,
            "Runtime of the containers, for example runsc for gVisor; the engine's default if not set. On \
             Kubernetes the name of a RuntimeClass.";
        KUBERNETES_NAMESPACE: Option<String> = "", Form::Words("the name of a namespace"), dns_label,
            "Namespace of the sandboxes' pods. By default that of the server's own service account or, outside \
             the cluster, of the context in KUBECONFIG.";
        KUBERNETES_POD: Option<PathBuf> = "", Form::Words("the path of a file"),
            |row, value| optional(row, value).map(|path| path.map(PathBuf::from)),
            "File with a merge patch, in YAML or JSON, over the pods of sandboxes: nodeSelector, tolerations, \
             affinity, imagePullSecrets, hostUsers, a seccomp profile of the nodes, labels and the \
             other fields that docs/kubernetes.md lists. A patch that would weaken a sandbox is refused.";
        PEER_ADDRESS: Option<SocketAddr> = "", Form::Words("an IP address of this server and a port, such as 10.1.2.3:8081"),
            socket_address,
            "For several servers behind one address, on Kubernetes (docs/kubernetes.md): the address at which the \
             others reach this server, and on which it listens as well. The server that has a client's sessions answers \
             the client's requests, whichever server they reach. Needs SANDBOX_KEY_FILE, a file that exists and is the \
             same for all, and SANDBOX_HOLD_S. Over stdio it is ignored.";
        KUBERNETES_CANARY_TARGET: Option<String> = "", Form::Words("a host and its port, such as 10.0.0.1:443"),
            host_and_port,
            "Host and port that a sandbox on Kubernetes must not reach: `llm-sandbox doctor` tries it from inside one. \
             By default the cluster's API server.";
    }
    "HTTP" {
        TRANSPORT: Transport = "stdio", Form::Words("stdio or http"), word,
            "How clients speak MCP: stdio, with a server for each client, or http, with one server for all \
             of them, at /mcp. Files are served over HTTP either way.";
        HTTP_HOST: IpAddr = "127.0.0.1", Form::Words("an IP address"), word,
            "Address to listen on.";
        HTTP_PORT: u16 = "8080", Form::Whole(0, 65_535), whole,
            "Port to listen on. If it is taken, a server over stdio uses a free one, which its URLs then \
             carry. 0 always picks a free one.";
        AUTH_TOKENS: Option<String> = "", Form::Words("name:token pairs separated by commas"), optional,
            "Clients and their tokens: name:token,... with visible ASCII in the tokens. `openssl rand -hex 32` makes \
             a good one. Sessions belong to the name that created them; several tokens may have one name. \
             Must be set if SANDBOX_HTTP_HOST is not a loopback address. Without it clients on this machine \
             need no token; over stdio, only the URLs that the server has given out grant access then.";
        AUTH_TOKENS_FILE: Option<String> = "", Form::Words("the path of a file"), optional,
            "File with such pairs, separated by commas or line breaks, used if SANDBOX_AUTH_TOKENS is not \
             set. If it does not exist, it is created with one random token for the name me, which \
             `llm-sandbox token` prints.";
        KEY_FILE: Option<ServerKey> = "", Form::Words("the path of a file"), server_key,
            "File with the server's secret, 32 bytes as hexadecimal digits or base64, from which it derives the \
             key of its URLs. If it does not exist, it is created with a random one. Only its owner and group may be \
             able to read it. Without it each server has a secret of its own, so that no URL outlives its server.";
        RATE_LIMIT_PER_M: Option<NonZeroU32> = "0", Form::Whole(0, 1_000_000),
            |row, value| whole(row, value).map(NonZeroU32::new),
            "Requests of one client per minute, all of which may come at once; 0 for no limit. Further \
             ones are answered with 429.";
        METRICS_TOKEN: Option<Token> = "", Form::Words("a token"), token,
            "Token for reading /metrics and nothing else. If it is not set, each of SANDBOX_AUTH_TOKENS \
             works; without those, reading them needs no token.";
        URL_TTL_M: Duration = "60", Form::Minutes(0.01, 1e6), minutes,
            "How long URLs that need no token remain valid: those for uploads and, over stdio or where \
             there are tokens, those of downloads and of the page. They end with their session in any \
             case.";
        PUBLIC_URL: Option<String> = "", Form::Words("a URL such as https://host:8080"), url,
            "Base of the URLs. If it is not set, each client gets URLs with the host and port at which it \
             reached the server itself; another container then gets different ones than a browser on this \
             machine.";
        ALLOWED_HOSTS: Vec<String> = "", Form::Words("names separated by commas, without ports"), hosts,
            "Host names to which the server answers, separated by commas, without ports. A request to any \
             other name is refused with 421, because a web page could have made it. Always allowed: \
             localhost, loopback addresses, SANDBOX_HTTP_HOST (any address, if that is 0.0.0.0 or ::) and \
             the host of SANDBOX_PUBLIC_URL. A container that uses host.docker.internal needs that here.";
        ALLOWED_ORIGINS: Vec<String> = "", Form::Words("origins separated by commas"), origins,
            "Sites whose pages may call the server from a browser, such as https://app.example.org, \
             separated by commas; http://localhost:* allows any port. Its own pages always may; all others \
             are refused with 403.";
    }
    "Log" {
        LOG_LEVEL: tracing::Level = "INFO", Form::Words("one of ERROR, WARN, INFO, DEBUG, TRACE"), word,
            "ERROR, WARN, INFO, DEBUG or TRACE: the lowest severity that is logged. Code, data and output \
             of programs are never logged.";
        // The default of a server over HTTP, which reads a file of settings unasked.
        LOG_FILE: LogFile = "logs/sandbox.log", Form::Words("the path of a file"), log_file,
            "The log goes to stderr and to this file. Leave the value empty for stderr alone. Over stdio \
             the default is ~/.local/state/llm-sandbox/sandbox.log (below XDG_STATE_HOME, if that is set; \
             on macOS in ~/Library/Logs).";
        LOG_FORMAT: LogFormat = "console", Form::Words("console or json"), word,
            "console, for people, or json, one object per line.";
        AUDIT_FILE: Option<PathBuf> = "", Form::Words("the path of a file"),
            |row, value| optional(row, value).map(|path| path.map(PathBuf::from)),
            "File in which each call, upload and download leaves a line: who, what, when, limits and outcome, SHA-256 \
             of code, inputs and outputs, and of the line before; never code or data. `llm-sandbox audit verify` finds \
             changed and removed lines (docs/audit.md). With SANDBOX_KEY_FILE only the server can make a line. Each \
             server needs a file of its own. While it cannot be written, calls are refused.";
        AUDIT_MAX_SIZE: u64 = "100MB", Form::Size(4096, 1 << 40), whole,
            "The audit file is renamed to <file>.<number of its last line> when it would be larger than this, and the \
             next line begins a new one.";
        AUDIT_MAX_TOTAL: Option<u64> = "0", Form::Size(0, 1 << 50),
            |row, value| whole(row, value).map(|most: u64| (most > 0).then_some(most)),
            "Most that the audit file and its older ones take together. When it would be more, the oldest are deleted, \
             and a line says up to which line, so that `llm-sandbox audit verify` reports no gap. 0 deletes none.";
        AUDIT_REFUSED_PER_M: Option<NonZeroU32> = "60", Form::Whole(0, 1_000_000),
            |row, value| whole(row, value).map(NonZeroU32::new),
            "Lines of the audit file that one client gets in a minute for calls that were refused, so that nothing was \
             done. The others are counted in its next line. 0 writes a line for each.";
    }
}
