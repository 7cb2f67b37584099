//! Certificates over HTTP. A private key goes in and never comes out.

use axum::{
    Json as Answer,
    extract::State as AppState,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    api::routing::{PageQuery, Removed, WaitQuery, check_host, wait},
    http::{
        App, Problem,
        audit::Notes,
        auth::{Confined, Hosts, ManageRoutes, ReadRoutes},
        body::{Body, Json, Query},
        list::contains,
        path::Path,
    },
};
use signalbox_api::{
    Time,
    certificates::{Certificate, CertificateList, ChangedCertificate, NewCertificate},
};
use signalbox_certificates::{Certificates, Error, Facts, Found, PageLimits, Put};
use signalbox_route_table::{Hostname, page};
use signalbox_store::PAGE_BYTES;

/// Maximum number of certificates that one request examines for a confined token.
const MAX_EXAMINED: usize = 10_000;
/// The list to which cursors belong.
const LIST: &str = "certificates";

/// The routes of this module.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

impl Body for NewCertificate {}

fn view(
    certificates: &Certificates,
    server_name: String,
    facts: Facts,
    chain: Option<String>,
) -> Certificate {
    let Facts { names, subject, issuer, not_before, not_after, fingerprint } = facts;
    let days_left = (not_after - certificates.now()).div_euclid(24 * 3600);
    Certificate {
        server_name,
        names,
        subject,
        issuer,
        not_before: Time::from_seconds(not_before.try_into().unwrap_or_default()),
        not_after: Time::from_seconds(not_after.try_into().unwrap_or_default()),
        days_left,
        fingerprint_sha256: fingerprint,
        chain,
    }
}

/// Upload a certificate
///
/// Every router that has acknowledged the change uses it from the next handshake on, without a reload. The private key
/// is encrypted before it is stored, and cannot be read again. Repeating the call changes nothing.
#[utoipa::path(put, path = "/certificates/{server_name}",
    params(("server_name" = String, Path, description = "A name, `*.example.org`, or `*`"), WaitQuery),
    request_body = NewCertificate,
    responses((status = 200, description = "Replaced, or unchanged", body = ChangedCertificate),
    (status = 201, description = "Created", body = ChangedCertificate),
    (status = "default", description = "409 no_edge_key: the pacemaker has no `edge_key_file`; foreign_key | \
        422 invalid_chain, chain_order, invalid_key, key_mismatch, name_not_covered, certificate_expired, \
        certificate_not_yet_valid")))]
async fn put(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(name): Path<Hostname>,
    Query(query): Query<WaitQuery>,
    Json(new): Json<NewCertificate>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    check_host(&caller, &name)?;
    note_before(&app, &notes, &name).await?;
    if let Ok(facts) = app.certificates.check(&name, &new.chain, &new.key) {
        notes.requested(json!(view(&app.certificates, name.to_string(), facts, None)));
    }
    let Put { facts, change, created } = app.certificates.put(&caller, &name, &new.chain, &new.key).await?;
    let serial = wait(&app, &change.epoch, change.serial, patience).await?;
    let changed = ChangedCertificate {
        certificate: view(&app.certificates, name.to_string(), facts, None),
        serial: change.serial,
        epoch: change.epoch,
        changed: change.changed,
    };
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, serial, Answer(changed)).into_response())
}

/// Show a certificate
///
/// With its chain, and without its private key, which cannot be read.
#[utoipa::path(get, path = "/certificates/{server_name}", responses((status = 200, body = Certificate),
    (status = "default", description = "404 unknown_certificate")))]
async fn get(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Path(name): Path<Hostname>,
) -> Result<Answer<Certificate>, Problem> {
    check_host(&caller, &name)?;
    let Found { chain, facts } = app.certificates.get(&name).await?;
    Ok(Answer(view(&app.certificates, name.to_string(), facts, Some(chain))))
}

/// List the certificates
///
/// In the order of their names. A page of a search may be short and still have a `next`: then more names have to be examined. A page
/// also ends early when its chains have about 4 MiB.
#[utoipa::path(get, path = "/certificates", params(PageQuery), responses((status = 200, body = CertificateList)))]
async fn list(
    caller: Confined<ReadRoutes, Hosts>,
    AppState(app): AppState<App>,
    Query(query): Query<PageQuery>,
) -> Result<Answer<CertificateList>, Problem> {
    let limit = page::limit(query.limit)?;
    let after = app.cursors.read(&caller, LIST, query.cursor.as_deref()).await?;
    let wanted = query.search.as_deref().unwrap_or_default().to_lowercase();
    let visible = |name: &str| {
        contains(&wanted, [name]) && Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name))
    };
    let limits = PageLimits { items: limit, bytes: PAGE_BYTES, examined: MAX_EXAMINED };
    let page = app.certificates.page(after, limits, visible).await?;
    let next = app.cursors.write(&caller, LIST, page.next).await?;
    let view = |(name, found): (String, Found)| view(&app.certificates, name, found.facts, None);
    let certificates = page.found.into_iter().map(view).collect();
    Ok(Answer(CertificateList { certificates, next }))
}

/// Remove a certificate
///
/// Handshakes for the name then get a matching wildcard certificate, or the listener's default. The call can be
/// repeated.
#[utoipa::path(delete, path = "/certificates/{server_name}", params(WaitQuery), responses(Removed))]
async fn remove(
    caller: Confined<ManageRoutes, Hosts>,
    AppState(app): AppState<App>,
    notes: Notes,
    Path(name): Path<Hostname>,
    Query(query): Query<WaitQuery>,
) -> Result<Response, Problem> {
    let patience = query.patience(&app, &caller)?;
    check_host(&caller, &name)?;
    note_before(&app, &notes, &name).await?;
    let change = app.certificates.remove(&caller, &name).await?;
    let serial = wait(&app, &change.epoch, change.serial, patience).await?;
    Ok((StatusCode::NO_CONTENT, serial).into_response())
}

/// Notes the certificate before a change for the audit log.
async fn note_before(app: &App, notes: &Notes, name: &Hostname) -> Result<(), Problem> {
    match app.certificates.get(name).await {
        Ok(Found { facts, .. }) => {
            notes.before(json!(view(&app.certificates, name.to_string(), facts, None)));
            Ok(())
        }
        // A stored document that cannot be read can still be replaced or removed.
        Err(Error::Unknown | Error::Stored(_) | Error::Invalid(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(invalid) => invalid.into(),
            Error::Table(error) => error.into(),
            Error::NoKey => Self::new(
                StatusCode::CONFLICT,
                "no_edge_key",
                "private keys are stored encrypted, and this pacemaker has no `edge_key_file` to encrypt with",
            ),
            Error::Unknown => {
                Self::not_found("unknown_certificate", "no certificate is stored for this name")
            }
            error @ (Error::Seal | Error::Stored(_)) => {
                tracing::error!(error = &error as &dyn std::error::Error, "certificate not processed");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
            }
        }
    }
}
