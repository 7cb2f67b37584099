//! Each route as it is meant to be used.

use super::*;

#[tokio::test]
async fn an_instance_from_registration_to_removal() {
    let api = Api::start().await;
    let made = api.put("/instances/i-1", &instance(9001, &["Shop.Example."])).await;
    assert_eq!(made.status, 201);
    let view = made.json();
    assert_eq!((&view["id"], &view["hostnames"]), (&json!("i-1"), &json!(["shop.example"])));
    assert_eq!(made.headers["x-signalbox-serial"], view["serial"].to_string().as_str());
    let again = api.put("/instances/i-1", &instance(9001, &["shop.example"])).await;
    assert_eq!((again.status.as_u16(), &again.json()["serial"]), (200, &view["serial"]));
    assert_eq!(api.get("/instances/i-1").await.json()["routed"], true);
    let host = api.get("/hosts/shop.example").await.json();
    assert_eq!((&host["addresses"], &host["log_key"]), (&json!(["127.0.0.1:9001"]), &json!("17")));
    assert_eq!(api.get("/hosts").await.json()["hosts"][0]["hostname"], "shop.example");
    let beat = api.post("/instances/i-1/heartbeat", &json!({})).await;
    assert_eq!((beat.status.as_u16(), beat.json()), (200, json!({})));
    let fault = api.post("/instances/i-1/errors", &json!({"message": "refused"})).await;
    assert_eq!(fault.json(), json!({"faults": 1}));
    let drained = api.post("/instances/i-1/drain", &json!({"deadline_seconds": 3600})).await;
    assert_eq!((drained.status.as_u16(), &drained.json()["state"]), (200, &json!("draining")));
    assert_eq!(api.get("/instances?state=draining").await.json()["instances"][0]["id"], "i-1");
    assert_eq!(api.delete("/instances/i-1/drain").await.json()["state"], "active");
    for _ in 0..2 {
        assert_eq!(api.delete("/instances/i-1").await.status, 204);
    }
    assert_eq!(api.get("/instances/i-1").await.code(), "unknown_instance");
    assert_eq!(api.post("/instances/i-1/heartbeat", &json!({})).await.code(), "unknown_instance");
    assert_eq!(api.get("/hosts/shop.example").await.status, 200);
    for _ in 0..2 {
        assert_eq!(api.delete("/hosts/shop.example").await.status, 204);
    }
    assert_eq!(api.get("/hosts/shop.example").await.code(), "unknown_host");
}

#[tokio::test]
async fn a_lease_expires_automatically() {
    let api = Api::start().await;
    let mut body = instance(9001, &["a.example"]);
    body["lease_seconds"] = json!(1);
    assert_eq!(api.put("/instances/i", &body).await.status, 201);
    let beat = api.post("/instances/i/heartbeat", &json!({})).await.json();
    assert!(beat["lease_expires_at"].is_string() && beat["lease_seconds"] == 1, "{beat}");
    eventually("the lease ends", async || {
        let reply = api.get("/instances/i").await;
        if reply.status == 404 { Ok(()) } else { Err(reply.text) }
    })
    .await;
}

#[tokio::test]
async fn many_in_one_request_have_a_result_each_in_order() {
    let api = Api::start().await;
    let mut items: Vec<Value> = (0..50)
        .map(|number| {
            let mut item = instance(9000 + number, &["a.example"]);
            item["id"] = json!(format!("i-{number}"));
            item
        })
        .collect();
    items[7] = json!({"id": "i-7", "address": "nowhere"});
    items[8]["address"] = json!("192.0.2.1:80");
    items[9] = json!("no object");
    let reply = api.put("/instances", &json!(items)).await;
    assert_eq!(reply.status, 200);
    let results = reply.json()["results"].as_array().unwrap().clone();
    assert_eq!(results.len(), 50);
    for (number, result) in results.iter().enumerate() {
        match number {
            7 => assert_eq!(result["error"]["code"], "missing_field"),
            8 => assert_eq!(result["error"]["code"], "address_not_allowed"),
            9 => assert_eq!(result["error"]["code"], "invalid_body"),
            _ => {
                assert_eq!(result["status"], 201, "{result}");
                assert_eq!(result["instance"]["id"], format!("i-{number}"));
            }
        }
    }
    // Pages hold every instance once.
    let (mut ids, mut next) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/instances?limit=10{next}")).await.json();
        let found = page["instances"].as_array().unwrap();
        assert!(found.len() <= 10);
        ids.extend(found.iter().map(|instance| instance["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    let mut expected: Vec<String> =
        (0..50).filter(|number| ![7, 8, 9].contains(number)).map(|number| format!("i-{number}")).collect();
    expected.sort();
    assert_eq!(ids, expected);
    let by_host = api.get("/instances?host=a.example&limit=1000&version_type=17").await.json();
    assert_eq!(by_host["instances"].as_array().unwrap().len(), 47);
    assert!(by_host["next"].is_null());
    assert_eq!(api.get("/instances?host=b.example").await.json()["instances"], json!([]));
    assert_eq!(api.get("/instances?node=n").await.json()["instances"], json!([]));
}

#[tokio::test]
async fn a_node_is_drained_as_a_whole() {
    let api = Api::start().await;
    for (id, port) in [("a", 9001), ("b", 9002)] {
        let mut body = instance(port, &["a.example"]);
        body["node_id"] = json!(5);
        api.put(&format!("/instances/{id}"), &body).await;
    }
    let drained = api.post("/nodes/5/drain", &json!({"deadline_seconds": 60})).await;
    assert_eq!(drained.json()["instances"], json!(["a", "b"]));
    assert_eq!(api.get("/routes/explain?host=a.example").await.json()["answer"], "no_instance");
}

#[tokio::test]
async fn the_table_is_dumped_with_entries_written_directly() {
    let api = Api::start().await;
    api.put("/instances/i", &instance(9001, &["b.example"])).await;
    let by_hand = api.servers.routes();
    by_hand.command("SADD").arg("instances:a.example").arg("10.0.0.1:80").run().await.unwrap();
    let dump = api.get("/routes/dump").await;
    assert_eq!(dump.headers["content-type"], "application/json");
    let dump = dump.json();
    assert_eq!(dump["changed_meanwhile"], false);
    assert_eq!(dump["serial"], dump["serial_after"]);
    let hosts: Vec<&str> =
        dump["hosts"].as_array().unwrap().iter().map(|host| host["hostname"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["a.example", "b.example"]);
    assert_eq!(dump["hosts"][1]["instance_ids"], json!(["i"]));
    let text = read(api.request(Method::GET, "/routes/dump").header("accept", "text/plain")).await.text;
    let expected = "b.example log_key=17 instances=127.0.0.1:9001 instance_ids=i\n";
    assert!(text.contains("a.example log_key=- instances=10.0.0.1:80 instance_ids=-\n"), "{text}");
    assert!(text.contains(expected) && text.starts_with("# serial ") && text.ends_with("# end\n"), "{text}");
    assert_eq!(api.get("/routes/dump?format=text").await.text, text);
}

#[tokio::test]
async fn a_large_table_is_dumped_whole() {
    let api = Api::start().await;
    let by_hand = api.servers.routes();
    for number in 0..1201 {
        by_hand
            .command("SADD")
            .arg(format!("instances:h{number}.example"))
            .arg("10.0.0.1:80")
            .run()
            .await
            .unwrap();
    }
    let dump = api.get("/routes/dump").await.json();
    assert_eq!(dump["hosts"].as_array().unwrap().len(), 1201);
}

#[tokio::test]
async fn a_host_is_explained() {
    let api = Api::start().await;
    api.put("/instances/i", &instance(9001, &["*.shop.example"])).await;
    let explained = api.get("/routes/explain?host=A.Shop.example:8080").await.json();
    assert_eq!(explained["matched"], "*.shop.example");
    assert_eq!(explained["answer"], "proxied");
    assert_eq!(explained["instances"][0]["id"], "i");
    let names: Vec<&str> =
        explained["candidates"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a.shop.example", "*.shop.example", "*.example", "*"]);
    assert_eq!(api.get("/routes/explain?host=shop.example").await.json()["answer"], "no_route");
}

#[tokio::test]
async fn waiting_ends_when_the_routers_have_it() {
    let api = Api::start().await;
    let reply = api.put("/instances/i?wait=50ms", &instance(9001, &["a.example"])).await;
    assert_eq!((reply.status.as_u16(), reply.code().as_str()), (504, "no_router"));
    let serial = reply.json()["serial"].as_u64().unwrap();
    // The change was applied.
    assert_eq!(api.get("/instances/i").await.json()["routed"], true);
    let stats = api.servers.stats();
    let epoch: String = api.servers.routes().command("GET").arg("epoch").query().await.unwrap();
    let report = async |serial: u64| {
        let now_ms = stats.now_ms().await.unwrap();
        let fields = [("serial", serial.to_string()), ("epoch", epoch.clone()), ("workers", "[]".to_owned())];
        stats.command("HSET").arg("router:r-1").arg(&fields).run().await.unwrap();
        stats.command("ZADD").arg("routers").arg(now_ms).arg("r-1").run().await.unwrap();
        stats.command("PUBLISH").arg("routers").arg(format!("r-1 {serial}")).run().await.unwrap();
    };
    report(serial).await;
    assert_eq!(api.put("/instances/i?wait=5s", &instance(9001, &["a.example"])).await.status, 200);
    let lagging = api.put("/instances/i?wait=50ms", &instance(9002, &["a.example"])).await;
    assert_eq!((lagging.status.as_u16(), lagging.code().as_str()), (504, "not_converged"));
    let laggard = &lagging.json()["lagging"][0];
    assert_eq!((&laggard["router"], &laggard["behind_by"]), (&json!("r-1"), &json!(1)));
    let convergence = api.get("/routes/convergence").await.json();
    assert_eq!(
        (&convergence["converged"], &convergence["routers"][0]["behind_by"]),
        (&json!(false), &json!(1))
    );
    // The router catches up while a request waits.
    let body = instance(9002, &["a.example"]);
    let waiting = api.put("/instances/i?wait=20s", &body);
    let (waited, ()) = tokio::join!(waiting, report(serial + 1));
    assert_eq!(waited.status, 200, "{waited:?}");
    let convergence = api.get("/routes/convergence").await.json();
    assert_eq!(convergence["converged"], true);
    assert!(convergence["routers"][0]["propagation"]["samples"].as_u64() >= Some(1), "{convergence}");
}

#[tokio::test]
async fn the_document_describes_every_route() {
    let api = Api::start().await;
    let document = read(api.client.get(format!("{}/openapi.json", api.base))).await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    for (path, method) in [
        ("/instances", "get"),
        ("/instances", "put"),
        ("/instances/{id}", "put"),
        ("/instances/{id}", "get"),
        ("/instances/{id}", "delete"),
        ("/instances/{id}/heartbeat", "post"),
        ("/instances/{id}/drain", "post"),
        ("/instances/{id}/drain", "delete"),
        ("/instances/{id}/errors", "post"),
        ("/nodes/{id}/drain", "post"),
        ("/hosts", "get"),
        ("/hosts/{hostname}", "get"),
        ("/hosts/{hostname}", "delete"),
        ("/routes/dump", "get"),
        ("/routes/explain", "get"),
        ("/routes/convergence", "get"),
        ("/tokens", "get"),
        ("/tokens", "post"),
        ("/tokens/{name}", "delete"),
        ("/", "get"),
        ("/health", "get"),
        ("/health/ready", "get"),
        ("/metrics", "get"),
    ] {
        let operation = &document["paths"][path][method];
        assert!(operation["summary"].is_string(), "{method} {path}: {operation}");
    }
    let published =
        &document["paths"]["/messages"]["post"]["responses"]["200"]["content"]["application/json"];
    assert_eq!(published["schema"]["$ref"], "#/components/schemas/PublishedMessages");
    let mut names = std::collections::BTreeSet::new();
    let paths =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    for operation in paths {
        assert!(names.insert(operation["operationId"].to_string()), "{operation}");
        for (status, answer) in operation["responses"].as_object().unwrap() {
            assert!(!answer["description"].as_str().unwrap().is_empty(), "{operation}");
            let is_error = status.as_str() >= "400" && answer["content"]["application/json"].is_null();
            assert_eq!(is_error, !answer["content"]["application/problem+json"].is_null(), "{operation}");
        }
    }
    assert_eq!(
        serde_json::from_str::<Value>(&signalbox_admin_api::document(crate::dashboard::described())).unwrap(),
        document
    );
}

#[tokio::test]
async fn a_shutdown_answers_waiting_requests_and_ends() {
    let mut api = Api::start().await;
    let body = instance(9001, &["a.example"]);
    let waiting = api.request(Method::PUT, "/instances/i?wait=60s").json(&body);
    let shutdown = api.shutdown.clone();
    let stop = async {
        let waits = || async {
            let text = api.get("/instances/i").await;
            if text.status == 200 { Ok(()) } else { Err(text.text) }
        };
        eventually("the instance is registered", waits).await;
        shutdown.cancel();
    };
    let (reply, ()) = tokio::join!(read(waiting), stop);
    assert_eq!((reply.status.as_u16(), reply.code().as_str()), (503, "shutting_down"));
    let served = api.served.take().unwrap();
    served.await.unwrap().unwrap();
    // The leases are free for the next one.
    for lease in ["lease:sweeper", "lease:reconciler"] {
        let until: u64 =
            api.servers.fabric().command("HGET").arg(lease).arg("until_ms").query().await.unwrap();
        assert_eq!(until, 0, "{lease}");
    }
}

#[tokio::test]
async fn it_starts_without_redis_and_becomes_ready_when_redis_responds() {
    let mut servers = Servers::start().await;
    servers.fabric.kill();
    let mut api = Api::start_over(servers).await;
    assert_eq!(api.get("/health").await.status, 200);
    let ready = api.get("/health/ready").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["fabric"]), (503, &json!(false)));
    let put = api.put("/instances/i", &instance(9001, &["a.example"])).await;
    assert_eq!((put.status.as_u16(), put.code().as_str()), (503, "fabric_unavailable"));
    assert_eq!(put.headers["retry-after"], "1");
    api.servers.fabric.start();
    eventually("it is registered", async || {
        let reply = api.put("/instances/i", &instance(9001, &["a.example"])).await;
        if reply.status == 201 { Ok(()) } else { Err(reply.text) }
    })
    .await;
}

#[tokio::test]
async fn two_pacemakers_share_one_table() {
    let one = Api::start().await;
    let args = [one.servers.routes.url(), one.servers.stats.url(), one.servers.fabric.url()];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let args = {
        use clap::Parser as _;
        Args::parse_from([
            "signalbox-pacemaker".to_owned(),
            format!("--set=root_token={ROOT}"),
            format!("--redis-routes={}", args[0]),
            format!("--redis-stats={}", args[1]),
            format!("--redis-fabric={}", args[2]),
        ])
    };
    let shutdown = CancellationToken::new();
    let config = args.settings.load().and_then(Config::complete).unwrap();
    let other = tokio::spawn(crate::service::run(config, listener, None, shutdown.clone()));
    let put = async |base: &str, id: &str, port: u16| {
        let request = one.client.put(format!("{base}/instances/{id}")).bearer_auth(ROOT);
        read(request.json(&instance(port, &["a.example"]))).await
    };
    let (a, b) = tokio::join!(put(&one.base, "a", 9001), put(&base, "b", 9002));
    assert_eq!((a.status.as_u16(), b.status.as_u16()), (201, 201), "{a:?} {b:?}");
    let host = one.get("/hosts/a.example").await.json();
    assert_eq!(host["instance_ids"], json!(["a", "b"]));
    shutdown.cancel();
    other.await.unwrap().unwrap();
}
