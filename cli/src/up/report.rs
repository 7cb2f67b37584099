//! What the operator reads when everything runs.

use std::path::Path;

use signalbox_stack::Stack;

use super::demo::Demo;
use crate::terminal;

/// Every address, where the token is, and calls to try.
pub(crate) fn ready(stack: &Stack, data_dir: &Path, demo: Option<&Demo>) {
    let (edge, admin) = (stack.edge_url(), stack.admin_url());
    let token = data_dir.join("token").display().to_string();
    terminal::line("");
    terminal::line("Signalbox is ready.");
    terminal::line("");
    let row = |name: &str, what: &str| terminal::line(&format!("  {name:<16} {what}"));
    row("applications", &format!("{edge}/   by Host"));
    row("", &format!("{}/   the same over HTTPS, HTTP/2 and HTTP/1.1", stack.edge_tls_url()));
    row("operators", &format!("{admin}/   page, API, /stats, /metrics; log in with the token"));
    for part in stack.parts() {
        row(part.part().as_str(), part.address());
    }
    row("token", &format!("{}   also in {token}", stack.token()));
    row("logs", &data_dir.join("log").display().to_string());
    terminal::line("");
    if let Some(demo) = demo {
        terminal::line("Try:");
        for host in &demo.hosts {
            terminal::line(&format!("  curl -H 'Host: {host}' {edge}/"));
        }
        if let Some(host) = demo.hosts.first() {
            let port = stack.ports().edge_tls;
            terminal::line(&format!("  curl -k https://{host}:{port}/   # with a certificate of its own"));
        }
        let auth = format!("-H \"Authorization: Bearer $(cat {token})\"");
        terminal::line(&format!(
            "  curl -X PUT {auth} -H 'Content-Type: application/json' \\\n    \
             -d '{{\"address\":\"{}\",\"hostnames\":[\"new.localhost\"],\"version_type_id\":\"7\"}}' {admin}/instances/i-7",
            demo.spare
        ));
        terminal::line(&format!(
            "  curl http://{}/events   # the webhooks it received: one is about the instance",
            demo.spare
        ));
        terminal::line(&format!("  curl -H 'Host: new.localhost' {edge}/"));
        terminal::line(&format!("  curl {auth} {admin}/stats/version_type/7"));
        terminal::line(&format!(
            "  curl {auth} -H 'Content-Type: application/json' \\\n    \
             -d '{{\"type\":\"update\",\"url\":\"https://shop.localhost/orders/7\"}}' {admin}/topics/demo"
        ));
        let log = data_dir.join("log").join("demo-spare.log");
        terminal::line(&format!("  tail {}   # the webhook that received it", log.display()));
        terminal::line(&format!(
            "  {} canary good --data-dir {}   # a new version, step by step; or bad",
            demo.program,
            data_dir.display()
        ));
        terminal::line("");
    }
    terminal::line("Ctrl-C ends everything.");
}
