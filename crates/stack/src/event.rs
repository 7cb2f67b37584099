//! What a stack reports while it works.

use std::{fmt, sync::Arc, time::Duration};

use crate::Part;

/// Something that happened to a stack. Display is a line for people.
#[derive(Debug, Clone)]
pub enum Event {
    /// A part answers for the first time.
    Ready {
        /// The part.
        part: Part,
        /// Where it answers.
        address: String,
    },
    /// A part ended without having been asked to.
    Died {
        /// The part.
        part: Part,
        /// Its exit status in words.
        how: String,
        /// When it is started again; `None` when nobody will.
        restart_in: Option<Duration>,
    },
    /// A part that died answers again.
    Back {
        /// The part.
        part: Part,
    },
    /// A part was started again and does not answer.
    NotBack {
        /// The part.
        part: Part,
        /// What is the matter with it.
        why: String,
    },
    /// A part was asked to end.
    Stopping {
        /// The part.
        part: Part,
    },
    /// Something that works, and that the operator should know of.
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
            Self::NotBack { part, why } => write!(f, "{part:<16} not back {why}"),
            Self::Stopping { part } => write!(f, "{part:<16} stopping"),
            Self::Note(text) => write!(f, "{:<16} {text}", "note"),
        }
    }
}

/// Where events go.
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
