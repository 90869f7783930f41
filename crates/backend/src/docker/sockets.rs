//! The choice of the engine: the one that a variable or Docker's context names, or else the first that answers at a
//! usual place.

use std::{
    env,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{API_DEFAULT_VERSION, Docker, errors::Error};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::facts::{self, EngineFacts};

/// Longest wait for the first byte of an answer, in seconds. Engines can be slow, but no call of this program takes
/// that long.
const TIMEOUT_S: u64 = 60;

/// Longest that an engine may take to answer if there may be another one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How an engine's address begins if it is a socket of this machine.
const UNIX: &str = "unix://";

/// An engine that answers.
#[derive(Debug)]
pub(super) struct Found {
    /// Its address.
    pub host: String,
    pub engine: Docker,
    pub facts: EngineFacts,
}

/// The addresses at which an engine may be, in the order in which they are tried. The address that `DOCKER_HOST` or
/// Docker's current context names is the only one. This is the order of `find_engine` in `prepare-host.sh`.
pub(super) fn places() -> Vec<String> {
    let named = variable("DOCKER_HOST").or_else(context_host);
    named.map_or_else(|| usual(&variable, rustix::process::getuid().as_raw()), |host| vec![host])
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The addresses of the system's Docker, the user's, Docker Desktop's, and then of Podman: the one that
/// `CONTAINER_HOST` names, the user's, and the system's.
fn usual(variable: &dyn Fn(&str) -> Option<String>, uid: u32) -> Vec<String> {
    let of_user = variable("XDG_RUNTIME_DIR").unwrap_or_else(|| format!("/run/user/{uid}"));
    let home = variable("HOME").unwrap_or_else(|| "/root".into());
    let is_usable = |host: &String| [UNIX, "tcp://"].iter().any(|it| host.starts_with(it));
    [
        Some(format!("{UNIX}/var/run/docker.sock")),
        Some(format!("{UNIX}{of_user}/docker.sock")),
        Some(format!("{UNIX}{home}/.docker/run/docker.sock")),
        variable("CONTAINER_HOST").filter(is_usable),
        Some(format!("{UNIX}{of_user}/podman/podman.sock")),
        Some(format!("{UNIX}/run/podman/podman.sock")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Connects to the first of these places at which an engine answers. If none does, the error is that of the first at
/// which there is one.
pub(super) async fn connect(places: Vec<String>) -> Result<Found, Error> {
    let is_only = places.len() == 1;
    let is_there = |host: &&String| match host.strip_prefix(UNIX) {
        Some(socket) if is_only => Path::new(socket).exists(),
        Some(socket) => is_trusted(Path::new(socket)),
        None => true,
    };
    let mut there: Vec<_> = places.iter().filter(is_there).cloned().collect();
    if there.is_empty() {
        there.extend(places.into_iter().next());
    }
    let mut first = None;
    for host in there {
        let asked = async {
            let engine = open(&host)?;
            let facts = facts::read(&engine).await?;
            Ok(Found { host: host.clone(), engine, facts })
        };
        let most = if is_only { Duration::from_secs(TIMEOUT_S) } else { ANSWER_TIMEOUT };
        let found = tokio::time::timeout(most, asked).await;
        match found.unwrap_or(Err(Error::RequestTimeoutError)) {
            Ok(found) => return Ok(found),
            Err(error) => {
                tracing::debug!(host, %error, "no engine answers");
                first.get_or_insert(error);
            }
        }
    }
    Err(first.unwrap_or(Error::SocketNotFoundError("none".into())))
}

/// Whether a socket exists that only root or this user can have put there: an engine gets all code and all files.
fn is_trusted(socket: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::metadata(socket).is_ok_and(|found| [0, own].contains(&found.uid()))
}

/// Whether the engine at this address sees the same files as this server.
pub(super) fn is_local(host: &str) -> bool {
    host.starts_with(UNIX)
}

fn open(host: &str) -> Result<Docker, Error> {
    if host.starts_with(UNIX) {
        Docker::connect_with_unix(host, TIMEOUT_S, API_DEFAULT_VERSION)
    } else {
        Docker::connect_with_host(host)
    }
}

/// The endpoint of the context from `DOCKER_CONTEXT` or `docker context use`.
fn context_host() -> Option<String> {
    let folder = variable("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".docker")))?;
    let read = |path: PathBuf| -> Option<Value> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    };
    let name = variable("DOCKER_CONTEXT").or_else(|| {
        Some(read(folder.join("config.json"))?["currentContext"].as_str()?.to_owned())
    })?;
    if name == "default" {
        return None;
    }
    // The folder's name is the hash of the context's name.
    let hash = hex::encode(Sha256::digest(&name));
    let meta = read(folder.join("contexts/meta").join(hash).join("meta.json"))?;
    Some(meta["Endpoints"]["docker"]["Host"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use sandbox_container::Product;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixListener,
    };

    use super::*;

    /// Answers `/info` and `/version` as recorded, until the test ends.
    fn engine(socket: &Path, product: Product) {
        let listener = UnixListener::bind(socket).expect("bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut head, mut byte) = (vec![], [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
                    head.push(byte[0]);
                }
                let is_info = head.starts_with(b"GET /info ");
                let body = match (product, is_info) {
                    (Product::Docker, true) => include_str!("recorded/docker-info.json"),
                    (Product::Docker, false) => include_str!("recorded/docker-version.json"),
                    (Product::Podman, true) => include_str!("recorded/podman-info.json"),
                    (Product::Podman, false) => include_str!("recorded/podman-version.json"),
                };
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
                let answer = format!("{head} {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
    }

    fn host(folder: &Path, name: &str) -> String {
        format!("{UNIX}{}", folder.join(name).display())
    }

    #[test]
    fn dockers_places_come_before_podmans() {
        let variable = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some("/run/user/7".to_owned()),
            "HOME" => Some("/home/ann".to_owned()),
            "CONTAINER_HOST" => Some("unix:///tmp/podman.sock".to_owned()),
            _ => None,
        };
        let expected = [
            "unix:///var/run/docker.sock",
            "unix:///run/user/7/docker.sock",
            "unix:///home/ann/.docker/run/docker.sock",
            "unix:///tmp/podman.sock",
            "unix:///run/user/7/podman/podman.sock",
            "unix:///run/podman/podman.sock",
        ];
        assert_eq!(usual(&variable, 7), expected);
        // Without variables, and for a remote connection that only Podman's own client can open.
        let variable = |name: &str| (name == "CONTAINER_HOST").then(|| "ssh://host".to_owned());
        let places = usual(&variable, 7);
        assert_eq!(places.len(), 5);
        assert_eq!(places[1], "unix:///run/user/7/docker.sock");
    }

    #[tokio::test]
    async fn the_first_engine_that_answers_is_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| host(folder.path(), name);
        // Nothing listens on this socket any more.
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("dead")).expect("bound"));
        engine(&folder.path().join("podman"), Product::Podman);
        engine(&folder.path().join("docker"), Product::Docker);
        let places = vec![at("missing"), at("dead"), at("podman"), at("docker")];
        let found = connect(places).await.expect("one answers");
        assert_eq!((found.host, found.facts.host.product), (at("podman"), Product::Podman));
        let found = connect(vec![at("docker"), at("podman")]).await.expect("both answer");
        assert_eq!(found.facts.host.product, Product::Docker);
    }

    #[tokio::test]
    async fn an_engine_that_is_there_and_does_not_answer_is_the_one_that_is_told_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| host(folder.path(), name);
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("dead")).expect("bound"));
        let error = connect(vec![at("missing"), at("dead")]).await.expect_err("none answers");
        assert!(!matches!(error, Error::SocketNotFoundError(_)), "{error}");
        let error = connect(vec![at("missing"), at("other")]).await.expect_err("none is there");
        assert!(error.to_string().contains("missing"), "{error}");
    }
}
