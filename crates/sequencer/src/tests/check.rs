//! The check finds each violation, and nothing while work continues.

use super::support::*;
use signalbox_bus::OnFailure;

async fn broken(world: &World, command: &'static str, arguments: &[&str]) -> Vec<String> {
    number(&world.redis, command, arguments).await;
    let found = world.handle().check().await.unwrap();
    found.into_iter().map(|one| one.predicate).collect()
}

async fn world() -> World {
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Block).await;
    world.publish("work:1", 2).await;
    world.publish("work:2", 2).await;
    world.take("search", "a").await.unwrap();
    world.expect_consistent("before").await;
    world
}

#[tokio::test]
async fn each_broken_predicate_is_named() {
    let ready = "object:objects.with.events@search";
    for (predicate, command, arguments) in [
        ("O6", "ZREM", vec![ready, "work:2"]),
        ("O6", "ZADD", vec!["object:parked", "1", "work:2"]),
        ("O6", "DEL", vec!["object:work:2:events"]),
        ("O8", "DEL", vec!["object:work:1:flight"]),
        ("O8", "ZREM", vec!["object:leases", "work:1"]),
        ("O11", "HDEL", vec!["object:workers", "a"]),
        ("O9", "HINCRBY", vec!["object:numbers", "objects@search", "1"]),
        ("O12", "ZADD", vec![ready, "7", "work:9"]),
    ] {
        let world = world().await;
        let found = broken(&world, command, &arguments).await;
        assert!(found.iter().any(|one| one == predicate), "{command} {arguments:?}: {found:?}");
    }
}

#[tokio::test]
async fn a_lease_that_was_not_swept_is_named() {
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Block).await;
    world.publish("work:1", 1).await;
    // The world's clock is far behind that of the server, which the check uses.
    world.take("search", "a").await.unwrap();
    let found = broken(&world, "ZADD", &["object:leases", "1000", "work:1"]).await;
    assert_eq!(found, ["O7"]);
}

#[tokio::test]
async fn ongoing_work_is_not_a_violation() {
    let world = World::start().await;
    world.backend("search", "work:", OnFailure::Block).await;
    let receiver = Receiver::new();
    let running = Running::start(&world, hasty(), &receiver);
    let checks = async {
        for _ in 0..5 {
            assert_eq!(running.handle.check().await.unwrap(), []);
        }
    };
    let work = async {
        for n in 0..200 {
            world.publish(&format!("work:{}", n % 20), 3).await;
        }
    };
    tokio::join!(checks, work);
}
