//! Values that are checked where they are read, so that a mistake in a file is reported with its place.

use std::str::FromStr;

use serde::Deserialize;
use signalbox_daemon::RedisUrl;

/// Makes a string type whose check runs in serde and on the command line alike.
macro_rules! checked {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The text as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                let check: fn(&str) -> Result<(), String> = $check;
                check(&text).map(|()| Self(text))
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                text.to_owned().try_into()
            }
        }
    };
}

checked!(
    /// The name of a router host: part of key names, so without colons.
    Node,
    |text| {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if (1..=64).contains(&text.len()) && text.chars().all(good) {
            Ok(())
        } else {
            Err("a node is 1 to 64 letters, digits, '-', '_' or '.', best a UUID".to_owned())
        }
    }
);

checked!(
    /// The URL of nginx' admin listener, or nothing.
    EdgeUrl,
    |text| {
        let plain = reqwest::Url::parse(text).is_ok_and(|url| url.scheme() == "http" && url.path() == "/");
        if text.is_empty() || plain {
            Ok(())
        } else {
            Err("the edge's URL is http://host:port, without a path".to_owned())
        }
    }
);

/// The URL of the routes replica, or nothing.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct ReplicaUrl(Option<RedisUrl>);

impl ReplicaUrl {
    /// The URL, if there is one.
    pub(super) fn into_url(self) -> Option<RedisUrl> {
        self.0
    }
}

impl TryFrom<String> for ReplicaUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() { Ok(Self(None)) } else { text.try_into().map(|url| Self(Some(url))) }
    }
}

impl FromStr for ReplicaUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}
