//! `signalbox status`: whether the parts of a running system answer, asked from outside.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::Value;
use signalbox_stack::Description;

use crate::{exit::Failure, terminal};

/// Flags of `signalbox status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data folder of the running system
    #[arg(long, value_name = "DIR", env = "SIGNALBOX_DATA_DIR", default_value = ".signalbox")]
    data_dir: PathBuf,
}

/// Prints a line for each part; fails with "unavailable" when one does not answer.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let file = args.data_dir.join("run/stack.json");
    let text = fs::read_to_string(&file)
        .map_err(|_| Failure::unavailable(format!("nothing runs in {}", args.data_dir.display())))?;
    let running: Description = serde_json::from_str(&text)
        .map_err(|error| Failure::internal(format!("cannot read {}: {error}", file.display())))?;
    let mut silent = 0;
    for part in &running.parts {
        let answer = part.probe.check().await;
        silent += usize::from(answer.is_err());
        let (state, why) = match answer {
            Ok(()) => ("up", String::new()),
            Err(why) => ("down", format!("   {why}")),
        };
        terminal::line(&format!("{:<16} {state:<5} {}{why}", part.name, part.address));
    }
    router(&running.admin_url).await;
    if silent > 0 {
        return Err(Failure::unavailable(format!("{silent} of {} parts do not answer", running.parts.len())));
    }
    Ok(())
}

/// How far the router's workers are with the route table, as they say themselves.
async fn router(admin: &str) {
    let status = match edge_status(admin).await {
        Ok(status) => status,
        Err(why) => return terminal::line(&format!("route table      unknown   {why}")),
    };
    let workers: Vec<&Value> =
        status["workers"].as_array().into_iter().flatten().map(|w| &w["serial"]).collect();
    let alarm = status["alarm"].as_str().map(|alarm| format!(", ALARM {alarm}")).unwrap_or_default();
    let stale = if status["stale"] == true { ", stale: the replica does not answer" } else { "" };
    let converged = workers.windows(2).all(|pair| pair[0] == pair[1]);
    terminal::line(&format!(
        "route table      serial {}, {} hosts, {} workers {}{stale}{alarm}",
        status["serial"],
        status["hosts"],
        workers.len(),
        if converged { "agree" } else { "differ" },
    ));
}

async fn edge_status(admin: &str) -> Result<Value, String> {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build();
    let answer = client.map_err(|error| error.to_string())?.get(format!("{admin}/edge/status")).send().await;
    let body = answer.map_err(|error| error.to_string())?.text().await.map_err(|error| error.to_string())?;
    serde_json::from_str(&body).map_err(|error| format!("{error} in {body}"))
}
