//! The event bus over HTTP, as clients of the original speak it.
//!
//! Statuses and bodies of the original's routes are the original's; what they did not have (an id, a reason for a 400)
//! stands in headers and problem documents, which its clients ignore. Paths that exist in two spellings do the same.

mod api_tokens;
mod front;
mod messages;
mod problems;
mod pulse;
mod subscriber;
mod subscriptions;
mod topics;

use axum::routing::{delete, get, post};
use utoipa_axum::router::OpenApiRouter;

pub(crate) use front::Front;
pub(crate) use subscriptions::visible_callback;

use crate::http::App;

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(api_tokens::routes())
        .merge(messages::routes())
        .merge(pulse::routes())
        .merge(subscriber::routes())
        .merge(subscriptions::routes())
        .merge(topics::routes())
        .merge(other_spellings())
}

/// Paths that answer as another does, as the original's do; the document has them as copies.
pub(crate) const OTHER_SPELLINGS: [(&str, &str); 3] = [
    ("/subscription", "/subscriber"),
    ("/subscriber/topics/{topic}", "/subscription/topics/{topic}"),
    ("/subscriptions", "/subscribers"),
];

/// What stands under one path answers under the other as well ([`OTHER_SPELLINGS`]).
fn other_spellings() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .route(
            "/subscriber",
            post(subscriptions::subscribe).put(subscriptions::subscribe).delete(subscriptions::unsubscribe),
        )
        .route("/subscription/topics/{topic}", delete(subscriptions::unsubscribe_topic))
        .route("/subscribers", get(subscriptions::list))
}
