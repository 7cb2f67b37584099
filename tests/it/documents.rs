//! Every command in the documentation is run, page after page, in the folder where `signalbox up --demo` runs. Its output
//! must have the shape of the output that the page shows.
//!
//! [`page`] defines what a page may contain and how a block is excluded.

mod page;
mod shape;
mod shell;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use signalbox_testkit::PATIENCE;
use signalbox_tests::slots;

use crate::up::{Up, program};

use page::Step;
use shape::Shown;
use shell::{Printed, Shell};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Commands that run until they are interrupted. They are interrupted here after two seconds.
const ENDLESS: [&str; 3] = ["curl -N ", "signalbox events tail --topic", "signalbox stats top"];

fn bounded(commands: &str) -> String {
    let bound = |line: &str| {
        let endless = ENDLESS.iter().any(|begin| line.starts_with(begin));
        if endless && !line.contains("--once") && !line.contains("--count") {
            // 124 is the exit code of `timeout`, 28 that of a curl that reached its time limit, 130
            // that of an interrupted command.
            format!("timeout --signal=INT 2 {line} || [ $? -eq 124 ]\n")
        } else {
            format!("{line}\n")
        }
    };
    commands.lines().map(bound).collect()
}

/// Whether a step changes nothing, so that it may be typed again when what it shows is not there yet.
fn only_looks(commands: &str) -> bool {
    let changes = [" -X", " -d ", "POST", "PUT", "DELETE", "=$("];
    let looks = ["curl ", "tail ", "api GET", "signalbox "];
    looks.iter().any(|begin| commands.starts_with(begin))
        && !changes.iter().any(|word| commands.contains(word))
}

fn verdict(shown: &Shown, printed: &Printed) -> Result<(), String> {
    if !printed.failed.is_empty() {
        return Err(format!("failed: {:?}\n{}", printed.failed, printed.wrong));
    }
    match shown.status() {
        Some(status) => {
            let last = printed.statuses.last();
            if last.is_some_and(|last| *last != status) {
                return Err(format!("the page shows {status}, the answer was {last:?}: {}", printed.out));
            }
        }
        None => {
            if let Some(bad) = printed.statuses.iter().find(|status| !(200..400).contains(*status)) {
                return Err(format!("answered {bad}: {}", printed.out));
            }
        }
    }
    shown.compare(&printed.out)
}

/// The text of a page.
fn text(name: &str) -> String {
    let path = if name == "README.md" { root().join(name) } else { root().join("docs").join(name) };
    fs::read_to_string(path).unwrap()
}

async fn follow(name: &str) {
    let steps = page::steps(name, &text(name), text);
    assert!(!steps.is_empty(), "{name} has nothing to run");
    let _slot = slots::take().await;
    let up = Up::start().await;
    let mut shell = Shell::start(up.folder.path(), program().parent().unwrap()).await;
    for Step { line, commands, shown } in steps {
        let commands = bounded(&up.with_ports(&commands));
        let shown = Shown::read(&up.with_ports(&shown));
        let mut printed = shell.run(&commands).await;
        let mut said = verdict(&shown, &printed);
        if said.is_err() && only_looks(&commands) {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while said.is_err() && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                printed = shell.run(&commands).await;
                said = verdict(&shown, &printed);
            }
        }
        if let Err(why) = said {
            panic!("{name}:{line}: {why}\n--- typed:\n{commands}--- standard error:\n{}", printed.wrong);
        }
    }
    drop(shell);
    up.end().await;
}

/// One test per page, so that the pages run in parallel.
macro_rules! pages {
    ($($test:ident: $page:literal),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                follow($page).await;
            }
        )*

        /// Those that have something to type.
        const PAGES: &[&str] = &[$($page),*];
    };
}

pages! {
    the_readme: "README.md",
    routing_an_application: "start-routing.md",
    deploying_without_failed_requests: "start-deploy.md",
    automatic_https: "start-https.md",
    sending_webhooks: "start-webhooks.md",
    a_work_queue: "start-queues.md",
    a_canary: "start-canary.md",
    client_programs: "clients.md",
    a_state_machine: "start-machines.md",
    the_command: "cli.md",
    publishers: "events-publishers.md",
    subscribers: "events-subscribers.md",
    queues: "queues.md",
    routing: "routing.md",
    statistics: "statistics.md",
    objects: "sequencer.md",
    the_edge: "edge.md",
    conditions: "conditions.md",
    the_cookbook: "machines-cookbook.md",
    from_nginx: "migrate-nginx.md",
    from_bullmq: "migrate-bullmq.md",
    from_routemaster: "migrate-routemaster.md",
    operations: "operations.md",
    security: "security.md",
    backup: "backup-restore.md",
    upgrades: "upgrade.md",
}

#[test]
fn every_documented_command_works() {
    // Its examples are judged by the crate that they are about, and need nothing that runs.
    let elsewhere = ["machines.md"];
    let mut pages: BTreeSet<String> = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".md") && !elsewhere.contains(&&**name))
        .collect();
    pages.insert("README.md".to_owned());
    for name in pages {
        let steps = page::steps(&name, &text(&name), text);
        assert_eq!(!steps.is_empty(), PAGES.contains(&&*name), "{name}");
    }
}
