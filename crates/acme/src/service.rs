//! Background work: claims names whose next step is due, and performs the step.

use std::{sync::Arc, time::Duration};

use rand::RngExt as _;
use serde_json::json;
use signalbox_lease::Lease;
use signalbox_routing::{Announce, EventKind, RouteEvent};
use tokio::{task::JoinSet, time};
use tokio_util::sync::CancellationToken;

use crate::{
    Acme, Parts, account,
    failure::{Failed, Failure},
    order,
    record::{Attempt, News, Step, spread},
    store::{Claim, Spent},
    wanted,
};

/// The interval between checks for names whose step is due.
const POLL: Duration = Duration::from_millis(500);
/// The pause of a name after a local component did not answer.
const UNAVAILABLE_MS: u64 = 5_000;
/// Names that waited for a budget continue at random times within this period.
const SPREAD_MS: u64 = 60_000;
/// And the first name of each owner within this period, which is before.
const FIRST_MS: u64 = 10_000;
/// Pause before an event is published again.
const UNPUBLISHED_MS: u64 = 5_000;
/// The topics of the events, without the prefix of Signalbox's own topics.
const ISSUED: &str = "certificate.issued";
const FAILED: &str = "certificate.failed";

/// Does the work of [`Acme`].
#[derive(Debug)]
pub struct Service<A> {
    acme: Acme,
    lease: Lease,
    announce: A,
}

impl<A: Announce + Clone + Send + Sync + 'static> Service<A> {
    /// `lease` ensures that one pacemaker at a time compares hosts with names. Orders do not need it, because
    /// each name is claimed.
    pub fn new(acme: Acme, lease: Lease, announce: A) -> Self {
        Self { acme, lease, announce }
    }

    /// Runs until `shutdown`. If automatic HTTPS is off, returns immediately.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { acme, lease, announce } = self;
        let parts = acme.parts;
        if !parts.options.is_on() {
            return;
        }
        if let Err(error) = account::reseal(&parts).await {
            tracing::warn!(
                ?error,
                "ACME account not encrypted with the first key; will be retried with an order"
            );
        }
        tokio::join!(wanted::run(&parts, lease, shutdown.clone()), work(&parts, &announce, shutdown.clone()));
    }
}

async fn work<A: Announce + Clone + Send + Sync + 'static>(
    parts: &Arc<Parts>,
    announce: &A,
    shutdown: CancellationToken,
) {
    let mut steps = JoinSet::new();
    while !shutdown.is_cancelled() {
        while steps.try_join_next().is_some() {}
        let free = parts.options.concurrent_orders.saturating_sub(steps.len());
        let claims = match free {
            0 => Vec::new(),
            free => parts.store.claim(free).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "due certificates not read");
                Vec::new()
            }),
        };
        let more = !claims.is_empty();
        for claim in claims {
            steps.spawn(held(Arc::clone(parts), announce.clone(), claim, shutdown.clone()));
        }
        if more {
            continue;
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = parts.nudge.notified() => {}
            () = time::sleep(POLL) => {}
            Some(_) = steps.join_next(), if !steps.is_empty() => {}
        }
    }
    while steps.join_next().await.is_some() {}
}

/// Performs the next step of a claimed name while the claim is valid.
async fn held<A: Announce>(parts: Arc<Parts>, announce: A, claim: Claim, shutdown: CancellationToken) {
    let (name, fence) = (claim.name.clone(), claim.fence);
    let step = Box::pin(step(&parts, &announce, claim));
    tokio::select! {
        () = step => {}
        () = keep(&parts, &name, fence) => {
            tracing::info!(server_name = name, "another pacemaker continues the order");
        }
        () = shutdown.cancelled() => {
            // The order is stored, so another pacemaker continues it, or this one after its restart.
            if let Err(error) = parts.store.release(&name, fence).await {
                tracing::debug!(server_name = name, %error, "claim not released; it will expire");
            }
        }
    }
}

/// Renews the claim until it is lost.
async fn keep(parts: &Parts, name: &str, fence: u64) {
    loop {
        time::sleep(parts.store.renew_interval()).await;
        match parts.store.renew(name, fence).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => tracing::debug!(server_name = name, %error, "claim not renewed"),
        }
    }
}

async fn step<A: Announce>(parts: &Parts, announce: &A, mut claim: Claim) {
    let begun = time::Instant::now();
    let claimed = claim.now_ms / 1000;
    let now = || claimed + begun.elapsed().as_secs();
    if claim.record.news.is_some() && !publish(announce, &mut claim).await {
        return saved(parts, &claim, UNPUBLISHED_MS).await;
    }
    match taken(parts, &mut claim, claimed).await {
        Ok(Some(attempt)) => {
            noted(parts, &mut claim, attempt, now());
            // The result is stored with its event before the event is published, so that a crash loses
            // neither.
            match parts.store.keep(&claim).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    return tracing::warn!(server_name = claim.name, %error, "outcome of an order not stored");
                }
            }
            if !publish(announce, &mut claim).await {
                return saved(parts, &claim, UNPUBLISHED_MS).await;
            }
        }
        Ok(None) => {}
        Err(Failure::NoBudget(Spent { ms, is_first })) => {
            tracing::debug!(
                server_name = claim.name,
                "order delayed: the share of acme.orders_per_hour is spent"
            );
            // A random delay, so that names do not continue at the same time. One name of each owner is before all others.
            let pause = if is_first { random_ms(FIRST_MS) } else { FIRST_MS + random_ms(SPREAD_MS) }
                .saturating_add(ms);
            return saved(parts, &claim, pause).await;
        }
        Err(Failure::Fenced) => return,
        Err(_) => return saved(parts, &claim, UNAVAILABLE_MS).await,
    }
    let now = now();
    let due = claim.record.due(now, parts.options.retry_seconds, varied(&claim));
    saved(parts, &claim, due.saturating_sub(now) * 1000).await;
}

fn random_ms(below: u64) -> u64 {
    rand::rng().random_range(0..below)
}

/// The spread of a claim. For renewals it is constant per name; for retries it differs each time.
fn varied(claim: &Claim) -> f64 {
    if claim.record.failures > 0 { rand::rng().random::<f64>() } else { spread(&claim.name) }
}

/// Performs the step that is due. Returns the result of an attempt to obtain a certificate, if there was one.
async fn taken(parts: &Parts, claim: &mut Claim, now: u64) -> Result<Option<Attempt>, Failure> {
    // The certificate may have been uploaded or deleted, or stored by an attempt whose result was lost.
    let present = order::present(parts, &claim.name).await?;
    if claim.record.certificate != present {
        claim.record.certificate = present;
        claim.record.window = None;
        claim.record.ari_at = present.map(|_| now);
    }
    let step = if claim.is_requested && claim.record.certificate.is_some() {
        Step::Order
    } else {
        claim.record.step(now, spread(&claim.name))
    };
    match step {
        Step::Rest => Ok(None),
        Step::AskRenewal => {
            match order::renewal_info(parts, &claim.name).await {
                Ok(Some((window, pause))) => {
                    claim.record.window = Some(window);
                    claim.record.ari_at = Some(now + pause);
                }
                Ok(None) => claim.record.ari_at = None,
                // Without renewal information, certificates are renewed after two thirds of their validity.
                Err(Failure::Unavailable) => return Err(Failure::Unavailable),
                Err(failure) => {
                    tracing::debug!(server_name = claim.name, ?failure, "renewal information not read");
                    claim.record.ari_at = Some(now + crate::schedule::ari_pause(None));
                }
            }
            Ok(None)
        }
        Step::Order => ordered(parts, claim).await.map(Some),
    }
}

/// Makes an attempt to obtain a certificate. If the server does not know the account, a new one is created
/// immediately.
async fn ordered(parts: &Parts, claim: &mut Claim) -> Result<Attempt, Failure> {
    let mut obtained = order::obtain(parts, claim).await;
    if matches!(&obtained, Err(Failure::Failed(Failed { account_is_lost: true, .. }))) {
        tracing::warn!("the ACME server does not know the account; a new one is created");
        parts.store.forget_account(&parts.options.directory).await?;
        claim.record.order = None;
        obtained = order::obtain(parts, claim).await;
    }
    match obtained {
        Ok(life) => Ok(Attempt::Issued { life, ari: true }),
        Err(Failure::Failed(Failed { words, retry_after, order_is_lost, .. })) => {
            if order_is_lost {
                claim.record.order = None;
            }
            Ok(Attempt::Failed { words, retry_after })
        }
        Err(failure) => Err(failure),
    }
}

fn noted(parts: &Parts, claim: &mut Claim, attempt: Attempt, now: u64) {
    let issued = matches!(attempt, Attempt::Issued { .. });
    claim.record.attempted(attempt, now);
    claim.record.news = Some(News { issued, claim: claim.fence, at: now });
    parts.metrics.attempted(issued);
    let name = &claim.name;
    if issued {
        tracing::info!(server_name = name, "certificate obtained");
    } else {
        let error = claim.record.last_error.as_deref().unwrap_or_default();
        tracing::warn!(
            server_name = name,
            failures = claim.record.failures,
            error,
            "certificate not obtained"
        );
    }
}

/// Publishes the result of the latest attempt. Returns whether nothing remains to be published.
async fn publish<A: Announce>(announce: &A, claim: &mut Claim) -> bool {
    let Some(news) = claim.record.news.clone() else { return true };
    let (name, record) = (&claim.name, &claim.record);
    let mut data = json!({"server_name": name, "ends": record.certificate.map(|life| life.not_after)});
    let (topic, what) = if news.issued { (ISSUED, "issued") } else { (FAILED, "failed") };
    if !news.issued {
        data["error"] = json!(record.last_error);
        data["failures"] = record.failures.into();
    }
    let event = RouteEvent {
        kind: EventKind::Update,
        object: format!("signalbox:certificate:{name}"),
        url: format!("/acme/names/{name}"),
        at_ms: Some(news.at * 1000),
        data,
        key: format!("acme:{name}:{}:{what}", news.claim),
    };
    if announce.announce(topic, vec![event]).await {
        claim.record.news = None;
        true
    } else {
        false
    }
}

async fn saved(parts: &Parts, claim: &Claim, pause_ms: u64) {
    if let Err(error) = parts.store.save(claim, pause_ms).await {
        tracing::debug!(server_name = claim.name, %error, "state not stored; the claim expires");
    }
}
