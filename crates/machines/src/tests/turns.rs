//! What one client has due, however much, is not in the way of another's.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde_json::json;
use signalbox_lease::Lease;
use tokio::time::timeout;

use super::support::{M, Machines, World};

fn timed(machine: &str) -> String {
    format!(
        "
state_machines:
  {machine}:
    states:
      - {{gate: waiting, exit_condition: metadata.go, triggers: [{{metadata: go}}], deadline: {{after: 1s, next: late}}, next: late}}
      - {{gate: late}}
"
    )
}

/// Later than everything.
const EVER: u64 = u64::MAX >> 12;

impl World {
    /// A world with machines, each with the client that applied it.
    async fn of_clients(machines: &[(&str, &str)]) -> Self {
        let world = Self::bare().await;
        for (machine, client) in machines {
            world.apply_by_client(&timed(machine), 0, client).await;
        }
        world
    }

    async fn create_in(&self, machine: &str, label: String) {
        self.machines.labels.create(machine, &label, &json!({}), false, None).await.unwrap();
    }

    /// Adds due entries of labels that do not exist. They are removed when they are worked on.
    async fn flood(&self, machine: &str, count: usize) {
        for n in 0..count {
            let member = format!("l {machine} x{n:04}");
            self.machines.due.set(0, &member, Some(self.now_ms())).await.unwrap();
        }
    }

    /// How many entries of each machine are left.
    async fn left<const N: usize>(&self, machines: [&str; N]) -> [usize; N] {
        let due = self.machines.due.due(0, EVER, 100_000).await.unwrap();
        machines.map(|machine| {
            let prefix = format!("l {machine} ");
            due.iter().filter(|(member, _)| member.starts_with(&prefix)).count()
        })
    }

    async fn one_page(&self, machines: &Machines) {
        machines.work_off_page(0, self.now_ms()).await;
    }

    async fn work_off_under_lease(&self) -> Option<Duration> {
        let (fabric, ttl) = (self.servers.fabric(), Duration::from_secs(60));
        let mut lease = Lease::new(fabric, crate::lease_name(0), "test".to_owned(), ttl);
        let work = self.machines.service.due_times.work_off(0, &mut lease);
        timeout(Duration::from_secs(30), Box::pin(work)).await.expect("an end").unwrap()
    }
}

#[tokio::test]
async fn a_label_is_worked_on_with_the_first_page_of_a_flood_of_another_client() {
    let world = World::of_clients(&[("flood", "loud"), (M, "quiet")]).await;
    let creations = (0..600).map(|n| world.create_in("flood", format!("l{n}")));
    stream::iter(creations).buffer_unordered(100).collect::<Vec<_>>().await;
    world.time.advance(1);
    world.create("a", json!({})).await;
    world.time.advance(1_000);
    world.one_page(&world.machines).await;
    assert_eq!(&*world.label("a").await.state, "late");
    let [left] = world.left(["flood"]).await;
    assert!((350..600).contains(&left), "the flood has the other half of the page: {left}");
    // On a busy computer, evaluations seem expensive, and some are postponed.
    while world.machines.due.next(0).await.unwrap().is_some() {
        world.work_off().await;
        world.time.advance(1_000);
    }
    let states = world.machines.records.count_states("flood", &["waiting", "late"]).await.unwrap();
    assert_eq!(states, [0, 600]);
    assert_eq!(world.events("signalbox.labels").await.len(), 2 * 601, "each is created, and moved once");
}

#[tokio::test]
async fn two_machines_of_a_client_have_no_more_turns_than_one_of_another() {
    let world = World::of_clients(&[("x", "loud"), ("y", "loud"), (M, "quiet")]).await;
    for machine in ["x", "y", M] {
        world.machines.definitions.of(machine, 0).await.unwrap();
        world.flood(machine, 600).await;
    }
    world.one_page(&world.machines).await;
    assert_eq!(world.left(["x", "y", M]).await, [475, 475, 350]);
    world.one_page(&world.machines).await;
    assert_eq!(world.left(["x", "y", M]).await, [350, 350, 100]);
    // The rest of a machine's share of this page stays unused. The next page is of the others.
    world.one_page(&world.machines).await;
    assert_eq!(world.left(["x", "y", M]).await, [225, 225, 0]);
    world.one_page(&world.machines).await;
    assert_eq!(world.left(["x", "y", M]).await, [0, 0, 0]);
}

#[tokio::test]
async fn after_a_restart_a_flood_is_not_in_the_way_either() {
    let world = World::of_clients(&[("flood", "loud"), (M, "quiet")]).await;
    world.flood("flood", 1_200).await;
    world.create("a", json!({})).await;
    world.time.advance(1_000);
    // It has not read any definition.
    let other = world.another();
    world.one_page(&other).await;
    assert_eq!(&*world.label("a").await.state, "late");
    assert_eq!(world.left(["flood"]).await, [950]);
}

#[tokio::test]
async fn entries_of_an_earlier_version_are_worked_on_at_their_times() {
    let world = World::new(&timed(M)).await;
    for label in ["a", "b"] {
        world.create(label, json!({})).await;
    }
    let at_ms = world.now_ms() + 1_000;
    // One that is only there, one that was there at another time, and two that no version reads.
    world.machines.due.set(0, "l m a", None).await.unwrap();
    let redis = world.servers.fabric();
    for (at_ms, member) in [(at_ms, "l m a"), (at_ms - 500, "l m b"), (1, "x m y"), (1, "nonsense")] {
        redis.command("ZADD").arg(("machine:due", at_ms, member)).run().await.unwrap();
    }
    assert_eq!(world.work_off_under_lease().await, Some(Duration::from_millis(500)));
    assert!(!redis.command("EXISTS").arg("machine:due").query::<bool>().await.unwrap());
    let both = [("l m a".to_owned(), at_ms), ("l m b".to_owned(), at_ms - 500)];
    let mut due = world.machines.due.due(0, EVER, 10).await.unwrap();
    due.sort();
    assert_eq!(due, both);
    world.time.advance(500);
    assert_eq!(world.work_off_under_lease().await, Some(Duration::from_millis(500)));
    assert_eq!(&*world.label("b").await.state, "waiting", "it was too early");
    world.time.advance(500);
    world.work_off_under_lease().await;
    for label in ["a", "b"] {
        world.until(label, |record| &*record.state == "late").await;
    }
}

#[tokio::test]
async fn a_machine_whose_time_is_wrong_does_not_keep_a_pacemaker_busy() {
    let world = World::new(&timed(M)).await;
    world.create("a", json!({})).await;
    for machine in [M, "nobody"] {
        world.servers.fabric().command("ZADD").arg(("machine:next", 1, machine)).run().await.unwrap();
    }
    assert_eq!(world.work_off_under_lease().await, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn a_damaged_due_set_stops_no_other_machine() {
    let world = World::of_clients(&[("broken", "one"), (M, "another")]).await;
    world.create_in("broken", "a".to_owned()).await;
    world.create("a", json!({})).await;
    let fabric = world.servers.fabric();
    fabric.command("RENAME").arg(("machine:broken:due", "kept")).run().await.unwrap();
    fabric.command("SET").arg(("machine:broken:due", "text")).run().await.unwrap();
    world.time.advance(1_000);
    world.one_page(&world.machines).await;
    assert_eq!(&*world.label("a").await.state, "late");
    // It continues soon after it was repaired.
    fabric.command("RENAME").arg(("kept", "machine:broken:due")).run().await.unwrap();
    world.time.advance(5_000);
    world.one_page(&world.machines).await;
    let states = world.machines.records.count_states("broken", &["waiting", "late"]).await.unwrap();
    assert_eq!(states, [0, 1]);
}
