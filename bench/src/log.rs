//! A log as the edge writes it, of any length.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
};

use jiff::Timestamp;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};

/// Lines that one second has: about what one worker serves.
const LINES_A_SECOND: u64 = 50_000;
/// 2026-11-01 00:00 UTC, so that every run folds into the same hours.
const BEGIN_MS: u64 = 1_793_491_200_000;

/// Writes `lines` lines to `path`, the same ones each time, and returns their bytes. The codes are those of a living
/// site, a few version types have most of the traffic, and one request in fifty was retried on a second instance.
pub(crate) fn write(path: &Path, lines: u64, version_types: u32) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = SmallRng::seed_from_u64(17);
    let (mut second, mut time) = (u64::MAX, String::new());
    for line in 0..lines {
        let at_ms = BEGIN_MS + line * 1000 / LINES_A_SECOND;
        if at_ms / 1000 != second {
            second = at_ms / 1000;
            let timestamp = Timestamp::from_second(i64::try_from(second).unwrap_or(0)).unwrap_or_default();
            time = timestamp.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string();
        }
        write_line(&mut out, &mut random, version_types, at_ms, &time)?;
    }
    out.flush()?;
    out.get_ref().metadata().map(|metadata| metadata.len())
}

fn write_line(
    out: &mut impl io::Write,
    random: &mut SmallRng,
    version_types: u32,
    at_ms: u64,
    time: &str,
) -> io::Result<()> {
    // The square of an even draw: a quarter of the version types has half of the requests.
    let draw = random.random::<f64>();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let key = (draw * draw * f64::from(version_types)) as u32 + 1;
    let (code, method) = match random.random_range(0..1000) {
        0..850 => (200, "GET"),
        850..900 => (201, "POST"),
        900..940 => (304, "GET"),
        940..960 => (302, "GET"),
        960..990 => (404, "GET"),
        990..997 => (500, "POST"),
        _ => (502, "GET"),
    };
    let bytes: u32 = random.random_range(180..40_000);
    let took_ms: u32 = random.random_range(1..400);
    let port = 9000 + key % 64;
    let (times, codes, addresses) = if random.random_range(0..50) == 0 {
        let other = 9000 + (key + 1) % 64;
        (
            format!("0.000, {}", seconds(took_ms)),
            format!("502, {code}"),
            format!("127.0.0.1:{other}, 127.0.0.1:{port}"),
        )
    } else {
        (seconds(took_ms), code.to_string(), format!("127.0.0.1:{port}"))
    };
    let id: u128 = random.random();
    writeln!(
        out,
        "{{\"key\":\"{key}\",\"bytes\":{bytes},\"code\":{code},\"timemsec\":{}.{:03},\
         \"nginx_response_time\":{},\"upstream_response_time\":\"{times}\",\"upstream_status\":\"{codes}\",\
         \"upstream_addr\":\"{addresses}\",\"time\":\"{time}\",\"method\":\"{method}\",\
         \"host\":\"shop-{key:07}.customers.example\",\"uri\":\"/orders/{}\",\"request_id\":\"{id:032x}\"}}",
        at_ms / 1000,
        at_ms % 1000,
        seconds(took_ms + 1),
        random.random_range(1..100_000)
    )
}

fn seconds(milliseconds: u32) -> String {
    format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_what_the_edge_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let bytes = write(&path, 2_000, 1_000).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.len() as u64, bytes);
        assert_eq!(text.lines().count(), 2_000);
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(value["key"].as_str().unwrap().parse::<u32>().unwrap() <= 1_000);
            assert!(value["code"].as_u64().unwrap() >= 200);
        }
        assert!(text.contains("\"502, 200\""), "some were retried");
        let again = folder.path().join("again.log");
        write(&again, 2_000, 1_000).unwrap();
        assert_eq!(std::fs::read_to_string(again).unwrap(), text, "the same log each time");
    }

    #[test]
    fn the_sidecar_accepts_every_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let bytes = write(&path, 500, 1_000).unwrap();
        let summary = signalbox_sidecar::fold::file(&path, |_| {}).unwrap();
        assert_eq!((summary.lines, summary.bad_lines, summary.bytes), (500, 0, bytes));
    }
}
