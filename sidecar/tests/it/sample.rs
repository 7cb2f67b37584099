//! Log lines as nginx writes them.

/// A line for `key` at the unix millisecond `at_ms`, without its newline.
pub(crate) fn line_at(key: impl std::fmt::Display, at_ms: u64) -> String {
    let (seconds, ms) = (at_ms / 1000, at_ms % 1000);
    format!(
        r#"{{"key":"{key}","bytes":512,"code":200,"timemsec":{seconds}.{ms:03},"nginx_response_time":0.005,"upstream_response_time":"0.004","upstream_status":"200","upstream_addr":"127.0.0.1:9001","time":"2026-11-21T13:22:11+00:00","method":"GET","host":"hello.localhost","uri":"/path","request_id":"4d1f5a2b9c6e7f8091a2b3c4d5e6f701"}}"#
    )
}

/// A line for `key` at some fixed time.
pub(crate) fn line(key: impl std::fmt::Display) -> String {
    // In the year 2100: Redis deletes a history that has expired, and these lines must not go out of date.
    line_at(key, 4_102_446_131_123)
}
