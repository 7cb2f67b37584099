//! Which key of the route table answers for a host.
//!
//! The tables here are written by hand, as an operator would with `redis-cli`: the four seed keys alone must route.

use signalbox_tests::{
    http::{Connection, Request, Response},
    system::System,
    upstream::App,
};

/// The expected result of a row of the table.
#[derive(Debug, Clone, Copy)]
enum Expect<'a> {
    App(&'a App),
    NoInstance,
    NoRoute,
}

async fn check(system: &System, host: &str, expect: Expect<'_>) {
    let answer = Request::get(host, "/").send(system.edge).await.unwrap();
    let seen = (answer.status, answer.reason().to_owned(), answer.text());
    match expect {
        Expect::App(app) => assert_eq!((seen.0, &*seen.2), (200, app.name()), "{host}: {seen:?}"),
        Expect::NoInstance => {
            assert_eq!((seen.0, &*seen.1), (503, "no_instance"), "{host}: {seen:?}");
            assert!(answer.header("Retry-After").is_some(), "{host}: no Retry-After in {answer:?}");
        }
        Expect::NoRoute => assert_eq!((seen.0, &*seen.1), (404, "no_route"), "{host}: {seen:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_specific_name_that_exists_decides() {
    let system = System::edge_only("lookup").await;
    let [exact, wild, deep, rest] = [
        App::start("exact").await,
        App::start("wild").await,
        App::start("deep").await,
        App::start("rest").await,
    ];
    for (name, app) in [("exact.test", &exact), ("*.wild.test", &wild), ("*.deep.wild.test", &deep)] {
        system.route(name, app).await;
    }
    // Names that exist without instances: each of the three keys alone makes a name exist.
    system.cli::<()>(System::PRIMARY, "SET logkey:no-one.wild.test 9").await;
    system.cli::<()>(System::PRIMARY, r#"SET policy:paused.wild.test {"v":1}"#).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:*.empty.wild.test 9").await;
    // An address that is a name cannot be connected to; a set of only those has no usable instance.
    system.cli::<()>(System::PRIMARY, "SADD instances:named.wild.test localhost:80").await;
    system.settle().await;

    let rows = [
        ("exact.test", Expect::App(&exact)),
        ("EXACT.Test", Expect::App(&exact)),
        ("exact.test:8080", Expect::App(&exact)),
        ("exact.test.", Expect::App(&exact)),
        ("Exact.TEST.:80", Expect::App(&exact)),
        ("below.exact.test", Expect::NoRoute),
        ("a.wild.test", Expect::App(&wild)),
        ("a.b.c.wild.test", Expect::App(&wild)),
        ("A.WILD.test:1", Expect::App(&wild)),
        ("wild.test", Expect::NoRoute),
        ("awild.test", Expect::NoRoute),
        ("x.deep.wild.test", Expect::App(&deep)),
        ("x.y.deep.wild.test", Expect::App(&deep)),
        ("deep.wild.test", Expect::App(&wild)),
        ("no-one.wild.test", Expect::NoInstance),
        ("paused.wild.test", Expect::NoInstance),
        ("named.wild.test", Expect::NoInstance),
        ("x.empty.wild.test", Expect::NoInstance),
        ("empty.wild.test", Expect::App(&wild)),
        ("nobody.test", Expect::NoRoute),
        ("test", Expect::NoRoute),
        ("127.0.0.1", Expect::NoRoute),
        ("[::1]:8080", Expect::NoRoute),
        // A request cannot name a key that exists only inside the table.
        ("*.wild.test", Expect::NoRoute),
    ];
    for (host, expect) in rows {
        check(&system, host, expect).await;
    }

    // With a catch-all, what had no route has one, and what existed without instances still has none.
    system.route("*", &rest).await;
    system.settle().await;
    for (host, expect) in rows {
        // This table does not cover whether an invalid host name reaches the catch-all or is
        // rejected.
        if host.starts_with('*') {
            continue;
        }
        let expect = if matches!(expect, Expect::NoRoute) { Expect::App(&rest) } else { expect };
        check(&system, host, expect).await;
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_candidates_and_no_more() {
    let system = System::edge_only("candidates").await;
    let [near, far, rest] = [App::start("near").await, App::start("far").await, App::start("rest").await];
    // The name itself, its eight longest wildcards, and the catch-all. `*.i…` is the eighth, `*.j…` the ninth.
    system.route("*.i.j.k.l", &near).await;
    system.route("*.j.k.l", &far).await;
    system.settle().await;
    check(&system, "a.b.c.d.e.f.g.h.i.j.k.l", Expect::App(&near)).await;
    check(&system, "b.c.d.e.f.g.h.x.j.k.l", Expect::App(&far)).await;
    check(&system, "a.b.c.d.e.f.g.h.x.j.k.l", Expect::NoRoute).await;
    system.route("*", &rest).await;
    system.settle().await;
    check(&system, "a.b.c.d.e.f.g.h.x.j.k.l", Expect::App(&rest)).await;
    system.stop().await;
}

async fn raw(system: &System, bytes: &str) -> Response {
    Connection::open(system.edge).await.unwrap().send_raw(bytes.as_bytes()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_host_is_bad() {
    let system = System::edge_only("no-host").await;
    let rest = App::start("rest").await;
    // Even a catch-all does not take it: it has no name at all.
    system.route("*", &rest).await;
    system.settle().await;
    let old = raw(&system, "GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!((old.status, old.reason()), (400, "no_host"), "{old:?}");
    let new = raw(&system, "GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!((new.status, new.reason()), (400, "bad_request"), "{new:?}");
    let with = raw(&system, "GET / HTTP/1.0\r\nHost: some.test\r\n\r\n").await;
    assert_eq!((with.status, &*with.text()), (200, "rest"), "{with:?}");
    let absolute = raw(&system, "GET http://other.test/ HTTP/1.1\r\nHost: some.test\r\n\r\n").await;
    assert_eq!((absolute.status, &*absolute.text()), (200, "rest"), "{absolute:?}");
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_under_the_key_that_answered() {
    // One worker, which takes turns; two would each begin somewhere, and may meet the same one.
    let system =
        System::with("log-keys", |builder| builder.without_pacemaker().without_sidecar().workers(1)).await;
    let [one, two, plain] = [App::start("one").await, App::start("two").await, App::start("plain").await];
    system.route("*.keyed.test", &one).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:*.keyed.test 17").await;
    system.route("split.test", &one).await;
    system.route("split.test", &two).await;
    system.cli::<()>(System::PRIMARY, "SET logkey:split.test 20").await;
    // The policy gives one address its own key: two version types of one name are counted
    // separately.
    let policy = format!(r#"SET policy:split.test {{"v":1,"log_keys":{{"{}":"21"}}}}"#, two.address);
    system.cli::<()>(System::PRIMARY, &policy).await;
    system.route("plain.test", &plain).await;
    system.settle().await;
    for host in ["a.keyed.test", "nobody.test", "split.test", "split.test", "plain.test"] {
        system.get(host, "/").await;
    }
    let mut lines = system.log_lines_when(5).await;
    lines.sort_by_key(|line| line["host"].to_string() + &line["key"].to_string());
    let keys: Vec<_> = lines
        .iter()
        .map(|line| (line["host"].as_str().unwrap().to_owned(), line["key"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [
        ("a.keyed.test", "17"),
        ("nobody.test", "null"),
        ("plain.test", "null"),
        ("split.test", "20"),
        ("split.test", "21"),
    ];
    assert_eq!(keys, expected.map(|(host, key)| (host.to_owned(), key.to_owned())));
    system.stop().await;
}
