// One of everything that a page can be about, created through the API, and the addresses of all pages.

import { api, base, server, token, until } from "./harness.mjs";

const machine = (address) => `state_machines:
  furnished:
    states:
      - action: call
        webhook: http://${address}/label/<label>
        retry: {attempts: 1}
        next: end
      - gate: end
        exit_condition: metadata.go
        triggers: [{metadata: go}]
        next: call
`;

const longHost = "checkout.eu-west-1.staging.furnished.test";
const client = "furnished-client--0123456789abcdef";

// Returns the addresses of the pages and a function that removes what disturbs other tests.
export async function furnish() {
    const [app, failing] = [await server(() => 200), await server(() => 500, () => "out of order")];
    await api("PUT", "/instances/furnished-1?wait=30s", {
        address: app.address,
        hostnames: ["furnished.test", "furnished-2.test"],
        version_type_id: "7",
        node_id: "node-a",
    });
    // Names as long as those of real installations.
    await api("PUT", "/instances/checkout-api-7f9c6d5b8-x2x9k", {
        address: "127.3.0.1:8443",
        hostnames: [longHost],
        version_type_id: "checkout-2026.11.23-4f2a9c1",
        node_id: "ip-10-2-31-7.eu-west-1",
        lease_seconds: 3600,
    });
    await api("PUT", "/hosts/furnished.test", { methods: ["GET"], paths: [{ path: "/api", service: "furnished-2.test" }] });
    await api("PUT", "/queues/furnished", { pattern: ".*:furnished:.*", max_attempts: 1 });
    const messages = Array.from({ length: 4 }, (_, n) => ({ tenant: `tenant-${n % 2}`, type: "furnished", name: "one", payload: { n } }));
    await api("POST", "/messages", messages);
    const { messages: pulled } = await api("POST", "/queues/furnished/pull", { max: 2 });
    await api("POST", "/queues/furnished/nack", { receipts: pulled.map((one) => one.receipt) });
    await api("POST", "/api_tokens", { name: "furnished-client", token: client });
    await api("POST", "/subscription", { topics: ["furnished"], callback: failing.url, uuid: "u", timeout: 0 }, client);
    await api("POST", "/topics/furnished", { type: "create", url: "https://shop.example/1", object: "order:1", data: { order: 1 } });
    await api("PUT", "/backends/furnished", { prefix: "furnished:", callback: failing.url, uuid: "u", on_failure: "park", max_attempts: 1 });
    const object = "furnished:1";
    await api("POST", `/objects/${encodeURIComponent(object)}/events`, { data: { n: 1 }, events: [{ topic: "works", type: "create" }] });
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/yaml" };
    const planned = await fetch(`${base}/state-machines/furnished/plan`, { method: "POST", headers, body: machine(failing.address) });
    const { plan } = await planned.json();
    await api("POST", "/state-machines/furnished/apply", { plan, map: {} });
    await api("POST", "/state-machines/furnished/labels", { labels: [{ name: "customer-1", metadata: { plan: "gold" } }] });
    await api("POST", "/state-machines/furnished/tasks", { operation: "evaluate", filter: {} });
    await api("POST", "/tokens", { name: "furnished-token", scopes: ["read"], tenants: ["tenant-0"] });
    const { deliveries } = await until("a failed delivery", async () => {
        const log = await api("GET", "/subscriber/deliveries?subscriber=furnished-client");
        return log.deliveries.length ? log : null;
    });
    await until("a parked object", async () => (await api("GET", `/objects/${encodeURIComponent(object)}`)).parked_since);
    const { dead } = await api("GET", "/queues/furnished/dead");
    const letter = dead[0].message;
    const pages = {
        overview: "/",
        problems: "/dashboard/problems",
        hosts: "/dashboard/host",
        host: "/dashboard/host?name=furnished.test",
        "host-long": `/dashboard/host?name=${longHost}`,
        "host-explained": "/dashboard/host?name=furnished.test&url=/api/x#explain",
        policy: "/dashboard/policy?name=furnished.test",
        instances: "/dashboard/instances",
        instance: "/dashboard/instances?name=furnished-1",
        routers: "/dashboard/routers",
        certificates: "/dashboard/certificates",
        events: "/dashboard/events",
        event: `/dashboard/event?name=${deliveries[0].first}`,
        message: `/dashboard/event?name=${letter.id}&queue=furnished&tenant=${letter.tenant}`,
        topics: "/dashboard/topics",
        subscribers: "/dashboard/subscribers",
        subscriber: "/dashboard/subscribers?name=furnished-client",
        queues: "/dashboard/queues",
        queue: "/dashboard/queues?name=furnished",
        objects: "/dashboard/objects",
        object: `/dashboard/objects?name=${encodeURIComponent(object)}`,
        machines: "/dashboard/machines",
        machine: "/dashboard/machines?name=furnished",
        label: "/dashboard/label?name=furnished&label=customer-1",
        plan: "/dashboard/plan?name=furnished",
        tokens: "/dashboard/tokens",
        audit: "/dashboard/audit",
    };
    async function remove() {
        for (const instance of ["furnished-1", "checkout-api-7f9c6d5b8-x2x9k"]) await api("DELETE", `/instances/${instance}`);
        for (const host of ["furnished.test", "furnished-2.test", longHost]) await api("DELETE", `/hosts/${host}`);
        await api("DELETE", "/queues/furnished");
        await api("DELETE", "/tokens/furnished-token");
        [app, failing].forEach((one) => one.stop());
    }
    return { pages, remove };
}
