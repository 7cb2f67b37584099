//! The page at `/`.

use utoipa_axum::router::OpenApiRouter;

use crate::http::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
}
