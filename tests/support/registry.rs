//! An npm registry on this machine, whose packages are built here and can have any content.

use std::ops::Deref;

use axum::{Json, response::IntoResponse};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};
use tar::{EntryType, Header};

use super::shelf::Shelf;

/// A package that is being built.
#[derive(Debug, Clone)]
pub struct Package {
    about: Map<String, Value>,
    files: Vec<(EntryType, String, Vec<u8>)>,
    dist: Map<String, Value>,
}

impl Package {
    /// Builds a package that tells its version.
    pub fn new(name: &str, version: &str) -> Self {
        let about = json!({ "name": name, "version": version, "main": "index.js" });
        let Value::Object(about) = about else { unreachable!() };
        let new = Self { about, files: vec![], dist: Map::new() };
        new.file("package/index.js", format!("exports.version = {version:?};\n"))
    }

    /// Sets a field of the package.json, which the registry repeats.
    #[must_use]
    pub fn says(mut self, key: &str, value: Value) -> Self {
        self.about.insert(key.into(), value);
        self
    }

    /// Adds a dependency.
    #[must_use]
    pub fn requires(mut self, name: &str, range: &str) -> Self {
        self.about.entry("dependencies").or_insert_with(|| json!({}))[name] = range.into();
        self
    }

    /// Sets a field of the registry's statement about the tarball, in place of the true value.
    #[must_use]
    pub fn dist(mut self, key: &str, value: Value) -> Self {
        self.dist.insert(key.into(), value);
        self
    }

    #[must_use]
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.retain(|(_, other, _)| other != path);
        self.entry(EntryType::Regular, path, content)
    }

    #[must_use]
    pub fn entry(mut self, kind: EntryType, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((kind, path.to_owned(), content.into()));
        self
    }

    fn build(&self) -> Vec<u8> {
        let mut archive = tar::Builder::new(GzEncoder::new(vec![], Compression::fast()));
        let about = Value::Object(self.about.clone()).to_string().into_bytes();
        let about = (EntryType::Regular, "package/package.json".to_owned(), about);
        for (kind, path, content) in [about].iter().chain(&self.files) {
            let mut header = Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            // The bytes as they are: the library would refuse some of these paths.
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            let content: &[u8] = if *kind == EntryType::Symlink {
                header.as_mut_bytes()[157..157 + content.len()].copy_from_slice(content);
                &[]
            } else {
                content
            };
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, content).expect("written");
        }
        archive.into_inner().expect("written").finish().expect("written")
    }
}

/// A running registry: its document about each package.
#[derive(Debug)]
pub struct Registry {
    pub url: String,
    shelf: Shelf<Value>,
}

impl Deref for Registry {
    type Target = Shelf<Value>;

    fn deref(&self) -> &Self::Target {
        &self.shelf
    }
}

impl Registry {
    /// Starts a registry on an address of this machine.
    pub async fn start_on(host: &str) -> Self {
        let shelf = Shelf::start(host, "/{name}", |said: Value| Json(said).into_response()).await;
        Self { url: shelf.base.clone(), shelf }
    }

    /// Adds a package as the newest version of its name.
    pub fn add(&self, package: Package) {
        let bytes = package.build();
        let text = |key: &str| package.about[key].as_str().expect("text").to_owned();
        let (name, version) = (text("name"), text("version"));
        let file = format!("{}-{version}.tgz", name.replace(['@', '/'], "_"));
        let mut dist = json!({
            "tarball": format!("{}files/{file}", self.url),
            "integrity": format!("sha512-{}", STANDARD.encode(Sha512::digest(&bytes))),
        });
        for (key, value) in package.dist {
            dist[key] = value;
        }
        let mut about = Value::Object(package.about);
        if let Some(scripts) = about["scripts"].as_object() {
            about["hasInstallScript"] = scripts.contains_key("postinstall").into();
        }
        about["dist"] = dist;
        self.shelf.add(&name, file, bytes, |packument| {
            packument["name"] = name.clone().into();
            packument["versions"][&version] = about;
            packument["dist-tags"]["latest"] = version.into();
        });
    }

    /// The settings of a server that uses this registry.
    pub fn settings(&self) -> Vec<(&str, &str)> {
        vec![
            ("SANDBOX_PACKAGES", "any"),
            ("npm_config_registry", &self.url),
            ("npm_config_fetch_retries", "0"),
            ("NO_PROXY", &self.host),
        ]
    }
}
