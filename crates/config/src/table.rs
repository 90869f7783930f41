//! The settings: one row for each, with everything about it. [`Config`] has the rows' fields and reads them;
//! `docs/settings.md` and `.env.example` are generated from the rows, and a test compares.
//!
//! ```text
//! /// Documentation, for the operator.
//! field: type = VARIABLE["section.key"](default, form of a value, parser);
//! ```
//!
//! A new setting is a row here. If its default depends on other settings, or its value can contradict theirs, it is
//! also in `computed_defaults` or `contradictions` in [`super`].

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

use model::{UpstreamName, package::Allowed};
use protocol::limits::MAX_UNDO;
use sandbox_container::{Storage, defaults};

pub use super::setting::{Form, Row};
use super::{
    callers::{Callers, Role},
    choices::{Engine, LogFile, LogFormat, TokensFrom, Tracebacks, Transport},
    datasets::{Datasets, Listed, listed},
    given::Given,
    misspelt::Misspelt,
    oauth::{items, policies, roles, safe_url, scopes},
    parse::{
        archive, days, devices, dns_label, explained, folders, host_and_port, hosts, limit,
        log_file, minutes, minutes_unless_empty, minutes_unless_zero, modules, network, number,
        on_or_off, optional, origins, path, rate, seconds, seconds_unless_empty, server_key,
        socket_address, text, timezone, token, tokens, unless_empty, url, whole, word,
    },
    reader::Reader,
    rows::settings,
    setting::{
        Form::{List, Minutes, Number, OneOf, Seconds, Secret, Secrets, Size, Whole, Words},
        Setting,
    },
    toolsets::Toolsets,
    upstreams::{Upstreams, names},
};
use crate::{
    auth::{Token, Tokens},
    server_key::ServerKey,
};

/// Settings that belong together.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// The subject of the settings.
    pub title: &'static str,
    /// In a good order for readers.
    pub rows: &'static [Row],
}

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static Row> + Clone {
    GROUPS.iter().flat_map(|group| group.rows)
}

/// Most bytes of one output that can be kept. Two outputs and the list of changed files share a frame, and,
/// at thirteen bytes for each NUL in the worst case, a message of less than 10 MiB.
const MAX_OUTPUT: u64 = 320 << 10;

/// Most bytes of code: it is sent in one frame.
const MAX_CODE: u64 = 1 << 20;

/// Most bytes of an image in a result: images share a message that every client must accept.
const MAX_INLINE_IMAGE: u64 = 2_000_000;

/// Largest file in a message, in bytes: it arrives as base64 in one JSON line, which is completely held in memory.
pub(super) const MAX_IN_MESSAGE: u64 = 1 << 30;

settings! {
    "Limits of a sandbox" {
        /// Memory, without swap. Files in /mnt/data and /tmp count towards it. A session gets this much, or
        /// SANDBOX_DEFAULT_MEMORY unless it asks for more.
        memory_limit: u64 = SANDBOX_MEMORY_LIMIT["sandbox.max_memory_mb"](
            defaults::MEMORY_LIMIT, Size(defaults::MEMORY_BYTES.0, defaults::MEMORY_BYTES.1), whole,
        );
        /// Memory of a session that does not ask for another; the maximum if not set.
        default_memory: Option<u64> = SANDBOX_DEFAULT_MEMORY["sandbox.default_memory_mb"](
            "", Size(defaults::MEMORY_BYTES.0, defaults::MEMORY_BYTES.1), unless_empty,
        );
        /// Processors; more than the host has means all of them.
        cpu_limit: f64 = SANDBOX_CPU_LIMIT["sandbox.cpus"](
            defaults::CPU_LIMIT, Number(defaults::CPUS.0, defaults::CPUS.1), number,
        );
        /// Processes and threads.
        pids_limit: u32 = SANDBOX_PIDS_LIMIT["sandbox.max_processes"](
            defaults::PIDS_LIMIT, Whole(defaults::PIDS.0, defaults::PIDS.1), whole,
        );
        /// Size of /mnt/data, which can hold at most 16384 files. It is kept in memory (SANDBOX_STORAGE) and, except with the
        /// embedded engine, may be at most three quarters of SANDBOX_MEMORY_LIMIT. If that is set below its default,
        /// the default here is half of it. If it is more than SANDBOX_MEMORY_LIMIT less 250MB, no libraries are
        /// preloaded (SANDBOX_PRELOAD): raise both, as docs/larger-data.md says.
        data_limit: u64 = SANDBOX_DATA_LIMIT["sandbox.max_disk_mb"](
            "256MB", Size(defaults::DATA_BYTES.0, defaults::DATA_BYTES.1), whole,
        );
        /// Size of /mnt/data of a session that does not ask for another; the maximum if not set. With less memory it is
        /// never more than half of the memory.
        default_data: Option<u64> = SANDBOX_DEFAULT_DATA["sandbox.default_disk_mb"](
            "", Size(defaults::DATA_BYTES.0, defaults::DATA_BYTES.1), unless_empty,
        );
        /// The place of the files in /mnt/data: memory, or disk, a volume of the container or of the pod, or on the
        /// embedded engine a file in SANDBOX_STATE_DIR, TMPDIR or /var/tmp. With disk, memory is only what programs use,
        /// and a data area can be much larger: SANDBOX_DISK_LIMIT replaces SANDBOX_DATA_LIMIT. Files are removed with
        /// their session.
        storage: Storage = SANDBOX_STORAGE["sandbox.storage"](
            defaults::STORAGE, OneOf(&["memory", "disk"]), word,
        );
        /// Size of /mnt/data with SANDBOX_STORAGE=disk. A run that is about to exceed it is ended; on the embedded engine
        /// its writes fail, and a run in progress can take twice as much of the disk. Sessions together can take this
        /// many times SANDBOX_MAX_SESSIONS of the engine's disk.
        disk_limit: u64 = SANDBOX_DISK_LIMIT["sandbox.disk_limit"](
            defaults::DISK_LIMIT, Size(defaults::DATA_BYTES.0, defaults::DATA_BYTES.1), whole,
        );
        /// Longest run, and the default of timeout_s. A run that takes longer is killed. Above 60, some clients must
        /// be told to wait: n8n's MCP nodes by their option Timeout, the TypeScript SDK by the option timeout of a
        /// request. Claude Code waits by itself.
        exec_timeout: Duration = SANDBOX_EXEC_TIMEOUT_S["sandbox.max_timeout"]("60", Seconds(1, 86_400), seconds);
        /// Time limit of a run whose call names none. If not set, it is the longest possible one, for a cell at most
        /// 30.
        default_timeout: Option<Duration> = SANDBOX_DEFAULT_TIMEOUT_S["sandbox.default_timeout"](
            "", Seconds(1, 86_400), seconds_unless_empty,
        );
        /// Longest run in the background, and its default: one that goes on after its call was answered
        /// (`background`). 0 turns such runs off.
        background_timeout: Duration = SANDBOX_BACKGROUND_TIMEOUT_S["sandbox.background_timeout"](
            "3600", Seconds(0, 86_400), seconds,
        );
    }
    "Input and output" {
        /// Time zone of programs, by its IANA name, for datetime.now() and time.localtime(). JavaScript on the
        /// embedded engine keeps UTC.
        timezone: Option<String> = SANDBOX_TIMEZONE["sandbox.timezone"](
            "UTC", Words("the name of a time zone, such as Europe/Berlin"), timezone,
        );
        /// Largest upload. Sent to /files or an upload_url, or read from local_path, it is streamed. As base64 it
        /// arrives in one message and is held in memory meanwhile: then it is at most 1GiB, with SANDBOX_STORAGE=disk
        /// 50MB. The default is never more than SANDBOX_DATA_LIMIT, and with SANDBOX_STORAGE=disk is
        /// SANDBOX_DISK_LIMIT.
        max_upload: u64 = SANDBOX_MAX_UPLOAD_BYTES["files.max_upload_bytes"](
            "50MB", Size(1, defaults::DATA_BYTES.1), whole,
        );
        /// Largest image that read_artifact shows, scaled down if need be, and most bytes that it returns as base64
        /// at a time. Whatever is set here, one message holds at most 350KB as base64, because some clients drop a
        /// connection at a message of 1MiB. Text comes in pages, and every file can be downloaded by its URL.
        max_artifact_read: u64 = SANDBOX_MAX_ARTIFACT_READ_BYTES["files.max_artifact_read_bytes"](
            "10MB", Size(1, MAX_IN_MESSAGE), whole,
        );
        /// Charts returned with the result of the run that made them; 0 for none. Clients can ask for fewer: with the
        /// argument inline_images of a call, or for all calls with the URL /mcp?inline_images=0.
        inline_images: usize = SANDBOX_INLINE_IMAGES["files.inline_images"]("3", Whole(0, 20), whole);
        /// Such a chart is scaled down if a side has more pixels than this, or all of it more than a rectangle of
        /// this side and seven eighths of it (1024x896): models pay by the pixel, and a square would cost half as
        /// much again as an ordinary chart.
        inline_image_side: u32 = SANDBOX_INLINE_IMAGE_SIDE["files.inline_image_side"]("1024", Whole(64, 8000), whole);
        /// Such a chart is scaled down if its file has more bytes than this.
        inline_image_bytes: usize = SANDBOX_INLINE_IMAGE_BYTES["files.inline_image_bytes"](
            "150KB", Size(1000, MAX_INLINE_IMAGE), whole,
        );
        /// Folders that sandboxes can read at /data/NAME, each as NAME=PATH: data that need not be uploaded. Nothing can
        /// change them. PATH is absolute, on the machine with the engine. The section datasets of the settings file has
        /// descriptions, callers and volumes as well. In a policy: names of datasets, or none; callers with the policy
        /// can read no others.
        dataset_list: Option<Vec<Listed>> = SANDBOX_DATASETS["files.datasets"](
            "", List(',', "names with absolute paths, NAME=PATH"), listed,
        );
        /// Whether each root of a client over stdio, such as the folder of its project, is a dataset with the name of
        /// the folder.
        mount_roots: bool = SANDBOX_MOUNT_ROOTS["files.mount_roots"]("off", OneOf(&["on", "off"]), on_or_off);
        /// Folders, separated by :, from which upload_file may read a local_path over stdio, besides the roots that
        /// the client itself names. Links are resolved; nothing else can be read.
        upload_roots: Vec<PathBuf> = SANDBOX_UPLOAD_ROOTS["files.upload_roots"]("", List(':', "folders"), folders);
        /// Folder to which artifacts of successful runs are also written, over stdio: those of each session in a
        /// subfolder with its name. Only documents, images and data are written (PDF, PNG, CSV, XLSX, JSONL and
        /// similar), as plain files; nothing hidden, no code, no TXT, MD or JSON. docs/tools.md has the list. A path
        /// that is not absolute is relative to the working folder and must not pass through a link.
        export_dir: Option<PathBuf> = SANDBOX_EXPORT_DIR["files.export_dir"]("", Words("a folder"), path);
        /// How much one server may write there in total until it ends; each file and folder counts 4096 bytes on top
        /// of its content. Files beyond the limit are not exported, and the model is told so.
        export_limit: u64 = SANDBOX_EXPORT_LIMIT["files.export_limit"]("500MB", Size(1 << 20, 1 << 40), whole);
        /// Folder for the code, the outputs and the pictures of a session's runs, created if it does not exist, so
        /// that its notebook has all of them: up to 2,000 runs and 256MiB a session. Without it a session remembers
        /// its last 500 runs, within 16MB for all sessions, and as much again of its newest pictures. The files have
        /// no names and disappear with their session, or with the server.
        history_dir: Option<PathBuf> = SANDBOX_HISTORY_DIR["sessions.history_dir"]("", Words("a folder"), path);
        /// How much of stdout and of stderr a result shows (the start and the end), at most 320KiB. read_output reads
        /// the rest.
        max_output: usize = SANDBOX_MAX_OUTPUT_BYTES["sandbox.max_output_bytes"]("20KB", Size(1000, MAX_OUTPUT), whole);
        /// How tracebacks are shown: short, with the program's own frames and the innermost one, so that they cost a
        /// model a quarter (read_output has all of it), or full.
        tracebacks: Tracebacks = SANDBOX_TRACEBACKS["sandbox.tracebacks"]("short", OneOf(&["short", "full"]), word);
        /// Largest program, at most 1MiB.
        max_code: usize = SANDBOX_MAX_CODE_BYTES["sandbox.max_code_bytes"]("100KB", Size(1, MAX_CODE), whole);
        /// Tools that clients are offered: run has programs and files in and out, code has cells in a workspace that
        /// remembers them, sessions has sessions with limits of their own, own has those of SANDBOX_TOOLS_FILE. Each
        /// costs a model some tokens a conversation (docs/tokens.md). One client can ask for fewer with the URL
        /// /mcp?toolsets=run. Without code, nothing is prepared for cells.
        toolsets: Toolsets = SANDBOX_TOOLSETS["tools.toolsets"](
            "run,code,sessions,own", List(',', "some of run, code, sessions and own"), explained,
        );
        /// Packages that models may install with the tool install_package (docs/packages.md): off; a list such as
        /// rapidfuzz,humanize>=4,<5,npm:lodash, for Python and JavaScript, together with their dependencies; or any.
        /// Sandboxes still have no network: a separate container fetches packages from the index that pip or npm is
        /// configured to use on this machine, and the server checks them.
        packages: Allowed = SANDBOX_PACKAGES["packages.allowed"](
            defaults::PACKAGES, List(',', "off, any, or packages"), explained,
        );
        /// Size of all packages of a session, which are kept in memory and count towards SANDBOX_MEMORY_LIMIT. As
        /// much may be downloaded for one call.
        packages_limit: u64 = SANDBOX_PACKAGES_LIMIT["packages.limit"](
            defaults::PACKAGES_LIMIT, Size(defaults::PACKAGES_BYTES.0, defaults::PACKAGES_BYTES.1), whole,
        );
        /// Longest time for fetching a package and its dependencies.
        packages_timeout: Duration = SANDBOX_PACKAGES_TIMEOUT_S["packages.timeout_s"]("120", Seconds(5, 3600), seconds);
        /// Fetched packages are cached for all sessions, up to this size, as files without a name in the folder for
        /// temporary files (TMPDIR). They disappear with the server. After an hour the server asks the index again.
        packages_cache: u64 = SANDBOX_PACKAGES_CACHE["packages.cache"]("500MB", Size(0, 1 << 40), whole);
        /// Docker network of the containers in which packages are fetched. Choose one from which the package index
        /// can be reached, and nothing else if you can.
        packages_network: String = SANDBOX_PACKAGES_NETWORK["packages.network"](
            defaults::PACKAGES_NETWORK, Words("the name of a network of the engine"), network,
        );
        /// JSON file, or folder of such files, that defines tools of your own: programs for WASI that the embedded
        /// engine runs, whichever engine makes the sandboxes (docs/own-tools.md). A change is taken over within a
        /// second or two, and at once with SIGHUP.
        tools_file: Option<PathBuf> = SANDBOX_TOOLS_FILE["tools.file"]("", Words("a file or a folder"), path);
    }
    "Calls out of a sandbox" {
        /// Names of the upstreams that programs in sandboxes can call, or none; all of the section upstreams of the
        /// settings file if not set (docs/calls.md). In a policy: those that its callers can call, and no others.
        upstream_list: Option<Vec<UpstreamName>> = SANDBOX_UPSTREAMS["calls.upstreams"](
            "", List(',', "none, or names of upstreams"), names,
        );
        /// Calls that one run or cell can make.
        calls_per_run: u32 = SANDBOX_CALLS_PER_RUN["calls.max_per_run"]("100", Whole(1, 100_000), whole);
        /// Calls of one run or cell that can be in progress at once. Further ones wait.
        calls_at_once: u32 = SANDBOX_CALLS_AT_ONCE["calls.max_at_once"]("8", Whole(1, 32), whole);
        /// Bytes of arguments and answers of all calls of one run or cell.
        calls_bytes: u64 = SANDBOX_CALLS_BYTES["calls.max_bytes_per_run"](
            "50MB", Size(1000, 10_000_000_000), whole,
        );
        /// Calls of one client in a minute, in all its sessions; 0 for no limit.
        calls_per_minute: Option<NonZeroU32> = SANDBOX_CALLS_PER_MINUTE["calls.max_per_minute"](
            "600", Whole(0, 1_000_000), rate,
        );
        /// How long a call that a person must allow waits for the decision. It then fails.
        call_ask_timeout: Duration = SANDBOX_CALL_ASK_TIMEOUT_S["calls.ask_timeout_s"](
            "600", Seconds(1, 86_400), seconds,
        );
    }
    "Sessions" {
        /// Concurrent sessions with a place of their own: a container or processes that hold memory. Sessions that
        /// hibernate may give theirs away (SANDBOX_MAX_HIBERNATED).
        max_sessions: usize = SANDBOX_MAX_SESSIONS["sessions.max_sessions"](
            defaults::MAX_SESSIONS, Whole(defaults::SESSIONS.0, defaults::SESSIONS.1), whole,
        );
        /// Concurrent sessions of one client, that is, of one name in SANDBOX_AUTH_TOKENS. The default is
        /// SANDBOX_MAX_SESSIONS.
        max_sessions_per_client: usize = SANDBOX_MAX_SESSIONS_PER_CLIENT["sessions.max_workspaces_per_client"](
            defaults::MAX_SESSIONS, Whole(1, 10_000), whole,
        );
        /// A session that is unused for this long is closed. A running program counts as use.
        session_ttl: Duration = SANDBOX_SESSION_TTL_M["sessions.max_workspace_timeout_minutes"](
            "30", Minutes(0.01, 1e6), minutes,
        );
        /// Time for which a session that does not ask for another may be unused; the maximum if not set.
        default_ttl: Option<Duration> = SANDBOX_DEFAULT_SESSION_TTL_M["sessions.workspace_timeout_minutes"](
            "", Minutes(0.01, 1e6), minutes_unless_empty,
        );
        /// When the limit of sessions is reached, the session that has been unused for longest hibernates at once and
        /// gives its place to the new one; it needs a place again before its next run. A client can have this many
        /// sessions without a place besides those of SANDBOX_MAX_SESSIONS, and all of them together can hold about
        /// twice SANDBOX_MEMORY_LIMIT; beyond that, the one of them that has been unused for longest ends, if the
        /// server made its id. A session in use keeps its place, and so does one whose files and variables need more
        /// than half of SANDBOX_MEMORY_LIMIT. A session of another client gives its place away only if that client
        /// has more places. The default is 0 with Kubernetes, where every pod counts.
        max_hibernated: usize = SANDBOX_MAX_HIBERNATED["sessions.max_hibernated"]("100", Whole(0, 10_000), whole);
        /// When the limit of sessions is reached and none can hibernate (SANDBOX_MAX_HIBERNATED), a new session
        /// replaces the one of the same client that has been unused for longest, if the server made its id and it has
        /// been unused for at least this long. A session named by its client is never replaced, nor is one in use. 0
        /// means never.
        evict_idle: Option<Duration> = SANDBOX_EVICT_IDLE_M["sessions.evict_idle_minutes"](
            "10", Minutes(0.0, 1e6), minutes_unless_zero,
        );
        /// Sandboxes kept ready, with their libraries loaded, for sessions that the client does not name: the first
        /// call of such a session is as fast as any other. They count as sessions, but make room when
        /// SANDBOX_MAX_SESSIONS is reached. 0 for none.
        pool_size: usize = SANDBOX_POOL_SIZE["sessions.pool_size"]("1", Whole(0, 10_000), whole);
        // Modules that a data analysis imports, in the order in which a first run is likely to need them, and
        // modules of the standard library that load slowly. An idle session then needs less than 200 MB.
        /// Modules that are loaded once in each sandbox, so that no run has to import them; those that the image
        /// lacks are skipped, with a warning in the log. Worth adding if you need them: openpyxl, reportlab.platypus
        /// (5 MB and 45 ms each). With json alone, which loads the interpreter, a session takes 160 MB less and a run
        /// that imports pandas half a second longer. With none, each run starts a new interpreter, and notes on
        /// errors know less of them. If full /mnt/data and /tmp would leave less than 180MB of memory (below 480MB,
        /// or with a SANDBOX_DATA_LIMIT too large for the memory), the default is json; if they would leave less than
        /// 95MB, it is none. The log of a server and `llm-sandbox doctor` then say how much memory would suffice.
        preload: Option<Vec<String>> = SANDBOX_PRELOAD["sandbox.preload"](
            "numpy,pandas,matplotlib.pyplot,matplotlib.backends.backend_agg,seaborn,scipy.stats,pyarrow.parquet,asyncio,\
             multiprocessing.pool,concurrent.futures.thread,sqlite3",
            List(',', "none, or names of modules"), modules,
        );
        /// Cells of a workspace that can be undone. The server keeps a copy of the interpreter for each, of about 3
        /// MB plus its later changes, and fewer copies if memory is short.
        undo: u32 = SANDBOX_UNDO["sandbox.undo"]("5", Whole(0, MAX_UNDO as _), whole);
        /// A session that is unused for this long hibernates: it unloads what is preloaded, which is most of its
        /// memory, or with SANDBOX_STATE_DIR all of it. Its next run takes longer, up to a second; those after it do
        /// not.
        hibernate_after: Duration = SANDBOX_HIBERNATE_AFTER_M["sessions.hibernate_after_minutes"](
            "5", Minutes(0.01, 1e6), minutes,
        );
        /// A sandbox outlives the connection to it for this long: programs continue, and the server connects again,
        /// for example after a restart of the relay. Over HTTP with SANDBOX_KEY_FILE the next server does so, too: an
        /// upgrade ends no session. The default is 60 with Kubernetes. 0 ends a sandbox with its connection. Not for
        /// the embedded engine, which has SANDBOX_STATE_DIR.
        hold: Duration = SANDBOX_HOLD_S["sessions.hold_s"](
            "0", Seconds(defaults::HOLD_SECONDS.0, defaults::HOLD_SECONDS.1), seconds,
        );
        /// How often to look for containers of servers that have died.
        cleanup_interval: Duration = SANDBOX_CLEANUP_INTERVAL_M["sessions.cleanup_interval_minutes"](
            "5", Minutes(0.01, 1e6), minutes,
        );
    }
    "Engine" {
        /// Engine that starts the sandboxes: docker, containers; kubernetes, pods of a cluster (docs/kubernetes.md);
        /// wasm, the embedded engine, which needs neither Docker nor root (docs/embedded-engine.md); or auto, docker
        /// or wasm, whichever can be used when the server starts. The last choice, local, runs programs as plain
        /// processes, WHICH ISOLATES NOTHING: for tests of the server itself.
        engine: Engine = SANDBOX_ENGINE["engine.name"](
            "auto", OneOf(&["auto", "docker", "kubernetes", "wasm", "local"]), word,
        );
        /// Whether sandboxes run Python.
        python: bool = SANDBOX_PYTHON["runtimes.python.enabled"]("true", OneOf(&["true", "false"]), word);
        /// Whether sandboxes run JavaScript.
        javascript: bool = SANDBOX_JAVASCRIPT["runtimes.javascript.enabled"]("true", OneOf(&["true", "false"]), word);
        /// Whether sandboxes run Bash, where the engine has it.
        bash: bool = SANDBOX_BASH["runtimes.bash.enabled"]("true", OneOf(&["true", "false"]), word);
        /// Instructions that one run or cell may use with the embedded engine, which counts them; 0 for as many as
        /// its time allows. A second of Python takes some 15,000,000,000.
        fuel: Option<u64> = SANDBOX_FUEL["sandbox.fuel"]("0", Whole(0, 1 << 60), limit);
        /// Folder of the embedded engine's runtime, which `llm-sandbox runtime install` makes. Only its owner may be
        /// able to write to it. By default it is ~/.cache/llm-sandbox (below XDG_CACHE_HOME, if that is set).
        runtime_dir: Option<PathBuf> = SANDBOX_RUNTIME_DIR["engine.runtime_dir"]("", Words("a folder"), path);
        /// Folder in which the embedded engine keeps its sandboxes, variables and files, when the server ends or is
        /// killed: with the next server each session continues at its next call. Closed and expired sessions are not
        /// kept. Only its owner may be able to write to it. Without it sessions end with the server. With it no
        /// sandboxes are kept ready (SANDBOX_POOL_SIZE).
        state_dir: Option<PathBuf> = SANDBOX_STATE_DIR["engine.state_dir"]("", Words("a folder"), path);
        /// Archive for sessions that end without being closed: when they expire, when the server ends, or to make
        /// room. The next use of the session's name restores its files and the variables that could be saved, on any
        /// server with the same archive (docs/archive.md). A folder, or s3://bucket/prefix with the usual variables
        /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL. Anyone who can read the archive
        /// can read the data. Without an archive such sessions are lost.
        archive: Option<String> = SANDBOX_ARCHIVE["archive.location"](
            "", Words("a folder, or s3://bucket/prefix"), archive,
        );
        /// For how many days an archived session is kept.
        archive_keep: Duration = SANDBOX_ARCHIVE_DAYS["archive.days"]("7", Number(0.0001, 3650.0), days);
        /// Most that the archived sessions of one client take together. When a session is archived and they would
        /// take more, the client's oldest ones are deleted. 0 for no limit.
        archive_client_limit: Option<u64> = SANDBOX_ARCHIVE_CLIENT_LIMIT["archive.client_limit"](
            "10GB", Size(0, 1 << 50), limit,
        );
        /// Space that stays free on the disks of SANDBOX_ARCHIVE and SANDBOX_HISTORY_DIR. With less, no session is
        /// archived, and the log says so; if an older state of the session comes back later, its notes say that a
        /// newer one was not saved. A session's runs are then kept in memory alone, as without SANDBOX_HISTORY_DIR.
        min_free: u64 = SANDBOX_MIN_FREE["archive.min_free"]("1GB", Size(0, 1 << 50), whole);
        /// How long a server that ends waits for its sessions to end. With SANDBOX_ARCHIVE the default is 25, as they
        /// are saved first. The program that stops the server must wait longer: Docker Compose waits for 30 seconds.
        shutdown_timeout: Duration = SANDBOX_SHUTDOWN_TIMEOUT_S["server.shutdown_timeout_s"](
            "10", Seconds(1, 3600), seconds,
        );
        /// Image of the sandboxes: the one that `llm-sandbox image build` builds, or your own based on it. On
        /// Kubernetes its name in a registry that the nodes reach, with a tag that is not used again: nodes keep what
        /// they have under a name.
        image: String = SANDBOX_IMAGE["engine.image"](defaults::IMAGE, Words("the name of an image"), text);
        /// The image's label llm-sandbox.template, in JSON: its languages and libraries. On Docker the server reads the
        /// label itself. On Kubernetes it cannot; by default it assumes the image that `llm-sandbox image build` builds.
        image_template: Option<String> = SANDBOX_IMAGE_TEMPLATE["engine.kubernetes.image_template"](
            "", Words("the text of a label"), optional,
        );
        /// Runtime of the containers, for example runsc for gVisor; the engine's default if not set. On Kubernetes
        /// the name of a RuntimeClass.
        runtime: Option<String> = SANDBOX_RUNTIME["engine.container_runtime"](
            "", Words("the name of a runtime"), optional,
        );
        /// Devices of the host that all sandboxes can use, by their CDI names, separated by commas, such as
        /// nvidia.com/gpu=all; on Kubernetes resources with their number, such as nvidia.com/gpu=1. Drivers widen what a
        /// sandbox can attack: see docs/image.md. The embedded engine has none.
        gpus: Vec<String> = SANDBOX_GPUS["sandbox.gpus"]("", Words("names of devices"), devices);
        /// Namespace of the sandboxes' pods. By default that of the server's own service account or, outside the
        /// cluster, of the context in KUBECONFIG.
        kubernetes_namespace: Option<String> = SANDBOX_KUBERNETES_NAMESPACE["engine.kubernetes.namespace"](
            "", Words("the name of a namespace"), dns_label,
        );
        /// File with a merge patch, in YAML or JSON, over the pods of sandboxes: nodeSelector, tolerations, affinity,
        /// imagePullSecrets, hostUsers, a seccomp profile of the nodes, labels and the other fields that
        /// docs/kubernetes.md lists. A patch that would weaken a sandbox is refused.
        kubernetes_pod: Option<PathBuf> = SANDBOX_KUBERNETES_POD["engine.kubernetes.pod"](
            "", Words("the path of a file"), path,
        );
        /// For several servers behind one address, on Kubernetes (docs/kubernetes.md): the address at which the
        /// others reach this server, and on which it listens as well. The server that has a client's sessions answers
        /// the client's requests, whichever server they reach. Needs SANDBOX_KEY_FILE, a file that exists and is the
        /// same for all, and SANDBOX_HOLD_S. Over stdio it is ignored.
        peer_address: Option<SocketAddr> = SANDBOX_PEER_ADDRESS["transport.http.peer_address"](
            "", Words("an IP address of this server and a port, such as 10.1.2.3:8081"), socket_address,
        );
        /// Host and port that a sandbox on Kubernetes must not reach: `llm-sandbox doctor` tries it from inside one.
        /// By default the cluster's API server.
        kubernetes_canary_target: Option<String> = SANDBOX_KUBERNETES_CANARY_TARGET["engine.kubernetes.canary_target"](
            "", Words("a host and its port, such as 10.0.0.1:443"), host_and_port,
        );
    }
    "HTTP" {
        /// Name under which clients know the server.
        server_name: String = SANDBOX_SERVER_NAME["server.name"]("llm-sandbox", Words("a name"), text);
        /// How clients speak MCP: stdio, with a server for each client, or http, with one server for all of them, at
        /// /mcp. Files are served over HTTP either way.
        transport: Transport = SANDBOX_TRANSPORT["transport.default"]("stdio", OneOf(&["stdio", "http"]), word);
        /// Address to listen on.
        http_host: IpAddr = SANDBOX_HTTP_HOST["transport.http.host"]("127.0.0.1", Words("an IP address"), word);
        /// Port to listen on. If it is taken, a server over stdio uses a free one, which its URLs then carry. 0
        /// always picks a free one.
        http_port: u16 = SANDBOX_HTTP_PORT["transport.http.port"]("8080", Whole(0, 65_535), whole);
        /// File with the server's certificate, in PEM, followed by those that its issuer adds: the server then speaks
        /// HTTPS alone, TLS 1.2 or 1.3, at its address. It uses new files within seconds of their change, without
        /// ending a connection.
        tls_cert: Option<PathBuf> = SANDBOX_TLS_CERT["tls.cert"]("", Words("the path of a file"), path);
        /// File with the private key of SANDBOX_TLS_CERT, in PEM, without a passphrase.
        tls_key: Option<PathBuf> = SANDBOX_TLS_KEY["tls.key"]("", Words("the path of a file"), path);
        /// Whether tokens may reach the server unencrypted at an address that is not a loopback address. Without it
        /// such a server needs SANDBOX_TLS_CERT, or does not start. Set it to true only if nothing but a proxy that
        /// ends TLS reaches the address, or if a container publishes it on a loopback address alone.
        allow_insecure_http: bool = SANDBOX_ALLOW_INSECURE_HTTP["server.allow_insecure_http"](
            "false", OneOf(&["true", "false"]), word,
        );
        /// Clients and their tokens: name:token,... with visible ASCII in the tokens. `openssl rand -hex 32` makes a
        /// good one. Sessions belong to the name that created them; several tokens may have one name. If
        /// SANDBOX_HTTP_HOST is not a loopback address, these, callers of the settings file or SANDBOX_OAUTH_ISSUER must
        /// be set. Without any, clients on this machine need no token; over stdio, only the URLs that the server has
        /// given out grant access then.
        auth_tokens: Tokens = SANDBOX_AUTH_TOKENS["auth.tokens"]("", Secrets("name:token pairs"), tokens);
        /// File with such pairs, separated by commas or line breaks, used if SANDBOX_AUTH_TOKENS is not set. If it
        /// does not exist, it is created with one random token for the name me, which `llm-sandbox token` prints.
        auth_tokens_file: Option<PathBuf> = SANDBOX_AUTH_TOKENS_FILE["auth.tokens_file"](
            "", Words("the path of a file"), path,
        );
        /// File with the server's secret, 32 bytes as hexadecimal digits or base64, from which it derives the key of
        /// its URLs. If it does not exist, it is created with a random one. Only its owner and group may be able to
        /// read it. Without it each server has a secret of its own, so that no URL outlives its server.
        server_key: Option<ServerKey> = SANDBOX_KEY_FILE["auth.key_file"]("", Words("the path of a file"), server_key);
        /// Requests of one client per minute, all of which may come at once; 0 for no limit. Further ones are
        /// answered with 429.
        rate_limit: Option<NonZeroU32> = SANDBOX_RATE_LIMIT_PER_M["transport.http.rate_limit_per_minute"](
            "0", Whole(0, 1_000_000), rate,
        );
        /// Token for reading /metrics and nothing else. If it is not set, each of SANDBOX_AUTH_TOKENS works; without
        /// those, reading them needs no token.
        metrics_token: Option<Token> = SANDBOX_METRICS_TOKEN["auth.metrics_token"]("", Secret("a token"), token);
        /// How long URLs that need no token remain valid: those for uploads and, over stdio or where there are
        /// tokens, those of downloads and of the page. They end with their session in any case.
        url_ttl: Duration = SANDBOX_URL_TTL_M["transport.http.url_ttl_minutes"]("60", Minutes(0.01, 1e6), minutes);
        /// Base of the URLs. If it is not set, each client gets URLs with the host and port at which it reached the
        /// server itself; another container then gets different ones than a browser on this machine.
        public_url: Option<String> = SANDBOX_PUBLIC_URL["transport.http.public_url"](
            "", Words("a URL such as https://host:8080"), url,
        );
        /// Host names to which the server answers, separated by commas, without ports. A request to any other name is
        /// refused with 421, because a web page could have made it. Always allowed: localhost, loopback addresses,
        /// SANDBOX_HTTP_HOST (any address, if that is 0.0.0.0 or ::) and the host of SANDBOX_PUBLIC_URL. A container
        /// that uses host.docker.internal needs that here.
        allowed_hosts: Vec<String> = SANDBOX_ALLOWED_HOSTS["transport.http.allowed_hosts"](
            "", List(',', "names without ports"), hosts,
        );
        /// Sites whose pages may call the server from a browser, such as https://app.example.org, separated by
        /// commas; http://localhost:* allows any port. Its own pages always may; all others are refused with 403.
        allowed_origins: Vec<String> = SANDBOX_ALLOWED_ORIGINS["transport.http.cors_origins"](
            "", List(',', "origins"), origins,
        );
    }
    "OAuth" {
        /// Authorization server whose access tokens callers may use, besides tokens of the other settings: its issuer,
        /// exactly as iss in its tokens has it. https, or http on a loopback address. Needs SANDBOX_PUBLIC_URL or
        /// SANDBOX_OAUTH_AUDIENCE, and MCP over HTTP (docs/oauth.md).
        oauth_issuer: Option<String> = SANDBOX_OAUTH_ISSUER["auth.oauth.issuer"](
            "", Words("an https URL, or an http URL of a loopback address"), safe_url,
        );
        /// Audiences, of which an access token must have one (aud), separated by commas. If not set,
        /// SANDBOX_PUBLIC_URL followed by /mcp or /mcp/.
        oauth_audience: Vec<String> = SANDBOX_OAUTH_AUDIENCE["auth.oauth.audience"](
            "", List(',', "audiences"), items,
        );
        /// URL of the issuer's keys (JWKS). If not set, it is looked up in the issuer's metadata.
        oauth_jwks_url: Option<String> = SANDBOX_OAUTH_JWKS_URL["auth.oauth.jwks_url"](
            "", Words("an https URL, or an http URL of a loopback address"), safe_url,
        );
        /// File with certificates (PEM) of authorities that are trusted for the issuer, besides the system's.
        oauth_ca_file: Option<PathBuf> = SANDBOX_OAUTH_CA_FILE["auth.oauth.ca_file"](
            "", Words("the path of a file"), path,
        );
        /// Scopes that every access token must have (scope or scp), separated by commas.
        oauth_scopes: Vec<String> = SANDBOX_OAUTH_SCOPES["auth.oauth.scopes"]("", List(',', "scopes"), scopes);
        /// Claim that identifies a caller: one value is one caller. It must be unique and must never be given to
        /// another user, as sub is.
        oauth_caller_claim: String = SANDBOX_OAUTH_CALLER_CLAIM["auth.oauth.caller_claim"](
            "sub", Words("the name of a claim"), text,
        );
        /// Claim whose values SANDBOX_OAUTH_ROLES has; realm_access.roles is the claim roles within realm_access.
        oauth_role_claim: Option<String> = SANDBOX_OAUTH_ROLE_CLAIM["auth.oauth.role_claim"](
            "", Words("the name of a claim"), optional,
        );
        /// Roles by values of that claim: value=role, or role if both are the same. The first that a token has counts,
        /// and * is every token. A token with none has the role user.
        oauth_roles: Vec<(String, Role)> = SANDBOX_OAUTH_ROLES["auth.oauth.roles"](
            "", List(',', "value=role pairs with user, operator or auditor"), roles,
        );
        /// Claim whose values SANDBOX_OAUTH_POLICIES has.
        oauth_policy_claim: Option<String> = SANDBOX_OAUTH_POLICY_CLAIM["auth.oauth.policy_claim"](
            "", Words("the name of a claim"), optional,
        );
        /// Policies of the settings file by values of that claim, as in SANDBOX_OAUTH_ROLES, the one that allows least
        /// as the last. If it is set, a token with none of them is refused; *=NAME gives every other token NAME.
        oauth_policies: Vec<(String, String)> = SANDBOX_OAUTH_POLICIES["auth.oauth.policies"](
            "", List(',', "value=policy pairs"), policies,
        );
    }
    "Log" {
        /// ERROR, WARN, INFO, DEBUG or TRACE: the lowest severity that is logged. Code, data and output of programs
        /// are never logged.
        log_level: tracing::Level = SANDBOX_LOG_LEVEL["logging.level"](
            "INFO", OneOf(&["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]), word,
        );
        // The default of a server over HTTP, which reads a file of settings unasked.
        /// The log goes to stderr and to this file. Leave the value empty for stderr alone. Over stdio the default is
        /// ~/.local/state/llm-sandbox/sandbox.log (below XDG_STATE_HOME, if that is set; on macOS in ~/Library/Logs).
        log_file: LogFile = SANDBOX_LOG_FILE["logging.file"]("logs/sandbox.log", Words("the path of a file"), log_file);
        /// console, for people, or json, one object per line.
        log_format: LogFormat = SANDBOX_LOG_FORMAT["logging.format"]("console", OneOf(&["console", "json"]), word);
        /// true counts calls, runs and bytes by caller, too. Callers with a token are named; all others are `other`.
        /// Only the token of SANDBOX_METRICS_TOKEN and auditors can read these metrics; without that token also operators.
        metrics_callers: bool = SANDBOX_METRICS_CALLERS["metrics.callers"]("false", OneOf(&["true", "false"]), word);
        /// Collector of OpenTelemetry that gets a span for each call, run and start of a sandbox, by OTLP over HTTP:
        /// a URL such as http://collector:4318, to which /v1/traces is appended. The variables OTEL_* set the rest,
        /// such as headers with credentials (docs/traces.md).
        otlp_endpoint: Option<String> = SANDBOX_OTLP_ENDPOINT["tracing.otlp_endpoint"](
            "", Words("a URL such as http://collector:4318"), url,
        );
        /// File in which each call, upload and download leaves a line: who, what, when, limits and outcome, SHA-256
        /// of code, inputs and outputs, and of the line before; never code or data. `llm-sandbox audit verify` finds
        /// changed and removed lines (docs/audit.md). With SANDBOX_KEY_FILE only the server can make a line. Each
        /// server needs a file of its own. While it cannot be written, calls are refused.
        audit_file: Option<PathBuf> = SANDBOX_AUDIT_FILE["audit.file"]("", Words("the path of a file"), path);
        /// The audit file is renamed to <file>.<number of its last line> when it would be larger than this, and the
        /// next line begins a new one.
        audit_max_size: u64 = SANDBOX_AUDIT_MAX_SIZE["audit.max_size"]("100MB", Size(4096, 1 << 40), whole);
        /// Most that the audit file and its older ones take together. When it would be more, the oldest are deleted,
        /// and a line says up to which line, so that `llm-sandbox audit verify` reports no gap. 0 deletes none.
        audit_max_total: Option<u64> = SANDBOX_AUDIT_MAX_TOTAL["audit.max_total"]("0", Size(0, 1 << 50), limit);
        /// Lines of the audit file that one client gets in a minute for calls that were refused, so that nothing was
        /// done. The others are counted in its next line. 0 writes a line for each.
        audit_refused: Option<NonZeroU32> = SANDBOX_AUDIT_REFUSED_PER_M["audit.refused_per_minute"](
            "60", Whole(0, 1_000_000), rate,
        );
    }
}
