"""Uses the client that was generated from the OpenAPI document: every module can be imported, and calls of every subsystem work.

Arguments: the address of the API, the root token, the address of an application.
"""
import importlib
import pkgutil
import sys

import generated
from generated import AuthenticatedClient, models
from generated.api.bus import post_api_tokens, post_topics_name
from generated.api.health import get_metrics
from generated.api.hosts import get_hosts_hostname, put_hosts_hostname
from generated.api.instances import get_instances, put_instances, put_instances_id
from generated.api.machines import (
    get_state_machines_machine_labels_label,
    patch_state_machines_machine_labels_label,
    post_state_machines_machine_apply,
    post_state_machines_machine_labels_label,
    post_state_machines_machine_plan,
)
from generated.api.queues import (
    get_queues_name,
    post_messages,
    post_queues_name_ack,
    post_queues_name_pull,
    put_queues_name,
)
from generated.api.routes import get_routes_explain
from generated.types import File

MACHINE = b"""
state_machines:
  welcome:
    states:
      - gate: signed_up
        exit_condition: metadata.confirmed
        triggers: [{metadata: confirmed}]
        next: confirmed
      - gate: confirmed
"""


def main(url, token, application):
    modules = [one.name for one in pkgutil.walk_packages(generated.__path__, "generated.")]
    assert len(modules) > 200, modules
    for name in modules:
        importlib.import_module(name)
    client = AuthenticatedClient(url, token, raise_on_unexpected_status=True)

    instance = models.NewInstance(address=application, hostnames=["shop.example"], version_type_id="7")
    changed = put_instances_id.sync("web-1", client=client, body=instance, wait="10s")
    assert isinstance(changed, models.ChangedInstance), changed
    other = models.NewInstance(address=application.replace("127.0.0.1", "127.0.0.2"), hostnames=["b.example"], version_type_id="8")
    bulk = put_instances.sync(client=client, body=[models.BulkItem.from_dict({"id": "web-2", **other.to_dict()})])
    assert [result.status for result in bulk.results] == [201], bulk
    assert {one.id for one in get_instances.sync(client=client).instances} == {"web-1", "web-2"}
    assert isinstance(get_routes_explain.sync(client=client, host="shop.example"), models.Explanation)
    policy = put_hosts_hostname.sync_detailed("shop.example", client=client, body=models.Policy(hold_ms=1000))
    assert policy.status_code in (200, 204), policy
    assert get_hosts_hostname.sync("shop.example", client=client).hostname == "shop.example"

    queue = put_queues_name.sync("mail", client=client, body=models.NewQueue(pattern=".*:email:.*", lease_seconds=60.0))
    assert isinstance(queue, models.QueueView) and queue.lease_seconds == 60, queue
    message = models.PostMessagesBody.from_dict({"tenant": "acme", "type": "email", "name": "send", "payload": {"to": "ann"}})
    sent = post_messages.sync(client=client, body=message)
    pulled = post_queues_name_pull.sync("mail", client=client, body=models.PullBody(max_=10)).to_dict()["messages"]
    assert [(one["id"], one["payload"]) for one in pulled] == [(sent.id, {"to": "ann"})], pulled
    outcomes = post_queues_name_ack.sync("mail", client=client, body=models.Receipts([pulled[0]["receipt"]]))
    assert outcomes.results[0].result == "acked", outcomes

    publisher = post_api_tokens.sync(client=client, body=models.NewApiToken(name="shop"))
    shop = AuthenticatedClient(url, publisher.token, raise_on_unexpected_status=True)
    event = models.PostTopicsNameBody.from_dict({"type": "create", "url": "https://shop.example/orders/7"})
    accepted = [
        post_topics_name.sync_detailed("orders", client=shop, body=event, idempotency_key="order-7")
        .headers["x-signalbox-event-id"]
        for _ in range(2)
    ]
    assert accepted[0] == accepted[1], accepted

    plan = post_state_machines_machine_plan.sync("welcome", client=client, body=File(payload=MACHINE))
    assert isinstance(plan, models.MachinePlan), plan
    post_state_machines_machine_apply.sync("welcome", client=client, body=models.MachineApply(plan=plan.plan))
    empty, facts = (models.LabelFacts.from_dict({"metadata": metadata}) for metadata in ({}, {"confirmed": True}))
    post_state_machines_machine_labels_label.sync("welcome", "ann", client=client, body=empty)
    patch_state_machines_machine_labels_label.sync("welcome", "ann", client=client, body=facts)
    assert get_state_machines_machine_labels_label.sync("welcome", "ann", client=client).state == "confirmed"

    unknown = get_queues_name.sync("nosuch", client=client)
    assert isinstance(unknown, models.Problem) and unknown.code == "unknown_queue", unknown
    assert "signalbox_" in get_metrics.sync(client=client)


main(*sys.argv[1:])
