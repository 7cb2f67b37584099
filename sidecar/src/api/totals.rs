//! `GET /stats/…`: totals.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use signalbox_api::stats::Totals;

use super::{
    App, Problem, store,
    subject::{Subject, SubjectPath},
};

/// Show the totals of a subject
///
/// A subject is a version type or a group of them. Totals never decrease.
#[utoipa::path(get, path = "/stats/{kind}/{id}", tag = "statistics", params(SubjectPath),
    responses((status = 200, description = "The totals", body = Totals),
    (status = 404, description = "unknown_kind, unknown_subject", body = Problem,
        content_type = "application/problem+json"),
    (status = 422, description = "invalid_id", body = Problem,
        content_type = "application/problem+json")))]
pub(super) async fn totals(State(app): State<App>, subject: Subject) -> Result<Json<Totals>, Problem> {
    let version_types = store::version_types(&app.stats, &subject).await?;
    let fields = store::totals(&app.stats, &version_types).await?;
    let as_at = app.stats.now_ms().await? / 1000;
    Ok(Json(summed(subject, version_types, as_at, &fields)))
}

fn summed(
    subject: Subject,
    version_types: Vec<String>,
    as_at: u64,
    fields: &BTreeMap<String, u64>,
) -> Totals {
    let field = |name: &str| fields.get(name).copied().unwrap_or(0);
    let requests = field("requests");
    let timecount = field("timecount");
    let percentage = |name: &str| rounded(ratio(field(name) * 100, requests).unwrap_or(0.0));
    let is_code = |field: &str| field.len() == 3 && field.bytes().all(|byte| byte.is_ascii_digit());
    Totals {
        kind: subject.kind.to_owned(),
        id: subject.id,
        version_types,
        as_at,
        requests,
        bytes: field("bytes"),
        timecount,
        time: field("time"),
        nginxtime: field("nginxtime"),
        informational: field("1xx"),
        successful: field("2xx"),
        redirected: field("3xx"),
        client_errors: field("4xx"),
        server_errors: field("5xx"),
        edge_5xx: field("edge_5xx"),
        informational_percentage: percentage("1xx"),
        successful_percentage: percentage("2xx"),
        redirected_percentage: percentage("3xx"),
        client_errors_percentage: percentage("4xx"),
        server_errors_percentage: percentage("5xx"),
        time_average: ratio(field("time"), timecount).map(rounded),
        nginxtime_average: ratio(field("nginxtime"), requests).map(rounded),
        codes: fields.iter().filter(|(name, _)| is_code(name)).map(|(name, n)| (name.clone(), *n)).collect(),
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(fields: &[(&str, u64)]) -> serde_json::Value {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let subject = Subject { kind: "uncaught", id: "null".to_owned() };
        serde_json::to_value(summed(subject, vec!["null".into()], 7, &fields)).unwrap()
    }

    #[test]
    fn percentages_and_averages_are_derived_from_the_totals() {
        let answer = totals(&[
            ("requests", 3),
            ("2xx", 2),
            ("4xx", 1),
            ("time", 5),
            ("timecount", 2),
            ("200", 2),
            ("404", 1),
        ]);
        assert_eq!(answer["2xx_percentage"], 66.667);
        assert_eq!(answer["time_average"], 2.5);
        assert_eq!(answer["nginxtime_average"], 0.0);
        assert_eq!(answer["codes"], serde_json::json!({"200": 2, "404": 1}));
        assert_eq!(answer["as_at"], 7);
    }

    #[test]
    fn empty_totals_are_zero_without_averages() {
        let answer = totals(&[]);
        assert_eq!((&answer["requests"], &answer["5xx_percentage"]), (&0.into(), &(0.0).into()));
        assert!(answer["time_average"].is_null() && answer["nginxtime_average"].is_null());
    }
}
