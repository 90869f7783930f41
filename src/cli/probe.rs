//! `llm-sandbox doctor --probe`: checks a real sandbox from inside.
//!
//! The kernel may enforce less than the options ask for, because of an engine, a runtime or a host that
//! silently does less. The probe tries each promise from inside and reports what happened.

use std::{sync::Arc, time::Duration};

use backend::{Backend, Check, Finding, Probe};
use config::{Config, scratch_bytes};
use model::{Outcome, text::printable};
use protocol::limits::MAX_FILES;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::sessions::{Options, Program, RuntimeName, Sessions};

/// Time limit for the script. The checks take seconds; filling the data area takes longest.
const TIMEOUT: Duration = Duration::from_secs(300);

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
pub(super) async fn probe(
    config: &Config,
    backend: Arc<dyn Backend>,
    Probe { script, facts }: Probe,
) -> Vec<Check> {
    let config = Config { exec_timeout: TIMEOUT, max_output: 100_000, ..config.clone() };
    let mut expected = json!({
        "memory": config.memory_limit,
        "cpus": config.cpu_limit,
        "pids": config.pids_limit,
        "data": config.data_limit,
        "storage": config.storage.as_str(),
        "files": MAX_FILES,
        "scratch": scratch_bytes(config.memory_limit),
    });
    if let (Some(expected), Value::Object(facts)) = (expected.as_object_mut(), facts) {
        expected.extend(facts);
    }
    let sessions = Sessions::new(config, backend, Options::default());
    let program = Program {
        stdin: Some(expected.to_string().into()),
        ..Program::new(RuntimeName::PYTHON, script, TIMEOUT)
    };
    let (_, report) = sessions.run(None, program).await;
    sessions.host().shutdown().await;

    let report = match report {
        Ok(report) => report,
        Err(error) => {
            let finding = Finding::fault("no sandbox", error.to_string());
            return vec![Check::new("probe", finding)];
        }
    };
    let mut checks: Vec<_> = report.stdout.text.lines().map(check).collect();
    if report.outcome != Outcome::Ok {
        let last = report.stderr.text.lines().last().unwrap_or_default();
        let finding = Finding::fault(
            format!("ended with {}: {last}", report.outcome.as_str()),
            "The sandbox is not isolated as promised; do not rely on it.",
        );
        checks.push(Check::new("probe", finding));
    }
    checks
}

fn check(line: &str) -> Check {
    let Ok(Line { check, result, detail }) = serde_json::from_str(line) else {
        let finding = Finding::fault(printable(line), "This line did not come from the probe.");
        return Check::new("probe", finding);
    };
    let detail = printable(&detail);
    let finding = match result {
        Verdict::Good => Finding::Good(detail),
        Verdict::Fault => Finding::fault(
            detail,
            "The engine, its runtime or the host does not enforce what it was asked to.",
        ),
        Verdict::NotShown => Finding::NotShown(detail),
    };
    Check::new(printable(&check), finding)
}
