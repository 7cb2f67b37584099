use std::sync::{Arc, Mutex};

use super::*;
use signalbox_daemon::RootToken;
use signalbox_route_table::Hostname;
use signalbox_testkit::{Servers, eventually};

const ROOT: &str = "0123456789abcdef";

fn tokens(servers: &Servers) -> Tokens {
    Tokens::new(RootToken::new(ROOT).unwrap(), servers.fabric(), servers.stats())
}

#[tokio::test]
async fn a_token_is_known_until_it_is_revoked_everywhere() {
    let servers = Servers::start().await;
    let (one, other) = (tokens(&servers), tokens(&servers));
    let hosts = vec![HostPattern::new(Hostname::parse("*.a.example").unwrap())];
    let made =
        one.create("deployer".to_owned(), vec![Scope::Routes], Some(hosts), None).await.unwrap().unwrap();
    let caller = other.authenticate(&made.token).await.unwrap().unwrap();
    assert_eq!(caller.name, "deployer");
    assert!(caller.has_any(&[Scope::Routes]) && !caller.has_any(&[Scope::Read]) && !caller.has_any(&[]));
    assert!(caller.may_touch(&Hostname::parse("x.a.example").unwrap()) && !caller.is_unconfined());
    // A name is unique; the stored digest does not grant access.
    assert!(other.create("deployer".to_owned(), vec![Scope::Read], None, None).await.unwrap().is_none());
    let stored: Vec<String> = servers.fabric().command("HKEYS").arg("tokens").query().await.unwrap();
    assert_eq!(stored.len(), 1);
    assert!(!made.token.contains(&stored[0]) && other.authenticate(&stored[0]).await.unwrap().is_none());
    one.delete("deployer").await.unwrap();
    one.delete("deployer").await.unwrap();
    assert!(other.authenticate(&made.token).await.unwrap().is_none());
    assert!(other.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn root_is_root_without_the_fabric() {
    let mut servers = Servers::start().await;
    let tokens = tokens(&servers);
    servers.fabric.kill();
    assert_eq!(tokens.authenticate(ROOT).await.unwrap(), Some(Caller::root()));
    assert!(tokens.authenticate("0123456789abcdeF").await.is_err());
}

#[tokio::test]
async fn the_copy_for_the_sidecars_follows() {
    let mut servers = Servers::start().await;
    let tokens = tokens(&servers);
    let digests = async |servers: &Servers| -> Vec<String> {
        servers.stats().command("HKEYS").arg("tokens").query().await.unwrap_or_default()
    };
    tokens.create("a".to_owned(), vec![Scope::Read], None, None).await.unwrap();
    assert_eq!(digests(&servers).await.len(), 1);
    servers.stats.kill();
    tokens.create("b".to_owned(), vec![Scope::Read], None, None).await.unwrap();
    tokens.delete("a").await.unwrap();
    servers.stats.start();
    servers.answer().await;
    let () = servers.stats().command("HSET").arg("tokens").arg("stranger").arg("{}").query().await.unwrap();
    eventually("the copy is right", async || {
        tokens.reconcile().await.map_err(|error| error.to_string())?;
        let found = digests(&servers).await;
        if found.len() == 1 && found[0] != "stranger" { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test]
async fn the_copy_holds_the_tokens_of_the_bus() {
    let servers = Servers::start().await;
    let known: Arc<Mutex<Option<Vec<ExternalToken>>>> = Arc::default();
    let asked = Arc::clone(&known);
    let tokens = tokens(&servers).with_external(ExternalTokens::new(move || asked.lock().unwrap().clone()));
    let names = async || -> Vec<String> {
        let copy: Vec<String> = servers.stats().command("HVALS").arg("tokens").query().await.unwrap();
        let name = |record: String| {
            let record: serde_json::Value = serde_json::from_str(&record).unwrap();
            format!("{} {}", record["name"].as_str().unwrap(), record["scopes"])
        };
        let mut names: Vec<String> = copy.into_iter().map(name).collect();
        names.sort();
        names
    };
    let external = |token: &str, scope| ExternalToken {
        token: token.to_owned(),
        name: token.to_uppercase(),
        scopes: vec![scope],
    };
    tokens.create("own".to_owned(), vec![Scope::Read], None, None).await.unwrap();
    tokens.sync(&external("a", Scope::Read)).await.unwrap();
    assert_eq!(names().await, [r#"A ["read"]"#, r#"own ["read"]"#]);
    // A bus whose registry is not known yet removes no token's entry.
    tokens.reconcile().await.unwrap();
    assert_eq!(names().await.len(), 2);
    *known.lock().unwrap() = Some(vec![external("b", Scope::Publish), external("c", Scope::Read)]);
    tokens.reconcile().await.unwrap();
    assert_eq!(names().await, [r#"B ["publish"]"#, r#"C ["read"]"#, r#"own ["read"]"#]);
    tokens.revoke("c").await;
    assert_eq!(names().await, [r#"B ["publish"]"#, r#"own ["read"]"#]);
    // Presented to the pacemaker they are the bus' to judge, and no token is stored as it is.
    assert!(tokens.authenticate("b").await.unwrap().is_none());
    let digests: Vec<String> = servers.stats().command("HKEYS").arg("tokens").query().await.unwrap();
    assert!(digests.iter().all(|digest| digest.len() == 64), "{digests:?}");
}
