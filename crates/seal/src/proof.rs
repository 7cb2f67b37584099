//! Proofs by which nginx and the daemons recognize each other's requests on the ports of a machine.
//!
//! While one of them is down, any process of the machine can take its port and read what the others send there. So a proof is
//! not a password: it contains the time, authenticates one statement, and is valid for a few seconds.
//!
//! ```text
//! X-Signalbox-Proof: <unix seconds>.<HMAC-SHA-256 of `signalbox proof <unix seconds> <statement>`, 64 hexadecimal digits>
//! ```
//!
//! `lua/signalbox/secret.lua` does the same. Both sides are tested with `tests/proofs.tsv`.

use std::fmt;

use data_encoding::HEXLOWER;
use ring::hmac;

use crate::Keys;

/// How far the time of a proof may be from that of its receiver, in seconds. Both use the clock of one machine, so this is the
/// time for which a process may be delayed.
const VALID_SECONDS: u64 = 5;

/// What a proof states. Each is of use for one purpose only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statement<'a> {
    /// By nginx, to a daemon: the request is from the client with this address, as the last one in `X-Forwarded-For`.
    Client(&'a str),
    /// By the sidecar, to the run of nginx with this name: it requests the whole table. Each run has a random name, which a process
    /// that takes nginx's port before the run begins cannot know.
    Table(&'a str),
    /// By nginx, to the sidecar: the response is to the request with this proof.
    Answer(&'a str),
}

impl fmt::Display for Statement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(address) => write!(f, "client {address}"),
            Self::Table(run) => write!(f, "table {run}"),
            Self::Answer(proof) => write!(f, "answer {proof}"),
        }
    }
}

fn message(time: &str, statement: Statement<'_>) -> String {
    format!("signalbox proof {time} {statement}")
}

fn key(key: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key)
}

impl Keys {
    /// Proves `statement` with the first key of the daemons ([`Keys::of_daemons`]). `now`: unix seconds. `None` without a key.
    pub fn prove(&self, statement: Statement<'_>, now: u64) -> Option<String> {
        let text = message(&now.to_string(), statement);
        let tag = hmac::sign(&key(self.0.first()?), text.as_bytes());
        Some(format!("{now}.{}", HEXLOWER.encode(tag.as_ref())))
    }

    /// Whether `proof` proves `statement` with any of the keys of the daemons, and is valid at `now`, in unix seconds.
    pub fn is_proven(&self, statement: Statement<'_>, proof: &str, now: u64) -> bool {
        let Some((time, digits)) = proof.split_once('.') else { return false };
        let is_recent = time.parse::<u64>().is_ok_and(|time| time.abs_diff(now) <= VALID_SECONDS);
        let Some(tag) = HEXLOWER.decode(digits.as_bytes()).ok().filter(|_| is_recent) else { return false };
        let text = message(time, statement);
        // In constant time.
        self.0.iter().any(|one| hmac::verify(&key(one), text.as_bytes(), &tag).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_764_340_000;

    fn keys(digits: &[char]) -> Keys {
        let lines: Vec<String> = digits.iter().map(|digit| digit.to_string().repeat(64)).collect();
        Keys::parse(&lines.join("\n")).unwrap().of_daemons()
    }

    #[test]
    fn proofs_are_those_that_nginx_makes() {
        let table = include_str!("../../../tests/proofs.tsv");
        let mut lines = 0;
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [key, time, kind, about, proof] = fields[..] else { panic!("{line}") };
            let statement = match kind {
                "client" => Statement::Client(about),
                "table" => Statement::Table(about),
                _ => Statement::Answer(about),
            };
            let keys = Keys::parse(key).unwrap().of_daemons();
            let time = time.parse().unwrap();
            assert_eq!(keys.prove(statement, time).unwrap(), proof, "{line}");
            assert!(keys.is_proven(statement, proof, time), "{line}");
            lines += 1;
        }
        assert!(lines >= 3);
    }

    #[test]
    fn a_proof_is_valid_for_its_statement_and_a_few_seconds() {
        let keys_now = keys(&['a']);
        let client = Statement::Client("10.0.0.9");
        let proof = keys_now.prove(client, NOW).unwrap();
        for now in [NOW - 5, NOW, NOW + 5] {
            assert!(keys_now.is_proven(client, &proof, now));
        }
        for now in [0, NOW - 6, NOW + 6, u64::MAX] {
            assert!(!keys_now.is_proven(client, &proof, now), "{now}");
        }
        for other in
            [Statement::Client("10.0.0.8"), Statement::Table("10.0.0.9"), Statement::Answer("10.0.0.9")]
        {
            assert!(!keys_now.is_proven(other, &proof, NOW), "{other}");
        }
        // A later time in an earlier proof.
        let (_, digits) = proof.split_once('.').unwrap();
        let later = format!("{}.{digits}", NOW + 60);
        assert!(!keys_now.is_proven(client, &later, NOW + 60));
        for broken in
            ["", ".", "x", digits, &proof[..proof.len() - 2], &format!("{proof}00"), &proof.to_uppercase()]
        {
            assert!(!keys_now.is_proven(client, broken, NOW), "{broken}");
        }
    }

    #[test]
    fn all_keys_are_accepted_and_the_first_one_proves() {
        let (new, old, both) = (keys(&['b']), keys(&['a']), keys(&['b', 'a']));
        let client = Statement::Client("10.0.0.9");
        let proof = both.prove(client, NOW).unwrap();
        assert!(new.is_proven(client, &proof, NOW) && !old.is_proven(client, &proof, NOW));
        assert!(both.is_proven(client, &old.prove(client, NOW).unwrap(), NOW));
        assert_eq!(Keys::parse(&both.to_text()).unwrap(), both, "as the file of a sidecar");
        let none = Keys::none().of_daemons();
        assert_eq!(none.prove(client, NOW), None);
        assert!(!none.is_proven(client, &proof, NOW));
    }
}
