//! Which key of the table answers for a host. The edge decides by the same rules in its own code; this is the copy
//! that explains, so the two must be changed together.

/// Maximum number of keys that are looked up for one host, so that a name with a hundred labels does not
/// cause a hundred lookups.
const MAX_CANDIDATES: usize = 10;

/// Normalizes a Host header in the same way as nginx: lower case, without port and trailing dot.
pub fn host_of(header: &str) -> String {
    let header = header.trim();
    let host = match header.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((literal, _)) => &header[..literal.len() + 2],
        None => header.split(':').next().unwrap_or(header),
    };
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// The keys that may apply to `host`, most specific first: the name itself, its wildcards from the longest,
/// and the catch-all. A wildcard matches at least one label, so `*.a` does not apply to `a`. An IP address
/// has no wildcards.
pub fn candidates(host: &str) -> Vec<String> {
    let mut list = vec![host.to_owned()];
    let is_address = host.starts_with('[') || host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if !is_address {
        let wildcards = host.match_indices('.').map(|(dot, _)| &host[dot..]).filter(|rest| rest.len() > 1);
        list.extend(wildcards.take(MAX_CANDIDATES - 2).map(|rest| format!("*{rest}")));
    }
    list.push("*".to_owned());
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_wildcard_comes_first_and_the_apex_has_none() {
        assert_eq!(candidates("a.shop.example"), ["a.shop.example", "*.shop.example", "*.example", "*"]);
        assert_eq!(candidates("localhost"), ["localhost", "*"]);
        assert_eq!(candidates("127.0.0.1"), ["127.0.0.1", "*"]);
        assert_eq!(candidates("[::1]"), ["[::1]", "*"]);
    }

    #[test]
    fn a_deep_name_has_ten_candidates_and_the_catch_all_is_one_of_them() {
        let list = candidates(&vec!["a"; 40].join("."));
        assert_eq!(list.len(), 10);
        assert_eq!(list.last().unwrap(), "*");
        assert_eq!(list[1], format!("*{}", ".a".repeat(39)));
    }

    #[test]
    fn a_header_becomes_the_name_that_nginx_looks_up() {
        for (header, host) in [
            ("Shop.Example:8080", "shop.example"),
            ("shop.example.", "shop.example"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(host_of(header), host);
        }
    }

    proptest! {
        #[test]
        fn each_candidate_covers_the_host_and_is_less_specific_than_the_one_before(
            host in "[a-z]{1,3}(\\.[a-z]{1,3}){0,15}"
        ) {
            let list = candidates(&host);
            prop_assert!(list.len() <= MAX_CANDIDATES);
            prop_assert_eq!(&list[0], &host);
            for pair in list[1..].windows(2) {
                prop_assert!(pair[0].len() > pair[1].len());
            }
            for wildcard in &list[1..] {
                let suffix = &wildcard[1..];
                prop_assert!(host.ends_with(suffix) && host.len() > suffix.len());
            }
        }
    }
}
