//! Events that a stack reports.

use std::{fmt, sync::Arc, time::Duration};

use crate::Part;

/// An event of a stack. Display formats it as a line for an operator.
#[derive(Debug, Clone)]
pub enum Event {
    /// A part responds for the first time.
    Ready {
        /// The part.
        part: Part,
        /// Its address.
        address: String,
    },
    /// A part ended unexpectedly.
    Died {
        /// The part.
        part: Part,
        /// Its exit status.
        how: String,
        /// The delay before its restart; `None` if it is not restarted.
        restart_in: Option<Duration>,
    },
    /// A part that died responds again.
    Back {
        /// The part.
        part: Part,
    },
    /// A part was restarted and does not respond.
    NotBack {
        /// The part.
        part: Part,
        /// The result of its last probe.
        reason: String,
    },
    /// A part was stopped.
    Stopping {
        /// The part.
        part: Part,
    },
    /// Information for the operator that is not an error.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { part, address } => write!(f, "{part:<16} ready    {address}"),
            Self::Died { part, how, restart_in: Some(delay) } => {
                write!(f, "{part:<16} died     {how}; starting it again in {:.1} s", delay.as_secs_f64())
            }
            Self::Died { part, how, restart_in: None } => write!(f, "{part:<16} died     {how}"),
            Self::Back { part } => write!(f, "{part:<16} back     it answers again"),
            Self::NotBack { part, reason } => write!(f, "{part:<16} not back {reason}"),
            Self::Stopping { part } => write!(f, "{part:<16} stopping"),
            Self::Note(text) => write!(f, "{:<16} {text}", "note"),
        }
    }
}

/// The receiver of events.
#[derive(Clone)]
pub(crate) struct Events(Arc<dyn Fn(Event) + Send + Sync>);

impl Events {
    pub(crate) fn to(listener: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn emit(&self, event: Event) {
        (self.0)(event);
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::to(|_| {})
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
