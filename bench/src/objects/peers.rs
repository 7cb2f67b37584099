//! Ordered work compared with brokers: the same number of messages of the same objects, one at a time, from the first
//! publish until the last one is handled, for the bus, a backend, a queue and each broker in turn.
//!
//! The bus and a backend are comparable with brokers that keep an order. A queue is fair and keeps each tenant's
//! messages in order only as far as its consumers do, so its counterpart is the broker without an order.

use anyhow::Context as _;

use super::{Sink, WIDEST, once};
use crate::{
    bus::{
        brokers::{self, Broker, Work},
        testbed::{OBJECTS, Testbed},
    },
    compare::{Contender, Ratio, Sample},
    load::Pace,
    queues::{self, CONSUMERS, Queue, consume},
    report::{Table, grouped, ratio},
    session::{Output, Session},
};

/// Seconds that a pull waits.
const WAIT_SECONDS: u32 = 10;
/// How many contenders are ours. They come first: the bus, a backend, a queue.
const OURS: usize = 3;

/// A party that takes turns.
enum Party {
    Objects(Sink),
    Queue(Queue),
    Broker(Broker<'static>),
}

pub(super) async fn measure(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let folder = session.folder("ordered")?;
    let mut parties = vec![
        ("objects through the bus, in order for each object".to_owned(), None, Party::Objects(Sink::Bus)),
        (
            format!("objects through {}, in order for each object", WIDEST.name()),
            None,
            Party::Objects(WIDEST),
        ),
        (
            format!("a queue, {CONSUMERS} consumers, fair"),
            None,
            Party::Queue(Queue::make(testbed, "ordered", OBJECTS)?),
        ),
    ];
    let others = brokers::others(&folder, output).await?;
    parties
        .extend(others.into_iter().map(|(name, target, broker)| (name, Some(target), Party::Broker(broker))));
    let work = Work { messages: if session.quick { 400 } else { 20_000 }, batch: 1 };
    let mut contenders: Vec<Contender> =
        parties.iter().map(|(name, target, _)| Contender::new(name, *target)).collect();
    for round in 0..=session.rounds.min(3) {
        for ((name, _, party), contender) in parties.iter_mut().zip(&mut contenders) {
            let sample = turn(testbed, party, work).await.with_context(|| format!("a turn of {name}"))?;
            // The first round warms everything up.
            if round > 0 {
                contender.samples.push(sample);
            }
        }
    }
    output.table(table(&contenders, work.messages))
}

async fn turn(testbed: &Testbed, party: &mut Party, work: Work) -> anyhow::Result<Sample> {
    match party {
        Party::Broker(broker) => brokers::turn(broker, work).await,
        Party::Objects(sink) => {
            let handling = async {
                let behind = testbed.receivers.behind();
                once(testbed, *sink, work.messages).await?;
                Ok(testbed.receivers.behind() - behind)
            };
            brokers::measured(&testbed.pids(), work, handling).await
        }
        Party::Queue(queue) => {
            let requests = queue.requests(testbed, work.messages, 1);
            let consuming = consume(queue.task(testbed, work.messages, WAIT_SECONDS));
            let sending = queues::send(testbed, requests, super::CONNECTIONS, Pace::Closed);
            let handling = async {
                let (tally, ()) = tokio::try_join!(consuming, sending)?;
                Ok(tally.again)
            };
            brokers::measured(&testbed.pids(), work, handling).await
        }
    }
}

/// Rates, costs, and how often each of ours is as fast.
fn table(contenders: &[Contender], messages: u64) -> Table {
    let mut table = Table::new(
        "ordered work and brokers, one by one",
        &[
            "",
            "messages/s",
            "CPU µs per message",
            "bus ÷ rate (range)",
            "backend ÷ rate",
            "queue ÷ rate",
            "target",
        ],
    );
    for (index, contender) in contenders.iter().enumerate() {
        let ratios: Vec<Option<Ratio>> =
            contenders.iter().take(OURS).map(|ours| rates(ours, contender)).collect();
        let mut row = vec![
            contender.name.clone(),
            grouped(contender.median(|sample| sample.rate)),
            format!("{:.1}", contender.median(|sample| sample.cpu_us)),
        ];
        let cells = ratios.iter().enumerate();
        row.extend(cells.map(|(ours, of)| if ours == index { "1".to_owned() } else { ratio(*of) }));
        row.push(targets(contender, &ratios));
        table.rows.push(row);
        let failed: u64 = contender.samples.iter().map(|sample| sample.failed).sum();
        if failed > 0 {
            table.notes.push(format!("{}: {failed} messages came out of order or again", contender.name));
        }
    }
    table.notes.push(format!(
        "{messages} messages of 200 bytes in a turn, of {OBJECTS} objects, until all are handled; CPU: of all that take \
         part, clients included"
    ));
    table
}

fn rates(ours: &Contender, other: &Contender) -> Option<Ratio> {
    Ratio::of_pairs(ours.samples.iter().zip(&other.samples).map(|(ours, other)| (ours.rate, other.rate)))
}

/// Whether our parties are as fast as the brokers with the same guarantees. A party without an order has a target
/// below 1.
fn targets(contender: &Contender, ratios: &[Option<Ratio>]) -> String {
    let Some(target) = contender.target else { return String::new() };
    let alike: &[(usize, &str)] = if target < 1.0 { &[(2, "queue")] } else { &[(0, "bus"), (1, "backend")] };
    let verdicts = alike.iter().filter_map(|(index, name)| {
        let met = ratios.get(*index)?.as_ref()?.median >= target;
        Some(format!("{name} ≥ {target:.2} {}", if met { "met" } else { "missed" }))
    });
    verdicts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(name: &str, target: Option<f64>, rate: f64) -> Contender {
        let sample = Sample { rate, cpu_us: 1.0, ..Sample::default() };
        Contender { name: name.to_owned(), target, samples: vec![sample] }
    }

    #[test]
    fn each_broker_is_compared_with_the_party_of_equal_guarantees() {
        let contenders = [
            contender("bus", None, 10_000.0),
            contender("backend", None, 2_000.0),
            contender("queue", None, 8_000.0),
            contender("ordered", Some(1.0), 4_000.0),
            contender("plain", Some(0.9), 10_000.0),
        ];
        let table = table(&contenders, 100);
        assert_eq!(table.rows[3][3..6], ["2.50 (2.50–2.50)", "0.50 (0.50–0.50)", "2.00 (2.00–2.00)"]);
        assert_eq!(table.rows[3][6], "bus ≥ 1.00 met, backend ≥ 1.00 missed");
        assert_eq!(table.rows[4][6], "queue ≥ 0.90 missed");
        assert_eq!((&table.rows[0][3][..], &table.rows[0][6][..]), ("1", ""));
    }
}
