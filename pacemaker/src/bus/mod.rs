//! The event bus: topics, subscribers, batches and jobs.

mod cache;
mod chance;
mod commit;
mod core;
mod dead;
pub mod deliver;
mod error;
mod event;
mod handle;
mod housekeeping;
mod intake;
pub mod metrics;
mod options;
mod registry;
mod replay;
mod service;
mod store;
#[cfg(test)]
mod tests;
pub mod verdict;
mod view;
mod worker;

pub use deliver::{BatchContents, Deliverer, Outcome};
pub use error::{Error, Refusal};
pub use event::{Event, EventId, Gap, ID_EPOCH_MS, IDS_PER_MS, Kind, NewEvent};
pub use handle::{DeadLetter, Gauges, Handle, Page, SubscriberGauges, SubscriptionStatus, TopicStatus};
pub use options::Options;
pub use registry::{
    ApiToken, OnExhausted, RESERVED, Registry, Secret, Subscription, Wanted, is_reserved_topic, is_topic_name,
};
pub use service::Bus;
