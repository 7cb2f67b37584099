//! The dashboard: pages for a person with a browser, at `/` and below `/dashboard/`.
//!
//! ```text
//!  GET /dashboard/queues ──▶ page.rs ── pages/queues.rs ── the subsystems' handles ──▶ HTML, whole
//!  GET /dashboard/stream?page=queues ──▶ stream.rs ── the same, once a second ──▶ its inner part, when it changed
//!  a button ──▶ the API itself (POST /queues/…/dead/redrive), with the session's cookie and CSRF header
//! ```
//!
//! **Pages** are made on the server, one file for each below `pages/`, from the subsystems' handles: nothing here asks the
//! API over HTTP. The browser puts what the stream sends in the place of what it has, element by element, so that
//! what is typed or opened there stays. **Actions** are requests to the API: what a button may do is what its token's
//! scopes allow there, and there is no second way to change anything.
//!
//! **Graphs** are laid out here as well (`graph/`, which is pure): a machine's states come as SVG, and its counts change in
//! place like everything else.
//!
//! **Nobody looks, nothing is read.** All data is read by a page that is asked for or by an open stream, which ends with
//! its connection; the browser closes it while its window is hidden.
//!
//! **A browser gets nothing from elsewhere.** The content security policy lets only our own files through, and no script
//! or style inside a page. Everything shown is escaped by the templates; there is no way around it but the layout, which
//! puts a finished page into its frame.
//!
//! **Failure.** What cannot be read is said in the place where it would stand, and the rest of the page is there.
//! Lists end after [`SHOWN`] rows; who has more uses the API.

mod assets;
mod graph;
mod login;
mod page;
mod pages;
mod store;
mod stream;
mod words;

use std::{ops::Deref, sync::Arc, time::SystemTime};

use axum::routing::{get, post};
use signalbox_store::Stats;
use tokio::sync::Semaphore;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;
use pages::{Diagrams, Later};
use store::Traffic;

/// Rows of a list.
const SHOWN: usize = 200;
/// Streams of one pacemaker.
const SEATS: usize = 100;

/// What the pages work with besides the subsystems. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Dashboard {
    traffic: Traffic,
    diagrams: Diagrams,
    later: Later,
    seats: Arc<Semaphore>,
    now: fn() -> SystemTime,
}

impl Dashboard {
    pub(crate) fn new(stats: Stats, now: fn() -> SystemTime) -> Self {
        Self {
            traffic: Traffic::new(stats),
            diagrams: Diagrams::default(),
            later: Later::default(),
            seats: Arc::new(Semaphore::new(SEATS)),
            now,
        }
    }

    fn now_ms(&self) -> u64 {
        let since = (self.now)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// What handlers of pages work with: the API's handles, and the dashboard's own state.
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

/// The routes of the dashboard. Only the first is part of the API's description: the others are for browsers alone.
pub(crate) fn routes() -> OpenApiRouter<Site> {
    OpenApiRouter::new()
        .routes(routes!(page::front))
        .route("/dashboard/login", get(login::form).post(login::log_in))
        .route("/dashboard/logout", post(login::log_out))
        .route("/dashboard/assets/{name}", get(assets::asset))
        .route("/dashboard/stream", get(stream::stream))
        .route("/dashboard/{page}", get(page::page))
}
