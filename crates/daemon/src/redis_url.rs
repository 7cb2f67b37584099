//! URLs of Redis servers.

use std::{fmt, str::FromStr};

use serde::Deserialize;

/// The URL of a Redis. Its `Debug` omits the credentials.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RedisUrl(String);

impl RedisUrl {
    /// The URL, password included.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RedisUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let known = [
            "redis://",
            "rediss://",
            "redis+unix://",
            "redis+cluster://",
            "rediss+cluster://",
            "redis+sentinel://",
            "rediss+sentinel://",
            "unix://",
        ];
        if known.iter().any(|scheme| text.starts_with(scheme)) && text.len() < 1024 {
            return Ok(Self(text));
        }
        Err("must be redis://host:port/, rediss://host:port/, redis+unix:///path, \
             redis+cluster://host:port,host:port/ or redis+sentinel://host:port,host:port/NAME"
            .to_owned())
    }
}

impl FromStr for RedisUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The parameters of a socket may contain the password.
        let server = self.0.split_once('?').map_or(self.0.as_str(), |(server, _)| server);
        f.write_str(server.rsplit_once('@').map_or(server, |(_, rest)| rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        let url: RedisUrl = "redis://user:secret@10.0.0.1:6401/".parse().unwrap();
        assert!(url.as_str().contains("secret"));
        assert_eq!(format!("{url:?}"), "10.0.0.1:6401/");
        let socket: RedisUrl = "redis+unix:///run/r.sock?user=u&pass=secret".parse().unwrap();
        assert_eq!(format!("{socket:?}"), "redis+unix:///run/r.sock");
        assert!("rediss://h:1/?ca_file=/ca.pem".parse::<RedisUrl>().is_ok());
        assert!("http://x/".parse::<RedisUrl>().is_err());
    }
}
