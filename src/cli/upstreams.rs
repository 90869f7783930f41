//! Checks of upstreams for `llm-sandbox doctor`.

use backend::{Check, Finding};
use config::Config;

use crate::upstream::{Health, Upstreams};

/// A check for each upstream: whether it answers, and how many tools it has.
pub(super) async fn checks(config: &Config) -> Vec<Check> {
    let Some(upstreams) = Upstreams::new(config) else { return vec![] };
    let finding = |Health { name, tools }| match tools {
        Ok((0, ..)) => Finding::warning(
            format!("{name}: it answers, and has no tools"),
            "Correct its arguments or its access in upstreams of the settings file, or remove it.",
        ),
        Ok((all, allowed, asked)) => Finding::Good(format!(
            "{name}: {all} tools; {allowed} may be called, {asked} if a person allows the call"
        )),
        Err(error) => Finding::fault(
            error.message,
            format!("Correct upstreams.{name} in the settings file, as docs/calls.md says."),
        ),
    };
    let health = upstreams.health().await;
    health.into_iter().map(|it| Check::new("upstream", finding(it))).collect()
}
