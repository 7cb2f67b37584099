//! How facts change metadata, and which paths a change mentions.
//!
//! A metadata trigger fires by *mention*: its path is in the update, whether or not the value changes. So a repeated
//! value triggers again, and an update without the path never does.

use serde_json::{Map, Value as Json};

use crate::definition::Path;

/// Maximum size of metadata as compact JSON, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// Maximum number of nested objects and lists, including the outermost.
pub const MAX_LEVELS: usize = 32;

/// Why the metadata would be invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    /// The metadata is not an object.
    #[error("metadata must be an object")]
    NoObject,
    /// The metadata is too large.
    #[error("metadata would have {0} bytes; the maximum is {MAX_BYTES}")]
    Bytes(usize),
    /// The metadata is nested too deeply.
    #[error("metadata would have more than {MAX_LEVELS} levels")]
    Levels,
}

/// Merges an update into metadata: objects merge deeply, lists and scalars are replaced, null is stored.
pub fn merge(metadata: &mut Json, update: &Json) {
    let Json::Object(update) = update else {
        metadata.clone_from(update);
        return;
    };
    let object = as_object(metadata);
    for (key, value) in update {
        match object.get_mut(key) {
            Some(found) => merge(found, value),
            None => {
                object.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Applies a JSON merge patch (RFC 7396) to metadata: like [`merge`], but null removes the key.
pub fn patch(metadata: &mut Json, update: &Json) {
    let Json::Object(update) = update else {
        metadata.clone_from(update);
        return;
    };
    let object = as_object(metadata);
    for (key, value) in update {
        if value.is_null() {
            object.remove(key);
        } else {
            patch(object.entry(key).or_insert(Json::Null), value);
        }
    }
}

/// Replaces a value that is not an object by an empty object.
fn as_object(value: &mut Json) -> &mut Map<String, Json> {
    if !value.is_object() {
        *value = Json::Object(Map::new());
    }
    match value {
        Json::Object(object) => object,
        // Replaced by an object above.
        _ => unreachable!("an object"),
    }
}

/// The update that merges `data` at a path.
pub fn at_path(path: &Path, data: Json) -> Json {
    path.keys().iter().rev().fold(data, |value, key| Json::Object(Map::from_iter([(key.to_string(), value)])))
}

/// Whether an update affects a path: it contains the path, or replaces a value above it with something other
/// than an object.
pub fn mentions(update: &Json, path: &Path) -> bool {
    let mut found = update;
    for key in path.keys() {
        match found {
            Json::Object(object) => match object.get(&**key) {
                Some(below) => found = below,
                None => return false,
            },
            // It replaces a value above the path.
            _ => return true,
        }
    }
    true
}

/// Checks that this can be the metadata of a label.
///
/// # Errors
/// The limit that it exceeds, or that it is not an object.
pub fn check(metadata: &Json) -> Result<(), TooMuch> {
    if !metadata.is_object() {
        return Err(TooMuch::NoObject);
    }
    if !within(metadata, MAX_LEVELS) {
        return Err(TooMuch::Levels);
    }
    match length(metadata) {
        bytes if bytes > MAX_BYTES => Err(TooMuch::Bytes(bytes)),
        _ => Ok(()),
    }
}

fn within(value: &Json, levels: usize) -> bool {
    match value {
        Json::Object(object) => levels > 0 && object.values().all(|value| within(value, levels - 1)),
        Json::Array(list) => levels > 0 && list.iter().all(|value| within(value, levels - 1)),
        _ => true,
    }
}

/// The length as compact JSON, without serializing it into memory.
fn length(value: &Json) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        // Counting cannot fail. If it did, the metadata would be rejected as too large.
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            (0..3_i64).prop_map(Json::from),
            "[ab]{0,1}".prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Json::from),
                proptest::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    fn any_object() -> impl Strategy<Value = Json> {
        any_json().prop_map(|json| if json.is_object() { json } else { json!({ "a": json }) })
    }

    fn any_path() -> impl Strategy<Value = Path> {
        proptest::collection::vec("[abc]".prop_map(String::into_boxed_str), 0..4).prop_map(Path::new)
    }

    fn merged(mut metadata: Json, update: &Json) -> Json {
        merge(&mut metadata, update);
        metadata
    }

    proptest! {
        #[test]
        fn an_update_that_is_repeated_changes_nothing_more(metadata in any_object(), update in any_object()) {
            let once = merged(metadata, &update);
            prop_assert_eq!(merged(once.clone(), &update), once);
        }

        #[test]
        fn nothing_but_what_is_mentioned_changes(metadata in any_object(), update in any_object(), path in any_path()) {
            let after = merged(metadata.clone(), &update);
            if path.of(&metadata) != path.of(&after) {
                prop_assert!(mentions(&update, &path), "{} {} {}", path, metadata, after);
            }
            let mut patched = metadata.clone();
            patch(&mut patched, &update);
            if path.of(&metadata) != path.of(&patched) {
                prop_assert!(mentions(&update, &path), "{} {} {}", path, metadata, patched);
            }
        }

        #[test]
        fn a_stored_value_is_at_its_path(metadata in any_object(), path in any_path(), data in any_object()) {
            let update = at_path(&path, data.clone());
            prop_assert!(mentions(&update, &path));
            let whole = merged(Json::Object(Map::new()), &update);
            prop_assert_eq!(path.of(&whole), &data);
            let after = merged(metadata, &update);
            // Every leaf of the data is present; nested objects may have kept additional keys.
            for (key, value) in data.as_object().unwrap().iter().filter(|(_, value)| !value.is_object()) {
                prop_assert_eq!(path.of(&after).get(key), Some(value));
            }
        }

        #[test]
        fn a_merge_patch_follows_the_rfc(metadata in any_object(), update in any_object()) {
            fn rfc(target: Json, patch: &Json) -> Json {
                let Json::Object(patch) = patch else { return patch.clone() };
                let mut target = match target { Json::Object(object) => object, _ => Map::new() };
                for (name, value) in patch {
                    if value.is_null() {
                        target.remove(name);
                    } else {
                        let old = target.remove(name).unwrap_or(Json::Null);
                        target.insert(name.clone(), rfc(old, value));
                    }
                }
                Json::Object(target)
            }
            let mut patched = metadata.clone();
            patch(&mut patched, &update);
            prop_assert_eq!(patched, rfc(metadata, &update));
        }
    }

    #[test]
    fn paths_are_mentioned_above_at_and_below() {
        let path = |text: &str| crate::definition::metadata_path(text).unwrap();
        for (update, trigger, fires) in [
            (json!({"user": {"plan": 1}}), "user.plan", true),
            (json!({"user": {"plan": 1}}), "user", true),
            (json!({"user": {"plan": 1}}), "metadata", true),
            (json!({"user": {"plan": 1}}), "user.plan.name", true),
            (json!({"user": {"plan": {}}}), "user.plan.name", false),
            (json!({"user": {"plan": {}}}), "user.plan", true),
            (json!({"user": {}}), "user.plan", false),
            (json!({"user": null}), "user.plan", true),
            (json!({"user": [1]}), "user.0", true),
            (json!({"other": 1}), "user", false),
            (json!({}), "user", false),
        ] {
            assert_eq!(mentions(&update, &path(trigger)), fires, "{update} {trigger}");
        }
    }

    #[test]
    fn null_is_stored_or_removes() {
        let metadata = json!({"a": {"b": 1, "c": 2}});
        assert_eq!(merged(metadata.clone(), &json!({"a": {"b": null}})), json!({"a": {"b": null, "c": 2}}));
        let mut patched = metadata;
        patch(&mut patched, &json!({"a": {"b": null}}));
        assert_eq!(patched, json!({"a": {"c": 2}}));
    }

    #[test]
    fn the_limits_are_exact() {
        assert_eq!(check(&json!([])), Err(TooMuch::NoObject));
        let of = |bytes: usize| json!({"a": "x".repeat(bytes - 8)});
        assert_eq!(check(&of(MAX_BYTES)), Ok(()));
        assert_eq!(check(&of(MAX_BYTES + 1)), Err(TooMuch::Bytes(MAX_BYTES + 1)));
        let deep = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({ "a": inner }));
        assert_eq!(check(&deep(MAX_LEVELS)), Ok(()));
        assert_eq!(check(&deep(MAX_LEVELS + 1)), Err(TooMuch::Levels));
        assert_eq!(check(&json!({"a": deep(MAX_LEVELS)})), Err(TooMuch::Levels));
    }
}
