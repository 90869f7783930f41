//! `install_package`.

use std::fmt::Write as _;

use config::Toolset;
use model::{
    package::{Ecosystem, NoRequirement, Requirement},
    text::quoted,
};
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::schema::{new_workspace, object, optional_session, session_of_result, string};
use crate::{
    error::{Error, Result},
    mcp::{
        arguments::{SHOWN_CHOICES, hidden},
        audited::Log,
        call::{Call, say_what_is_new, success},
        languages::Language,
        running::reporting,
        tool::{Description, Hints, Tool, ToolFacts},
    },
    progress::Progress,
    sessions::Installed,
};

pub(in crate::mcp) struct InstallPackage;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    package: String,
    version: Option<String>,
    language: Option<String>,
    session_id: Option<String>,
}

/// Modules whose package has another name, and that models and people ask for by the name of the module.
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
        ("lang", "language"),
        ("package_name", "package"),
        ("requirement", "package"),
        ("workspace_id", "session_id"),
    ];
    type Arguments = Arguments;

    fn is_listed(facts: &ToolFacts) -> bool {
        !facts.packages.is_empty()
    }

    fn describe(facts: &ToolFacts) -> Description {
        let has_packages =
            |it: &Language| it.ecosystem().is_some_and(|it| facts.packages.contains(&it));
        let languages: Vec<_> = Language::of(facts.template).filter(has_packages).collect();
        let mut language = json!({ "type": "string" });
        language[SHOWN_CHOICES] = languages.iter().map(Language::name).collect();
        let has_npm = languages.contains(&Language::JavaScript);
        let (what, language) = if has_npm {
            ("a package for Python or JavaScript (npm)", language)
        } else {
            ("a Python package", hidden(language))
        };
        Description {
            title: "Install a package",
            text: format!(
                "Installs {what} in your workspace, with what it needs; cells and programs can import it at once. \
                 Only if no library that is there will do. What is preinstalled stays as it is, and undo or reset \
                 do not uninstall."
            ),
            input: object(
                json!({
                    "package": string("Such as humanize or httpx[http2]."),
                    "version": string("Such as 4.9.0 or >=4."),
                    "language": language,
                    "session_id": optional_session(),
                }),
                &["package"],
            ),
            output: output(),
            hints: Hints::Adding,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { package, version, language, session_id } = arguments;
        let sessions = &call.services.sessions;
        let is_npm = package.trim_start().starts_with("npm:");
        let named = language.as_deref().or(is_npm.then(|| Language::JavaScript.name()));
        let language = Language::meant(named, session_id.as_deref(), sessions).await?;
        let ecosystem = language.ecosystem().ok_or_else(|| no_packages(language))?;
        let wanted = requirement(ecosystem, &package, version.as_deref())?;
        let wanted = sessions.packages().check(wanted)?;
        let name = wanted.name().to_owned();
        let which = call.workspace(session_id.as_deref(), log)?;
        let (progress, heard) = watch::channel(Progress::default());
        let installing = Box::pin(sessions.packages().install(which, wanted, progress));
        let (opened, installed) = reporting(call, heard, cancellable(call, installing)).await?;
        log.session = Some(opened.id.clone());
        call.note_lost(&opened);
        let Installed { version, new, scripts } = installed?;
        let new: Vec<_> =
            new.iter().map(|(name, version)| json!({ "name": name, "version": version })).collect();
        let import = match ecosystem {
            Ecosystem::PyPi => "import it",
            Ecosystem::Npm => "require or import it",
        };
        let mut message = if new.is_empty() {
            format!("{name} {version} is there already: {import}.")
        } else {
            format!("{name} {version} is installed: {import} at once, also in what runs already.")
        };
        if !scripts.is_empty() {
            let whose = scripts.join(", ");
            let _ = write!(
                message,
                " Install scripts are never run, and {whose} has one: what that would build or download is missing."
            );
        }
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

fn no_packages(language: Language) -> Error {
    let why =
        format!("There are packages for python and javascript, and none for {}.", language.name());
    Error::UnsupportedLanguage(why)
}

/// The requirement that is asked for, by the name of its package.
fn requirement(ecosystem: Ecosystem, package: &str, version: Option<&str>) -> Result<Requirement> {
    let is_none = |text: &str| {
        let text = text.to_owned();
        move |why: NoRequirement| Error::InvalidArgument(format!("{} {why}.", quoted(&text)))
    };
    let module = package.trim().to_ascii_lowercase();
    let known = MODULES.iter().find(|(it, _)| *it == module && ecosystem == Ecosystem::PyPi);
    let name = known.map_or(package, |(_, package)| package);
    let wanted = Requirement::read(ecosystem, name).map_err(is_none(package))?;
    match version.map(str::trim).filter(|it| !it.is_empty() && *it != "latest") {
        Some(version) => wanted.with_version(version).map_err(is_none(version)),
        None => Ok(wanted),
    }
}

/// Waits for `done` unless the caller cancels the call: `done` is then dropped.
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
        let requirement = |package, version| requirement(Ecosystem::PyPi, package, version);
        let read = |package, version| requirement(package, version).map(|it| it.to_string());
        assert_eq!(read("sklearn", None).expect("known"), "scikit-learn");
        assert_eq!(read("PIL", Some("11.0")).expect("known"), "pillow==11.0");
        assert_eq!(read("humanize", Some("latest")).expect("a name"), "humanize");
        let refused = read("../x", None).expect_err("a path").to_string();
        assert!(refused.starts_with("\"../x\" names a file"), "{refused}");
    }
}
