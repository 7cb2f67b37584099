//! The topics, clients and queues that a call names once, and their positions in it.

use std::{collections::HashMap, sync::Arc};

use super::{Item, Part};
use crate::{
    store::{FanOut, InQueue},
    view::View,
};

/// The positions of topics, clients and queues within a call.
pub(super) struct Places<'a> {
    /// By name, and by tenant if the subscribers depend on it.
    topics: HashMap<(&'a str, Option<&'a str>), usize>,
    clients: HashMap<&'a str, usize>,
    /// By their positions in the view.
    queues: HashMap<usize, usize>,
}

impl Places<'_> {
    pub(super) fn topic(&self, view: &View, part: &Part) -> Option<usize> {
        let topic = part.topic()?;
        self.topics.get(&(&**topic, part.divided_by(view))).copied()
    }

    pub(super) fn client(&self, item: &Item) -> usize {
        self.clients.get(&*item.client).copied().unwrap_or_default()
    }

    /// The queues that take an event, each with what is set for the event's tenant.
    pub(super) fn queues(&self, view: &View, part: &Part) -> Vec<InQueue> {
        let found = view.queues_for(&part.channel);
        let place = |known: &usize| {
            let definition = &view.queues.at(*known)?.definition;
            let (weight, rules) = (definition.weight(&part.tenant), definition.rules(&part.tenant));
            Some(InQueue { place: *self.queues.get(known)?, weight, rules })
        };
        found.iter().filter_map(place).collect()
    }
}

/// Lists what a call names once.
pub(super) fn fan_out<'a>(view: &View, items: &'a [Item]) -> (FanOut, Places<'a>) {
    let (mut topics, mut clients, mut queues) = (Vec::new(), Vec::new(), Vec::new());
    let (mut topic_places, mut client_places, mut places) = (HashMap::new(), HashMap::new(), HashMap::new());
    for item in items {
        for part in &item.parts {
            if let Some(topic) = part.topic() {
                let tenant = part.divided_by(view);
                topic_places.entry((&**topic, tenant)).or_insert_with(|| {
                    topics.push((Arc::clone(topic), tenant));
                    topics.len() - 1
                });
            }
            for known in view.queues_for(&part.channel).iter() {
                if let Some(queue) = view.queues.at(*known) {
                    places.entry(*known).or_insert_with(|| {
                        queues.push((Arc::clone(&queue.name), queue.definition.publish_limits()));
                        queues.len() - 1
                    });
                }
            }
        }
        client_places.entry(&*item.client).or_insert_with(|| {
            clients.push(Arc::clone(&item.client));
            clients.len() - 1
        });
    }
    let fan_out = FanOut { queues, ..view.fan_out(&topics, clients) };
    (fan_out, Places { topics: topic_places, clients: client_places, queues: places })
}
