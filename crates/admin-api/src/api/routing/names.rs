//! Lists of what belongs to host names, in the order of the names.

use super::PageQuery;
use crate::http::{App, Problem, list::contains};
use signalbox_access::Caller;
use signalbox_route_table::{Hostname, page};

/// Maximum number of names that one request examines for a search or for a confined token.
const MAX_EXAMINED: usize = 10_000;

/// Something that belongs to host names.
pub(crate) trait Named {
    /// The list to which cursors belong.
    const LIST: &str;
    /// What belongs to a name.
    type Item: Send;

    /// The name of an item.
    fn name(item: &Self::Item) -> &str;

    /// The first `limit` items after a name.
    fn after(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Self::Item>, Problem>> + Send;
}

/// A page of the items that the caller may see and that match the search, and the cursor of the next page.
pub(crate) async fn names_page<S: Named>(
    app: &App,
    caller: &Caller,
    source: &S,
    query: &PageQuery,
) -> Result<(Vec<S::Item>, Option<String>), Problem> {
    let limit = page::limit(query.limit)?;
    let mut after = app.cursors.read(caller, S::LIST, query.cursor.as_deref()).await?;
    let wanted = query.search.as_deref().unwrap_or_default().to_lowercase();
    let visible = |name: &str| {
        contains(&wanted, [name]) && Hostname::parse(name).is_ok_and(|name| caller.may_touch(&name))
    };
    let (mut found, mut examined, mut more) = (Vec::new(), 0, true);
    while found.len() <= limit && examined < MAX_EXAMINED && more {
        let chunk = source.after(after.as_deref(), limit + 1).await?;
        more = chunk.len() > limit;
        examined += chunk.len();
        after = chunk.last().map(|one| S::name(one).to_owned()).or(after);
        found.extend(chunk.into_iter().filter(|one| visible(S::name(one))));
    }
    let next = if found.len() > limit {
        found.truncate(limit);
        found.last().map(|one| S::name(one).to_owned())
    } else {
        after.filter(|_| more)
    };
    Ok((found, app.cursors.write(caller, S::LIST, next).await?))
}
