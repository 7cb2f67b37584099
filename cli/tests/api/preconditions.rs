//! Commands that read, change and write back do not overwrite the change of another client.

use crate::server::Server;

fn conflict(call: &str) -> (u16, &'static str) {
    match call {
        "GET /hosts/a.test" => (200, r#"{"hostname":"a.test","rules":{"hold_ms":5}}"#),
        "GET /hosts/new.test" => (404, r#"{"status":404,"code":"unknown_host","detail":"unknown host"}"#),
        "PUT /hosts/new.test" => (200, r#"{"hostname":"new.test","serial":3}"#),
        _ => (412, r#"{"status":412,"code":"policy_changed","detail":"the policy has another revision"}"#),
    }
}

#[test]
fn a_change_of_another_client_is_not_overwritten() {
    let server = Server::start(conflict);
    for words in [&["hosts", "split", "a.test", "1=100"][..], &["hosts", "set", "a.test", "hold_ms=9"]] {
        let output = server.run(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(65), "{error}");
        assert!(
            error.contains("nothing was changed") && error.contains("`signalbox hosts show a.test`"),
            "{error}"
        );
        let calls = server.take();
        let names: Vec<&str> = calls.iter().map(|call| &*call.name).collect();
        assert_eq!(names, ["GET /hosts/a.test", "PUT /hosts/a.test"]);
        assert!(calls[1].headers.iter().any(|head| head == "if-match: \"7\""), "{calls:?}");
    }
}

#[test]
fn the_first_policy_of_a_host_requires_that_there_is_none() {
    let server = Server::start(conflict);
    let output = server.run(&["hosts", "set", "new.test", "hold_ms=9"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "new.test: policy changed (serial 3)\n");
    let calls = server.take();
    assert!(calls[1].headers.iter().any(|head| head == "if-match: \"0\""), "{calls:?}");
}
