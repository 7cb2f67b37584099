//! Which queues a message goes into.
//!
//! There is one compiled pattern for each queue, and not one set of all: a set has one size limit, so one large valid
//! pattern would break all the others. The result for `tenant:type:name` is cached while the queues stay the
//! same, which makes matching cheap: most messages have a name that was seen before.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::RwLock;

use super::{Definition, pattern::Pattern};

/// Maximum number of cached names. If it is exceeded, the cache is cleared.
const REMEMBERED: usize = 65_536;

/// A queue with its compiled pattern.
#[derive(Debug, Clone)]
pub struct Matchable {
    /// Its name.
    pub name: Arc<str>,
    /// Its definition.
    pub definition: Arc<Definition>,
    /// `None` if the stored pattern is invalid, for example because a newer version wrote it. Then the queue
    /// receives nothing, and other queues are not affected.
    pattern: Option<Pattern>,
}

/// All queues in one version of the registry.
#[derive(Debug, Default)]
pub struct Matcher {
    queues: Vec<Matchable>,
    found: RwLock<HashMap<String, Arc<[usize]>>>,
}

impl Matcher {
    /// Compiles the patterns that are not compiled in `before`.
    pub fn new(queues: &BTreeMap<String, Definition>, before: &Self) -> Self {
        let known: HashMap<&str, &Matchable> =
            before.queues.iter().map(|queue| (&*queue.definition.pattern, queue)).collect();
        let queues = queues
            .iter()
            .map(|(name, definition)| Matchable {
                name: name.as_str().into(),
                pattern: match known.get(definition.pattern.as_str()) {
                    Some(queue) => queue.pattern.clone(),
                    None => compile(name, &definition.pattern),
                },
                definition: Arc::new(definition.clone()),
            })
            .collect();
        Self { queues, found: RwLock::default() }
    }

    /// Whether there are no queues.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A queue by its name.
    pub fn get(&self, name: &str) -> Option<&Matchable> {
        let place = self.queues.binary_search_by(|queue| (*queue.name).cmp(name)).ok()?;
        self.queues.get(place)
    }

    /// The queue at an index that [`Self::matching`] returned.
    pub fn at(&self, place: usize) -> Option<&Matchable> {
        self.queues.get(place)
    }

    /// The indexes of the queues that accept `message`, a `tenant:type:name`.
    pub fn matching(&self, message: &str) -> Arc<[usize]> {
        if self.queues.is_empty() {
            return Arc::default();
        }
        if let Some(found) = self.found.read().get(message) {
            return Arc::clone(found);
        }
        let matches = |queue: &Matchable| queue.pattern.as_ref().is_some_and(|one| one.matches(message));
        let found: Arc<[usize]> = self
            .queues
            .iter()
            .enumerate()
            .filter(|(_, queue)| matches(queue))
            .map(|(place, _)| place)
            .collect();
        let mut remembered = self.found.write();
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        remembered.insert(message.to_owned(), Arc::clone(&found));
        found
    }
}

fn compile(queue: &str, pattern: &str) -> Option<Pattern> {
    Pattern::new(pattern)
        .inspect_err(|flaw| tracing::error!(queue, pattern, %flaw, "stored pattern not valid: the queue receives nothing"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_api::queues::NewQueue;

    fn queues(patterns: &[(&str, &str)]) -> BTreeMap<String, Definition> {
        let definition = |pattern: &str| {
            let wanted = NewQueue { pattern: ".*".into(), ..NewQueue::default() };
            Definition { pattern: pattern.into(), ..Definition::new("q", wanted, None).unwrap() }
        };
        patterns.iter().map(|(name, pattern)| ((*name).to_owned(), definition(pattern))).collect()
    }

    fn names(matcher: &Matcher, message: &str) -> Vec<String> {
        matcher.matching(message).iter().map(|place| matcher.at(*place).unwrap().name.to_string()).collect()
    }

    #[test]
    fn a_message_goes_into_every_queue_that_takes_it() {
        let matcher = Matcher::new(
            &queues(&[("all", ".*"), ("five", "5:.*"), ("mail", ".*:mail:.*")]),
            &Matcher::default(),
        );
        assert_eq!(names(&matcher, "5:mail:sent"), ["all", "five", "mail"]);
        assert_eq!(names(&matcher, "55:page:x"), ["all"]);
        assert_eq!(names(&matcher, "55:page:x"), ["all"], "remembered");
        assert_eq!(matcher.get("five").unwrap().definition.pattern, "5:.*");
        assert!(matcher.get("four").is_none());
    }

    #[test]
    fn a_pattern_that_cannot_be_read_breaks_no_other_queue() {
        let matcher = Matcher::new(&queues(&[("bad", "("), ("good", ".*")]), &Matcher::default());
        assert_eq!(names(&matcher, "5:mail:sent"), ["good"]);
    }

    #[test]
    fn cached_matches_hold_for_one_version_only() {
        let before = Matcher::new(&queues(&[("a", "5:.*")]), &Matcher::default());
        assert_eq!(names(&before, "6:x:y"), [""; 0]);
        let after = Matcher::new(&queues(&[("a", "6:.*")]), &before);
        assert_eq!(names(&after, "6:x:y"), ["a"]);
    }

    #[test]
    fn memory_is_bounded() {
        let matcher = Matcher::new(&queues(&[("all", ".*")]), &Matcher::default());
        for n in 0..REMEMBERED + 10 {
            matcher.matching(&format!("{n}:x:y"));
        }
        assert!(matcher.found.read().len() <= REMEMBERED);
    }
}
