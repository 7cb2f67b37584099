//! Objects, backends and the check over HTTP.

mod backends;
pub mod objects;
mod params;

use utoipa_axum::router::OpenApiRouter;

use crate::http::App;
use signalbox_sequencer::{Calls, Handle};

/// The state shared by the handlers of this module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Front {
    /// The sequencer.
    pub handle: Handle,
    counted: Calls,
}

impl Front {
    /// A sequencer with the metrics of its calls.
    pub fn new(handle: Handle, counted: Calls) -> Self {
        Self { handle, counted }
    }

    /// All metrics of the sequencer.
    pub(crate) async fn metrics_text(&self) -> Result<String, std::fmt::Error> {
        let numbers = self.handle.numbers().await;
        let numbers = numbers
            .inspect_err(|error| tracing::debug!(%error, "the numbers of the sequencer cannot be read now"));
        self.counted.encode(numbers.ok().as_ref())
    }
}

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().merge(objects::routes()).merge(backends::routes())
}
