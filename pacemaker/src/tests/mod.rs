//! The API over real HTTP, in front of real Redis servers.

mod bad_input;
mod certificates;
mod dashboard;
mod lists;
mod machines;
mod policies;
mod routes;

use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::config::{Args, Config};
use signalbox_testkit::{Servers, eventually};

const ROOT: &str = "root-0123456789abcdef0123456789abcdef";

/// A running pacemaker.
struct Api {
    servers: Servers,
    /// The key file.
    keys: tempfile::NamedTempFile,
    base: String,
    client: reqwest::Client,
    shutdown: CancellationToken,
    served: Option<JoinHandle<anyhow::Result<()>>>,
}

/// An answer, read.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code of a problem, which must look like one.
    fn code(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16(), "{self:?}");
        assert_eq!(problem["type"], format!("/docs/errors#{}", problem["code"].as_str().unwrap()));
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{self:?}");
        problem["code"].as_str().unwrap().to_owned()
    }
}

impl Api {
    async fn start() -> Self {
        Self::start_over(Servers::start().await).await.ready().await
    }

    /// The same servers and key file under a new process.
    async fn restart(self) -> Self {
        self.shutdown.cancel();
        if let Some(served) = self.served {
            served.await.unwrap().unwrap();
        }
        Self::start_with(self.servers, self.keys).await.ready().await
    }

    async fn ready(self) -> Self {
        let api = self;
        eventually("the pacemaker is ready", async || {
            let reply = api.get("/health/ready").await;
            if reply.status == 200 { Ok(()) } else { Err(reply.text) }
        })
        .await;
        api
    }

    /// Over servers that may be away.
    async fn start_over(servers: Servers) -> Self {
        let keys = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(keys.path(), "a".repeat(64)).unwrap();
        Self::start_with(servers, keys).await
    }

    /// An empty key file means none.
    async fn start_with(servers: Servers, keys: tempfile::NamedTempFile) -> Self {
        use clap::Parser as _;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let key_file = format!("--set=edge_key_file={}", keys.path().display());
        let has_key = keys.as_file().metadata().unwrap().len() > 0;
        let own = [
            "signalbox-pacemaker",
            &format!("--listen={address}"),
            &format!("--set=root_token={ROOT}"),
            &format!("--redis-routes={}", servers.routes.url()),
            &format!("--redis-stats={}", servers.stats.url()),
            &format!("--redis-fabric={}", servers.fabric.url()),
            "--set=routing.check_local=true",
            "--set=routing.reconcile_interval_ms=20",
            "--set=routing.sweep_interval_ms=20",
        ];
        let args = Args::parse_from(own.into_iter().chain(has_key.then_some(&*key_file)));
        let shutdown = CancellationToken::new();
        let config = args.settings.load().and_then(Config::complete).unwrap();
        let served = Some(tokio::spawn(crate::service::run(config, listener, None, shutdown.clone())));
        let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        Self { servers, keys, base: format!("http://{address}"), client, shutdown, served }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).bearer_auth(ROOT)
    }

    async fn get(&self, path: &str) -> Reply {
        read(self.request(Method::GET, path)).await
    }

    async fn delete(&self, path: &str) -> Reply {
        read(self.request(Method::DELETE, path)).await
    }

    async fn put(&self, path: &str, body: &Value) -> Reply {
        read(self.request(Method::PUT, path).json(body)).await
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        read(self.request(Method::POST, path).json(body)).await
    }

    /// Makes a token.
    async fn token(&self, name: &str, scopes: &[&str], hosts: Option<&[&str]>) -> String {
        let mut body = json!({"name": name, "scopes": scopes});
        if let Some(hosts) = hosts {
            body["hosts"] = json!(hosts);
        }
        let reply = self.post("/tokens", &body).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["token"].as_str().unwrap().to_owned()
    }
}

async fn read(request: RequestBuilder) -> Reply {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    Reply { status, headers, text: response.text().await.unwrap() }
}

fn instance(port: u16, hostnames: &[&str]) -> Value {
    json!({"address": format!("127.0.0.1:{port}"), "hostnames": hostnames, "version_type_id": "17"})
}
