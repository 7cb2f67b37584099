//! How many lines a second one core folds: `cargo run --release -p signalbox-sidecar --example fold [LINES] [KEYS]`.
//!
//! Writes a log of that many lines (default 5,000,000) over that many version types (default 1, then 100), two
//! thousand lines to a second of the log, and folds it three times; the best counts, the first still fills the cache.

use std::{
    io::{BufWriter, Write},
    time::Instant,
};

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for the terminal")]
fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let lines: u64 = args.next().map_or(Ok(5_000_000), |lines| lines.parse())?;
    let keys: Vec<u64> = args.next().map_or(Ok(vec![1, 100]), |keys| keys.parse().map(|keys| vec![keys]))?;
    for keys in keys {
        let log = tempfile::NamedTempFile::new()?;
        write(log.as_file(), lines, keys)?;
        let mut best = f64::MAX;
        let mut summary = None;
        for _ in 0..3 {
            let start = Instant::now();
            let folded = signalbox_sidecar::fold::file(log.path(), |fold| {
                std::hint::black_box(fold.increments());
            })?;
            best = best.min(start.elapsed().as_secs_f64());
            summary = Some(folded);
        }
        println!("{keys} keys: {:.0} lines/s; {summary:?}", lines as f64 / best);
    }
    Ok(())
}

fn write(file: &std::fs::File, lines: u64, keys: u64) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    for number in 0..lines {
        // A cheap generator: keys and times vary as they would, the same in every run.
        let random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        let (key, ms, bytes) = (random % keys, random % 90, 300 + random % 5_000);
        let code = if random % 50 == 0 { 404 } else { 200 };
        let (second, milli) = (1_795_267_331 + number / 2_000, number % 1_000);
        writeln!(
            out,
            r#"{{"key":"{key}","bytes":{bytes},"code":{code},"timemsec":{second}.{milli:03},"nginx_response_time":0.{ms:03},"upstream_response_time":"0.{ms:03}","upstream_status":"{code}","upstream_addr":"127.0.0.1:9001","time":"2026-11-21T13:22:11+00:00","method":"GET","host":"shop-{key}.example","uri":"/articles/{random}","request_id":"{random:032x}"}}"#
        )?;
    }
    out.flush()
}
