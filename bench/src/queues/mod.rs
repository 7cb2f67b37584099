//! Queues: how fast messages are pulled and acknowledged while ten tenants have something waiting and while a hundred
//! thousand have, and how long it takes from acceptance to a consumer that waits.

mod consumers;
mod pulling;
mod waiting;

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
pub(crate) use consumers::{Tally, Task, consume};
use serde_json::json;

use crate::{
    bus::testbed::{Testbed, data},
    load::{Pace, Plan, Requests},
    session::{Output, Session},
};

/// Consumers, and messages in a pull at most.
pub(crate) const CONSUMERS: usize = 16;
pub(crate) const MAX: usize = 10;
/// Messages in an array, and arrays under way at a time, when a queue is filled.
const ARRAY: u64 = 100;
const PUBLISHERS: usize = 16;
/// Messages that are prepared at a time.
const PREPARED: u64 = 20_000;
const MAX_FILLING: Duration = Duration::from_secs(60);

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let testbed = Testbed::start(&[], 0).await?;
    pulling::measure(session, &testbed, output).await?;
    waiting::measure(session, &testbed, output).await?;
    testbed.stack.stop().await;
    Ok(())
}

/// A queue of messages of one type, which has the queue's name.
#[derive(Debug)]
pub(crate) struct Queue {
    name: &'static str,
    /// Tenants that messages come from.
    tenants: u64,
    /// The number of the next message: they come from all tenants in turn.
    next: u64,
    /// Messages that ought to be waiting.
    waiting: u64,
}

impl Queue {
    /// Makes it.
    pub(crate) fn make(testbed: &Testbed, name: &'static str, tenants: u64) -> anyhow::Result<Self> {
        let definition = json!({"pattern": format!("[^:]*:{name}:.*")});
        testbed.call("PUT", &format!("/queues/{name}"), testbed.stack.token(), Some(&definition))?;
        Ok(Self { name, tenants, next: 0, waiting: 0 })
    }

    /// Requests that send the next `count` messages, `array` in each.
    pub(crate) fn requests(&mut self, testbed: &Testbed, count: u64, array: u64) -> Requests {
        let first = self.next;
        self.next += count;
        let requests = (first..first + count).step_by(usize::try_from(array).unwrap_or(1)).map(|from| {
            let to = (from + array).min(first + count);
            let messages: Vec<String> =
                (from..to).map(|number| message(self.name, number % self.tenants)).collect();
            let body = if array == 1 { messages.concat() } else { format!("[{}]", messages.join(",")) };
            testbed.published("/messages", &body)
        });
        Requests::of(requests)
    }

    /// Sends `count` messages in arrays, and checks that exactly these are waiting.
    async fn fill(&mut self, testbed: &Testbed, count: u64) -> anyhow::Result<()> {
        let mut left = count;
        while left > 0 {
            let some = left.min(PREPARED);
            let requests = self.requests(testbed, some, ARRAY);
            send(testbed, requests, PUBLISHERS, Pace::Closed).await.context("filling a queue")?;
            left -= some;
        }
        self.waiting += count;
        let queue = testbed.call("GET", &format!("/queues/{}", self.name), testbed.stack.token(), None)?;
        let messages = &queue["messages"];
        if messages["waiting"].as_u64() != Some(self.waiting) || messages["in_flight"] != 0 {
            bail!("{} messages ought to be waiting, and this is what there is: {messages}", self.waiting);
        }
        Ok(())
    }

    /// The task of its consumers for `wanted` messages.
    pub(crate) fn task(&self, testbed: &Testbed, wanted: u64, wait_seconds: u32) -> Task {
        Task {
            target: testbed.pacemaker(),
            token: testbed.stack.token().to_owned(),
            queue: self.name,
            consumers: CONSUMERS,
            max: MAX,
            wait_seconds,
            wanted,
        }
    }
}

/// Sends each request once; all of them have to be taken.
pub(crate) async fn send(
    testbed: &Testbed,
    requests: Requests,
    connections: usize,
    pace: Pace,
) -> anyhow::Result<()> {
    let plan = Plan::once(testbed.pacemaker(), Arc::new(requests), connections, MAX_FILLING);
    let outcome = testbed.ends.run(Plan { pace, ..plan }).await?;
    if outcome.failed > 0 {
        bail!("{} publish requests failed: {}", outcome.failed, outcome.first_failure.unwrap_or_default());
    }
    Ok(())
}

/// A message of one tenant, with as much data as an event of the bus.
fn message(kind: &str, tenant: u64) -> String {
    let payload = data(tenant);
    format!(r#"{{"tenant":"tenant-{tenant}","type":"{kind}","name":"measured","payload":{payload}}}"#)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_message_is_of_its_tenant_and_type() {
        let message: Value = serde_json::from_str(&message("few", 7)).unwrap();
        assert_eq!((&message["tenant"], &message["type"]), (&json!("tenant-7"), &json!("few")));
        assert_eq!(message["payload"]["number"], 7);
    }
}
