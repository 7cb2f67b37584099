//! A folder with a TOML or JSON file per instance, or per group of instances.
//!
//! An entry whose file was removed has ended, as long as the folder is the same one as at the reading before. If another
//! folder is in its place, as after an unmount, nothing is concluded from what is missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use serde_json::Value;
use signalbox_client::routes::NewInstance;
use tokio::{sync::Notify, time};

use crate::{
    Error,
    snapshot::{Entry, Snapshot, Source, key},
};

const MAX_FILES: usize = 10_000;
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The longest time until a change is noticed if the folder cannot be watched.
const POLL: Duration = Duration::from_secs(2);

/// A folder of files.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    changes: Arc<Notify>,
    watched: Option<(Identity, RecommendedWatcher)>,
    /// The instances of each file when it could be read last.
    before: BTreeMap<String, Vec<(String, NewInstance)>>,
    /// Keys that ended since the folder is known.
    ended: BTreeSet<String>,
}

/// Device and inode.
type Identity = (u64, u64);

impl Folder {
    /// The folder at `path`. It may not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let (changes, before, ended) = Default::default();
        Self { path: path.into(), changes, watched: None, before, ended }
    }

    /// Watches the folder, and returns whether it is the one of the reading before.
    fn watch(&mut self) -> io::Result<bool> {
        let metadata = fs::metadata(&self.path)?;
        let identity = (metadata.dev(), metadata.ino());
        if self.watched.as_ref().is_some_and(|(before, _)| *before == identity) {
            return Ok(true);
        }
        let changes = self.changes.clone();
        let watcher =
            notify::recommended_watcher(move |_: notify::Result<notify::Event>| changes.notify_one());
        let started = watcher.and_then(|mut watcher| {
            watcher.watch(&self.path, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        // Without a watcher, the folder is polled.
        self.watched = started.ok().map(|watcher| (identity, watcher));
        Ok(false)
    }

    /// The files, by their names without extensions.
    fn files(&self) -> Result<BTreeMap<String, PathBuf>, Error> {
        let failed = |source| Error::Folder { path: self.path.clone(), source };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_ours =
                path.extension().is_some_and(|extension| extension == "toml" || extension == "json");
            // A pipe would block the reader; a link may lead to a file.
            if is_ours && !name.starts_with('.') && fs::metadata(&path).is_ok_and(|found| found.is_file()) {
                files.insert(name, path);
            }
            if files.len() > MAX_FILES {
                return Err(Error::TooManyFiles { path: self.path.clone(), limit: MAX_FILES });
            }
        }
        Ok(files)
    }

    fn scan(&mut self) -> Result<Snapshot, Error> {
        let same = self.watch().map_err(|source| Error::Folder { path: self.path.clone(), source })?;
        let mut snapshot = Snapshot::default();
        let mut now = BTreeMap::new();
        for (name, path) in self.files()? {
            let (instances, problem) = match read(&path) {
                Ok(instances) => (instances, None),
                // It may be half written.
                Err(why) => (self.before.get(&name).cloned().unwrap_or_default(), Some(why)),
            };
            for (key, instance) in &instances {
                let entry = match &problem {
                    Some(why) => Entry::Unclear(format!("{name}: {why}")),
                    None => Entry::Instance(Box::new(instance.clone())),
                };
                snapshot.add(key, entry);
            }
            if let Some(why) = problem.filter(|_| instances.is_empty()) {
                snapshot.add(&stem(&path), Entry::Unclear(format!("{name}: {why}")));
            }
            now.insert(name, instances);
        }
        let keys = |files: &BTreeMap<String, Vec<(String, NewInstance)>>| -> BTreeSet<String> {
            files.values().flatten().map(|(name, _)| key(name)).collect()
        };
        if same {
            self.ended.extend(keys(&self.before));
        } else {
            self.ended.clear();
        }
        self.ended.retain(|key| !snapshot.entries.contains_key(key));
        snapshot.ended.clone_from(&self.ended);
        self.before = now;
        Ok(snapshot)
    }
}

impl Source for Folder {
    async fn read(&mut self) -> Result<Snapshot, Error> {
        self.scan()
    }

    async fn changed(&mut self) {
        if self.watched.is_some() {
            self.changes.notified().await;
        } else {
            time::sleep(POLL).await;
        }
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The instances of a file, with their names: one, or those below `instances`.
fn read(path: &Path) -> Result<Vec<(String, NewInstance)>, String> {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > MAX_FILE_BYTES {
        return Err(format!("larger than {MAX_FILE_BYTES} bytes"));
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let value: Value = if is_toml {
        toml::from_str(&text).map_err(|error| one_line(error.to_string()))?
    } else {
        serde_json::from_str(&text).map_err(|error| error.to_string())?
    };
    let instance = |value: &Value| -> Result<NewInstance, String> {
        serde_json::from_value(value.clone()).map_err(|error| error.to_string())
    };
    let name = stem(path);
    let Some(group) = value.get("instances") else { return Ok(vec![(name, instance(&value)?)]) };
    if value.as_object().is_none_or(|object| object.len() != 1) {
        return Err("next to `instances` nothing else is allowed".to_owned());
    }
    let group = group.as_object().ok_or("`instances` must be an object of names and instances")?;
    group
        .iter()
        .map(|(one, value)| {
            let instance = instance(value).map_err(|why| format!("instances.{one}: {why}"))?;
            Ok((format!("{name}-{one}"), instance))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(snapshot: &Snapshot) -> Vec<(&str, String)> {
        let word = |entry: &Entry| match entry {
            Entry::Instance(instance) => instance.address.clone(),
            Entry::Unclear(why) => why.clone(),
            Entry::Pending => "pending".to_owned(),
        };
        snapshot.entries.iter().map(|(key, entry)| (&**key, word(entry))).collect()
    }

    const ONE: &str = "address = '10.0.0.1:1'\nhostnames = ['a.test']\nversion_type_id = 7\n";

    #[test]
    fn files_are_instances_and_removed_files_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("a.toml"), ONE).unwrap();
        let group =
            r#"{"instances":{"x":{"address":"10.0.0.2:1","hostnames":["b.test"],"version_type_id":"1"}}}"#;
        fs::write(file("b.json"), group).unwrap();
        fs::write(file("notes.txt"), "nothing").unwrap();
        fs::write(file(".hidden.toml"), "nothing").unwrap();
        fs::create_dir(file("folder.toml")).unwrap();
        let mut source = Folder::new(folder.path());
        let first = source.scan().unwrap();
        assert_eq!(shown(&first), [("a", "10.0.0.1:1".to_owned()), ("b-x", "10.0.0.2:1".to_owned())]);
        assert!(first.ended.is_empty());

        // A file that is being written keeps its instances.
        fs::write(file("b.json"), &group[..30]).unwrap();
        let second = source.scan().unwrap();
        assert!(
            matches!(&second.entries["b-x"], Entry::Unclear(why) if why.starts_with("b.json: EOF")),
            "{second:?}"
        );
        fs::remove_file(file("a.toml")).unwrap();
        let third = source.scan().unwrap();
        assert_eq!(third.ended, BTreeSet::from(["a".to_owned()]));
        assert_eq!(source.scan().unwrap().ended, BTreeSet::from(["a".to_owned()]));
        fs::write(file("a.toml"), ONE).unwrap();
        assert!(source.scan().unwrap().ended.is_empty());
    }

    #[test]
    fn another_folder_in_its_place_ends_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("instances");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.toml"), ONE).unwrap();
        let mut source = Folder::new(&path);
        assert_eq!(source.scan().unwrap().entries.len(), 1);
        fs::rename(&path, parent.path().join("before")).unwrap();
        source.scan().unwrap_err();
        fs::create_dir(&path).unwrap();
        let empty = source.scan().unwrap();
        assert!(empty.entries.is_empty() && empty.ended.is_empty(), "{empty:?}");
    }

    #[test]
    fn a_file_that_is_wrong_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("address = ", "TOML parse error at line 1"),
            ("adress = 'x'\n", "unknown field `adress`"),
            ("address = '10.0.0.1:1'\n", "missing field"),
            ("instances = 7\n", "must be an object"),
            ("other = 1\n[instances]\n", "nothing else is allowed"),
            ("[instances.x]\naddress = 7\n", "instances.x: invalid type"),
        ] {
            let path = folder.path().join("x.toml");
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error}");
        }
    }
}
