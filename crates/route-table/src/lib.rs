//! The values of the route table and the decisions over them: host names, instance specs, policies, addresses, which
//! instance a request gets, and why. Pure: nothing here does I/O or asks a clock.

mod address;
pub mod choice;
mod entry;
pub mod explain;
pub mod health;
mod hostname;
pub mod instance;
mod invalid;
pub mod lookup;
mod network;
pub mod page;
pub mod policy;

pub use address::{Address, AddressRules};
pub use entry::{Owner, TableHost};
pub use explain::{Answer, Explanation, Question};
pub use health::Health;
pub use hostname::Hostname;
pub use instance::{Desired, InstanceId, Label, NewInstance, Record, Spec, State};
pub use invalid::Invalid;
pub use network::{Network, Reserved};
pub use policy::Policy;
