//! The search: sections that contain all words of a query, the best first.

use std::collections::BTreeMap;

use super::page::Page;

const MAX_HITS: usize = 30;
/// Characters of a section's text around the first word.
const EXCERPT: usize = 160;

/// A section that was found.
#[derive(Debug)]
pub(super) struct Hit<'a> {
    pub(super) page: &'a str,
    pub(super) heading: &'a str,
    pub(super) address: String,
    pub(super) excerpt: String,
    weight: usize,
}

/// Finds the sections in which every word of `query` occurs in the page's title, the heading or the text.
pub(super) fn find<'a>(pages: &'a BTreeMap<String, Page>, query: &str) -> Vec<Hit<'a>> {
    let words: Vec<String> = query.split_whitespace().take(10).map(str::to_lowercase).collect();
    let mut hits = Vec::new();
    for (name, page) in pages {
        let title = page.title.to_lowercase();
        for section in &page.sections {
            let (heading, text) = (section.heading.to_lowercase(), section.text.to_lowercase());
            let weight = words.iter().try_fold(0, |sum, word| {
                let weight = match word.as_str() {
                    word if heading.contains(word) => 10,
                    word if text.contains(word) => text.matches(word).take(5).count(),
                    // A title alone would find every section of the page.
                    word if title.contains(word) && words.len() > 1 => 1,
                    _ => return None,
                };
                Some(sum + weight)
            });
            if let Some(weight) = weight {
                let mut address = format!("/docs/{name}").trim_end_matches('/').to_owned();
                if !section.anchor.is_empty() {
                    address = format!("{address}#{}", section.anchor);
                }
                let excerpt = excerpt(&section.text, &words);
                hits.push(Hit { page: &page.title, heading: &section.heading, address, excerpt, weight });
            }
        }
    }
    hits.sort_by_key(|hit| std::cmp::Reverse(hit.weight));
    hits.truncate(MAX_HITS);
    hits
}

/// The text around the first word that occurs in it.
fn excerpt(text: &str, words: &[String]) -> String {
    let text: Vec<&str> = text.split_whitespace().collect();
    let first =
        text.iter().position(|one| words.iter().any(|word| one.to_lowercase().contains(word.as_str())));
    let mut excerpt = String::new();
    for one in &text[first.unwrap_or(0).saturating_sub(8)..] {
        if excerpt.chars().count() > EXCERPT {
            excerpt.push('…');
            break;
        }
        excerpt.push_str(one);
        excerpt.push(' ');
    }
    excerpt
}
