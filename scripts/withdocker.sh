#!/bin/sh
# Runs a command with a Docker engine: the one that answers, else one of this script's
# own, from Debian, as root, which ends with it.
set -eu
answers() { curl --silent --fail --max-time 5 --unix-socket "${1#unix://}" http://docker/_ping >/dev/null 2>&1; }
if answers "${DOCKER_HOST:-unix:///var/run/docker.sock}"; then
	exec "$@"
fi
packages=
command -v dockerd >/dev/null || packages="docker.io iptables"
[ -x /bin/busybox ] || packages="$packages busybox-static"
command -v curl >/dev/null || packages="$packages curl"
if [ -n "$packages" ]; then
	apt-get update -qq
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages >/dev/null
fi
dir="$(mktemp -d)"
dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" --host "unix://$dir/docker.sock" >"$dir/log" 2>&1 &
engine=$!
finish() {
	kill "$engine" 2>/dev/null || true
	wait "$engine" 2>/dev/null || true
	# Its network namespace for containers on this machine's network stays mounted.
	while read -r _ place _; do
		case "$place" in "$dir"/*) umount "$place" || true ;; esac
	done </proc/mounts
	rm -rf "$dir" || true
}
trap finish EXIT
trap 'exit 130' INT TERM
tries=0
until answers "unix://$dir/docker.sock"; do
	tries=$((tries + 1))
	if [ "$tries" -gt 120 ] || ! kill -0 "$engine" 2>/dev/null; then
		echo "the docker engine does not start:" >&2
		tail -20 "$dir/log" >&2
		exit 1
	fi
	sleep 0.5
done
status=0
DOCKER_HOST="unix://$dir/docker.sock" "$@" || status=$?
exit "$status"
