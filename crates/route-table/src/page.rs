//! Cursors: where the next page begins. Clients treat them as opaque, so what is inside may change.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::Invalid;

/// The maximum number of items on one page.
pub const MAX_LIMIT: usize = 1000;
const DEFAULT_LIMIT: usize = 100;
const VERSION: u8 = 1;

/// The cursor after `last`, the last item of a page.
pub fn encode(last: &str) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(last.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes a cursor into the item that it follows.
pub fn decode(cursor: &str) -> Result<String, Invalid> {
    let invalid =
        || Invalid::new("invalid_cursor", "cursor", "pass the cursor of an earlier answer as it is");
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| invalid())?;
    match bytes.split_first() {
        Some((&VERSION, last)) if !last.is_empty() => String::from_utf8(last.to_vec()).map_err(|_| invalid()),
        _ => Err(invalid()),
    }
}

/// Checks a page size.
pub fn limit(limit: Option<usize>) -> Result<usize, Invalid> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    let fits = (1..=MAX_LIMIT).contains(&limit);
    fits.then_some(limit).ok_or_else(|| {
        Invalid::new("invalid_limit", "limit", format!("`limit` must be between 1 and {MAX_LIMIT}"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_invalid_cursor_is_rejected() {
        for bad in ["", "%%%", "AQ", "AmE", &URL_SAFE_NO_PAD.encode([1, 0xff])] {
            assert_eq!(decode(bad).unwrap_err().code, "invalid_cursor", "{bad}");
        }
        assert!(limit(Some(0)).is_err() && limit(Some(1001)).is_err() && limit(None) == Ok(100));
    }

    proptest! {
        #[test]
        fn a_cursor_leads_back_to_its_item(last in "\\PC{1,200}") {
            prop_assert_eq!(decode(&encode(&last)).unwrap(), last);
        }

        #[test]
        fn any_text_is_a_cursor_or_an_error(text in "\\PC{0,60}") {
            if let Ok(last) = decode(&text) {
                prop_assert_eq!(encode(&last), text);
            }
        }
    }
}
