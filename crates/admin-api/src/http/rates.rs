//! How much one token may ask for per second, as answers of the API. Root has no limit.

use std::sync::Arc;

use axum::http::StatusCode;

use super::Problem;
use signalbox_access::{Caller, RateReached};

/// The rates of all tokens for one kind of work.
#[derive(Debug)]
pub struct Rates {
    /// The counted things, in the plural.
    what: &'static str,
    /// The configuration key of the limit.
    key: &'static str,
    rates: Arc<signalbox_access::Rates>,
}

impl Rates {
    pub(crate) fn new(what: &'static str, key: &'static str, rates: Arc<signalbox_access::Rates>) -> Self {
        Self { what, key, rates }
    }

    /// Counts `count` for the caller's token.
    ///
    /// # Errors
    /// 429 `token_limit_reached` if the token has used up its rate.
    pub(crate) fn take(&self, caller: &Caller, count: usize, now_ms: u64) -> Result<(), Problem> {
        if caller.is_root() {
            return Ok(());
        }
        self.rates.take(&caller.limited_as(), count, now_ms).map_err(|reached| self.reached(reached))
    }

    fn reached(&self, RateReached { per_second, wait_ms }: RateReached) -> Problem {
        let Self { what, key, .. } = self;
        let detail = format!(
            "Limit of {what} of one token reached ({per_second} per second). Send fewer, or raise `{key}`."
        );
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail);
        let seconds = u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
        problem.with("limit", per_second).retry_after(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_beyond_its_rate_gets_the_limit_and_root_has_none() {
        let token = Caller::named("one".to_owned(), Vec::new(), None);
        let rates = Rates::new("requests", "limits.x", Arc::new(signalbox_access::Rates::new(10)));
        rates.take(&token, 10, 5_000).unwrap();
        let refused = rates.take(&token, 1, 5_000).unwrap_err();
        assert_eq!((refused.status().as_u16(), &*refused.code()), (429, "token_limit_reached"));
        assert!(refused.detail().contains("(10 per second)") && refused.detail().contains("limits.x"));
        assert!(rates.take(&token.for_person("ann".to_owned()), 1, 5_000).is_ok(), "another person");
        for _ in 0..2 {
            assert!(rates.take(&Caller::root(), 1_000, 5_000).is_ok());
        }
    }
}
