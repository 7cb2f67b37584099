//! Lists of the API: search, sort order and pages.

use super::*;

fn names(items: &Value, field: &str) -> Vec<String> {
    let items = items.as_array().unwrap_or_else(|| panic!("{items}"));
    items.iter().map(|item| item[field].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn hosts_are_searched_and_sorted_over_the_whole_table() {
    let api = Api::start().await;
    for (id, port, host) in [
        ("a", 9001, "one.example"),
        ("b", 9002, "two.example"),
        ("c", 9003, "two.example"),
        ("d", 9004, "other.test"),
    ] {
        api.put(&format!("/instances/{id}"), &instance(port, &[host])).await;
    }
    api.delete("/instances/d").await;
    let found = api.get("/hosts?search=EXAMPLE&sort=-instances&limit=1").await.json();
    assert_eq!(
        (names(&found["hosts"], "hostname"), &found["total"]),
        (vec!["two.example".to_owned()], &json!(2))
    );
    let next = found["next"].as_str().unwrap();
    let rest = api.get(&format!("/hosts?search=EXAMPLE&sort=-instances&limit=1&cursor={next}")).await.json();
    assert_eq!(names(&rest["hosts"], "hostname"), ["one.example"]);
    assert!(rest["next"].is_null());
    let worst = api.get("/hosts?sort=healthy&limit=1").await.json();
    assert_eq!(names(&worst["hosts"], "hostname"), ["other.test"]);
    // A change is visible in the next list.
    api.put("/instances/e", &instance(9005, &["new.example"])).await;
    assert_eq!(names(&api.get("/hosts?search=new").await.json()["hosts"], "hostname"), ["new.example"]);
    assert_eq!(api.get("/hosts?sort=age").await.code(), "invalid_sort");
    assert_eq!(api.get("/hosts?sort=instances&cursor=AXg").await.code(), "invalid_cursor");
    assert_eq!(api.get("/hosts?sort=instances&limit=0").await.code(), "invalid_limit");

    let confined = api.token("confined", &["read"], Some(&["one.example"])).await;
    let seen =
        read(api.client.get(format!("{}/hosts?sort=-instances", api.base)).bearer_auth(confined)).await;
    assert_eq!(names(&seen.json()["hosts"], "hostname"), ["one.example"]);
    assert_eq!(seen.json()["total"], 1);
}

#[tokio::test]
async fn instances_are_found_by_any_of_their_names() {
    let api = Api::start().await;
    api.put("/instances/shop-1", &instance(9001, &["one.example"])).await;
    api.put("/instances/shop-2", &instance(9002, &["two.example"])).await;
    for (search, expected) in [
        ("SHOP-1", vec!["shop-1"]),
        ("9002", vec!["shop-2"]),
        ("example", vec!["shop-1", "shop-2"]),
        ("x9", vec![]),
    ] {
        let found = api.get(&format!("/instances?search={search}")).await.json();
        assert_eq!(names(&found["instances"], "id"), expected, "{search}");
    }
}

#[tokio::test]
async fn queues_topics_subscriptions_and_tokens_are_sorted_and_paged() {
    let api = Api::start().await;
    for (queue, pattern) in [("jobs", ".*:job:.*"), ("mail", ".*:mail:.*"), ("audit", "none:none:none")] {
        api.put(&format!("/queues/{queue}"), &json!({"pattern": pattern})).await;
    }
    let message = json!({"tenant": "7", "type": "mail", "name": "m"});
    let published = api.post("/messages", &json!([message, message])).await;
    assert!(published.status.is_success(), "{published:?}");
    let first = api.get("/queues?sort=-waiting&limit=1").await.json();
    assert_eq!((names(&first["queues"], "name"), &first["total"]), (vec!["mail".to_owned()], &json!(3)));
    let cursor = first["next"].as_str().unwrap();
    let rest = api.get(&format!("/queues?sort=-waiting&limit=5&cursor={cursor}")).await.json();
    assert_eq!(names(&rest["queues"], "name"), ["audit", "jobs"]);
    assert_eq!(names(&api.get("/queues?search=:JOB:").await.json()["queues"], "name"), ["jobs"]);
    assert_eq!(names(&api.get("/queues").await.json()["queues"], "name"), ["audit", "jobs", "mail"]);

    for topic in ["orders", "users"] {
        let event = json!({"type": "create", "url": "https://shop.example/1"});
        assert_eq!(api.post(&format!("/topics/{topic}"), &event).await.status, 200);
    }
    let topics = api.get("/topics?search=orders").await;
    assert_eq!(
        (names(&topics.json(), "name"), &topics.headers["x-total-count"]),
        (vec!["orders".to_owned()], &"1".parse().unwrap())
    );
    let topics = api.get("/topics?limit=1&sort=-name").await;
    let link = topics.headers["link"].to_str().unwrap();
    let next = link.trim_start_matches('<').split('>').next().unwrap();
    assert!(link.ends_with("rel=\"next\""), "{link}");
    assert_ne!(names(&topics.json(), "name"), names(&api.get(next).await.json(), "name"));

    for client in ["mailer", "search"] {
        let token = format!("{client}--0123456789abcdef");
        api.post("/api_tokens", &json!({"name": client, "token": token})).await;
        let body = json!({"topics": ["orders"], "callback": format!("https://{client}.example/hook")});
        let request = api.client.post(format!("{}/subscription", api.base)).bearer_auth(token).json(&body);
        assert_eq!(read(request).await.status, 204);
    }
    let found = api.get("/subscriptions?search=SEARCH.example").await;
    assert_eq!(names(&found.json(), "subscriber"), ["search"]);
    assert_eq!(
        names(&api.get("/subscriptions?sort=-subscriber&limit=1").await.json(), "subscriber"),
        ["search"]
    );

    api.token("reader", &["read"], None).await;
    api.token("deployer", &["routes"], None).await;
    let tokens = api.get("/tokens?search=routes").await.json();
    assert_eq!(
        (names(&tokens["tokens"], "name"), &tokens["total"]),
        (vec!["deployer".to_owned()], &json!(1))
    );
    assert_eq!(names(&api.get("/tokens?sort=-name&limit=1").await.json()["tokens"], "name"), ["reader"]);
    assert_eq!(api.get("/objects").await.json(), json!({"objects": [], "total": 0}));
    assert_eq!(api.get("/objects?sort=age").await.code(), "invalid_sort");
}
