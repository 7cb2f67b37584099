//! The address of a server, as its URL names it.
//!
//! A URL is one of redis-rs, with two more parameters, so that one line of a configuration file, an environment variable or
//! a flag names everything that a connection needs, and contains no secret:
//!
//! | part of the URL | meaning |
//! |---|---|
//! | `redis://`, `rediss://` (TLS), `redis+unix://` | one server |
//! | `redis+cluster://`, `rediss+cluster://` (TLS) | some nodes of a cluster, separated by commas |
//! | `redis+sentinel://`, `rediss+sentinel://` (TLS) | Sentinels, separated by commas, and `/NAME` of the service |
//! | `?sentinel_user=…`, `?sentinel_password_file=/path` | the login at the Sentinels. Without it, there is none |
//! | `user:password@`, or `?user=…&pass=…` for a socket | the ACL user |
//! | `?password_file=/path` | the file that contains the password. It is read again when the server rejects the password |
//! | `?wait_replicas=in-sync` | a script succeeds only when every replica that could be promoted has its writes: see [`crate::replicas`] |
//! | `?wait_replicas=1` | the same, with any replicas of this number |
//! | `?ca_file=/path` | the certificate authorities of `rediss://`, PEM. Without it, those of the system |

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use redis::{
    Client, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, TlsCertificates,
    aio::{ConnectionManager, ConnectionManagerConfig},
    cluster::{ClusterClient, ClusterConfig},
    io::tcp::TcpSettings,
};
use url::form_urlencoded;

use crate::{
    Options,
    replicas::WaitReplicas,
    sentinel::{Primary, Service},
    wire::Wire,
};

/// The URL schemes of a cluster, each with that of its nodes.
const CLUSTERS: [(&str, &str); 2] = [("redis+cluster://", "redis://"), ("rediss+cluster://", "rediss://")];

/// The URL schemes of a service that Sentinels monitor, each with that of its servers.
const SENTINELS: [(&str, &str); 2] = [("redis+sentinel://", "redis://"), ("rediss+sentinel://", "rediss://")];

/// The maximum number of retries of a command after the cluster reports a moved slot or an unavailable node.
const CLUSTER_RETRIES: u32 = 3;

/// The address of a server, and the login. It contains a password only if the URL does.
pub(crate) struct Address {
    /// The URLs that redis-rs reads: one, or the nodes of a cluster. With Sentinels, it is [`PRIMARY`]
    /// instead of the server.
    nodes: Vec<String>,
    is_cluster: bool,
    sentinels: Option<Sentinels>,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    /// The replicas that must confirm the writes of a script.
    pub(crate) wait_replicas: WaitReplicas,
    settings: TcpSettings,
}

/// Placeholder for the address of the primary, which the Sentinels report later.
const PRIMARY: &str = "primary.invalid:0";

/// The Sentinels of a URL.
struct Sentinels {
    service: String,
    nodes: Vec<String>,
    user: Option<String>,
    password_file: Option<PathBuf>,
}

impl Address {
    pub(crate) fn read(url: &str, settings: TcpSettings) -> Result<Self, RedisError> {
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut password_file, mut ca_file) = (None, None);
        let (mut sentinel_user, mut sentinel_password_file) = (None, None);
        let mut wait_replicas = WaitReplicas::AtLeast(0);
        let mut rest = form_urlencoded::Serializer::new(String::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "password_file" => password_file = Some(PathBuf::from(&*value)),
                "ca_file" => ca_file = Some(PathBuf::from(&*value)),
                "wait_replicas" => {
                    wait_replicas = value.parse().map_err(|message| {
                        RedisError::from((ErrorKind::InvalidClientConfig, message, value.into_owned()))
                    })?;
                }
                "sentinel_user" => sentinel_user = Some(value.into_owned()),
                "sentinel_password_file" => sentinel_password_file = Some(PathBuf::from(&*value)),
                _ => {
                    rest.append_pair(&name, &value);
                }
            }
        }
        let rest = rest.finish();
        let rest = if rest.is_empty() { rest } else { format!("?{rest}") };
        let several = |kinds: [(&'static str, &'static str); 2]| {
            kinds
                .into_iter()
                .find_map(|(prefix, scheme)| server.strip_prefix(prefix).map(|list| (list, scheme)))
        };
        // `user:password@` is given once and applies to all nodes.
        let login = |list: &'_ str| {
            let (user, nodes) =
                list.rsplit_once('@').map_or((None, list), |(user, nodes)| (Some(user), nodes));
            (user.map_or_else(String::new, |user| format!("{user}@")), nodes.to_owned())
        };
        let cluster = several(CLUSTERS);
        let mut sentinels = None;
        let nodes = if let Some((list, scheme)) = cluster {
            let (user, nodes) = login(list);
            let nodes = nodes.trim_end_matches('/').split(',');
            nodes.map(|node| format!("{scheme}{user}{node}/{rest}")).collect()
        } else if let Some((list, scheme)) = several(SENTINELS) {
            let (user, nodes) = login(list);
            let (nodes, service) = nodes.split_once('/').unwrap_or((&nodes, ""));
            if service.is_empty() || service.contains('/') {
                let message = "the URL of Sentinels must end with /NAME, the name of the service";
                return Err(RedisError::from((ErrorKind::InvalidClientConfig, message)));
            }
            sentinels = Some(Sentinels {
                service: service.to_owned(),
                nodes: nodes.split(',').map(|node| format!("{scheme}{node}/")).collect(),
                user: sentinel_user,
                password_file: sentinel_password_file,
            });
            vec![format!("{scheme}{user}{PRIMARY}/{rest}")]
        } else {
            vec![format!("{server}{rest}")]
        };
        let address = Self {
            nodes,
            is_cluster: cluster.is_some(),
            sentinels,
            password_file,
            ca_file,
            wait_replicas,
            settings,
        };
        // A wrong URL or a missing file is reported as a configuration error, before the first command.
        let password = address.password()?;
        address.infos(password.as_deref())?;
        address.certificates()?;
        address.sentinel_clients()?;
        Ok(address)
    }

    /// The password in the file, if there is one.
    pub(crate) fn password(&self) -> Result<Option<String>, RedisError> {
        self.password_file.as_deref().map(read_password).transpose()
    }

    /// Follows the primary that Sentinels report, if the URL names any. Must be called inside a tokio
    /// runtime.
    pub(crate) fn follow(&self) -> Result<Option<Arc<Service>>, RedisError> {
        let Some(sentinels) = &self.sentinels else { return Ok(None) };
        Service::follow(sentinels.service.clone(), self.sentinel_clients()?).map(Some)
    }

    fn sentinel_clients(&self) -> Result<Vec<Client>, RedisError> {
        let Some(Sentinels { nodes, user, password_file, .. }) = &self.sentinels else {
            return Ok(Vec::new());
        };
        let password = password_file.as_deref().map(read_password).transpose()?;
        let infos = nodes.iter().map(|node| {
            let info = node.as_str().into_connection_info()?;
            let mut login = info.redis_settings().clone().set_skip_set_lib_name();
            if let Some(user) = user {
                login = login.set_username(user);
            }
            if let Some(password) = &password {
                login = login.set_password(password);
            }
            self.client(info.set_redis_settings(login).set_tcp_settings(self.settings.clone()))
        });
        infos.collect()
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>, RedisError> {
        let Some(path) = &self.ca_file else { return Ok(None) };
        let root =
            fs::read(path).map_err(|error| invalid("cannot read the CA file", path, &error.to_string()))?;
        if !self.nodes.iter().all(|node| node.starts_with("rediss://")) {
            return Err(invalid("a URL with ca_file must begin with rediss://", path, ""));
        }
        Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(root) }))
    }

    fn infos(&self, password: Option<&str>) -> Result<Vec<ConnectionInfo>, RedisError> {
        self.infos_of(&self.nodes, password)
    }

    fn infos_of(&self, nodes: &[String], password: Option<&str>) -> Result<Vec<ConnectionInfo>, RedisError> {
        nodes
            .iter()
            .map(|node| {
                let info = node.as_str().into_connection_info()?;
                // The library name is not useful here, and users with minimal permissions may not set it.
                let login = info.redis_settings().clone().set_skip_set_lib_name();
                let login = match password {
                    Some(password) => login.set_password(password),
                    None => login,
                };
                Ok(info.set_redis_settings(login).set_tcp_settings(self.settings.clone()))
            })
            .collect()
    }

    fn client(&self, info: ConnectionInfo) -> Result<Client, RedisError> {
        match self.certificates()? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        }
    }

    /// A client for a server that is not a cluster. With Sentinels it is `primary`.
    fn server(&self, primary: Option<&Primary>, password: Option<&str>) -> Result<Client, RedisError> {
        let nodes = match primary {
            Some(primary) => &vec![self.nodes[0].replacen(PRIMARY, &primary.authority(), 1)],
            None => &self.nodes,
        };
        // A URL without nodes was already rejected as an invalid address.
        self.client(self.infos_of(nodes, password)?.swap_remove(0))
    }

    /// Prepares a connection, which the first command opens. `primary` is the server that the Sentinels
    /// report.
    pub(crate) fn connect(
        &self,
        primary: Option<&Primary>,
        password: Option<&str>,
        options: Options,
        response_timeout: Option<Duration>,
    ) -> Result<Wire, RedisError> {
        if !self.is_cluster {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(options.connect_timeout))
                .set_response_timeout(response_timeout)
                .set_min_delay(Duration::from_millis(50))
                .set_max_delay(Duration::from_millis(500))
                .set_number_of_retries(2);
            let client = self.server(primary, password)?;
            return ConnectionManager::new_lazy_with_config(client, config).map(Wire::Server);
        }
        let builder = ClusterClient::builder(self.infos(password)?)
            .tcp_settings(self.settings.clone())
            .connection_timeout(options.connect_timeout)
            // Blocking commands have no time limit here; none of them waits for a day.
            .response_timeout(response_timeout.unwrap_or(Duration::from_secs(86_400)))
            .retries(CLUSTER_RETRIES)
            .min_retry_wait(20)
            .max_retry_wait(200);
        let builder = match self.certificates()? {
            Some(certificates) => builder.certs(certificates),
            None => builder,
        };
        let connection = builder.build()?.get_pending_async_connection_with_config(ClusterConfig::new());
        Ok(Wire::Cluster(connection))
    }

    /// A client for a node for pub/sub. Nodes of a cluster forward messages to each other, so any node works.
    /// With Sentinels it is `primary`.
    pub(crate) fn any_node(&self, turn: usize, primary: Option<&Primary>) -> Result<Client, RedisError> {
        if primary.is_some() {
            return self.server(primary, self.password()?.as_deref());
        }
        let mut infos = self.infos(self.password()?.as_deref())?;
        // A URL without nodes was already rejected as an invalid address.
        let index = turn % infos.len();
        self.client(infos.swap_remove(index))
    }
}

/// The content of a password file without its line ending.
fn read_password(path: &Path) -> Result<String, RedisError> {
    let text = fs::read_to_string(path)
        .map_err(|error| invalid("cannot read the password file", path, &error.to_string()))?;
    let password = text.trim();
    if password.is_empty() {
        return Err(invalid("the password file is empty", path, ""));
    }
    Ok(password.to_owned())
}

fn invalid(what: &'static str, path: &Path, why: &str) -> RedisError {
    let colon = if why.is_empty() { "" } else { ": " };
    RedisError::from((ErrorKind::InvalidClientConfig, what, format!("{}{colon}{why}", path.display())))
}

/// Adds a login and certificate authorities, which a configuration specifies for several servers, to the URL
/// of one of them. `password_file` applies to `user`, and to a user that the URL names without a password. A
/// URL with a password keeps its login. A URL without a user gets no login if `user` is empty, and a URL
/// without TLS gets no authorities.
pub fn with_login(url: &str, user: &str, password_file: Option<&Path>, ca_file: Option<&Path>) -> String {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let given: Vec<_> = form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name.into_owned()).collect();
    let is_given = |name: &str| given.iter().any(|one| one == name);
    let (scheme, login, rest) = parts(url);
    let has_user = login.is_some() || is_given("user");
    let has_password =
        login.is_some_and(|login| login.contains(':')) || is_given("pass") || is_given("password_file");
    let mut server = url.split_once('?').map_or(url, |(server, _)| server).to_owned();
    let mut more = form_urlencoded::Serializer::new(query.to_owned());
    if let Some(path) = password_file.filter(|_| !has_password && (has_user || !user.is_empty())) {
        if !has_user && scheme.contains("unix") {
            more.append_pair("user", user);
        } else if !has_user {
            let user: String = form_urlencoded::byte_serialize(user.as_bytes()).collect();
            server = format!("{scheme}{user}@{rest}");
        }
        more.append_pair("password_file", &path.to_string_lossy());
    }
    if let Some(path) = ca_file.filter(|_| scheme.starts_with("rediss") && !is_given("ca_file")) {
        more.append_pair("ca_file", &path.to_string_lossy());
    }
    let query = more.finish();
    if query.is_empty() { server } else { format!("{server}?{query}") }
}

/// A URL for output: the server and the user, without password and parameters.
pub fn redacted(url: &str) -> String {
    let (scheme, login, rest) = parts(url);
    let user = login.and_then(|login| login.split(':').next()).filter(|user| !user.is_empty());
    let user = user.map_or_else(String::new, |user| format!("{user}@"));
    format!("{scheme}{user}{rest}")
}

/// A URL for a connection that does not log in.
pub fn without_login(url: &str) -> String {
    let (scheme, _, rest) = parts(url);
    let ca_file = form_urlencoded::parse(url.split_once('?').map_or("", |(_, query)| query).as_bytes())
        .find_map(|(name, value)| (name == "ca_file").then(|| PathBuf::from(&*value)));
    with_login(&format!("{scheme}{rest}"), "", None, ca_file.as_deref())
}

/// Splits a URL into the scheme with its separator, the login, and the rest without parameters.
fn parts(url: &str) -> (&str, Option<&str>, &str) {
    let server = url.split_once('?').map_or(url, |(server, _)| server);
    let (scheme, rest) = server.split_at(server.find("://").map_or(0, |at| at + "://".len()));
    match rest.rsplit_once('@') {
        Some((login, rest)) => (scheme, Some(login), rest),
        None => (scheme, None, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, RedisError> {
        Address::read(url, TcpSettings::default())
    }

    fn nodes(url: &str) -> Vec<String> {
        let infos = read(url).unwrap().infos(None).unwrap();
        infos.iter().map(|node| node.addr().to_string()).collect()
    }

    #[test]
    fn the_url_of_a_cluster_lists_some_of_its_nodes() {
        assert!(!read("redis://127.0.0.1:1/").unwrap().is_cluster);
        assert_eq!(nodes("redis+cluster://10.0.0.1:7000"), ["10.0.0.1:7000"]);
        assert_eq!(nodes("redis+cluster://u:p@a:1,b:2/"), ["a:1", "b:2"]);
        assert!(read("redis+cluster://u:p@a:1,b:2/").unwrap().is_cluster);
        assert!(read("redis+cluster://").is_err());
    }

    #[test]
    fn the_url_of_sentinels_names_a_service() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sentinel.password");
        fs::write(&file, "watcher\n").unwrap();
        let url = format!(
            "redis+sentinel://u:p@a:1,b:2/routes?sentinel_user=s&sentinel_password_file={}",
            file.display()
        );
        let address = read(&url).unwrap();
        let sentinels = address.sentinel_clients().unwrap();
        assert_eq!(sentinels.len(), 2);
        for (client, node) in sentinels.iter().zip(["a:1", "b:2"]) {
            let info = client.get_connection_info();
            assert_eq!(info.addr().to_string(), node);
            let login = info.redis_settings();
            assert_eq!((login.username(), login.password()), (Some("s"), Some("watcher")));
        }
        assert_eq!(address.sentinels.unwrap().service, "routes");
        let login = read(&url).unwrap().infos(None).unwrap().remove(0);
        assert_eq!(login.redis_settings().username(), Some("u"), "at the server");
        for wrong in ["redis+sentinel://a:1", "redis+sentinel://a:1/", "redis+sentinel://a:1/x/y"] {
            let error = read(wrong).err().unwrap().to_string();
            assert!(error.contains("must end with /NAME"), "{wrong}: {error}");
        }
        assert!(read("redis+sentinel:///routes").is_err(), "no Sentinel");
    }

    #[test]
    fn a_password_is_read_from_a_file_without_the_end_of_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pass & word");
        let encoded: String = form_urlencoded::byte_serialize(file.to_str().unwrap().as_bytes()).collect();
        let url = format!("redis://me@h:1/?password_file={encoded}");
        let missing = read(&url).err().unwrap().to_string();
        assert!(
            missing.contains("cannot read the password file") && missing.contains("pass & word"),
            "{missing}"
        );
        fs::write(&file, "\n").unwrap();
        assert!(read(&url).err().unwrap().to_string().contains("is empty"));
        fs::write(&file, "secret\n").unwrap();
        for url in [url, format!("redis+unix:///s?user=me&password_file={encoded}")] {
            let address = read(&url).unwrap();
            assert_eq!(address.password().unwrap().as_deref(), Some("secret"));
            let login = address.infos(Some("secret")).unwrap().remove(0);
            assert_eq!(login.redis_settings().username(), Some("me"));
            assert_eq!(login.redis_settings().password(), Some("secret"));
        }
    }

    #[test]
    fn a_ca_file_needs_tls() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        fs::write(&file, "").unwrap();
        let error = read(&format!("redis://h:1/?ca_file={}", file.display())).err().unwrap().to_string();
        assert!(error.contains("must begin with rediss://"), "{error}");
    }

    #[test]
    fn a_url_without_a_password_gets_the_common_login() {
        let file = Some(Path::new("/p w"));
        for (url, shown) in [
            ("redis://h:1/", "redis://me@h:1/?password_file=%2Fp+w"),
            ("redis://you@h:1", "redis://you@h:1?password_file=%2Fp+w"),
            ("redis://you:own@h:1/", "redis://you:own@h:1/"),
            ("redis+unix:///s", "redis+unix:///s?user=me&password_file=%2Fp+w"),
            ("redis+unix:///s?user=you&pass=own", "redis+unix:///s?user=you&pass=own"),
            ("redis+cluster://a:1,b:2/", "redis+cluster://me@a:1,b:2/?password_file=%2Fp+w"),
            ("redis+sentinel://a:1,b:2/n", "redis+sentinel://me@a:1,b:2/n?password_file=%2Fp+w"),
            ("rediss://h:1/", "rediss://me@h:1/?password_file=%2Fp+w&ca_file=%2Fca"),
        ] {
            assert_eq!(with_login(url, "me", file, Some(Path::new("/ca"))), shown);
        }
        assert_eq!(with_login("redis://h:1/", "", None, None), "redis://h:1/");
        assert_eq!(with_login("redis://h:1/", "", file, None), "redis://h:1/", "a server without users");
        assert_eq!(with_login("redis://you@h:1/", "", file, None), "redis://you@h:1/?password_file=%2Fp+w");
    }

    #[test]
    fn a_redacted_url_has_no_password() {
        for (url, shown, open) in [
            ("redis://u:secret@h:1/", "redis://u@h:1/", "redis://h:1/"),
            ("redis://:secret@h:1/0", "redis://h:1/0", "redis://h:1/0"),
            ("redis://h:1/?password_file=/a", "redis://h:1/", "redis://h:1/"),
            ("redis+unix:///s?user=u&pass=secret", "redis+unix:///s", "redis+unix:///s"),
            ("rediss+cluster://u:p@ss@a:1,b:2/", "rediss+cluster://u@a:1,b:2/", "rediss+cluster://a:1,b:2/"),
            (
                "rediss://u:p@h:1/?ca_file=/c&password_file=/p",
                "rediss://u@h:1/",
                "rediss://h:1/?ca_file=%2Fc",
            ),
        ] {
            assert_eq!((&*redacted(url), &*without_login(url)), (shown, open));
        }
    }
}
