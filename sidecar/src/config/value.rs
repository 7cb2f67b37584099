//! Values that are checked where they are read, so that a mistake in a file is reported with its place.

use std::{fmt, str::FromStr};

use serde::Deserialize;

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
    /// The URL of a Redis, or nothing.
    RedisUrl,
    |text| {
        let known = ["redis://", "redis+unix://", "unix://"].iter().any(|scheme| text.starts_with(scheme));
        if text.is_empty() || known {
            Ok(())
        } else {
            Err("a Redis URL is redis://host:port/ or redis+unix:///path".to_owned())
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

/// The root token. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct RootToken(String);

impl RootToken {
    /// Checks a token; spaces and newlines around it (of a file) are not part of it.
    ///
    /// # Errors
    /// When it is too short, or could not stand in an HTTP header.
    pub fn new(text: &str) -> Result<Self, String> {
        let token = text.trim();
        if token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
            return Err("the root token has at least 16 visible ASCII characters and no colon".to_owned());
        }
        Ok(Self(token.to_owned()))
    }

    /// The token.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for RootToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootToken(…)")
    }
}
