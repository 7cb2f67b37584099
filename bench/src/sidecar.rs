//! Log lines to counters: the sidecar's own folding on one core, the whole way into a real Redis, and what other
//! programs that count a log need for it.

use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use signalbox_stack::{Part, Stack};
use signalbox_store::{Options, Stats, keys};
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    compare::{Comparison, Contender, Measure, Sample},
    log,
    machine::{installed, pin, pin_current_thread},
    peers::on_core,
    process::{CpuTime, own_thread_cpu, threads},
    report::{Figure, Figures},
    session::{Output, Session},
};

/// The longest the way into Redis is followed.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The polling interval of the position.
const POLL: Duration = Duration::from_millis(5);
/// The target: folded lines per second on one core.
const TARGET: f64 = 1_000_000.0;

/// A generated log.
#[derive(Debug, Clone)]
struct Log {
    path: PathBuf,
    lines: u64,
    version_types: u32,
    bytes: u64,
}

impl Log {
    async fn write(folder: &Path, name: &str, lines: u64, version_types: u32) -> anyhow::Result<Self> {
        let path = folder.join(name);
        let target = path.clone();
        let bytes = spawn_blocking(move || log::write(&target, lines, version_types))
            .await?
            .context("writing a log")?;
        Ok(Self { path, lines, version_types, bytes })
    }
}

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let folder = session.folder("sidecar")?;
    let (whole, part) = if session.quick { (300_000, 50_000) } else { (5_000_000, 400_000) };
    let whole = Log::write(&folder, "whole.log", whole, 1_000).await?;
    let part = Log::write(&folder, "part.log", part, 1_000).await?;
    let peers = peers(output)?;
    output.comparison(folding(session, &folder, &whole, &part, peers).await?, "line")?;
    output.figures(into_redis(session, &whole).await?)?;
    // Few busy applications instead of many quiet ones: what a line costs Redis depends on it more than on anything.
    let few = Log::write(&folder, "few.log", whole.lines, 10).await?;
    output.figures(into_redis(session, &few).await?)?;
    Ok(())
}

/// Programs that count logs, as far as they are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Mtail,
    GoAccess,
}

fn peers(output: &mut Output) -> anyhow::Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for (peer, program) in [(Peer::Mtail, "mtail"), (Peer::GoAccess, "goaccess")] {
        if installed(program) {
            peers.push(peer);
        } else {
            output.skipped(format!("{program}: not installed (Debian package {program})"))?;
        }
    }
    Ok(peers)
}

/// Folding alone, in turns with the peers.
async fn folding(
    session: &Session,
    folder: &Path,
    whole: &Log,
    part: &Log,
    peers: Vec<Peer>,
) -> anyhow::Result<Comparison> {
    let core = session.cores.worker;
    let ours = ["sidecar, to increments", "sidecar, folding only"];
    let names = ours.into_iter().chain(peers.iter().map(|peer| peer.name()));
    let mut contenders: Vec<Contender> = names.map(|name| Contender::new(name, None)).collect();
    for _ in 0..3 {
        for (index, increments) in [true, false].into_iter().enumerate() {
            let log = whole.clone();
            contenders[index].samples.push(spawn_blocking(move || fold(&log, core, increments)).await??);
        }
        for (index, peer) in peers.iter().enumerate() {
            let (peer, log, folder) = (*peer, part.clone(), folder.to_owned());
            let sample = spawn_blocking(move || peer.count(&log, &folder, core)).await??;
            contenders[index + 2].samples.push(sample);
        }
    }
    let verdict = |contender: &Contender| {
        let rate = contender.median(|sample| sample.rate);
        format!(
            "target: 1,000,000 lines/s on one core: {}: {}",
            contender.name,
            if rate >= TARGET { "met" } else { "MISSED" }
        )
    };
    let verdicts = [verdict(&contenders[0]), verdict(&contenders[1])];
    let mut notes = vec![format!(
        "{} lines of {} bytes on average, 1,000 version types; peers count the first {} of them",
        whole.lines,
        whole.bytes / whole.lines,
        part.lines
    )];
    notes.extend(verdicts);
    let title = "counting a log on one core".to_owned();
    Ok(Comparison { title, measure: Measure::Rate, contenders, notes })
}

/// Folds the whole log on one core; with `increments` down to those that would be sent.
fn fold(log: &Log, core: usize, increments: bool) -> anyhow::Result<Sample> {
    // A thread of the runtime's pool: it keeps nothing but this.
    std::thread::scope(|scope| {
        let folding = scope.spawn(|| {
            pin_current_thread(&[core])?;
            let (begun, cpu) = (Instant::now(), own_thread_cpu());
            let summary = signalbox_sidecar::fold::file(&log.path, |fold| {
                if increments {
                    black_box(fold.increments());
                }
            })?;
            let (elapsed, cpu) = (begun.elapsed(), own_thread_cpu().saturating_sub(cpu));
            if (summary.lines, summary.bad_lines) != (log.lines, 0) {
                bail!("of {} lines, {} were counted and {} bad", log.lines, summary.lines, summary.bad_lines);
            }
            Ok(sample(log.lines, elapsed, cpu))
        });
        folding.join().map_err(|_| anyhow::anyhow!("the thread that folds has panicked"))?
    })
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Mtail => "mtail",
            Self::GoAccess => "GoAccess",
        }
    }

    fn command(self, log: &Log, folder: &Path, core: usize) -> Command {
        match self {
            Self::Mtail => {
                let mut command = on_core(core, "mtail");
                let program = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/count.mtail");
                command.args(["--one_shot", "--progs", program, "--logs"]).arg(&log.path);
                command.arg("--log_dir").arg(folder).env("GOMAXPROCS", "1");
                command
            }
            Self::GoAccess => {
                let mut command = on_core(core, "goaccess");
                command.arg(&log.path).args(["--no-global-config", "--no-progress", "--no-ip-validation"]);
                command.args(["--date-format=%Y-%m-%d", "--time-format=%H:%M:%S", "--log-format"]);
                command.arg(
                    r#"{"key":"%v","bytes":"%b","code":"%s","timemsec":"%^","nginx_response_time":"%T","upstream_response_time":"%^","upstream_status":"%^","upstream_addr":"%^","time":"%dT%t+%^","method":"%m","host":"%h","uri":"%U","request_id":"%^"}"#,
                );
                command.arg("--output").arg(folder.join("goaccess.json"));
                command
            }
        }
    }

    fn count(self, log: &Log, folder: &Path, core: usize) -> anyhow::Result<Sample> {
        let begun = Instant::now();
        let output = self
            .command(log, folder, core)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("running {}", self.name()))?;
        if !output.status.success() {
            bail!("{}: {}", self.name(), String::from_utf8_lossy(&output.stderr));
        }
        // On a separate core: the elapsed time is the CPU time.
        let elapsed = begun.elapsed();
        Ok(sample(log.lines, elapsed, elapsed))
    }
}

#[allow(clippy::cast_precision_loss)]
fn sample(lines: u64, elapsed: Duration, cpu: Duration) -> Sample {
    Sample {
        rate: lines as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / lines as f64,
        busy: cpu.as_secs_f64() / elapsed.as_secs_f64(),
        ..Sample::default()
    }
}

/// The daemon itself: the log appears at its place, and the position in Redis follows.
async fn into_redis(session: &Session, log: &Log) -> anyhow::Result<Figures> {
    let stack = Stack::builder()
        .temporary()?
        .without_nginx()
        .without_pacemaker()
        .sidecar("rotate_bytes", 0)
        .start()
        .await
        .context("starting the stack (its programs are built by `cargo build --release`)")?;
    let pid = |part: &Part| stack.part(part).pid().unwrap_or_default().unsigned_abs();
    let (sidecar, redis) = (pid(&Part::SIDECAR), pid(&Part::STATS));
    for thread in threads(sidecar) {
        pin(thread, &[session.cores.worker])?;
    }
    let stats = Stats::open(&stack.stats_url(), Options::default())?;
    let node = fs::read_to_string(stack.layout().node(1)).context("reading the name of the router")?;
    let position = keys::stats::position(node.trim());
    let (sidecar_before, redis_before) = (CpuTime::of(&[sidecar]), CpuTime::of(&[redis]));
    let begun = Instant::now();
    fs::rename(&log.path, stack.layout().access_log(1)).context("putting the log into its place")?;
    let counted = loop {
        let at: Option<u64> = stats.command("GET").key(&position).query().await?;
        let at = at.unwrap_or(0);
        if at >= log.bytes || begun.elapsed() > MAX_WAIT {
            break at;
        }
        tokio::time::sleep(POLL).await;
    };
    let elapsed = begun.elapsed();
    let (sidecar_cpu, redis_cpu) =
        (CpuTime::of(&[sidecar]) - sidecar_before, CpuTime::of(&[redis]) - redis_before);
    stack.stop().await;
    #[allow(clippy::cast_precision_loss)]
    let lines = log.lines as f64 * (counted as f64 / log.bytes as f64);
    let figure = |what: &str, value: f64, unit| Figure {
        what: what.to_owned(),
        samples: 1,
        p50: value,
        p99: value,
        max: value,
        target: None,
        unit,
    };
    let share = |cpu: CpuTime| cpu.on_cpu.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    Ok(Figures {
        title: format!(
            "a log of {} version types through the daemon into Redis ({lines:.0} of {} lines)",
            log.version_types, log.lines
        ),
        figures: vec![
            figure("log → counters in Redis", lines / elapsed.as_secs_f64(), "lines/s"),
            figure("CPU of the sidecar", sidecar_cpu.on_cpu.as_secs_f64() * 1e6 / lines, "µs per line"),
            figure(
                "CPU of the statistics Redis",
                redis_cpu.on_cpu.as_secs_f64() * 1e6 / lines,
                "µs per line",
            ),
        ],
        notes: vec![format!(
            "{:.1} s, in which the sidecar used {:.0} % of a core and Redis {:.0} %",
            elapsed.as_secs_f64(),
            share(sidecar_cpu),
            share(redis_cpu)
        )],
    })
}
