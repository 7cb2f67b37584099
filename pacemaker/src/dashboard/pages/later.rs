//! Facts that change slowly: how the Redis servers are configured, and certificates that end.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use signalbox_diagnosis::{
    Checked,
    certificates::{self, Certificate},
    redis::{Role, State},
};
use tokio::time::Instant;

use crate::dashboard::Site;
use signalbox_route_table::Hostname;
use signalbox_routing::Error;

/// How long facts are kept.
const FRESH_FOR: Duration = Duration::from_secs(10);
/// Certificates that are read at a time, and in all.
const PAGE: usize = 500;
const MAX_CERTIFICATES: usize = 10_000;

/// What was read.
#[derive(Debug)]
pub(super) struct Facts {
    /// The state of each server that answered.
    pub(super) servers: BTreeMap<Role, State>,
    /// Those certificates about which there is a finding.
    pub(super) certificates: Checked<Vec<(Hostname, Certificate)>>,
}

/// When facts were read, and the facts.
type Read = (Instant, Arc<Facts>);

/// Facts that were read a moment ago. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Later(Arc<Mutex<Option<Read>>>);

impl Later {
    pub(super) async fn facts(&self, app: &Site) -> Arc<Facts> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, facts)) = known.filter(|(at, _)| at.elapsed() < FRESH_FOR) {
            return facts;
        }
        let certificates = match certificates(app).await {
            Ok(found) => Checked::Known(found),
            Err(error) => Checked::Skipped(error.to_string()),
        };
        let facts = Arc::new(Facts { servers: servers(app).await, certificates });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Arc::clone(&facts)));
        facts
    }
}

async fn servers(app: &Site) -> BTreeMap<Role, State> {
    let answers = app.registry.store().info().await;
    let state = |(role, info): (&str, Option<String>)| Some((Role::named(role)?, State::from_info(&info?)));
    answers.into_iter().filter_map(state).collect()
}

async fn certificates(app: &Site) -> Result<Vec<(Hostname, Certificate)>, Error> {
    let store = app.registry.store();
    let now = app.dashboard.now_ms() / 1000;
    let (mut found, mut after, mut read) = (Vec::new(), None::<String>, 0);
    while read < MAX_CERTIFICATES {
        let names = store.certificates_after(after.as_deref(), PAGE).await?;
        let Some(last) = names.last().cloned() else { break };
        read += names.len();
        let stored = store.certificates(&names).await?;
        for (name, certified) in names.into_iter().zip(stored) {
            let (Some(certified), Ok(host)) = (certified, Hostname::parse(&name)) else { continue };
            let certificate = Certificate { name, ends: certified.value.ends };
            // Thousands that are valid for months are not kept.
            if certificates::certificate(&certificate, now).is_some() {
                found.push((host, certificate));
            }
        }
        after = Some(last);
    }
    Ok(found)
}
