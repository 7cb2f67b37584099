//! Attacks from outside, through real daemons. Each test tries to break a rule of the threat model (docs/security.md) and
//! passes when it cannot.

mod audit_log;
mod host_name;
mod own_addresses;
mod session_theft;
mod token_guessing;
mod token_life;
