use std::path::PathBuf;

use super::*;

fn parse(vars: &[(&str, &str)]) -> Result<Config, Mistakes> {
    Config::parse(vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let config = parse(&[("PATH", "/bin")]).expect("valid");
    assert_eq!(config, Config::default());
    assert_eq!(config.memory_limit, 512_000_000);
    assert_eq!(config.max_upload, 50_000_000);
    assert_eq!(config.max_output, 20_000);
    assert_eq!(config.session_ttl, Duration::from_secs(1800));
    assert_eq!(config.http_port, 8080);
    assert_eq!((config.log_file, config.env_file), (LogFile::Usual, None));
}

#[test]
fn the_table_has_every_setting_with_its_default() {
    // Setting everything to its default changes nothing, except for the log, whose default depends on the transport.
    let vars = table::rows().map(|row| (row.name.to_owned(), row.default.to_owned()));
    let config = Config::parse(vars).expect("valid, and none is unknown");
    let log_file = LogFile::At("logs/sandbox.log".into());
    let (given, own_places) = (config.given.clone(), config.own_places.clone());
    assert_eq!(config, Config { log_file, given, own_places, ..Config::default() });
}

#[test]
fn settings_are_described_in_sentences() {
    let mut names: Vec<_> = table::rows().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), table::rows().count(), "each once");
    for row in table::rows() {
        let name = row.name.strip_prefix(PREFIX).expect("ours");
        assert!(name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{}", row.name);
        assert!(row.description.ends_with('.') && row.description.len() > 15, "{}", row.name);
        assert!(!row.description.contains("  ") && !row.description.contains('\n'), "{}", row.name);
        let unit = match name.rsplit('_').next() {
            Some("S") => Some("seconds"),
            // The value is a number of requests; only their rate is per minute.
            Some("M") if !name.contains("_PER_") => Some("minutes"),
            _ => None,
        };
        assert_eq!(row.form.unit(), unit, "{}", row.name);
    }
}

#[test]
fn descriptions_say_the_numbers_that_hold() {
    let says = |row: table::Row, number: String| {
        assert!(row.description.contains(&number), "{}: {number}", row.name);
    };
    says(table::SANDBOX_DATA_LIMIT.row, format!("at most {} files", protocol::limits::MAX_FILES));
    let sizes = [table::SANDBOX_MAX_OUTPUT_BYTES.row, table::SANDBOX_MAX_CODE_BYTES.row];
    for row in sizes {
        let table::Form::Size(_, max) = row.form else { panic!("{} is a size", row.name) };
        says(row, format!("at most {}", model::text::human_size(max)));
    }
}

#[test]
fn sizes_and_times_are_read_with_their_units() {
    let config = parse(&[
        ("SANDBOX_MEMORY_LIMIT", "1GiB"),
        ("SANDBOX_MAX_UPLOAD_BYTES", "1048576"),
        ("SANDBOX_SESSION_TTL_M", "0.05"),
        ("SANDBOX_EXEC_TIMEOUT_S", "7"),
        ("SANDBOX_PUBLIC_URL", "https://files.example.org/sandbox/"),
        ("SANDBOX_LOG_LEVEL", "debug"),
        ("SANDBOX_LOG_FILE", ""),
    ])
    .expect("valid");
    assert_eq!(config.memory_limit, 1 << 30);
    assert_eq!(config.max_upload, 1 << 20);
    assert_eq!(config.session_ttl, Duration::from_secs(3));
    assert_eq!(config.exec_timeout, Duration::from_secs(7));
    assert_eq!(config.public_url.as_deref(), Some("https://files.example.org/sandbox"));
    assert_eq!(config.log_level, tracing::Level::DEBUG);
    assert_eq!(config.log_file, LogFile::None);
}

#[test]
fn a_relay_reads_what_it_shares_with_its_server_as_the_server_does() {
    let own = [
        ("SANDBOX_MEMORY_LIMIT", "1GiB"),
        ("SANDBOX_CPU_LIMIT", "0.5"),
        ("SANDBOX_PIDS_LIMIT", "64"),
        ("SANDBOX_IMAGE", "own"),
        ("SANDBOX_RUNTIME", "runsc"),
        ("SANDBOX_MAX_SESSIONS", "7"),
        ("SANDBOX_LOG_LEVEL", "warn"),
        ("SANDBOX_LOG_FORMAT", "JSON"),
    ];
    for vars in [&[][..], &[("SANDBOX_MEMORY_LIMIT", "400MB")], &own] {
        let config = parse(vars).expect("valid");
        let pairs = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let relay = llm_sandbox_relay::Settings::parse(pairs).expect("valid");
        assert_eq!(relay.limits, Limits::from(&config));
        assert_eq!((relay.image, relay.runtime), (config.image, config.runtime));
        assert_eq!((relay.max_sessions, relay.log_level), (config.max_sessions, config.log_level));
        let format = |json| if json { LogFormat::Json } else { LogFormat::Console };
        let is_json = relay.log_format == llm_sandbox_relay::LogFormat::Json;
        assert_eq!(format(is_json), config.log_format);
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let mistakes = parse(&[
        ("SANDBOX_MEMORY_LIMIT", "lots"),
        ("SANDBOX_CPU_LIMIT", "NaN"),
        ("SANDBOX_EXEC_TIMEOUT_S", "0"),
        ("SANDBOX_MAX_OUTPUT_BYTES", "1GB"),
        ("SANDBOX_HTTP_HOST", "nowhere"),
        ("SANDBOX_HTTP_PORT", "65536"),
        ("SANDBOX_PUBLIC_URL", "files.example.org"),
        ("SANDBOX_LOG_LEVEL", "LOUD"),
        ("SANDBOX_LOG_FORMAT", "xml"),
        ("SANDBOX_MAX_SESIONS", "3"),
    ])
    .expect_err("ten mistakes");
    assert_eq!(mistakes.0.len(), 10, "{mistakes}");
    let told = "SANDBOX_MAX_SESIONS: there is no such setting (did you mean SANDBOX_MAX_SESSIONS?)";
    assert!(mistakes.to_string().contains(told), "{mistakes}");
    let mistakes = Config::parse([("SANDBOX_COLOUR".into(), "1".into())]).unwrap_err();
    assert!(!mistakes.to_string().contains("did you mean"), "{mistakes}");
}

#[test]
fn files_never_take_all_the_memory() {
    let config = parse(&[("SANDBOX_MEMORY_LIMIT", "64MiB")]).expect("valid");
    assert_eq!((config.data_limit, config.max_upload), (32 << 20, 32 << 20));
    let mistakes = parse(&[("SANDBOX_DATA_LIMIT", "1GB")]).expect_err("more than there is");
    assert!(mistakes.to_string().contains("SANDBOX_MEMORY_LIMIT"), "{mistakes}");
    let besides = parse(&[("SANDBOX_DATA_LIMIT", "1GB"), ("SANDBOX_ENGINE", "wasm")]);
    assert_eq!(besides.expect("valid").data_limit, 1_000_000_000);
}

#[test]
fn a_session_of_less_memory_preloads_where_there_is_room() {
    let preloads = |config: &Config, memory: u64| {
        let limits = Limits::from(config).with_memory(memory);
        config.preload_within(&limits).is_some_and(|all| all.len() > 1)
    };
    let config = Config::default();
    let bare = |memory| config.preload_within(&Limits::from(&config).with_memory(memory));
    assert_eq!(bare(256_000_000), Some(vec!["json".to_owned()]), "the interpreter alone");
    assert_eq!(bare(64_000_000), None);
    assert!(preloads(&config, config.memory_limit) && preloads(&config, 500_000_000));
    assert!(!preloads(&config, 64_000_000));
    let little = parse(&[("SANDBOX_DATA_LIMIT", "10MB"), ("SANDBOX_MAX_UPLOAD_BYTES", "10MB")]);
    assert!(preloads(&little.expect("valid"), 256_000_000), "files take less of it");
    let named = parse(&[("SANDBOX_MEMORY_LIMIT", "128MB"), ("SANDBOX_PRELOAD", "json,csv")]);
    let named = named.expect("valid");
    assert!(preloads(&named, 128_000_000), "the operator wants them");
    assert!(!preloads(&named, 64_000_000));
    let none = parse(&[("SANDBOX_PRELOAD", "none")]).expect("valid");
    assert!(!preloads(&none, none.memory_limit));
}

#[test]
fn the_example_for_larger_data_is_valid_and_leaves_room_to_preload() {
    let page = include_str!("../../../docs/larger-data.md");
    let example = page.split("```").nth(1).expect("a block");
    let settings: Vec<_> = example.lines().filter_map(|line| line.split_once('=')).collect();
    assert!(settings.len() >= 4, "{settings:?}");
    let config = parse(&settings).expect("valid");
    assert!(config.preload.is_some() && config.max_upload >= 200_000_000);
}

#[test]
fn modules_are_preloaded_where_there_is_room_or_as_they_are_named() {
    let preload = |vars: &[(&str, &str)]| parse(vars).map(|config| config.preload);
    let small = ("SANDBOX_MEMORY_LIMIT", "256MB");
    assert!(preload(&[]).expect("valid").is_some_and(|all| all.contains(&"pandas".into())));
    let bare = Some(vec!["json".to_owned()]);
    assert_eq!(preload(&[small]).expect("valid"), bare);
    assert_eq!(preload(&[("SANDBOX_DATA_LIMIT", "300MB")]).expect("valid"), bare);
    assert_eq!(preload(&[("SANDBOX_MEMORY_LIMIT", "128MB")]).expect("valid"), None);
    let needs = |vars: &[(&str, &str)]| parse(vars).expect("valid").preload_needs;
    assert_eq!(needs(&[]), None);
    assert_eq!(needs(&[("SANDBOX_DATA_LIMIT", "300MB")]), Some(550_000_000));
    let enough = [("SANDBOX_DATA_LIMIT", "300MB"), ("SANDBOX_MEMORY_LIMIT", "550MB")];
    assert!(preload(&enough).expect("valid").is_some());
    let none = [("SANDBOX_DATA_LIMIT", "300MB"), ("SANDBOX_PRELOAD", "none")];
    assert_eq!(needs(&none), None, "it is as the operator wants it");
    let named = [small, ("SANDBOX_PRELOAD", " json, scipy.stats,")];
    assert_eq!(preload(&named).expect("valid"), Some(vec!["json".into(), "scipy.stats".into()]));
    assert_eq!(preload(&[("SANDBOX_PRELOAD", "none")]).expect("valid"), None);
    for wrong in ["a b", "a..b", "a;b", "é"] {
        assert!(preload(&[("SANDBOX_PRELOAD", wrong)]).is_err(), "{wrong}");
    }
}

#[test]
fn a_server_that_others_can_reach_needs_tokens() {
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let mistakes = parse(&[("SANDBOX_HTTP_HOST", host)]).expect_err(host);
        assert!(mistakes.to_string().contains("SANDBOX_AUTH_TOKENS"), "{mistakes}");
    }
    for host in ["127.0.0.1", "127.1.2.3", "::1"] {
        assert!(parse(&[("SANDBOX_HTTP_HOST", host)]).is_ok(), "{host}");
    }
}

#[test]
fn tokens_reach_a_server_unencrypted_only_on_this_machine_or_if_that_is_allowed() {
    let tls = [("SANDBOX_TLS_CERT", "cert.pem"), ("SANDBOX_TLS_KEY", "key.pem")];
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let with = [("SANDBOX_HTTP_HOST", host), ("SANDBOX_AUTH_TOKENS", "me:secret")];
        let mistakes = parse(&with).expect_err(host).to_string();
        for way in ["SANDBOX_TLS_CERT", "127.0.0.1", "SANDBOX_ALLOW_INSECURE_HTTP=true"] {
            assert!(mistakes.contains(way), "{mistakes}");
        }
        assert!(parse(&[&with[..], &tls].concat()).is_ok(), "{host}");
        let allowed = [with[0], with[1], ("SANDBOX_ALLOW_INSECURE_HTTP", "true")];
        assert!(parse(&allowed).is_ok(), "{host}");
    }
    let with = [("SANDBOX_HTTP_HOST", "127.0.0.1"), ("SANDBOX_AUTH_TOKENS", "me:secret")];
    assert!(parse(&with).is_ok());
    for (one, other) in [(tls[0], tls[1].0), (tls[1], tls[0].0)] {
        let mistakes = parse(&[one]).expect_err(one.0).to_string();
        assert!(mistakes.contains(&format!("{}: is set without {other}", one.0)), "{mistakes}");
    }
}

#[test]
fn origins_are_written_as_browsers_write_them() {
    let origins = |list| parse(&[("SANDBOX_ALLOWED_ORIGINS", list)]).map(|c| c.allowed_origins);
    assert_eq!(
        origins("https://a.test,http://b.test:81,http://localhost:*").expect("valid"),
        ["https://a.test", "http://b.test:81", "http://localhost:*"]
    );
    for wrong in [
        "a.test",
        "https://a.test/",
        "https://a.test:443",
        "*",
        "null",
        "https://A.test",
        "http://a.test:81:*",
        "http://*:*",
        "localhost:*",
        "*:*",
    ] {
        assert!(origins(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn folders_must_be_there() {
    let folders = |list: &str| parse(&[("SANDBOX_UPLOAD_ROOTS", list)]).map(|c| c.upload_roots);
    assert_eq!(folders("/:/proc").expect("valid"), [PathBuf::from("/"), "/proc".into()]);
    for wrong in ["/no/such/folder", "/proc/self/status"] {
        assert!(folders(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn allowed_hosts_are_names_and_addresses_without_ports() {
    let hosts = |list| parse(&[("SANDBOX_ALLOWED_HOSTS", list)]).map(|c| c.allowed_hosts);
    assert_eq!(hosts("a.test, ::1,,10.0.0.1 ").expect("valid"), ["a.test", "::1", "10.0.0.1"]);
    assert_eq!(hosts("").expect("valid"), Vec::<String>::new());
    for wrong in ["a.test:8080", "*", "http://a.test", "a.test b.test", "[::1]"] {
        assert!(hosts(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_upload_limit_that_the_data_area_cannot_hold_is_a_mistake() {
    let settings = [("SANDBOX_DATA_LIMIT", "10MB"), ("SANDBOX_MAX_UPLOAD_BYTES", "11MB")];
    let mistakes = parse(&settings).expect_err("11MB into 10MB");
    assert!(mistakes.to_string().contains("SANDBOX_DATA_LIMIT"), "{mistakes}");
    assert_eq!(parse(&settings[..1]).expect("valid").max_upload, 10_000_000);
}

#[test]
fn tokens_come_from_their_file_unless_they_are_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokens").display().to_string();
    let owner = |config: &Config, token: &str| {
        config.auth_tokens.principal(token).map(|who| who.name().to_owned())
    };
    let others = [("SANDBOX_AUTH_TOKENS_FILE", &*path)];
    let set = [others[0], ("SANDBOX_AUTH_TOKENS", "ann:a-token")];
    assert_eq!(owner(&parse(&set).expect("valid"), "a-token").as_deref(), Some("ann"));
    assert!(!std::path::Path::new(&path).exists(), "nobody needed it");

    assert!(parse(&others).is_ok(), "it is made");
    std::fs::write(&path, "ben:b-token\ncat:c-token\n").expect("written");
    let config = parse(&[others[0], ("SANDBOX_AUTH_TOKENS", " ")]).expect("valid");
    assert_eq!(owner(&config, "b-token").as_deref(), Some("ben"));
    assert_eq!(owner(&config, "c-token").as_deref(), Some("cat"));

    std::fs::write(&path, "hunter2").expect("written");
    let mistakes = parse(&others).expect_err("no pair").to_string();
    assert!(mistakes.contains("SANDBOX_AUTH_TOKENS_FILE") && !mistakes.contains("hunter2"));
    let nowhere = [("SANDBOX_AUTH_TOKENS_FILE", "/no/such/folder/tokens")];
    assert!(parse(&nowhere).is_err());
}

#[test]
fn where_tokens_came_from_is_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokens");
    let file = ("SANDBOX_AUTH_TOKENS_FILE", path.to_str().expect("UTF-8"));
    let set = ("SANDBOX_AUTH_TOKENS", "ann:a-token");
    let from = |vars: &[(&str, &str)]| parse(vars).expect("valid").tokens_from;
    assert_eq!(from(&[]), None);
    assert_eq!(from(&[file, set]), Some(TokensFrom::Environment));
    assert_eq!(from(&[file]), Some(TokensFrom::TokensFile(path.clone())));

    let from = |(name, text): (&str, &str), source| {
        let given = Given { text: text.to_owned(), source };
        let given = [(name.to_owned(), given)].into();
        Config::check(Values { given, ..Values::default() }).expect("valid").tokens_from
    };
    let path_of = |name: &str| PathBuf::from(name);
    let env_file = path_of("/srv/.env");
    assert_eq!(from(set, Source::EnvFile(env_file.clone())), Some(TokensFrom::EnvFile(env_file)));
    let in_file = Source::File { path: path_of("/srv/config.yaml"), line: 3 };
    assert_eq!(from(set, in_file.clone()), Some(TokensFrom::File(path_of("/srv/config.yaml"))));
    assert_eq!(from(file, in_file), Some(TokensFrom::TokensFile(path.clone())));
}

#[test]
fn servers_that_share_callers_need_a_key_that_is_there_and_something_to_share_by() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key").display().to_string();
    let with = |key: &str, engine: &str, address: &str| {
        parse(&[
            ("SANDBOX_KEY_FILE", key),
            ("SANDBOX_ENGINE", engine),
            ("SANDBOX_PEER_ADDRESS", address),
        ])
    };
    let mistakes = with(&key, "kubernetes", "10.1.2.3:8081").expect_err("no key").to_string();
    assert!(mistakes.contains(&format!("SANDBOX_KEY_FILE: {key} is not there")), "{mistakes}");
    assert!(!folder.path().join("key").exists(), "none is made");
    crate::server_key::ServerKey::from_file(folder.path().join("key").as_path()).expect("made");
    for address in ["10.1.2.3:8081", "[fd00::1]:8081", "fd00::1:8081"] {
        let config = with(&key, "kubernetes", address).expect("valid");
        assert_eq!(config.peer_address.map(|it| it.port()), Some(8081));
    }
    for address in ["server:8081", "10.1.2.3", "0.0.0.0:8081", "10.1.2.3:0", ":8081"] {
        assert!(with(&key, "kubernetes", address).is_err(), "{address}");
    }
    assert!(with(&key, "docker", "10.1.2.3:8081").is_err());
}

#[test]
fn docker_compose_passes_every_setting_on() {
    let compose = include_str!("../../../docker-compose.yml");
    for row in table::rows() {
        assert!(compose.contains(&format!(" {}:", row.name)), "{}", row.name);
    }
}

#[test]
fn a_file_for_the_secret_is_made_and_one_that_cannot_be_is_a_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key").display().to_string();
    let config = |path: &str| {
        Config::parse([("SANDBOX_KEY_FILE".to_owned(), path.to_owned())])
            .map_err(|mistakes| mistakes.to_string())
    };
    let first = config(&path).expect("made").server_key;
    assert!(first.is_some() && first == config(&path).expect("read").server_key);
    assert_eq!(config("").expect("not set").server_key, None);
    let mistakes = config("/no/such/folder/key").expect_err("cannot be made");
    assert!(mistakes.contains("SANDBOX_KEY_FILE: /no/such/folder/key"), "{mistakes}");
}

#[test]
fn instructions_a_second_become_those_of_a_run_unless_nothing_could_run_with_them() {
    let read = |more: &[(&str, &str)], per_second: &str| {
        let config = parse(&[more, &[("WASM_SANDBOX_FUEL_PER_SEC", per_second)]].concat());
        let config = config.expect("valid");
        (config.fuel, config.remarks)
    };
    assert_eq!(read(&[], "2000000000"), (Some(120_000_000_000), vec![]));
    let limit = [("WASM_SANDBOX_TIMEOUT", "20")];
    assert_eq!(read(&limit, "2000000000"), (Some(40_000_000_000), vec![]));
    assert_eq!(read(&[("SANDBOX_FUEL", "5")], "2000000000"), (Some(5), vec![]));
    for few in ["10000000", "many"] {
        let (fuel, remarks) = read(&[], few);
        assert_eq!(fuel, None);
        assert!(remarks[0].starts_with("WASM_SANDBOX_FUEL_PER_SEC has no effect"), "{remarks:?}");
    }
}

#[test]
fn no_dataset_has_a_file_of_the_servers_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let within = |name: &str| data.join(name).display().to_string();
    let datasets = format!("sales={}", data.display());
    let is_refused = |more: &[(&str, &str)], file: Option<PathBuf>| {
        let all = [&[("SANDBOX_DATASETS", &*datasets)], more].concat();
        let given = all.into_iter().map(|(name, text)| {
            let given = Given { text: text.to_owned(), source: Source::Environment };
            (name.to_owned(), given)
        });
        let values = Values { given: given.collect(), file, ..Values::default() };
        let said = Config::check(values).err().map(|it| it.to_string()).unwrap_or_default();
        said.contains("which is the server's own")
    };
    for name in [
        "SANDBOX_STATE_DIR",
        "SANDBOX_HISTORY_DIR",
        "SANDBOX_ARCHIVE",
        "SANDBOX_RUNTIME_DIR",
        "SANDBOX_AUDIT_FILE",
        "SANDBOX_LOG_FILE",
        "SANDBOX_AUTH_TOKENS_FILE",
        "SANDBOX_KEY_FILE",
        "SANDBOX_TLS_KEY",
        "SANDBOX_TOOLS_FILE",
    ] {
        assert!(is_refused(&[(name, &within("x"))], None), "{name}");
        assert!(!is_refused(&[(name, "/elsewhere/x")], None), "{name}");
    }
    assert!(is_refused(&[], Some(within("config.yaml").into())));
    assert!(!is_refused(&[("SANDBOX_ARCHIVE", "s3://data/x")], None));
}
