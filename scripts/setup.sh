#!/bin/sh
# Installs the Debian packages the tests use: C compilers for the race detector, the C
# library and Python's extension, a kernel that runs as a process, tools for network
# namespaces, NBD clients and servers, ext4, strace for what threads ask of the kernel,
# Prometheus and promtool for dashboards and rules, Chromium, with what drives it from
# npm, for the page, and QEMU, RDMA's tools and a kernel (test/vm/prepare.sh) for RoCE. Does
# nothing where all are there.
set -eu
cd "$(dirname "$0")/.."
# What drives the browser: the versions of the lock file, once.
browser() {
	command -v npm >/dev/null || { echo "setup: no npm (the tests of the page in a browser will be skipped)"; return 0; }
	cmp -s internal/pagetest/package-lock.json internal/pagetest/node_modules/.lock && return 0
	echo "setup: npm ci in internal/pagetest"
	(cd internal/pagetest && npm ci --silent --no-audit --no-fund && cp package-lock.json node_modules/.lock) ||
		echo "setup: npm ci failed (the tests of the page in a browser will be skipped)"
}
# The kernel of the virtual machine, which is unpacked and compiled but not installed.
machine() {
	command -v apt-cache >/dev/null && [ "$(uname -m)" = x86_64 ] || return 0
	test/vm/prepare.sh >/tmp/rdsd-setup-vm.log 2>&1 || {
		tail -n 20 /tmp/rdsd-setup-vm.log
		echo "setup: no kernel with RoCE (the tests in test/vm will be skipped)"
	}
}
need="strace gcc g++ libc6-dev make pkg-config git user-mode-linux iproute2 ethtool python3-venv python3-dev libnbd-bin python3-libnbd qemu-utils fio e2fsprogs nbdkit nbd-server nbd-client prometheus chromium qemu-system-x86 ibverbs-utils ibverbs-providers rdmacm-utils tcpdump kmod xz-utils"
missing=""
for p in $need; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && { browser; machine; exit 0; }
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "setup: not root or not Debian; missing:$missing (the tests that need them will be skipped)"
	browser
	machine
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
browser
machine
