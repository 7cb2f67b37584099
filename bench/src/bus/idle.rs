//! The cost of an idle pacemaker.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use signalbox_stack::{Part, User};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    task::JoinSet,
    time::Instant,
};

use super::testbed::Testbed;
use crate::{
    process::CpuTime,
    report::Table,
    session::{Output, Session},
};

/// The targets, as upper limits.
const COMMANDS_TARGET: f64 = 15.0;
const CPU_TARGET: f64 = 1.0;

/// Commands that a server saw.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Sent by a client.
    sent: u64,
    /// Called by scripts.
    by_scripts: u64,
}

pub(super) async fn measure(session: &Session, testbed: &Testbed, output: &mut Output) -> anyhow::Result<()> {
    let time = Duration::from_secs(if session.quick { 2 } else { 10 });
    let ports = testbed.stack.ports();
    let servers = [("fabric", ports.fabric), ("routes", ports.routes), ("statistics", ports.stats)];
    let pids = [testbed.pid(&Part::PACEMAKER)];
    let fabric = [testbed.pid(&Part::FABRIC)];
    let (cpu, fabric_cpu) = (CpuTime::of(&pids).on_cpu, CpuTime::of(&fabric).on_cpu);
    let mut watching = JoinSet::new();
    let password = testbed.stack.layout().secrets().password(User::Operator)?;
    for (name, port) in servers {
        let password = password.clone();
        watching.spawn(async move { anyhow::Ok((name, watch(port, &password, time).await?)) });
    }
    let mut seen = BTreeMap::new();
    while let Some(watched) = watching.join_next().await {
        let (name, commands) = watched??;
        seen.insert(name, commands);
    }
    let share = |pids: &[u32], before: Duration| {
        (CpuTime::of(pids).on_cpu - before).as_secs_f64() / time.as_secs_f64() * 100.0
    };
    let (cpu, fabric_cpu) = (share(&pids, cpu), share(&fabric, fabric_cpu));
    let mut table = Table::new("an idle pacemaker", &["", "per second", "target"]);
    #[allow(clippy::cast_precision_loss)]
    let a_second = |count: u64| count as f64 / time.as_secs_f64();
    for (name, commands) in &seen {
        let rate = a_second(commands.sent);
        table.rows.push(vec![format!("commands to the {name} Redis"), format!("{rate:.1}"), String::new()]);
    }
    let verdict =
        |value: f64, target: f64| format!("< {target:.0} {}", if value < target { "met" } else { "missed" });
    let sent = a_second(seen.values().map(|commands| commands.sent).sum());
    let by_scripts = a_second(seen.values().map(|commands| commands.by_scripts).sum());
    table.rows.push(vec!["commands in all".into(), format!("{sent:.1}"), verdict(sent, COMMANDS_TARGET)]);
    table.rows.push(vec!["and called by scripts".into(), format!("{by_scripts:.1}"), String::new()]);
    table.rows.push(vec!["CPU of the pacemaker".into(), format!("{cpu:.2} %"), verdict(cpu, CPU_TARGET)]);
    table.rows.push(vec!["CPU of the fabric Redis".into(), format!("{fabric_cpu:.2} %"), String::new()]);
    table.notes.push(format!("over {} s, with 12 subscriptions", time.as_secs()));
    output.table(table)
}

/// Counts what a server executes for a while.
async fn watch(port: u16, password: &str, time: Duration) -> anyhow::Result<Seen> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    let user = User::Operator.name();
    stream.write_all(format!("AUTH {user} {password}\r\nMONITOR\r\n").as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    for _ in ["AUTH", "MONITOR"] {
        let answer = lines.next_line().await?.context("Redis closed the connection")?;
        anyhow::ensure!(answer == "+OK", "Redis does not allow MONITOR: {answer}");
    }
    let until = Instant::now() + time;
    let mut seen = Seen::default();
    while let Ok(line) = tokio::time::timeout_at(until, lines.next_line()).await {
        seen.count(&line?.context("a Redis that has ended")?);
    }
    Ok(seen)
}

impl Seen {
    /// `+1700000000.123456 [0 127.0.0.1:4711] "GET" "key"`, or `[0 lua]`. Servers talk among themselves, too.
    fn count(&mut self, line: &str) {
        let Some((from, command)) = line.split_once(']') else { return };
        let command = command.trim_start().to_ascii_lowercase();
        if ["\"replconf\"", "\"ping\"", "\"psync\""].iter().any(|other| command.starts_with(other)) {
            return;
        }
        if from.ends_with(" lua") {
            self.by_scripts += 1;
        } else {
            self.sent += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_clients_are_separate_from_those_of_scripts() {
        let mut seen = Seen::default();
        for line in [
            "+1700000000.1 [0 127.0.0.1:4711] \"EVALSHA\" \"abc\" \"1\" \"key]\"",
            "+1700000000.2 [0 lua] \"GET\" \"key\"",
            "+1700000000.3 [0 lua] \"TIME\"",
            "+1700000000.4 [0 127.0.0.1:4712] \"REPLCONF\" \"ACK\" \"1\"",
            "+OK",
        ] {
            seen.count(line);
        }
        assert_eq!((seen.sent, seen.by_scripts), (1, 2));
    }
}
