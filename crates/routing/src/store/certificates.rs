//! Certificates of server names: as they are wanted, in the fabric, and as they stand, on the routes master. What is in
//! one is the room `certificates`' business; here it is a text, and the moment of its end.

use serde::Deserialize;
use serde_json::value::RawValue;
use signalbox_store::{
    FabricRole, RoutesMasterRole, Script, Value,
    keys::{fabric, routes},
};

use super::{PolicyOutcome, Ruling, SHARED, Store, TableMark, desired::newest, reply::Reply};
use crate::Error;
use signalbox_route_table::Hostname;

static DESIRE_CERTIFICATE: Script<FabricRole> =
    Script::new("routing/desire_certificate", include_str!("../scripts/desire_certificate.lua"));
static ADOPT_CERTIFICATE: Script<FabricRole> =
    Script::new("routing/adopt_certificate", include_str!("../scripts/adopt_certificate.lua"));
static CERTIFY: Script<RoutesMasterRole> =
    Script::composed("routing/certify", &[include_str!("../scripts/certify.lua"), SHARED]);

/// A certificate as routers read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// JSON with chain and encrypted private key.
    pub text: String,
    /// When it ends, in unix seconds.
    pub ends: u64,
}

/// One that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// The revision of its last change.
    pub revision: u64,
    /// What routers read.
    pub certificate: Certificate,
}

impl Certified {
    fn read(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Stored<'a> {
            revision: u64,
            ends: u64,
            #[serde(borrow)]
            certificate: &'a RawValue,
        }
        let stored: Stored<'_> = serde_json::from_str(text).map_err(Error::Record)?;
        let certificate = Certificate { text: stored.certificate.get().to_owned(), ends: stored.ends };
        Ok(Self { revision: stored.revision, certificate })
    }
}

/// A certificate as it stands in the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// 0 when the table never had one of the pacemaker's.
    pub(crate) revision: u64,
    /// Nothing when it was taken away.
    certificate: Option<Certificate>,
}

impl Shown {
    /// Whether there is one.
    pub(crate) fn stands(&self) -> bool {
        self.certificate.is_some()
    }
}

impl Store {
    /// The certificate that is wanted for a server name.
    pub async fn certificate(&self, name: &Hostname) -> Result<Option<Certified>, Error> {
        Ok(self.certificates(std::slice::from_ref(&name.to_string())).await?.pop().flatten())
    }

    /// The certificates that are wanted for these names, in their order.
    pub async fn certificates(&self, names: &[String]) -> Result<Vec<Option<Certified>>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let command = self.fabric.command("HMGET").key(&fabric::routes_certificates()).arg(names);
        let texts: Vec<Option<String>> = command.query().await.map_err(Error::Fabric)?;
        texts.into_iter().map(|text| text.as_deref().map(Certified::read).transpose()).collect()
    }

    /// Server names with a certificate, in their order.
    pub async fn certificates_after(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.index_after(&fabric::routes_certificates_index(), after, limit).await
    }

    /// Changes what is wanted, nothing taking it away. With `expected` only if that revision is the present one; 0 is
    /// that of no certificate, and takes away what stands in the table all the same.
    pub(crate) async fn desire_certificate(
        &self,
        name: &Hostname,
        certificate: Option<&Certificate>,
        expected: Option<u64>,
    ) -> Result<PolicyOutcome, Error> {
        let reply = DESIRE_CERTIFICATE
            .call()
            .key(&fabric::routes_certificates())
            .key(&fabric::routes_certificates_index())
            .key(&fabric::routes_certificates_ends())
            .key(&fabric::routes_certificates_told())
            .key(&fabric::routes_revision())
            .key(&fabric::routes_unprojected())
            .key(&fabric::routes_table())
            .arg(name.as_str())
            .arg(certificate.map_or("", |certificate| &certificate.text))
            .arg(certificate.map_or(0, |certificate| certificate.ends))
            .arg(self.floor())
            .arg(expected.map_or_else(String::new, |revision| revision.to_string()))
            .run::<Vec<Value>>(&self.fabric)
            .await
            .map_err(Error::Fabric)?;
        let reply = Reply::new("desire_certificate", reply);
        let table = || {
            let lineage: String = reply.at(3)?;
            let epoch = newest(&lineage).unwrap_or("").to_owned();
            Ok::<_, Error>(TableMark { epoch, serial: reply.at(2)? })
        };
        match reply.word()?.as_str() {
            "accepted" => {
                let revision = reply.at(1)?;
                self.saw_revision(revision);
                Ok(PolicyOutcome::Accepted { revision, table: table()? })
            }
            "same" => {
                let outstanding = Some(reply.at(1)?).filter(|revision| *revision > 0);
                Ok(PolicyOutcome::Same { outstanding, table: table()? })
            }
            "changed" => Ok(PolicyOutcome::Changed),
            "regressed" | "uninitialised" => Ok(PolicyOutcome::Behind),
            _ => Err(reply.unexpected()),
        }
    }

    /// Takes over what the routes master knows better. `before` is the revision that the fabric has.
    pub(crate) async fn adopt_certificate(
        &self,
        name: &str,
        before: Option<u64>,
        shown: &Shown,
    ) -> Result<bool, Error> {
        let text = shown.certificate.as_ref().map(|Certificate { text, ends }| {
            format!("{{\"revision\":{},\"ends\":{ends},\"certificate\":{text}}}", shown.revision)
        });
        ADOPT_CERTIFICATE
            .call()
            .key(&fabric::routes_certificates())
            .key(&fabric::routes_certificates_index())
            .key(&fabric::routes_certificates_ends())
            .arg(name)
            .arg(before.map_or_else(String::new, |revision| revision.to_string()))
            .arg(text.as_deref().unwrap_or(""))
            .arg(shown.certificate.as_ref().map_or(0, |certificate| certificate.ends))
            .run(&self.fabric)
            .await
            .map_err(Error::Fabric)
    }

    /// Brings a certificate to the table, nothing taking it away. `mark` says which table is meant; none while it is
    /// being seeded.
    pub(crate) async fn certify(
        &self,
        name: &Hostname,
        revision: u64,
        certificate: Option<&Certificate>,
        mark: Option<&TableMark>,
    ) -> Result<Ruling, Error> {
        let reply = CERTIFY
            .call()
            .key(&routes::serial())
            .key(&routes::cert(name.as_str()))
            .key(&routes::certificate(name.as_str()))
            .key(&routes::revision())
            .key(&routes::epoch())
            .key(&routes::changes())
            .arg(name.as_str())
            .arg(revision)
            .arg(certificate.map_or("", |certificate| &certificate.text))
            .arg(certificate.map_or(0, |certificate| certificate.ends))
            .arg(mark.map_or("", |mark| &mark.epoch))
            .arg(mark.map_or(0, |mark| mark.serial))
            .arg(self.clock())
            .run::<Vec<Value>>(&self.routes)
            .await
            .map_err(Error::table)?;
        let reply = Reply::new("certify", reply);
        Ok(match reply.word()?.as_str() {
            "done" | "same" => Ruling::Stands { serial: reply.at(1)? },
            "stale" => Ruling::Stale { revision: reply.at(1)? },
            "foreign" | "behind" => Ruling::OtherTable,
            "blocked" => Ruling::Blocked { key: reply.at(1)? },
            _ => return Err(reply.unexpected()),
        })
    }

    /// Notes a certificate as outstanding without changing it.
    pub(crate) async fn mark_certificate_outstanding(&self, name: &str, revision: u64) -> Result<(), Error> {
        let command = self.fabric.command("ZADD").key(&fabric::routes_unprojected()).arg("NX");
        command.arg(revision).arg(format!("={name}")).run().await.map_err(Error::Fabric)
    }

    /// Certificates as they stand in the table, in the order asked for.
    pub(crate) async fn shown(&self, names: &[String]) -> Result<Vec<Shown>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.routes.batch();
        let none: &[&str] = &[];
        for name in names {
            batch.add("HMGET", &routes::certificate(name), &["revision", "ends"]);
            batch.add("GET", &routes::cert(name), none);
        }
        let replies: Vec<Value> = batch.query().await.map_err(Error::table)?;
        let unreadable = |_| Error::Reply { script: "shown", reply: "unreadable".to_owned() };
        let shown = |pair: &[Value]| {
            type About = (Option<u64>, Option<u64>);
            let (revision, ends) =
                signalbox_store::from_redis_value::<About>(pair[0].clone()).map_err(unreadable)?;
            let text = signalbox_store::from_redis_value::<Option<String>>(pair[1].clone());
            let certificate = text.map_err(unreadable)?.zip(ends);
            let certificate = certificate.map(|(text, ends)| Certificate { text, ends });
            Ok(Shown { revision: revision.unwrap_or(0), certificate })
        };
        replies.chunks(2).map(shown).collect()
    }

    /// The names whose certificates end up to `until`, each with that moment, and how many certificates there are in all.
    pub(crate) async fn ending(&self, until: u64) -> Result<(Vec<(String, u64)>, usize), Error> {
        let ends = fabric::routes_certificates_ends();
        let command =
            self.fabric.command("ZRANGEBYSCORE").key(&ends).arg("-inf").arg(until).arg("WITHSCORES");
        let found: Vec<(String, f64)> = command.query().await.map_err(Error::Fabric)?;
        let count = self.fabric.command("ZCARD").key(&ends).query().await.map_err(Error::Fabric)?;
        Ok((found.into_iter().map(|(name, ends)| (name, ends as u64)).collect(), count))
    }

    /// When the certificate that ends first does so.
    pub(crate) async fn first_end(&self) -> Result<Option<u64>, Error> {
        let command = self.fabric.command("ZRANGE").key(&fabric::routes_certificates_ends());
        let first: Vec<(String, f64)> =
            command.arg(0).arg(0).arg("WITHSCORES").query().await.map_err(Error::Fabric)?;
        Ok(first.first().map(|(_, ends)| *ends as u64))
    }

    /// What was told of the ends of these names' certificates.
    pub(crate) async fn told_ends(&self, names: &[String]) -> Result<Vec<Option<String>>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let command = self.fabric.command("HMGET").key(&fabric::routes_certificates_told()).arg(names);
        command.query().await.map_err(Error::Fabric)
    }

    /// Notes what was told.
    pub(crate) async fn told_end(&self, name: &str, what: &str) -> Result<(), Error> {
        let command = self.fabric.command("HSET").key(&fabric::routes_certificates_told());
        command.arg(name).arg(what).run().await.map_err(Error::Fabric)
    }
}
