//! A secret that the pacemakers of a system share, for what one of them gives to a client and another one gets back.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use rand::Rng as _;
use signalbox_store::{Fabric, keys};
use tokio::sync::OnceCell;

use super::Error;

/// The secret, read when it is needed first. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SharedSecret {
    fabric: Fabric,
    known: Arc<OnceCell<String>>,
}

impl SharedSecret {
    /// The secret is stored in `fabric`.
    pub fn new(fabric: Fabric) -> Self {
        Self { fabric, known: Arc::default() }
    }

    /// 64 hexadecimal digits, the same on all pacemakers.
    ///
    /// # Errors
    /// If the fabric does not respond, and the secret is not known yet.
    pub async fn get(&self) -> Result<&str, Error> {
        let read = || async {
            let key = keys::fabric::cursor_secret();
            let mut random = [0_u8; 32];
            rand::rng().fill_bytes(&mut random);
            self.fabric.command("SET").key(&key).arg(HEXLOWER.encode(&random)).arg("NX").run().await?;
            self.fabric.command("GET").key(&key).query::<String>().await
        };
        Ok(self.known.get_or_try_init(read).await?)
    }
}
