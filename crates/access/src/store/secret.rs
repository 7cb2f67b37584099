//! A secret that the pacemakers of a system share, for what one of them gives to a client and another one gets back.

use std::sync::Arc;

use signalbox_store::{Fabric, FabricSpace, Key, keys};
use tokio::sync::OnceCell;

use super::{Error, random};

/// The secret, read when it is needed first. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SharedSecret {
    fabric: Fabric,
    key: Key<FabricSpace>,
    bytes: usize,
    known: Arc<OnceCell<String>>,
}

impl SharedSecret {
    /// The secret of cursors, which is stored in `fabric`.
    pub fn new(fabric: Fabric) -> Self {
        Self::at(fabric, keys::fabric::cursor_secret(), 32)
    }

    /// A value of so many random bytes.
    pub(super) fn at(fabric: Fabric, key: Key<FabricSpace>, bytes: usize) -> Self {
        Self { fabric, key, bytes, known: Arc::default() }
    }

    /// Hexadecimal digits, the same on all pacemakers. If the fabric does not respond, an error, unless the secret is known
    /// already.
    pub async fn get(&self) -> Result<&str, Error> {
        let read = || async {
            let Self { fabric, key, bytes, .. } = self;
            fabric.command("SET").key(key).arg(random(*bytes)).arg("NX").run().await?;
            fabric.command("GET").key(key).query::<String>().await
        };
        Ok(self.known.get_or_try_init(read).await?)
    }
}
