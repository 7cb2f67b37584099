//! The process group of a stack. Every part is started in it, and it is ended as a whole.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::{
        fs::{OpenOptionsExt as _, PermissionsExt as _},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child as StdChild, ChildStdin, Command as StdCommand, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;
use tokio::{
    process::{Child, Command},
    time,
};

use crate::{Error, Part, guard::GUARD_COMMAND, layout::Layout, proc};

/// A larger log is renamed (one generation is kept) when its part is started.
const LOG_BYTES: u64 = 16 << 20;
const POLL: Duration = Duration::from_millis(10);

/// The group, its guard, and the PIDs of the parts that were started in it.
#[derive(Debug)]
pub(crate) struct Group {
    layout: Layout,
    program: PathBuf,
    id: Pid,
    members: Mutex<Members>,
}

#[derive(Debug)]
struct Members {
    guard: StdChild,
    /// Kept open for the guard, which acts when it is closed.
    pipe: Option<ChildStdin>,
    /// The main processes of the guard and of every part. Any other process in the group is a descendant or an orphan.
    known: HashSet<i32>,
}

impl Group {
    /// Starts the guard, `program guard`, and with it the group.
    pub(crate) fn start(program: &Path, layout: &Layout) -> Result<Self, Error> {
        let mut guard = spawn_guard(program, layout, 0)?;
        let pid = pid_of(guard.id());
        let pipe = guard.stdin.take();
        let members = Mutex::new(Members { guard, pipe, known: HashSet::from([pid]) });
        let group =
            Self { layout: layout.clone(), program: program.to_owned(), id: Pid::from_raw(pid), members };
        group.record(&guard_part(), pid);
        Ok(group)
    }

    /// Restarts the guard if it was killed, and returns whether it did. Without a guard, the parts would survive if the
    /// starting process is killed.
    pub(crate) fn keep_guarded(&self) -> Result<bool, Error> {
        let mut members = self.members.lock();
        if members.pipe.is_none() || matches!(members.guard.try_wait(), Ok(None)) {
            return Ok(false);
        }
        let mut guard = spawn_guard(&self.program, &self.layout, self.id.as_raw())?;
        let (pid, old) = (pid_of(guard.id()), pid_of(members.guard.id()));
        members.pipe = guard.stdin.take();
        members.guard = guard;
        members.known.remove(&old);
        members.known.insert(pid);
        drop(members);
        self.record(&guard_part(), pid);
        Ok(true)
    }

    /// Starts `command` in the group, its output appended to the part's log.
    pub(crate) fn spawn(&self, part: &Part, mut command: Command) -> Result<(Child, i32), Error> {
        let log = open_log(&self.layout.log(part))?;
        let program = PathBuf::from(command.as_std().get_program());
        let failed = |source| Error::Spawn { part: part.clone(), program: program.clone(), source };
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        command.process_group(self.id.as_raw());
        // The lock covers the spawn, so that the new process is not mistaken for an orphan.
        let mut members = self.members.lock();
        let child = command.spawn().map_err(failed)?;
        let pid = child.id().map(pid_of).ok_or_else(|| failed(io::Error::other("it ended immediately")))?;
        members.known.insert(pid);
        drop(members);
        self.record(part, pid);
        Ok((child, pid))
    }

    /// Removes the record of a process that has ended.
    pub(crate) fn forget(&self, part: &Part, pid: i32) {
        self.members.lock().known.remove(&pid);
        let _absent = fs::remove_file(self.layout.pid_file(part));
    }

    /// Ends processes whose part is gone: nginx's workers survive a killed master and keep its ports.
    pub(crate) async fn end_orphans(&self) {
        loop {
            let orphans = self.orphans();
            if orphans.is_empty() {
                return;
            }
            for orphan in orphans {
                let _gone = kill(orphan.pid(), Signal::SIGKILL);
            }
            time::sleep(POLL).await;
        }
    }

    fn orphans(&self) -> Vec<proc::Process> {
        let members = self.members.lock();
        let all = proc::group(self.id.as_raw());
        let pids: HashSet<i32> = all.iter().map(|process| process.pid).collect();
        all.into_iter()
            .filter(|process| !members.known.contains(&process.pid) && !pids.contains(&process.parent))
            .collect()
    }

    /// Closes the pipe, waits until the guard has ended the remaining processes, and verifies that none is left.
    pub(crate) async fn end(&self) {
        self.members.lock().pipe = None;
        while matches!(self.members.lock().guard.try_wait(), Ok(None)) {
            time::sleep(POLL).await;
        }
        // Processes remain only if the guard itself was killed.
        while !proc::group(self.id.as_raw()).is_empty() {
            let _gone = killpg(self.id, Signal::SIGKILL);
            time::sleep(POLL).await;
        }
        let _absent = fs::remove_file(self.layout.pid_file(&guard_part()));
    }

    /// Kills everything immediately. Does nothing after [`Self::end`].
    pub(crate) fn kill(&self) {
        let mut members = self.members.lock();
        if members.pipe.take().is_some() {
            let _gone = killpg(self.id, Signal::SIGKILL);
            let _reaped = members.guard.wait();
        }
    }

    /// Writes a PID file. If that fails (a full disk), the part still runs: the file is needed only if the guard is killed,
    /// too.
    fn record(&self, part: &Part, pid: i32) {
        // The process has already ended.
        if let Some(process) = proc::process(pid) {
            let _unwritten = fs::write(self.layout.pid_file(part), format!("{pid} {}\n", process.started));
        }
    }
}

fn guard_part() -> Part {
    Part::named(GUARD_COMMAND)
}

/// Starts a guard that joins `group`, or leads a new one if `group` is 0.
fn spawn_guard(program: &Path, layout: &Layout, group: i32) -> Result<StdChild, Error> {
    let log = open_log(&layout.log(&guard_part()))?;
    let failed = |source| Error::Spawn { part: guard_part(), program: program.to_owned(), source };
    let output = log.try_clone().map_err(failed)?;
    let mut command = StdCommand::new(program);
    command.arg(GUARD_COMMAND).process_group(group).stdin(Stdio::piped()).stdout(output).stderr(log);
    command.spawn().map_err(failed)
}

/// Linux pids fit: the kernel's limit is 2^22.
fn pid_of(id: u32) -> i32 {
    i32::try_from(id).unwrap_or(i32::MAX)
}

/// Opens a log that only this user can read. The pacemaker's log has its audit records, and the workers of nginx, which run as
/// another user if Signalbox runs as root, can enter the folder.
fn open_log(path: &Path) -> Result<File, Error> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES) {
        fs::rename(path, path.with_extension("log.1")).map_err(Error::file("put aside", path))?;
    }
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let log = log.map_err(Error::file("open", path))?;
    // Also if an earlier release created it.
    log.set_permissions(Permissions::from_mode(0o600)).map_err(Error::file("close to others", path))?;
    Ok(log)
}

/// Ends processes that an earlier copy on the same folder left behind, and returns their number.
///
/// Such processes exist if the copy *and* its guard were killed. If a guard still runs, this waits for it. Then it ends the
/// groups of the recorded processes whose PID and start time both match the record.
pub(crate) async fn end_leftovers(layout: &Layout) -> Result<usize, Error> {
    let run = layout.run();
    let mut ended = HashSet::new();
    let entries = fs::read_dir(&run).map_err(Error::file("read", &run))?;
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let files: Vec<PathBuf> = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "pid"))
        .collect();
    let guard = recorded(&layout.pid_file(&guard_part()));
    if let Some(guard) = guard {
        // The guard acts when its pipe closes, and kills after 5 s.
        let gone = async {
            while recorded(&layout.pid_file(&guard_part())).is_some() {
                time::sleep(POLL).await;
            }
        };
        if time::timeout(Duration::from_secs(8), gone).await.is_err() {
            ended.extend(end_group(guard.group).await);
        }
    }
    for process in files.iter().filter_map(|file| recorded(file)) {
        ended.extend(end_group(process.group).await);
    }
    for file in files {
        fs::remove_file(&file).map_err(Error::file("remove", &file))?;
    }
    Ok(ended.len())
}

/// The running process that a PID file names.
fn recorded(file: &Path) -> Option<proc::Process> {
    let text = fs::read_to_string(file).ok()?;
    let (pid, started) = text.trim_end().split_once(' ')?;
    let process = proc::process(pid.parse().ok()?)?;
    (process.lives() && process.started.to_string() == started).then_some(process)
}

async fn end_group(group: i32) -> HashSet<i32> {
    let mut ended = HashSet::new();
    // Never this process's own group: a record cannot name it unless the file was edited.
    if group == nix::unistd::getpgrp().as_raw() {
        return ended;
    }
    loop {
        let members = proc::group(group);
        if members.is_empty() {
            return ended;
        }
        ended.extend(members.iter().map(|process| process.pid));
        let _gone = killpg(Pid::from_raw(group), Signal::SIGKILL);
        time::sleep(POLL).await;
    }
}
