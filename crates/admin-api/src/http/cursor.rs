//! Cursors of lists from which a token sees only a part.
//!
//! A cursor is the name behind which the next page begins. It may be that of an item of another tenant, because an answer may
//! end before it has found enough items of the caller's. So for a token that is confined, the name is encrypted, with a
//! secret that all pacemakers share. A cursor belongs to one list and one token: another one cannot use it to find out what is
//! there.

use signalbox_access::{Caller, SharedSecret};
use signalbox_route_table::page;
use signalbox_seal::Keys;

use super::Problem;

/// The cursors of confined tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cursors(SharedSecret);

impl Cursors {
    /// The cursors that `secret` encrypts.
    pub fn new(secret: SharedSecret) -> Self {
        Self(secret)
    }

    /// The cursor behind `last` of the list with this name.
    ///
    /// # Errors
    /// If the secret cannot be read.
    pub async fn write(
        &self,
        caller: &Caller,
        list: &str,
        last: Option<String>,
    ) -> Result<Option<String>, Problem> {
        let Some(last) = last else { return Ok(None) };
        if caller.confinement().is_empty() {
            return Ok(Some(page::encode(&last)));
        }
        Ok(self.keys().await?.seal(&owner(caller, list), last.as_bytes()).map(|sealed| page::encode(&sealed)))
    }

    /// The item that a cursor of this list follows.
    ///
    /// # Errors
    /// 422 `invalid_cursor` if the caller got it from another list or not at all; 500 or 503 if the secret cannot be read.
    pub async fn read(
        &self,
        caller: &Caller,
        list: &str,
        cursor: Option<&str>,
    ) -> Result<Option<String>, Problem> {
        let Some(cursor) = cursor else { return Ok(None) };
        let text = page::decode(cursor)?;
        if caller.confinement().is_empty() {
            return Ok(Some(text));
        }
        let opened = self.keys().await?.open(&owner(caller, list), &text);
        let last = opened.and_then(|last| String::from_utf8(last).ok());
        last.map(Some).ok_or_else(|| {
            Problem::unprocessable("invalid_cursor", "pass the cursor of an earlier answer as it is")
                .with("field", "cursor")
        })
    }

    async fn keys(&self) -> Result<Keys, Problem> {
        Keys::parse(self.0.get().await?).map_err(|reason| {
            tracing::error!(reason, "the secret of cursors is not readable");
            Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the pacemaker's log")
        })
    }
}

fn owner(caller: &Caller, list: &str) -> String {
    format!("{list} {}", caller.name)
}
