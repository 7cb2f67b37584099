//! Statistics, from the sidecar.

use std::fmt;

pub use signalbox_api::stats::{History, Point, Totals};

use crate::{Client, Error, Stream, segment, with_query};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Stats<'a>(pub(crate) &'a Client);

/// The subject of the statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A version type.
    VersionType(String),
    /// All version types of a version.
    Version(String),
    /// All of an application.
    Application(String),
    /// All of a workspace.
    Workspace(String),
    /// All that have instances on a node.
    Node(String),
    /// Requests for unknown host names.
    Uncaught,
    /// Requests to the admin listener.
    Pacemaker,
}

impl Subject {
    fn path(&self) -> String {
        let (kind, id) = match self {
            Self::VersionType(id) => ("version_type", id),
            Self::Version(id) => ("version", id),
            Self::Application(id) => ("application", id),
            Self::Workspace(id) => ("workspace", id),
            Self::Node(id) => ("node", id),
            Self::Uncaught => return "/stats/uncaught".to_owned(),
            Self::Pacemaker => return "/stats/pacemaker".to_owned(),
        };
        format!("/stats/{kind}/{}", segment(id))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.path().trim_start_matches("/stats/"))
    }
}

impl std::str::FromStr for Subject {
    type Err = String;

    /// `version_type/7`, `application/shop`, `uncaught`…
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "it is one of version_type/ID, version/ID, application/ID, workspace/ID, node/ID, uncaught, pacemaker"
                .to_owned()
        };
        match text.split_once('/') {
            None if text == "uncaught" => Ok(Self::Uncaught),
            None if text == "pacemaker" => Ok(Self::Pacemaker),
            Some((kind, id)) if !id.is_empty() => match kind {
                "version_type" => Ok(Self::VersionType(id.to_owned())),
                "version" => Ok(Self::Version(id.to_owned())),
                "application" => Ok(Self::Application(id.to_owned())),
                "workspace" => Ok(Self::Workspace(id.to_owned())),
                "node" => Ok(Self::Node(id.to_owned())),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl Stats<'_> {
    /// Everything counted so far.
    pub async fn totals(&self, subject: &Subject) -> Result<Totals, Error> {
        self.0.get(&subject.path()).await
    }

    /// Points of the past: unix second and value.
    ///
    /// # Errors
    /// Those of every call; an unavailable range has a specific code.
    pub async fn history(&self, subject: &Subject, range: &History) -> Result<Vec<Point>, Error> {
        let text = |number: Option<u64>| number.map(|number| number.to_string());
        let (start, end, step) = (text(range.start), text(range.end), text(range.step));
        let path = with_query(
            &format!("{}/history", subject.path()),
            &[
                ("metric", range.metric.as_deref()),
                ("start", start.as_deref()),
                ("end", end.as_deref()),
                ("step", step.as_deref()),
            ],
        );
        self.0.get(&path).await
    }

    /// A point a second, `[unix second, value]`, as messages.
    pub async fn stream(&self, subject: &Subject, metric: &str) -> Result<Stream, Error> {
        let path = with_query(&format!("{}/stream", subject.path()), &[("metric", Some(metric))]);
        Stream::open(self.0, &path, &[]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_read_as_it_is_written() {
        for text in [
            "version_type/7",
            "application/shop",
            "node/n",
            "version/1",
            "workspace/w",
            "uncaught",
            "pacemaker",
        ] {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
        }
        for text in ["", "7", "host/a", "version_type/", "uncaught/1"] {
            text.parse::<Subject>().unwrap_err();
        }
    }
}
