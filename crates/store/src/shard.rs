//! Shards: independent parts of the fabric.
//!
//! An object's events, batches and jobs live in one shard, chosen by the hash of the object, and no script reaches
//! across two. The keys of a shard carry its hash tag, `{s0}bus:…`, so a Redis Cluster keeps them in one slot. A fabric
//! of one shard needs no tag, and its keys look as they do in the documentation.

use crate::Fabric;

/// The maximum number of shards. The low six bits of an event's ID contain its shard.
pub const MAX_SHARDS: usize = 64;

/// The prefix of the key names of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// The tag of shard `index` of `count`.
    pub fn new(index: usize, count: usize) -> Self {
        Self(if count > 1 { format!("{{s{index}}}") } else { String::new() })
    }

    /// The text: `{s3}`, or empty if there is one shard.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One shard of the fabric.
#[derive(Debug, Clone)]
pub struct Shard {
    index: usize,
    tag: Tag,
    redis: Fabric,
}

impl Shard {
    /// All shards of a fabric behind one connection.
    ///
    /// # Panics
    /// If `count` is not 1…[`MAX_SHARDS`]. The configuration is validated before.
    pub fn all(redis: &Fabric, count: usize) -> Vec<Self> {
        assert!((1..=MAX_SHARDS).contains(&count), "a fabric has 1 to {MAX_SHARDS} shards, not {count}");
        let redis = Self::home(redis, count);
        (0..count).map(|index| Self { index, tag: Tag::new(index, count), redis: redis.clone() }).collect()
    }

    /// The fabric for keys that are not sharded. They are stored in the first shard, so that they are in one
    /// slot of a cluster and scripts can use several of them.
    pub fn home(redis: &Fabric, count: usize) -> Fabric {
        redis.at_home(Tag::new(0, count).as_str())
    }

    /// Its number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The prefix of its key names.
    pub fn tag(&self) -> &Tag {
        &self.tag
    }

    /// The connection to its server.
    pub fn redis(&self) -> &Fabric {
        &self.redis
    }
}

#[cfg(test)]
mod tests {
    use super::Tag;

    #[test]
    fn only_a_fabric_of_several_shards_has_tags() {
        assert_eq!(Tag::new(0, 1).as_str(), "");
        assert_eq!(Tag::new(3, 4).as_str(), "{s3}");
    }
}
