//! Programs of attackers: instances that do not speak HTTP as they should, and listeners that hide another address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// A listener that ignores what it receives.
pub(super) struct Raw {
    pub(super) address: SocketAddr,
    connections: Arc<AtomicU64>,
    task: AbortHandle,
}

/// The behavior of a listener on a connection.
enum Behavior {
    /// Writes these bytes whenever it has read something, until the other side closes the connection.
    Says(Vec<u8>),
    /// Writes these bytes when it has read something, and closes the connection.
    Closes(Vec<u8>),
    /// Connects to another address and passes all bytes on.
    Forwards(SocketAddr),
}

impl Raw {
    /// An instance that answers small requests with `bytes` and leaves the connection open.
    pub(super) async fn saying(bytes: impl Into<Vec<u8>>) -> Self {
        Self::start(Behavior::Says(bytes.into())).await
    }

    /// An instance that answers a small request with `bytes` and closes the connection.
    pub(super) async fn closing(bytes: impl Into<Vec<u8>>) -> Self {
        Self::start(Behavior::Closes(bytes.into())).await
    }

    /// Another address for `to`.
    pub(super) async fn forwarding(to: SocketAddr) -> Self {
        Self::start(Behavior::Forwards(to)).await
    }

    async fn start(behavior: Behavior) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU64::new(0));
        let (counted, behavior) = (Arc::clone(&connections), Arc::new(behavior));
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                counted.fetch_add(1, Ordering::SeqCst);
                open.spawn(serve(stream, Arc::clone(&behavior)));
            }
        });
        Self { address, connections, task: task.abort_handle() }
    }

    /// How many connections were accepted.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, behavior: Arc<Behavior>) {
    match &*behavior {
        Behavior::Says(bytes) => {
            let mut piece = [0; 4096];
            while stream.read(&mut piece).await.is_ok_and(|count| count > 0)
                && stream.write_all(bytes).await.is_ok()
            {}
        }
        Behavior::Closes(bytes) => {
            if stream.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {
                let _ = stream.write_all(bytes).await;
            }
        }
        Behavior::Forwards(to) => {
            if let Ok(mut other) = TcpStream::connect(to).await {
                // Either side may end it at any time.
                let _ = copy_bidirectional(&mut stream, &mut other).await;
            }
        }
    }
}
