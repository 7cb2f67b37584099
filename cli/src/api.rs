//! `signalbox api`: makes any call of the API, for calls that have no command of their own.

use std::{
    fs,
    io::{self, Read as _},
};

use serde_json::Value;

use crate::{exit::Failure, remote::Remote, terminal};

/// The largest body that is sent.
const MAX_BODY_BYTES: u64 = 64 * 1024 * 1024;

/// Flags of `signalbox api`.
#[derive(Debug, clap::Args)]
#[command(after_help = "docs/api.md and /openapi.json list every call.")]
pub(crate) struct Args {
    /// Method
    #[arg(value_parser = ["GET", "POST", "PUT", "PATCH", "DELETE"], ignore_case = true)]
    method: String,
    /// Path with its query, such as '/hosts/shop.example?wait=5s'
    path: String,
    /// Body: JSON, or @FILE; @- is standard input
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if !args.path.starts_with('/') || args.path.starts_with("//") {
        return Err(Failure::configuration(format!("{}: a path must begin with a single /", args.path)));
    }
    let body = args.data.as_deref().map(body).transpose()?;
    let method = args.method.to_uppercase();
    let answer = args.remote.client()?.call(&method, &args.path, body.as_ref()).await?;
    args.remote.show(&answer, |answer| {
        if !answer.is_null() {
            terminal::line(&format!("{answer:#}"));
        }
    })
}

fn body(text: &str) -> Result<Value, Failure> {
    let failed =
        |name: &str, error: &dyn std::fmt::Display| Failure::configuration(format!("{name}: {error}"));
    let Some(file) = text.strip_prefix('@') else {
        return serde_json::from_str(text).map_err(|error| failed("--data", &error));
    };
    let mut text = String::new();
    let read = if file == "-" {
        io::stdin().take(MAX_BODY_BYTES).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|open| open.take(MAX_BODY_BYTES).read_to_string(&mut text))
    };
    read.map_err(|error| failed(file, &error))?;
    serde_json::from_str(&text).map_err(|error| failed(file, &error))
}
