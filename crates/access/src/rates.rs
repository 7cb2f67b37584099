//! How much one client may ask for per second: requests, and events to publish. Pure.
//!
//! Each client has a bucket that fills within a second. A request is accepted while the bucket is not empty, and may overdraw it:
//! an array that is larger than the bucket can still be published, and the following requests wait for it. Each pacemaker counts
//! for itself.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Buckets of one pacemaker. Beyond that, full ones are forgotten.
const MAX_BUCKETS: usize = 10_000;

/// The rates of all clients for one kind of work. What the API and state machines do counts together.
#[derive(Debug)]
pub struct Rates {
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

/// A client has used up its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateReached {
    /// The rate of one client, per second.
    pub per_second: u32,
    /// When the next request is accepted, in milliseconds from now.
    pub wait_ms: u64,
}

impl Rates {
    /// Every client may do `per_second`; 0 is no limit.
    pub fn new(per_second: u32) -> Self {
        Self { per_second, buckets: Mutex::default() }
    }

    /// Counts `count` for the client, at a time in unix milliseconds.
    ///
    /// # Errors
    /// The client has used up its rate. Nothing was counted.
    pub fn take(&self, client: &str, count: usize, now_ms: u64) -> Result<(), RateReached> {
        if self.per_second == 0 {
            return Ok(());
        }
        let full = Bucket { left: i64::from(self.per_second) * 1000, at_ms: now_ms };
        let mut buckets = self.buckets.lock();
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(client) {
            buckets.retain(|_, bucket| self.filled(*bucket, now_ms).left < full.left);
        }
        let bucket = match buckets.get_mut(client) {
            Some(bucket) => bucket,
            None => buckets.entry(client.to_owned()).or_insert(full),
        };
        *bucket = self.filled(*bucket, now_ms);
        if bucket.left > 0 {
            bucket.left -= i64::try_from(count).unwrap_or(i64::MAX / 2000) * 1000;
            return Ok(());
        }
        // One of them fits again after this time. The bucket gains `per_second` thousandths in a millisecond.
        let wait_ms = (1 - bucket.left).unsigned_abs() / u64::from(self.per_second);
        Err(RateReached { per_second: self.per_second, wait_ms })
    }

    /// The bucket with what it gained since it was last used.
    fn filled(&self, bucket: Bucket, now_ms: u64) -> Bucket {
        let rate = i64::from(self.per_second);
        let ms = i64::try_from(now_ms.saturating_sub(bucket.at_ms)).unwrap_or(i64::MAX);
        let left = bucket.left.saturating_add(ms.saturating_mul(rate)).min(rate * 1000);
        Bucket { left, at_ms: now_ms.max(bucket.at_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_rate_and_others_are_not_affected() {
        let rates = Rates::new(10);
        for _ in 0..10 {
            rates.take("one", 1, 5_000).unwrap();
        }
        assert_eq!(rates.take("one", 1, 5_000).unwrap_err().per_second, 10);
        assert!(rates.take("two", 1, 5_000).is_ok());
        assert!(rates.take("one", 1, 5_100).is_ok() && rates.take("one", 1, 5_100).is_err());
        // A clock that was set back neither fills nor blocks a bucket.
        assert!(rates.take("one", 1, 1_000).is_err() && rates.take("one", 1, 5_200).is_ok());
    }

    #[test]
    fn an_array_may_overdraw_the_bucket_and_later_requests_wait_for_it() {
        let rates = Rates::new(10);
        rates.take("one", 35, 0).unwrap();
        assert!(rates.take("one", 1, 2_500).is_err());
        assert!(rates.take("one", 1, 2_600).is_ok());
    }

    #[test]
    fn full_buckets_are_removed_and_zero_means_no_limit() {
        let rates = Rates::new(10);
        for number in 0..MAX_BUCKETS {
            rates.take(&number.to_string(), 1, 0).unwrap();
        }
        rates.take("late", 1, 60_000).unwrap();
        assert_eq!(rates.buckets.lock().len(), 1);
        let free = Rates::new(0);
        assert!((0..100).all(|_| free.take("one", 1_000, 0).is_ok()));
    }
}
