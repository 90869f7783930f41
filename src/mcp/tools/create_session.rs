//! `create_session`.

use std::time::Duration;

use config::{Config, Toolset};
use jiff::Timestamp;
use model::{OwnSettings, text::human_time};
use rmcp::model::CallToolResponse;
use sandbox_container::defaults::MIN_SESSION_MEMORY;
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::{language, object, session_of_result, string};
use crate::{
    error::Result,
    mcp::{
        audited::Log,
        call::{Call, session, success, whole},
        languages::Language,
        tool::{Description, Hints, Tool, ToolFacts},
    },
};

/// Bytes of a megabyte, as the settings write them.
const MB: u64 = 1_000_000;

/// Shortest time to live that can be chosen, in seconds, unless that of the settings is shorter.
const MIN_TTL_S: u64 = 60;

pub(in crate::mcp) struct CreateSession;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    language: Option<String>,
    memory_limit_mb: Option<f64>,
    disk_limit_mb: Option<f64>,
    timeout_seconds: Option<f64>,
    session_id: Option<String>,
}

/// The bounds of a session's limits, in whole megabytes and whole seconds.
struct Bounds {
    memory_mb: (u64, u64),
    disk_mb: (u64, u64),
    ttl_s: (u64, u64),
}

impl Bounds {
    fn of(config: &Config) -> Self {
        let most_mb = (config.memory_limit / MB).max(MIN_SESSION_MEMORY / MB);
        let most_disk_mb = (config.data_limit / MB).max(1);
        let most_s = config.session_ttl.as_secs().max(1);
        Self {
            memory_mb: (MIN_SESSION_MEMORY / MB, most_mb),
            disk_mb: (1, most_disk_mb),
            ttl_s: (MIN_TTL_S.min(most_s), most_s),
        }
    }
}

impl Tool for CreateSession {
    const NAME: &'static str = "create_session";
    const TOOLSET: Toolset = Toolset::Sessions;
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("memory_mb", "memory_limit_mb"),
        ("ttl_seconds", "timeout_seconds"),
        ("timeout", "timeout_seconds"),
        ("name", "session_id"),
    ];
    type Arguments = Arguments;

    fn describe(facts: &ToolFacts) -> Description {
        Description {
            title: "Create a session",
            text:
                "Starts a session with limits of its own, to name in later calls. Others start by \
                   themselves."
                    .into(),
            input: input(facts),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "language": { "type": "string" },
                    "created_at": string("RFC 3339, UTC."),
                    "expires_at": string("When it ends if it is not used before."),
                }),
                &["session_id", "language", "created_at", "expires_at"],
            ),
            hints: Hints::Making,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { language, memory_limit_mb, disk_limit_mb, timeout_seconds, session_id } =
            arguments;
        let sessions = &call.services.sessions;
        let id = session(session_id.as_deref(), log)?;
        let is_named = id.is_some();
        let is_of_language = language.is_some();
        let language = Language::chosen(language.as_deref(), &sessions.template().await)?;
        let Bounds { memory_mb, disk_mb, ttl_s } = Bounds::of(sessions.config());
        let memory = whole("memory_limit_mb", memory_limit_mb, memory_mb.0..=memory_mb.1)?;
        let disk = whole("disk_limit_mb", disk_limit_mb, disk_mb.0..=disk_mb.1)?;
        let ttl = whole("timeout_seconds", timeout_seconds, ttl_s.0..=ttl_s.1)?;
        let own = OwnSettings {
            memory: memory.map(|mb| mb * MB),
            data: disk.map(|mb| mb * MB),
            ttl: ttl.map(Duration::from_secs),
            language: is_of_language.then(|| language.runtime()),
        };
        let created = sessions.create(id, own).await?;
        log.session = Some(created.id.clone());
        // A cancelled call has no answer that would tell the caller the name that was made here.
        call.or_close(!is_named, &created.id, Ok(())).await?;
        Ok(success(json!({
            "session_id": created.id.as_str(),
            "language": language.name(),
            "created_at": time(created.since),
            "expires_at": time(created.expires),
        }))
        .into())
    }
}

fn input(facts: &ToolFacts) -> Value {
    let Bounds { memory_mb, disk_mb, ttl_s } = Bounds::of(facts.config);
    let usual = OwnSettings::default();
    let limits = facts.config.limits(&usual);
    let idle = human_time(Duration::from_secs(ttl_s.1));
    let size = |(least, most): (u64, u64), usual: u64| match usual / MB {
        usual if usual < most => format!("{least} to {most}; otherwise {usual}."),
        _ => format!("{least} to {most}."),
    };
    let usual_idle = match facts.config.ttl(&usual) {
        ttl if ttl < facts.config.session_ttl => format!("; otherwise {}", human_time(ttl)),
        _ => String::new(),
    };
    let number = |description: String, (least, most): (u64, u64)| {
        json!({
            "type": "integer",
            "description": description,
            "minimum": least,
            "maximum": most,
        })
    };
    object(
        json!({
            "language": language(facts.template),
            "memory_limit_mb": number(size(memory_mb, limits.memory), memory_mb),
            "disk_limit_mb": number(size(disk_mb, limits.data), disk_mb),
            "timeout_seconds": number(
                format!("Ends when unused so long; at most {idle}{usual_idle}."),
                ttl_s,
            ),
            "session_id": { "type": "string", "description": "A name of your own." },
        }),
        &[],
    )
}

/// A time as in other results: in UTC, to the second.
pub(super) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_asked_for_is_never_more_than_the_settings_allow() {
        let bounds = |vars: &[(&str, &str)]| {
            let vars = vars.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let Bounds { memory_mb, ttl_s, .. } = Bounds::of(&Config::parse(vars).expect("valid"));
            (memory_mb, ttl_s)
        };
        assert_eq!(bounds(&[]), ((64, 512), (60, 1800)));
        let little = [("SANDBOX_MEMORY_LIMIT", "64MiB"), ("SANDBOX_SESSION_TTL_M", "0.05")];
        assert_eq!(bounds(&little), ((64, 67), (3, 3)));
    }
}
