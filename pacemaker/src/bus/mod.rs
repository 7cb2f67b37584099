//! The event bus: topics, subscribers, batches and jobs.

pub mod deliver;
mod error;
mod event;
mod handle;
mod options;
mod registry;
pub mod verdict;

pub use deliver::{BatchContents, Deliverer, Outcome};
pub use error::{Error, Refusal};
pub use event::{Event, EventId, Gap, ID_EPOCH_MS, IDS_PER_MS, Kind, NewEvent};
pub use handle::{DeadLetter, Gauges, Handle, Page, SubscriberGauges, SubscriptionStatus, TopicStatus};
pub use options::Options;
pub use registry::{ApiToken, OnExhausted, Registry, Secret, Subscription, Wanted};
