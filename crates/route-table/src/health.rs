//! Whether an active health check is valid, and which statuses it accepts.

use signalbox_api::routes::{Health, Statuses};

use crate::Invalid;

const MAX_STATUSES: usize = 20;
const MAX_BODY: usize = 256;

/// Checks every field.
pub(crate) fn check(health: &Health) -> Result<(), Invalid> {
    let invalid = |detail| Err(Invalid::new("invalid_health", "health", detail));
    let path_fits = |path: &String| {
        path.starts_with('/') && path.len() <= 1024 && path.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match &health.path {
        Some(_) if health.tcp => return invalid("`path` and `tcp` cannot be combined"),
        Some(path) if !path_fits(path) => {
            return invalid("`path` must begin with / and have at most 1024 printable ASCII characters");
        }
        None if !health.tcp => return invalid("either `path` or `\"tcp\": true` is required"),
        None if health.status.is_some() || health.body.is_some() => {
            return invalid("`status` and `body` require `path`");
        }
        _ => {}
    }
    let fit = |range: &Statuses| 200 <= range.first && range.first <= range.last && range.last <= 599;
    let statuses = health.statuses();
    if !(1..=MAX_STATUSES).contains(&statuses.len()) || !statuses.iter().all(fit) {
        return invalid("`status` must list 1 to 20 statuses from 200 to 599, or ranges such as \"200-399\"");
    }
    if health.body.as_ref().is_some_and(|body| !(1..=MAX_BODY).contains(&body.len())) {
        return invalid("`body` must have 1 to 256 bytes");
    }
    let fits = (1..=3600).contains(&health.interval_seconds)
        && (1..=60_000).contains(&health.timeout_ms)
        && (1..=100).contains(&health.unhealthy_after)
        && (1..=100).contains(&health.healthy_after);
    if !fits {
        return invalid(
            "`interval_seconds` must be 1 to 3600, `timeout_ms` 1 to 60000, `unhealthy_after` and `healthy_after` 1 to 100",
        );
    }
    Ok(())
}

/// Whether the status passes the health check.
pub fn takes(health: &Health, status: u16) -> bool {
    health.statuses().iter().any(|range| (range.first..=range.last).contains(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str) -> Result<Health, Invalid> {
        let health: Health = serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        super::check(&health).map(|()| health)
    }

    #[test]
    fn a_check_is_of_one_kind_and_within_limits() {
        for json in [
            r#"{"path":"/health"}"#,
            r#"{"tcp":true}"#,
            r#"{"path":"/?a=b","status":[200,"300-399"],"body":"ok"}"#,
        ] {
            let health = check(json).unwrap();
            let again = serde_json::to_string(&health).unwrap();
            assert_eq!(serde_json::from_str::<Health>(&again).unwrap(), health, "{again}");
        }
        for json in [
            "{}",
            r#"{"tcp":false}"#,
            r#"{"tcp":true,"path":"/"}"#,
            r#"{"tcp":true,"status":[200]}"#,
            r#"{"tcp":true,"body":"a"}"#,
            r#"{"path":"health"}"#,
            r#"{"path":"/ HTTP/1.1\r\nHost: a"}"#,
            r#"{"path":"/","status":[]}"#,
            r#"{"path":"/","status":[199]}"#,
            r#"{"path":"/","status":["399-200"]}"#,
            r#"{"path":"/","status":[600]}"#,
            r#"{"path":"/","body":""}"#,
            r#"{"path":"/","interval_seconds":0}"#,
            r#"{"path":"/","timeout_ms":60001}"#,
            r#"{"path":"/","healthy_after":0}"#,
            r#"{"path":"/","unhealthy_after":101}"#,
        ] {
            assert_eq!(check(json).unwrap_err().code, "invalid_health", "{json}");
        }
        for json in [r#"{"path":"/","status":["2xx"]}"#, r#"{"path":"/","status":[-1]}"#, r#"{"pth":"/"}"#] {
            assert!(serde_json::from_str::<Health>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn statuses_are_good_by_range() {
        let listed = check(r#"{"path":"/","status":["200-204",301]}"#).unwrap();
        let good: Vec<u16> = (100..600).filter(|status| takes(&listed, *status)).collect();
        assert_eq!(good, [200, 201, 202, 203, 204, 301]);
        let defaults = check(r#"{"path":"/"}"#).unwrap();
        assert!(
            [200, 399].into_iter().all(|status| takes(&defaults, status))
                && ![199, 400].into_iter().any(|status| takes(&defaults, status))
        );
    }
}
