//! Shards: parts of the fabric that need nothing of each other.
//!
//! An object's events, batches and jobs live in one shard, chosen by the hash of the object, and no script reaches
//! across two. The keys of a shard carry its hash tag, `{s0}bus:…`, so a Redis Cluster keeps them in one slot. A fabric
//! of one shard needs no tag, and its keys look as they do in the documentation.

use crate::Fabric;

/// How many shards there can be: the low six bits of an event's id name its shard.
pub const MAX_SHARDS: usize = 64;

/// What stands before the key names of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// The tag of shard `index` of `count`.
    pub fn new(index: usize, count: usize) -> Self {
        Self(if count > 1 { format!("{{s{index}}}") } else { String::new() })
    }

    /// The text: `{s3}`, or nothing when there is one shard.
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
    /// When `count` is not 1…[`MAX_SHARDS`]; the configuration is checked before.
    pub fn all(redis: &Fabric, count: usize) -> Vec<Self> {
        assert!((1..=MAX_SHARDS).contains(&count), "a fabric has 1 to {MAX_SHARDS} shards, not {count}");
        let redis = Self::home(redis, count);
        (0..count).map(|index| Self { index, tag: Tag::new(index, count), redis: redis.clone() }).collect()
    }

    /// The fabric as everything sees it that is not divided: its keys stand in the first shard, so that a cluster
    /// keeps them in one slot and scripts over several of them run there too.
    pub fn home(redis: &Fabric, count: usize) -> Fabric {
        redis.at_home(Tag::new(0, count).as_str())
    }

    /// Its number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What its key names start with.
    pub fn tag(&self) -> &Tag {
        &self.tag
    }

    /// Where it lives.
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
