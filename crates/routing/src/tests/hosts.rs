//! Removing hosts.

use super::*;
use crate::Error;
use signalbox_access::Caller;

#[tokio::test]
async fn a_removed_host_removes_instances_that_served_only_it() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    rig.put("two", spec(9002, &["a.example", "b.example"], "1")).await;
    let () = rig.routes("SADD", &["instances:a.example", "10.0.0.1:80"]).await;
    let change = rig.registry.remove_host(&Caller::root(), &host("a.example")).await.unwrap();
    assert_eq!(change.serial, rig.serial().await);
    assert!(!rig.table("a.example").await.exists());
    assert_eq!(rig.addresses("b.example").await, ["127.0.0.1:9002"]);
    assert!(rig.store.stored(&instance_id("one")).await.unwrap().is_none());
    assert_eq!(rig.store.hosts_after(None, 10).await.unwrap(), ["b.example"]);
    // A repeat is neither an error nor a change.
    let again = rig.registry.remove_host(&Caller::root(), &host("a.example")).await.unwrap();
    assert_eq!(again.serial, change.serial);
    assert!(rig.outstanding().await.is_empty());
    rig.check_catalog().await;
}

#[tokio::test]
async fn a_host_that_was_only_made_by_hand_can_be_removed() {
    let rig = Rig::new().await;
    let () = rig.routes("SADD", &["instances:a.example", "10.0.0.1:80"]).await;
    let () = rig.routes("SET", &["logkey:a.example", "1"]).await;
    let serial = rig.serial().await;
    let change = rig.registry.remove_host(&Caller::root(), &host("a.example")).await.unwrap();
    assert_eq!(change.serial, serial + 1);
    assert!(!rig.table("a.example").await.exists());
}

#[tokio::test]
async fn a_host_that_was_registered_while_it_was_removed_stays() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    // The removal checked for instances before this one registered, and continues now.
    rig.store.forget_host(&host("a.example")).await.unwrap();
    rig.reconcile().await;
    assert_eq!(rig.addresses("a.example").await, ["127.0.0.1:9001"]);
    assert_eq!(rig.store.hosts_after(None, 10).await.unwrap(), ["a.example"]);
    assert!(rig.outstanding().await.is_empty());
}

#[tokio::test]
async fn an_interrupted_removal_is_completed() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    rig.registry.remove(&Caller::root(), &instance_id("one")).await.unwrap();
    assert!(rig.table("a.example").await.exists());
    rig.store.forget_host(&host("a.example")).await.unwrap();
    rig.reconcile().await;
    assert!(!rig.table("a.example").await.exists());
}

#[tokio::test]
async fn a_confined_token_removes_its_own_hosts_only() {
    let rig = Rig::new().await;
    rig.put("one", spec(9001, &["a.example"], "1")).await;
    let hosts = vec![signalbox_access::HostPattern::new(host("b.example"))];
    let tenant = Caller::named("t".to_owned(), vec![signalbox_access::Scope::Routes], Some(hosts));
    let refused = rig.registry.remove_host(&tenant, &host("a.example")).await;
    assert!(matches!(refused, Err(Error::HostNotAllowed { .. })));
    assert!(rig.table("a.example").await.exists());
}
