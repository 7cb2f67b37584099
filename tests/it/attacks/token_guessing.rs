//! A client guesses tokens, or looks for them where they do not belong.

use std::{fs, net::IpAddr};

use serde_json::json;
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Connection, Request, Response},
    system::System,
};

/// A request with a token that does not exist.
async fn guess(system: &System, number: u32) -> Response {
    let request = Request::get(&system.admin.to_string(), "/instances")
        .token(&format!("sbx_{number:064x}"))
        // An address that the client invents does not count.
        .header("X-Forwarded-For", &format!("10.0.0.{}", number % 250));
    request.send(system.admin).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_guesses_tokens_must_wait_and_others_need_not() {
    let system = System::start("attack-guess").await;
    let working = system.token("working", &["routes"]).await;
    let call = async |token: &str| {
        let request = Request::get(&system.admin.to_string(), "/instances").token(token);
        request.send(system.admin).await.unwrap()
    };
    assert_eq!(call(&working).await.status, 200);
    let mut statuses = Vec::new();
    let blocked = loop {
        let answer = guess(&system, u32::try_from(statuses.len()).unwrap()).await;
        statuses.push(answer.status);
        if answer.status != 401 || statuses.len() > 100 {
            break answer;
        }
    };
    assert_eq!(blocked.status, 429, "{statuses:?}");
    assert_eq!(blocked.json()["code"], "too_many_attempts");
    let wait: u32 = blocked.header("Retry-After").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // Each failure after that blocks for longer, so the form is blocked as well.
    for number in 1000..1010 {
        guess(&system, number).await;
    }
    let form = Request::new("POST", &system.admin.to_string(), "/dashboard/login")
        .header("Content-Type", "application/x-www-form-urlencoded");
    let mut refused = form.clone().body("token=sbx_guessed").send(system.admin).await.unwrap();
    for number in 0..100 {
        if refused.status == 429 {
            break;
        }
        refused = form.clone().body(format!("token=sbx_{number}")).send(system.admin).await.unwrap();
    }
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("Retry-After").is_some(), "{refused:?}");
    assert!(refused.text().contains("Too many unknown tokens"), "{}", refused.text());
    // The sidecar limits them as well.
    let mut statuses = Vec::new();
    for number in 0..100 {
        let request =
            Request::get(&system.admin.to_string(), "/stats/uncaught").token(&format!("sbx_{number:064}"));
        statuses.push(request.send(system.admin).await.unwrap().status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    // Tokens in use work on, from the same address.
    assert_eq!(call(&working).await.status, 200);
    assert_eq!(call(&system.token).await.status, 200);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_repeats_a_revoked_token_is_not_a_guesser() {
    let system = System::start("attack-repeat").await;
    let revoked = system.token("revoked", &["routes"]).await;
    assert_eq!(system.api("DELETE", "/tokens/revoked", None).await.status, 204);
    let request = Request::get(&system.admin.to_string(), "/instances").token(&revoked);
    for number in 0..100 {
        assert_eq!(request.send(system.admin).await.unwrap().status, 401, "{number}");
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guessable_tokens_are_rejected_and_no_token_is_stored_or_logged() {
    let system = System::start("attack-stored").await;
    let weak = json!({"name": "shop", "token": "shop-token"});
    let refused = system.api("POST", "/api_tokens", Some(weak)).await;
    assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("invalid_api_token")));
    let token = "shop--a-token-that-nobody-may-see";
    let made = system.api("POST", "/api_tokens", Some(json!({"name": "shop", "token": token}))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    // The defaults let it neither read the dashboard nor events.
    let read =
        Request::get(&system.admin.to_string(), "/events").token(token).send(system.admin).await.unwrap();
    assert_eq!(read.status, 403, "{}", read.text());
    let event = json!({"type": "noop", "url": "https://shop.example/1"});
    let publish = Request::new("POST", &system.admin.to_string(), "/topics/orders").token(token).json(&event);
    assert_eq!(publish.send(system.admin).await.unwrap().status, 200);
    let listed = system.api("GET", "/api_tokens", None).await;
    assert_eq!(listed.json(), json!([{"name": "shop"}]));
    // Neither a key nor a value of a server has the token.
    for part in System::REDIS {
        for key in system.cli::<Vec<String>>(part.clone(), "KEYS *").await {
            assert!(!key.contains(token), "{part}: {key}");
            let value: Vec<u8> = system.cli(part.clone(), &format!("DUMP {key}")).await;
            let found = value.windows(token.len()).any(|window| window == token.as_bytes());
            assert!(!found, "{part}: {key} contains the token");
        }
    }
    // Its owner need not know more than the token to delete it, and no path contains it.
    let deleted = system.api("DELETE", "/api_tokens", Some(json!({"token": token}))).await;
    assert_eq!(deleted.status, 204, "{}", deleted.text());
    assert_eq!(publish.send(system.admin).await.unwrap().status, 401);
    // Clients of Routemaster send it in the path.
    let path = system.api("DELETE", &format!("/api_tokens/{token}"), None).await;
    assert!(matches!(path.status, 204 | 404), "{}", path.text());
    let logged = eventually("the line of the last request", || {
        let files = system.log_files().into_iter().map(|path| fs::read(path).unwrap_or_default());
        let text = String::from_utf8_lossy(&files.collect::<Vec<_>>().concat()).into_owned();
        let complete = text.contains(r#""uri":"/api_tokens/"#);
        std::future::ready(if complete { Ok(text) } else { Err(text.len()) })
    })
    .await;
    assert!(!logged.contains(token), "the log contains the token: {logged}");
    for path in [r#""uri":"/api_tokens""#, r#""uri":"/api_tokens/-""#] {
        assert!(logged.contains(path), "{path} is not in {logged}");
    }
    assert!(!system.log_text(&System::PACEMAKER).contains(token));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_use_up_a_daemon() {
    let system = System::start("attack-silent").await;
    let mut silent = Vec::new();
    for daemon in [system.pacemaker, system.sidecar] {
        for number in 0..400_u16 {
            let address = IpAddr::from([127, 0, 0, if number % 2 == 0 { 1 } else { 8 }]);
            let mut connection = Connection::open_from(address, daemon).await.unwrap();
            // A connection that was closed does not take a second piece.
            let _ = connection.write(b"GET ").await;
            silent.push(connection);
        }
        let begin = silent.len() - 400;
        let first = &mut silent[begin];
        let answer = first.send_raw(b"/health HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(answer.is_err(), "{daemon}: 400 connections without a request are open");
    }
    // nginx and the operators of this machine have the same address as these clients.
    for (to, path) in [
        (system.pacemaker, "/health"),
        (system.sidecar, "/health"),
        (system.pacemaker, "/instances"),
        (system.admin, "/instances"),
        (system.admin, "/stats/uncaught"),
    ] {
        let answer = Request::get("localhost", path).token(&system.token).send(to).await;
        let status = answer.map(|answer| answer.status);
        assert!(matches!(status, Ok(200)), "{to}{path}, while others are silent: {status:?}");
    }
    drop(silent);
    system.stop().await;
}
