//! How much one token may ask for per second: requests, and events to publish.
//!
//! Each token has a bucket that fills within a second. A request is accepted while the bucket is not empty, and may overdraw it:
//! an array that is larger than the bucket can still be published, and the following requests wait for it. Each pacemaker counts
//! for itself. Root has no limit.

use std::collections::HashMap;

use axum::http::StatusCode;
use parking_lot::Mutex;

use super::Problem;
use signalbox_access::Caller;

/// Buckets of one pacemaker. Beyond that, full ones are forgotten.
const MAX_BUCKETS: usize = 10_000;

/// The rates of all tokens for one kind of work.
#[derive(Debug)]
pub struct Rates {
    /// The counted things, in the plural.
    what: &'static str,
    /// The configuration key of the limit.
    key: &'static str,
    /// 0: no limit.
    per_second: u32,
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// The remaining budget, in thousandths. Negative after a request that exceeded it.
    left: i64,
    at_ms: u64,
}

impl Rates {
    pub(crate) fn new(what: &'static str, key: &'static str, per_second: u32) -> Self {
        Self { what, key, per_second, buckets: Mutex::default() }
    }

    /// Counts `count` for the caller's token.
    ///
    /// # Errors
    /// 429 `token_limit_reached` if the token has used up its rate.
    pub(crate) fn take(&self, caller: &Caller, count: usize, now_ms: u64) -> Result<(), Problem> {
        if self.per_second == 0 || caller.is_root() {
            return Ok(());
        }
        let full = Bucket { left: i64::from(self.per_second) * 1000, at_ms: now_ms };
        let client = caller.limited_as();
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&*client) {
            buckets.retain(|_, bucket| self.filled(*bucket, now_ms).left < full.left);
        }
        let bucket = match buckets.get_mut(&*client) {
            Some(bucket) => bucket,
            None => buckets.entry(client.into_owned()).or_insert(full),
        };
        *bucket = self.filled(*bucket, now_ms);
        if bucket.left > 0 {
            bucket.left -= i64::try_from(count).unwrap_or(i64::MAX / 2000) * 1000;
            return Ok(());
        }
        // One of them fits again after this time. The bucket gains `per_second` thousandths in a millisecond.
        let wait_ms = (1 - bucket.left).unsigned_abs() / u64::from(self.per_second);
        drop(buckets);
        Err(self.reached(wait_ms))
    }

    /// The bucket with what it gained since it was last used.
    fn filled(&self, bucket: Bucket, now_ms: u64) -> Bucket {
        let rate = i64::from(self.per_second);
        let ms = i64::try_from(now_ms.saturating_sub(bucket.at_ms)).unwrap_or(i64::MAX);
        let left = bucket.left.saturating_add(ms.saturating_mul(rate)).min(rate * 1000);
        Bucket { left, at_ms: now_ms.max(bucket.at_ms) }
    }

    fn reached(&self, wait_ms: u64) -> Problem {
        let Self { what, key, per_second, .. } = self;
        let detail = format!(
            "Limit of {what} of one token reached ({per_second} per second). Send fewer, or raise `{key}`."
        );
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail);
        let seconds = u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
        problem.with("limit", *per_second).retry_after(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> Caller {
        Caller::named(name.to_owned(), Vec::new(), None)
    }

    #[test]
    fn a_token_has_its_rate_and_others_are_not_affected() {
        let rates = Rates::new("requests", "limits.x", 10);
        for _ in 0..10 {
            rates.take(&token("one"), 1, 5_000).unwrap();
        }
        let refused = rates.take(&token("one"), 1, 5_000).unwrap_err();
        assert_eq!((refused.status().as_u16(), &*refused.code()), (429, "token_limit_reached"));
        assert!(refused.detail().contains("(10 per second)") && refused.detail().contains("limits.x"));
        assert!(rates.take(&token("two"), 1, 5_000).is_ok());
        assert!(rates.take(&Caller::root(), 1_000, 5_000).is_ok());
        assert!(rates.take(&token("one"), 1, 5_100).is_ok() && rates.take(&token("one"), 1, 5_100).is_err());
        assert!(rates.take(&token("one").for_person("ann".to_owned()), 1, 5_000).is_ok(), "another person");
        // A clock that was set back neither fills nor blocks a bucket.
        assert!(rates.take(&token("one"), 1, 1_000).is_err() && rates.take(&token("one"), 1, 5_200).is_ok());
    }

    #[test]
    fn an_array_may_overdraw_the_bucket_and_later_requests_wait_for_it() {
        let rates = Rates::new("events", "limits.x", 10);
        rates.take(&token("one"), 35, 0).unwrap();
        assert!(rates.take(&token("one"), 1, 2_500).is_err());
        assert!(rates.take(&token("one"), 1, 2_600).is_ok());
    }

    #[test]
    fn full_buckets_are_removed_and_zero_means_no_limit() {
        let rates = Rates::new("requests", "limits.x", 10);
        for number in 0..MAX_BUCKETS {
            rates.take(&token(&number.to_string()), 1, 0).unwrap();
        }
        rates.take(&token("late"), 1, 60_000).unwrap();
        assert_eq!(rates.buckets.lock().len(), 1);
        let free = Rates::new("requests", "limits.x", 0);
        assert!((0..100).all(|_| free.take(&token("one"), 1_000, 0).is_ok()));
    }
}
