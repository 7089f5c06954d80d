//! Between a process and the nodes of a store: passes everything, or cuts connections after a request has passed and before
//! its answer.
//!
//! The driver takes the port of the node that it talks to for the port of all others. So a proxy that listens on the same
//! addresses as the nodes, at another port, has all of its connections.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::{JoinHandle, JoinSet},
};

/// Answers that pass on a connection before one is dropped: enough for the driver to be let in.
const ANSWERS_BETWEEN: usize = 15;

/// Proxies in front of all nodes. They end when dropped.
#[derive(Debug)]
pub struct CqlProxy {
    servers: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    dropping: AtomicBool,
    dropped: AtomicUsize,
}

// === impl CqlProxy ===

impl CqlProxy {
    /// In front of `nodes`, at `port` of the same addresses.
    ///
    /// # Panics
    /// When a port can not be had.
    pub async fn start(nodes: &[SocketAddr], port: u16) -> Self {
        let shared = Arc::<Shared>::default();
        let mut servers = Vec::new();
        for node in nodes {
            let address = SocketAddr::new(node.ip(), port);
            let listener = TcpListener::bind(address).await;
            let listener = listener.unwrap_or_else(|error| panic!("{address}: {error}"));
            servers.push(tokio::spawn(serve(listener, *node, Arc::clone(&shared))));
        }
        Self { servers, shared }
    }

    /// From now on, each connection is cut before one of its next answers.
    pub fn drop_answers(&self, dropping: bool) {
        self.shared.dropping.store(dropping, Ordering::SeqCst);
    }

    /// How many connections were cut so.
    pub fn dropped(&self) -> usize {
        self.shared.dropped.load(Ordering::SeqCst)
    }
}

impl Drop for CqlProxy {
    fn drop(&mut self) {
        for server in &self.servers {
            server.abort();
        }
    }
}

/// Connections end with this future.
async fn serve(listener: TcpListener, node: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        // An error is the client's, or passes.
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        // A node that is away, and a cut, end in the same way: the client sees its connection closed.
        connections.spawn(async move { drop(connect(client, node, &shared).await) });
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(client: TcpStream, node: SocketAddr, shared: &Shared) -> io::Result<()> {
    let (mut from_node, mut to_node) = TcpStream::connect(node).await?.into_split();
    let (mut from_client, mut to_client) = client.into_split();
    tokio::select! {
        ended = copy(&mut from_client, &mut to_node) => ended.map(drop),
        ended = answers(&mut from_node, &mut to_client, shared) => ended,
    }
}

/// Passes answers on, as they come, until one is to be dropped.
async fn answers(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    shared: &Shared,
) -> io::Result<()> {
    let mut bytes = vec![0; 16 << 10];
    let mut count = 0_usize;
    loop {
        let length = from.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        count += 1;
        if count > ANSWERS_BETWEEN && shared.dropping.load(Ordering::SeqCst) {
            shared.dropped.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        to.write_all(bytes.get(..length).unwrap_or_default())
            .await?;
    }
}
