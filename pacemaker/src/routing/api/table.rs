use crate::http::App;
use utoipa_axum::router::OpenApiRouter;
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
}
