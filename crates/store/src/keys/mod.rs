//! Every key name of Signalbox.
//!
//! The builders create [`crate::Key`]s that only fit their own server. Each key space has a catalog with the pattern, type,
//! lifetime, writer and readers of each key. `docs/keys.md` contains the same rows, and a test compares the two. Another test
//! scans the servers of a running system and fails on a key that matches no row.

/// Declares keys: the name as a format string with the parts that vary, the Redis type, the lifetime and, unless both are
/// the pacemaker, writer and readers. Each key becomes a row of `CATALOG` and a function that builds its [`crate::Key`].
/// Keys that only scripts build come last, with `_` in place of a function.
///
/// `impl Keys(part)` declares keys that exist in every shard. They become methods of `Keys`, a tuple of the shard's tag and
/// further parts of the names.
macro_rules! keys {
    ($space:ident: $(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) =
            $pattern:literal, $kind:literal, $lifetime:literal $(, $writer:literal => $readers:literal)?;
    )*) => {
        /// The rows of `docs/keys.md` for this server.
        pub const CATALOG: &[super::Entry] =
            &[$(super::row($pattern, $kind, $lifetime)$(.of($writer, $readers))?),*];
        $(
            $(#[$doc])*
            pub fn $name($($arg: $type),*) -> crate::Key<crate::$space> {
                crate::Key::new(format!($pattern))
            }
        )*
    };
    ($(impl $keys:ident $parts:tt {
        $($(#[$doc:meta])* $name:ident $args:tt = $pattern:literal, $kind:literal, $lifetime:literal;)*
        $(_ = $built:literal, $built_kind:literal, $built_lifetime:literal;)*
    })*) => {
        /// The rows of `docs/keys.md` for the keys of this module.
        pub const CATALOG: &[super::Entry] = &[$(
            $(super::row($pattern, $kind, $lifetime),)*
            $(super::row($built, $built_kind, $built_lifetime),)*
        )*];
        $(impl $keys<'_> {
            $(keys! { @method $parts $(#[$doc])* $name $args $pattern })*
        })*
    };
    (@method ($($part:ident),*) $(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $pattern:literal) => {
        $(#[$doc])*
        pub fn $name(&self $(, $arg: $type)*) -> crate::Key<crate::FabricSpace> {
            let Self(tag $(, $part)*) = self;
            crate::Key::new(format!("{}{}", tag.as_str(), format_args!($pattern)))
        }
    };
}
pub mod bus;
pub mod fabric;
pub mod machines;
pub mod objects;
pub mod queues;
pub mod routes;
pub mod stats;

/// A row of the catalog, which describes one kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The name, with `{placeholders}` for the parts that vary.
    pub pattern: &'static str,
    /// The Redis type, as returned by `TYPE` (`set`, `hash`, …), or `channel`.
    pub kind: &'static str,
    /// Its lifetime.
    pub lifetime: &'static str,
    /// Its writers.
    pub writer: &'static str,
    /// Its readers.
    pub readers: &'static str,
}

impl Entry {
    const fn of(self, writer: &'static str, readers: &'static str) -> Self {
        Self { writer, readers, ..self }
    }

    /// Whether `name` is a key of this row. A placeholder matches at least one character.
    pub fn describes(&self, name: &str) -> bool {
        matches(self.pattern, name)
    }
}

/// A row of a key that only pacemakers write and read.
const fn row(pattern: &'static str, kind: &'static str, lifetime: &'static str) -> Entry {
    Entry { pattern, kind, lifetime, writer: "pacemaker", readers: "pacemaker" }
}

/// Matches literal parts in order. Patterns are short, so backtracking is cheap enough for the tests and tools that use it.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((literal, rest)) = pattern.split_once('{') else { return pattern == name };
    let Some(name) = name.strip_prefix(literal) else { return false };
    let Some((_, rest)) = rest.split_once('}') else { return false };
    name.char_indices()
        .skip(1)
        .map(|(at, _)| at)
        .chain([name.len()])
        .any(|at| at > 0 && matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_placeholder_matches_at_least_one_character() {
        assert!(matches("instances:{hostname}", "instances:a.example"));
        assert!(!matches("instances:{hostname}", "instances:"));
        assert!(!matches("instances:{hostname}", "instance:a"));
        assert!(matches("position:{node}:file", "position:a:b:file"));
        assert!(!matches("position:{node}:file", "position::file"));
        assert!(matches("serial", "serial"));
        assert!(!matches("serial", "serials"));
    }
}
