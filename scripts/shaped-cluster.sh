#!/usr/bin/env bash
# A cluster on one machine: network namespaces as hosts, a bridge as switch, every link held to a rate. MPI programs run
# across it as across machines, so `gradtool bench --comm mpi` measures what a slow network does.
#
# Usage: scripts/shaped-cluster.sh up [--hosts 4] [--rate 1gbit] [--delay 200us] [--loss 0.1%] [--queue 64kb] [--classes on]
#        scripts/shaped-cluster.sh run [-n RANKS] -- COMMAND...     one rank a host, or RANKS dealt out in turn
#        scripts/shaped-cluster.sh status
#        scripts/shaped-cluster.sh down
#        scripts/shaped-cluster.sh with [options of up] [-n RANKS] -- COMMAND...     up, run, down
#
# Needs root, iproute2 and Open MPI; --delay needs a kernel with netem, --loss and --classes nftables. Everything, the
# switch too, lives in namespaces called gtc-*: nothing else on the machine changes, and `down` removes all of it. The
# rate holds in both directions of every host's link (tc tbf). The hosts share the machine's processors and memory.
#
# --loss: the switch drops this share of the packets, by chance. --queue: bytes that wait at a port of the switch before
# it drops packets, instead of 50 ms of the rate. --classes on: of UDP packets that are not ECN-capable at most --queue
# wait, of all others three times as much, and these leave first (htb): a test double of a commodity switch with two
# drop thresholds. With any of them packets travel singly, as on a wire, and not in the batches that the kernel makes.
set -euo pipefail

prefix=gtc
subnet=10.213.77
state=/run/gradtool-cluster
me=$(readlink -f "$0")

fail() { echo "shaped-cluster.sh: $2" >&2; exit "$1"; }
need_root() {
  [ "$(id -u)" -eq 0 ] || fail 77 "network namespaces need root; run it with sudo"
  command -v ip >/dev/null && command -v tc >/dev/null || fail 77 "needs ip and tc (Debian: iproute2)"
}
hosts_up() { ip netns list 2>/dev/null | awk -v p="^$prefix-h" '$1 ~ p {print $1}' | sort -V; }

# burst: what may leave at once: half a millisecond, so that a message of some kilobytes already feels the rate. The
# kernel hands packets on in batches of half a burst: single packets of 1500 bytes from all hosts at 1 Gbit/s would cost
# more processor time than one core has, and overflow its queue of packets to receive.
shape() { # namespace device rate [queue [classes]]
  local bits limit=(latency 50ms)
  bits=$(rate_bits "$3")
  local burst=$((bits / 8 / 2000))
  [ "$burst" -ge 16384 ] || burst=16384
  ip -n "$1" link set "$2" gso_max_size $((burst / 2 < 65536 ? burst / 2 : 65536))
  [ -z "${single-}" ] || ip -n "$1" link set "$2" gso_max_segs 1
  if [ "${5-}" = on ]; then
    local tc="ip netns exec $1 tc"
    { $tc qdisc add dev "$2" root handle 1: htb default 10 &&
      $tc class add dev "$2" parent 1: classid 1:1 htb rate "$3" burst "$burst" cburst "$burst" &&
      $tc class add dev "$2" parent 1:1 classid 1:10 htb rate "$((bits * 9 / 10))" ceil "$3" prio 0 burst "$burst" cburst "$burst" &&
      $tc class add dev "$2" parent 1:1 classid 1:20 htb rate "$((bits / 10))" ceil "$3" prio 1 burst "$burst" cburst "$burst" &&
      $tc qdisc add dev "$2" parent 1:10 bfifo limit "$(($4 * 3))" && $tc qdisc add dev "$2" parent 1:20 bfifo limit "$4"; } 2>/dev/null ||
      fail 77 "tc has no htb with bfifo in this kernel, which --classes needs"
    return
  fi
  [ -z "${4-}" ] || limit=(limit "$4")
  ip netns exec "$1" tc qdisc add dev "$2" root handle 1: tbf rate "$3" burst "$burst" "${limit[@]}" 2>/dev/null ||
    fail 77 "tc cannot hold $2 to $3: tbf is not in this kernel, or '$3' is no rate (write 1gbit, 100mbit)"
}
# These rules are the switch's work on packets between its ports.
rules() { # loss classes
  command -v nft >/dev/null || fail 77 "--loss and --classes need nft (Debian: nftables)"
  local share
  share=$(awk -v text="${1:-0%}" 'BEGIN { if (text !~ /^[0-9.]+%$/ || text + 0 > 100) exit 1; printf "%d", text * 1000 }') ||
    fail 2 "--loss '$1' is not valid; write a percentage, such as 0.1%"
  {
    printf 'table bridge cluster {\nchain forward {\ntype filter hook forward priority 0;\n'
    [ "$2" != on ] || printf 'ip protocol udp ip ecn not-ect meta priority set 1:20\n'
    [ "$share" -eq 0 ] || printf 'ether type ip numgen random mod 100000 < %d drop\n' "$share"
    printf '}\n}\n'
  } | ip netns exec $prefix-switch nft -f - || fail 77 "nftables cannot filter the bridge's packets in this kernel"
}
rate_bits() {
  local number=${1%%[a-zA-Z]*} unit
  unit=$(printf '%s' "${1#"$number"}" | tr '[:upper:]' '[:lower:]')
  case "$unit" in
    gbit) unit=1000000000 ;; mbit) unit=1000000 ;; kbit) unit=1000 ;; bit) unit=1 ;;
    *) fail 2 "--rate '$1' is no rate; write a number with kbit, mbit or gbit, such as 1gbit" ;;
  esac
  awk -v n="$number" -v u="$unit" 'BEGIN { if (n + 0 <= 0) exit 1; printf "%d", n * u }' ||
    fail 2 "--rate '$1' is no rate; write a number with kbit, mbit or gbit, such as 1gbit"
}

down() {
  local name pids
  for name in $(hosts_up) $prefix-switch; do
    ip netns list 2>/dev/null | awk '{print $1}' | grep -qx "$name" || continue
    pids=$(ip netns pids "$name" 2>/dev/null || true)
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
    ip netns delete "$name" 2>/dev/null || true
  done
  rm -rf "$state"
}

up() {
  local hosts=4 rate=1gbit delay="" loss="" queue="" classes=off single=""
  while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || fail 2 "$1 needs a value"
    case "$1" in
      --hosts) hosts=$2 ;; --rate) rate=$2 ;; --delay) delay=$2 ;; --loss) loss=$2 ;;
      --queue) queue=$2 ;; --classes) classes=$2 ;;
      *) fail 2 "unknown option '$1'; valid are --hosts, --rate, --delay, --loss, --queue, --classes" ;;
    esac
    shift 2
  done
  [[ $hosts =~ ^[0-9]+$ ]] && [ "$hosts" -ge 1 ] && [ "$hosts" -le 200 ] || fail 2 "--hosts '$hosts' is not valid; 1 to 200"
  rate_bits "$rate" >/dev/null
  [ "$classes" = on ] || [ "$classes" = off ] || fail 2 "--classes '$classes' is not valid; on or off"
  if [ -n "$queue" ]; then
    queue=$(awk -v text="$queue" 'BEGIN { if (text !~ /^[0-9]+(kb|b)?$/) exit 1; n = text + 0; if (text ~ /kb$/) n *= 1000; if (n < 3000) exit 1; print n }') ||
      fail 2 "--queue is not valid; write bytes, 3000 or more, such as 64kb"
  fi
  [ "$classes" = off ] || [ -n "$queue" ] || fail 2 "--classes on needs --queue"
  [ -z "$loss$queue" ] || single=yes
  need_root
  [ -z "$(hosts_up)" ] || fail 1 "a cluster is up already; scripts/shaped-cluster.sh down"
  trap 'down' EXIT  # until everything stands; a kill leaves nothing behind either
  trap 'exit 130' INT TERM HUP

  rm -rf "$state"  # of a cluster whose namespaces somebody else deleted
  mkdir -p "$state"
  ip netns add $prefix-switch
  ip -n $prefix-switch link add switch type bridge
  ip -n $prefix-switch link set switch up
  local i name
  for ((i = 0; i < hosts; ++i)); do
    name=$prefix-h$i
    ip netns add "$name"
    ip -n $prefix-switch link add "port$i" type veth peer name eth0 netns "$name"
    ip -n $prefix-switch link set "port$i" master switch up
    ip -n "$name" addr add "$subnet.$((i + 1))/24" dev eth0
    ip -n "$name" link set lo up
    ip -n "$name" link set eth0 up
    shape "$name" eth0 "$rate"
    shape $prefix-switch "port$i" "$rate" "$queue" "$classes"
    if [ -n "$delay" ]; then
      ip netns exec "$name" tc qdisc add dev eth0 parent 1: handle 2: netem delay "$delay" limit 100000 2>/dev/null ||
        fail 77 "--delay needs netem, which this kernel does not have, or its value is not valid"
    fi
    printf '%s slots=1\n' "$subnet.$((i + 1))" >>"$state/hosts"
  done
  [ -z "$loss" ] && [ "$classes" = off ] || rules "$loss" "$classes"
  printf 'hosts %s, rate %s%s%s%s\n' "$hosts" "$rate" "${delay:+, delay $delay}" "${loss:+, loss $loss}" \
    "${queue:+, queue $queue bytes, classes $classes}" >"$state/what"

  # mpirun starts its daemons with this instead of ssh: AGENT ADDRESS COMMAND...
  cat >"$state/agent" <<AGENT
#!/bin/sh
host=\$1; shift
number=\$((\${host##*.} - 1))
exec ip netns exec $prefix-h\$number unshare --uts sh -c "hostname $prefix-h\$number; \$*"
AGENT
  chmod +x "$state/agent"
  trap - EXIT INT TERM HUP
  echo "up: $(cat "$state/what")" >&2
}

run() {
  local ranks=""
  while [ $# -gt 0 ] && [ "$1" != "--" ]; do
    case "$1" in
      -n) [ $# -ge 2 ] || fail 2 "-n needs a number"; ranks=$2; shift 2 ;;
      *) fail 2 "unknown option '$1'; write run [-n RANKS] -- COMMAND" ;;
    esac
  done
  [ $# -ge 2 ] || fail 2 "no command; write run [-n RANKS] -- COMMAND"
  shift
  need_root
  [ -n "$(hosts_up)" ] && [ -f "$state/hosts" ] || fail 1 "no cluster is up; scripts/shaped-cluster.sh up --hosts 4 --rate 1gbit"
  command -v mpirun >/dev/null || fail 77 "needs Open MPI's mpirun (Debian: openmpi-bin)"
  [ -n "$ranks" ] || ranks=$(wc -l <"$state/hosts")
  # TCP alone: the hosts share a kernel, and shared memory would bypass the network that is to be measured. They share its
  # cores too, which Open MPI cannot see: a rank that waits must yield, or the kernel gives it milliseconds to spin in.
  local child=""
  trap '[ -z "$child" ] || kill -TERM "$child" 2>/dev/null; wait "$child" 2>/dev/null; exit 130' INT TERM HUP
  ip netns exec $prefix-h0 unshare --uts sh -c 'hostname '$prefix'-h0; exec "$@"' sh \
    env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n "$ranks" --hostfile "$state/hosts" \
    --map-by node --oversubscribe --bind-to none \
    --mca plm_rsh_agent "$state/agent" --mca plm_rsh_no_tree_spawn 1 --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl tcp,self \
    --mca btl_tcp_if_include "$subnet.0/24" --mca oob_tcp_if_include "$subnet.0/24" "$@" &
  child=$!
  local rc=0
  wait "$child" || rc=$?
  trap - INT TERM HUP
  return "$rc"
}

with() {
  local options=() ranks=()
  while [ $# -gt 0 ] && [ "$1" != "--" ]; do
    [ $# -ge 2 ] || fail 2 "$1 needs a value"
    if [ "$1" = -n ]; then ranks=(-n "$2"); else options+=("$1" "$2"); fi
    shift 2
  done
  [ $# -ge 2 ] || fail 2 "no command; write with [options] -- COMMAND"
  # Killed while the cluster comes up, this process ends once it stands, and takes it down; one that was there before stays.
  local killed=""
  trap 'killed=yes' INT TERM HUP
  "$me" up "${options[@]}"
  trap down EXIT
  trap 'exit 130' INT TERM HUP
  [ -z "$killed" ] || exit 130
  local rc=0
  run "${ranks[@]}" "$@" || rc=$?
  exit "$rc"
}

status() {
  if [ -f "$state/what" ]; then
    echo "up: $(cat "$state/what")"
    local name
    for name in $(hosts_up); do ip netns exec "$name" tc -s qdisc show dev eth0 | sed "s/^/$name: /" | head -n 2; done
  else
    echo "down"
  fi
}

case "${1-}" in
  up | run | with) command=$1; shift; "$command" "$@" ;;
  down) need_root; down ;;
  status) status ;;
  *) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2 ;;
esac
