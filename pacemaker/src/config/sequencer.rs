//! The keys of `[sequencer]`: in a file, in the environment and as flags.

use serde::Deserialize;

use super::Error;
use signalbox_sequencer::Options;

/// Writes each key once: its name, type, flag, environment variable, range and what `--help` says.
macro_rules! keys {
    ($($key:ident: $type:ty, $flag:literal, $env:literal, $range:expr, $help:literal;)*) => {
        /// One source of the keys of `[sequencer]`; the same struct for files and flags.
        #[derive(Debug, Default, Clone, Deserialize, clap::Args)]
        #[serde(deny_unknown_fields)]
        #[command(next_help_heading = "Sequencer")]
        pub(crate) struct SequencerLayer {
            $(
                #[doc = $help]
                #[arg(id = $flag, long = $flag, value_name = "N", env = $env)]
                $key: Option<$type>,
            )*
            /// Send events to backends; a pacemaker that does not only accepts them
            #[arg(id = "sequencer-serve", long = "sequencer-serve", value_name = "BOOL", env = "SIGNALBOX_PACEMAKER_SEQUENCER_SERVE")]
            serve: Option<bool>,
        }

        impl SequencerLayer {
            /// Fills what is missing from `under`.
            pub(super) fn or(self, under: Self) -> Self {
                Self { $($key: self.$key.or(under.$key),)* serve: self.serve.or(under.serve) }
            }

            /// The checked settings.
            pub(super) fn complete(self) -> Result<Options, Error> {
                Ok(Options {
                    $(
                        $key: {
                            let key = concat!("sequencer.", stringify!($key));
                            let value = super::required(key, self.$key)?;
                            let range: std::ops::RangeInclusive<$type> = $range;
                            if !range.contains(&value) {
                                let message = format!("must be between {} and {}", range.start(), range.end());
                                return Err(Error::Value { key, message });
                            }
                            value
                        },
                    )*
                    serve: super::required("sequencer.serve", self.serve)?,
                })
            }
        }
    };
}

keys! {
    lease_ms: u64, "sequencer-lease-ms", "SIGNALBOX_PACEMAKER_SEQUENCER_LEASE_MS", 100..=3_600_000, "Silence after which a worker's object is another's";
    quantum: u32, "sequencer-quantum", "SIGNALBOX_PACEMAKER_SEQUENCER_QUANTUM", 1..=1_000_000, "Events of one object in a row";
    first_pause_ms: u64, "sequencer-first-pause-ms", "SIGNALBOX_PACEMAKER_SEQUENCER_FIRST_PAUSE_MS", 1..=3_600_000, "Pause after the first failure";
    longest_pause_ms: u64, "sequencer-longest-pause-ms", "SIGNALBOX_PACEMAKER_SEQUENCER_LONGEST_PAUSE_MS", 1..=86_400_000, "Longest pause between two attempts";
    dead_events: u64, "sequencer-dead-events", "SIGNALBOX_PACEMAKER_SEQUENCER_DEAD_EVENTS", 1..=1_000_000_000, "Dead letters of one backend";
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{DEFAULTS, Layer};

    use super::*;

    #[test]
    fn the_commented_file_says_what_the_code_does() {
        let file = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap().sequencer.complete().unwrap();
        assert_eq!(format!("{file:#?}"), format!("{:#?}", Options::default()));
    }

    #[test]
    fn a_value_out_of_its_range_is_named() {
        let defaults = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap().sequencer;
        let layer = SequencerLayer { quantum: Some(0), ..SequencerLayer::default() };
        let error = layer.or(defaults).complete().unwrap_err().to_string();
        assert_eq!(error, "sequencer.quantum: must be between 1 and 1000000");
    }
}
