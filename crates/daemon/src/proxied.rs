//! Requests that an edge has proxied, which a daemon rejects.
//!
//! Every edge adds its name to the header `CDN-Loop` (RFC 8586) of a request that it sends to an instance. A daemon that
//! receives such a request was registered as an instance by mistake or on purpose. Its answers would then be open to clients
//! of the edge, and it would take them for operators on its own machine.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};

/// Lists the intermediaries that a request has passed through.
static CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
/// The prefix of every edge's name.
const PREFIX: &str = "signalbox-";

/// Answers 403 to requests that came through an edge, and passes others on to `next`.
pub async fn refuse_proxied(request: Request, next: impl AsyncFnOnce(Request) -> Response) -> Response {
    if !is_proxied(request.headers()) {
        return next(request).await;
    }
    let body = concat!(
        r#"{"type":"about:blank","title":"Forbidden","status":403,"code":"proxied_by_edge","#,
        r#""detail":"This request came through an edge. A daemon of Signalbox cannot be an instance."}"#,
        "\n"
    );
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (StatusCode::FORBIDDEN, kind, body).into_response()
}

/// Whether any line of the header names an edge.
fn is_proxied(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(&CDN_LOOP).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).any(|name| {
        let name = name.trim_ascii_start();
        name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn proxied(lines: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CDN_LOOP.clone(), HeaderValue::from_static(line));
        }
        is_proxied(&headers)
    }

    #[test]
    fn an_edge_is_recognized_anywhere_in_the_list() {
        for lines in [
            &["signalbox-a-80"][..],
            &["other.example, signalbox-a; v=1"],
            &["other.example", "SIGNALBOX-b"],
            &["\"quoted,signalbox-a"],
        ] {
            assert!(proxied(lines), "{lines:?}");
        }
        for lines in [&[][..], &["other.example"], &["my-signalbox-a, signal"], &[""]] {
            assert!(!proxied(lines), "{lines:?}");
        }
    }
}
