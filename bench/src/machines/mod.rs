//! State machines: conditions judged, labels moved, facts told, and a million labels that wait.
//!
//! One pacemaker and one fabric (and two pacemakers more where it says so), nothing pinned. A measurement looks at the
//! labels and at the topic of moves afterwards and fails when one is not where it has to be or its event is missing.

mod evaluating;
mod moving;
mod parked;
mod telling;
mod testbed;

use testbed::Machines;

use crate::session::{Output, Session};

/// Measures it.
///
/// # Errors
/// When a part does not start, or a label is not where it has to be.
pub(crate) async fn measure(session: &Session, output: &mut Output) -> anyhow::Result<()> {
    evaluating::measure(session, output).await?;
    let mut machines = Machines::start().await?;
    let mut table = testbed::table();
    moving::measure(session, &machines, &mut table).await?;
    telling::measure(session, &mut machines, &mut table).await?;
    machines.testbed.stack.stop().await;
    output.table(table)?;
    // On a fabric of its own: what the others have left there would be counted among its bytes.
    let machines = Machines::start().await?;
    parked::measure(session, &machines, output).await?;
    machines.testbed.stack.stop().await;
    Ok(())
}
