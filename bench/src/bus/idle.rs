//! What a pacemaker costs that has nothing to do.

use std::time::Duration;

use anyhow::Context as _;
use signalbox_stack::Part;

use super::house::House;
use crate::{
    process::CpuTime,
    report::Table,
    session::{Output, Session},
};

/// What it must stay below.
const COMMANDS_BAR: f64 = 20.0;
const CPU_BAR: f64 = 1.0;

/// Commands that a server executes for its replicas, and for those who ask this.
const NOT_OURS: [&str; 3] = ["cmdstat_info", "cmdstat_replconf", "cmdstat_psync"];

/// Measures it.
///
/// # Errors
/// When a Redis does not tell.
pub(super) async fn measure(session: &Session, house: &House, output: &mut Output) -> anyhow::Result<()> {
    let time = Duration::from_secs(if session.quick { 2 } else { 10 });
    let servers = [
        ("fabric", house.stack.fabric_url()),
        ("routes", house.stack.routes_url()),
        ("statistics", house.stack.stats_url()),
    ];
    let mut before = Vec::new();
    for (_, url) in &servers {
        before.push(commands(url).await?);
    }
    let pids = [house.pid(&Part::PACEMAKER)];
    let fabric = [house.pid(&Part::FABRIC)];
    let (cpu, fabric_cpu) = (CpuTime::of(&pids).on_cpu, CpuTime::of(&fabric).on_cpu);
    tokio::time::sleep(time).await;
    let share =
        |pids: &[u32], before| (CpuTime::of(pids).on_cpu - before).as_secs_f64() / time.as_secs_f64() * 100.0;
    let (cpu, fabric_cpu) = (share(&pids, cpu), share(&fabric, fabric_cpu));
    let mut table = Table::new("an idle pacemaker", &["", "a second", "bar"]);
    let mut sum = 0.0;
    for ((name, url), before) in servers.iter().zip(before) {
        #[allow(clippy::cast_precision_loss)]
        let rate = (commands(url).await? - before) as f64 / time.as_secs_f64();
        sum += rate;
        table.rows.push(vec![format!("commands to the {name} Redis"), format!("{rate:.1}"), String::new()]);
    }
    let verdict = |value: f64, bar: f64| format!("< {bar:.0} {}", if value < bar { "met" } else { "missed" });
    table.rows.push(vec!["commands in all".into(), format!("{sum:.1}"), verdict(sum, COMMANDS_BAR)]);
    table.rows.push(vec!["CPU of the pacemaker".into(), format!("{cpu:.2} %"), verdict(cpu, CPU_BAR)]);
    table.rows.push(vec!["CPU of the fabric Redis".into(), format!("{fabric_cpu:.2} %"), String::new()]);
    table
        .notes
        .push(format!("over {} s, with 12 subscriptions; what scripts call counts too", time.as_secs()));
    output.table(table)
}

/// Commands that a server has executed so far.
async fn commands(url: &str) -> anyhow::Result<u64> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await.context("connecting to Redis")?;
    let text: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
    Ok(counted(&text))
}

fn counted(text: &str) -> u64 {
    let calls = text.lines().filter(|line| !NOT_OURS.iter().any(|other| line.starts_with(other)));
    calls
        .filter_map(|line| {
            line.strip_prefix("cmdstat_")?.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_but_for_those_of_replicas() {
        let text = "# Commandstats\r\ncmdstat_get:calls=3,usec=9\r\ncmdstat_replconf:calls=50,usec=1\r\ncmdstat_info:calls=7,usec=1\r\ncmdstat_client|setinfo:calls=2,usec=1\r\n";
        assert_eq!(counted(text), 5);
    }
}
