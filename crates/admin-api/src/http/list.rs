//! Lists: search, sort order and pages, in one way for every list of the API and the dashboard.
//!
//! A list that fits into memory is a [`Listing`]: it defines what is searched, and the sort orders. A cursor names the
//! last item of a page and the value that it was sorted by, so a page begins at the right place even if that item is gone.

use std::cmp::Ordering;

use axum::http::{HeaderName, HeaderValue, header};
use serde::{Deserialize, Serialize};
use signalbox_route_table::page;
use signalbox_store::PAGE_BYTES;

use super::Problem;

/// The number of items that match, on answers whose body is only an array.
static TOTAL: HeaderName = HeaderName::from_static("x-total-count");

/// What a request wants of a list.
#[derive(Debug, Clone, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only items that contain this text; upper and lower case are the same.
    pub search: Option<String>,
    /// The field to sort by. With `-` before it, the largest value is first.
    pub sort: Option<String>,
    /// Items of a page, 1 to 1000. A page of large items may have fewer and still a `next`.
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    pub cursor: Option<String>,
}

/// A value that items are sorted by. Absent values are the smallest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SortKey {
    /// There is no value.
    Absent,
    /// Sorted by size.
    Number(u64),
    /// Sorted by its characters.
    Text(String),
}

impl From<u64> for SortKey {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<u64>> for SortKey {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::Absent, Self::Number)
    }
}

impl From<&str> for SortKey {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A field to sort by: its name, and its value of an item.
pub type Field<T> = (&'static str, KeyOf<T>);

/// Reads the key by which an item is sorted.
type KeyOf<T> = fn(&T) -> SortKey;

/// How items of one kind are listed.
pub struct Listing<'a, T> {
    /// The unique name of an item. Items with equal values are in the order of their names.
    pub name: fn(&T) -> &str,
    /// Texts in which a search looks, apart from the name.
    pub texts: fn(&T) -> Vec<&str>,
    /// The first field is the default.
    pub fields: &'a [Field<T>],
}

/// A part of a list.
#[derive(Debug)]
pub struct Page<T> {
    /// The items, in order.
    pub items: Vec<T>,
    /// Items that match the search.
    pub total: usize,
    /// The number of matching items before this page.
    pub before: usize,
    /// The cursor of the next page.
    pub next: Option<String>,
    /// The cursor of the previous page; empty if that is the first one.
    pub previous: Option<String>,
}

/// What a cursor contains.
#[derive(Debug, Serialize, Deserialize)]
struct Position(String, SortKey, String);

/// Whether one of the texts contains `wanted`, which is in lower case.
pub fn contains<'a>(wanted: &str, texts: impl IntoIterator<Item = &'a str>) -> bool {
    wanted.is_empty() || texts.into_iter().any(|text| text.to_lowercase().contains(wanted))
}

impl<T> Listing<'_, T> {
    /// The page of `items` that a request asks for. Without a limit, all of them.
    ///
    /// # Errors
    /// 422 `invalid_sort`, `invalid_limit`, `invalid_cursor`.
    pub fn page(&self, items: Vec<T>, query: &ListQuery) -> Result<Page<T>, Problem> {
        let limit = match query.limit {
            None => usize::MAX,
            limit => page::limit(limit)?,
        };
        let sort = query.sort.as_deref().unwrap_or_default();
        let (descending, field) = self.field(sort)?;
        let order = |a: (&SortKey, &str), b: (&SortKey, &str)| {
            let by_value = if descending { b.0.cmp(a.0) } else { a.0.cmp(b.0) };
            by_value.then_with(|| a.1.cmp(b.1))
        };
        let wanted = query.search.as_deref().unwrap_or_default().trim().to_lowercase();
        let matches =
            |item: &T| contains(&wanted, std::iter::once((self.name)(item)).chain((self.texts)(item)));
        let mut found: Vec<(SortKey, T)> =
            items.into_iter().filter(matches).map(|item| (field(&item), item)).collect();
        found.sort_by(|a, b| order((&a.0, (self.name)(&a.1)), (&b.0, (self.name)(&b.1))));
        let total = found.len();
        let before = match query.cursor.as_deref() {
            None | Some("") => 0,
            Some(cursor) => {
                let Position(of, value, name) = position(cursor)?;
                if of != sort {
                    return Err(invalid_cursor("the cursor belongs to another `sort`"));
                }
                let ahead = |(own, item): &(SortKey, T)| {
                    order((own, (self.name)(item)), (&value, &name)) != Ordering::Greater
                };
                found.partition_point(ahead)
            }
        };
        let end = before.saturating_add(limit).min(total);
        let behind = |place: usize| {
            let (value, item) = found.get(place)?;
            cursor(sort, value, (self.name)(item))
        };
        let next = if end < total { end.checked_sub(1).and_then(behind) } else { None };
        let previous = match before.checked_sub(limit) {
            _ if before == 0 => None,
            None | Some(0) => Some(String::new()),
            Some(start) => behind(start - 1),
        };
        let items = found.into_iter().skip(before).take(limit).map(|(_, item)| item).collect();
        Ok(Page { items, total, before, next, previous })
    }

    /// The cursor behind an item of a page, for an answer that ends there.
    ///
    /// # Errors
    /// 422 `invalid_sort`.
    pub fn behind(&self, item: &T, query: &ListQuery) -> Result<Option<String>, Problem> {
        let sort = query.sort.as_deref().unwrap_or_default();
        let (_, field) = self.field(sort)?;
        Ok(cursor(sort, &field(item), (self.name)(item)))
    }

    /// The field to sort by, and whether the largest value is first.
    fn field(&self, sort: &str) -> Result<(bool, KeyOf<T>), Problem> {
        let (descending, name) = match sort.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, sort),
        };
        let found = match name {
            "" => self.fields.first(),
            name => self.fields.iter().find(|(field, _)| *field == name),
        };
        found.map(|(_, value)| (descending, *value)).ok_or_else(|| {
            let names: Vec<String> = self.fields.iter().map(|(name, _)| format!("`{name}`")).collect();
            let detail =
                format!("`sort` must be one of {}, with `-` for the largest first", names.join(", "));
            Problem::unprocessable("invalid_sort", detail)
        })
    }
}

fn invalid_cursor(detail: &str) -> Problem {
    Problem::unprocessable("invalid_cursor", detail)
}

fn cursor(sort: &str, value: &SortKey, name: &str) -> Option<String> {
    let position = Position(sort.to_owned(), value.clone(), name.to_owned());
    serde_json::to_string(&position).ok().map(|text| page::encode(&text))
}

fn position(cursor: &str) -> Result<Position, Problem> {
    let text = page::decode(cursor)?;
    serde_json::from_str(&text).map_err(|_| invalid_cursor("pass the `next` of an earlier answer as it is"))
}

/// Shortens `items` to the first `limit`, or fewer if they have more than about [`PAGE_BYTES`]. Returns whether it removed any.
pub fn shorten<T>(items: &mut Vec<T>, limit: usize, bytes_of: impl Fn(&T) -> usize) -> bool {
    let mut left = PAGE_BYTES;
    let fits = |item: &&T| {
        let fits = left > 0;
        left = left.saturating_sub(bytes_of(item));
        fits
    };
    let count = items.iter().take(limit).take_while(fits).count();
    let is_shorter = count < items.len();
    items.truncate(count);
    is_shorter
}

impl<T> Page<T> {
    /// The headers of an answer whose body is only the array of the items: the number of all items, and the address of the next
    /// page, if there is one.
    pub fn headers(&self, path: &str, query: &ListQuery) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = vec![(TOTAL.clone(), HeaderValue::from(self.total))];
        let Some(next) = &self.next else { return headers };
        let mut pairs = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in [("search", &query.search), ("sort", &query.sort)] {
            pairs.extend_pairs(value.iter().map(|value| (name, value)));
        }
        pairs.extend_pairs(query.limit.map(|limit| ("limit", limit.to_string())));
        pairs.append_pair("cursor", next);
        let link = HeaderValue::try_from(format!("<{path}?{}>; rel=\"next\"", pairs.finish()));
        headers.extend(link.ok().map(|link| (header::LINK, link)));
        headers
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Item = (String, u64);

    const LISTING: Listing<'static, Item> = Listing {
        name: |item| &item.0,
        texts: |_| Vec::new(),
        fields: &[("name", |item| SortKey::from(&*item.0)), ("depth", |item| SortKey::from(item.1))],
    };

    fn items(depths: &[u64]) -> Vec<Item> {
        depths.iter().enumerate().map(|(n, depth)| (format!("q{n:03}"), *depth)).collect()
    }

    fn query(sort: &str, limit: usize, cursor: Option<String>) -> ListQuery {
        ListQuery { sort: Some(sort.to_owned()), limit: Some(limit), cursor, search: None }
    }

    #[test]
    fn a_search_ignores_case_and_an_unknown_field_is_named() {
        let all = vec![("Mail".to_owned(), 1), ("jobs".to_owned(), 2)];
        let found = ListQuery { search: Some(" mAI ".to_owned()), ..ListQuery::default() };
        let page = LISTING.page(all.clone(), &found).unwrap();
        assert_eq!((page.total, &*page.items[0].0, page.next), (1, "Mail", None));
        let refused = LISTING.page(all.clone(), &query("age", 5, None)).unwrap_err();
        assert_eq!(refused.code(), "invalid_sort");
        assert!(refused.detail().contains("`depth`"), "{}", refused.detail());
        let next = LISTING.page(all.clone(), &query("depth", 1, None)).unwrap().next;
        let other = LISTING.page(all, &query("name", 1, next)).unwrap_err();
        assert_eq!(other.code(), "invalid_cursor");
    }

    #[test]
    fn a_page_begins_at_the_right_place_after_its_first_neighbor_was_removed() {
        let mut all = items(&[3, 3, 1, 2]);
        let first = LISTING.page(all.clone(), &query("-depth", 2, None)).unwrap();
        assert_eq!(first.items.iter().map(|item| &*item.0).collect::<Vec<_>>(), ["q000", "q001"]);
        all.remove(1);
        let second = LISTING.page(all, &query("-depth", 2, first.next)).unwrap();
        assert_eq!(second.items.iter().map(|item| &*item.0).collect::<Vec<_>>(), ["q003", "q002"]);
    }

    #[test]
    fn a_page_ends_at_its_limit_or_at_about_four_megabytes() {
        let cut = |count: usize, limit: usize, bytes: usize| {
            let mut items = vec![(); count];
            let is_shorter = shorten(&mut items, limit, |()| bytes);
            (items.len(), is_shorter)
        };
        assert_eq!(cut(10, 10, 100), (10, false));
        assert_eq!(cut(11, 10, 100), (10, true));
        assert_eq!(cut(100, 1000, 64 << 10), (64, true));
        assert_eq!(cut(64, 1000, 64 << 10), (64, false));
        assert_eq!(cut(3, 1000, 8 << 20), (1, true), "a page has one item at least");
        let all = items(&[3, 1, 2]);
        let whole = LISTING.page(all.clone(), &query("-depth", 3, None)).unwrap();
        let next = LISTING.behind(&whole.items[0], &query("-depth", 3, None)).unwrap();
        let rest = LISTING.page(all, &query("-depth", 3, next)).unwrap();
        assert_eq!(rest.items, whole.items[1..], "an answer that ended early is continued");
    }

    #[test]
    fn an_array_names_the_next_page_in_its_headers() {
        let query = ListQuery { search: Some("q0".to_owned()), ..query("-depth", 1, None) };
        let headers = LISTING.page(items(&[1, 2]), &query).unwrap().headers("/topics", &query);
        assert_eq!(headers[0].1, "2");
        let link = headers[1].1.to_str().unwrap();
        assert!(link.starts_with("</topics?search=q0&sort=-depth&limit=1&cursor="), "{link}");
    }

    /// Any cursor is rejected with its code, or leads to a part of the list, in order.
    #[test]
    fn fuzz_cursors() {
        let depths: Vec<u64> = (0..40).map(|number| number * 7 % 5).collect();
        let page =
            |sort: &str, limit: usize, cursor| LISTING.page(items(&depths), &query(sort, limit, cursor));
        let mut examples = Vec::new();
        for sort in ["", "name", "-name", "depth", "-depth"] {
            let cursor = page(sort, 3, None).unwrap().next.unwrap();
            examples.extend([page::decode(&cursor).unwrap(), cursor]);
        }
        let words = [
            "[",
            "]",
            "\"",
            ",",
            "null",
            "-1",
            "18446744073709551616",
            "depth",
            "-",
            "\\u0000",
            "{}",
            "AQ",
            "=",
        ];
        let mut fuzz = signalbox_testkit::Fuzz::new("cursors", examples, &words);
        while let Some(text) = fuzz.text() {
            for (cursor, sort) in
                [(text.clone(), "-depth"), (page::encode(&text), "depth"), (page::encode(&text), "name")]
            {
                match page(sort, 4, Some(cursor)) {
                    Err(problem) => assert_eq!(problem.code(), "invalid_cursor"),
                    Ok(found) => {
                        assert!(found.items.len() <= 4 && found.total == depths.len());
                        let whole = page(sort, 1000, None).unwrap().items;
                        assert_eq!(found.items, whole[found.before..found.before + found.items.len()]);
                        fuzz.accepted();
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn pages_contain_each_item_once_and_lead_back(
            depths in proptest::collection::vec(0_u64..5, 0..40), limit in 1_usize..9, descending: bool,
        ) {
            let sort = if descending { "-depth" } else { "depth" };
            let whole = LISTING.page(items(&depths), &ListQuery { limit: None, ..query(sort, 1, None) }).unwrap();
            let (mut seen, mut cursor) = (Vec::new(), None);
            loop {
                let page = LISTING.page(items(&depths), &query(sort, limit, cursor.clone())).unwrap();
                prop_assert_eq!((page.before, page.total), (seen.len(), depths.len()));
                if let Some(previous) = page.previous.clone() {
                    let back = LISTING.page(items(&depths), &query(sort, limit, Some(previous))).unwrap();
                    prop_assert_eq!(back.before, page.before.saturating_sub(limit));
                }
                seen.extend(page.items);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            prop_assert_eq!(seen, whole.items);
        }
    }
}
