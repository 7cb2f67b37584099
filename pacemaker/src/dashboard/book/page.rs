//! One Markdown file to HTML.

use std::{collections::BTreeSet, path::Path};

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

use super::address;

/// A rendered page.
#[derive(Debug)]
pub(super) struct Page {
    /// The text of its first heading.
    pub(super) title: String,
    pub(super) html: String,
    pub(super) sections: Vec<Section>,
    /// The IDs of its headings and of the names in its tables.
    pub(super) anchors: BTreeSet<String>,
    /// Its links within the book.
    #[cfg_attr(not(test), allow(dead_code, reason = "the tests check that links lead somewhere"))]
    pub(super) links: Vec<String>,
}

/// A heading and the text up to the next one, for the search.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) heading: String,
    pub(super) anchor: String,
    pub(super) text: String,
}

impl Page {
    /// Renders the file at `path`, which is relative to `docs/`.
    pub(super) fn render(path: &Path, text: &str) -> Self {
        let mut page = Self {
            title: String::new(),
            html: String::new(),
            sections: vec![Section::default()],
            anchors: BTreeSet::new(),
            links: Vec::new(),
        };
        let events: Vec<_> =
            Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH).collect();
        page.name_headings(&events);
        let mut headings =
            page.sections[1..].iter().map(|section| section.anchor.clone()).collect::<Vec<_>>().into_iter();
        let mut outside = Vec::new();
        let mut in_cell = false;
        let rendered: Vec<_> = events
            .into_iter()
            .filter_map(|event| match event {
                Event::Start(Tag::Heading { level, classes, attrs, .. }) => {
                    let id = headings.next().map(CowStr::from);
                    Some(Event::Start(Tag::Heading { level, id, classes, attrs }))
                }
                Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                    let target = address(path, &dest_url);
                    outside.push(target.is_none());
                    let dest_url = CowStr::from(page.linked(target?));
                    Some(Event::Start(Tag::Link { link_type, dest_url, title, id }))
                }
                // A link to a file outside the book is only its text.
                Event::End(TagEnd::Link) if outside.pop() == Some(true) => None,
                Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
                    let dest_url = CowStr::from(page.linked(address(path, &dest_url)?));
                    Some(Event::Start(Tag::Image { link_type, dest_url, title, id }))
                }
                // Comments for the tests. The pages contain no other HTML.
                Event::Html(_) | Event::InlineHtml(_) => None,
                Event::Start(Tag::TableCell) => {
                    in_cell = true;
                    Some(event)
                }
                Event::End(TagEnd::TableCell) => {
                    in_cell = false;
                    Some(event)
                }
                Event::Code(name) if in_cell && is_name(&name) && page.anchors.insert(name.to_string()) => {
                    Some(Event::InlineHtml(format!("<code id=\"{name}\">{name}</code>").into()))
                }
                event => Some(event),
            })
            .collect();
        html::push_html(&mut page.html, rendered.into_iter());
        page.sections.retain(|section| !(section.heading.is_empty() && section.text.trim().is_empty()));
        page
    }

    fn linked(&mut self, target: String) -> String {
        if target.starts_with(['/', '#']) {
            self.links.push(target.clone());
        }
        target
    }

    /// Collects the sections and gives each heading an anchor.
    fn name_headings(&mut self, events: &[Event<'_>]) {
        let mut in_heading = false;
        for event in events {
            let Some(section) = self.sections.last_mut() else { return };
            match event {
                Event::Start(Tag::Heading { .. }) => {
                    self.sections.push(Section::default());
                    in_heading = true;
                }
                Event::End(TagEnd::Heading(_)) => {
                    let plain = slug(&section.heading);
                    let mut anchor = plain.clone();
                    let mut number = 0;
                    while !self.anchors.insert(anchor.clone()) {
                        number += 1;
                        anchor = format!("{plain}-{number}");
                    }
                    section.anchor = anchor;
                    if self.title.is_empty() {
                        self.title.clone_from(&section.heading);
                    }
                    in_heading = false;
                }
                Event::Text(text) | Event::Code(text) if in_heading => section.heading.push_str(text),
                Event::Text(text) | Event::Code(text) => section.text.push_str(text),
                Event::SoftBreak | Event::HardBreak | Event::End(_) => section.text.push(' '),
                _ => {}
            }
        }
    }
}

/// Whether a code span in a table is a name that a link can point to: an error code, a metric, a configuration key.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte))
}

/// The anchor of a heading, as Git hosts generate it.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::render(Path::new("page.md"), text)
    }

    #[test]
    fn headings_have_unique_anchors() {
        let page = page("# `PUT /x`: a *b*\n\n## Again\n\n## Again\n");
        assert_eq!(page.title, "PUT /x: a b");
        for anchor in ["put-x-a-b", "again", "again-1"] {
            assert!(page.html.contains(&format!("id=\"{anchor}\"")), "{}", page.html);
        }
    }

    #[test]
    fn names_in_tables_have_anchors() {
        let page = page("|a|b|\n|-|-|\n|`bad_name`|`Not a name`|\n|`bad_name`|`x<y`|\n");
        assert_eq!(page.html.matches("<code id=\"bad_name\">").count(), 1);
        assert!(page.html.contains("<code>Not a name</code>") && page.html.contains("<code>x&lt;y</code>"));
    }

    #[test]
    fn comments_are_removed_and_links_outside_are_text() {
        let page = page("<!-- not run: x -->\n[Cargo](../Cargo.toml) and [**here**](#here)\n");
        assert_eq!(page.html, "<p>Cargo and <a href=\"#here\"><strong>here</strong></a></p>\n");
        assert_eq!(page.links, ["#here"]);
    }
}
