//! State machines: evaluated conditions, moved labels, received facts, a million waiting labels, and
//! searches among them.
//!
//! One pacemaker and one fabric (two more pacemakers where noted), nothing pinned. After a measurement the labels and
//! the topic of transitions are checked; it fails if a label is in a wrong state or its event is missing.

mod evaluating;
mod moving;
mod parked;
mod searching;
mod testbed;
mod updating;

pub(crate) use parked::fill as fill_parked;
pub(crate) use testbed::{Machines, label};

use crate::session::{Output, Session};

pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    evaluating::measure(session, output).await?;
    let mut machines = Machines::start().await?;
    let mut table = testbed::table();
    moving::measure(session, &machines, &mut table).await?;
    updating::measure(session, &mut machines, &mut table).await?;
    machines.testbed.stack.stop().await;
    output.table(table)?;
    // On a separate fabric: data of the other measurements would be counted among its bytes.
    let machines = Machines::start().await?;
    parked::measure(session, &machines, output).await?;
    machines.testbed.stack.stop().await;
    let machines = Machines::start().await?;
    searching::measure(session, &machines, output).await?;
    machines.testbed.stack.stop().await;
    Ok(())
}
