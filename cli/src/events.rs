//! `signalbox events`: lists topics, publishes events and watches them.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::Value;
use signalbox_client::{
    Message,
    events::{NewEvent, Published},
    segment, with_query,
};

use crate::{
    confirm::Sure,
    exit::Failure,
    input,
    remote::Remote,
    terminal::{self, Progress},
};

/// The maximum number of events per API call.
const BATCH: usize = 100;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch events as they are accepted, until Ctrl-C
    Tail(Tail),
    /// Publish an event, or all events in a file
    Publish(Box<Publish>),
    /// Accept the current fabric Redis as a new one, after all data of the previous one was lost
    #[command(
        after_help = "Publishing is rejected while the fabric is empty or is not the one used before. Restore a backup if there is \
                        one: this command declares that there is none."
    )]
    Initialize {
        #[command(flatten)]
        sure: Sure,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Tail {
    /// Only events of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only events of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only events of this object
    #[arg(long)]
    object: Option<String>,
    /// Only events whose tenant:type:topic matches this regular expression completely
    #[arg(long, value_name = "REGEX")]
    pattern: Option<String>,
    /// Continue after the message with this ID, as printed with --json
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Exit after this many events
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Publish {
    /// Topic
    topic: String,
    /// Type of the event
    #[arg(value_name = "TYPE", value_parser = ["create", "update", "delete", "noop"], required_unless_present = "file")]
    kind: Option<String>,
    /// URL of the resource that the event is about
    #[arg(value_name = "ABOUT", required_unless_present = "file")]
    about: Option<String>,
    /// Object, which is the ordering key
    #[arg(long)]
    object: Option<String>,
    /// Tenant; queues are fair between tenants
    #[arg(long)]
    tenant: Option<String>,
    /// Data, as JSON
    #[arg(long, value_name = "JSON", value_parser = input::flag_json)]
    data: Option<Value>,
    /// File with one JSON event per line; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kind", "about", "object", "tenant", "data"])]
    file: Option<PathBuf>,
}

pub(crate) async fn run(command: Command, remote: &Remote) -> Result<(), Failure> {
    match command {
        Command::Tail(args) => tail(args, remote).await,
        Command::Publish(args) => publish(*args, remote).await,
        Command::Initialize { sure } => {
            sure.confirm_name(
                "declare that the events before are lost, and accept this fabric",
                "initialize",
            )?;
            remote.change("POST", "/bus/initialize", None, |_| "the fabric accepts events".to_owned()).await
        }
    }
}

async fn tail(args: Tail, remote: &Remote) -> Result<(), Failure> {
    let client = remote.client()?;
    let query =
        [("topic", args.topic), ("tenant", args.tenant), ("object", args.object), ("pattern", args.pattern)];
    let (path, mut last, mut seen) = (with_query("/events", &query), args.after, 0);
    loop {
        let mut stream = client.stream(&with_query(&path, &[("last_event_id", &last)])).await?;
        // A broken connection is reopened after the last received event, so no event is missed or shown twice.
        while let Ok(Some(message)) = stream.next().await {
            last = message.id.clone().or(last);
            let event = message.event.is_none();
            if !terminal::line_is_read(&shown(&message, remote.is_json())) {
                return Ok(());
            }
            seen += u64::from(event);
            if args.count.is_some_and(|count| seen >= count) {
                return Ok(());
            }
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

fn shown(message: &Message, as_json: bool) -> String {
    let event: Value = serde_json::from_str(&message.data).unwrap_or_else(|_| message.data.clone().into());
    if as_json {
        let mut line = serde_json::json!({"event": event});
        if let Some(id) = &message.id {
            line["stream_id"] = id.clone().into();
        }
        if let Some(kind) = &message.event {
            line["kind"] = kind.clone().into();
        }
        return line.to_string();
    }
    if let Some(kind) = &message.event {
        return format!("-- {kind}: {}", message.data);
    }
    let word = |name: &str| event[name].as_str().unwrap_or("-").to_owned();
    let data = event.get("data").filter(|data| !data.is_null()).map(|data| format!("  {data}"));
    let (topic, kind, url, object) = (word("topic"), word("type"), word("url"), word("object"));
    let line = format!("{}  {topic}  {kind}  {url}  {object}{}", event["id"], data.unwrap_or_default());
    line.replace(char::is_control, "\u{fffd}")
}

async fn publish(args: Publish, remote: &Remote) -> Result<(), Failure> {
    let client = remote.client()?;
    let events = match (&args.file, args.kind, args.about) {
        (Some(file), _, _) => read(file)?,
        (None, Some(kind), Some(url)) => {
            let Publish { object, tenant, data, .. } = args;
            vec![NewEvent { kind, url, object, tenant, timestamp: None, data }]
        }
        // clap requires them.
        _ => return Err(Failure::configuration("name TYPE and ABOUT, or --file")),
    };
    let path = format!("/topics/{}/events", segment(&args.topic));
    let (mut published, progress) = (Vec::<Published>::new(), Progress::new());
    for batch in events.chunks(BATCH) {
        progress.say(&format!("published {} of {}", published.len(), events.len()));
        published.extend(client.send::<Vec<_>>("POST", &path, &batch).await?);
    }
    drop(progress);
    remote.show(&published, |published| {
        for event in published {
            let why = [event.code.as_deref(), event.detail.as_deref()].into_iter().flatten();
            terminal::line(&match event.id {
                Some(id) => format!("published {id}"),
                None => format!("rejected {}", why.collect::<Vec<_>>().join(": ")),
            });
        }
    })?;
    match published.iter().filter(|event| event.id.is_none()).count() {
        0 => Ok(()),
        refused => Err(Failure::refused_because(format!("{refused} of {} events rejected", published.len()))),
    }
}

fn read(file: &Path) -> Result<Vec<NewEvent>, Failure> {
    let event = |(at, item)| {
        serde_json::from_value(item)
            .map_err(|error| input::failed(file, &format_args!("event {}: {error}", at + 1)))
    };
    input::items(file)?.into_iter().enumerate().map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let message = Message {
            id: Some("a".to_owned()),
            event: None,
            data: r#"{"id":7,"topic":"demo","type":"update","url":"u\u001b[2J","object":"o","data":{"x":1}}"#
                .to_owned(),
        };
        assert_eq!(shown(&message, false), "7  demo  update  u\u{fffd}[2J  o  {\"x\":1}");
        assert!(shown(&message, true).contains(r#""stream_id":"a""#));
        let gap = Message { event: Some("gap".to_owned()), data: "{}".to_owned(), id: None };
        assert_eq!(shown(&gap, false), "-- gap: {}");
    }

    #[test]
    fn a_file_of_events_names_its_bad_event() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("events");
        std::fs::write(&file, "{\"type\":\"noop\",\"url\":\"u\"}\n\n{}\n").unwrap();
        let error = read(&file).unwrap_err();
        assert!(error.message().contains("events: event 2: missing field"), "{}", error.message());
        std::fs::write(&file, "{\"type\":\"noop\",\"url\":\"u\"}\n").unwrap();
        assert_eq!(read(&file).unwrap().len(), 1);
    }
}
