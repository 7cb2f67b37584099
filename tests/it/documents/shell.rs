//! A shell in which a reader types the commands of a page.

use std::{path::Path, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time,
};

use signalbox_testkit::PATIENCE;

/// Marks the end of a step's output.
const END: &str = "\u{1e}end";
/// Marks the line of standard error with the status that curl received.
const STATUS: &str = "\u{1e}status ";
/// A command that failed.
const FAILED: &str = "\u{1e}failed ";

/// The output of a step.
#[derive(Debug)]
pub(super) struct Printed {
    pub(super) out: String,
    /// Standard error without what is below.
    pub(super) wrong: String,
    /// The status of each answer that curl got.
    pub(super) statuses: Vec<u16>,
    /// Commands that ended with another code than 0.
    pub(super) failed: Vec<String>,
}

pub(super) struct Shell {
    _bash: Child,
    input: ChildStdin,
    out: Lines<BufReader<ChildStdout>>,
    wrong: Lines<BufReader<ChildStderr>>,
}

impl Shell {
    /// One in `folder`, where `signalbox` is the program that was built.
    pub(super) async fn start(folder: &Path, programs: &Path) -> Self {
        let home = folder.join("home");
        std::fs::create_dir_all(home.join(".local/share/bash-completion/completions")).unwrap();
        std::fs::write(
            home.join(".curlrc"),
            "write-out = \"%{stderr}\\n\\x1estatus %{http_code}\\n\"\n".replace("\\x1e", "\u{1e}"),
        )
        .unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(folder)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("HOME", &home)
            .env("CURL_HOME", &home)
            .env("DOCS", Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs"))
            .env_remove("SIGNALBOX_URL")
            .env_remove("SIGNALBOX_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, out, wrong) =
            (bash.stdin.take().unwrap(), bash.stdout.take().unwrap(), bash.stderr.take().unwrap());
        let mut shell = Self {
            _bash: bash,
            input,
            out: BufReader::new(out).lines(),
            wrong: BufReader::new(wrong).lines(),
        };
        // In functions as well, and in a pipeline whichever of its commands it is.
        let trap = format!(
            "set -E -o pipefail\ntrap 'printf \"\\n{FAILED}%s: %s\\n\" \"$?\" \"$BASH_COMMAND\" >&2' ERR\n"
        );
        shell.run(&trap).await;
        shell
    }

    /// Types lines, and reads what they print.
    pub(super) async fn run(&mut self, commands: &str) -> Printed {
        // Without this redirection a command would read the next commands as its input.
        let typed =
            format!("{{\n{commands}\n}} </dev/null\nprintf '\\n{END}\\n'; printf '\\n{END}\\n' >&2\n");
        self.input.write_all(typed.as_bytes()).await.unwrap();
        let both = async { tokio::join!(until_end(&mut self.out), until_end(&mut self.wrong)) };
        let (out, wrong) = time::timeout(3 * PATIENCE, both)
            .await
            .unwrap_or_else(|_| panic!("it does not end:\n{commands}"));
        let marked = |mark: &str| wrong.iter().filter_map(|line| line.strip_prefix(mark)).collect::<Vec<_>>();
        Printed {
            out: out.join("\n"),
            statuses: marked(STATUS).iter().map(|status| status.trim().parse().unwrap_or(0)).collect(),
            failed: marked(FAILED).into_iter().map(str::to_owned).collect(),
            wrong: wrong
                .iter()
                .filter(|line| !line.starts_with('\u{1e}'))
                .map(|line| format!("{line}\n"))
                .collect(),
        }
    }
}

async fn until_end(lines: &mut Lines<BufReader<impl AsyncRead + Unpin>>) -> Vec<String> {
    let mut read = Vec::new();
    loop {
        match lines.next_line().await.unwrap() {
            Some(line) if line == END => return read,
            Some(line) => read.push(line),
            None => panic!("the shell has ended: {read:#?}"),
        }
    }
}
