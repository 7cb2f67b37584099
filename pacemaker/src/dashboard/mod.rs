//! The dashboard: HTML pages at `/` and below `/dashboard/`, and the book at `/docs`.
//!
//! ```text
//!  GET /dashboard/queues ──▶ page.rs ── pages/queues.rs ── the subsystems' handles ──▶ the whole page
//!  GET /dashboard/stream?page=queues ──▶ stream.rs ── the same, every second ──▶ the inner HTML, if it changed
//!  a button ──▶ the API (POST /queues/…/dead/redrive), with the session's cookie and CSRF header
//! ```
//!
//! **Pages** are rendered on the server, one file per page below `pages/`, from the handles of the subsystems: the
//! dashboard sends no HTTP requests to the API. The browser merges each update from the stream element by element, which
//! keeps typed text and open elements. **Actions** are requests from the browser to the API, so the scopes of the
//! caller's token apply, and there is no second way to change anything.
//!
//! **Graphs** are laid out by `graph/`, which is pure. The states of a machine are an SVG element, whose counts are
//! updated like all other content.
//!
//! **Cost.** Data is read only for a requested page or an open stream, except the numbers of queues, whose recent values are
//! kept for charts (`queue_history.rs`). A stream ends with its connection, and the browser
//! closes it while the window is hidden.
//!
//! **Security.** The content security policy allows only the dashboard's own files, and no inline scripts or styles. The
//! templates escape all values. The only exception is the frame, which inserts a page that is already rendered.
//!
//! **Failure.** A section whose data cannot be read shows that in place; the rest of the page is rendered. Every page is
//! answered within two seconds, also if a Redis server hangs. An open page shows how old its data is.
//!
//! **Lists** (`pages/list.rs`) have a search, an order and pages, with the same code as the lists of the API.

mod assets;
mod book;
mod checkup;
mod facts;
mod format;
mod graph;
mod login;
mod page;
mod pages;
mod queue_history;
mod slow_facts;
mod store;
mod stream;

use std::{ops::Deref, sync::Arc, time::SystemTime};

use axum::{
    Router,
    response::Redirect,
    routing::{get, post},
};
use signalbox_store::Stats;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{App, http::slots::Slots};
use checkup::Checkups;
use pages::Diagrams;
use queue_history::QueueHistory;
use signalbox_api::audit::Record;
use slow_facts::SlowFacts;
use store::{Cache, Traffic};

/// Maximum rows of a table that is a part of a page. Lists that are longer have pages of their own.
const MAX_ROWS: usize = 200;
/// Maximum open streams of one pacemaker.
const MAX_STREAMS: usize = 100;
/// Maximum open streams of one token on one pacemaker.
const MAX_STREAMS_PER_TOKEN: usize = 25;

/// The dashboard's own state. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Dashboard {
    traffic: Traffic,
    diagrams: Diagrams,
    slow_facts: Arc<Cache<(), SlowFacts>>,
    checkups: Checkups,
    queue_history: QueueHistory,
    /// One place per open stream.
    streams: Slots,
    now: fn() -> SystemTime,
    /// Changes of routes that charts mark.
    changes: Arc<Cache<(), Vec<Record>>>,
    /// The name of this installation, which every page shows.
    environment: String,
}

impl Dashboard {
    pub(crate) fn new(stats: Stats, now: fn() -> SystemTime, environment: String) -> Self {
        Self {
            traffic: Traffic::new(stats),
            diagrams: Diagrams::default(),
            slow_facts: Arc::default(),
            checkups: Checkups::default(),
            queue_history: QueueHistory::default(),
            streams: Slots::new("open dashboard pages", MAX_STREAMS, MAX_STREAMS_PER_TOKEN),
            now,
            changes: Arc::default(),
            environment,
        }
    }

    /// Reads the numbers of queues for charts until `idle` is canceled.
    pub(crate) async fn remember_queues(
        self,
        bus: signalbox_bus::Handle,
        queues: signalbox_queues::Handle,
        idle: CancellationToken,
    ) {
        self.queue_history.run(bus, queues, self.now, idle).await;
    }

    fn now_ms(&self) -> u64 {
        let since = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The state of the page handlers: the API's handles and the dashboard's own state.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    app: App,
    dashboard: Dashboard,
}

impl Site {
    pub(crate) fn new(app: App, dashboard: Dashboard) -> Self {
        Self { app, dashboard }
    }
}

impl Deref for Site {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

/// The API and the dashboard.
pub(crate) fn router(site: Site) -> Router {
    let app = App::clone(&site);
    let (pages, description) = routes().split_for_parts();
    signalbox_admin_api::router(app, pages.with_state(site), description)
}

/// The part of the OpenAPI document that describes pages.
pub(crate) fn described() -> OpenApi {
    routes().split_for_parts().1
}

/// The routes of the dashboard. The API description includes only the first one; the others are for browsers.
fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new()
        .routes(routes!(page::front))
        .route("/dashboard/login", get(login::form).post(login::log_in))
        .route("/dashboard/logout", post(login::log_out))
        .route("/dashboard/assets/{name}", get(assets::asset))
        .route("/dashboard/stream", get(stream::stream))
        .route("/dashboard/{page}", get(page::page))
        .route("/docs", get(book::front))
        .route("/docs/", get(|| async { Redirect::permanent("/docs") }))
        .route("/docs/{*page}", get(book::page))
}
