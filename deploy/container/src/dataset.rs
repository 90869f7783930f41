//! Folders of the host that containers can read.

use std::path::{Component, Path, PathBuf};

use bollard_stubs::models::{
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions,
    MountVolumeOptionsDriverConfig, VolumeCreateRequest,
};
use protocol::limits::DATASETS;

use crate::{APP, Host, LABEL_APP, Product};

/// The maximum length of a name.
const MAX_NAME: usize = 64;

/// Folders of the system, with what is beneath them: their files are not data, and reading some of them has effects.
const SYSTEM: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Folders that have sockets of the system, such as the container engine's, or all files of the machine.
const TOO_WIDE: [&str; 5] = ["/", "/run", "/var", "/var/run", "/var/lib/docker"];

/// The SELinux label of files that all containers may use. The engine gives it to each volume.
const SHARED_LABEL: &str = "system_u:object_r:container_file_t:s0";

/// The name of a volume that is always empty, on engines whose containers have datasets.
pub const EMPTY_VOLUME: &str = "llm-sandbox-empty";

/// The description of the empty volume.
pub fn empty_volume() -> VolumeCreateRequest {
    VolumeCreateRequest {
        name: Some(EMPTY_VOLUME.into()),
        labels: Some([(LABEL_APP.to_owned(), APP.to_owned())].into()),
        ..Default::default()
    }
}

/// A folder of the host that a container can read beneath `/data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// The name of its folder in the container.
    pub name: String,
    /// The absolute path on the host.
    pub path: PathBuf,
    /// How the container sees it.
    pub view: View,
}

/// How a container sees a folder of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// By a file system of its own over the folder, so that it shares only the content of files with the host: no
    /// locks, no sockets, no named pipes. A file that the host replaces may still be seen as it was.
    Own {
        /// The path of the empty volume on the host.
        empty: String,
    },
    /// The folder itself, so that each change is seen at once. With SELinux, containers may not read it.
    Live,
}

impl Dataset {
    /// The mount of the dataset, which can only be read.
    pub(crate) fn mount(&self, host: &Host) -> Mount {
        let path = self.path.to_string_lossy();
        let mount = Mount { target: Some(format!("{DATASETS}/{}", self.name)), ..Mount::default() };
        match &self.view {
            // Podman ignores the options of a volume that a mount describes.
            View::Own { empty } if host.product != Product::Podman => {
                // Without an upper layer the file system is read-only, and then it must have two lower ones.
                let mut layers = format!("ro,nosuid,nodev,noexec,lowerdir={path}:{empty}");
                if host.selinux {
                    // All files in the mount have this label, whatever theirs is on the host, which does not change. The
                    // engine would label the files of a volume itself, and fails where that changes anything, because
                    // the mount is read-only.
                    layers = format!("{layers},context={SHARED_LABEL}");
                }
                let options = [("type", "overlay"), ("device", "overlay"), ("o", &layers)];
                let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
                let driver = MountVolumeOptionsDriverConfig {
                    name: Some("local".into()),
                    options: Some(options.into()),
                };
                Mount {
                    typ: Some(MountType::VOLUME),
                    volume_options: Some(MountVolumeOptions {
                        no_copy: Some(true),
                        driver_config: Some(driver),
                        ..MountVolumeOptions::default()
                    }),
                    ..mount
                }
            }
            // The engine has no options `nosuid`, `nodev` and `noexec` for it: programs cannot gain rights
            // (`no-new-privileges`), and use no device but those of every container.
            View::Own { .. } | View::Live => Mount {
                typ: Some(MountType::BIND),
                source: Some(path.into_owned()),
                read_only: Some(true),
                bind_options: Some(MountBindOptions {
                    propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                    // A file system that is mounted in the folder may be writable, whatever the folder's mount is.
                    non_recursive: Some(true),
                    ..MountBindOptions::default()
                }),
                ..mount
            },
        }
    }
}

/// Parses `NAME=PATH`; `None` if either cannot be used.
pub fn named_folder(text: &str) -> Option<(String, PathBuf)> {
    let (name, path) = text.split_once('=')?;
    let (name, path) = (name.trim(), dataset_folder(path.trim()).ok()?);
    is_dataset_name(name).then(|| (name.to_owned(), path))
}

/// Whether this can be the name of a dataset: up to 64 ASCII letters, digits, `.`, `_` and `-`, the first a letter or a
/// digit.
pub fn is_dataset_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() <= MAX_NAME
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(is_plain)
}

/// Checks the path of a folder that sandboxes may read. It need not exist here: the engine may be on another machine.
///
/// # Errors
/// A predicate, to follow the path, that says why it cannot be used.
pub fn dataset_folder(text: &str) -> Result<PathBuf, &'static str> {
    let path = Path::new(text);
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let is_plain = path.components().all(is_plain) && !text.chars().any(char::is_control);
    if !path.is_absolute() || !is_plain {
        return Err("is no absolute path without .. in it");
    }
    // They separate or quote the options of a mount.
    if text.contains([',', ':', '\\', '"']) {
        return Err("has a comma, a colon, a backslash or a quotation mark");
    }
    // Without a slash at the end, and without two in a row.
    let path: PathBuf = path.components().collect();
    match dataset_danger(&path) {
        Some(why) => Err(why),
        None => Ok(path),
    }
}

/// Why sandboxes must not read a folder, whatever is in it: a predicate, to follow the path.
pub fn dataset_danger(path: &Path) -> Option<&'static str> {
    if SYSTEM.iter().any(|folder| path.starts_with(folder)) {
        return Some("is a folder of the system, and its files are no data");
    }
    let is_too_wide = TOO_WIDE.iter().any(|folder| path == Path::new(folder));
    is_too_wide.then_some("has far more than data, such as sockets and keys; name a folder in it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_plain_and_no_folder_of_the_system() {
        let folder = |text: &str| dataset_folder(text).map(|path| path.display().to_string());
        assert_eq!(folder("/srv//exports/"), Ok("/srv/exports".into()));
        assert_eq!(folder("/processes"), Ok("/processes".into()));
        for bad in [
            "",
            "exports",
            "./a",
            "/a/../b",
            "/",
            "//",
            "/proc",
            "/proc/self",
            "/sys/x",
            "/dev/shm",
            "/run",
            "/a:/b",
            "/a,b",
            "/var/run/",
            "/a\nb",
        ] {
            assert!(folder(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_is_one_part_of_a_path_and_plain() {
        for good in ["a", "sales", "Sales-2026.v1_x", &"x".repeat(64)] {
            assert!(is_dataset_name(good), "{good:?}");
        }
        for bad in ["", ".", "..", ".git", "-a", "a/b", "a b", "é", "a\n", &"x".repeat(65)] {
            assert!(!is_dataset_name(bad), "{bad:?}");
        }
    }
}
