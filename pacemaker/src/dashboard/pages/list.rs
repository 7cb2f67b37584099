//! What every list on a page has: a search field, columns to sort by, and links to the other pages of the list.

use super::{Kind, View, thousands};
use crate::http::list::{ListQuery, Page};

/// Rows of a page of a list.
pub(super) const ROWS: usize = 50;

/// A column: its title, the field that it is sorted by, and whether it contains numbers.
pub(super) type Heading = (&'static str, &'static str, bool);

/// The frame of a list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) action: String,
    /// What the form sends besides the search.
    pub(super) hidden: Vec<(&'static str, String)>,
    pub(super) search: String,
    /// What the search covers.
    pub(super) searched: &'static str,
    /// `1–50 of 5,003`.
    pub(super) range: String,
    pub(super) next: Option<String>,
    pub(super) previous: Option<String>,
    pub(super) columns: Vec<Column>,
}

/// The head of a table that has no pages of its own.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) columns: Vec<Column>,
}

impl Head {
    /// The columns of a table that is sorted as `view` asks, otherwise by `sort`.
    pub(super) fn new(view: &View, sort: &str, headings: &[Heading]) -> Self {
        let sort = if view.sort.is_empty() { sort } else { &view.sort };
        Self { columns: headings.iter().map(|heading| column(view, sort, *heading)).collect() }
    }
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Where the list is sorted by this column; empty if it cannot be.
    pub(super) link: String,
    pub(super) number: bool,
    /// The value of `aria-sort`; empty if the list is sorted by another column.
    pub(super) sorted: &'static str,
}

/// The part of a list that a page asks for. `sort` is the order without a choice.
pub(super) fn query(view: &View, sort: &str) -> ListQuery {
    let chosen = if view.sort.is_empty() { sort } else { &view.sort };
    ListQuery {
        search: Some(view.search.clone()).filter(|search| !search.is_empty()),
        sort: Some(chosen.to_owned()),
        limit: Some(ROWS),
        cursor: Some(view.cursor.clone()).filter(|cursor| !cursor.is_empty()),
    }
}

impl List {
    /// The frame of `page`, which `query` asked for.
    pub(super) fn new<T>(
        view: &View,
        query: &ListQuery,
        page: &Page<T>,
        searched: &'static str,
        headings: &[Heading],
    ) -> Self {
        let to = |cursor: &String| View { cursor: cursor.clone(), ..view.clone() }.address();
        let sort = query.sort.as_deref().unwrap_or_default();
        let first = if page.items.is_empty() { 0 } else { page.before + 1 };
        let last = page.before + page.items.len();
        Self {
            action: format!("/dashboard/{}", view.kind.name()),
            hidden: [("name", &view.name), ("sort", &view.sort)]
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(name, value)| (name, value.clone()))
                .collect(),
            search: view.search.clone(),
            searched,
            range: format!("{}–{} of {}", thousands(first), thousands(last), thousands(page.total)),
            next: page.next.as_ref().map(to),
            previous: page.previous.as_ref().map(to),
            columns: headings.iter().map(|heading| column(view, sort, *heading)).collect(),
        }
    }

    /// Whether there are items, which the search does not find.
    pub(super) fn is_filtered(&self) -> bool {
        !self.search.is_empty()
    }
}

fn column(view: &View, sort: &str, (title, field, number): Heading) -> Column {
    let descending = format!("-{field}");
    let (sorted, next) = match sort {
        _ if field.is_empty() => ("", String::new()),
        sort if sort == field => ("ascending", descending),
        sort if sort == descending => ("descending", field.to_owned()),
        // Of numbers, the largest are usually wanted first.
        _ if number => ("", descending),
        _ => ("", field.to_owned()),
    };
    let to = |sort| View { sort, cursor: String::new(), ..view.clone() }.address();
    Column { title, link: if field.is_empty() { String::new() } else { to(next) }, number, sorted }
}

/// The address of a page of this kind with a search.
pub(in crate::dashboard) fn found(kind: Kind, search: &str) -> String {
    View { search: search.to_owned(), ..View::of(kind, "") }.address()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_reverses_its_order() {
        let view =
            |sort: &str| View { sort: sort.to_owned(), cursor: "x".to_owned(), ..View::of(Kind::Queues, "") };
        let link = |sort: &str, number| column(&view(sort), sort, ("waiting", "waiting", number));
        assert!(link("name", true).link.ends_with("sort=-waiting") && link("name", true).sorted.is_empty());
        assert!(link("name", false).link.ends_with("sort=waiting"));
        assert_eq!(link("-waiting", true).sorted, "descending");
        assert!(
            link("-waiting", true).link.ends_with("sort=waiting")
                && !link("waiting", true).link.contains("cursor")
        );
        assert_eq!(column(&view(""), "", ("state", "", false)).link, "");
    }
}
