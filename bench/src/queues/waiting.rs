//! From acceptance to a consumer that waits for it.

use super::{CONSUMERS, MAX, Queue, consume, send};
use crate::{
    bus::testbed::Testbed,
    compare::median_of,
    histogram::Histogram,
    load::Pace,
    report::{Table, grouped},
    session::{Output, Session},
};

/// Tenants that send.
const TENANTS: u64 = 100;
/// Connections of the producer.
const CONNECTIONS: usize = 16;
/// How long a pull waits.
const WAIT_SECONDS: u32 = 10;

#[allow(clippy::cast_precision_loss)]
pub(super) async fn measure(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let (rates, seconds): (&[u64], u64) = if session.quick { (&[200], 1) } else { (&[1_000, 4_000], 4) };
    let mut queue = Queue::make(testbed, "waiting", TENANTS)?;
    let mut table = Table::new(
        "from accepted to pulled by a consumer that waits",
        &["accepted/s", "messages", "p50 ms", "p99 ms", "longest ms"],
    );
    for rate in rates {
        let mut runs = Vec::new();
        for run in 0..=session.rounds.min(3) {
            let waited = once(testbed, &mut queue, *rate, rate * seconds).await?;
            // The first run warms everything up.
            if run > 0 {
                runs.push(waited);
            }
        }
        let median = |of: &dyn Fn(&Histogram) -> u64| {
            format!("{:.1}", median_of(runs.iter().map(|run| of(run) as f64 / 1e6)))
        };
        table.rows.push(vec![
            grouped(*rate as f64),
            grouped(runs.iter().map(Histogram::count).sum::<u64>() as f64),
            median(&|run| run.quantile(0.5)),
            median(&|run| run.quantile(0.99)),
            median(&Histogram::max),
        ]);
    }
    table.notes.push(format!(
        "medians of the runs; one by one at random moments, from {TENANTS} tenants; {CONSUMERS} consumers, which pull up \
         to {MAX} and wait {WAIT_SECONDS} s for them; from the millisecond in the message's id to the clock of the \
         consumer, on the same machine"
    ));
    output.table(table)
}

async fn once(testbed: &Testbed, queue: &mut Queue, rate: u64, messages: u64) -> anyhow::Result<Histogram> {
    let requests = queue.requests(testbed, messages, 1);
    #[allow(clippy::cast_precision_loss)]
    let pace = Pace::Sleepy { rate: rate as f64 };
    let consuming = consume(queue.task(testbed, messages, WAIT_SECONDS));
    let (tally, ()) = tokio::try_join!(consuming, send(testbed, requests, CONNECTIONS, pace))?;
    Ok(tally.waited)
}
