//! A client or a token holder tries to make an edge send requests to itself, or to reach the listeners of operators through a
//! route. The addresses are hidden behind another listener, so that no list of addresses contains them.

use signalbox_tests::{
    http::{Request, Response},
    system::System,
    upstream::App,
};

use super::raw::Raw;

async fn route(system: &System, host: &str, to: &Raw) {
    system.cli::<()>(System::PRIMARY, &format!("SADD instances:{host} {}", to.address)).await;
}

async fn send(system: &System, request: Request) -> Response {
    request.send(system.edge).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_returns_to_the_edge_is_rejected() {
    let system = System::edge_only("attack-loop").await;
    let hidden = Raw::forwarding(system.edge).await;
    for host in ["loop.test", "guarded.test"] {
        route(&system, host, &hidden).await;
    }
    system.cli::<()>(System::PRIMARY, r#"SET policy:guarded.test {"balance":{"algorithm":"p2c"}}"#).await;
    system.settle().await;
    for (number, host) in ["loop.test", "loop.test", "guarded.test"].into_iter().enumerate() {
        for request in [
            Request::get(host, "/"),
            // A header of the client does not hide the loop.
            Request::get(host, "/").header("CDN-Loop", "a|b, \"c"),
            Request::new("POST", host, "/").header("CDN-Loop", "|close|x").header("Connection", "CDN-Loop"),
        ] {
            let before = hidden.connections();
            let response = send(&system, request.clone()).await;
            assert_eq!(response.status, 508, "{number}: {request:?}: {response:?}");
            assert_eq!(response.json()["code"], "loop_detected", "{response:?}");
            assert_eq!(response.header("Cache-Control"), Some("no-store"), "{response:?}");
            assert!(
                hidden.connections() - before <= 1,
                "the request went through more than once: {request:?}"
            );
        }
    }
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn edges_may_be_chained_and_a_client_harms_only_its_own_request() {
    let (front, back) = (System::edge_only("chain-front").await, System::edge_only("chain-back").await);
    let app = App::start("app").await;
    let hidden = Raw::forwarding(back.edge).await;
    route(&front, "app.test", &hidden).await;
    front.settle().await;
    back.route("app.test", &app).await;
    back.settle().await;
    let get = || Request::get("app.test", "/echo");
    let response = send(&front, get().header("CDN-Loop", "cdn.example; v=1")).await;
    let echo = response.text();
    let line = echo.lines().find_map(|line| line.strip_prefix("CDN-Loop: ")).unwrap_or_default();
    let names: Vec<&str> = line.split(", ").collect();
    assert_eq!((response.status, names.len(), names[0]), (200, 3, "cdn.example; v=1"), "{echo}");
    assert!(names[1].starts_with("signalbox-") && names[2].starts_with("signalbox-"), "{line}");
    assert_ne!(names[1], names[2], "each edge has a name of its own");
    // A client that names an edge, or far too many of them, is rejected; the next request of others is not.
    let hits = app.hits();
    for list in [names[1], &format!("x,{} ;a", names[1].to_uppercase()), &["a"; 20].join(",")] {
        let response = send(&front, get().header("CDN-Loop", list)).await;
        assert_eq!((response.status, response.reason()), (508, "loop_detected"), "{list}: {response:?}");
    }
    // Each line of a repeated header belongs to the list.
    let response = send(&front, get().header("CDN-Loop", "cdn.example").header("CDN-Loop", names[1])).await;
    assert_eq!((response.status, response.reason()), (508, "loop_detected"), "{response:?}");
    assert_eq!(app.hits(), hits);
    for list in ["signalbox-", "signalbox-other-80", "not-signalbox-a", &["a"; 10].join(",")] {
        assert_eq!(send(&front, get().header("CDN-Loop", list)).await.status, 200, "{list}");
    }
    front.stop().await;
    back.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_never_publishes_the_listeners_of_operators() {
    let system = System::start("attack-publish").await;
    let paths =
        ["/edge/snapshot", "/edge/status", "/metrics", "/health", "/instances", "/stats/uncaught", "/"];
    for (name, address) in
        [("admin", system.admin), ("pacemaker", system.pacemaker), ("sidecar", system.sidecar)]
    {
        let hidden = Raw::forwarding(address).await;
        // As a host name that the admin listener answers for, too.
        for host in [format!("{name}.test"), "localhost".to_owned(), "127.0.0.1".to_owned()] {
            system.cli::<()>(System::PRIMARY, &format!("DEL instances:{host}")).await;
            route(&system, &host, &hidden).await;
            system.settle().await;
            for path in paths {
                let request = Request::get(&host, path).token(&system.token).header("CDN-Loop", "x, y");
                let response = send(&system, request).await;
                let code = response.json()["code"].clone();
                let wanted = name == "admin" && host == "admin.test";
                let (status, wanted) =
                    if wanted { (421, "unknown_admin_name") } else { (403, "proxied_by_edge") };
                assert_eq!((response.status, code), (status, wanted.into()), "{host}{path} of {name}");
            }
            let accept = Request::new("POST", &host, "/edge/accept").header("X-Signalbox-Accept", "table");
            assert!(matches!(send(&system, accept).await.status, 403 | 421), "{host} of {name}");
        }
    }
    // Operators are still answered.
    assert_eq!(system.edge_api("/edge/status").await.status, 200);
    assert_eq!(system.api("GET", "/instances", None).await.status, 200);
    system.stop().await;
}
