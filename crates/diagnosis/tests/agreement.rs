//! Two callers with the same facts get the same findings, whatever else each of them knows.

use proptest::{collection::vec, option, prelude::*, sample::select};
use signalbox_diagnosis::{
    Checked, Facts, Finding, Subject,
    certificates::Certificate,
    diagnose,
    hosts::{Host, Minute, Mode, Reading},
    installation::{Pacemaker, Part},
    machines::{Evaluation, Held, Machine},
    messages::{Backend, Bus, Credentials, KeyUse, Parked, Queue, Subscriber},
    redis::{Role, Server, State},
    routers::{Nginx, Router, Table},
    sidecar::{Counting, Fault},
    traffic::{Instance, VersionType},
};

const NOW_MS: u64 = 1_000_000_000_000;
const CHECKS: usize = 21;

fn name() -> impl Strategy<Value = String> {
    select(vec!["a", "b", "c"]).prop_map(str::to_owned)
}

fn reason() -> impl Strategy<Value = Option<String>> {
    option::of(Just("refused".to_owned()))
}

fn server() -> impl Strategy<Value = Server> {
    let info = (
        select(vec!["master", "slave"]),
        select(vec!["up", "down"]),
        0..20_u64,
        select(vec!["noeviction", "allkeys-lru"]),
        0..2_u64,
        select(vec!["ok", "err"]),
        0..200_u64,
    );
    let info = info.prop_map(|(role, link, silent, policy, aof, write, used)| {
        format!(
            "redis_version:7.0.1\r\nrole:{role}\r\nmaster_link_status:{link}\r\nmaster_last_io_seconds_ago:{silent}\r\n\
             maxmemory_policy:{policy}\r\naof_enabled:{aof}\r\naof_last_write_status:{write}\r\nused_memory:{used}\r\n\
             maxmemory:100\r\n"
        )
    });
    let state =
        (info, option::of(-3_000..3_000_i64), reason()).prop_map(|(info, clock_ahead_ms, failure)| {
            failure.map_or_else(|| Ok(State { clock_ahead_ms, ..State::from_info(&info) }), Err)
        });
    (select(Role::ALL.to_vec()), option::of(name()), state).prop_map(|(role, address, state)| Server {
        role,
        address,
        state,
    })
}

fn alarm() -> impl Strategy<Value = Option<String>> {
    let mut alarms = vec!["table_regressed".to_owned(), "other".to_owned()];
    alarms.extend(Fault::ALL.map(|fault| fault.alarm().to_owned()));
    option::of(select(alarms))
}

fn router() -> impl Strategy<Value = Router> {
    let table = prop_oneof![Just(Table::Current), Just(Table::Other), (1..9_u64).prop_map(Table::Behind)];
    (name(), 0..20_000_u64, alarm(), table).prop_map(|(node, age_ms, alarm, table)| Router {
        node,
        age_ms,
        alarm,
        table,
    })
}

fn counting() -> impl Strategy<Value = Counting> {
    (vec(select(Fault::ALL.to_vec()), 0..2), 0.0..20.0, any::<bool>())
        .prop_map(|(faults, lag_seconds, rotation_failed)| Counting { faults, lag_seconds, rotation_failed })
}

fn subscriber() -> impl Strategy<Value = Subscriber> {
    (name(), reason(), 0..=100_u32, 0..2_u64, option::of(NOW_MS - 100_000..NOW_MS), option::of(0..1_000_u64))
        .prop_map(|(name, disabled, health, dead, oldest_ms, batch_timeout_ms)| Subscriber {
            name,
            disabled,
            health,
            dead,
            queued: 1,
            oldest_ms,
            batch_timeout_ms,
        })
}

fn machine() -> impl Strategy<Value = Machine> {
    let held = || (0..3_u64).prop_map(|count| Held { count, example: None });
    (name(), held(), held(), held(), 0..2_u64).prop_map(|(name, failed, waiting_for_feed, stuck, looping)| {
        Machine { name, failed, waiting_for_feed, stuck, looping, passed: Vec::new() }
    })
}

fn some<T: std::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    vec(one, 0..4)
}

fn facts() -> impl Strategy<Value = Facts> {
    let part = (name(), reason()).prop_map(|(name, failure)| Part { name, failure });
    let nginx = (any::<bool>(), alarm()).prop_map(|(connected, alarm)| Nginx { connected, alarm });
    let mode = select(vec![Mode::Serving, Mode::Redirect { to: "https://b.test".to_owned() }]);
    let reading = (mode, 0..3_u64, 0..3_u64, 0..2_u64, 0..100_u64, 0..50_u64);
    let host = (name(), reading, 0..2_u64, (some(name()), some(name()))).prop_map(
        |(name, reading, idle, unserved)| {
            let (unserved_shares, unserved_services) = unserved;
            let (mode, instances, unhealthy, ejected, requests, failed) = reading;
            let (ejected, minute) = (Some(ejected), Some(Minute { requests, failed }));
            let known = Reading { mode, instances, idle, unhealthy, ejected, ..Reading::default() };
            let reading = Reading { minute, unserved_shares, unserved_services, ..known };
            Host { name, state: reading.state(NOW_MS) }
        },
    );
    let instance = (name(), name(), reason(), any::<bool>())
        .prop_map(|(id, host, unhealthy, planned)| Instance { id, host, unhealthy, planned });
    let traffic = (name(), name(), 0..100_u64, 0..50_u64)
        .prop_map(|(id, host, requests, failed)| VersionType { id, host, requests, failed });
    let queue = (name(), 0..2_u64).prop_map(|(name, dead)| Queue { name, dead });
    let backend =
        (name(), reason(), 0..2_u64).prop_map(|(name, disabled, dead)| Backend { name, disabled, dead });
    let evaluation =
        (0.0..100.0, 0..9_u64, 0..99_u64).prop_map(|(lag_seconds, feeds_failed, feeds_answered)| {
            Evaluation { lag_seconds, feeds_failed, feeds_answered }
        });
    let certificate = (name(), NOW_MS / 1000 - 86_400..NOW_MS / 1000 + 30 * 86_400)
        .prop_map(|(name, ends)| Certificate { name, ends: Some(ends), automatic: false, last_error: None });
    let pacemaker = (name(), name()).prop_map(|(node, version)| Pacemaker { node, version });
    let edge = (some(part), some(server()), some(router()), nginx, counting(), any::<bool>());
    let traffic = (some(host), some(instance), some(traffic));
    let messages = (any::<bool>(), some(subscriber()), some(queue), some(backend), some(name()));
    let keys = (name(), 0..101_u64).prop_map(|(client, percent)| KeyUse { client, percent });
    let rest = (some(machine()), evaluation, some(certificate), some(pacemaker), any::<bool>(), some(keys));
    (edge, traffic, messages, rest).prop_map(|(edge, traffic, messages, rest)| Facts {
        parts: Checked::Known(edge.0),
        redis: Checked::Known(edge.1),
        routers: Checked::Known(edge.2),
        nginx: Checked::Known(edge.3),
        counting: Checked::Known(edge.4),
        request_counted: Checked::Known(edge.5),
        hosts: Checked::Known(traffic.0),
        instances: Checked::Known(traffic.1),
        traffic: Checked::Known(traffic.2),
        bus: Checked::Known(Bus { accepts_events: messages.0 }),
        subscribers: Checked::Known(messages.1),
        queues: Checked::Known(messages.2),
        backends: Checked::Known(messages.3),
        parked_objects: Checked::Known(Parked { count: messages.4.len() as u64, names: messages.4 }),
        credentials: Checked::Known(Credentials {
            clear: rest.1.feeds_failed,
            locked: rest.1.feeds_answered,
        }),
        machines: Checked::Known(rest.0),
        evaluation: Checked::Known(rest.1),
        certificates: Checked::Known(rest.2),
        pacemakers: Checked::Known(rest.3),
        time_zones: Checked::Known(rest.4),
        idempotency_keys: Checked::Known(rest.5),
    })
}

/// The facts of a caller that collects those checks whose bit is set.
fn seen_by(facts: &Facts, checks: u32) -> Facts {
    let mut seen = Facts::skipped("this caller does not collect it");
    let mut number = 0;
    macro_rules! take {
        ($($field:ident)*) => {$(
            if checks & (1 << number) != 0 {
                seen.$field = facts.$field.clone();
            }
            number += 1;
        )*};
    }
    take!(parts redis routers nginx counting request_counted hosts instances traffic bus subscribers queues backends
        parked_objects credentials machines evaluation certificates pacemakers time_zones idempotency_keys);
    assert_eq!(number, CHECKS);
    seen
}

fn findings(facts: &Facts, checks: u32) -> Vec<Finding> {
    diagnose(&seen_by(facts, checks), NOW_MS).findings
}

/// Whether the caller that found `found` has a better explanation than `finding`.
fn is_explained(finding: &Finding, found: &[Finding]) -> bool {
    let same_of_router =
        found.iter().any(|one| one.id == finding.id && matches!(one.subject, Subject::Router(_)));
    match finding.subject {
        Subject::Nginx if finding.id == "requests-not-counted" => {
            found.iter().any(|one| one.id.starts_with("sidecar-"))
        }
        Subject::Nginx | Subject::Sidecar => same_of_router,
        _ => false,
    }
}

proptest! {
    #[test]
    fn callers_that_know_the_same_facts_report_the_same_findings(
        facts in facts(), one in 0..1_u32 << CHECKS, other in 0..1_u32 << CHECKS,
    ) {
        let (of_one, of_other) = (findings(&facts, one), findings(&facts, other));
        for check in (0..CHECKS).map(|check| 1 << check).filter(|check| one & other & check != 0) {
            for finding in findings(&facts, check) {
                for found in [&of_one, &of_other] {
                    prop_assert!(found.contains(&finding) || is_explained(&finding, found), "{finding:?} {found:#?}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_found_that_no_check_found_alone(facts in facts(), known in 0..1_u32 << CHECKS) {
        let alone: Vec<Finding> = (0..CHECKS)
            .map(|check| 1 << check)
            .filter(|check| known & check != 0)
            .flat_map(|check| findings(&facts, check))
            .collect();
        for finding in findings(&facts, known) {
            prop_assert!(alone.contains(&finding), "{finding:?}");
        }
    }

    #[test]
    fn each_check_without_facts_is_skipped_and_has_no_finding(facts in facts(), known in 0..1_u32 << CHECKS) {
        let diagnosis = diagnose(&seen_by(&facts, known), NOW_MS);
        prop_assert_eq!(diagnosis.skipped.len(), CHECKS - known.count_ones() as usize);
        let nothing = diagnose(&Facts::skipped("not requested"), NOW_MS);
        prop_assert_eq!(nothing.skipped.len(), CHECKS);
        prop_assert!(nothing.findings.is_empty());
    }

    #[test]
    fn every_finding_has_an_id_a_problem_and_a_fix_and_the_worst_come_first(facts in facts()) {
        let findings = diagnose(&facts, NOW_MS).findings;
        prop_assert!(findings.is_sorted_by_key(|one| one.severity));
        for one in findings {
            prop_assert!(one.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", one.id);
            prop_assert!(one.problem.len() > 10 && one.fix.ends_with('.'), "{one:?}");
        }
    }
}
