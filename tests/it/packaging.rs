//! The files that are shipped with the programs: containers, units, the Debian package. They are only read here, because
//! running them needs a container engine and root: `docker/test` and `packaging/test` do that. Every name that one file uses is
//! checked against the file that defines it.

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
        let ends = ["secrets", "demo-token"].contains(&&**name);
        assert!(ends || service["healthcheck"]["test"].is_array(), "{name} has no health check");
        let target = service["build"]["target"].as_str().unwrap_or_else(|| panic!("{name} is not built"));
        assert!(
            read("docker/Dockerfile").contains(&format!(" AS {target}\n")),
            "{name} is built as {target}"
        );
        // `docker/build` and a build by compose make the same image.
        assert_eq!(service["image"], format!("signalbox/{target}:${{SIGNALBOX_TAG:-latest}}"), "{name}");
        assert!(
            read("docker/build").contains(&format!(" {target} "))
                || read("docker/build").contains(&format!(" {target};")),
            "{name}"
        );
        let profiles = &service["profiles"];
        for needed in names(&service["depends_on"]) {
            let other = &compose["services"][needed];
            assert!(services.contains(needed), "{name} waits for {needed}");
            // A service without a profile cannot depend on one that has a profile.
            assert!(
                other["profiles"].is_null() || other["profiles"] == *profiles,
                "{name} waits for {needed}"
            );
        }
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
    assert_eq!(profiles, BTreeMap::from([("demo", 3), ("sentinel", 4), ("two-routers", 3)]));
    let addresses: Vec<&str> = compose["services"]
        .as_object()
        .unwrap()
        .values()
        .filter_map(|service| service["networks"]["backplane"]["ipv4_address"].as_str())
        .collect();
    let different: BTreeSet<_> = addresses.iter().collect();
    assert!(addresses.len() == 3 && different.len() == 3, "{addresses:?}");
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn containers_have_no_privileges_and_limits() {
    let compose: Value = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    for (name, service) in compose["services"].as_object().unwrap() {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        assert!(!service["mem_limit"].is_null() && !service["pids_limit"].is_null(), "{name} has no limits");
        let root = service["user"].as_str().unwrap().starts_with("0:");
        // One container, which ends before the others start and has no network.
        assert_eq!(root, name == "secrets", "{name}");
        let added = !service["cap_add"].is_null() || service["network_mode"] == "none";
        assert_eq!(added, name == "secrets", "{name}");
    }
}

#[test]
fn images_do_not_run_as_root_and_contain_no_setuid_program() {
    let text = read("docker/Dockerfile");
    let mut stages: Vec<(&str, &str)> = Vec::new();
    for (at, _) in text.match_indices("\nFROM ") {
        let stage = &text[at + 1..];
        let stage = &stage[..stage[1..].find("\nFROM ").map_or(stage.len(), |end| end + 1)];
        let name = stage.lines().next().unwrap().rsplit_once(" AS ").unwrap().1;
        stages.push((name, stage));
    }
    assert_eq!(stages.len(), 7, "{:?}", stages.iter().map(|(name, _)| name).collect::<Vec<_>>());
    for (name, stage) in &stages {
        let user = stage.lines().find_map(|line| line.strip_prefix("USER "));
        // These two are only steps.
        assert_eq!(user.is_none(), ["programs", "daemon"].contains(name), "{name}: {user:?}");
        assert!(
            user.is_none_or(|user| user.starts_with(|digit: char| ('1'..='9').contains(&digit))),
            "{name}"
        );
        let installs = stage.contains("apt-get install");
        assert!(!installs || stage.contains("-perm /6000 -exec chmod a-s"), "{name}");
    }
}

#[test]
fn applications_reach_no_redis_and_each_redis_has_users_and_a_limit() {
    let compose: Value = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    let mut servers = 0;
    for (name, service) in compose["services"].as_object().unwrap() {
        let networks = &service["networks"];
        let in_applications =
            networks.get("applications").is_some() || strings(networks).contains(&"applications");
        let application = ["hello", "shop"].contains(&&**name);
        let both = name == "pacemaker" || name.starts_with("edge");
        assert_eq!(in_applications, application || both, "{name}");
        let in_backplane = networks.get("backplane").is_some() || strings(networks).contains(&"backplane");
        assert!(!application || !in_backplane, "{name} is an application that reaches Redis");
        let command = service["command"].as_str().unwrap_or_default();
        if !command.starts_with("redis-server") {
            continue;
        }
        servers += 1;
        let file = command.split(' ').nth(1).unwrap();
        let mounted = strings(&service["volumes"]).into_iter().find_map(|volume| {
            let (source, target) = volume.split_once(':')?;
            target.starts_with(file).then(|| read(source.trim_start_matches("./")))
        });
        let settings = format!("{}\n{command}", mounted.unwrap_or_else(|| panic!("{name} mounts no {file}")));
        assert!(settings.contains("aclfile /secrets/users/"), "{name}");
        assert!(
            settings.contains("--maxmemory ") && settings.contains("maxmemory-policy noeviction"),
            "{name}"
        );
        assert!(settings.contains("include /secrets/users/replication.conf"), "{name}");
        assert!(!settings.contains("unixsocketperm 7"), "{name}");
    }
    assert_eq!(servers, 6);
    // Instances are only where applications are.
    let pacemaker = &compose["services"]["pacemaker"]["environment"];
    let instances = pacemaker["SIGNALBOX_PACEMAKER_INSTANCE_NETWORKS"].as_str().unwrap();
    let subnet = |name: &str| compose["networks"][name]["ipam"]["config"][0]["subnet"].as_str().unwrap();
    assert!(
        instances.contains(subnet("applications")) && !instances.contains(subnet("backplane")),
        "{instances}"
    );
    let listen = pacemaker["SIGNALBOX_PACEMAKER_LISTEN"].as_str().unwrap();
    assert!(listen.starts_with("172.30.84."), "{listen}");
}

/// The names in the volume `secrets`, and in `/etc/signalbox`.
fn secrets() -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    signalbox_stack::Secrets::create(folder.path()).unwrap();
    let mut names = BTreeSet::new();
    for (prefix, folder) in [("", folder.path().to_owned()), ("users/", folder.path().join("users"))] {
        for entry in fs::read_dir(folder).unwrap() {
            names.insert(format!("{prefix}{}", entry.unwrap().file_name().to_string_lossy()));
        }
    }
    names
}

#[test]
fn configurations_name_only_secrets_that_are_created_and_no_router_gets_the_root_token() {
    let known = secrets();
    let mut checked = 0;
    let etc = fs::read_dir(root().join("packaging/etc")).unwrap();
    let mut files: Vec<PathBuf> = etc.map(|entry| entry.unwrap().path()).collect();
    files.extend(
        ["docker-compose.yml", "docker/redis.conf", "docker/routes-replica.conf"]
            .map(|file| root().join(file)),
    );
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for prefix in ["/etc/signalbox/", "/secrets/"] {
            for (at, _) in text.match_indices(prefix) {
                let rest = &text[at + prefix.len()..];
                let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && !"./-".contains(char));
                let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
                let own = name.starts_with("memory-");
                assert!(own || known.contains(name), "{}: {prefix}{name}", file.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked}");
    for router in ["packaging/etc/sidecar.toml", "packaging/etc/edge.env"] {
        let text = read(router);
        assert!(!text.contains("/token\"") && !text.contains("root_token_file"), "{router}");
    }
    let compose: Value = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    for name in ["edge", "sidecar", "edge-2", "sidecar-2"] {
        let environment = compose["services"][name]["environment"].as_object().unwrap();
        assert!(environment.values().all(|value| value != "/secrets/token"), "{name}");
        // The user of a router's containers does not own the token.
        assert!(compose["services"][name]["user"].as_str().unwrap().starts_with("10011:"), "{name}");
    }
    assert!(read("docker/secrets.sh").contains("\ngive 10010:10010 token "));
}

#[test]
fn the_packages_script_creates_each_user_and_closes_each_secret() {
    let script = read("packaging/debian/postinst");
    let mut users = BTreeSet::from(["signalbox".to_owned()]);
    for part in ["edge", "pacemaker", "sidecar", "redis@"] {
        let settings = unit(&read(&format!("packaging/systemd/signalbox-{part}.service")));
        let user = settings.iter().find(|(_, key, _)| key == "User").unwrap().2.clone();
        assert!(users.insert(user.clone()), "{user} runs two parts");
    }
    let created = script.lines().find_map(|line| line.trim().strip_prefix("for name in ")).unwrap();
    let created: BTreeSet<String> = created.trim_end_matches("; do").split(' ').map(str::to_owned).collect();
    assert_eq!(created, users);
    // Files that are not listed are readable by root only: the command creates all of them so.
    assert!(script.contains("umask 077 && /usr/bin/signalbox secrets \"$etc\""));
    assert!(
        script.contains("chown root:root \"$etc/token\" \"$etc/edge.key\"") && script.contains("chmod 0640")
    );
    for (part, secret) in [("edge", "edge.key"), ("pacemaker", "edge.key"), ("pacemaker", "token")] {
        let settings = unit(&read(&format!("packaging/systemd/signalbox-{part}.service")));
        let wanted = format!("{secret}:/etc/signalbox/{secret}");
        let given = settings.iter().any(|(_, key, value)| key == "LoadCredential" && *value == wanted);
        assert!(given, "{part} and {secret}");
    }
    for part in ["edge", "sidecar", "redis@"] {
        let settings = unit(&read(&format!("packaging/systemd/signalbox-{part}.service")));
        let closed = settings.iter().any(|(_, key, value)| {
            key == "InaccessiblePaths" && value.split(' ').any(|one| one == "-/etc/signalbox/token")
        });
        let given =
            settings.iter().any(|(_, key, value)| key == "LoadCredential" && value.starts_with("token:"));
        assert!(closed && !given, "{part} can read the root token");
    }
}

#[test]
fn docker_accepts_the_compose_file() {
    let Ok(version) = Command::new("docker-compose").arg("version").output() else {
        println!("docker-compose is not installed: only its file was read");
        return;
    };
    assert!(version.status.success());
    let profiles =
        ["--profile", "demo", "--profile", "two-routers", "--profile", "sentinel", "config", "--quiet"];
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

/// The content of the Debian package: source and target of each asset.
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
    brought || ["/usr/bin/redis-server", "/usr/sbin/nginx", "/bin/sh"].contains(&file)
}

/// The exposure of a unit as `systemd-analyze security` rates it, from 0 to 10; 0 where the tool is not installed.
fn exposure(unit: &str) -> f64 {
    let path = root().join("packaging/systemd").join(unit);
    let analyzed =
        Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager"]).arg(path).output();
    let Ok(output) = analyzed else { return 0.0 };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rating = text.rsplit_once(".service: ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    rating.unwrap_or_else(|| panic!("{unit}: {text}{}", String::from_utf8_lossy(&output.stderr)))
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
    assert_eq!(units.len(), 7, "{:?}", units.keys());
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
                    assert!(is_data || is_installed(&file), "{name}: {file} is not installed");
                }
            }
            if ["After", "Wants", "PartOf", "Conflicts"].contains(&&**key) {
                for other in value.split(' ').filter(|other| other.starts_with("signalbox")) {
                    let template = other.split_once('@').map(|(before, _)| format!("{before}@.service"));
                    let other = template.unwrap_or_else(|| other.to_owned());
                    assert!(units.contains_key(&other), "{name}: {other} does not exist");
                }
            }
        }
        if !name.ends_with(".service") {
            continue;
        }
        // Settings that every service with a public listener must have.
        for (key, value) in [
            ("NoNewPrivileges", "yes"),
            ("ProtectKernelLogs", "yes"),
            ("ProtectHostname", "yes"),
            ("RestrictRealtime", "yes"),
            ("RemoveIPC", "yes"),
            ("SystemCallArchitectures", "native"),
            ("SystemCallFilter", "@system-service"),
            ("LimitCORE", "0"),
            ("ProtectSystem", "strict"),
            ("ProtectHome", "yes"),
            ("PrivateTmp", "yes"),
            ("RestrictSUIDSGID", "yes"),
        ] {
            let set = settings.iter().any(|(_, found, text)| found == key && text == value);
            assert!(set, "{name} has no {key}={value}");
        }
        for key in ["User", "MemoryMax", "TasksMax"] {
            assert!(settings.iter().any(|(_, found, _)| found == key), "{name} has no {key}");
        }
        // A setting that a service cannot have is explained in its unit.
        for key in ["ProtectProc", "ProcSubset", "MemoryDenyWriteExecute", "IPAddressDeny"] {
            let set = settings.iter().any(|(_, found, _)| found == key);
            let explained = text.lines().any(|line| line.starts_with("# ") && line.contains(key));
            assert!(set || explained, "{name} neither sets {key} nor explains why not");
        }
        assert!(exposure(name) <= 2.2, "systemd-analyze rates {name} higher than before");
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
        assert!(is_installed(file), "{file} is not a file of the package");
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
    let settings: toml::Table = toml::from_str(&read("packaging/etc/pacemaker.toml")).unwrap();
    let edge = read("packaging/etc/edge.env");
    let listed = |value: &toml::Value, address: &str| {
        value.as_array().unwrap().iter().any(|listed| listed.as_str() == Some(address))
    };
    for (name, key) in [("EDGE_LISTEN", "edge_addresses"), ("ADMIN_LISTEN", "reserved_addresses")] {
        let listens = edge.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap();
        assert!(listed(&settings[key], listens), "{listens} is not in {key}");
    }
    let socket = edge.lines().find_map(|line| line.strip_prefix("ROUTES_REPLICA=unix:")).unwrap();
    let replica = format!("redis+unix://{socket}");
    assert!(listed(&settings["redis"]["routes_replicas"], &replica), "{replica} is not reserved");
    let known: BTreeSet<&str> = signalbox_stack::edge_variables().collect();
    for line in read("packaging/etc/edge.env").lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('=').next().unwrap();
        assert!(known.contains(name), "`signalbox edge` does not know {name}");
    }
    for role in ["routes", "stats", "fabric"] {
        let text = read(&format!("packaging/etc/redis-{role}.conf"));
        assert!(text.contains("maxmemory-policy noeviction") && text.contains("appendonly yes"), "{role}");
    }
    let script = read("packaging/debian/postinst");
    for role in ["routes", "routes-replica", "stats", "fabric"] {
        let text = read(&format!("packaging/etc/redis-{role}.conf"));
        assert!(text.contains(&format!("\naclfile /etc/signalbox/users/{role}.acl\n")), "{role}");
        assert!(text.contains(&format!("\ninclude /etc/signalbox/memory-{role}.conf\n")), "{role}");
        assert!(script.contains(&format!("\n    memory {role} ")), "{role}");
    }
    let replica = read("packaging/etc/redis-routes-replica.conf");
    assert!(replica.contains("\nunixsocketperm 660\n"), "{replica}");
    assert!(replica.contains("\ninclude /etc/signalbox/users/replication.conf\n"), "{replica}");
}

#[test]
fn the_packaged_edge_writes_bodies_to_a_disk_and_never_to_run() {
    let edge = unit(&read("packaging/systemd/signalbox-edge.service"));
    let cache = edge.iter().find(|(_, key, _)| key == "CacheDirectory").map(|(_, _, folder)| folder).unwrap();
    let text = read("packaging/etc/edge.env");
    let temp = text.lines().find_map(|line| line.strip_prefix("TEMP_DIR=")).unwrap();
    assert_eq!(temp, format!("/var/cache/{cache}"), "systemd creates this folder for the service's user");
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
        // Paths that the package installs elsewhere, or that only its user may write.
        .env("PREFIX", folder)
        .env("TEMP_DIR", folder.join("temp"))
        .env("NGINX_DIR", root().join("nginx"))
        .env("LUA_DIR", root().join("lua"))
        .env("EDGE_KEY_FILE", path("edge.key"))
        .env("ACCESS_LOG", path("access.log"))
        .env("SNAPSHOT_PATH", path("routes.snapshot"))
        .env("ROUTES_REPLICA", format!("unix:{}", path("routes.sock")))
        .env("ROUTES_REPLICA_PASSWORD_FILE", path("edge.password"))
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
    assert_eq!(reload, ["/usr/bin/signalbox edge check", "/bin/sh -c \"kill -HUP $MAINPID\""]);
    let folder = tempfile::tempdir().unwrap();
    let mut reservation = signalbox_stack::Reservation::default();
    let listens = [0; 2].map(|_| format!("127.0.0.1:{}", reservation.add().unwrap()));
    let here = [("EDGE_LISTEN", &*listens[0]), ("ADMIN_LISTEN", &*listens[1])];
    let (taken, said) = try_edge(folder.path(), &here);
    assert!(taken, "{said}");
    let (taken, said) = try_edge(folder.path(), &[("EDGE_LISTEN", "nowhere at all"), here[1]]);
    assert!(!taken && said.contains("listen"), "{said}");
}
