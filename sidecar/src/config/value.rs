//! Values that are more than a number or a path.

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::{Deserialize, Deserializer, de::Error as _};
use signalbox_settings::within;

/// The name of a router host: part of key names, so without colons.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Node(String);

impl Node {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Node {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let good = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
        if (1..=64).contains(&text.len()) && text.chars().all(good) {
            return Ok(Self(text));
        }
        Err("must be 1 to 64 letters, digits, '-', '_' or '.', for example a UUID")
    }
}

/// The URL of nginx's admin listener.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct EdgeUrl(String);

impl EdgeUrl {
    /// The URL.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for EdgeUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let plain = reqwest::Url::parse(&text).is_ok_and(|url| url.scheme() == "http" && url.path() == "/");
        if plain { Ok(Self(text)) } else { Err("must be http://host:port, without a path") }
    }
}

/// The SHA-256 of the root token. The token itself is not known here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The digest.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl TryFrom<String> for TokenDigest {
    type Error = &'static str;

    /// Accepts the output of `sha256sum` too: digits and a file name.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = text.split_ascii_whitespace().next().unwrap_or_default();
        let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
        let digest = bytes.and_then(|bytes| bytes.try_into().ok());
        digest.map(Self).ok_or("must be the SHA-256 of the root token, 64 hexadecimal digits")
    }
}

/// A value that empty text turns off.
pub(super) fn unless_empty<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<String, Error: std::fmt::Display>,
{
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Ok(None) } else { text.try_into().map(Some).map_err(D::Error::custom) }
}

/// The size at which the log is rotated; 0 for never.
pub(super) fn rotation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match within::<_, _, 0, { i64::MAX as u64 }>(deserializer)? {
        0 => Ok(None),
        1..4096 => Err(D::Error::custom("must be 0 for never, or at least 4096")),
        bytes => Ok(Some(bytes)),
    }
}
