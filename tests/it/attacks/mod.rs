//! Attacks from outside, through real daemons. Each test tries to break a rule of the threat model (docs/security.md) and
//! passes when it cannot.

mod host_name;
mod machine_actions;
mod machine_tokens;
mod own_addresses;
mod reserved_addresses;
