//! How many requests read the statistics at a time. One token has some of the places, and its other requests wait for them.
//!
//! A request can read a thousand version types. Without a limit, the requests of one token would keep the stats Redis and this
//! process, which also reports the router, from everything else.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::{Problem, auth::Credential};

/// The maximum number of requests that read at a time, and of one token's.
const PLACES: usize = 4;
const PER_TOKEN: usize = 2;
/// The maximum number of one token's requests that read or wait.
const REQUESTS_PER_TOKEN: usize = 34;
/// How long a request waits for a place.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tokens that are remembered. Beyond that, those without a request are forgotten.
const MAX_TOKENS: usize = 1024;

/// The places, by the digest of the token. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    tokens: Arc<Mutex<HashMap<[u8; 32], Own>>>,
}

/// The requests of one token, and those that read.
#[derive(Debug, Clone)]
struct Own {
    requests: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

/// A place that is held until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _held: [OwnedSemaphorePermit; 3],
}

impl Default for Places {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(PLACES)), tokens: Arc::default() }
    }
}

impl Places {
    /// Takes a place, if needed after others.
    pub(super) async fn take(&self, credential: &Credential) -> Result<Place, Problem> {
        let own = self.of(credential.digest);
        let deadline = Instant::now() + PATIENCE;
        let request = own.requests.try_acquire_owned().map_err(|_| token_limit())?;
        let place = timeout_at(deadline, own.places.acquire_owned()).await.map_err(|_| token_limit())?;
        let any = timeout_at(deadline, Arc::clone(&self.all).acquire_owned()).await;
        let any = any.map_err(|_| {
            let detail = format!("Limit of requests that read statistics on this router reached ({PLACES}).");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_waiting", detail)
        })?;
        match (place, any) {
            (Ok(place), Ok(any)) => Ok(Place { _held: [request, place, any] }),
            // The semaphores are never closed.
            _ => Err(token_limit()),
        }
    }

    fn of(&self, digest: [u8; 32]) -> Own {
        let mut tokens = self.tokens.lock();
        if tokens.len() >= MAX_TOKENS {
            tokens.retain(|_, own| own.requests.available_permits() < REQUESTS_PER_TOKEN);
        }
        let own = || Own {
            requests: Arc::new(Semaphore::new(REQUESTS_PER_TOKEN)),
            places: Arc::new(Semaphore::new(PER_TOKEN)),
        };
        tokens.entry(digest).or_insert_with(own).clone()
    }
}

fn token_limit() -> Problem {
    let detail = format!(
        "Limit of requests of one token that read statistics reached ({PER_TOKEN}, and {} that wait). Send fewer at a time.",
        REQUESTS_PER_TOKEN - PER_TOKEN
    );
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "token_limit_reached", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u8) -> Credential {
        Credential { digest: [number; 32], root: false }
    }

    #[tokio::test(start_paused = true)]
    async fn one_token_has_a_part_of_the_places_and_its_other_requests_wait() {
        let places = Places::default();
        let held = [places.take(&token(1)).await.unwrap(), places.take(&token(1)).await.unwrap()];
        let refused = places.take(&token(1)).await.unwrap_err();
        assert_eq!(refused.code(), "token_limit_reached", "after it has waited");
        let others = [places.take(&token(2)).await.unwrap(), places.take(&token(2)).await.unwrap()];
        assert_eq!(places.take(&token(3)).await.unwrap_err().code(), "too_many_waiting");
        let one = token(1);
        let (waiting, ()) = tokio::join!(places.take(&one), async {
            tokio::time::sleep(PATIENCE / 2).await;
            drop(held);
        });
        drop((waiting.unwrap(), others));
        // Beyond those that wait, requests are refused immediately.
        let crowd = (0..=REQUESTS_PER_TOKEN).map(|_| async { places.take(&token(1)).await.map(drop) });
        let busy = [places.take(&token(1)).await.unwrap(), places.take(&token(1)).await.unwrap()];
        let refused = futures_util::future::join_all(crowd).await.into_iter().filter(Result::is_err).count();
        assert_eq!(refused, REQUESTS_PER_TOKEN + 1);
        drop(busy);
        assert!(places.take(&token(1)).await.is_ok());
    }
}
