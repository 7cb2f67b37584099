//! `signalbox context`: names of systems, with their addresses and tokens.
//!
//! Contexts are stored in `contexts.toml` in the configuration folder of the user. Tokens are stored in files of their own, which only
//! the user can read, and are never arguments of a command, where other users of the machine could see them.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    exit::Failure,
    listing::{Listing, cells},
    remote::{Output, Remote},
    terminal::{self, out},
};

const MAX_NAME_BYTES: usize = 64;
/// The largest token that is read.
const MAX_TOKEN_BYTES: u64 = 4096;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List contexts
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        listing: Listing,
        #[command(flatten)]
        remote: Remote,
    },
    /// Add or replace a context; the token is read from a file or from standard input
    Add(Add),
    /// Use a context for all commands that name no other system
    Use(One),
    /// Use no context
    Unset(Output),
    /// Remove a context and its token
    #[command(visible_alias = "rm", alias = "delete")]
    Remove(One),
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Context
    name: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Add {
    /// Context
    name: String,
    /// The admin listener of the system
    #[arg(long)]
    url: String,
    /// Read the token from this file now, and store a copy; - is standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Trust the PEM certificates in this file in addition to those of the operating system
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Send the token over plain HTTP to another machine
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    output: Output,
}

/// A system that is known by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    pub(crate) url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) insecure: bool,
}

/// The file of all contexts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// Where contexts are stored.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// That of the user; nothing if the user has no home.
    pub(crate) fn of_user() -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("SIGNALBOX_CONFIG_DIR")
            .or_else(|| Some(set("XDG_CONFIG_HOME")?.join("signalbox")))
            .or_else(|| Some(set("HOME")?.join(".config/signalbox")))?;
        Some(Self { folder })
    }

    pub(crate) fn required() -> Result<Self, Failure> {
        Self::of_user()
            .ok_or_else(|| Failure::configuration("the folder of contexts is unknown, because HOME is not set: set SIGNALBOX_CONFIG_DIR to a folder"))
    }

    fn file(&self) -> PathBuf {
        self.folder.join("contexts.toml")
    }

    /// The file of a context's token.
    pub(crate) fn token_file(&self, name: &str) -> PathBuf {
        self.folder.join("tokens").join(name)
    }

    fn read(&self) -> Result<Contexts, Failure> {
        let file = self.file();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(error) => return Err(failed(&file, &error)),
        };
        toml::from_str(&text).map_err(|error| failed(&file, &error))
    }

    /// The names of all contexts; none if the file cannot be read.
    pub(crate) fn names(&self) -> Vec<String> {
        self.read().map(|all| all.contexts.into_keys().collect()).unwrap_or_default()
    }

    fn write(&self, contexts: &Contexts) -> Result<(), Failure> {
        let text = toml::to_string(contexts).map_err(|error| Failure::internal(error.to_string()))?;
        write_private(&self.file(), &text)
    }

    /// The context with this name, or the current one; nothing if there is none.
    pub(crate) fn context(&self, name: Option<&str>) -> Result<Option<(String, Context)>, Failure> {
        let mut all = self.read()?;
        let Some(name) = name.map(str::to_owned).or(all.current) else { return Ok(None) };
        match all.contexts.remove(&name) {
            Some(context) => Ok(Some((name, context))),
            None => Err(unknown(&name)),
        }
    }
}

fn unknown(name: &str) -> Failure {
    Failure::configuration(format!("unknown context {name}; `signalbox context list` shows all"))
}

fn failed(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::configuration(format!("{}: {error}", file.display()))
}

/// Replaces a file that only the user can read, as a whole.
fn write_private(file: &Path, text: &str) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let folder = file.parent().unwrap_or(file);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let new = file.with_extension("new");
        let _absent = fs::remove_file(&new);
        let mut open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        open.write_all(text.as_bytes())?;
        open.sync_all()?;
        fs::rename(&new, file)
    };
    write().map_err(|error| failed(file, &error))
}

/// A token from a file, or from standard input.
pub(crate) fn read_token(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        io::stdin().take(MAX_TOKEN_BYTES).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|open| open.take(MAX_TOKEN_BYTES).read_to_string(&mut text))
    };
    read.map_err(|error| failed(file, &error))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(failed(file, &"it contains no token"));
    }
    Ok(token.to_owned())
}

/// A row of the list.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    current: bool,
    url: String,
    token: bool,
}

pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    let store = Store::required()?;
    match command {
        Command::List { listing, remote } => list(&store, &listing, &remote),
        Command::Add(args) => add(&store, args),
        Command::Use(One { name, output }) => {
            let mut all = store.read()?;
            let context = all.contexts.get(&name).ok_or_else(|| unknown(&name))?;
            let text = format!("commands use {name} ({})", context.url);
            all.current = Some(name.clone());
            store.write(&all)?;
            output.show(&json!({"current": name}), |_| terminal::line(&text))
        }
        Command::Unset(output) => {
            store.write(&Contexts { current: None, ..store.read()? })?;
            output.show(&json!({"current": null}), |_| terminal::line("commands use no context"))
        }
        Command::Remove(One { name, output }) => {
            let mut all = store.read()?;
            all.contexts.remove(&name).ok_or_else(|| unknown(&name))?;
            all.current = all.current.filter(|current| *current != name);
            store.write(&all)?;
            let _absent = fs::remove_file(store.token_file(&name));
            output.show(&json!({"removed": name}), |_| out!("{name} removed"))
        }
    }
}

fn list(store: &Store, listing: &Listing, remote: &Remote) -> Result<(), Failure> {
    let all = store.read()?;
    let row = |(name, context): (String, Context)| Row {
        current: all.current.as_deref() == Some(&*name),
        token: store.token_file(&name).exists(),
        name,
        url: context.url,
    };
    let rows: Vec<Row> = all.contexts.clone().into_iter().map(row).collect();
    listing.show(remote, &rows, ["NAME", "CURRENT", "URL", "TOKEN"], |row| {
        cells![row.name, row.current.then_some("current"), row.url, row.token.then_some("stored")]
    })
}

fn add(store: &Store, args: Add) -> Result<(), Failure> {
    let valid = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    let name = args.name;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('.') || !name.chars().all(valid) {
        return Err(Failure::configuration(format!(
            "invalid name `{name}`: 1 to {MAX_NAME_BYTES} characters of a-z, A-Z, 0-9, `.`, `_` and `-`"
        )));
    }
    if !["http://", "https://"].iter().any(|scheme| args.url.starts_with(scheme)) {
        return Err(Failure::configuration(format!("{}: must begin with http:// or https://", args.url)));
    }
    let mut all = store.read()?;
    if let Some(file) = &args.token_file {
        write_private(&store.token_file(&name), &format!("{}\n", read_token(file)?))?;
    }
    let ca_file = args.ca_file.map(|file| std::path::absolute(&file).unwrap_or(file));
    let context = Context { url: args.url, ca_file, insecure: args.insecure };
    all.contexts.insert(name.clone(), context.clone());
    store.write(&all)?;
    args.output.show(&context, |_| out!("{name} added; `signalbox context use {name}` selects it"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn contexts_are_stored_and_only_their_user_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store { folder: folder.path().join("config") };
        assert_eq!(store.context(None).unwrap(), None);
        let prod = Context { url: "https://a.test".to_owned(), ca_file: None, insecure: false };
        let contexts = BTreeMap::from([("prod".to_owned(), prod.clone())]);
        store.write(&Contexts { current: None, contexts }).unwrap();
        assert_eq!(store.context(None).unwrap(), None);
        assert_eq!(store.context(Some("prod")).unwrap(), Some(("prod".to_owned(), prod)));
        assert!(store.context(Some("none")).unwrap_err().message().contains("unknown context none"));
        write_private(&store.token_file("prod"), "secret\n").unwrap();
        assert_eq!(read_token(&store.token_file("prod")).unwrap(), "secret");
        for file in [store.file(), store.token_file("prod")] {
            assert_eq!(
                fs::metadata(&file).unwrap().permissions().mode() & 0o777,
                0o600,
                "{}",
                file.display()
            );
        }
        fs::write(store.file(), "currant = 'x'\n").unwrap();
        assert!(store.context(None).unwrap_err().message().contains("unknown field `currant`"));
    }

    #[test]
    fn an_empty_file_is_not_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, " \n").unwrap();
        assert!(read_token(&file).unwrap_err().message().contains("it contains no token"));
    }
}
