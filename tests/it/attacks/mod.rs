//! Attacks from outside, through real daemons. Each test tries to break a rule of the threat model (docs/security.md) and
//! passes when it cannot.

mod audit_log;
mod confinement_data;
mod confinement_lists;
mod confinement_shares;
mod confinement_time;
mod edge_admin;
mod edge_answers;
mod edge_exhaustion;
mod edge_grpc;
mod edge_headers;
mod edge_instances;
mod edge_loops;
mod edge_paths;
mod host_name;
mod machine_actions;
mod machine_tokens;
mod own_addresses;
mod raw;
mod redis_credentials;
mod reserved_addresses;
mod session_theft;
mod stored_secrets;
