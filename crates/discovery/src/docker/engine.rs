//! The API of a container engine: the list of containers, and the stream of events, over its Unix socket.
//!
//! Two GET requests are needed. A client library for the whole API was rejected: it would add more code than this product has for
//! discovery, and types for several hundred messages that are not used.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Deserializer};
use tokio::{net::UnixStream, time};

use crate::Error;

/// The time limit for a list. The stream of events has none.
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;
const MAX_EVENT_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) socket: PathBuf,
}

/// A running container, as the list shows it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Container {
    pub(super) id: String,
    #[serde(deserialize_with = "nullable")]
    names: Vec<String>,
    pub(super) image: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) labels: BTreeMap<String, String>,
    /// Such as `Up 5 minutes (healthy)`.
    pub(super) status: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) ports: Vec<Port>,
    #[serde(deserialize_with = "nullable")]
    pub(super) network_settings: NetworkSettings,
    #[serde(deserialize_with = "nullable")]
    pub(super) host_config: HostConfig,
}

impl Container {
    pub(super) fn name(&self) -> &str {
        self.names.first().map_or(&*self.id, |name| name.trim_start_matches('/'))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Port {
    pub(super) private_port: u16,
    pub(super) r#type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct NetworkSettings {
    #[serde(deserialize_with = "nullable")]
    pub(super) networks: BTreeMap<String, Network>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Network {
    #[serde(rename = "IPAddress")]
    pub(super) ip_address: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct HostConfig {
    pub(super) network_mode: String,
}

/// Engines write `null` for an empty list.
fn nullable<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A change of a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) container: String,
    pub(super) kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It received SIGTERM.
    Ending,
    Ended,
    Other,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Message {
    action: String,
    actor: Actor,
}

#[derive(Debug, Default, Deserialize)]
struct Actor {
    #[serde(rename = "ID", default)]
    id: String,
    #[serde(rename = "Attributes", default)]
    attributes: BTreeMap<String, String>,
}

impl Engine {
    /// All running containers that have a label of Signalbox.
    pub(super) async fn containers(&self) -> Result<Vec<Container>, Error> {
        let read = async {
            let response = self.get("/containers/json", r#"{"label":["signalbox.host"]}"#).await?;
            let body = Limited::new(response.into_body(), MAX_LIST_BYTES).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            serde_json::from_slice(&body)
                .map_err(|error| format!("cannot read its list of containers: {error}"))
        };
        match time::timeout(TIMEOUT, read).await {
            Ok(read) => read.map_err(|why| self.error(why)),
            Err(_) => Err(self.error(format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }

    /// The changes of containers from now on.
    pub(super) async fn events(&self) -> Result<Events, Error> {
        let opened = time::timeout(TIMEOUT, self.get("/events", r#"{"type":["container"]}"#)).await;
        let response = opened.map_err(|_| self.error("no answer".to_owned()))?;
        let body = response.map_err(|why| self.error(why))?.into_body();
        Ok(Events { body, buffer: BytesMut::new(), ready: VecDeque::new() })
    }

    fn error(&self, why: String) -> Error {
        Error::Engine { socket: self.socket.clone(), why }
    }

    async fn get(&self, path: &str, filters: &str) -> Result<Response<Incoming>, String> {
        let filters: String = url::form_urlencoded::byte_serialize(filters.as_bytes()).collect();
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // It ends with the answer, or when the answer is dropped.
        tokio::spawn(connection);
        let request = Request::get(format!("{path}?filters={filters}"))
            .header(header::HOST, "engine")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(format!("{path} answered {}", response.status().as_u16()))
        }
    }
}

/// An open stream of events.
#[derive(Debug)]
pub(super) struct Events {
    body: Incoming,
    buffer: BytesMut,
    ready: VecDeque<Event>,
}

impl Events {
    /// The next change; nothing when the stream has ended.
    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = self.body.frame().await?.ok()?;
            if let Some(data) = frame.data_ref() {
                self.buffer.extend_from_slice(data);
            }
            if self.buffer.len() > MAX_EVENT_BYTES {
                return None;
            }
            self.ready.extend(messages(&mut self.buffer));
        }
    }
}

/// The complete messages at the beginning of `buffer`, each on a line. What cannot be read is a change, too.
fn messages(buffer: &mut BytesMut) -> Vec<Event> {
    let mut found = Vec::new();
    while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
        let line = buffer.split_to(end + 1);
        let message: Message = serde_json::from_slice(&line).unwrap_or_default();
        let signal = message.actor.attributes.get("signal").map(String::as_str);
        let kind = match &*message.action {
            "die" | "died" | "destroy" | "remove" => Kind::Ended,
            "kill" if matches!(signal, Some("15" | "SIGTERM")) => Kind::Ending,
            _ => Kind::Other,
        };
        found.push(Event { container: message.actor.id, kind });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_their_lines_are_complete() {
        let mut buffer = BytesMut::from(
            "{\"Action\":\"kill\",\"Actor\":{\"ID\":\"a\",\"Attributes\":{\"signal\":\"15\"}}}\n\
             {\"Action\":\"kill\",\"Actor\":{\"ID\":\"a\",\"Attributes\":{\"signal\":\"1\"}}}\nnonsense\n{\"Action\":\"di",
        );
        let event = |container: &str, kind| Event { container: container.to_owned(), kind };
        let first = [event("a", Kind::Ending), event("a", Kind::Other), event("", Kind::Other)];
        assert_eq!(messages(&mut buffer), first);
        buffer.extend_from_slice(b"e\",\"Actor\":{\"ID\":\"a\"}}\n");
        assert_eq!(messages(&mut buffer), [event("a", Kind::Ended)]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn empty_lists_may_be_null() {
        let text = r#"{"Id":"0123456789abcdef","Names":null,"Labels":null,"Ports":null,"NetworkSettings":null,"More":1}"#;
        let container: Container = serde_json::from_str(text).unwrap();
        assert_eq!((container.name(), container.ports.len()), ("0123456789abcdef", 0));
    }
}
