//! The values of the route table and the decisions over them: host names, instance specs, policies, addresses, which
//! instance a request gets, and why. The crate is pure: it performs no I/O and reads no clock.

mod address;
mod choice;
mod entry;
mod explain;
mod health;
mod hostname;
mod instance;
mod invalid;
mod lookup;
mod network;
mod own;
pub mod page;
mod policy;
mod request_path;

pub use address::{Address, AddressRules};
pub use choice::Asked;
pub use entry::{Owner, TableHost};
pub use explain::{Leads, Question, explain, leads_to};
pub use health::takes;
pub use hostname::Hostname;
pub use instance::{Desired, InstanceId, Label, Record, Spec};
pub use invalid::Invalid;
pub use lookup::{candidates, host_of};
pub use network::{Network, UnixFolder};
pub use own::{OwnAddresses, Reserved};
pub use policy::{Line, PathRule, Pause, Policy, Share, Tls};
pub use request_path::RequestPath;
pub use signalbox_api::routes::{Answer, Explanation, Health, NewInstance, State};
