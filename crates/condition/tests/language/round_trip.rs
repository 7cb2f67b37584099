//! A printed condition is parsed as the same condition.

use proptest::prelude::*;
use signalbox_condition::{Condition, KnownFeeds};

use crate::{
    model::{program, write},
    setting::parse,
};

const GAPS: [&str; 6] = [" ", "  ", "\n", "\t", "\r\n", " # a comment ) or \"\n"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_condition_is_read_as_the_same(expr in program(), gaps in prop::collection::vec(0..GAPS.len(), 1..20)) {
        let mut gaps = gaps.iter().cycle().map(|n| GAPS[*n]);
        let text = write(&expr, &mut || gaps.next().unwrap_or(" "));
        let read = parse(&text);
        let printed = read.to_string();
        let again = parse(&printed);
        prop_assert_eq!(&again, &read, "{}\n{}", text, printed);
        prop_assert_eq!(again.to_string(), printed);
        // Space and comments are nothing.
        prop_assert_eq!(&parse(&write(&expr, &mut || " ")), &read);
        prop_assert!(read.variables().eq(again.variables()));
    }

    #[test]
    fn any_key_can_be_quoted(key in any::<String>()) {
        let condition = parse(&format!("metadata.{} = 1", serde_json::Value::from(key.clone())));
        let printed = condition.to_string();
        prop_assert_eq!(&parse(&printed), &condition, "{}", printed);
        let metadata = serde_json::Value::Object([(key, 1.into())].into_iter().collect());
        prop_assert!(crate::setting::Setting::with(metadata).truth(&printed).holds());
    }

    #[test]
    fn a_text_that_was_changed_anywhere_is_read_or_refused_with_its_place(expr in program(), at in any::<prop::sample::Index>(), with in any::<char>()) {
        let text = write(&expr, &mut || " ");
        let mut chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        chars[at] = with;
        let text: String = chars.into_iter().collect();
        match Condition::parse(&text, KnownFeeds::Any) {
            Ok(condition) => prop_assert_eq!(parse(&condition.to_string()), condition),
            Err(error) => {
                let line = text.split(['\n', '\r']).nth(error.line - 1);
                prop_assert!(line.is_none_or(|line| error.column <= line.chars().count() + 1), "{}", error);
            }
        }
    }
}
