#!/bin/sh
# Creates the secrets of the containers in the volume `secrets`, and gives each file to the user of the container that reads it.
# The users are those of docker-compose.yml: 999 Redis, 10010 pacemaker, 10011 edge and sidecar of a router.
set -eu
umask 077
cd /secrets
signalbox secrets .
chmod 0711 . users
give() {
    owner=$1
    shift
    chown "$owner" "$@"
    chmod 0440 "$@"
}
give 10010:10010 token users/pacemaker.password
# The owner and the group: the pacemaker and the edge.
give 10010:10011 edge.key
give 10011:10011 token.sha256 daemons.key users/edge.password users/sidecar.password
give 999:999 users/*.acl users/replication.conf users/sentinel.password users/health.password
