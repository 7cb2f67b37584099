//! Events and messages: they are accepted, delivered, and not left behind.

use crate::{
    Finding,
    Severity::{Critical, Warning},
    Subject, text,
    thresholds::{IDEMPOTENCY_KEYS_PERCENT, MAX_BATCH_AGE_MS, MIN_SUBSCRIBER_HEALTH, NAMED_OBJECTS},
};

/// The event bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bus {
    /// Whether it accepts events: it rejects them while the fabric is empty or another one than before.
    pub accepts_events: bool,
}

/// A subscriber of topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscriber {
    /// Its name.
    pub name: String,
    /// Why nothing is sent to it.
    pub disabled: Option<String>,
    /// 0 to 100.
    pub health: u32,
    /// Dead letters, in events.
    pub dead: u64,
    /// Events that wait or are being delivered.
    pub queued: u64,
    /// When the oldest of them was published, unix milliseconds.
    pub oldest_ms: Option<u64>,
    /// How long a batch may be collected; absent if unknown.
    pub batch_timeout_ms: Option<u64>,
}

/// A pull queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Dead letters.
    pub dead: u64,
}

/// A backend of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Its name.
    pub name: String,
    /// Why nothing is sent to it.
    pub disabled: Option<String>,
    /// Dead letters.
    pub dead: u64,
}

/// How the credentials of webhooks are stored: signing secrets and user names of deliveries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Webhooks whose credentials are in clear text.
    pub clear: u64,
    /// Webhooks whose credentials the pacemaker cannot decrypt.
    pub locked: u64,
}

/// A client that uses many of its idempotency keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUse {
    /// The client's name.
    pub client: String,
    /// Percentage of the keys that it may have.
    pub percent: u64,
}

/// Objects that wait for an operator's decision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parked {
    /// How many.
    pub count: u64,
    /// Some of them, if the caller asked for their names.
    pub names: Vec<String>,
}

/// Checks the bus.
pub fn bus(bus: &Bus) -> Option<Finding> {
    (!bus.accepts_events).then(|| {
        let problem = "Events are rejected: the fabric Redis is empty, or is not the one used before.";
        let fix = "Restore its data, or accept it as the new one with POST /bus/initialize.";
        Finding::new(Critical, "events-rejected", Subject::Bus, problem, fix)
    })
}

/// Checks how many of its idempotency keys a client uses.
pub fn idempotency_keys(one: &KeyUse) -> Option<Finding> {
    let KeyUse { client, percent } = one;
    (*percent >= IDEMPOTENCY_KEYS_PERCENT).then(|| {
        let problem = format!(
            "Client {client} uses {percent}% of its idempotency keys. When all are used, its publishes with other keys \
             return 429 until keys expire."
        );
        let fix = "Raise `bus.idempotency_keys`, or lower `bus.idempotency_seconds`.";
        Finding::new(Warning, "idempotency-keys-used-up", Subject::Bus, problem, fix)
    })
}

/// Checks how credentials of webhooks are stored.
pub fn credentials(found: &Credentials) -> Vec<Finding> {
    let webhooks = |count| text::count(count, "webhook");
    let mut findings = Vec::new();
    if found.locked > 0 {
        let problem = format!(
            "Nothing is delivered to {}: the credentials are encrypted with a key that this pacemaker does not have.",
            webhooks(found.locked)
        );
        let fix =
            "Add the key to the file of `edge_key_file`, or replace the secrets (POST /subscriber/secret).";
        findings.push(Finding::new(Critical, "credentials-locked", Subject::Bus, problem, fix));
    }
    if found.clear > 0 {
        let problem =
            format!("The fabric stores the credentials of {} in clear text.", webhooks(found.clear));
        let fix = "Set `edge_key_file` of all pacemakers and restart them: they encrypt the credentials.";
        findings.push(Finding::new(Warning, "credentials-in-clear-text", Subject::Bus, problem, fix));
    }
    findings
}

/// Checks a subscriber. `now_ms` is unix time.
pub fn subscriber(one: &Subscriber, now_ms: u64) -> Vec<Finding> {
    let name = &one.name;
    let subject = || Subject::Subscriber(name.clone());
    let mut found = Vec::new();
    let age = now_ms.saturating_sub(one.oldest_ms.unwrap_or(now_ms));
    if let Some(reason) = &one.disabled {
        let problem = format!("Subscriber {name} is disabled and receives nothing: {reason}");
        let fix = "Fix the receiver, then subscribe again (POST /subscription).";
        found.push(Finding::new(Critical, "subscriber-disabled", subject(), problem, fix));
    } else if one.health < MIN_SUBSCRIBER_HEALTH {
        let problem = format!("Most deliveries to subscriber {name} fail (health {} of 100).", one.health);
        let fix = format!("Check its log, or send a test event: `signalbox subscribers test {name}`.");
        found.push(Finding::new(Warning, "subscriber-failing", subject(), problem, fix));
    } else if let Some(timeout_ms) = one.batch_timeout_ms
        && age > timeout_ms.saturating_add(MAX_BATCH_AGE_MS)
    {
        let queued = text::count(one.queued, "event");
        let problem = format!("Subscriber {name} is {} behind, with {queued} waiting.", text::span(age));
        let fix = "Its callback is slower than its events arrive. Raise `concurrency`, or use larger batches (`max`).";
        found.push(Finding::new(Warning, "subscriber-behind", subject(), problem, fix));
    }
    let fix = format!(
        "Fix the receiver. `signalbox subscribers dead {name}` lists them, and `signalbox subscribers redrive {name}` \
         sends them again."
    );
    found.extend(dead_letters(one.dead, &format!("subscriber {name}"), subject(), fix));
    found
}

/// Checks a queue.
pub fn queue(one: &Queue) -> Option<Finding> {
    let name = &one.name;
    let fix = format!(
        "Fix the consumer. `signalbox queues dead {name}` lists them, and `signalbox queues redrive {name}` returns them \
         to the queue."
    );
    dead_letters(one.dead, &format!("queue {name}"), Subject::Queue(name.clone()), fix)
}

/// Checks a backend.
pub fn backend(one: &Backend) -> Vec<Finding> {
    let name = &one.name;
    let mut found = Vec::new();
    if let Some(reason) = &one.disabled {
        let problem = format!("Backend {name} is disabled and receives nothing: {reason}");
        let fix = format!("Fix the receiver, then define the backend again (PUT /backends/{name}).");
        found.push(Finding::new(Critical, "backend-disabled", Subject::Backend(name.clone()), problem, fix));
    }
    let fix = format!("`signalbox backends dead {name}` lists them.");
    found.extend(dead_letters(one.dead, &format!("backend {name}"), Subject::Backend(name.clone()), fix));
    found
}

fn dead_letters(dead: u64, of: &str, subject: Subject, fix: String) -> Option<Finding> {
    (dead > 0).then(|| {
        let problem = format!("{} of {of} could not be delivered.", text::count(dead, "dead letter"));
        Finding::new(Warning, "dead-letters", subject, problem, fix)
    })
}

/// Checks objects that wait for a decision.
pub fn parked(parked: &Parked) -> Option<Finding> {
    let Parked { count, names } = parked;
    (*count > 0).then(|| {
        let named: Vec<&str> = names.iter().take(NAMED_OBJECTS).map(String::as_str).collect();
        let more = if *count > named.len() as u64 { " …" } else { "" };
        let such_as = if named.is_empty() { String::new() } else { format!(": {}{more}", named.join(", ")) };
        let wait = if *count == 1 { "waits" } else { "wait" };
        let problem = format!("{} {wait} for a decision{such_as}.", text::count(*count, "object"));
        let fix = "Fix their backend and retry (`signalbox objects unpark`), or skip the first event (`signalbox objects \
                   skip`). The dashboard's page Objects lists them.";
        Finding::new(Critical, "objects-parked", Subject::Objects, problem, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_000_000_000;

    fn ids(change: impl FnOnce(&mut Subscriber)) -> Vec<&'static str> {
        let mut one = Subscriber {
            name: "s".to_owned(),
            disabled: None,
            health: 100,
            dead: 0,
            queued: 0,
            oldest_ms: None,
            batch_timeout_ms: Some(1_000),
        };
        change(&mut one);
        subscriber(&one, NOW_MS).into_iter().map(|one| one.id).collect()
    }

    #[test]
    fn credentials_should_be_encrypted_and_must_be_readable() {
        let ids = |clear, locked| {
            let found = credentials(&Credentials { clear, locked });
            found.iter().map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(0, 0), [] as [&str; 0]);
        assert_eq!(ids(1, 0), ["credentials-in-clear-text"]);
        assert_eq!(ids(1, 2), ["credentials-locked", "credentials-in-clear-text"]);
    }

    #[test]
    fn a_client_that_soon_has_no_idempotency_key_left_is_a_finding() {
        let found = |percent| {
            idempotency_keys(&KeyUse { client: "shop".to_owned(), percent }).map(|one| (one.id, one.problem))
        };
        assert_eq!(found(79), None);
        let (id, problem) = found(80).expect("a finding");
        assert_eq!(id, "idempotency-keys-used-up");
        assert!(problem.starts_with("Client shop uses 80% of its idempotency keys."), "{problem}");
    }

    #[test]
    fn a_subscriber_that_receives_nothing_or_too_late_is_a_finding() {
        assert_eq!(ids(|_| ()), [""; 0]);
        assert_eq!(ids(|one| one.disabled = Some("410".to_owned())), ["subscriber-disabled"]);
        assert_eq!(ids(|one| one.health = 50), [""; 0]);
        assert_eq!(ids(|one| one.health = 49), ["subscriber-failing"]);
        assert_eq!(ids(|one| one.oldest_ms = Some(NOW_MS - 61_000)), [""; 0]);
        assert_eq!(ids(|one| one.oldest_ms = Some(NOW_MS - 61_001)), ["subscriber-behind"]);
        assert_eq!(ids(|one| one.oldest_ms = Some(NOW_MS + 1)), [""; 0], "a clock ahead of ours");
    }

    #[test]
    fn dead_letters_are_reported_in_addition_to_their_cause() {
        assert_eq!(ids(|one| one.dead = 1), ["dead-letters"]);
        let both = ids(|one| {
            one.dead = 1;
            one.disabled = Some("410".to_owned());
        });
        assert_eq!(both, ["subscriber-disabled", "dead-letters"]);
        assert_eq!(queue(&Queue { name: "q".to_owned(), dead: 0 }), None);
        let of = queue(&Queue { name: "q".to_owned(), dead: 2 }).map(|one| one.problem);
        assert_eq!(of.as_deref(), Some("2 dead letters of queue q could not be delivered."));
        let one = Backend { name: "b".to_owned(), disabled: Some("410".to_owned()), dead: 2 };
        let found: Vec<_> = backend(&one).into_iter().map(|one| one.id).collect();
        assert_eq!(found, ["backend-disabled", "dead-letters"]);
    }

    #[test]
    fn a_bus_that_rejects_events_is_a_finding() {
        assert_eq!(bus(&Bus { accepts_events: true }), None);
        assert_eq!(bus(&Bus { accepts_events: false }).map(|one| one.id), Some("events-rejected"));
    }

    #[test]
    fn only_the_first_parked_objects_are_named() {
        let names: Vec<String> = (0..5).map(|number| format!("o{number}")).collect();
        let problem = |count, names: &[String]| {
            parked(&Parked { count, names: names.to_vec() }).map(|one| one.problem).unwrap_or_default()
        };
        assert_eq!(problem(9, &names), "9 objects wait for a decision: o0, o1, o2 ….");
        assert_eq!(problem(2, &names[..2]), "2 objects wait for a decision: o0, o1.");
        assert_eq!(problem(1, &[]), "1 object waits for a decision.");
        assert_eq!(parked(&Parked::default()), None);
    }
}
