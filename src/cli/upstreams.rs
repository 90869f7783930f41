//! Checks of upstreams for `llm-sandbox doctor`.

use backend::{Check, Finding};
use config::Config;

use crate::upstream::{Health, ToolCounts, Upstreams};

/// A check for each upstream: whether it answers, and how many tools it has.
pub(super) async fn checks(config: &Config) -> Vec<Check> {
    let Some(upstreams) = Upstreams::new(config) else { return vec![] };
    let health = upstreams.health().await;
    health.into_iter().map(|it| Check::new("upstream", finding(it))).collect()
}

fn finding(Health { name, tools, last_words }: Health) -> Finding {
    match tools {
        Ok(ToolCounts { all: 0, .. }) => Finding::warning(
            format!("{name}: it answers, and has no tools"),
            "Correct its arguments or its access in upstreams of the settings file, or remove it.",
        ),
        Ok(ToolCounts { all, allowed, asked, unmatched }) => {
            let text = format!(
                "{name}: {all} tools; {allowed} may be called, {asked} if a person allows the call"
            );
            if unmatched.is_empty() {
                return Finding::Good(text);
            }
            Finding::warning(
                format!("{text}. No tool has the name {}", unmatched.join(", ")),
                format!("Correct these patterns in allow and ask of upstreams.{name}."),
            )
        }
        Err(error) => {
            let words = last_words.iter().map(|line| format!("\n        stderr: {line}"));
            Finding::fault(
                format!("{name}: {}", error.message) + &words.collect::<String>(),
                format!("Correct upstreams.{name} in the settings file, as docs/calls.md says."),
            )
        }
    }
}
