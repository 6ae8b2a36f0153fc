#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, from Debian's sources, the libraries that wheels link statically and that Debian does not
# have in a usable static form. For another processor it also unpacks the packages to link.
#
#   scripts/wheel_libraries.sh ARCH ROOT     ARCH: x86_64 or aarch64; ROOT: the output folder
#
# Changes nothing of this system: apt runs with a configuration of its own below ROOT. A second call
# does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
arch=${1:?usage: scripts/wheel_libraries.sh ARCH ROOT}
mkdir -p "${2:?}"
root=$(cd "$2" && pwd)
case "$arch" in
  x86_64) debian=amd64 ;;
  aarch64) debian=arm64 ;;
  *) echo "wheel_libraries: unknown architecture '$arch'; known: x86_64, aarch64" >&2; exit 2 ;;
esac
sources=(curl prometheus-cpp cpp-httplib yaml-cpp pugixml)
packages=(libopenmpi-dev libopenmpi3 libhdf5-openmpi-dev libhdf5-openmpi-103-1 libssl-dev libzstd-dev zlib1g-dev)
wanted="$(cat "$0") $arch"
[ "$(cat "$root/.built" 2> /dev/null)" = "$wanted" ] && exit 0

export CCACHE_BASEDIR=$root
work=$root/work
rm -rf "$work"
mkdir -p "$work"/apt/{etc/apt/preferences.d,etc/apt/apt.conf.d,var/lib/apt/lists/partial,var/lib/dpkg,var/cache/apt/archives/partial}
touch "$work/apt/var/lib/dpkg/status"
key=/usr/share/keyrings/debian-archive-keyring.gpg
for suite in bookworm bookworm-updates; do
  printf "%s [signed-by=$key] http://deb.debian.org/debian $suite main\n" deb deb-src
done > "$work/apt/etc/apt/sources.list"
printf "%s [signed-by=$key] http://deb.debian.org/debian-security bookworm-security main\n" \
  deb deb-src >> "$work/apt/etc/apt/sources.list"
apt=(apt-get -qq -o "Dir=$work/apt" -o "Dir::State::status=$work/apt/var/lib/dpkg/status"
  -o "APT::Architecture=$debian" -o "APT::Architectures=$debian" -o APT::Sandbox::User=root)
"${apt[@]}" update

toolchain=()
if [ "$arch" != "$(uname -m)" ]; then
  mkdir -p "$work/packages"
  (cd "$work/packages" && "${apt[@]}" download "${packages[@]}")
  for package in "$work/packages"/*.deb; do dpkg-deb -x "$package" "$root"; done
  find "$root/usr" -name '*.pc' -type f -exec sed -i "s|/usr/|$root/usr/|g; s|^prefix=/usr\$|prefix=$root/usr|" {} +
  # The name from Debian's alternatives, by which CMake finds MPI without its wrapper compiler.
  (cd "$root/usr/lib/$arch-linux-gnu/pkgconfig" && ln -sf ompi-c.pc mpi-cxx.pc)
  toolchain=(--toolchain "$here/cmake/toolchains/$arch.cmake" "-DDRIFTLESS_ROOT=$root")
fi

(cd "$work" && "${apt[@]}" source "${sources[@]}" > source.log 2>&1) || { cat "$work/source.log" >&2; exit 1; }
launch=()
command -v ccache > /dev/null && launch=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# library NAME OPTION...: builds the source that apt unpacked to NAME-VERSION.
library() {
  local name=$1 log=$work/$1.log
  shift
  { cmake -G Ninja -S "$work/$name"-[0-9]*/ -B "$work/build/$name" "${toolchain[@]}" "${launch[@]}" \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
      -DCMAKE_C_VISIBILITY_PRESET=hidden -DCMAKE_CXX_VISIBILITY_PRESET=hidden \
      -DCMAKE_INSTALL_PREFIX="$root" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_TESTING=OFF "$@" &&
    cmake --build "$work/build/$name" -j "${JOBS:-2}" &&
    cmake --install "$work/build/$name"; } > "$log" 2>&1 || { tail -30 "$log" >&2; exit 1; }
}
library yaml-cpp -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF
library pugixml
library prometheus-cpp -DENABLE_PULL=OFF -DENABLE_PUSH=OFF -DENABLE_TESTING=OFF -DENABLE_COMPRESSION=OFF \
  -DGENERATE_PKGCONFIG=ON
# Only HTTP and HTTPS are used. Certificates are searched at run time (core/curl_easy.h).
if [ "$arch" = "$(uname -m)" ]; then ssl=/usr; else ssl=$root/usr; fi
library curl -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DCURL_USE_OPENSSL=ON -DCURL_CA_BUNDLE=none \
  -DCURL_CA_PATH=none -DCURL_CA_FALLBACK=OFF -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBSSH=OFF -DCURL_USE_LIBPSL=OFF \
  -DUSE_LIBIDN2=OFF -DUSE_NGHTTP2=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DCURL_ZLIB=OFF -DCURL_DISABLE_LDAP=ON \
  -DOPENSSL_INCLUDE_DIR="$ssl/include" \
  -DOPENSSL_SSL_LIBRARY="$ssl/lib/$arch-linux-gnu/libssl.a" \
  -DOPENSSL_CRYPTO_LIBRARY="$ssl/lib/$arch-linux-gnu/libcrypto.a"
sed -i 's/^Libs:.*/Libs: -L${libdir} -lcurl -lssl -lcrypto/' "$root/lib/pkgconfig/libcurl.pc"
# The header-only form: Debian's own package is split into a header and a library.
cp "$work"/cpp-httplib-[0-9]*/httplib.h "$root/include/"

# Licences of all linked libraries.
mkdir -p "$root/licences"
for name in "${sources[@]}"; do cp "$work/$name"-[0-9]*/debian/copyright "$root/licences/$name.txt"; done
for package in libssl-dev:openssl libzstd-dev:zstd zlib1g-dev:zlib nlohmann-json3-dev:nlohmann-json \
  libcli11-dev:cli11 libxxhash-dev:xxhash libstdc++-12-dev:libstdc++; do
  cp -L "/usr/share/doc/${package%%:*}/copyright" "$root/licences/${package##*:}.txt"
done
rm -rf "$work"
echo "$wanted" > "$root/.built"
