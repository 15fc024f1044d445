#!/bin/sh
# Makes the kernel that the tests boot under QEMU, in .cache/vm/<version>: Debian's stock kernel,
# unpacked and not installed, and RTRS and RNBD, which Debian does not build, compiled from Debian's
# source of the same version. Does nothing when that version is there. Needs apt, gcc and make, but
# neither root nor an installed kernel package.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
derive() {
	abi=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: linux-image-\([0-9].*\)$/\1/p' | head -n 1)
	version=$(apt-cache policy "linux-image-$abi" | sed -n 's/^ *Candidate: //p')
	[ -n "$abi" ] && [ -n "$version" ]
}
# Lists that are old or not there name no kernel, or one that has left the mirror. Whoever is
# not root lives with them.
refresh() { [ "$(id -u)" = 0 ] && apt-get update -q; }
derive || { refresh && derive; } || {
	[ -e .cache/vm/current/ready ] && exit 0 # as good as it was
	echo "prepare: apt knows no linux-image-amd64" >&2
	exit 1
}
series=$(echo "$abi" | cut -d. -f1,2)
out=.cache/vm/$version
if [ -e "$out/ready" ]; then
	ln -sfn "$version" .cache/vm/current
	exit 0
fi
echo "prepare: kernel $abi, version $version"
mkdir -p .cache/vm
tmp=$(mktemp -d "$PWD/.cache/vm/making-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# The headers' own dependencies: what is common, kbuild's programs, and the compiler by its name.
parts=$(apt-cache depends "linux-headers-$abi" | sed -n 's/^ *Depends: \(linux-[a-z0-9.-]*\)$/\1/p')
compiler=$(echo "$parts" | sed -n 's/^linux-compiler-\(gcc-[0-9]*\)-x86$/\1/p')
mkdir "$tmp/debs" "$tmp/root"
# Of a mirror that is being renewed the programs and the source may be of the next revision when the
# signed image is not: they go with it.
pick() {
	if apt-cache policy "$1" | grep -q "^[ *]*$version "; then echo "$1=$version"; else echo "$1"; fi
}
(
	cd "$tmp/debs"
	for p in "linux-image-$abi" "linux-headers-$abi" $parts "linux-source-$series"; do pick "$p"; done |
		xargs apt-get download -q
) || {
	# Once more with lists of today, which may name another version.
	[ -z "${PREPARE_AGAIN:-}" ] && refresh || exit 1
	rm -rf "$tmp"
	PREPARE_AGAIN=1 exec "$root/test/vm/prepare.sh"
}
for d in "$tmp"/debs/*.deb; do dpkg -x "$d" "$tmp/root"; done

# RTRS and RNBD: their directories alone, against the headers where they were unpacked.
tar -xJf "$tmp/root/usr/src/linux-source-$series.tar.xz" -C "$tmp" --strip-components=1 \
	"linux-source-$series/drivers/infiniband/ulp/rtrs" "linux-source-$series/drivers/block/rnbd" \
	"linux-source-$series/scripts/extract-vmlinux"
headers=$tmp/root/usr/src/linux-headers-$abi
grep -rlI '/usr/src/linux-headers-' "$headers" --include=Makefile --include='*.include' --include='.kernelvariables' |
	xargs -r sed -i "s#\([^.a-z]\|^\)/usr/src/linux-headers-#\1$tmp/root/usr/src/linux-headers-#g"
modules() { # directory, settings
	dir=$1
	shift
	make -s -C "$headers" M="$dir" CC="${compiler:-gcc}" "$@" modules
}
modules "$tmp/drivers/infiniband/ulp/rtrs" CONFIG_INFINIBAND_RTRS=m CONFIG_INFINIBAND_RTRS_CLIENT=m CONFIG_INFINIBAND_RTRS_SERVER=m
# In the kernel's tree these look for RTRS's headers beside them.
modules "$tmp/drivers/block/rnbd" CONFIG_BLK_DEV_RNBD=y CONFIG_BLK_DEV_RNBD_CLIENT=m CONFIG_BLK_DEV_RNBD_SERVER=m \
	KCFLAGS="-I$tmp/drivers/infiniband/ulp/rtrs" KBUILD_EXTRA_SYMBOLS="$tmp/drivers/infiniband/ulp/rtrs/Module.symvers"

# What a guest needs: the kernel as an ELF, which QEMU enters at once, and the modules.
mkdir -p "$tmp/out"
sh "$tmp/scripts/extract-vmlinux" "$tmp/root/boot/vmlinuz-$abi" >"$tmp/out/vmlinux"
mv "$tmp/root/lib" "$tmp/out/lib"
for d in drivers/gpu drivers/media drivers/staging drivers/usb drivers/net/wireless sound; do
	rm -rf "$tmp/out/lib/modules/$abi/kernel/$d"
done
mkdir -p "$tmp/out/lib/modules/$abi/updates"
find "$tmp/drivers" -name '*.ko' -exec cp {} "$tmp/out/lib/modules/$abi/updates/" \;
depmod -b "$tmp/out" "$abi"
echo "$abi" >"$tmp/out/ready"
rm -rf "$out"
mv "$tmp/out" "$out"
ln -sfn "$version" .cache/vm/current
