//! The machine on which the figures were measured, and the assignment of its cores.

use std::{fs, process::Command};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid as NixPid,
};
use serde::Serialize;

use crate::process::Pid;

/// Facts about the machine that are needed to compare figures.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Facts {
    /// Cores this process may use.
    pub(crate) cores: usize,
    /// As the CPU names itself.
    pub(crate) cpu: String,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Programs and their versions, `None` when one is not installed.
    pub(crate) programs: Vec<(String, Option<String>)>,
}

impl Facts {
    /// Collects them.
    pub(crate) fn gather() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()));
        let programs = [
            ("nginx", "-v"),
            ("redis-server", "--version"),
            ("haproxy", "-v"),
            ("caddy", "version"),
            ("sozu", "--version"),
            ("mtail", "--version"),
            ("goaccess", "--version"),
        ];
        Self {
            cores: cores().len(),
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            memory_mib: memory.unwrap_or(0) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            programs: programs.iter().map(|(name, flag)| ((*name).to_owned(), version(name, flag))).collect(),
        }
    }
}

/// The version in the first line of a program's output.
fn version(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // The first word that holds a number with a dot: "v=7.0.15", "nginx/1.22.1", "2.6.2".
    let word = text.split_whitespace().find(|word| {
        word.split_once('.').is_some_and(|(before, after)| {
            before.ends_with(|c: char| c.is_ascii_digit()) && after.starts_with(|c: char| c.is_ascii_digit())
        })
    })?;
    let start = word.find(|c: char| c.is_ascii_digit())?;
    Some(word[start..].trim_end_matches(['.', ',']).to_owned())
}

/// Whether a program is installed.
pub(crate) fn installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Which core does what: the process that is measured has one for itself.
#[derive(Debug, Clone)]
pub(crate) struct Cores {
    /// The core of the measured worker.
    pub(crate) worker: usize,
    /// Everything else.
    pub(crate) others: Vec<usize>,
}

impl Cores {
    /// Reserves the first core for the worker. With one core everything shares it, and only CPU time is meaningful.
    pub(crate) fn divide() -> Self {
        let all = cores();
        let worker = all.first().copied().unwrap_or(0);
        let others = if all.len() > 1 { all[1..].to_vec() } else { vec![worker] };
        Self { worker, others }
    }
}

/// The cores this process may use.
pub(crate) fn cores() -> Vec<usize> {
    match sched_getaffinity(NixPid::from_raw(0)) {
        Ok(set) => (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect(),
        Err(_) => vec![0],
    }
}

/// Keeps the calling thread, and the threads and processes it starts later, on `cores`.
pub(crate) fn pin_current_thread(cores: &[usize]) -> nix::Result<()> {
    sched_setaffinity(NixPid::from_raw(0), &set(cores)?)
}

/// Keeps another process (of one thread) on `cores`.
pub(crate) fn pin(pid: Pid, cores: &[usize]) -> nix::Result<()> {
    let pid = i32::try_from(pid).map_err(|_| nix::Error::EINVAL)?;
    sched_setaffinity(NixPid::from_raw(pid), &set(cores)?)
}

fn set(cores: &[usize]) -> nix::Result<CpuSet> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core)?;
    }
    Ok(set)
}
