//! `signalbox condition eval`: evaluates an exit condition without a machine and without a running system.

use std::{fs, path::PathBuf};

use clap::Subcommand;
use jiff::{Timestamp, civil, tz::TimeZone};
use serde_json::{Map, Value as Json, json};
use signalbox_condition::{Condition, Facts, KnownFeeds, Local, NeedsFeed, Visit, instant};

use crate::{exit::Failure, terminal};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Evaluate a condition with the facts in a file, and print the result as JSON (docs/conditions.md)
    Eval(Box<Eval>),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Eval {
    /// Time zone of system.time, system.date and system.weekday
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    timezone: TimeZone,
    /// File with a JSON object that can contain metadata, feeds, history and system
    #[arg(long, value_name = "FILE")]
    context: PathBuf,
    /// Current time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    now: Timestamp,
    /// Time at which the label entered its state
    #[arg(long, value_name = "TIME", value_parser = moment)]
    entered: Timestamp,
    /// Also print each operand's value and source, what blocks the condition, and which changes would make it true
    #[arg(long)]
    explain: bool,
    /// Condition; it may begin with `-`
    #[arg(value_name = "EXPR", allow_hyphen_values = true)]
    condition: String,
}

fn zone(name: &str) -> Result<TimeZone, String> {
    // Etc/Unknown is a placeholder zone, not a real one.
    let known = TimeZone::get(name).ok().filter(|zone| !zone.is_unknown());
    known.ok_or_else(|| "unknown time zone: expected a name such as Europe/London".to_owned())
}

fn moment(text: &str) -> Result<Timestamp, String> {
    instant(text).ok_or_else(|| "expected RFC 3339, such as 2026-01-31T18:30:00Z".to_owned())
}

/// Prints one JSON object: the result, or (with exit code 65) the errors of the condition.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    let Command::Eval(args) = command;
    // Invalid arguments are reported before errors in the condition.
    let context = Context::read(&args)?;
    let condition = match Condition::parse(&args.condition, KnownFeeds::Any) {
        Ok(condition) => condition,
        Err(error) => {
            terminal::line(&json!(error).to_string());
            terminal::error(&error.to_string());
            return Err(Failure::refused());
        }
    };
    let facts = context.facts(&args);
    // Every feed in a file has a value or null.
    let verdict = condition.evaluate(&facts).map_err(|NeedsFeed(name)| {
        Failure::internal(format!("the feed {name} in {} was not evaluated", args.context.display()))
    })?;
    let mut answer = json!({
        "result": verdict.truth.holds(),
        "error": condition.error_of(&verdict),
        "warnings": condition.warnings(),
        "variables": condition.variables().collect::<Json>(),
    });
    if args.explain {
        let explanation = condition.explain(&facts).to_json();
        if let (Json::Object(answer), Json::Object(explanation)) = (&mut answer, explanation) {
            answer.extend(explanation);
        }
    }
    terminal::line(&answer.to_string());
    Ok(())
}

/// The facts in a context file.
#[derive(Debug)]
struct Context {
    metadata: Json,
    feeds: Map<String, Json>,
    previous_state: Option<String>,
    entered: Timestamp,
    now: Timestamp,
    local: Option<Local>,
    state_machine: Option<String>,
    label: Option<String>,
}

impl Context {
    fn read(args: &Eval) -> Result<Self, Failure> {
        let wrong = |why: String| Failure::configuration(format!("{}: {why}", args.context.display()));
        let text = fs::read_to_string(&args.context).map_err(|error| wrong(error.to_string()))?;
        let json: Json = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        Self::of(json, args).map_err(wrong)
    }

    fn of(json: Json, args: &Eval) -> Result<Self, String> {
        let Json::Object(mut file) = json else { return Err("expected a JSON object".into()) };
        let mut metadata = section(&mut file, "metadata", None)?;
        let feeds = section(&mut file, "feeds", None)?;
        let mut history = section(&mut file, "history", Some(&["previous_state", "entered_state"]))?;
        let system = ["time", "date", "now", "weekday", "entered_state", "state_machine", "label"];
        let mut system = section(&mut file, "system", Some(&system))?;
        if let Some(key) = file.keys().next() {
            return Err(format!("unknown section {key:?}: expected metadata, feeds, history or system"));
        }
        let now = take(&mut system, "system.now", instant_of)?.unwrap_or(args.now);
        // Both names mean the same value; the one in `system` takes precedence.
        let entered = take(&mut history, "history.entered_state", instant_of)?;
        let entered = take(&mut system, "system.entered_state", instant_of)?.or(entered);
        let time = take(&mut system, "system.time", time_of)?;
        let date = take(&mut system, "system.date", date_of)?;
        let weekday = take(&mut system, "system.weekday", weekday_of)?;
        let local = (time.is_some() || date.is_some() || weekday.is_some()).then(|| {
            let local = Local::at(now, &args.timezone);
            let local = time.map_or(local, |time| local.with_time(time));
            let local = date.map_or(local, |date| local.with_date(date));
            weekday.map_or(local, |weekday| local.with_weekday(weekday))
        });
        Ok(Self {
            metadata: Json::Object(std::mem::take(&mut metadata)),
            feeds,
            previous_state: take(&mut history, "history.previous_state", text_of)?,
            entered: entered.unwrap_or(args.entered),
            now,
            local,
            state_machine: take(&mut system, "system.state_machine", text_of)?,
            label: take(&mut system, "system.label", text_of)?,
        })
    }

    fn facts<'a>(&'a self, args: &'a Eval) -> Facts<'a> {
        let visit = Visit {
            entered: self.entered,
            previous_state: self.previous_state.as_deref(),
            state_machine: self.state_machine.as_deref(),
            label: self.label.as_deref(),
        };
        let facts = Facts::new(&self.metadata, &self.feeds, visit, self.now, &args.timezone);
        match self.local {
            Some(local) => facts.with_local(local),
            None => facts,
        }
    }
}

/// An object of the file, empty if it is absent. `known` lists the permitted keys.
fn section(
    file: &mut Map<String, Json>,
    name: &str,
    known: Option<&[&str]>,
) -> Result<Map<String, Json>, String> {
    let object = match file.remove(name) {
        None => Map::new(),
        Some(Json::Object(object)) => object,
        Some(_) => return Err(format!("{name} must be an object")),
    };
    match known.and_then(|known| object.keys().find(|key| !known.contains(&key.as_str()))) {
        Some(key) => Err(format!("unknown key {name}.{key}")),
        None => Ok(object),
    }
}

/// The value of `section.key`, parsed by `read`. Null is treated as absent.
fn take<T>(
    section: &mut Map<String, Json>,
    path: &str,
    read: fn(&str) -> Result<T, &'static str>,
) -> Result<Option<T>, String> {
    let key = path.rsplit('.').next().unwrap_or(path);
    match section.remove(key) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => {
            read(&text).map(Some).map_err(|expected| format!("{path} is {text:?}: expected {expected}"))
        }
        Some(other) => Err(format!("{path} is {other}: expected a string")),
    }
}

fn instant_of(text: &str) -> Result<Timestamp, &'static str> {
    instant(text).ok_or("RFC 3339, such as 2026-01-31T18:30:00Z")
}

fn time_of(text: &str) -> Result<civil::Time, &'static str> {
    let format = if text.len() == 5 { "%H:%M" } else { "%H:%M:%S" };
    civil::Time::strptime(format, text).map_err(|_| "a time of day, such as 18:30 or 18:30:15")
}

fn date_of(text: &str) -> Result<civil::Date, &'static str> {
    civil::Date::strptime("%Y-%m-%d", text).map_err(|_| "a date, such as 2026-01-31")
}

fn weekday_of(text: &str) -> Result<civil::Weekday, &'static str> {
    let days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    let day = days.iter().position(|day| *day == text).and_then(|day| i8::try_from(day + 1).ok());
    day.and_then(|day| civil::Weekday::from_monday_one_offset(day).ok()).ok_or("monday to sunday")
}

fn text_of(text: &str) -> Result<String, &'static str> {
    Ok(text.to_owned())
}
