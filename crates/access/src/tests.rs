use std::time::{Duration, SystemTime};

use super::*;
use signalbox_api::Time;
use signalbox_daemon::RootToken;
use signalbox_route_table::Hostname;
use signalbox_testkit::{Servers, eventually};

const ROOT: &str = "0123456789abcdef0123456789abcdef";

/// The time of all tests, unless they move it.
const NOW_MS: u64 = 1_800_000_000_000;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(NOW_MS)
}

fn tokens(servers: &Servers) -> Tokens {
    tokens_at(servers, now)
}

fn tokens_at(servers: &Servers, now: fn() -> SystemTime) -> Tokens {
    Tokens::new(&RootToken::new(ROOT).unwrap(), servers.fabric(), servers.stats(), now)
}

/// Creates a token, and returns its secret.
async fn create(tokens: &Tokens, name: &str, grant: Grant, expires_ms: Option<u64>) -> Option<String> {
    tokens.create(name.to_owned(), grant, expires_ms).await.unwrap().map(|made| made.token.unwrap())
}

fn scope(scope: Scope) -> Grant {
    Grant { scopes: vec![scope], ..Grant::default() }
}

/// The new secret, and the ends of the others.
fn done(rotated: Rotated) -> (String, Vec<u64>) {
    match rotated {
        Rotated::Done(made) => (made.token.unwrap(), made.replaced_until.into_iter().map(Time::ms).collect()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_is_known_until_it_is_revoked_everywhere() {
    let servers = Servers::start().await;
    let (one, other) = (tokens(&servers), tokens(&servers));
    let hosts = vec![HostPattern::new(Hostname::parse("*.a.example").unwrap())];
    let grant = Grant { hosts: Some(hosts), ..scope(Scope::Routes) };
    let made = create(&one, "deployer", grant, None).await.unwrap();
    let caller = other.authenticate(&made).await.unwrap().unwrap();
    assert_eq!(caller.name, "deployer");
    assert!(caller.has_any(&[Scope::Routes]) && !caller.has_any(&[Scope::Read]) && !caller.has_any(&[]));
    assert!(caller.may_touch(&Hostname::parse("x.a.example").unwrap()) && !caller.is_unconfined());
    // A name is taken once; what is stored does not let anyone in.
    assert!(create(&other, "deployer", scope(Scope::Read), None).await.is_none());
    let stored: Vec<String> = servers.fabric().command("HKEYS").arg("tokens").query().await.unwrap();
    assert_eq!(stored.len(), 1);
    assert!(!made.contains(&stored[0]) && other.authenticate(&stored[0]).await.unwrap().is_none());
    one.delete("deployer").await.unwrap();
    one.delete("deployer").await.unwrap();
    assert!(one.authenticate(&made).await.unwrap().is_none());
    // Another process has looked it up a moment ago, and forgets it within a second.
    let later = tokens_at(&servers, || now() + Duration::from_secs(1));
    assert!(later.authenticate(&made).await.unwrap().is_none());
    assert!(other.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn root_is_root_without_the_fabric() {
    let mut servers = Servers::start().await;
    let tokens = tokens(&servers);
    servers.fabric.kill();
    assert_eq!(tokens.authenticate(ROOT).await.unwrap(), Some(Caller::root()));
    assert!(tokens.authenticate("0123456789abcdef0123456789abcdeF").await.is_err());
}

#[tokio::test]
async fn the_copy_for_the_sidecars_follows() {
    let mut servers = Servers::start().await;
    let tokens = tokens(&servers);
    let digests = async |servers: &Servers| -> Vec<String> {
        servers.stats().command("HKEYS").arg("tokens").query().await.unwrap_or_default()
    };
    create(&tokens, "a", scope(Scope::Read), None).await;
    assert_eq!(digests(&servers).await.len(), 1);
    servers.stats.kill();
    create(&tokens, "b", scope(Scope::Read), None).await;
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
async fn a_rotated_token_has_two_secrets_for_a_while() {
    let servers = Servers::start().await;
    let tokens = tokens(&servers);
    let first = create(&tokens, "ci", scope(Scope::Publish), None).await.unwrap();
    assert!(tokens.authenticate(&first).await.unwrap().is_some());
    let hour = Duration::from_secs(3600);
    let (second, ends) = done(tokens.rotate("ci", hour, None).await.unwrap());
    assert_eq!(ends, [NOW_MS + 3_600_000]);
    for token in [&first, &second] {
        let caller = tokens.authenticate(token).await.unwrap().unwrap();
        assert_eq!((caller.name.as_str(), &*caller.bus_client()), ("ci", "@ci"), "topics belong to the name");
    }
    let late = tokens_at(&servers, || now() + Duration::from_secs(3600));
    assert!(late.authenticate(&first).await.unwrap().is_none(), "the overlap has ended");
    assert!(late.authenticate(&second).await.unwrap().is_some());
    assert_eq!(tokens.list().await.unwrap().len(), 1, "it is one token");
    assert_eq!(late.list().await.unwrap()[0].replaced_until, []);
    // Without an overlap, the others end immediately, wherever they are cached.
    let (third, _) = done(tokens.rotate("ci", Duration::ZERO, None).await.unwrap());
    for token in [&first, &second] {
        assert!(tokens.authenticate(token).await.unwrap().is_none());
    }
    assert!(tokens.authenticate(&third).await.unwrap().is_some());
    assert!(matches!(tokens.rotate("nobody", hour, None).await.unwrap(), Rotated::Unknown));
    for _ in 1..MAX_SECRETS {
        done(tokens.rotate("ci", hour, None).await.unwrap());
    }
    assert!(matches!(tokens.rotate("ci", hour, None).await.unwrap(), Rotated::TooMany));
    // All secrets end with the token, and the sidecars forget them.
    tokens.delete("ci").await.unwrap();
    assert!(tokens.authenticate(&third).await.unwrap().is_none());
    let stored: u64 = servers.fabric().command("HLEN").arg("tokens").query().await.unwrap();
    assert_eq!(stored, 0);
    let copied: u64 = servers.stats().command("HLEN").arg("tokens").query().await.unwrap();
    assert_eq!(copied, 0);
}

#[tokio::test]
async fn an_expired_token_is_unknown_everywhere() {
    let servers = Servers::start().await;
    let tokens = tokens(&servers);
    let expires_ms = Some(NOW_MS + 1_000);
    let made = create(&tokens, "guest", scope(Scope::Read), expires_ms).await.unwrap();
    assert!(tokens.authenticate(&made).await.unwrap().is_some());
    tokens.reconcile().await.unwrap();
    let copied = async || servers.stats().command("HLEN").arg("tokens").query::<u64>().await.unwrap();
    assert_eq!(copied().await, 1);
    let late = tokens_at(&servers, || now() + Duration::from_secs(1));
    assert!(late.authenticate(&made).await.unwrap().is_none());
    assert!(late.of_name("guest").await.unwrap().is_none());
    late.reconcile().await.unwrap();
    assert_eq!(copied().await, 0, "the sidecars do not accept it");
    assert_eq!(
        late.list().await.unwrap()[0].expires_at.map(Time::ms),
        expires_ms,
        "it is listed until it is revoked"
    );
    assert!(matches!(late.rotate("guest", Duration::ZERO, None).await.unwrap(), Rotated::Expired));
    let (renewed, _) = done(late.rotate("guest", Duration::ZERO, Some(NOW_MS + 60_000)).await.unwrap());
    assert!(late.authenticate(&renewed).await.unwrap().is_some());
}

#[tokio::test]
async fn the_last_use_is_written_later_and_not_by_requests() {
    let servers = Servers::start().await;
    let tokens = tokens(&servers);
    let made = create(&tokens, "ci", scope(Scope::Publish), None).await.unwrap();
    tokens.authenticate(&made).await.unwrap();
    tokens.authenticate(ROOT).await.unwrap();
    assert_eq!(tokens.list().await.unwrap()[0].last_used_at, None);
    tokens.write_uses().await.unwrap();
    assert_eq!(tokens.list().await.unwrap()[0].last_used_at, Some(Time::from_ms(NOW_MS)));
    assert_eq!(tokens.last_uses().await.unwrap()["root"], NOW_MS);
    tokens.delete("ci").await.unwrap();
    create(&tokens, "ci", scope(Scope::Publish), None).await;
    assert_eq!(tokens.list().await.unwrap()[0].last_used_at, None, "the use of another token");
}

#[tokio::test]
async fn a_session_ends_on_every_pacemaker() {
    let mut servers = Servers::start().await;
    let (one, other) = (Sessions::new(servers.fabric()), Sessions::new(servers.fabric()));
    assert_eq!(one.system().await.unwrap(), other.system().await.unwrap());
    let digest = digest("a-token");
    let secret = one.open(&digest, Duration::from_secs(60)).await.unwrap();
    assert_eq!(other.find(&secret).await.unwrap(), Some(digest.clone()));
    assert_eq!(other.find("a-guess").await.unwrap(), None);
    // Nothing in the fabric opens the session.
    let keys: Vec<String> = servers.fabric().command("KEYS").arg("session:*").query().await.unwrap();
    assert!(keys.len() == 1 && !keys[0].contains(&secret), "{keys:?}");
    one.end(&secret).await.unwrap();
    one.end(&secret).await.unwrap();
    assert_eq!(other.find(&secret).await.unwrap(), None);
    // Without the fabric, only a session that was seen before is open.
    let secret = one.open(&digest, Duration::from_secs(60)).await.unwrap();
    assert_eq!(one.find(&secret).await.unwrap(), Some(digest.clone()));
    servers.fabric.kill();
    assert_eq!(one.find(&secret).await.unwrap(), Some(digest));
    assert!(other.find(&secret).await.is_err());
}

#[tokio::test]
async fn the_audit_log_keeps_changes_when_refusals_flood_it() {
    let servers = Servers::start().await;
    let log = AuditLog::new(servers.fabric(), 1_000);
    log.append("the change", None, false, 0).await.unwrap();
    for number in 0..12_000 {
        log.append(&number.to_string(), None, true, 0).await.unwrap();
    }
    let length: u64 = servers.fabric().command("XLEN").arg("audit:refused").query().await.unwrap();
    assert!(length < 11_000, "{length}");
    let newest = log.page(Direction::Older, None, 2).await.unwrap();
    let texts = |page: &Page| page.records.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&newest), ["11999", "11998"]);
    assert!(newest.more);
    let oldest = log.page(Direction::Newer, None, 1).await.unwrap();
    assert_eq!(texts(&oldest), ["the change"]);
    log.append("another", None, false, 0).await.unwrap();
    let later = log.page(Direction::Newer, Some(newest.newest), 10).await.unwrap();
    assert_eq!(texts(&later), ["another"]);
}

#[tokio::test]
async fn the_audit_log_keeps_changes_of_others_when_one_caller_floods_it() {
    let servers = Servers::start().await;
    let log = AuditLog::new(servers.fabric(), 10_000);
    let flood = "x".repeat(32 << 10);
    log.append("the first", Some("flood"), false, 0).await.unwrap();
    log.append("the change", Some("quiet"), false, 0).await.unwrap();
    for _ in 0..3_000 {
        log.append(&flood, Some("flood"), false, 0).await.unwrap();
    }
    log.append("another", Some("quiet"), false, 0).await.unwrap();
    let oldest = log.page(Direction::Newer, None, 3).await.unwrap();
    let texts: Vec<&str> = oldest.records.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["the first", "the change", &*flood]);
    // Records of the same millisecond are in any order.
    let newest = log.page(Direction::Older, None, 10).await.unwrap();
    assert!(newest.records.iter().any(|(_, text)| text == "another"));
    // Fewer than the records that it may keep, because they are large.
    let kept: u64 = servers.fabric().command("XLEN").arg("audit:frequent").query().await.unwrap();
    assert_eq!(kept, 2_048);
    let bytes: u64 =
        servers.fabric().command("MEMORY").arg("USAGE").arg("audit:frequent").query().await.unwrap();
    assert!(bytes < 96 << 20, "{bytes}");
}
