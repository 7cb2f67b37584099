//! A copy of the fabric's data is of no use to impersonate Signalbox towards a webhook, or a client towards Signalbox.

use std::{fs, path::Path};

use serde_json::json;
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, receiver, system::System};

/// All bytes of the append-only file.
fn append_only_file(folder: &Path) -> Vec<u8> {
    let files = fs::read_dir(folder.join("appendonlydir")).unwrap();
    files.flat_map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_fabric_has_no_credential_of_a_webhook_and_no_token() {
    let mut bus = receiver::allowed();
    bus.insert("legacy_token_list".to_owned(), true.into());
    let system = System::with("attack-stored-secrets", |builder| builder.pacemaker("bus", bus)).await;
    let user = "user-name-of-the-receiver";
    let token = system.token("billing", &["subscribe"]).await;
    let wanted = json!({"topics": ["orders"], "callback": "https://receiver.example/", "uuid": user});
    let send = |method: &'static str, path: &str, body: Option<serde_json::Value>| {
        let request = Request::new(method, &system.admin.to_string(), path).token(&token);
        let request = body.into_iter().fold(request, |request, body| request.json(&body));
        let address = system.admin;
        async move { request.send(address).await.unwrap() }
    };
    let answer = send("POST", "/subscription", Some(wanted)).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    let answer = send("GET", "/subscriber/secret", None).await;
    let secret = answer.json()["secret"].as_str().unwrap().to_owned();
    let answer = send("POST", "/subscriber/secret", None).await;
    let newer = answer.json()["secret"].as_str().unwrap().to_owned();
    assert_ne!(secret, newer);
    let backend = json!({"prefix": "work:", "callback": "https://backend.example/", "uuid": "user-name-of-the-backend"});
    assert_eq!(system.api("PUT", "/backends/work", Some(backend)).await.status, 201);
    let listed = json!({"name": "shop", "token": "shop--a-token-that-is-listed"});
    assert_eq!(system.api("POST", "/api_tokens", Some(listed)).await.status, 201);
    let answer = system.api("GET", "/api_tokens", None).await;
    assert!(answer.text().contains("a-token-that-is-listed"), "{}", answer.text());

    let folder = system.stack.layout().redis(&System::FABRIC);
    eventually("the append-only file to have all changes", || async {
        let file = append_only_file(&folder);
        if contains(&file, "\"shop\"") { Ok(()) } else { Err(format!("{} bytes", file.len())) }
    })
    .await;
    let file = append_only_file(&folder);
    for found in ["receiver.example", "backend.example"] {
        assert!(contains(&file, found), "the search finds {found}");
    }
    for hidden in
        [user, &secret, &newer, "user-name-of-the-backend", "a-token-that-is-listed", &token, &system.token]
    {
        assert!(!contains(&file, hidden), "{hidden} is in the append-only file");
    }
    let text = system.edge_api("/metrics").await.text();
    assert!(text.contains("signalbox_bus_credentials{state=\"encrypted\"} 3"), "{text}");
    system.stop().await;
}
