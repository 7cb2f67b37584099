//! The words of an enum, which are written in one place for JSON's readers, scripts, metrics and the command.

/// Gives an enum its words. The type derives JSON with the same ones, which the tests below check.
macro_rules! words {
    ($type:ident { $($variant:ident: $word:literal),+ $(,)? }) => {
        impl $type {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word, as in JSON.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }

            /// The value of a word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }

            /// All words.
            pub fn words() -> impl Iterator<Item = &'static str> {
                Self::ALL.iter().map(|one| one.as_str())
            }
        }
    };
}

pub(crate) use words;

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use crate::{
        audit::Kind,
        objects::{OnFailure, Queued},
        routes::State,
        tokens::Scope,
    };

    fn json(values: &[impl Serialize]) -> Vec<String> {
        let word = |value| serde_json::from_value(serde_json::to_value(value).unwrap()).unwrap();
        values.iter().map(word).collect()
    }

    #[test]
    fn words_are_those_of_json() {
        assert_eq!(json(Kind::ALL), Kind::words().collect::<Vec<_>>());
        assert_eq!(json(OnFailure::ALL), OnFailure::words().collect::<Vec<_>>());
        assert_eq!(json(Queued::ALL), Queued::words().collect::<Vec<_>>());
        assert_eq!(json(Scope::ALL), Scope::words().collect::<Vec<_>>());
        assert_eq!(json(State::ALL), State::words().collect::<Vec<_>>());
    }

    #[test]
    fn a_word_has_at_most_one_value() {
        assert_eq!(Scope::from_word("facts"), Some(Scope::Facts));
        assert_eq!(Scope::from_word("root"), None);
    }
}
