//! The account at the ACME server. All pacemakers share it; it is stored encrypted.

use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};

use crate::{Parts, failure::Failure, http::Http};

/// Opens the stored account, or creates one.
pub(crate) async fn open(parts: &Parts, http: &Http) -> Result<Account, Failure> {
    if let Some(account) = stored(parts, http).await? {
        return Ok(account);
    }
    let _creating = parts.creating.lock().await;
    if let Some(account) = stored(parts, http).await? {
        return Ok(account);
    }
    let directory = &parts.options.directory;
    let contacts: Vec<String> =
        parts.options.contacts.iter().map(|contact| format!("mailto:{contact}")).collect();
    let contacts: Vec<&str> = contacts.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contacts,
        terms_of_service_agreed: parts.options.terms_agreed,
        only_return_existing: false,
    };
    let external = external(parts)?;
    let created = Account::builder_with_http(Box::new(http.clone()))
        .create(&new, directory.clone(), external.as_ref())
        .await;
    let (account, credentials) = created.map_err(|error| Failure::acme(&error, http))?;
    let text = serde_json::to_string(&credentials).map_err(Failure::internal)?;
    let sealed = parts.certificates.seal_secret(&purpose(directory), &text).map_err(Failure::internal)?;
    if parts.store.keep_account(directory, &sealed).await? {
        tracing::info!(directory, "ACME account created");
        return Ok(account);
    }
    // Another pacemaker was faster, so its account is used.
    Ok(stored(parts, http).await?.unwrap_or(account))
}

/// The account that all pacemakers share; `None` if there is none, or if it cannot be decrypted.
async fn stored(parts: &Parts, http: &Http) -> Result<Option<Account>, Failure> {
    let directory = &parts.options.directory;
    let Some(sealed) = parts.store.account(directory).await? else { return Ok(None) };
    let Some((text, is_current)) = parts.certificates.open_secret(&purpose(directory), &sealed) else {
        tracing::error!(
            directory,
            "ACME account not decrypted by any key of the key file; a new one is created"
        );
        parts.store.forget_account(directory).await?;
        return Ok(None);
    };
    if !is_current {
        let sealed = parts.certificates.seal_secret(&purpose(directory), &text).map_err(Failure::internal)?;
        parts.store.replace_account(directory, &sealed).await?;
    }
    let credentials: AccountCredentials = serde_json::from_str(&text).map_err(Failure::internal)?;
    let builder = Account::builder_with_http(Box::new(http.clone()));
    builder.from_credentials(credentials).await.map(Some).map_err(|error| Failure::acme(&error, http))
}

/// Encrypts the account with the first key of the key file, if another key encrypted it.
pub(crate) async fn reseal(parts: &Parts) -> Result<(), Failure> {
    let directory = &parts.options.directory;
    let Some(sealed) = parts.store.account(directory).await? else { return Ok(()) };
    if let Some((text, false)) = parts.certificates.open_secret(&purpose(directory), &sealed) {
        let sealed = parts.certificates.seal_secret(&purpose(directory), &text).map_err(Failure::internal)?;
        parts.store.replace_account(directory, &sealed).await?;
        tracing::info!(directory, "ACME account encrypted with the first key");
    }
    Ok(())
}

fn purpose(directory: &str) -> String {
    format!("account {directory}")
}

fn external(parts: &Parts) -> Result<Option<ExternalAccountKey>, Failure> {
    let (Some(id), Some(path)) =
        (&parts.options.external_account_id, &parts.options.external_account_key_file)
    else {
        return Ok(None);
    };
    let unusable = |why: String| Failure::new(format!("acme.external_account_key_file: {why}"));
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let key = data_encoding::BASE64URL_NOPAD
        .decode(text.trim().trim_end_matches('=').as_bytes())
        .map_err(|_| unusable("it is not base64url".to_owned()))?;
    Ok(Some(ExternalAccountKey::new(id.clone(), &key)))
}
