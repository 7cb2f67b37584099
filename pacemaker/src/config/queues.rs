//! The keys of `[queues]`: in a file, in the environment and as flags.

use serde::Deserialize;

use super::Error;
use signalbox_queues::Options;

/// Writes each key once: its name, type, flag, environment variable, range and what `--help` says.
macro_rules! keys {
    ($($key:ident: $type:ty, $flag:literal, $env:literal, $range:expr, $help:literal;)*) => {
        /// One source of the keys of `[queues]`; the same struct for files and flags.
        #[derive(Debug, Default, Clone, Deserialize, clap::Args)]
        #[serde(deny_unknown_fields)]
        #[command(next_help_heading = "Queues")]
        pub(crate) struct QueuesLayer {
            $(
                #[doc = $help]
                #[arg(id = $flag, long = $flag, value_name = "N", env = $env)]
                $key: Option<$type>,
            )*
        }

        impl QueuesLayer {
            /// Fills what is missing from `under`.
            pub(super) fn or(self, under: Self) -> Self {
                Self { $($key: self.$key.or(under.$key),)* }
            }

            /// The checked settings.
            pub(super) fn complete(self) -> Result<Options, Error> {
                Ok(Options {
                    $(
                        $key: {
                            let key = concat!("queues.", stringify!($key));
                            let value = super::required(key, self.$key)?;
                            let range: std::ops::RangeInclusive<$type> = $range;
                            if !range.contains(&value) {
                                let message = format!("must be between {} and {}", range.start(), range.end());
                                return Err(Error::Value { key, message });
                            }
                            value
                        },
                    )*
                })
            }
        }
    };
}

keys! {
    queues: usize, "queues-queues", "SIGNALBOX_PACEMAKER_QUEUES_QUEUES", 0..=10_000, "Queues in all";
    pull_messages: usize, "queues-pull-messages", "SIGNALBOX_PACEMAKER_QUEUES_PULL_MESSAGES", 1..=1_000, "Messages that one pull may ask for";
    pull_bytes: usize, "queues-pull-bytes", "SIGNALBOX_PACEMAKER_QUEUES_PULL_BYTES", 1024..=(256 << 20), "Bytes of messages in one answer";
    wait_seconds: u64, "queues-wait-seconds", "SIGNALBOX_PACEMAKER_QUEUES_WAIT_SECONDS", 0..=600, "The longest time that a pull may wait";
    waiting_pulls: usize, "queues-waiting-pulls", "SIGNALBOX_PACEMAKER_QUEUES_WAITING_PULLS", 0..=1_000_000, "Pulls that may wait at a time";
    dead_messages: u64, "queues-dead-messages", "SIGNALBOX_PACEMAKER_QUEUES_DEAD_MESSAGES", 0..=10_000_000, "Dead letters kept for one queue in each shard";
    noisy_backlog: u64, "queues-noisy-backlog", "SIGNALBOX_PACEMAKER_QUEUES_NOISY_BACKLOG", 0..=1_000_000_000, "Waiting messages from which a tenant counts as noisy";
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{DEFAULTS, Layer};

    use super::*;

    #[test]
    fn the_commented_file_says_what_the_code_does() {
        let file = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap().queues.complete().unwrap();
        assert_eq!(format!("{file:#?}"), format!("{:#?}", Options::default()));
    }

    #[test]
    fn a_value_out_of_its_range_is_named() {
        let defaults = Layer::parse(DEFAULTS, Path::new("defaults")).unwrap().queues;
        let layer = QueuesLayer { pull_messages: Some(0), ..QueuesLayer::default() };
        let error = layer.or(defaults).complete().unwrap_err().to_string();
        assert_eq!(error, "queues.pull_messages: must be between 1 and 1000");
    }
}
