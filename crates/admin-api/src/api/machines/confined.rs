//! The caller of a request about one machine.

use std::marker::PhantomData;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};

use crate::http::{
    App, Problem,
    auth::{Confined, Machines, Permission},
};
use signalbox_access::Caller;

/// A caller who has the permission `P` and whose token covers the machine of the path. Every handler of a route with
/// `{machine}` takes it, so that none can omit the check.
#[derive(Debug)]
pub(super) struct OfMachine<P>(pub(super) Caller, PhantomData<P>);

impl<P: Permission> FromRequestParts<App> for OfMachine<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = Confined::<P, Machines>::from_request_parts(parts, app).await?.into_caller();
        let path = RawPathParams::from_request_parts(parts, app).await;
        let path = path.map_err(|rejection| Problem::bad_request("invalid_path", rejection.body_text()))?;
        // A route without this parameter is a defect, and no confined caller gets past it.
        let machine = path.iter().find(|(name, _)| *name == "machine").map_or("", |(_, machine)| machine);
        if !caller.may_use_machine(machine) {
            let detail = "the token is confined to other state machines";
            return Err(Problem::forbidden("machine_not_allowed", detail));
        }
        Ok(Self(caller, PhantomData))
    }
}
