//! Which version type of a host an operator promoted, and what was served before.
//!
//! A promoted host keeps its version: an instance of a version type that the promotion replaced (a *superseded* one) begins on
//! standby when it is registered again. Otherwise, a process of the old version that still runs would receive requests
//! again as soon as it registers. Only superseded version types are held back. Rejected: holding back every version type
//! except the promoted one, because then a replacement of instances one by one would end without an instance.

use serde::{Deserialize, Serialize};
use signalbox_route_table::{Label, Share};

/// Maximum number of superseded version types of a host. Older ones are forgotten.
const MAX_SUPERSEDED: usize = 50;

/// The promotion of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// The promoted version type; `None` after the first promotion of the host was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_type: Option<Label>,
    /// When it was promoted, in unix milliseconds of the routes primary's clock.
    pub at_ms: u64,
    /// Version types that it or an earlier promotion replaced, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<Label>,
    /// What was served before. After an undo that was interrupted: what is to be served again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Before>,
    /// The promotion that was undone, if this is the result of an undo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Undone>,
    /// Whether the instances may not be in their states yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pending: bool,
}

/// What a host served before a promotion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// The version types with active instances.
    pub version_types: Vec<Label>,
    /// The traffic split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Vec<Share>>,
    /// The version type that was promoted before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promoted: Option<Label>,
    /// Until when it can be served again, in unix milliseconds of the routes primary's clock.
    pub until_ms: u64,
}

/// A promotion that was undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// Its version type.
    pub version_type: Label,
    /// When it was promoted.
    pub at_ms: u64,
}

impl Promotion {
    /// Whether an instance of this version type begins on standby.
    pub fn supersedes(&self, version_type: &Label) -> bool {
        self.version_type.as_ref() != Some(version_type) && self.superseded.contains(version_type)
    }

    /// What can be served again at this time.
    pub fn undo(&self, now_ms: u64) -> Option<&Before> {
        self.before.as_ref().filter(|before| self.undone.is_none() && now_ms < before.until_ms)
    }

    /// The promotion of `version_type` after this one. `None` replaces nothing, so that the version types of `before` stay.
    pub(crate) fn promote(&self, version_type: &Label, at_ms: u64, before: Before) -> Self {
        Self {
            superseded: self.replaced(&before.version_types, std::slice::from_ref(version_type)),
            version_type: Some(version_type.clone()),
            at_ms,
            before: Some(before),
            undone: None,
            pending: true,
        }
    }

    /// The state after this promotion is undone: `before` is served again.
    pub(crate) fn undoing(&self, version_type: &Label, at_ms: u64, before: &Before) -> Self {
        Self {
            superseded: self.replaced(std::slice::from_ref(version_type), &before.version_types),
            version_type: before.promoted.clone(),
            at_ms,
            before: Some(before.clone()),
            undone: Some(Undone { version_type: version_type.clone(), at_ms: self.at_ms }),
            pending: true,
        }
    }

    /// Without these among the superseded version types, because they are to serve again; `None` if none of them is superseded.
    pub(crate) fn admitting(&self, version_types: &[Label]) -> Option<Self> {
        let mut next = self.clone();
        next.superseded.retain(|one| !version_types.contains(one));
        (next.superseded.len() < self.superseded.len()).then_some(next)
    }

    /// The state in which every instance is as it should be.
    pub(crate) fn completed(mut self) -> Self {
        self.pending = false;
        if self.undone.is_some() {
            self.before = None;
        }
        self
    }

    /// The superseded version types when `out` are replaced by `now`.
    fn replaced(&self, out: &[Label], now: &[Label]) -> Vec<Label> {
        let mut superseded: Vec<Label> = Vec::new();
        for one in out.iter().chain(&self.superseded) {
            if !now.contains(one) && !superseded.contains(one) {
                superseded.push(one.clone());
            }
        }
        superseded.truncate(MAX_SUPERSEDED);
        superseded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Label {
        Label::parse(text, "version_type").unwrap()
    }

    fn before(version_types: &[&str], promoted: Option<&str>) -> Before {
        let version_types = version_types.iter().map(|one| label(one)).collect();
        Before { version_types, shares: None, promoted: promoted.map(label), until_ms: 100 }
    }

    #[test]
    fn a_replaced_version_type_is_superseded_until_it_is_served_again() {
        let first = Promotion::default().promote(&label("18"), 1, before(&["17", "16"], None)).completed();
        assert!(first.supersedes(&label("17")) && first.supersedes(&label("16")));
        assert!(!first.supersedes(&label("18")) && !first.supersedes(&label("19")));
        let back = first.promote(&label("17"), 2, before(&["18"], Some("18")));
        assert!(!back.supersedes(&label("17")) && back.supersedes(&label("18")));
        let undone = back.undoing(&label("17"), 3, &before(&["18"], Some("18"))).completed();
        assert_eq!((undone.version_type.clone(), undone.before.is_none()), (Some(label("18")), true));
        assert!(undone.supersedes(&label("17")) && !undone.supersedes(&label("18")));
    }

    #[test]
    fn a_promotion_can_be_undone_for_a_time_and_once() {
        let first = Promotion::default().promote(&label("18"), 1, before(&["17"], None));
        assert!(first.undo(99).is_some() && first.undo(100).is_none());
        let undone = first.undoing(&label("18"), 2, &before(&["17"], None));
        assert!(undone.undo(99).is_none());
    }

    #[test]
    fn the_latest_superseded_version_types_are_kept() {
        let mut promotion = Promotion::default();
        for n in 1..200 {
            let old = (n - 1).to_string();
            promotion = promotion.promote(&label(&n.to_string()), n, before(&[&old], Some(&old)));
        }
        assert_eq!(promotion.superseded.len(), MAX_SUPERSEDED);
        assert!(promotion.supersedes(&label("198")) && !promotion.supersedes(&label("3")));
    }
}
