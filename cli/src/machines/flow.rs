//! `signalbox machines flow`: transitions, time in states, and how many labels reach a state.

use signalbox_client::{machines, with_query};

use super::path;
use crate::{exit::Failure, listing, remote::Remote, terminal::out};

#[derive(Debug, clap::Args)]
pub(crate) struct Flow {
    /// Machine
    machine: String,
    /// Period: whole hours until now, 1 to 192
    #[arg(long, default_value_t = 24)]
    hours: u64,
    /// Also show how many labels that entered this state reached the one of --to
    #[arg(long, value_name = "STATE", requires = "to")]
    from: Option<String>,
    /// The state to reach
    #[arg(long, value_name = "STATE", requires = "from")]
    to: Option<String>,
}

pub(super) async fn run(args: Flow, remote: &Remote) -> Result<(), Failure> {
    let query = [("hours", Some(args.hours.to_string())), ("from", args.from), ("to", args.to)];
    let flow = remote.client()?.get(&with_query(&path(&args.machine, "/flow"), &query)).await?;
    remote.show(&flow, print)
}

fn print(flow: &machines::Flow) {
    out!("{} transitions since {}, {:.3} per second", flow.transitions, flow.since, flow.per_second);
    let states: Vec<_> = flow
        .states
        .iter()
        .map(|one| {
            let (entered, left) = (one.entered.to_string(), one.left.to_string());
            [one.state.clone(), entered, left, span(one.p50_seconds), span(one.p95_seconds)]
        })
        .collect();
    listing::table(["STATE", "ENTERED", "LEFT", "P50", "P95"], &states);
    let edges: Vec<_> = flow
        .edges
        .iter()
        .map(|edge| [edge.from.clone(), edge.to.clone(), edge.transitions.to_string()])
        .collect();
    if !edges.is_empty() {
        listing::table(["FROM", "TO", "TRANSITIONS"], &edges);
    }
    if let Some(funnel) = &flow.funnel {
        out!(
            "{} of {} entries into {} reached {} ({})",
            funnel.reached,
            funnel.entered,
            funnel.from,
            funnel.to,
            percent(funnel.reached, funnel.entered)
        );
        for one in &funnel.versions {
            let share = percent(one.reached, one.entered);
            out!("  version {}: {} of {} ({share})", one.version, one.reached, one.entered);
        }
    }
}

fn percent(part: u64, all: u64) -> String {
    if all == 0 {
        return "-".to_owned();
    }
    #[allow(clippy::cast_precision_loss, reason = "a share")]
    let percent = part as f64 * 100.0 / all as f64;
    format!("{percent:.1}%")
}

/// A length of time with two units at most.
fn span(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return "-".to_owned() };
    match seconds {
        seconds if seconds < 60.0 => format!("{seconds:.1}s"),
        seconds if seconds < 3_600.0 => format!("{:.1}m", seconds / 60.0),
        seconds if seconds < 86_400.0 => format!("{:.1}h", seconds / 3_600.0),
        seconds => format!("{:.1}d", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_shares_are_short() {
        let spans = [Some(0.25), Some(90.0), Some(7_200.0), Some(129_600.0), None].map(span);
        assert_eq!(spans, ["0.2s", "1.5m", "2.0h", "1.5d", "-"]);
        assert_eq!((percent(1, 3), percent(0, 0)), ("33.3%".to_owned(), "-".to_owned()));
    }
}
