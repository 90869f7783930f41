//! `llm-sandbox doctor --probe`: a real sandbox, looked at from within.
//!
//! What the options ask for and what the kernel does are two things; an engine, a runtime or a
//! host may quietly do less. The probe tries each promise from inside and reports what happened.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::doctor::{Check, is_gvisor};
use crate::{
    backend::docker::{Docker, Facts, UIDS},
    config::{Config, scratch_bytes},
    session::Outcome,
    sessions::{Program, Sessions},
};

/// Standard library alone, so that it runs in any image.
const SCRIPT: &str = include_str!("../../sandbox-image/runtimes/python/probe.py");

/// The checks take seconds; filling the data area takes longest.
const PATIENCE: Duration = Duration::from_secs(300);

/// One line of the script's output.
#[derive(Deserialize)]
struct Line {
    check: String,
    result: Verdict,
    detail: String,
}

#[derive(Deserialize)]
enum Verdict {
    #[serde(rename = "ok")]
    Good,
    #[serde(rename = "FAIL")]
    Fault,
    #[serde(rename = "n/a")]
    NotShown,
}

/// All checks, in the order in which they were made.
pub(super) async fn probe(config: &Config, facts: &Facts) -> Vec<(String, Check)> {
    let config = Config { exec_timeout: PATIENCE, max_output: 100_000, ..config.clone() };
    let sessions = Sessions::new(
        config.clone(),
        Arc::new(Docker::new(&config.image, config.runtime.as_deref())),
    );
    let expected = json!({
        "uids": [UIDS.start(), UIDS.end()],
        "internet_sockets": facts.allows_internet_sockets(),
        "memory": config.memory_limit,
        "cpus": config.cpu_limit.min(facts.cpus),
        "pids": config.pids_limit,
        "data": config.data_limit,
        "scratch": scratch_bytes(config.memory_limit),
        "gvisor": is_gvisor(&config, facts),
    });
    let program = Program {
        code: SCRIPT.into(),
        stdin: Some(expected.to_string().into()),
        timeout: PATIENCE,
        cancel: CancellationToken::new(),
        progress: None,
    };
    let (_, report) = sessions.run(None, program).await;
    sessions.shutdown().await;

    let fault = |why: String| {
        let mend = "The sandbox is not what it should be; do not rely on it.".to_owned();
        ("probe".to_owned(), Check::Fault(why, mend))
    };
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            return vec![(
                "probe".to_owned(),
                Check::Fault("no sandbox".into(), error.to_string()),
            )];
        }
    };
    let mut checks: Vec<_> = report.stdout.text.lines().map(check).collect();
    if report.outcome != Outcome::Ok {
        let last = report.stderr.text.lines().last().unwrap_or_default();
        checks.push(fault(format!("ended with {}: {last}", report.outcome.as_str())));
    }
    checks
}

fn check(line: &str) -> (String, Check) {
    let Ok(Line { check, result, detail }) = serde_json::from_str(line) else {
        let text = crate::artifact::printable(line);
        return ("probe".into(), Check::Fault(text, "This is no line of the probe's.".into()));
    };
    let detail = crate::artifact::printable(&detail);
    let check = crate::artifact::printable(&check);
    let mend = || "The engine, its runtime or the host does not do what was asked of it.".into();
    match result {
        Verdict::Good => (check, Check::Good(detail)),
        Verdict::Fault => (check, Check::Fault(detail, mend())),
        Verdict::NotShown => (check, Check::NotShown(detail)),
    }
}
