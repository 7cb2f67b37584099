//! The HTTP API: a module for each subsystem. Handlers read a request, call the subsystem, and write the response;
//! they decide nothing else.

pub(crate) mod acme;
pub(crate) mod audit;
pub(crate) mod bus;
pub(crate) mod certificates;
pub(crate) mod check;
pub(crate) mod health;
pub(crate) mod machines;
pub(crate) mod presence;
pub(crate) mod queues;
pub(crate) mod routing;
pub(crate) mod sequencer;
pub(crate) mod stream;
pub(crate) mod tokens;
