//! The relay and the server read one set of settings.

use backend::Limits;
use config::Config;
use llm_sandbox_relay::Settings;

#[test]
fn settings_mean_the_same_to_a_server_and_its_relay() {
    let cases: [&[(&str, &str)]; 6] = [
        &[],
        &[("SANDBOX_MEMORY_LIMIT", "300MB"), ("SANDBOX_CPU_LIMIT", "0.5")],
        &[("SANDBOX_MEMORY_LIMIT", " 1GiB "), ("SANDBOX_PIDS_LIMIT", "64")],
        &[("SANDBOX_DATA_LIMIT", "100MB"), ("SANDBOX_MAX_SESSIONS", "40")],
        &[("SANDBOX_IMAGE", "own:1"), ("SANDBOX_RUNTIME", "runsc"), ("SANDBOX_LOG_LEVEL", "warn")],
        &[("SANDBOX_IMAGE", ""), ("SANDBOX_RUNTIME", " "), ("SANDBOX_POOL_SIZE", "0")],
    ];
    for vars in cases {
        let vars = || vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let server = Config::parse(vars()).expect("valid to a server");
        let relay = Settings::parse(vars()).expect("valid to a relay");
        assert_eq!(relay.limits, Limits::from(&server));
        assert_eq!((relay.image, relay.runtime), (server.image, server.runtime));
        assert_eq!((relay.max_sessions, relay.log_level), (server.max_sessions, server.log_level));
    }
    for (name, value) in [
        ("SANDBOX_MEMORY_LIMIT", "63MiB"),
        ("SANDBOX_CPU_LIMIT", "nan"),
        ("SANDBOX_PIDS_LIMIT", "0"),
        ("SANDBOX_DATA_LIMIT", "500MB"),
        ("SANDBOX_MAX_SESSIONS", "10001"),
    ] {
        let vars = || [(name.to_owned(), value.to_owned())];
        assert!(
            Config::parse(vars()).is_err() && Settings::parse(vars()).is_err(),
            "{name}={value}"
        );
    }
}
