//! What may befall a pacemaker between two of its calls of Redis. Outside tests nothing does; there a call can be told to be
//! the last one, or the answer to a commit to get lost.

#[cfg(test)]
pub(super) use tests::Fate;

/// Nothing happens.
#[cfg(not(test))]
#[derive(Debug, Clone, Default)]
pub(super) struct Fate {}

#[cfg(not(test))]
#[allow(clippy::unused_self, reason = "there is nothing to it outside tests")]
impl Fate {
    /// A call is about to be made, or was.
    pub(super) fn call(&self) {}

    /// Whether a commit is refused here, done or not.
    pub(super) fn refuses(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    };

    use tokio_util::sync::CancellationToken;

    /// Two fuses. What is not lit does not burn.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Fate {
        /// Cancelled when the pacemaker dies.
        pub(crate) death: CancellationToken,
        calls: Arc<AtomicI64>,
        commits: Arc<AtomicI64>,
    }

    impl Fate {
        /// It dies at the call of that number from now.
        pub(crate) fn dies_after(&self, calls: i64) {
            self.calls.store(calls, Ordering::SeqCst);
        }

        /// Of its commits, which count before and after they are made, the one of that number is refused.
        pub(crate) fn refuses_after(&self, commits: i64) {
            self.commits.store(commits, Ordering::SeqCst);
        }

        pub(crate) fn call(&self) {
            if self.calls.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.death.cancel();
            }
        }

        pub(crate) fn refuses(&self) -> bool {
            self.call();
            self.commits.fetch_sub(1, Ordering::SeqCst) == 1
        }
    }
}
