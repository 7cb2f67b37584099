//! Projection of certificates to the table, and events about their expiry.

use super::{announcing::Ears, *};
use crate::{
    Error,
    announcer::Progress,
    store::{Certificate, ResourceProjected},
};
use signalbox_access::Caller;

const DAY_MS: u64 = 24 * 3600 * 1000;
const START: u64 = 1_800_000_000_000;

fn certificate(what: &str, ends: u64) -> Certificate {
    Certificate { text: format!("{{\"v\":1,\"chain\":\"{what}\",\"key\":\"sealed\"}}"), ends }
}

impl Rig {
    async fn certify(&self, name: &str, certificate: Option<&Certificate>) -> bool {
        let (root, name) = (Caller::root(), host(name));
        self.registry.set_certificate(&root, &name, certificate, None).await.unwrap().unwrap().changed
    }

    async fn shown(&self, name: &str) -> Option<String> {
        self.routes("GET", &[&format!("cert:{name}")]).await
    }
}

#[tokio::test]
async fn a_certificate_is_stored_unchanged_and_raises_the_serial_once() {
    let rig = Rig::new().await;
    let (first, second) = (certificate("1", 10), certificate("2", 20));
    let before = rig.serial().await;
    assert!(rig.certify("a.test", Some(&first)).await);
    assert!(!rig.certify("a.test", Some(&first)).await);
    assert_eq!((rig.shown("a.test").await, rig.serial().await), (Some(first.text), before + 1));
    assert!(rig.certify("a.test", Some(&second)).await);
    assert_eq!((rig.shown("a.test").await, rig.serial().await), (Some(second.text), before + 2));
    rig.check_catalog().await;
    assert!(rig.certify("a.test", None).await);
    assert_eq!((rig.shown("a.test").await, rig.serial().await), (None, before + 3));
    assert!(rig.outstanding().await.is_empty());
    assert_eq!(rig.store.ending(u64::MAX >> 12).await.unwrap(), (vec![], 0));
    rig.check_catalog().await;
}

#[tokio::test]
async fn the_later_word_wins_whatever_order_it_comes_in() {
    let rig = Rig::new().await;
    let name = host("a.test");
    let mark = rig.mark().await;
    let (first, second) = (certificate("1", 10), certificate("2", 20));
    let certify = async |revision, certificate: Option<&Certificate>| {
        rig.store.project_resource(&name, revision, certificate, Some(&mark)).await.unwrap()
    };
    assert!(matches!(certify(7, Some(&second)).await, ResourceProjected::Done { .. }));
    assert_eq!(certify(6, Some(&first)).await, ResourceProjected::Stale { revision: 7 });
    assert_eq!(rig.shown("a.test").await.unwrap(), second.text);
    // Taken away, it stays away.
    assert!(matches!(certify(8, None).await, ResourceProjected::Done { .. }));
    assert_eq!(certify(7, Some(&second)).await, ResourceProjected::Stale { revision: 8 });
    assert_eq!(rig.shown("a.test").await, None);
    let other = TableMark { epoch: "other".to_owned(), serial: 0 };
    let projected = rig.store.project_resource::<Certificate>(&name, 9, None, Some(&other)).await;
    assert!(matches!(projected, Err(Error::Resyncing { .. })), "{projected:?}");
    rig.routes::<()>("LPUSH", &["cert:a.test", "x"]).await;
    let projected = rig.store.project_resource(&name, 9, Some(&first), Some(&mark)).await;
    assert!(matches!(&projected, Err(Error::Blocked { key, .. }) if key == "cert:a.test"), "{projected:?}");
}

#[tokio::test]
async fn a_change_interrupted_between_fabric_and_table_is_completed() {
    let rig = Rig::new().await;
    let one = certificate("1", 10);
    rig.store.desire_resource(&host("a.test"), Some(&one), None).await.unwrap();
    assert_eq!(rig.shown("a.test").await, None);
    rig.reconcile().await;
    assert_eq!(rig.shown("a.test").await.unwrap(), one.text);
    rig.store.desire_resource::<Certificate>(&host("a.test"), None, None).await.unwrap();
    rig.reconcile().await;
    assert_eq!(rig.shown("a.test").await, None);
    assert!(rig.outstanding().await.is_empty());
}

#[tokio::test]
async fn a_lost_table_and_a_lost_fabric_get_them_from_the_other() {
    let rig = Rig::new().await;
    let (one, other) = (certificate("1", 10), certificate("2", 20));
    rig.certify("a.test", Some(&one)).await;
    rig.certify("*.b.test", Some(&other)).await;
    rig.routes::<()>("FLUSHALL", &[]).await;
    rig.routes::<()>("SET", &["cert:by-hand.test", "{}"]).await;
    rig.reconcile().await;
    assert_eq!(rig.shown("a.test").await.unwrap(), one.text);
    assert_eq!(rig.shown("*.b.test").await.unwrap(), other.text);
    rig.fabric::<()>("FLUSHALL", &[]).await;
    rig.reconcile().await;
    let found = rig.store.certificate(&host("*.b.test")).await.unwrap().unwrap();
    assert_eq!(found.value, other);
    assert_eq!(rig.store.certificates_after(None, 10).await.unwrap(), ["*.b.test", "a.test"]);
    assert_eq!(rig.store.ending(15).await.unwrap(), (vec![("a.test".to_owned(), 10)], 2));
    // An entry that an operator wrote has no owner.
    assert_eq!(rig.shown("by-hand.test").await.unwrap(), "{}");
    rig.certify("a.test", None).await;
    assert_eq!(rig.shown("a.test").await, None);
}

#[tokio::test]
async fn the_expiry_of_a_certificate_is_published_once_at_each_mark() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    let published = || {
        // Each one is also published on a topic of expiries alone.
        let count = |wanted: &str| ears.events().iter().filter(|(topic, _)| *topic == wanted).count();
        assert_eq!(count("certificate.expires"), count("certificates"));
        let ends = |(_, event): &(&'static str, super::super::RouteEvent)| {
            let data = &event.data;
            format!(
                "{} {} {}",
                data["server_name"].as_str().unwrap(),
                data["change"].as_str().unwrap(),
                data["days_left"]
            )
        };
        let events = ears.events();
        events.iter().filter(|(topic, _)| *topic == "certificates").map(ends).collect::<Vec<_>>()
    };
    rig.store.set_clock_ms(START);
    rig.certify("far.test", Some(&certificate("f", (START + 400 * DAY_MS) / 1000))).await;
    rig.certify("a.test", Some(&certificate("a", (START + 40 * DAY_MS) / 1000))).await;
    for (days_left, expected) in [
        (40, vec![]),
        (31, vec![]),
        (30, vec!["a.test expiring 30"]),
        (20, vec![]),
        (14, vec!["a.test expiring 14"]),
        // Two marks passed between checks: the later one is published.
        (1, vec!["a.test expiring 1"]),
        (0, vec!["a.test expired 0"]),
    ] {
        let before = published().len();
        rig.store.set_clock_ms(START + (40 - days_left) * DAY_MS);
        // Each a process that has just taken the lease over.
        for epoch in [1, 2] {
            rig.announcer(&ears).check_expiries_under(epoch).await;
        }
        assert_eq!(published()[before..], expected, "{days_left} days left");
    }
    // A new certificate starts from the first mark, and a rejected publish is retried.
    ears.take(ears.events().len());
    rig.certify("a.test", Some(&certificate("b", (START + 45 * DAY_MS) / 1000))).await;
    let before = published().len();
    let mut announcer = rig.announcer(&ears);
    announcer.check_expiries_under(1).await;
    assert_eq!(published().len(), before);
    ears.take(usize::MAX);
    announcer.check_expiries_under(1).await;
    assert_eq!(published()[before..], ["a.test expiring 7"]);
}

#[tokio::test]
async fn a_change_is_checked_immediately_and_an_idle_hour_costs_nothing() {
    let rig = Rig::new().await;
    let ears = Ears::open();
    rig.store.set_clock_ms(START);
    let mut announcer = rig.announcer(&ears);
    announcer.pass().await.unwrap();
    announcer.check_expiries_under(1).await;
    let commands = async || {
        let mut sum = 0;
        for stats in
            [rig.fabric::<String>("INFO", &["stats"]).await, rig.routes::<String>("INFO", &["stats"]).await]
        {
            let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            sum += line.unwrap().trim().parse::<u64>().unwrap();
        }
        sum
    };
    let before = commands().await;
    for _ in 0..100 {
        announcer.check_expiries_under(1).await;
    }
    // Each count is two commands, the first of which is in the second one.
    assert_eq!(commands().await - before, 2);
    rig.certify("a.test", Some(&certificate("a", (START + 2 * DAY_MS) / 1000))).await;
    while announcer.pass().await.unwrap() == Progress::Some {}
    announcer.check_expiries_under(1).await;
    let of = |(topic, event): &(&'static str, super::super::RouteEvent)| {
        format!("{topic} {}", event.data["change"].as_str().unwrap())
    };
    let changes: Vec<_> = ears.events().iter().map(of).collect();
    assert_eq!(changes, ["certificates put", "certificates expiring", "certificate.expires expiring"]);
}

#[tokio::test]
async fn a_pacemaker_without_the_lease_reports_no_certificates() {
    let rig = Rig::new().await;
    rig.store.set_clock_ms(START);
    let (ears, metrics) = (Ears::open(), Metrics::default());
    let (_, alarms) = tokio::sync::watch::channel(());
    let (lease, interval) = (rig.lease("announcer"), Duration::from_secs(1));
    let mut announcer =
        super::super::Announcer::new(rig.store.clone(), lease, ears, interval, alarms, metrics.clone());
    let reported = || {
        let mut registry = prometheus_client::registry::Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &registry).unwrap();
        text
    };
    rig.certify("a.test", Some(&certificate("a", (START + 2 * DAY_MS) / 1000))).await;
    announcer.check_expiries_under(7).await;
    assert!(reported().contains("certificates 1"), "{}", reported());
    announcer.lost();
    assert!(reported().contains("certificates 0"), "{}", reported());
    assert!(!reported().contains("first_end_days"), "{}", reported());
}
