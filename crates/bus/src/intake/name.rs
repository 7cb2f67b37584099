//! Names of clients.

/// The form of a client's name and its token.
pub const TOKEN_NAME: &str = "[a-z0-9:_-]{1,64}";

/// Whether it can be a client's name or token.
pub fn is_token(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":_-".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

/// The pattern of a new token.
pub const NEW_TOKEN: &str = "[a-z0-9:_-]{20,64}";

/// Whether it can be a new token: one that is too long to guess.
pub fn is_new_token(token: &str) -> bool {
    is_token(token) && token.len() >= 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_has_at_least_20_characters() {
        assert!(is_new_token("billing--0a1b2c3d4e5"));
        assert!(!is_new_token("billing--0a1b2c3d4e") && !is_new_token("BILLING--0a1b2c3d4e5"));
    }

    #[test]
    fn client_names_are_lower_case_and_short() {
        assert!(is_token("billing--0a1b") && is_token("a:b_c-9"));
        for bad in ["", "A", "a b", "a\n", "a.b", "@root", &"a".repeat(65)] {
            assert!(!is_token(bad), "{bad:?}");
        }
    }
}
