//! `install_package`.

use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::schema::{new_workspace, object, optional_session, session_of_result, string};
use crate::{
    config::Toolset,
    error::{Error, Result},
    mcp::{
        call::{Call, Log, say_what_is_new, success},
        running::report_progress,
        tool::{Description, Facts, Hints, Tool},
    },
    packages::requirement::{NoRequirement, Requirement},
    sessions::{Installed, Progress},
    text::quoted,
};

pub(super) struct InstallPackage;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    package: String,
    version: Option<String>,
    session_id: Option<String>,
}

/// Modules whose package has another name, and which models and people ask for by the module's.
const MODULES: &[(&str, &str)] = &[
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("fitz", "pymupdf"),
    ("jwt", "pyjwt"),
    ("pil", "pillow"),
    ("pptx", "python-pptx"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("yaml", "pyyaml"),
];

impl Tool for InstallPackage {
    const NAME: &'static str = "install_package";
    const TOOLSET: Toolset = Toolset::Code;
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("name", "package"),
        ("package_name", "package"),
        ("requirement", "package"),
        ("workspace_id", "session_id"),
    ];
    type Arguments = Arguments;

    fn is_listed(facts: &Facts) -> bool {
        facts.packages
    }

    fn describe(_: &Facts) -> Description {
        Description {
            title: "Install a package",
            text: "Installs a Python package in your workspace, with what it needs; cells and programs can import \
                   it at once. Only if no library that is there will do. What is preinstalled stays as it is, and \
                   undo or reset do not uninstall."
                .into(),
            input: object(
                json!({
                    "package": string("Such as humanize or pandas[excel]."),
                    "version": string("Such as 4.9.0 or >=4."),
                    "session_id": optional_session(),
                }),
                &["package"],
            ),
            output: output(),
            hints: Hints::Adding,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { package, version, session_id } = arguments;
        let sessions = &call.services.sessions;
        let wanted = requirement(&package, version.as_deref())?;
        let wanted = sessions.check_package(wanted)?;
        let name = wanted.name().to_owned();
        let which = call.workspace(session_id.as_deref(), log)?;
        let (progress, heard) = watch::channel(Progress::default());
        let installing = Box::pin(sessions.install(which, wanted, progress));
        let timeout = sessions.config().packages_timeout;
        let (opened, installed) = match call.context.meta.get_progress_token() {
            None => cancellable(call, installing).await?,
            Some(token) => tokio::select! {
                biased;
                done = cancellable(call, installing) => done?,
                never = report_progress(call, token, heard, timeout) => match never {},
            },
        };
        log.session = Some(opened.id.clone());
        call.note_lost(&opened);
        let Installed { version, new } = installed?;
        let new: Vec<_> =
            new.iter().map(|(name, version)| json!({ "name": name, "version": version })).collect();
        let message = if new.is_empty() {
            format!("{name} {version} is there already: import it.")
        } else {
            format!("{name} {version} is installed: import it at once, also in what runs already.")
        };
        let mut result = json!({
            "session_id": opened.id.as_str(),
            "success": true,
            "package": name,
            "version_installed": version,
            "installed": new,
            "message": message,
        });
        say_what_is_new(&opened, &mut result);
        Ok(success(result).into())
    }
}

/// What is asked for, by its package's name.
fn requirement(package: &str, version: Option<&str>) -> Result<Requirement> {
    let is_none = |text: &str| {
        let text = text.to_owned();
        move |why: NoRequirement| Error::InvalidArgument(format!("{} {why}.", quoted(&text)))
    };
    let module = package.trim().to_ascii_lowercase();
    let known = MODULES.iter().find(|(it, _)| *it == module).map(|(_, package)| *package);
    let wanted: Requirement = known.unwrap_or(package).parse().map_err(is_none(package))?;
    match version.map(str::trim).filter(|it| !it.is_empty() && *it != "latest") {
        Some(version) => wanted.with_version(version).map_err(is_none(version)),
        None => Ok(wanted),
    }
}

/// What is done unless the caller cancels it: then nothing of it goes on.
async fn cancellable<T>(call: &Call, done: impl Future<Output = T>) -> Result<T> {
    call.context.ct.run_until_cancelled(done).await.ok_or_else(|| {
        Error::InvalidArgument("The call was cancelled, and nothing was installed.".into())
    })
}

fn output() -> Value {
    let package = object(
        json!({ "name": { "type": "string" }, "version": { "type": "string" } }),
        &["name", "version"],
    );
    object(
        json!({
            "session_id": session_of_result(),
            "new_workspace": new_workspace(),
            "success": { "type": "boolean" },
            "package": { "type": "string" },
            "version_installed": { "type": "string" },
            "installed": {
                "type": "array",
                "description": "Itself and what came with it.",
                "items": package,
            },
            "message": { "type": "string" },
        }),
        &["session_id", "success", "package", "version_installed", "installed", "message"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_may_be_asked_for_by_the_name_of_its_module() {
        let read = |package, version| requirement(package, version).map(|it| it.to_string());
        assert_eq!(read("sklearn", None).expect("known"), "scikit-learn");
        assert_eq!(read("PIL", Some("11.0")).expect("known"), "pillow==11.0");
        assert_eq!(read("humanize", Some("latest")).expect("a name"), "humanize");
        let refused = read("../x", None).expect_err("a path").to_string();
        assert!(refused.starts_with("\"../x\" names a file"), "{refused}");
    }
}
