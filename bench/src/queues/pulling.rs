//! Pull and acknowledge, from a queue in which few tenants have messages waiting and from one in which many have.
//!
//! The two take turns, and each turn takes the same number of messages from a queue that holds the same number of them.
//! Before its next turn it is filled again, so that every tenant has something waiting all the time.

use std::time::Duration;

use super::{CONSUMERS, MAX, Queue, Tally, consume};
use crate::{
    bus::testbed::{Split, Testbed},
    compare::{Ratio, median_of},
    machine::cores,
    report::{Table, grouped, ratio},
    session::{Output, Session},
};

/// Messages a second that must be pulled and acknowledged, and the share of that with many tenants.
const RATE_TARGET: f64 = 35_000.0;
const SHARE_TARGET: f64 = 0.9;
const FEW: u64 = 10;

/// How much there is to do.
#[derive(Debug, Clone, Copy)]
struct Size {
    many: u64,
    /// Messages that wait when a turn begins: two of each of the many tenants, because a turn takes less than one.
    waiting: u64,
    /// Messages of a turn.
    turn: u64,
    turns: usize,
}

impl Size {
    fn of(session: &Session) -> Self {
        if session.quick {
            Self { many: 2_000, waiting: 4_000, turn: 1_000, turns: 2 }
        } else {
            Self { many: 100_000, waiting: 200_000, turn: 40_000, turns: session.rounds.min(6) }
        }
    }
}

/// The result of one turn.
#[derive(Debug)]
struct Turn {
    tally: Tally,
    cpu: Split,
}

impl Turn {
    #[allow(clippy::cast_precision_loss)]
    fn rate(&self) -> f64 {
        self.tally.pulled as f64 / self.tally.elapsed.as_secs_f64()
    }
}

pub(super) async fn measure(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let size = Size::of(session);
    let mut queues = [Queue::make(testbed, "few", FEW)?, Queue::make(testbed, "many", size.many)?];
    for queue in &mut queues {
        queue.fill(testbed, size.waiting).await?;
    }
    let mut turns = [Vec::new(), Vec::new()];
    for round in 0..=size.turns {
        for (queue, turns) in queues.iter_mut().zip(&mut turns) {
            let turn = once(testbed, queue, size.turn).await?;
            // The first round warms everything up.
            if round > 0 {
                turns.push(turn);
            }
        }
    }
    output.table(table(size, &turns))
}

async fn once(testbed: &Testbed, queue: &mut Queue, messages: u64) -> anyhow::Result<Turn> {
    let cpu = testbed.cpu();
    let tally = consume(queue.task(testbed, messages, 0)).await?;
    let cpu = testbed.cpu() - cpu;
    queue.waiting -= tally.acked;
    queue.fill(testbed, tally.acked).await?;
    Ok(Turn { tally, cpu })
}

fn table(size: Size, turns: &[Vec<Turn>; 2]) -> Table {
    let mut table = Table::new(
        "pull and acknowledge",
        &[
            "tenants with messages waiting",
            "messages/s",
            "÷ that of 10 (range)",
            "pull p50, p99 ms",
            "CPU µs per message: pacemaker",
            "Redis",
            "consumers",
            "cores busy",
            "target",
        ],
    );
    let [few, many] = turns;
    let share = Ratio::of_pairs(many.iter().zip(few).map(|(many, few)| (many.rate(), few.rate())));
    let verdict = |met| if met { "met" } else { "missed" };
    for (tenants, turns, share) in [(FEW, few, None), (size.many, many, share)] {
        let rate = median_of(turns.iter().map(Turn::rate));
        let mut targets = vec![format!("≥ {}/s {}", grouped(RATE_TARGET), verdict(rate >= RATE_TARGET))];
        if let Some(share) = share {
            targets.push(format!("≥ {SHARE_TARGET:.2} of that {}", verdict(share.median >= SHARE_TARGET)));
        }
        table.rows.push(row(tenants, turns, rate, share, &targets.join(", ")));
    }
    table.notes.push(format!(
        "{CONSUMERS} consumers, each of which pulls up to {MAX} messages and acknowledges them in one array; 200 bytes \
         of data; {} messages wait when a turn begins, and it takes {}",
        size.waiting, size.turn
    ));
    let again: u64 = turns.iter().flatten().map(|turn| turn.tally.again).sum();
    table.notes.push(if again == 0 {
        "every message was pulled once, and none was lost".to_owned()
    } else {
        format!("{again} messages were pulled again")
    });
    table
}

#[allow(clippy::cast_precision_loss)]
fn row(tenants: u64, turns: &[Turn], rate: f64, share: Option<Ratio>, targets: &str) -> Vec<String> {
    let median = |property: &dyn Fn(&Turn) -> f64| median_of(turns.iter().map(property));
    let cost = |part: &dyn Fn(&Turn) -> Duration| {
        format!("{:.1}", median(&|turn| part(turn).as_secs_f64() * 1e6 / turn.tally.pulled.max(1) as f64))
    };
    let pulls = |share| median(&|turn| turn.tally.pulls.quantile(share) as f64 / 1e6);
    vec![
        grouped(tenants as f64),
        grouped(rate),
        ratio(share),
        format!("{:.1}, {:.1}", pulls(0.5), pulls(0.99)),
        cost(&|turn| turn.cpu.pacemaker),
        cost(&|turn| turn.cpu.redis),
        cost(&|turn| turn.tally.cpu),
        format!(
            "{:.1} of {}",
            median(&|turn| turn.cpu.machine.as_secs_f64() / turn.tally.elapsed.as_secs_f64()),
            cores().len()
        ),
        targets.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;

    fn turns(seconds: &[u64]) -> Vec<Turn> {
        let turn = |seconds: &u64| Turn {
            tally: Tally {
                pulled: 48_000,
                acked: 48_000,
                again: 0,
                elapsed: Duration::from_secs(*seconds),
                pulls: Histogram::default(),
                waited: Histogram::default(),
                cpu: Duration::from_millis(80),
            },
            cpu: Split::default(),
        };
        seconds.iter().map(turn).collect()
    }

    #[test]
    fn the_share_is_taken_within_each_round() {
        // Twice as slow in the second round, both of them.
        let size = Size { many: 100_000, waiting: 200_000, turn: 48_000, turns: 2 };
        let table = table(size, &[turns(&[1, 2]), turns(&[2, 4])]);
        assert_eq!(table.rows[0][1..3], ["36,000", "1"]);
        assert!(table.rows[0][8].ends_with("/s met"), "{:?}", table.rows);
        assert_eq!(table.rows[1][1..3], ["18,000", "0.50 (0.50–0.50)"]);
        assert_eq!(table.rows[1][8], "≥ 35,000/s missed, ≥ 0.90 of that missed");
        assert_eq!(table.rows[0][6], "1.7");
    }
}
