//! Queues, and one queue by tenant: backlog, age, and noisy tenants.

use askama::Template;

use super::{
    Chart, Content, Kind, Visit,
    charts::{self, Charting},
    link,
    list::{self, Head, Heading, List},
    message_link, plain, segment, with_charts,
};
use crate::{
    dashboard::{MAX_ROWS, Site, format, queue_history::QueueHistory, store::Range},
    http::{
        Problem,
        list::{Listing, SortKey, contains},
    },
};
use signalbox_access::Scope;
use signalbox_api::queues::Overflow;
use signalbox_bus::EventId;
use signalbox_queues::{Definition, Error, QueueNumbers, Stored, Taken, TenantStatus};

/// Maximum tenants that are read and sorted: the deepest, as many of the first by name, or those that a search finds.
const MAX_SORTED: usize = 1000;
/// Maximum tenants whose names a search reads.
const MAX_SEARCHED: usize = 50_000;
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
    ("tenants", "tenants", true),
    ("dead letters", "dead", true),
];

/// The columns of a queue's tenants. The last one is for callers that may use its actions.
const TENANT_HEADINGS: [Heading; 8] = [
    ("tenant", "name", false),
    ("waiting", "waiting", true),
    ("in flight", "in_flight", true),
    ("delayed", "delayed", true),
    ("oldest", "age", true),
    ("dwell time", "dwell", true),
    ("weight", "weight", true),
    ("actions", "", false),
];
/// How tenants are sorted without a choice.
const TENANT_SORT: &str = "-waiting";

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
    pattern: String,
    numbers: QueueNumbers,
}

const LISTING: Listing<'static, QueueRow> = Listing {
    name: |row| &row.name,
    texts: |row| vec![row.pattern.as_str()],
    fields: &[
        ("name", |row| SortKey::from(&*row.name)),
        ("waiting", |row| SortKey::from(row.numbers.waiting)),
        ("in_flight", |row| SortKey::from(row.numbers.in_flight)),
        ("delayed", |row| SortKey::from(row.numbers.delayed)),
        ("tenants", |row| SortKey::from(row.numbers.tenants)),
        ("dead", |row| SortKey::from(row.numbers.dead)),
    ],
};

#[derive(Debug, Template)]
#[template(path = "dashboard/queue.html")]
struct QueuePage<'a> {
    name: &'a str,
    definition: &'a Definition,
    numbers: QueueNumbers,
    charting: Charting,
    tenants: Vec<TenantStatus>,
    more: bool,
    noisy_backlog: u64,
    /// The columns of the tenants.
    list: Head,
    letters: Vec<Stored>,
    /// The next and the first page of dead letters.
    next: Option<String>,
    first: Option<String>,
    /// The next messages.
    messages: Vec<Taken>,
    search: &'a str,
    may_use: bool,
    /// What the form changes.
    fields: Vec<DefinitionField>,
    /// Whether the caller may see all tenants.
    whole: bool,
    now_ms: u64,
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

/// The beginning of a stored message.
fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(MAX_BODY).collect()
}

pub(super) async fn list(Visit { app, caller, view, .. }: Visit<'_>) -> Result<Content, Problem> {
    let registry = app.bus.handle().registry();
    let names: Vec<&str> = registry.queues.keys().map(String::as_str).collect();
    let numbers = match caller.tenants() {
        None => app.queues.numbers(&names).await?,
        Some(own) => {
            let mut numbers = Vec::with_capacity(names.len());
            for name in &names {
                numbers.push(sum(&app.queues.tenants_named(name, own).await?));
            }
            numbers
        }
    };
    let rows = registry.queues.iter().zip(numbers).map(|((name, definition), numbers)| QueueRow {
        name: name.clone(),
        pattern: definition.pattern.clone(),
        numbers,
    });
    let query = list::query(view, "-waiting");
    let page = LISTING.page(rows.collect(), &query)?;
    let list = List::new(view, &query, &page, "Queue or pattern", &HEADINGS);
    plain(&Page { list, rows: page.items, may_use: caller.has_any(&[Scope::Queues]) })
}

pub(super) async fn queue(visit: Visit<'_>) -> Result<Content, Problem> {
    let Visit { app, caller, view, now_ms, .. } = visit;
    let name = &*view.name;
    let registry = app.bus.handle().registry();
    let definition = registry.queues.get(name).ok_or(Error::NoSuchQueue)?;
    let wanted = view.search.trim().to_lowercase();
    let (mut tenants, mut more, numbers) = match caller.tenants() {
        Some(own) => {
            let tenants = app.queues.tenants_named(name, own).await?;
            let numbers = sum(&tenants);
            (tenants, false, numbers)
        }
        None => {
            let numbers = app.queues.numbers(&[name]).await?.pop().unwrap_or_default();
            let tenants = loudest_tenants(app, name, &wanted).await?;
            let more = wanted.is_empty() && (tenants.len() as u64) < numbers.tenants;
            (tenants, more, numbers)
        }
    };
    tenants.retain(|tenant| contains(&wanted, [&*tenant.tenant]));
    sort(&mut tenants, &view.sort);
    more |= tenants.len() > MAX_ROWS;
    tenants.truncate(MAX_ROWS);
    let whole = caller.tenants().is_none();
    let (mut letters, mut next) = (Vec::new(), None);
    if whole && numbers.dead > 0 {
        let page = app.queues.dead(name, &view.cursor, MAX_DEAD_LETTERS).await?;
        letters = page.items;
        next = page.next.map(|cursor| view.at_cursor(&cursor));
    }
    let waiting = match caller.tenants() {
        None => app.queues.peek(name, None, MAX_WAITING).await?,
        Some(_) => Vec::new(),
    };
    let may_use = caller.has_any(&[Scope::Queues]);
    let headings = TENANT_HEADINGS.len() - usize::from(!may_use);
    let (charting, charts) = charted(visit);
    let page = QueuePage {
        name,
        definition,
        numbers,
        charting,
        tenants,
        more,
        noisy_backlog: app.queues.options().noisy_backlog,
        list: Head::new(view, TENANT_SORT, &TENANT_HEADINGS[..headings]),
        letters,
        next,
        first: (!view.cursor.is_empty()).then(|| link(Kind::Queues, name)),
        messages: waiting,
        search: &view.search,
        may_use,
        fields: definition_fields(definition),
        whole,
        now_ms,
    };
    // The history counts all tenants together.
    with_charts(&page, if whole { charts } else { Vec::new() })
}

/// The deepest tenants and the first by name, or those that a search finds, sorted by name.
async fn loudest_tenants(app: &Site, queue: &str, wanted: &str) -> Result<Vec<TenantStatus>, Problem> {
    if !wanted.is_empty() {
        return Ok(app.queues.tenants_like(queue, wanted, MAX_SORTED, MAX_SEARCHED).await?);
    }
    let mut tenants = app.queues.tenants(queue, "", MAX_SORTED).await?.items;
    if tenants.len() == MAX_SORTED {
        let deepest = app.queues.deepest(queue, MAX_SORTED).await?;
        tenants.extend(deepest);
        tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        tenants.dedup_by(|a, b| a.tenant == b.tenant);
    }
    Ok(tenants)
}

/// The charts of a queue, and their time ranges.
fn charted(Visit { app, view, now_ms, .. }: Visit<'_>) -> (Charting, Vec<Chart>) {
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
        limit("in_flight_limit", "In flight per tenant", definition.in_flight_limit),
        limit("max_waiting", "Waiting at most", definition.max_waiting),
        limit("max_waiting_per_tenant", "Waiting per tenant", definition.max_waiting_per_tenant),
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

/// The numbers of a queue as far as these tenants contribute to them.
fn sum(tenants: &[TenantStatus]) -> QueueNumbers {
    let mut numbers = QueueNumbers::default();
    for tenant in tenants {
        numbers.waiting += tenant.waiting;
        numbers.in_flight += tenant.in_flight;
        numbers.delayed += tenant.delayed;
        numbers.tenants += u64::from(tenant.waiting + tenant.in_flight + tenant.delayed > 0);
    }
    numbers
}

fn age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "–".to_owned(), format::span)
}

/// Sorts by a column of [`TENANT_HEADINGS`], with `-` in descending order. Equal tenants stay in the order of their names.
fn sort(tenants: &mut [TenantStatus], by: &str) {
    let by = if by.is_empty() { TENANT_SORT } else { by };
    let (descending, field) = by.strip_prefix('-').map_or((false, by), |field| (true, field));
    let key = |tenant: &TenantStatus| match field {
        "waiting" => tenant.waiting,
        "in_flight" => tenant.in_flight,
        "delayed" => tenant.delayed,
        "age" => tenant.oldest_age_ms.unwrap_or_default(),
        "dwell" => tenant.dwell_ms.unwrap_or_default(),
        "weight" => u64::from(tenant.weight),
        _ => 0,
    };
    // The tenants arrive in the order of their names, which a stable sort keeps.
    if descending {
        tenants.sort_by_key(|tenant| std::cmp::Reverse(key(tenant)));
    } else {
        tenants.sort_by_key(key);
    }
    if by == "-name" {
        tenants.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::View, *};

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
    fn tenants_are_sorted_by_the_requested_key() {
        let with = |tenant: &str, waiting, oldest_age_ms, dwell_ms| TenantStatus {
            tenant: tenant.to_owned(),
            weight: 1,
            waiting,
            oldest_age_ms,
            dwell_ms,
            ..TenantStatus::default()
        };
        let tenants =
            [with("a", 1, Some(9), None), with("b", 3, None, Some(1)), with("c", 3, Some(5), Some(2))];
        let orders = [("", "bca"), ("waiting", "abc"), ("-age", "acb"), ("-dwell", "cba"), ("name", "abc")];
        for (by, order) in orders.into_iter().chain([("-name", "cba"), ("unknown", "abc")]) {
            let mut tenants = tenants.clone();
            sort(&mut tenants, by);
            let names: String = tenants.iter().map(|tenant| tenant.tenant.as_str()).collect();
            assert_eq!(names, order, "by {by:?}");
        }
    }

    #[test]
    fn an_tenant_with_a_large_backlog_is_marked() {
        let definition = definition();
        let tenant = TenantStatus { tenant: "a/b".to_owned(), waiting: 3, ..TenantStatus::default() };
        let page = |noisy_backlog| {
            let view = View::of(Kind::Queues, "mail");
            let page = QueuePage {
                name: "mail",
                definition: &definition,
                numbers: QueueNumbers::default(),
                charting: Charting::new(&view, Range::named(""), None, String::new()),
                tenants: vec![tenant.clone()],
                more: false,
                noisy_backlog,
                list: Head::new(&view, TENANT_SORT, &TENANT_HEADINGS),
                letters: Vec::new(),
                next: None,
                first: None,
                messages: Vec::new(),
                search: "",
                may_use: true,
                fields: definition_fields(&definition),
                whole: false,
                now_ms: 0,
            };
            page.render().unwrap()
        };
        let (noisy, quiet) = (page(2), page(3));
        assert!(noisy.contains(">noisy<") && !quiet.contains(">noisy<"), "{noisy}");
        assert!(quiet.contains("/queues/mail/tenants/a%2Fb"), "{quiet}");
    }
}
