//! Path parameters, checked before a handler runs.

use axum::{
    extract::{FromRequestParts, rejection::PathRejection},
    http::request::Parts,
};
use serde::de::DeserializeOwned;

use super::{App, Problem};

/// A path parameter, or a pair of them, whose values are valid.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

/// A type that a path parameter is parsed into.
pub(crate) trait Parameter: Sized {
    /// The raw path parameters, before they are validated.
    type Raw: DeserializeOwned + Send;

    /// # Errors
    /// The answer to a request with this value in its path.
    fn check(raw: Self::Raw) -> Result<Self, Problem>;
}

/// Any text: for names that are only looked up.
impl Parameter for String {
    type Raw = Self;

    fn check(raw: Self) -> Result<Self, Problem> {
        Ok(raw)
    }
}

impl Parameter for u64 {
    type Raw = Self;

    fn check(raw: Self) -> Result<Self, Problem> {
        Ok(raw)
    }
}

impl<A: Parameter, B: Parameter> Parameter for (A, B) {
    type Raw = (A::Raw, B::Raw);

    fn check((first, second): Self::Raw) -> Result<Self, Problem> {
        Ok((A::check(first)?, B::check(second)?))
    }
}

impl<T: Parameter> FromRequestParts<App> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let axum::extract::Path(raw) = axum::extract::Path::<T::Raw>::from_request_parts(parts, app).await?;
        T::check(raw).map(Self)
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request("invalid_path", rejection.body_text())
    }
}
