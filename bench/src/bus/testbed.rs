//! The system under load: a real pacemaker with a real fabric, its clients and subscribers.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use serde_json::{Value, json};
use signalbox_stack::{Part, Stack};
use tokio::time::Instant;

use super::{
    receivers::{Receivers, Terms, URLS},
    shards::Cluster,
};
use crate::{
    load::{Ends, Requests},
    process::{CpuTime, Pid, machine_busy},
};

/// Bytes of an event's data.
pub(crate) const DATA: usize = 200;
/// Objects that events are about.
pub(crate) const OBJECTS: u64 = 4_000;
/// Events in an array.
pub(crate) const ARRAY: usize = 100;
/// How long deliveries may take after the load has ended.
const MAX_DRAIN: Duration = Duration::from_secs(60);

/// The recipients of a topic's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// One subscriber.
    One,
    /// Ten.
    Ten,
    /// One that does not wait for batches to fill.
    AtOnce,
}

impl Audience {
    pub(crate) const ALL: [Self; 3] = [Self::One, Self::Ten, Self::AtOnce];

    pub(crate) fn topic(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Ten => "ten",
            Self::AtOnce => "at_once",
        }
    }

    pub(crate) fn subscribers(self) -> u64 {
        if self == Self::Ten { 10 } else { 1 }
    }

    /// The defaults of a subscription, but for the one that does not wait.
    pub(crate) fn timeout(self) -> Duration {
        if self == Self::AtOnce { Duration::ZERO } else { Duration::from_millis(500) }
    }
}

/// CPU time per part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Split {
    pub(crate) pacemaker: Duration,
    pub(crate) redis: Duration,
    pub(crate) load: Duration,
    pub(crate) receivers: Duration,
    /// The whole machine.
    pub(crate) machine: Duration,
}

impl std::ops::Sub for Split {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            pacemaker: self.pacemaker.saturating_sub(earlier.pacemaker),
            redis: self.redis.saturating_sub(earlier.redis),
            load: self.load.saturating_sub(earlier.load),
            receivers: self.receivers.saturating_sub(earlier.receivers),
            machine: self.machine.saturating_sub(earlier.machine),
        }
    }
}

/// Everything that runs.
pub(crate) struct Testbed {
    pub(crate) stack: Stack,
    pub(crate) ends: Ends,
    pub(crate) receivers: Receivers,
    publisher: String,
    /// How many of the receivers are subscribers; the others are backends.
    subscribers: usize,
    /// The Redis processes of the fabric.
    fabric: Vec<Pid>,
}

impl Testbed {
    /// Starts it, with a topic for each audience, and receivers for as many backends.
    pub(crate) async fn start(audiences: &[Audience], backends: usize) -> anyhow::Result<Self> {
        Self::start_on(audiences, backends, None).await
    }

    /// Starts it on this cluster instead of a fabric of its own.
    pub(super) async fn start_on(
        audiences: &[Audience],
        backends: usize,
        cluster: Option<&Cluster>,
    ) -> anyhow::Result<Self> {
        let mut bus = toml::Table::new();
        bus.insert("allow_http".to_owned(), true.into());
        bus.insert("allow_networks".to_owned(), vec!["127.0.0.0/8"].into());
        let mut builder =
            Stack::builder().temporary()?.without_nginx().without_sidecar().pacemaker("bus", bus);
        // One publisher takes all that the machine can do, which is more than one token may take by default.
        let unlimited = toml::toml! {
            token_requests_per_second = 0
            token_events_per_second = 0
        };
        builder = builder.pacemaker("limits", unlimited);
        if let Some(cluster) = cluster {
            builder = builder.pacemaker("redis", cluster.settings()?);
        }
        let stack = builder
            .start()
            .await
            .context("starting the stack (its programs are built by `cargo build --release`)")?;
        let audience = audiences.iter().flat_map(|audience| {
            std::iter::repeat_n(*audience, usize::try_from(audience.subscribers()).unwrap_or(1))
        });
        let audience: Vec<Audience> = audience.collect();
        let terms = audience.iter().map(|audience| Terms { timeout: audience.timeout(), max: 100 });
        let alone = std::iter::repeat_n(Terms { timeout: Duration::ZERO, max: 1 }, backends);
        let receivers = Receivers::start(terms.chain(alone).collect())?;
        let own = || vec![stack.part(&Part::FABRIC).pid().unwrap_or_default().unsigned_abs()];
        let fabric = cluster.map_or_else(own, Cluster::pids);
        let testbed = Self {
            fabric,
            stack,
            ends: Ends::start(0, &crate::machine::cores())?,
            receivers,
            publisher: String::new(),
            subscribers: audience.len(),
        };
        let publisher = testbed.client("publisher")?;
        for (number, audience) in audience.into_iter().enumerate() {
            let token = testbed.client(&format!("subscriber-{number}"))?;
            let wanted = json!({
                "topics": [audience.topic()], "callback": testbed.receivers.callback(number),
                "timeout": u64::try_from(audience.timeout().as_millis())?, "max": 100, "uuid": "bench",
            });
            testbed.call("POST", "/subscription", &token, Some(&wanted))?;
        }
        Ok(Self { publisher, ..testbed })
    }

    /// Where the pacemaker listens.
    pub(crate) fn pacemaker(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.stack.ports().pacemaker))
    }

    pub(crate) fn pid(&self, part: &Part) -> Pid {
        self.stack.part(part).pid().unwrap_or_default().unsigned_abs()
    }

    /// Where a backend is called.
    pub(crate) fn backend(&self, number: usize) -> String {
        self.receivers.callback(self.subscribers + number)
    }

    /// Everybody who takes part, with this process for both ends.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        vec![self.pid(&Part::PACEMAKER), self.pid(&Part::FABRIC), std::process::id()]
    }

    /// Makes a client; its token.
    pub(super) fn client(&self, name: &str) -> anyhow::Result<String> {
        let token = format!("{name}--0123456789abcdef0123456789abcdef");
        self.call("POST", "/api_tokens", self.stack.token(), Some(&json!({"name": name, "token": token})))?;
        Ok(token)
    }

    /// Asks the pacemaker for something that is not measured.
    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(self.pacemaker())?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let head = head(method, path, token, body.len());
        stream.write_all(head.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without an end of its head")?;
        if !head.starts_with("HTTP/1.1 2") {
            bail!("{method} {path}: {answer}");
        }
        if body.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(body)?) }
    }

    /// The token of the publisher.
    pub(super) fn publisher(&self) -> &str {
        &self.publisher
    }

    /// An array of events.
    pub(super) fn prepared_array(&self, events: usize) -> Value {
        let objects =
            (0..events as u64).map(|object| serde_json::from_str::<Value>(&event(object % OBJECTS)));
        objects.filter_map(Result::ok).collect()
    }

    /// A request of the publisher's, ready to be sent.
    pub(crate) fn published(&self, path: &str, body: &str) -> Vec<u8> {
        (head("POST", path, &self.publisher, body.len()) + body).into_bytes()
    }

    /// Events that the fabric has accepted for a topic.
    pub(crate) fn events_of(&self, name: &str) -> anyhow::Result<u64> {
        let topics = self.call("GET", "/topics", self.stack.token(), None)?;
        let topic = topics.as_array().and_then(|topics| topics.iter().find(|topic| topic["name"] == name));
        topic
            .and_then(|topic| topic["events"].as_u64())
            .with_context(|| format!("no events of the topic {name}"))
    }

    /// Requests that publish, each with `events` events (as an array when there is more than one).
    pub(crate) fn requests(&self, audience: Audience, events: usize) -> Arc<Requests> {
        self.prepared(audience, events, if events == 1 { OBJECTS } else { 64 })
    }

    /// That many requests.
    pub(crate) fn prepared(&self, audience: Audience, events: usize, count: u64) -> Arc<Requests> {
        let mut random = SmallRng::seed_from_u64(0x5159_a1b1);
        let many = if events == 1 { "" } else { "/events" };
        let path = format!("/topics/{}{many}", audience.topic());
        Arc::new(Requests::of((0..count).map(|_| {
            let one = |random: &mut SmallRng| event(random.random_range(0..OBJECTS));
            let body = if events == 1 {
                one(&mut random)
            } else {
                let all: Vec<String> = (0..events).map(|_| one(&mut random)).collect();
                format!("[{}]", all.join(","))
            };
            self.published(&path, &body)
        })))
    }

    /// Waits until everything accepted so far is delivered; how long that took. Counts of other topics are known
    /// already, so `expected` is the number of deliveries in all.
    pub(crate) async fn drained(&self, expected: u64) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        while self.receivers.events() < expected {
            if begun.elapsed() > MAX_DRAIN {
                bail!("{} of {expected} events were delivered", self.receivers.events());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(begun.elapsed())
    }

    /// Deliveries of everything that was accepted so far.
    pub(crate) fn expected(&self) -> anyhow::Result<u64> {
        Audience::ALL
            .into_iter()
            .try_fold(0, |sum, audience| Ok(sum + self.events_of(audience.topic())? * audience.subscribers()))
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Split {
        Split {
            pacemaker: CpuTime::of(&[self.pid(&Part::PACEMAKER)]).on_cpu,
            redis: CpuTime::of(&self.fabric).on_cpu,
            load: self.ends.cpu(),
            receivers: self.receivers.cpu(),
            machine: machine_busy(),
        }
    }
}

/// A request's head, as minimal as that of existing clients.
pub(crate) fn head(method: &str, path: &str, token: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// An event with [`DATA`] bytes of data.
fn event(object: u64) -> String {
    let data = data(object);
    format!(r#"{{"type":"update","url":"{URLS}{object}","data":{data}}}"#)
}

/// [`DATA`] bytes of JSON.
pub(crate) fn data(object: u64) -> String {
    let mut text = format!(r#"{{"number":{object},"text":""#);
    while text.len() < DATA - 2 {
        text.push('x');
    }
    text + r#""}"#
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_has_its_size() {
        for object in [0, OBJECTS - 1] {
            assert_eq!(data(object).len(), DATA);
            serde_json::from_str::<Value>(&event(object)).unwrap();
        }
    }
}
