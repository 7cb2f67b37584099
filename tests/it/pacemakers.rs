//! Several pacemakers side by side, and one that leaves.

use nix::sys::signal::Signal;
use serde_json::json;
use signalbox_testkit::eventually;
use signalbox_tests::{
    http::{Connection, Request},
    system::System,
    upstream::App,
};

/// The listener of a further pacemaker.
fn address(url: &str) -> std::net::SocketAddr {
    url.trim_start_matches("http://").parse().unwrap()
}

/// The holders of a lease, from the fields of its hash that do not change over time.
async fn holders(system: &System) -> Result<String, String> {
    let mut leases: Vec<String> = system.try_cli(System::FABRIC, "KEYS lease:*").await?;
    leases.sort();
    let mut text = String::new();
    for lease in leases {
        let fields: Vec<String> = system.try_cli(System::FABRIC, &format!("HGETALL {lease}")).await?;
        text += &format!("{lease} {fields:?}\n");
    }
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pacemakers_serve_one_table_and_leases_survive_their_holder() {
    let system = System::start("two-pacemakers").await;
    let second = system.stack.add_pacemaker().await.unwrap();
    let other = address(second.address());
    let [one, two] = [App::start("one").await, App::start("two").await];
    let body = |app: &App, host: &str| json!({"address": app.address.to_string(), "hostnames": [host], "version_type_id": "1", "lease_seconds": 3});
    // A change made through one pacemaker is visible through the other.
    let put =
        system.api_at(system.pacemaker, "PUT", "/instances/i-1?wait=20s", Some(body(&one, "one.test"))).await;
    assert_eq!(put.status, 201, "{}", put.text());
    let seen = system.api_at(other, "GET", "/instances/i-1", None).await;
    assert_eq!(seen.status, 200, "{}", seen.text());
    let again = system.api_at(other, "PUT", "/instances/i-1?wait=20s", Some(body(&one, "one.test"))).await;
    assert_eq!(again.status, 200, "a repeat by way of the other is still a repeat: {}", again.text());
    assert_eq!(again.json()["serial"], put.json()["serial"]);
    let put = system.api_at(other, "PUT", "/instances/i-2?wait=20s", Some(body(&two, "two.test"))).await;
    assert_eq!(put.status, 201, "{}", put.text());
    assert_eq!(system.get("one.test", "/").await.text(), "one");
    assert_eq!(system.get("two.test", "/").await.text(), "two");

    // One of them sweeps leases. Whichever it is, the leases end after it was killed: both die in turn.
    let first = system.stack.part(&System::PACEMAKER);
    let names = [first.part().to_string(), second.part().to_string()];
    eventually("a pacemaker to hold the lease", || async {
        let text = holders(&system).await?;
        if names.iter().any(|name| text.contains(name)) { Ok(()) } else { Err(text) }
    })
    .await;
    let held_by_second = holders(&system).await.unwrap().contains(&names[1]);
    let (holder, heir) = if held_by_second { (&second, &first) } else { (&first, &second) };
    system.allow("upstream: \"http://");
    holder.kill().await.unwrap();
    for host in ["one.test", "two.test"] {
        system.until_status(host, 503).await;
    }
    eventually("the successor to hold the lease", || async {
        let text = holders(&system).await?;
        if text.contains(heir.part().as_str()) { Ok(()) } else { Err(text) }
    })
    .await;
    holder.start().await.unwrap();
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn simultaneous_changes_by_two_pacemakers_are_each_made_once() {
    let system = System::start("concurrent").await;
    let second = system.stack.add_pacemaker().await.unwrap();
    let at = [system.pacemaker, address(second.address())];
    let app = App::start("app").await;
    let before: i64 = system.cli::<Option<i64>>(System::PRIMARY, "GET serial").await.unwrap_or(0);
    // The same forty registrations through both in parallel: forty changes.
    let work = (0..80).map(|n| {
        let (to, token, address) = (at[n % 2], system.token.clone(), app.address.to_string());
        let id = n / 2;
        tokio::spawn(async move {
            // An address has one owner, so each has its own.
            let body = json!({"address": format!("127.0.1.{}:{}", id + 1, address.rsplit_once(':').unwrap().1),
                "hostnames": [format!("h{id}.test"), "all.test"], "version_type_id": "1"});
            let request = Request::new("PUT", "localhost", &format!("/instances/i-{id}")).token(&token).json(&body);
            request.send(to).await.unwrap()
        })
    });
    for answer in work.collect::<Vec<_>>() {
        let answer = answer.await.unwrap();
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    }
    let serial: i64 = system.cli(System::PRIMARY, "GET serial").await;
    assert_eq!(serial, before + 40, "each change once");
    let members: i64 = system.cli(System::PRIMARY, "SCARD instances:all.test").await;
    assert_eq!(members, 40);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pacemaker_that_is_stopped_finishes_its_requests() {
    let system = System::start("graceful").await;
    let app = App::start("app").await;
    system.register("i-1", &app, "one.test", "1").await;
    // A change that waits for a worker that cannot answer is a request under way.
    let worker = system.workers()[0];
    system.signal_pid(worker, Signal::SIGSTOP);
    let body = json!({"address": app.address.to_string(), "hostnames": ["two.test"], "version_type_id": "1"});
    let request =
        Request::new("PUT", "localhost", "/instances/i-1?wait=20s").token(&system.token).json(&body);
    let to = system.pacemaker;
    let under_way = tokio::spawn(async move { request.send(to).await });
    eventually("the change to be made", || async {
        let count: i64 = system.try_cli(System::PRIMARY, "SCARD instances:two.test").await?;
        if count == 1 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    system.signal(System::PACEMAKER, Signal::SIGTERM);
    eventually("the listener to be closed", || async {
        match Connection::open(system.pacemaker).await {
            Err(_) => Ok(()),
            Ok(_) => Err("it still accepts"),
        }
    })
    .await;
    system.signal_pid(worker, Signal::SIGCONT);
    let answer = under_way.await.unwrap().expect("an answer although the pacemaker was leaving");
    assert!(matches!(answer.status, 200 | 503 | 504), "{} {}", answer.status, answer.text());
    eventually("the process to be gone", || async {
        let status = system.stack.part(&System::PACEMAKER).status();
        if status.pid.is_none() { Ok(()) } else { Err(status) }
    })
    .await;
    let status = system.stack.part(&System::PACEMAKER).status();
    assert_eq!(status.last_exit.as_deref(), Some("exit status: 0"));
    assert_eq!(system.get("two.test", "/").await.text(), "app");
    system.stop().await;
}
