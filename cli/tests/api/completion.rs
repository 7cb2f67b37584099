//! What the shell completes: names of the system of the command that is being typed, and nothing that could harm.

use std::fs;

use crate::server::Server;

fn names(call: &str) -> (u16, &'static str) {
    match call {
        "GET /hosts" => {
            (200, r#"{"hosts":[{"hostname":"b.test"},{"hostname":"a.test"},{"hostname":"$(reboot).test"}]}"#)
        }
        "GET /queues/mail/tenants" => (200, r#"{"tenants":[{"tenant":"acme"},{"tenant":"other"}]}"#),
        _ => (500, "broken"),
    }
}

fn complete(server: &Server, words: &[&str]) -> (Option<i32>, String, String) {
    let output = server.run(&[&["complete", "--"], words].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn names_come_from_the_server() {
    let server = Server::start(names);
    // A name that a shell would interpret is left out.
    assert_eq!(complete(&server, &["hosts", "show", ""]).1, "a.test\nb.test\n");
    assert_eq!(complete(&server, &["hosts", "show", "b"]).1, "b.test\n");
    assert_eq!(complete(&server, &["routes", "list", "--host=a"]).1, "--host=a.test\n");
    assert_eq!(complete(&server, &["queues", "pause", "mail", "a"]).1, "acme\n");
}

#[test]
fn a_system_that_fails_or_is_silent_completes_nothing() {
    for answer in [|_: &str| (500, "broken"), |_: &str| (200, "[]"), |_: &str| (0, "")] {
        let server = Server::start(answer);
        assert_eq!(complete(&server, &["hosts", "show", ""]), (Some(0), String::new(), String::new()));
        assert_eq!(server.take().len(), 1);
    }
    let dead = Server::start(names);
    let output = complete(&dead, &["hosts", "show", "--url", "http://127.0.0.1:1", ""]);
    assert_eq!(output, (Some(0), String::new(), String::new()));
}

#[test]
fn a_token_is_sent_only_where_the_command_would_send_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join(".signalbox/run");
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("stack.json"), "{\"admin_url\":\"http://127.0.0.1:9\"}").unwrap();
    fs::write(folder.path().join(".signalbox/token"), "secret").unwrap();
    let server = Server::start(names);
    let authorized = |words: &[&str], token: Option<&str>| {
        let mut command = server.command(&[&["complete", "--"], words].concat());
        command.current_dir(folder.path());
        if let Some(token) = token {
            command.env("SIGNALBOX_TOKEN", token);
        }
        assert!(command.output().unwrap().status.success());
        server.take().iter().any(|call| call.headers.iter().any(|head| head.starts_with("authorization:")))
    };
    // The token of the data folder is not that of the system at this address.
    assert!(!authorized(&["hosts", "show", ""], None));
    assert!(authorized(&["hosts", "show", ""], Some("of-the-user")));
}
