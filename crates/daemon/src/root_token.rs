//! The token that may do everything.

use std::{fmt, path::Path};

use crate::settings::{self, Error};

const KEY: &str = "root_token";

/// The root token. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct RootToken(String);

impl RootToken {
    /// Accepts what can stand in an HTTP header and is long enough not to be guessed. Space around it, as at the end of
    /// a file, is no part of it.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn new(text: &str) -> Result<Self, String> {
        let token = text.trim();
        if token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
            return Err("needs at least 16 visible ASCII characters and no colon".to_owned());
        }
        Ok(Self(token.to_owned()))
    }

    /// The token that the keys `root_token` and `root_token_file` give; nothing when neither is set.
    ///
    /// # Errors
    /// When both are set, the file cannot be read, or the token does not do.
    pub fn from_settings(token: Option<String>, file: Option<&Path>) -> Result<Option<Self>, Error> {
        let text = match (token, file) {
            (Some(_), Some(_)) => {
                return Err(Error::value(KEY, "set either root_token or root_token_file, not both"));
            }
            (Some(token), None) => token,
            (None, Some(path)) => settings::read(path)?,
            (None, None) => return Ok(None),
        };
        Self::new(&text).map(Some).map_err(|message| Error::value(KEY, message))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_token_is_long_printable_and_hidden() {
        assert!(RootToken::new("short").is_err());
        assert!(RootToken::new("0123456789abcde:").is_err());
        assert!(RootToken::new("0123456789abc def").is_err());
        let token = RootToken::new(" 0123456789abcdef\n").unwrap();
        assert_eq!(token.as_bytes(), b"0123456789abcdef");
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn it_comes_from_one_place() {
        let text = || Some("0123456789abcdef".to_owned());
        assert!(RootToken::from_settings(None, None).unwrap().is_none());
        assert!(RootToken::from_settings(text(), None).unwrap().is_some());
        assert!(RootToken::from_settings(text(), Some(Path::new("x"))).is_err());
        let missing = RootToken::from_settings(None, Some(Path::new("/nowhere/token"))).unwrap_err();
        assert!(missing.to_string().starts_with("/nowhere/token: "), "{missing}");
    }
}
