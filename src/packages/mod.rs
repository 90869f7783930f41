//! Packages for sandboxes without a network: a fetcher finds and downloads them, the server checks them, and they go
//! into a session over its link.
//!
//! ```text
//!   install_package --> allowed? --> known? --no--> fetcher (a sandbox with a network: pip or npm, no scripts)
//!                                      |               |  wheels or tarballs, over its link
//!                                      |               v
//!                                      |            hashes, paths, list of files, sizes (wheel, tarball)
//!                                      |               |
//!                                      '--> cache <----'
//!                                             |  files, over the session's link
//!                                             v
//!                                    /opt/packages of the sandbox
//! ```
//!
//! Nothing of a package runs before code in the sandbox imports it. Preinstalled packages stay unchanged and come
//! first: an installed package can neither replace nor hide one.
//!
//! - [`model::package`]: requests for packages, and which packages are allowed. [`index`]: how packages are reached.
//! - [`fetch`]: the fetcher. [`archive`], [`wheel`] and [`tarball`]: the archives that it downloads. [`cache`]:
//!   archives that were downloaded before.

mod archive;
mod cache;
mod fetch;
mod index;
mod tarball;
mod wheel;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use backend::{Backend, PackageKind, Purpose, Spec, Template};
use config::Config;
use model::{
    Principal, SessionId,
    package::{Allowed, Ecosystem, Fault, FaultKind, PlainName, Requirement},
    text::human_size,
};
use sandbox_container::{MAX_FETCHERS, fetcher_limits};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use self::{
    archive::NODE_MODULES,
    cache::{Cache, Fetched, Question},
    fetch::{Beside, Bounds},
    wheel::Wheel,
};
pub(crate) use self::{
    archive::{Fault as ArchiveFault, Piece},
    cache::{CachedPackage, Obtained},
};
use crate::{
    budget::{Budget, Share},
    progress::Progress,
};

/// The packages of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Present {
    /// Versions of Python packages, by name.
    python: BTreeMap<String, String>,
    /// Versions of the JavaScript packages that programs find by their names alone.
    javascript: BTreeMap<String, String>,
    /// The requested packages with their versions, in a form in which they can be requested again.
    asked: Vec<String>,
    /// Folders of JavaScript packages.
    places: BTreeSet<String>,
    /// Bytes that all packages take.
    room: u64,
    /// npm's lock file for the JavaScript packages.
    lock: Option<Arc<str>>,
    /// Contents of the files of Python packages, by path: the first 8 bytes of the hashes of both.
    files: HashMap<u64, u64>,
}

impl Present {
    /// The version of a package, if it is installed.
    pub(crate) fn version(&self, wanted: &Requirement) -> Option<String> {
        let versions = match wanted.ecosystem() {
            Ecosystem::PyPi => &self.python,
            Ecosystem::Npm => &self.javascript,
        };
        versions.get(wanted.plain_name().as_str()).cloned()
    }

    /// The requested packages with their versions, in a form in which they can be requested again.
    pub(crate) fn asked(&self) -> &[String] {
        &self.asked
    }

    /// Returns these packages together with those that were obtained for a request.
    ///
    /// # Errors
    /// If a package would change a file of another, or there is no room for all of them.
    pub(crate) fn with(
        &self,
        wanted: &Requirement,
        obtained: &Obtained,
        most: u64,
    ) -> Result<Self, Fault> {
        let mut next = self.clone();
        let asked = wanted.in_version(&obtained.version);
        if !obtained.packages.is_empty() && !next.asked.contains(&asked) {
            next.asked.push(asked);
        }
        for package in &obtained.packages {
            let (name, version) = package.named();
            next.room = next.room.saturating_add(package.archive.room);
            let is_of_javascript = package.archive.ecosystem == Ecosystem::Npm;
            if is_of_javascript && !next.places.insert(package.place.clone()) {
                let why = "It would take the place of another package.";
                return Err(Fault::refused(&format!("{name} {version}"), why));
            }
            for file in &package.archive.installs {
                let there = next.files.insert(file.path, file.content);
                if there.is_some_and(|there| there != file.content) {
                    let why = format!(
                        "{name} {version} has a file that another package of this session has as well, with other \
                         contents. Start another session for it, or do without it."
                    );
                    return Err(Fault::new(FaultKind::Conflict, why));
                }
            }
            let version = version.to_owned();
            if package.archive.ecosystem == Ecosystem::PyPi {
                next.python.insert(PlainName::of(name).as_str().to_owned(), version);
            } else if let Some(name) = package.found_as() {
                next.javascript.insert(name.to_owned(), version);
            }
        }
        if next.room > most {
            let why = format!(
                "There is no room for {wanted}: the packages of a session may have {}, and some are there. Start \
                 another session for it, or do without it.",
                human_size(most)
            );
            return Err(Fault::new(FaultKind::TooLarge, why));
        }
        next.lock = obtained.lock.clone().or(next.lock);
        Ok(next)
    }
}

/// Gets packages for all sessions of a server. Clones share one cache.
#[derive(Debug, Clone)]
pub(crate) struct Packages(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    allowed: Allowed,
    kind: PackageKind,
    bounds: Bounds,
    cache: Cache,
    fetchers: Budget,
}

impl Packages {
    /// Creates one from the settings, for sandboxes that take this kind of packages.
    pub(crate) fn new(config: &Config, kind: PackageKind) -> Self {
        Self(Arc::new(Inner {
            kind,
            allowed: config.packages.clone(),
            bounds: Bounds { time: config.packages_timeout, bytes: config.packages_limit },
            cache: Cache::new(config.packages_cache),
            // One for each caller: long installations of one caller leave the other fetchers to other callers.
            fetchers: Budget::new(Share { total: MAX_FETCHERS, client: 1 }),
        }))
    }

    /// The maximum size of the packages of a session, in bytes.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.0.bounds.bytes
    }

    /// The ecosystems whose packages the sandboxes take.
    pub(crate) fn ecosystems(&self) -> &'static [Ecosystem] {
        match self.0.kind {
            PackageKind::OfFetcher => &[Ecosystem::PyPi, Ecosystem::Npm],
            PackageKind::Pure { .. } => &[Ecosystem::PyPi],
        }
    }

    /// Gets a package and the packages that it needs, except those that are present in a sandbox made from this
    /// template.
    ///
    /// # Errors
    /// If the package cannot be fetched, or is refused.
    pub(crate) async fn obtain(
        &self,
        caller: &Principal,
        (backend, template): (&dyn Backend, &Template),
        wanted: &Requirement,
        present: &Present,
        progress: &watch::Sender<Progress>,
    ) -> Result<Obtained, Fault> {
        let inner = &*self.0;
        let python = self.python_beside(template, present);
        let beside = match (wanted.ecosystem(), &inner.kind) {
            (Ecosystem::Npm, _) => Beside::JavaScript { lock: present.lock.as_deref() },
            (Ecosystem::PyPi, PackageKind::OfFetcher) => {
                Beside::Python { present: &python, pure_for: None }
            }
            (Ecosystem::PyPi, PackageKind::Pure { python: version }) => {
                Beside::Python { present: &python, pure_for: Some(version) }
            }
        };
        let there = format!("{beside:?}");
        let question = Question::of(&[&template.id, &wanted.to_string(), &there]);
        if let Some(known) = inner.cache.answer(question) {
            return Ok(known);
        }
        let mut turn = inner.fetchers.lease(caller);
        turn.keep();
        let taken = timeout(inner.bounds.time, async { while turn.grow(1).await.is_err() {} });
        taken.await.map_err(|_| {
            let why = "Other packages are being fetched, and it takes long. Try again in a minute.";
            Fault::new(FaultKind::Index, why.into())
        })?;
        // Another request for the same package may have been answered meanwhile.
        if let Some(known) = inner.cache.answer(question) {
            return Ok(known);
        }
        let spec = fetcher(inner.bounds.bytes);
        let got = fetch::fetch(backend, spec, (wanted, &beside), inner.bounds, progress).await;
        let got = got.map_err(|fault| match inner.allowed.of(wanted) {
            Some(allowed) if fault.is_answer() && allowed.is_particular() => {
                fault.with(&format!("Allowed here is {allowed}."))
            }
            _ => fault,
        })?;
        Ok(inner.cache.keep(question, got))
    }

    /// The Python packages that are present but that a fetcher does not see by itself.
    fn python_beside(&self, template: &Template, present: &Present) -> BTreeMap<String, String> {
        let installed = present.python.clone();
        match self.0.kind {
            PackageKind::OfFetcher => installed,
            PackageKind::Pure { .. } => preinstalled(template).chain(installed).collect(),
        }
    }
}

/// Narrows a request to the versions that are allowed.
pub(crate) fn allowed(allowed: &Allowed, wanted: Requirement) -> Result<Requirement, Fault> {
    let name = wanted.name().to_owned();
    allowed.within(wanted).ok_or_else(|| {
        let why = format!("{name} may not be installed here. These may: {allowed}.");
        Fault::new(FaultKind::NotAllowed, why)
    })
}

/// Tests whether packages can be fetched with these settings. For each ecosystem, fetches the first package that the
/// operator allows, or a small one, and returns its name and version.
pub(crate) async fn try_out(
    config: &Config,
    backend: &dyn Backend,
    template: &Template,
) -> Vec<(Ecosystem, Result<String, Fault>)> {
    let Some(kind) = config.packages_within().and_then(|_| backend.packages()) else {
        return vec![];
    };
    let packages = Packages::new(config, kind);
    let mut all = vec![];
    for ecosystem in packages.ecosystems() {
        let Some(wanted) = packages.0.allowed.first_of(*ecosystem) else { continue };
        let progress = watch::Sender::new(Progress::default());
        let none = Present::default();
        let obtained = packages
            .obtain(&Principal::local(), (backend, template), &wanted, &none, &progress)
            .await;
        let what = obtained.map(|it| format!("{} {}", wanted.name(), it.version));
        all.push((*ecosystem, what));
    }
    all
}

/// The Python packages that are preinstalled in a template, by plain name and version.
pub(crate) fn preinstalled(template: &Template) -> impl Iterator<Item = (String, String)> {
    let python = template.runtimes.iter().filter(|runtime| runtime.name == "python");
    python.flat_map(|runtime| &runtime.libraries).filter_map(|library| {
        Some((PlainName::of(&library.name).as_str().to_owned(), library.version.clone()?))
    })
}

/// The fault that packages are disabled.
pub(crate) fn disabled() -> Fault {
    let why = "Packages cannot be installed here: the operator has not turned that on (SANDBOX_PACKAGES). Use what \
               is there.";
    Fault::new(FaultKind::Disabled, why.into())
}

/// The fault that this engine's sandboxes take no packages of this ecosystem.
pub(crate) fn not_with_this_engine(ecosystem: Ecosystem) -> Fault {
    let why = format!(
        "Packages for {} cannot be installed in sandboxes of this engine. Use what is there.",
        ecosystem.language()
    );
    Fault::new(FaultKind::Disabled, why)
}

/// The parameters of a fetcher for this many bytes of packages.
fn fetcher(bytes: u64) -> Spec {
    Spec {
        session: SessionId::mint(),
        limits: fetcher_limits(bytes),
        saved_as: None,
        hold: None,
        caller: None,
        datasets: vec![],
        purpose: Purpose::Fetcher,
    }
}

impl CachedPackage {
    /// The package's name and version.
    pub(crate) fn named(&self) -> (&str, &str) {
        (&self.named.name, &self.named.version)
    }

    /// The name by which JavaScript programs find it; `None` if it is in another package's own folder, or is installed
    /// under another name than its own.
    fn found_as(&self) -> Option<&str> {
        let name = self.place.strip_prefix(NODE_MODULES)?.strip_prefix('/')?;
        (name == self.named.name).then_some(name)
    }

    /// Reads its files, a piece at a time, as they are to be written. They were checked before.
    ///
    /// # Errors
    /// If the server's own file cannot be read. If reading fails later, the error is the last piece.
    pub(crate) async fn pieces(
        &self,
        most: u64,
    ) -> Result<mpsc::Receiver<Result<Piece, ArchiveFault>>, ArchiveFault> {
        let Fetched { ecosystem, file, .. } = &*self.archive;
        match ecosystem {
            Ecosystem::PyPi => Ok(Wheel::open(file, &self.named, most).await?.pieces(false)),
            Ecosystem::Npm => tarball::pieces(file, &self.place, most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{archive::Named, *};

    /// The answer to a request for a JavaScript package, with this folder and this many bytes.
    fn obtained(place: &str, room: u64) -> Obtained {
        let (name, version) = ("a".to_owned(), "1.0.0".to_owned());
        let named = Named { file: "0.tgz".into(), name, version: version.clone() };
        let (ecosystem, file) = (Ecosystem::Npm, tempfile::tempfile().expect("a file"));
        let archive =
            Fetched { ecosystem, sha256: [0; 32], file, bytes: 1, room, installs: vec![] };
        let package = CachedPackage { archive: Arc::new(archive), named, place: place.into() };
        Obtained { version, packages: vec![package], lock: None, scripts: vec![] }
    }

    #[test]
    fn a_package_takes_neither_the_place_of_another_nor_more_room_than_there_is() {
        let wanted: Requirement = "npm:a".parse().expect("a name");
        let with = |present: &Present, place, room| {
            present.with(&wanted, &obtained(place, room), 100).map_err(|fault| fault.code())
        };
        let present = with(&Present::default(), "node_modules/a", 60).expect("room");
        assert_eq!(present.version(&wanted).as_deref(), Some("1.0.0"));
        assert_eq!(present.asked(), ["npm:a@1.0.0"]);
        let other = with(&present, "node_modules/b/node_modules/a", 40).expect("room");
        assert_eq!(with(&other, "node_modules/c", 1).err(), Some("package_too_large"));
        assert_eq!(with(&present, "node_modules/a", 1).err(), Some("package_refused"));
        let renamed = with(&Present::default(), "node_modules/b", 1).expect("room");
        let by_that_name: Requirement = "npm:b".parse().expect("a name");
        assert_eq!(renamed.version(&by_that_name), None, "it is another package");
    }
}
