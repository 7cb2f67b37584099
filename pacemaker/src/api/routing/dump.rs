//! The whole table, as JSON or text.
//!
//! It may hold a million hosts, so only their names are collected (to have an order); their content is read and sent
//! piece by piece. The serial before and after shows whether the table changed in the meantime.

use std::collections::BTreeSet;

use axum::{
    body::Body,
    extract::State as AppState,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::json;

use super::hosts::policy_value;
use crate::http::{
    App, Problem,
    auth::{Granted, ReadRoutes},
    body::Query,
};
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, TableHost};
use signalbox_routing::{Error, Store};

const CHUNK: usize = 500;
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
/// Read from the routes primary, including entries written directly, ordered by name. A token confined to hosts gets
/// only those.
#[utoipa::path(get, path = "/routes/dump", tag = "routes", params(DumpQuery), responses(
    (status = 200, content((Object = "application/json"), (String = "text/plain"))),
    (status = 503, description = "routes_unavailable", body = Problem)))]
pub(super) async fn dump(
    caller: Granted<ReadRoutes>,
    AppState(app): AppState<App>,
    Query(query): Query<DumpQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let format = query.format.unwrap_or_else(|| preferred(&headers));
    let store = app.registry.store().clone();
    let (lineage, serial, _) = store.table_head().await?;
    let names = names(&store, &caller.0).await?;
    let writer = Writer { store, format, names: names.into_iter(), serial, epoch: lineage, part: Part::Head };
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

/// Every name of the table that the caller may see.
async fn names(store: &Store, caller: &Caller) -> Result<BTreeSet<String>, Error> {
    let mut names = BTreeSet::new();
    for prefix in PREFIXES {
        let mut cursor = 0;
        loop {
            let (next, keys) = store.scan(cursor, &format!("{prefix}*")).await?;
            let found = keys.iter().filter_map(|key| key.strip_prefix(prefix));
            let visible = |name: &&str| {
                caller.is_unconfined() || Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name))
            };
            names.extend(found.filter(visible).map(str::to_owned));
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
    names: std::collections::btree_set::IntoIter<String>,
    serial: u64,
    epoch: String,
    part: Part,
}

impl Writer {
    fn stream(self) -> impl Stream<Item = Result<String, Error>> {
        stream::try_unfold(
            self,
            |mut writer| async move { Ok(writer.next().await?.map(|piece| (piece, writer))) },
        )
    }

    /// The next piece. An error breaks the answer off, so that an incomplete table is recognized as such.
    async fn next(&mut self) -> Result<Option<String>, Error> {
        match self.part {
            Part::Head => {
                self.part = Part::Hosts { first: true };
                Ok(Some(head(self.format, self.serial, &self.epoch)))
            }
            Part::Hosts { first } => {
                let names: Vec<String> = self.names.by_ref().take(CHUNK).collect();
                if names.is_empty() {
                    self.part = Part::Done;
                    let (_, serial, _) = self.store.table_head().await?;
                    return Ok(Some(tail(self.format, self.serial, serial)));
                }
                let hosts = self.store.table_hosts(&names).await?;
                let mut piece = String::new();
                let mut separated = !first;
                // A name whose keys went between the walk and now is left out.
                for (name, host) in names.iter().zip(hosts).filter(|(_, host)| host.exists()) {
                    if self.format == Format::Json && separated {
                        piece.push(',');
                    }
                    separated = true;
                    piece.push_str(&line(self.format, name, host));
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

fn line(format: Format, name: &str, host: TableHost) -> String {
    match format {
        Format::Json => {
            let TableHost { addresses, instance_ids, log_key, policy } = host;
            json!({
                "hostname": name,
                "instances": addresses,
                "instance_ids": instance_ids,
                "log_key": log_key,
                "policy": policy.map(policy_value),
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
