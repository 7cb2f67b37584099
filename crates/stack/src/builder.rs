//! Describes and starts a stack.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::{
    Error, Event, Options, Ports, Stack,
    event::Events,
    group::{Group, end_leftovers},
    layout::{Layout, set_mode},
    options::LogMode,
    plan::{Plan, Without},
    programs,
};

/// A stack that is not started yet. Everything has a default.
#[derive(Debug, Default)]
pub struct Builder {
    options: Options,
    events: Events,
    without: Without,
    programs: Option<PathBuf>,
    temporary: bool,
}

impl Builder {
    /// Sets all options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Changes single options.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Sets the folder for state and logs.
    #[must_use]
    pub fn data_dir(self, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        self.with(|options| options.data_dir = folder)
    }

    /// For tests and benchmarks: uses free ports, no automatic restarts, and a temporary data folder that is removed at the
    /// end (if the test panics or the start fails, it is kept and printed on standard error).
    ///
    /// # Errors
    /// If there are no free ports.
    pub fn temporary(mut self) -> Result<Self, Error> {
        let free = |source| Error::File { action: "reserve ports for", path: std::env::temp_dir(), source };
        self.options.ports = Ports::free().map_err(free)?;
        self.temporary = true;
        Ok(self.auto_restart(false))
    }

    /// Sets the ports.
    #[must_use]
    pub fn ports(self, ports: Ports) -> Self {
        self.with(|options| options.ports = ports)
    }

    /// Whether a part that ends unexpectedly is restarted.
    #[must_use]
    pub fn auto_restart(self, restart: bool) -> Self {
        self.with(|options| options.restart = restart)
    }

    /// Sets the number of nginx workers; 0: one per core.
    #[must_use]
    pub fn workers(self, workers: u16) -> Self {
        self.with(|options| options.edge.workers = workers)
    }

    /// How nginx writes the access log.
    #[must_use]
    pub fn log(self, mode: LogMode) -> Self {
        self.with(|options| options.edge.log = mode)
    }

    /// Overrides a name of the template `nginx/nginx.conf`, such as `KEEPALIVE`.
    #[must_use]
    pub fn nginx(self, name: &str, value: impl Into<String>) -> Self {
        let (name, value) = (name.to_owned(), value.into());
        self.with(|options| {
            options.edge.nginx.insert(name, value);
        })
    }

    /// Sets a key of the pacemaker.
    #[must_use]
    pub fn pacemaker(self, key: &str, value: impl Into<toml::Value>) -> Self {
        let (key, value) = (key.to_owned(), value.into());
        self.with(|options| {
            options.pacemaker.insert(key, value);
        })
    }

    /// Sets a key of the sidecar, such as `rotate_bytes`.
    #[must_use]
    pub fn sidecar(self, key: &str, value: impl Into<toml::Value>) -> Self {
        let (key, value) = (key.to_owned(), value.into());
        self.with(|options| {
            options.sidecar.insert(key, value);
        })
    }

    /// Starts without nginx.
    #[must_use]
    pub fn without_nginx(mut self) -> Self {
        self.without.nginx = true;
        self
    }

    /// Starts without a pacemaker.
    #[must_use]
    pub fn without_pacemaker(mut self) -> Self {
        self.without.pacemaker = true;
        self
    }

    /// Starts without a sidecar.
    #[must_use]
    pub fn without_sidecar(mut self) -> Self {
        self.without.sidecar = true;
        self
    }

    /// The folder of the programs `signalbox`, `signalbox-pacemaker` and `signalbox-sidecar`. By
    /// default, the folder of the running program is used.
    #[must_use]
    pub fn programs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.programs = Some(folder.into());
        self
    }

    /// Sets the receiver of events.
    #[must_use]
    pub fn on_event(mut self, listener: impl Fn(Event) + Send + Sync + 'static) -> Self {
        self.events = Events::to(listener);
        self
    }

    /// Starts everything and waits until it responds. If a part fails, everything that was started is ended.
    ///
    /// # Errors
    /// See [`Error`]. An invalid option and a port in use are found before anything is started.
    pub async fn start(self) -> Result<Stack, Error> {
        let mut options = self.options.resolve()?;
        let mut temporary = None;
        if self.temporary {
            let folder = TempDir::with_prefix("signalbox-").map_err(|source| Error::File {
                action: "create",
                path: std::env::temp_dir(),
                source,
            })?;
            // A temporary folder is private; a folder that an operator chose usually is not.
            set_mode(folder.path(), 0o755)?;
            options.data_dir = folder.path().to_owned();
            temporary = Some(folder);
        }
        let guard = programs::own("signalbox", self.programs.as_deref())?;
        let layout = Layout::create(&options.data_dir)?;
        let lock = layout.lock()?;
        let left = end_leftovers(&layout).await?;
        if left > 0 {
            self.events
                .emit(Event::Note(format!("ended {left} processes that an earlier copy had left behind")));
        }
        let (plan, note) = Plan::make(layout, options, self.without, self.programs.as_deref())?;
        if let Some(note) = note {
            self.events.emit(Event::Note(note));
        }
        // An invalid option is found here at the latest, before anything is started.
        let programs = plan.programs()?;
        plan.check_ports()?;
        let group = Group::start(&guard, &plan.layout)?;
        let mut stack = Stack::assemble(plan, group, self.events, temporary, lock);
        match stack.bring_up(programs).await {
            Ok(()) => Ok(stack),
            Err(error) => {
                // The error names a log.
                stack.keep_data();
                stack.stop().await;
                Err(error)
            }
        }
    }
}
