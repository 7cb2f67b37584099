//! Answers to challenges of ACME servers, on the routes primary.
//!
//! They are not desired state: if the table is lost, the order fails and is repeated.

use signalbox_store::{RoutesPrimaryRole, Script, keys::routes as key};

use super::{SHARED, Store};
use crate::Error;

static PUT: Script<RoutesPrimaryRole> =
    Script::composed("routing/challenge", &[include_str!("../scripts/challenge.lua"), SHARED]);
/// An authority may repeat its request for as long as it works on an order.
const LIFE_SECONDS: u64 = 3600;

impl Store {
    /// Makes every router answer the challenge `token` with `answer`. Returns the newest token of the table's lineage, and
    /// the serial that routers acknowledge when they do. `name` is the server name that the challenge is about.
    pub async fn put_challenge(&self, name: &str, token: &str, answer: &str) -> Result<(String, u64), Error> {
        let (lineage, _, _) = self.table_head().await?;
        let epoch = lineage.split(' ').next().unwrap_or_default();
        if epoch.is_empty() {
            return Err(Error::Resyncing { recorded: false });
        }
        let call = PUT
            .call()
            .key(&key::serial())
            .key(&key::epoch())
            .key(&key::changes())
            .key(&key::challenge(token))
            .arg(answer)
            .arg(LIFE_SECONDS)
            .arg(epoch)
            .arg(self.clock())
            .arg(name);
        let reply = self.on_table("challenge", call).await?;
        match reply.word()?.as_str() {
            "done" => Ok((epoch.to_owned(), reply.at(1)?)),
            _ => Err(reply.unexpected()),
        }
    }
}
