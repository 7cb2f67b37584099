//! The command line on a terminal: width, color, and changes that meet those of other clients.

use std::process::Stdio;

use serde_json::{Value, json};
use signalbox_tests::{http::Connection, system::System};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    process::Command,
};

use super::command::{program, type_at, type_in};

/// What a command prints on a terminal with this many columns and ten lines.
async fn on_terminal(system: &System, columns: usize, variables: &[(&str, &str)], words: &str) -> String {
    let line = format!("stty cols {columns} rows 10; exec {} {words}", program().display());
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]).current_dir("/").env_clear();
    command.env("PATH", "/usr/bin:/bin").env("TERM", "xterm").envs(variables.iter().copied());
    command.env("SIGNALBOX_URL", format!("http://{}", system.admin)).env("SIGNALBOX_TOKEN", &system.token);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{words}: {text}");
    text.replace("\r\n", "\n")
}

/// Items of every kind with long names.
async fn with_long_names(system: &System) {
    let long = |name: &str| format!("{name}-{}", "x".repeat(50));
    for number in 0..12 {
        let body = json!({"address": format!("127.0.0.{}:9", number + 1), "node_id": long("node"),
            "hostnames": [format!("{number}-{}.test", long("host"))], "version_type_id": long("version")});
        let put = system.api("PUT", &format!("/instances/{number}-{}", long("instance")), Some(body)).await;
        assert_eq!(put.status, 201, "{}", put.text());
    }
    let queue = long("queue");
    for words in [
        format!("queues create {queue} --pattern .*"),
        format!("queues publish {} mail welcome --delay 1h", long("tenant")),
        format!("tokens create {} --scope read", long("token")),
        format!("clients create client-{}", "x".repeat(20)),
        format!("events publish {} update https://a.test/1", "topic_".repeat(8)),
        format!("subscribers subscribe --topic jobs --callback https://{}.test/", long("callback")),
        format!(
            "backends define {} --prefix {}: --callback https://a.test/",
            long("backend"),
            long("prefix")
        ),
    ] {
        type_in(system, &words.split(' ').collect::<Vec<_>>()).await.done();
    }
}

const LISTS: [&str; 14] = [
    "routes list",
    "hosts list",
    "routers list",
    "pacemakers list",
    "queues list",
    "queues tenants QUEUE",
    "queues messages QUEUE --state delayed",
    "tokens list",
    "clients list",
    "topics list",
    "subscribers list",
    "backends list",
    "certificates list",
    "audit",
];

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_the_terminal_and_are_colored_on_request() {
    let system = System::start("terminal").await;
    with_long_names(&system).await;
    let queue = format!("queue-{}", "x".repeat(50));
    for list in LISTS {
        let list = list.replace("QUEUE", &queue);
        for columns in [80, 40] {
            let table = on_terminal(&system, columns, &[("NO_COLOR", "1")], &list).await;
            let longest = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(longest <= columns && table.lines().count() > 0, "{list} at {columns} columns:\n{table}");
            assert!(!table.contains('\u{1b}'), "{list}: NO_COLOR is set:\n{table:?}");
        }
        // Names are not cut and have no head: they are read by other programs.
        let words: Vec<&str> = list.split(' ').collect();
        let names = type_in(&system, &[&words[..], &["-o", "name"]].concat()).await.done().out;
        let rows = type_in(&system, &[&words[..], &["--no-headers"]].concat()).await.done().out;
        assert!(!names.contains('\u{1b}') && !rows.contains('\u{1b}'), "{list}: no terminal:\n{rows:?}");
        assert!(names.lines().all(|name| !name.contains('\u{2026}')), "{list}: {names}");
        if list != "audit" {
            assert!(names.lines().count() == rows.lines().count(), "{list}: {names}\n{rows}");
            assert!(
                names.lines().zip(rows.lines()).all(|(name, row)| row.starts_with(name)),
                "{list}: {names}\n{rows}"
            );
        }
    }
    assert!(on_terminal(&system, 80, &[], "routes list").await.contains("\u{1b}[32mactive"));
    let never = on_terminal(&system, 80, &[], "routes list --color never").await;
    assert!(!never.contains('\u{1b}'), "{never:?}");
    let always = type_in(&system, &["--color", "always", "routes", "list"]).await.done().out;
    assert!(always.contains("\u{1b}[32mactive"), "{always:?}");

    // `stats top` fits both dimensions, in any order, and shows the instances of one version type.
    let version = format!("version-{}", "x".repeat(50));
    for words in ["", "--sort version-type ", &format!("{version} "), &format!("{version} --sort -instance ")]
    {
        let top =
            on_terminal(&system, 60, &[], &format!("stats top {words}--once --interval 200ms --color never"))
                .await;
        let longest = top.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(longest <= 60 && (2..10).contains(&top.lines().count()), "stats top {words}:\n{top}");
    }
    let last = on_terminal(
        &system,
        60,
        &[],
        &format!("stats top {version} --once --sort -instance --max 1 -o name"),
    )
    .await;
    assert!(last.starts_with("9-instance-"), "{last}");
    system.stop().await;
}

/// Reads a request with its body; nothing at the end of the connection.
async fn request(client: &mut BufReader<tokio::net::TcpStream>) -> Option<Vec<u8>> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if client.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        bytes.extend(line.as_bytes());
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.ok()?;
    bytes.extend(body);
    Some(bytes)
}

/// Passes requests on to the system. Before a PUT arrives there, another client changes the policy of the host.
async fn with_another_client(system: &System, listener: TcpListener) {
    loop {
        let mut client = BufReader::new(listener.accept().await.unwrap().0);
        while let Some(bytes) = request(&mut client).await {
            if bytes.starts_with(b"PUT ") {
                let other = system.api("PUT", "/hosts/app.test", Some(json!({"hold_ms": 7}))).await;
                assert_eq!(other.status, 200, "{}", other.text());
            }
            let answer = Connection::open(system.admin).await.unwrap().send_raw(&bytes).await.unwrap();
            let mut head =
                format!("HTTP/1.1 {} -\r\nContent-Length: {}\r\n", answer.status, answer.body.len());
            for (name, value) in &answer.headers {
                if ["content-type", "etag"].contains(&&*name.to_ascii_lowercase()) {
                    head += &format!("{name}: {value}\r\n");
                }
            }
            client.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
            client.write_all(&answer.body).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_another_client_changed_is_not_overwritten() {
    let system = System::start("changed").await;
    let put = system.api("PUT", "/hosts/app.test", Some(json!({"hold_ms": 5}))).await;
    assert_eq!(put.status, 200, "{}", put.text());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let said = tokio::select! {
        () = with_another_client(&system, listener) => unreachable!("it runs until it is dropped"),
        said = type_at(&url, &system.token, &["hosts", "set", "app.test", "retries.attempts=2"]) => said,
    };
    assert_eq!((said.code, &*said.out), (Some(65), ""), "{}", said.wrong);
    for words in [
        "nothing was changed",
        "another client changed the policy of app.test",
        "`signalbox hosts show app.test`",
        "repeat the command",
        "(policy_changed)",
    ] {
        assert!(said.wrong.contains(words), "{words}: {}", said.wrong);
    }
    let shown = type_in(&system, &["hosts", "show", "app.test", "--json"]).await.done();
    let rules = &serde_json::from_str::<Value>(&shown.out).unwrap()["rules"];
    assert_eq!(rules, &json!({"hold_ms": 7}));
    // Repeated, the command changes the policy of the other client.
    type_in(&system, &["hosts", "set", "app.test", "retries.attempts=2"]).await.done();
    let shown = type_in(&system, &["hosts", "show", "app.test", "--json"]).await.done();
    let rules = &serde_json::from_str::<Value>(&shown.out).unwrap()["rules"];
    assert_eq!(rules, &json!({"hold_ms": 7, "retries": {"attempts": 2}}));
    system.stop().await;
}
