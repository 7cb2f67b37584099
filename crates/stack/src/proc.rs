//! Reads processes and listening sockets from `/proc`. Linux only, like the whole stack.

use std::{fs, path::Path};

use nix::unistd::Pid;

/// The used fields of `/proc/<pid>/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    /// Clock ticks between boot and start. A PID can be reused; a PID with its start time is unique.
    pub(crate) started: u64,
}

impl Process {
    /// Whether it is alive: a zombie only waits for its parent. A zombie whose threads have not all ended still holds its
    /// ports.
    pub(crate) fn lives(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || threads(self.pid) > 1
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.pid)
    }
}

/// The process `pid`, if it exists.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// All visible processes, without those that end during the call.
pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| process(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The running members of a process group.
pub(crate) fn group(group: i32) -> Vec<Process> {
    processes().into_iter().filter(|process| process.group == group && process.lives()).collect()
}

/// The number of threads of a process; 0 if it has ended.
fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// `process` and all its descendants.
pub(crate) fn family(pid: i32) -> Vec<Process> {
    let all = processes();
    let mut family: Vec<Process> = all.iter().filter(|process| process.pid == pid).cloned().collect();
    let mut next = 0;
    while let Some(parent) = family.get(next).map(|process| process.pid) {
        family.extend(all.iter().filter(|process| process.parent == parent && process.lives()).cloned());
        next += 1;
    }
    family
}

/// The command line, with spaces between the arguments. nginx sets it to the role of the process.
pub(crate) fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()
}

/// The comm name can contain spaces and brackets, so fields are counted from the last bracket.
fn parse_stat(line: &str) -> Option<Process> {
    let (pid, rest) = line.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid: pid.parse().ok()?,
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// The process that listens on `port`, as ` by name (pid 1)`; empty if unknown (another user's process).
pub(crate) fn listener(port: u16) -> String {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .collect();
    let holder = processes().into_iter().find(|process| inodes.iter().any(|inode| holds(process.pid, inode)));
    holder.map_or_else(String::new, |process| format!(" by {} (pid {})", process.name, process.pid))
}

/// The inodes of the sockets in state LISTEN (`0A`) on `port`, from a table like `/proc/net/tcp`.
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    let suffix = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() > 9 && row[1].ends_with(&suffix) && row[3] == "0A")
        .map(|row| row[9].to_owned())
        .collect()
}

fn holds(pid: i32, inode: &str) -> bool {
    let link = format!("socket:[{inode}]");
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target == Path::new(&link)))
}

/// The hard limit of open files.
pub(crate) fn open_files_limit() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    row.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = "42 (nginx: (a) b) S 1 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 10 11";
        let process = parse_stat(line).unwrap();
        assert_eq!((process.pid, process.parent, process.group, process.started), (42, 1, 40, 987_654));
        assert_eq!(process.name, "nginx: (a) b");
    }

    #[test]
    fn the_holder_of_a_port_is_found() {
        let listener_socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener_socket.local_addr().unwrap().port();
        assert!(listener(port).ends_with(&format!("(pid {})", std::process::id())), "{}", listener(port));
    }

    #[test]
    fn a_process_is_its_own_descendant() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert_eq!(family(me)[0].pid, me);
        assert!(command_line(me).contains("stack"));
    }
}
