//! Recipes: languages, programs and libraries that an image has if it is built with them. Pure.
//!
//! A recipe is a stage of its own between the libraries image and the last stage of the Dockerfile. It is built on the
//! stage of the recipe before it. So an image gets its recipes in the order of [`ALL`], whatever order was asked for,
//! and images with the same first recipes share their stages.

use std::{io, str};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{image, template};

/// A recipe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// The name, as in a command line.
    pub name: &'static str,
    /// Its files, by their paths in the build context; the first is its Dockerfile.
    pub files: &'static [(&'static str, &'static [u8])],
}

macro_rules! recipe {
    ($name:literal, $($file:literal),+) => {
        Recipe {
            name: $name,
            files: &[$((
                concat!("recipes/", $name, "/", $file),
                include_bytes!(concat!("../../../sandbox-image/recipes/", $name, "/", $file)),
            )),+],
        }
    };
}

/// All recipes. Those that change seldom and take long are first.
const ALL: [Recipe; 6] = [
    recipe!("documents", "Dockerfile", "template.json"),
    recipe!("r", "Dockerfile", "template.json", "Rprofile.site"),
    recipe!("ruby", "Dockerfile", "template.json"),
    recipe!("lua", "Dockerfile", "template.json"),
    recipe!("more", "Dockerfile", "template.json", "requirements.txt"),
    recipe!("sql", "Dockerfile", "template.json", "sql.py"),
];

/// The program that prints what an image has, as a [`Contents`](Value) for [`label`].
pub(crate) const MEASURE: &str = include_str!("../../../sandbox-image/recipes/measure.py");

/// The recipes of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recipes(Vec<&'static Recipe>);

/// There is no such recipe.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no recipe {name:?}; the recipes are {}", names(ALL.iter()).join(", "))]
pub struct UnknownRecipe {
    name: String,
}

impl Recipes {
    /// The recipes with these names, separated by commas; none if the text is empty.
    ///
    /// # Errors
    /// If there is no recipe of a name.
    pub fn parse(text: &str) -> Result<Self, UnknownRecipe> {
        let wanted: Vec<_> =
            text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let unknown = wanted.iter().find(|name| ALL.iter().all(|known| known.name != **name));
        match unknown {
            Some(name) => Err(UnknownRecipe { name: (*name).to_owned() }),
            None => Ok(Self(ALL.iter().filter(|known| wanted.contains(&known.name)).collect())),
        }
    }

    /// The recipes that a label names. Names that another version may know are ignored.
    pub(crate) fn of_label(label: &str) -> Self {
        Self(ALL.iter().filter(|known| label.split(',').any(|name| name == known.name)).collect())
    }

    /// The label of an image with these recipes.
    pub(crate) fn to_label(&self) -> String {
        names(self.iter()).join(",")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static Recipe> {
        self.0.iter().copied()
    }
}

fn names(recipes: impl Iterator<Item = &'static Recipe>) -> Vec<&'static str> {
    recipes.map(|recipe| recipe.name).collect()
}

impl Recipe {
    /// A hash of everything that an image with this recipe is built from, besides agent and kernels: the libraries and
    /// recipes that it is built on, by their hash, and its files.
    pub(crate) fn id(&self, before: &str) -> String {
        let mut hash = Sha256::new();
        let files = self.files.iter().map(|file| file.1);
        for text in [before.as_bytes(), self.name.as_bytes()].into_iter().chain(files) {
            hash.update(text.len().to_le_bytes());
            hash.update(text);
        }
        hex::encode(&hash.finalize()[..8])
    }

    /// The build context, on the image with this id. On the certificates see [`image::context`].
    ///
    /// # Errors
    /// If a name or size does not fit into an archive, which is never the case for these files.
    pub(crate) fn context(&self, before: &str, certificates: &[u8]) -> io::Result<Vec<u8>> {
        let dockerfile = str::from_utf8(self.files[0].1).map_err(io::Error::other)?;
        let dockerfile =
            dockerfile.replacen("\nFROM libraries\n", &format!("\nFROM {before}\n"), 1);
        image::archived(&dockerfile, self.files, &[(image::CERTIFICATES, certificates, 0o644)])
    }
}

/// The label that describes an image, by what [`MEASURE`] has printed in it: a recipe adds a language, or libraries to
/// one that is there. `None` if the recipes describe no valid label.
pub(crate) fn label(printed: &str) -> Option<String> {
    let printed: Value = serde_json::from_str(printed).unwrap_or_default();
    let built = template::to_label(image::runtimes(printed["python"].as_str()));
    let mut label: Value = serde_json::from_str(&built).ok()?;
    let runtimes = label["runtimes"].as_array_mut()?;
    for more in printed["runtimes"].as_array().into_iter().flatten() {
        let Some(known) = runtimes.iter_mut().find(|known| known["name"] == more["name"]) else {
            let mut more = more.clone();
            more.as_object_mut()?.entry("libraries").or_insert_with(|| json!([]));
            runtimes.push(more);
            continue;
        };
        let libraries = more["libraries"].as_array().cloned().unwrap_or_default();
        known["libraries"].as_array_mut()?.extend(libraries);
    }
    let label = label.to_string();
    template::from_label(&label).is_ok().then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_come_in_one_order_and_only_once() {
        let of = |text| Recipes::parse(text).map(|recipes| recipes.to_label());
        assert_eq!(of("r,documents"), Ok("documents,r".into()));
        assert_eq!(of(" documents , r, r,"), Ok("documents,r".into()));
        assert_eq!(of(""), Ok(String::new()));
        assert_eq!(Recipes::of_label("r,documents,x"), Recipes::parse("documents,r").unwrap());
    }

    #[test]
    fn a_recipe_that_does_not_exist_is_refused_with_the_names_of_all() {
        let error = Recipes::parse("r,cobol").expect_err("there is none").to_string();
        assert_eq!(
            error,
            "there is no recipe \"cobol\"; the recipes are documents, r, ruby, lua, more, sql"
        );
    }

    #[test]
    fn a_context_holds_every_file_that_its_dockerfile_copies() {
        for recipe in &ALL {
            let tar = recipe.context("sha256:0123", b"PEM").expect("archived");
            let mut files = vec![];
            for entry in tar::Archive::new(&tar[..]).entries().expect("readable") {
                let mut entry = entry.expect("readable");
                let name = entry.path().expect("set").to_string_lossy().into_owned();
                let mut text = String::new();
                io::Read::read_to_string(&mut entry, &mut text).expect("text");
                files.push((name, text));
            }
            let (first, dockerfile) = &files[0];
            assert_eq!(first, "Dockerfile");
            assert!(dockerfile.contains("\nFROM sha256:0123\n"), "{dockerfile}");
            let copied = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
            for line in copied {
                for source in line.split(' ').filter(|word| !word.starts_with('/')) {
                    assert!(files.iter().any(|file| file.0 == source), "{source}");
                }
            }
            let template = format!("recipes/{0}/template.json /opt/sandbox/recipes/", recipe.name);
            assert!(dockerfile.contains(&template), "{dockerfile}");
        }
    }

    #[test]
    fn another_recipe_before_it_makes_another_image() {
        assert_ne!(ALL[0].id("a"), ALL[0].id("b"));
        assert_ne!(ALL[0].id("a"), ALL[1].id("a"));
        assert_eq!(ALL[0].id("a"), ALL[0].id("a"));
        let content = |text| image::content_id(None, &Recipes::parse(text).unwrap());
        assert_ne!(content("r"), content(""));
        assert_eq!(content("lua,r"), content("r,lua"));
    }

    #[test]
    fn a_label_has_the_languages_and_libraries_of_the_recipes() {
        let printed = json!({
            "python": "3.13.5",
            "runtimes": [
                { "name": "python", "libraries": [{ "name": "requests", "version": "2.34.2" }] },
                { "name": "ruby", "title": "Ruby", "command": ["ruby", "{file}"], "file": "main.rb" },
            ],
        });
        let label = label(&printed.to_string()).expect("valid");
        let runtimes = template::from_label(&label).expect("valid");
        let python = &runtimes[0];
        assert_eq!(python.version.as_deref(), Some("3.13.5"));
        assert_eq!(python.libraries[0].name, "pandas");
        assert_eq!(python.libraries.last().map(|it| &*it.name), Some("requests"));
        assert_eq!(runtimes.last().map(|it| &*it.name), Some("ruby"));
        let label: Value = serde_json::from_str(&label).expect("JSON");
        assert_eq!(label["runtimes"][3]["command"], json!(["ruby", "{file}"]));
    }

    #[test]
    fn every_recipe_describes_languages_or_libraries() {
        for recipe in &ALL {
            let template = recipe.files.iter().find(|file| file.0.ends_with("/template.json"));
            let template: Value =
                serde_json::from_slice(template.expect("there is one").1).expect("JSON");
            for runtime in template["runtimes"].as_array().expect("a list") {
                let is_new = runtime["command"].is_array();
                let has_libraries = runtime["libraries"].as_array().is_some();
                assert!(is_new || has_libraries, "{}", recipe.name);
                assert!(!is_new || runtime["command"].to_string().contains("{file}"));
            }
        }
    }
}
