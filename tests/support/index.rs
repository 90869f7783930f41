//! A package index on this machine, whose wheels are built here and can have any content.

use std::{
    fmt::Write as _,
    io::{Cursor, Write as _},
    ops::Deref,
};

use axum::response::{Html, IntoResponse};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use zip::{ZipWriter, write::SimpleFileOptions};

use super::{docker, shelf::Shelf};

/// The address under which containers of the engine's usual network reach this machine.
pub fn engine_host() -> String {
    docker(&["network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"])
}

/// A wheel that is being built.
#[derive(Debug, Clone)]
pub struct Wheel {
    project: String,
    version: String,
    tag: &'static str,
    requires: Vec<String>,
    files: Vec<(String, Vec<u8>)>,
    /// Files that the wheel's list does not name.
    unlisted: Vec<(String, Vec<u8>)>,
    lies: Vec<String>,
    link: Option<String>,
}

impl Wheel {
    /// Builds a wheel with a module of the project's name, which tells its version.
    pub fn new(project: &str, version: &str) -> Self {
        let module = format!("version = {version:?}\n");
        let new = Self {
            project: project.to_owned(),
            version: version.to_owned(),
            tag: "py3-none-any",
            requires: vec![],
            files: vec![],
            unlisted: vec![],
            lies: vec![],
            link: None,
        };
        new.file(&format!("{project}/__init__.py"), module)
    }

    #[must_use]
    pub fn requires(mut self, requirement: &str) -> Self {
        self.requires.push(requirement.to_owned());
        self
    }

    #[must_use]
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.to_owned(), content.into()));
        self
    }

    /// Adds a file that the wheel's list does not name.
    #[must_use]
    pub fn unlisted(mut self, path: &str, content: &str) -> Self {
        self.unlisted.push((path.to_owned(), content.into()));
        self
    }

    /// Adds a file whose content differs from the wheel's list.
    #[must_use]
    pub fn lie(mut self, path: &str, content: &str) -> Self {
        self.lies.push(path.to_owned());
        self.file(path, content)
    }

    /// Adds a symbolic link to `target`.
    #[must_use]
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.link = Some(path.to_owned());
        self.file(path, target)
    }

    #[must_use]
    pub fn tag(self, tag: &'static str) -> Self {
        Self { tag, ..self }
    }

    fn name(&self) -> String {
        format!("{}-{}-{}.whl", self.project, self.version, self.tag)
    }

    fn metadata(&self) -> String {
        let mut text =
            format!("Metadata-Version: 2.1\nName: {}\nVersion: {}\n", self.project, self.version);
        for requirement in &self.requires {
            if let Some((_, extra)) = requirement.split_once("extra == ") {
                writeln!(text, "Provides-Extra: {}", extra.trim_matches(['"', '\''])).unwrap();
            }
            writeln!(text, "Requires-Dist: {requirement}").unwrap();
        }
        text
    }

    fn build(&self) -> Vec<u8> {
        let info = format!("{}-{}.dist-info", self.project, self.version);
        let mut files = self.files.clone();
        files.push((format!("{info}/METADATA"), self.metadata().into()));
        let about = format!(
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {}\n",
            self.tag
        );
        files.push((format!("{info}/WHEEL"), about.into()));
        let mut record = String::new();
        for (path, content) in &files {
            let lies = self.lies.contains(path);
            let hash = Sha256::digest(if lies { b"another" } else { &content[..] });
            let hash = URL_SAFE_NO_PAD.encode(hash);
            writeln!(record, "{path},sha256={hash},{}", content.len()).unwrap();
        }
        writeln!(record, "{info}/RECORD,,").unwrap();
        files.extend(self.unlisted.clone());
        files.push((format!("{info}/RECORD"), record.into()));
        let mut writer = ZipWriter::new(Cursor::new(vec![]));
        let (options, mut doubles) = (SimpleFileOptions::default(), vec![]);
        for (number, (path, content)) in files.iter().enumerate() {
            let mut name = path.clone();
            if files[..number].iter().any(|(before, _)| before == path) {
                // The writer refuses a name that it has already, so this entry gets its real name afterwards.
                name.replace_range(path.len() - 1.., "\u{1}");
                doubles.push((name.clone(), path));
            }
            if self.link.as_ref() == Some(path) {
                let target = std::str::from_utf8(content).expect("a path");
                writer.add_symlink(name, target, options).expect("written");
            } else {
                writer.start_file(name, options).expect("begun");
                writer.write_all(content).expect("written");
            }
        }
        let mut archive = writer.finish().expect("written").into_inner();
        for (name, path) in doubles {
            for at in 0..=archive.len() - name.len() {
                if archive[at..].starts_with(name.as_bytes()) {
                    archive[at..at + path.len()].copy_from_slice(path.as_bytes());
                }
            }
        }
        archive
    }
}

/// A running index: files of each project, as name and URL fragment with the hash.
#[derive(Debug)]
pub struct Index {
    /// The address of the simple interface.
    pub url: String,
    shelf: Shelf<Vec<(String, String)>>,
}

impl Deref for Index {
    type Target = Shelf<Vec<(String, String)>>;

    fn deref(&self) -> &Self::Target {
        &self.shelf
    }
}

impl Index {
    /// Starts an index on the loopback interface.
    pub async fn start() -> Self {
        Self::start_on("127.0.0.1").await
    }

    /// Starts an index on an address of this machine.
    pub async fn start_on(host: &str) -> Self {
        let show = |files: Vec<_>| Html(page(&files)).into_response();
        let shelf = Shelf::start(host, "/simple/{project}/", show).await;
        Self { url: format!("{}simple/", shelf.base), shelf }
    }

    /// Adds a wheel with its hash.
    pub fn add(&self, wheel: Wheel) {
        let bytes = wheel.build();
        let hash = format!("#sha256={}", hex::encode(Sha256::digest(&bytes)));
        self.add_file(&wheel.project, &wheel.name(), &hash, bytes);
    }

    /// Adds a wheel with the hash of another file.
    pub fn add_falsely(&self, wheel: Wheel) {
        let bytes = wheel.build();
        let hash = format!("#sha256={}", hex::encode(Sha256::digest(b"another")));
        self.add_file(&wheel.project, &wheel.name(), &hash, bytes);
    }

    /// Adds any file to a project.
    pub fn add_file(&self, project: &str, name: &str, hash: &str, bytes: Vec<u8>) {
        let project = project.replace('_', "-").to_ascii_lowercase();
        self.shelf.add(&project, name.to_owned(), bytes, |files| {
            files.push((name.to_owned(), hash.to_owned()));
        });
    }

    /// A source distribution whose setup, if it is run, requests the project `ran` from this index.
    pub fn source_that_tells(&self) -> Vec<u8> {
        let told = format!("{}ran/", self.url);
        let told = format!("import urllib.request\nurllib.request.urlopen('{told}')\n");
        let mut archive = tar::Builder::new(vec![]);
        let project =
            "[build-system]\nrequires = []\nbuild-backend = \"told\"\nbackend-path = [\".\"]\n";
        for (name, content) in
            [("pyproject.toml", project), ("told.py", &told), ("setup.py", &told)]
        {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            let path = format!("source-1.0/{name}");
            archive.append_data(&mut header, path, content.as_bytes()).expect("written");
        }
        archive.into_inner().expect("written")
    }

    /// The settings of a server that uses this index.
    pub fn settings(&self) -> Vec<(&str, &str)> {
        vec![
            ("SANDBOX_PACKAGES", "any"),
            ("PIP_INDEX_URL", &self.url),
            ("PIP_TRUSTED_HOST", &self.host),
            ("NO_PROXY", &self.host),
            ("PIP_RETRIES", "0"),
        ]
    }
}

fn page(files: &[(String, String)]) -> String {
    let mut page = "<!DOCTYPE html><html><body>\n".to_owned();
    for (file, hash) in files {
        writeln!(page, "<a href=\"/files/{file}{hash}\">{file}</a><br>").unwrap();
    }
    page + "</body></html>"
}
