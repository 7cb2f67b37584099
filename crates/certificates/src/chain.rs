//! Whether handshakes would work with a chain and a private key. Pure.
//!
//! It is not checked whether clients trust the authority, so certificates of a company's own authority are accepted.
//! Everything else that would make every handshake fail is rejected, with a code for each.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use rustls::{
    crypto::ring::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use x509_parser::{
    error::X509Error,
    extensions::GeneralName,
    prelude::{FromDer as _, X509Certificate},
};

use signalbox_route_table::Invalid;

/// Maximum size of a chain as PEM, in bytes. A chain of four RSA certificates has about 8 KB.
const MAX_CHAIN_BYTES: usize = 64 * 1024;
const MAX_KEY_BYTES: usize = 16 * 1024;
const MAX_CERTIFICATES: usize = 10;
/// Maximum number of names that are read from a certificate.
const MAX_NAMES: usize = 1000;

/// The content of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The DNS names for which it is valid.
    pub names: Vec<String>,
    /// The distinguished name of its subject.
    pub subject: String,
    /// The distinguished name of the authority that issued it.
    pub issuer: String,
    /// Unix seconds.
    pub not_before: i64,
    /// Unix seconds.
    pub not_after: i64,
    /// SHA-256 of the certificate, in hexadecimal.
    pub fingerprint: String,
}

/// A chain and its matching private key.
#[derive(Debug)]
pub(super) struct Checked {
    /// PEM that contains only certificates.
    pub(super) chain: String,
    /// PEM.
    pub(super) key: String,
    pub(super) facts: Facts,
}

/// Checks a chain and a private key, both PEM, for a server name at `now`.
pub(super) fn check(name: &str, chain: &str, key: &str, now: i64) -> Result<Checked, Invalid> {
    if chain.len() > MAX_CHAIN_BYTES {
        return Err(bad_chain(format!("it has more than {MAX_CHAIN_BYTES} bytes")));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(bad_key(format!("it has more than {MAX_KEY_BYTES} bytes")));
    }
    let ders = certificates(chain)?;
    let parsed = ders.iter().map(|der| parse(der)).collect::<Result<Vec<_>, _>>()?;
    let Some(leaf) = parsed.first() else { return Err(bad_chain("it contains no certificate")) };
    in_order(&parsed)?;
    let key = private_key(key, leaf)?;
    let facts = facts_of(leaf, &ders[0])?;
    if facts.not_after <= now {
        return Err(Invalid::new("certificate_expired", "chain", "the certificate has expired"));
    }
    if facts.not_before > now {
        return Err(Invalid::new("certificate_not_yet_valid", "chain", "the certificate is not valid yet"));
    }
    if !covers(&facts.names, name) {
        let detail = format!("the certificate is for {}, not for {name}", shown(&facts.names));
        return Err(Invalid::new("name_not_covered", "chain", detail));
    }
    let chain = ders.iter().map(|der| pem("CERTIFICATE", der)).collect();
    Ok(Checked { chain, key, facts })
}

/// The content of the first certificate of a chain.
pub(super) fn facts(chain: &str) -> Result<Facts, Invalid> {
    let ders = certificates(chain)?;
    let Some(first) = ders.first() else { return Err(bad_chain("it contains no certificate")) };
    facts_of(&parse(first)?, first)
}

fn bad_chain(reason: impl std::fmt::Display) -> Invalid {
    Invalid::new("invalid_chain", "chain", format!("the chain is not PEM of certificates: {reason}"))
}

fn bad_key(reason: impl std::fmt::Display) -> Invalid {
    Invalid::new("invalid_key", "key", format!("the private key cannot be used: {reason}"))
}

fn certificates(chain: &str) -> Result<Vec<CertificateDer<'static>>, Invalid> {
    let ders: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| bad_chain("one of its PEM blocks is damaged"))?;
    if ders.len() > MAX_CERTIFICATES {
        return Err(bad_chain(format!("it has more than {MAX_CERTIFICATES} certificates")));
    }
    Ok(ders)
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, Invalid> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(bad_chain("a block of it is not an X.509 certificate")),
    }
}

/// Checks that each certificate is followed by the one that signed it. The last one's issuer may be missing.
fn in_order(chain: &[X509Certificate<'_>]) -> Result<(), Invalid> {
    for (at, pair) in chain.windows(2).enumerate() {
        let named = pair[0].issuer().as_raw() == pair[1].subject().as_raw();
        let signed = named
            && match pair[0].verify_signature(Some(pair[1].public_key())) {
                Ok(()) => true,
                // An algorithm that is unknown here may be supported by clients.
                Err(X509Error::SignatureUnsupportedAlgorithm) => true,
                Err(_) => false,
            };
        if !signed {
            let detail = format!(
                "certificate {} was not signed by certificate {}; the order is: the server's own, then each one's authority",
                at + 1,
                at + 2
            );
            return Err(Invalid::new("chain_order", "chain", detail));
        }
    }
    Ok(())
}

/// The key in PEM, if it matches `leaf`.
fn private_key(text: &str, leaf: &X509Certificate<'_>) -> Result<String, Invalid> {
    let der = PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| bad_key("it is not the PEM of an unencrypted private key"))?;
    let signer =
        any_supported_type(&der).map_err(|_| bad_key("it must be RSA, ECDSA (P-256, P-384) or Ed25519"))?;
    let public = signer.public_key().ok_or_else(|| bad_key("its public part cannot be derived"))?;
    if public.as_ref() != leaf.public_key().raw {
        let detail = "the private key is not that of the first certificate of the chain";
        return Err(Invalid::new("key_mismatch", "key", detail));
    }
    let label = match &der {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    Ok(pem(label, der.secret_der()))
}

fn facts_of(certificate: &X509Certificate<'_>, der: &[u8]) -> Result<Facts, Invalid> {
    let names = certificate.subject_alternative_name().map_err(|_| bad_chain("its names are damaged"))?;
    let names = names.map(|names| {
        let dns = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        dns.take(MAX_NAMES).collect()
    });
    let digest = Sha256::digest(der);
    Ok(Facts {
        names: names.unwrap_or_default(),
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        not_before: certificate.validity().not_before.timestamp(),
        not_after: certificate.validity().not_after.timestamp(),
        fingerprint: HEXLOWER.encode(&digest),
    })
}

/// Whether clients that request `name` accept one of `names` (RFC 9525: a wildcard matches exactly one
/// label). A wildcard of the table requires the same wildcard. `*` is the default for all other names, and
/// accepts any certificate.
fn covers(names: &[String], name: &str) -> bool {
    if name == "*" {
        return true;
    }
    let parent = name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
    names.iter().any(|covered| {
        covered == name || !name.starts_with("*.") && Some(covered.as_str()) == parent.as_deref()
    })
}

fn shown(names: &[String]) -> String {
    match names {
        [] => "no DNS name".to_owned(),
        names if names.len() > 5 => format!("{}, …", names[..5].join(", ")),
        names => names.join(", "),
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for at in (0..text.len()).step_by(64) {
        pem.push_str(&text[at..text.len().min(at + 64)]);
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

    use super::*;

    struct Made {
        pem: String,
        key: String,
    }

    fn authority(name: &str, above: Option<&Issuer<'_, KeyPair>>) -> (String, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = match above {
            Some(above) => params.signed_by(&key, above).unwrap(),
            None => params.self_signed(&key).unwrap(),
        };
        (certificate.pem(), Issuer::new(params, key))
    }

    fn leaf(names: &[&str], by: &Issuer<'_, KeyPair>, years: (i32, i32)) -> Made {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(years.0, 1, 1), date_time_ymd(years.1, 1, 1));
        Made { pem: params.signed_by(&key, by).unwrap().pem(), key: key.serialize_pem() }
    }

    /// 2026-01-01.
    const NOW: i64 = 1_767_225_600;
    const YEARS: (i32, i32) = (2025, 2027);

    fn code(name: &str, chain: &str, key: &str) -> &'static str {
        check(name, chain, key, NOW).unwrap_err().code
    }

    #[test]
    fn a_good_chain_is_taken_in_any_of_its_lengths() {
        let (root_pem, root) = authority("root", None);
        let (middle_pem, middle) = authority("middle", Some(&root));
        let made = leaf(&["A.test", "*.b.test"], &middle, YEARS);
        for chain in [
            made.pem.clone(),
            [&*made.pem, &middle_pem].concat(),
            [&*made.pem, &middle_pem, &root_pem].concat(),
            ["text before\n", &made.pem, "\nand between\n", &middle_pem].concat(),
        ] {
            for name in ["a.test", "x.b.test", "*.b.test", "*"] {
                let checked = check(name, &chain, &made.key, NOW).unwrap();
                assert_eq!(checked.facts.names, ["a.test", "*.b.test"]);
                assert_eq!(checked.facts.issuer, "CN=middle");
                assert!(!checked.chain.contains("text"));
                assert_eq!(facts(&checked.chain).unwrap(), checked.facts);
                // The result is accepted again, unchanged.
                assert_eq!(check(name, &checked.chain, &checked.key, NOW).unwrap().chain, checked.chain);
            }
        }
        // A private key that was included in the chain by mistake is not kept.
        let mixed = [&*made.key, &made.pem].concat();
        assert!(!check("a.test", &mixed, &made.key, NOW).unwrap().chain.contains("PRIVATE"));
    }

    #[test]
    fn each_fault_has_its_code() {
        let (root_pem, root) = authority("root", None);
        let (middle_pem, middle) = authority("middle", Some(&root));
        let (other_pem, _) = authority("middle", None);
        let made = leaf(&["a.test", "*.b.test"], &middle, YEARS);
        let other = leaf(&["a.test"], &middle, YEARS);
        let (past, future) = (leaf(&["a.test"], &root, (2020, 2026)), leaf(&["a.test"], &root, (2026, 2030)));
        assert!(check("a.test", &future.pem, &future.key, NOW).is_ok(), "it begins now");
        let later = leaf(&["a.test"], &root, (2028, 2030));
        for (name, chain, key, expected) in [
            ("a.test", "", &*made.key, "invalid_chain"),
            ("a.test", "nonsense", &made.key, "invalid_chain"),
            ("a.test", &made.pem[..200], &made.key, "invalid_chain"),
            (
                "a.test",
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                &made.key,
                "invalid_chain",
            ),
            ("a.test", &made.pem.repeat(11), &made.key, "invalid_chain"),
            ("a.test", &" ".repeat(70_000), &made.key, "invalid_chain"),
            ("a.test", &made.pem, "", "invalid_key"),
            ("a.test", &made.pem, &made.pem, "invalid_key"),
            ("a.test", &made.pem, &" ".repeat(20_000), "invalid_key"),
            ("a.test", &made.pem, &other.key, "key_mismatch"),
            ("a.test", &[&*middle_pem, &made.pem].concat(), &made.key, "chain_order"),
            ("a.test", &[&*made.pem, &root_pem, &middle_pem].concat(), &made.key, "chain_order"),
            // The name is correct, but the next certificate did not sign it.
            ("a.test", &[&*made.pem, &other_pem].concat(), &made.key, "chain_order"),
            ("a.test", &past.pem, &past.key, "certificate_expired"),
            ("a.test", &later.pem, &later.key, "certificate_not_yet_valid"),
            ("c.test", &made.pem, &made.key, "name_not_covered"),
            ("b.test", &made.pem, &made.key, "name_not_covered"),
            ("x.y.b.test", &made.pem, &made.key, "name_not_covered"),
            ("*.a.test", &made.pem, &made.key, "name_not_covered"),
        ] {
            assert_eq!(code(name, chain, key), expected, "{name}");
        }
    }

    /// Mutates the bytes of a certificate and, in every eighth input, the text around them.
    #[test]
    fn fuzz_certificates() {
        let (root, issuer) = authority("root", None);
        let made = leaf(&["a.test", "*.b.test"], &issuer, YEARS);
        let ders: Vec<Vec<u8>> = [&made.pem, &root]
            .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate").to_vec())
            .into();
        let words = [
            "\u{30}\u{0}",
            "\u{2}\u{1}\u{0}",
            "\u{17}\r700101000000Z",
            "-----BEGIN CERTIFICATE-----\n",
            "\n",
        ];
        let mut fuzz = signalbox_testkit::Fuzz::new("certificates", &ders, &words);
        while let Some(bytes) = fuzz.input() {
            let chain = if fuzz.below(8) == 0 {
                String::from_utf8_lossy(&[pem("CERTIFICATE", &bytes).into_bytes(), bytes].concat())
                    .into_owned()
            } else {
                pem("CERTIFICATE", &bytes)
            };
            let _any = facts(&chain);
            let Ok(checked) = check("a.test", &chain, &made.key, NOW) else { continue };
            assert!(checked.facts.not_before <= NOW && NOW < checked.facts.not_after);
            assert_eq!(facts(&checked.chain).ok(), Some(checked.facts), "what was accepted is read again");
            fuzz.accepted();
        }
    }
}
