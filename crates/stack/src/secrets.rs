//! The secrets of a deployment: created once, kept, and readable only by their owner.
//!
//! ```text
//! token  token.sha256      the root token, and its digest for sidecars: a router cannot act as root
//! edge.key                 encrypts private keys of certificates; the same at all routers and pacemakers
//! daemons.key              derived from edge.key, for sidecars: nginx and the daemons recognize each other's requests
//! users/<user>.password    the password of each user of the Redis servers
//! users/<server>.acl       the users of each Redis server; contains digests of the passwords only
//! users/replication.conf   the login of a replica at its primary, for redis.conf
//! ```
//!
//! `signalbox up` keeps them in its data folder; `signalbox secrets` creates the same files for the package and for
//! containers. Secrets are kept if they exist. If the file of a secret is empty, the secret is replaced by a new one, and the
//! file keeps its owner and mode. The other files follow from the secrets and are written each time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};
use signalbox_seal::Keys;

use crate::{
    Error,
    acl::{Server, User},
    layout::{read_or_make, replace},
};

/// No client can be the user `default`: it is off and has no password. It has all permissions nevertheless, because Redis 7.0
/// loads its append-only file as this user and checks the permissions of commands in transactions. Without them, a restart would
/// drop what transactions and scripts wrote.
const NOBODY: &str = "user default off resetpass ~* &* +@all\n";

/// Bytes of randomness of a secret.
const SECRET_BYTES: usize = 32;

/// The secrets in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secrets {
    folder: PathBuf,
}

impl Secrets {
    /// The secrets that were created in `folder` before.
    pub(crate) fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Creates the secrets that are missing in `folder`, and writes the files that follow from them.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn create(folder: &Path) -> Result<Self, Error> {
        let secrets = Self::at(folder);
        let users = secrets.users();
        fs::create_dir_all(&users).map_err(Error::file("create", &users))?;
        let token = read_or_make(&secrets.token(), 0o600, random_hex)?;
        replace(&secrets.token_digest(), 0o600, &format!("{}\n", digest(&token)))?;
        let key = read_or_make(&secrets.edge_key(), 0o600, random_hex)?;
        let keys = Keys::parse(&key).map_err(|reason| {
            Error::option("edge_key", format!("{}: {reason}", secrets.edge_key().display()))
        })?;
        replace(&secrets.daemons_key(), 0o600, &keys.of_daemons().to_text())?;
        let mut digests = Vec::new();
        for user in User::ALL {
            let path = secrets.password_file(user);
            let password = read_or_make(&path, 0o600, random_hex)?;
            // An ACL file and redis.conf are lists of words.
            if !password.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                let reason = format!("{} may contain only letters and digits", path.display());
                return Err(Error::option("users", reason));
            }
            digests.push((user, digest(&password)));
        }
        for server in Server::ALL {
            let lines = digests.iter().filter_map(|(user, digest)| {
                user.rules(server).map(|rules| format!("user {} on #{digest} {rules}\n", user.name()))
            });
            let text: String = [NOBODY.to_owned()].into_iter().chain(lines).collect();
            replace(&secrets.acl_file(server), 0o600, &text)?;
        }
        let replica = User::Replica;
        let password = secrets.password(replica)?;
        replace(
            &secrets.replication_file(),
            0o600,
            &format!("masteruser {}\nmasterauth {password}\n", replica.name()),
        )?;
        Ok(secrets)
    }

    /// The file with the root token.
    pub fn token(&self) -> PathBuf {
        self.folder.join("token")
    }

    /// The file with the SHA-256 of the root token in hexadecimal digits.
    pub fn token_digest(&self) -> PathBuf {
        self.folder.join("token.sha256")
    }

    /// The file with the key that all routers share: 64 hexadecimal digits.
    pub fn edge_key(&self) -> PathBuf {
        self.folder.join("edge.key")
    }

    /// The file with the keys that are derived from [`Self::edge_key`] for nginx and the daemons.
    pub fn daemons_key(&self) -> PathBuf {
        self.folder.join("daemons.key")
    }

    /// The folder of the files about users of Redis.
    pub(crate) fn users(&self) -> PathBuf {
        self.folder.join("users")
    }

    /// The file with the password of `user`.
    pub fn password_file(&self, user: User) -> PathBuf {
        self.users().join(format!("{}.password", user.name()))
    }

    /// The password of `user`.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn password(&self, user: User) -> Result<String, Error> {
        let path = self.password_file(user);
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        Ok(text.trim().to_owned())
    }

    /// The users of a server, for its `aclfile`.
    pub(crate) fn acl_file(&self, server: Server) -> PathBuf {
        self.users().join(format!("{}.acl", server.name()))
    }

    /// The lines of redis.conf with which a replica logs in at its primary.
    pub(crate) fn replication_file(&self) -> PathBuf {
        self.users().join("replication.conf")
    }
}

fn digest(secret: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(secret.as_bytes()))
}

fn random_hex() -> String {
    HEXLOWER.encode(&rand::rng().random::<[u8; SECRET_BYTES]>())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secrets_are_kept_and_readable_only_by_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = Secrets::create(folder.path()).unwrap();
        let read = || {
            let all = [folder.path().to_owned(), secrets.users()];
            let mut files: Vec<_> = all
                .iter()
                .flat_map(|folder| fs::read_dir(folder).unwrap())
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.is_file())
                .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
                .collect();
            files.sort();
            files
        };
        let before = read();
        assert_eq!(before.len(), 4 + User::ALL.len() + Server::ALL.len() + 1);
        for (path, _) in &before {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
        Secrets::create(folder.path()).unwrap();
        assert_eq!(read(), before);
    }

    #[test]
    fn an_emptied_password_is_replaced_and_files_contain_only_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = Secrets::create(folder.path()).unwrap();
        let old = secrets.password(User::Pacemaker).unwrap();
        let users = fs::read_to_string(secrets.acl_file(Server::Fabric)).unwrap();
        assert!(users.contains(&digest(&old)) && !users.contains(&old), "{users}");
        assert!(users.starts_with("user default off "), "{users}");
        fs::write(secrets.password_file(User::Pacemaker), "").unwrap();
        Secrets::create(folder.path()).unwrap();
        let new = secrets.password(User::Pacemaker).unwrap();
        assert_ne!(new, old);
        assert!(fs::read_to_string(secrets.acl_file(Server::Fabric)).unwrap().contains(&digest(&new)));
    }

    #[test]
    fn a_password_that_an_acl_file_cannot_hold_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = Secrets::create(folder.path()).unwrap();
        fs::write(secrets.password_file(User::Edge), "a b").unwrap();
        let error = Secrets::create(folder.path()).unwrap_err().to_string();
        assert!(error.contains("edge.password may contain only letters and digits"), "{error}");
    }
}
