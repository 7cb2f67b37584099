//! The section `[acme]` of the configuration.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use signalbox_route_table::Hostname;
use signalbox_settings::{milliseconds, section, within};

/// The settings of automatic HTTPS. [`Options::DEFAULTS`] describes them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "`defaults.toml` describes the keys")]
pub struct Options {
    #[serde(deserialize_with = "web_url")]
    pub directory: String,
    pub contacts: Vec<String>,
    pub terms_agreed: bool,
    pub ca_file: Option<PathBuf>,
    pub external_account_id: Option<String>,
    pub external_account_key_file: Option<PathBuf>,
    pub hosts: Vec<Pattern>,
    #[serde(deserialize_with = "web_url")]
    pub dns_webhook: String,
    pub dns_webhook_secret_file: Option<PathBuf>,
    pub dns_only: bool,
    #[serde(deserialize_with = "web_url")]
    pub check_url: String,
    #[serde(rename = "check_timeout_ms", deserialize_with = "milliseconds::<_, 10, 60_000>")]
    pub check_timeout: Duration,
    #[serde(deserialize_with = "within::<_, _, 0, 1_000_000>")]
    pub checks_per_hour: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub orders_per_hour: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 1_000>")]
    pub concurrent_orders: usize,
    #[serde(deserialize_with = "within::<_, _, 3, 3_600>")]
    pub claim_seconds: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 43_200>")]
    pub retry_seconds: u64,
}

impl Options {
    /// The section of the default file: every key with its default and description.
    pub const DEFAULTS: &str = include_str!("defaults.toml");

    /// Whether an ACME server is configured.
    pub(crate) fn is_on(&self) -> bool {
        !self.directory.is_empty()
    }

    /// Checks that the settings fit together. The error is the name of an invalid setting, and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.external_account_id.is_some() != self.external_account_key_file.is_some() {
            return Err(("acme.external_account_id", "needs external_account_key_file, and vice versa"));
        }
        if self.dns_only && self.dns_webhook.is_empty() {
            return Err(("acme.dns_only", "needs dns_webhook"));
        }
        if self.contacts.iter().any(|contact| !contact.contains('@') || contact.contains(char::is_whitespace))
        {
            return Err(("acme.contacts", "must be e-mail addresses"));
        }
        Ok(())
    }

    /// Whether a pattern of `hosts` covers the name.
    pub(crate) fn covers(&self, name: &str) -> bool {
        self.hosts.iter().any(|pattern| pattern.covers(name))
    }
}

impl Default for Options {
    fn default() -> Self {
        section("acme", Self::DEFAULTS)
    }
}

/// Patterns of names that get automatic HTTPS.
#[derive(Debug, Clone)]
pub struct Pattern(Hostname);

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Hostname::parse(&text).map(Self).map_err(|invalid| D::Error::custom(invalid.detail))
    }
}

impl Pattern {
    fn covers(&self, name: &str) -> bool {
        match self.0.as_str() {
            "*" => name != "*",
            pattern => match pattern.strip_prefix('*') {
                Some(end) => name.ends_with(end),
                None => name == pattern,
            },
        }
    }
}

/// An http or https URL, or an empty text.
fn web_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let url = url::Url::parse(&text);
    if text.is_empty() || url.is_ok_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host()) {
        Ok(text)
    } else {
        Err(D::Error::custom("must be a URL that begins with https:// or http://"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_its_name_or_all_names_below_it() {
        let pattern = |text: &str| Pattern(Hostname::parse(text).unwrap());
        for (text, name, covered) in [
            ("shop.test", "shop.test", true),
            ("shop.test", "a.shop.test", false),
            ("*.shop.test", "a.shop.test", true),
            ("*.shop.test", "a.b.shop.test", true),
            ("*.shop.test", "*.shop.test", true),
            ("*.shop.test", "shop.test", false),
            ("*.shop.test", "othershop.test", false),
            ("*", "a.test", true),
            ("*", "*", false),
        ] {
            assert_eq!(pattern(text).covers(name), covered, "{text} {name}");
        }
    }

    #[test]
    fn keys_that_do_not_fit_together_are_reported() {
        let key = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.check().map_err(|(key, _)| key)
        };
        assert_eq!(key(|_| ()), Ok(()));
        assert_eq!(key(|options| options.dns_only = true), Err("acme.dns_only"));
        assert_eq!(key(|options| options.contacts = vec!["nobody".to_owned()]), Err("acme.contacts"));
        assert_eq!(
            key(|options| options.external_account_id = Some("x".to_owned())),
            Err("acme.external_account_id")
        );
    }
}
