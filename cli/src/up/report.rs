//! The message that `up` prints when everything runs.

use std::path::Path;

use signalbox_stack::Stack;

use super::demo::Demo;
use crate::terminal::{self, out};

/// Prints every address, the path of the token, and example calls. The token itself is printed only to a terminal.
pub(crate) fn ready(stack: &Stack, data_dir: &Path, demo: Option<&Demo>) {
    let (edge, admin) = (stack.edge_url(), stack.admin_url());
    let token = data_dir.join("token").display().to_string();
    terminal::line("");
    terminal::line("Signalbox is ready.");
    terminal::line("");
    let row = |name: &str, what: &str| out!("  {name:<16} {what}");
    row("applications", &format!("{edge}/   routed by host name"));
    row("", &format!("{}/   HTTPS, with HTTP/2 and HTTP/1.1", stack.edge_tls_url()));
    row("operators", &format!("{admin}/   dashboard, API, /stats, /metrics; log in with the token"));
    for part in stack.parts() {
        row(part.part().as_str(), part.address());
    }
    // The output of a service is stored in the journal, which more users can read than the file.
    if terminal::is_watched() {
        row("token", &format!("{}   also stored in {token}", stack.token()));
    } else {
        row("token", &format!("stored in {token}"));
    }
    row("logs", &data_dir.join("log").display().to_string());
    terminal::line("");
    if let Some(demo) = demo {
        terminal::line("Try:");
        for host in &demo.hosts {
            out!("  curl -H 'Host: {host}' {edge}/");
        }
        if let Some(host) = demo.hosts.first() {
            let port = stack.ports().edge_tls;
            out!("  curl -k https://{host}:{port}/   # self-signed certificate, uploaded through the API");
        }
        let auth = format!("-H \"Authorization: Bearer $(cat {token})\"");
        out!(
            "  curl -X PUT {auth} -H 'Content-Type: application/json' \\\n    \
             -d '{{\"address\":\"{}\",\"hostnames\":[\"new.localhost\"],\"version_type_id\":\"7\"}}' {admin}/instances/i-7",
            demo.spare
        );
        out!("  curl http://{}/events   # webhooks it received, one of them about the instance", demo.spare);
        out!("  curl -H 'Host: new.localhost' {edge}/");
        out!("  curl {auth} {admin}/stats/version_type/7");
        out!(
            "  curl {auth} -H 'Content-Type: application/json' \\\n    \
             -d '{{\"type\":\"update\",\"url\":\"https://shop.localhost/orders/7\"}}' {admin}/topics/demo"
        );
        let log = data_dir.join("log").join("demo-spare.log");
        out!("  tail {}   # log of the webhook receiver", log.display());
        out!(
            "  {} canary good --data-dir {}   # deploy a new version step by step; or `bad`",
            demo.program,
            data_dir.display()
        );
        terminal::line("");
    }
    terminal::line("Press Ctrl-C to stop everything.");
}
