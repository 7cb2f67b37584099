//! The command line as operators and scripts use it: formats, filters and orders of lists, contexts, and calls without a command.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio};

use serde_json::{Value, json};
use signalbox_testkit::{PATIENCE, eventually};
use signalbox_tests::{system::System, upstream::App};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
};

use super::command::type_in;
use crate::up::program;

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_printed_in_the_selected_form() {
    let system = System::start("lists").await;
    let apps = [App::start("one").await, App::start("two").await, App::start("three").await];
    for (number, (app, weight)) in apps.iter().zip([9, 10, 1]).enumerate() {
        let body = json!({"address": app.address.to_string(), "hostnames": [format!("h{number}.test")],
            "version_type_id": "7", "weight": weight, "node_id": "n1"});
        let put = system.api("PUT", &format!("/instances/i-{number}"), Some(body)).await;
        assert_eq!(put.status, 201, "{}", put.text());
    }
    let list = async |flags: &str| {
        let words: Vec<&str> = ["routes", "ls"].into_iter().chain(flags.split_whitespace()).collect();
        type_in(&system, &words).await
    };
    assert_eq!(list("-o name --sort weight").await.done().out, "i-2\ni-0\ni-1\n");
    assert_eq!(list("-o name --sort -weight").await.done().out, "i-1\ni-0\ni-2\n");
    assert_eq!(list("-o name --filter hosts=h1 --filter state=act").await.done().out, "i-1\n");
    assert_eq!(list("-o name --filter id!=i-1 --filter TEST").await.done().out, "i-0\ni-2\n");
    let rows = list("--no-headers").await.done().out;
    assert_eq!((rows.lines().count(), rows.contains("VERSION TYPE"), rows.contains("n1")), (3, false, false));
    assert!(!rows.contains('\u{1b}'), "no color without a terminal: {rows:?}");
    let wide = list("-o wide").await.done().out;
    assert!(wide.lines().next().is_some_and(|head| head.contains("NODE")) && wide.contains("n1"), "{wide}");
    let answer: Value = serde_json::from_str(&list("-o json --filter i-2").await.done().out).unwrap();
    assert_eq!((answer.as_array().unwrap().len(), &answer[0]["weight"]), (1, &json!(1)));
    let yaml = list("-o yaml --filter i-2").await.done().out;
    assert!(yaml.starts_with("-\n") && yaml.contains("  version_type_id: \"7\"\n"), "{yaml}");
    let unknown = list("--sort color").await;
    assert_eq!(unknown.code, Some(64), "{}", unknown.wrong);
    assert!(
        unknown.wrong.contains("unknown column `color`; the columns are id, address, "),
        "{}",
        unknown.wrong
    );

    for group in ["hosts", "queues", "subscribers", "tokens", "certificates", "machines"] {
        let words = [group, "list"];
        for format in ["table", "wide", "json", "yaml", "name"] {
            type_in(&system, &[&words[..], &["-o", format]].concat()).await.done();
        }
    }

    // `--watch` prints the list again.
    let mut watched = Command::new(program());
    watched.args(["hosts", "list", "-o", "name", "--watch=200ms"]).env_clear().current_dir("/");
    watched.env("SIGNALBOX_URL", format!("http://{}", system.admin)).env("SIGNALBOX_TOKEN", &system.token);
    let mut watched = watched.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(watched.stdout.take().unwrap()).lines();
    let mut next =
        async || tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert_eq!(next().await, "h0.test");
    system.register("i-9", &apps[0], "h9.test", "7").await;
    while next().await != "h9.test" {}
    watched.kill().await.unwrap();
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_configured_by_commands() {
    let system = System::start("hosts-command").await;
    let (one, two) = (App::start("one").await, App::start("two").await);
    system.register("one", &one, "shop.test", "1").await;
    system.register("two", &two, "shop.test", "2").await;
    let done = async |words: &[&str]| type_in(&system, words).await.done().out;
    let rules = async || {
        let host = system.api("GET", "/hosts/shop.test", None).await.json();
        host.get("rules").cloned().unwrap_or_default()
    };

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.json");
    fs::write(&file, r#"{"hold_ms": 100}"#).unwrap();
    let file = file.to_str().unwrap();
    let set = done(&["hosts", "set-policy", "shop.test", "--file", file, "--wait", "20s"]).await;
    assert!(set.starts_with("shop.test: policy set (serial "), "{set}");
    done(&["hosts", "split", "shop.test", "1=100", "2=0"]).await;
    let split = json!([{"version_type": "1", "percent": 100.0}, {"version_type": "2", "percent": 0.0}]);
    assert_eq!((&rules().await["shares"], &rules().await["hold_ms"]), (&split, &json!(100)));
    let refused = type_in(&system, &["hosts", "split", "shop.test", "1=50"]).await;
    assert!(refused.code == Some(65) && refused.wrong.contains("(invalid_policy)"), "{}", refused.wrong);
    done(&["hosts", "split", "shop.test"]).await;
    assert_eq!(rules().await, json!({"hold_ms": 100}));
    let promoted = done(&["hosts", "promote", "shop.test", "2", "--wait", "20s"]).await;
    assert!(promoted.starts_with("shop.test is served by version type 2 (serial "), "{promoted}");
    assert!(promoted.contains("one drains for 30 s, and is removed after 60 min"), "{promoted}");
    system.until_answered_by("shop.test", &two).await;
    let typo = type_in(&system, &["hosts", "split", "shop.test", "typo=100"]).await;
    assert!(typo.code == Some(65) && typo.wrong.contains("(no_instance_of_version)"), "{}", typo.wrong);
    done(&["hosts", "split", "shop.test", "typo=100", "--force"]).await;
    let explained = done(&["routes", "explain", "shop.test"]).await;
    assert!(explained.contains("Problem: typo has a share of 100%"), "{explained}");
    done(&["hosts", "split", "shop.test"]).await;
    let undone = done(&["hosts", "undo", "shop.test", "--wait", "20s"]).await;
    assert!(undone.starts_with("shop.test is served by version type 1, 2 (serial "), "{undone}");
    done(&["hosts", "promote", "shop.test", "2", "--wait", "20s"]).await;
    done(&["hosts", "reset-policy", "shop.test"]).await;
    assert_eq!(rules().await, Value::Null);

    // Everything else: any call.
    let backend = r#"{"prefix":"work/","callback":"https://work.test/"}"#;
    let put: Value =
        serde_json::from_str(&done(&["api", "put", "/backends/work", "--data", backend, "--json"]).await)
            .unwrap();
    assert_eq!(put["name"], "work");
    let shown = done(&["api", "GET", "/hosts/shop.test"]).await;
    assert!(shown.contains("\"hostname\": \"shop.test\""), "{shown}");
    let refused = type_in(&system, &["api", "GET", "/hosts/none.test"]).await;
    assert!(refused.code == Some(65) && refused.wrong.contains("(unknown_host)"), "{}", refused.wrong);
    let wrong = type_in(&system, &["api", "GET", "//elsewhere.test/"]).await;
    assert_eq!(wrong.code, Some(64), "{}", wrong.wrong);

    done(&["hosts", "remove", "shop.test", "--yes"]).await;
    system.until_status("shop.test", 404).await;
    system.stop().await;
}

/// Runs the command as a user with a home, and returns its exit code, output and errors.
async fn at_home(home: &Path, words: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(program());
    command.args(words).env_clear().env("HOME", home).current_dir(home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that reads nothing may have ended.
    let _unread = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_names_a_system_and_keeps_its_token_from_others() {
    let system = System::start("contexts").await;
    let url = format!("http://{}", system.admin);
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (code, _, wrong) = at_home(home, &["hosts", "list"], "").await;
    assert!(code == Some(69) && wrong.contains("no system runs in .signalbox"), "{code:?} {wrong}");
    let (code, _, wrong) = at_home(home, &["hosts", "list", "--context", "test"], "").await;
    assert!(code == Some(64) && wrong.contains("unknown context test"), "{code:?} {wrong}");

    let add = ["context", "add", "test", "--url", &url, "--token-file", "-"];
    let (code, _, wrong) = at_home(home, &add, &format!("{}\n", system.token)).await;
    assert_eq!(code, Some(0), "{wrong}");
    let token = home.join(".config/signalbox/tokens/test");
    assert_eq!(fs::read_to_string(&token).unwrap().trim(), system.token);
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(at_home(home, &["hosts", "list", "--context", "test"], "").await.0, Some(0));
    at_home(home, &["context", "use", "test"], "").await;
    assert_eq!(at_home(home, &["hosts", "list"], "").await.0, Some(0));
    let (_, listed, _) = at_home(home, &["context", "list"], "").await;
    assert!(listed.contains("test  current") && !listed.contains(&system.token), "{listed}");
    // A data folder or an address that is named wins.
    assert_eq!(at_home(home, &["hosts", "list", "--data-dir", "none"], "").await.0, Some(69));

    // The token of a context is not sent unencrypted to another machine.
    let other = ["context", "add", "other", "--url", "http://192.0.2.1", "--token-file", "-"];
    assert_eq!(at_home(home, &other, "sbx_secret").await.0, Some(0));
    let (code, _, wrong) = at_home(home, &["hosts", "list", "--context", "other"], "").await;
    assert!(code == Some(64) && wrong.contains("--insecure"), "{code:?} {wrong}");

    // A token that is wrong has its own exit code.
    let add = ["context", "add", "test", "--url", &url, "--token-file", "-"];
    assert_eq!(at_home(home, &add, "sbx_wrong").await.0, Some(0));
    let (code, _, wrong) = at_home(home, &["hosts", "list"], "").await;
    assert!(code == Some(77) && wrong.contains("(token_unknown)"), "{code:?} {wrong}");
    assert_eq!(at_home(home, &["hosts", "list", "--token-file", "-"], &system.token).await.0, Some(0));
    assert_eq!(at_home(home, &["context", "rm", "test"], "").await.0, Some(0));
    assert!(!token.exists());
    eventually("no context", || async {
        let (code, _, wrong) = at_home(home, &["hosts", "list"], "").await;
        if code == Some(69) { Ok(()) } else { Err(wrong) }
    })
    .await;
    for (words, why) in [
        (&["context", "add", "../x", "--url", "http://a.test"][..], "invalid name"),
        (&["context", "add", "x", "--url", "a.test"], "must begin with http"),
        (&["context", "use", "none"], "unknown context none"),
    ] {
        let (code, _, wrong) = at_home(home, words, "").await;
        assert!(code == Some(64) && wrong.contains(why), "{words:?}: {code:?} {wrong}");
    }
    system.stop().await;
}

/// A command that is not what the operator meant says so, instead of printing a plausible answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_command_never_looks_like_success() {
    let system = System::start("mistyped").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "shop.test", "7").await;

    // A URL is a host and a path. The API refuses one where it expects a host.
    let explained = type_in(&system, &["routes", "explain", "http://shop.test/cart?x=1"]).await.done().out;
    assert!(explained.starts_with("A request for shop.test is routed to an instance"), "{explained}");
    assert!(explained.contains("receives the path /cart"), "{explained}");
    let refused = system.api("GET", "/routes/explain?host=http://shop.test/", None).await;
    assert_eq!((refused.status, refused.json()["code"].clone()), (422, json!("invalid_host")));

    let revoked = type_in(&system, &["tokens", "revoke", "nosuch"]).await;
    assert_eq!((revoked.code, &*revoked.out), (Some(65), ""), "{}", revoked.wrong);
    assert!(revoked.wrong.contains("unknown token nosuch"), "{}", revoked.wrong);
    let counted = type_in(&system, &["stats", "show", "version_type/nosuch"]).await.done();
    assert!(counted.out.contains("no request was counted"), "{}", counted.out);

    // A short flag for the file, and a usage that requires nothing that the environment has.
    let missing = type_in(&system, &["machines", "apply", "orders", "-f", "/nonexistent.yaml"]).await;
    assert_eq!(missing.code, Some(64), "{}", missing.wrong);
    let usage = type_in(&system, &["machines", "apply"]).await.wrong;
    assert!(usage.contains("Usage: signalbox machines apply [OPTIONS] <MACHINE>"), "{usage}");

    // A list that is not complete says so.
    let machine = "state_machines: {m: {states: [{gate: a, exit_condition: 'metadata.x = 1', \
        triggers: [{metadata: x}], next: b}, {gate: b}]}}";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.yaml");
    fs::write(&file, machine).unwrap();
    type_in(&system, &["machines", "apply", "m", "-f", file.to_str().unwrap()]).await.done();
    let labels: Vec<Value> = ["one", "two", "three"].map(|name| json!({"name": name, "metadata": {}})).into();
    let made = system.api("POST", "/state-machines/m/labels", Some(json!({"labels": labels}))).await;
    assert!(matches!(made.status, 200 | 201), "{}", made.text());
    let listed = type_in(&system, &["labels", "list", "m", "--max", "2"]).await.done();
    assert!(listed.wrong.contains("the first 2 are shown; --max shows more"), "{}", listed.wrong);
    system.stop().await;
}
