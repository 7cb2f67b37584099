//! Topics: who publishes to them, and who receives their events.

use askama::Template;

use super::{
    Content, Kind, Visit, found, link,
    list::{self, Heading, List},
    plain,
};
use crate::{
    api::bus::topics,
    http::{
        Problem,
        list::{Field, Listing, SortKey},
    },
};
use signalbox_api::events::Topic;

const HEADINGS: [Heading; 4] = [
    ("topic", "name", false),
    ("published by", "publisher", false),
    ("total events", "events", true),
    ("subscribers", "subscribers", true),
];

#[derive(Debug, Template)]
#[template(path = "dashboard/topics.html")]
struct Page {
    list: List,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    topic: Topic,
    subscribers: usize,
}

impl Row {
    fn publisher(&self) -> &str {
        self.topic.publisher.as_deref().unwrap_or_default()
    }
}

const FIELDS: [Field<Row>; 4] = [
    ("name", |row| SortKey::from(&*row.topic.name)),
    ("publisher", |row| SortKey::from(row.publisher())),
    ("events", |row| SortKey::from(row.topic.events)),
    ("subscribers", |row| SortKey::from(row.subscribers as u64)),
];

pub(super) async fn content(Visit { app, view, .. }: Visit<'_>) -> Result<Content, Problem> {
    let registry = app.bus.handle().registry();
    let row = |topic: Topic| Row {
        subscribers: registry.subscriptions.values().filter(|one| one.topics.contains(&topic.name)).count(),
        topic,
    };
    let rows = topics::all(app).await?.into_iter().map(row).collect();
    let listing =
        Listing { name: |row: &Row| &row.topic.name, texts: |row| vec![row.publisher()], fields: &FIELDS };
    let query = list::query(view, "name");
    let page = listing.page(rows, &query)?;
    let list = List::new(view, &query, &page, "Topic or publisher", &HEADINGS);
    plain(&Page { list, rows: page.items })
}
