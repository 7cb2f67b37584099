//! Secrets of machines, and the rotation of the key that encrypts them.

use std::sync::Arc;

use signalbox_seal::Keys;

use super::support::{M, World, machine};
use crate::{
    Error, Secrets,
    clock::Clock,
    faults::Faults,
    store::{Shards, StoredSecrets},
};

const CALLING: &str = "
state_machines:
  m:
    webhooks: [{match: \"https://a.example/\", headers: {Authorization: \"Bearer ${TOKEN}\"}}]
    states:
      - {action: act, webhook: \"https://a.example/x\", next: done}
      - {gate: done}
";

/// The secrets of a pacemaker whose key file has these keys, one digit for each.
fn with_keys(world: &World, digits: &str) -> Secrets {
    let shards = Shards::new(&world.servers.fabric(), 1, Faults::default());
    let clock = Clock::new(signalbox_store::Clock::Fixed(Arc::clone(&world.time.0)), shards.clone());
    let keys: Vec<String> = digits.chars().map(|digit| digit.to_string().repeat(64)).collect();
    let keys = if keys.is_empty() { Keys::none() } else { Keys::parse(&keys.join("\n")).unwrap() };
    Secrets::new(StoredSecrets(shards), keys, clock)
}

#[tokio::test]
async fn secrets_are_encrypted_again_when_the_key_is_rotated() {
    let world = World::bare().await;
    let machine = machine(CALLING);
    let url = "https://a.example/x";
    let old = with_keys(&world, "a");
    old.set(M, ("TOKEN", "https://a.example/"), "hidden-value", "t").await.unwrap();
    old.set("other", ("TOKEN", "https://a.example/"), "another", "t").await.unwrap();
    let value =
        async |secrets: &Secrets| secrets.values_for(&machine, url).await.map(|values| values.get("TOKEN"));
    assert_eq!(value(&old).await, Ok(Some("hidden-value".to_owned())));
    let dump = async || {
        let all: Vec<String> =
            world.servers.fabric().command("HVALS").arg("machine:secrets").query().await.unwrap();
        all.join(" ")
    };
    assert!(dump().await.contains("sealed") && !dump().await.contains("hidden-value"), "{}", dump().await);

    let new = with_keys(&world, "b");
    assert!(value(&new).await.unwrap_err().contains("edge_key_file"), "the key is missing");
    let both = with_keys(&world, "ba");
    assert_eq!(value(&both).await, Ok(Some("hidden-value".to_owned())));
    both.reseal().await.unwrap();
    assert_eq!(value(&new).await, Ok(Some("hidden-value".to_owned())));
    let resealed = dump().await;
    both.reseal().await.unwrap();
    assert_eq!(dump().await, resealed, "nothing is left to encrypt");

    // A secret cannot be moved to another machine in the fabric.
    let redis = world.servers.fabric();
    let theirs: String =
        redis.command("HGET").arg("machine:secrets").arg("other TOKEN").query().await.unwrap();
    redis.command("HSET").arg("machine:secrets").arg("m TOKEN").arg(theirs).run().await.unwrap();
    assert!(value(&new).await.unwrap_err().contains("decrypts"));

    let none = with_keys(&world, "");
    let refused = none.set(M, ("A", "https://a.example/"), "x", "t").await;
    assert!(matches!(refused, Err(Error::NoKey)), "{refused:?}");
    none.delete(M, "TOKEN").await.unwrap();
    none.delete(M, "TOKEN").await.unwrap();
    assert!(value(&new).await.unwrap_err().contains("TOKEN is not set"));
    new.delete_until("other", u64::MAX).await.unwrap();
    assert!(new.list("other").await.unwrap().is_empty());
    for number in 0..64 {
        new.set(M, (&format!("N{number}"), "https://a.example/"), "x", "t").await.unwrap();
    }
    let refused = new.set(M, ("ONE_MORE", "https://a.example/"), "x", "t").await;
    assert!(matches!(refused, Err(Error::TooManySecrets(64))), "{refused:?}");
    new.set(M, ("N0", "https://a.example/"), "y", "t").await.unwrap();
}
