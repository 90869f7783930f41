//! Roles: every role at every endpoint of the HTTP server, from the server's own list of endpoints.

use std::{fs, sync::Arc};

use backend::local::Local;
use config::{Config, Inputs, Right, Role, Transport};
use llm_sandbox::{
    http::{Listener, PortInUse, rights},
    mcp::{Server, http::Endpoint},
    sessions::{Options, Sessions},
    signed_urls::SignedUrls,
};
use support::http_with;
use tokio_util::sync::CancellationToken;

/// The callers of a server whose names, tokens and roles are the same.
fn config() -> Config {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    let callers = Role::ALL.map(Role::as_str);
    let callers =
        callers.map(|role| format!("- {{ name: {role}, token: {role}, role: {role} }}\n"));
    fs::write(&file, format!("callers:\n{}", callers.concat())).expect("written");
    let inputs = Inputs { file: Some(file), ..Inputs::default() };
    let config = Config::load(&inputs).expect("valid");
    Config { http_port: 0, transport: Transport::Http, ..config }
}

#[tokio::test]
async fn a_role_opens_the_endpoints_that_it_has_the_right_for_and_no_other() {
    let config = config();
    let listener = Listener::bind(&config, PortInUse::Fail).expect("a free port");
    let base = listener.base_url(&config);
    let backend = Arc::new(Local::new().expect("a folder"));
    let sessions = Sessions::new(config, backend, Options::default());
    let urls = SignedUrls::new(base.clone().into(), sessions.config());
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let mcp = Server::new(sessions.clone(), Some(urls.clone()), Transport::Http, None);
    let mcp = Arc::new(Endpoint::new(mcp));
    tokio::spawn(listener.serve(sessions, urls, Some(mcp), stop));
    let endpoints = rights();
    assert!(endpoints.len() > 15, "{endpoints:?}");
    for (method, path, needs) in endpoints {
        let target =
            path.replace("{session}", "none").replace("{run}", "run").replace("{*path}", "file");
        let ask = async |token: Option<&str>| {
            let token = token.map(|token| format!("Bearer {token}"));
            let headers: Vec<_> = token.iter().map(|it| ("Authorization", &**it)).collect();
            http_with(method.as_str(), &format!("{base}{target}"), &headers, &[]).await
        };
        for role in Role::ALL {
            let answer = ask(Some(role.as_str())).await;
            let is_refused = answer.status == 403;
            let has = needs.is_none_or(|right| role.has(right));
            assert_eq!(is_refused, !has, "{method} {path} by {role:?}: {}", answer.status);
            if is_refused {
                assert!(String::from_utf8_lossy(&answer.body).contains("forbidden"), "{path}");
            }
        }
        let stranger = ask(Some("no-such-token")).await.status;
        let nobody = ask(None).await.status;
        match needs {
            Some(_) => assert_eq!((stranger, nobody), (401, 401), "{method} {path}"),
            None => assert!(nobody != 401 && nobody != 403, "{method} {path}"),
        }
    }
}

#[test]
fn no_role_has_all_rights_and_each_right_is_somebodys() {
    let all = [Right::OwnSessions, Right::AllSessions, Right::Metrics, Right::Audit];
    for role in Role::ALL {
        assert!(all.iter().any(|right| !role.has(*right)), "{role:?}");
    }
    for right in all {
        assert!(Role::ALL.iter().any(|role| role.has(right)), "{right:?}");
    }
}
