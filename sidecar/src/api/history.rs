//! `GET /stats/…/history`: a metric over time.
//!
//! Seconds are kept for about two hours, minutes for about two weeks. The step and the start of the range decide which of the
//! two is used. Steps are aligned to the clock (a step of a minute begins at :00), so minutes always equal the sum of their
//! seconds.

use std::ops::Range as Span;

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use signalbox_api::stats::{History, Point};

use super::{
    App, Problem, store,
    subject::{Subject, SubjectPath},
};
use crate::fold::{HISTORY_KEPT_SECONDS, METRICS, ROLLUP_KEPT_SECONDS};

/// The maximum number of points in one answer.
const MAX_POINTS: u64 = 10_000;
/// The maximum number of points if the request has no step.
const DEFAULT_MAX_POINTS: u64 = 600;
/// The maximum number of numbers that one answer reads: seconds or minutes, times version types.
const MAX_FIELDS: u64 = 1_200_000;
/// The default range: five minutes.
const DEFAULT_SECONDS: u64 = 300;
/// The steps that are used if the request has no step.
const STEPS: [u64; 11] = [1, 5, 10, 30, 60, 300, 900, 1800, 3600, 21_600, 86_400];

/// The source of points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Seconds,
    Minutes,
}

impl Source {
    /// The seconds between two points.
    fn unit(self) -> u64 {
        match self {
            Self::Seconds => 1,
            Self::Minutes => 60,
        }
    }
}

/// A checked range: unix seconds, `start` and `end` multiples of `step`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) step: u64,
    pub(super) source: Source,
}

/// The requested metric; by default requests.
pub(super) fn metric(asked: Option<&str>) -> Result<&'static str, Problem> {
    let asked = asked.unwrap_or(METRICS[0]);
    METRICS.into_iter().find(|metric| *metric == asked).ok_or_else(|| {
        Problem::unprocessable(
            "unknown_metric",
            format!("Unknown metric. The metrics are {}.", METRICS.join(", ")),
        )
    })
}

/// The start and the end of a request at the unix second `now`.
pub(super) fn period(start: Option<u64>, end: Option<u64>, now: u64) -> Result<(u64, u64), Problem> {
    let end = end.unwrap_or(now + 1);
    let start = start.unwrap_or(end.saturating_sub(DEFAULT_SECONDS));
    if start >= end {
        let detail = "`start` must be before `end`, both unix seconds.";
        return Err(Problem::unprocessable("empty_range", detail));
    }
    if end > now + 86_400 {
        let detail = "`end` is in the future. Omit it for the current time.";
        return Err(Problem::unprocessable("range_in_future", detail));
    }
    Ok((start, end))
}

/// Whether what is kept for `seconds` after the end of its hour still includes `start`.
pub(super) fn is_kept(start: u64, seconds: u64, now: u64) -> bool {
    start - start % 3600 + 3600 + seconds > now
}

/// The hours that a period touches.
pub(super) fn hours(start: u64, end: u64) -> impl Iterator<Item = u64> {
    (start - start % 3600..end).step_by(3600)
}

impl Range {
    /// Validates a request at the unix second `now`.
    pub(super) fn new(asked: &History, now: u64) -> Result<Self, Problem> {
        let (start, end) = period(asked.start, asked.end, now)?;
        if !is_kept(start, ROLLUP_KEPT_SECONDS, now) {
            return Err(Problem::unprocessable(
                "range_too_old",
                "`start` is too early: history is stored for 14 days.",
            ));
        }
        let seconds_kept = is_kept(start, HISTORY_KEPT_SECONDS, now);
        let step = match asked.step {
            None => default_step(end - start, seconds_kept),
            Some(step @ 1..=86_400) => step,
            Some(_) => {
                return Err(Problem::unprocessable("invalid_step", "`step` must be 1 to 86400 seconds."));
            }
        };
        if !seconds_kept && step % 60 != 0 {
            let detail = "`start` is too early for this `step`: seconds are stored for 2 hours. Use a step of whole minutes, or a later `start`.";
            return Err(Problem::unprocessable("step_too_fine", detail));
        }
        let source = if step % 60 == 0 { Source::Minutes } else { Source::Seconds };
        let range = Self { start: start - start % step, end: end.next_multiple_of(step), step, source };
        if range.count() > MAX_POINTS {
            let detail = format!(
                "The range has {} points; the limit is {MAX_POINTS}. Use a larger `step`.",
                range.count()
            );
            return Err(Problem::unprocessable("too_many_points", detail));
        }
        Ok(range)
    }

    /// Rejects a request that would read too much.
    fn check_cost(&self, version_types: usize) -> Result<(), Problem> {
        let fields = (self.end - self.start) / self.source.unit() * version_types as u64;
        if fields > MAX_FIELDS {
            let detail =
                format!("The range is too long for {version_types} version types. Use a shorter range.");
            return Err(Problem::unprocessable("range_too_large", detail));
        }
        Ok(())
    }

    /// The seconds or minutes of an hour that are in the range.
    pub(super) fn fields(&self, hour: u64) -> impl Iterator<Item = u64> + use<> {
        let unit = self.source.unit();
        let (start, end) = (self.start.max(hour), self.end.min(hour + 3600));
        (start.next_multiple_of(unit)..end).step_by(unit as usize)
    }

    fn count(&self) -> u64 {
        (self.end - self.start) / self.step
    }

    /// All points with the value zero.
    pub(super) fn points(&self) -> Vec<Point> {
        (0..self.count()).map(|index| (self.start + index * self.step, 0)).collect()
    }

    /// The index of the point of a second.
    pub(super) fn index(&self, second: u64) -> Option<usize> {
        let inside: Span<u64> = self.start..self.end;
        inside.contains(&second).then(|| ((second - self.start) / self.step) as usize)
    }

    pub(super) fn hours(&self) -> impl Iterator<Item = u64> + use<> {
        hours(self.start, self.end)
    }
}

fn default_step(seconds: u64, seconds_kept: bool) -> u64 {
    let coarsest = STEPS[STEPS.len() - 1];
    STEPS
        .into_iter()
        .filter(|step| seconds_kept || step % 60 == 0)
        .find(|step| seconds / step <= DEFAULT_MAX_POINTS)
        .unwrap_or(coarsest)
}

/// Show the history of a metric
///
/// Points are pairs of unix second and value. Seconds are kept for two hours, minutes for two weeks.
#[utoipa::path(get, path = "/stats/{kind}/{id}/history", tag = "statistics", params(SubjectPath, History),
    responses((status = 200, description = "The points", body = Vec<(u64, u64)>),
    (status = 400, description = "invalid_query", body = Problem, content_type = "application/problem+json"),
    (status = 404, description = "unknown_kind, unknown_subject", body = Problem,
        content_type = "application/problem+json"),
    (status = 422, description = "invalid_id, unknown_metric, empty_range, range_in_future, range_too_old, range_too_large, \
        invalid_step, step_too_fine, too_many_points", body = Problem,
        content_type = "application/problem+json")))]
pub(super) async fn history(
    State(app): State<App>,
    subject: Subject,
    query: Result<Query<History>, QueryRejection>,
) -> Result<Json<Vec<Point>>, Problem> {
    let Query(asked) = query?;
    let metric = metric(asked.metric.as_deref())?;
    let range = Range::new(&asked, app.stats.now_ms().await? / 1000)?;
    let version_types = store::version_types(&app.stats, &subject).await?;
    range.check_cost(version_types.len())?;
    store::series(&app.stats, &version_types, metric, &range).await.map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_267_331;

    fn asked(start: Option<u64>, end: Option<u64>, step: Option<u64>) -> History {
        History { metric: None, start, end, step }
    }

    #[test]
    fn the_default_is_the_last_five_minutes_in_seconds() {
        let range = Range::new(&asked(None, None, None), NOW).unwrap();
        assert_eq!((range.end, range.step, range.source), (NOW + 1, 1, Source::Seconds));
        assert_eq!(range.points().len(), 300);
        assert_eq!(range.points()[299], (NOW, 0));
    }

    #[test]
    fn steps_of_whole_minutes_are_read_from_minutes() {
        let range = Range::new(&asked(Some(NOW - 86_400), None, None), NOW).unwrap();
        assert_eq!((range.step, range.source), (300, Source::Minutes));
        assert_eq!((range.start % 300, range.end % 300), (0, 0));
        assert!(range.start <= NOW - 86_400 && range.end > NOW);
        assert_eq!(range.index(range.start + 301), Some(1));
        assert_eq!(range.index(range.end), None);
    }

    #[test]
    fn an_invalid_range_is_rejected_with_its_code() {
        for (range, code) in [
            (asked(Some(5), Some(5), None), "empty_range"),
            (asked(Some(9), Some(5), None), "empty_range"),
            (asked(None, Some(u64::MAX), None), "range_in_future"),
            (asked(Some(0), None, None), "range_too_old"),
            (asked(Some(NOW - 15 * 86_400), None, None), "range_too_old"),
            (asked(None, None, Some(0)), "invalid_step"),
            (asked(None, None, Some(86_401)), "invalid_step"),
            (asked(Some(NOW - 86_400), None, Some(1)), "step_too_fine"),
            (asked(Some(NOW - 13 * 86_400), None, Some(60)), "too_many_points"),
        ] {
            assert_eq!(Range::new(&range, NOW).unwrap_err().code(), code, "{range:?}");
        }
        assert_eq!(metric(Some("latency")).unwrap_err().code(), "unknown_metric");
        let fortnight = Range::new(&asked(Some(NOW - 13 * 86_400), None, Some(3600)), NOW).unwrap();
        assert_eq!(fortnight.check_cost(1000).unwrap_err().code(), "range_too_large");
    }

    proptest::proptest! {
        #[test]
        fn any_range_is_answered_or_rejected(
            start in proptest::option::of(NOW - 1_300_000..NOW + 10),
            end in proptest::option::of(NOW - 1_300_000..NOW + 100_000),
            step in proptest::option::of(0u64..100_000),
        ) {
            if let Ok(range) = Range::new(&asked(start, end, step), NOW) {
                let points = range.points();
                proptest::prop_assert!(!points.is_empty() && points.len() as u64 <= MAX_POINTS);
                proptest::prop_assert!(start.is_none_or(|start| range.index(start).is_some()));
                for (at, (second, _)) in points.iter().enumerate() {
                    proptest::prop_assert_eq!(range.index(*second), Some(at));
                    proptest::prop_assert!(range.hours().any(|hour| (hour..hour + 3600).contains(second)));
                }
            }
        }
    }
}
