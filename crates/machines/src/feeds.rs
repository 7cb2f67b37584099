//! Values that are fetched when a condition needs them: over HTTP, or from the statistics of the edge.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{Method, Request, header};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};
use signalbox_condition::Feed as Said;
use signalbox_machine::{
    Machine,
    definition::{Feed, FeedSource, OnError},
    render::Filling,
};
use tokio::time::Instant;

use super::{actions::Actions, metrics::Metrics, store::Statistics};
use signalbox_egress::Client;

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

/// How a feed has answered this process.
#[derive(Debug, Clone, Default)]
pub struct Health {
    pub answered: u64,
    pub failed: u64,
    /// Failures since the last answer.
    pub failing: u64,
    /// How long ago it answered last, and failed last.
    pub last_answer: Option<Duration>,
    pub last_failure: Option<Duration>,
    /// Why it failed last.
    pub why: Option<String>,
}

#[derive(Debug, Default)]
struct Heard {
    health: Health,
    answer: Option<Instant>,
    failure: Option<Instant>,
}

/// What was heard, by machine and feed: as many as definitions have.
type Memory = BTreeMap<(String, String), Heard>;

/// Answers that are good for a while, by machine, feed and what was asked.
type Cache = HashMap<String, (Instant, Arc<Value>)>;

/// How long an answer, good or bad, is good enough for those who only look.
const LOOKED_AT: Duration = Duration::from_secs(5);
/// How often a feed is asked in a second for those who only look, whatever they look at.
const LOOKS: u32 = 10;

/// What somebody who only looks is told of a feed.
#[derive(Debug, Clone)]
pub(super) enum Looked {
    /// It answered.
    Answered,
    /// It failed, why, and whether its default stands in.
    Failed(String, bool),
    /// It was asked so often in this second that it was left alone.
    LeftAlone,
}

impl Looked {
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Answered => json!({"result": "ok"}),
            Self::Failed(why, true) => json!({"result": "default", "error": why}),
            Self::Failed(why, false) => json!({"result": "failed", "error": why}),
            Self::LeftAlone => {
                json!({"result": "not_asked", "error": "it was asked too often in this second; look again"})
            }
        }
    }
}

/// What those who only look have seen, so that a feed has peace from them.
#[derive(Debug, Default)]
struct Looks {
    seen: HashMap<String, (Instant, Result<Arc<Value>, String>)>,
    /// Machine and feed → since when is counted, and how often it was asked.
    asked: HashMap<String, (Instant, u32)>,
}

impl Looks {
    /// Whether the feed may be asked once more.
    fn may(&mut self, feed: &str) -> bool {
        if self.asked.len() >= CACHED {
            self.asked.clear();
        }
        let (since, count) = self.asked.entry(feed.to_owned()).or_insert((Instant::now(), 0));
        if since.elapsed() >= Duration::from_secs(1) {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        *count <= LOOKS
    }

    fn keep(&mut self, key: String, said: Result<Arc<Value>, String>) {
        if self.seen.len() >= CACHED {
            self.seen.clear();
        }
        self.seen.insert(key, (Instant::now(), said));
    }

    fn fresh(&self, key: &str) -> Option<Result<Arc<Value>, String>> {
        self.seen.get(key).filter(|(at, _)| at.elapsed() < LOOKED_AT).map(|(_, said)| said.clone())
    }
}

/// Asks feeds. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Feeds {
    client: Client,
    statistics: Statistics,
    actions: Actions,
    metrics: Metrics,
    cache: Arc<Mutex<Cache>>,
    looks: Arc<Mutex<Looks>>,
    memory: Arc<Mutex<Memory>>,
}

impl Feeds {
    pub(crate) fn new(client: Client, statistics: Statistics, actions: Actions, metrics: Metrics) -> Self {
        Self {
            client,
            statistics,
            actions,
            metrics,
            cache: Arc::default(),
            looks: Arc::default(),
            memory: Arc::default(),
        }
    }

    /// Adds what the feed says to somebody who only looks: what was heard in the last seconds counts, and a feed is not asked
    /// more than a few times a second, however many labels are looked at. No gate opens by it.
    pub(super) async fn look(
        &self,
        to: &mut Asked,
        (machine, label, metadata): (&Machine, &str, &Value),
        name: &str,
    ) -> Looked {
        let Some(feed) = machine.feed(name) else {
            to.assume(name, Some(Value::Null));
            return Looked::Answered;
        };
        let filling = Filling { state_machine: machine.name(), label, metadata };
        let said = match key(machine, feed, &filling) {
            Err(missing) => Err(missing),
            Ok(key) => {
                let looks = || self.looks.lock().unwrap_or_else(PoisonError::into_inner);
                let known = looks().fresh(&key);
                match known {
                    Some(said) => said,
                    None if !looks().may(&format!("{} {name}", machine.name())) => return Looked::LeftAlone,
                    None => {
                        let said = self.fetch(machine, feed, &filling).await;
                        self.remember(machine.name(), name, said.as_ref().err());
                        looks().keep(key, said.clone());
                        said
                    }
                }
            }
        };
        match (said, &feed.on_error) {
            (Ok(value), _) => {
                to.0.insert(name.to_owned(), Some(value));
                Looked::Answered
            }
            (Err(why), OnError::Hold) => {
                to.assume(name, None);
                Looked::Failed(why, false)
            }
            (Err(why), OnError::Default(value)) => {
                to.assume(name, Some(value.clone()));
                Looked::Failed(why, true)
            }
        }
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
        let fetched = self.fetch(machine, feed, &filling).await;
        self.remember(machine.name(), name, fetched.as_ref().err());
        let said = match fetched {
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

    /// Notes how it went.
    fn remember(&self, machine: &str, feed: &str, why: Option<&String>) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = memory.entry((machine.to_owned(), feed.to_owned())).or_default();
        match why {
            None => {
                heard.health.answered += 1;
                heard.health.failing = 0;
                heard.answer = Some(Instant::now());
            }
            Some(why) => {
                heard.health.failed += 1;
                heard.health.failing += 1;
                heard.health.why = Some(why.clone());
                heard.failure = Some(Instant::now());
            }
        }
    }

    /// How the feeds of a machine have answered, by name.
    pub(super) fn health(&self, machine: &str) -> BTreeMap<String, Health> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let own = memory.iter().filter(|((of, _), _)| of == machine);
        let told = own.map(|((_, feed), heard)| {
            let mut health = heard.health.clone();
            health.last_answer = heard.answer.map(|at| at.elapsed());
            health.last_failure = heard.failure.map(|at| at.elapsed());
            (feed.clone(), health)
        });
        told.collect()
    }

    async fn fetch(
        &self,
        machine: &Machine,
        feed: &Feed,
        filling: &Filling<'_>,
    ) -> Result<Arc<Value>, String> {
        let key = key(machine, feed, filling)?;
        if let Some(value) = self.cached(&key, feed.ttl) {
            return Ok(value);
        }
        let value = match &feed.source {
            FeedSource::Url(url) => {
                let url = url.address(*filling).map_err(|missing| missing.to_string())?;
                self.get(machine, &url, feed.timeout).await?
            }
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
        let answer = self.client.call("machine feed", request, timeout, MOST_BYTES).await?;
        if !(200..300).contains(&answer.status) {
            return Err(format!("answered {}", answer.status));
        }
        let body = answer.body.ok_or("the answer is larger than 1 MiB")?;
        serde_json::from_slice(&body).map_err(|_| "the answer is no JSON".to_owned())
    }
}

/// What is asked, in one text.
fn key(machine: &Machine, feed: &Feed, filling: &Filling<'_>) -> Result<String, String> {
    let source = match &feed.source {
        FeedSource::Url(url) => url.address(*filling).map_err(|missing| missing.to_string())?,
        FeedSource::Stats(stats) => {
            let id = stats.id.fill(*filling).map_err(|missing| missing.to_string())?;
            format!("{} {} {id}", stats.of.name(), stats.window.as_secs())
        }
    };
    Ok(format!("{} {} {source}", machine.name(), feed.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_only_looks_leaves_a_feed_in_peace() {
        let mut looks = Looks::default();
        let asked = (0..1_000).filter(|_| looks.may("m crm")).count();
        assert_eq!(asked, LOOKS as usize);
        assert!(looks.may("m other"), "each feed has its own");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(looks.may("m crm"));
        // What was heard counts for a while, a failure as well as an answer.
        looks.keep("good".to_owned(), Ok(Arc::new(json!(1))));
        looks.keep("bad".to_owned(), Err("answered 500".to_owned()));
        tokio::time::advance(LOOKED_AT - Duration::from_millis(1)).await;
        assert_eq!(looks.fresh("good"), Some(Ok(Arc::new(json!(1)))));
        assert_eq!(looks.fresh("bad"), Some(Err("answered 500".to_owned())));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((looks.fresh("good"), looks.fresh("none")), (None, None));
        // However many labels there are, what is remembered stays small.
        (0..CACHED + 5).for_each(|n| looks.keep(n.to_string(), Err(String::new())));
        assert!(looks.seen.len() <= CACHED);
    }
}
