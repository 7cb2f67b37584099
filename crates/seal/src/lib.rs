//! The keys of the key file, and what they encrypt: secrets that are stored in Redis.
//!
//! Private keys of certificates and credentials of webhooks are encrypted before they are stored, so that neither Redis nor a
//! copy of its files contains them in clear text. Only processes with the key file can decrypt them.
//!
//! AES-256-GCM with a random nonce of 96 bits for each text. At a few thousand secrets that is far from the bound of 2^32
//! texts per key. The name of the secret's owner is authenticated along with the text, so that a secret cannot be moved to
//! another owner.
//!
//! **Rotation.** The file may contain several keys: the first encrypts, all decrypt. The owner of a secret stores it again
//! if [`Keys::open_with_first`] does not decrypt it.
//!
//! Other purposes have keys of their own, which are derived from these ([`Keys::of`]). Among them are those of the daemons, by
//! which nginx and the daemons recognize each other ([`Statement`]).

mod proof;

use std::{fmt, fs, os::unix::fs::PermissionsExt as _, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};

pub use proof::Statement;

const KEY_BYTES: usize = 32;
/// Maximum number of keys in a file. A rotation needs two.
const MAX_KEYS: usize = 8;
/// The forbidden permissions of the file. Its group may read it, because nginx's master and the pacemaker may
/// be different users; other users must not have access.
const FORBIDDEN_MODE: u32 = 0o037;

/// The keys of a file; the first one encrypts. `Debug` does not show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys(Vec<[u8; KEY_BYTES]>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

impl Keys {
    /// No keys, so nothing can be encrypted.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Reads a file of keys, one per line, each 64 hexadecimal digits.
    ///
    /// # Errors
    /// With the reason, which does not show any part of a key.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let about = fs::metadata(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        let mode = about.permissions().mode() & 0o777;
        if mode & FORBIDDEN_MODE != 0 {
            return Err(format!(
                "{shown} has mode {mode:o}: others could read or change it; make it 0600, or 0640"
            ));
        }
        let text = fs::read_to_string(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        Self::parse(&text).map_err(|reason| format!("{shown}: {reason}"))
    }

    /// Reads the content of a key file.
    ///
    /// # Errors
    /// With the reason, which does not show any part of a key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let key = key(line).ok_or_else(|| format!("line {} is not 64 hexadecimal digits", at + 1))?;
            keys.push(key);
        }
        match keys.len() {
            0 => Err("it contains no key".to_owned()),
            1..=MAX_KEYS => Ok(Self(keys)),
            _ => Err(format!("it has more than {MAX_KEYS} keys")),
        }
    }

    /// A separate key for `purpose`, derived from the first key in the same way as in
    /// `lua/signalbox/secret.lua`.
    pub fn of(&self, purpose: &str) -> Option<[u8; KEY_BYTES]> {
        self.derived(purpose).0.first().copied()
    }

    /// The keys for `purpose` that are derived from each of the keys.
    fn derived(&self, purpose: &str) -> Self {
        let derive = |key: &[u8; KEY_BYTES]| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, key);
            hmac::sign(&key, format!("signalbox {purpose}").as_bytes()).as_ref().try_into().ok()
        };
        Self(self.0.iter().filter_map(derive).collect())
    }

    /// The keys by which nginx and the daemons recognize each other's requests. They reveal nothing about these keys, so
    /// a sidecar, which decrypts nothing, gets a file of its own with them.
    pub fn of_daemons(&self) -> Self {
        self.derived("daemons")
    }

    /// The content of a key file with these keys.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|key| HEXLOWER.encode(key) + "\n").collect()
    }

    /// Whether there are no keys, so that nothing can be encrypted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Encrypts a text. Returns nonce, encrypted text and tag in base64; `None` without a key or randomness.
    /// `name` is needed to decrypt it.
    pub fn seal(&self, name: &str, text: &[u8]) -> Option<String> {
        let key = opener(self.0.first()?)?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut sealed = text.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(name), &mut sealed).ok()?;
        Some(STANDARD.encode([&nonce[..], &sealed].concat()))
    }

    /// Decrypts a result of [`Self::seal`], if it was encrypted with the first key.
    pub fn open_with_first(&self, name: &str, sealed: &str) -> Option<Vec<u8>> {
        open(self.0.first()?, name, sealed)
    }

    /// Decrypts a result of [`Self::seal`] with any of the keys.
    pub fn open(&self, name: &str, sealed: &str) -> Option<Vec<u8>> {
        self.0.iter().find_map(|key| open(key, name, sealed))
    }
}

fn opener(key: &[u8; KEY_BYTES]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new)
}

fn open(key: &[u8; KEY_BYTES], name: &str, sealed: &str) -> Option<Vec<u8>> {
    let mut bytes = STANDARD.decode(sealed).ok()?;
    let (nonce, text) = bytes.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let text = opener(key)?.open_in_place(nonce, Aad::from(name), text).ok()?;
    Some(text.to_vec())
}

fn key(line: &str) -> Option<[u8; KEY_BYTES]> {
    HEXLOWER_PERMISSIVE.decode(line.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(digits: &[char]) -> Keys {
        let lines: Vec<String> = digits.iter().map(|digit| digit.to_string().repeat(64)).collect();
        Keys::parse(&lines.join("\n")).unwrap()
    }

    #[test]
    fn a_sealed_key_opens_only_with_its_key_and_name() {
        let one = keys(&['a']);
        let sealed = one.seal("a.test", b"secret").unwrap();
        assert_ne!(sealed, one.seal("a.test", b"secret").unwrap(), "a nonce is used once");
        assert_eq!(one.open("a.test", &sealed).unwrap(), b"secret");
        assert_eq!(one.open("b.test", &sealed), None);
        assert_eq!(keys(&['b']).open("a.test", &sealed), None);
        let mut bytes = STANDARD.decode(&sealed).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(one.open("a.test", &STANDARD.encode(&bytes)), None, "byte {at}");
            bytes[at] ^= 1;
        }
        for broken in ["", "AAAA", "no base64!"] {
            assert_eq!(one.open("a.test", broken), None, "{broken}");
        }
    }

    #[test]
    fn the_first_key_seals_and_all_open() {
        let old = keys(&['a']).seal("a.test", b"secret").unwrap();
        let both = keys(&['b', 'a']);
        assert_eq!(both.open_with_first("a.test", &old), None);
        assert_eq!(both.open("a.test", &old).unwrap(), b"secret");
        let new = both.seal("a.test", b"secret").unwrap();
        assert_eq!(keys(&['b']).open("a.test", &new).unwrap(), b"secret");
    }

    #[test]
    fn a_key_file_is_closed_to_others_and_shows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge.key");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Keys::read(&path)
        };
        let digits = "0123456789abcdef".repeat(4);
        assert_eq!(write(&format!("\n{digits}\n"), 0o600).unwrap().len(), 1);
        assert_eq!(write(&digits, 0o640).unwrap().len(), 1);
        for mode in [0o644, 0o604, 0o620, 0o602] {
            assert!(write(&digits, mode).unwrap_err().contains("others could"), "{mode:o}");
        }
        for (text, why) in [
            ("", "no key".to_owned()),
            ("abc", "line 1 is not".to_owned()),
            (&*format!("{digits}\n{}", &digits[1..]), "line 2 is not".to_owned()),
            (&*format!("{digits}\n").repeat(9), "more than 8".to_owned()),
        ] {
            let error = write(text, 0o600).unwrap_err();
            assert!(error.contains(&why) && !error.contains("0123456789"), "{error}");
        }
        assert!(Keys::read(&folder.path().join("none")).unwrap_err().contains("cannot be read"));
        assert!(!format!("{:?}", keys(&['a'])).contains("aa"));
    }
}
