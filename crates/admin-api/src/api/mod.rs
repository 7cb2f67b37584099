//! The handlers: a module for each subsystem. They read a request, call the subsystem, and write the response; they decide
//! nothing else. The dashboard uses the public functions, so that its pages show what the API shows.

mod acme;
pub mod audit;
pub mod bus;
mod certificates;
pub mod check;
mod health;
pub mod machines;
mod presence;
mod queues;
pub mod routing;
pub mod sequencer;
mod stream;
pub mod tokens;

use utoipa_axum::router::OpenApiRouter;

use crate::{app::App, openapi};

/// All routes of the API with their descriptions.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::head())
        .merge(health::routes())
        .merge(audit::routes())
        .merge(check::routes())
        .merge(presence::routes())
        .merge(tokens::routes())
        .merge(routing::routes())
        .merge(certificates::routes())
        .merge(acme::routes())
        .merge(bus::routes())
        .merge(sequencer::routes())
        .merge(stream::routes())
        .merge(queues::routes())
        .merge(machines::routes())
}
