//! The event bus over HTTP, compatible with clients written for Routemaster.
//!
//! Statuses and bodies of Routemaster's routes are unchanged; additions (an ID, the reason of a 400) are in headers
//! and problem documents, which its clients ignore. Paths that exist in two spellings behave the same.

mod api_tokens;
mod deliveries;
mod front;
mod messages;
mod problems;
mod pulse;
mod subscriber;
mod subscriptions;
pub mod topics;

use axum::routing::{delete, get, post};
use utoipa_axum::router::OpenApiRouter;

pub use front::Front;
pub use subscriptions::visible_callback;

use crate::http::App;

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(api_tokens::routes())
        .merge(deliveries::routes())
        .merge(messages::routes())
        .merge(pulse::routes())
        .merge(subscriber::routes())
        .merge(subscriptions::routes())
        .merge(topics::routes())
        .merge(other_spellings())
}

/// Alternative spellings of paths, as in Routemaster; the OpenAPI document lists them as copies.
pub(crate) const OTHER_SPELLINGS: [(&str, &str); 4] = [
    ("/subscription", "/subscriber"),
    ("/subscriber/topics/{topic}", "/subscription/topics/{topic}"),
    ("/subscriptions", "/subscribers"),
    ("/health/ping", "/health/ping.json"),
];

/// Serves the routes of one path under its other spelling as well ([`OTHER_SPELLINGS`]).
fn other_spellings() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .route(
            "/subscriber",
            post(subscriptions::subscribe)
                .put(subscriptions::subscribe)
                .patch(deliveries::alter)
                .delete(subscriptions::unsubscribe),
        )
        .route("/subscription/topics/{topic}", delete(subscriptions::unsubscribe_topic))
        .route("/subscribers", get(subscriptions::list))
        .route("/health/ping.json", get(pulse::ping))
}
