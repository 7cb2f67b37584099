//! Whose records in the audit log are frequent. Pure.
//!
//! The audit log is limited, and a caller can make changes at will. Records of a caller with many are kept apart, so that they
//! displace none of the others. Each pacemaker counts for itself, from its start.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Bytes of records, about a thousand of them, that are not yet frequent.
const BURST: u64 = 1 << 20;
/// The bytes that are added per second, up to [`BURST`]: about two thousand records a day.
const PER_SECOND: u64 = 16;
/// Beyond this number of callers, those that have written nothing lately are forgotten.
const MAX_CALLERS: usize = 10_000;

/// What each caller has written lately.
#[derive(Debug, Default)]
pub(super) struct Frequent(Mutex<HashMap<String, Written>>);

#[derive(Debug, Clone, Copy, Default)]
struct Written {
    bytes: u64,
    at_ms: u64,
}

impl Written {
    fn at(self, now_ms: u64) -> Self {
        let seconds = now_ms.saturating_sub(self.at_ms) / 1000;
        match seconds {
            0 => self,
            _ => Self { bytes: self.bytes.saturating_sub(seconds * PER_SECOND), at_ms: now_ms },
        }
    }
}

impl Frequent {
    /// Counts a record of `bytes`, at a time in unix milliseconds. Whether it is one of many.
    pub(super) fn take(&self, caller: &str, bytes: usize, now_ms: u64) -> bool {
        let mut callers = self.0.lock();
        if callers.len() >= MAX_CALLERS && !callers.contains_key(caller) {
            callers.retain(|_, written| written.at(now_ms).bytes > 0);
        }
        let fresh = Written { bytes: 0, at_ms: now_ms };
        let written = callers.entry(caller.to_owned()).or_insert(fresh);
        let mut now = written.at(now_ms);
        now.bytes += bytes as u64;
        if now.bytes > BURST {
            return true;
        }
        *written = now;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_frequent_beyond_a_burst_and_a_rate() {
        let frequent = Frequent::default();
        let kept = (0..2_000).filter(|_| !frequent.take("robot", 1_024, 1_000)).count();
        assert_eq!(kept, 1_024);
        assert!(!frequent.take("person", 1_024, 1_000), "others are not affected");
        assert!(frequent.take("robot", 1_024, 64_000), "63 s are not enough for a record");
        assert!(!frequent.take("robot", 1_024, 65_000));
        assert!(frequent.take("robot", 1_024, 65_999));
        assert!(!frequent.take("robot", 1 << 20, 1_000 + 86_400_000), "after a day, everything is forgotten");
    }

    #[test]
    fn callers_without_records_are_forgotten() {
        let frequent = Frequent::default();
        for caller in 0..MAX_CALLERS {
            frequent.take(&caller.to_string(), 16, 0);
        }
        frequent.take("new", 16, 1_000);
        assert_eq!(frequent.0.lock().len(), 1);
    }
}
