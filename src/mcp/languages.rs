//! The languages of code, as callers name them.

use std::sync::Arc;

use backend::{Runtime, Template};
use model::{SessionId, World, package::Ecosystem, text::quoted};

use crate::{
    error::{Error, Result},
    sessions::{RuntimeName, Sessions},
};

/// A language of cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Language {
    Python,
    JavaScript,
    Bash,
    /// A language that the image's label describes.
    Labelled(Arc<Runtime>),
}

impl Language {
    const BUILT_IN: [Self; 3] = [Self::Python, Self::JavaScript, Self::Bash];

    /// The documented name, which is also that of its runtime in the image.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Bash => "bash",
            Self::Labelled(runtime) => &runtime.name,
        }
    }

    /// The name in a sentence.
    pub(super) fn title(&self) -> &str {
        match self {
            Self::Python => "Python",
            Self::JavaScript => "JavaScript",
            Self::Bash => "Bash",
            Self::Labelled(runtime) => runtime.title.as_ref().unwrap_or(&runtime.name),
        }
    }

    /// Whether models use this name, which is in lower case, for the language.
    fn is_named(&self, name: &str) -> bool {
        let others: &[&str] = match self {
            Self::Python => &["", "python3", "py", "ipython"],
            Self::JavaScript => &["js", "node", "nodejs", "node.js"],
            Self::Bash => &["sh", "shell", "shellscript"],
            Self::Labelled(runtime) => {
                let others = runtime.aliases.iter().chain(&runtime.title);
                return runtime.name == name
                    || others.map(|it| it.to_ascii_lowercase()).any(|it| it == name);
            }
        };
        self.name() == name || others.contains(&name)
    }

    /// The source of the language's packages, if it has packages.
    pub(super) const fn ecosystem(&self) -> Option<Ecosystem> {
        match self {
            Self::Python => Some(Ecosystem::PyPi),
            Self::JavaScript => Some(Ecosystem::Npm),
            Self::Bash | Self::Labelled(_) => None,
        }
    }

    /// The name of the language's runtime in the sandbox.
    pub(super) fn runtime(&self) -> RuntimeName {
        match self {
            Self::Python => RuntimeName::PYTHON,
            Self::JavaScript => RuntimeName::JAVASCRIPT,
            Self::Bash => RuntimeName::BASH,
            Self::Labelled(runtime) => runtime.name.clone().into(),
        }
    }

    /// The language's features besides running code and reading and writing files.
    pub(super) fn features(&self, undo: u32, world: World) -> Vec<&'static str> {
        let undo = (undo > 0).then_some("undo");
        match self {
            Self::Python => {
                let all = ["state", "rollback", "result", "files", "charts", "top_level_await"];
                all.into_iter().chain(undo).collect()
            }
            Self::JavaScript => {
                let all = ["state", "result", "files", "top_level_await"];
                let can_go_back = world == World::Interpreter;
                let more = can_go_back.then_some("rollback").into_iter();
                all.into_iter().chain(more.chain(undo.filter(|_| can_go_back))).collect()
            }
            Self::Bash => vec!["files"],
            Self::Labelled(runtime) => {
                let has_result = runtime.command.iter().any(|word| word.contains("{result}"));
                has_result.then_some("result").into_iter().chain(["files"]).collect()
            }
        }
    }

    /// The language with this name: one that is built in, or that new sandboxes have.
    pub(super) fn named(name: &str, template: &Template) -> Option<Self> {
        Self::built_in_named(name).or_else(|| {
            let name = name.trim().to_ascii_lowercase();
            Self::labelled(template).find(|it| it.is_named(&name))
        })
    }

    /// The language with this name, if it is built in.
    pub(super) fn built_in_named(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase();
        Self::BUILT_IN.into_iter().find(|it| it.is_named(&name))
    }

    /// The language with this runtime, if it is built in.
    pub(super) fn built_in(runtime: &RuntimeName) -> Option<Self> {
        Self::BUILT_IN.into_iter().find(|it| it.name() == runtime.as_str())
    }

    fn labelled(template: &Template) -> impl Iterator<Item = Self> {
        let labelled = template.runtimes.iter().filter(|runtime| !runtime.command.is_empty());
        labelled.map(|runtime| Self::Labelled(Arc::new(runtime.clone())))
    }

    /// The languages that new sandboxes have.
    pub(super) fn of(template: &Template) -> impl Iterator<Item = Self> {
        let has = |it: &Self| template.runtimes.iter().any(|runtime| runtime.name == it.name());
        Self::BUILT_IN.into_iter().filter(has).chain(Self::labelled(template))
    }

    /// The language that a caller names, otherwise that of the session that it names, otherwise Python.
    ///
    /// # Errors
    /// If new sandboxes do not have it.
    pub(super) async fn meant(
        name: Option<&str>,
        session_id: Option<&str>,
        sessions: &Sessions,
    ) -> Result<Self> {
        let session = session_id.and_then(|id| id.parse::<SessionId>().ok());
        let of_session = match session.filter(|_| name.is_none()) {
            Some(id) => sessions.language(&id).await,
            None => None,
        };
        let name = name.or(of_session.as_ref().map(RuntimeName::as_str));
        Self::chosen(name, &sessions.template().await)
    }

    /// The language that a caller names, otherwise Python or, without it, the first that there is.
    ///
    /// # Errors
    /// If new sandboxes do not have it.
    pub(super) fn chosen(name: Option<&str>, template: &Template) -> Result<Self> {
        let Some(name) = name else {
            return Ok(Self::of(template).next().unwrap_or(Self::Python));
        };
        let named = Self::named(name, template);
        let named = named.filter(|named| Self::of(template).any(|it| it == *named));
        named.ok_or_else(|| {
            let all: Vec<_> = Self::of(template).map(|it| it.name().to_owned()).collect();
            let why = format!(
                "{} does not run here. The languages are {}.",
                quoted(name),
                all.join(", ")
            );
            Error::UnsupportedLanguage(why)
        })
    }
}

/// The code between Markdown fences, if they enclose all of it, and the language that they name. No code starts with a
/// fence.
pub(super) fn unfenced<'a>(
    code: &'a str,
    template: &Template,
) -> Option<(Option<Language>, &'a str)> {
    const FENCE: &str = "```";
    let (first, rest) = code.trim().strip_prefix(FENCE)?.split_once('\n')?;
    let inner = rest.strip_suffix(FENCE)?;
    let ends_in_a_line = inner.is_empty() || inner.trim_end_matches([' ', '\t']).ends_with('\n');
    let is_one_block = !inner.lines().any(|line| line.trim_start().starts_with(FENCE));
    let language = match first.trim() {
        "" => None,
        first => Some(Language::named(first, template)?),
    };
    (ends_in_a_line && is_one_block).then_some((language, inner))
}

#[cfg(test)]
mod tests {
    use backend::Runtime;

    use super::*;

    fn template(names: &[&str]) -> Template {
        let runtime = |name: &&str| Runtime { name: (*name).to_owned(), ..Runtime::default() };
        Template {
            id: "x".into(),
            runtimes: names.iter().map(runtime).collect(),
            world: World::System,
        }
    }

    #[test]
    fn languages_have_many_names_and_are_there_or_not() {
        let image = template(&["python", "bash", "fortran"]);
        let chosen = |name| Language::chosen(name, &image);
        assert_eq!(chosen(None).expect("python"), Language::Python);
        for name in ["python", "Python3", " py ", ""] {
            assert_eq!(chosen(Some(name)).expect("python"), Language::Python, "{name}");
        }
        assert_eq!(chosen(Some("Shell")).expect("bash"), Language::Bash);
        for name in ["javascript", "node", "fortran", "r"] {
            let error = chosen(Some(name)).expect_err("it is not there");
            assert_eq!(error.code(), "unsupported_language");
            let why = format!("\"{name}\" does not run here. The languages are python, bash.");
            assert_eq!(error.to_string(), why);
        }
    }

    #[test]
    fn a_label_adds_languages_with_names_of_their_own() {
        let mut image = template(&["python"]);
        image.runtimes.push(Runtime {
            name: "r".into(),
            title: Some("R".into()),
            aliases: vec!["Rscript".into()],
            command: vec!["Rscript".into(), "{file}".into()],
            ..Runtime::default()
        });
        for name in ["r", "R", " rscript"] {
            assert_eq!(Language::chosen(Some(name), &image).expect("r").name(), "r", "{name}");
        }
        let (language, code) = unfenced("```R\n1\n```", &image).expect("fenced");
        assert_eq!((language.expect("r").title(), code), ("R", "1\n"));
        let why = Language::chosen(Some("lua"), &image).expect_err("it is not there").to_string();
        assert_eq!(why, "\"lua\" does not run here. The languages are python, r.");
    }

    #[test]
    fn fences_are_taken_off_where_they_are_around_all_of_the_code() {
        for (code, language, inner) in [
            ("```python\nprint(1)\n```", Some(Language::Python), "print(1)\n"),
            ("```\nprint(1)\n```", None, "print(1)\n"),
            (
                "\n ```py \r\nif 1:\n    print(1)\n  ```\n",
                Some(Language::Python),
                "if 1:\n    print(1)\n  ",
            ),
            ("```Python\n```", Some(Language::Python), ""),
            ("```js\n1\n```", Some(Language::JavaScript), "1\n"),
            ("```bash\nls\n```", Some(Language::Bash), "ls\n"),
        ] {
            assert_eq!(unfenced(code, &template(&[])), Some((language, inner)), "{code}");
        }
        for code in [
            "print(1)",
            "```print(1)```",
            "```sql\nselect 1\n```",
            "```python\nprint(1)",
            "```\na\n```\ntext\n```\nb\n```",
            "Here it is:\n```python\nprint(1)\n```",
            "```python\nprint('''```",
            "s = '''\n```\nx\n```\n'''",
        ] {
            assert_eq!(unfenced(code, &template(&[])), None, "{code}");
        }
    }
}
