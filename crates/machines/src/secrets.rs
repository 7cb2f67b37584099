//! Values of environment variables that headers of definitions may contain.

use std::{collections::BTreeMap, fmt};

use signalbox_machine::render::is_below;

/// The values of `machines.environment`. Each is sent only to addresses with the configured prefix: an author of
/// definitions can use a secret, and cannot send it to a server of their own.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, Secret>);

#[derive(Clone)]
struct Secret {
    /// How the addresses begin that may get it.
    prefix: String,
    value: String,
}

impl Secrets {
    /// `prefixes` are the names with the beginning of their addresses; `value` reads a variable.
    pub fn new(prefixes: &BTreeMap<String, String>, value: impl Fn(&str) -> Option<String>) -> Self {
        let secret = |(name, prefix): (&String, &String)| {
            Some((name.clone(), Secret { prefix: prefix.clone(), value: value(name)? }))
        };
        Self(prefixes.iter().filter_map(secret).collect())
    }

    /// The value of a variable for a request to `url`, if it may be sent there.
    pub(crate) fn value_for(&self, name: &str, url: &str) -> Option<String> {
        let secret = self.0.get(name)?;
        is_below(&secret.prefix, url).then(|| secret.value.clone())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_sent_below_its_prefix_only() {
        let prefixes = [("TOKEN", "https://a.example/v1/"), ("UNSET", "https://a.example/")];
        let prefixes = prefixes.map(|(name, prefix)| (name.to_owned(), prefix.to_owned())).into();
        let secrets = Secrets::new(&prefixes, |name| (name == "TOKEN").then(|| "secret".to_owned()));
        let sent = |name: &str, url: &str| secrets.value_for(name, url).is_some();
        assert!(sent("TOKEN", "https://a.example/v1/x"));
        for url in [
            "https://b.example/v1/x",
            "http://a.example/v1/x",
            "https://a.example/v2",
            "https://a.example/v1/../x",
            "https://a.example/v1/%2e%2e/x",
            "https://a.example@b.example/v1/x",
        ] {
            assert!(!sent("TOKEN", url), "{url}");
        }
        assert!(!sent("UNSET", "https://a.example/") && !sent("OTHER", "https://a.example/v1/x"));
        assert!(!format!("{secrets:?}").contains("secret"));
    }
}
