//! `signalbox api`: makes any call of the API, for calls that have no command of their own.

use std::path::Path;

use serde_json::Value;

use crate::{exit::Failure, input, remote::Remote, terminal::out};

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
    let answer = args.remote.call(&method, &args.path, body.as_ref()).await?;
    args.remote.show(&answer, |answer| {
        if !answer.is_null() {
            out!("{answer:#}");
        }
    })
}

fn body(text: &str) -> Result<Value, Failure> {
    match text.strip_prefix('@') {
        Some(file) => input::json(Path::new(file)),
        None => input::flag_json(text).map_err(|error| Failure::configuration(format!("--data: {error}"))),
    }
}
