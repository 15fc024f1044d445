#!/bin/sh
# Everything the C library can prove about itself: compilers and warnings, unit
# and socket tests plain and under gcc's sanitizers, golden vectors, scenarios
# and examples against real daemons ($RDSD_BIN or bin/rdsd of the repository),
# what make install installs. One line for each: "ok NAME", "FAIL NAME: why",
# "skip NAME: why". Arguments choose parts: plain asan tsan real install.
set -u
cd "$(dirname "$0")"
top=../..
rdsd=${RDSD_BIN:-$top/bin/rdsd}
RDSD_VECTORS=$(cd $top/shm/testdata && pwd)
export RDSD_VECTORS
status=0
parts=${*:-plain asan tsan real install}
work=$(mktemp -d "${TMPDIR:-/tmp}/rdsd-c-test.XXXXXX")
trap 'rm -rf "$work"' EXIT
jobs=$(nproc)

failed() {
	echo "FAIL $*"
	status=1
}

# run LABEL command...: shows its "ok" lines with the label; a failure is told once.
run() {
	label=$1
	shift
	if "$@" >"$work/out" 2>"$work/err"; then
		sed -n "s/^ok /ok $label /p; /^      /p" "$work/out"
	else
		sed -n "s/^ok /ok $label /p; s/^FAIL /FAIL $label /p" "$work/out"
		cat "$work/err" >&2
		grep -q '^FAIL' "$work/out" || failed "$label $(sed -n 's/^# //p' "$work/out" | tail -n 1): stopped in it"
		status=1
	fi
}

# build LABEL dir flags targets...
build() {
	label=$1
	if make -s -j"$jobs" B="$2" CFLAGS="$3" SAN="$4" $5 >"$work/out" 2>&1; then
		echo "ok $label build"
	else
		cat "$work/out" >&2
		failed "$label build"
		return 1
	fi
}

plain() {
	build plain build "-O2 -g" "" "all build/test_unit build/test_pair build/test_socket build/test_vectors build/test_chaos" || return
	for t in unit pair vectors socket chaos; do run plain build/test_$t; done
	header
}

# The header by itself, in C11 and as C++; the library with clang where it is.
header() {
	echo '#include <rdsd.h>' >"$work/h.c"
	echo 'int main(void) { rdsd_bind_options o = RDSD_BIND_OPTIONS_INIT; return (int)o.flags; }' >>"$work/h.c"
	for v in "${CC:-cc} -std=c11" "${CC:-cc} -std=c17" "${CXX:-c++} -x c++ -std=c++11" "${CXX:-c++} -x c++ -std=c++20"; do
		if ! command -v ${v%% *} >/dev/null; then
			echo "skip header with $v: the compiler is not there"
		elif $v -Wall -Wextra -Werror -pedantic -Iinclude -c "$work/h.c" -o "$work/h.o" 2>"$work/err"; then
			echo "ok header with $v"
		else
			cat "$work/err" >&2
			failed "header with $v"
		fi
	done
	exported=$(nm -D --defined-only build/librdsd.so.1 | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort)
	declared=$(sed -n 's/^RDSD_API .*\b\(rdsd_[a-z_]*\)(.*/\1/p' include/rdsd.h | sort)
	if [ "$exported" = "$declared" ]; then echo "ok exported symbols are those of the header"; else failed "exported symbols: $exported"; fi
	ends=$(nm -A -u build/librdsd.a | awk '$NF ~ /^(__)?(read|write|recv|recvfrom|send|sendto|recvmsg|sendmsg|poll|ppoll|select|epoll_wait|connect|accept4?|open(64)?|close|nanosleep|pthread_join)(_chk)?$/ && $1 !~ /:sys\.o:/')
	if [ -z "$ends" ]; then echo "ok no call ends a cancelled thread but by sys.c"; else failed "src/sys.c has forms of these that end no thread: $ends"; fi
	for f in $declared; do
		grep -q "^\.Fn $f\b" man/rdsd.3 || failed "manual page: $f is missing"
	done
	if command -v clang >/dev/null; then
		CC=clang build clang "$work/clang" "-O2" "" "lib B=$work/clang CC=clang"
	fi
}

asan() {
	build asan build-asan "-O1 -g" "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" \
		"build-asan/test_unit build-asan/test_pair build-asan/test_socket build-asan/test_vectors build-asan/test_chaos" || return
	for t in unit pair vectors socket chaos; do run asan build-asan/test_$t; done
}

tsan() {
	build tsan build-tsan "-O1 -g" "-fsanitize=thread -Wno-tsan" "build-tsan/test_socket build-tsan/test_chaos" || return
	for t in socket chaos; do
		TSAN_OPTIONS="halt_on_error=1 die_after_fork=0" RDSD_TEST_QUICK=1 run tsan build-tsan/test_$t
	done
}

real() {
	if [ ! -x "$rdsd" ]; then
		echo "skip real daemons: no rdsd binary: build bin/rdsd or set RDSD_BIN"
		return
	fi
	build real build-asan "-O1 -g" "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" \
		"build-asan/runner examples bench" || return
	SAN="-fsanitize=address,undefined" run real python3 tests/real.py build-asan "$rdsd"
	build plain build "-O2 -g" "" "lib bench build/runner" && run plain python3 tests/real.py build "$rdsd" bench
}

install() {
	make -s lib >"$work/out" 2>&1 && make -s install PREFIX=/usr DESTDIR="$work/root" >>"$work/out" 2>&1 || {
		cat "$work/out" >&2
		failed "install"
		return
	}
	lib=$work/root/usr/lib
	cat >"$work/p.c" <<-'END'
		#include <rdsd.h>
		#include <stdio.h>
		int main(void) { return printf("%s\n", rdsd_version()) < 0; }
	END
	flags="-I$work/root/usr/include -L$lib -lrdsd"
	if command -v pkg-config >/dev/null; then
		flags=$(PKG_CONFIG_SYSROOT_DIR=$work/root PKG_CONFIG_PATH=$lib/pkgconfig PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 \
			PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 pkg-config --cflags --libs rdsd)
	fi
	if ${CC:-cc} "$work/p.c" $flags -o "$work/p" && [ "$(LD_LIBRARY_PATH=$lib "$work/p")" = 1.0 ] &&
		readelf -d "$work/p" | grep -q librdsd.so.1 && [ -f "$work/root/usr/share/man/man3/rdsd_send.3" ]; then
		echo "ok install: a program finds header, library, rdsd.pc and the manual"
	else
		failed "install: a program does not find the library"
	fi
}

for p in $parts; do $p; done
exit $status
