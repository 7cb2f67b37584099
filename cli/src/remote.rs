//! Selects the system that a command uses, and the form of its output.

use std::{fs, io, ops::Deref, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

use clap::{ArgMatches, Args as _, FromArgMatches, Subcommand, builder::Resettable, error::ErrorKind};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use signalbox_client::{Client, Error};
use signalbox_stack::Description;
use url::{Host, Url};

use crate::{
    contexts::{Context, Store, read_token},
    exit::Failure,
    outline, terminal, yaml,
};

/// The data folder of `signalbox up`.
const DATA_DIR: &str = ".signalbox";

/// Flags of every command that calls a running system.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "System and output")]
pub(crate) struct Remote {
    #[command(flatten)]
    pub(crate) system: System,
    #[command(flatten)]
    output: Output,
}

/// A group of commands, each of which also has the flags of [`Remote`].
#[derive(Debug)]
pub(crate) struct Online<C> {
    pub(crate) command: C,
    pub(crate) remote: Remote,
}

impl<C: FromArgMatches> FromArgMatches for Online<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (_, flags) =
            matches.subcommand().ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))?;
        Ok(Self { command: C::from_arg_matches(matches)?, remote: Remote::from_arg_matches(flags)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<C: Subcommand> Subcommand for Online<C> {
    fn augment_subcommands(parent: clap::Command) -> clap::Command {
        let group = C::augment_subcommands(clap::Command::default());
        let with_flags = |command: &clap::Command| {
            // The flags bring a description of their own. The parent sets the order.
            let about = command.get_about().cloned().unwrap_or_default();
            Remote::augment_args(command.clone()).about(about).display_order(Resettable::Reset)
        };
        parent.subcommands(group.get_subcommands().map(with_flags))
    }

    fn augment_subcommands_for_update(parent: clap::Command) -> clap::Command {
        Self::augment_subcommands(parent)
    }

    fn has_subcommand(name: &str) -> bool {
        C::has_subcommand(name)
    }
}

/// The form of the output.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "System and output")]
pub(crate) struct Output {
    /// Output format; wide and name differ from table only for lists
    #[arg(short, long, value_name = "FORMAT", default_value = "table", conflicts_with = "json")]
    output: Format,
    /// Same as -o json
    #[arg(long)]
    json: bool,
}

/// A form of the output. Its values have no help texts, with which clap would print the long help of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    // For people.
    Table,
    // With more columns, and times as timestamps.
    Wide,
    // The members of the API.
    Json,
    // The same as YAML.
    Yaml,
    // Only the names, one per line.
    Name,
}

/// Selects a running system.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "System and output")]
pub(crate) struct System {
    /// Use the system with this name (see `signalbox context`)
    #[arg(long, value_name = "NAME", env = "SIGNALBOX_CONTEXT")]
    context: Option<String>,
    /// Use the API at this URL
    #[arg(long, value_name = "URL", env = "SIGNALBOX_URL")]
    url: Option<String>,
    /// Use the address and the root token in this data folder of a system on this machine [default: .signalbox]
    #[arg(long, value_name = "DIR", env = "SIGNALBOX_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Use the token in this file; - is standard input. SIGNALBOX_TOKEN contains a token itself
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Send the token over plain HTTP to another machine
    #[arg(long, env = "SIGNALBOX_INSECURE")]
    insecure: bool,
    /// Trust the PEM certificates in this file in addition to those of the operating system
    #[arg(long, value_name = "FILE", env = "SIGNALBOX_CA_FILE")]
    ca_file: Option<PathBuf>,
}

impl Deref for Remote {
    type Target = System;

    fn deref(&self) -> &System {
        &self.system
    }
}

impl System {
    /// A client with the default timeout.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        self.patient(Duration::from_secs(60))
    }

    /// A client with the timeout `patience`.
    pub(crate) fn patient(&self, patience: Duration) -> Result<Client, Failure> {
        let mut ca_file = self.ca_file.clone();
        let (url, token) = if let Some((name, context)) = self.named()? {
            ca_file = ca_file.or_else(|| context.ca_file.clone());
            let token = self.token_of(&name, &context)?;
            (context.url, token)
        } else if let Some(url) = &self.url {
            (url.clone(), self.token_for(url)?)
        } else {
            (self.description()?.admin_url, Some(self.own_token()?))
        };
        let mut builder = Client::builder(url).timeout(patience);
        if let Some(token) = token {
            builder = builder.token(token);
        }
        if let Some(file) = ca_file {
            builder = builder.ca_file(file);
        }
        Ok(builder.build()?)
    }

    /// The system that runs in the data folder.
    pub(crate) fn description(&self) -> Result<Description, Failure> {
        let folder = self.folder();
        let file = folder.join("run/stack.json");
        let text = fs::read_to_string(&file).map_err(|_| {
            Failure::unavailable(format!(
                "no system runs in {}; start one with `signalbox up`, or name another one with --url or --context",
                folder.display()
            ))
        })?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::internal(format!("cannot read {}: {error}", file.display())))
    }

    /// The system in the data folder, unless another one is named.
    pub(crate) fn here(&self) -> Option<Description> {
        if self.is_named() { None } else { self.description().ok() }
    }

    /// Whether the system is another one than that of a data folder.
    pub(crate) fn is_named(&self) -> bool {
        self.url.is_some() || !matches!(self.named(), Ok(None))
    }

    fn folder(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| PathBuf::from(DATA_DIR))
    }

    /// The context that applies. Every other way to name a system has precedence over the current context.
    fn named(&self) -> Result<Option<(String, Context)>, Failure> {
        match (&self.context, Store::of_user()) {
            (Some(name), _) => Store::required()?.context(Some(name)),
            (None, Some(store)) if self.url.is_none() && self.data_dir.is_none() => store.context(None),
            (None, _) => Ok(None),
        }
    }

    /// The token that the user set for this command.
    fn token(&self) -> Result<Option<String>, Failure> {
        match &self.token_file {
            Some(file) => read_token(file).map(Some),
            None => Ok(std::env::var("SIGNALBOX_TOKEN").ok().filter(|token| !token.is_empty())),
        }
    }

    /// The token for a context: one that was set for this command, or the stored one.
    fn token_of(&self, name: &str, context: &Context) -> Result<Option<String>, Failure> {
        let stored = Store::of_user().map(|store| store.token_file(name)).filter(|file| file.exists());
        let token = match self.token()? {
            Some(token) => Some(token),
            None => stored.map(|file| read_token(&file)).transpose()?,
        };
        if token.is_some() && !context.insecure {
            self.must_protect(&context.url)?;
        }
        Ok(token)
    }

    /// Rejects an address to which a token would be sent unencrypted.
    fn must_protect(&self, url: &str) -> Result<(), Failure> {
        if self.insecure || is_protected(url) {
            return Ok(());
        }
        Err(Failure::configuration(format!(
            "{url}: the token would be sent unencrypted to another machine; use https://, or --insecure if the network is \
             protected"
        )))
    }

    /// The token for the system in the data folder.
    fn own_token(&self) -> Result<String, Failure> {
        if let Some(token) = self.token()? {
            return Ok(token);
        }
        let file = self.folder().join("token");
        let failure = |error: io::Error| {
            Failure::configuration(format!("{}: {error}; use --token-file", file.display()))
        };
        let mode = fs::metadata(&file).map_err(failure)?.mode();
        // A group may read it, as services of one system may share a group. Writing it would replace the token.
        if mode & 0o027 != 0 {
            return Err(Failure::configuration(format!(
                "{}: other users can access this file (mode {:04o}); create a new token, and run `chmod 600` on the file",
                file.display(),
                mode & 0o7777
            )));
        }
        Ok(fs::read_to_string(&file).map_err(failure)?.trim().to_owned())
    }

    /// The token for the system at `url`. The token in the data folder is sent only if this is the folder's own system.
    fn token_for(&self, url: &str) -> Result<Option<String>, Failure> {
        let own = self.description().is_ok_and(|own| same_origin(&own.admin_url, url));
        if own {
            return self.own_token().map(Some);
        }
        let token = self.token()?;
        if token.is_some() {
            self.must_protect(url)?;
        }
        Ok(token)
    }
}

impl Remote {
    /// The selected format.
    pub(crate) fn format(&self) -> Format {
        self.output.format()
    }

    /// Whether a program reads the output, so that commands without an end print a JSON document per line.
    pub(crate) fn is_json(&self) -> bool {
        self.format() == Format::Json
    }

    /// Makes a call that changes something, and prints `done`, or the answer as JSON or YAML.
    pub(crate) async fn change(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        done: impl FnOnce(&Value) -> String,
    ) -> Result<(), Failure> {
        let mut answer = self.call(method, path, body).await?;
        if answer.is_null() {
            answer = json!({"done": true});
        }
        self.show(&answer, |answer| terminal::line(&done(answer)))
    }

    /// Makes a call.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        Ok(self.client()?.call(method, path, body).await?)
    }

    /// Prints the document at `path`: its members, one per line.
    pub(crate) async fn document(&self, path: &str) -> Result<(), Failure> {
        let document = self.call("GET", path, None).await?;
        self.show(&document, outline::print)
    }

    /// Prints what was done: `text`, or the document as JSON or YAML.
    pub(crate) fn done(&self, document: &Value, text: &str) -> Result<(), Failure> {
        self.show(document, |_| terminal::line(text))
    }

    /// Prints the answer: as JSON or YAML if requested, otherwise by `text`.
    pub(crate) fn show<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T)) -> Result<(), Failure> {
        self.output.show(answer, text)
    }
}

impl Output {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// As [`Remote::show`].
    pub(crate) fn show<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T)) -> Result<(), Failure> {
        let failed = |error| Failure::internal(format!("cannot write the answer: {error}"));
        match self.format() {
            Format::Json => terminal::line(&serde_json::to_string_pretty(answer).map_err(failed)?),
            Format::Yaml => terminal::line(&yaml::write(&serde_json::to_value(answer).map_err(failed)?)),
            Format::Table | Format::Wide | Format::Name => text(answer),
        }
        Ok(())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = match &error {
            // serde's message contains the position of the difference.
            Error::Unreadable { source, .. } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        match error.status() {
            Some(401) => Self::denied(format!("{message}; set a token with --token-file or SIGNALBOX_TOKEN")),
            Some(403) => Self::denied(message),
            _ if error.is_unavailable() => Self::unavailable(message),
            Some(_) if error.code().is_some() => Self::refused_because(message),
            _ => match error {
                Error::Address { .. } | Error::Token | Error::Key | Error::Trust { .. } => {
                    Self::configuration(message)
                }
                _ => Self::unavailable(message),
            },
        }
    }
}

fn same_origin(one: &str, other: &str) -> bool {
    // The origin of a URL that is not one of HTTP equals no other.
    Url::parse(one).is_ok_and(|one| Url::parse(other).is_ok_and(|other| one.origin() == other.origin()))
}

/// Whether a token can be sent to `url` without another machine reading it on the way. An invalid URL is reported when
/// the client is built, before anything is sent.
fn is_protected(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return true };
    url.scheme() != "http"
        || url.host().is_some_and(|host| match host {
            Host::Domain(name) => name == "localhost",
            Host::Ipv4(address) => address.is_loopback(),
            Host::Ipv6(address) => address.is_loopback(),
        })
}

/// `5s`, `500ms`, `2m`, or `5` for seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit_ms = match &text[number.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("must end with ms, s, m, h or d".to_owned()),
    };
    let number: u64 =
        number.parse().map_err(|_| "must be a whole number and a unit, such as 30s".to_owned())?;
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

/// A duration of whole seconds, as their number.
pub(crate) fn seconds<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let duration = duration(text)?;
    if duration.subsec_millis() != 0 {
        return Err("must be a whole number of seconds".to_owned());
    }
    T::try_from(duration.as_secs()).map_err(|_| "too long".to_owned())
}

/// A time as in RFC 3339, or a duration before now.
pub(crate) fn past(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let expected = |_| "must be a duration such as 10m, or a time such as 2027-01-31T00:00Z".to_owned();
    let before = duration(text).map_err(expected)?;
    Timestamp::now().checked_sub(before).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_past_time_is_a_time_or_a_duration() {
        assert_eq!(past("2027-01-31T00:00:00Z").unwrap().as_millisecond(), 1_801_353_600_000);
        let (early, late) = (past("1h").unwrap().as_millisecond(), past("0s").unwrap().as_millisecond());
        assert!((3_600_000..3_700_000).contains(&(late - early)), "{early} {late}");
        for bad in ["", "yesterday", "5x", "1795273590123x", "99999999d"] {
            past(bad).unwrap_err();
        }
    }

    #[test]
    fn seconds_are_whole() {
        assert_eq!((seconds::<u32>("5"), seconds::<u64>("2m")), (Ok(5), Ok(120)));
        for bad in ["500ms", "5000000000s", "x"] {
            seconds::<u32>(bad).unwrap_err();
        }
    }

    #[test]
    fn a_duration_has_a_unit() {
        for (text, ms) in [
            ("5s", 5_000),
            ("500ms", 500),
            ("5", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "5x", "-5s", "1.5s", "99999999999999999999s", "9999999999999999h"] {
            duration(text).unwrap_err();
        }
    }

    #[test]
    fn a_token_is_sent_unencrypted_only_within_this_machine() {
        for url in ["https://a.example", "http://127.0.0.1:8081", "http://LOCALHOST/x", "http://[::1]:8081/"]
        {
            assert!(is_protected(url), "{url}");
        }
        for url in [
            "http://a.example",
            "http://10.0.0.1:8081",
            "HTTP://a.example/",
            "http://127.0.0.1@a.example/",
            "http://localhost.a.example",
            "http://127.0.0.1.a.example:80",
            "http://[2001:db8::1]/",
        ] {
            assert!(!is_protected(url), "{url}");
        }
    }

    #[test]
    fn a_system_is_recognized_by_its_origin() {
        let own = "http://127.0.0.1:8081";
        for same in ["http://127.0.0.1:8081/", "HTTP://127.0.0.1:8081", "http://127.0.0.1:8081/instances"] {
            assert!(same_origin(own, same), "{same}");
        }
        for other in [
            "http://127.0.0.1:8082",
            "https://127.0.0.1:8081",
            "http://127.0.0.1:8081@a.example/",
            "http://a.example:8081",
            "127.0.0.1:8081",
        ] {
            assert!(!same_origin(own, other), "{other}");
        }
    }
}
