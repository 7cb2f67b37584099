//! The event loop of both ends.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
    time::Duration,
};

use anyhow::Context as _;
use mio::{Events, Interest, Poll, Token, Waker, net::TcpListener};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use tokio::time::Instant;

use super::{
    Choice, Job, Outcome, Pace, Plan,
    client::{Client, Event},
    instance::{Connection, State},
};
use crate::{
    histogram::Histogram,
    process::{CpuTime, machine_busy, own_thread_cpu},
};

const WAKE: Token = Token(0);
const LISTENERS: usize = 1;
/// Tokens from here on are connections of instances, below (and above the listeners) those of clients.
const CONNECTIONS: usize = 1 << 24;
const CLIENTS: usize = 1 << 16;
/// How long the answers of the last requests may take.
const DRAIN: Duration = Duration::from_secs(2);

/// Both ends.
pub(super) struct Engine {
    poll: Poll,
    inbox: Receiver<Job>,
    listeners: Vec<TcpListener>,
    answers: Vec<Vec<u8>>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    run: Option<Run>,
    scratch: Vec<u8>,
}

impl Engine {
    pub(super) fn new(count: usize, inbox: Receiver<Job>) -> anyhow::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (mut listeners, mut answers) = (Vec::new(), Vec::new());
        for index in 0..count {
            let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
            poll.registry().register(&mut listener, Token(LISTENERS + index), Interest::READABLE)?;
            let port = listener.local_addr()?.port();
            answers.push(
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\n{port:05}\n"
                )
                .into_bytes(),
            );
            listeners.push(listener);
        }
        let engine = Self {
            poll,
            inbox,
            listeners,
            answers,
            connections: Vec::new(),
            free: Vec::new(),
            run: None,
            scratch: vec![0; 64 * 1024],
        };
        Ok((engine, waker))
    }

    pub(super) fn instances(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves until the handle is dropped.
    pub(super) fn serve(mut self) {
        let mut events = Events::with_capacity(1024);
        loop {
            let timeout = self.run.as_ref().and_then(|run| run.patience(Instant::now()));
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != std::io::ErrorKind::Interrupted
            {
                return;
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
                    Token(token) if token >= CONNECTIONS => self.connection_ready(token - CONNECTIONS),
                    Token(token) if token >= CLIENTS => self.client_ready(token - CLIENTS),
                    Token(token) => self.accept(token - LISTENERS),
                }
            }
            if let Some(run) = &mut self.run
                && run.advance(&self.poll)
                && let Some(run) = self.run.take()
            {
                run.finish();
            }
            if self.run.is_none() {
                match self.inbox.try_recv() {
                    Ok(job) => self.begin(job),
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    fn begin(&mut self, job: Job) {
        match Run::begin(job.plan, &self.poll) {
            Ok(run) => self.run = Some(Run { reply: Some(job.reply), ..run }),
            // The caller stopped waiting, so the error has no recipient.
            Err(error) => drop(job.reply.send(Err(error))),
        }
    }

    fn accept(&mut self, instance: usize) {
        while let Ok((mut stream, _)) = self.listeners[instance].accept() {
            let _ = stream.set_nodelay(true);
            let slot = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let registered =
                self.poll.registry().register(&mut stream, Token(CONNECTIONS + slot), Interest::READABLE);
            if registered.is_ok() {
                self.connections[slot] = Some(Connection::new(stream, instance));
            } else {
                self.free.push(slot);
            }
        }
    }

    fn connection_ready(&mut self, slot: usize) {
        // An event may still be queued for a connection that an earlier event of the same batch has ended.
        let Some(connection) = &mut self.connections[slot] else { return };
        if connection.ready(&mut self.scratch, &self.answers[connection.instance]) == State::Closed {
            let _ = self.poll.registry().deregister(&mut connection.stream);
            self.connections[slot] = None;
            self.free.push(slot);
        }
    }

    fn client_ready(&mut self, index: usize) {
        if let Some(run) = &mut self.run {
            run.ready(index, &mut self.scratch, &self.poll);
        }
    }
}

/// How answers are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not counted yet.
    Ramp,
    /// Counted.
    Measured,
    /// No new requests.
    Drain,
}

/// One slice of load under way.
struct Run {
    plan: Plan,
    reply: Option<tokio::sync::oneshot::Sender<anyhow::Result<Outcome>>>,
    /// `None` is a connection that could not be replaced.
    clients: Vec<Option<Client>>,
    idle: Vec<usize>,
    /// When the requests were due that wait for a free connection (open load only).
    waiting: VecDeque<Instant>,
    next_due: Instant,
    next_in_turn: usize,
    random: SmallRng,
    phase: Phase,
    phase_ends: Instant,
    measured_from: Instant,
    cpu: CpuTime,
    own_cpu: Duration,
    helpers_cpu: CpuTime,
    machine_cpu: Duration,
    outcome: Outcome,
}

impl Run {
    fn begin(plan: Plan, poll: &Poll) -> anyhow::Result<Self> {
        let clients = (0..plan.connections)
            .map(|index| Client::connect(plan.target, Token(CLIENTS + index), poll.registry()).map(Some))
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("connecting to {}", plan.target))?;
        let now = Instant::now();
        let outcome = Outcome {
            completed: 0,
            elapsed: Duration::ZERO,
            latency: Histogram::default(),
            cpu: CpuTime::default(),
            own_cpu: Duration::ZERO,
            foreign_cpu: Duration::ZERO,
            failed: 0,
            first_failure: None,
        };
        let mut run = Self {
            idle: (0..clients.len()).rev().collect(),
            clients,
            reply: None,
            waiting: VecDeque::new(),
            next_due: now,
            next_in_turn: 0,
            // The same hosts in the same order for every proxy, so that none is luckier.
            random: SmallRng::seed_from_u64(0x5159_a1b0),
            phase: Phase::Ramp,
            phase_ends: now + plan.ramp,
            measured_from: now,
            cpu: CpuTime::default(),
            own_cpu: Duration::ZERO,
            helpers_cpu: CpuTime::default(),
            machine_cpu: Duration::ZERO,
            outcome,
            plan,
        };
        run.ask_idle(now, poll);
        Ok(run)
    }

    /// How long the loop may wait for events. Not at all under open load: the moments when requests are due lie closer
    /// together than the millisecond that epoll counts in.
    fn patience(&self, now: Instant) -> Option<Duration> {
        match (self.phase, self.plan.pace) {
            (Phase::Ramp | Phase::Measured, Pace::Open { .. }) => Some(Duration::ZERO),
            (Phase::Ramp | Phase::Measured, Pace::Sleepy { .. }) => {
                Some(self.next_due.min(self.phase_ends).saturating_duration_since(now))
            }
            // No event will come any more.
            _ if self.asked_all() && self.all_answered() => Some(Duration::ZERO),
            _ => Some(self.phase_ends.saturating_duration_since(now).max(Duration::from_millis(1))),
        }
    }

    fn ready(&mut self, index: usize, scratch: &mut [u8], poll: &Poll) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        let event = client.ready(scratch);
        self.handle(index, event, poll);
    }

    fn handle(&mut self, index: usize, event: Event, poll: &Poll) {
        match event {
            Event::Waiting => {}
            Event::Answered { due, status } => {
                let now = Instant::now();
                self.count(now, due, status);
                self.continue_with(index, now, poll);
            }
            Event::Closed(under_way) => {
                if self.reconnect(index, poll)
                    && let Some((request, due)) = under_way
                {
                    self.send(index, request, due, poll);
                }
            }
            Event::Failed(why) => {
                self.fail(why);
                if self.reconnect(index, poll) {
                    self.continue_with(index, Instant::now(), poll);
                }
            }
        }
    }

    fn count(&mut self, now: Instant, due: Instant, status: u16) {
        if !(200..300).contains(&status) {
            self.fail(format!("status {status}"));
        } else if self.phase == Phase::Measured || self.phase == Phase::Ramp && self.plan.ramp.is_zero() {
            // Without a ramp, an answer may arrive before the loop begins to measure.
            self.outcome.completed += 1;
            let nanos = now.saturating_duration_since(due).as_nanos();
            self.outcome.latency.record(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
    }

    fn fail(&mut self, why: String) {
        self.outcome.failed += 1;
        self.outcome.first_failure.get_or_insert(why);
    }

    /// A connection is free: gives it the next request, or leaves it idle.
    fn continue_with(&mut self, index: usize, now: Instant, poll: &Poll) {
        let due = match self.plan.pace {
            Pace::Closed => Some(now),
            Pace::Open { .. } | Pace::Sleepy { .. } => self.waiting.pop_front(),
        };
        // A request is only taken from the list when one is due.
        let due = due.filter(|_| self.phase != Phase::Drain);
        match due.and_then(|due| Some((due, self.next_request()?))) {
            Some((due, request)) => self.send(index, request, due, poll),
            None => self.idle.push(index),
        }
    }

    fn send(&mut self, index: usize, request: usize, due: Instant, poll: &Poll) {
        let Some(client) = &mut self.clients[index] else { return };
        let event = client.send(request, self.plan.requests.get(request), due);
        if !matches!(event, Event::Waiting) {
            self.handle(index, event, poll);
        }
    }

    fn next_request(&mut self) -> Option<usize> {
        match self.plan.choice {
            Choice::Uniform => Some(self.random.random_range(0..self.plan.requests.len())),
            Choice::EachOnce if self.next_in_turn < self.plan.requests.len() => {
                self.next_in_turn += 1;
                Some(self.next_in_turn - 1)
            }
            Choice::EachOnce => None,
        }
    }

    fn ask_idle(&mut self, now: Instant, poll: &Poll) {
        if let Pace::Open { rate } | Pace::Sleepy { rate } = self.plan.pace {
            while self.next_due <= now {
                self.waiting.push_back(self.next_due);
                // Exponential gaps: strangers do not take turns.
                let gap = -(1.0 - self.random.random::<f64>()).ln() / rate;
                self.next_due += Duration::from_secs_f64(gap);
            }
            while let (Some(index), Some(_)) = (self.idle.last().copied(), self.waiting.front()) {
                self.idle.pop();
                self.continue_with(index, now, poll);
            }
        } else {
            for index in std::mem::take(&mut self.idle) {
                self.continue_with(index, now, poll);
            }
        }
    }

    /// Enters the next phase when it is time, and sends the requests that are due; true when the run is over.
    fn advance(&mut self, poll: &Poll) -> bool {
        let now = Instant::now();
        match self.phase {
            Phase::Ramp if now >= self.phase_ends => {
                self.phase = Phase::Measured;
                self.measured_from = now;
                self.phase_ends = now + self.plan.duration;
                self.cpu = CpuTime::of(&self.plan.watch);
                self.own_cpu = own_thread_cpu();
                self.helpers_cpu = CpuTime::of(&self.plan.helpers);
                self.machine_cpu = machine_busy();
            }
            Phase::Measured if now >= self.phase_ends || (self.asked_all() && self.all_answered()) => {
                self.outcome.elapsed = now - self.measured_from;
                self.outcome.cpu = CpuTime::of(&self.plan.watch) - self.cpu;
                self.outcome.own_cpu = own_thread_cpu().saturating_sub(self.own_cpu);
                let helpers = CpuTime::of(&self.plan.helpers) - self.helpers_cpu;
                let known = self.outcome.cpu.on_cpu + self.outcome.own_cpu + helpers.on_cpu;
                self.outcome.foreign_cpu =
                    machine_busy().saturating_sub(self.machine_cpu).saturating_sub(known);
                self.phase = Phase::Drain;
                self.phase_ends = now + DRAIN;
            }
            Phase::Drain => return self.all_answered() || now >= self.phase_ends,
            Phase::Ramp | Phase::Measured => {}
        }
        if self.phase != Phase::Drain && !matches!(self.plan.pace, Pace::Closed) {
            self.ask_idle(now, poll);
        }
        false
    }

    fn asked_all(&self) -> bool {
        matches!(self.plan.choice, Choice::EachOnce) && self.next_in_turn >= self.plan.requests.len()
    }

    fn all_answered(&self) -> bool {
        self.clients.iter().flatten().all(Client::is_idle)
    }

    /// Replaces a connection; false when the proxy takes no more of them.
    fn reconnect(&mut self, index: usize, poll: &Poll) -> bool {
        match Client::connect(self.plan.target, Token(CLIENTS + index), poll.registry()) {
            Ok(client) => {
                self.clients[index] = Some(client);
                true
            }
            Err(error) => {
                self.clients[index] = None;
                self.fail(format!("connecting again: {error}"));
                false
            }
        }
    }

    fn finish(mut self) {
        let unanswered = self.clients.iter().flatten().filter(|client| !client.is_idle()).count();
        if unanswered > 0 {
            self.outcome.failed += unanswered as u64;
            self.outcome
                .first_failure
                .get_or_insert(format!("no answer within {} s of the end", DRAIN.as_secs()));
        }
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(Ok(self.outcome));
        }
    }
}
