//! Tokens, for those that have the root token.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Client, Error, More, segment};

/// The calls of this module.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a>(pub(crate) &'a Client);

/// A token to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NewToken {
    /// Its name.
    pub name: String,
    /// What it may do: `routes`, `publish`, `subscribe`, `queues`, `facts`, `machines`, `read`.
    pub scopes: Vec<String>,
    /// The host names that it is confined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// The environments that it is confined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environments: Option<Vec<String>>,
}

/// A token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// What clients show; told only once, when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Everything else: what it is confined to.
    #[serde(flatten)]
    pub more: More,
}

#[derive(Deserialize)]
struct TokenList {
    tokens: Vec<Token>,
}

impl Tokens<'_> {
    /// All tokens, without what clients show.
    ///
    /// # Errors
    /// As every call.
    pub async fn list(&self) -> Result<Vec<Token>, Error> {
        let list: TokenList = self.0.get("/tokens").await?;
        Ok(list.tokens)
    }

    /// Makes a token; the only answer that shows it.
    ///
    /// # Errors
    /// As every call.
    pub async fn create(&self, token: &NewToken) -> Result<Token, Error> {
        self.0.post("/tokens", Some(&json!(token))).await
    }

    /// Revokes a token; one that is not there is no error.
    ///
    /// # Errors
    /// As every call.
    pub async fn revoke(&self, name: &str) -> Result<(), Error> {
        self.0.delete(&format!("/tokens/{}", segment(name))).await
    }
}
