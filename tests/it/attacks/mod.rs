//! Attacks from outside, through real daemons. Each test tries to break a rule of the threat model (docs/security.md) and
//! passes when it cannot.

mod confinement_data;
mod confinement_shares;
mod confinement_time;
mod host_name;
mod own_addresses;
