//! A token is used after its end, by another owner, or by a command that sends it to the wrong system.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use serde_json::{Value, json};
use signalbox_client::Time;
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Request, Response},
    receiver::Receiver,
    system::System,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixListener},
    process::Command,
};

use crate::bus_api::Bus;

async fn publish(bus: &Bus, token: &str) -> Response {
    let event = json!({"type": "noop", "url": "https://shop.example/1"});
    bus.call(token, "POST", "/topics/orders", Some(&event)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_keeps_what_belongs_to_the_token_and_ends_the_old_secret() {
    let bus = Bus::start("token-rotate").await;
    let receiver = Receiver::start().await;
    for (create, rotate, name) in
        [("/tokens", "/tokens/shop/rotate", "shop"), ("/api_tokens", "/api_tokens/mall/rotate", "mall")]
    {
        let new = json!({"name": name, "scopes": ["publish", "subscribe"]});
        let made = bus.root("POST", create, Some(&new)).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let old = made.json()["token"].as_str().unwrap().to_owned();
        let topic = format!("/topics/{name}");
        let event = json!({"type": "noop", "url": "https://shop.example/1"});
        assert_eq!(bus.call(&old, "POST", &topic, Some(&event)).await.status, 200);
        bus.subscribe(&old, &[name], &receiver.url()).await;
        if create == "/tokens" {
            // A repeated creation is rejected, and takes nothing from the token.
            let repeated =
                bus.root("POST", create, Some(&json!({"name": name, "scopes": ["publish"]}))).await;
            assert_eq!((repeated.status, &repeated.json()["code"]), (409, &json!("token_exists")));
        }
        let rotated = bus.root("POST", rotate, Some(&json!({"overlap_seconds": 3600}))).await;
        assert_eq!(rotated.status, 200, "{}", rotated.text());
        let new = rotated.json()["token"].as_str().unwrap().to_owned();
        assert_ne!(old, new);
        // Both publish to the same topic, and both are the subscriber.
        for token in [&old, &new] {
            assert_eq!(bus.call(token, "POST", &topic, Some(&event)).await.status, 200);
        }
        let subscriptions = bus.root("GET", "/subscriptions", None).await.json();
        let own = subscriptions.as_array().unwrap().iter().filter(|one| one["subscriber"] == name).count();
        assert_eq!(own, 1, "{subscriptions}");
        let last = bus.root("POST", rotate, Some(&json!({"overlap_seconds": 0}))).await;
        let last = last.json()["token"].as_str().unwrap().to_owned();
        for ended in [&old, &new] {
            assert_eq!(bus.call(ended, "POST", &topic, Some(&event)).await.status, 401);
        }
        assert_eq!(bus.call(&last, "POST", &topic, Some(&event)).await.status, 200);
        assert_eq!(bus.call(&last, "DELETE", "/subscription", None).await.status, 204);
    }
    bus.system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_rejected_by_all_daemons() {
    let system = System::start("token-expiry").await;
    let past = system
        .api(
            "POST",
            "/tokens",
            Some(json!({"name": "a", "scopes": ["read"], "expires_at": "1970-01-01T00:00:01Z"})),
        )
        .await;
    assert_eq!((past.status, &past.json()["code"]), (422, &json!("invalid_expiry")));
    let now_ms: Vec<u64> = system.cli(System::FABRIC, "TIME").await;
    let end = Time::from_ms(now_ms[0] * 1000 + 3_000);
    let new = json!({"name": "guest", "scopes": ["read", "subscribe"], "expires_at": end});
    let made = system.api("POST", "/tokens", Some(new)).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let token = made.json()["token"].as_str().unwrap().to_owned();
    let new = json!({"name": "client", "scopes": ["subscribe"], "expires_at": end});
    let client =
        system.api("POST", "/api_tokens", Some(new)).await.json()["token"].as_str().unwrap().to_owned();
    for token in [&token, &client] {
        let wanted = json!({"topics": ["orders"], "callback": "https://receiver.example/", "uuid": "u"});
        let request = Request::new("POST", "localhost", "/subscription").token(token).json(&wanted);
        let subscribed = request.send(system.admin).await.unwrap();
        assert_eq!(subscribed.status, 204, "{}", subscribed.text());
    }
    for target in ["/instances", "/stats/uncaught"] {
        eventually("the token to expire", || async {
            let request = Request::get(&system.admin.to_string(), target).token(&token);
            let status = request.send(system.admin).await.unwrap().status;
            if status == 401 { Ok(()) } else { Err(status) }
        })
        .await;
    }
    let listed = system.api("GET", "/tokens", None).await.json();
    assert_eq!(listed["tokens"][0]["expires_at"], json!(end), "{listed}");
    eventually("the subscriptions to end with their tokens", || async {
        let left = system.api("GET", "/subscriptions", None).await.json();
        if left == json!([]) { Ok(()) } else { Err(left) }
    })
    .await;
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_handed_over_by_its_publisher_or_root_only() {
    let bus = Bus::start("token-handover").await;
    let (shop, thief) = (bus.client("shop").await, bus.client("thief").await);
    assert_eq!(publish(&bus, &shop).await.status, 200);
    let to = |name: &str| json!({"publisher": name});
    let stolen = bus.call(&thief, "PUT", "/topics/orders/publisher", Some(&to("thief"))).await;
    assert_eq!((stolen.status, &stolen.json()["code"]), (403, &json!("topic_claimed")));
    assert_eq!(publish(&bus, &thief).await.status, 403);
    let unknown = bus.root("PUT", "/topics/orders/publisher", Some(&to("nobody"))).await;
    assert_eq!((unknown.status, &unknown.json()["code"]), (422, &json!("unknown_publisher")));
    let successor = bus.system.token("successor", &["publish"]).await;
    assert_eq!(bus.call(&shop, "PUT", "/topics/orders/publisher", Some(&to("successor"))).await.status, 204);
    assert_eq!((publish(&bus, &successor).await.status, publish(&bus, &shop).await.status), (200, 403));
    assert_eq!(bus.root("PUT", "/topics/orders/publisher", Some(&to("shop"))).await.status, 204);
    assert_eq!(publish(&bus, &shop).await.status, 200);
    let own = bus.root("PUT", "/topics/signalbox.audit/publisher", Some(&to("shop"))).await;
    assert!(matches!(own.status, 403 | 404), "{}", own.text());
    bus.system.stop().await;
}

/// Answers one request, and returns its head.
async fn overhear(listener: TcpListener) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&head));
        head.extend(&piece[..read]);
    }
    let body = r#"{"tokens":[]}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    String::from_utf8(head).unwrap().to_lowercase()
}

fn command(data_dir: &std::path::Path, arguments: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("signalbox");
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").env_clear().env("SIGNALBOX_DATA_DIR", data_dir);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_sends_the_folders_token_only_to_its_own_system() {
    let system = System::start("token-cli").await;
    let folder = system.stack.layout().root().to_owned();
    let run = async |arguments: &[&str]| {
        let output = command(&folder, arguments).output().await.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Its own system, by folder and by address.
    let own = system.stack.admin_url().to_owned();
    fs::create_dir_all(folder.join("run")).unwrap();
    let description = json!({"pid": 1, "edge_url": "http://127.0.0.1:1", "admin_url": own, "parts": []});
    fs::write(folder.join("run/stack.json"), description.to_string()).unwrap();
    assert_eq!(run(&["tokens", "list"]).await.0, Some(0));
    assert_eq!(run(&["tokens", "list", "--url", &own]).await.0, Some(0));
    // Another one, which would like to have it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let overheard = tokio::spawn(overhear(listener));
    let _answered = run(&["tokens", "list", "--url", &url]).await;
    let head = overheard.await.unwrap();
    assert!(!head.contains("authorization") && !head.contains(&system.token), "{head}");
    // A token is not sent unencrypted to another machine, and the name of this one does not count.
    let file = folder.join("another-token");
    fs::write(&file, "sbx_secret").unwrap();
    let file = file.to_str().unwrap();
    for url in ["http://192.0.2.1", "http://127.0.0.1@192.0.2.1:80/", "http://localhost.example:8081"] {
        let (code, wrong) = run(&["tokens", "list", "--url", url, "--token-file", file]).await;
        assert!(code != Some(0) && wrong.contains("--insecure"), "{url}: {code:?} {wrong}");
    }
    // A file that others can read is not a secret.
    let file = folder.join("token");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, wrong) = run(&["tokens", "list"]).await;
    assert!(code != Some(0) && wrong.contains("chmod 600"), "{code:?} {wrong}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(run(&["tokens", "list"]).await.0, Some(0));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_rotates_tokens_and_shows_their_expiry() {
    let system = System::start("token-cli-rotate").await;
    let url = format!("http://{}", system.admin);
    let run = async |arguments: &[&str]| {
        let mut command = command(std::path::Path::new("/nonexistent"), arguments);
        command.env("SIGNALBOX_URL", &url).env("SIGNALBOX_TOKEN", &system.token);
        let output = command.output().await.unwrap();
        let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {wrong}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let old = run(&["tokens", "create", "ci", "--scope", "routes", "--expires", "90d"]).await;
    let new = run(&["tokens", "rotate", "ci", "--overlap", "1d"]).await;
    let list = async |token: &str| {
        let request = Request::get(&system.admin.to_string(), "/instances").token(token);
        request.send(system.admin).await.unwrap().status
    };
    assert_eq!((list(&old).await, list(&new).await), (200, 200));
    let shown: Value = serde_json::from_str(&run(&["tokens", "list", "--json"]).await).unwrap();
    assert_eq!(shown[0]["replaced_until"].as_array().unwrap().len(), 1, "{shown}");
    assert!(shown[0]["expires_at"].is_string(), "{shown}");
    let table = run(&["tokens", "list"]).await;
    assert!(table.contains("EXPIRES") && table.contains("LAST USED"), "{table}");
    system.stop().await;
}

/// In a folder of all users, another user may have created the folder of sockets first.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_asks_no_application_in_a_folder_that_others_can_write_to() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("sockets");
    fs::create_dir(&sockets).unwrap();
    let listener = UnixListener::bind(sockets.join("evil.sock")).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // The command sends its request before it reads.
            let _request = stream.read(&mut [0; 64]).await;
            let status = json!({"name": "evil", "version": "\u{1b}[2J", "copies": 1, "pid": 1});
            let _gone = stream.write_all(format!("{status}\n").as_bytes()).await;
        }
    });
    let run = async |arguments: &[&str]| {
        let mut command = command(folder.path(), arguments);
        let output = command.env("SIGNALBOX_RUNTIME_DIR", &sockets).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let mode = |mode: u32| fs::set_permissions(&sockets, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    let (_, listed, _) = run(&["run", "list"]).await;
    assert!(!listed.contains("evil"), "{listed}");
    let (code, _, wrong) = run(&["run", "replace", "evil"]).await;
    assert!(code != Some(0) && wrong.contains("0700"), "{code:?} {wrong}");
    let (_, names, _) = run(&["complete", "--", "run", "replace", ""]).await;
    assert!(!names.contains("evil"), "{names}");
    // The same folder of its own is used, and what it shows does not control the terminal.
    mode(0o700);
    let (code, listed, wrong) = run(&["run", "list"]).await;
    assert!(code == Some(0) && listed.contains("evil") && !listed.contains('\u{1b}'), "{listed:?} {wrong}");
}
