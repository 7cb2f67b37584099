//! Values that are fetched when a condition needs them: over HTTP, or from the statistics of the edge.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, Request, header};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::Value;
use signalbox_condition::Feed as Said;
use signalbox_machine::{
    Machine,
    definition::{Feed, FeedSource, OnError},
    render::Filling,
};
use tokio::time::Instant;

use super::{actions::Actions, metrics::Metrics, store::Statistics};
use crate::bus::deliver::Webhooks;

/// Bytes of an answer.
const MOST_BYTES: usize = 1 << 20;
/// Answers that are remembered.
const CACHED: usize = 10_000;

/// What was asked for one evaluation, and what was said.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked(HashMap<String, Option<Arc<Value>>>);

impl Asked {
    /// What somebody assumes a feed to say.
    pub(super) fn assume(&mut self, name: &str, value: Option<Value>) {
        self.0.insert(name.to_owned(), value.map(Arc::new));
    }
}

impl signalbox_condition::Feeds for Asked {
    fn feed(&self, name: &str) -> Said<'_> {
        match self.0.get(name) {
            None => Said::NotAsked,
            Some(None) => Said::Failed,
            Some(Some(value)) => Said::Value(value),
        }
    }
}

/// Answers that are good for a while, by machine, feed and what was asked.
type Cache = HashMap<String, (Instant, Arc<Value>)>;

/// Asks feeds. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Feeds {
    webhooks: Webhooks,
    statistics: Statistics,
    actions: Actions,
    metrics: Metrics,
    cache: Arc<Mutex<Cache>>,
}

impl Feeds {
    pub(crate) fn new(
        webhooks: Webhooks,
        statistics: Statistics,
        actions: Actions,
        metrics: Metrics,
    ) -> Self {
        Self { webhooks, statistics, actions, metrics, cache: Arc::default() }
    }

    /// Asks the feed, and adds what it says.
    pub(super) async fn ask(
        &self,
        to: &mut Asked,
        machine: &Machine,
        label: &str,
        metadata: &Value,
        name: &str,
    ) {
        let Some(feed) = machine.feed(name) else {
            to.assume(name, Some(Value::Null));
            return;
        };
        let filling = Filling { state_machine: machine.name(), label, metadata };
        let said = match self.fetch(machine, feed, &filling).await {
            Ok(value) => {
                self.metrics.fed("ok");
                Some(value)
            }
            Err(why) => {
                self.metrics.fed("failed");
                tracing::debug!(machine = machine.name(), feed = name, why, "a feed failed");
                match &feed.on_error {
                    OnError::Hold => None,
                    OnError::Default(value) => Some(Arc::new(value.clone())),
                }
            }
        };
        to.0.insert(name.to_owned(), said);
    }

    async fn fetch(
        &self,
        machine: &Machine,
        feed: &Feed,
        filling: &Filling<'_>,
    ) -> Result<Arc<Value>, String> {
        let source = match &feed.source {
            FeedSource::Url(url) => url.address(*filling).map_err(|missing| missing.to_string())?,
            FeedSource::Stats(stats) => {
                let id = stats.id.fill(*filling).map_err(|missing| missing.to_string())?;
                format!("{} {} {id}", stats.of.name(), stats.window.as_secs())
            }
        };
        let key = format!("{} {} {source}", machine.name(), feed.name);
        if let Some(value) = self.cached(&key, feed.ttl) {
            return Ok(value);
        }
        let value = match &feed.source {
            FeedSource::Url(_) => self.get(machine, &source, feed.timeout).await?,
            FeedSource::Stats(stats) => {
                let id = stats.id.fill(*filling).map_err(|missing| missing.to_string())?;
                let window = stats.window.as_secs();
                let asked = self.statistics.window(stats.of.name(), &id, window);
                match tokio::time::timeout(feed.timeout, asked).await {
                    Ok(Ok(value)) => value,
                    Ok(Err(error)) => return Err(error.to_string()),
                    Err(_) => return Err("the statistics did not answer in time".to_owned()),
                }
            }
        };
        let value = Arc::new(value);
        if !feed.ttl.is_zero() {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            if cache.len() >= CACHED {
                cache.clear();
            }
            cache.insert(key, (Instant::now(), Arc::clone(&value)));
        }
        Ok(value)
    }

    fn cached(&self, key: &str, ttl: Duration) -> Option<Arc<Value>> {
        if ttl.is_zero() {
            return None;
        }
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, value) = cache.get(key)?;
        (at.elapsed() < ttl).then(|| Arc::clone(value))
    }

    async fn get(&self, machine: &Machine, url: &str, timeout: Duration) -> Result<Value, String> {
        let request = Request::builder()
            .method(Method::GET)
            .uri(url)
            .header(header::ACCEPT, "application/json")
            .body(Full::<Bytes>::default());
        let mut request = request.map_err(|_| "the URL cannot be used".to_owned())?;
        self.actions.headers(machine, url, request.headers_mut())?;
        let answer = self.webhooks.call(request, timeout, MOST_BYTES).await?;
        if !(200..300).contains(&answer.status) {
            return Err(format!("answered {}", answer.status));
        }
        let body = answer.body.ok_or("the answer is larger than 1 MiB")?;
        serde_json::from_slice(&body).map_err(|_| "the answer is no JSON".to_owned())
    }
}
