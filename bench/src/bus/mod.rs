//! The event bus, from publishers by HTTP to subscribers by HTTP: how many events a second it accepts while every
//! delivery keeps up, how late deliveries are, what it costs when nothing happens, and what brokers need for as much.
//!
//! Publishers and subscribers are one thread each, on the same cores as the pacemaker and its Redis: nothing is
//! pinned, because on a machine this small any division would determine the result. So the figures are of the whole
//! machine, with each part's CPU usage next to them.

pub(crate) mod brokers;
mod idle;
mod isolation;
mod load;
mod node;
pub(crate) mod receivers;
mod shards;
mod streams;
pub(crate) mod testbed;

use crate::{
    bus::testbed::{Audience, Testbed},
    session::{Output, Session},
};

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let testbed = Testbed::start(&Audience::ALL, 0).await?;
    idle::measure(session, &testbed, output).await?;
    load::measure(session, &testbed, output).await?;
    brokers::measure(session, &testbed, output).await?;
    // Last: it leaves subscribers that hang, and deliveries that are repeated.
    isolation::measure(session, &testbed, output).await?;
    testbed.stack.stop().await;
    shards::measure(session, output).await
}
