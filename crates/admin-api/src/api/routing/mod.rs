//! The route table over HTTP.

mod changes;
mod directory;
mod dump;
mod errors;
mod hosts;
mod instances;
mod params;
mod policies;
mod table;
mod view;
mod wait;

use utoipa_axum::router::OpenApiRouter;

pub(crate) use changes::WaitQuery;
pub use directory::{Directory, HostSummary};
pub use dump::TableNames;
pub(crate) use errors::check_host;
pub(crate) use hosts::PageQuery;
pub use hosts::{all as all_hosts, visible_policy};
pub use table::{line, visible_explanation};
pub(crate) use wait::{Removed, wait};

use crate::http::App;

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(instances::routes())
        .merge(changes::routes())
        .merge(hosts::routes())
        .merge(policies::routes())
        .merge(table::routes())
}
