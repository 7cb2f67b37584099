//! The source of time for scripts.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{Error, Redis, Role};

/// The clock of scripts: their server's, or one that is passed in.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The server's own (`TIME`).
    #[default]
    Server,
    /// Unix milliseconds that the owner of the value advances.
    Fixed(Arc<AtomicU64>),
}

impl Clock {
    /// The time argument of scripts: empty for their server's time.
    pub fn argument(&self) -> String {
        match self {
            Self::Server => String::new(),
            Self::Fixed(now_ms) => now_ms.load(Ordering::SeqCst).to_string(),
        }
    }

    /// The time that scripts see on `redis`, in unix milliseconds.
    pub async fn now_ms<R: Role>(&self, redis: &Redis<R>) -> Result<u64, Error> {
        match self {
            Self::Server => redis.now_ms().await,
            Self::Fixed(now_ms) => Ok(now_ms.load(Ordering::SeqCst)),
        }
    }
}
