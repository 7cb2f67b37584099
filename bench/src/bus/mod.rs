//! The event bus, from publishers by HTTP to subscribers by HTTP: how many events a second it accepts while every
//! delivery keeps up, how late deliveries are, what it costs when nothing happens, and what brokers need for as much.
//!
//! Publishers and subscribers are one thread each, beside the pacemaker and its Redis on the same cores: nothing is
//! pinned, because on a machine this small any division would be a decision about the result. So the figures are of
//! the whole machine, and who used which part of it stands beside them.

pub(crate) mod brokers;
pub(crate) mod house;
mod idle;
mod load;
mod node;
pub(crate) mod receivers;
mod streams;

use crate::{
    bus::house::{Audience, House},
    session::{Output, Session},
};

/// Measures it.
///
/// # Errors
/// When a part does not start, or an event is not delivered.
pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    let house = House::start(&Audience::ALL, 0).await?;
    idle::measure(session, &house, output).await?;
    load::measure(session, &house, output).await?;
    brokers::measure(session, &house, output).await?;
    house.stack.stop().await;
    Ok(())
}
