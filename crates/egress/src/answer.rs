//! The interpretation of a subscriber's answer. Pure.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};

use super::Outcome;

/// Maximum pause that a subscriber can request, so that a mistyped value does not stop its deliveries for a
/// day.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Interprets an answer. Only its head matters: a 2xx acknowledges the batch even if the body cannot be read.
pub(super) fn outcome(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Outcome {
    if status.is_success() {
        return Outcome::Delivered;
    }
    if status == StatusCode::GONE {
        return Outcome::Gone;
    }
    let asks_for_time = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let retry_after = if asks_for_time { retry_after(headers, now) } else { None };
    let why = if status.is_redirection() {
        format!("answered {}; redirects are not followed", status.as_u16())
    } else {
        format!("answered {}", status.as_u16())
    };
    Outcome::Failed { why, retry_after }
}

/// `Retry-After` (RFC 9110, 10.2.3): seconds, or a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number with too many digits to parse is a very long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(asked.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, retry_after: Option<&str>) -> Outcome {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(header::RETRY_AFTER, value.parse().unwrap());
        }
        // 2033-05-18T03:33:20Z
        outcome(
            StatusCode::from_u16(status).unwrap(),
            &headers,
            SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000),
        )
    }

    fn pause(status: u16, retry_after: &str) -> Option<Duration> {
        match read(status, Some(retry_after)) {
            Outcome::Failed { retry_after, .. } => retry_after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn any_2xx_is_success_410_is_permanent_and_the_rest_is_failure() {
        for status in [200, 201, 202, 204, 206, 299] {
            assert_eq!(read(status, None), Outcome::Delivered, "{status}");
        }
        assert_eq!(read(410, None), Outcome::Gone);
        for status in [300, 301, 302, 307, 308, 400, 401, 404, 415, 429, 500, 503, 599] {
            assert!(matches!(read(status, None), Outcome::Failed { retry_after: None, .. }), "{status}");
        }
    }

    #[test]
    fn a_pause_is_granted_to_429_and_503_and_never_more_than_an_hour() {
        assert_eq!(pause(429, "120"), Some(Duration::from_secs(120)));
        assert_eq!(pause(503, "0"), Some(Duration::ZERO));
        assert_eq!(pause(503, "86400"), Some(MAX_RETRY_AFTER));
        assert_eq!(pause(429, "99999999999999999999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(pause(429, "Wed, 18 May 2033 03:34:20 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(pause(429, "Wed, 18 May 2022 03:34:20 GMT"), Some(Duration::ZERO));
        assert_eq!(pause(500, "120"), None);
        for nonsense in ["", "soon", "-5", "1.5", "+5"] {
            assert_eq!(pause(429, nonsense), None, "{nonsense:?}");
        }
    }
}
