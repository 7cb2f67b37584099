//! An attacker uses the session of an operator's browser, or makes the browser use it.

use signalbox_tests::{
    http::{Request, Response},
    system::System,
};

async fn log_in(system: &System, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::new("POST", &system.admin.to_string(), "/dashboard/login")
        .header("Content-Type", "application/x-www-form-urlencoded");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.body(format!("token={}", system.token)).send(system.admin).await.unwrap()
}

fn cookie(answer: &Response) -> String {
    let cookie = answer.header("Set-Cookie").unwrap_or_else(|| panic!("{answer:?}"));
    cookie.split(';').next().unwrap().to_owned()
}

async fn with_cookie(system: &System, method: &str, target: &str, cookie: &str) -> Response {
    let request = Request::new(method, &system.admin.to_string(), target).header("Cookie", cookie);
    request.send(system.admin).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_cookie_does_not_work_after_the_log_out() {
    let system = System::start("attack-cookie").await;
    let answer = log_in(&system, &[]).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    let stolen = cookie(&answer);
    assert_eq!(with_cookie(&system, "GET", "/instances", &stolen).await.status, 200);
    // Nothing in it is derived from the token: a stolen cookie does not help to guess it.
    let digest: Vec<String> = system.cli(System::FABRIC, "KEYS session:*").await;
    let stored: String = system.cli(System::FABRIC, &format!("GET {}", digest[0])).await;
    assert!(!stolen.contains(&stored) && !stolen.contains(&system.token), "{stolen}");
    assert!(!digest[0].contains(stolen.split('=').nth(1).unwrap()), "the fabric does not open a session");
    // Another site cannot log the operator out, and the operator can.
    let request =
        Request::new("POST", &system.admin.to_string(), "/dashboard/logout").header("Cookie", &stolen);
    let forged = request.clone().header("Origin", "https://evil.example").send(system.admin).await.unwrap();
    assert_eq!(forged.status, 403, "{}", forged.text());
    let own = format!("http://{}", system.admin);
    let out = request.header("Origin", &own).send(system.admin).await.unwrap();
    assert_eq!(out.status, 303, "{}", out.text());
    assert_eq!(with_cookie(&system, "GET", "/instances", &stolen).await.status, 401);
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_browser_is_protected_from_other_sites() {
    let system = System::start("attack-origin").await;
    // Browsers that do not report the relation of the sites report the origin.
    for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
        let answer = log_in(&system, &[("Origin", origin)]).await;
        assert_eq!(answer.status, 403, "{origin}: {}", answer.text());
        let basic = Request::new("DELETE", &system.admin.to_string(), "/hosts/a.test")
            .token(&system.token)
            .header("Origin", origin);
        assert_eq!(basic.send(system.admin).await.unwrap().status, 403, "{origin}");
    }
    assert_eq!(log_in(&system, &[("Origin", &format!("http://{}", system.admin))]).await.status, 303);
    let page = Request::get(&system.admin.to_string(), "/dashboard/login").send(system.admin).await.unwrap();
    assert_eq!(page.header("Cross-Origin-Opener-Policy"), Some("same-origin"));
    assert!(page.header("Permissions-Policy").unwrap().contains("camera=()"));
    system.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_that_was_made_over_https_is_never_sent_without() {
    // TLS ends in a proxy in front of the admin listener, which the edge trusts.
    let system =
        System::with("attack-https", |builder| builder.nginx("EDGE_FORWARDERS", "127.0.0.0/8")).await;
    let answer = log_in(&system, &[("X-Forwarded-Proto", "https")]).await;
    let set = answer.header("Set-Cookie").unwrap();
    assert!(set.starts_with("__Host-signalbox_") && set.ends_with("; Secure"), "{set}");
    // A cookie without the prefix may come from a page without TLS, and does not count over HTTPS.
    let tossed = cookie(&answer).replacen("__Host-", "", 1);
    let request = Request::get(&system.admin.to_string(), "/instances");
    let request = request.header("Cookie", &tossed).header("X-Forwarded-Proto", "https");
    assert_eq!(request.send(system.admin).await.unwrap().status, 401);
    system.stop().await;
    // Or the configuration demands it.
    let system = System::with("attack-https-always", |builder| {
        builder.pacemaker("login", toml::toml! { https = true })
    })
    .await;
    let answer = log_in(&system, &[]).await;
    assert!(answer.header("Set-Cookie").unwrap().ends_with("; Secure"), "{answer:?}");
    assert!(answer.header("Strict-Transport-Security").is_some(), "{answer:?}");
    system.stop().await;
}

const SECRET: &str = "a-secret-of-the-proxy-that-is-long-enough";

#[tokio::test(flavor = "multi_thread")]
async fn only_the_authenticating_proxy_can_vouch_for_a_person() {
    let login = toml::toml! {
        proxy_tokens = ["group:operators=ops", "user:alice=viewer"]
    };
    let system = System::with("attack-proxy", |builder| {
        builder.pacemaker("login", login).pacemaker("proxy_secret", SECRET)
    })
    .await;
    system.token("ops", &["read", "routes"]).await;
    system.token("viewer", &["read"]).await;
    let as_person = async |method: &str, target: &str, headers: &[(&str, &str)]| {
        let mut request = Request::new(method, &system.admin.to_string(), target);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.send(system.admin).await.unwrap()
    };
    let secret = ("X-Signalbox-Proxy-Secret", SECRET);
    let (user, groups) = ("X-Forwarded-User", "X-Forwarded-Groups");
    // The first entry that matches decides.
    let page =
        as_person("GET", "/dashboard/queues", &[secret, (user, "carol"), (groups, "dev, operators")]).await;
    assert_eq!(page.status, 200, "{}", page.text());
    assert_eq!(as_person("GET", "/instances", &[secret, (user, "alice")]).await.status, 200);
    assert_eq!(
        as_person("GET", "/tokens", &[secret, (user, "carol"), (groups, "operators")]).await.status,
        403
    );
    // A person who is called as a group is not in it, and a group that is called as a person is not this person.
    for (person, group) in
        [("mallory", "dev"), ("operators", "staff"), ("mallory", "alice"), ("group:operators", "dev")]
    {
        let unknown = as_person("GET", "/instances", &[secret, (user, person), (groups, group)]).await;
        assert_eq!(
            (unknown.status, &unknown.json()["code"]),
            (403, &"unknown_person".into()),
            "{person} {group}"
        );
    }
    // Without the secret, with a wrong one, or with a header twice, no person is accepted.
    for headers in [
        &[(user, "alice"), (groups, "operators")][..],
        &[("X-Signalbox-Proxy-Secret", ""), (user, "alice")],
        &[("X-Signalbox-Proxy-Secret", "a-secret-of-the-proxy-that-is-long-enougH"), (user, "alice")],
        &[secret, (user, "alice"), (user, "carol")],
        &[secret, (user, "alice, carol"), (groups, "operators")],
        &[secret, (groups, "operators")],
    ] {
        assert_eq!(as_person("GET", "/instances", headers).await.status, 401, "{headers:?}");
    }
    // The proxy knows its user by a cookie, too: a change needs the value that only pages contain.
    let person = [secret, (user, "carol"), (groups, "operators")];
    let forged = as_person("DELETE", "/hosts/a.test", &person).await;
    assert_eq!((forged.status, &forged.json()["code"]), (403, &"csrf".into()));
    let text = page.text();
    let csrf = text.split(r#"<meta name="csrf" content=""#).nth(1).unwrap().split('"').next().unwrap();
    let allowed = [secret, (user, "carol"), (groups, "operators"), ("X-Signalbox-CSRF", csrf)];
    assert_eq!(as_person("DELETE", "/hosts/a.test", &allowed).await.status, 204);
    let other = [secret, (user, "alice"), (groups, "operators"), ("X-Signalbox-CSRF", csrf)];
    assert_eq!(as_person("DELETE", "/hosts/a.test", &other).await.status, 403, "the value of another person");
    system.stop().await;
    // It is off by default.
    let system = System::start("attack-proxy-off").await;
    system.token("ops", &["read"]).await;
    let request = Request::get(&system.admin.to_string(), "/instances");
    let request = request.header("X-Signalbox-Proxy-Secret", SECRET).header("X-Forwarded-User", "operators");
    assert_eq!(request.send(system.admin).await.unwrap().status, 401);
    system.stop().await;
}
