//! From a change of the route table to the first request that follows it, through the real system: routes primary,
//! replica, tracking, worker.
//!
//! One thread writes the change and then asks for the host without a pause until the new instance answers; what is
//! measured lies between the first byte of the change and the last byte of that answer, so it includes one request.
//! The idle edge has nothing else to do; the saturated one serves as much as it can to 64 other connections, and the
//! measured request queues behind theirs.
//!
//! It also measures what else might grow with the table: the cost of one change for worker and replica, the duration
//! of the first request for a host that is not cached, and how soon each of the two serves again after it was killed.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use signalbox_stack::{Part, Stack, User};
use signalbox_store::{Options, RoutesPrimary, RoutesReplica, keys};
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    histogram::Histogram,
    hosts::Table,
    load::{Choice, Ends, Plan, Requests},
    machine::pin,
    probe::{Probe, acknowledged},
    process::{CpuTime, Pid, private_memory, wakeups},
    report::{self, Figure, Figures},
    session::{Output, Session},
};

/// The targets for p99, in milliseconds.
const IDLE_TARGET: f64 = 2.0;
const SATURATED_TARGET: f64 = 5.0;
/// The target for wakeups of an idle router, per second.
const WAKEUPS_TARGET: f64 = 20.0;
/// A change that has not arrived by then never will.
const LOST: Duration = Duration::from_secs(10);
/// Hosts that changes and load touch, out of a table of any size. They are in the cache when they change, as the hosts
/// of a living application are.
const TOUCHED: usize = 100;

/// Hosts that are not cached, each requested once.
const COLD: usize = 5_000;
/// Changes whose cost is counted, a millisecond apart: closer together they would share the worker's wake-ups.
const COUNTED: usize = 1_000;

/// How many changes, and how long they may take together.
#[derive(Debug, Clone, Copy)]
struct Limit {
    trials: usize,
    time: Duration,
}

/// The addresses a trial talks to.
#[derive(Debug, Clone)]
struct Addresses {
    edge: SocketAddr,
    admin: SocketAddr,
    primary: SocketAddr,
    /// Of the operator.
    password: String,
    instances: Vec<SocketAddr>,
    token: String,
}

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let ends = Ends::start(4, &session.cores.others)?;
    let stack = Stack::builder()
        .temporary()?
        .workers(1)
        .start()
        .await
        .context("starting the stack (its programs are built by `cargo build --release`)")?;
    pin_worker(session, &stack)?;
    let ports = stack.ports();
    let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let addresses = Addresses {
        edge: local(ports.edge),
        admin: local(ports.admin),
        primary: local(ports.routes),
        password: stack.layout().secrets().password(User::Operator)?,
        instances: ends.instances().to_vec(),
        token: stack.token().to_owned(),
    };
    output.table(idle_wakeups(session, &stack).await)?;
    let sizes = if session.quick { [100, 50_000] } else { [100, 1_000_000] };
    for count in sizes {
        let figures = at_size(session, &stack, &ends, &addresses, count).await?;
        output.figures(figures)?;
    }
    stack.stop().await;
    Ok(())
}

/// How often the processes of a router are woken up while nothing happens.
async fn idle_wakeups(session: &Session, stack: &Stack) -> report::Table {
    let seconds = if session.quick { 5 } else { 20 };
    let pid_of = |part: &Part| stack.part(part).pid().map(i32::unsigned_abs).into_iter().collect();
    let workers = stack.part(&Part::NGINX).workers().iter().map(|worker| worker.unsigned_abs()).collect();
    let processes: [(&str, Vec<Pid>); 3] = [
        ("nginx worker", workers),
        ("sidecar", pid_of(&Part::SIDECAR)),
        ("routes replica", pid_of(&Part::ROUTES_REPLICA)),
    ];
    let count = || processes.each_ref().map(|(_, pids)| pids.iter().copied().map(wakeups).sum::<u64>());
    // The start is over.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = count();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = count();
    let mut table = report::Table::new("wakeups of an idle router", &["", "per second", "target"]);
    let mut all = 0.0;
    for (((name, _), before), after) in processes.iter().zip(before).zip(after) {
        #[allow(clippy::cast_precision_loss)]
        let rate = (after - before) as f64 / seconds as f64;
        all += rate;
        table.rows.push(vec![(*name).to_owned(), format!("{rate:.1}"), String::new()]);
    }
    let verdict = if all < WAKEUPS_TARGET { "met" } else { "missed" };
    table.rows.push(vec!["all".to_owned(), format!("{all:.1}"), format!("< {WAKEUPS_TARGET} {verdict}")]);
    table
}

fn pin_worker(session: &Session, stack: &Stack) -> anyhow::Result<()> {
    for worker in stack.part(&Part::NGINX).workers() {
        pin(worker.unsigned_abs(), &[session.cores.worker])?;
    }
    Ok(())
}

async fn at_size(
    session: &Session,
    stack: &Stack,
    ends: &Ends,
    addresses: &Addresses,
    count: usize,
) -> anyhow::Result<Figures> {
    let begun = Instant::now();
    let table = Table::new("move", count, ends.instances(), 1);
    load(stack, &table, addresses).await?;
    let loaded = begun.elapsed();
    let limit = if session.quick {
        Limit { trials: 100, time: Duration::from_secs(2) }
    } else {
        Limit { trials: 1000, time: Duration::from_secs(6) }
    };
    let mut figures = Vec::new();
    for saturated in [false, true] {
        let (state, target) = if saturated { ("saturated", SATURATED_TARGET) } else { ("idle", IDLE_TARGET) };
        let busy = saturated.then(|| load_plan(&table, addresses, limit));
        let ((request, served), rate) = under_load(ends, busy, {
            let (table, addresses) = (table.clone(), addresses.clone());
            move || changes(&table, &addresses, limit)
        })
        .await?;
        let state = if saturated { format!("{state}, {rate:.0} requests/s") } else { state.to_owned() };
        figures.push(figure(&format!("a request without a change, {state}"), &request, None));
        figures.push(figure(&format!("SADD+SREM → served, {state}"), &served, Some(target)));
        let busy = saturated.then(|| load_plan(&table, addresses, limit));
        let ((put, served), _) = under_load(ends, busy, {
            let (table, addresses) = (table.clone(), addresses.clone());
            move || puts(&table, &addresses, limit)
        })
        .await?;
        figures.push(figure(&format!("PUT → answered, {state}"), &put, None));
        figures.push(figure(&format!("PUT → served, {state}"), &served, None));
    }
    if count >= TOUCHED + COLD {
        let (cold, again) = spawn_blocking({
            let (table, addresses) = (table.clone(), addresses.clone());
            move || lookups(&table, &addresses)
        })
        .await
        .context("the thread of the lookups")??;
        figures.push(figure("first request for a host, idle", &cold, None));
        figures.push(figure("second request for it, idle", &again, None));
    }
    let megabytes = |part: &Part| {
        let pid = stack.part(part).pid().unwrap_or_default().unsigned_abs();
        private_memory(pid).map_or(0, |bytes| bytes / (1024 * 1024))
    };
    let mut notes = vec![format!(
        "table loaded, replicated and acknowledged in {:.1} s; routes primary {} MiB, replica {} MiB",
        loaded.as_secs_f64(),
        megabytes(&Part::ROUTES_PRIMARY),
        megabytes(&Part::ROUTES_REPLICA)
    )];
    notes.push(cost_of_a_change(stack, &table, addresses).await?);
    for (part, name) in [(Part::NGINX, "nginx"), (Part::ROUTES_REPLICA, "the routes replica")] {
        let took = killed_and_back(stack, part, &table, addresses).await?;
        notes.push(format!("{name} killed and started: serves again after {:.2} s", took.as_secs_f64()));
        pin_worker(session, stack)?;
    }
    Ok(Figures { title: format!("change → routed with {count} hosts in the table"), figures, notes })
}

/// The cost of a change of a cached host for the worker and the replica, until it is effective.
async fn cost_of_a_change(stack: &Stack, table: &Table, addresses: &Addresses) -> anyhow::Result<String> {
    let primary = RoutesPrimary::open(&stack.routes_url(), Options::default())?;
    let mut edge = Probe::connect(addresses.edge)?;
    let touched = TOUCHED.min(table.len());
    for host in table.hosts().take(touched) {
        answering(&mut edge, &host)?;
    }
    let workers: Vec<_> =
        stack.part(&Part::NGINX).workers().iter().map(|worker| worker.unsigned_abs()).collect();
    let replica = [stack.part(&Part::ROUTES_REPLICA).pid().context("a replica")?.unsigned_abs()];
    let before = (CpuTime::of(&workers), CpuTime::of(&replica));
    let mut serial = 0;
    for trial in 0..COUNTED {
        let key = keys::routes::instances(&table.host(trial % touched));
        let new = addresses.instances[trial / touched % addresses.instances.len()].to_string();
        let mut batch = primary.batch();
        batch.add("DEL", &key, None::<&str>);
        batch.add("SADD", &key, new);
        batch.add("INCR", &keys::routes::serial(), None::<&str>);
        let replies = batch.query::<Vec<u64>>().await?;
        serial = replies.last().copied().context("the new serial")?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    acknowledged(addresses.admin, serial)?;
    let after = (CpuTime::of(&workers), CpuTime::of(&replica));
    let micros = |spent: CpuTime| spent.on_cpu.as_secs_f64() * 1e6 / COUNTED as f64;
    Ok(format!(
        "a change of a cached host: {:.0} µs of the worker's time, {:.0} µs of the replica's",
        micros(after.0 - before.0),
        micros(after.1 - before.1)
    ))
}

/// From the start of a killed part until the edge serves a host that is not in any cache.
async fn killed_and_back(
    stack: &Stack,
    part: Part,
    table: &Table,
    addresses: &Addresses,
) -> anyhow::Result<Duration> {
    let host = table.host(table.len() - 1);
    let handle = stack.part(&part);
    handle.kill().await?;
    let begun = Instant::now();
    handle.start_only().await?;
    loop {
        let served = Probe::connect(addresses.edge).and_then(|mut edge| edge.get(&host, "/"));
        if served.is_ok_and(|reply| reply.status == 200) {
            return Ok(begun.elapsed());
        }
        if begun.elapsed() > Duration::from_secs(120) {
            bail!("{part} was killed, and {host} is not served any more");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Requests for uncached hosts spread over the whole table, and for the same hosts again.
fn lookups(table: &Table, addresses: &Addresses) -> anyhow::Result<(Histogram, Histogram)> {
    let mut edge = Probe::connect(addresses.edge)?;
    let stride = (table.len() - TOUCHED) / COLD;
    let (mut cold, mut again) = (Histogram::default(), Histogram::default());
    for histogram in [&mut cold, &mut again] {
        for index in 0..COLD {
            let host = table.host(TOUCHED + index * stride);
            let begun = Instant::now();
            answering(&mut edge, &host)?;
            histogram.record(nanos(begun.elapsed()));
        }
    }
    Ok((cold, again))
}

/// Fills the table and waits until the worker has seen all of it.
async fn load(stack: &Stack, table: &Table, addresses: &Addresses) -> anyhow::Result<()> {
    let options = Options { response_timeout: Duration::from_secs(30), ..Options::default() };
    let primary = RoutesPrimary::open(&stack.routes_url(), options)?;
    let replica = RoutesReplica::open(&stack.routes_replica_url(), options)?;
    table.load(&primary).await?;
    let wanted: u64 = primary.command("GET").key(&keys::routes::serial()).query().await?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let arrived: Option<u64> = replica.command("GET").key(&keys::routes::serial()).query().await?;
        if arrived >= Some(wanted) {
            break;
        }
        if Instant::now() > deadline {
            bail!("the replica has serial {arrived:?}, the primary {wanted}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    acknowledged(addresses.admin, wanted)
}

/// The load that keeps the worker busy while trials run.
fn load_plan(table: &Table, addresses: &Addresses, limit: Limit) -> Plan {
    let requests = Arc::new(Requests::for_hosts(table.hosts().take(TOUCHED)));
    Plan {
        choice: Choice::Uniform,
        ramp: Duration::from_millis(200),
        ..Plan::once(addresses.edge, requests, 64, limit.time)
    }
}

/// Runs trials on a separate thread, under load if there is a plan for it; also returns the rate of the load.
async fn under_load<T: Send + 'static>(
    ends: &Ends,
    busy: Option<Plan>,
    trials: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<(T, f64)> {
    let trials = spawn_blocking(trials);
    let rate = match busy {
        Some(plan) => ends.run(plan).await?.rate(),
        None => 0.0,
    };
    Ok((trials.await.context("the thread of the trials")??, rate))
}

/// Changes written to the primary by hand: the request before each of them, and when the new instance is served.
fn changes(table: &Table, addresses: &Addresses, limit: Limit) -> anyhow::Result<(Histogram, Histogram)> {
    let mut primary = TcpStream::connect(addresses.primary)?;
    primary.set_nodelay(true)?;
    let login = ["AUTH", User::Operator.name(), &addresses.password].join(" ") + "\r\n";
    primary.write_all(login.as_bytes())?;
    let mut accepted = [0; b"+OK\r\n".len()];
    primary.read_exact(&mut accepted)?;
    if &accepted != b"+OK\r\n" {
        bail!("the primary rejected the login");
    }
    let mut edge = Probe::connect(addresses.edge)?;
    let (mut request, mut served) = (Histogram::default(), Histogram::default());
    let deadline = Instant::now() + limit.time;
    for trial in 0..limit.trials {
        if Instant::now() > deadline {
            break;
        }
        let host = table.host(trial % TOUCHED.min(table.len()));
        let asked = Instant::now();
        let old = answering(&mut edge, &host)?;
        request.record(nanos(asked.elapsed()));
        let new = another(&addresses.instances, old)?;
        let key = format!("instances:{host}");
        let change = transaction(&[
            &["SADD", &key, &new.to_string()],
            &["SREM", &key, &SocketAddr::new(new.ip(), old).to_string()],
            &["INCR", "serial"],
        ]);
        let begun = Instant::now();
        primary.write_all(&change)?;
        let seen = until_answered_by(&mut edge, &host, new.port(), begun)?;
        served.record(nanos(seen - begun));
        expect_executed(&mut primary)?;
    }
    Ok((request, served))
}

/// Changes made over the public API: how long its answer takes, and when the new instance is served.
fn puts(table: &Table, addresses: &Addresses, limit: Limit) -> anyhow::Result<(Histogram, Histogram)> {
    let mut admin = Probe::connect(addresses.admin)?;
    let mut edge = Probe::connect(addresses.edge)?;
    let (mut put, mut served) = (Histogram::default(), Histogram::default());
    let deadline = Instant::now() + limit.time;
    // Every host has an instance of that name first, so that each trial is a move and nothing else. Its host names
    // are its own: an address belongs to one instance.
    let hosts: Vec<_> =
        (0..addresses.instances.len() / 2).map(|index| format!("put-{index}.example")).collect();
    for trial in 0..limit.trials {
        if Instant::now() > deadline {
            break;
        }
        let which = trial % hosts.len();
        let host = &hosts[which];
        // Each of them moves between two addresses that no other host has.
        let new = addresses.instances[which * 2 + (trial / hosts.len()) % 2];
        let body = format!(
            r#"{{"address":"{new}","hostnames":["{host}"],"version_type_id":"{}"}}"#,
            table.len() % 1000 + 1
        );
        let request = format!(
            "PUT /instances/bench-{which} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            addresses.token,
            body.len()
        );
        let begun = Instant::now();
        let (answered, seen) = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let reply = admin.ask(request.as_bytes())?;
                if !matches!(reply.status, 200 | 201) {
                    bail!("PUT answered {}: {}", reply.status, String::from_utf8_lossy(&reply.body));
                }
                Ok(Instant::now())
            });
            let seen = until_answered_by(&mut edge, host, new.port(), begun);
            let answered = asking.join().map_err(|_| anyhow::anyhow!("the thread that asks has panicked"))?;
            anyhow::Ok((answered?, seen?))
        })?;
        // The first of each is a registration, not a move.
        if trial >= hosts.len() {
            put.record(nanos(answered - begun));
            served.record(nanos(seen - begun));
        }
    }
    Ok((put, served))
}

/// The port of the instance that answers for a host.
fn answering(edge: &mut Probe, host: &str) -> anyhow::Result<u16> {
    let reply = edge.get(host, "/")?;
    if reply.status != 200 {
        bail!("{host} answered {}: {}", reply.status, String::from_utf8_lossy(&reply.body));
    }
    port(&reply.body).with_context(|| format!("{host} was answered by a stranger"))
}

/// When the instance on `wanted` first answered. Other answers are those of the time before the change.
fn until_answered_by(edge: &mut Probe, host: &str, wanted: u16, begun: Instant) -> anyhow::Result<Instant> {
    loop {
        let reply = edge.get(host, "/")?;
        let now = Instant::now();
        if reply.status == 200 && port(&reply.body) == Some(wanted) {
            return Ok(now);
        }
        if now - begun > LOST {
            bail!("{host} is not served by port {wanted} after {} s", LOST.as_secs());
        }
    }
}

fn port(body: &[u8]) -> Option<u16> {
    std::str::from_utf8(body).ok()?.trim().parse().ok()
}

fn another(instances: &[SocketAddr], port: u16) -> anyhow::Result<SocketAddr> {
    let position =
        instances.iter().position(|address| address.port() == port).context("an unknown instance")?;
    Ok(instances[(position + 1) % instances.len()])
}

/// Commands as one transaction, so that no router sees half of a move.
fn transaction(commands: &[&[&str]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for command in [&["MULTI"][..]].iter().chain(commands).chain([&&["EXEC"][..]]) {
        bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for word in *command {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
    }
    bytes
}

/// Reads the replies of a transaction of three commands whose results are numbers.
fn expect_executed(primary: &mut TcpStream) -> anyhow::Result<()> {
    // OK, QUEUED three times, then an array of three: eight lines.
    let mut text = Vec::new();
    let mut chunk = [0; 512];
    while text.iter().filter(|byte| **byte == b'\n').count() < 8 && !text.starts_with(b"-") {
        match primary.read(&mut chunk)? {
            0 => bail!("the primary closed the connection"),
            n => text.extend_from_slice(&chunk[..n]),
        }
    }
    if text.contains(&b'-') {
        bail!("the primary rejected a change: {}", String::from_utf8_lossy(&text));
    }
    Ok(())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_precision_loss)]
fn figure(what: &str, histogram: &Histogram, target: Option<f64>) -> Figure {
    let milliseconds = |nanos: u64| nanos as f64 / 1e6;
    Figure {
        what: what.to_owned(),
        samples: histogram.count(),
        p50: milliseconds(histogram.quantile(0.5)),
        p99: milliseconds(histogram.quantile(0.99)),
        max: milliseconds(histogram.max()),
        target,
        unit: "ms",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_framed_for_redis() {
        let text = String::from_utf8(transaction(&[&["SADD", "k", "v"]])).unwrap();
        assert_eq!(
            text,
            "*1\r\n$5\r\nMULTI\r\n*3\r\n$4\r\nSADD\r\n$1\r\nk\r\n$1\r\nv\r\n*1\r\n$4\r\nEXEC\r\n"
        );
    }

    #[test]
    fn the_other_instance_is_never_the_same() {
        let instances: Vec<SocketAddr> =
            (1..=3).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        for address in &instances {
            assert_ne!(another(&instances, address.port()).unwrap().port(), address.port());
        }
        another(&instances, 99).unwrap_err();
    }
}
