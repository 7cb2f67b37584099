//! What goes wrong later: servers that forget or throw away, and certificates that end. None of it changes by the second.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::findings::{self, Finding};
use crate::dashboard::Site;
use signalbox_access::Caller;
use signalbox_route_table::Hostname;
use signalbox_routing::Error;

/// How long what was found is good for.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// Certificates that are read at a time, and in all.
const PAGE: usize = 500;
const MOST: usize = 10_000;

/// A finding, and the host that it is about.
type About = (Option<Hostname>, Finding);
/// When they were found, and what.
type Found = Option<(Instant, Vec<About>)>;

/// What was found a moment ago. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Later(Arc<Mutex<Found>>);

impl Later {
    /// What concerns the caller.
    pub(super) async fn findings(&self, app: &Site, caller: &Caller) -> Vec<Finding> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = match known.filter(|(at, _)| at.elapsed() < GOOD_FOR) {
            Some((_, known)) => known,
            None => {
                let mut found = servers(app).await;
                // A fabric that is away is told elsewhere.
                found.extend(certificates(app).await.unwrap_or_default());
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((Instant::now(), found.clone()));
                found
            }
        };
        let own = |host: &Option<Hostname>| host.as_ref().is_none_or(|host| caller.may_touch(host));
        all.into_iter().filter(|(host, _)| own(host)).map(|(_, finding)| finding).collect()
    }
}

async fn servers(app: &Site) -> Vec<About> {
    let told = app.registry.store().info().await;
    let told = told.into_iter().filter_map(|(role, info)| Some((role, info?)));
    told.flat_map(|(role, info)| findings::of_settings(role, &info)).map(|found| (None, found)).collect()
}

async fn certificates(app: &Site) -> Result<Vec<About>, Error> {
    let store = app.registry.store();
    let now = app.dashboard.now_ms() / 1000;
    let (mut found, mut after, mut read) = (Vec::new(), None::<String>, 0);
    while read < MOST {
        let names = store.certificates_after(after.as_deref(), PAGE).await?;
        let Some(last) = names.last().cloned() else { break };
        read += names.len();
        let certificates = store.certificates(&names).await?;
        for (name, certified) in names.iter().zip(certificates) {
            let (Some(certified), Ok(host)) = (certified, Hostname::parse(name)) else { continue };
            let finding = findings::of_certificate(name, certified.value.ends, now);
            found.extend(finding.map(|finding| (Some(host), finding)));
        }
        after = Some(last);
    }
    Ok(found)
}
