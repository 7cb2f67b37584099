//! Queues, and one queue by environment: backlog, age, and noisy environments.

use askama::Template;

use super::{
    Chart, Content, Kind, View,
    charts::{self, Charting},
    link,
    list::{self, Head, Heading, List},
    message_link, render, segment,
};
use crate::{
    dashboard::{MAX_ROWS, Site, format, queue_history::QueueHistory, store::Range},
    http::{
        Problem,
        list::{Listing, SortKey, contains},
    },
};
use signalbox_access::{Caller, Scope};
use signalbox_api::queues::Overflow;
use signalbox_bus::EventId;
use signalbox_queues::{Definition, Error, FacetStatus, QueueNumbers, Taken};

/// Maximum facets that are read and sorted, the first by name.
const MAX_SORTED: usize = 1000;
/// Maximum dead letters on the page.
const MAX_DEAD_LETTERS: usize = 50;
/// Characters that are shown of a message.
const MAX_BODY: usize = 2_000;
/// Messages that are shown of those that wait.
const MAX_WAITING: usize = 10;

const HEADINGS: [Heading; 7] = [
    ("queue", "name", false),
    ("pattern", "", false),
    ("waiting", "waiting", true),
    ("in flight", "in_flight", true),
    ("delayed", "delayed", true),
    ("environments", "facets", true),
    ("dead letters", "dead", true),
];

/// The columns of a queue's environments. The last one is for callers that may use its actions.
const FACET_HEADINGS: [Heading; 8] = [
    ("environment", "name", false),
    ("waiting", "waiting", true),
    ("in flight", "in_flight", true),
    ("delayed", "delayed", true),
    ("oldest", "age", true),
    ("dwell time", "dwell", true),
    ("weight", "weight", true),
    ("actions", "", false),
];
/// How environments are sorted without a choice.
const FACET_SORT: &str = "-waiting";

#[derive(Debug, Template)]
#[template(path = "dashboard/queues.html")]
struct Page {
    list: List,
    rows: Vec<QueueRow>,
    may_use: bool,
}

#[derive(Debug)]
struct QueueRow {
    name: String,
    link: String,
    pattern: String,
    waiting: u64,
    in_flight: u64,
    delayed: u64,
    dead: u64,
    facets: u64,
}

const LISTING: Listing<'static, QueueRow> = Listing {
    name: |row| &row.name,
    texts: |row| vec![row.pattern.as_str()],
    fields: &[
        ("name", |row| SortKey::from(&*row.name)),
        ("waiting", |row| SortKey::from(row.waiting)),
        ("in_flight", |row| SortKey::from(row.in_flight)),
        ("delayed", |row| SortKey::from(row.delayed)),
        ("facets", |row| SortKey::from(row.facets)),
        ("dead", |row| SortKey::from(row.dead)),
    ],
};

#[derive(Debug, Template)]
#[template(path = "dashboard/queue.html")]
struct QueuePage {
    name: String,
    path: String,
    pattern: String,
    lease: String,
    attempts: u32,
    retention: String,
    in_flight_limit: String,
    waiting: u64,
    in_flight: u64,
    delayed: u64,
    dead: u64,
    /// Totals since the queue was created.
    pushed: u64,
    acked: u64,
    nacked: u64,
    expired: u64,
    charting: Charting,
    facets: Vec<FacetRow>,
    more: bool,
    noisy_backlog: u64,
    /// The columns of the environments.
    list: Head,
    letters: Vec<LetterRow>,
    /// The next and the first page of dead letters.
    next: Option<String>,
    first: Option<String>,
    /// The next messages.
    messages: Vec<MessageRow>,
    search: String,
    may_use: bool,
    /// The definition that the page shows, and its fields.
    revision: u64,
    fields: Vec<DefinitionField>,
    drops_oldest: bool,
    shown: String,
    /// Whether the caller may see all environments.
    whole: bool,
}

/// A number of the definition. An empty one is no limit.
#[derive(Debug)]
struct DefinitionField {
    name: &'static str,
    label: &'static str,
    /// `limit` may be empty, `number` not.
    kind: &'static str,
    value: String,
}

#[derive(Debug)]
struct FacetRow {
    environment: String,
    path: String,
    weight: u32,
    waiting: u64,
    in_flight: u64,
    delayed: u64,
    age: String,
    dwell: String,
    noisy: bool,
    paused: bool,
}

#[derive(Debug)]
struct LetterRow {
    id: u64,
    link: String,
    path: String,
    environment: String,
    attempts: u32,
    reason: String,
    died: String,
    body: String,
}

/// A message that waits.
#[derive(Debug)]
struct MessageRow {
    id: u64,
    link: String,
    environment: String,
    attempts: u32,
    accepted: String,
    body: String,
}

fn message_row(queue: &str, taken: Taken, now_ms: u64) -> MessageRow {
    MessageRow {
        id: taken.id,
        link: message_link(queue, &taken.environment, taken.id),
        environment: taken.environment,
        attempts: taken.attempt,
        accepted: format::ago(now_ms, EventId(taken.id).accepted_ms()),
        body: text(&taken.body),
    }
}

/// The beginning of a stored message.
fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(MAX_BODY).collect()
}

pub(super) async fn content(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    if !view.name.is_empty() {
        return queue(app, caller, view).await;
    }
    Ok(Content { html: all(app, caller, view).await?, charts: Vec::new() })
}

async fn all(app: &Site, caller: &Caller, view: &View) -> Result<String, Problem> {
    let registry = app.bus.handle().registry();
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).collect();
    let numbers = match caller.environments() {
        None => app.queues.numbers(&names).await?,
        Some(own) => {
            let mut numbers = Vec::with_capacity(names.len());
            for name in &names {
                numbers.push(sum(&app.queues.facets_named(name, own).await?));
            }
            numbers
        }
    };
    let rows = registry.queues.iter().zip(numbers).map(|((name, definition), numbers)| QueueRow {
        name: name.clone(),
        link: link(Kind::Queues, name),
        pattern: definition.pattern.clone(),
        waiting: numbers.waiting,
        in_flight: numbers.in_flight,
        delayed: numbers.delayed,
        dead: numbers.dead,
        facets: numbers.facets,
    });
    let query = list::query(view, "-waiting");
    let page = LISTING.page(rows.collect(), &query)?;
    let list = List::new(view, &query, &page, "Queue or pattern", &HEADINGS);
    render(&Page { list, rows: page.items, may_use: caller.has_any(&[Scope::Queues]) })
}

async fn queue(app: &Site, caller: &Caller, view: &View) -> Result<Content, Problem> {
    let name = &*view.name;
    let registry = app.bus.handle().registry();
    let definition = registry.queues.get(name).ok_or(Error::NoSuchQueue)?;
    let (mut facets, mut more, numbers) = match caller.environments() {
        Some(own) => {
            let facets = app.queues.facets_named(name, own).await?;
            let numbers = sum(&facets);
            (facets, false, numbers)
        }
        None => {
            let page = app.queues.facets(name, "", MAX_SORTED).await?;
            let numbers = app.queues.numbers(&[name]).await?.pop().unwrap_or_default();
            (page.items, page.next.is_some(), numbers)
        }
    };
    let wanted = view.search.trim().to_lowercase();
    facets.retain(|facet| contains(&wanted, [&*facet.environment]));
    sort(&mut facets, &view.sort);
    more |= facets.len() > MAX_ROWS;
    facets.truncate(MAX_ROWS);
    let whole = caller.environments().is_none();
    let (mut letters, mut next) = (Vec::new(), None);
    if whole && numbers.dead > 0 {
        let page = app.queues.dead(name, &view.cursor, MAX_DEAD_LETTERS).await?;
        letters = page.items;
        next = page.next.map(|cursor| View { cursor, ..view.clone() }.address());
    }
    let waiting = match caller.environments() {
        None => app.queues.peek(name, None, MAX_WAITING).await?,
        Some(_) => Vec::new(),
    };
    let now_ms = app.dashboard.now_ms();
    let noisy_backlog = app.queues.options().noisy_backlog;
    let may_use = caller.has_any(&[Scope::Queues]);
    let headings = FACET_HEADINGS.len() - usize::from(!may_use);
    let (charting, charts) = charted(app, view, now_ms);
    let page = QueuePage {
        charting,
        path: segment(name),
        pattern: definition.pattern.clone(),
        lease: format::span(definition.lease_ms),
        attempts: definition.max_attempts,
        retention: format::span(definition.retention_seconds * 1000),
        in_flight_limit: definition
            .in_flight_limit
            .map_or_else(|| "none".to_owned(), |limit| limit.to_string()),
        waiting: numbers.waiting,
        in_flight: numbers.in_flight,
        delayed: numbers.delayed,
        dead: numbers.dead,
        pushed: numbers.pushed,
        acked: numbers.acked,
        nacked: numbers.nacked,
        expired: numbers.expired,
        facets: facets.into_iter().map(|facet| facet_row(facet, noisy_backlog, definition)).collect(),
        more,
        noisy_backlog,
        list: Head::new(view, FACET_SORT, &FACET_HEADINGS[..headings]),
        letters: letters
            .into_iter()
            .map(|letter| LetterRow {
                id: letter.message.id,
                link: message_link(name, &letter.message.environment, letter.message.id),
                path: segment(&letter.message.environment),
                environment: letter.message.environment,
                attempts: letter.message.attempt,
                reason: letter.reason.unwrap_or_default(),
                died: format::ago(now_ms, letter.at_ms.unwrap_or_default()),
                body: text(&letter.message.body),
            })
            .collect(),
        next,
        first: (!view.cursor.is_empty()).then(|| link(Kind::Queues, name)),
        messages: waiting.into_iter().map(|one| message_row(name, one, now_ms)).collect(),
        search: view.search.clone(),
        may_use,
        revision: definition.revision,
        fields: definition_fields(definition),
        drops_oldest: matches!(definition.overflow, Overflow::DropOldest),
        shown: shown(definition),
        whole,
        name: name.to_owned(),
    };
    // The history counts all environments together.
    Ok(Content { html: render(&page)?, charts: if whole { charts } else { Vec::new() } })
}

/// The charts of a queue, and their time ranges.
fn charted(app: &Site, view: &View, now_ms: u64) -> (Charting, Vec<Chart>) {
    let range = Some(Range::named(&view.range)).filter(|range| QueueHistory::covers(*range));
    let range = range.unwrap_or(Range::named(""));
    let samples =
        app.dashboard.queue_history.of(&view.name, range, i64::try_from(now_ms / 1000).unwrap_or(0));
    let mut charts = charts::queue(&samples);
    let mut charting = Charting::new(view, range, None, String::new());
    charting.ranges.retain(|(name, ..)| QueueHistory::covers(Range::named(name)));
    charting.resolution = "Read every 10 seconds by this pacemaker, since it was started.".to_owned();
    charting.complete(range, now_ms, &mut charts);
    (charting, charts)
}

/// The members of a definition that its form changes, as the API names them.
fn definition_fields(definition: &Definition) -> Vec<DefinitionField> {
    let wanted = definition.wanted();
    let number =
        |name, label, value: f64| DefinitionField { name, label, kind: "number", value: value.to_string() };
    let limit = |name, label, value: Option<u64>| DefinitionField {
        name,
        label,
        kind: "limit",
        value: value.map(|value| value.to_string()).unwrap_or_default(),
    };
    #[allow(clippy::cast_precision_loss, reason = "a year in seconds")]
    let retention = definition.retention_seconds as f64;
    vec![
        number("lease_seconds", "Lease, seconds", wanted.lease_seconds.unwrap_or_default()),
        number("max_attempts", "Deliveries at most (0: no limit)", f64::from(definition.max_attempts)),
        number("retention_seconds", "Retention, seconds", retention),
        number("backoff_seconds", "First backoff, seconds", wanted.backoff_seconds.unwrap_or_default()),
        number(
            "max_backoff_seconds",
            "Longest backoff, seconds",
            wanted.max_backoff_seconds.unwrap_or_default(),
        ),
        limit("in_flight_limit", "In flight per environment", definition.in_flight_limit),
        limit("max_waiting", "Waiting at most", definition.max_waiting),
        limit("max_waiting_per_tenant", "Waiting per environment", definition.max_waiting_per_tenant),
    ]
}

/// The same members as JSON, with which a conflicting change is compared.
fn shown(definition: &Definition) -> String {
    let mut shown = serde_json::Map::new();
    shown.insert("pattern".to_owned(), definition.pattern.clone().into());
    for field in definition_fields(definition) {
        let value = serde_json::from_str(&field.value).unwrap_or_default();
        shown.insert(field.name.to_owned(), value);
    }
    serde_json::Value::Object(shown).to_string()
}

/// The numbers of a queue as far as these facets contribute to them.
fn sum(facets: &[FacetStatus]) -> QueueNumbers {
    let mut numbers = QueueNumbers::default();
    for facet in facets {
        numbers.waiting += facet.waiting;
        numbers.in_flight += facet.in_flight;
        numbers.delayed += facet.delayed;
        numbers.facets += u64::from(facet.waiting + facet.in_flight + facet.delayed > 0);
    }
    numbers
}

fn facet_row(facet: FacetStatus, noisy_backlog: u64, definition: &Definition) -> FacetRow {
    let span = |ms: Option<u64>| ms.map_or_else(|| "–".to_owned(), format::span);
    FacetRow {
        noisy: facet.waiting > noisy_backlog,
        paused: definition.wanted_tenant(&facet.environment).paused,
        path: segment(&facet.environment),
        environment: facet.environment,
        weight: facet.weight,
        waiting: facet.waiting,
        in_flight: facet.in_flight,
        delayed: facet.delayed,
        age: span(facet.oldest_age_ms),
        dwell: span(facet.dwell_ms),
    }
}

/// Sorts by a column of [`FACET_HEADINGS`], with `-` in descending order. Equal facets stay in the order of their names.
fn sort(facets: &mut [FacetStatus], by: &str) {
    let by = if by.is_empty() { FACET_SORT } else { by };
    let (descending, field) = by.strip_prefix('-').map_or((false, by), |field| (true, field));
    let key = |facet: &FacetStatus| match field {
        "waiting" => facet.waiting,
        "in_flight" => facet.in_flight,
        "delayed" => facet.delayed,
        "age" => facet.oldest_age_ms.unwrap_or_default(),
        "dwell" => facet.dwell_ms.unwrap_or_default(),
        "weight" => u64::from(facet.weight),
        _ => 0,
    };
    // The facets arrive in the order of their names, which a stable sort keeps.
    if descending {
        facets.sort_by_key(|facet| std::cmp::Reverse(key(facet)));
    } else {
        facets.sort_by_key(key);
    }
    if by == "-name" {
        facets.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Definition {
        let wanted = signalbox_api::queues::NewQueue { pattern: ".*:x:.*".to_owned(), ..Default::default() };
        Definition::new("mail", wanted, None).unwrap()
    }

    #[test]
    fn a_definition_is_compared_by_the_members_of_its_form() {
        let shown: serde_json::Value = serde_json::from_str(&shown(&definition())).unwrap();
        assert_eq!(shown["pattern"], ".*:x:.*");
        assert!(shown["lease_seconds"].is_number() && shown["max_waiting"].is_null(), "{shown}");
    }

    #[test]
    fn facets_are_sorted_by_the_requested_key() {
        let facet = |environment: &str, waiting, oldest_age_ms, dwell_ms| FacetStatus {
            environment: environment.to_owned(),
            weight: 1,
            waiting,
            oldest_age_ms,
            dwell_ms,
            ..FacetStatus::default()
        };
        let facets =
            [facet("a", 1, Some(9), None), facet("b", 3, None, Some(1)), facet("c", 3, Some(5), Some(2))];
        let orders = [("", "bca"), ("waiting", "abc"), ("-age", "acb"), ("-dwell", "cba"), ("name", "abc")];
        for (by, order) in orders.into_iter().chain([("-name", "cba"), ("unknown", "abc")]) {
            let mut facets = facets.clone();
            sort(&mut facets, by);
            let names: String = facets.iter().map(|facet| facet.environment.as_str()).collect();
            assert_eq!(names, order, "by {by:?}");
        }
        let definition = definition();
        let noisy = |backlog| facet_row(facets[1].clone(), backlog, &definition).noisy;
        assert!(noisy(2) && !noisy(3));
    }
}
