//! Packages in the sessions of this server.

use std::collections::BTreeMap;

use tokio::sync::watch;

use super::{Install, Opened, Progress, Sessions, Which};
use crate::{
    error::Result,
    packages::{
        CachedWheel, Packages, disabled, not_with_this_engine, preinstalled,
        requirement::Requirement,
    },
};

/// A package that can be imported now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Its version.
    pub version: String,
    /// What came with it, itself among it, by name and version; nothing if all of it was there.
    pub new: Vec<(String, String)>,
}

impl Sessions {
    /// Whether packages can be installed.
    pub fn can_install(&self) -> bool {
        self.inner.packages.is_some()
    }

    /// Installs a package in the session that is meant, or in a new one.
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

    /// Whether it may be asked for at all.
    ///
    /// # Errors
    /// If not: packages are off, or it is not among those that are allowed.
    pub fn check_package(&self, wanted: Requirement) -> Result<Requirement> {
        Ok(self.packages()?.allowed(wanted)?)
    }

    fn packages(&self) -> Result<&Packages> {
        let is_on = self.inner.config.packages_within().is_some();
        let packages = self.inner.packages.as_ref();
        Ok(packages.ok_or_else(|| if is_on { not_with_this_engine() } else { disabled() })?)
    }

    async fn install_in(
        &self,
        opened: &Opened,
        wanted: Requirement,
        progress: &watch::Sender<Progress>,
    ) -> Result<Installed> {
        let packages = self.packages()?;
        let id = &opened.id;
        let handle = self.find(id).ok_or_else(|| self.gone(id))?;
        let _using = handle.usage.read();
        // One after another: what comes second has to go with the first.
        let mut present = handle.packages.lock().await;
        let name = wanted.plain_name();
        let template = self.template().await;
        let there = present.versions.get(name.as_str()).cloned().or_else(|| {
            preinstalled(&template).find(|(it, _)| it == name.as_str()).map(|(_, version)| version)
        });
        if let Some(version) = there.filter(|_| !wanted.is_particular()) {
            return Ok(Installed { version, new: vec![] });
        }
        let backend = &*self.inner.backend;
        let obtained =
            packages.obtain(backend, &template, wanted, &present.versions, progress).await?;
        let next = present.with(&obtained.wheels)?;
        let new: BTreeMap<_, _> = obtained.wheels.iter().map(CachedWheel::named).collect();
        let new: Vec<_> =
            new.into_iter().map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
        progress.send_modify(|it| "installing".clone_into(&mut it.line));
        let install = Install { wheels: obtained.wheels, most: packages.max_bytes() };
        self.perform(id, install).await?;
        *present = next;
        Ok(Installed { version: obtained.version, new })
    }
}
