//! State machines with every daemon running: the shipped canary decides by the statistics of the edge.

use std::path::Path;

use serde_json::{Value, json};
use signalbox_testkit::{PATIENCE, eventually_within};
use signalbox_tests::{
    http::Request,
    load::Load,
    system::System,
    upstream::{App, Mode},
};

/// The shipped example, evaluated every second so that the test finishes in seconds.
fn canary() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/machines/canary.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains("interval: 5s"), "the example has changed");
    text.replace("interval: 5s", "interval: 1s").replace("*.localhost", "*.test")
}

async fn plan(system: &System, yaml: &str) -> (u16, Value) {
    let request = Request::new("POST", &system.admin.to_string(), "/state-machines/canary/plan");
    let request =
        request.token(&system.token).header("Content-Type", "application/yaml").body(yaml.as_bytes());
    let answer = request.send(system.admin).await.unwrap();
    (answer.status, answer.json())
}

async fn apply(system: &System, yaml: &str) {
    let (status, planned) = plan(system, yaml).await;
    assert_eq!(status, 200, "{planned}");
    let applied =
        system.api("POST", "/state-machines/canary/apply", Some(json!({"plan": planned["plan"]}))).await;
    assert_eq!(applied.status, 200, "{}", applied.text());
}

/// Waits until the label is in the state; how it came there.
async fn arrives(system: &System, label: &str, state: &str) -> Vec<String> {
    let target = format!("/state-machines/canary/labels/{label}");
    eventually_within(PATIENCE * 4, &format!("{label} to be in {state}"), || async {
        let now = system.api("GET", &target, None).await.json();
        if now["state"] == state {
            return Ok(());
        }
        let why = system.api("GET", &format!("{target}/why"), None).await;
        Err(format!("{now} {}", why.text()))
    })
    .await;
    let history = system.api("GET", &format!("{target}/history"), None).await.json();
    let rows = history["history"].as_array().unwrap_or_else(|| panic!("{history}"));
    rows.iter().map(|row| row["to"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_canary_is_promoted_without_errors_and_rolled_back_with_errors() {
    let system = System::start("canary").await;
    let [old, other] = [App::start("old").await, App::start("other").await];
    let [good, bad] = [App::start("good").await, App::start("bad").await];
    bad.set(Mode::Status(500));
    apply(&system, &canary()).await;
    // A definition that would overflow the stack is rejected, and the pacemaker keeps running.
    let (status, refused) = plan(&system, &"[".repeat(100_000)).await;
    assert_eq!((status, &refused["code"]), (422, &json!("invalid_definition")));

    for (host, id, app) in [("shop.test", "shop", &old), ("bad.test", "bad", &other)] {
        system.register(id, app, host, &format!("{id}-17")).await;
    }
    let facts = |host: &str, id: &str, app: &App| {
        json!({"metadata": {
            "host": host, "stable": format!("{id}-17"), "version": format!("{id}-18"),
            "instances": [app.address.to_string()], "calm_seconds": 1,
        }})
    };
    let loads =
        ["shop.test", "bad.test"].map(|host| Load::start(system.edge, 2, move |_| Request::get(host, "/")));
    for (label, host, app) in [("shop", "shop.test", &good), ("bad", "bad.test", &bad)] {
        let target = format!("/state-machines/canary/labels/{label}");
        let created = system.api("POST", &target, Some(facts(host, label, app))).await;
        assert_eq!(created.status, 201, "{}", created.text());
    }
    let way = arrives(&system, "bad", "rolled_back").await;
    assert_eq!(way, ["asked", "five_percent", "at_five", "roll_back", "rolled_back"]);
    let way = arrives(&system, "shop", "done").await;
    let all =
        ["asked", "five_percent", "at_five", "quarter", "at_quarter", "half", "at_half", "all", "at_all"];
    assert_eq!(way, [&all[..], &["retire_old", "done"]].concat());
    let [shop, _] = {
        let mut accounts = Vec::new();
        for load in loads {
            accounts.push(load.stop().await);
        }
        <[_; 2]>::try_from(accounts).unwrap()
    };
    assert_eq!(shop.failed(), 0, "codes {:?}, broken {:?}", shop.codes, shop.broken.first());

    // The labels determine which version answers.
    system.settle().await;
    let before = old.hits();
    for _ in 0..30 {
        assert_eq!(system.get("shop.test", "/").await.text(), "good");
    }
    assert_eq!(old.hits(), before);
    let before = bad.hits();
    for _ in 0..30 {
        assert_eq!(system.get("bad.test", "/").await.text(), "other");
    }
    assert_eq!(bad.hits(), before);
    assert_eq!(system.starts(&System::PACEMAKER), 1);
    system.stop().await;
}
