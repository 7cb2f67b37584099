//! The book at `/docs`: the Markdown pages of `docs/`, which are embedded, so that an operator without internet access can
//! read the documentation of exactly the version that runs.
//!
//! The pages need no login, because they contain no data of the system. They are rendered once, at the first request.
//!
//!   page.rs     one Markdown file to HTML, with anchors and links within the book
//!   search.rs   sections that contain all words of a query

mod page;
mod search;

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    sync::LazyLock,
};

use askama::Template;
use axum::{
    body::Bytes,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use include_dir::{Dir, include_dir};
use serde::Deserialize;

use super::{
    assets::STAMP,
    page::{Path as UrlPath, html, with_headers},
    pages::render,
};
use crate::http::{Problem, Query};
use page::Page;

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../docs");
/// Pages of the repository that are outside `docs/`, by the path that links from `docs/` have.
const OUTSIDE: [(&str, &str, &str); 2] = [
    ("../ARCHITECTURE.md", "architecture", include_str!("../../../../ARCHITECTURE.md")),
    ("../CHANGELOG.md", "changelog", include_str!("../../../../CHANGELOG.md")),
];

static BOOK: LazyLock<Book> = LazyLock::new(Book::read);

/// An entry of the table of contents.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Part(String),
    Page { name: String, title: String, nested: bool },
}

#[derive(Debug)]
struct Book {
    contents: Vec<Entry>,
    /// By name: what follows `/docs/` in the address, empty for the front page.
    pages: BTreeMap<String, Page>,
}

/// The pages in their frame, by name. All responses share their bytes: the book needs no token, and some pages are large.
static FRAMED: LazyLock<BTreeMap<&str, Bytes>> = LazyLock::new(|| {
    let framed = |(name, page): (&'static String, &'static Page)| {
        let frame = Frame { body: &page.html, ..frame(name, &page.title) };
        Some((name.as_str(), render(&frame).ok()?.into()))
    };
    BOOK.pages.iter().filter_map(framed).collect()
});

impl Book {
    fn read() -> Self {
        let mut pages = BTreeMap::new();
        let mut pending = vec![&FILES];
        while let Some(folder) = pending.pop() {
            pending.extend(folder.dirs());
            for file in folder.files() {
                if let (Some(name), Some(text)) = (page_name(file.path()), file.contents_utf8()) {
                    pages.insert(name, Page::render(file.path(), text));
                }
            }
        }
        for (path, name, text) in OUTSIDE {
            pages.insert(name.to_owned(), Page::render(Path::new(path), text));
        }
        let summary = FILES.get_file("SUMMARY.md").and_then(|file| file.contents_utf8()).unwrap_or_default();
        Self { contents: contents(summary), pages }
    }
}

/// Reads the table of contents: `# Part`, `- [Title](page.md)`, and nested entries.
fn contents(summary: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for line in summary.lines() {
        if let Some(part) = line.strip_prefix("# ") {
            entries.push(Entry::Part(part.to_owned()));
        } else if let Some((title, rest)) = line.split_once('[').and_then(|(_, rest)| rest.split_once("]("))
            && let Some(name) = page_name(Path::new(rest.trim_end_matches(')')))
        {
            entries.push(Entry::Page { name, title: title.to_owned(), nested: line.starts_with(' ') });
        }
    }
    // The heading of the summary itself is not a part.
    entries.retain(|entry| *entry != Entry::Part("Summary".to_owned()));
    entries
}

/// The name of the page that a Markdown file becomes; `None` for other files and for the table of contents.
fn page_name(path: &Path) -> Option<String> {
    if let Some((_, name, _)) = OUTSIDE.iter().find(|(outside, ..)| Path::new(outside) == path) {
        return Some((*name).to_owned());
    }
    let name = path.to_str()?.strip_suffix(".md").filter(|name| *name != "SUMMARY")?;
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    inside.then(|| name.strip_suffix("README").unwrap_or(name).trim_end_matches('/').to_owned())
}

/// The address of what a page links to; `None` if it is not part of the book.
fn address(from: &Path, link: &str) -> Option<String> {
    if link.starts_with('#') || link.contains("://") || link.starts_with("mailto:") {
        return Some(link.to_owned());
    }
    let (file, fragment) = link.split_once('#').map_or((link, ""), |(file, fragment)| (file, fragment));
    let mut path = PathBuf::new();
    for part in from.parent().unwrap_or(Path::new("")).join(file).components() {
        match part {
            Component::ParentDir if path.file_name().is_some() && !path.ends_with("..") => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    // From the pages outside `docs/`, the folder is part of the link.
    let path = path.strip_prefix("../docs").unwrap_or(&path).to_owned();
    let known =
        OUTSIDE.iter().any(|(outside, ..)| Path::new(outside) == path) || FILES.get_file(&path).is_some();
    let name = page_name(&path).or_else(|| path.to_str().map(str::to_owned)).filter(|_| known)?;
    let mut address = format!("/docs/{name}").trim_end_matches('/').to_owned();
    if !fragment.is_empty() {
        address = format!("{address}#{fragment}");
    }
    Some(address)
}

#[derive(Debug, Template)]
#[template(path = "dashboard/book.html")]
struct Frame<'a> {
    stamp: &'a str,
    version: &'a str,
    contents: &'a [Entry],
    /// The name of the page, for the table of contents.
    name: &'a str,
    title: &'a str,
    query: &'a str,
    /// The rendered page; empty for search results.
    body: &'a str,
    hits: &'a [search::Hit<'a>],
}

fn frame<'a>(name: &'a str, title: &'a str) -> Frame<'a> {
    let (stamp, version, contents) = (STAMP.as_str(), env!("CARGO_PKG_VERSION"), &BOOK.contents);
    Frame { stamp, version, contents, name, title, query: "", body: "", hits: &[] }
}

/// A search in the book.
#[derive(Debug, Deserialize)]
pub(super) struct Search {
    q: Option<String>,
}

pub(super) async fn front(Query(search): Query<Search>) -> Result<Response, Problem> {
    let Some(query) = search.q.filter(|query| !query.trim().is_empty()) else { return show("") };
    let hits = search::find(&BOOK.pages, &query);
    html(StatusCode::OK, &Frame { query: &query, hits: &hits, ..frame("", "Search") })
}

pub(super) async fn page(UrlPath(name): UrlPath<String>) -> Result<Response, Problem> {
    show(name.trim_end_matches('/'))
}

fn show(name: &str) -> Result<Response, Problem> {
    if let Some(page) = FRAMED.get(name) {
        return Ok(with_headers(page.clone().into_response()));
    }
    let media_type = match name.rsplit_once('.') {
        Some((_, "png")) => "image/png",
        Some((_, "json")) => "application/json",
        Some((_, "yaml")) => "application/yaml",
        _ => "",
    };
    match FILES.get_file(name).filter(|_| !media_type.is_empty()) {
        Some(file) => Ok(([(header::CONTENT_TYPE, media_type)], file.contents()).into_response()),
        None => Err(Problem::not_found(
            "unknown_page",
            format!("Unknown page `{name}`. `/docs` lists all pages."),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_of_the_contents_is_a_page_and_every_page_is_listed() {
        let mut listed = BTreeSet::new();
        for entry in &BOOK.contents {
            if let Entry::Page { name, .. } = entry {
                assert!(BOOK.pages.contains_key(name), "SUMMARY.md lists {name}, which does not exist");
                listed.insert(name.as_str());
            }
        }
        let unlisted: Vec<_> = BOOK.pages.keys().filter(|name| !listed.contains(name.as_str())).collect();
        assert!(
            unlisted.iter().all(|name| ["architecture", "changelog"].contains(&name.as_str())),
            "{unlisted:?}"
        );
        assert!(listed.len() > 20, "{listed:?}");
    }

    #[test]
    fn links_within_the_book_lead_to_a_page_and_an_anchor() {
        for (name, page) in &BOOK.pages {
            for target in &page.links {
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let to =
                    path.strip_prefix("/docs").map_or(name.as_str(), |path| path.trim_start_matches('/'));
                match BOOK.pages.get(to) {
                    Some(to) => {
                        assert!(anchor.is_empty() || to.anchors.contains(anchor), "{name} links to {target}");
                    }
                    None => assert!(FILES.get_file(to).is_some(), "{name} links to {target}"),
                }
            }
        }
    }

    #[test]
    fn addresses_are_relative_to_the_page() {
        let at = |from: &str, link: &str| address(Path::new(from), link);
        assert_eq!(at("queues.md", "routing.md#drain").as_deref(), Some("/docs/routing#drain"));
        assert_eq!(at("grafana/README.md", "../README.md").as_deref(), Some("/docs"));
        assert_eq!(at("queues.md", "../ARCHITECTURE.md").as_deref(), Some("/docs/architecture"));
        assert_eq!(at("../ARCHITECTURE.md", "docs/queues.md").as_deref(), Some("/docs/queues"));
        assert_eq!(at("queues.md", "#pull").as_deref(), Some("#pull"));
        assert_eq!(
            at("queues.md", "https://example.test/a.md").as_deref(),
            Some("https://example.test/a.md")
        );
        assert_eq!(at("queues.md", "../examples/machines/canary.yaml"), None);
        assert_eq!(at("queues.md", "missing.md"), None);
    }

    #[test]
    fn a_search_finds_sections_by_all_words() {
        let hits = search::find(&BOOK.pages, "dead letters redrive");
        assert!(hits.iter().any(|hit| hit.address.starts_with("/docs/queues")), "{hits:?}");
        assert!(search::find(&BOOK.pages, "no-such-word-anywhere queue").is_empty());
    }
}
