//! Objects: events of many objects, in order for each object, from producers by HTTP to consumers: subscribers of the
//! bus, and HTTP backends with one worker and with more.

mod peers;

use std::time::Duration;

use anyhow::bail;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    bus::{
        receivers::URLS,
        testbed::{Audience, OBJECTS, Split, Testbed, data},
    },
    compare::median_of,
    load::{Pace, Requests},
    machine::cores,
    queues::send,
    report::{Table, grouped},
    session::{Output, Session},
};

/// Producers' requests under way at a time, as many as the brokers' producers have.
const CONNECTIONS: usize = 64;

/// The consumer of an object's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    /// A subscriber of the bus.
    Bus,
    /// The backend with this place in [`WORKERS`].
    Backend(usize),
}

/// Workers of each backend.
const WORKERS: [u64; 3] = [1, 4, 16];
/// The one with the most.
const WIDEST: Sink = Sink::Backend(WORKERS.len() - 1);
/// Events per second that it must receive.
const RATE_TARGET: f64 = 15_000.0;

impl Sink {
    const ALL: [Self; 4] = [Self::Bus, Self::Backend(0), Self::Backend(1), Self::Backend(2)];

    /// The prefix of its objects' names.
    fn prefix(self) -> String {
        match self {
            Self::Bus => "bus".to_owned(),
            Self::Backend(place) => format!("workers-{}", WORKERS[place]),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Bus => "the bus, one subscriber".to_owned(),
            Self::Backend(place) if WORKERS[place] == 1 => "an HTTP backend, 1 worker".to_owned(),
            Self::Backend(place) => format!("an HTTP backend, {} workers", WORKERS[place]),
        }
    }

    /// Events of one run: some seconds' worth.
    fn events(self, quick: bool) -> u64 {
        match self {
            _ if quick => 400,
            Self::Backend(place) => [4_000, 10_000, 20_000][place],
            Self::Bus => 20_000,
        }
    }
}

/// The result of one run.
#[derive(Debug)]
struct Run {
    events: u64,
    /// Until all were accepted.
    accepted: Duration,
    /// Until all were received.
    received: Duration,
    cpu: Split,
}

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let testbed = Testbed::start(&[Audience::AtOnce], WORKERS.len()).await?;
    for (place, workers) in WORKERS.into_iter().enumerate() {
        let name = Sink::Backend(place).prefix();
        let backend = json!({
            "prefix": format!("{name}:"), "callback": testbed.backend(place), "workers": workers, "uuid": "bench",
        });
        testbed.call("PUT", &format!("/backends/{name}"), testbed.stack.token(), Some(&backend))?;
    }
    sinks(session, &testbed, output).await?;
    Box::pin(peers::measure(session, &testbed, output)).await?;
    testbed.stack.stop().await;
    Ok(())
}

async fn sinks(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new(
        "events of objects, end to end",
        &[
            "consumed by",
            "received/s",
            "accepted/s",
            "CPU µs per event: pacemaker",
            "Redis",
            "load",
            "receivers",
            "cores busy",
            "target",
        ],
    );
    let behind = testbed.receivers.behind();
    for sink in Sink::ALL {
        let mut runs = Vec::new();
        for run in 0..=session.rounds.min(3) {
            let done = once(testbed, sink, sink.events(session.quick)).await?;
            // The first run warms everything up.
            if run > 0 {
                runs.push(done);
            }
        }
        table.rows.push(row(sink, &runs));
    }
    table.notes.push(format!(
        "medians of the runs; one event in a request, {CONNECTIONS} requests under way, {OBJECTS} objects, 200 bytes of \
         data; until all events of a run are received; the subscription has a timeout of 0"
    ));
    table.notes.push(match testbed.receivers.behind() - behind {
        0 => "every event was in order for its object, and none came twice".to_owned(),
        behind => format!("{behind} events came out of order or again"),
    });
    output.table(table)
}

async fn once(testbed: &Testbed, sink: Sink, events: u64) -> anyhow::Result<Run> {
    let requests = requests(testbed, sink, events);
    let expected = testbed.receivers.events() + events;
    let (begun, cpu) = (Instant::now(), testbed.cpu());
    send(testbed, requests, CONNECTIONS, Pace::Closed).await?;
    let accepted = begun.elapsed();
    testbed.drained(expected).await?;
    let (received, cpu) = (begun.elapsed(), testbed.cpu() - cpu);
    if testbed.receivers.events() > expected {
        bail!("{} events came twice", testbed.receivers.events() - expected);
    }
    Ok(Run { events, accepted, received, cpu })
}

/// Requests with one event each, of objects at random.
fn requests(testbed: &Testbed, sink: Sink, events: u64) -> Requests {
    let mut random = SmallRng::seed_from_u64(0x5159_a1b2);
    Requests::of((0..events).map(|_| {
        let (path, body) = group(sink, random.random_range(0..OBJECTS));
        testbed.published(&path, &body)
    }))
}

/// The path and the body of a request with one event.
fn group(sink: Sink, object: u64) -> (String, String) {
    let (topic, data) = (Audience::AtOnce.topic(), data(object));
    (
        format!("/objects/{}:{object}/events", sink.prefix()),
        format!(
            r#"{{"events":[{{"topic":"{topic}","type":"update","url":"{URLS}{object}","data":{data}}}]}}"#
        ),
    )
}

#[allow(clippy::cast_precision_loss)]
fn row(sink: Sink, runs: &[Run]) -> Vec<String> {
    let median = |property: &dyn Fn(&Run) -> f64| median_of(runs.iter().map(property));
    let rate = |took: &dyn Fn(&Run) -> Duration| median(&|run| run.events as f64 / took(run).as_secs_f64());
    let received = rate(&|run| run.received);
    let verdict = if received >= RATE_TARGET { "met" } else { "missed" };
    let cost = |part: &dyn Fn(&Split) -> Duration| {
        format!("{:.1}", median(&|run| part(&run.cpu).as_secs_f64() * 1e6 / run.events as f64))
    };
    vec![
        sink.name(),
        grouped(received),
        grouped(rate(&|run| run.accepted)),
        cost(&|cpu| cpu.pacemaker),
        cost(&|cpu| cpu.redis),
        cost(&|cpu| cpu.load),
        cost(&|cpu| cpu.receivers),
        format!(
            "{:.1} of {}",
            median(&|run| run.cpu.machine.as_secs_f64() / run.received.as_secs_f64()),
            cores().len()
        ),
        if sink == WIDEST { format!("≥ {}/s {verdict}", grouped(RATE_TARGET)) } else { String::new() },
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn an_object_belongs_to_one_sink() {
        for sink in Sink::ALL {
            let (path, body) = group(sink, 17);
            let fits = |other: &Sink| path.starts_with(&format!("/objects/{}:", other.prefix()));
            assert_eq!(Sink::ALL.iter().filter(|other| fits(other)).count(), 1, "{path}");
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["events"][0]["url"], format!("{URLS}17"));
        }
    }

    #[test]
    fn rates_are_of_the_time_until_all_are_received() {
        let run = |seconds| Run {
            events: 4_000,
            accepted: Duration::from_secs(1),
            received: Duration::from_secs(seconds),
            cpu: Split { redis: Duration::from_millis(400), ..Split::default() },
        };
        let row = row(Sink::Backend(0), &[run(2), run(4), run(8)]);
        assert_eq!(row[..3], ["an HTTP backend, 1 worker", "1,000", "4,000"]);
        assert_eq!(row[4], "100.0");
    }
}
