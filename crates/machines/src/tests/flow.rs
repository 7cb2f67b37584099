//! Counts of transitions, times in states, conversions, and limits of states.

use serde_json::json;
use signalbox_access::Author;

use super::support::{M, World, machine};
use crate::Error;

const FUNNEL: &str = "
state_machines:
  m:
    states:
      - {gate: trial, alert: {labels: 2, age: 1h}, exit_condition: metadata.paid is defined, triggers: [{metadata: paid}], next: {type: condition, branches: [{when: metadata.paid, state: customer}], default: lost}}
      - {gate: customer}
      - {gate: lost}
";

#[tokio::test]
async fn a_funnel_counts_the_entries_that_reach_a_state_by_version() {
    let world = World::new(FUNNEL).await;
    let flow = &world.machines.service.flow;
    for (n, paid) in [true, false, true].into_iter().enumerate() {
        world.create(&format!("a{n}"), json!({})).await;
        world.time.advance(60_000);
        world.send_update(&format!("a{n}"), json!({"paid": paid})).await;
    }
    // The comment makes no version, another condition does.
    world.apply(&FUNNEL.replace("metadata.paid is defined", "metadata.paid /= null"), 1).await;
    world.create("b", json!({})).await;
    flow.flush().await.unwrap();
    flow.flush().await.unwrap();
    let reader = &world.machines.inspector.flow;
    let report = reader.report(M, 24, Some(("trial", "customer"))).await.unwrap();
    let versions = report.funnel.as_ref().unwrap().versions.iter();
    let conversions: Vec<_> = versions.map(|one| (one.version, one.entered, one.reached)).collect();
    assert_eq!(conversions, [(1, 3, 2), (2, 1, 0)]);
    let trial = &report.states[0];
    assert_eq!((&*trial.state, trial.entered, trial.left), ("trial", 4, 3));
    let p50 = trial.p50_seconds.unwrap();
    assert!((55.0..66.0).contains(&p50), "{p50}");
    let lost = report.edges.iter().find(|edge| (&*edge.from, &*edge.to) == ("trial", "lost"));
    assert_eq!(lost.unwrap().transitions, 1);
    assert!(report.per_second > 0.0);
    let unknown = reader.report(M, 1, Some(("trial", "nowhere"))).await;
    assert!(matches!(unknown, Err(Error::NoSuchState(state)) if state == "nowhere"));
    let metrics = world.machines.inspector.overview.metrics_text().await.unwrap();
    for line in [
        r#"signalbox_machines_entries_total{machine="m",state="trial"} 4"#,
        r#"signalbox_machines_state_duration_seconds_count{machine="m",state="trial"} 3"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn a_state_with_too_many_labels_or_one_that_is_too_old_is_reported() {
    let world = World::new(FUNNEL).await;
    let alerts = async || {
        let counts = world.machines.inspector.overview.counts(M).await.unwrap();
        counts.alerts.iter().map(|alert| (alert.limit.clone(), alert.value, alert.most)).collect::<Vec<_>>()
    };
    world.create("a", json!({})).await;
    world.time.advance(3_600_000);
    assert_eq!(alerts().await, []);
    world.time.advance(1_000);
    assert_eq!(alerts().await, [("age".to_owned(), 3_601, 3_600)]);
    world.create("b", json!({})).await;
    world.create("c", json!({})).await;
    assert_eq!(alerts().await, [("labels".to_owned(), 3, 2), ("age".to_owned(), 3_601, 3_600)]);
    let metrics = world.machines.inspector.overview.metrics_text().await.unwrap();
    for line in [
        r#"signalbox_machines_passed_limits{machine="m",state="trial",limit="age"} 1"#,
        r#"signalbox_machines_oldest_label_seconds{machine="m",state="trial"} 3601"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    // A label that leaves is not counted, and neither is one in a state whose limit was removed.
    world.send_update("a", json!({"paid": true})).await;
    assert_eq!(alerts().await, []);
    world.time.advance(7_200_000);
    assert_eq!(alerts().await.len(), 1);
    let without = FUNNEL.replace("alert: {labels: 2, age: 1h}, ", "");
    world
        .machines
        .applier
        .apply(&machine(&without), 1, &Author::operator(), &Default::default())
        .await
        .unwrap();
    assert_eq!(alerts().await, []);
    let redis = world.servers.fabric();
    let left: Vec<String> = redis.command("KEYS").arg("*:since:*").query().await.unwrap();
    assert_eq!(left, Vec::<String>::new());
}
