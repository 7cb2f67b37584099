//! DNS-01 challenges: a program of the operator creates and removes the records.
//!
//! `POST` to `acme.dns_webhook`, signed as Standard Webhooks 1.0 defines it:
//!
//! ```json
//! {"action": "create", "record": "_acme-challenge.shop.example", "type": "TXT", "value": "…", "server_name": "*.shop.example"}
//! ```
//!
//! It answers 2xx when all name servers of the zone have the record, because the ACME server asks any of them. `"remove"` follows
//! at the end. Both can be repeated.

use serde_json::json;
use signalbox_egress::{Outcome, Owner, Post, Secret};

use crate::{Parts, failure::Failure, http::OWNER};

/// Creates the record with `value`.
pub(crate) async fn create(parts: &Parts, name: &str, value: &str) -> Result<(), Failure> {
    match call(parts, "create", name, value).await? {
        Outcome::Delivered => Ok(()),
        Outcome::Gone => Err(Failure::new("The DNS webhook answered with status 410.")),
        Outcome::Failed { why, .. } => {
            Err(Failure::new(format!("The DNS webhook did not create the record: {why}.")))
        }
    }
}

/// Removes records. A failure is only logged, because a remaining record is harmless.
pub(crate) async fn remove(parts: &Parts, name: &str, values: &[String]) {
    for value in values {
        if !matches!(call(parts, "remove", name, value).await, Ok(Outcome::Delivered)) {
            tracing::warn!(server_name = name, "DNS record of a challenge not removed");
        }
    }
}

async fn call(parts: &Parts, action: &'static str, name: &str, value: &str) -> Result<Outcome, Failure> {
    let record = format!("_acme-challenge.{}", name.trim_start_matches("*."));
    let body =
        json!({"action": action, "record": record, "type": "TXT", "value": value, "server_name": name});
    let secrets = match &parts.options.dns_webhook_secret_file {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("acme.dns_webhook_secret_file: {error}.")))?;
            vec![Secret { secret: text.trim().to_owned(), until_ms: None }]
        }
        None => Vec::new(),
    };
    let post = Post {
        name: "acme.dns",
        causes: Vec::new(),
        events: 0,
        attempt: 1,
        callback: &parts.options.dns_webhook,
        uuid: "signalbox",
        secrets: &secrets,
        id: &format!("acme-{action}-{value}"),
        body: body.to_string().into_bytes(),
        headers: Vec::new(),
    };
    let to = parts.options.dns_webhook.parse().unwrap_or_default();
    let place = parts.client.place(&Owner::alone(OWNER), &to).await;
    Ok(parts.client.post(place, post).await)
}
