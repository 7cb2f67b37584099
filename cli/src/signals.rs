//! The signals that end a command which runs until then.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

pub(crate) fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::internal(format!("cannot catch signals: {error}")))
}

/// Ctrl-C, SIGTERM, and the end of the terminal if the command ends with it.
pub(crate) struct Ending {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl Ending {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let (interrupt, terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hang_up: None })
    }

    pub(crate) fn or_hang_up(self) -> Result<Self, Failure> {
        Ok(Self { hang_up: Some(listen(SignalKind::hangup())?), ..self })
    }

    /// Waits for a signal. SIGTERM from a service manager is success; Ctrl-C has its own exit code for shells.
    pub(crate) async fn wait(&mut self) -> Result<(), Failure> {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Err(Failure::interrupted()),
            _ = self.terminate.recv() => Ok(()),
            _ = hang_up => Ok(()),
        }
    }
}
