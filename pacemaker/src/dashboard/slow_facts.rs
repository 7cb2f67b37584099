//! Facts that change slowly: the configuration of the Redis servers, and the expiry of certificates. They are read at most
//! every ten seconds, because reading them on each refresh of each page would be expensive.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use signalbox_diagnosis::{
    Checked,
    certificates::{self, Certificate},
    redis::{Role, State},
};

use super::Site;
use signalbox_route_table::Hostname;
use signalbox_routing::Error;

/// How long a reading is reused.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// How long a server may take to respond.
const PATIENCE: Duration = Duration::from_secs(1);
/// Certificates read per request, and in total.
const PAGE_SIZE: usize = 500;
const MAX_CERTIFICATES: usize = 10_000;

/// One reading.
#[derive(Debug)]
pub(super) struct SlowFacts {
    /// The state of each server that responded.
    pub(super) servers: BTreeMap<Role, State>,
    /// The certificates for which there is a finding.
    pub(super) certificates: Checked<Vec<(Hostname, Certificate)>>,
}

impl SlowFacts {
    /// The latest reading, or a new one.
    pub(super) async fn get(app: &Site) -> Arc<Self> {
        let read = async {
            let certificates = match certificates(app).await {
                Ok(found) => Checked::Known(found),
                Err(error) => Checked::Skipped(error.to_string()),
            };
            Ok::<_, Infallible>(Self { servers: servers(app).await, certificates })
        };
        let Ok(facts) = app.dashboard.slow_facts.get((), CACHE_TTL, read).await;
        facts
    }
}

async fn servers(app: &Site) -> BTreeMap<Role, State> {
    let answers = app.registry.store().info(PATIENCE).await;
    let state = |(role, info): (&str, Option<String>)| Some((Role::named(role)?, State::from_info(&info?)));
    answers.into_iter().filter_map(state).collect()
}

async fn certificates(app: &Site) -> Result<Vec<(Hostname, Certificate)>, Error> {
    let store = app.registry.store();
    let now = app.dashboard.now_ms() / 1000;
    let (mut found, mut after, mut read) = (Vec::new(), None::<String>, 0);
    while read < MAX_CERTIFICATES {
        let names = store.certificates_after(after.as_deref(), PAGE_SIZE).await?;
        let Some(last) = names.last().cloned() else { break };
        read += names.len();
        let stored = store.certificates(&names).await?;
        let automatic = automatic(app, names.clone()).await;
        for (name, certified) in names.into_iter().zip(stored) {
            let (Some(certified), Ok(host)) = (certified, Hostname::parse(&name)) else { continue };
            let last_error = automatic.get(&name);
            let certificate = Certificate {
                automatic: last_error.is_some(),
                last_error: last_error.cloned().flatten(),
                name,
                ends: Some(certified.value.ends),
            };
            // Only the few with a finding are stored: a system may have thousands of certificates.
            if !certificates::certificate(&certificate, now).is_empty() {
                found.push((host, certificate));
            }
        }
        after = Some(last);
    }
    found.extend(missing(app).await);
    Ok(found)
}

/// The names with automatic HTTPS, each with the reason why the latest attempt failed.
async fn automatic(app: &Site, names: Vec<String>) -> BTreeMap<String, Option<String>> {
    let known = app.acme.of(names).await.unwrap_or_default();
    known.into_iter().map(|one| (one.server_name, one.last_error)).collect()
}

/// The names whose first certificate could not be obtained.
async fn missing(app: &Site) -> Vec<(Hostname, Certificate)> {
    let (mut found, mut after, mut read) = (Vec::new(), None::<String>, 0);
    while read < MAX_CERTIFICATES {
        let Ok(names) = app.acme.after(after.as_deref(), PAGE_SIZE).await else { break };
        let Some(last) = names.last() else { break };
        read += names.len();
        after = Some(last.server_name.clone());
        for one in names.into_iter().filter(|one| one.not_after.is_none() && one.last_error.is_some()) {
            let Ok(host) = Hostname::parse(&one.server_name) else { continue };
            let (name, last_error) = (one.server_name, one.last_error);
            found.push((host, Certificate { name, ends: None, automatic: true, last_error }));
        }
    }
    found
}
