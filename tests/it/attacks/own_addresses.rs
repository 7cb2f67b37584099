//! Whatever the route table contains, the edge never connects to Signalbox's own listeners and Redis servers.

use std::net::SocketAddr;

use signalbox_stack::Reservation;
use signalbox_tests::system::System;

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_never_proxies_to_signalbox_itself() {
    let mut reserved = Reservation::default();
    let mut local = || SocketAddr::from(([127, 0, 0, 1], reserved.add().unwrap()));
    let (tls, h2c) = (local(), local());
    let system = System::with("attack-own", |builder| {
        let builder = builder.without_pacemaker().without_sidecar();
        builder.nginx("EDGE_TLS_LISTEN", tls.to_string()).nginx("EDGE_H2C_LISTEN", h2c.to_string())
    })
    .await;
    let ports = system.stack.ports();
    let mut own = vec![format!("unix:{}", system.stack.layout().replica_socket(1).display())];
    for port in [ports.edge, tls.port(), h2c.port(), ports.admin, ports.pacemaker, ports.sidecar] {
        for ip in ["127.0.0.1", "127.0.0.7", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"] {
            own.push(format!("{ip}:{port}"));
        }
    }
    // Written directly, as a person with access to the primary could: the pacemaker would reject
    // these registrations.
    for (number, address) in own.iter().enumerate() {
        system.cli::<()>(System::PRIMARY, &format!("SADD instances:own{number}.test {address}")).await;
    }
    system.settle().await;
    for (number, address) in own.iter().enumerate() {
        let response = system.get(&format!("own{number}.test"), "/edge/snapshot").await;
        assert_eq!((response.status, response.reason()), (503, "no_instance"), "{address}: {response:?}");
    }
    system.stop().await;
}
