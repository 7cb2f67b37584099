//! The action of a state: its call, its retries, and what its failures lead to.

use std::time::Duration;

use jiff::civil;

use super::{Next, Path, StateIndex};
use crate::definition::{
    outside::origin,
    template::{Part, Template, Text},
    zone::ZoneRule,
};

/// A state that performs an action.
#[derive(Debug, Clone)]
pub struct Action {
    /// The call to make.
    pub call: Call,
    /// The maximum duration of an attempt.
    pub timeout: Duration,
    /// When and how often a failed attempt is repeated.
    pub retry: Retry,
    /// The transition after the action; none in an end state.
    pub next: Option<Next>,
    /// The parts of the answer that become metadata, each with its path.
    pub result: Vec<(Path, ResultPart)>,
    /// The cases for an action that failed for good. The first that applies decides.
    pub on_error: Vec<OnFailure>,
    /// The hours in which no attempt begins.
    pub quiet: Option<Quiet>,
    /// The method of a webhook.
    pub method: &'static str,
    /// The body of a webhook; by default, the label and its metadata.
    pub body: Option<Template>,
}

/// The methods of webhooks, the default first.
pub(crate) const METHODS: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

/// A part of a webhook's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultPart {
    /// The HTTP status.
    Status,
    /// The value at this path of the JSON body. A path without keys selects the whole body.
    Body(Path),
}

/// The state that follows an action that failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnFailure {
    /// The kinds of failure that it applies to; empty means all.
    pub failures: Vec<Failure>,
    /// The state that labels go to.
    pub to: StateIndex,
    /// The metadata path that receives `{"status", "error", "attempts"}`.
    pub into: Option<Path>,
}

/// A kind of failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// An HTTP status.
    Status(u16),
    /// A class of statuses: 4 for `4xx`.
    Class(u16),
    /// No answer, or none in time.
    NoAnswer,
    /// The action cannot be performed: a value is missing, or the change was rejected.
    Invalid,
}

/// The call of an action.
#[derive(Debug, Clone)]
pub enum Call {
    /// POST to this address.
    Webhook(Text),
    /// Change the route table: `{host, shares?, register?, retire?}` with placeholders.
    Route(Template),
    /// Publish an event: `{topic, type, url, data}` with placeholders; `type` is always there.
    Publish(Template),
}

impl Call {
    /// Scheme, host and port of a webhook. Placeholders cannot change them.
    pub(crate) fn origin(&self) -> Option<String> {
        match self {
            Self::Webhook(text) => match text.parts().first()? {
                Part::Literal(beginning) => origin(beginning),
                _ => None,
            },
            Self::Route(_) | Self::Publish(_) => None,
        }
    }

    /// The host of a `route` action, if it contains no placeholders.
    pub(crate) fn constant_host(&self) -> Option<&str> {
        match self {
            Self::Route(template) => match template.get("host")? {
                Template::Text(text) => text.constant(),
                _ => None,
            },
            Self::Webhook(_) | Self::Publish(_) => None,
        }
    }

    /// The version type under which a `route` action registers instances, if it contains no placeholders.
    pub(crate) fn constant_version_type(&self) -> Option<String> {
        let Self::Route(template) = self else { return None };
        match template.get("register")?.get("version_type")? {
            Template::Text(text) => text.constant().map(str::to_owned),
            Template::Constant(number @ serde_json::Value::Number(_)) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// A time of day in which no attempt of an action begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Quiet {
    /// The local time at which it begins.
    pub from: civil::Time,
    /// The local time at which it ends; on the next day if it is not after `from`.
    pub to: civil::Time,
    /// The zone of these times.
    pub zone: ZoneRule,
}

/// The retry policy of an action.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// The maximum number of attempts, including the first.
    pub attempts: u32,
    /// The upper limit of the pause after the first failure.
    pub first: Duration,
    /// The factor by which this limit grows with each failure.
    pub factor: f64,
    /// The maximum of this limit.
    pub longest: Duration,
    /// Failures that are not retried.
    pub except: Vec<Failure>,
}

impl Default for Retry {
    fn default() -> Self {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(600));
        Self { attempts: 20, first, factor: 2.0, longest, except: Vec::new() }
    }
}
