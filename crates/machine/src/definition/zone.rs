//! Time zones, of all labels or of each.

use std::fmt;

use jiff::tz::TimeZone;

use super::model::Path;

/// The rule that gives a label's time zone.
#[derive(Debug, Clone, PartialEq)]
pub enum ZoneRule {
    /// One zone for all labels.
    Fixed(Zone),
    /// The zone that the metadata names.
    Metadata {
        /// The metadata path.
        path: Path,
        /// The zone if the metadata names none, or an unknown one.
        default: Zone,
    },
}

/// A time zone with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    pub(crate) name: Box<str>,
    pub(crate) zone: TimeZone,
}

impl Zone {
    /// The zone with this name in the time zone database.
    pub fn named(name: &str) -> Option<Self> {
        // `Etc/Unknown` is a placeholder. A text that begins with a slash or a dot would be read as a file
        // name.
        let known = name.starts_with(|c: char| c.is_ascii_alphabetic()).then(|| TimeZone::get(name).ok());
        let zone = known.flatten().filter(|zone| !zone.is_unknown())?;
        Some(Self { name: zone.iana_name().unwrap_or(name).into(), zone })
    }

    /// UTC.
    pub fn utc() -> Self {
        Self { name: "UTC".into(), zone: TimeZone::UTC }
    }

    /// Its name in the time zone database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rules.
    pub fn rules(&self) -> &TimeZone {
        &self.zone
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
