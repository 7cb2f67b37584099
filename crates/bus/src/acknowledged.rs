//! The calls that the fabric acknowledged recently, and which of them a new primary does not have.
//!
//! Redis acknowledges a write before its replicas have it. If the primary fails then, the promoted replica lacks the
//! write, although the publisher got the answer that its events are accepted. Nothing can repair this, but it must be
//! reported. Every shard stores the sequence number of each pacemaker's last call. If that number is lower than one for
//! which this pacemaker has got a reply, the shard lost calls.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// How many calls are remembered: more than a replica that is connected can be behind.
const MAX_CALLS: usize = 4096;
/// How long a call is remembered. The fabric keeps the last sequence longer (`REPLY_MS` in publish.lua), so it is not
/// absent because it expired.
const LIFETIME: Duration = Duration::from_secs(300);

/// The calls of one shard, oldest first.
#[derive(Debug, Default)]
pub(super) struct Acknowledged(VecDeque<Call>);

#[derive(Debug)]
struct Call {
    sequence: u64,
    events: u64,
    at: Instant,
}

impl Acknowledged {
    /// Remembers a call with its number of accepted events.
    pub(super) fn note(&mut self, sequence: u64, events: u64) {
        if self.0.len() == MAX_CALLS {
            self.0.pop_front();
        }
        self.0.push_back(Call { sequence, events, at: Instant::now() });
    }

    /// The sequence that the shard must at least have; 0 if none is known.
    pub(super) fn last(&mut self) -> u64 {
        if self.0.back().is_some_and(|call| call.at.elapsed() > LIFETIME) {
            self.0.clear();
        }
        self.0.back().map_or(0, |call| call.sequence)
    }

    /// The numbers of calls and events that a shard lost whose last sequence is `found`. They are forgotten.
    pub(super) fn take_lost(&mut self, found: u64) -> (u64, u64) {
        let lost = self.0.iter().filter(|call| call.sequence > found);
        let numbers = lost.fold((0, 0), |(calls, events), call| (calls + 1, events + call.events));
        self.0.clear();
        numbers
    }
}
