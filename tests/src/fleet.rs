//! Several pacemakers on one fabric, all of which deliver.

use std::net::SocketAddr;

use serde_json::{Value, json};
use signalbox_stack::{Builder, PartHandle};

use crate::{
    http::{Request, Response, credential},
    receiver,
    system::System,
};

/// A system without a router whose pacemakers can be killed one by one.
pub struct Fleet {
    /// The system they run on.
    pub system: System,
    pacemakers: Vec<PartHandle>,
}

impl Fleet {
    /// Starts `count` pacemakers with these settings of `[bus]`, which may deliver to this machine.
    ///
    /// # Panics
    /// When one does not come up.
    pub async fn start(
        name: &str,
        count: usize,
        bus: &[(&str, i64)],
        change: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let mut table = receiver::allowed();
        table.extend(bus.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
        let system = System::with(name, |builder| {
            change(builder).without_nginx().without_sidecar().pacemaker("bus", table)
        })
        .await;
        let mut pacemakers = vec![system.stack.part(&System::PACEMAKER)];
        while pacemakers.len() < count {
            pacemakers.push(system.stack.add_pacemaker().await.expect("another pacemaker"));
        }
        Self { system, pacemakers }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pacemakers.len()
    }

    /// Whether there is none, which never is.
    pub fn is_empty(&self) -> bool {
        self.pacemakers.is_empty()
    }

    /// One of them, to be killed and started.
    pub fn pacemaker(&self, number: usize) -> PartHandle {
        self.pacemakers[number].clone()
    }

    /// Where it listens.
    ///
    /// # Panics
    /// When it listens nowhere.
    pub fn address(&self, number: usize) -> SocketAddr {
        let address = self.pacemakers[number].address().trim_start_matches("http://");
        address.trim_end_matches('/').parse().expect("the address of a pacemaker")
    }

    /// The fabric's Redis, to be killed and started.
    pub fn fabric(&self) -> PartHandle {
        self.system.stack.part(&System::FABRIC)
    }

    /// A call of one pacemaker with a token.
    ///
    /// # Panics
    /// Without a complete answer.
    pub async fn call(
        &self,
        number: usize,
        token: &str,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Response {
        let to = self.address(number);
        let request = Request::new(method, &to.to_string(), target).token(token);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        request.send(to).await.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    /// A client, which is called by its name.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn client(&self, name: &str) -> String {
        let scopes = ["publish", "subscribe", "read"];
        let body = json!({"name": name, "token": credential(name), "scopes": scopes});
        let made = self.call(0, &self.system.token, "POST", "/api_tokens", Some(&body)).await;
        assert_eq!(made.status, 201, "{}", made.text());
        name.to_owned()
    }

    /// A subscription of `client`, with the settings given.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn subscribe(&self, client: &str, subscription: &Value) {
        let made = self.call(0, client, "POST", "/subscription", Some(subscription)).await;
        assert_eq!(made.status, 204, "{}", made.text());
    }
}
