//! Feeds: values that are fetched when a condition needs them, over HTTP or from the statistics of the edge.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use http::{Method, Request, Uri, header};
use http_body_util::Full;
use hyper::body::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use signalbox_condition::Feed as Answer;
use signalbox_machine::{
    Machine,
    definition::{Feed, FeedSource, OnError},
    render::Filling,
};
use tokio::time::Instant;

use crate::{
    Version,
    actions::{self, Actions},
    metrics::Metrics,
    store::Statistics,
};
use signalbox_access::Effect;
use signalbox_egress::{Client, Place};

/// Maximum size of an answer, bytes.
const MAX_BYTES: usize = 1 << 20;
/// How long a request waits for a place among the outgoing calls. Then the label is evaluated again later.
const PLACE_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of answers in each cache.
const MAX_CACHED: usize = 10_000;

/// An answer of a feed, and the request that it answers.
type Answered = (String, Option<Arc<Value>>);

/// The feeds that were asked for one evaluation, with their answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct FeedAnswers(HashMap<String, Answered>);

/// No feed was asked.
pub(crate) struct NothingAsked;

impl FeedAnswers {
    /// Sets the answer of a feed; `None` if it failed.
    pub(crate) fn assume(&mut self, name: &str, value: Option<Value>) {
        self.0.insert(name.to_owned(), (String::new(), value.map(Arc::new)));
    }

    /// The answers to requests that a label with this metadata makes. A label may have changed while a feed was asked, and
    /// then the answer decides nothing.
    pub(crate) fn to(&self, machine: &Machine, label: &str, metadata: &Value) -> Self {
        let filling = Filling { state_machine: machine.name(), label, metadata };
        let fits = |(name, (asked, _)): &(&String, &Answered)| *asked == question(machine, name, &filling);
        let fitting = self.0.iter().filter(fits);
        Self(fitting.map(|(name, answered)| (name.clone(), answered.clone())).collect())
    }
}

impl signalbox_condition::Feeds for FeedAnswers {
    fn feed(&self, name: &str) -> Answer<'_> {
        match self.0.get(name) {
            None => Answer::NotAsked,
            Some((_, None)) => Answer::Failed,
            Some((_, Some(value))) => Answer::Value(value),
        }
    }
}

impl signalbox_condition::Feeds for NothingAsked {
    fn feed(&self, _: &str) -> Answer<'_> {
        Answer::NotAsked
    }
}

/// How a feed has answered this process since its start.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Number of answers.
    pub answered: u64,
    /// Number of failures.
    pub failed: u64,
    /// Number of failures since the last answer.
    pub failing: u64,
    /// How long ago it last answered.
    pub last_answer: Option<Duration>,
    /// How long ago it last failed.
    pub last_failure: Option<Duration>,
    /// The reason of the last failure.
    pub why: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Heard {
    health: Health,
    answer: Option<Instant>,
    failure: Option<Instant>,
}

/// Health by machine and feed: bounded by the number of feeds in definitions.
type Memory = BTreeMap<(String, String), Heard>;

/// Answers that can be used until their `ttl` is over, by machine, feed and request.
type Cache = HashMap<String, (Instant, Arc<Value>)>;

/// How long an answer or failure is shown to inspections.
const INSPECTION_TTL: Duration = Duration::from_secs(5);
/// How often a feed is asked per second for inspections, over all labels.
const MAX_INSPECTIONS_PER_SECOND: u32 = 10;

/// Recent answers for inspections, and how often each feed was asked for them: a person who reloads a page must not
/// load the feed.
#[derive(Debug, Default)]
pub(crate) struct Inspections {
    seen: HashMap<String, (Instant, Result<Arc<Value>, String>)>,
    /// Machine and feed → start of the current second, and how often it was asked since.
    asked: HashMap<String, (Instant, u32)>,
}

impl Inspections {
    /// Whether the feed may be asked once more.
    fn may(&mut self, feed: &str) -> bool {
        if self.asked.len() >= MAX_CACHED {
            self.asked.clear();
        }
        let (since, count) = self.asked.entry(feed.to_owned()).or_insert((Instant::now(), 0));
        if since.elapsed() >= Duration::from_secs(1) {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        *count <= MAX_INSPECTIONS_PER_SECOND
    }

    fn keep(&mut self, key: String, answer: Result<Arc<Value>, String>) {
        if self.seen.len() >= MAX_CACHED {
            self.seen.clear();
        }
        self.seen.insert(key, (Instant::now(), answer));
    }

    fn fresh(&self, key: &str) -> Option<Result<Arc<Value>, String>> {
        self.seen.get(key).filter(|(at, _)| at.elapsed() < INSPECTION_TTL).map(|(_, answer)| answer.clone())
    }
}

/// Asks feeds.
#[derive(Debug)]
pub(crate) struct Feeds {
    pub(crate) client: Client,
    pub(crate) statistics: Statistics,
    pub(crate) actions: Arc<Actions>,
    pub(crate) metrics: Metrics,
    pub(crate) cache: Mutex<Cache>,
    pub(crate) inspections: Mutex<Inspections>,
    pub(crate) memory: Mutex<Memory>,
}

impl Feeds {
    /// Adds a feed's answer for an inspection, which never moves a label, and describes it. An answer of the last seconds
    /// is used again, and a feed is asked only a few times per second, for however many labels.
    pub(crate) async fn inspect(
        &self,
        to: &mut FeedAnswers,
        (version, label, metadata): (&Version, &str, &Value),
        name: &str,
    ) -> Value {
        let machine = &*version.machine;
        let answered = json!({"result": "ok"});
        let Some(feed) = machine.feed(name) else {
            to.assume(name, Some(Value::Null));
            return answered;
        };
        let filling = Filling { state_machine: machine.name(), label, metadata };
        let answer = match key(machine, feed, &filling) {
            Err(missing) => Err(missing),
            Ok(key) => {
                let known = self.inspections.lock().fresh(&key);
                match known {
                    Some(answer) => answer,
                    None if !self.inspections.lock().may(&format!("{} {name}", machine.name())) => {
                        let error = "it was queried too often in this second; retry";
                        return json!({"result": "not_asked", "error": error});
                    }
                    None => {
                        let place = self.place(version, feed, &filling).await;
                        let answer = self.fetch(version, (feed, place), &filling).await;
                        self.remember(machine.name(), name, answer.as_ref().err());
                        self.inspections.lock().keep(key, answer.clone());
                        answer
                    }
                }
            }
        };
        match (answer, &feed.on_error) {
            (Ok(value), _) => {
                to.0.insert(name.to_owned(), (String::new(), Some(value)));
                answered
            }
            (Err(why), OnError::Hold) => {
                to.assume(name, None);
                json!({"result": "failed", "error": why})
            }
            (Err(why), OnError::Default(value)) => {
                to.assume(name, Some(value.clone()));
                json!({"result": "default", "error": why})
            }
        }
    }

    /// Asks the feed, and adds its answer. Returns false if its request was not made, because other calls had all places.
    pub(crate) async fn ask(
        &self,
        to: &mut FeedAnswers,
        version: &Version,
        label: &str,
        metadata: &Value,
        name: &str,
    ) -> bool {
        let machine = &*version.machine;
        let filling = Filling { state_machine: machine.name(), label, metadata };
        let asked = question(machine, name, &filling);
        let Some(feed) = machine.feed(name) else {
            to.0.insert(name.to_owned(), (asked, Some(Arc::new(Value::Null))));
            return true;
        };
        let waiting = self.place(version, feed, &filling);
        let Ok(place) = tokio::time::timeout(PLACE_WAIT, waiting).await else { return false };
        let fetched = self.fetch(version, (feed, place), &filling).await;
        self.remember(machine.name(), name, fetched.as_ref().err());
        let answer = match fetched {
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
        to.0.insert(name.to_owned(), (asked, answer));
        true
    }

    /// Waits for the place of a request. `None` if no request is made.
    async fn place(&self, version: &Version, feed: &Feed, filling: &Filling<'_>) -> Option<Place> {
        let FeedSource::Url(url) = &feed.source else { return None };
        let to: Uri = url.address(*filling).ok()?.parse().ok()?;
        if self.cached(&key(&version.machine, feed, filling).ok()?, feed.ttl).is_some() {
            return None;
        }
        Some(self.client.place(&actions::owner(version), &to).await)
    }

    /// Records an answer or a failure.
    fn remember(&self, machine: &str, feed: &str, why: Option<&String>) {
        let mut memory = self.memory.lock();
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

    /// The health of a machine's feeds, by name.
    pub(crate) fn health(&self, machine: &str) -> BTreeMap<String, Health> {
        let memory = self.memory.lock();
        let own = memory.iter().filter(|((of, _), _)| of == machine);
        let health = own.map(|((_, feed), heard)| {
            let mut health = heard.health.clone();
            health.last_answer = heard.answer.map(|at| at.elapsed());
            health.last_failure = heard.failure.map(|at| at.elapsed());
            (feed.clone(), health)
        });
        health.collect()
    }

    async fn fetch(
        &self,
        version: &Version,
        (feed, place): (&Feed, Option<Place>),
        filling: &Filling<'_>,
    ) -> Result<Arc<Value>, String> {
        let machine = &*version.machine;
        // Before the cache, which an earlier version of the machine may have filled.
        if matches!(feed.source, FeedSource::Stats(_)) {
            version.may(Effect::ReadStatistics).map_err(|denied| version.why_not(&denied))?;
        }
        let key = key(machine, feed, filling)?;
        if let Some(value) = self.cached(&key, feed.ttl) {
            return Ok(value);
        }
        let value = match &feed.source {
            FeedSource::Url(url) => {
                let url = url.address(*filling).map_err(|missing| missing.to_string())?;
                self.get(version, (&url, place), feed.timeout).await?
            }
            FeedSource::Stats(stats) => {
                let id = stats.id.fill(*filling).map_err(|missing| missing.to_string())?;
                let window = stats.window.as_secs();
                let asked = self.statistics.window(stats.of, &id, window);
                match tokio::time::timeout(feed.timeout, asked).await {
                    Ok(Ok(value)) => value,
                    Ok(Err(error)) => return Err(error.to_string()),
                    Err(_) => return Err("the statistics did not answer in time".to_owned()),
                }
            }
        };
        let value = Arc::new(value);
        if !feed.ttl.is_zero() {
            let mut cache = self.cache.lock();
            if cache.len() >= MAX_CACHED {
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
        let cache = self.cache.lock();
        let (at, value) = cache.get(key)?;
        (at.elapsed() < ttl).then(|| Arc::clone(value))
    }

    async fn get(
        &self,
        version: &Version,
        (url, place): (&str, Option<Place>),
        timeout: Duration,
    ) -> Result<Value, String> {
        let machine = &*version.machine;
        let request = Request::builder()
            .method(Method::GET)
            .uri(url)
            .header(header::ACCEPT, "application/json")
            .body(Full::<Bytes>::default());
        let mut request = request.map_err(|_| "the URL cannot be used".to_owned())?;
        self.actions.headers(machine, url, request.headers_mut()).await?;
        let place = match place {
            Some(place) => place,
            // Its answer expired in the cache a moment ago.
            None => self.client.place(&actions::owner(version), request.uri()).await,
        };
        let answer = self.client.call(place, "machine feed", request, timeout, MAX_BYTES).await?;
        if !(200..300).contains(&answer.status) {
            return Err(format!("answered {}", answer.status));
        }
        let body = answer.body.ok_or("the answer is larger than 1 MiB")?;
        serde_json::from_slice(&body).map_err(|_| "the answer is not JSON".to_owned())
    }
}

/// The request to a feed under a version of a definition.
fn question(machine: &Machine, name: &str, filling: &Filling<'_>) -> String {
    let request =
        machine.feed(name).map(|feed| key(machine, feed, filling).unwrap_or_else(|missing| missing));
    format!("{} {}", machine.hash(), request.unwrap_or_default())
}

/// The cache key: machine, feed and request.
fn key(machine: &Machine, feed: &Feed, filling: &Filling<'_>) -> Result<String, String> {
    let source = match &feed.source {
        FeedSource::Url(url) => url.address(*filling).map_err(|missing| missing.to_string())?,
        FeedSource::Stats(stats) => {
            let id = stats.id.fill(*filling).map_err(|missing| missing.to_string())?;
            format!("{} {} {id}", stats.of, stats.window.as_secs())
        }
    };
    Ok(format!("{} {} {source}", machine.name(), feed.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn inspections_ask_a_feed_only_a_few_times_per_second() {
        let mut inspections = Inspections::default();
        let asked = (0..1_000).filter(|_| inspections.may("m crm")).count();
        assert_eq!(asked, MAX_INSPECTIONS_PER_SECOND as usize);
        assert!(inspections.may("m other"), "each feed has its own limit");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(inspections.may("m crm"));
        // Answers and failures are both kept for a while.
        inspections.keep("good".to_owned(), Ok(Arc::new(json!(1))));
        inspections.keep("bad".to_owned(), Err("answered 500".to_owned()));
        tokio::time::advance(INSPECTION_TTL - Duration::from_millis(1)).await;
        assert_eq!(inspections.fresh("good"), Some(Ok(Arc::new(json!(1)))));
        assert_eq!(inspections.fresh("bad"), Some(Err("answered 500".to_owned())));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((inspections.fresh("good"), inspections.fresh("none")), (None, None));
        // The cache stays small for any number of labels.
        (0..MAX_CACHED + 5).for_each(|n| inspections.keep(n.to_string(), Err(String::new())));
        assert!(inspections.seen.len() <= MAX_CACHED);
    }
}
