//! Child processes, and their CPU time and memory as the kernel counts them.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    ops::Sub,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};

/// A process id.
pub(crate) type Pid = u32;

/// A process that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: std::process::Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `log`.
    pub(crate) fn start(name: &str, command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let output = fs::File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self { child, name: name.to_owned(), log: log.to_owned() })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> Pid {
        self.child.id()
    }

    /// Waits until something listens on `address`.
    pub(crate) async fn listens_on(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        let output = || fs::read_to_string(&self.log).unwrap_or_default();
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}: {}", self.name, output());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("{} does not listen on {address}: {}", self.name, output())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM first, because a master that is killed leaves its workers behind.
        let _ =
            i32::try_from(self.child.id()).map(|pid| kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM));
        for _ in 0..200 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            #[allow(
                clippy::disallowed_methods,
                reason = "drop cannot await, and must not leave a process behind"
            )]
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of some processes, with all their threads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTime {
    /// Time on a core, as the scheduler counts it, to the nanosecond.
    pub(crate) on_cpu: Duration,
    /// User and system time in clock ticks of 10 ms, for the split only.
    pub(crate) user_ticks: u64,
    /// See [`Self::user_ticks`].
    pub(crate) system_ticks: u64,
}

impl CpuTime {
    /// The CPU time of `pids` so far; an ended process counts as zero.
    pub(crate) fn of(pids: &[Pid]) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
                let (user, system) = ticks(&stat).unwrap_or_default();
                sum.user_ticks += user;
                sum.system_ticks += system;
            }
            let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for task in tasks.flatten() {
                sum.on_cpu += schedstat(&task.path().join("schedstat"));
            }
        }
        sum
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            on_cpu: self.on_cpu.saturating_sub(earlier.on_cpu),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(earlier.system_ticks),
        }
    }
}

/// The time that all cores together have worked so far, for any process, in clock ticks.
pub(crate) fn machine_busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = busy_ticks(stat.lines().next().unwrap_or_default()).unwrap_or(0);
    Duration::from_millis(ticks * 10)
}

/// Everything in the first line of `/proc/stat` but idle time, waiting for disks, and what guests count twice.
fn busy_ticks(line: &str) -> Option<u64> {
    let fields = line.strip_prefix("cpu")?.split_ascii_whitespace().take(8);
    let ticks = fields
        .enumerate()
        .filter(|(index, _)| !matches!(index, 3 | 4))
        .map(|(_, field)| field.parse::<u64>());
    ticks.sum::<Result<_, _>>().ok()
}

/// CPU time of the calling thread.
pub(crate) fn own_thread_cpu() -> Duration {
    schedstat(Path::new("/proc/thread-self/schedstat"))
}

/// CPU time of a thread of this process.
pub(crate) fn thread_cpu(thread: i32) -> Duration {
    schedstat(Path::new(&format!("/proc/self/task/{thread}/schedstat")))
}

fn schedstat(path: &Path) -> Duration {
    let text = fs::read_to_string(path).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0);
    Duration::from_nanos(nanos)
}

/// User and system time out of a line of `/proc/<pid>/stat`.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    // The second field is the program's name in parentheses and may hold anything, so count from its end.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.nth(11)?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The processes that `pid` has started and that still run.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The threads of a process.
pub(crate) fn threads(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// How often the threads of a process were woken up so far: switches that they made to wait for something.
pub(crate) fn wakeups(pid: Pid) -> u64 {
    let count = |thread: Pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    threads(pid).into_iter().filter_map(count).sum()
}

/// Resident memory of a process in bytes, without what it shares with others.
pub(crate) fn private_memory(pid: Pid) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("reading the memory of process {pid}"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .context("no RssAnon in the status of a process")?;
    Ok(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_past_a_name_with_spaces_and_parentheses() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 17 5 0 0 20 0 1 0 100 1000 10";
        assert_eq!(ticks(stat), Some((17, 5)));
    }

    #[test]
    fn idle_time_is_not_work() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 5000 6000"), Some(63));
        assert_eq!(busy_ticks("cpu  x"), None);
    }

    #[test]
    fn this_process_uses_cpu_and_memory() {
        let pid = std::process::id();
        assert!(CpuTime::of(&[pid]).on_cpu > Duration::ZERO);
        assert!(private_memory(pid).unwrap() > 0);
        assert!(machine_busy() > Duration::ZERO);
        assert!(own_thread_cpu() > Duration::ZERO);
    }

    #[tokio::test]
    async fn a_thread_that_waits_is_woken_up() {
        let before = wakeups(std::process::id());
        // The threads that are counted must still exist afterwards.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(wakeups(std::process::id()) > before);
    }
}
