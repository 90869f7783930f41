//! Packages for sandboxes that have no network: found and downloaded by a fetcher, checked here, and handed to a
//! session over its link.
//!
//! ```text
//!   install_package --> allowed? --> known? --no--> fetcher (a sandbox with a network: pip, wheels alone)
//!                                      |               |  wheels, over its link
//!                                      |               v
//!                                      |            hashes, paths, list of files, sizes (wheel)
//!                                      |               |
//!                                      '--> cache <----'
//!                                             |  files, over the session's link
//!                                             v
//!                                    /opt/packages of the sandbox
//! ```
//!
//! Nothing of a package runs before code in the sandbox imports it. What is preinstalled stays as it is and comes
//! first: a package can neither replace nor hide it.
//!
//! - [`requirement`]: what is asked for, and what may be. [`index`]: how packages are reached.
//! - [`fetch`]: the fetcher. [`wheel`]: what it gets. [`cache`]: what was got.

mod cache;
mod fetch;
mod index;
pub mod requirement;
mod wheel;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use sandbox_container::{MAX_FETCHERS, fetcher_limits};
use tokio::sync::{Semaphore, mpsc, watch};

use self::{
    cache::Cache,
    fetch::Bounds,
    index::Index,
    requirement::{Allowed, PlainName, Requirement},
    wheel::Wheel,
};
pub(crate) use self::{
    cache::{CachedWheel, Obtained},
    wheel::{Fault as WheelFault, Piece},
};
use crate::{
    backend::{Backend, PackageKind, Purpose, Spec, Template},
    config::Config,
    session::SessionId,
    sessions::Progress,
};

/// Why a package cannot be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    kind: FaultKind,
    message: String,
}

/// The kinds of [`Fault`], each a documented code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Packages are off here.
    Disabled,
    /// It is not among those that the operator allows.
    NotAllowed,
    /// The index has no such package, version or wheel.
    NotFound,
    /// It needs something else than what is there.
    Conflict,
    /// It is larger than packages may be.
    TooLarge,
    /// What the index sent is not what it should be.
    Refused,
    /// The index did not answer as one does.
    Index,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: String) -> Self {
        Self { kind, message }
    }

    fn refused(what: &str, why: &str) -> Self {
        let message =
            format!("{what} was refused, and nothing was installed. {why} Tell the person.");
        Self::new(FaultKind::Refused, message)
    }

    /// The stable code, as documented in docs/tools.md.
    pub fn code(&self) -> &'static str {
        match self.kind {
            FaultKind::Disabled => "packages_disabled",
            FaultKind::NotAllowed => "package_not_allowed",
            FaultKind::NotFound => "package_not_found",
            FaultKind::Conflict => "package_conflict",
            FaultKind::TooLarge => "package_too_large",
            FaultKind::Refused => "package_refused",
            FaultKind::Index => "package_index_unavailable",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The packages of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Present {
    /// Versions by names.
    pub(crate) versions: BTreeMap<String, String>,
    /// What their files hold, by their paths: beginnings of hashes of both.
    files: HashMap<u64, u64>,
}

impl Present {
    /// The same with these packages.
    ///
    /// # Errors
    /// If one would change a file of another.
    pub(crate) fn with(&self, wheels: &[CachedWheel]) -> Result<Self, Fault> {
        let mut next = self.clone();
        for wheel in wheels {
            let (name, version) = wheel.named();
            for file in &wheel.0.installs {
                let there = next.files.insert(file.path, file.content);
                if there.is_some_and(|there| there != file.content) {
                    let why = format!(
                        "{name} {version} has a file that another package of this session has as well, with other \
                         contents. Start another session for it, or do without it."
                    );
                    return Err(Fault::new(FaultKind::Conflict, why));
                }
            }
            next.versions.insert(PlainName::of(name).as_str().to_owned(), version.to_owned());
        }
        Ok(next)
    }
}

/// Gets packages for all sessions of a server. Clones share what was got.
#[derive(Debug, Clone)]
pub(crate) struct Packages(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    allowed: Allowed,
    kind: PackageKind,
    bounds: Bounds,
    cache: Cache,
    fetchers: Semaphore,
}

impl Packages {
    /// As these settings want it, of what sandboxes can take.
    pub(crate) fn new(config: &Config, kind: PackageKind) -> Self {
        Self(Arc::new(Inner {
            kind,
            allowed: config.packages.clone(),
            bounds: Bounds { time: config.packages_timeout, bytes: config.packages_limit },
            cache: Cache::new(config.packages_cache),
            fetchers: Semaphore::new(MAX_FETCHERS),
        }))
    }

    /// Most bytes of packages in a session.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.0.bounds.bytes
    }

    /// Gets what a package needs beside what is there, by name and version, in a sandbox made from this template.
    ///
    /// # Errors
    /// If it may not be installed, or cannot be.
    pub(crate) async fn obtain(
        &self,
        backend: &dyn Backend,
        template: &Template,
        wanted: Requirement,
        present: &BTreeMap<String, String>,
        progress: &watch::Sender<Progress>,
    ) -> Result<Obtained, Fault> {
        let inner = &*self.0;
        let present = &self.beside(template, present);
        let question = format!("{}\n{wanted}\n{present:?}", template.id);
        if let Some(known) = inner.cache.answer(&question) {
            return Ok(known);
        }
        let _turn = inner.fetchers.acquire().await;
        // Somebody may have asked for the same meanwhile.
        if let Some(known) = inner.cache.answer(&question) {
            return Ok(known);
        }
        let spec = fetcher(inner.bounds.bytes);
        let index = Index::here();
        let (version, fetched) = fetch::fetch(
            backend,
            spec,
            (&wanted, present, &inner.kind),
            (&index, inner.bounds),
            progress,
        )
        .await?;
        Ok(inner.cache.keep(question, version, fetched))
    }

    /// What is there, as far as a fetcher cannot see it by itself.
    fn beside(
        &self,
        template: &Template,
        installed: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        match self.0.kind {
            PackageKind::OfFetcher => installed.clone(),
            PackageKind::Pure { .. } => preinstalled(template).chain(installed.clone()).collect(),
        }
    }

    /// What is asked for, within what may be.
    pub(crate) fn allowed(&self, wanted: Requirement) -> Result<Requirement, Fault> {
        let allowed = &self.0.allowed;
        let name = wanted.name().to_owned();
        allowed.within(wanted).ok_or_else(|| {
            let why = format!("{name} may not be installed here. These may: {allowed}.");
            Fault::new(FaultKind::NotAllowed, why)
        })
    }
}

/// What a sandbox of this template has from the start, by plain name and version.
pub(crate) fn preinstalled(template: &Template) -> impl Iterator<Item = (String, String)> {
    let python = template.runtimes.iter().filter(|runtime| runtime.name == "python");
    python.flat_map(|runtime| &runtime.libraries).filter_map(|library| {
        Some((PlainName::of(&library.name).as_str().to_owned(), library.version.clone()?))
    })
}

/// That packages are off.
pub(crate) fn disabled() -> Fault {
    let why = "Packages cannot be installed here: the operator has not turned that on (SANDBOX_PACKAGES). Use what \
               is there.";
    Fault::new(FaultKind::Disabled, why.into())
}

/// That there are none where the sandboxes are of this kind.
pub(crate) fn not_with_this_engine() -> Fault {
    let why = "Packages cannot be installed in sandboxes of this engine. Use what is there.";
    Fault::new(FaultKind::Disabled, why.into())
}

/// What a fetcher of so many bytes of wheels is.
fn fetcher(bytes: u64) -> Spec {
    Spec {
        session: SessionId::mint(),
        limits: fetcher_limits(bytes),
        kept_as: None,
        hold: None,
        caller: None,
        purpose: Purpose::Fetcher,
    }
}

impl CachedWheel {
    /// The name and the version of what it is a wheel of.
    pub(crate) fn named(&self) -> (&str, &str) {
        (&self.0.named.name, &self.0.named.version)
    }

    /// Its files, a piece at a time, as they are to be written. They were found to be right before.
    ///
    /// # Errors
    /// If the server's own file cannot be read, which may also show later.
    pub(crate) async fn pieces(
        &self,
        most: u64,
    ) -> Result<mpsc::Receiver<Result<Piece, WheelFault>>, WheelFault> {
        Ok(Wheel::open(&self.0.file, &self.0.named, most).await?.pieces(false))
    }
}
