//! Installs packages in sessions.

use std::collections::BTreeSet;

use model::{
    SessionId,
    package::{Ecosystem, Requirement},
};
use tokio::sync::watch;

use super::{Install, Opened, Sessions, Which};
use crate::{
    error::Result,
    packages::{CachedPackage, Obtained, allowed, disabled, preinstalled},
    progress::Progress,
};

/// A package that can be imported now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The package's version.
    pub version: String,
    /// Packages that were installed with the requested one, including itself, by name and version; empty if all were
    /// present.
    pub new: Vec<(String, String)>,
    /// Names of those among them whose installation would have run a script, which it never does.
    pub scripts: Vec<String>,
}

impl Installed {
    fn before(version: String) -> Self {
        Self { version, new: vec![], scripts: vec![] }
    }
}

/// The packages that a caller can install in its sessions.
#[derive(Debug, Clone, Copy)]
pub struct CallersPackages<'a>(pub(super) &'a Sessions);

impl CallersPackages<'_> {
    /// The ecosystems from which the caller can install packages.
    pub fn ecosystems(self) -> &'static [Ecosystem] {
        let Sessions { host, config, .. } = self.0;
        if config.packages_within().is_some() { host.ecosystems() } else { &[] }
    }

    /// Checks that the caller may install a package.
    ///
    /// # Errors
    /// If packages are disabled or not supported by the engine, or this one is not allowed.
    pub fn check(self, wanted: Requirement) -> Result<Requirement> {
        let Sessions { host, config, .. } = self.0;
        if config.packages_within().is_none() {
            return Err(disabled().into());
        }
        host.packages(wanted.ecosystem())?;
        Ok(allowed(&config.packages, wanted)?)
    }

    /// Installs a package in the session that the call means, or in a new one.
    pub async fn install(
        self,
        which: impl Into<Which>,
        wanted: Requirement,
        progress: watch::Sender<Progress>,
    ) -> (Opened, Result<Installed>) {
        let (opened, there) = self.0.ensure(which).await;
        let installed = match there {
            Ok(()) => install(self.0, &opened.id, wanted, &progress).await,
            Err(error) => Err(error),
        };
        (opened, installed)
    }
}

/// Installs a package in the caller's session of this name, which is live.
async fn install(
    sessions: &Sessions,
    id: &SessionId,
    wanted: Requirement,
    progress: &watch::Sender<Progress>,
) -> Result<Installed> {
    let host = &sessions.host;
    let packages = host.packages(wanted.ecosystem())?;
    let handle = sessions.find(id).ok_or_else(|| sessions.gone(id))?;
    let _using = handle.usage.read();
    // One after another: the second package has to be compatible with the first.
    let mut present = handle.packages.lock().await;
    let template = host.template().await;
    let from_the_start = || {
        let name = wanted.plain_name();
        let mut all = preinstalled(&template).filter(|_| wanted.ecosystem() == Ecosystem::PyPi);
        all.find(|(it, _)| it == name.as_str()).map(|(_, version)| version)
    };
    let there = present.version(&wanted).or_else(from_the_start);
    if let Some(version) = there.filter(|_| !wanted.is_particular()) {
        return Ok(Installed::before(version));
    }
    let backend = &*host.backend;
    let obtained = packages
        .obtain(&sessions.caller, (backend, &template), &wanted, &present, progress)
        .await?;
    let next = present.with(&wanted, &obtained, packages.max_bytes())?;
    let Obtained { version, packages: all, scripts, .. } = obtained;
    let new: BTreeSet<_> = all.iter().map(CachedPackage::named).collect();
    let new: Vec<_> =
        new.into_iter().map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
    progress.send_modify(|it| it.lines.push("installing"));
    sessions.perform(id, Install { packages: all, most: packages.max_bytes() }).await?;
    next.asked().clone_into(&mut handle.archived.packages.lock());
    *present = next;
    Ok(Installed { version, new, scripts })
}
