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
            let mut cells: Vec<String> = line.trim_matches('|').split('|').map(cell).collect();
            cells[0] = cells[0].replace('<', "{").replace('>', "}");
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
fn a_builder_fills_the_pattern_of_its_row() {
    use keys::{machines, queues, routes, stats};
    let (one, second) = (signalbox_store::Tag::new(0, 1), signalbox_store::Tag::new(1, 2));
    assert_eq!(routes::serial().as_str(), "serial");
    assert_eq!(routes::policy("*.a.example").as_str(), "policy:*.a.example");
    assert_eq!(stats::history("17", 3600, "bytes").as_str(), "history:17:3600:bytes");
    assert_eq!(queues::shared(&second).due().as_str(), "{s1}queue:|due");
    assert_eq!(queues::queue(&second, "q").tenant("5").as_str(), "{s1}queue:q|facet:5");
    assert_eq!(machines::machines(&one).label("m", "a:b").as_str(), "object:machine:m:a:b:data");
    let by_value = machines::machines(&one).by_value("m", 255);
    assert!(machines::CATALOG.iter().any(|entry| {
        entry.pattern == "machine:{machine}:by:{digest}" && entry.describes(by_value.as_str())
    }));
}
