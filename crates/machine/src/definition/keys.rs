//! Every key of the format, by the map that contains it. The loader rejects all others, and a test compares the JSON
//! Schema with these.

pub(super) const FILE: [&str; 1] = ["state_machines"];
pub(super) const MACHINE: [&str; 8] =
    ["timezone", "hosts", "index", "feeds", "inputs", "webhooks", "limits", "states"];
pub(super) const ZONE: [&str; 2] = ["metadata", "default"];
pub(super) const FEED: [&str; 6] = ["name", "url", "stats", "timeout", "ttl", "on_error"];
pub(super) const ON_ERROR: [&str; 1] = ["default"];
pub(super) const STATS: [&str; 6] = ["version_type", "version", "application", "workspace", "node", "window"];
pub(super) const INPUT: [&str; 4] = ["topic", "label", "into", "create"];
pub(super) const WEBHOOK: [&str; 3] = ["match", "headers", "secret"];
pub(super) const LIMIT: [&str; 3] = ["rate", "per", "concurrent"];
pub(super) const GATE: [&str; 7] =
    ["gate", "exit_condition", "triggers", "deadline", "alert", "on_apply", "next"];
pub(super) const TRIGGER: [&str; 10] =
    ["metadata", "time", "days", "cron", "interval", "at", "event", "topic", "timezone", "grace"];
pub(super) const QUIET: [&str; 3] = ["from", "to", "timezone"];
pub(super) const NEXT: [&str; 6] = ["type", "state", "path", "destinations", "branches", "default"];
pub(super) const DESTINATION: [&str; 2] = ["value", "state"];
pub(super) const BRANCH: [&str; 2] = ["when", "state"];
pub(super) const ACTION: [&str; 15] = [
    "action", "webhook", "method", "body", "route", "publish", "timeout", "retry", "result", "on_error",
    "quiet", "deadline", "alert", "on_apply", "next",
];
pub(super) const RETRY: [&str; 5] = ["attempts", "first", "factor", "longest", "except"];
pub(super) const DEADLINE: [&str; 3] = ["after", "at", "next"];
pub(super) const ALERT: [&str; 2] = ["labels", "age"];
pub(super) const FAILURE: [&str; 3] = ["status", "next", "into"];
pub(super) const ROUTE: [&str; 4] = ["host", "shares", "register", "retire"];
pub(super) const SHARE: [&str; 2] = ["version_type", "percent"];
pub(super) const REGISTER: [&str; 2] = ["version_type", "instances"];
pub(super) const RETIRE: [&str; 2] = ["version_type", "drain"];
pub(super) const PUBLISH: [&str; 4] = ["topic", "type", "url", "data"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value as Json;

    use super::*;

    #[test]
    fn the_schema_has_the_keys_of_the_loader() {
        let schema: Json = serde_json::from_str(super::super::SCHEMA).unwrap();
        let maps: [(&str, &[&str]); 25] = [
            ("file", &FILE),
            ("machine", &MACHINE),
            ("zone", &ZONE),
            ("feed", &FEED),
            ("on_error", &ON_ERROR),
            ("stats", &STATS),
            ("input", &INPUT),
            ("webhook", &WEBHOOK),
            ("limit", &LIMIT),
            ("gate", &GATE),
            ("trigger", &TRIGGER),
            ("next", &NEXT),
            ("destination", &DESTINATION),
            ("branch", &BRANCH),
            ("action", &ACTION),
            ("retry", &RETRY),
            ("deadline", &DEADLINE),
            ("alert", &ALERT),
            ("quiet", &QUIET),
            ("failure", &FAILURE),
            ("route", &ROUTE),
            ("share", &SHARE),
            ("register", &REGISTER),
            ("retire", &RETIRE),
            ("publish", &PUBLISH),
        ];
        let mut closed = BTreeSet::new();
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            if definition["additionalProperties"] == Json::Bool(false) {
                closed.insert(name.as_str());
            }
        }
        assert_eq!(closed, maps.iter().map(|(name, _)| *name).collect());
        for (name, keys) in maps {
            let properties = schema["$defs"][name]["properties"].as_object().unwrap();
            let properties: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            assert_eq!(properties, keys.iter().copied().collect(), "{name}");
            for required in schema["$defs"][name]["required"].as_array().into_iter().flatten() {
                assert!(properties.contains(required.as_str().unwrap()), "{name} {required}");
            }
        }
        assert_eq!(schema["$ref"], "#/$defs/file");
    }

    #[test]
    fn references_of_the_schema_exist() {
        fn visit(value: &Json, defs: &Json) {
            match value {
                Json::Object(object) => {
                    if let Some(target) = object.get("$ref").and_then(Json::as_str) {
                        let name = target.strip_prefix("#/$defs/").unwrap();
                        assert!(defs.get(name).is_some(), "{target}");
                    }
                    object.values().for_each(|value| visit(value, defs));
                }
                Json::Array(list) => list.iter().for_each(|value| visit(value, defs)),
                _ => {}
            }
        }
        let schema: Json = serde_json::from_str(super::super::SCHEMA).unwrap();
        visit(&schema, &schema["$defs"]);
    }
}
