#!/bin/sh
# Installs the Debian packages the tests use: C compilers for the race detector, the C
# library and Python's extension, a kernel that runs as a process, tools for network
# namespaces, NBD clients and servers, ext4, strace for what threads ask of the kernel,
# Prometheus and promtool for dashboards and rules. Does nothing where all are there.
set -eu
need="strace gcc g++ libc6-dev make pkg-config git user-mode-linux iproute2 ethtool python3-venv python3-dev libnbd-bin python3-libnbd qemu-utils fio e2fsprogs nbdkit nbd-server prometheus"
missing=""
for p in $need; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "setup: not root or not Debian; missing:$missing (the tests that need them will be skipped)"
	exit 0
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# No service is to start because a test tool was installed.
policy=/usr/sbin/policy-rc.d
made=""
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
	made=yes
fi
status=0
{ apt-get update -q && apt-get install -q -y --no-install-recommends $missing; } >/tmp/rdsd-setup.log 2>&1 || status=$?
[ -z "$made" ] || rm -f $policy
if [ $status != 0 ]; then
	tail -n 20 /tmp/rdsd-setup.log
	echo "setup: apt-get failed ($status)"
	exit $status
fi
