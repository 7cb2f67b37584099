//! Moments, as JSON shows them.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A moment, to the millisecond. JSON shows it as RFC 3339 in UTC, `2026-01-31T18:30:00.000Z`, and reads it with any offset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Timestamp);

impl Time {
    /// A moment in milliseconds since 1970. One that no calendar has becomes the last that RFC 3339 can write.
    pub fn from_ms(ms: u64) -> Self {
        let ms = i64::try_from(ms).ok();
        Self(ms.and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX))
    }

    /// A moment in seconds since 1970.
    pub fn from_seconds(seconds: u64) -> Self {
        Self::from_ms(seconds.saturating_mul(1000))
    }

    /// Milliseconds since 1970; 0 for an earlier moment.
    pub fn ms(self) -> u64 {
        u64::try_from(self.0.as_millisecond()).unwrap_or_default()
    }

    /// The moment for calculations with a calendar.
    pub fn timestamp(self) -> Timestamp {
        self.0
    }

    /// Reads a moment of a record that an earlier version stored as a number of milliseconds.
    ///
    /// # Errors
    /// If it is neither such a number nor a moment.
    pub fn stored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Stored::deserialize(deserializer).map(Stored::time)
    }

    /// The same of a moment that may be missing.
    ///
    /// # Errors
    /// As [`Self::stored`].
    pub fn stored_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        Ok(Option::<Stored>::deserialize(deserializer)?.map(Stored::time))
    }
}

/// A moment as an earlier version stored it, or this one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Ms(u64),
    Time(Time),
}

impl Stored {
    fn time(self) -> Time {
        match self {
            Self::Ms(ms) => Time::from_ms(ms),
            Self::Time(time) => time,
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3}", self.0)
    }
}

/// Whether this is a time of the year 9999 that is after the last moment that the calendar has. It is if it is read a year earlier:
/// both years have the same days.
fn is_after_last(text: &str) -> bool {
    let rest = text.strip_prefix("9999-");
    rest.is_some_and(|rest| format!("9998-{rest}").parse::<Timestamp>().is_ok())
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A calendar's other notations are not RFC 3339.
        let is_shaped =
            text.len() >= 20 && text.as_bytes()[10] == b'T' && text.is_ascii() && !text.contains('[');
        match text.parse() {
            Ok(time) if is_shaped => Ok(Self(time)),
            // Many write the last day of 9999 for never.
            Err(_) if is_shaped && is_after_last(text) => Ok(Self(Timestamp::MAX)),
            _ => Err(format!("expected a time such as 2026-01-31T18:30:00.000Z, found {text:?}")),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use utoipa::{
        PartialSchema, ToSchema,
        openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type},
    };

    impl PartialSchema for super::Time {
        fn schema() -> RefOr<Schema> {
            let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
            let example = [serde_json::Value::from("2026-01-31T18:30:00.000Z")];
            ObjectBuilder::new().schema_type(Type::String).format(Some(format)).examples(example).into()
        }
    }

    impl ToSchema for super::Time {
        fn name() -> Cow<'static, str> {
            "Time".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_milliseconds_and_is_read_with_any_offset() {
        let time = Time::from_ms(1_769_884_200_000);
        assert_eq!(serde_json::to_string(&time).unwrap(), r#""2026-01-31T18:30:00.000Z""#);
        assert_eq!(Time::from_ms(1_769_884_200_007).to_string(), "2026-01-31T18:30:00.007Z");
        for text in ["2026-01-31T18:30:00Z", "2026-01-31T19:30:00.0004+01:00"] {
            assert_eq!(text.parse::<Time>().unwrap().ms(), time.ms(), "{text}");
        }
        let wrong = [
            "",
            "now",
            "1769884200000",
            "2026-01-31",
            "2026-01-31T18:30:00",
            "2026-01-31 18:30:00Z",
            "2026-02-30T18:30:00Z",
            "9999-12-31T23:59:59xZ",
            "9999-12-31T23:59:59.....Z",
            "9999-12-31T23:59:59.1.2Z",
            "9999-12-31T23:59:59.Z",
            "9999-12-31T23:59:59",
            "9999-12-31 23:59:59Z",
            "9999-12-31T24:00:00Z",
            "9999-12-32T00:00:00Z",
            "9999-02-29T00:00:00Z",
            "9999-12-31T23:59:59Z[UTC]",
        ];
        for text in wrong {
            text.parse::<Time>().unwrap_err();
        }
        assert_eq!(Time::from_ms(u64::MAX), Time::from_seconds(u64::MAX));
        let never = [
            "9999-12-31T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59.999999Z",
            "9999-12-31T23:59:59+00:00",
            "9999-12-31T23:59:59-12:00",
            "9999-12-30T23:00:00Z",
            "9999-12-30T12:00:00.5-11:30",
        ];
        for text in never {
            assert_eq!(text.parse(), Ok(Time::from_ms(u64::MAX)), "{text}");
        }
        // An offset can also bring a time of that day back into the calendar.
        assert!("9999-12-31T00:00:00+14:00".parse::<Time>().unwrap() < Time::from_ms(u64::MAX));
    }

    #[test]
    fn a_stored_moment_may_be_a_number() {
        #[derive(Deserialize)]
        struct Stored {
            #[serde(deserialize_with = "Time::stored")]
            at: Time,
        }
        let read = |text: &str| serde_json::from_str::<Stored>(text).map(|stored| stored.at.ms());
        assert_eq!(
            read(r#"{"at":1769884200000}"#).unwrap(),
            read(r#"{"at":"2026-01-31T18:30:00.000Z"}"#).unwrap()
        );
        assert!(read(r#"{"at":true}"#).is_err());
        let option = |text: &str| {
            let mut deserializer = serde_json::Deserializer::from_str(text);
            Time::stored_option(&mut deserializer).map(|time| time.map(Time::ms))
        };
        assert_eq!((option("null").unwrap(), option("5").unwrap()), (None, Some(5)));
    }
}
