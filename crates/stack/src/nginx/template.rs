//! `${NAME}` in nginx.conf. A name without a value is an error.

use std::collections::BTreeMap;

use crate::Error;

/// An unknown name in the template.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unknown(String);

impl Unknown {
    /// The error for a template that an operator set with `option`.
    pub(super) fn in_option(self, option: &str) -> Error {
        Error::option(
            option,
            format!("its nginx.conf uses ${{{}}}, which this version does not know", self.0),
        )
    }
}

/// Replaces names by `values`. Lower-case names are nginx's variables and remain.
pub(super) fn render(template: &str, values: &BTreeMap<String, String>) -> Result<String, Unknown> {
    let mut text = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some(start) = rest.find("${") {
        let (before, from) = rest.split_at(start);
        text.push_str(before);
        let name: &str = from[2..].split('}').next().unwrap_or_default();
        let part = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let ours = name.starts_with(|first: char| first.is_ascii_uppercase()) && name.bytes().all(part);
        if !ours {
            text.push_str("${");
            rest = &from[2..];
            continue;
        }
        let value = values.get(name).ok_or_else(|| Unknown(name.to_owned()))?;
        text.push_str(value);
        rest = &from[name.len() + 3..];
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_and_nginxs_variables_remain() {
        let values = [("A_B2C".to_owned(), "x;".to_owned()), ("EMPTY".to_owned(), String::new())].into();
        let text = render("${A_B2C} ${host}${EMPTY} $uri ${1} ${", &values).unwrap();
        assert_eq!(text, "x; ${host} $uri ${1} ${");
        let error = render("${NEW}", &values).unwrap_err().in_option("edge.files").to_string();
        assert!(error.contains("${NEW}"), "{error}");
    }
}
