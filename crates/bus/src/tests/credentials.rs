//! Credentials in the fabric: encrypted with a key, found in clear text, and kept by a process without the key.

use signalbox_egress::Secret;
use signalbox_seal::Keys;
use signalbox_store::{Fabric, FabricRole};
use signalbox_testkit::{Server, eventually};

use super::support::*;
use crate::{Alteration, Credentials, Error, Options, Wanted};

const USER: &str = "user-of-billing";
const SECRET: &str = "whsec_c2VjcmV0LW9mLWJpbGxpbmctdGhhdC1zaWducw==";

fn key(digit: char) -> Keys {
    Keys::parse(&digit.to_string().repeat(64)).unwrap()
}

async fn subscribe(bus: &Pacemaker) {
    bus.handle
        .subscribe("billing", Wanted { uuid: Some(USER.to_owned()), ..wanted(&["orders"]) })
        .await
        .unwrap();
    let secrets = vec![Secret { secret: SECRET.to_owned(), until_ms: None }];
    bus.handle.set_secrets("billing", secrets).await.unwrap();
}

/// Whether any value of the registry contains the credentials.
async fn are_in_clear(redis: &Fabric) -> bool {
    let registry = || strings(redis, "HGETALL", &["bus:registry"]);
    let mut all = registry().await;
    loop {
        let of_subscriber = strings(redis, "HGETALL", &["bus:subscriber:billing"]).await;
        let again = registry().await;
        // Both are written in one step, which may be between two reads.
        if again == all {
            all.extend(of_subscriber);
            break;
        }
        all = again;
    }
    let found = |text: &str| all.iter().any(|value| value.contains(text));
    assert_eq!(found(USER), found(SECRET), "{all:?}");
    found(USER)
}

fn known(bus: &Pacemaker) -> (String, Vec<String>) {
    let registry = bus.handle.registry();
    let one = &registry.subscriptions["billing"];
    (one.uuid.clone(), one.secrets.iter().map(|secret| secret.secret.clone()).collect())
}

fn expected() -> (String, Vec<String>) {
    (USER.to_owned(), vec![SECRET.to_owned()])
}

#[tokio::test]
async fn credentials_in_clear_text_are_encrypted_when_a_pacemaker_with_a_key_starts() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let without = Pacemaker::start(&redis, quick(), Recorder::default()).ready().await;
    subscribe(&without).await;
    assert!(are_in_clear(&redis).await);
    assert_eq!(without.handle.credentials(), Credentials { clear: 1, ..Credentials::default() });
    without.stop().await;

    let with = Pacemaker::start_with_keys(&redis, key('a'), Recorder::default()).ready().await;
    eventually("the credentials to be encrypted", async || {
        if are_in_clear(&redis).await { Err("in clear text") } else { Ok(()) }
    })
    .await;
    assert_eq!(known(&with), expected());
    assert_eq!(with.handle.credentials(), Credentials { encrypted: 1, ..Credentials::default() });
    // Later changes do not bring them back.
    with.handle.alter("billing", Alteration { paused: Some(true), ..Alteration::default() }).await.unwrap();
    assert!(!are_in_clear(&redis).await);
    with.stop().await;

    // After a rotation, only the new key is needed.
    let both = Keys::parse(&format!("{}\n{}", "b".repeat(64), "a".repeat(64))).unwrap();
    let with = Pacemaker::start_with_keys(&redis, both, Recorder::default()).ready().await;
    eventually("the credentials to be encrypted with the new key", async || {
        let stored = strings(&redis, "HGETALL", &["bus:registry"]).await;
        let at = stored.iter().position(|field| field == "stamp").unwrap();
        if stored[at + 1].starts_with("6.") { Ok(()) } else { Err(stored) }
    })
    .await;
    with.stop().await;
    let with = Pacemaker::start_with_keys(&redis, key('b'), Recorder::default()).ready().await;
    assert_eq!(known(&with), expected());
    with.stop().await;

    // Before a downgrade to a version that cannot decrypt them.
    let options = Options { encrypt_credentials: false, ..quick() };
    let with = Pacemaker::start_with(&redis, options, key('b'), Recorder::default()).ready().await;
    eventually("the credentials to be in clear text", async || {
        if are_in_clear(&redis).await { Ok(()) } else { Err("encrypted") }
    })
    .await;
    assert_eq!(known(&with), expected());
    with.stop().await;
}

#[tokio::test]
async fn a_pacemaker_without_the_key_changes_other_settings_and_delivers_nothing_unsigned() {
    let server = Server::in_memory().await;
    let redis = server.open::<FabricRole>();
    let with = Pacemaker::start_with_keys(&redis, key('a'), Recorder::default()).ready().await;
    subscribe(&with).await;
    assert!(!are_in_clear(&redis).await);
    with.stop().await;

    let without = Pacemaker::start(&redis, quick(), Recorder::default()).ready().await;
    assert_eq!(without.handle.credentials(), Credentials { locked: 1, ..Credentials::default() });
    assert!(without.handle.registry().subscriptions["billing"].is_locked());
    let uuid = Alteration { uuid: Some("other".to_owned()), ..Alteration::default() };
    assert!(matches!(without.handle.alter("billing", uuid).await, Err(Error::Locked)));
    without
        .handle
        .subscribe("billing", Wanted { uuid: Some("other".to_owned()), ..wanted(&["refunds"]) })
        .await
        .unwrap();
    without.stop().await;

    let with = Pacemaker::start_with_keys(&redis, key('a'), Recorder::default()).ready().await;
    assert_eq!(known(&with), expected());
    assert!(with.handle.registry().subscriptions["billing"].topics.contains("refunds"));
    with.stop().await;
}
