//! A wire that can be cut: a TCP proxy with faults.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
    time,
};

/// What happens to bytes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// They pass.
    None,
    /// Each piece is held back this long.
    Delay(Duration),
    /// What the client says arrives byte by byte, so that other things happen in the middle of it.
    Trickle,
    /// None arrives any more, and nobody is told: what a lost machine looks like.
    Silence,
    /// What the server answers is dropped, what the client says arrives: every write has an unknown outcome. A
    /// connection that has lost something ends with the fault, for no network loses bytes out of the middle.
    LoseReplies,
    /// The server's side of each connection ends, the client's stays open.
    HalfClose,
    /// Connections are reset, new ones are closed at once.
    Cut,
}

/// A listener that passes everything on to one server, unless told otherwise.
#[derive(Debug)]
pub struct Wire {
    /// Where clients connect.
    pub address: SocketAddr,
    fault: Arc<watch::Sender<Fault>>,
    task: AbortHandle,
}

impl Wire {
    /// Lays a wire to `server`.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (fault, faults) = watch::channel(Fault::None);
        let task = tokio::spawn(accept(listener, server, faults)).abort_handle();
        Self { address, fault: Arc::new(fault), task }
    }

    /// Sets the fault, for connections that stand and those to come.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, faults: watch::Receiver<Fault>) {
    // The set ends with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        if *faults.borrow() != Fault::Cut {
            connections.spawn(join(client, server, faults.clone()));
        }
    }
}

async fn join(client: TcpStream, server: SocketAddr, mut faults: watch::Receiver<Fault>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    // Small pieces stay small.
    let _as_it_is = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let there = carry(client_in, server_out, faults.clone(), Direction::There);
    let back = carry(server_in, client_out, faults.clone(), Direction::Back);
    tokio::select! {
        _ = async { tokio::join!(there, back) } => {}
        // Dropping the halves in mid-stream resets the connection.
        _ = faults.wait_for(|fault| *fault == Fault::Cut) => {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut faults: watch::Receiver<Fault>,
    direction: Direction,
) {
    let mut piece = vec![0; 16 * 1024];
    let mut lost = false;
    loop {
        let read = tokio::select! {
            read = from.read(&mut piece) => read,
            // Both have to happen on a connection that is silent as well.
            _ = faults.wait_for(|fault| match fault {
                Fault::HalfClose => direction == Direction::Back,
                fault => lost && *fault != Fault::LoseReplies,
            }) => return,
        };
        let Ok(count @ 1..) = read else { return };
        let fault = *faults.borrow_and_update();
        match fault {
            Fault::Silence if faults.wait_for(|fault| *fault != Fault::Silence).await.is_err() => return,
            Fault::LoseReplies if direction == Direction::Back => {
                lost = true;
                continue;
            }
            Fault::Delay(by) => time::sleep(by).await,
            Fault::Trickle if direction == Direction::There => {
                for byte in &piece[..count] {
                    if to.write_all(std::slice::from_ref(byte)).await.is_err() {
                        return;
                    }
                    // Not for the time that passes, but for the turn: the server reads what is there.
                    tokio::task::yield_now().await;
                }
                continue;
            }
            _ => {}
        }
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}
