//! The attributes of a request, parsed as nginx parses them.

use std::net::IpAddr;

use crate::Invalid;

/// The attributes of the request to explain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Name (in lower case) and value of a header.
    header: Option<(String, String)>,
    /// Cookies in the format of a Cookie header.
    cookies: Option<String>,
    address: Option<String>,
}

impl Asked {
    /// Parses the attributes; `None` if none is given.
    pub fn parse(
        header: Option<&str>,
        cookies: Option<&str>,
        address: Option<&str>,
    ) -> Result<Option<Self>, Invalid> {
        if header.is_none() && cookies.is_none() && address.is_none() {
            return Ok(None);
        }
        let visible = |text: &str| !text.chars().any(char::is_control);
        let header = header.map(|line| {
            let (name, value) = line.split_once(':')?;
            let token = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (!name.is_empty() && name.bytes().all(token) && visible(value))
                .then(|| (name.to_ascii_lowercase(), value.trim_matches(' ').to_owned()))
        });
        let header = match header {
            Some(None) => {
                return Err(Invalid::new("invalid_header", "header", "`header` must be `Name: value`"));
            }
            header => header.flatten(),
        };
        if cookies.is_some_and(|text| !text.contains('=') || !visible(text)) {
            let detail = "`cookie` must be `name=value`; separate several by `; `";
            return Err(Invalid::new("invalid_cookie", "cookie", detail));
        }
        let address = match address.map(str::parse::<IpAddr>) {
            Some(Err(_)) => {
                return Err(Invalid::new("invalid_address", "address", "`address` must be an IP address"));
            }
            address => address.and_then(Result::ok).map(|address| address.to_string()),
        };
        Ok(Some(Self { header, cookies: cookies.map(ToOwned::to_owned), address }))
    }

    /// The value of the header `name`. nginx drops headers with `_` in their names, and a `_` in a policy's
    /// name matches `-`.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (own, value) = self.header.as_ref()?;
        (!own.contains('_') && *own == name.to_ascii_lowercase().replace('_', "-")).then_some(value)
    }

    /// The value of the first cookie `name`, ignoring case like nginx's `$cookie_name`.
    pub(crate) fn cookie(&self, name: &str) -> Option<&str> {
        let mut rest = self.cookies.as_deref()?;
        loop {
            let begins = rest.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
            let value =
                begins.then(|| rest[name.len()..].trim_start_matches(' ').strip_prefix('=')).flatten();
            if let Some(value) = value {
                return Some(value.trim_start_matches(' ').split(';').next().unwrap_or_default());
            }
            rest = rest.split_once([';', ',']).map(|(_, rest)| rest.trim_start_matches(' '))?;
        }
    }

    pub(crate) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_and_headers_are_found_as_nginx_finds_them() {
        let asked = Asked::parse(Some("X-User:  ann "), Some("a=1; SID=x=y; sid=2,b=3"), Some("::0001"));
        let asked = asked.unwrap().unwrap();
        assert_eq!((asked.header("x-user"), asked.header("X_User")), (Some("ann"), Some("ann")));
        assert_eq!(asked.header("X-Use"), None);
        assert_eq!(
            (asked.cookie("sid"), asked.cookie("a"), asked.cookie("b")),
            (Some("x=y"), Some("1"), Some("3"))
        );
        assert_eq!((asked.cookie("si"), asked.cookie("c")), (None, None));
        assert_eq!(asked.address(), Some("::1"));
        assert_eq!(Asked::parse(Some("X_User: ann"), None, None).unwrap().unwrap().header("X-User"), None);
        assert_eq!(Asked::parse(None, None, None).unwrap(), None);
    }

    #[test]
    fn impossible_attributes_are_rejected() {
        for (header, cookies, address, code) in [
            (Some("X-User"), None, None, "invalid_header"),
            (Some("X User: a"), None, None, "invalid_header"),
            (Some("X-User: a\r\nX-Other: b"), None, None, "invalid_header"),
            (None, Some("sid"), None, "invalid_cookie"),
            (None, Some("sid=a\n"), None, "invalid_cookie"),
            (None, None, Some("localhost"), "invalid_address"),
            (None, None, Some(""), "invalid_address"),
        ] {
            assert_eq!(Asked::parse(header, cookies, address).unwrap_err().code, code);
        }
    }
}
