//! API tokens. Only the root token manages them.

use serde_json::json;
use signalbox_api::tokens::TokenList;

pub use signalbox_api::tokens::{NewToken, Rotation, Scope, Token};

use crate::{Client, Error, segment};

/// The calls about tokens.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a>(pub(crate) &'a Client);

impl Tokens<'_> {
    /// All tokens, without their secrets.
    pub async fn list(&self) -> Result<Vec<Token>, Error> {
        let list: TokenList = self.0.get("/tokens").await?;
        Ok(list.tokens)
    }

    /// Creates a token; the only answer that shows its secret.
    pub async fn create(&self, token: &NewToken) -> Result<Token, Error> {
        self.0.post("/tokens", Some(&json!(token))).await
    }

    /// Gives a token another secret; the only answer that shows it.
    ///
    /// # Errors
    /// As every call.
    pub async fn rotate(&self, name: &str, rotation: &Rotation) -> Result<Token, Error> {
        self.0.post(&format!("/tokens/{}/rotate", segment(name)), Some(&json!(rotation))).await
    }

    /// Revokes a token. A token that does not exist is not an error.
    pub async fn revoke(&self, name: &str) -> Result<(), Error> {
        self.0.delete(&format!("/tokens/{}", segment(name))).await
    }
}
