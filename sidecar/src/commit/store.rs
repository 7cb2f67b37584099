//! Implements [`Store`] for the statistics Redis.

use signalbox_store::{Key, Kind, Script, Stats, StatsRole, StatsSpace, keys::stats};
use tokio::runtime::Handle;

use super::{Claim, Commit, Error, Outcome, Store, Tally, Window};
use crate::{
    fold::Field,
    place::{FileId, Place},
};

static CLAIM: Script<StatsRole> = Script::new("claim", include_str!("scripts/claim.lua"));
static COMMIT: Script<StatsRole> = Script::new("commit", include_str!("scripts/commit.lua"));

/// The position of one node in the statistics Redis, owned by one process.
#[derive(Debug)]
pub struct RedisStore {
    redis: Stats,
    runtime: Handle,
    position: Key<StatsSpace>,
    file: Key<StatsSpace>,
    owner: String,
    claim: u64,
}

impl RedisStore {
    /// Creates a store for `node`. `owner` identifies this process and must be new at each start. The methods block, so call
    /// them on a thread outside `runtime`.
    pub fn new(redis: Stats, runtime: Handle, node: &str, owner: impl Into<String>) -> Self {
        Self {
            redis,
            runtime,
            position: stats::position(node),
            file: stats::position_file(node),
            owner: owner.into(),
            claim: 0,
        }
    }
}

impl Store for RedisStore {
    fn claim(&mut self, again: bool) -> Result<Claim, Error> {
        let number = if again { self.claim } else { 0 };
        let call = CLAIM.call().key(&self.position).key(&self.file).arg(&self.owner).arg(number);
        let reply: Vec<String> = self.runtime.block_on(call.run(&self.redis))?;
        let reply = Reply(&reply);
        if reply.at(0)? == "fenced" {
            return Ok(Claim::Fenced { owner: reply.at(1)?.to_owned() });
        }
        self.claim = reply.number(2)?;
        let id =
            |at: usize| Ok::<_, Error>(if reply.at(at)?.is_empty() { None } else { Some(reply.number(at)?) });
        let fingerprint = Some(reply.at(7)?).filter(|text| !text.is_empty());
        let place = Place {
            position: reply.number(3)?,
            generation: reply.number(4)?,
            file: id(5)?.zip(id(6)?).map(|(device, inode)| FileId { device, inode }),
            fingerprint: fingerprint.map(str::parse).transpose().map_err(|_| broken())?,
            finished: reply.at(8)?.parse().map_err(|_| broken())?,
        };
        let tally = Tally {
            lines: reply.number(9)?,
            bad_lines: reply.number(10)?,
            gaps: reply.number(11)?,
            gap_bytes: reply.number(12)?,
        };
        let window = match reply.at(13)? {
            "" => None,
            text => Some(Window::parse(text, reply.number(14)?).map_err(|_| broken())?),
        };
        Ok(Claim::Owned { place, tally, window })
    }

    fn commit(&mut self, commit: &Commit<'_>) -> Result<Outcome, Error> {
        let Commit { from, to, fold, .. } = commit;
        let tally = commit.tally();
        let window = |window: Option<Window>| window.map_or_else(String::new, |window| window.to_string());
        // Two passes over the part: the keys of a script precede its arguments.
        let hashes: Vec<_> = commit.part.hashes().collect();
        let optional = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
        let mut call = COMMIT.call().key(&self.position).key(&self.file);
        for hash in &hashes {
            call = call.key(&hash.key);
        }
        call = call
            .arg(&self.owner)
            .arg(self.claim)
            .arg(from.generation)
            .arg(from.position)
            .arg(to.position)
            .arg(to.generation)
            .arg(optional(to.file.map(|file| file.device)))
            .arg(optional(to.file.map(|file| file.inode)))
            .arg(to.fingerprint.map_or_else(String::new, |fingerprint| fingerprint.to_string()))
            // The list changes only together with the generation.
            .arg(if from.generation == to.generation { "=".to_owned() } else { to.finished.to_string() })
            .arg(tally.lines)
            .arg(tally.bad_lines)
            .arg(fold.bad_sample().unwrap_or_default())
            .arg(tally.gaps)
            .arg(tally.gap_bytes)
            .arg(window(commit.under_way))
            .arg(commit.under_way.map_or(0, |window| window.done))
            .arg(window(commit.then))
            .arg(hashes.iter().filter(|hash| hash.is_ranking).count());
        for hash in &hashes {
            call = call.arg(hash.expire_at.unwrap_or(0)).arg(hash.fields.len());
            for (field, more) in hash.fields {
                call = match field {
                    Field::Metric(name) => call.arg(name),
                    Field::Number(number) => call.arg(number),
                    Field::Member(name) => call.arg(&**name),
                };
                call = call.arg(more);
            }
        }
        let reply: Vec<String> = self.runtime.block_on(call.run(&self.redis))?;
        let reply = Reply(&reply);
        if reply.at(0)? != "committed" {
            tracing::info!(
                owner = reply.at(1)?,
                claim = reply.at(2)?,
                "stored place changed, claiming again"
            );
            return Ok(Outcome::Elsewhere);
        }
        let refused = reply.number(1)?;
        if refused > 0 {
            tracing::error!(refused, first = reply.at(2)?, "increments rejected by the statistics Redis");
        }
        Ok(Outcome::Committed { refused })
    }
}

/// A reply of strings, in the order of the script's header.
struct Reply<'a>(&'a [String]);

impl<'a> Reply<'a> {
    fn at(&self, index: usize) -> Result<&'a str, Error> {
        self.0.get(index).map(String::as_str).ok_or_else(broken)
    }

    /// A number. A value that was never written is zero.
    fn number(&self, index: usize) -> Result<u64, Error> {
        match self.at(index)? {
            "" => Ok(0),
            text => text.parse().map_err(|_| broken()),
        }
    }
}

fn broken() -> Error {
    Error::new(Kind::Broken)
}
