//! One order, from the account to the certificate in the route table.
//!
//! ```text
//! account ─▶ new order, stored with its key ─▶ challenge answered by every router ─▶ validation ─▶ CSR ─▶ certificate
//!                       │                                                                                  │
//!                       └─ a pacemaker that takes over continues here                        checked, encrypted, in the table
//! ```
//!
//! The certificate in the table is replaced only by a checked one. Whatever the server answers, a working certificate stays.

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use signalbox_access::Caller;
use signalbox_certificates::{Error as CertificateError, Facts};
use signalbox_route_table::Hostname;
use signalbox_routing::Convergence;

use crate::{
    Parts, account, dns,
    failure::{Failed, Failure, in_words},
    http::Http,
    record::OpenOrder,
    schedule::{Life, Window, ari_pause},
    store::{Ask, Claim},
};

/// How long routers may take to acknowledge a challenge.
const CONVERGENCE: Duration = Duration::from_secs(20);
/// The time limits of validation and issuance.
const POLL: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// Obtains a certificate for the claimed name and stores it in the route table. Returns its validity period.
pub(crate) async fn obtain(parts: &Parts, claim: &mut Claim) -> Result<Life, Failure> {
    let hostname = Hostname::parse(&claim.name).map_err(|invalid| Failure::new(invalid.detail))?;
    let http = http(parts)?;
    let account = account::open(parts, &http).await?;
    let (mut order, key) = match resume(parts, &http, &account, claim).await? {
        Some(open) => open,
        None => begin(parts, &http, &account, claim, &hostname).await?,
    };
    let mut status = order.state().status;
    if status == OrderStatus::Pending {
        let mut records = Vec::new();
        let proven = prove(parts, &http, &mut order, claim, &mut records).await;
        dns::remove(parts, &claim.name, &records).await;
        proven?;
        status = OrderStatus::Ready;
    }
    if status == OrderStatus::Ready {
        still_ours(parts, claim).await?;
        let csr = csr(&claim.name, &key)?;
        order.finalize_csr(&csr).await.map_err(|error| Failure::acme(&error, &http))?;
    }
    let chain = order.poll_certificate(&POLL).await.map_err(|error| Failure::acme(&error, &http))?;
    still_ours(parts, claim).await?;
    put(parts, &hostname, &chain, &key).await
}

/// The HTTP client for one order.
pub(crate) fn http(parts: &Parts) -> Result<Http, Failure> {
    let made = Http::new(parts.options.ca_file.as_deref(), parts.clock, parts.client.budget().clone());
    made.map_err(|error| Failure::new(format!("acme.ca_file: {error}")))
}

/// The unfinished order of an earlier attempt, with its private key.
async fn resume(
    parts: &Parts,
    http: &Http,
    account: &Account,
    claim: &mut Claim,
) -> Result<Option<(Order, KeyPair)>, Failure> {
    let Some(open) = claim.record.order.take() else { return Ok(None) };
    let key = parts.certificates.open_secret(&purpose(&claim.name), &open.key);
    let Some(key) = key.and_then(|(pem, _)| KeyPair::from_pem(&pem).ok()) else { return Ok(None) };
    match account.order(open.url.clone()).await {
        Ok(mut order) => match order.state().status {
            OrderStatus::Invalid => Ok(None),
            _ => {
                claim.record.order = Some(open);
                Ok(Some((order, key)))
            }
        },
        Err(error) => match Failure::acme(&error, http) {
            // The order has expired, or belongs to another account.
            Failure::Failed(Failed { order_is_lost: true, account_is_lost: false, .. }) => Ok(None),
            failure => {
                claim.record.order = Some(open);
                Err(failure)
            }
        },
    }
}

/// Creates an order and stores it before anything else is done with it.
async fn begin(
    parts: &Parts,
    http: &Http,
    account: &Account,
    claim: &mut Claim,
    hostname: &Hostname,
) -> Result<(Order, KeyPair), Failure> {
    let owner = owner(parts, claim, hostname).await?;
    let is_whole = owner == Caller::root().bus_client();
    let ask = Ask { owner: &owner, is_whole, is_renewal: claim.record.issued_at.is_some() };
    if let Some(spent) = parts.store.order(ask, parts.options.orders_per_hour).await? {
        return Err(Failure::NoBudget(spent));
    }
    still_ours(parts, claim).await?;
    let key = KeyPair::generate().map_err(Failure::internal)?;
    let sealed = parts.certificates.seal_secret(&purpose(&claim.name), &key.serialize_pem());
    let sealed = sealed.map_err(|error| match error {
        CertificateError::NoKey => {
            Failure::new("The pacemaker has no edge_key_file, which encrypts private keys.")
        }
        error => Failure::internal(error),
    })?;
    let names = [Identifier::Dns(claim.name.clone())];
    let mut new = NewOrder::new(&names);
    // Servers with renewal information recognize such an order as a renewal, which is exempt from some rate
    // limits.
    let replaced = match claim.record.ari_at {
        Some(_) if claim.record.failures == 0 => present_leaf(parts, hostname).await,
        _ => None,
    };
    if let Some(id) = replaced.as_ref().and_then(|leaf| CertificateIdentifier::try_from(leaf).ok()) {
        new = new.replaces(id.into_owned());
    }
    let order = account.new_order(&new).await.map_err(|error| Failure::acme(&error, http))?;
    claim.record.order = Some(OpenOrder { url: order.url().to_owned(), key: sealed });
    if !parts.store.keep(claim).await? {
        return Err(Failure::Fenced);
    }
    tracing::info!(server_name = claim.name, "certificate ordered");
    Ok((order, key))
}

/// Whose orders those of a name count with: the token that registered its instances. Names that only have a policy count together,
/// and so do those that clients asked for. No token has these names.
async fn owner(parts: &Parts, claim: &Claim, hostname: &Hostname) -> Result<String, Failure> {
    if claim.record.on_demand {
        return Ok("on demand".to_owned());
    }
    let registrant = async {
        let ids = parts.table.ids_of_host(hostname).await?;
        parts.table.registrant_of(&ids).await
    };
    let registrant = registrant.await.map_err(|error| {
        tracing::debug!(server_name = claim.name, %error, "owner of a name not read");
        Failure::Unavailable
    })?;
    Ok(registrant.unwrap_or_else(|| "no instance".to_owned()))
}

/// The authenticated data of an order's private key.
fn purpose(name: &str) -> String {
    format!("order {name}")
}

async fn still_ours(parts: &Parts, claim: &Claim) -> Result<(), Failure> {
    match parts.store.renew(&claim.name, claim.fence).await? {
        true => Ok(()),
        false => Err(Failure::Fenced),
    }
}

/// Proves control over the name, and waits until the server has validated it. Created DNS records are added
/// to `records`.
async fn prove(
    parts: &Parts,
    http: &Http,
    order: &mut Order,
    claim: &Claim,
    records: &mut Vec<String>,
) -> Result<(), Failure> {
    let acme = |error: instant_acme::Error| Failure::acme(&error, http);
    let kind = challenge_type(parts, &claim.name)?;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(acme)?;
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            other => return Err(Failure::of_order(format!("The ACME server's authorization is {other:?}."))),
        }
        let Some(mut challenge) = authorization.challenge(kind.clone()) else {
            let words = format!("The ACME server offers no {} challenge.", shown(&kind));
            return Err(Failure::of_order(words));
        };
        let answer = challenge.key_authorization();
        if kind == ChallengeType::Dns01 {
            let value = answer.dns_value();
            records.push(value.clone());
            dns::create(parts, &claim.name, &value).await?;
        } else {
            on_every_router(parts, &claim.name, &challenge.token, answer.as_str()).await?;
        }
        still_ours(parts, claim).await?;
        challenge.set_ready().await.map_err(acme)?;
    }
    match order.poll_ready(&POLL).await {
        Ok(OrderStatus::Ready) => Ok(()),
        Ok(_) => Err(refused(order, &kind).await),
        Err(error) => match order.state().status {
            OrderStatus::Invalid => Err(refused(order, &kind).await),
            _ => Err(acme(error)),
        },
    }
}

/// DNS-01 for wildcards, which allow no other challenge (RFC 8555, 7.1.3), or for all names if the operator
/// configured it.
fn challenge_type(parts: &Parts, name: &str) -> Result<ChallengeType, Failure> {
    if !name.starts_with('*') && !parts.options.dns_only {
        return Ok(ChallengeType::Http01);
    }
    if parts.options.dns_webhook.is_empty() {
        return Err(Failure::new("A certificate of a wildcard needs acme.dns_webhook."));
    }
    Ok(ChallengeType::Dns01)
}

fn shown(kind: &ChallengeType) -> &'static str {
    if *kind == ChallengeType::Dns01 { "DNS-01" } else { "HTTP-01" }
}

/// Makes every router answer the challenge before the server is asked to validate, because the server may
/// connect to any of them.
async fn on_every_router(parts: &Parts, name: &str, token: &str, answer: &str) -> Result<(), Failure> {
    let put = parts.table.put_challenge(name, token, answer).await;
    let (epoch, serial) = put.map_err(|error| {
        Failure::new(format!("The challenge could not be put into the route table: {error}."))
    })?;
    parts.routers.applied(serial);
    let why = match parts.routers.converged(&epoch, serial, CONVERGENCE, &parts.shutdown).await {
        Convergence::Reached { .. } => return Ok(()),
        Convergence::Lagging(routers) => {
            let names: Vec<&str> = routers.iter().map(|router| router.node.as_str()).collect();
            format!("these routers have not acknowledged the challenge: {}", names.join(", "))
        }
        Convergence::NoRouter => "no router has reported".to_owned(),
        Convergence::Unknown => "the stats Redis, where routers report, does not answer".to_owned(),
        Convergence::ShuttingDown => return Err(Failure::Unavailable),
    };
    Err(Failure::new(format!("The ACME server was not asked to validate, because {why}.")))
}

/// Why the server rejected the challenge.
async fn refused(order: &mut Order, kind: &ChallengeType) -> Failure {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_err() {
            continue;
        }
        if let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref())
        {
            let words = in_words(problem);
            return Failure::of_order(format!(
                "The ACME server could not validate the name ({}): {words}",
                shown(kind)
            ));
        }
    }
    Failure::of_order("The ACME server rejected the order without a reason.")
}

fn csr(name: &str, key: &KeyPair) -> Result<Vec<u8>, Failure> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(Failure::internal)?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key).map_err(Failure::internal)?.der().to_vec())
}

/// Stores a validated certificate in the route table.
async fn put(parts: &Parts, hostname: &Hostname, chain: &str, key: &KeyPair) -> Result<Life, Failure> {
    let put = parts.certificates.put(&Caller::root(), hostname, chain, &key.serialize_pem()).await;
    let put = put.map_err(|error| match error {
        CertificateError::Invalid(invalid) => {
            Failure::of_order(format!("The ACME server's certificate cannot be used: {}.", invalid.detail))
        }
        // The order is complete, and its certificate can be fetched again.
        error => Failure::new(format!("The certificate could not be put into the route table: {error}.")),
    })?;
    parts.routers.applied(put.change.serial);
    Ok(life(&put.facts))
}

fn life(facts: &Facts) -> Life {
    Life { not_before: seconds(facts.not_before), not_after: seconds(facts.not_after) }
}

fn seconds(at: i64) -> u64 {
    u64::try_from(at).unwrap_or(0)
}

/// The current certificate of the name in the route table.
async fn present_leaf(parts: &Parts, hostname: &Hostname) -> Option<CertificateDer<'static>> {
    let found = parts.certificates.get(hostname).await.ok()?;
    CertificateDer::pem_slice_iter(found.chain.as_bytes()).next()?.ok()
}

/// The validity period of the current certificate of the name in the route table.
pub(crate) async fn present(parts: &Parts, name: &str) -> Result<Option<Life>, Failure> {
    let hostname = Hostname::parse(name).map_err(|invalid| Failure::new(invalid.detail))?;
    match parts.certificates.get(&hostname).await {
        Ok(found) => Ok(Some(life(&found.facts))),
        Err(CertificateError::Unknown) => Ok(None),
        Err(CertificateError::Table(error)) => {
            tracing::debug!(%error, "certificate not read");
            Err(Failure::Unavailable)
        }
        // If it cannot be read, routers cannot present it either.
        Err(_) => Ok(None),
    }
}

/// When the server suggests to renew the certificate, and the seconds until this should be queried again;
/// `None` if the server provides no renewal information.
pub(crate) async fn renewal_info(parts: &Parts, name: &str) -> Result<Option<(Window, u64)>, Failure> {
    let hostname = Hostname::parse(name).map_err(|invalid| Failure::new(invalid.detail))?;
    let Some(leaf) = present_leaf(parts, &hostname).await else { return Ok(None) };
    let Ok(id) = CertificateIdentifier::try_from(&leaf) else { return Ok(None) };
    let http = http(parts)?;
    let account = account::open(parts, &http).await?;
    match account.renewal_info(&id).await {
        Ok((info, again)) => {
            let start = seconds(info.suggested_window.start.unix_timestamp());
            let end = seconds(info.suggested_window.end.unix_timestamp());
            Ok(Some((Window { start, end }, ari_pause(Some(again.as_secs())))))
        }
        Err(instant_acme::Error::Unsupported(_)) => Ok(None),
        Err(error) => Err(Failure::acme(&error, &http)),
    }
}
