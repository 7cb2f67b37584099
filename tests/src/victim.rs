//! A part of a system that is killed and restarted repeatedly.

use std::time::Duration;

use signalbox_stack::PartHandle;
use tokio::{task::JoinHandle, time};

/// Something that dies and is started again.
#[derive(Debug)]
pub struct Victim {
    /// Stops and resumes the process.
    pub part: PartHandle,
    back: Option<JoinHandle<()>>,
}

impl Victim {
    /// Alive so far.
    pub fn new(part: PartHandle) -> Self {
        Self { part, back: None }
    }

    /// Kills it, and has it started again after `pause`, whatever it needs is there or not.
    ///
    /// # Panics
    /// When the system is coming down.
    pub async fn die(&mut self, pause: Duration) {
        self.rise().await;
        self.part.kill().await.expect("a running system");
        let part = self.part.clone();
        self.back = Some(tokio::spawn(async move {
            time::sleep(pause).await;
            part.start_only().await.expect("a part that starts again");
        }));
    }

    /// Waits until it was started again.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn rise(&mut self) {
        if let Some(back) = self.back.take() {
            back.await.expect("a part that starts again");
        }
    }

    /// Waits until it runs again permanently.
    ///
    /// # Panics
    /// When it does not start again.
    pub async fn recover(&mut self) {
        self.part.resume();
        self.rise().await;
        self.part.wait_ready().await.expect("a restarted part");
    }
}
