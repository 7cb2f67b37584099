//! How many bytes one token may have in the memory of this process at a time: of requests that arrive, and of responses that its
//! client has not read.

use std::{collections::HashMap, sync::Arc};

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Problem;

/// Maximum number of bytes of one token.
pub(crate) const MAX_BUFFERED: u64 = 64 << 20;

/// Bytes by token. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Buffered(Arc<Tokens>);

#[derive(Debug)]
struct Tokens {
    /// What is said to a token that has too many.
    advice: &'static str,
    held: Mutex<HashMap<String, Held>>,
    /// Notified of bytes that are freed.
    freed: Notify,
}

/// The bytes of one token.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    counted: u64,
    /// For what is about to be read: usually much less is needed.
    reserved: u64,
}

impl Buffered {
    /// `advice` is a sentence that says what to do.
    pub fn new(advice: &'static str) -> Self {
        Self(Arc::new(Tokens { advice, held: Mutex::default(), freed: Notify::new() }))
    }

    /// Whether a token may have further bytes. Those that are only reserved do not matter.
    ///
    /// # Errors
    /// 429 `token_limit_reached`.
    pub(crate) fn check(&self, token: &str) -> Result<(), Problem> {
        if self.0.held.lock().get(token).is_none_or(|held| held.counted < MAX_BUFFERED) {
            return Ok(());
        }
        Err(self.refused())
    }

    /// 429 `token_limit_reached`.
    pub(crate) fn refused(&self) -> Problem {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", self.0.advice);
        problem.with("limit", MAX_BUFFERED).retry_after(1)
    }

    /// Counts bytes, even beyond the limit. Returns also whether the token is within it.
    pub(crate) fn add(&self, token: String, bytes: u64) -> (BufferedBytes, bool) {
        let mut added = BufferedBytes { all: self.clone(), token, counted: 0, reserved: 0 };
        let is_within = added.set(bytes);
        (added, is_within)
    }

    /// Reserves bytes as soon as they are within the limit. A token without other bytes may have any number.
    pub(crate) async fn reserve(&self, token: &str, bytes: u64) -> BufferedBytes {
        loop {
            // From here on, nothing is freed unnoticed.
            let freed = self.0.freed.notified();
            {
                let mut all = self.0.held.lock();
                let held = all.entry(token.to_owned()).or_default();
                if *held == Held::default() || held.counted + held.reserved + bytes <= MAX_BUFFERED {
                    held.reserved += bytes;
                    return BufferedBytes {
                        all: self.clone(),
                        token: token.to_owned(),
                        counted: 0,
                        reserved: bytes,
                    };
                }
            }
            freed.await;
        }
    }
}

/// Bytes that are reserved or counted until this is dropped.
#[derive(Debug)]
pub struct BufferedBytes {
    all: Buffered,
    token: String,
    counted: u64,
    reserved: u64,
}

impl BufferedBytes {
    /// Counts this number of bytes, in place of what was counted or reserved. Returns whether the token is within its limit.
    pub(crate) fn set(&mut self, bytes: u64) -> bool {
        let tokens = &self.all.0;
        let mut all = tokens.held.lock();
        // Usually the token has an entry: its name is copied once for its requests, and not for each piece of a body.
        if !all.contains_key(&self.token) {
            all.insert(self.token.clone(), Held::default());
        }
        let mut is_within = true;
        if let Some(held) = all.get_mut(&self.token) {
            held.counted = held.counted.saturating_sub(self.counted) + bytes;
            held.reserved = held.reserved.saturating_sub(self.reserved);
            is_within = held.counted <= MAX_BUFFERED;
            if *held == Held::default() {
                all.remove(&self.token);
            }
        }
        drop(all);
        let is_less = bytes < self.counted + self.reserved;
        (self.counted, self.reserved) = (bytes, 0);
        if is_less {
            tokens.freed.notify_waiters();
        }
        is_within
    }

    /// Counts further bytes. Returns whether the token is within its limit.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        self.set(self.counted + bytes)
    }
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_are_reserved_when_earlier_ones_are_freed() {
        let unread = Buffered::new("read");
        let mut first = unread.reserve("one", MAX_BUFFERED + 1).await;
        unread.check("one").expect("they may not be needed");
        assert!(!first.set(MAX_BUFFERED + 1));
        assert_eq!(unread.check("one").unwrap_err().code(), "token_limit_reached");
        drop(unread.reserve("two", MAX_BUFFERED).await);
        let (second, ()) = tokio::join!(unread.reserve("one", 2), async {
            tokio::task::yield_now().await;
            assert!(first.set(MAX_BUFFERED - 2) && unread.check("one").is_ok());
        });
        assert!(first.grow(2) && !first.grow(1), "one more than the limit");
        drop((first, second));
        assert!(unread.0.held.lock().is_empty(), "a token without bytes is forgotten");
    }
}
