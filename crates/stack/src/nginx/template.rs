//! `${NAME}` in nginx.conf. The same file goes through `envsubst` in a container, so the rules are those of envsubst,
//! save that a name without a value is an error here.

use std::collections::BTreeMap;

use crate::Error;

/// Fills in `values`. Lower-case names are nginx' own variables and stay.
pub(super) fn render(template: &str, values: &BTreeMap<String, String>) -> Result<String, Error> {
    let mut text = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some(start) = rest.find("${") {
        let (before, from) = rest.split_at(start);
        text.push_str(before);
        let name: &str = from[2..].split('}').next().unwrap_or_default();
        let ours = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        if !ours {
            text.push_str("${");
            rest = &from[2..];
            continue;
        }
        let value = values.get(name).ok_or_else(|| {
            Error::option(
                "edge.files",
                format!("its nginx.conf asks for ${{{name}}}, which this version does not know"),
            )
        })?;
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
    fn names_are_filled_in_and_variables_of_nginx_stay() {
        let values = [("A_B".to_owned(), "x;".to_owned()), ("EMPTY".to_owned(), String::new())].into();
        let text = render("${A_B} ${host}${EMPTY} $uri ${", &values).unwrap();
        assert_eq!(text, "x; ${host} $uri ${");
        let error = render("${NEW}", &values).unwrap_err().to_string();
        assert!(error.contains("${NEW}"), "{error}");
    }

    #[test]
    fn the_container_knows_every_name_of_the_template() {
        let template = include_str!("../../../../nginx/nginx.conf");
        let container = include_str!("../../../../docker/edge");
        let names = template.split("${").skip(1).filter_map(|rest| rest.split('}').next());
        for name in names.filter(|name| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')) {
            assert!(container.contains(&format!("export {name}=")), "docker/edge does not know {name}");
        }
    }
}
