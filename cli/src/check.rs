//! `signalbox check`: whether what must hold of a running system's events, queues and objects does hold.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::Value;
use signalbox_stack::Description;

use crate::{exit::Failure, terminal};

/// Flags of `signalbox check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data folder of the running system
    #[arg(long, value_name = "DIR", env = "SIGNALBOX_DATA_DIR", default_value = ".signalbox")]
    data_dir: PathBuf,
    /// The API to ask, in place of the one that runs in the data folder
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// A token that may read, in place of the one in the data folder
    #[arg(long, env = "SIGNALBOX_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// How long the check may take: it looks at every object, a part at a time.
const PATIENCE: Duration = Duration::from_secs(300);

/// Prints what is broken; fails with "broken" when something is.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let url = match &args.url {
        Some(url) => url.clone(),
        None => running(&args)?.admin_url,
    };
    let token = match &args.token {
        Some(token) => token.clone(),
        None => {
            let file = args.data_dir.join("token");
            let text = fs::read_to_string(&file).map_err(|error| {
                Failure::configuration(format!("{}: {error}; use --token", file.display()))
            })?;
            text.trim().to_owned()
        }
    };
    let answer = ask(&format!("{}/check", url.trim_end_matches('/')), &token).await?;
    if args.json {
        terminal::line(&answer.to_string());
    } else {
        print(&answer);
    }
    match answer["findings"].as_array().map_or(0, Vec::len) {
        0 => Ok(()),
        count => Err(Failure::broken(format!("{count} things are not as they must be"))),
    }
}

fn running(args: &Args) -> Result<Description, Failure> {
    let file = args.data_dir.join("run/stack.json");
    let text = fs::read_to_string(&file)
        .map_err(|_| Failure::unavailable(format!("nothing runs in {}", args.data_dir.display())))?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::internal(format!("cannot read {}: {error}", file.display())))
}

async fn ask(url: &str, token: &str) -> Result<Value, Failure> {
    let silent = |error: reqwest::Error| Failure::unavailable(format!("{url}: {error}"));
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().map_err(silent)?;
    let answer = client.get(url).bearer_auth(token).send().await.map_err(silent)?;
    let status = answer.status();
    let body = answer.text().await.map_err(silent)?;
    let read: Option<Value> = serde_json::from_str(&body).ok();
    match (status.as_u16(), read) {
        (200, Some(read)) if read["findings"].is_array() => Ok(read),
        (401 | 403, _) => {
            Err(Failure::configuration(format!("{url} answers {status}: the token may not read")))
        }
        (_, read) => {
            let why = read.and_then(|read| read["detail"].as_str().map(str::to_owned)).unwrap_or_default();
            Err(Failure::unavailable(format!("{url} answers {status} {why}")))
        }
    }
}

fn print(answer: &Value) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for finding in answer["findings"].as_array().into_iter().flatten() {
        terminal::line(&format!(
            "{:<10} {:<4} shard {} {}: {}",
            word(&finding["room"]),
            word(&finding["predicate"]),
            finding["shard"],
            word(&finding["name"]),
            word(&finding["what"]),
        ));
    }
    let rooms: Vec<String> = answer["rooms"].as_array().into_iter().flatten().map(word).collect();
    if answer["findings"].as_array().is_some_and(Vec::is_empty) {
        terminal::line(&format!("sound: {}", rooms.join(", ")));
    }
}
