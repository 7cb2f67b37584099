//! `signalbox status`: shows whether the parts of a system on this machine respond.

use serde_json::json;
use signalbox_client::{Client, health::Edge};

use crate::{exit::Failure, remote::Remote, terminal::out};

/// Prints a line for each part. Fails with "unavailable" if a part does not respond.
pub(crate) async fn run(remote: Remote) -> Result<(), Failure> {
    if remote.is_named() {
        return Err(Failure::unavailable(
            "`signalbox status` checks the processes of a data folder. For a system named by --url or SIGNALBOX_URL, use \
             `signalbox doctor`; for services of this machine, `systemctl status 'signalbox*'`",
        ));
    }
    let running = remote.description()?;
    let (mut parts, mut silent) = (Vec::new(), 0);
    for part in &running.parts {
        let answer = part.probe.check().await;
        silent += usize::from(answer.is_err());
        parts.push((part, answer.err()));
    }
    let edge = edge(&running.admin_url).await;
    let answer = json!({
        "parts": parts.iter().map(|(part, why)| {
            json!({"name": part.name, "address": part.address, "up": why.is_none(), "why": why})
        }).collect::<Vec<_>>(),
        "edge": edge.as_ref().ok(),
    });
    remote.show(&answer, |_| {
        for (part, why) in &parts {
            let (state, why) =
                why.as_ref().map_or(("up", String::new()), |why| ("down", format!("   {why}")));
            out!("{:<16} {state:<5} {}{why}", part.name, part.address);
        }
        match &edge {
            Ok(edge) => router(edge),
            Err(why) => out!("route table      unknown   {why}"),
        }
    })?;
    if silent > 0 {
        return Err(Failure::unavailable(format!(
            "{silent} of {} parts do not respond",
            running.parts.len()
        )));
    }
    Ok(())
}

/// Prints the serial of the route table in each worker of the router.
fn router(edge: &Edge) {
    let workers = edge.more.get("workers").and_then(|workers| workers.as_array());
    let serials: Vec<_> = workers.into_iter().flatten().map(|worker| &worker["serial"]).collect();
    let alarm = edge.alarm.as_ref().map(|alarm| format!(", ALARM {alarm}")).unwrap_or_default();
    let stale = if edge.stale { ", stale: the replica does not respond" } else { "" };
    let agree = serials.windows(2).all(|pair| pair[0] == pair[1]);
    out!(
        "route table      serial {}, {} workers {}{stale}{alarm}",
        edge.serial,
        serials.len(),
        if agree { "agree" } else { "differ" },
    );
}

async fn edge(admin: &str) -> Result<Edge, signalbox_client::Error> {
    let client = Client::builder(admin).timeout(std::time::Duration::from_secs(2)).build()?;
    client.get("/edge/status").await
}
