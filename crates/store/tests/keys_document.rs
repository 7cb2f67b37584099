//! Compares `docs/keys.md` with the catalog in the code.

#![allow(clippy::expect_used)] // A failed setup is a failed test.

use std::collections::BTreeMap;

use signalbox_store::keys::{self, Entry};

/// The tables of the document: section title → the cells of its rows.
fn tables(document: &str) -> BTreeMap<&str, Vec<Vec<String>>> {
    let mut tables = BTreeMap::new();
    let mut section = "";
    for line in document.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.trim();
        }
        if line.starts_with("| `") {
            // A pipe within a cell is written `\|`.
            let line = line.replace("\\|", "\u{1}");
            let cell = |cell: &str| cell.trim().replace('`', "").replace('\u{1}', "|");
            let cells = line.trim_matches('|').split('|').map(cell).collect();
            tables.entry(section).or_insert_with(Vec::new).push(cells);
        }
    }
    tables
}

fn expect_same(section: &str, catalog: &[Entry], rows: &[Vec<String>]) {
    let documented: Vec<[&str; 5]> = rows
        .iter()
        .map(|row| {
            assert_eq!(
                row.len(),
                6,
                "{section}: a row needs key, type, members, lifetime, writer, readers: {row:?}"
            );
            assert!(!row[2].is_empty(), "{section}: the row {} does not describe its members", row[0]);
            [&*row[0], &*row[1], &*row[3], &*row[4], &*row[5]]
        })
        .collect();
    let coded: Vec<[&str; 5]> = catalog
        .iter()
        .map(|entry| [entry.pattern, entry.kind, entry.lifetime, entry.writer, entry.readers])
        .collect();
    for row in &coded {
        assert!(documented.contains(row), "{section}: docs/keys.md does not contain the row {row:?}");
    }
    for row in &documented {
        assert!(coded.contains(row), "{section}: docs/keys.md has a row that is not in the code: {row:?}");
    }
    assert_eq!(documented.len(), coded.len(), "{section}: a row is listed twice");
}

#[test]
fn the_document_lists_exactly_the_keys_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keys.md");
    let document = std::fs::read_to_string(path).expect("docs/keys.md");
    let tables = tables(&document);
    for (section, catalog) in [
        ("Routes", keys::routes::CATALOG),
        ("Statistics", keys::stats::CATALOG),
        ("Fabric", keys::fabric::CATALOG),
        ("Bus", keys::bus::CATALOG),
        ("Queues", keys::queues::CATALOG),
        ("Objects", keys::objects::CATALOG),
        ("Machines", keys::machines::CATALOG),
    ] {
        expect_same(section, catalog, tables.get(section).map_or(&[][..], Vec::as_slice));
    }
}

#[test]
fn every_builder_creates_a_key_of_exactly_one_row() {
    fn only(catalog: &[Entry], key: &str, pattern: &str) {
        let rows: Vec<_> =
            catalog.iter().filter(|entry| entry.describes(key)).map(|entry| entry.pattern).collect();
        assert!(rows.contains(&pattern), "{key} should be a {pattern}, the catalog has {rows:?}");
    }
    use keys::{fabric, objects, routes, stats};
    only(routes::CATALOG, routes::instances("a.example").as_str(), "instances:<hostname>");
    only(routes::CATALOG, routes::logkey("a.example").as_str(), "logkey:<hostname>");
    only(routes::CATALOG, routes::instance_ids("*").as_str(), "instance_ids:<hostname>");
    only(routes::CATALOG, routes::instance("i-1").as_str(), "instance:<id>");
    only(routes::CATALOG, routes::policy("*.a.example").as_str(), "policy:<hostname>");
    only(stats::CATALOG, stats::position("n").as_str(), "position:<node>");
    only(stats::CATALOG, stats::position_file("n").as_str(), "position:<node>:file");
    only(stats::CATALOG, stats::stat("17").as_str(), "stat:<id>");
    only(stats::CATALOG, stats::history("17", 3600, "bytes").as_str(), "history:<id>:<hour>:<metric>");
    only(stats::CATALOG, stats::rollup("17", 3600, "5xx").as_str(), "rollup:<id>:<hour>:<metric>");
    only(stats::CATALOG, stats::router("n").as_str(), "router:<node>");
    only(fabric::CATALOG, fabric::lease("sweep").as_str(), "lease:<name>");
    let tag = signalbox_store::Tag::new(0, 1);
    let (queue, shared) = (keys::queues::queue(&tag, "q"), keys::queues::shared(&tag));
    for (key, pattern) in [
        (queue.waiting("5"), "queue:<queue>:<environment>"),
        (queue.ring(), "queue:<queue>|ring"),
        (queue.facet("5"), "queue:<queue>|facet:<environment>"),
        (queue.facets(), "queue:<queue>|facets"),
        (queue.leases(), "queue:<queue>|leases"),
        (queue.inflight(), "queue:<queue>|inflight"),
        (queue.delayed(), "queue:<queue>|delayed"),
        (queue.dead(), "queue:<queue>|dead"),
        (queue.count(), "queue:<queue>|count"),
        (queue.settings(), "queue:<queue>|settings"),
        (shared.held(), "queue:|held"),
        (shared.due(), "queue:|due"),
    ] {
        only(keys::queues::CATALOG, key.as_str(), pattern);
    }
    let machines = keys::machines::machines(&tag);
    for (key, pattern) in [
        (machines.label("m", "a:b"), "object:machine:<machine>:<label>:data"),
        (machines.log("m", "a:b"), "object:machine:<machine>:<label>:log"),
        (machines.in_state("m", "s"), "machine:<machine>:in:<state>"),
        (machines.with_status("m", "errored"), "machine:<machine>:is:<status>"),
        (machines.since("m", "s"), "machine:<machine>:since:<state>"),
        (machines.flow("m", 7), "machine:<machine>:flow:<hour>"),
        (machines.gone("m"), "machine:<machine>:gone"),
        (machines.in_zone("m", "g", "Asia/Tokyo"), "machine:<machine>:zone:<gate>:<zone>"),
        (machines.current("m"), "machine:<machine>:current"),
        (machines.versions("m"), "machine:<machine>:versions"),
        (machines.plan("m", "p"), "machine:<machine>:plan:<plan>"),
        (machines.applying(), "machine:applying"),
        (machines.names(), "machine:names"),
        (machines.seen(), "machine:seen"),
        (machines.due(), "machine:due"),
        (machines.sweeps(), "machine:sweeps"),
        (machines.inputs(), "machine:inputs"),
    ] {
        only(keys::machines::CATALOG, key.as_str(), pattern);
    }
    let own = objects::objects(&tag);
    only(objects::CATALOG, own.ready("b").as_str(), "object:objects.with.events@<backend>");
    only(objects::CATALOG, own.dead("b").as_str(), "object:dead@<backend>");
    only(objects::CATALOG, own.leases().as_str(), "object:leases");
}
