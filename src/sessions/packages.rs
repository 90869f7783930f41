//! Installs packages in sessions.

use std::collections::BTreeSet;

use model::package::{Ecosystem, Requirement};
use tokio::sync::watch;

use super::{Install, Opened, Sessions, Which};
use crate::progress::Progress;
use crate::{
    error::Result,
    packages::{CachedPackage, Obtained, Packages, disabled, not_with_this_engine, preinstalled},
};

/// A package that can be imported now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Its version.
    pub version: String,
    /// Packages that were installed with it, including itself, by name and version; empty if all were present.
    pub new: Vec<(String, String)>,
    /// Names of those among them whose installation would have run a script, which it never does.
    pub scripts: Vec<String>,
}

impl Installed {
    fn before(version: String) -> Self {
        Self { version, new: vec![], scripts: vec![] }
    }
}

impl Sessions {
    /// The ecosystems from which packages can be installed.
    pub fn ecosystems(&self) -> &'static [Ecosystem] {
        self.inner.packages.as_ref().map_or(&[], Packages::ecosystems)
    }

    /// Installs a package in the session that the call means, or in a new one.
    pub async fn install(
        &self,
        which: impl Into<Which>,
        wanted: Requirement,
        progress: watch::Sender<Progress>,
    ) -> (Opened, Result<Installed>) {
        let (opened, there) = self.ensure(which).await;
        let installed = match there {
            Ok(()) => self.install_in(&opened, wanted, &progress).await,
            Err(error) => Err(error),
        };
        (opened, installed)
    }

    /// Checks that a package may be requested.
    ///
    /// # Errors
    /// If packages are disabled or not supported by the engine, or this one is not allowed.
    pub fn check_package(&self, wanted: Requirement) -> Result<Requirement> {
        Ok(self.packages(wanted.ecosystem())?.allowed(wanted)?)
    }

    fn packages(&self, ecosystem: Ecosystem) -> Result<&Packages> {
        let is_on = self.inner.config.packages_within().is_some();
        let takes = |it: &&Packages| it.ecosystems().contains(&ecosystem);
        let packages = self.inner.packages.as_ref().filter(takes);
        let none = || if is_on { not_with_this_engine(ecosystem) } else { disabled() };
        Ok(packages.ok_or_else(none)?)
    }

    async fn install_in(
        &self,
        opened: &Opened,
        wanted: Requirement,
        progress: &watch::Sender<Progress>,
    ) -> Result<Installed> {
        let packages = self.packages(wanted.ecosystem())?;
        let id = &opened.id;
        let handle = self.find(id).ok_or_else(|| self.gone(id))?;
        let _using = handle.usage.read();
        // One after another: the second package has to be compatible with the first.
        let mut present = handle.packages.lock().await;
        let template = self.template().await;
        let from_the_start = || {
            let name = wanted.plain_name();
            let mut all = preinstalled(&template).filter(|_| wanted.ecosystem() == Ecosystem::PyPi);
            all.find(|(it, _)| it == name.as_str()).map(|(_, version)| version)
        };
        let there = present.version(&wanted).or_else(from_the_start);
        if let Some(version) = there.filter(|_| !wanted.is_particular()) {
            return Ok(Installed::before(version));
        }
        let backend = &*self.inner.backend;
        let obtained = packages
            .obtain(&self.caller, (backend, &template), &wanted, &present, progress)
            .await?;
        let next = present.with(&wanted, &obtained, packages.max_bytes())?;
        let Obtained { version, packages: all, scripts, .. } = obtained;
        let new: BTreeSet<_> = all.iter().map(CachedPackage::named).collect();
        let new: Vec<_> =
            new.into_iter().map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
        progress.send_modify(|it| "installing".clone_into(&mut it.line));
        self.perform(id, Install { packages: all, most: packages.max_bytes() }).await?;
        next.asked().clone_into(&mut handle.archived.packages.lock());
        *present = next;
        Ok(Installed { version, new, scripts })
    }
}
