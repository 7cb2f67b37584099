use super::*;
use signalbox_testkit::Servers;

const LONG: Duration = Duration::from_secs(3600);

async fn listed(servers: &Servers, known: Duration) -> Vec<(String, String)> {
    let seen = store::all(&servers.fabric(), known).await.unwrap();
    seen.into_iter().map(|one| (one.node, one.version)).collect()
}

fn pair(node: &str, version: &str) -> (String, String) {
    (node.to_owned(), version.to_owned())
}

#[tokio::test]
async fn running_pacemakers_are_listed_with_their_version() {
    let servers = Servers::start().await;
    let fabric = servers.fabric();
    store::beat(&fabric, "b/1", "1.0 rc", LONG).await.unwrap();
    store::beat(&fabric, "a/2", "2.0", LONG).await.unwrap();
    // A repeated heartbeat adds nothing. Two processes of one node are listed separately.
    store::beat(&fabric, "a/2", "2.0", LONG).await.unwrap();
    store::beat(&fabric, "a/3", "2.1", LONG).await.unwrap();
    let mut all = listed(&servers, LONG).await;
    all.sort();
    assert_eq!(all, [pair("a", "2.0"), pair("a", "2.1"), pair("b", "1.0 rc")]);
    store::leave(&fabric, "a/2").await.unwrap();
    assert_eq!(listed(&servers, LONG).await, [pair("a", "2.1"), pair("b", "1.0 rc")]);
}

#[tokio::test]
async fn silent_pacemakers_are_removed() {
    let servers = Servers::start().await;
    let fabric = servers.fabric();
    let key = signalbox_store::keys::fabric::pacemakers();
    fabric.command("HSET").key(&key).arg("old/1").arg("1000 0.9").run().await.unwrap();
    fabric.command("HSET").key(&key).arg("strange").arg("?").run().await.unwrap();
    assert_eq!(listed(&servers, LONG).await, []);
    store::beat(&fabric, "new/1", "1.0", LONG).await.unwrap();
    let left: Vec<String> = fabric.command("HKEYS").key(&key).query().await.unwrap();
    assert_eq!(left, ["new/1"]);
}

#[tokio::test]
async fn it_reports_its_presence_until_it_ends() {
    let servers = Servers::start().await;
    let (presence, shutdown) = (Presence::new(servers.fabric(), "p/1".to_owned()), CancellationToken::new());
    let running = tokio::spawn(presence.clone().run(shutdown.clone()));
    let deadline = time::Instant::now() + signalbox_testkit::PATIENCE;
    while presence.all().await.unwrap().is_empty() {
        assert!(time::Instant::now() < deadline, "it never reported its presence");
        time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(presence.all().await.unwrap()[0].version, env!("CARGO_PKG_VERSION"));
    shutdown.cancel();
    running.await.unwrap();
    assert_eq!(presence.all().await.unwrap(), []);
}
