//! A server that speaks GitHub's API of webhook deliveries as its documentation has it, and says something else on demand.

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, mpsc},
};

/// The one token that it takes.
pub(crate) const TOKEN: &str = "ghp_t0ken";

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
}

/// What the script says to a call.
pub(crate) enum Say {
    /// As GitHub would.
    Usual,
    This(u16, Vec<(&'static str, String)>, String),
    /// Nothing, for ever.
    Nothing,
}

/// Says something to the nth call, from 0.
pub(crate) type Script = dyn Fn(usize, &Call) -> Say + Send + Sync;

/// A server that lists deliveries two a page, the newest first.
pub(crate) struct GitHub {
    pub(crate) url: String,
    shared: Arc<Shared>,
    pub(crate) arrivals: mpsc::Receiver<Call>,
    /// Dropped: nobody answers any more.
    pub(crate) runtime: tokio::runtime::Runtime,
}

struct Shared {
    url: String,
    deliveries: BTreeMap<String, Vec<Value>>,
    script: Box<Script>,
    calls: Mutex<Vec<Call>>,
    arrived: mpsc::Sender<Call>,
}

// === impl GitHub ===

impl GitHub {
    pub(crate) fn start(deliveries: &[(&str, Vec<Value>)], script: Box<Script>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .expect("a port");
        let url = format!("http://{}/api/v3", listener.local_addr().expect("bound"));
        let (arrived, arrivals) = mpsc::channel();
        let deliveries = deliveries
            .iter()
            .map(|(hook, list)| ((*hook).to_owned(), list.clone()));
        let shared = Arc::new(Shared {
            url: url.clone(),
            deliveries: deliveries.collect(),
            script,
            calls: Mutex::default(),
            arrived,
        });
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            url,
            shared,
            arrivals,
            runtime,
        }
    }

    pub(crate) fn usual(deliveries: &[(&str, Vec<Value>)]) -> Self {
        Self::start(deliveries, Box::new(|_, _| Say::Usual))
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().expect("not poisoned").clone()
    }

    /// The ids of the attempts that were asked for again, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        let posts = self
            .calls()
            .into_iter()
            .filter(|call| call.method == "POST");
        posts.map(|call| call.attempt().to_owned()).collect()
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let headers = request.headers().iter();
    let call = Call {
        method: request.method().to_string(),
        target: request.uri().to_string(),
        headers: headers
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or("?").to_owned()))
            .collect(),
    };
    let nth = {
        let mut calls = shared.calls.lock().expect("not poisoned");
        calls.push(call.clone());
        calls.len() - 1
    };
    drop(shared.arrived.send(call.clone()));
    let (status, headers, body) = match (shared.script)(nth, &call) {
        Say::Usual => shared.usual(&call),
        Say::This(status, headers, body) => (status, headers, body),
        Say::Nothing => std::future::pending().await,
    };
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(Body::from(body)).expect("a response")
}

// === impl Shared ===

impl Shared {
    fn usual(&self, call: &Call) -> (u16, Vec<(&'static str, String)>, String) {
        let bearer = format!("Bearer {TOKEN}");
        if call.headers.get("authorization") != Some(&bearer) {
            return (
                401,
                Vec::new(),
                json!({"message": "Bad credentials"}).to_string(),
            );
        }
        if call.method == "POST" {
            return (202, Vec::new(), "{}".to_owned());
        }
        let (path, query) = call.target.split_once('?').expect("a query");
        let hook = path
            .strip_prefix("/api/v3/")
            .and_then(|path| path.strip_suffix("/deliveries"));
        let Some(list) = hook.and_then(|hook| self.deliveries.get(hook)) else {
            return (404, Vec::new(), json!({"message": "Not Found"}).to_string());
        };
        let cursor = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("cursor=v1_"));
        let from: usize = cursor.map_or(0, |cursor| cursor.parse().expect("our cursor"));
        let page: Vec<_> = list.iter().skip(from).take(2).cloned().collect();
        let mut headers = Vec::new();
        if from + 2 < list.len() {
            let (next, url) = (from + 2, &self.url);
            let link = format!(
                "<{url}/x?cursor=v1_0>; rel=\"prev\", <{url}/x?per_page=100&cursor=v1_{next}>; rel=\"next\""
            );
            headers.push(("link", link));
        }
        (200, headers, Value::from(page).to_string())
    }
}

// === impl Call ===

impl Call {
    /// The id in `…/deliveries/<id>/attempts`.
    pub(crate) fn attempt(&self) -> &str {
        let id = self.target.strip_suffix("/attempts");
        id.and_then(|path| path.rsplit('/').next())
            .expect("an attempt")
    }
}
