//! Scripts, styles and the icon. They need no session: they contain no data of the system.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::page::Path;
use crate::http::Problem;

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Name, media type, content.
const ASSETS: [(&str, &str, &str); 12] = [
    ("dashboard.css", STYLE, include_str!("assets/dashboard.css")),
    ("book.css", STYLE, include_str!("assets/book.css")),
    ("noscript.css", STYLE, include_str!("assets/noscript.css")),
    ("theme.js", SCRIPT, include_str!("assets/theme.js")),
    ("live.js", SCRIPT, include_str!("assets/live.js")),
    ("actions.js", SCRIPT, include_str!("assets/actions.js")),
    ("charts.js", SCRIPT, include_str!("assets/charts.js")),
    ("machines.js", SCRIPT, include_str!("assets/machines.js")),
    ("policy.js", SCRIPT, include_str!("assets/policy.js")),
    ("tail.js", SCRIPT, include_str!("assets/tail.js")),
    // uPlot 1.6.32, MIT: see assets/uplot/LICENSE.
    ("uplot.js", SCRIPT, include_str!("assets/uplot/uPlot.iife.min.js")),
    ("uplot.css", STYLE, include_str!("assets/uplot/uPlot.min.css")),
];
const ICON: &str = include_str!("assets/icon.svg");

/// A digest of all assets, which pages append to the assets' addresses. Another build has other addresses, so browsers may
/// cache an asset without expiry.
pub(super) static STAMP: LazyLock<String> = LazyLock::new(|| {
    let all = ASSETS.iter().fold(Sha256::new(), |all, (_, _, text)| all.chain_update(text));
    HEXLOWER.encode(&all.chain_update(ICON).finalize()[..8])
});

pub(super) async fn asset(Path(name): Path<String>) -> Result<Response, Problem> {
    let mut assets = ASSETS.iter().copied().chain([("icon.svg", "image/svg+xml", ICON)]);
    let (_, media_type, text) = assets
        .find(|(asset, ..)| *asset == name)
        .ok_or_else(|| Problem::not_found("unknown_asset", format!("Unknown asset `{name}`.")))?;
    let headers =
        [(header::CONTENT_TYPE, media_type), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    Ok((headers, text).into_response())
}
