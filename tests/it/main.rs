//! One integration binary, a module per capability.

#![allow(clippy::print_stdout, reason = "the output of a test is shown when it fails")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot continue has failed, and the panic shows where"
)]

mod access;
mod acme;
mod admin;
mod architecture;
mod attacks;
mod backup_upgrade;
mod bad_input;
mod balancing;
mod book;
mod bus_api;
mod bus_clients;
mod bus_delivery;
mod bus_faults;
mod bus_order;
mod certificates;
mod changes;
mod chaos;
mod clients;
mod command;
mod configuration;
mod dashboard;
mod deploys;
mod discovery;
mod documents;
mod failover;
mod fuzz;
mod guards;
mod harness;
mod host_states;
mod isolation;
mod keys;
mod lists;
mod live;
mod lookup;
mod loudest;
mod machines;
mod machines_flaky;
mod machines_kills;
mod machines_limits;
mod neighbors;
mod openapi;
mod operator_errors;
mod own_events;
mod pacemakers;
mod packaging;
mod pages;
mod paths;
mod policies;
mod problems;
mod protocols;
mod proxying;
mod queue_kills;
mod queues;
mod registration;
mod rolling_deploys;
mod run;
mod script_sharing;
mod sentinels;
mod sequencer;
mod shards;
mod source_rules;
mod statistics;
mod stored_data;
mod streaming;
mod supply_chain;
mod terminal;
mod test_suite;
mod traces;
mod up;
mod wording;
