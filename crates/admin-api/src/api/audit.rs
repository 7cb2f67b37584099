//! `GET /audit`.

use axum::{Json as Answer, extract::State};
use serde::Deserialize;
use signalbox_access::{Cursor, Direction, Scope};
use signalbox_api::audit::{Kind, Page, Record};
use signalbox_store::PAGE_BYTES;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::http::{
    App, Problem,
    auth::{Permission, Whole},
    body::Query,
};

/// Records of a page, unless the request has a limit.
const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;
/// Records that are read at a time from each part of the log: they have up to 33 KB, so a call of the fabric returns less than a megabyte.
const CHUNK: usize = 25;
/// How often one request reads while few records match, and how many bytes.
const MAX_CHUNKS: usize = 400;
const MAX_EXAMINED_BYTES: usize = 4 * PAGE_BYTES;
/// How often the newest changes are searched for.
const MAX_RECENT_CHUNKS: usize = 20;

/// Read the audit log.
#[derive(Debug)]
pub(crate) enum ReadAudit {}
impl Permission for ReadAudit {
    const ANY_OF: &'static [Scope] = &[Scope::Audit];
}

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Which records are wanted.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Asked {
    /// Only records of this kind: `change`, `login`, `logout` or `refused`.
    #[param(value_type = Option<String>)]
    kind: Option<Kind>,
    /// Only records of this token or person.
    who: Option<String>,
    /// Only records whose path begins so.
    target: Option<String>,
    /// The `next` of the part before: records before that, newest first.
    before: Option<String>,
    /// The `newest` of a part: records after that, oldest first.
    after: Option<String>,
    /// The maximum number of records, 1 to 1,000; 100 if absent. A page of large records may have fewer and still a `next`.
    limit: Option<usize>,
}

impl Asked {
    fn wants(&self, record: &Record) -> bool {
        let is = |wanted: &Option<String>, values: [Option<&str>; 2]| {
            wanted.as_deref().is_none_or(|wanted| values.contains(&Some(wanted)))
        };
        self.kind.is_none_or(|kind| kind == record.kind)
            && is(&self.who, [record.who.as_deref(), record.person.as_deref()])
            && self.target.as_deref().is_none_or(|target| record.target.starts_with(target))
    }
}

/// Read the audit log
///
/// Changes with their callers, log-ins, and rejected calls. A page can be empty although older pages have records that match. A page
/// ends before its limit when it has about 4 MiB; continue with `next`, or after a request with `after`, with `newest`.
#[utoipa::path(get, path = "/audit", params(Asked), responses((status = 200, body = Page),
    (status = "default", description = "422 invalid_cursor, out_of_range")))]
async fn list(
    _: Whole<ReadAudit>,
    State(app): State<App>,
    Query(asked): Query<Asked>,
) -> Result<Answer<Page>, Problem> {
    read(&app, &asked).await.map(Answer)
}

/// Records for the dashboard, newest first: of a kind, of a token or person, with the beginning of a path, and before a cursor. An
/// empty text matches everything.
pub async fn matching(
    app: &App,
    [kind, who, target, before]: [&String; 4],
    limit: usize,
) -> Result<Page, Problem> {
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let kind = Kind::from_word(kind);
    let (who, target, before) = (given(who), given(target), given(before));
    read(app, &Asked { kind, who, target, before, after: None, limit: Some(limit) }).await
}

/// The newest changes of instances and hosts, newest first.
pub async fn route_changes(app: &App, limit: usize) -> Result<Vec<Record>, Problem> {
    let is_change = |record: &Record| {
        record.kind == Kind::Change
            && (record.route.starts_with("/instances") || record.route.starts_with("/hosts"))
    };
    let (mut found, mut cursor, mut bytes) = (Vec::new(), None, PAGE_BYTES);
    for _ in 0..MAX_RECENT_CHUNKS {
        let part = app.audit.log().page(Direction::Older, cursor, CHUNK).await?;
        cursor = part.records.last().map(|(cursor, _)| *cursor);
        let records = part.records.iter().filter_map(|(_, text)| serde_json::from_str::<Record>(text).ok());
        found.extend(records.filter(is_change).take(limit - found.len()));
        bytes = bytes.saturating_sub(part.records.iter().map(|(_, text)| text.len()).sum());
        if found.len() == limit || !part.more || bytes == 0 {
            break;
        }
    }
    Ok(found)
}

async fn read(app: &App, asked: &Asked) -> Result<Page, Problem> {
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Problem::unprocessable(
            "out_of_range",
            format!("`limit` must be between 1 and {MAX_PAGE}"),
        ));
    }
    let parse = |text: &String| {
        let detail = "`before` and `after` must be `next` and `newest` of an earlier answer";
        Cursor::parse(text).ok_or_else(|| Problem::unprocessable("invalid_cursor", detail))
    };
    let (direction, mut cursor) = match (&asked.before, &asked.after) {
        (Some(_), Some(_)) => {
            return Err(Problem::unprocessable("invalid_cursor", "`before` and `after` cannot be combined"));
        }
        (None, Some(after)) => (Direction::Newer, Some(parse(after)?)),
        (before, None) => (Direction::Older, before.as_ref().map(parse).transpose()?),
    };
    let mut records = Vec::new();
    let mut newest = None;
    let mut more = true;
    let (mut bytes, mut examined_bytes) = (PAGE_BYTES, MAX_EXAMINED_BYTES);
    for _ in 0..MAX_CHUNKS {
        if !more || records.len() >= limit || bytes == 0 || examined_bytes == 0 {
            break;
        }
        let part = app.audit.log().page(direction, cursor, CHUNK).await?;
        newest.get_or_insert(part.newest);
        more = part.more;
        for (place, (after, text)) in part.records.iter().enumerate() {
            cursor = Some(*after);
            examined_bytes = examined_bytes.saturating_sub(text.len());
            // A record of another version that cannot be read must not hide the others.
            match serde_json::from_str(text) {
                Ok(record) if asked.wants(&record) => {
                    bytes = bytes.saturating_sub(text.len());
                    records.push(record);
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a record of the audit log cannot be read"),
            }
            if records.len() >= limit || bytes == 0 {
                more |= place + 1 < part.records.len();
                break;
            }
        }
    }
    let (next, newest) = match direction {
        Direction::Older => (cursor.filter(|_| more), newest),
        Direction::Newer => (None, cursor),
    };
    let newest = newest.unwrap_or_default().to_string();
    Ok(Page { records, next: next.map(|next| next.to_string()), newest })
}
