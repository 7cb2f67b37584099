//! No call of a script blocks Redis for long, however many routes there are. Usually the commands of a call are counted. The test
//! that `make soak` runs prints the longest time of each operation, for the table in `docs/performance.md`.

use signalbox_store::RoutesPrimaryRole;
use signalbox_testkit::work::Operations;

use super::*;

/// Puts so many instances with these host names into the table, each with a version type of its own.
async fn fill(rig: &Rig, instances: u16, hostnames: &[&str]) {
    for port in 0..instances {
        let spec = spec(10_000 + port, hostnames, &format!("{port}"));
        rig.apply(&format!("i{port}"), Projection::Wanted(&active(u64::from(port) + 1, spec))).await;
    }
}

/// Changes the table in each way.
async fn change(rig: &Rig, hostnames: &[&str], observed: Operations<'_, RoutesPrimaryRole>, size: &str) {
    let added = active(9_000, spec(9_000, hostnames, "x"));
    observed.run("add an instance", size, rig.apply("new", Projection::Wanted(&added))).await;
    let altered = active(9_001, spec(9_000, hostnames, "y"));
    observed.run("change an instance", size, rig.apply("new", Projection::Wanted(&altered))).await;
    observed.run("remove an instance", size, rig.apply("new", Projection::Removed(9_002))).await;
    let (mark, name) = (rig.mark().await, host(hostnames[0]));
    observed.run("remove a host name", size, rig.store.remove_host(&name, 9_003, Some(&mark))).await.unwrap();
    observed.run("sweep", size, rig.store.sweep(1, 3_000, 100)).await.unwrap();
}

#[tokio::test]
async fn a_change_costs_as_much_as_the_instances_of_its_host_names() {
    let rig = Rig::new().await;
    let hostnames: Vec<String> = (0..20).map(|n| format!("h{n}.example")).collect();
    let hostnames: Vec<&str> = hostnames.iter().map(String::as_str).collect();
    fill(&rig, 100, &hostnames[..10]).await;
    fill(&rig, 50, &hostnames[10..]).await;
    let most = 10 * 150 + 1_000;
    change(&rig, &hostnames[..10], Operations::counted(rig.store.routes(), most), "100 instances").await;
}

#[tokio::test]
#[ignore = "prints times; make soak"]
async fn soak_of_large_hosts() {
    let rig = Rig::new().await;
    fill(&rig, 999, &["one.example"]).await;
    let observed = Operations::timed(rig.store.routes());
    change(&rig, &["one.example"], observed, "a host with 1,000 instances").await;
    let rig = Rig::new().await;
    let hostnames: Vec<String> = (0..100).map(|n| format!("h{n}.example")).collect();
    let hostnames: Vec<&str> = hostnames.iter().map(String::as_str).collect();
    fill(&rig, 9, &hostnames).await;
    let observed = Operations::timed(rig.store.routes());
    change(&rig, &hostnames, observed, "100 hosts with 10 instances each").await;
}
