//! The token that grants everything.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Unexpected, Visitor},
};

/// 32 hexadecimal digits are 128 bits, which cannot be guessed, even offline from a hash of the token.
const MIN_LENGTH: usize = 32;

/// The root token. Neither its `Debug` nor an error about it shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct RootToken(String);

impl RootToken {
    /// Accepts text that is valid in an HTTP header and too long to guess. Surrounding whitespace, such as the end of a line
    /// in a file, is ignored.
    ///
    /// # Errors
    /// A description of the expected form.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let token = text.trim();
        if token.len() < MIN_LENGTH || !token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
            return Err("must be at least 32 visible ASCII characters without a colon");
        }
        Ok(Self(token.to_owned()))
    }

    /// The token.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl<'de> Deserialize<'de> for RootToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = RootToken;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text of at least 32 characters")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RootToken, E> {
                RootToken::new(text).map_err(E::custom)
            }

            /// A token of digits without quotation marks is still a secret.
            fn visit_i64<E: Error>(self, _: i64) -> Result<RootToken, E> {
                Err(E::invalid_type(Unexpected::Other("number"), &self))
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<RootToken, E> {
                Err(E::invalid_type(Unexpected::Other("number"), &self))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

impl fmt::Debug for RootToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_token_is_validated_and_never_printed() {
        assert!(RootToken::new("short").is_err());
        assert!(RootToken::new("0123456789abcdef0123456789abcde").is_err());
        assert!(RootToken::new("0123456789abcdef0123456789abcde:").is_err());
        assert!(RootToken::new("0123456789abcdef 0123456789abcdef").is_err());
        let token = RootToken::new(" 0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(token.as_bytes(), b"0123456789abcdef0123456789abcdef");
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn an_error_about_a_root_token_does_not_contain_it() {
        for text in ["'secret'", "1234567890123456", "1234567890.123456"] {
            let error =
                RootToken::deserialize(toml::de::ValueDeserializer::parse(text).unwrap()).unwrap_err();
            let message = error.message();
            assert!(
                message.contains("32") && !message.contains("123") && !message.contains("secret"),
                "{message}"
            );
        }
    }
}
