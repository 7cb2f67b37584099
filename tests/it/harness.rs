//! The applications and the load generator that the other tests use behave as documented.

use signalbox_tests::{
    http::Request,
    load,
    upstream::{App, Mode},
};

#[tokio::test]
async fn an_application_answers_as_it_was_set_to() {
    let mut app = App::start("one").await;
    let plain = Request::get("any", "/").send(app.address).await.unwrap();
    assert_eq!((plain.status, plain.text().as_str(), plain.header("x-app")), (200, "one", Some("one")));
    let echo = Request::new("POST", "any", "/echo").body("abc").send(app.address).await.unwrap();
    assert_eq!(echo.text(), "POST /echo HTTP/1.1\r\nHost: any\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(Request::get("any", "/status/418").send(app.address).await.unwrap().status, 418);
    assert!(Request::get("any", "/half").send(app.address).await.is_err());
    app.set(Mode::Status(503));
    assert_eq!(Request::get("any", "/").send(app.address).await.unwrap().status, 503);
    app.kill().await;
    assert!(Request::get("any", "/").send(app.address).await.is_err());
    app.start_again().await;
    assert_eq!(Request::get("any", "/").send(app.address).await.unwrap().status, 503);
}

#[tokio::test]
async fn a_load_accounts_for_every_request_and_byte() {
    let app = App::start("one").await;
    let account = load::send(app.address, 4, 100, |n| {
        Request::get("any", if n % 10 == 0 { "/close" } else { "/bytes/7" })
    })
    .await;
    let head = "HTTP/1.1 200 As Configured\r\nX-App: one\r\nContent-Length: 7\r\n\r\n".len() as u64;
    assert_eq!((account.answered(), account.failed(), account.bytes), (90, 10, 90 * (head + 7)));
    assert_eq!(app.hits(), 100);
}
