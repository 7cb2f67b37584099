//! The whole table, as JSON or text.
//!
//! It may hold a million hosts, so only their names are collected (to have an order); their content is read and sent
//! piece by piece. The serial before and after shows whether the table changed in the meantime.

use std::{collections::BTreeSet, ops::Bound, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State as AppState,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::hosts::policy_value;
use crate::http::{
    App, Problem,
    auth::{Confined, Hosts, ReadRoutes},
    body::Query,
    slots::Slot,
};
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, TableHost};
use signalbox_routing::{Error, Store, host_pace};
use signalbox_store::Pace;

/// How long the names of the table are reused.
const NAMES_TTL: Duration = Duration::from_secs(1);
/// The keys that make a name exist.
const PREFIXES: [&str; 3] = ["instances:", "logkey:", "policy:"];

/// The format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
    Json,
    Text,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DumpQuery {
    /// `json` or `text`; by default according to `Accept`.
    #[param(inline)]
    format: Option<Format>,
}

/// Dump the whole table
///
/// Read from the routes primary, entries made by hand included, sorted by name. A token that is confined to hosts gets
/// those. Values of request headers in policies, and of the header that ends maintenance, are hidden from tokens without the
/// scope `routes`.
#[utoipa::path(get, path = "/routes/dump", params(DumpQuery),
    responses((status = 200, content((Object = "application/json"), (String = "text/plain")))))]
pub(super) async fn dump(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Query(query): Query<DumpQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let format = query.format.unwrap_or_else(|| preferred(&headers));
    let store = app.registry.store().clone();
    let (lineage, serial, _) = store.table_head().await?;
    let place = app.limits.dumps.take(&caller)?;
    let names = match caller.is_root() {
        true => app.table_names.collect(&store, &lineage, serial).await?,
        false => app.table_names.recent(&store, &lineage, serial).await?,
    };
    let writer = Writer {
        store,
        format,
        names,
        after: None,
        serial,
        epoch: lineage,
        caller: Caller::clone(&caller),
        part: Part::Head,
        pace: host_pace(),
        _place: place,
    };
    let media_type = match format {
        Format::Json => "application/json",
        Format::Text => "text/plain; charset=utf-8",
    };
    Ok(([(header::CONTENT_TYPE, media_type)], Body::from_stream(writer.stream())).into_response())
}

fn preferred(headers: &HeaderMap) -> Format {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let position = |media_type: &str| accept.find(media_type);
    match (position("text/plain"), position("application/json")) {
        (Some(text), Some(json)) if text < json => Format::Text,
        (Some(_), None) => Format::Text,
        _ => Format::Json,
    }
}

/// The names of the table, collected by one request at a time and reused for a second while the table stays the same: the walk
/// over all keys keeps the routes primary from other work. Root always gets the names of the moment.
#[derive(Debug, Default)]
pub struct TableNames(Arc<Mutex<Option<Collected>>>);

/// The names of a table, and which table that is.
#[derive(Debug)]
struct Collected {
    begun_at: Instant,
    at: Instant,
    lineage: String,
    serial: u64,
    names: Names,
}

type Names = Arc<BTreeSet<String>>;

impl TableNames {
    async fn recent(&self, store: &Store, lineage: &str, serial: u64) -> Result<Names, Error> {
        if let Some(last) = &*self.0.lock().await
            && last.at.elapsed() < NAMES_TTL
            && (last.lineage.as_str(), last.serial) == (lineage, serial)
        {
            return Ok(Arc::clone(&last.names));
        }
        self.collect(store, lineage, serial).await
    }

    async fn collect(&self, store: &Store, lineage: &str, serial: u64) -> Result<Names, Error> {
        let asked_at = Instant::now();
        let mut last = self.0.lock().await;
        // Collected by another request while this one waited for its turn.
        if let Some(last) = &*last
            && last.begun_at >= asked_at
            && (last.lineage.as_str(), last.serial) == (lineage, serial)
        {
            return Ok(Arc::clone(&last.names));
        }
        let begun_at = Instant::now();
        let names = Arc::new(names(store).await?);
        let at = Instant::now();
        let lineage = lineage.to_owned();
        *last = Some(Collected { begun_at, at, lineage, serial, names: Arc::clone(&names) });
        // A large table's names are not kept in memory for the next dump, which may never come.
        let cache = Arc::clone(&self.0);
        tokio::spawn(async move {
            sleep(NAMES_TTL).await;
            cache.lock().await.take_if(|last| last.at == at);
        });
        Ok(names)
    }
}

/// Every name that the table has.
async fn names(store: &Store) -> Result<BTreeSet<String>, Error> {
    let mut names = BTreeSet::new();
    for prefix in PREFIXES {
        let mut cursor = 0;
        loop {
            let (next, keys) = store.scan(cursor, &format!("{prefix}*")).await?;
            let found = keys.iter().filter_map(|key| key.strip_prefix(prefix));
            names.extend(found.map(str::to_owned));
            if next == 0 {
                break;
            }
            cursor = next;
        }
    }
    Ok(names)
}

enum Part {
    Head,
    Hosts { first: bool },
    Done,
}

/// Writes the answer piece by piece.
struct Writer {
    store: Store,
    format: Format,
    names: Names,
    /// The last name that was written.
    after: Option<String>,
    serial: u64,
    epoch: String,
    caller: Caller,
    part: Part,
    pace: Pace,
    _place: Slot,
}

impl Writer {
    fn stream(self) -> impl Stream<Item = Result<String, Error>> {
        stream::try_unfold(
            self,
            |mut writer| async move { Ok(writer.next().await?.map(|piece| (piece, writer))) },
        )
    }

    /// The next names that the caller may see.
    fn chunk(&mut self) -> Vec<String> {
        let after = self.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let caller = &self.caller;
        let visible = |name: &&String| {
            caller.is_unconfined() || Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name))
        };
        let rest = self.names.range::<String, _>((after, Bound::Unbounded));
        let names: Vec<String> = rest.filter(visible).take(self.pace.count()).cloned().collect();
        self.after = names.last().cloned().or_else(|| self.after.take());
        names
    }

    /// The next piece. An error cuts the answer off, so that half a table is not taken for a whole one.
    async fn next(&mut self) -> Result<Option<String>, Error> {
        match self.part {
            Part::Head => {
                self.part = Part::Hosts { first: true };
                Ok(Some(head(self.format, self.serial, &self.epoch)))
            }
            Part::Hosts { first } => {
                let names = self.chunk();
                if names.is_empty() {
                    self.part = Part::Done;
                    let (_, serial, _) = self.store.table_head().await?;
                    return Ok(Some(tail(self.format, self.serial, serial)));
                }
                let hosts = self.store.table_hosts_part(&names, &mut self.pace).await?;
                let mut piece = String::new();
                let mut separated = !first;
                // A name whose keys went between the walk and now is left out.
                for (name, host) in names.iter().zip(hosts).filter(|(_, host)| host.exists()) {
                    if self.format == Format::Json && separated {
                        piece.push(',');
                    }
                    separated = true;
                    piece.push_str(&line(self.format, name, host, &self.caller));
                }
                self.part = Part::Hosts { first: !separated };
                Ok(Some(piece))
            }
            Part::Done => Ok(None),
        }
    }
}

fn head(format: Format, serial: u64, epoch: &str) -> String {
    match format {
        Format::Json => format!("{{\"serial\":{serial},\"epoch\":{},\"hosts\":[", json!(epoch)),
        Format::Text => format!("# serial {serial}\n# epoch {epoch}\n"),
    }
}

fn line(format: Format, name: &str, host: TableHost, caller: &Caller) -> String {
    match format {
        Format::Json => {
            let TableHost { addresses, instance_ids, log_key, policy } = host;
            json!({
                "hostname": name,
                "instances": addresses,
                "instance_ids": instance_ids,
                "log_key": log_key,
                "policy": policy.map(|policy| policy_value(policy, caller)),
            })
            .to_string()
        }
        Format::Text => {
            let mut text = format!("{name} log_key={}", host.log_key.as_deref().unwrap_or("-"));
            for (label, values) in [("instances", host.addresses), ("instance_ids", host.instance_ids)] {
                text.push_str(&format!(
                    " {label}={}",
                    if values.is_empty() { "-".to_owned() } else { values.join(",") }
                ));
            }
            if let Some(policy) = host.policy {
                let policy = match policy_value(policy, caller) {
                    Value::String(text) => text,
                    policy => policy.to_string(),
                };
                text.push_str(&format!(" policy={policy}"));
            }
            text.push('\n');
            text
        }
    }
}

fn tail(format: Format, before: u64, after: u64) -> String {
    match format {
        Format::Json => format!("],\"serial_after\":{after},\"changed_meanwhile\":{}}}", before != after),
        Format::Text if before != after => format!("# changed during the dump: serial {after}\n"),
        Format::Text => "# end\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_acceptable_form_wins_and_json_is_the_default() {
        for (accept, format) in [
            ("", Format::Json),
            ("*/*", Format::Json),
            ("text/plain", Format::Text),
            ("text/plain, application/json", Format::Text),
            ("application/json, text/plain", Format::Json),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(preferred(&headers), format, "{accept}");
        }
    }
}
