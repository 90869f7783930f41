//! The part that a package index and a registry share: projects that are listed, files, and the requests for both.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::Path,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio_util::task::AbortOnDropHandle;

/// The lists of projects and the files. The server ends when it is dropped.
#[derive(Debug)]
pub struct Shelf<L> {
    /// `http://`, host, port and a slash.
    pub base: String,
    pub host: String,
    state: Arc<Mutex<State<L>>>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct State<L> {
    /// The list of each project; `None` if the server never answers.
    listed: BTreeMap<String, Option<L>>,
    files: BTreeMap<String, Vec<u8>>,
    asked: Vec<String>,
}

impl<L: Clone + Default + Send + 'static> Shelf<L> {
    /// Starts a server on an address of this machine. It shows a list at the route of its project, a file at
    /// `/files/{name}`.
    pub async fn start(host: &str, route: &str, show: fn(L) -> Response) -> Self {
        let listener = tokio::net::TcpListener::bind((host, 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let state = State { listed: BTreeMap::new(), files: BTreeMap::new(), asked: vec![] };
        let state = Arc::new(Mutex::new(state));
        let (lists, files) = (state.clone(), state.clone());
        let list = move |Path(project): Path<String>| {
            let listed = {
                let mut state = lists.lock().unwrap();
                state.asked.push(project.clone());
                state.listed.get(&project).cloned()
            };
            async move {
                match listed {
                    None => StatusCode::NOT_FOUND.into_response(),
                    Some(None) => std::future::pending().await,
                    Some(Some(list)) => show(list),
                }
            }
        };
        let file = move |Path(name): Path<String>| {
            let mut state = files.lock().unwrap();
            state.asked.push(name.clone());
            std::future::ready(state.files.get(&name).cloned().ok_or(StatusCode::NOT_FOUND))
        };
        let routes = Router::new().route(route, get(list)).route("/files/{name}", get(file));
        let serving =
            tokio::spawn(async move { axum::serve(listener, routes).await.expect("serves") });
        Self {
            base: format!("http://{host}:{port}/"),
            host: host.to_owned(),
            state,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Adds a file, and changes the list of its project.
    pub fn add(&self, project: &str, file: String, bytes: Vec<u8>, change: impl FnOnce(&mut L)) {
        let mut state = self.state.lock().unwrap();
        state.files.insert(file, bytes);
        let listed = state.listed.entry(project.to_owned()).or_insert_with(|| Some(L::default()));
        change(listed.as_mut().expect("it is listed"));
    }

    /// Makes the server never answer requests for this project.
    pub fn hang(&self, project: &str) {
        self.state.lock().unwrap().listed.insert(project.to_owned(), None);
    }

    /// The projects and files that were requested, in order.
    pub fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }
}
