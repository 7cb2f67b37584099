//! Both ends of a proxy: the clients that ask it and the instances that answer behind it.
//!
//! They live in *one* thread and one event loop, on a core that the proxy does not use. Two processes would cost a
//! switch for each hand-over, and on a machine of two cores the ends would then be slower than the proxy between them
//! and the measurement would be one of the generator. Like this a request costs the ends four system calls.
//!
//! Two kinds of load. *Closed*: each connection sends its next request when the last was answered, which finds the
//! highest rate. *Open*: requests are due at random moments of a given mean rate and latency counts from the moment a
//! request was due, sent or not, so that a proxy that stalls is charged for everybody who had to wait (else the
//! generator would kindly stop asking while the proxy stalls: "coordinated omission").

mod client;
mod engine;
mod http;
mod instance;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
        mpsc,
    },
    time::Duration,
};

use anyhow::{Context as _, anyhow};
pub(crate) use http::{Requests, answer};
use tokio::sync::oneshot;

use crate::{
    histogram::Histogram,
    machine,
    process::{CpuTime, Pid, thread_cpu},
};

/// How fast to ask.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// Each connection asks again as soon as it was answered.
    Closed,
    /// Requests are due at random moments, this many a second on average.
    Open {
        /// Requests a second.
        rate: f64,
    },
    /// As open, but the generator sleeps in between, so a request may be sent up to a millisecond after it was due.
    /// For machines on which the generator shares its core.
    Sleepy {
        /// Requests a second.
        rate: f64,
    },
}

/// Which request comes next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Choice {
    /// Any, each as likely.
    Uniform,
    /// All of them in turn, and the run ends after the last: warms caches.
    EachOnce,
}

/// One slice of load.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The proxy.
    pub(crate) target: SocketAddr,
    /// The requests to send.
    pub(crate) requests: Arc<Requests>,
    /// In which order.
    pub(crate) choice: Choice,
    /// Connections kept open for the whole slice.
    pub(crate) connections: usize,
    /// How fast.
    pub(crate) pace: Pace,
    /// Load that is not measured, so that connections are open and caches warm.
    pub(crate) ramp: Duration,
    /// The measured time. For [`Choice::EachOnce`], the maximum time.
    pub(crate) duration: Duration,
    /// Processes whose CPU time is taken at both ends of the measured time.
    pub(crate) watch: Vec<Pid>,
    /// Processes that belong to what is measured but are not watched.
    pub(crate) helpers: Vec<Pid>,
}

impl Plan {
    /// Each request once, as fast as the answers allow, without a ramp and watched processes.
    pub(crate) fn once(
        target: SocketAddr,
        requests: Arc<Requests>,
        connections: usize,
        most: Duration,
    ) -> Self {
        Self {
            target,
            requests,
            choice: Choice::EachOnce,
            connections,
            pace: Pace::Closed,
            ramp: Duration::ZERO,
            duration: most,
            watch: Vec::new(),
            helpers: Vec::new(),
        }
    }
}

/// The result of a slice of load.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Requests answered 2xx within the measured time.
    pub(crate) completed: u64,
    /// The measured time.
    pub(crate) elapsed: Duration,
    /// From due to answered.
    pub(crate) latency: Histogram,
    /// CPU time of the watched processes.
    pub(crate) cpu: CpuTime,
    /// CPU time of the generator itself.
    pub(crate) own_cpu: Duration,
    /// CPU time of the whole machine but for the watched processes, their helpers and the generator.
    pub(crate) foreign_cpu: Duration,
    /// Requests that failed or were answered with another status.
    pub(crate) failed: u64,
    /// The first of them.
    pub(crate) first_failure: Option<String>,
}

impl Outcome {
    /// Requests a second.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn rate(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of CPU that the watched processes spent on one request.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.on_cpu.as_secs_f64() * 1e6 / self.completed.max(1) as f64
    }

    /// Share of one core that the watched processes used.
    pub(crate) fn busy(&self) -> f64 {
        self.cpu.on_cpu.as_secs_f64() / self.elapsed.as_secs_f64()
    }

    /// Share of one core that strangers used.
    pub(crate) fn disturbance(&self) -> f64 {
        self.foreign_cpu.as_secs_f64() / self.elapsed.as_secs_f64()
    }

    /// Share of one core that the generator used.
    pub(crate) fn generator_busy(&self) -> f64 {
        self.own_cpu.as_secs_f64() / self.elapsed.as_secs_f64()
    }
}

struct Job {
    plan: Plan,
    reply: oneshot::Sender<anyhow::Result<Outcome>>,
}

/// The thread with both ends. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Ends {
    jobs: Option<mpsc::Sender<Job>>,
    waker: Arc<mio::Waker>,
    instances: Vec<SocketAddr>,
    thread: Option<std::thread::JoinHandle<()>>,
    id: Arc<AtomicI32>,
}

impl Ends {
    /// Starts the thread on `cores`, with `count` instances that answer on separate loopback ports. An instance
    /// answers 200 with its port and a newline, padded to six bytes.
    pub(crate) fn start(count: usize, cores: &[usize]) -> anyhow::Result<Self> {
        let (jobs, inbox) = mpsc::channel();
        let (engine, waker) = engine::Engine::new(count, inbox).context("preparing the load generator")?;
        let instances = engine.instances();
        let cores = cores.to_vec();
        let id = Arc::new(AtomicI32::new(0));
        let own_id = Arc::clone(&id);
        let thread = std::thread::Builder::new()
            .name("bench-ends".to_owned())
            .spawn(move || {
                own_id.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
                // Without the pinning the figures are merely less steady.
                let _ = machine::pin_current_thread(&cores);
                engine.serve();
            })
            .context("starting the load generator")?;
        Ok(Self { jobs: Some(jobs), waker, instances, thread: Some(thread), id })
    }

    /// CPU time of the thread so far.
    pub(crate) fn cpu(&self) -> Duration {
        thread_cpu(self.id.load(Ordering::Relaxed))
    }

    /// Where the instances listen.
    pub(crate) fn instances(&self) -> &[SocketAddr] {
        &self.instances
    }

    /// Runs one slice of load. One at a time: a second waits for the first.
    pub(crate) async fn run(&self, plan: Plan) -> anyhow::Result<Outcome> {
        let gone = || anyhow!("the load generator's thread has ended");
        let (reply, outcome) = oneshot::channel();
        self.jobs.as_ref().ok_or_else(gone)?.send(Job { plan, reply }).map_err(|_| gone())?;
        self.waker.wake().context("waking the load generator")?;
        outcome.await.map_err(|_| gone())?
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn at_any_pace_each_of_a_list_is_sent_once() {
        let ends = Ends::start(1, &machine::cores()).unwrap();
        for pace in [Pace::Closed, Pace::Open { rate: 5_000.0 }, Pace::Sleepy { rate: 5_000.0 }] {
            let hosts = (0..200).map(|number| format!("host-{number}.example"));
            let requests = Arc::new(Requests::for_hosts(hosts));
            let plan = Plan::once(ends.instances()[0], requests, 4, Duration::from_secs(60));
            let outcome = ends.run(Plan { pace, ..plan }).await.unwrap();
            assert_eq!((outcome.completed, outcome.failed), (200, 0), "{pace:?}");
        }
    }
}
