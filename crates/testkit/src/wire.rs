//! A TCP proxy with faults.

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

/// How the wire treats bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// They pass.
    None,
    /// Each piece is delayed by this long.
    Delay(Duration),
    /// The client's bytes arrive one by one, so that the server reads incomplete requests.
    Trickle,
    /// No byte arrives, and no connection is closed, as when a machine is lost.
    Silence,
    /// The server's bytes are dropped, the client's arrive: every write has an unknown outcome. A connection that has
    /// lost bytes is closed when the fault ends, because no network loses bytes in the middle of a stream.
    LoseReplies,
    /// The server's side of each connection is closed, the client's side stays open.
    HalfClose,
    /// Connections are reset, new ones are closed immediately.
    Cut,
}

/// A listener that forwards all bytes to one server, except as its fault demands.
#[derive(Debug)]
pub struct Wire {
    /// Where clients connect.
    pub address: SocketAddr,
    fault: Arc<watch::Sender<Fault>>,
    task: AbortHandle,
}

impl Wire {
    /// Starts a proxy to `server`, without a fault.
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

    /// Sets the fault, for open and for new connections.
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
        // Dropping both halves in the middle of a stream resets the connection.
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
            // A connection on which no bytes arrive has to end as well.
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
                    // Let the server read what has arrived.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventually;

    /// A server that returns every byte, and counts the bytes that it received.
    async fn echo(received: watch::Sender<usize>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let received = received.clone();
                tokio::spawn(async move {
                    let mut piece = [0; 64];
                    while let Ok(count @ 1..) = client.read(&mut piece).await {
                        received.send_modify(|sum| *sum += count);
                        if client.write_all(&piece[..count]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    async fn exchange(connection: &mut TcpStream) -> Vec<u8> {
        connection.write_all(b"hello").await.expect("an open connection");
        let mut answer = vec![0; 5];
        connection.read_exact(&mut answer).await.expect("an answer");
        answer
    }

    #[tokio::test]
    async fn bytes_pass_also_when_they_are_late_and_single() {
        let wire = Wire::to(echo(watch::channel(0).0).await).await;
        let mut connection = TcpStream::connect(wire.address).await.expect("a listener");
        for fault in [Fault::None, Fault::Trickle, Fault::Delay(Duration::from_millis(1))] {
            wire.set(fault);
            assert_eq!(exchange(&mut connection).await, b"hello");
        }
    }

    #[tokio::test]
    async fn a_lost_reply_belongs_to_a_request_that_arrived() {
        let (sender, received) = watch::channel(0);
        let wire = Wire::to(echo(sender).await).await;
        let mut connection = TcpStream::connect(wire.address).await.expect("a listener");
        assert_eq!(exchange(&mut connection).await, b"hello");
        wire.set(Fault::LoseReplies);
        connection.write_all(b"lost!").await.expect("an open connection");
        eventually("the request to arrive", async || crate::equal(*received.borrow(), 10)).await;
        wire.set(Fault::Cut);
        assert!(connection.read_exact(&mut [0]).await.is_err());
        wire.set(Fault::None);
        let mut connection = TcpStream::connect(wire.address).await.expect("a listener");
        assert_eq!(exchange(&mut connection).await, b"hello");
        wire.set(Fault::HalfClose);
        assert_eq!(connection.read(&mut [0]).await.expect("an orderly end"), 0);
    }
}
