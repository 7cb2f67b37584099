//! Pages of lists are limited in bytes and in work, not only in items: a page that one token makes large delays no other caller.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use signalbox_testkit::eventually;
use signalbox_tests::{http::Request, system::System};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::mpsc};

/// A page has at most so many bytes of items, and one item more.
const PAGE_BYTES: usize = 4 << 20;

async fn put(system: &System, target: &str, body: Value) {
    let answer = system.api("PUT", target, Some(body)).await;
    assert!(matches!(answer.status, 200 | 201), "PUT {target}: {} {}", answer.status, answer.text());
}

/// All pages of a list, each with the names of its items. `target` ends with its last parameter, and `cursor` is the name of the
/// parameter for the `next` of a page.
async fn pages(
    system: &System,
    token: &str,
    target: &str,
    [items, name, cursor]: [&str; 3],
) -> Vec<Vec<String>> {
    let (mut pages, mut next) = (Vec::new(), String::new());
    loop {
        let request = Request::get(&system.admin.to_string(), &format!("{target}{next}")).token(token);
        let answer = request.send(system.admin).await.expect("an answer");
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        // The largest items of these tests have less than 128 KiB.
        assert!(answer.body.len() < PAGE_BYTES + (1 << 20), "{} bytes", answer.body.len());
        let page = answer.json();
        let found = page[items].as_array().unwrap_or_else(|| panic!("no {items}"));
        pages.push(found.iter().map(|item| item[name].as_str().unwrap().to_owned()).collect());
        match page["next"].as_str() {
            Some(text) => next = format!("&{cursor}={text}"),
            None => return pages,
        }
    }
}

/// Asserts that the pages of a limit of 1,000 ended early, and that they have each of these names once and in this order.
fn assert_walked(pages: &[Vec<String>], names: &[String]) {
    assert!(pages.len() > 1 && pages[0].len() > 10, "{:?}", pages.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(pages.concat(), names);
}

/// A policy of about 55 KiB.
fn large_policy() -> Value {
    let long = "x".repeat(1000);
    let rule =
        |number| json!({"path": format!("/{long}{number}"), "redirect": {"to": "https://elsewhere.test"}});
    json!({"paths": (0..50).map(rule).collect::<Vec<_>>()})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_hosts_with_large_policies_ends_early_and_all_pages_have_each_host_once() {
    let system = System::start("pages-hosts").await;
    let policy = large_policy();
    let names: Vec<String> = (0..110).map(|number| format!("h{number:03}.large.test")).collect();
    for name in &names {
        put(&system, &format!("/hosts/{name}"), policy.clone()).await;
    }
    put(&system, "/hosts/other.test?wait=20s", json!({"hold_ms": 10})).await;
    let new = json!({"name": "confined", "scopes": ["read"], "hosts": ["*.large.test"]});
    let made = system.api("POST", "/tokens", Some(new)).await;
    let confined = made.json()["token"].as_str().expect("a token").to_owned();
    let hosts = ["hosts", "hostname", "cursor"];
    assert_walked(&pages(&system, &confined, "/hosts?limit=1000", hosts).await, &names);
    let searched = "/hosts?limit=1000&search=large&sort=-hostname";
    let descending: Vec<String> = names.iter().rev().cloned().collect();
    assert_walked(&pages(&system, &system.token, searched, hosts).await, &descending);
    let all: Vec<String> = names.iter().cloned().chain(["other.test".to_owned()]).collect();
    assert_walked(&pages(&system, &system.token, "/hosts?limit=1000", hosts).await, &all);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_instances_with_many_long_names_ends_early() {
    let system = System::start("pages-instances").await;
    let label = "x".repeat(60);
    let hostnames: Vec<String> =
        (0..100).map(|number| format!("n{number:02}.{label}.{label}.{label}.test")).collect();
    let names: Vec<String> = (0..240).map(|number| format!("i-{number:03}")).collect();
    let instance = |(number, name): (usize, &String)| {
        let address = format!("127.0.0.1:{}", 20_000 + number);
        json!({"id": name, "address": address, "hostnames": hostnames, "version_type_id": "7"})
    };
    let all: Vec<Value> = names.iter().enumerate().map(instance).collect();
    for part in all.chunks(40) {
        put(&system, "/instances", json!(part)).await;
    }
    let instances = ["instances", "id", "cursor"];
    let walked = pages(&system, &system.token, "/instances?limit=1000", instances).await;
    assert_walked(&walked, &names);
    let found = pages(&system, &system.token, "/instances?limit=1000&search=i-239", instances).await;
    assert_eq!(found.concat(), ["i-239"]);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_audit_records_ends_early_and_all_pages_have_each_record_once() {
    let system = System::start("pages-audit").await;
    put(&system, "/hosts/shop.test", json!({})).await;
    let mut record =
        system.api("GET", "/audit?limit=1&target=/hosts", None).await.json()["records"][0].clone();
    let targets: Vec<String> = (0..200).map(|number| format!("/made/{number:03}")).collect();
    for target in &targets {
        record["target"] = json!(target);
        record["after"] = json!({"text": "x".repeat(30_000)});
        let added: String = system.cli(System::FABRIC, &format!("XADD audit * record {record}")).await;
        assert!(added.contains('-'), "{added}");
    }
    let records = ["records", "target", "before"];
    let newest_first: Vec<String> = targets.iter().rev().cloned().collect();
    let walked = pages(&system, &system.token, "/audit?limit=1000&target=/made", records).await;
    assert_walked(&walked, &newest_first);
    // Oldest first, each part begins after the `newest` of the one before.
    let (mut found, mut after) = (Vec::new(), "0-1__".to_owned());
    while found.len() < targets.len() {
        let page =
            system.api("GET", &format!("/audit?limit=1000&target=/made&after={after}"), None).await.json();
        let part = page["records"].as_array().expect("records").clone();
        assert!(!part.is_empty(), "{page}");
        found.extend(part.iter().map(|record| record["target"].as_str().unwrap().to_owned()));
        after = page["newest"].as_str().expect("a cursor").to_owned();
    }
    assert_eq!(found, targets);
    system.stop().await;
}

/// Questions for names that the routes primary has answered, and reads of sets: two for each name that exists.
async fn reads(system: &System) -> u64 {
    let text: String = system.cli(System::PRIMARY, "INFO commandstats").await;
    let calls = |command: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(command)?.strip_prefix(":calls="));
        line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    calls("cmdstat_smembers") + calls("cmdstat_exists")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_hosts_with_many_rules_looks_up_a_limited_number_of_services() {
    const HOSTS: usize = 300;
    const RULES: usize = 16;
    let system = System::start("pages-services").await;
    // Ten names are looked up for each service, and it shares two of them with the others.
    let service = |host: usize, rule: usize| format!("a.b.c.d.e.f.g.r{rule}-h{host}.test");
    for host in 0..HOSTS {
        let rules: Vec<Value> = (0..RULES)
            .map(|rule| json!({"path": format!("/{rule}"), "service": service(host, rule)}))
            .collect();
        put(&system, &format!("/hosts/h{host:03}.test"), json!({"paths": rules})).await;
    }
    let one = json!({"paths": [{"path": "/x", "service": "empty.test"}]});
    put(&system, "/hosts/z.test?wait=20s", one).await;

    let before = reads(&system).await;
    let page = system.api("GET", "/hosts?limit=1000", None).await.json();
    let used = reads(&system).await - before;
    let all = page["hosts"].as_array().expect("hosts");
    assert_eq!(all.len(), HOSTS + 1);
    // Two for each host, one for each name of 256 services, and what the pacemaker does in the meantime.
    assert!(used < 2 * 301 + 256 * 10 + 1000, "{used} reads");
    let of = |condition: &str| {
        let is = |host: &&Value| host["state"]["condition"] == condition;
        all.iter().filter(is).map(|host| host["hostname"].as_str().unwrap()).collect::<BTreeSet<&str>>()
    };
    // The host with one rule is evaluated although it is the last one, and 15 of the others are.
    let evaluated = of("rule_without_instance");
    assert!(evaluated.contains("z.test") && evaluated.len() == 16, "{evaluated:?}");
    assert_eq!(of("unknown").len(), HOSTS - 15);
    // The page of one host is complete.
    let shown = system.api("GET", "/hosts/h299.test", None).await.json();
    assert_eq!(shown["state"]["condition"], "rule_without_instance", "{}", shown["state"]);
    assert_eq!(shown["state"]["unserved_services"].as_array().map(Vec::len), Some(RULES));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_reads_four_lists_at_a_time() {
    let system = System::start("pages-places").await;
    put(&system, "/hosts/shop.test?wait=20s", json!({})).await;
    let token = system.token("lister", &["read"]).await;
    let machine = "state_machines: {m: {states: [{gate: a, exit_condition: 'metadata.x = 1', triggers: [{metadata: x}], \
        next: b}, {gate: b}]}}";
    system.apply("m", machine).await;
    // While their server does not respond, lists wait for it.
    for (target, is_table) in [("/hosts", true), ("/state-machines/m/labels", false)] {
        let server = || if is_table { System::PRIMARY } else { System::FABRIC };
        let request = Request::get(&system.admin.to_string(), target).token(&token);
        assert_eq!(request.send(system.admin).await.expect("an answer").status, 200);
        system.pause(server());
        let (sender, mut answers) = mpsc::channel(5);
        for _ in 0..5 {
            let (request, sender, admin) = (request.clone(), sender.clone(), system.admin);
            tokio::spawn(async move {
                let answer = request.send(admin).await.expect("an answer");
                let _closed = sender.send((answer.status, answer.text())).await;
            });
        }
        let first = tokio::time::timeout(Duration::from_secs(20), answers.recv()).await;
        system.resume(server());
        let (status, text) = first.expect("an answer in time").expect("an answer");
        assert!(
            status == 429 && text.contains("token_limit_reached") && text.contains("Limit of lists"),
            "{text}"
        );
        for _ in 0..4 {
            let (status, text) = answers.recv().await.expect("an answer");
            assert_eq!(status, 200, "{text}");
        }
    }
    system.stop().await;
}

/// A client asks the pacemaker for large lists and reads nothing of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_its_client_does_not_read_keeps_its_place() {
    let system = System::start("pages-unread").await;
    let policy = large_policy();
    for number in 0..80 {
        put(&system, &format!("/hosts/h{number:03}.large.test"), policy.clone()).await;
    }
    let token = system.token("lister", &["read"]).await;
    let request = Request::get("localhost", "/hosts?limit=1000").token(&token);
    let mut unread = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(system.pacemaker).await.unwrap();
        stream.write_all(&request.to_bytes()).await.unwrap();
        // The answer has begun.
        stream.readable().await.unwrap();
        unread.push(stream);
    }
    let refused = request.send(system.pacemaker).await.expect("an answer");
    assert_eq!((refused.status, refused.json()["code"].as_str()), (429, Some("token_limit_reached")));
    drop(unread);
    eventually("a place to be free", || async {
        let answer = request.send(system.pacemaker).await.expect("an answer");
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    system.stop().await;
}
