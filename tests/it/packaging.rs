//! The files that are shipped with the programs: containers, units, the Debian package. They are only read here, because
//! running them needs Docker and root. Every name that one file uses is checked against the file that defines it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn the_compose_file_names_only_files_that_exist() {
    let compose: Value = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    let (services, volumes) = (names(&compose["services"]), names(&compose["volumes"]));
    assert!(services.len() > 10, "{services:?}");
    for (name, service) in compose["services"].as_object().unwrap() {
        assert!(service["healthcheck"]["test"].is_array(), "{name} has no health check");
        let built = service["build"]["target"].as_str();
        assert!(built.is_some() != service["image"].is_string(), "{name} is built or taken");
        if let Some(target) = built {
            assert!(
                read("docker/Dockerfile").contains(&format!(" AS {target}\n")),
                "{name} is built as {target}"
            );
        }
        let profiles = &service["profiles"];
        for needed in names(&service["depends_on"]) {
            let other = &compose["services"][needed];
            assert!(services.contains(needed), "{name} waits for {needed}");
            // What is always there cannot wait for what is there only sometimes.
            assert!(
                other["profiles"].is_null() || other["profiles"] == *profiles,
                "{name} waits for {needed}"
            );
        }
        for secret in service["secrets"].as_array().into_iter().flatten() {
            let secret = secret.as_str().unwrap();
            assert!(!compose["secrets"][secret].is_null(), "{name} is given {secret}, which there is not");
        }
        // What private keys of certificates are encrypted with is read where it is mounted, by who is given it.
        let environment = service["environment"].as_object().into_iter().flatten();
        let reads_key = environment
            .filter(|(key, _)| key.ends_with("EDGE_KEY_FILE"))
            .any(|(_, path)| path == "/run/secrets/edge-key");
        let given_key =
            service["secrets"].as_array().is_some_and(|all| all.iter().any(|one| one == "edge-key"));
        let needs_key = matches!(built, Some("edge" | "pacemaker"));
        assert_eq!((reads_key, given_key), (needs_key, needs_key), "{name} and the key file");
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume.as_str().unwrap().split(':').next().unwrap();
            match source.strip_prefix("./") {
                Some(file) => assert!(root().join(file).exists(), "{name} mounts {file}"),
                None => assert!(volumes.contains(source), "{name} mounts {source}"),
            }
        }
    }
    let mut profiles = BTreeMap::<&str, usize>::new();
    for service in compose["services"].as_object().unwrap().values() {
        for profile in service["profiles"].as_array().into_iter().flatten() {
            *profiles.entry(profile.as_str().unwrap()).or_default() += 1;
        }
    }
    assert_eq!(profiles, BTreeMap::from([("sentinel", 5), ("two-routers", 3)]));
    let addresses: Vec<&str> = compose["services"]
        .as_object()
        .unwrap()
        .values()
        .filter_map(|service| service["networks"]["signalbox"]["ipv4_address"].as_str())
        .collect();
    let different: BTreeSet<_> = addresses.iter().collect();
    assert!(addresses.len() == 3 && different.len() == 3, "{addresses:?}");
}

#[test]
fn docker_accepts_the_compose_file() {
    let Ok(version) = Command::new("docker-compose").arg("version").output() else {
        println!("docker-compose is not installed: only its file was read");
        return;
    };
    assert!(version.status.success());
    let profiles = ["--profile", "two-routers", "--profile", "sentinel", "config", "--quiet"];
    let output = Command::new("docker-compose").args(profiles).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Section and key of each line of a unit, comments left out.
fn unit(text: &str) -> Vec<(String, String, String)> {
    let (mut section, mut settings) = (String::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name.to_owned(),
            None => {
                let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("no setting: {line}"));
                settings.push((section.clone(), key.to_owned(), value.to_owned()));
            }
        }
    }
    settings
}

/// What the Debian package holds: source and target of each asset.
fn assets() -> Vec<(String, String)> {
    let manifest: toml::Table = toml::from_str(&read("cli/Cargo.toml")).unwrap();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    assets.iter().map(|asset| (text(&asset[0]), text(&asset[1]))).collect()
}

/// Whether the package brings a file, or one of its dependencies does.
fn is_installed(file: &str) -> bool {
    let brought = assets().iter().any(|(source, target)| {
        let folder = target.ends_with('/');
        let (parent, name) = file.rsplit_once('/').unwrap();
        let here = format!("{}/", parent.trim_start_matches('/')) == *target;
        let source = source.replace("../", "");
        match source.rsplit_once('/') {
            Some((from, "*")) => folder && here && root().join(from).join(name).is_file(),
            Some((_, own)) => folder && here && own == name,
            None => false,
        }
    });
    // Redis and nginx are dependencies, the shell's own programs are everywhere.
    brought || ["/usr/bin/redis-server", "/usr/sbin/nginx", "/bin/kill"].contains(&file)
}

#[test]
fn units_start_installed_programs_and_wait_for_existing_units() {
    let folder = root().join("packaging/systemd");
    let units: BTreeMap<String, String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    assert_eq!(units.len(), 6, "{:?}", units.keys());
    for (name, text) in &units {
        let settings = unit(text);
        for (section, key, value) in &settings {
            assert!(["Unit", "Service", "Install"].contains(&&**section), "{name}: [{section}]");
            let files = match key.as_str() {
                "ExecStart" | "ExecStartPre" | "ExecReload" => value.split(' ').collect::<Vec<_>>(),
                _ => Vec::new(),
            };
            for word in files.iter().filter(|word| word.starts_with('/')) {
                let server = |word: &str| {
                    ["routes", "stats", "fabric", "routes-replica"].map(|role| word.replace("%i", role))
                };
                for file in server(word) {
                    let is_data = file.starts_with("/var/lib/signalbox");
                    assert!(is_data || is_installed(&file), "{name}: nobody installs {file}");
                }
            }
            if ["After", "Wants", "PartOf", "Conflicts"].contains(&&**key) {
                for other in value.split(' ').filter(|other| other.starts_with("signalbox")) {
                    let template = other.split_once('@').map(|(before, _)| format!("{before}@.service"));
                    let other = template.unwrap_or_else(|| other.to_owned());
                    assert!(units.contains_key(&other), "{name}: there is no {other}");
                }
            }
        }
        if !name.ends_with(".service") {
            continue;
        }
        // What everything that listens to strangers has to have.
        for (key, value) in [
            ("User", "signalbox"),
            ("NoNewPrivileges", "yes"),
            ("ProtectSystem", "strict"),
            ("ProtectHome", "yes"),
            ("PrivateTmp", "yes"),
            ("RestrictSUIDSGID", "yes"),
        ] {
            let set = settings.iter().any(|(_, found, text)| found == key && text == value);
            assert!(set, "{name} has no {key}={value}");
        }
    }
    let redis = unit(&units["signalbox-redis@.service"]);
    assert!(redis.iter().any(|(_, key, value)| key == "ExecStartPre" && value.contains("repair-aof")));
}

#[test]
fn a_machine_runs_only_the_parts_that_are_enabled_on_it() {
    let target = unit(&read("packaging/systemd/signalbox.target"));
    let pulls =
        target.iter().find(|(_, key, _)| ["Wants", "Requires", "BindsTo", "Upholds"].contains(&&**key));
    assert!(pulls.is_none(), "the target starts parts whether they are enabled or not: {pulls:?}");
    for part in ["edge", "pacemaker", "redis@", "sidecar"] {
        let settings = unit(&read(&format!("packaging/systemd/signalbox-{part}.service")));
        let enabled = settings.iter().any(|(section, key, value)| {
            section == "Install" && key == "WantedBy" && value == "signalbox.target"
        });
        assert!(enabled, "`systemctl enable` does not attach {part} to the target");
    }
    // An upgrade of the package must not restart nginx and Redis: the operator takes the router out of traffic first.
    let script = read("packaging/debian/postinst");
    let restarted: Vec<&str> = script.lines().filter(|line| line.contains("systemctl try-restart")).collect();
    let [restarted] = restarted[..] else { panic!("{restarted:?}") };
    let units: Vec<&str> = restarted.split_whitespace().skip(2).collect();
    assert_eq!(units, ["signalbox-pacemaker.service", "signalbox-sidecar.service"]);
}

#[test]
fn the_package_contains_files_that_exist() {
    for (source, target) in assets() {
        assert!(!target.starts_with('/'), "{target}");
        // Made by `make deb`.
        let Some(source) = source.strip_prefix("../").filter(|source| !source.starts_with("target/")) else {
            continue;
        };
        let plain = source.split('*').next().unwrap();
        assert!(root().join(plain).exists(), "{source} of the package is not there");
    }
    let manifest: toml::Table = toml::from_str(&read("cli/Cargo.toml")).unwrap();
    for file in manifest["package"]["metadata"]["deb"]["conf-files"].as_array().unwrap() {
        let file = file.as_str().unwrap();
        assert!(is_installed(file), "{file} is no file of the package");
    }
}

#[test]
fn the_packages_configuration_has_only_known_keys() {
    for (file, defaults) in [
        ("packaging/etc/pacemaker.toml", "pacemaker/src/config/defaults.toml"),
        ("packaging/etc/sidecar.toml", "sidecar/src/config/defaults.toml"),
    ] {
        let (set, known): (toml::Table, String) = (toml::from_str(&read(file)).unwrap(), read(defaults));
        let keys = set.iter().flat_map(|(key, value)| match value.as_table() {
            Some(table) => table.keys().cloned().collect(),
            None => vec![key.clone()],
        });
        for key in keys {
            let has = known.lines().any(|line| {
                line.trim_start_matches("# ").trim_start_matches('#').starts_with(&format!("{key} = "))
            });
            assert!(has, "{file}: {defaults} has no {key}");
        }
    }
    // A listener of this machine that could be registered as an instance would be reached through the edge.
    let reserved: toml::Table = toml::from_str(&read("packaging/etc/pacemaker.toml")).unwrap();
    let reserved: BTreeSet<&str> =
        reserved["reserved_addresses"].as_array().unwrap().iter().filter_map(toml::Value::as_str).collect();
    let edge = read("packaging/etc/edge.env");
    for name in ["EDGE_LISTEN", "ADMIN_LISTEN"] {
        let listens = edge.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap();
        let here = listens.replace("0.0.0.0", "127.0.0.1");
        assert!(reserved.contains(&*here), "{here} is not reserved");
    }
    let known: BTreeSet<&str> = signalbox_stack::edge_variables().collect();
    for line in read("packaging/etc/edge.env").lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('=').next().unwrap();
        assert!(known.contains(name), "`signalbox edge` does not know {name}");
    }
    for role in ["routes", "stats", "fabric"] {
        let text = read(&format!("packaging/etc/redis-{role}.conf"));
        assert!(text.contains("maxmemory-policy noeviction") && text.contains("appendonly yes"), "{role}");
    }
}

/// Runs `signalbox edge check` with the package's environment and more, as `systemctl reload` does first.
fn try_edge(folder: &Path, more: &[(&str, &str)]) -> (bool, String) {
    let text = read("packaging/etc/edge.env");
    let packaged = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    });
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    fs::write(path("edge.key"), "00".repeat(32) + "\n").unwrap();
    let output = Command::new(crate::up::program())
        .args(["edge", "check"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(packaged)
        // What the package has elsewhere, or where only its user may write.
        .env("PREFIX", folder)
        .env("NGINX_DIR", root().join("nginx"))
        .env("LUA_DIR", root().join("lua"))
        .env("EDGE_KEY_FILE", path("edge.key"))
        .env("ACCESS_LOG", path("access.log"))
        .env("SNAPSHOT_PATH", path("routes.snapshot"))
        .env("ROUTES_REPLICA", format!("unix:{}", path("routes.sock")))
        .envs(more.iter().copied())
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn nginx_accepts_the_packages_edge_and_a_wrong_one_is_rejected_before_a_reload() {
    let edge = unit(&read("packaging/systemd/signalbox-edge.service"));
    let reload: Vec<&str> =
        edge.iter().filter(|(_, key, _)| key == "ExecReload").map(|(_, _, value)| &**value).collect();
    assert_eq!(reload, ["/usr/bin/signalbox edge check", "/bin/kill -HUP $MAINPID"]);
    let folder = tempfile::tempdir().unwrap();
    let mut reservation = signalbox_stack::Reservation::default();
    let listens = [0; 2].map(|_| format!("127.0.0.1:{}", reservation.add().unwrap()));
    let here = [("EDGE_LISTEN", &*listens[0]), ("ADMIN_LISTEN", &*listens[1])];
    let (taken, said) = try_edge(folder.path(), &here);
    assert!(taken, "{said}");
    let (taken, said) = try_edge(folder.path(), &[("EDGE_LISTEN", "nowhere at all"), here[1]]);
    assert!(!taken && said.contains("listen"), "{said}");
}
