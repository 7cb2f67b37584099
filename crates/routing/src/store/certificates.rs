//! The certificate of a server name, as a [`Resource`]. Its content is the concern of the certificates crate; here it is
//! a text and an expiry.

use serde::Deserialize;
use serde_json::value::RawValue;
use signalbox_store::{
    FabricSpace, Key, RoutesSpace, Script,
    keys::{fabric, routes},
};

use super::{
    SHARED, Store,
    resource::{ADOPT, DESIRE, Entry, PROJECT, Record, Resource, Scripts, Wanted},
};
use crate::{ChangeKind, Error};
use signalbox_route_table::Hostname;

/// Its index in the fabric: by name and by expiry.
const INDEX: &str = include_str!("../scripts/certificate_index.lua");
/// In the table it has a separate key.
const TABLE: &str = include_str!("../scripts/certificate_table.lua");

static SCRIPTS: Scripts = Scripts {
    desire: Script::composed("routing/desire_certificate", &[DESIRE, INDEX]),
    adopt: Script::composed("routing/adopt_certificate", &[ADOPT, INDEX]),
    project: Script::composed("routing/project_certificate", &[PROJECT, TABLE, SHARED]),
};

/// A certificate as routers read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// JSON with chain and encrypted private key.
    pub text: String,
    /// When it expires, in unix seconds.
    pub ends: u64,
}

impl Resource for Certificate {
    const NAME: &'static str = "certificate";
    const SIGN: char = '=';
    const CHANGE: ChangeKind = ChangeKind::CertificateAltered;
    const REMOVED_WITH_HOST: bool = false;
    const TABLE_FIELD: &'static str = "ends";

    fn scripts() -> &'static Scripts {
        &SCRIPTS
    }

    fn desired_key() -> Key<FabricSpace> {
        fabric::routes_certificates()
    }

    fn index_keys() -> Vec<Key<FabricSpace>> {
        vec![
            fabric::routes_certificates_index(),
            fabric::routes_certificates_ends(),
            fabric::routes_certificates_published(),
        ]
    }

    fn table_key(name: &str) -> Key<RoutesSpace> {
        routes::certificate(name)
    }

    fn text_key(name: &str) -> Option<Key<RoutesSpace>> {
        Some(routes::cert(name))
    }

    fn parse(record: &str) -> Result<Wanted<Self>, Error> {
        #[derive(Deserialize)]
        struct Stored<'a> {
            revision: u64,
            ends: u64,
            #[serde(borrow)]
            certificate: &'a RawValue,
        }
        let Stored { revision, ends, certificate } = serde_json::from_str(record).map_err(Error::Record)?;
        Ok(Wanted { revision, value: Self { text: certificate.get().to_owned(), ends } })
    }

    fn record(&self) -> Result<Record, Error> {
        let Self { text, ends } = self;
        Ok(Record { tail: format!(",\"ends\":{ends},\"certificate\":{text}}}"), index: vec![*ends] })
    }

    fn entry(&self) -> Result<Entry, Error> {
        Ok(Entry { text: self.text.clone(), fields: vec!["ends".to_owned(), self.ends.to_string()] })
    }

    fn restored(ends: Option<String>, text: Option<String>) -> Result<Option<Record>, Error> {
        let Some((text, ends)) = text.zip(ends) else { return Ok(None) };
        match ends.parse() {
            Ok(ends) => Self { text, ends }.record().map(Some),
            Err(_) => Err(Error::Reply { script: Self::NAME, reply: format!("expiry {ends:?}") }),
        }
    }
}

impl Store {
    /// The desired certificate of a server name.
    pub async fn certificate(&self, name: &Hostname) -> Result<Option<Wanted<Certificate>>, Error> {
        Ok(self.wanted(&[name.as_str()]).await?.pop().flatten())
    }

    /// The desired certificates of these names, in their order.
    pub async fn certificates(&self, names: &[String]) -> Result<Vec<Option<Wanted<Certificate>>>, Error> {
        self.wanted(&names.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// The desired certificates of the first of `names`: as many as have about a megabyte, and one at least.
    pub async fn certificates_part(
        &self,
        names: &[String],
    ) -> Result<Vec<Option<Wanted<Certificate>>>, Error> {
        self.wanted_part(names).await
    }

    /// Up to `limit` server names with a certificate after `after`, in order.
    pub async fn certificates_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.index_after(&fabric::routes_certificates_index(), after, limit).await
    }

    /// The names whose certificates expire up to `until` (unix seconds), each with its expiry, and the number of all
    /// certificates.
    pub(crate) async fn ending(&self, until: u64) -> Result<(Vec<(String, u64)>, usize), Error> {
        let ends = fabric::routes_certificates_ends();
        let command =
            self.fabric.command("ZRANGEBYSCORE").key(&ends).arg("-inf").arg(until).arg("WITHSCORES");
        let found: Vec<(String, f64)> = command.query().await.map_err(Error::Fabric)?;
        let count = self.fabric.command("ZCARD").key(&ends).query().await.map_err(Error::Fabric)?;
        Ok((found.into_iter().map(|(name, ends)| (name, ends as u64)).collect(), count))
    }

    /// The earliest expiry of a certificate, in unix seconds.
    pub(crate) async fn first_end(&self) -> Result<Option<u64>, Error> {
        let command = self.fabric.command("ZRANGE").key(&fabric::routes_certificates_ends());
        let first: Vec<(String, f64)> =
            command.arg(0).arg(0).arg("WITHSCORES").query().await.map_err(Error::Fabric)?;
        Ok(first.first().map(|(_, ends)| *ends as u64))
    }

    /// The published expiry marks of these names' certificates.
    pub(crate) async fn published_ends(&self, names: &[String]) -> Result<Vec<Option<String>>, Error> {
        self.members(&fabric::routes_certificates_published(), names).await
    }

    /// Stores the published expiry mark of a certificate.
    pub(crate) async fn published_end(&self, name: &str, what: &str) -> Result<(), Error> {
        let command = self.fabric.command("HSET").key(&fabric::routes_certificates_published());
        command.arg(name).arg(what).run().await.map_err(Error::Fabric)
    }
}
